"""Forecast of a run: ε, time, memory, and truncation of texts. Nothing is released."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import language_models
from client.models.clean_text import clean_text
from client.models.onnx import cores
from client.models.tokens import sides_of, word_ids
from mechanisms.words.text import TextMechanism
from server.checkpoint_files import resolve
from server.protocols.protocol import Public
from server.protocols.statistics import LEAST_GAIN, codes_asked, first_belief, gain_beyond_names, not_worth
from simulations.artifacts.encoder import check_trained, encoder_folder, layers_of, student_of
from simulations.artifacts.lengths import MANY_UNKNOWN, token_lengths
from simulations.artifacts.public import CachedEncoder, names_of, public_labels
from simulations.artifacts.text_channel import rewriter_to_price
from simulations.artifacts.vocabulary import MINILM
from simulations.artifacts.ways import channels_of
from simulations.corpora.classes import listed
from simulations.corpora.corpus import Corpus, Split
from simulations.experiment import BUNDLED_LM, Arm, Encoder, Experiment
from simulations.experiment.ladder import of_experiment
from simulations.run.centralised import PENALTIES, STEPS
from simulations.run.data_warnings import data_warnings, unknown_words
from simulations.run.prepare import check_asked, parts

log = logging.getLogger(__name__)

#: Rates of two AMD EPYC cores. FLOPS: floating-point operations a second and core of the encoder in ONNX Runtime; INT8:
#: speedup by int8 (docs/results/systems.md). TORCH: slowdown of a pass in training, 1.4 to 2.4 for short and long
#: texts, fine-tuning and pretraining (a soak test measures it). USERS: users a second in an arm's round. START, EXPORT,
#: ARM: seconds of a start of Ray, of a model's export, of an arm beside its users. DRAW: operations of a draw for each
#: word.
FLOPS, INT8, TORCH, USERS, START, EXPORT, ARM, DRAW = 91e9, 2.3, 1.9, 150_000, 12.0, 6.0, 1.0, 350
#: Bytes of Python, Ray, Flower and torch in a small run, of a further user, and of a weight in training (float32,
#: with its gradient and Adam's two moments).
BASE, USER, WEIGHT = 1.3 * 2**30, 120, 16
#: Cost of a training step in forward passes: one forwards, two backwards.
_BACKWARDS = 3
#: Number of tokens that an encoder adds to a text, and approximate number in a prompt.
_MARKS, _PROMPT = 2, 20
#: Pretraining of a language model (`server.training.pretrain`): batches, texts in a batch, pieces of a text and its
#: copy, the share of batches with the copy, and the share of words that are predicted.
PRETRAINING, BATCH, PIECES, PAIRED, MASKED = 500, 32, 96, 0.7, 0.15
#: Shares of truncated texts, and of a class or of expected users, at which a warning is given.
_MUCH_CUT, _RARE = 0.2, 0.1
#: Number of public texts that are embedded to forecast whether users are queried.
GAIN_TEXTS = 2_000
HOW = (
    "estimated, not measured: from rates on two AMD EPYC cores ({flops:.0f} GFLOPS a core for the encoder), for the "
    "{cores} here, with nothing in the cache"
)


def forecast(experiment: Experiment) -> dict[str, Any]:
    """Return the forecast of an experiment, JSON-ready except for infinity.

    The keys are "name" and "way", and
    - "parts": rows of each part, and rows by class;
    - "untested": classes that lost all test rows to the limit;
    - "crowds": expected and least number of training and test users in a batch;
    - "cut": share of the texts that each limit truncates;
    - "unknown": share of the words that the encoder and the vocabulary lack;
    - "arms": as in `simulations.experiment.ladder.of_experiment`;
    - "estimate": seconds and bytes with their derivation, and models that are trained "before" the arms; None if the
      encoder is not on this machine;
    - "names": sentences on class names: arms whose users will not be queried, and labels that contradict the names;
    - "warnings": warnings.

    Raises:
        UserError: A run of the experiment would raise it.
    """
    check_trained(experiment.encoder, experiment.training, experiment.arms)
    split, holders, about = parts(experiment)
    rewriter = rewriter_to_price(
        experiment.setups, experiment.text, split.public.texts, model=experiment.encoder.model, seed=experiment.seed
    )
    texts = {arm.name: rewriter.mechanism(arm) for arm in experiment.arms if rewriter and arm.text is not None}
    classes = len(split.train.classes)
    log.info("counting tokens")
    lengths = _lengths(experiment.encoder.model, split)
    shown = {name: getattr(split, name) for name in ("public", "train", "test")}
    asked = check_asked(experiment.data, experiment.population, experiment.shuffle, split.test)[1]
    least = experiment.shuffle.least
    found: dict[str, Any] = {
        "name": experiment.name,
        "way": experiment.training.way,
        "parts": {name: {"rows": len(part), "classes": _classes(part)} for name, part in shown.items()},
        "repeated": about["repeated"],
        "dropped": about.get("dropped", 0),
        "untested": about.get("untested", []),
        "crowds": {
            "train": {"users": min(setup.answering for setup in experiment.setups), "least": least},
            "test": {"users": int(asked.people * (1 - experiment.population.late) + 1e-9), "least": least},
        },
        "cut": _cuts(experiment.encoder.max_length, lengths, split, texts),
        "unknown": unknown_words(experiment.encoder.model, split, texts),
        "arms": of_experiment(
            experiment,
            texts=texts,
            records=holders.most,
            test_records=asked.most,
            tests=asked.people,
            public=len(split.public),
            classes=classes,
        ),
        "estimate": None
        if lengths is None
        else _estimate(experiment, lengths, len(split.public), len(split.test), texts, classes),
        "names": [] if lengths is None else _of_names(experiment, split.public),
    }
    return found | {
        "warnings": [
            *data_warnings(experiment.data, split, about),
            *_warnings(found, public_labels=experiment.data.public.labels),
        ]
    }


def _classes(part: Corpus) -> dict[str, int]:
    return dict(zip(part.classes, np.bincount(part.labels, minlength=len(part.classes)).tolist(), strict=True))


def _of_names(experiment: Experiment, corpus: Corpus) -> list[str]:
    """Return sentences on class names, none if no arm depends on them or the encoder is trained first.

    At most GAIN_TEXTS public texts are embedded, which a run need not do again.
    """
    least = LEAST_GAIN.of(experiment.training.options)
    setups = [each for each in experiment.setups if each.statistic is not None and not each.arm.public_only]
    part = experiment.data.public
    if not setups or least == 0 or experiment.encoder.fine_tune_on_public or (part.any_labels and not part.labelled):
        return []
    labels, every = public_labels(part, corpus, experiment.seed), slice(None, None, len(corpus) // GAIN_TEXTS + 1)
    log.info("embedding public texts, to see whether users would add to class names")
    encoder = CachedEncoder(
        encoder_folder(experiment.encoder, corpus, batch_size=experiment.training.batch_size, seed=experiment.seed)
    )
    public = Public(
        corpus.texts[every],
        None if labels is None else labels[every],
        corpus.classes,
        encoder,
        elsewhere=experiment.data.elsewhere,
    )
    embeddings = encoder.embed(public.texts)
    public = replace(public, embeddings=embeddings, names=names_of(experiment, public))
    believed = first_belief(public, embeddings)
    codes = codes_asked(public, experiment.training.self_training)
    lines = [believed.doubt] if believed is not None and believed.doubt else []
    for setup in setups:
        channels = channels_of(setup, public)
        gain = gain_beyond_names(embeddings, believed, channels, codes, experiment.training.records)
        if gain is not None and gain < least:
            lines.append(f'arm "{setup.arm.name}": no user will be queried: {not_worth(gain, least, channels.users)}')
    return lines


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


def _estimate(
    experiment: Experiment,
    lengths: NDArray[np.int64],
    public: int,
    tests: int,
    texts: dict[str, TextMechanism],
    classes: int,
) -> dict[str, Any]:
    """Estimate the seconds, and the bytes of memory and cache, of a run."""
    model = Transformer.of(experiment.encoder.model)
    known = np.minimum(lengths, experiment.encoder.max_length).astype(np.float64)
    parts = Parts(known[:public], known[public : len(known) - tests], known[len(known) - tests :])
    rate = FLOPS * cores()
    in_int8 = INT8 if experiment.encoder.precision == "int8" else 1
    encode = _encoded(experiment, parts) / (rate * in_int8)
    rewrite = sum(_rewritten(experiment, arm, parts, texts[arm.name]) for arm in experiment.arms if arm.name in texts)
    before = _pretrained(experiment, parts, model, texts)
    trained = _trained(experiment, parts, model) + sum(before.values())
    train = _BACKWARDS * TORCH * trained / rate + _regressed(experiment, parts, model, classes) / rate
    made = (not experiment.training.protocol.releases_text) + any(text.word.reads for text in texts.values())
    asked = sum(experiment.population.users + tests for _ in experiment.arms)
    columns = model.width * max(1, len(layers_of(experiment.encoder)))
    student = Transformer.of(student_of(experiment.encoder, experiment.training).model)
    return {
        "seconds": START + EXPORT * made + ARM * len(experiment.arms) + asked / USERS + encode + rewrite / rate + train,
        "encoding": encode,
        "rewriting": rewrite / rate,
        "training": train,
        "before": [{"what": what, "seconds": _BACKWARDS * TORCH * each / rate} for what, each in before.items()],
        "memory": BASE
        + USER * experiment.population.users
        + 12 * columns * (public + tests)
        + (WEIGHT * max(model.weights, student.weights) if trained else 0),
        "disk": 0 if experiment.training.protocol.releases_text else 4 * columns * len(lengths),
        "how": HOW.format(flops=FLOPS / 1e9, cores="one core" if cores() == 1 else f"{cores()} cores"),
    }


@dataclass(frozen=True)
class Transformer:
    """Dimensions of a transformer, from its checkpoint's configuration.

    Attributes:
        width: Width of a state.
        layers: Number of layers.
        inner: Width within a layer.
        words: Size of the vocabulary.
        whole: True if it has a prediction head, and need not be trained to predict words.
    """

    width: int
    layers: int
    inner: int
    words: int
    whole: bool

    @classmethod
    def of(cls, model: str) -> Transformer:
        """Return the dimensions of a checkpoint on this machine; of the bundled one if it is not there."""
        file = Path(resolve(model)) / "config.json"
        about = json.loads((file if file.is_file() else Path(resolve(MINILM)) / "config.json").read_text("utf-8"))
        width = about.get("hidden_size") or about.get("n_embd") or about.get("d_model") or 0
        layers = about.get("num_hidden_layers") or about.get("n_layer") or about.get("num_layers") or 0
        inner = about.get("intermediate_size") or about.get("d_ff") or 4 * width
        heads = about.get("architectures") or []
        return cls(width, layers, inner, about.get("vocab_size", 0), any("MaskedLM" in head for head in heads))

    @property
    def weights(self) -> int:
        """Return the number of weights."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.inner) + self.words * self.width

    def operations(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the operations of one pass through all layers, for each of n texts of given length, (n,)."""
        return operations(tokens, self.layers, self.width, self.inner)

    @property
    def prediction(self) -> int:
        """Return the operations of the logits of all words at one place."""
        return 2 * self.width * self.words


@dataclass(frozen=True)
class Parts:
    """Number of tokens of each text as the encoder reads it, (n,) for each part."""

    public: NDArray[np.float64]
    train: NDArray[np.float64]
    test: NDArray[np.float64]


def operations(tokens: NDArray[np.float64], layers: int, width: int, inner: int) -> NDArray[np.float64]:
    """Return the floating-point operations of matrix products for n texts of given numbers of tokens, (n,).

    A layer of a transformer has, for each token, four square products and two of the inner width, and for each pair of
    tokens and each head two of the head's width. A multiplication and an addition count as two operations.
    """
    return layers * (tokens * (8 * width**2 + 4 * width * inner) + 4 * tokens**2 * width)


def _encoded(experiment: Experiment, parts: Parts) -> float:
    """Return the operations of the encoder on clients: each text once under every encoder of the run."""
    training = experiment.training

    def passes(settings: Encoder) -> tuple[float, ...]:
        model = Transformer.of(settings.model)
        model = replace(model, layers=max(layers_of(settings), default=model.layers))
        return tuple(float(model.operations(part).sum()) for part in (parts.public, parts.train, parts.test))

    public, train, test = passes(experiment.encoder)
    total = 0.0 if training.protocol.releases_text else public + train + test
    if training.self_training:  # the next group runs each round's encoder, and test users run the last
        public, train, test = passes(student_of(experiment.encoder, training))
        total += _self_taught(experiment) * (training.rounds * public + train * (1 - 1 / training.rounds) + test)
    return total


def _rewritten(experiment: Experiment, arm: Arm, parts: Parts, text: TextMechanism) -> float:
    """Return the operations of drawing an arm's texts: a draw for each word, and a language model's passes."""
    shares = {"train": arm.perturb != "test" and not arm.public_only, "test": arm.perturb != "train"}
    rows = [part for part, drawn in ((parts.train, shares["train"]), (parts.test, shares["test"])) if drawn]
    if experiment.data.public.any_labels and shares["train"]:
        rows.append(parts.public)
    words = np.minimum(np.maximum(np.concatenate([np.zeros(0), *rows]) - _MARKS, 1), text.tokens)
    if text.word.name in ("identity", "verbatim"):
        return 0.0
    draws = float(words.sum()) * DRAW * len(text.vocabulary)
    if not text.word.reads:
        return draws
    kind = language_models.kind_of(text.word)
    settings = experiment.text
    named = {language_models.MASKED_LM: settings.masked_lm, language_models.GENERATOR: settings.generator}
    source = named.get(kind, settings.paraphraser)
    reader = Transformer.of(MINILM if source == BUNDLED_LM else source)
    if kind != language_models.MASKED_LM:  # the prompt with the text, then each drawn token
        read = float(reader.operations(_PROMPT + words + text.tokens).sum())
        return draws + read + len(words) * text.tokens * reader.prediction
    if "scores" in text.word.reads:  # at every word the whole text, and the text with that word masked
        return draws + float((words * (reader.operations(2 * words + _MARKS + 1) + reader.prediction)).sum())
    return draws + float(reader.operations(words + _MARKS).sum())


def _trained(experiment: Experiment, parts: Parts, model: Transformer) -> float:
    """Return the operations of one pass for each text of each training on public text and on users' releases."""
    training, total = experiment.training, 0.0
    public, train = (float(model.operations(part).sum()) for part in (parts.public, parts.train))
    if experiment.encoder.fine_tune_on_public:
        total += experiment.encoder.fine_tune_epochs * public
    for setup in experiment.setups:
        if not setup.protocol.encoder:
            beside = public if experiment.data.public.any_labels and setup.protocol.private else 0.0
            total += training.epochs * (beside + (0.0 if setup.arm.public_only else train))
    if training.self_training:
        student = Transformer.of(student_of(experiment.encoder, training).model)
        public = float(student.operations(parts.public).sum())
        total += _self_taught(experiment) * training.rounds * training.student_epochs * public
    return total


def _pretrained(
    experiment: Experiment, parts: Parts, model: Transformer, texts: dict[str, TextMechanism]
) -> dict[str, float]:
    """Return the operations of one pass for each text by which language models are trained, by their description."""
    found, source, steps = {}, experiment.text.masked_lm, experiment.text.pretrain_steps
    kinds = {language_models.kind_of(text.word) for text in texts.values() if text.word.reads}
    if language_models.MASKED_LM in kinds and source != BUNDLED_LM and not (reader := Transformer.of(source)).whole:
        what = f'a prediction head for text.masked-lm = "{source}", which has none ("{BUNDLED_LM}" comes with one)'
        found[what] = pretraining(parts.public, reader, PRETRAINING)
    if experiment.text.pretrain:
        what = f"the encoder on sanitized texts (text.pretrain), {steps:,} batches for each of {len(texts)} arms"
        found[what] = len(texts) * pretraining(parts.public, model, steps)
    return found


def pretraining(public: NDArray[np.float64], model: Transformer, steps: int) -> float:
    """Return the operations of one pass through a language model, over all batches of its pretraining.

    A share of the batches has each text twice, and a share of the places is predicted (`server.training.pretrain`).
    """
    if not len(public):
        return 0.0
    once = np.minimum(public, PIECES / 2)
    read = (1 - PAIRED) * model.operations(once) + PAIRED * model.operations(2 * once)
    return steps * BATCH * float((read + MASKED * once * model.prediction).mean())


def _regressed(experiment: Experiment, parts: Parts, model: Transformer, classes: int) -> float:
    """Return the operations of the centralised arms' logistic regressions, two products with the embeddings each."""
    arms = sum(arm.centralised for arm in experiment.arms)
    rows = len(parts.train) + (len(parts.public) if experiment.data.public.any_labels else 0)
    columns = model.width * max(1, len(layers_of(experiment.encoder))) * classes
    return arms * (1 + len(PENALTIES)) * STEPS / 3 * 4 * rows * columns


def _self_taught(experiment: Experiment) -> int:
    """Return the number of arms that train an encoder on public text labelled by their users' vectors."""
    return sum(setup.protocol.releases_vector for setup in experiment.setups)


def _warnings(found: dict[str, Any], *, public_labels: bool) -> list[str]:
    """Return warnings about what to change before the run, a line each."""
    lines = list(found["names"])
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
        lost = found["untested"] if name == "test" else ()
        least = _RARE * part["rows"] / len(part["classes"]) * (name != "public" or public_labels)
        if rare := [f'"{label}" {n:,}' for label, n in part["classes"].items() if n < least and label not in lost]:
            some = "class has" if len(rare) == 1 else "classes have"
            lines.append(f"{name}: {len(rare):,} {some} few of {part['rows']:,} rows: {listed(rare)}")
    bare: dict[str, list[str]] = {}
    for arm in found["arms"]:
        for rung in (*(arm["ladder"] or ()), *(arm["test_ladder"] or ())):
            if rung["unprotected"] == [rung["rung"]] and not arm["reference"]:
                bare.setdefault(rung["rung"], []).append(f'"{arm["arm"]}"')
    for rung, names in bare.items():
        lines.append(f"{rung}: nothing protects it, in arm {listed(list(dict.fromkeys(names)))}")
    return lines
