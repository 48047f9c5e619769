// The charts of a report: drawn when they come into view, from points that are in the file.
import { destroy, linesOf, make, paint, said } from "./chart.js";
import { listen } from "./lit.js";
import { legend, read } from "./readout.js";
import { element, list, report } from "./view.js";

const cards = new Map();
const zoom = { low: null, high: null };

class Card {
  constructor(article) {
    this.place = article.querySelector(".plot");
    this.readout = article.querySelector(".readout");
    this.said = article.querySelector(".said");
    this.legend = element("ul", { class: "legend", "aria-label": "Groups", hidden: true });
    this.said.before(this.legend);
    this.data = report.charts[Number(article.dataset.chart)];
    this.chart = null;
    this.isSeen = false;
  }

  draw() {
    if (this.chart) destroy(this.chart);
    this.chart = null;
    if (!this.isSeen) return;
    const lines = linesOf(this.data);
    this.said.textContent = said(this.data, lines);
    legend(lines, this.legend);
    if (!lines.length) return;
    this.lines = lines;
    this.chart = make(this.place, this.data, lines, { zoom: zoomAll, point: () => {}, cursor: (chart) => read(chart, this.lines, this.readout) });
    if (zoom.low !== null) this.zoom();
  }

  zoom() {
    if (zoom.low === null) this.chart?.setData(this.chart.data);
    else this.chart?.setScale("x", { min: zoom.low, max: zoom.high });
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
document.addEventListener("lit", () => cards.forEach((card) => card.chart && paint(card.chart, card.lines)));
listen(document.getElementById("legend"));

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
