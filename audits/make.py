"""The gallery: `python audits/make.py` audits each row of audits/gallery.toml and writes gallery.json and gallery.md.

Each row's software lives in an environment of its own under audits/.envs, which is made when it is first wanted. A
violation is checked on new draws, and its certificate kept in docs/results/gallery. With --only rows of those names
are made anew and the others kept; --list says what there is; --page writes the page from the JSON alone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import subprocess
import sys
import textwrap
import time
import tomllib
import venv
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simulations.errors import UserError  # noqa: E402
from simulations.output.jsonable import json_ready  # noqa: E402
from sottovoce.adversary.audit.measure import NOT_FOUND, VIOLATED  # noqa: E402
from sottovoce.adversary.audit.run import audit_command, verify  # noqa: E402 - after the path

HERE = ROOT / "audits"
ENVIRONMENTS, CERTIFICATES = HERE / ".envs", ROOT / "docs" / "results" / "gallery"
JSON, PAGE = ROOT / "docs" / "results" / "gallery.json", ROOT / "docs" / "results" / "gallery.md"
DRAWS = 100_000
#: Seconds that an answer may take: some packages load slowly.
TIMEOUT = 300.0
#: End of a requirement that is installed without its own: what it names is not needed here, or cannot be had.
ALONE = " --no-deps"
#: Of an audit's entry.
KEPT = (
    "about",
    "pair",
    "claimed",
    "measured",
    "claimed_at_delta",
    "measured_at_delta",
    "measured_mu",
    "draws",
    "verdict",
)


def manifest() -> dict[str, Any]:
    with (HERE / "gallery.toml").open("rb") as file:
        return tomllib.load(file)


def lock() -> TextIO:
    """Take the folder of the environments for this process alone, until the file is closed.

    Raises:
        UserError: Another process has it: two would lose each other's rows, and clear environments in use.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    file = (ENVIRONMENTS / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError("another audits/make.py is at work here: wait until it has ended") from None
    return file


def environment(name: str, requirements: list[str]) -> None:
    """Makes an environment, where there is none of these requirements."""
    folder, wanted = ENVIRONMENTS / name, "\n".join(requirements) + "\n"
    made = folder / "made-of.txt"
    if made.is_file() and made.read_text() == wanted:
        return
    print(f"making the environment {name} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    alone = [each.removesuffix(ALONE) for each in requirements if each.endswith(ALONE)]
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *(each for each in requirements if not each.endswith(ALONE))], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", *alone], check=True)
    made.write_text(wanted)


def audited(row: dict[str, Any], seed: int) -> dict[str, Any]:
    """One row's entry in the JSON; its certificate is written beside it where there is one."""
    command = f"audits/.envs/{row['environment']}/bin/python -W ignore audits/adapters/{row['adapter']}"
    began = time.monotonic()
    fixed = not row.get("sequential", False)
    results = audit_command(command, draws=row.get("draws", DRAWS), seed=seed, fixed=fixed, timeout=TIMEOUT)
    kept = CERTIFICATES / f"{row['name']}.json"
    kept.unlink(missing_ok=True)
    confirmed = None
    if results["certificates"]:
        # the one that is violated by most: of several it is the easiest to check
        worst = max(
            results["certificates"], key=lambda each: each["measured"].get("delta", 0.0) - each["claimed"]["delta"]
        )
        CERTIFICATES.mkdir(exist_ok=True)
        kept.write_text(json.dumps(worst, ensure_ascii=False) + "\n", encoding="utf-8")
        confirmed = verify(kept, seed=seed + 1000, timeout=TIMEOUT)["confirmed"]
    return {
        "name": row["name"],
        "command": command,
        "seed": seed,
        "draws": results["draws"],
        "delta": results["delta"],
        "sequential": not fixed,
        "seconds": round(time.monotonic() - began, 1),
        "violated": results["violated"],
        "confirmed": confirmed,
        "entries": [{key: each[key] for key in KEPT} for each in results["entries"]],
    }


