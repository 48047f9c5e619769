// The cards of a page: each is drawn when it comes into view, and asks for as many points as can be seen.
import { linesOf, lookOf, make, nearest, said, tableOf, xText } from "./chart.js";
import { showMoment } from "./moment.js";
import { save } from "./save.js";
import { element, get, ids, json, list, number, set } from "./view.js";

const form = document.getElementById("view");
const cards = new Map();
const canDraw = () => typeof uPlot === "function";
/** What of the view changes the points, and not only how they are drawn. */
const ASKED = ["x", "smooth", "log", "low", "high", "group"];

class Card {
  constructor(article) {
    this.article = article;
    this.key = article.dataset.key;
    this.place = article.querySelector(".plot");
    this.readout = article.querySelector(".readout");
    this.isSeen = false;
    this.chart = null;
    this.data = null;
    this.asked = null;
    article.append(this.tools());
    article.addEventListener("keydown", (event) => this.keydown(event));
  }

  tools() {
    this.pin = element("button", { type: "button", class: "pin", "aria-pressed": "false", "aria-label": `Pin ${this.key}`, onclick: () => pin(this.key) }, "pin");
    const menu = element("details", {}, element("summary", { "aria-label": `Save ${this.key}` }, "save"), element("div", {},
      ...["PNG", "SVG"].map((kind) => element("button", { type: "button", onclick: () => this.chart && save(kind, this.key, this.chart, this.lines) }, kind)),
      ...ids.slice(0, 12).map((id) => element("a", { href: `/data/csv?${new URLSearchParams({ id, key: this.key })}`, download: "points.csv" }, ids.length > 1 ? `CSV of ${id}` : "CSV, all points"))));
    menu.addEventListener("focusout", (event) => { if (!menu.contains(event.relatedTarget)) menu.open = false; });
    return element("div", { class: "tools" }, this.pin, menu);
  }

  query() {
    const query = new URLSearchParams(ids.map((id) => ["id", id]));
    query.set("key", this.key);
    query.set("n", String(Math.max(100, 2 * Math.round(this.place.clientWidth))));
    for (const name of ASKED) if (get(name)) query.set(name, get(name));
    return query.toString();
  }

  /** Ask for the points if they are not those that are wanted, or `isNew`, and draw them. One question at a time. */
  async update(isNew = false) {
    if (!this.isSeen || !canDraw()) return;
    const query = this.query();
    if (!isNew && this.data && this.asked === query) {
      this.draw();
      return;
    }
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    if (!this.data) this.say("reading ...");
    try {
      this.data = await json(`/data/points?${query}`, abort.signal);
      this.asked = query;
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message);
    }
  }

  draw() {
    if (!this.isSeen) return;
    const lines = linesOf(this.data);
    const look = lookOf(lines);
    this.lines = lines;
    this.say(said(this.data, lines));
    if (this.chart && this.look === look && lines.length) {
      this.chart.setData(tableOf(lines));
      return;
    }
    this.drop();
    if (!lines.length) return;
    this.look = look;
    this.chart = make(this.place, this.data, lines, {
      zoom: (low, high) => set({ low, high }, { isStep: true }),
      point: (chart) => this.moment(chart),
      cursor: (chart) => this.read(chart),
    });
  }

  drop() {
    this.chart?.destroy();
    this.chart = null;
  }

  say(text) {
    this.article.querySelector(".said").textContent = text;
  }

  /** The values under the cursor, the greatest first. */
  read(chart) {
    this.readout.replaceChildren();
    if (chart.cursor.idx === null || chart.cursor.idx === undefined || !this.lines) return;
    const isMany = new Set(this.lines.map((line) => line.name)).size > 1;
    const values = this.lines.map((line, at) => ({ line, y: chart.data[at + 1]?.[chart.cursor.idxs[at + 1]] }))
      .filter(({ line, y }) => y !== null && y !== undefined && !["low", "high", "older"].includes(line.kind))
      .sort((one, other) => other.y - one.y).slice(0, 8);
    this.readout.append(`${xText(chart.data[0][chart.cursor.idx])}: `);
    values.forEach(({ line, y }, at) => this.readout.append(at ? "; " : "", `${isMany ? `${line.name} ` : ""}${line.kind === "smooth" ? "smoothed " : ""}${number(y)}`));
  }

  moment(chart) {
    const found = nearest(chart, this.lines);
    if (!found || !found[0].run) return;
    const [line, index] = found;
    const x = chart.data[0][index];
    const at = line.x.indexOf(x);
    const raw = line.run.lines.find((one) => one.kind === "raw");
    const step = line.step ? line.step[at] : raw.step ? raw.step[raw.x.indexOf(x)] ?? x : x;
    showMoment({ id: line.run.id, key: this.key, step: Math.round(step), ...(line.kind === "older" ? { start: line.start } : {}) }, this.article);
  }

  keydown(event) {
    if (event.target !== this.article || !this.chart) return;
    const { chart } = this;
    const x = chart.data[0];
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const way = event.key === "ArrowLeft" ? -1 : 1;
      const index = Math.max(0, Math.min(x.length - 1, (chart.cursor.idx ?? (way > 0 ? -1 : x.length)) + way));
      const y = chart.data[1][index];
      chart.setCursor({ left: chart.valToPos(x[index], "x"), top: y === null || y === undefined ? 10 : chart.valToPos(y, "y") });
    } else if (event.key === "Enter") this.moment(chart);
    else if (event.key === "+" || event.key === "-") {
      const { min, max } = chart.scales.x;
      const middle = chart.cursor.idx === null || chart.cursor.idx === undefined ? (min + max) / 2 : x[chart.cursor.idx];
      const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
      set({ low: middle - half, high: middle + half }, { isStep: true });
    } else if (event.key === "0") set({ low: null, high: null }, { isStep: true });
    else return;
    event.preventDefault();
  }
}

