// A chart as a file: PNG as it is seen, SVG as lines.
import { xText } from "./axis.js";
import { marksOf } from "./units.js";
import { element, visible } from "./view.js";

function hand(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** As XML, which has no control characters. */
const escape = (text) => visible(text).replace(/[\t\n\r\ufffe\uffff]/g, "?").replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);

function svg(title, chart, lines) {
  const { left, top, width, height } = chart.over.getBoundingClientRect();
  const frame = chart.root.getBoundingClientRect();
  const [x0, y0] = [left - frame.left, top - frame.top + 20];
  const points = (line) => line.x.map((x, at) => `${(x0 + chart.valToPos(x, "x")).toFixed(1)},${(y0 + chart.valToPos(line.y[at], "y")).toFixed(1)}`);
  const bands = lines.flatMap((line, at) => (line.kind === "high" ? [`<polygon points="${[...points(line), ...points(lines[at + 1]).reverse()].join(" ")}" fill="${line.stroke}" fill-opacity="0.2"/>`] : []));
  const paths = lines.filter((line) => line.width).map((line) => `<polyline points="${points(line).join(" ")}" fill="none" stroke="${line.stroke}" stroke-width="${line.width}" stroke-opacity="${line.alpha}" stroke-dasharray="${line.dash.join(" ")}"><title>${escape(line.name)}</title></polyline>`);
  const parts = [0, 0.25, 0.5, 0.75, 1];
  const values = marksOf(title, parts.map((part) => chart.posToVal(part * height, "y")), chart.scales.y);
  const texts = parts.flatMap((part, at) => [
    `<text x="${x0 + part * width}" y="${y0 + height + 16}" text-anchor="middle">${escape(xText(chart.posToVal(part * width, "x")))}</text>`,
    `<text x="${x0 - 6}" y="${y0 + part * height + 4}" text-anchor="end">${escape(values[at])}</text>`,
  ]);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${frame.width}" height="${frame.height + 20}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/><text x="4" y="14" font-weight="bold">${escape(title)}</text><clipPath id="inside"><rect x="${x0}" y="${y0}" width="${width}" height="${height}"/></clipPath><rect x="${x0}" y="${y0}" width="${width}" height="${height}" fill="none" stroke="#888"/><g clip-path="url(#inside)">${bands.join("")}${paths.join("")}</g>${texts.join("")}</svg>\n`;
}

function png(title, chart) {
  const source = chart.ctx.canvas;
  const head = 24 * devicePixelRatio;
  const canvas = element("canvas", { width: source.width, height: source.height + head });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `bold ${13 * devicePixelRatio}px sans-serif`;
  context.fillText(visible(title), 6 * devicePixelRatio, 16 * devicePixelRatio);
  context.drawImage(source, 0, head);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

export async function save(kind, key, chart, lines) {
  const name = key.replace(/[^\w.-]+/g, "_");
  if (kind === "SVG") hand(new Blob([svg(key, chart, lines)], { type: "image/svg+xml" }), `${name}.svg`);
  else hand(await png(key, chart), `${name}.png`);
}
