"""What a run will cost before it runs: ε, time and memory; and what of the texts will be cut. Nothing is released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.legible import legible
from client.models.onnx import cores
from client.models.tokens import sides_of, word_ids
from mechanisms.words.text import TextMechanism
from server.checkpoint_files import resolve
from server.training.self_training import EPOCHS
from simulations.artifacts.encoder import check_trained
from simulations.artifacts.lengths import MANY_UNKNOWN, token_lengths
from simulations.artifacts.text_channel import rewriter_to_price
from simulations.corpora.corpus import Corpus, Split
from simulations.experiment import PUBLIC_ONLY, STATISTICS, TEXT_WAYS, Experiment
from simulations.experiment.ladder import of_experiment
from simulations.progress import Progress
from simulations.study.data_warnings import data_warnings, unknown_words
from simulations.study.prepare import check_asked, parts

#: Rates that were measured on two AMD EPYC cores (docs/scale.md): floating-point operations a second and core of the
#: encoder in ONNX Runtime, how many times that int8 does, and how many times slower the same texts are in transformers;
#: users a second of an arm's round; seconds of a start on Ray, and of an arm beside its users.
FLOPS, INT8, TORCH, USERS, START, ARM = 91e9, 2.3, 6.6, 150_000, 12.0, 1.0
#: Bytes of Python, Ray, Flower and torch at work on a small study, of a further user, and of a weight in training: in
#: float32, with its gradient and Adam's two moments.
BASE, USER, WEIGHT = 1.3 * 2**30, 120, 16
#: Training goes through a model forwards and, for twice that, backwards.
_BACKWARDS = 3
#: A share of cut texts, of a class and of what users could be expected, from which on it is worth a warning.
_MUCH_CUT, _RARE = 0.2, 0.1
HOW = (
    "estimated, not measured: from rates on two AMD EPYC cores ({flops:.0f} GFLOPS a core for the encoder), for the "
    "{cores} here, with nothing in the cache"
)


def forecast(experiment: Experiment, *, progress: Progress) -> dict[str, Any]:
    """{"name", "way", "parts", "untested", "crowds", "cut", "unknown", "arms", "estimate", "warnings"}, JSON-ready but
    for infinity.

    parts: of each, rows and rows by class. untested: classes that lost all test rows to the limit. crowds: of training
    and test users, how many are expected in a batch and the fewest that it may be of. cut: of each limit, the share of
    texts that are longer. unknown: of the encoder and the vocabulary, the share of words that they do not have. arms:
    as `simulations.experiment.ladder.of_experiment` has them. estimate: seconds and bytes, how that was found; None
    where the encoder is not on this machine. Reads the data; raises UserError where a run would.
    """
    check_trained(experiment)
    split, holders, about = parts(experiment, progress=progress)
    rewriter = rewriter_to_price(experiment, split.public.texts)
    texts = {arm.name: rewriter.mechanism(arm) for arm in experiment.arms if rewriter and arm.text is not None}
    classes = len(split.train.classes)
    progress("counting tokens")
    lengths = _lengths(experiment, split)
    shown = {name: getattr(split, name) for name in ("public", "train", "test")}
    tested = check_asked(experiment, split.test)[1].people
    found: dict[str, Any] = {
        "name": experiment.name, "way": experiment.training.way,
        "parts": {name: {"rows": len(part), "classes": _classes(part)} for name, part in shown.items()},
        "repeated": about["repeated"], "untested": about.get("untested", []),
        "crowds": {
            "train": {"users": min(map(experiment.answering, experiment.arms)), "least": experiment.shuffle.least},
            "test": {"users": int(tested * (1 - experiment.population.late)), "least": experiment.shuffle.least},
        },
        "cut": _cuts(experiment, lengths, split, texts), "unknown": unknown_words(experiment, split, texts),
        "arms": of_experiment(experiment, texts=texts, records=holders.most, classes=classes),
        "estimate": None if lengths is None else _estimate(experiment, lengths, len(split.public), len(split.test)),
    }  # fmt: skip
    return found | {"warnings": [*data_warnings(experiment, split, about), *_warnings(found)]}


def _classes(part: Corpus) -> dict[str, int]:
    return dict(zip(part.classes, np.bincount(part.labels, minlength=len(part.classes)).tolist(), strict=True))


def _lengths(experiment: Experiment, split: Split) -> NDArray[np.int64] | None:
    """Of each text that a run would embed or train on, in tokens: public, training, test; None where nothing here can
    tell."""
    model = experiment.encoder.model
    try:
        if not Path(resolve(model)).is_dir():
            return None
        return token_lengths(model, [text for part in (split.public, split.train, split.test) for text in part.texts])
    except OSError:
        return None


def _cuts(
    experiment: Experiment, lengths: NDArray[np.int64] | None, split: Split, texts: dict[str, TextMechanism]
) -> list[dict[str, Any]]:
    """What each limit on a text's length cuts: the encoder's in its tokens, a text mechanism's in its words."""
    most = experiment.encoder.max_length
    cuts = [] if lengths is None else [_cut("encoder.max-length", most, "tokens", lengths)]
    alike: dict[tuple[int, int, bytes], list[str]] = {}  # arms of one limit, that leave the same words out
    for name, text in texts.items():
        alike.setdefault((text.sides, text.tokens, text.dropped.tobytes()), []).append(name)
    if texts:
        words = next(iter(texts.values())).vocabulary  # of the study
        every = [legible(text) for part in (split.train, split.test) for text in part.texts]
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
        "where": where, "most": most, "unit": unit, "share": float(np.mean(lengths > most)),
        "median": float(np.median(lengths)), "longest": int(lengths.max()),
    }  # fmt: skip