def page(rows: list[dict[str, Any]], done: dict[str, Any]) -> str:
    """The gallery in Markdown."""
    there = [row for row in rows if row["name"] in done]
    lines = [
        INTRODUCTION.format(
            rows=len(there),
            software=len({row["software"] for row in there}),
            violated=sum(bool(done[row["name"]]["violated"]) for row in there),
        ),
        "<!-- table: gallery -->",
        "",
        "| software | what | claim | claimed ε | measured ε ≥ | share | |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    lines += [_line(row, done[row["name"]]) for row in there]
    lines += ["", "## What fell, looked at again", ""]
    for row in there:
        if done[row["name"]]["violated"]:
            said = f"**{row['software']}, {row['what']}.** Claim: {row['claim']}, by {row['source']}. "
            said += f"{' '.join(row['fell'].split())} Not tested: {row['untested']}"
            if "fix" in row:
                said += f" Possible fix: {row['fix']}"
            lines += [textwrap.fill(said, 120, break_on_hyphens=False, break_long_words=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: dict[str, Any], result: dict[str, Any]) -> str:
    first = result["entries"][0]
    worst = max(result["entries"], key=lambda e: (e["verdict"] == "violated", e["measured_at_delta"] or 0))
    shown = worst if result["violated"] else first
    at = "" if shown["claimed"] != "inf" else "_at_delta"
    claimed, measured = float(shown[f"claimed{at}"]), float(shown[f"measured{at}"])
    share = f"{measured / claimed:.2f}" if claimed and math.isfinite(claimed) else ""
    bound = f"{measured:.3g}"
    if result.get("sequential"):
        bound = f"{'> ' + bound if result['violated'] else 'none'} in {shown['draws']:,} draws"
        share = ""
    said = NOT_FOUND
    if result["violated"]:
        said = f"[violated](gallery/{row['name']}.json)"
        said += "" if first is shown else f", {shown['about']}"
    cells = row["software"], row["what"], row["claim"], f"{claimed:.3g}", bound, share, said
    return "| " + " | ".join(cells) + " |"


INTRODUCTION = """# A gallery of audits

Other software under [the audit](../how-to/audit-package.md): {rows} audits of {software} packages and published
algorithms, in environments of their own, made by one command, `python audits/make.py` (an hour or so; `--only
NAME` makes one row anew), from the adapters in `audits/adapters`. {violated} claims fell.

A row has the version that a package registry had, the claim as the software's documentation or the paper states it, the
ε that is claimed of the pair of inputs that was found (at the claim's δ where it has one), the ε that was measured from
below, and its share of the claim. A claim that falls was measured again on new draws, has a certificate (the link;
`sottovoce audit --verify FILE`, from the repository's root), and is described below, with where the claim is made and
what was not tested. An audit of a true claim raises an alarm with probability at most 1e-3. *No violation found* says
that these draws, of this pair and by these tests, show no more: no proof. It does not test other inputs, such as one
direction of a vector, batches of other sizes than those drawn, or
[rare leaks](../how-to/audit-package.md#what-it-finds-and-what-not). Where draws are dear the audit is
[sequential](../how-to/sequential-audits.md): it stops at the first violation, which says that ε is above the claim, and
after how many draws. All figures are also in [gallery.json](gallery.json).

NVFlare's PercentilePrivacy and NAP2 have no row because they claim no ε, and PrivacyGo because no package registry has
it. SafeDP-Rewrite (Kim 2025) has none because only its abstract could be read; what would decide is whether it can
release words of the private text that were left unmasked.

Language models are tiny here, made by hand or of random weights: a claim about a rewriter is of any model. A row of a
paper tests our own rebuilding of its algorithm, not the authors' program.
"""


def written(given: dict[str, Any], asked: argparse.Namespace) -> int:
    """Audits the rows that were asked for, and writes the JSON after each and the page at the end."""
    os.chdir(ROOT)
    rows = given["row"]
    names = [row["name"] for row in rows]
    failed, done = 0, json.loads(JSON.read_text(encoding="utf-8")) if JSON.is_file() else {}
    for row in rows:
        if asked.page or (asked.only and row["name"] not in asked.only):
            continue
        environment(row["environment"], given["environment"][row["environment"]])
        try:
            done[row["name"]] = json_ready(audited(row, asked.seed))
        except UserError as error:  # the others are no worse for it
            print(f"{row['name']}: {error}", file=sys.stderr)
            failed = 1
            continue
        said = VIOLATED if done[row["name"]]["violated"] else NOT_FOUND
        print(f"{row['name']}: {said}, {done[row['name']]['seconds']} s", file=sys.stderr)
        kept = {name: done[name] for name in names if name in done}
        JSON.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    said_of = {"fell", "source", "untested"}
    if all(said_of <= set(row) for row in rows if done.get(row["name"], {}).get("violated")):
        PAGE.write_text(page(rows, done), encoding="utf-8")
    else:
        print(f"the page waits: gallery.toml must have {', '.join(sorted(said_of))} of violated rows", file=sys.stderr)
    return failed


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this row alone; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="the rows' names")
    parser.add_argument("--page", action="store_true", help="the page alone, from the JSON")
    asked, given = parser.parse_args(words), manifest()
    names = [row["name"] for row in given["row"]]
    if unknown := [name for name in asked.only or () if name not in names]:
        parser.error(f"no row {unknown[0]}; --list has the names")
    if asked.list:
        print("\n".join(names))
        return 0
    try:
        with lock():
            return written(given, asked)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
