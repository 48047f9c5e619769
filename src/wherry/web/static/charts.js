// The cards of a page: each is drawn when it comes into view, and asks for as many points as can be seen.
import { part, xText } from "./axis.js";
import { destroy, linesOf, lookOf, make, paint, renew, said } from "./chart.js";
import { grow } from "./grow.js";
import "./moment.js";
import { legend, nearest, pointAt, read } from "./readout.js";
import { save } from "./save.js";
import { element, get, ids, json, list, set, swap } from "./view.js";

const form = document.getElementById("view");
const cards = new Map();
const canDraw = () => typeof uPlot === "function";
/** What of the view changes the points, and not only how they are drawn. */
const ASKED = ["x", "smooth", "log", "low", "high", "group"];

class Card {
  constructor(article) {
    this.article = article;
    this.key = decodeURIComponent(article.dataset.key);
    this.place = article.querySelector(".plot");
    this.readout = article.querySelector(".readout");
    this.legend = element("ul", { class: "legend", "aria-label": "Groups", hidden: true });
    article.querySelector(".said").before(this.legend);
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
      element("a", { class: "csv" })));
    menu.addEventListener("toggle", () => this.nameCsv(menu.querySelector(".csv")));
    menu.addEventListener("focusout", (event) => { if (!menu.contains(event.relatedTarget)) menu.open = false; });
    return element("div", { class: "tools" }, this.pin, menu);
  }

  /** The link to all points of the runs and of the part of x that are seen. */
  nameCsv(link) {
    const hidden = new Set(list("hide"));
    const query = new URLSearchParams(ids.filter((id) => !hidden.has(id)).map((id) => ["id", id]));
    query.set("key", this.key);
    for (const name of ["x", "low", "high"]) if (get(name)) query.set(name, get(name));
    link.href = `/data/csv?${query}`;
    const ends = [["from", "low"], ["to", "high"]].map(([word, name]) => (get(name) ? ` ${word} ${xText(Number(get(name)))}` : "")).join("");
    link.textContent = `CSV, all points${ends}`;
  }

  query() {
    const hidden = new Set(list("hide"));
    const shown = ids.filter((id) => !hidden.has(id));
    // A group is made of the runs that are shown.
    const query = new URLSearchParams((get("group") && shown.length ? shown : ids).map((id) => ["id", id]));
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
    legend(lines, this.legend);
    if (this.chart && this.look === look && lines.length) {
      renew(this.chart, this.data, lines);
      return;
    }
    this.drop();
    if (!lines.length) return;
    this.look = look;
    this.chart = make(this.place, this.data, lines, {
      zoom: (low, high) => set({ low, high }, { isStep: true }),
      point: (chart) => this.moment(chart),
      cursor: (chart) => read(chart, this.lines, this.readout),
    });
  }

  drop() {
    if (this.chart) destroy(this.chart);
    this.chart = null;
  }

  say(text) {
    this.article.querySelector(".said").textContent = text;
  }

  moment(chart) {
    const found = nearest(chart, this.lines);
    if (!found || !found[0].run) return;
    const [line, at] = found;
    const x = line.x[at];
    const raw = line.run.lines.find((one) => one.kind === "raw");
    const step = line.step ? line.step[at] : raw.step ? raw.step[pointAt(raw, x)] ?? x : x;
    set({ moment: [line.run.id, this.key, Math.round(step), ...(line.kind === "older" ? [line.start] : [])] }, { isStep: true });
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
      const [low, high] = part(middle - half, middle + half, chart.over.clientWidth);
      set({ low, high }, { isStep: true });
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

function take(article) {
  const card = new Card(article);
  cards.set(article, card);
  seen.observe(article);
  resized.observe(card.place);
}
for (const article of document.querySelectorAll("article.card")) take(article);

const updateAll = (isNew) => cards.forEach((card) => card.update(isNew));

// The form and the address say the same.
const boxes = ["log", "logx", "clip"];
const fields = ["x", "smooth", "low", "high", "group"];

function fill() {
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
addEventListener("popstate", () => document.dispatchEvent(new CustomEvent("view", { detail: ["x", "base"] })));

document.addEventListener("view", (event) => {
  if (event.detail.every((name) => name === "moment")) return; // of no chart
  if (!event.detail.includes("keys")) fill();
  if (event.detail.includes("base")) swap(location.href, "head"); // the table's differences are the server's
  arrange();
  updateAll();
});
document.addEventListener("news", () => updateAll(true));
document.addEventListener("lit", () => cards.forEach((card) => card.chart && paint(card.chart, card.lines)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cards.forEach((card) => { card.drop(); card.update(); }));

// Pins, and the filter of keys.
const homes = new Map();
const pinned = document.getElementById("pinned");

function pin(key) {
  const pins = list("pin");
  set({ pin: pins.includes(key) ? pins.filter((one) => one !== key) : [...pins, key] });
}

const groupOf = (fold) => fold.closest("section").dataset.group;
// A group that is folded up at first is open in the address. While a filter is written all are.
document.addEventListener("toggle", ({ target }) => {
  if (!target.matches("details.fold") || get("keys")) return;
  const open = list("open").filter((one) => one !== groupOf(target));
  if (target.open !== list("open").includes(groupOf(target))) set({ open: target.open ? [...open, groupOf(target)] : open });
}, true);

document.addEventListener("swapped", ({ detail }) => {
  const found = detail.getElementById("groups") ? grow(detail, (article) => homes.get(article) ?? article) : [];
  for (const article of found) take(article);
  if (found.length) arrange();
});

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
  for (const fold of document.querySelectorAll("details.fold")) fold.open = wanted !== "" || list("open").includes(groupOf(fold));
  for (const group of document.querySelectorAll("section.group")) group.hidden = !group.querySelector("article:not([hidden])");
}

arrange();
