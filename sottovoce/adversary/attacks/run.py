"""Attacks on a finished run: guesses of the server, beside the best possible guess and the theorem's bound.

The adversary (`adversary.estimators`) gets the releases in the nodes' ledgers, public data and the trained model. The
truth lies in the same run folder. Only `adversary.attacks.scores` compares the guesses with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from sottovoce.adversary.attacks import embeddings as attack_embeddings
from sottovoce.adversary.attacks import intervals
from sottovoce.adversary.attacks import membership as attack_membership
from sottovoce.adversary.attacks import poison as attack_poison
from sottovoce.adversary.attacks import statistics as attack_statistics
from sottovoce.adversary.attacks import word_attributes as attack_word_attributes
from sottovoce.adversary.attacks import words as attack_words
from sottovoce.adversary.attacks.target import Target

#: Kinds of attack: modules as in `Target`, and the arms to which each applies.
KINDS = (
    (attack_words, lambda setup: setup.arm.text is not None),
    (attack_word_attributes, lambda setup: setup.arm.text is not None),
    (attack_embeddings, lambda setup: setup.arm.embedding is not None and setup.protocol.private),
    (attack_statistics, lambda setup: setup.arm.statistic is not None),
    (attack_membership, lambda setup: True),
    (attack_poison, lambda setup: setup.protocol.private and not (setup.arm.public_only or setup.arm.centralised)),
)
_NONE = "applies to none of the arms"
#: Description of each attack, by its name on the command line.
ATTACKS: dict[str, str] = {name: about for kind, _ in KINDS for name, about in kind.ATTACKS.items()}


@dataclass(frozen=True)
class Attack:
    """Attacks to run.

    Args:
        run: Folder of the run.
        names: Names of attacks; () for all that apply.
        arms: Names of arms; () for all.
        limit: As in `Target`.
        masked_lm: As in `Target`.
        attributes: As in `Target`.
        shadows: As in `Target`.
    """

    run: Path
    names: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    limit: int = 500
    masked_lm: Path | None = None
    attributes: tuple[str, ...] = ()
    shadows: int | None = None


def run(attack: Attack) -> dict[str, Any]:
    """Run every attack on every arm, and return the entries of a JSON object.

    "refused" has a line for each named attack without a result, and for each error after which others went on.

    Raises:
        UserError: There is nothing to attack, no attack or arm of a name, a named attack applies to none of the arms,
            or no attack had a result. The message is one line.
    """
    _check(attack)
    study = load(attack.run / "experiment.toml")
    setups = _chosen(attack, study.setups)
    for name in attack.names:  # before the first computes
        if not any(name in kind.ATTACKS and applies(setup) for kind, applies in KINDS for setup in setups):
            raise UserError(f"--attack {name}: {_NONE}")
    nodes = [load_node(path.parent) for path in sorted(attack.run.glob(f"nodes/*/{NODE}"))]
    if not nodes and study.training.protocol.private:
        raise UserError(f"{attack.run}: holds no releases: it has no nodes; run an experiment first")
    clear_arms = (arm.name for arm in study.arms if arm.reference and arm.way is None and _unchanged(arm.text))
    clear_arm = next(clear_arms, None)
    entries: list[dict[str, Any]] = []
    skipped: list[str] = []
    refused: list[str] = []
    first = next((setup for setup in setups if setup.arm.embedding is not None), None)
    for setup in setups:
        target = Target(
            attack.run,
            setup,
            seed=study.seed,
            data=study.data,
            population=study.population,
            encoder=study.encoder,
            training=study.training,
            clear=clear_arm,
            nodes=nodes,
            limit=attack.limit,
            masked_lm=attack.masked_lm,
            attributes=attack.attributes,
            shadows=attack.shadows,
            unprotected=setup is first,
        )
        for kind, applies in KINDS:
            names = [name for name in dict.fromkeys(attack.names or ATTACKS) if name in kind.ATTACKS]
            if not (names and applies(setup)):
                continue
            try:
                result, reasons_skipped = kind.entries(target, names)
            except UserError as error:  # results of other attacks are kept
                refused.append(str(error))
                continue
            entries += result
            skipped += reasons_skipped
    done_names = {entry["attack"] for entry in entries}
    why = {name: _reasons(name, setups, skipped) for name in attack.names if name not in done_names}
    silent = "" if refused else f": {_NONE}"
    refused += [f"--attack {name}{reason}" for name in why if (reason := why[name] or silent)]
    if refused and not entries:
        raise UserError("; ".join(dict.fromkeys(refused)))
    if not entries and not skipped:
        raise UserError(f"{attack.run}: holds nothing that can be attacked; run an experiment whose users release")
    name_set = {entry["attack"] for entry in entries}
    entries = [entry | {"about": about(entry["attack"])} for entry in intervals.judged(entries)]
    return {
        "name": study.name,
        "run": str(attack.run),
        "limit": attack.limit,
        "entries": entries,
        "skipped": skipped,
        "refused": list(dict.fromkeys(refused)),
        "reading": [kind.READING for kind, _ in KINDS if name_set & set(kind.ATTACKS)],
    }


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
        The results of `run`, with infinities as floats.

    Raises:
        UserError: `run` raises it.
    """
    model = None if masked_lm is None else Path(masked_lm)
    request = Attack(Path(folder), names, tuple(arms), limit, model, tuple(attributes), shadows)
    if request.run.is_dir():
        check_writable(request.run)
    results = run(request)
    write(results, request.run)
    return results


