// The numbers at the cursor: of every run at that place of x, in all charts. Shift holds them; the line next to the cursor lights its run.
import { xText } from "./axis.js";
import { isLit, light } from "./lit.js";
import { valueText } from "./units.js";
import { element, get } from "./view.js";

/** A readout of a chart that the pointer is not in has no more rows than the chart is high. */
const MOST_ROWS = 11;
/** A line further from the pointer than this is not meant. */
const NEAR_PX = 40;
let isHeld = false;

document.addEventListener("keydown", (event) => { if (event.key === "Shift") hold(true); });
document.addEventListener("keyup", (event) => { if (event.key === "Shift") hold(false); });
addEventListener("blur", () => hold(false));

function hold(held) {
  isHeld = held;
  document.documentElement.classList.toggle("held", held);
}

/** For uPlot's `cursor.bind`: while Shift is held the pointer moves nothing. */
export const unlessHeld = (_chart, _target, handle) => (event) => (isHeld ? null : handle(event));

const isValue = (line) => !["low", "high", "older"].includes(line.kind);

/** Which point of the line is nearest to x; -1 where the line has not begun or has ended. */
export function pointAt(line, x) {
  const all = line.x;
  if (!all.length || x < all[0] || x > all[all.length - 1]) return -1;
  let [low, high] = [0, all.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (all[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - all[low - 1] < all[low] - x ? low - 1 : low;
}

/** The line whose point at the cursor is next to it: [line, index of the point]; null if there is none. */
export function nearest(chart, lines) {
  if (!(chart.cursor.left >= 0)) return null;
  const x = chart.posToVal(chart.cursor.left, "x");
  let [found, least] = [null, Infinity];
  for (const line of lines) {
    const at = line.kind === "low" || line.kind === "high" ? -1 : pointAt(line, x);
    const distance = at < 0 || line.y[at] === null ? Infinity : Math.abs(chart.valToPos(line.y[at], "y") - chart.cursor.top);
    if (distance < least) [least, found] = [distance, [line, at, distance]];
  }
  return found;
}

/** One entry a run or group at this x, the greatest first; those that have no point there last. */
export function valuesAt(lines, x) {
  const found = new Map();
  for (const [place, line] of lines.entries()) {
    if (!isValue(line)) continue;
    const at = pointAt(line, x);
    const one = found.get(line.name) ?? { name: line.name, stroke: line.stroke, dash: line.dash };
    if (at >= 0) one[line.kind === "smooth" ? "smooth" : "y"] = line.y[at];
    if (at >= 0 && line.kind !== "smooth") one.x = line.x[at];
    if (at >= 0 && line.band) one.band = { low: lines[place + 2].y[at], high: lines[place + 1].y[at], n: line.band.n[line.band.x.indexOf(line.x[at])] };
    found.set(line.name, one);
  }
  const size = (one) => one.smooth ?? one.y ?? -Infinity;
  return [...found.values()].sort((one, other) => size(other) - size(one));
}

function swatch({ stroke, dash }) {
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawn.setAttribute("viewBox", "0 0 16 8");
  drawn.innerHTML = '<path d="M0 4h16" stroke-width="2"/>';
  drawn.firstChild.setAttribute("stroke", stroke);
  drawn.firstChild.setAttribute("stroke-dasharray", dash.join(" "));
  return drawn;
}

/** Which line is which group, and how many of its runs have points here. Runs have the list at the left. */
export function legend(lines, place) {
  const groups = lines.filter((line) => line.kind === "mean");
  place.hidden = !groups.length;
  place.replaceChildren(...groups.map((line) => {
    const { group, n_runs: n, n_of: of } = line.band;
    return element("li", {}, swatch(line), `${get("group") ?? "group"} ${group}: ${n} of ${of} run${of === 1 ? "" : "s"}`);
  }));
}

function rowOf(key, one, x, isMany) {
  const text = (value) => valueText(key, value);
  const words = [one.y === undefined ? "-" : text(one.y)];
  if (one.smooth !== undefined) words.push(`smoothed ${text(one.smooth)}`);
  if (one.band) words.push(`${text(one.band.low)} to ${text(one.band.high)}`, `${one.band.n} run${one.band.n === 1 ? "" : "s"}`);
  if (one.x !== undefined && one.x !== x) words.push(`at ${xText(one.x)}`);
  return element("div", { class: isLit(one.name) ? "lit" : null, "data-name": one.name }, isMany ? swatch(one) : null, isMany ? element("span", {}, one.name) : null, ` ${words.join(", ")}`);
}

/** Show the numbers at the chart's cursor in `place`, and light the run next to the pointer if it is in this chart. */
export function read(chart, lines, place) {
  const isHere = chart.over.matches(":hover");
  const index = chart.cursor.idx;
  place.replaceChildren();
  if (!lines || index === null || index === undefined || !(chart.cursor.left >= 0)) {
    if (isHere || !document.querySelector(".u-over:hover, [data-id]:hover")) light(null);
    return;
  }
  const near = isHere ? nearest(chart, lines) : null;
  if (isHere) light(near && near[2] < NEAR_PX ? near[0].name : null);
  const x = chart.data[0][index];
  const values = valuesAt(lines, x);
  const isOwn = isHere || place.closest("article").contains(document.activeElement);
  const shown = isOwn || values.length <= MOST_ROWS ? values : values.slice(0, MOST_ROWS - 1);
  place.classList.toggle("left", chart.cursor.left > chart.over.clientWidth / 2);
  place.classList.toggle("many", shown.length > MOST_ROWS);
  place.append(element("div", { class: "x" }, `${get("x") || "step"} ${xText(x)}`), ...shown.map((one) => rowOf(chart.shown.data.key, one, x, values.length > 1)));
  if (shown.length < values.length) place.append(element("div", {}, `and ${values.length - shown.length} more`));
}
