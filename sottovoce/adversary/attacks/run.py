"""Attacks on a finished run: guesses of the server, beside the best possible guess and the theorem's bound.

The adversary (`adversary.estimators`) gets the releases in the nodes' ledgers, public data and the trained model. The
truth lies in the same run folder. Only `adversary.attacks.scores` compares the guesses with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.node import NODE, load_node
from mechanisms.catalogue import nearest
from simulations.analysis.attack_results import figures, table
from simulations.errors import UserError
from simulations.experiment import ArmSetup, load
from simulations.output.atomic import check_writable, whole
from simulations.output.figures import save
from simulations.output.jsonable import json_ready
from simulations.run.journal import refuse_unfinished
from sottovoce.adversary.attacks import attributes as attack_attributes
from sottovoce.adversary.attacks import embeddings, membership, poison, vectors, words
from sottovoce.adversary.attacks.scores import judged
from sottovoce.adversary.attacks.target import Target

#: Kinds of attack: modules as in `Target`, and the arms to which each applies.
KINDS = (
    (words, lambda setup: setup.arm.text is not None),
    (attack_attributes, lambda setup: setup.arm.text is not None),
    (embeddings, lambda setup: setup.arm.embedding is not None and setup.protocol.private),
    (vectors, lambda setup: setup.arm.statistic is not None),
    (membership, lambda setup: True),
    (poison, lambda setup: setup.arm.statistic is not None),
)
_NONE = "applies to none of the arms"
#: Description of each attack, by its name on the command line.
ATTACKS: dict[str, str] = {name: about for kind, _ in KINDS for name, about in kind.ATTACKS.items()}


def attack(
    folder: Path | str,
    *names: str,
    arms: Sequence[str] = (),
    limit: int = 500,
    masked_lm: Path | str | None = None,
    attributes: Sequence[str] = (),
    shadows: int | None = None,
) -> dict[str, Any]:
    """Run the server's attacks on a finished run, as the command `attack` does.

    Args:
        folder: Folder of the run; attacks.json, attacks.md and figures are written into it.
        *names: Names of attacks; without names, all of ATTACKS that apply.
        arms: Names of arms; () for all.
        limit: Texts of each arm, at most.
        masked_lm: As in `Target`.
        attributes: As in `Target`.
        shadows: As in `Target`.

    Returns:
        A JSON object, with infinities as floats. "refused" has a line for each named attack without a result, and for
        each error after which others went on.

    Raises:
        UserError: There is nothing to attack, no attack or arm of a name, a named attack applies to none of the arms,
            or no attack had a result. The message is one line.
    """
    run, model = Path(folder), None if masked_lm is None else Path(masked_lm)
    if run.is_dir():
        check_writable(run)
    _check(run, names, limit, model, shadows)
    experiment = load(run / "experiment.toml")
    setups = _chosen(arms, experiment.setups)
    for name in names:  # before the first computes
        if not any(name in kind.ATTACKS and applies(setup) for kind, applies in KINDS for setup in setups):
            raise UserError(f"--attack {name}: {_NONE}")
    nodes = [load_node(path.parent) for path in sorted(run.glob(f"nodes/*/{NODE}"))]
    if not nodes and experiment.training.protocol.private:
        raise UserError(f"{run}: holds no releases: it has no nodes; run an experiment first")
    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    refused: list[str] = []
    first = next((setup for setup in setups if setup.arm.embedding is not None), None)
    for setup in setups:
        target = Target(
            run,
            experiment,
            setup,
            nodes,
            limit=limit,
            masked_lm=model,
            attributes=tuple(attributes),
            shadows=shadows,
            unprotected=setup is first,
        )
        for kind, applies in KINDS:
            names_of_kind = [name for name in dict.fromkeys(names or ATTACKS) if name in kind.ATTACKS]
            if not (names_of_kind and applies(setup)):
                continue
            try:
                result, reasons_skipped = kind.entries(target, names_of_kind)
            except UserError as error:  # results of other attacks are kept
                refused.append(str(error))
                continue
            entries += result
            skipped += reasons_skipped
    done_names = {entry["attack"] for entry in entries}
    for name in (name for name in names if name not in done_names):
        reasons = [f"--attack {line}" for line in skipped if line.startswith(f"{name} on ")]
        refused += reasons or ([] if refused else [f"--attack {name}: {_NONE}"])
    if refused and not entries:
        raise UserError("; ".join(dict.fromkeys(refused)))
    if not entries and not skipped:
        raise UserError(f"{run}: holds nothing that can be attacked; run an experiment whose users release")
    results = {
        "name": experiment.name,
        "run": str(run),
        "limit": limit,
        "entries": [entry | {"about": about(entry["attack"])} for entry in judged(entries)],
        "skipped": skipped,
        "refused": list(dict.fromkeys(refused)),
        "reading": [kind.READING for kind, _ in KINDS if done_names & set(kind.ATTACKS)],
    }
    write(results, run)
    return results


def _check(run: Path, names: Sequence[str], limit: int, masked_lm: Path | None, shadows: int | None) -> None:
    """Raise UserError if an option is invalid, or there is no finished run."""
    for name in names:
        if name not in ATTACKS:
            raise UserError(f"--attack {name}: there is none of that name; {nearest(name, ATTACKS)}")
    if limit < 2:
        raise UserError(f"--limit {limit}: at least 2 texts are needed")
    if shadows is not None and (shadows < 4 or shadows % 2):
        raise UserError(f"--shadows {shadows}: an even number is needed, at least 4")
    if masked_lm is not None and not masked_lm.is_dir():
        raise UserError(f"--masked-lm {masked_lm}: there is no such folder")
    refuse_unfinished(run)
    if not (run / "experiment.toml").is_file():
        raise UserError(f"{run}: is no run folder: it has no experiment.toml")


def _chosen(arms: Sequence[str], setups: Sequence[ArmSetup]) -> list[ArmSetup]:
    setups_by_name = {setup.arm.name: setup for setup in setups}
    for name in arms:
        if name not in setups_by_name:
            raise UserError(f"--arm {name}: the run has none of that name; {nearest(name, setups_by_name)}")
    return [setups_by_name[name] for name in arms] or list(setups)


def about(attack: str) -> str:
    """Return a phrase for the goal of an attack.

    Raises:
        KeyError: There is no such attack.
    """
    return f"whether a text was learnt from: {ATTACKS[attack]}" if attack.startswith("membership-") else ATTACKS[attack]


def write(results: dict[str, Any], folder: Path) -> None:
    """Write attacks.json, attacks.md and a figure for each group of attacks, each whole or not at all.

    Those of an earlier attack are replaced.
    """
    text = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False)
    for name, content in (("attacks.json", text), ("attacks.md", table(results))):
        with whole(folder / name) as file:
            file.write((content + "\n").encode())
    pictures = figures(results)
    for path in folder.glob("attacks-*.png"):
        if path.stem not in pictures:
            path.unlink()
    for name, figure in pictures.items():
        save(figure, folder / f"{name}.png")
