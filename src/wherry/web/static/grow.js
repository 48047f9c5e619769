// Metrics that are new since the page was opened get their cards, in the order of the page as it would be made now.

/** Put what `fresh` has and this page has not where it belongs, and return the new cards. `homeOf`: what keeps the place of a card. */
export function grow(fresh, homeOf) {
  const place = document.getElementById("groups");
  const groups = new Map([...place.querySelectorAll("section.group")].map((one) => [one.dataset.group, one]));
  const found = [];
  let before = null;
  for (const made of fresh.querySelectorAll("#groups section.group")) {
    let group = groups.get(made.dataset.group);
    if (group) found.push(...growGroup(group, made, homeOf));
    else {
      group = document.adoptNode(made);
      found.push(...group.querySelectorAll("article.card"));
      put(place, before, group);
    }
    before = group;
  }
  return found;
}

function growGroup(group, made, homeOf) {
  const known = new Map([...document.querySelectorAll("article.card")].map((one) => [one.dataset.key, one]));
  const found = [];
  let before = null;
  for (const card of [...made.querySelectorAll("article.card")]) {
    const mine = known.get(card.dataset.key);
    if (!mine) {
      put(group.querySelector(".charts"), before, document.adoptNode(card));
      found.push(card);
    }
    before = mine ? homeOf(mine) : card;
  }
  if (found.length) group.querySelector("h2").replaceChildren(...document.adoptNode(made.querySelector("h2")).childNodes);
  return found;
}

function put(place, before, one) {
  if (before) before.after(one);
  else place.prepend(one);
}
