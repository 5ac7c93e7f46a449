// Below: what the theorem says, in words.

import { at, make, put, term } from "./dom.js";

// The words of the field that stand in a line, each with its meaning.
const WORDS = { "Worst case": "worst case", "δ": "δ (delta)" };
const explained = line => line.split(/(Worst case|δ)/).map(part => part in WORDS ? term(WORDS[part], part) : part);

// A number that has been asked for, and is on its way.
const COMING = "…";
const whole = s => JSON.stringify(s);

export class Cost {
  constructor() { this.price = this.loss = null; }

  priced(price, settings) {
    [this.price, this.settings] = [price, settings];
    this.show();
  }

  lost(loss, settings) {
    this.loss = { ...loss, of: whole(settings) };
    this.show();
  }

  // What belongs to other settings than the price is not shown.
  show() {
    if (!this.price) return;
    const loss = this.loss && this.loss.of === whole(this.settings) ? this.loss : null;
    const about = loss && loss.metric.includes("d_") ? `For two sentences that are alike it is less: ε is at most ${loss.metric.replace(/d_(\w+)/g, "d")}, where d is how far apart they are.` : null;
    const more = loss ? loss.words : [`Nearly always, at a small δ: ε = ${COMING}`];
    put(at("words"), [...this.price.words, ...more].map(line => make("li", {}, explained(line))), about ? make("li", { class: "soft" }, about) : null);
  }
}