def _estimate(experiment: Experiment, lengths: NDArray[np.int64], public: int, tests: int) -> dict[str, Any]:
    """Seconds, bytes of memory and of the cache that a run takes, about."""
    about = json.loads((Path(resolve(experiment.encoder.model)) / "config.json").read_text(encoding="utf-8"))
    width, depth = about["hidden_size"], about["num_hidden_layers"]
    layers = max(experiment.encoder.layers, default=depth)
    inner = about.get("intermediate_size", 4 * width)
    known = np.minimum(lengths, experiment.encoder.max_length).astype(np.float64)
    work = operations(known, layers, width, inner)
    rate = FLOPS * cores() * (INT8 if experiment.encoder.precision == "int8" else 1)
    encode = 0.0 if experiment.training.way in TEXT_WAYS else float(work.sum()) / rate
    passes = _trained(experiment, work, public, tests)
    train = _BACKWARDS * TORCH * passes / (FLOPS * cores())
    asked = sum(experiment.population.users + tests for _ in experiment.arms)
    columns = width * max(1, len(experiment.encoder.layers))
    weights = depth * (4 * width**2 + 2 * width * inner) + about.get("vocab_size", 0) * width
    return {
        "seconds": START + ARM * len(experiment.arms) + asked / USERS + encode + train,
        "encoding": encode, "training": train,
        "memory": BASE + USER * experiment.population.users + 12 * columns * (public + tests)
        + (WEIGHT * weights if passes else 0),
        "disk": 0 if experiment.training.way in TEXT_WAYS else 4 * columns * len(lengths),
        "how": HOW.format(flops=FLOPS / 1e9, cores="one core" if cores() == 1 else f"{cores()} cores"),
    }  # fmt: skip


def operations(tokens: NDArray[np.float64], layers: int, width: int, inner: int) -> NDArray[np.float64]:
    """Floating-point operations of matrix products for each of n texts of so many tokens, (n,): in a layer of a
    transformer four square ones and two of the inner width for each token, two of a head's width for each pair of
    tokens and head; a multiplication and an addition count as two."""
    return layers * (tokens * (8 * width**2 + 4 * width * inner) + 4 * tokens**2 * width)


def _trained(experiment: Experiment, work: NDArray[np.float64], public: int, tests: int) -> float:
    """Floating-point operations of one way through the encoder, of every text that it is trained on as often as it is.
    """
    training, total = experiment.training, 0.0
    if experiment.encoder.fine_tune_on_public:
        total += experiment.encoder.fine_tune_epochs * float(work[:public].sum())
    if training.way in (*TEXT_WAYS, "paper"):
        arms = sum(arm.way != PUBLIC_ONLY for arm in experiment.arms)
        total += arms * training.epochs * float(work[: len(work) - tests].sum())
    if training.self_training:
        taught = sum(experiment.way_of(arm) == STATISTICS and arm.way != PUBLIC_ONLY for arm in experiment.arms)
        total += taught * training.rounds * EPOCHS * float(work[:public].sum())
    return total


def _warnings(found: dict[str, Any]) -> list[str]:
    """What somebody would want to change before the run, a line each."""
    lines = []
    for cut in found["cut"]:
        if cut["share"] > _MUCH_CUT:
            lines.append(f"{cut['where']}: {cut['share']:.0%} of the texts are longer than {cut['most']} {cut['unit']}")
    for word in found["unknown"]:
        if word["share"] > MANY_UNKNOWN:
            lines.append(
                f"{word['where']}: does not have {word['share']:.0%} of the words: is it made for this language?"
            )
    for who, crowd in found["crowds"].items():
        if crowd["users"] < crowd["least"]:
            lines.append(
                f"shuffle.minimum-users: {crowd['users']:,} {who} users are expected in a batch, and one of fewer than "
                f"{crowd['least']:,} is discarded"
            )
    for name, part in found["parts"].items():
        for label, n in part["classes"].items():
            lost = name == "test" and label in found["untested"]
            if n < _RARE * part["rows"] / len(part["classes"]) and not lost:
                lines.append(f'{name}: class "{label}" has {n:,} of {part["rows"]:,} rows')
    for arm in found["arms"]:
        for rung in (*(arm["ladder"] or ()), *(arm["test_ladder"] or ())):
            if rung["unprotected"] == [rung["rung"]] and not arm["reference"]:
                lines.append(f'arm "{arm["arm"]}": {rung["rung"]}: nothing protects it')
    return list(dict.fromkeys(lines))
