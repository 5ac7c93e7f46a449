// Wires the page: what a person does, what is asked, and where the answer goes.

import { ask, Latest, state } from "./api.js";
import { Controls } from "./controls.js";
import { Cost } from "./cost.js";
import { at, current, learn, old } from "./dom.js";
import { guessed, inferred, nothing } from "./infers.js";
import { ledger } from "./ledger.js";
import { alternatives, possible, refused, sent } from "./leaves.js";

const PAUSE = 250;
let controls, cost, points = null, shown = false, ready = false, timer = 0, changes = 0;

const say = line => { at("status").textContent = line; };
const fail = error => say(`${error.message}.`.replace(/\.\.$/, "."));
const version = () => changes;

// A slider that is being moved takes late answers too, so that what it moves is seen; they stay marked as old.
const slide = new Latest("price", (found, { question, since, current: now }) => {
  cost.priced(found, question.settings);
  const all = shown || possible(found, question.settings);
  if (!now) return;
  points = found.draws;
  current("words");
  if (all) current("out");
  // once it is seen
  requestAnimationFrame(() => setTimeout(() => performance.measure("slide", { start: since, end: performance.now() })));
}, fail, version, true);
const loss = new Latest("loss", (found, { question }) => {
  cost.lost(found, question.settings);
  if (shown || !found.outputs) return;
  alternatives(found.outputs);
  current("out");
}, fail, version);
const account = new Latest("ledger", ledger, fail, version, true);

async function rest() {
  const of = changes;
  await loss.ask(controls.question());
  if (of === changes) performance.mark("whole");
}

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
  for (const id of ["send", "again"]) at(id).disabled = !ready || !typed;
  slide.ask(controls.question());
  clearTimeout(timer);
  timer = setTimeout(rest, PAUSE);
}

function rounds() {
  at("round").textContent = controls.round > 1 ? `Round ${controls.round}: a new question, a new draw, and a new cost.` : "";
}

async function send() {
  if (!controls.text.trim() || !ready) return;
  const question = controls.question({ round: controls.round });
  try {
    say("Sending.");
    const found = await ask("send", question);
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
    performance.mark("sent");
    const text = found.refused ? null : found.channels.find(one => one.channel === "text");
    if (text) guessed(text, released => ask("guesses", { settings: question.settings, released })).catch(fail);
  } catch (error) {
    fail(error);
  }
  account.ask({});
}

async function load() {
  for (;;) {
    const told = await state();
    if (told.failed) return say(`This cannot be shown: ${told.failed}`);
    if (told.ready) {
      ready = true;
      controls.ready(told);
      at("where").textContent = `The sentences that the server knows: ${told.name}.`;
      say("Ready.");
      account.ask({});
      changed();
      performance.mark("ready");
      return undefined;
    }
    say(`Loading the encoder: ${told.line}. The sliders work already.`);
    await new Promise(done => setTimeout(done, 300));
  }
}

async function start() {
  const told = await state();
  learn(told.glossary);
  cost = new Cost();
  controls = new Controls(told, changed);
  nothing();
  at("form").addEventListener("submit", event => { event.preventDefault(); send(); });
  at("sentence").addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
  });
  at("again").addEventListener("click", () => { controls.round += 1; rounds(); send(); });
  // another tab may have been answered meanwhile
  addEventListener("focus", () => { if (ready) account.ask({}); });
  changed();
  performance.mark("first");
  await load();
}

start().catch(fail);
