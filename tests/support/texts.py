"""A small study whose users release texts: a vocabulary of a few words, a tiny BERT, and no Flower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.models import language_models
from client.models import vocabulary as vocabularies
from client.models.vocabulary import save
from mechanisms.vocabulary import TAGS, Vocabulary
from server.protocols.protocol import Public
from simulations.artifacts.language_models import generator_folder, masked_lm_folder, together
from simulations.artifacts.text_channel import StudyRewriter
from simulations.corpora.corpus import Corpus
from simulations.experiment import Experiment, trial_text_of
from simulations.run.prepare import Held, Holders, Prepared
from tests.support.studies import PUBLIC, TEST, experiment, merged
from tests.support.tiny_models import WORDS, reviews, tiny_bert

TOKENS = 8
#: In which a prediction head learns something of a few words.
STEPS = 100
SANTEXT = {"mechanism": "santext", "epsilon": 6.0, "tokens": TOKENS}
PLUS = {"mechanism": "santext+", "epsilon": 6.0, "w": 0.5, "p": 0.3, "tokens": TOKENS}
RANDOM = {"mechanism": "random", "tokens": TOKENS}
VERBATIM = {"mechanism": "identity", "tokens": TOKENS, "length": "kept"}


def vocabulary() -> Vocabulary:
    """The whole words of the tiny BERT, where they lie by chance, counted and tagged."""
    words = tuple(word for word in WORDS if not word.startswith("##"))
    rng = np.random.default_rng(3)
    n = len(words)
    vectors = rng.normal(size=(n, 6)).astype(np.float32)
    return Vocabulary(words, vectors, np.arange(n, 0, -1), (np.arange(n) % len(TAGS)).astype(np.int8))


def installed(folder: Path) -> Path:
    """The folder of that vocabulary, made where it is not there."""
    if not folder.exists():
        save(vocabulary(), folder)
    return folder


def text_study(shared: Path, *arms: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """60 users on 6 nodes, 40 test users, 90 public texts; shared holds the tiny BERT and the vocabulary."""
    model = shared / "bert"
    if not model.exists():
        tiny_bert(model)
    table: dict[str, Any] = {
        "encoder": {"model": str(model), "max-length": 24},
        "training": {"protocol": "sanitized-text", "epochs": 2},
        "policy": {"text": 1000.0},
    }
    table = merged(table, sections)
    if table["training"]["protocol"] == "sanitized-text":
        table["training"].setdefault("train-encoder", True)
    return experiment(*arms, **table)


def text_prepared(study: Experiment, shared: Path) -> Prepared:
    """Reviews whose label a single word decides, one to a user, as `prepare` would give them."""
    users, repeats = study.population.users, study.data.test_repeats

    def part(n: int, seed: int) -> Corpus:
        texts, labels = reviews(n, seed)
        return Corpus(texts, labels.astype(np.int64), ("bad", "good"))

    rows = np.tile(np.arange(TEST, dtype=np.int64), repeats)
    folder = installed(shared / "words")
    rewriter = StudyRewriter(vocabularies.load_cached(folder), folder, model=study.encoder.model, seed=study.seed)
    words = [trial_text_of(arm).word for arm in study.arms if arm.text is not None]
    kinds = sorted({language_models.kind_of(word) for word in words if word.reads})
    made = {kind: _made(study, kind) for kind in kinds}
    if made:
        rewriter = replace(rewriter, masked_lm=together(made))
    public = part(PUBLIC, 1)
    held = Held(
        train=part(users, 2),
        test=part(TEST, 3),
        holders=Holders(np.arange(users, dtype=np.int64), np.zeros(users, np.int64)),
        test_holders=Holders(users + np.arange(len(rows), dtype=np.int64), np.zeros(len(rows), np.int64)),
        test_rows=rows,
    )
    labels = public.labels if study.data.public.labels else None
    return Prepared(Public(public.texts, labels, public.classes, rewriter=rewriter), held, {})


def _made(study: Experiment, kind: str) -> Path:
    public = reviews(PUBLIC, 1)[0]
    if kind == language_models.MASKED_LM:
        return masked_lm_folder(study.encoder.model, public, seed=1, steps=STEPS, max_length=64)
    source = getattr(study.text, kind)
    return generator_folder(source, public, kind=kind, seed=1)
