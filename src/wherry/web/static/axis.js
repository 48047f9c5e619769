// Numbers as the axes say them.
import { get, number } from "./view.js";

export function relative(seconds) {
  if (seconds >= 3600) return `${number(seconds / 3600)} h`;
  return seconds >= 60 ? `${number(seconds / 60)} min` : `${number(seconds)} s`;
}

/** x as the axis says it. */
export function xText(value) {
  if (get("x") === "time") return new Date(value * 1000).toISOString().replace("T", " ").slice(0, 19);
  return get("x") === "relative" ? relative(value) : number(value);
}

/** The ends of a part of x, with no more digits than its width in pixels tells apart. */
export function part(low, high, width) {
  const digits = Math.floor(Math.log10((high - low) / width));
  const ends = [low, high].map((end) => (digits < 0 ? Number(end.toFixed(Math.min(100, -digits))) : Math.round(end / 10 ** digits) * 10 ** digits));
  return ends[0] < ends[1] ? ends : [low, high];
}

export function short(value, digits = 3) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  return digits > 6 && !Number.isInteger(value) ? String(Number(value.toPrecision(digits))) : number(value);
}

/** The marks of an axis, with as many digits as tell them apart. */
export function labels(values) {
  const given = new Set(values.filter((one) => one !== null));
  for (let digits = 3; ; digits += 1) {
    const texts = values.map((one) => (one === null ? "" : short(one, digits)));
    if (digits === 16 || new Set(texts.filter((text) => text)).size === given.size) return texts;
  }
}
