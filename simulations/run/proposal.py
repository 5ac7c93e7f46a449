"""First experiment on a user's own table: cleaned and split rows, and a file of keys with reasons.

The rows are copied, test apart from train, into the proposal's folder. So the changes are visible, and the original
file stays as it is.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from server.protocols.centralised import PROTOCOL as CENTRALISED
from simulations.artifacts.lengths import token_lengths
from simulations.corpora.classes import described
from simulations.corpora.cleaned import Chosen, Cleaned, chosen, cleaned
from simulations.corpora.headers import USERS, is_name, is_position
from simulations.corpora.overlap import normalized
from simulations.corpora.parts import load_split
from simulations.corpora.splits import apart, stratified
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, load, slug
from simulations.experiment.sections import Data, Encoder, Population, Public, Shuffle
from simulations.experiment.toml import SWEEP, commented
from simulations.output.atomic import staged, whole

#: Share of the rows for the test, and share of the rest that is public. Fewer rows than LEAST show no result.
TEST, PUBLIC, LEAST = 0.2, 0.2, 200
#: Candidate maximum lengths of the encoder, and largest share of texts to truncate.
CUTS, CUT = (32, 64, 128, 256), 0.05
#: Largest number of classes that are listed with their rows.
CLASSES = 30
STUDY, TRAIN, TESTED = "experiment.toml", "train.csv", "test.csv"


@dataclass(frozen=True)
class Proposal:
    """Files of a proposal.

    Attributes:
        experiment: Experiment.
        file: File of the experiment.
        table: Cleaned rows.
        found: Findings about the table, a line each.
    """

    experiment: Experiment
    file: Path
    table: Cleaned
    found: tuple[str, ...]


def propose(
    file: Path, out: Path, *, text: str | None = None, label: str | None = None, user: str | None = None, seed: int = 1
) -> Proposal:
    """Write the folder `out` for a table: train.csv, test.csv, and experiment.toml with a sweep over five ε.

    Args:
        file: Table.
        out: Folder.
        text: Column of the text; None to find it by its name.
        label: Column of the label; None to find it by its name.
        user: Column of the user; None to find it by its name.
        seed: Seed of the split and of the experiment.

    Raises:
        UserError: `out` exists, a column cannot be found, or too few rows can be used.
    """
    columns = chosen(file, text=text, label=label, user=user)
    if out.exists():
        raise UserError(f"{out}: is there already; name another: sottovoce init NAME")
    if not slug(out.name):
        raise UserError(f"{out}: its name must have a letter or a digit; name another: sottovoce init NAME")
    table, tested = _divided(file, columns, seed)
    called = _called(columns, table)
    lengths = token_lengths(Encoder().model, table.texts)
    cut = next((most for most in CUTS if np.mean(lengths > most) <= CUT), CUTS[-1])
    found = (*_seen(file, columns, table, lengths), *table.notes)
    with staged(out, private=True) as part:
        _write(part / TESTED, called, table, np.flatnonzero(tested))
        _write(part / TRAIN, called, table, np.flatnonzero(~tested))
        named = described(table.classes, "names", numbers=False, pairs=False) is not None
        experiment = _experiment(out, part, called, seed, cut, named=named)
        why = _why(experiment, lengths, int((~tested).sum()), table.users is not None)
        written = commented(experiment, why, first="\n".join(found)) + _sweep(experiment)
        (part / STUDY).write_text(written, encoding="utf-8")
    return Proposal(experiment, out / STUDY, table, found)


def _divided(file: Path, columns: Chosen, seed: int) -> tuple[Cleaned, NDArray[np.bool_]]:
    """Return the usable rows, and which of them are for the test: a share of each class.

    If rows have users, all rows of a share of the users are for the test. No text is in both parts, and every class is.
    """
    table = cleaned(file, columns)
    tested = np.zeros(len(table.texts), np.bool_)
    if table.users is None:
        tested[stratified(table.labels, round(TEST * len(tested)), seed)] = True
    else:
        names, owners = np.unique(np.asarray(table.users), return_inverse=True)
        if len(names) < LEAST // 4:
            raise UserError(
                f"{file}: --user: the column has {len(names)} users, and a study needs {LEAST // 4}; name another, or "
                "take it out of the file where it does not say whose a row is"
            )
        plain = [normalized(text) for text in table.texts]
        tested, twice = apart(owners.astype(np.int64), plain, TEST, seed, stream=3)
        table = table.without(twice, "ROWS with texts of users of the other part, test or train: left out")
        tested = tested[~twice]
    both = set(table.labels[tested].tolist()) & set(table.labels[~tested].tolist())
    gone = ~np.isin(table.labels, list(both))
    number = len(table.classes) - len(both)
    some = "a class" if number == 1 else f"{number} classes"
    table = table.without(gone, f"ROWS of {some} that only test or only train would have: left out")
    tested = tested[~gone]
    if len(table.texts) < LEAST:
        raise UserError(f"{file}: {len(table.texts)} of {table.rows} rows can be used, and a study needs {LEAST}")
    if len(table.classes) < 2:
        raise UserError(f"{file}: no two classes are in both test and train; give more rows")
    return table, tested


def _called(columns: Chosen, table: Cleaned) -> list[str]:
    """Return the names of the columns in the copies: as in the file, or their role if that is no name.

    No name equals a value, so that the first line does not look like a record.
    """
    names, usual = columns.all, ("text", "label", "user")
    if not all(is_name(name) and name.strip() and not is_position(name) for name in names):
        names = list(usual[: len(names)])
    values = {*table.texts, *table.classes, *(table.users or ())}
    made: list[str] = []
    for name in names:
        while name in values or name in made:
            name += "_"
        made.append(name)
    return made


def _write(path: Path, called: Sequence[str], table: Cleaned, rows: NDArray[np.int64]) -> None:
    with whole(path, private=True) as file, TextIOWrapper(file, encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(called)
        for row in rows.tolist():
            owner = [] if table.users is None else [table.users[row]]
            writer.writerow([table.texts[row], table.classes[table.labels[row]], *owner])


def _experiment(out: Path, part: Path, called: Sequence[str], seed: int, cut: int, *, named: bool) -> Experiment:
    """Return the demo's arms and policy, with a centralised arm, on the rows in `part`, which becomes `out`."""
    demo, owned = load("demo"), len(called) == 3
    known = [arm for arm in demo.arms if named or not arm.public_only]  # numbers for classes say nothing
    arms = (Arm(name="centralised, not private", way=CENTRALISED.name, reference=True), *known)
    data = Data(
        source="files", path=str(part), train=TRAIN, test=TESTED, text=called[0], label=called[1],
        user=called[2] if owned else None,
        public=Public(fraction=PUBLIC, labels=False, split="by-text" if owned else None),
    )  # fmt: skip
    experiment = replace(
        demo, name=slug(out.name), seed=seed, data=data, arms=arms, encoder=Encoder(max_length=cut),
        population=Population(users=1), shuffle=Shuffle(minimum_users=1),
    )  # fmt: skip
    try:
        split, _ = load_split(experiment.data, experiment.population, experiment.seed)
    except UserError as error:  # names the copies, which the user does not know yet
        raise UserError(str(error).replace(str(part), str(out))) from None
    users, asked = (len(set(part.users or range(len(part)))) for part in (split.train, split.test))
    least = min(Shuffle.minimum_users, users, asked)
    return replace(
        experiment, data=replace(data, path=str(out)), population=Population(users=users),
        shuffle=Shuffle(minimum_users=least),
    )  # fmt: skip


