"""First experiment on a user's own table: cleaned and split rows, and a file of keys with reasons.

The rows are copied, test apart from train, into the proposal's folder. So the changes are visible, and the original
file stays as it is.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from server.protocols.centralised import PROTOCOL as CENTRALISED
from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.artifacts.lengths import token_lengths
from simulations.corpora.classes import described
from simulations.corpora.cleaned import Chosen, Cleaned, chosen, cleaned
from simulations.corpora.columns import MOST_GROUPS
from simulations.corpora.columns import is_name as is_group
from simulations.corpora.headers import USERS, is_name, is_position
from simulations.corpora.overlap import normalized
from simulations.corpora.parts import load_split
from simulations.corpora.splits import apart, stratified
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, load, slug
from simulations.experiment.sections import NUMERIC, Data, Encoder, Population, Public, Shuffle
from simulations.experiment.toml import SWEEP, commented
from simulations.output.atomic import staged, whole

#: Share of the rows for the test, and share of the rest that is public. Fewer rows than LEAST leave fewer than ten for
#: the test. Of fewer than FEW, differences below a tenth are noise, and a line says so.
TEST, PUBLIC, LEAST, FEW = 0.2, 0.2, 50, 500
#: Largest number of reasons for rows left out that an error names: those of most rows.
REASONS = 3
#: Candidate maximum lengths of the encoder, and largest share of texts to truncate.
CUTS, CUT = (32, 64, 128, 256), 0.05
#: Candidate numbers of words that text mechanisms take of a text.
TOKENS = (16, 32, 64)
#: Largest number of classes that are listed with their rows.
CLASSES = 30
#: What is compared, by the bundled experiment whose arms it has.
VECTORS, TEXTS = "vectors", "texts"
KINDS = {VECTORS: "demo", TEXTS: "text-demo"}
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
    file: Path,
    out: Path,
    *,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    second: str | None = None,
    kept: Sequence[str] = (),
    seed: int = 1,
    kind: str = VECTORS,
) -> Proposal:
    """Write the folder `out` for a table: train.csv, test.csv, and experiment.toml with a sweep over five ε.

    Args:
        file: Table.
        out: Folder.
        text: Column of the text; None to find it by its name.
        label: Column of the label; None to find it by its name.
        user: Column of the user; None to find it by its name.
        second: Column of the second text of a pair; None to find it by its name.
        kept: Columns to copy. The first of them that has groups becomes `data.group`.
        seed: Seed of the split and of the experiment.
        kind: What is compared: one vector a user (VECTORS), or mechanisms of texts (TEXTS).

    Raises:
        UserError: `kind` is neither, `out` exists, a column cannot be found, or too few rows can be used.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind}: is one of {', '.join(KINDS)}")
    columns = chosen(file, text=text, label=label, user=user, second=second, kept=kept)
    if out.exists():
        raise UserError(f"{out}: is there already; name another: sottovoce init NAME")
    if not slug(out.name):
        raise UserError(f"{out}: its name must have a letter or a digit; name another: sottovoce init NAME")
    table, tested = _divided(file, columns, seed)
    called = _called(columns, table)
    group = next((name for name in columns.kept if _has_groups(table.kept[name])), None)
    lengths = token_lengths(Encoder().model, table.texts)
    cut = _cutting_few(lengths, CUTS)
    found = (*_seen(file, columns, table, lengths, group), *table.notes, *_few(int(tested.sum())))
    with staged(out, private=True) as part:
        _write(part / TESTED, called, table, np.flatnonzero(tested))
        _write(part / TRAIN, called, table, np.flatnonzero(~tested))
        numbers, pairs = table.between is not None, columns.second is not None
        named = described(table.classes, "names", numbers=numbers, pairs=pairs) is not None
        data = Data(
            source="files",
            path=str(part),
            train=TRAIN,
            test=TESTED,
            text=called[columns.text],
            second_text=None if columns.second is None else called[columns.second],
            label=called[columns.label],
            user=None if columns.user is None else called[columns.user],
            label_range=table.between,
            group=None if group is None else called[group],
            public=Public(fraction=PUBLIC, labels=False, split=None if columns.user is None else "by-text"),
            measures=NUMERIC if numbers else (),
        )
        experiment = _experiment(out, data, seed, cut, kind, lengths, named=named)
        why = _why(experiment, lengths, int((~tested).sum()), table.users is not None, kind)
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
    gone = ~np.isin(table.labels, list(both)) if table.between is None else np.zeros(len(tested), np.bool_)
    number = len(table.classes) - len(both)
    some = "a class" if number == 1 else f"{number} classes"
    table = table.without(gone, f"ROWS of {some} that only test or only train would have: left out")
    tested = tested[~gone]
    if len(table.texts) < LEAST:
        most = sorted(table.left, key=lambda line: -table.left[line])[:REASONS]  # an error is one line to read
        others = f"; and {len(table.left) - len(most)} more reasons" if len(table.left) > len(most) else ""
        why = f" ({'; '.join(most)}{others})" if most else ""
        raise UserError(
            f"{file}: {len(table.texts)} of {table.rows} rows can be used, and {LEAST} are needed for ten test texts; "
            f"give more rows{why}"
        )
    if len(both) < 2:
        raise UserError(f"{file}: no two classes are in both test and train; give more rows")
    return table, tested


