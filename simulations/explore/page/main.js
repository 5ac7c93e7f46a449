// Wires the page: what a person does, what is asked, and where the answer goes.

import { ask, Latest, state } from "./api.js";
import { Controls } from "./controls.js";
import { Cost } from "./cost.js";
import { at, learn } from "./dom.js";
import { inferred, nothing } from "./infers.js";
import { ledger } from "./ledger.js";
import { alternatives, histograms, possible, refused, sent } from "./leaves.js";
import { Protocol } from "./protocol.js";

const PAUSE = 250;
let controls, cost, protocol, points = null, shown = false, ready = false, timer = 0;

const say = line => { at("status").textContent = line; };
const fail = error => say(`${error.message}.`.replace(/\.\.$/, "."));

const slide = new Latest("price", (found, { question, since }) => {
  points = found.draws;
  cost.priced(found, question.settings);
  if (!shown) possible(found, question.settings);
  performance.measure("slide", { start: since, end: performance.now() });
}, fail);
const curve = new Latest("curve", (found, { question }) => cost.curved(found, question.settings), fail);
const crowd = new Latest("crowd", found => cost.crowded(found), fail);
const account = new Latest("ledger", ledger, fail);
const words = new Latest("words", found => { if (!shown) alternatives(found); }, fail);

function rest() {
  curve.ask(controls.question());
  crowd.ask(controls.question());
  if (!ready) return;
  protocol.show();
  account.ask(controls.question({ round: controls.round }));
  if (controls.settings.channel === "text" && !shown) words.ask(controls.question());
}

function changed(kind) {
  if (kind !== "slide") at("histograms").replaceChildren();
  if (shown) {
    shown = false;
    nothing();
  }
  const typed = controls.text.trim() !== "";
  for (const id of ["send", "again", "thousand"]) at(id).disabled = !ready || !typed;
  slide.ask(controls.question());
  clearTimeout(timer);
  timer = setTimeout(rest, PAUSE);
}

function rounds() {
  at("round").textContent = controls.round > 1 ? `Round ${controls.round}: a new question, a new draw, and a new cost.` : "";
}

async function send() {
  if (!controls.text.trim() || !ready) return;
  try {
    say("Sending.");
    const found = await ask("send", controls.question({ round: controls.round }));
    shown = true;
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
  } catch (error) {
    fail(error);
  }
  account.ask(controls.question({ round: controls.round }));
}

async function thousand() {
  try {
    histograms(await ask("histogram", controls.question({ times: 1000 })));
    say("1,000 draws; none of them has left.");
  } catch (error) {
    fail(error);
  }
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
      changed("text");
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
  cost = new Cost(told);
  controls = new Controls(told, changed);
  protocol = new Protocol(controls, say);
  at("form").addEventListener("submit", event => { event.preventDefault(); send(); });
  at("sentence").addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
  });
  at("again").addEventListener("click", () => { controls.round += 1; rounds(); send(); });
  at("thousand").addEventListener("click", thousand);
  // another tab, or a server, may have been answered meanwhile
  addEventListener("focus", () => { if (ready) account.ask(controls.question({ round: controls.round })); });
  nothing();
  changed("text");
  performance.mark("first");
  await load();
}

start().catch(fail);
