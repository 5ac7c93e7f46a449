"""Head to head: `python audits/head_to_head.py` lets auditors test the same claims and writes docs/head-to-head.json.

Each auditor gets the draws of one pair of inputs, the worst; the search for a pair is not compared. An auditor that
says a claim is violated is wrong with probability at most 1e-3 by its own statement. jax-privacy runs in the gallery's
environment of that name; the table is printed for docs/how-to/sequential-audits.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "audits")]

from make import ENVIRONMENTS, environment, manifest  # noqa: E402 - after the path

from sottovoce.adversary.audit.external.claim import Claim  # noqa: E402
from sottovoce.adversary.audit.external.run import audit_source  # noqa: E402
from sottovoce.adversary.audit.external.source import Function  # noqa: E402

JSON = ROOT / "docs" / "head-to-head.json"
ALPHA = 1e-3
#: Draws in all of both inputs, and the most that an auditor gets.
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000)
Draws = Callable[[int, int, np.random.Generator], np.ndarray]


def coin(epsilon: float) -> Draws:
    """A bit that is kept with probability e^ε/(1 + e^ε)."""
    return lambda x, n, rng: np.where(rng.random(n) < 1 / (1 + np.exp(-epsilon)), x, 1 - x)


def laplace(epsilon: float) -> Draws:
    """A number with Laplace noise, on a grid of 2^-10."""
    return lambda x, n, rng: np.rint((x + rng.laplace(scale=1 / epsilon, size=n)) * 2**10) / 2**10


#: What each really has, and whether it is violated; all claim ε = 1 of the inputs 0 and 1.
CLAIMS: dict[str, tuple[Draws, bool, str]] = {
    "coin of ε = 2": (coin(2.0), True, "category"),
    "Laplace noise of ε = 1.5": (laplace(1.5), True, "number"),
    "coin of ε = 1": (coin(1.0), False, "category"),
    "Laplace noise of ε = 1": (laplace(1.0), False, "number"),
}
ASKED = 1.0
#: Auditors that a package registry does not have: their code has to be fetched from elsewhere.
ELSEWHERE = ("DP-Auditorium", "DP-Sniper", "StatDP", "ldp-audit")


def audited(draws: Draws, releases: str, n: int, seed: int, fixed: bool) -> int | None:
    """Draws until this project's audit says that the claim is violated, or None."""
    rng = np.random.default_rng([seed, 1])
    claim = Claim(epsilon=ASKED, pairs=[[0, 1]], releases=releases)
    source = Function(lambda x, k: draws(x, k, rng).tolist(), claim)
    found = audit_source(source, draws=n, seed=seed, family=ALPHA, fixed=fixed)
    return None if not found["violated"] else 2 * n if fixed else found["entries"][0]["draws"]


def sequential(draws: Draws, releases: str, repeats: int) -> list[int | None]:
    return [audited(draws, releases, 7_900, seed, False) for seed in range(repeats)]


def fixed(draws: Draws, releases: str, repeats: int) -> list[int | None]:
    return [audited(draws, releases, 16_000, seed, True) for seed in range(repeats)]


#: Runs in the environment of jax-privacy: bounds of ε for scores of the two inputs, by one of its methods.
_JAX = """
import json, sys
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor
scores = np.load(sys.argv[1])
found = []
for there, absent in zip(scores["there"], scores["absent"]):
    auditor = CanaryScoreAuditor(there, absent)
    if sys.argv[2] == "one run":
        found.append(auditor.epsilon_one_run(float(sys.argv[3]), 1e-6))
    else:
        found.append(auditor.epsilon_clopper_pearson(float(sys.argv[3]), one_sided=False))
print(json.dumps([float(each) for each in found]))
"""


