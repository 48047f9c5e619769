// The moment of a point: the checkpoint one would go back to, what the logs said, its media, and the code of its start.
import { valueText } from "./units.js";
import { copy, element, get, ids, json, list, number, set } from "./view.js";

const panel = document.getElementById("moment");
/** As the address says it: [run, metric, step], and of an overwritten branch its start. */
let shown = "";

const close = () => set({ moment: null }, { isStep: true });

/** Show the moment that is in the address, or none. */
function follow() {
  const wanted = get("moment") ?? "";
  if (wanted === shown) return;
  const [, before] = shown ? JSON.parse(shown) : [];
  shown = wanted;
  const [id, key, step, start] = list("moment");
  panel.hidden = !ids.includes(id);
  if (!panel.hidden) showMoment({ id, key, step, ...(start === undefined ? {} : { start }) });
  else [...document.querySelectorAll("article.card")].find((one) => decodeURIComponent(one.dataset.key) === before)?.focus();
}

const title = (text) => element("h3", {}, text);
const said = (text) => element("p", { class: "sub" }, text);

function copied(text) {
  const button = element("button", { type: "button", onclick: () => copy(text, button) }, "copy");
  return [element("pre", {}, text), button];
}

function checkpoint(one) {
  if (!one) return [element("p", {}, "There is no complete checkpoint before it.")];
  const verified = { right: "all its bytes were read and are right", "when stored": "verified when it was stored" }[one.verified];
  return [element("p", {}, `Step ${number(one.step)}, complete, ${verified ?? "not verified"}${one.is_pinned ? ", pinned" : ""}`), ...copied(one.restore_command)];
}

function log(one) {
  const lines = one.lines.map((line, at) => (at === one.found ? element("mark", {}, `${line}\n`) : `${line}\n`));
  return [said(`${one.rank === null ? "log" : `rank ${one.rank}`}, by the ${one.by} in its lines${one.by === "time" ? " (UTC)" : ""}`), element("pre", {}, ...lines)];
}

/** The logs of the first ranks, and a button that gets those of the next ones. */
function logs(found, asked) {
  const place = element("div", {}, ...found.logs.flatMap(log));
  if (!found.logs.length) place.append(element("p", {}, "No log says anything of this moment."));
  let next = (asked.first_rank ?? 0) + 8;
  const more = element("button", { type: "button", onclick: async () => {
    try {
      const rest = await json(`/data/moment?${new URLSearchParams({ ...asked, first_rank: next })}`);
      place.append(...rest.logs.flatMap(log));
      next += 8;
      more.hidden = next >= found.ranks.length;
    } catch (error) {
      place.append(element("p", { class: "note bad" }, error.message));
    }
  } }, "logs of the next ranks");
  more.hidden = next >= found.ranks.length;
  return [place, more];
}

function media(id, items) {
  return items.map((item) => {
    const source = `/file?${new URLSearchParams({ id, path: item.path })}`;
    if (item.kind !== "image" || item.size_bytes > 4e6) return element("p", {}, element("a", { href: source }, `${item.kind} ${item.key}`));
    return element("img", { src: source, alt: item.key, title: item.key });
  });
}

function code(one) {
  if (!one) return [element("p", {}, "No environment.json says which code ran then.")];
  const commit = one.commit ? `commit ${one.commit.slice(0, 12)}${one.branch ? ` on ${one.branch}` : ""}, ${one.is_dirty ? "with changes" : "without changes"}` : "not from a git repository";
  const shown = [element("p", {}, `${commit}${one.host ? `; host ${one.host}` : ""}`)];
  if (one.command) shown.push(element("pre", {}, one.command));
  if (one.diff) {
    const lines = one.diff.split("\n").slice(0, 5000).map((line) => element("span", { class: { "+": "added", "-": "removed", "@": "sub" }[line[0]] ?? null }, `${line}\n`));
    shown.push(element("details", { open: lines.length < 60 }, element("summary", {}, `changes, ${lines.length} lines${one.diff_is_cut ? ", cut off" : ""}`), element("pre", { class: "diff" }, ...lines)));
  }
  return shown;
}

async function showMoment(asked) {
  const address = shown;
  const head = element("h2", { id: "moment-title" }, `${asked.id} at step ${number(asked.step)}`);
  const shut = element("button", { type: "button", onclick: close }, "Close");
  panel.replaceChildren(shut, head, element("p", {}, "reading ..."));
  panel.focus();
  let found;
  try {
    found = await json(`/data/moment?${new URLSearchParams(asked)}`);
  } catch (error) {
    if (address === shown) panel.replaceChildren(shut, head, element("p", { class: "note bad" }, error.message));
    return;
  }
  if (address !== shown) return; // another one was asked for meanwhile
  const when = found.t === null ? "" : `, ${new Date(found.t * 1000).toISOString().replace("T", " ").slice(0, 19)}+00:00`;
  const attempt = `attempt ${found.attempt} of ${found.n_attempts}${asked.start === undefined ? "" : ", overwritten since"}`;
  panel.replaceChildren(
    shut, head,
    element("p", {}, `${asked.key} ${found.value === null ? "not a finite number" : valueText(asked.key, found.value)} at step ${number(found.step)}${when}, ${attempt}`),
    ...found.trouble.map((text) => element("p", { class: "note bad" }, text)),
    title("Last checkpoint before"), ...checkpoint(found.checkpoint),
    title(found.ranks.length > 1 ? `Logs of ${found.ranks.length} ranks` : "Log"), ...logs(found, asked),
    title("Media of this step"), ...(found.media.length ? media(asked.id, found.media) : [element("p", {}, "None.")]),
    title("Code"), ...code(found.code),
  );
}

panel?.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
document.addEventListener("view", follow);
follow();