def _called(columns: Chosen, table: Cleaned) -> dict[str, str]:
    """Return the name of each column in the copies: as in the file, or its role if some are no names.

    No name equals a value, so that the first line does not look like a record.
    """
    usual = [*("text", "second")[: len(columns.texts)], "label", *([] if columns.user is None else ["user"])]
    usual += [f"kept{number}" for number in range(1, len(columns.kept) + 1)]
    same = all(is_name(name) and name.strip() and not is_position(name) for name in columns.all)
    texts = (each for text in table.texts for each in ((text,) if isinstance(text, str) else text))
    values = {*texts, *table.written, *(table.users or ())}.union(*table.kept.values())
    made: dict[str, str] = {}
    for column, name in zip(columns.all, columns.all if same else usual, strict=True):
        while name in values or name in made.values():
            name += "_"
        made[column] = name
    return made


def _write(path: Path, called: Mapping[str, str], table: Cleaned, rows: NDArray[np.int64]) -> None:
    with whole(path, private=True) as file, TextIOWrapper(file, encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(called.values())
        for row in rows.tolist():
            text, owner = table.texts[row], [] if table.users is None else [table.users[row]]
            texts = (text,) if isinstance(text, str) else text
            writer.writerow([*texts, table.written[row], *owner, *(cells[row] for cells in table.kept.values())])


def _cutting_few(lengths: NDArray[np.int64], candidates: Sequence[int]) -> int:
    """Return the least candidate length that cuts a share of CUT of the texts or fewer, or the largest candidate."""
    return next((most for most in candidates if np.mean(lengths > most) <= CUT), candidates[-1])


def _for_lengths(demo: Experiment, lengths: NDArray[np.int64]) -> Experiment:
    """Return a demo whose arms take as many words as texts have, at the demo's ε for each word."""
    before = max((arm.text["tokens"] for arm in demo.arms if arm.text is not None), default=0)
    if not before:
        return demo
    tokens = _cutting_few(lengths, TOKENS)
    arms = tuple(arm if arm.text is None else replace(arm, text={**arm.text, "tokens": tokens}) for arm in demo.arms)
    shown = [each.partition(":")[0] for each in demo.policy.accept_unprotected]
    policy = replace(
        demo.policy,
        text=demo.policy.text * tokens / before,
        accept_unprotected=tuple(f"{name}: simulated; decide about it before real users release" for name in shown),
    )
    return replace(demo, arms=arms, policy=policy)


def _experiment(
    out: Path, data: Data, seed: int, cut: int, kind: str, lengths: NDArray[np.int64], *, named: bool
) -> Experiment:
    """Return a demo's arms and policy, with a centralised arm, on the rows in `data.path`, which becomes `out`."""
    demo, part = _for_lengths(load(KINDS[kind]), lengths), data.path
    known = [arm for arm in demo.arms if named or not arm.public_only]  # numbers for classes say nothing
    if named and not any(arm.public_only for arm in known):
        known.insert(0, Arm(name="class names alone, no users", way=PUBLIC_ONLY.name))
    arms = (Arm(name="centralised, not private", way=CENTRALISED.name, reference=True), *known)
    experiment = replace(
        demo,
        training=replace(demo.training, records=1),
        name=slug(out.name),
        seed=seed,
        data=data,
        arms=arms,
        encoder=Encoder(max_length=cut),
        population=Population(users=1),
        shuffle=Shuffle(minimum_users=1),
    )
    try:
        split, _ = load_split(experiment.data, experiment.population, experiment.seed)
    except UserError as error:  # names the copies, which the user does not know yet
        raise UserError(str(error).replace(str(part), str(out))) from None
    users, asked = (len(set(part.users or range(len(part)))) for part in (split.train, split.test))
    least = min(Shuffle.minimum_users, users, asked)
    return replace(
        experiment,
        data=replace(data, path=str(out)),
        population=Population(users=users),
        shuffle=Shuffle(minimum_users=least),
    )


def _sweep(experiment: Experiment) -> str:
    """Return the table [sweep] of accuracy against ε: references, and an arm at each of five ε, three seeds.

    Of mechanisms of texts, all arms as they are: one ε of each is comparable with the others.
    """
    arms = [arm for arm in experiment.arms if arm.text is not None]
    about: dict[str, Any] = {"seeds": [1, 2, 3], "arms": [arm.name for arm in experiment.arms]}
    if not arms:
        taught = next(arm.name for arm in experiment.arms if arm.statistic is not None and not arm.reference)
        about["arms"] = about["arms"][: about["arms"].index(taught) + 1]
        about["grid"] = {f"arm.{taught}.vector.epsilon": [0.5, 1.0, 2.0, 4.0, 8.0]}
    said = "# By `sottovoce sweep`: each value of the grid, if there is one, with each seed."
    return f"\n{said}\n{tomli_w.dumps({SWEEP: about})}"


def _has_groups(cells: Sequence[str]) -> bool:
    """Return whether a kept column may be `data.group`: few names, and more than one."""
    groups = set(cells)
    return 2 <= len(groups) <= MOST_GROUPS and all(not name or is_group(name) for name in groups)


def _seen(file: Path, columns: Chosen, table: Cleaned, lengths: NDArray[np.int64], group: str | None) -> list[str]:
    """Return the findings about the table."""
    counts = Counter(table.labels.tolist())
    most_of = sorted(counts, key=lambda i: (-counts[i], i))[:CLASSES]
    shown = ", ".join(f"{table.classes[i]} {counts[i]:,}" for i in sorted(most_of))
    if table.between is not None:
        shown = "{:g} to {:g}".format(*table.between)
    elif len(counts) > CLASSES:
        shown += f" and {len(counts) - CLASSES} more of {min(counts.values()):,} to {counts[most_of[-1]]:,}"
    by = {name: name if columns.named else f"column {name}" for name in columns.all}
    users = "" if table.users is None else f"of {len(set(table.users)):,} users by {by[str(columns.user)]}"
    whose = users or "each row a user's own"
    median, most, texts = np.median(lengths), lengths.max(), "Texts" if columns.second is None else "Pairs"
    groups = "none has groups" if group is None else f"results are by the groups of {by[group]}"
    people = table.users is None and columns.label.casefold() in USERS
    warn = [f'Labels are by "{columns.label}", and no user is named: who has several rows has a budget for each.']
    return [
        f"From {json.dumps(file.name, ensure_ascii=False)}: {len(table.texts):,} of {table.rows:,} rows, {whose}.",
        f"{texts} by {' and '.join(by[name] for name in columns.texts)}, {median:,.0f} tokens in the median and "
        f"{most:,} at most; labels by {by[columns.label]}: {shown}.",
        *(warn if people else []),
        *([f"Kept: {', '.join(by[name] for name in columns.kept)}; {groups}."] if columns.kept else []),
    ]


def _few(tests: int) -> list[str]:
    """Return a warning if accuracies on so many test texts say little."""
    if tests >= TEST * FEW:
        return []
    return [
        f"Only {tests} test texts: an accuracy has a standard error of about {0.5 / math.sqrt(tests):.2f}; more rows, "
        "or several splits (init --seed), show more."
    ]


def _why(experiment: Experiment, lengths: NDArray[np.int64], train: int, owned: bool, kind: str) -> dict[str, Any]:
    """Return the comments above keys that the data determined."""
    cut, public = experiment.encoder.max_length, experiment.data.public.fraction
    row = "users, with all their rows" if owned else "train.csv"
    return {
        "data.path": "Relative to where the command runs.",
        "data.public.fraction": f"{public:.0%} of {row}, drawn by the seed: what anyone may see, and maps are learned "
        f"on. {TEST:.0%} were set aside for the test before, "
        + ("whole users" if owned else "of each class its share")
        + ".",
        "data.public.labels": "Users teach what goes with which. With true, public labels help, and say more of users "
        "than a stranger may know.",
        "population.users": f"All whose rows are not public, of {train:,} rows.",
        "encoder.max-length": f"Tokens after these are cut: of {np.mean(lengths > cut):.1%} of the texts. Twice as "
        "many take more than twice as long.",
        "arm": f"These are the arms of `sottovoce simulate {KINDS[kind]}`, and one whose server has every text as it "
        "is: the line to measure by. `sottovoce check` says what each costs, and what a run takes.",
    }
