// The view is the address: what is chosen on a page is read from its query and written into it, so that a link shows the same.
export { element, number, visible } from "./basics.js";

export const ids = JSON.parse(document.body.dataset.ids || "[]");

export const get = (name) => new URLSearchParams(location.search).get(name);

export const list = (name) => (get(name) ? JSON.parse(get(name)) : []);

/** Write names and values into the address (null and "" take a name out), and tell those who listen to "view". */
export function set(changes, { isStep = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    const text = Array.isArray(value) ? (value.length ? JSON.stringify(value) : null) : value;
    if (text === null || text === "" || text === false) query.delete(name);
    else query.set(name, text === true ? "1" : String(text));
  }
  const address = `${location.pathname}${query.size ? `?${query}` : ""}`;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  document.dispatchEvent(new CustomEvent("view", { detail: Object.keys(changes) }));
}

/** Do what makes the inside of `place` anew, and give the focus to what stands where it was: in the row of the same run, or else the same place. */
function keepFocus(place, change) {
  const had = document.activeElement;
  const isInside = had !== place && place.contains(had);
  const row = had?.closest("[data-id]")?.dataset.id;
  const found = () => [...((row !== undefined && [...place.querySelectorAll("[data-id]")].find((one) => one.dataset.id === row)) || place).querySelectorAll("a, button, input, select, summary, [tabindex]")];
  const at = isInside ? found().indexOf(had) : -1;
  change();
  if (at >= 0) found()[at]?.focus({ preventScroll: true });
}

/** Put the inside of `made` into `old`; what was folded up there, or open, stays so. */
function replace(old, made) {
  const folds = (place) => [...place.querySelectorAll("details")];
  const open = folds(old).map((one) => one.open);
  if (folds(made).length === open.length) folds(made).forEach((one, at) => { one.open = open[at]; });
  old.replaceChildren(...document.adoptNode(made).childNodes);
}

/** The elements of a page that was fetched anew take the places of those with the same id here. */
export async function swap(address, ...names) {
  const answer = await fetch(address);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const name of names) {
    const [old, made] = [document.getElementById(name), fresh.getElementById(name)];
    if (old && made && old.innerHTML !== made.innerHTML) keepFocus(old, () => replace(old, made));
  }
  if (fresh.body.dataset.version) document.body.dataset.version = fresh.body.dataset.version;
  document.dispatchEvent(new CustomEvent("swapped", { detail: fresh }));
  return answer.ok;
}

export async function copy(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed here"; // clipboards need https or localhost
  }
  setTimeout(() => { button.textContent = said; }, 1500);
}

export async function json(address, signal) {
  const answer = await fetch(address, { signal });
  if (!answer.ok) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    throw new Error(page.querySelector("#error")?.textContent || `the page answered ${answer.status}`);
  }
  return answer.json();
}
