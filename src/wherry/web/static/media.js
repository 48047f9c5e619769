// Media: the slider of steps, and masks over images whose classes can be taken away.
import { element, ids, swap } from "./view.js";

const by = (id) => document.getElementById(id);

async function go(address) {
  history.replaceState(null, "", address);
  await swap(address, "fresh");
}

function address(step) {
  const query = new URLSearchParams({ id: ids[0], tab: "media", key: by("media-form").key.value });
  if (step !== null) query.set("step", step);
  return `/run?${query}`;
}

document.addEventListener("change", (event) => {
  if (event.target.id === "slider") go(address(JSON.parse(event.target.dataset.steps)[Number(event.target.value)])).then(() => by("slider")?.focus());
  else if (event.target.closest("#media-form") && event.target.id === "filter") go(address(null)).then(() => by("filter")?.focus());
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("#earlier, #later");
  if (!link) return;
  event.preventDefault();
  go(link.href).then(() => by(link.id)?.focus());
});

/** The colour of a label, as the PNG's palette has it: that of PASCAL VOC, whose bits are spread over red, green and blue. */
export function colourOf(label) {
  const colour = [0, 0, 0];
  for (let shift = 7, rest = label; rest; shift -= 1, rest >>= 3) {
    for (let channel = 0; channel < 3; channel += 1) colour[channel] |= ((rest >> channel) & 1) << shift;
  }
  return colour;
}

const LABEL_OF = new Map(Array.from({ length: 256 }, (_, label) => [colourOf(label).join(), label]));

async function draw(canvas) {
  const image = new Image();
  image.src = canvas.dataset.src;
  await image.decode();
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const drawn = context.getImageData(0, 0, canvas.width, canvas.height);
  const labels = new Uint8Array(drawn.data.length / 4);
  for (let at = 0; at < labels.length; at += 1) {
    labels[at] = LABEL_OF.get([drawn.data[4 * at], drawn.data[4 * at + 1], drawn.data[4 * at + 2]].join()) ?? 0;
  }
  const classes = JSON.parse(canvas.dataset.classes || "{}");
  const isThere = [...new Set(labels)].sort((one, other) => one - other);
  const off = new Set("0" in classes ? [] : [0]);
  const repaint = () => {
    for (let at = 0; at < labels.length; at += 1) drawn.data[4 * at + 3] = off.has(labels[at]) ? 0 : 255;
    context.putImageData(drawn, 0, 0);
  };
  const boxes = isThere.filter((label) => !off.has(label)).map((label) => element("label", {},
    element("input", { type: "checkbox", checked: true, onchange: (event) => {
      if (event.target.checked) off.delete(label);
      else off.add(label);
      repaint();
    } }), swatch(label), ` ${classes[label] ?? `label ${label}`}`));
  repaint();
  canvas.closest("figure").append(element("fieldset", { class: "bar" }, element("legend", {}, canvas.dataset.mask), ...boxes));
}

function swatch(label) {
  const made = element("canvas", { width: 12, height: 12, "aria-hidden": "true" });
  const context = made.getContext("2d");
  context.fillStyle = `rgb(${colourOf(label).join(" ")})`;
  context.fillRect(0, 0, 12, 12);
  return made;
}

const drawAll = () => document.querySelectorAll("canvas.mask:not([data-drawn])").forEach((canvas) => {
  canvas.dataset.drawn = "yes";
  draw(canvas).catch(() => canvas.closest("figure").append(element("p", { class: "bad" }, "The mask cannot be read.")));
});
document.addEventListener("swapped", drawAll);
drawAll();
