// Ages that go on while a page is open: an element with data-age says how old something was, in s, when the page was made.
const seen = new WeakMap();

/** As `age_text()` in quantities.py. */
function text(age) {
  for (const [unit, seconds] of [["days", 86400], ["h", 3600], ["min", 60]]) if (age >= 2 * seconds) return `${Math.round(age / seconds)} ${unit}`;
  return `${Math.round(Math.max(0, age))} s`;
}

function tick() {
  const now = Date.now(); // goes on while a machine sleeps
  for (const one of document.querySelectorAll("[data-age]")) {
    if (!seen.has(one)) seen.set(one, now);
    const words = text(Number(one.dataset.age) + (now - seen.get(one)) / 1000);
    if (one.textContent !== words) one.textContent = words;
  }
}

tick();
document.addEventListener("swapped", tick);
document.addEventListener("visibilitychange", tick);
setInterval(tick, 1000); // nothing tells us of the time but the time
