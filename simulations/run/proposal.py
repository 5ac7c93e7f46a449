"""First experiment on a user's own table: a train-test split, and a commented TOML file.

The table has to be clean: a row without a text, a label or a user is refused, and so are two spellings of one name. The
rows are copied, test apart from train, into the proposal's folder.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w
from numpy.typing import NDArray

from server.protocols.declaration import CENTRALISED, PUBLIC_ONLY
from simulations.artifacts.lengths import token_lengths
from simulations.corpora import files, headers
from simulations.corpora.classes import described
from simulations.corpora.columns import (
    MOST_GROUPS,
    is_missing,
    is_name,
    make_corpora,
    plain_name,
    require_columns,
    shown,
)
from simulations.corpora.corpus import Corpus
from simulations.corpora.files import column_names, declares
from simulations.corpora.overlap import normalized
from simulations.corpora.parts import load_split
from simulations.corpora.splits import apart, stratified
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, load, slug
from simulations.experiment.sections import Data, EncoderConfig, Population, PublicConfig, Shuffle
from simulations.experiment.toml import SWEEP, commented
from simulations.output.atomic import staged, whole

#: Share of the rows for the test, and share of the rest that is public. Fewer rows than MIN_ROWS leave fewer than ten
#: for the test. With fewer than FEW_ROWS, differences below 0.1 are noise; a warning says so.
TEST, PUBLIC, MIN_ROWS, FEW_ROWS = 0.2, 0.2, 50, 500
#: Least rows of a class: fewer cannot be divided into three parts.
MIN_CLASS_ROWS = 5
#: Candidate maximum lengths of the encoder, and largest share of texts to truncate.
MAX_LENGTHS, MAX_TRUNCATED = (32, 64, 128, 256), 0.05
#: Candidate numbers of words that text mechanisms take of a text.
TOKENS = (16, 32, 64)
#: Largest number of classes that are listed with their rows.
CLASSES = 30
#: Kinds of comparison, and the bundled experiment with its arms.
VECTORS, TEXTS = "vectors", "texts"
KINDS = {VECTORS: "demo", TEXTS: "text-demo"}
EXPERIMENT_FILE, TRAIN, TESTED = "experiment.toml", "train.csv", "test.csv"


class TableColumns(NamedTuple):
    """Names of the columns of a table.

    Args:
        text: Column of the texts.
        label: Column of the labels.
        user: Column of the users; None without one.
        second: Column of the second texts of pairs; None if texts are single.
        kept: Further columns, which are copied as they are.
    """

    text: str
    label: str
    user: str | None
    second: str | None
    kept: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """Return the columns of texts."""
        return [name for name in (self.text, self.second) if name is not None]

    @property
    def all(self) -> list[str]:
        """Return the columns that exist."""
        return [*self.texts, self.label, *([] if self.user is None else [self.user]), *self.kept]


@dataclass(frozen=True)
class Proposal:
    """Files of a proposal.

    Attributes:
        experiment: Experiment.
        file: File of the experiment.
        used: Rows that it uses.
        left: Number of rows that it leaves out, by the reason.
        findings: Findings about the table, a line each.
    """

    experiment: Experiment
    file: Path
    used: Corpus
    left: Mapping[str, int]
    findings: tuple[str, ...]


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
    records: int | None = None,
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
        records: Records of a typical user; None for the median of the users whose rows become public. Other users' rows
            are not counted: the number goes to the server, and no ε covers it.

    Raises:
        UserError: `kind` is neither, `out` exists, a column cannot be found, or too few rows can be used.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind}: is one of {', '.join(KINDS)}")
    columns = _chosen(file, text=text, label=label, user=user, second=second, kept=tuple(kept))
    if out.exists():
        raise UserError(f"{out}: is there already; name another: sottovoce init NAME")
    if not slug(out.name):
        raise UserError(f"{out}: its name must have a letter or a digit; name another: sottovoce init NAME")
    table = _read(file, columns)
    used, tested, messages = _divided(file, table, seed)
    group = next((name for name in columns.kept if _has_groups(used.extra[name])), None)
    lengths = token_lengths(EncoderConfig().model, used.texts)
    cut = _least_length(lengths, MAX_LENGTHS)
    findings = (*_findings(file, columns, used, len(table), lengths, group), *messages)
    if (tests := int(tested.sum())) < TEST * FEW_ROWS:
        error = f"an accuracy has a standard error of about {0.5 / math.sqrt(tests):.2f}"
        findings += (f"Only {tests} test texts: {error}; more rows, or several splits (init --seed), show more.",)
    with staged(out, private=True) as part:
        _write(part / TESTED, columns, used.take(np.flatnonzero(tested)))
        _write(part / TRAIN, columns, used.take(np.flatnonzero(~tested)))
        named = described(used.classes, "names", numbers=False, pairs=columns.second is not None) is not None
        data = Data(
            source="files",
            path=str(part),
            train=TRAIN,
            test=TESTED,
            text=columns.text,
            second_text=columns.second,
            label=columns.label,
            user=columns.user,
            group=group,
            public=PublicConfig(fraction=PUBLIC, labels=False, split=None if columns.user is None else "by-text"),
        )
        experiment = _experiment(out, data, seed, cut, kind, lengths, named=named, records=records)
        why = _why(experiment, lengths, used.users is not None, kind)
        written = commented(experiment, why, first="\n".join(findings)) + _sweep(experiment)
        (part / EXPERIMENT_FILE).write_text(written, encoding="utf-8")
    return Proposal(experiment, out / EXPERIMENT_FILE, used, messages, findings)


def _chosen(
    file: Path, *, text: str | None, label: str | None, user: str | None, second: str | None, kept: tuple[str, ...]
) -> TableColumns:
    """Return the given columns, and the others by their usual names.

    Look for the usual names of a pair only if no column has a usual name of a single text.

    Raises:
        UserError: A column does not exist, or no column has a usual name.
    """
    names = column_names(file)
    arguments = (text, label, user, second, *kept)
    options = ("--text", "--label", "--user", "--second", *("--keep" for _ in kept))
    for (first, column), (other, again) in combinations(zip(options, arguments, strict=True), 2):
        if column is not None and column == again:
            raise UserError(f"{file}: {first} and {other} are one column; name two")
    if odd := [name for name in names if not name.isprintable() or name != name.strip()]:
        raise UserError(f'{file}: rename the column "{plain_name(odd[0])}": a name is one line of visible characters')
    declared = declares(file)
    require_columns(str(file), arguments, names, declared=declared)
    free = [name for name in names if name not in arguments]
    if text is None and second is None:
        for pair in headers.PAIRS:
            if set(pair) <= set(free) and _named([name for name in free if name not in pair], headers.TEXTS) is None:
                text, second = pair
                break
    columns = {"text": text or _named(free, headers.TEXTS), "label": label or _named(free, headers.LABELS)}
    for option, column in columns.items():
        if column is None:
            listing = ", ".join(map(plain_name, names[:20])) if declared else headers.shown_names(names)
            raise UserError(f"{file}: say which column holds the {option}s, --{option} NAME; there are: {listing}")
    return TableColumns(str(columns["text"]), str(columns["label"]), user or _named(free, headers.USERS), second, kept)


def _named(names: Sequence[str], usual: Sequence[str]) -> str | None:
    folded = {name.casefold(): name for name in reversed(names)}
    return next((folded[name] for name in usual if name in folded), None)


def _read(file: Path, columns: TableColumns) -> Corpus:
    """Return all rows of the table, with the columns to keep.

    Raises:
        UserError: A row lacks something, or a class has too few rows.
    """
    part = files.read(file, columns.all)
    (table,) = make_corpora(
        (part,), text=columns.text, label=columns.label, user=columns.user, second_text=columns.second
    )
    counts = np.bincount(table.labels, minlength=len(table.classes)).tolist()
    if rare := [i for i, count in enumerate(counts) if count < MIN_CLASS_ROWS]:
        number = f"has {counts[rare[0]]} row{'s' * (counts[rare[0]] != 1)}"
        more = f", and {len(rare) - 1:,} more classes have too few" if len(rare) > 1 else ""
        raise UserError(
            f"{file}: label {shown(table.classes[rare[0]])} {number}{more}; a class needs {MIN_CLASS_ROWS}: "
            "take such rows out, or name the column that holds classes with --label (numbers need data.label-range)"
        )
    kept = {name: ["" if is_missing(value) else str(value) for value in part.values[name]] for name in columns.kept}
    return replace(table, extra=kept)


def _divided(file: Path, table: Corpus, seed: int) -> tuple[Corpus, NDArray[np.bool_], dict[str, int]]:
    """Return the rows to use, which of them are for the test, and the number of the others by the reason.

    The test has a share of each class; if rows have users, all rows of a share of the users. The parts share every
    class, and no text.
    """
    messages: dict[str, int] = {}

    def kept(rows: Corpus, gone: NDArray[np.bool_], why: str) -> Corpus:
        if number := int(gone.sum()):
            messages[f"{number:,} row{'s' * (number != 1)} {why}: left out"] = number
        return rows.take(np.flatnonzero(~gone))

    if table.users is None:  # rows of people are divided such that shared texts stay in one part
        first: dict[str, int] = {}
        texts = enumerate(map(normalized, table.texts))
        gone = np.array([first.setdefault(text, row) != row for row, text in texts], np.bool_)
        used = kept(table, gone, "with a text that another row has")
        tested = np.zeros(len(used), np.bool_)
        tested[stratified(used.labels, round(TEST * len(tested)), seed)] = True
    else:
        names, owners = np.unique(np.asarray(table.users), return_inverse=True)
        if len(names) < MIN_ROWS // 4:
            raise UserError(
                f"{file}: --user: the column has {len(names)} users, and an experiment needs {MIN_ROWS // 4}; "
                "name another, or take it out of the file where it does not say whose a row is"
            )
        plain = [normalized(text) for text in table.texts]
        tested, twice = apart(owners.astype(np.int64), plain, TEST, seed, stream=3)
        used = kept(table, twice, "with a text that also occurs in the other part")
        tested = tested[~twice]
    both = np.intersect1d(used.labels[tested], used.labels[~tested])
    gone = ~np.isin(used.labels, both)
    used, tested = kept(used, gone, "of classes that only test or only train would have"), tested[~gone]
    if len(used) < MIN_ROWS:
        why = f" ({'; '.join(messages)})" if messages else ""
        raise UserError(
            f"{file}: {len(used)} of {len(table)} rows can be used, and {MIN_ROWS} are needed for ten test texts; give "
            f"more rows{why}"
        )
    if len(both) < 2:
        raise UserError(f"{file}: no two classes are in both test and train; give more rows")
    classes = tuple(used.classes[label] for label in both.tolist())
    return replace(used, labels=np.searchsorted(both, used.labels), classes=classes), tested, messages


def _write(path: Path, columns: TableColumns, rows: Corpus) -> None:
    with whole(path, private=True) as file, TextIOWrapper(file, encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(columns.all)
        for row, text in enumerate(rows.texts):
            texts, owner = (text,) if isinstance(text, str) else text, [] if rows.users is None else [rows.users[row]]
            kept = (rows.extra[name][row] for name in columns.kept)
            writer.writerow([*texts, rows.classes[rows.labels[row]], *owner, *kept])


def _least_length(lengths: NDArray[np.int64], candidates: Sequence[int]) -> int:
    """Return the least candidate length that truncates at most a share MAX_TRUNCATED of the texts, or the largest."""
    return next((most for most in candidates if np.mean(lengths > most) <= MAX_TRUNCATED), candidates[-1])


def _for_lengths(demo: Experiment, lengths: NDArray[np.int64]) -> Experiment:
    """Return a demo whose arms take as many words as texts have, at the demo's ε for each word."""
    before = max((arm.text["tokens"] for arm in demo.arms if arm.text is not None), default=0)
    if not before:
        return demo
    tokens = _least_length(lengths, TOKENS)
    arms = tuple(arm if arm.text is None else replace(arm, text={**arm.text, "tokens": tokens}) for arm in demo.arms)
    shown = [entry.partition(":")[0] for entry in demo.policy.accept_unprotected]
    policy = replace(
        demo.policy,
        text=demo.policy.text * tokens / before,
        accept_unprotected=tuple(f"{name}: simulated; decide about it before real users release" for name in shown),
    )
    return replace(demo, arms=arms, policy=policy)


