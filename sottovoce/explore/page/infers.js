// The right: what a server makes of what left, beside what it knew before and what the theorem allows.

import { at, bars, count, fact, make, percent, put } from "./dom.js";

export function nothing() {
  put(at("inferred"), make("p", { class: "soft" }, "Nothing has left in answer to this question, so the server knows what it knew before."));
}

function sentences(found, channel) {
  const one = found.sentences;
  const rows = one.listed.map(line => ({ name: line.mine ? `${line.text} (yours)` : line.text, share: line.share, prior: one.prior,
    said: percent(line.share), mine: line.mine }));
  return [
    make("p", {}, `Suppose that the server has a list of ${one.pool} sentences, and knows that one of them is yours. This is what it may believe now`,
      channel === "statistic" ? ", labels included." : "."),
    make("div", { class: "facts" }, fact(percent(one.prior), "before: yours is as likely as any"), fact(percent(one.own), `now: yours, in place ${one.rank}${one.alike ? `, and ${one.alike} like it` : ""}`),
      fact(percent(one.limit), "the theorem's limit: so often, at most, can a guess be right")),
    bars(rows),
    make("p", { class: "soft" }, "The line across each bar is what was known before."),
  ];
}

function values(title, found) {
  const rows = found.listed.map(one => ({ name: one.mine ? `${one.name} (yours)` : one.name, share: one.share, prior: one.prior,
    said: `${percent(one.prior)} → ${percent(one.share)}`, mine: one.mine }));
  return [make("h3", {}, title), bars(rows),
    make("p", { class: "soft" }, `A guess is right in ${percent(found.prior)} of cases without your answer, and in at most ${percent(found.limit)} with this alone.`)];
}

function words(channel) {
  const found = channel.inferred;
  if (!channel.words.length) return [make("p", { class: "soft" }, "No word left.")];
  const rows = channel.words.map((word, i) => {
    const guesses = found.guesses[i];
    return make("tr", {}, make("td", {}, word.left), make("td", {}, guesses.map(g => `“${g.word}” ${percent(g.share)}`).join(", ")),
      make("td", {}, guesses[0].word === word.original ? "right" : "wrong"));
  });
  const right = channel.words.filter((word, i) => found.guesses[i][0].word === word.original).length / channel.words.length;
  const estimate = found.draws === null ? "" : `, which is estimated from ${count(found.draws)} draws of each word: an attack, but not the best one`;
  return [make("p", {}, `Word by word, the likeliest original by how frequent words are in public, and by the law of the mechanism${estimate}:`),
    make("div", { class: "facts" }, fact(percent(right), "of the first guesses are right"),
      fact(percent(found.limit), "the theorem's limit for any guess at single words")),
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Guesses at your words" }, make("table", {}, make("thead", {}, make("tr", {},
      make("th", { scope: "col" }, "Seen"), make("th", { scope: "col" }, "it guesses"), make("th", { scope: "col" }, "first is"))), make("tbody", {}, rows)))];
}

export function inferred(sent) {
  const parts = [];
  for (const channel of sent.channels) {
    const found = channel.inferred;
    if (channel.channel === "text") parts.push(...words(channel));
    if (found.sentences) parts.push(make("h3", {}, "Which sentence?"), ...sentences(found, channel.channel));
    if (found.label) {
      parts.push(...values(channel.channel === "embedding" ? "Its class, by public sentences of known ones" : "Your label", found.label));
    }
    if (found.by) {
      parts.push(make("p", { class: "soft" }, `This guess weighs ${count(found.public)} public sentences by how likely each would have sent what left: by the density of ${found.by}. Nothing is trained. Another attack may do better, and none better than the limit.`));
    }
  }
  put(at("inferred"), parts);
}
