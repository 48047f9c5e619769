// One chart: from the points that the server sends to uPlot, and its marks.
import { labels, part, relative } from "./axis.js";
import { strength } from "./lit.js";
import { unlessHeld } from "./readout.js";
import { baseOf, marksOf, stepsOf } from "./units.js";
import { get, list, visible } from "./view.js";

const HEIGHT = 220;
/** So wide is the y axis of most charts, whose curves then are below each other. */
const LEAST_AXIS = 58;
const DASHES = [[], [6, 3], [2, 2], [8, 2, 2, 2]];
const style = () => getComputedStyle(document.documentElement);
export const colour = (n) => style().getPropertyValue(`--c${n}`).trim();

/** What is drawn: lines with x, y, and a look. Of hidden runs nothing. */
export function linesOf(data) {
  const hidden = new Set(list("hide"));
  const base = get("base");
  const lines = [];
  data.runs.filter((run) => run.lines && !hidden.has(run.id)).forEach((run) => {
    const isSmooth = run.lines.some((line) => line.kind === "smooth");
    for (const line of run.lines) {
      const look = { stroke: colour(run.colour), dash: DASHES[run.dash], width: run.id === base ? 3 : 1.5, alpha: 1 };
      if (line.kind === "older") Object.assign(look, { dash: [2, 2], width: 1.25, alpha: 0.6 });
      if (line.kind === "raw" && isSmooth) Object.assign(look, { width: 1, alpha: 0.3 });
      lines.push({ ...look, run, kind: line.kind, name: run.id, x: line.x, y: line.y, step: line.step, start: line.start });
    }
  });
  const bands = data.runs.length && data.runs.every((run) => hidden.has(run.id)) ? [] : data.bands;
  bands.forEach((band, number) => {
    const look = { stroke: colour(number % 10), dash: DASHES[Math.floor(number / 10) % DASHES.length], name: band.group, band, x: band.x };
    lines.push({ ...look, width: 2, alpha: 1, kind: "mean", y: band.mean });
    lines.push({ ...look, width: 0, alpha: 0.5, kind: "high", y: band.high });
    lines.push({ ...look, width: 0, alpha: 0.5, kind: "low", y: band.low });
  });
  if (get("logx") !== "1") return lines.filter((line) => line.x.length);
  return lines.map((line) => {
    const kept = line.x.map((x, at) => at).filter((at) => line.x[at] > 0);
    const of = (all) => all && kept.map((at) => all[at]);
    return { ...line, x: of(line.x), y: of(line.y), step: of(line.step), n_not_positive_x: line.x.length - kept.length };
  }).filter((line) => line.x.length);
}

/** One table for uPlot, with the x of all lines. */
const tableOf = (lines) => (lines.length === 1 ? [lines[0].x, lines[0].y] : uPlot.join(lines.map((line) => [line.x, line.y])));

/** What makes two tables fit the same chart; with another look a new chart is made. */
export const lookOf = (lines) => JSON.stringify([lines.map(({ name, kind, stroke, dash, width, alpha }) => [name, kind, stroke, dash, width, alpha]), ...["x", "log", "logx", "clip", "low", "high"].map(get)]);

/** The part of x that is looked at, and not the next points beyond it, up to which lines go on. */
function seen(_chart, least, most) {
  const [low, high] = [Math.max(least, get("low") ?? least), Math.min(most, get("high") ?? most)];
  return low < high ? [low, high] : [least, most];
}

/** How wide an axis is by its labels; asked again, it keeps to its word. */
function widthOf(chart, texts, at, cycle) {
  const axis = chart.axes[at];
  if (cycle > 1) return axis._size;
  chart.ctx.font = axis.font[0];
  const widest = Math.max(0, ...(texts ?? []).map((text) => chart.ctx.measureText(text).width));
  return Math.max(LEAST_AXIS, Math.ceil(axis.ticks.size + axis.gap + widest / devicePixelRatio));
}

