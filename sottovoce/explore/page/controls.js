// What a person chooses: the sentence, the label, the channel, and the sliders of its mechanism.

import { at, make, put, term } from "./dom.js";

const CHANNELS = {
  embedding: "A point", text: "Words", statistic: "One vector", label: "A class",
};
const WHAT = {
  embedding: "A few numbers computed from the sentence: where it points among all sentences.",
  text: "The sentence itself, each word exchanged at random for one that is near or far.",
  statistic: "One vector for the sentence and your label together, from which a server learns what goes with what.",
  label: "Only your label, exchanged at random for another with a known probability.",
};
const DIMS = [2, 3, 4, 8, 16, 32, 64];
// Sliders beside ε: what they are, and their step.
const MORE = {
  k: ["Words to choose from, K", 1],
  w: ["Share of words that count as sensitive, w", 0.05],
  p: ["Chance that another word is exchanged too, p", 0.05],
};
const DELTAS = [1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9];

export class Controls {
  // told: what the page's program says once; changed(): is called when a person has chosen otherwise.
  constructor(told, changed) {
    this.told = told;
    this.changed = changed;
    this.settings = { ...told.first };
    this.label = Math.min(1, told.classes.length - 1);
    this.round = 1;
    at("sentence").addEventListener("input", () => changed());
    this.labels();
    this.channels();
    this.sliders();
  }

  get text() { return at("sentence").value; }

  question(more = {}) {
    return { settings: this.settings, text: this.text, label: this.label, ...more };
  }

  labels() {
    const choice = this.told.classes.map((name, i) => make("label", {},
      make("input", { type: "radio", name: "label", value: i, checked: i === this.label,
        onchange: () => { this.label = i; this.changed(); } }), make("span", {}, name)));
    put(at("labels"), make("legend", {}, "What you think of it"), make("div", { class: "choices" }, choice));
  }

  set(values) {
    this.settings = { ...this.settings, ...values };
    this.channels();
    this.sliders();
    this.changed();
  }

  channels() {
    const choice = Object.keys(this.told.mechanisms).map(name => make("label", {},
      make("input", { type: "radio", name: "channel", value: name, checked: name === this.settings.channel,
        onchange: () => this.choose(name) }), make("span", {}, CHANNELS[name])));
    put(at("channels"), make("legend", {}, "What the server ", term("request, stage", "asks for")),
      make("div", { class: "choices" }, choice), make("p", { class: "soft" }, WHAT[this.settings.channel]));
  }

  choose(channel) {
    this.set({ channel, ...this.first(this.told.mechanisms[channel][0]), label_epsilon: null });
    const chosen = document.querySelector("input[name=channel]:checked");
    if (chosen) chosen.focus();
  }

  // A mechanism with its sliders where they begin.
  first(mechanism) {
    const { usual, more } = this.told.sliders[mechanism];
    return { mechanism, epsilon: usual, ...Object.fromEntries(more.map(name => [name, this.told.first[name]])) };
  }

  sliders() {
    const s = this.settings, slider = this.told.sliders[s.mechanism], parts = [];
    const names = this.told.mechanisms[s.channel];
    if (names.length > 1) {
      parts.push(make("div", { class: "slider" }, make("label", { for: "mechanism" }, "How it is blurred"),
        make("select", { id: "mechanism", onchange: e => this.set(this.first(e.target.value)) },
          names.map(name => make("option", { value: name, selected: name === s.mechanism }, this.told.sliders[name].label)))));
    }
    parts.push(this.range("epsilon", ["How much may be told: ", term("ε (epsilon)", "ε")], slider.least, slider.most,
      s.channel === "label" ? 0.25 : slider.most < 1 ? 0.01 : 0.5, s.epsilon, v => v, v => String(v)));
    if (s.channel === "embedding" || s.channel === "statistic") {
      parts.push(this.steps("dim", [s.channel === "statistic" ? "Features" : "Coordinates that leave, m′"], DIMS, v => String(v)));
    }
    for (const name of slider.more) {
      const [label, step] = MORE[name], [least, most] = this.told.ranges[name];
      parts.push(this.range(name, [label], least, most, step, s[name], v => v, most === 1 ? v => `${Math.round(100 * v)}%` : String));
    }
    if (s.channel === "embedding" || s.channel === "text") {
      const beside = s.label_epsilon !== null;
      parts.push(make("div", { class: "check" },
        make("input", { type: "checkbox", id: "beside", checked: beside,
          onchange: e => { this.set({ label_epsilon: e.target.checked ? 2 : null }); at("beside").focus(); } }),
        make("label", { for: "beside" }, "and your label beside it, exchanged at random")));
      if (beside) {
        parts.push(this.range("label_epsilon", ["ε of the label"], 0, 8, 0.25, s.label_epsilon, v => v, v => String(v)));
      }
    }
    parts.push(make("details", {}, make("summary", {}, "More"),
      this.steps("delta", ["Chance that ε may fail, ", term("δ (delta)", "δ")], DELTAS, v => v.toExponential(0).replace("e-", "·10⁻").replace("1·", ""))));
    put(at("sliders"), parts);
  }

  // to: from the slider's place to the value that is set; said: the value in words.
  range(name, label, min, max, step, place, to, said) {
    const shown = make("output", { for: `s-${name}` }, said(to(place)));
    const input = make("input", { type: "range", id: `s-${name}`, min, max, step, value: place, "aria-valuetext": said(to(place)) });
    input.addEventListener("input", () => {
      const chosen = to(Number(input.value));
      this.settings = { ...this.settings, [name]: chosen };
      shown.textContent = said(chosen);
      input.setAttribute("aria-valuetext", said(chosen));
      this.changed();
    });
    return make("div", { class: "slider" }, make("div", { class: "top" }, make("label", { for: `s-${name}` }, label), shown), input);
  }

  steps(name, label, values, said) {
    const now = this.settings[name];
    const all = values.includes(now) ? values : [...values, now].sort((a, b) => a - b);
    return this.range(name, label, 0, all.length - 1, 1, all.indexOf(now), i => all[i], said);
  }
}
