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

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential().replace(/(\.\d{2})\d*/, "$1").replace("e+", "e");
  return number(value);
}