/** A new uPlot. `on`: zoom(low, high), point(chart), cursor(chart). */
export function make(place, data, lines, on) {
  const shown = { data, lines };
  const text = style().getPropertyValue("--muted").trim();
  const grid = style().getPropertyValue("--line").trim();
  const axis = { stroke: text, grid: { stroke: grid, width: 0.5 }, ticks: { stroke: grid, width: 0.5 }, font: "11px system-ui, sans-serif" };
  const axisX = get("x") || "step";
  const bands = lines.flatMap((line, at) => (line.kind === "high" ? [{ series: [at + 1, at + 2], fill: `${line.stroke}33` }] : []));
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    scales: {
      x: { time: axisX === "time", distr: get("logx") === "1" ? 3 : 1, ...(get("low") || get("high") ? { range: seen } : {}) },
      y: { distr: get("log") === "1" ? 3 : 1, log: baseOf(data.key), ...(get("clip") === "1" ? { range: (_, low, high) => shown.data.clip ?? [low, high] } : {}) },
    },
    axes: [
      { ...axis, size: 30, ...(axisX === "time" ? {} : { values: (_, all) => (axisX === "relative" ? all.map((one) => (one === null ? "" : relative(one))) : labels(all)) }) },
      { ...axis, size: widthOf, ...stepsOf(data.key), values: (chart, all) => marksOf(data.key, all, chart.scales.y) },
    ],
    series: [{}, ...lines.map(({ stroke, dash, width, alpha, kind, x }) => ({
      stroke, dash, width, alpha, points: { show: kind === "low" || kind === "high" ? false : x.length < 2 ? true : undefined, size: 5 },
    }))],
    bands,
    cursor: {
      drag: { x: true, y: false, setScale: false },
      sync: { key: "x", scales: ["x", null], setSeries: false, filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
      points: { size: 6 },
      // Of a branch that was left only a point at the cursor: its end is no news for what lies beyond.
      hover: { prox: (_, at) => (lines[at - 1]?.kind === "older" ? 3 : 30), skip: [null, undefined] }, // no dot where a line has no point
      bind: { mousemove: unlessHeld, mouseleave: unlessHeld },
    },
    hooks: {
      setSelect: [(chart) => {
        if (chart.select.width < 3) return;
        const { left, width } = chart.select;
        chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        on.zoom(...part(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"), width));
      }],
      setCursor: [on.cursor],
      draw: [(chart) => marks(chart, shown.data, shown.lines)],
    },
  };
  const chart = new uPlot(options, tableOf(lines), place);
  chart.shown = shown;
  paint(chart, lines);
  chart.over.addEventListener("dblclick", () => on.zoom(null, null));
  chart.over.addEventListener("click", () => on.point(chart));
  return chart;
}

/** Draw other points of the same look. */
export function renew(chart, data, lines) {
  Object.assign(chart.shown, { data, lines });
  chart.setData(tableOf(lines));
}

/** Its picture is given back at once: the collector comes late while somebody scrolls over hundreds of charts. */
export function destroy(chart) {
  const { canvas } = chart.ctx;
  chart.destroy();
  canvas.width = canvas.height = 0;
}

/** The lines as strong as the lit run wants it. Their paths are kept. */
export function paint(chart, lines) {
  const alphas = lines.map((line) => line.alpha * strength(line.name));
  if (alphas.every((alpha, at) => chart.series[at + 1].alpha === alpha)) return;
  alphas.forEach((alpha, at) => { chart.series[at + 1].alpha = alpha; });
  chart.redraw(false);
}

/** NaN and infinities as marks at the lower and upper edge, a tick at each restart, a diamond at each checkpoint. */
function marks(chart, data, lines) {
  const shown = new Set(lines.map((line) => line.run?.id));
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.setLineDash([]);
  for (const run of data.runs.filter((one) => one.lines && shown.has(one.id))) {
    ctx.strokeStyle = ctx.fillStyle = colour(run.colour);
    ctx.lineWidth = 1.5 * ratio;
    const at = (x) => {
      const place = chart.valToPos(x, "x", true);
      return place >= bbox.left && place <= bbox.left + bbox.width ? place : null;
    };
    for (const x of run.restarts) {
      const place = at(x);
      if (place === null) continue;
      ctx.beginPath();
      ctx.moveTo(place, bbox.top + bbox.height);
      ctx.lineTo(place, bbox.top + bbox.height - 14 * ratio);
      ctx.stroke();
    }
    for (const x of run.checkpoints) {
      const place = at(x);
      if (place === null) continue;
      const [y, size] = [bbox.top + bbox.height, 4 * ratio];
      ctx.beginPath();
      for (const [right, down] of [[0, -2 * size], [size, -size], [0, 0], [-size, -size]]) ctx.lineTo(place + right, y + down);
      ctx.closePath();
      ctx.fill();
    }
    for (const [name, mark] of Object.entries(run.marks)) {
      const isTop = name === "+inf";
      const y = isTop ? bbox.top : bbox.top + bbox.height;
      const size = (isTop ? 6 : -6) * ratio;
      for (const x of mark.x) {
        const place = at(x);
        if (place === null) continue;
        ctx.beginPath();
        if (name === "NaN") {
          ctx.moveTo(place - 3 * ratio, y + size);
          ctx.lineTo(place + 3 * ratio, y);
          ctx.moveTo(place + 3 * ratio, y + size);
          ctx.lineTo(place - 3 * ratio, y);
          ctx.stroke();
        } else {
          ctx.moveTo(place, y);
          ctx.lineTo(place - 4 * ratio, y + size);
          ctx.lineTo(place + 4 * ratio, y + size);
          ctx.fill();
        }
      }
    }
  }
  ctx.restore();
}

/** How much of the data is seen, in words. */
export function said(data, lines) {
  const words = [];
  const hidden = new Set(list("hide"));
  const runs = data.runs.filter((run) => run.lines && !hidden.has(run.id));
  const sum = (what) => runs.reduce((total, run) => total + what(run), 0);
  const whole = (value) => value.toLocaleString("en");
  if (runs.length) {
    const [n, of] = [sum((run) => run.lines[0].n), sum((run) => run.lines[0].n_of)];
    const total = sum((run) => run.n_total);
    words.push(n < of ? `${whole(n)} of ${whole(of)}, spikes kept` : `all ${whole(n)} point${n === 1 ? "" : "s"}`);
    if (get("low") || get("high")) words.push(`of this part; ${whole(total)} in all`);
    if (runs.some((run) => run.tail_only)) words.push("only the end of the file; the rest is being read");
    for (const name of ["NaN", "+inf", "-inf"]) {
      const count = sum((run) => run.marks[name]?.n ?? 0);
      if (count) words.push(`${whole(count)} ${name}`);
    }
    const negative = sum((run) => run.n_not_positive);
    if (negative) words.push(`${whole(negative)} not above 0, not drawn`);
    if (get("clip") === "1" && sum((run) => run.n_clipped)) words.push(`${whole(sum((run) => run.n_clipped))} outside of the axis`);
    const older = sum((run) => run.lines.filter((line) => line.kind === "older").reduce((count, line) => count + line.n_of, 0));
    const restarts = sum((run) => run.n_restarts);
    if (restarts) words.push(`${whole(restarts)} restart${restarts === 1 ? "" : "s"} (tick)`);
    const checkpoints = sum((run) => run.n_checkpoints);
    if (checkpoints) words.push(`${whole(checkpoints)} checkpoint${checkpoints === 1 ? "" : "s"} (◆)`);
    if (older) words.push(`${whole(older)} overwritten by a restart, pale`);
  }
  words.push(...saidOfBands([...new Set(lines.map((line) => line.band).filter((band) => band))], whole));
  const outside = lines.reduce((total, line) => total + (line.n_not_positive_x ?? 0), 0);
  if (outside) words.push(`${whole(outside)} at x not above 0, not drawn`);
  const missing = data.runs.filter((run) => run.missing && !hidden.has(run.id)).length;
  if (missing) words.push(`${missing} run${missing === 1 ? " has" : "s have"} no such metric`);
  for (const run of data.runs.filter((one) => one.trouble)) words.push(`${run.id}: ${run.trouble}`);
  if (!lines.length && !data.runs.some((run) => run.trouble)) words.push(hidden.size ? "nothing of what is shown" : "no points to draw");
  return visible(words.join(" · "));
}

function saidOfBands(bands, whole) {
  if (!bands.length) return [];
  const sum = (name) => bands.reduce((total, band) => total + band[name], 0);
  const words = [`mean, least and greatest of ${whole(sum("n_points"))} points${get("low") || get("high") ? " of this part" : ""}`];
  const [n, of] = [bands.reduce((total, band) => total + band.x.length, 0), sum("n_places")];
  if (n < of) words.push(`${whole(n)} of ${whole(of)} places of x, spikes kept`);
  if (bands.some((band) => band.tail_only)) words.push("only the end of the file; the rest is being read");
  if (sum("n_not_finite")) words.push(`${whole(sum("n_not_finite"))} NaN or infinite, not in it`);
  if (sum("n_not_positive")) words.push(`${whole(sum("n_not_positive"))} not above 0, not in it`);
  return words;
}
