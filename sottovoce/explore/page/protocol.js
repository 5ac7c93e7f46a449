// A protocol: questions are stacked, rounds and users chosen, and the ladder grows. It can be taken away: as an
// experiment, as a command, as a file that opens the same page elsewhere.

import { Latest } from "./api.js";
import { at, count, current, epsilon, make, old, put, term } from "./dom.js";

const FORMAT = "sottovoce-explore-1";
const SHORT = { embedding: "a point", text: "words", statistic: "one vector", label: "a class" };

export class Protocol {
  constructor(controls, say) {
    this.controls = controls;
    this.say = say;
    this.stack = [];
    this.rounds = this.records = 1;
    this.answered = "";
    this.asking = new Latest("protocol", found => this.found(found), error => this.failed(error), () => this.key());
    at("stack-add").addEventListener("click", () => this.add(controls.settings));
    for (const name of ["rounds", "records"]) {
      at(name).addEventListener("input", event => {
        const value = Math.min(1000, Math.max(1, Math.round(Number(event.target.value)) || 1));
        this[name] = value;
        this.show();
      });
    }
    at("share").addEventListener("click", () => this.share());
    at("open").addEventListener("change", event => this.open(event.target.files[0]));
  }

  // One question for each channel; a statistic stands alone, since it holds all that a user releases.
  add(settings) {
    const alone = settings.channel === "statistic";
    this.stack = [...this.stack.filter(s => s.channel !== settings.channel && !alone && s.channel !== "statistic"), { ...settings }];
    if (settings.channel === "label") this.stack = this.stack.map(s => ({ ...s, label_epsilon: null }));
    else if (settings.label_epsilon !== null) {
      this.stack = this.stack.filter(s => s.channel !== "label").map(s => s.channel === settings.channel ? s : { ...s, label_epsilon: null });
    }
    this.show();
  }

  remove(channel) {
    this.stack = this.stack.filter(s => s.channel !== channel);
    this.show();
    at("stack-add").focus();
  }

  // The crowd and δ are the sliders'.
  question() {
    const { rounds, records } = this, { users, delta } = this.controls.settings;
    return { stack: this.stack.map(s => ({ ...s, users, delta, rounds, records })) };
  }

  key() { return JSON.stringify(this.question()); }

  // Marks what is there, where it is about something else than what is chosen now.
  old() { if (this.stack.length && this.key() !== this.answered) old("rungs", "takeaway"); }

  async show() {
    put(at("stack"), this.stack.map(s => make("li", {}, `${SHORT[s.channel]} by ${s.mechanism}, ε = ${s.epsilon}`,
      ["embedding", "statistic"].includes(s.channel) ? `, m′ = ${s.dim}` : "", s.label_epsilon === null ? "" : `, and the label with ε = ${s.label_epsilon} `, " ",
      make("button", { type: "button", "aria-label": `Take out: ${SHORT[s.channel]}`, onclick: () => this.remove(s.channel) }, "Take out"))));
    if (!this.stack.length) {
      put(at("rungs"), make("p", { class: "soft" }, "Add the question that the sliders show, and others beside it."));
      put(at("takeaway"));
      current("rungs", "takeaway");
      this.answered = "";
      return;
    }
    if (this.key() === this.answered) return;
    this.old();
    await this.asking.ask(this.question());
  }

  failed(error) {
    put(at("rungs"), make("p", { class: "warn" }, error.message));
    put(at("takeaway"));
    current("rungs", "takeaway");
    this.answered = this.key();
  }

  found(found) {
    this.answered = this.key();
    current("rungs", "takeaway");
    const rows = found.ladder.map(rung => make("tr", { class: rung.unprotected.length ? "bad" : null }, make("th", { scope: "row" }, rung.rung),
      make("td", { class: "num" }, `${rung.epsilon === null ? "–" : `ε = ${epsilon(rung.epsilon)}`}`), make("td", { class: "num" }, epsilon(rung.worst_case)),
      make("td", {}, rung.epsilon === null ? rung.assumption : rung.neighbours, rung.crowd ? `, in a crowd of ${count(rung.crowd)}` : "")));
    put(at("rungs"), make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The ladder" }, make("table", {},
      make("caption", {}, "The ", term("ladder, rung", "ladder"), ": what the whole protocol costs, for each unit"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "of one"), make("th", { scope: "col" }, "ε at δ"), make("th", { scope: "col" }, "at worst"),
        make("th", { scope: "col" }, "what cannot be told apart"))), make("tbody", {}, rows))));
    put(at("takeaway"), this.copied("The same as a command", found.command, "copy-command", true),
      found.toml ? this.copied("The same as an experiment, explored.toml", found.toml, "copy-toml", false) : make("p", { class: "soft" }, `As an experiment: ${found.why}.`));
  }

  copied(title, text, id, open) {
    const button = make("button", { type: "button", id, onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        this.say("Copied.");
      } catch {
        this.say("Your browser does not let this page copy; mark the text, and copy it yourself.");
      }
    } }, "Copy");
    return make("details", { open }, make("summary", {}, title), make("pre", { tabindex: "0" }, text), button);
  }

  share() {
    const { rounds, records, stack, controls } = this;
    const text = at("share-text").checked ? controls.text : "";
    const content = JSON.stringify({ format: FORMAT, settings: controls.settings, stack, rounds, records, text }, null, 1);
    const link = make("a", { href: URL.createObjectURL(new Blob([content], { type: "application/json" })), download: "sottovoce-page.json" });
    link.click();
    URL.revokeObjectURL(link.href);
    this.say(text ? "Saved, with your sentence in it." : "Saved, without your sentence.");
  }

  async open(file) {
    if (!file) return;
    try {
      const held = JSON.parse(await file.text());
      if (held.format !== FORMAT || typeof held.settings !== "object" || !Array.isArray(held.stack)) throw new Error();
      const known = Object.assign({}, this.controls.told.first, ...Object.values(this.controls.told.sliders).map(slider => slider.more));
      const only = settings => Object.fromEntries(Object.entries(settings || {}).filter(([key, value]) => key in known && typeof value !== "object" || value === null));
      if (!(held.settings.mechanism in this.controls.told.sliders)) throw new Error();
      this.stack = held.stack.map(only).filter(s => s.mechanism in this.controls.told.sliders);
      for (const name of ["rounds", "records"]) at(name).value = this[name] = Math.min(1000, Math.max(1, Math.round(Number(held[name])) || 1));
      if (typeof held.text === "string" && held.text) at("sentence").value = held.text;
      this.controls.set(only(held.settings));
      this.show();
      this.say("Opened.");
    } catch {
      this.say("This file was not saved by this page.");
    }
    at("open").value = "";
  }
}
