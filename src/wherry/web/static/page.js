// What all pages share: keys, what is live, links and commands to copy.
import "./ages.js";
import { copy, ids, json, swap, visible } from "./view.js";

const by = (id) => document.getElementById(id);
const trouble = by("trouble");

// Live: the server says when something is new. A hidden page asks for nothing.
let source = null;
let isLive = true;
const isFresh = !document.querySelector("form.sticky#view"); // pages of charts fetch points, not themselves

function connect() {
  const wanted = isLive && !document.hidden;
  if (wanted && !source) {
    const query = new URLSearchParams(ids.map((id) => ["id", id]));
    if (document.body.dataset.version) query.set("version", document.body.dataset.version);
    source = new EventSource(`/live?${query}`);
    source.addEventListener("news", news);
    source.addEventListener("usage", (event) => { by("usage").textContent = JSON.parse(event.data).text; });
    source.addEventListener("trouble", (event) => say(JSON.parse(event.data).text));
    source.addEventListener("open", () => say(""));
    source.addEventListener("error", () => say("`wherry ui` does not answer: what is shown is what it said last."));
  } else if (!wanted && source) {
    source.close();
    source = null;
  }
}

function say(text) {
  trouble.textContent = visible(text);
  trouble.hidden = !text;
}

let isSwapping = false;
let isWanted = false; // what comes while the page is fetched may not be in it yet
async function news() {
  isWanted = true;
  if (isSwapping) return;
  isSwapping = true;
  try {
    while (isWanted) {
      isWanted = false;
      if (isFresh && !document.querySelector("#fresh :is(audio, video)")) await swap(location.href, "head", "fresh");
      else await swap(location.href, "head", "figure", "n-metrics", "none-yet", ...[...document.querySelectorAll(".numbers")].map((one) => one.id));
      document.dispatchEvent(new CustomEvent("news"));
    }
  } catch (error) {
    say(String(error.message || error));
  } finally {
    isSwapping = false;
  }
}

by("live").addEventListener("click", () => {
  isLive = !isLive;
  by("live").setAttribute("aria-pressed", String(isLive));
  connect();
});
document.addEventListener("visibilitychange", connect);
addEventListener("pagehide", () => source?.close());

// Buttons that need a script are shown by it.
for (const id of ["live", "copy-link", "help"]) by(id).hidden = false;
by("copy-link").addEventListener("click", (event) => copy(location.href, event.currentTarget));
by("help").addEventListener("click", () => by("keys").showModal());

function showCopies() {
  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button.dataset.copy, button);
});
document.addEventListener("swapped", showCopies);
showCopies();

for (const button of document.querySelectorAll("button.command")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const query = new URLSearchParams(location.search);
    query.set("verb", button.dataset.verb);
    json(`/data/command?${query}`).then((answer) => copy(answer.command, button)).catch((error) => say(error.message));
  });
}

// Keys. What is moved along by j and k: the runs at the left while the focus is there, else those of a table, or charts.
const THINGS = "#choice tr[data-id], article.card";
const things = () => [...document.querySelectorAll(document.activeElement?.closest("#rail") ? "#rail li[data-id]" : THINGS)].filter((one) => one.checkVisibility());

function move(by_) {
  const all = things();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by_))];
  for (const one of document.querySelectorAll("tr.at")) one.classList.remove("at");
  if (next.matches("tr")) next.classList.add("at");
  (next.querySelector("a[href^='/run']") ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const current = () => document.activeElement?.closest("li[data-id], tr[data-id], article.card") || document.querySelector("tr.at");

function toRail() {
  if (!by("rail")) return;
  by("rail").open = true;
  focus("find");
}

const press = (selector, inside = document) => inside?.querySelector(selector)?.click();
const focus = (id) => by(id)?.focus();
const KEYS = {
  "/": () => focus("filter"),
  j: () => move(1),
  k: () => move(-1),
  x: () => press("input[name=id]", current()),
  n: toRail,
  h: () => press("button.eye", current()),
  p: () => press("button.pin", current()),
  b: () => press("button.baseline", current()),
  c: () => press("#compare"),
  g: () => focus("group"),
  l: () => press("input[name=log]"),
  s: () => document.querySelector("input[name=smooth]")?.focus(),
  "[": () => press("#earlier"),
  "]": () => press("#later"),
  r: () => by("live").click(),
  "?": () => by("keys").showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox], [type=range]), select, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

connect();
