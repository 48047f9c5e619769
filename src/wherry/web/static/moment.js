// The moment of a point: what the log said, which media there are, and the checkpoint one would go back to.
import { copy, element, json, number } from "./view.js";

const panel = document.getElementById("moment");
let opener = null;

function close() {
  panel.hidden = true;
  opener?.focus();
}

const title = (text) => element("h3", {}, text);

function checkpoint(one) {
  if (!one) return [element("p", {}, "There is no complete checkpoint before it.")];
  const button = element("button", { type: "button", onclick: () => copy(one.restore_command, button) }, "copy");
  return [
    element("p", {}, `Step ${number(one.step)}, complete${one.verified ? `, verified: ${one.verified}` : ", not verified yet"}`),
    element("pre", {}, one.restore_command),
    button,
  ];
}

function log(one) {
  const lines = one.lines.map((line, at) => (at === one.found ? element("mark", {}, `${line}\n`) : `${line}\n`));
  return [element("p", { class: "sub" }, one.rank === null ? "log" : `rank ${one.rank}`), element("pre", {}, ...lines)];
}

function media(id, items) {
  return items.map((item) => {
    const source = `/file?${new URLSearchParams({ id, path: item.path })}`;
    if (item.kind !== "image" || item.size_bytes > 4e6) return element("p", {}, element("a", { href: source }, `${item.kind} ${item.key}`));
    return element("img", { src: source, alt: item.key, title: item.key });
  });
}

export async function showMoment(id, key, step, from) {
  opener = from;
  const head = element("h2", { id: "moment-title" }, `${id} at step ${number(step)}`);
  const shut = element("button", { type: "button", onclick: close }, "Close");
  panel.replaceChildren(shut, head, element("p", {}, "reading ..."));
  panel.hidden = false;
  panel.focus();
  let found;
  try {
    found = await json(`/data/moment?${new URLSearchParams({ id, key, step })}`);
  } catch (error) {
    panel.replaceChildren(shut, head, element("p", { class: "note bad" }, error.message));
    return;
  }
  const when = found.t === null ? "" : `, ${new Date(found.t * 1000).toISOString().replace("T", " ").slice(0, 19)}+00:00`;
  panel.replaceChildren(
    shut, head,
    element("p", {}, `${key} ${found.value === null ? "not a finite number" : number(found.value)} at step ${number(found.step)}${when}, attempt ${found.attempt}`),
    ...found.trouble.map((text) => element("p", { class: "note bad" }, text)),
    title("Last checkpoint before"), ...checkpoint(found.checkpoint),
    title("Log"), ...(found.logs.length ? found.logs.flatMap(log) : [element("p", {}, "No line of the log's end belongs to this step.")]),
    title("Media of this step"), ...(found.media.length ? media(id, found.media) : [element("p", {}, "None.")]),
  );
}

panel?.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
