// Elements, made without markup: whatever a person types is text, and nothing else.

export const at = id => document.getElementById(id);

export function make(name, about = {}, ...inside) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...inside.flat().filter(part => part !== null && part !== undefined && part !== ""));
  return element;
}

export function put(place, ...inside) {
  place.replaceChildren(...inside.flat().filter(part => part !== null && part !== undefined && part !== ""));
}

// What stands there belongs to what was chosen before, until it is answered anew: seen, and heard.
export function old(...ids) { for (const id of ids) at(id).setAttribute("aria-busy", "true"); }

export function current(...ids) { for (const id of ids) at(id).removeAttribute("aria-busy"); }

// --- the words of the field, under the pointer and under the keyboard

let glossary = {};
let tips = 0;

export function learn(entries) {
  glossary = entries;
  const list = [];
  for (const [heading, text] of Object.entries(entries)) list.push(make("dt", {}, heading), make("dd", {}, text));
  put(at("glossary"), list);
}

export function term(heading, shown) {
  const text = glossary[heading];
  if (!text) return make("span", {}, shown);
  const id = `tip-${++tips}`;
  const tip = make("span", { class: "tip", id, role: "tooltip" }, text);
  const word = make("span", { class: "term", tabindex: "0", "aria-describedby": id }, shown, tip);
  word.addEventListener("keydown", event => { if (event.key === "Escape") word.blur(); });
  return word;
}

// --- numbers

export const percent = share => share === null || share === undefined ? "–"
  : share > 0 && share < 0.001 ? "below 0.1%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;

export const epsilon = value => value === "inf" ? "∞" : value === null || value === undefined ? "–"
  : String(Number(Number(value).toPrecision(4)));

export const count = value => Number(value).toLocaleString("en-US");

export function bars(rows) {
  return make("ul", { class: "bars" }, rows.map(row => {
    const inner = make("i");
    inner.style.width = `${Math.min(100, 100 * row.share)}%`;
    const bar = make("div", { class: "bar", "aria-hidden": "true" }, inner);
    if (row.prior !== undefined) {
      const mark = make("b");
      mark.style.left = `${Math.min(99.5, 100 * row.prior)}%`;
      bar.append(mark);
    }
    return make("li", { class: row.mine ? "mine" : null },
      make("div", { class: "line" }, make("span", { class: "cut" }, row.name), make("span", {}, row.said)), bar);
  }));
}

export function fact(number, what) {
  return make("div", {}, make("div", { class: "number" }, number), make("div", { class: "what" }, what));
}