def _sweep(experiment: Experiment) -> str:
    """Return the table [sweep] of accuracy against ε: the references, and an arm at each of five ε, three seeds."""
    names = [arm.name for arm in experiment.arms]
    taught = next(arm.name for arm in experiment.arms if arm.statistic is not None and not arm.reference)
    references = names[: names.index(taught)]
    about = {
        "seeds": [1, 2, 3], "arms": [*references, taught],
        "grid": {f"arm.{taught}.vector.epsilon": [0.5, 1.0, 2.0, 4.0, 8.0]},
    }  # fmt: skip
    said = "# Accuracy against ε, by `sottovoce sweep`: each value of the grid with each seed."
    return f"\n{said}\n{tomli_w.dumps({SWEEP: about})}"


def _seen(file: Path, columns: Chosen, table: Cleaned, lengths: NDArray[np.int64]) -> list[str]:
    """Return the findings about the table."""
    counts = Counter(table.labels.tolist())
    most_of = sorted(counts, key=lambda i: (-counts[i], i))[:CLASSES]
    shown = ", ".join(f"{table.classes[i]} {counts[i]:,}" for i in sorted(most_of))
    if len(counts) > CLASSES:
        shown += f" and {len(counts) - CLASSES} more of {min(counts.values()):,} to {counts[most_of[-1]]:,}"
    by = {name: name if columns.named else f"column {name}" for name in columns.all}
    users = "" if table.users is None else f"of {len(set(table.users)):,} users by {by[str(columns.user)]}"
    whose = users or "each row a user's own"
    median, most = np.median(lengths), lengths.max()
    people = table.users is None and columns.label.casefold() in USERS
    warn = [f'Labels are by "{columns.label}", and no user is named: who has several rows has a budget for each.']
    return [
        f"From {json.dumps(file.name, ensure_ascii=False)}: {len(table.texts):,} of {table.rows:,} rows, {whose}.",
        f"Texts by {by[columns.text]}, {median:,.0f} tokens in the median and {most:,} at most; labels by "
        f"{by[columns.label]}: {shown}.",
        *(warn if people else []),
    ]


def _why(experiment: Experiment, lengths: NDArray[np.int64], train: int, owned: bool) -> dict[str, Any]:
    """Return the comments above keys that the data determined."""
    cut, public = experiment.encoder.max_length, experiment.data.public.fraction
    row = "users, with all their rows" if owned else "train.csv"
    return {
        "data.path": "Relative to where the command runs.",
        "data.public.fraction": f"{public:.0%} of {row}, drawn by the seed: what anyone may see, and maps are learned "
        f"on. {TEST:.0%} were set aside for the test before, "
        + ("whole users" if owned else "of each class its share") + ".",
        "data.public.labels": "Users teach what goes with which. With true, public labels help, and say more of users "
        "than a stranger may know.",
        "population.users": f"All whose rows are not public, of {train:,} rows.",
        "encoder.max-length": f"Tokens after these are cut: of {np.mean(lengths > cut):.1%} of the texts. Twice as "
        "many take more than twice as long.",
        "arm": "These are the arms of `sottovoce simulate demo`, and one whose server has every text as it is: the "
        "line to measure by. `sottovoce check` says what each costs, and what a run takes.",
    }  # fmt: skip
