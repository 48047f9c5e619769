// The view of a report: what the command line has asked for. It takes the place of view.js, whose view is the address of the page.
export { element, number, visible } from "./basics.js";

/** What report.py wrote: `view` by the names of the page's address, and a chart's points for each metric. */
export const report = JSON.parse(document.getElementById("data").textContent);

export const get = (name) => report.view[name] ?? null;

export const list = (name) => report.view[name] ?? [];
