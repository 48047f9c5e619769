// The log: what is new is added at its end, and a search marks its lines.
import { element, ids, json } from "./view.js";

const log = document.getElementById("log");
const follow = document.getElementById("follow");
const search = document.getElementById("filter");
const found = document.getElementById("n-found");
const MOST_NODES = 20000; // older lines leave the page, not the store
let isAsking = false;

const toEnd = () => { if (follow.checked) log.scrollTop = log.scrollHeight; };

async function more() {
  if (!log || isAsking || !follow.checked) return;
  isAsking = true;
  try {
    const query = new URLSearchParams({ id: ids[0], after: log.dataset.after });
    if (log.dataset.rank) query.set("rank", log.dataset.rank);
    const chunk = await json(`/data/log?${query}`);
    for (const [text, look] of chunk.pieces) log.append(look ? element("span", { class: look }, text) : text);
    while (log.childNodes.length > MOST_NODES) log.firstChild.remove();
    log.dataset.after = chunk.after;
    if (chunk.pieces.length) {
      mark();
      toEnd();
    }
  } finally {
    isAsking = false;
  }
}

/** Mark the first 2,000 places with the text that is searched for. */
function mark() {
  for (const old of log.querySelectorAll("mark")) old.replaceWith(old.textContent);
  log.normalize();
  const wanted = search.value.toLowerCase();
  found.textContent = "";
  if (!wanted) return;
  let n = 0;
  const walker = document.createTreeWalker(log, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    let rest = node;
    for (let at = rest.data.toLowerCase().indexOf(wanted); at >= 0 && n < 2000; at = rest.data.toLowerCase().indexOf(wanted)) {
      const hit = rest.splitText(at);
      rest = hit.splitText(wanted.length);
      const marked = element("mark");
      hit.replaceWith(marked);
      marked.append(hit);
      n += 1;
    }
  }
  found.textContent = n ? `${n} found` : "not found";
  log.querySelector("mark")?.scrollIntoView({ block: "nearest" });
}

if (log) {
  document.addEventListener("news", more);
  search.addEventListener("input", mark);
  follow.addEventListener("change", more);
  toEnd();
}