def _experiment(
    out: Path,
    data: Data,
    seed: int,
    cut: int,
    kind: str,
    lengths: NDArray[np.int64],
    *,
    named: bool,
    records: int | None,
) -> Experiment:
    """Return a demo's arms and policy, with a centralised arm, on the rows in `data.path`, which becomes `out`."""
    demo, part = _for_lengths(load(KINDS[kind]), lengths), data.path
    kept_arms = [arm for arm in demo.arms if named or not arm.public_only]  # numbers for classes say nothing
    if named and not any(arm.public_only for arm in kept_arms):
        kept_arms.insert(0, Arm(name="class names alone, no users", way=PUBLIC_ONLY.name))
    arms = (Arm(name="centralised, not private", way=CENTRALISED.name, reference=True), *kept_arms)
    experiment = replace(
        demo,
        name=slug(out.name),
        seed=seed,
        data=data,
        arms=arms,
        encoder=EncoderConfig(max_length=cut),
        population=Population(users=1),
        shuffle=Shuffle(minimum_users=1),
    )
    try:
        split, _ = load_split(experiment.data, experiment.population, experiment.seed)
    except UserError as error:  # names the copies, which the user does not know yet
        raise UserError(str(error).replace(str(part), str(out))) from None
    users, test_users = (len(set(part.users or range(len(part)))) for part in (split.train, split.test))
    least = min(Shuffle.minimum_users, users, test_users)
    if records is None:
        counts = list(Counter(split.public.users or ()).values()) if kind == VECTORS else []
        records = int(np.median(counts)) if counts else 1
    return replace(
        experiment,
        training=demo.training.with_options(records=records),
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
        vector_arm = next(arm.name for arm in experiment.arms if arm.statistic is not None and not arm.reference)
        about["arms"] = about["arms"][: about["arms"].index(vector_arm) + 1]
        about["grid"] = {f"arm.{vector_arm}.vector.epsilon": [0.5, 1.0, 2.0, 4.0, 8.0]}
    comment = "# By `sottovoce sweep`: each value of the grid, if there is one, with each seed."
    return f"\n{comment}\n{tomli_w.dumps({SWEEP: about})}"


def _has_groups(cells: Sequence[object]) -> bool:
    """Return whether a kept column may be `data.group`: few names, and more than one."""
    groups = set(map(str, cells))
    return 2 <= len(groups) <= MOST_GROUPS and all(not name or is_name(name) for name in groups)


def _findings(
    file: Path, columns: TableColumns, used: Corpus, rows: int, lengths: NDArray[np.int64], group: str | None
) -> list[str]:
    """Return the findings about the table, of this number of rows."""
    counts = Counter(used.labels.tolist())
    most_of = sorted(counts, key=lambda i: (-counts[i], i))[:CLASSES]
    classes = ", ".join(f"{used.classes[i]} {counts[i]:,}" for i in sorted(most_of))
    if len(counts) > CLASSES:
        classes += f" and {len(counts) - CLASSES} more of {min(counts.values()):,} to {counts[most_of[-1]]:,}"
    whose = "each row a user's own"
    if used.users is not None:
        whose = f"of {len(set(used.users)):,} users by {columns.user}"
    median, most, texts = np.median(lengths), lengths.max(), "Texts" if columns.second is None else "Pairs"
    groups = "none has groups" if group is None else f"results are by the groups of {group}"
    return [
        f"From {json.dumps(file.name, ensure_ascii=False)}: {len(used):,} of {rows:,} rows, {whose}.",
        f"{texts} by {' and '.join(columns.texts)}, {median:,.0f} tokens in the median and {most:,} at most; labels by "
        f"{columns.label}: {classes}.",
        *([f"Kept: {', '.join(columns.kept)}; {groups}."] if columns.kept else []),
    ]


def _why(experiment: Experiment, lengths: NDArray[np.int64], owned: bool, kind: str) -> dict[str, Any]:
    """Return the comments above keys that the data determined."""
    cut, public = experiment.encoder.max_length, experiment.data.public.fraction
    row, how = ("users, with all their rows", "whole users") if owned else ("train.csv", "stratified by class")
    return {
        "data.path": "Relative to where the command runs.",
        "data.public.fraction": f"{public:.0%} of {row}, drawn by the seed: what anyone may see, and maps are learned "
        f"on. {TEST:.0%} were set aside for the test before, {how}.",
        "data.public.labels": "Users teach what goes with which. With true, public labels help, and say more of users "
        "than a stranger may know.",
        "training.records": "Records of a typical user: as stated, or the median of the users whose rows are public.",
        "population.users": "All users without public rows.",
        "encoder.max-length": f"Tokens after these are cut: of {np.mean(lengths > cut):.1%} of the texts. Twice as "
        "many take more than twice as long.",
        "arm": f"These are the arms of `sottovoce simulate {KINDS[kind]}`, and one whose server has every text as it "
        "is: the line to measure by. `sottovoce check` says what each costs, and what a run takes.",
    }
