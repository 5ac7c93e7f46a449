"""Style and sorting of the report. Without scripts the page is the same, and it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light; --ink: #1d2430; --soft: #566070; --line: #d5dae1; --wash: #f4f6f8; --bad: #9b1c1c;
 --badwash: #fdecec; --good: #0b5c43; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; color: var(--ink); background: #fff;
 font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.4rem; margin: 3rem 0 .6rem; padding-top: .8rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.12rem; margin: 2rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, ul, dl { max-width: 46rem; margin: .5rem 0; }
ul { padding-left: 1.3rem; }
.soft { color: var(--soft); }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: 1rem;
 margin: 1.2rem 0; }
.answers section { border: 1px solid var(--line); border-top: 4px solid #0072b2; border-radius: 4px;
 padding: .8rem 1rem; }
.answers h3 { margin: 0 0 .3rem; }
.arm { border-left: 4px solid var(--line); padding-left: 1rem; margin: 1.2rem 0; }
.arm.bad { border-color: var(--bad); }
.both { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0 2rem; }
.badge { display: inline-block; padding: 0 .45em; border-radius: 3px; background: var(--bad); color: #fff;
 font-size: .8em; font-weight: 700; letter-spacing: .03em; white-space: nowrap; }
.warn { background: var(--badwash); border: 1px solid var(--bad); border-radius: 4px; padding: .5rem .8rem;
 color: var(--bad); max-width: none; }
.wide { overflow-x: auto; margin: .8rem 0 1.2rem; }
.wide:focus-visible { outline: 2px solid #0072b2; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
thead th { background: var(--wash); border-bottom: 2px solid var(--line); }
tbody th { font-weight: 600; min-width: 9rem; }
td { min-width: 5rem; }
td[data-value] { font-variant-numeric: tabular-nums; }
tr.bad > * { background: var(--badwash); }
thead button { all: unset; cursor: pointer; }
thead button:focus-visible { outline: 2px solid #0072b2; }
thead button::after { content: " \\2195"; color: var(--soft); }
[aria-sort=ascending] button::after { content: " \\2191"; }
[aria-sort=descending] button::after { content: " \\2193"; }
abbr { text-decoration: underline dotted; cursor: help; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 34rem; max-width: 58rem; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; }
pre { background: var(--wash); padding: .7rem .9rem; overflow-x: auto; white-space: pre-wrap; font-size: .88rem; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 0; }
@media print {
 @page { margin: 16mm 14mm; }
 body { font-size: 9.5pt; max-width: none; padding: 0; }
 h2, h3, h4 { break-after: avoid; }
 tr, figure, .answers section, dt { break-inside: avoid; }
 .wide, figure { overflow: visible; }
 table { font-size: 8pt; } th, td { padding: .2rem .3rem; min-width: 0; } tbody th { min-width: 0; }
 figure svg { min-width: 0; }
 thead button::after { content: ""; }
 abbr { text-decoration: none; }
 * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[at].dataset.value;
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x !== undefined && y !== undefined) return (down ? y - x : x - y) || 0;
        if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
        const order = a.cells[at].textContent.localeCompare(b.cells[at].textContent);
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
"""

#: Content security policy of the page: its own style, this one script, and nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    + "'"
)
