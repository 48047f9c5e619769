// Sizes and rates of bytes, by the names that SystemMetrics gives metrics: 37.4 GiB, where a plain number would be 4.02e10.
import { labels } from "./axis.js";
import { number } from "./view.js";

const IN_BYTES = /(?:^|[/_.])bytes(_per_s)?$/;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const MANTISSAS = [1, 2, 2.5, 5];

/** By what the numbers of a metric are divided, and the unit then; 1 and no unit for what is not in bytes. */
function unitOf(key, most) {
  const found = IN_BYTES.exec(key);
  if (!found) return [1, ""];
  const power = Math.max(0, Math.min(UNITS.length - 1, Math.floor(Math.log2(most) / 10)));
  return [1024 ** power, ` ${UNITS[power]}${found[1] ? "/s" : ""}`];
}

const most = (low, high) => Math.max(Math.abs(low), Math.abs(high));

/** A number of a metric, as a person says it. */
export function valueText(key, value) {
  const [divisor, unit] = unitOf(key, Math.abs(value));
  return unit ? `${Number((value / divisor).toPrecision(4))}${unit}` : number(value);
}

/** The marks of an axis with this scale: all in one unit, and on a logarithmic one each in its own. */
export function marksOf(key, values, { min, max, distr }) {
  const [divisor, unit] = unitOf(key, most(min, max));
  if (unit && distr === 3) return values.map((one) => (one === null ? "" : valueText(key, one)));
  return labels(values.map((one) => (one === null ? null : one / divisor))).map((text) => text && text + unit);
}

/** The base of a logarithmic axis. */
export const baseOf = (key) => (IN_BYTES.test(key) ? 2 : 10);

/** How far the marks of an axis may be from each other, for uPlot: round numbers of the unit. Nothing for its own choice. */
export function stepsOf(key) {
  if (!IN_BYTES.test(key)) return {};
  const steps = (low, high) => {
    const [divisor] = unitOf(key, most(low, high));
    return Array.from({ length: 30 }, (_, at) => 10 ** (at - 12)).flatMap((ten) => MANTISSAS.map((one) => one * ten * divisor));
  };
  return { incrs: (_chart, _axis, low, high) => steps(low, high) };
}
