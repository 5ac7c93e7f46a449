"""Golden numbers of the bundled experiments, sweeps and papers: every ε, and what small runs of them achieve.

    python -m tests.golden.numbers prices [NAME ...]   compare every ladder with prices.json (two minutes)
    python -m tests.golden.numbers runs [NAME ...]     run each with few users, compare with runs.json (half an hour)
    ... --write                                        keep the numbers of this tree instead

A change that is meant to change no number is held against these files. It prints each difference. An ε may differ by
one part in 10⁷, and counts not at all. An accuracy may differ by ACCURACY: embeddings differ by CPU in their last bits.
Experiments whose data are missing are named and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

HERE = ROOT / "tests" / "golden"
ACCURACY = 0.006
EXPERIMENTS = ROOT / "simulations" / "experiments"
#: What makes a run of any bundled experiment small. Keys that a source of data does not have are left out.
SMALL = {"population.users": 300, "shuffle.minimum-users": 20}
BUILT_IN = {"data.public-size": 300, "data.test-size": 300}
RUNG = ("epsilon", "delta", "worst_case", "crowd")
RUN = ("accuracy", "accuracy_clean_test", "users", "delivered", "bytes_per_user", "queried")


def cli(*arguments: str) -> str:
    """Return what a `sottovoce` command prints; raise RuntimeError with its last line where it fails."""
    command = [sys.executable, "-c", "import sys; from sottovoce.cli.main import main; sys.exit(main())", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "?").splitlines()[-1])
    return done.stdout


def rungs(ladder: list[dict[str, Any]] | None) -> dict[str, list[Any]]:
    """Return (ε, δ, worst case, crowd) of each rung that has an ε."""
    return {rung["rung"]: [rung[key] for key in RUNG] for rung in ladder or () if rung["epsilon"] is not None}


def prices(name: str) -> dict[str, Any]:
    """Return every rung of every arm of a bundled experiment at its full size, before any run."""
    arms = json.loads(cli("budget", "ladder", str(EXPERIMENTS / f"{name}.toml"), "--json"))["arms"]
    return {arm["arm"]: {side: rungs(arm[side]) for side in ("ladder", "test_ladder")} for arm in arms}


def run(name: str) -> dict[str, Any]:
    """Return accuracies, counts and rungs of a small run of a bundled experiment."""
    file = EXPERIMENTS / f"{name}.toml"
    text = file.read_text()
    settings = SMALL | (BUILT_IN if '"built-in"' in text else {})
    with tempfile.TemporaryDirectory() as place:
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        data = ["--data", str(ROOT.parent / "shared" / "data" / _data(text))] if _data(text) else []
        cli("simulate", str(file), "--out", f"{place}/run", *data, *options)
        arms = json.loads((Path(place) / "run" / "results.json").read_text())["arms"]
    return {
        arm["name"]: {key: arm[key] for key in RUN} | {side: rungs(arm[side]) for side in ("ladder", "test_ladder")}
        for arm in arms
    }


def _data(text: str) -> str | None:
    """Return the folder of shared data that an experiment names, None for a built-in corpus."""
    return next((line.split('"')[1].rsplit("/", 1)[1] for line in text.splitlines() if line.startswith("path =")), None)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each leaf."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from leaves(below, f"{place} / {key}" if place else key)
    elif isinstance(value, list):
        for number, below in zip(RUNG, value, strict=True):
            yield f"{place} / {number}", below
    else:
        yield place, value


def differences(before: Any, after: Any) -> list[str]:
    """Return a line for each leaf that differs by more than it may."""
    old, new = dict(leaves(before)), dict(leaves(after))
    lines = []
    for place in sorted(old.keys() | new.keys()):
        a, b = old.get(place, "missing"), new.get(place, "missing")
        number = isinstance(a, float) and isinstance(b, float)
        near = number and (
            abs(a - b) <= ACCURACY if "accuracy" in place.rsplit("/", 1)[-1] else math.isclose(a, b, rel_tol=1e-7)
        )
        if a != b and not near:
            lines.append(f"{place}: {a} -> {b}")
    return lines


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {"prices": prices, "runs": run}


def main() -> int:
    """Compare, or write, the numbers of a kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("names", nargs="*", help="experiments; all of them by default")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    file = HERE / f"{options.kind}.json"
    kept = json.loads(file.read_text()) if file.is_file() else {}
    differing = 0
    for name in options.names or sorted(path.stem for path in EXPERIMENTS.glob("*.toml")):
        try:
            numbers = json.loads(json.dumps(KINDS[options.kind](name)))
        except RuntimeError as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        lines = [] if options.write else differences(kept.get(name), numbers)
        differing += len(lines)
        print("\n".join(f"{name} / {line}" for line in lines) or f"{name}: ok", flush=True)
        if options.write:
            kept[name] = numbers
            file.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
