"""Check of a run before it starts: its parts, crowds, truncation of texts, and ε. Nothing is released."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.clean_text import clean_text
from client.models.tokens import sides_of, word_ids
from mechanisms.words.text import TextMechanism
from server.checkpoint_files import resolve
from server.protocols.protocol import Public
from server.protocols.statistics import LEAST_GAIN, first_group, not_worth
from simulations.artifacts.encoder import check_trained, training_of
from simulations.artifacts.lengths import token_lengths
from simulations.artifacts.public import encoder_of, names_of, public_labels
from simulations.artifacts.text_channel import rewriter_to_price
from simulations.artifacts.ways import channels_of
from simulations.corpora.classes import listed
from simulations.corpora.columns import shown as name_shown
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.names import alike, folded, spelled
from simulations.experiment import Experiment
from simulations.experiment.ladder import of_experiment
from simulations.experiment.sections import Data
from simulations.run.prepare import check_asked, parts

log = logging.getLogger(__name__)

#: Shares of truncated texts, and of a class or of expected users, at which a warning is given.
_MUCH_CUT, _RARE = 0.2, 0.1
#: Large share of a part's rows for one user: if the user is missing, accuracy may change by as much, which is more than
#: arms differ. It must also be this many times an equal share, since each of five users has a fifth.
_LARGE, _TIMES = 0.1, 2
#: Number of public texts that are embedded to predict whether users are queried.
GAIN_TEXTS = 2_000


def check(experiment: Experiment) -> dict[str, Any]:
    """Return what a run of an experiment will do, JSON-ready except for infinity.

    The keys are "name" and "way", and
    - "parts": rows of each part, and rows by class;
    - "untested": classes that lost all test rows to the limit;
    - "crowds": expected and least number of training and test users in a batch;
    - "cut": share of the texts that each limit truncates;
    - "arms": as in `simulations.experiment.ladder.of_experiment`, with "expected", what users should teach;
    - "names": sentences on class names: arms whose users will not be queried, and labels that contradict the names;
    - "warnings": warnings.

    Raises:
        UserError: A run of the experiment would raise it.
    """
    check_trained(experiment.encoder, experiment.training, experiment.arms)
    split, holders, about = parts(experiment)
    rewriter = rewriter_to_price(experiment, split.public.texts)
    texts = {arm.name: rewriter.mechanism(arm) for arm in experiment.arms if rewriter and arm.text is not None}
    classes = len(split.train.classes)
    log.info("counting tokens")
    lengths = _lengths(experiment.encoder.model, split)
    shown = {name: getattr(split, name) for name in ("public", "train", "test")}
    test_load = check_asked(experiment.data, experiment.population, experiment.shuffle, split.test)[1]
    least = experiment.shuffle.least
    summary: dict[str, Any] = {
        "name": experiment.name,
        "way": experiment.training.way,
        "parts": {name: {"rows": len(part), "classes": _classes(part)} for name, part in shown.items()},
        "repeated": about["repeated"],
        "dropped": about.get("dropped", 0),
        "untested": about.get("untested", []),
        "crowds": {
            "train": {"users": min(setup.answering for setup in experiment.setups), "least": least},
            "test": {"users": int(test_load.people * (1 - experiment.population.late) + 1e-9), "least": least},
        },
        "cut": _cuts(experiment.encoder.max_length, lengths, split, texts),
        "arms": of_experiment(
            experiment,
            texts=texts,
            records=holders.most,
            test_records=test_load.most,
            tests=test_load.people,
            public=len(split.public),
            classes=classes,
        ),
    }
    summary["names"], forecasts = ([], {}) if lengths is None else _forecast(experiment, split.public)
    for arm in summary["arms"]:
        arm["expected"] = forecasts.get(arm["arm"])
    return summary | {
        "warnings": [
            *_data_warnings(experiment.data, split, about),
            *_warnings(summary, public_labels=experiment.data.public.labels),
        ]
    }


def _classes(part: Corpus) -> dict[str, int]:
    return dict(zip(part.classes, np.bincount(part.labels, minlength=len(part.classes)).tolist(), strict=True))


def _forecast(experiment: Experiment, corpus: Corpus) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return sentences on class names, and by arm what its users should teach, from public text alone.

    An arm's forecast has the keys "share", of what its users would teach without noise, and "half", the number of users
    who would teach half of it; None for too many (`server.protocols.statistics.Group.expected`). There is none where no
    user releases a vector, the encoder is trained first, or all public text has labels. At most GAIN_TEXTS public texts
    are embedded, which a run need not do again.
    """
    setups = [setup for setup in experiment.setups if setup.statistic is not None and not setup.arm.public_only]
    part = experiment.data.public
    if not setups or experiment.encoder.fine_tune_on_public or (part.any_labels and not part.labelled):
        return [], {}
    labels, every = public_labels(part, corpus, experiment.seed), slice(None, None, len(corpus) // GAIN_TEXTS + 1)
    log.info("embedding public texts, to see what users should teach")
    encoder = encoder_of(experiment, corpus)
    public = Public(
        corpus.texts[every],
        None if labels is None else labels[every],
        corpus.classes,
        encoder,
        elsewhere=experiment.data.elsewhere,
    )
    public = replace(public, embeddings=encoder.embed(public.texts))
    public = replace(public, names=names_of(experiment, public))
    training = training_of(experiment)
    first, least = first_group(public, channels_of(setups[0], public), training), LEAST_GAIN.of(training.options)
    lines = [first.believed.doubt] if first.believed is not None and first.believed.doubt else []
    forecasts = {}
    for setup in setups:
        group = replace(first, channels=channels_of(setup, public))
        gain, users = group.gain_beyond_names(), group.channels.users
        if gain is not None and gain < least:
            lines.append(f'arm "{setup.arm.name}": no user will be queried: {not_worth(gain, least, users)}')
        elif not setup.arm.reference:
            share, half = group.expected()
            forecasts[setup.arm.name] = {"share": share, "half": half}
    return lines, forecasts


def _lengths(model: str, split: Split) -> NDArray[np.int64] | None:
    """Return the length in tokens of each text to embed or train on: public, training, test.

    None if the tokenizer is not on this machine.
    """
    try:
        if not Path(resolve(model)).is_dir():
            return None
        return token_lengths(model, [text for part in (split.public, split.train, split.test) for text in part.texts])
    except OSError:
        return None


def _cuts(
    most: int, lengths: NDArray[np.int64] | None, split: Split, texts: dict[str, TextMechanism]
) -> list[dict[str, Any]]:
    """Return the truncation by each limit: the encoder's in its tokens, a text mechanism's in its words."""
    cuts = [] if lengths is None else [_cut("encoder.max-length", most, "tokens", lengths)]
    alike: dict[tuple[int, int, bytes], list[str]] = {}  # arms of one limit, that leave the same words out
    for name, text in texts.items():
        alike.setdefault((text.sides, text.tokens, text.dropped.tobytes()), []).append(name)
    if texts:
        words = next(iter(texts.values())).vocabulary  # all have that of the experiment
        every = [clean_text(text, None) for part in (split.train, split.test) for text in part.texts]
        read = {
            sides: [np.array(word_ids(side, words), np.int64) for text in every for side in sides_of(text, sides)]
            for sides in {sides for sides, *_ in alike}
        }
        for (sides, most, _), names in alike.items():
            rows = read[sides]
            counted = np.array([(~texts[names[0]].dropped[row]).sum() for row in rows], np.int64)
            where = f'arm "{names[0]}": text.tokens' if len(names) == 1 else f"text.tokens of {len(names)} arms"
            cuts.append(_cut(where, most, "words", counted))
    return cuts


def _cut(where: str, most: int, unit: str, lengths: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "where": where,
        "most": most,
        "unit": unit,
        "share": float(np.mean(lengths > most)),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
    }


def _warnings(summary: dict[str, Any], *, public_labels: bool) -> list[str]:
    """Return warnings about what to change before the run, a line each."""
    lines = list(summary["names"])
    for cut in summary["cut"]:
        if cut["share"] > _MUCH_CUT:
            lines.append(f"{cut['where']}: {cut['share']:.0%} of the texts are longer than {cut['most']} {cut['unit']}")
    for who, crowd in summary["crowds"].items():
        if crowd["users"] < crowd["least"]:
            lines.append(
                f"shuffle.minimum-users: {crowd['users']:,} {who} users are expected in a batch, and one of fewer than "
                f"{crowd['least']:,} is discarded"
            )
    for name, part in summary["parts"].items():
        lost = summary["untested"] if name == "test" else ()
        least = _RARE * part["rows"] / len(part["classes"]) * (name != "public" or public_labels)
        if rare := [f'"{label}" {n:,}' for label, n in part["classes"].items() if n < least and label not in lost]:
            subject = "class has" if len(rare) == 1 else "classes have"
            lines.append(f"{name}: {len(rare):,} {subject} few of {part['rows']:,} rows: {listed(rare)}")
    bare: dict[str, list[str]] = {}
    for arm in summary["arms"]:
        for rung in (*(arm["ladder"] or ()), *(arm["test_ladder"] or ())):
            if rung["unprotected"] == [rung["rung"]] and not arm["reference"]:
                bare.setdefault(rung["rung"], []).append(f'"{arm["arm"]}"')
    for rung, names in bare.items():
        lines.append(f"{rung}: nothing protects it, in arm {listed(list(dict.fromkeys(names)))}")
    return lines


def _data_warnings(data: Data, split: Split, about: Mapping[str, Any]) -> list[str]:
    """Return warnings about the data, a line each.

    They name classes that a limit left without a row, groups of classes that may be one, and users who hold a large
    share of a part.
    """
    lines = []
    if untested := about.get("untested"):
        lines.append(f"data.test-limit: no row is left of {listed(untested)}: accuracy says nothing of it; raise it")
    if groups := alike(split.train.classes, folded):
        more = f" ({len(groups) - 1:,} more groups)" if len(groups) > 1 else ""
        lines.append(f"data.label: classes {listed(list(map(spelled, groups[0])))} differ in case or width alone{more}")
    if data.user is not None:
        for name in ("train", "test"):
            lines += _large(name, getattr(split, name))
    return lines


def _large(name: str, part: Corpus) -> list[str]:
    """Return a line for each user who holds a large share of the rows."""
    counts = Counter(part.users or ())
    least = max(_LARGE, _TIMES / max(1, len(counts))) * len(part)
    return [
        f"{name}: user {name_shown(user)} holds {n:,} of {len(part):,} rows ({n / len(part):.0%}): a figure over rows "
        "is largely this person's; take some of these rows out, or give more users"
        for user, n in counts.most_common()
        if n > least
    ]
