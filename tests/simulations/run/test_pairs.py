"""Pairs of texts: released as two, so that a model can read which words stand on which side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from client.models.texts import draw
from mechanisms.streams import SimulationStreams
from server.training.on_text import train_on_text
from simulations.artifacts.model_folder import classify
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table, text_mechanism
from simulations.experiment.sections import Data
from simulations.run.prepare import Prepared
from tests.support.studies import LocalGrid, ledger_rows, placed, run_arms, use_folder
from tests.support.texts import SANTEXT, TOKENS, text_prepared, text_study, vocabulary
from tests.support.tiny_models import tiny_bert

#: The fillers, one of which stands in each place but the answer's.
FILLERS = ("the", "film", "book", "a", "plot", "and", "very", "was")
PAIRS = Data(
    source="files", path="none", train="a.tsv", test="b.tsv", text="question", second_text="sentence", label="label"
)


def questions(n: int, seed: int) -> Corpus:
    """As QNLI: whether the sentence (the second text) holds the answer, the word "good". Joined, the two say nothing of
    it: the words and where they stand are the same for both labels, and only where the first text ends differs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    pairs = []
    for label in labels:
        words = rng.choice(FILLERS, size=8).tolist()
        place = int(rng.integers(1, 7))
        words[place] = "good"
        end = place + (label == 0)
        pairs.append((" ".join(words[:end]), " ".join(words[end:])))
    return Corpus(pairs, labels, ("not_entailment", "entailment"))


def prepared(study: Experiment, shared: Path) -> Prepared:
    ready = text_prepared(study, shared)
    train, test = (questions(len(part), seed) for part, seed in ((ready.held.train, 2), (ready.held.test, 3)))
    public = questions(len(ready.public.texts), 1)
    held = replace(ready.held, train=train, test=test)
    return ready._replace(
        public=replace(ready.public, texts=public.texts, labels=public.labels, classes=public.classes), held=held
    )


@pytest.mark.slow
def test_a_model_reads_the_boundary_that_joined_texts_lose(tmp_path: Path) -> None:
    """Of 200 test pairs each: joined, the best that anybody can do is chance, which lies above .65 once in 10^5."""
    checkpoint, train, test = tiny_bert(tmp_path / "bert"), questions(320, 0), questions(200, 1)
    right = {}
    for sides, tokens in ((2, 8), (1, 16)):
        spec = SANTEXT | {"epsilon": 20.0, "sides": sides, "tokens": tokens}
        mechanism = text_mechanism(spec, vocabulary())
        seen = [
            mechanism.texts(draw(mechanism, part.texts, *people(len(part)), streams=SimulationStreams(3), stage=stage))
            for stage, part in (("train", train), ("test", test))
        ]
        pipeline = train_on_text(
            checkpoint,
            seen[0],
            train.labels,
            classes=2,
            dim=8,
            epochs=7,
            batch_size=20,
            encoder_lr=3e-3,
            maps_lr=3e-3,
            seed=1,
            max_length=24,
        )
        maps = pipeline.maps()
        right[sides] = float(np.mean(maps.predict(maps.project(pipeline.embed(seen[1]))) == test.labels))
    assert right[1] < 0.65 and right[2] > right[1] + 0.25


def people(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(n), np.zeros(n, np.int64)


def test_both_sides_are_released_and_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the nodes' folders to the model, of a study whose data have a second text."""
    use_folder(tmp_path / "nodes", monkeypatch)
    joining = {"name": "joined", "text": SANTEXT | {"sides": 1}}
    study = text_study(tmp_path, {"name": "two texts", "text": SANTEXT}, joining, training={"epochs": 1})
    study = replace(study, data=replace(PAIRS, measures=("matthews", "auroc")))
    ready = prepared(study, tmp_path)
    nodes = placed(study, ready, tmp_path / "nodes")
    outcomes = run_arms(study, LocalGrid(nodes), ready=ready, models=tmp_path / "models", nodes=tmp_path / "nodes")

    costs = {}
    for name, sides in (("two texts", 2), ("joined", 1)):
        rows = [row for row in ledger_rows(tmp_path / "nodes", name) if row.channel == "text"]
        assert {len(row.payload) for row in rows} == {4 * TOKENS * sides}
        mechanism = text_mechanism(SANTEXT | {"sides": sides}, vocabulary())
        assert {row.guarantee for row in rows} == {mechanism.guarantee}
        (costs[sides],) = {row.epsilon for row in rows}
        line, model = outcomes[name].line, outcomes[name].model
        assert line["budget"]["worst_case_epsilon"] == costs[sides] and line["dropped"] == {}
        for where in ("sanitized", "on_device"):
            by_class = {"by-class: entailment", "by-class: not_entailment"}
            assert set(line["measures"][where]) == {"matthews", "auroc"} | by_class
            assert 0 <= line["measures"][where]["auroc"]["value"] <= 1
        saved = classify(tmp_path / "models" / name.replace(" ", "-"), ready.public, ready.held.test.texts)
        np.testing.assert_array_equal(saved, model.classify(ready.held.test.texts))
        (text_rung,) = [rung for rung in line["ladder"] if rung["unit"] == "text"]
        assert f"{TOKENS * sides} positions" in str(text_rung)
    assert costs[2] == pytest.approx(2 * costs[1])


def test_a_single_text_has_one_side() -> None:
    arm = {"name": "a", "text": SANTEXT | {"sides": 2}, "reference": True}
    with pytest.raises(UserError, match=r"text\.sides: goes with pairs of texts, data\.second-text"):
        from_table({"name": "x", "training": {"protocol": "sanitized-text"}, "arm": [arm]})
