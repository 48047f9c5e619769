// The charts of a report: drawn when they come into view, from points that are in the file.
import { linesOf, make, said, tableOf, xText } from "./chart.js";
import { element, list, number, report } from "./view.js";

const cards = new Map();
const zoom = { low: null, high: null };

class Card {
  constructor(article) {
    this.place = article.querySelector(".plot");
    this.readout = article.querySelector(".readout");
    this.said = article.querySelector(".said");
    this.data = report.charts[Number(article.dataset.chart)];
    this.chart = null;
    this.isSeen = false;
  }

  draw() {
    this.chart?.destroy();
    this.chart = null;
    if (!this.isSeen) return;
    const lines = linesOf(this.data);
    this.said.textContent = said(this.data, lines);
    if (!lines.length) return;
    this.lines = lines;
    this.chart = make(this.place, this.data, lines, { zoom: zoomAll, point: () => {}, cursor: (chart) => this.read(chart) });
    if (zoom.low !== null) this.zoom();
  }

  zoom() {
    if (zoom.low === null) this.chart?.setData(this.chart.data);
    else this.chart?.setScale("x", { min: zoom.low, max: zoom.high });
  }

  /** The values under the cursor, the greatest first. */
  read(chart) {
    const index = chart.cursor.idx;
    if (index === null || index === undefined) {
      this.readout.textContent = "";
      return;
    }
    const isMany = new Set(this.lines.map((line) => line.name)).size > 1;
    const values = this.lines.map((line, at) => ({ line, y: chart.data[at + 1]?.[chart.cursor.idxs?.[at + 1] ?? index] }))
      .filter(({ line, y }) => y !== null && y !== undefined && !["low", "high", "older"].includes(line.kind))
      .sort((one, other) => other.y - one.y).slice(0, 8)
      .map(({ line, y }) => `${isMany ? `${line.name} ` : ""}${line.kind === "smooth" ? "smoothed " : ""}${number(y)}`);
    this.readout.textContent = `${xText(chart.data[0][index])}: ${values.join("; ")}`;
  }
}

function zoomAll(low, high) {
  Object.assign(zoom, { low, high });
  for (const card of cards.values()) card.zoom();
  document.getElementById("zoom-out").hidden = low === null;
}

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = cards.get(target);
    card.isSeen = isIntersecting;
    card.draw();
  }
}, { rootMargin: "400px 0px" });
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { chart } = cards.get(target.closest("article"));
    if (chart && chart.width !== target.clientWidth) chart.setSize({ width: target.clientWidth, height: chart.height });
  }
});

const drawAll = () => cards.forEach((card) => card.draw());

for (const article of document.querySelectorAll("article.card[data-chart]")) {
  const card = new Card(article);
  cards.set(article, card);
  seen.observe(article);
  resized.observe(card.place);
}
document.getElementById("zoom-out").addEventListener("click", () => zoomAll(null, null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

// Runs can be hidden in all charts.
for (const place of document.querySelectorAll("#legend td.hide")) {
  const { id } = place.closest("tr").dataset;
  const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": `Hide ${id} in the charts` }, "hide");
  button.addEventListener("click", () => {
    const hidden = new Set(list("hide"));
    if (!hidden.delete(id)) hidden.add(id);
    report.view.hide = [...hidden];
    button.setAttribute("aria-pressed", String(hidden.has(id)));
    place.closest("tr").classList.toggle("off", hidden.has(id));
    drawAll();
  });
  place.append(button);
}
