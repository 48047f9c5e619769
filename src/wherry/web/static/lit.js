// The run that the pointer is at, in a chart or in a table: it stands out wherever it is shown.
let lit = null;

export const isLit = (name) => lit === name;

/** How strongly a line is drawn: all but those of the lit run are pale. */
export const strength = (name) => (lit === null || lit === name ? 1 : 0.35);

/** Light the run, or no run for null; those who listen to "lit" draw it. */
export function light(name) {
  if (name === lit) return;
  lit = name;
  for (const one of document.querySelectorAll("#rail li, #legend tr, .parallel polyline, .readout div")) one.classList.toggle("lit", lit !== null && (one.dataset.id ?? one.dataset.name) === lit);
  document.dispatchEvent(new CustomEvent("lit"));
}

/** Light the run of the row that the pointer or the focus is in. */
export function listen(place) {
  const lightRow = (event) => light(event.target.closest("[data-id]")?.dataset.id ?? null);
  for (const name of ["mouseover", "focusin"]) place.addEventListener(name, lightRow);
  for (const name of ["mouseleave", "focusout"]) place.addEventListener(name, () => light(null));
}
