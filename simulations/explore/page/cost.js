// Below: what the theorem says, in words and as a curve that moves with the sliders.

import { limits } from "./charts.js";
import { at, make, percent, put, term } from "./dom.js";

// The words of the field that stand in a line, each with its meaning.
const WORDS = { "Worst case": "worst case", "shuffler": "shuffler, crowd", "δ": "δ (delta)" };
const explained = line => line.split(/(Worst case|shuffler|δ)/).map(part => part in WORDS ? term(WORDS[part], part) : part);

export class Cost {
  constructor(told) {
    this.told = told;
    this.price = this.curve = null;
  }

  priced(price, settings) {
    [this.price, this.settings] = [price, settings];
    put(at("words"), price.words.map(line => make("li", {}, explained(line))),
      price.metric && price.metric.includes("d_") ? make("li", { class: "soft" }, `For two sentences that are alike it is less: ε is at most ${price.metric.replace(/d_(\w+)/g, "d")}, where d is how far apart they are.`) : null);
    this.show();
  }

  curved(curve, settings) {
    this.curve = { ...curve, of: key(settings) };
    this.show();
  }

  crowded(found) { put(at("crowd"), explained(found.words)); }

  show() {
    if (!this.price || !this.curve || this.curve.of !== key(this.settings)) {
      if (this.curve && this.settings && this.curve.of !== key(this.settings)) put(at("chart"));
      return;
    }
    const { price, curve, settings } = this, right = price.draws ? price.draws.right : null;
    const arms = ((this.told.study || {}).arms || []).filter(a => a.mechanism === settings.mechanism && typeof a.epsilon === "number");
    const near = arms.toSorted((a, b) => Math.abs(a.epsilon - settings.epsilon) - Math.abs(b.epsilon - settings.epsilon))[0];
    const allowed = price.limit ?? curve.at;
    const picture = limits({ ...curve, now: settings.epsilon, allowed, blind: price.blind, right, study: arms });
    put(at("chart"), make("div", { class: "figure" }, picture), make("ul", { class: "key" },
      make("li", {}, make("i", { class: "limit" }), `the theorem's limit of a guess, here ${percent(allowed)}`),
      make("li", {}, make("i", { class: "blind" }), `without your answer ${percent(price.blind)}`),
      right === null ? null : make("li", {}, make("i", { class: "right" }), `the best guess, in 200 draws of your sentence: ${percent(right)}`),
      arms.length ? make("li", {}, make("i", { class: "study" }), `accuracy of the arms of ${this.told.study.name}`) : null),
      near ? make("p", {}, `In the finished study the arm nearest to this, “${near.name}”, had an accuracy of ${near.accuracy.toFixed(3)}.`) : null);
  }
}

// The curve is of one mechanism with its parameters, whatever its ε.
const key = s => [s.channel, s.mechanism, s.dim, s.k, s.w, s.p, s.label_epsilon].join(" ");
