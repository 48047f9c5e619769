// What every script may need: elements, and numbers as the server says them.

const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\p{Surrogate}/gu;
const LABELS = new Set(["aria-label", "title"]);

/** Names as the server says them: a character that would not be seen, or would turn the text around, is escaped. */
export const visible = (text) => String(text).replace(UNSEEN, (one) => {
  const code = one.charCodeAt(0).toString(16);
  return code.length < 3 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
});

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : LABELS.has(key) ? visible(value) : value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

/** Six digits, as the server says numbers. */
export function number(value) {
  if (value === null || value === undefined) return "-";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  return String(Number(value.toPrecision(6)));
}