def jax_privacy(method: str) -> Callable[[Draws, str, int], list[int | None]]:
    """The least of SIZES draws with which jax-privacy's bound is above the claim; each size has draws of its own."""

    def run(draws: Draws, releases: str, repeats: int) -> list[int | None]:
        least: list[int | None] = [None] * repeats
        for size in reversed(SIZES):
            rng = np.random.default_rng([size, 2])
            there, absent = (np.stack([draws(x, size // 2, rng).astype(float) for _ in range(repeats)]) for x in (1, 0))
            kept = ENVIRONMENTS / f"scores-{os.getpid()}.npz"
            np.savez(kept, there=there, absent=absent)
            python = ENVIRONMENTS / "jax-privacy" / "bin" / "python"
            said = subprocess.run(
                [python, "-c", _JAX, kept, method, str(ALPHA)],
                check=True,
                capture_output=True,
                text=True,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            ).stdout
            kept.unlink()
            for i, epsilon in enumerate(json.loads(said.splitlines()[-1])):
                least[i] = size if epsilon > ASKED else least[i]
        return least

    return run


AUDITORS: dict[str, Callable[[Draws, str, int], list[int | None]]] = {
    "sottovoce, sequential": sequential,
    "sottovoce, fixed": fixed,
    "jax-privacy 2.0.0, Clopper-Pearson": jax_privacy("two inputs"),
    "jax-privacy 2.0.0, one run": jax_privacy("one run"),
}


def measured(name: str, repeats: dict[bool, int]) -> dict[str, Any]:
    """One auditor's part of the JSON."""
    found = {}
    for claim, (draws, violated, releases) in CLAIMS.items():
        began, n = sum(os.times()[:4]), repeats[violated]
        least = AUDITORS[name](draws, releases, n)
        said = [each for each in least if each is not None]
        median = float(np.median([np.inf if each is None else each for each in least]))
        found[claim] = {
            "violated": violated,
            "repeats": n,
            "said": len(said),
            "median": median if np.isfinite(median) else None,
            "seconds": round((sum(os.times()[:4]) - began) / n, 3),
        }
        print(f"{name}: {claim}: {found[claim]}", file=sys.stderr)
    return found


def table(done: dict[str, Any]) -> str:
    """The results in Markdown."""
    faulty = [claim for claim, (_, violated, _) in CLAIMS.items() if violated]
    lines = [
        f"| auditor | {' | '.join(f'{claim}: found, median draws' for claim in faulty)} | false alarms | "
        "seconds an audit |",
        f"| --- | {' | '.join('---:' for _ in faulty)} | ---: | ---: |",
    ]
    for name, found in done.items():
        cells = []
        for claim in faulty:
            each = found[claim]
            draws = f", {each['median']:,.0f}" if each["median"] is not None else ""
            cells.append(f"{each['said']} of {each['repeats']}{draws}")
        sound = [each for each in found.values() if not each["violated"]]
        cells.append(f"{sum(each['said'] for each in sound)} of {sum(each['repeats'] for each in sound)}")
        cells.append(f"{np.mean([each['seconds'] for each in found.values()]):.2g}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [f"| {name} | {' | '.join(['not in the registry'] * len(faulty))} | – | – |" for name in ELSEWHERE]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=AUDITORS, help="this auditor alone; may be repeated")
    parser.add_argument("--repeats", type=int, default=20, help="of each violated claim")
    parser.add_argument("--sound", type=int, default=50, help="of each true claim")
    parser.add_argument("--table", action="store_true", help="the table alone, from the JSON")
    asked = parser.parse_args(words)
    done = json.loads(JSON.read_text(encoding="utf-8")) if JSON.is_file() else {}
    for name in () if asked.table else asked.only or AUDITORS:
        if name.startswith("jax"):
            environment("jax-privacy", manifest()["environment"]["jax-privacy"])
        found = measured(name, {True: asked.repeats, False: asked.sound})
        done = (json.loads(JSON.read_text(encoding="utf-8")) if JSON.is_file() else {}) | {name: found}
        kept = {each: done[each] for each in AUDITORS if each in done}
        JSON.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table({each: done[each] for each in AUDITORS if each in done}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
