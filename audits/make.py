"""The gallery: `python audits/make.py` audits each row of audits/gallery.toml and prints what it measured.

Each row's software lives in an environment of its own under audits/.envs, which is made when it is first needed. A
violation is confirmed on new draws. With --only, rows of those names alone are audited. The table of
docs/results/gallery.md has the violated rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simulations.errors import UserError  # noqa: E402
from sottovoce.adversary.audit.run import audit_command, verify  # noqa: E402

HERE = ROOT / "audits"
ENVIRONMENTS = HERE / ".envs"
DRAWS = 100_000
#: Seconds that an answer may take: some packages load slowly.
TIMEOUT = 300.0
#: End of a requirement that is installed without its own: what it names is not needed here, or is not available.
ALONE = " --no-deps"


def manifest() -> dict[str, Any]:
    """Return the environments and the rows."""
    with (HERE / "gallery.toml").open("rb") as file:
        return tomllib.load(file)


def environment(name: str, requirements: list[str]) -> None:
    """Make an environment, unless there is one of these requirements."""
    folder, text = ENVIRONMENTS / name, "\n".join(requirements) + "\n"
    stamp = folder / "made-of.txt"
    if stamp.is_file() and stamp.read_text() == text:
        return
    print(f"making the environment {name} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    single_packages = [requirement.removesuffix(ALONE) for requirement in requirements if requirement.endswith(ALONE)]
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run(
        [*install, *(requirement for requirement in requirements if not requirement.endswith(ALONE))], check=True
    )
    if single_packages:
        subprocess.run([*install, "--no-deps", *single_packages], check=True)
    stamp.write_text(text)


def audited(row: dict[str, Any], seed: int) -> str:
    """Return a line about one row: the entry that is violated, or the first one."""
    command = f"audits/.envs/{row['environment']}/bin/python -W ignore audits/adapters/{row['adapter']}"
    fixed = not row.get("sequential", False)
    results = audit_command(command, draws=row.get("draws", DRAWS), seed=seed, fixed=fixed, timeout=TIMEOUT)
    worst = max(results["entries"], key=lambda e: (e["verdict"] == "violated", e["measured_at_delta"] or 0))
    line = f"{row['name']}: {worst['verdict']}, {worst['about']}, {worst['draws']:,} draws"
    line += "".join(f", {key} {worst[key]}" for key in ("claimed", "measured", "claimed_at_delta", "measured_at_delta"))
    if not results["certificates"]:
        return line
    clearest = max(results["certificates"], key=lambda c: c["measured"].get("delta", 0.0) - c["claimed"]["delta"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "certificate.json"
        file.write_text(json.dumps(clearest), encoding="utf-8")
        confirmed = verify(file, seed=seed + 1000, timeout=TIMEOUT)["confirmed"]
    return f"{line}, {'confirmed' if confirmed else 'not confirmed'} on new draws"


def main(words: list[str]) -> int:
    """Audit the rows of the command line, and return 1 if an audit failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this row alone; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    options, gallery = parser.parse_args(words), manifest()
    rows = {row["name"]: row for row in gallery["row"]}
    if strangers := [name for name in options.only or () if name not in rows]:
        parser.error(f"no row {strangers[0]}; audits/gallery.toml has the names")
    os.chdir(ROOT)
    failed = 0
    for name in options.only or rows:
        row = rows[name]
        environment(row["environment"], gallery["environment"][row["environment"]])
        try:
            print(audited(row, options.seed), flush=True)
        except UserError as error:  # the others are no worse for it
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