def _reasons(name: str, setups: Sequence[ArmSetup], skipped: Sequence[str]) -> str:
    """Return each reason to leave out an attack once, behind its arms: " on a, b: reason; on c: another"."""
    arms: dict[str, list[str]] = {}
    for setup in setups:
        start = f"{name} on {setup.arm.name}: "
        for line in skipped:
            if line.startswith(start):
                arms.setdefault(line.removeprefix(start), []).append(setup.arm.name)
    return ";".join(f" on {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in arms.items())


def _check(attack: Attack) -> None:
    """Raise UserError if an option is invalid, or there is no finished run."""
    for name in attack.names:
        if name not in ATTACKS:
            raise UserError(f"--attack {name}: there is none of that name; {nearest(name, ATTACKS)}")
    if attack.limit < 2:
        raise UserError(f"--limit {attack.limit}: at least 2 texts are needed")
    if attack.shadows is not None and (attack.shadows < 4 or attack.shadows % 2):
        raise UserError(f"--shadows {attack.shadows}: an even number is needed, at least 4")
    if attack.masked_lm is not None and not attack.masked_lm.is_dir():
        raise UserError(f"--masked-lm {attack.masked_lm}: there is no such folder")
    refuse_unfinished(attack.run)
    if not (attack.run / "experiment.toml").is_file():
        raise UserError(f"{attack.run}: is no run folder: it has no experiment.toml")


def _chosen(attack: Attack, setups: Sequence[ArmSetup]) -> list[ArmSetup]:
    setups_by_name = {setup.arm.name: setup for setup in setups}
    for name in attack.arms:
        if name not in setups_by_name:
            raise UserError(f"--arm {name}: the run has none of that name; {nearest(name, setups_by_name)}")
    return [setups_by_name[name] for name in attack.arms] or list(setups)


def _unchanged(text: Mapping[str, Any] | None) -> bool:
    return text is not None and text["mechanism"] == "identity"


def about(attack: str) -> str:
    """Return a phrase for the goal of an attack; "the same" is replaced by the goal of the attack before it.

    Raises:
        KeyError: There is no such attack.
    """
    base = ""
    for name, text in ATTACKS.items():
        if text.startswith("the same"):
            text = re.split(r",? by |, taken for ", base)[0] + text.removeprefix("the same")
        elif name != attack:
            base = text
        if name == attack:
            return f"whether a text was learnt from: {text}" if name.startswith("membership-") else text
    raise KeyError(attack)


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
        with whole(folder / f"{name}.png") as file:
            save(figure, file)
