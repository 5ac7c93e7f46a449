// The ledger: what has left, what is spent, and what the policy allows.

import { at, count, epsilon, make, put, term } from "./dom.js";

export function ledger(found) {
  const parts = [make("p", { class: "soft" }, "This ledger was made for the page, and is thrown away with it.")];
  const total = found.total === "inf" ? null : found.total;
  if (total !== null) {
    const inner = make("i");
    inner.style.width = `${Math.min(100, 100 * found.spent.epsilon / total)}%`;
    parts.push(make("p", {}, make("strong", {}, `ε = ${epsilon(found.spent.epsilon)}`), ` of ${epsilon(total)} is spent, without what is declared public, in ${count(found.spent.releases)} of ${count(found.releases)} `,
      term("release", "releases"), "."), make("div", { class: "meter", "aria-hidden": "true" }, inner));
  }
  const rows = found.answers.slice().reverse().map(one => make("tr", {}, make("td", {}, new Date(1000 * one.time).toLocaleTimeString()),
    make("td", {}, one.channel), make("td", {}, one.stage), make("td", { class: "num" }, `ε = ${epsilon(one.worst_case)}`,
      one.public.length && one.worst_case !== "inf" ? ` between texts that agree in ${one.public.join(" and ")}; else ∞` : "")));
  parts.push(rows.length ? make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "What has left" }, make("table", {},
    make("caption", {}, "What has left, the last first"), make("thead", {}, make("tr", {}, ["at", "channel", "round", "at worst"].map(
      head => make("th", { scope: "col" }, head)))), make("tbody", {}, rows))) : make("p", {}, "Nothing has left this device."));
  const limits = Object.entries(found.limits).map(([name, most]) => `${name} ${name in found.declared ? "declared public" : `ε ≤ ${epsilon(most)}`}`);
  parts.push(make("details", {}, make("summary", {}, "The ", term("charge, ledger, policy", "policy"), " of this device"),
    make("p", {}, `Of each record: ${limits.join(", ")}.`), Object.entries(found.declared).map(([name, why]) => make("p", {}, `Declared public: ${name} (${why}).`)),
    found.account.map(line => make("p", { class: "soft" }, line))));
  put(at("account"), parts);
}