// Cards in view are drawn; those far away keep their points only.
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = cards.get(target);
    card.isSeen = isIntersecting;
    if (isIntersecting) card.update();
    else card.drop();
  }
}, { rootMargin: "400px 0px" });
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const card = cards.get(target.closest("article"));
    if (card.chart && card.chart.width !== target.clientWidth) {
      card.chart.setSize({ width: target.clientWidth, height: card.chart.height });
      card.update();
    }
  }
});

for (const article of document.querySelectorAll("article.card")) {
  const card = new Card(article);
  cards.set(article, card);
  seen.observe(article);
  resized.observe(card.place);
}

const updateAll = (isNew) => cards.forEach((card) => card.update(isNew));

// The form and the address say the same.
const boxes = ["log", "logx", "clip"];
const fields = ["x", "smooth", "low", "high", "group"];

function read() {
  for (const name of boxes) form[name].checked = get(name) === "1";
  for (const name of fields) if (form[name]) form[name].value = get(name) ?? { x: "step", smooth: "0" }[name] ?? "";
  form.keys.value = get("keys") ?? "";
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", (event) => {
  const { name, type, checked, value } = event.target;
  if (boxes.includes(name) || fields.includes(name)) {
    const isDefault = (name === "x" && value === "step") || (name === "smooth" && !(Number(value) > 0));
    const changes = { [name]: type === "checkbox" ? checked : isDefault ? null : value };
    if (name === "x") Object.assign(changes, { low: null, high: null }); // the part of another axis
    set(changes, { isStep: true });
  }
});
form.keys.addEventListener("input", () => set({ keys: form.keys.value }));
document.getElementById("zoom-out").addEventListener("click", () => set({ low: null, high: null }, { isStep: true }));
addEventListener("popstate", () => document.dispatchEvent(new CustomEvent("view", { detail: ["x"] })));

document.addEventListener("view", (event) => {
  if (!event.detail.includes("keys")) read();
  arrange();
  updateAll();
});
document.addEventListener("news", () => updateAll(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cards.forEach((card) => { card.drop(); card.update(); }));

// Pins, the filter of keys, hidden runs and the baseline.
const homes = new Map();
const pinned = document.getElementById("pinned");

function pin(key) {
  const pins = list("pin");
  set({ pin: pins.includes(key) ? pins.filter((one) => one !== key) : [...pins, key] });
}

function arrange() {
  const pins = list("pin");
  const wanted = (get("keys") ?? "").toLowerCase();
  for (const [article, card] of cards) {
    const isPinned = pins.includes(card.key);
    card.pin.setAttribute("aria-pressed", String(isPinned));
    article.hidden = !isPinned && !card.key.toLowerCase().includes(wanted);
    if (isPinned && !homes.has(article)) {
      homes.set(article, document.createComment("its place"));
      article.replaceWith(homes.get(article));
      pinned.append(article);
    } else if (!isPinned && homes.has(article)) {
      homes.get(article).replaceWith(article);
      homes.delete(article);
    }
  }
  pinned.hidden = !homes.size;
  for (const group of document.querySelectorAll("section.group")) group.hidden = !group.querySelector("article:not([hidden])");
  const hidden = new Set(list("hide"));
  for (const row of document.querySelectorAll("#legend tr[data-id]")) {
    const button = row.querySelector("button.hide");
    const base = row.querySelector("button.baseline");
    button.hidden = base.hidden = false;
    button.setAttribute("aria-pressed", String(hidden.has(row.dataset.id)));
    base.setAttribute("aria-pressed", String(get("base") === row.dataset.id));
    row.classList.toggle("off", hidden.has(row.dataset.id));
  }
  for (const line of document.querySelectorAll(".parallel polyline")) line.classList.toggle("off", hidden.has(line.dataset.id));
}

document.addEventListener("click", (event) => {
  const id = event.target.closest("#legend tr[data-id]")?.dataset.id;
  if (event.target.matches("button.hide")) {
    const hidden = list("hide");
    set({ hide: hidden.includes(id) ? hidden.filter((one) => one !== id) : [...hidden, id] });
  } else if (event.target.matches("button.baseline")) {
    set({ base: get("base") === id ? null : id });
    location.reload(); // the table's differences to the baseline are the server's
  }
});
document.addEventListener("swapped", arrange);

arrange();
