// Below: what the theorem says, in words and as a curve that moves with the sliders.

import { limits } from "./charts.js";
import { at, count, make, percent, put, term } from "./dom.js";

// The words of the field that stand in a line, each with its meaning.
const WORDS = { "Worst case": "worst case", "shuffler": "shuffler, crowd", "δ": "δ (delta)" };
const explained = line => line.split(/(Worst case|shuffler|δ)/).map(part => part in WORDS ? term(WORDS[part], part) : part);

// A number that has been asked for, and is on its way.
const COMING = "…";

export class Cost {
  constructor(told) {
    this.told = told;
    this.price = this.curve = this.loss = null;
  }

  priced(price, settings) {
    [this.price, this.settings] = [price, settings];
    this.show();
  }

  lost(loss, settings) {
    this.loss = { ...loss, of: whole(settings) };
    this.show();
  }

  curved(curve, settings) {
    this.curve = { ...curve, of: this.key(settings) };
    this.show();
  }

  // Whether the whole curve of these settings is there.
  drawn(settings) { return this.curve !== null && this.curve.of === this.key(settings) && !this.curve.limit.includes(null); }

  // The curve is of one mechanism with its parameters, whatever its ε.
  key(s) {
    const { more, calibrated } = this.told.sliders[s.mechanism];
    return [s.channel, s.mechanism, s.dim, ...Object.keys(more).map(name => s[name]), s.label_epsilon, calibrated ? s.delta : 0].join(" ");
  }

  crowded(found) {
    put(at("crowd"), explained(found.words));
  }

  // What belongs to other settings than the price is not shown.
  show() {
    if (!this.price) return;
    const { price, settings } = this;
    const loss = this.loss && this.loss.of === whole(settings) ? this.loss : null;
    const curve = this.curve && this.curve.of === this.key(settings) ? this.curve : null;
    this.lines(price, loss);
    if (curve) this.chart(price, settings, loss, curve);
    else put(at("chart"));
  }

  lines(price, loss) {
    const about = loss && loss.metric.includes("d_") ? `For two sentences that are alike it is less: ε is at most ${loss.metric.replace(/d_(\w+)/g, "d")}, where d is how far apart they are.` : null;
    const more = loss ? loss.words : [`Nearly always, at a small δ: ε = ${COMING}`];
    put(at("words"), [...price.words, ...more].map(line => make("li", {}, explained(line))), about ? make("li", { class: "soft" }, about) : null);
  }

  chart(price, settings, loss, curve) {
    const right = price.draws ? price.draws.right : null;
    const arms = ((this.told.study || {}).arms || []).filter(a => a.mechanism === settings.mechanism && typeof a.epsilon === "number");
    const near = arms.toSorted((a, b) => Math.abs(a.epsilon - settings.epsilon) - Math.abs(b.epsilon - settings.epsilon))[0];
    const allowed = price.limit ?? (loss ? loss.limit : null);
    const picture = limits({ ...curve, now: settings.epsilon, allowed, blind: price.blind, right, study: arms });
    put(at("chart"), make("div", { class: "figure" }, picture), make("ul", { class: "key" },
      make("li", {}, make("i", { class: "limit" }), `the theorem's limit of a guess, here ${allowed === null ? COMING : percent(allowed)}`),
      make("li", {}, make("i", { class: "blind" }), `without your answer ${percent(price.blind)}`),
      right === null ? null : make("li", {}, make("i", { class: "right" }), `the best guess, in 200 draws of your sentence: ${percent(right)}`),
      arms.length ? make("li", {}, make("i", { class: "study" }), `accuracy of the arms of ${this.told.study.name}`) : null),
      near ? make("p", {}, `In the finished study the arm nearest to this, “${near.name}”, had an accuracy of ${near.accuracy.toFixed(3)}.`) : null);
  }
}

const whole = s => JSON.stringify(s);
