// Wires the page: what a person does, what is asked, and where the answer goes.

import { ask, Latest, state } from "./api.js";
import { Controls } from "./controls.js";
import { at, current, learn, make, old, put, term } from "./dom.js";
import { inferred, nothing } from "./infers.js";
import { ledger } from "./ledger.js";
import { possible, refused, sent } from "./leaves.js";

let controls, points = null, shown = false, changes = 0;

const say = line => { at("status").textContent = line; };
const fail = error => say(`${error.message}.`.replace(/\.\.$/, "."));
const version = () => changes;

// The words of the field that stand in a line, each with its meaning.
const WORDS = { "Worst case": "worst case", "δ": "δ (delta)" };
const explained = line => line.split(/(Worst case|δ)/).map(part => part in WORDS ? term(WORDS[part], part) : part);

// A slider that is being moved takes late answers too, so that what it moves is seen; they stay marked as old.
const cost = new Latest("cost", (found, { question, current: now }) => {
  put(at("words"), found.words.map(line => make("li", {}, explained(line))));
  if (!shown) possible(found, question.settings);
  if (!now) return;
  points = found.draws;
  current("words", "out");
}, fail, version, true);
const account = new Latest("ledger", ledger, fail, version, true);

function changed() {
  changes += 1;
  points = null;
  old("words", "out");
  if (shown) {
    shown = false;
    nothing();
    say("");
  }
  const typed = controls.text.trim() !== "";
  for (const id of ["send", "again"]) at(id).disabled = !typed;
  cost.ask(controls.question());
}

function rounds() {
  at("round").textContent = controls.round > 1 ? `Round ${controls.round}: a new question, a new draw, and a new cost.` : "";
}

async function send() {
  if (!controls.text.trim()) return;
  try {
    say("Sending.");
    const found = await ask("send", controls.question({ round: controls.round }));
    shown = true;
    current("out");
    if (found.refused) {
      refused(found);
      nothing();
      say("Refused: nothing left.");
    } else {
      sent(found, points);
      inferred(found);
      say(found.channels.every(c => c.repeated) ? "Sent again: the same bytes, at no cost." : `Sent: ${found.channels.map(c => c.bytes.length / 2).join(" and ")} bytes, charged to the ledger first.`);
    }
  } catch (error) {
    fail(error);
  }
  account.ask({});
}

async function start() {
  const told = await state();
  learn(told.glossary);
  controls = new Controls(told, changed);
  at("where").textContent = `The sentences that the server knows: ${told.name}.`;
  nothing();
  at("form").addEventListener("submit", event => { event.preventDefault(); send(); });
  at("sentence").addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
  });
  at("again").addEventListener("click", () => { controls.round += 1; rounds(); send(); });
  // another tab may have been answered meanwhile
  addEventListener("focus", () => account.ask({}));
  account.ask({});
  changed();
  say("Ready.");
  performance.mark("ready");
}

start().catch(fail);
