// The table of runs: choosing some of them, which is kept while the table is fetched anew.
const chosen = new Set([...document.querySelectorAll("input[name=id]:checked")].map((box) => box.value));

function show() {
  for (const box of document.querySelectorAll("input[name=id]")) box.checked = chosen.has(box.value);
  const said = document.getElementById("n-chosen");
  if (said) said.textContent = chosen.size ? `${chosen.size} chosen` : "choose at least one";
}

document.addEventListener("change", (event) => {
  if (event.target.name !== "id") return;
  if (event.target.checked) chosen.add(event.target.value);
  else chosen.delete(event.target.value);
  show();
});
document.addEventListener("submit", (event) => {
  if (event.target.id === "choice" && !chosen.size) event.preventDefault();
});
document.addEventListener("swapped", show);
show();
