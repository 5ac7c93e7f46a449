// The middle: what might leave, and what has left, byte by byte.

import { circle, sphere, strips } from "./charts.js";
import { at, bars, count, make, percent, put, term } from "./dom.js";

// How far the sphere is turned, in degrees; until somebody does, so that the truth lies in front.
let turn = null;

const facing = ([x, , z]) => (Math.round(Math.atan2(-x, z) * 180 / Math.PI) + 385) % 360;

function picture(points, truth, sent) {
  if (truth.length === 2) return [circle(points, truth, sent)];
  if (truth.length > 3) return [strips(points, truth, sent)];
  const now = turn ?? facing(truth);
  const place = make("div", {}, sphere(points, truth, sent, now));
  const slide = make("input", { type: "range", id: "turn", min: 0, max: 360, value: now,
    oninput: e => { turn = Number(e.target.value); put(place, sphere(points, truth, sent, turn)); } });
  return [place, make("div", { class: "slider" }, make("label", { for: "turn" }, "Turn the sphere"), slide)];
}

function key(sent, points) {
  return make("ul", { class: "key" }, make("li", {}, make("i", { class: "truth" }), "the truth, which stays here"),
    points.length ? make("li", {}, make("i", { class: "cloud" }), `${points.length} draws of what might leave`) : null,
    sent ? make("li", {}, make("i", { class: "sent" }), "what left") : null);
}

export function possible(found, settings) {
  const points = found.draws;
  if (settings.channel === "text") alternatives(found.outputs);
  else if (points) {
    put(at("out"), make("p", {}, make("strong", {}, "Nothing has left yet. "), "Each dot is one way in which it could leave."),
      make("div", { class: "figure" }, picture(points.points, points.truth, null)), key(false, points.points));
  } else {
    put(at("out"), make("p", { class: "soft" }, "Nothing has left. ", settings.channel === "label"
      ? "If you send it, one class leaves, perhaps not yours." : "Type a sentence, and see where it might come out."));
  }
}

function alternatives(found) {
  const rows = found.words.map(word => make("tr", {}, make("th", { scope: "row" }, word.word),
    make("td", {}, word.alternatives.slice(0, 5).map(a => `“${a.word}” ${percent(a.probability)}`).join(", "))));
  put(at("out"), make("p", {}, make("strong", {}, "Nothing has left yet. "),
    rows.length ? "Each word may leave as one of these, or as any other." : "Type a sentence, and see what its words may become."),
    rows.length ? make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Words and what they may become" },
      make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Your word"),
        make("th", { scope: "col" }, "may leave as"))), make("tbody", {}, rows))) : null,
    found.draws === null || !rows.length ? null : make("p", { class: "soft" }, `Nobody can write down these chances: they are estimated from ${count(found.draws)} draws of each word, none of which leaves.`),
    make("p", { class: "soft" }, `At most ${found.most} words are read; the rest stays here.`));
}

export function refused(found) {
  const said = found.refused;
  put(at("out"), make("div", { class: "warn", role: "alert" }, make("p", {}, make("strong", {}, "Refused: nothing left. "),
    `The server is told “${said.text}” (code ${said.code}), and nothing else.`), said.why ? make("p", {}, `Why: ${said.why}.`) : null));
}

// The bytes of a payload in their order, each number's beside its value.
function bytes(channel) {
  const size = 2 * channel.each, all = channel.bytes.match(new RegExp(`.{${size}}`, "g")) || [];
  const values = channel.point || [];
  const words = (channel.words || []).map(word => word.left);
  const items = all.map((hex, i) => make("li", {}, hex,
    make("small", {}, values.length ? values[i].toFixed(3) : channel.channel === "label" ? channel.value : words[i] || "–")));
  return [make("h3", {}, `The bytes themselves: ${count(channel.bytes.length / 2)}`),
    make("ol", { class: "bytes", tabindex: "0", "aria-label": "bytes, each with what it says" }, items)];
}

function words(channel) {
  const rows = channel.words.map(word => make("tr", {}, make("td", {}, word.original ?? "–"), make("td", { class: "left" }, word.left),
    make("td", { class: "num" }, percent(word.probability))));
  return [make("p", { class: "big" }, "“", make("span", { class: "left" }, channel.value), "”"),
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Words that left" }, make("table", {}, make("thead", {}, make("tr", {},
      make("th", { scope: "col" }, "Your word"), make("th", { scope: "col" }, "left as"), make("th", { scope: "col" }, "chance of that"))),
      make("tbody", {}, rows))),
    channel.closed ? null : make("p", { class: "soft" }, "Nobody can write down the chance of each: the mechanism adds noise to a point in many dimensions.")];
}

function label(channel) {
  return [make("p", { class: "big" }, "Left: ", make("span", { class: "left" }, channel.value),
    channel.same ? ", which is yours; it might not have been." : ", which is not yours."),
    bars(channel.chances.map(one => ({ name: one.name, share: one.probability, said: `leaves with ${percent(one.probability)}`, mine: one.mine })))];
}

export function sent(found, points) {
  const parts = [];
  for (const channel of found.channels) {
    parts.push(make("h3", {}, { embedding: "A point left", text: "Words left", statistic: "One vector left", label: "A class left" }[channel.channel]));
    if (channel.repeated) {
      parts.push(make("p", {}, make("strong", {}, "Repeated from the ledger: "), channel.channel === "statistic"
        ? "this device has answered this round already, and a device answers once. It costs nothing." : "the same question gets the same bytes, and costs nothing."));
    }
    if (channel.channel === "text") parts.push(...words(channel));
    else if (channel.channel === "label") parts.push(...label(channel));
    else {
      const cloud = points && points.points.length && points.truth.length === channel.truth.length ? points.points : [];
      parts.push(make("div", { class: "figure" }, picture(cloud, channel.truth, channel.point)), key(true, cloud));
    }
    parts.push(...bytes(channel), make("p", { class: "soft" }, `Drawn by ${channel.guarantee}.`));
  }
  parts.push(make("p", { class: "soft" }, `The whole message, with its `, term("release", "guarantee"),
    ` and the names of its fields: ${count(found.wire)} bytes. Your name and your sentence are not in it.`));
  put(at("out"), parts);
}
