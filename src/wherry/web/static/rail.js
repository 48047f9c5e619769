// The runs at the left: shown, hidden, pinned, the baseline, chosen to be compared. What is true of a run is marked wherever it is.
import { listen } from "./lit.js";
import { get, ids, list, set } from "./view.js";

const rail = document.getElementById("rail");
const rows = document.getElementById("rail-rows");
const find = document.getElementById("find");
const chosen = new Set(ids);
/** What of a view is true of other runs as well. */
const CARRIED = ["x", "smooth", "log", "logx", "clip", "keys", "pin", "open", "top", "find"];
const PINS = ["pin", "top"];
const kept = `wherry pins ${document.body.dataset.uris}`;

/** The address of this view over other runs. */
function address(path, others, more = {}) {
  const query = new URLSearchParams(others.map((id) => ["id", id]));
  for (const [name, value] of Object.entries(more)) if (value) query.set(name, value);
  for (const name of CARRIED) if (get(name)) query.set(name, get(name));
  return `${path}?${query}`;
}

/** Do what moves rows or makes them anew, and give the focus back to what had it. */
function keepFocus(change) {
  const had = document.activeElement;
  const [id, kind] = [had?.closest("#rail li")?.dataset.id, had?.matches("button") ? `button.${had.className}` : had?.localName];
  change();
  if (id !== undefined && document.activeElement !== had) rowOf(id)?.querySelector(kind)?.focus({ preventScroll: true });
}

const rowOf = (id) => [...rows.querySelectorAll("li[data-id]")].find((row) => row.dataset.id === id);

function arrange() {
  const [hidden, pins, base] = [new Set(list("hide")), list("top"), get("base")];
  const all = [...rows.querySelectorAll("li[data-id]")];
  for (const row of all) {
    const { id } = row.dataset;
    const isShown = ids.includes(id);
    const pressed = { eye: isShown && !hidden.has(id), pin: pins.includes(id), baseline: base === id };
    for (const [name, isPressed] of Object.entries(pressed)) {
      const button = row.querySelector(`button.${name}`);
      button.hidden = name === "baseline" && !isShown;
      button.setAttribute("aria-pressed", String(isPressed));
      button.tabIndex = row.contains(document.activeElement) ? 0 : -1;
    }
    row.classList.toggle("off", isShown && hidden.has(id));
    row.classList.toggle("pinned", pressed.pin);
    row.querySelector("input").checked = chosen.has(id);
    row.querySelector("a").href = address("/run", [id], { tab: get("tab") });
  }
  const place = ({ dataset }) => [pins.includes(dataset.id) ? pins.indexOf(dataset.id) : pins.length, Number(dataset.at)];
  const sorted = all.toSorted((one, other) => place(one)[0] - place(other)[0] || place(one)[1] - place(other)[1]);
  if (sorted.some((row, at) => row !== all[at])) keepFocus(() => rows.querySelector("ul").append(...sorted));
  document.getElementById("n-chosen").textContent = `${chosen.size} chosen`;
  for (const row of document.querySelectorAll("#legend tr[data-id]")) row.classList.toggle("off", hidden.has(row.dataset.id));
  for (const line of document.querySelectorAll(".parallel polyline")) line.classList.toggle("off", hidden.has(line.dataset.id));
}

const toggled = (names, name) => (names.includes(name) ? names.filter((one) => one !== name) : [...names, name]);

rows.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const id = button?.closest("li").dataset.id;
  if (!button) return;
  if (button.matches(".pin")) set({ top: toggled(list("top"), id) });
  else if (button.matches(".baseline")) set({ base: get("base") === id ? null : id });
  else if (ids.includes(id)) set({ hide: toggled(list("hide"), id) });
  else location.assign(address("/compare", [...ids, id]));
});
rows.addEventListener("change", ({ target }) => {
  if (target.checked) chosen.add(target.value);
  else chosen.delete(target.value);
  arrange();
});
document.getElementById("choice").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chosen.size) location.assign(address("/compare", [...chosen]));
});
// Of the buttons only those of the row that has the focus are on the way of the Tab key.
rows.addEventListener("focusin", arrange);

let known = null;
let asked = 0;
/** The rows as the server has them now: they change while runs go on, and with the search. */
async function refresh() {
  const query = new URLSearchParams(ids.map((id) => ["id", id]));
  for (const name of ["find", "tab"]) if (get(name)) query.set(name, get(name));
  asked += 1;
  const mine = asked;
  const answer = await fetch(`/rail?${query}`);
  const text = await answer.text();
  if (!answer.ok || text === known || mine !== asked) return;
  known = text;
  keepFocus(() => rows.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes));
  arrange();
}

find.addEventListener("input", () => {
  set({ find: find.value });
  refresh();
});
find.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "Enter") rows.querySelector("li a")?.focus();
  else return;
  event.preventDefault();
});

document.addEventListener("view", (event) => {
  if (PINS.some((name) => event.detail.includes(name))) localStorage.setItem(kept, JSON.stringify(Object.fromEntries(PINS.map((name) => [name, list(name)]))));
  arrange();
});
for (const name of ["news", "swapped"]) document.addEventListener(name, name === "news" ? refresh : arrange);

// Pins are kept for these runs' next visit; an address that has pins of its own comes first.
if (!PINS.some(get)) set(JSON.parse(localStorage.getItem(kept) ?? "{}"));
if (matchMedia("(min-width: 900px)").matches) rail.open = true;
for (const place of document.querySelectorAll("#rail-rows, #head")) listen(place);
arrange();
