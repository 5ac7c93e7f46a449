"""Arms that perturb the texts of training users alone, or of those who ask alone: what each user is charged."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.models.texts import draw
from client.models.tokens import padded_word_ids
from mechanisms.accounting.ladder import shared as shared_of
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from server.training.end_to_end import train_on_text
from simulations.analysis.budget import texts_to_price
from simulations.artifacts.model_folder import classify
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table, text_mechanism
from simulations.experiment.ladder import of_experiment
from simulations.experiment.sections import Data
from simulations.run.comparison import baseline
from simulations.run.prepare import Prepared
from simulations.run.report import notes
from sottovoce.adversary.attacks import words
from sottovoce.adversary.attacks.target import Target
from tests.support.studies import TEST, USERS, LocalGrid, ledger_rows, placed, run_arms, use_folder
from tests.support.texts import RANDOM, SANTEXT, TOKENS, text_prepared, text_study, vocabulary
from tests.support.tiny_models import tiny_bert

WORDS = vocabulary()
PERTURBED = {"train": {"train"}, "test": {"test"}, "both": {"train", "test"}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


def study_of(shared: Path, **arm: Any) -> Experiment:
    given = {"name": "some", "text": RANDOM, "reference": True} | arm
    return text_study(shared, given, training={"epochs": 1})


def test_what_a_ladder_takes_for_public_is_read_from_its_own_words(shared: Path) -> None:
    """Or a worst case that is infinite between other texts would have no mark in results."""
    kept = SANTEXT | {"length": "kept"}
    study = text_study(
        shared,
        {"name": "some", "text": kept},
        policy={"text": 1000.0, "accept-unprotected": ["length: made up", "label: made up"]},
    )
    (line,) = of_experiment(study, texts={"some": text_mechanism(kept, WORDS)})
    assert {shared_of(rung) for rung in line["ladder"]} >= {("label", "the number of tokens")}
    assert {shared_of(rung) for rung in line["test_ladder"]} >= {("the number of tokens",)}


@pytest.mark.parametrize("perturb", PERTURBED)
def test_whoever_is_not_perturbed_is_charged_for_a_text_in_clear(
    perturb: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, folder = study_of(shared, perturb=perturb), tmp_path / "nodes"
    use_folder(folder, monkeypatch)
    ready = text_prepared(study, shared)
    grid = LocalGrid(placed(study, ready, folder))
    line = run_arms(study, grid, ready=ready, models=tmp_path / "models", nodes=folder)["some"].line

    sanitized = text_mechanism(RANDOM, WORDS)
    clear = text_mechanism({"mechanism": "identity", "tokens": TOKENS, "length": "kept"}, WORDS)
    held = {"train": ready.held.train.texts, "test": ready.held.test.texts}
    for split, people in (("train", USERS), ("test", TEST)):
        expected = sanitized if split in PERTURBED[perturb] else clear
        rows = [row for row in ledger_rows(folder, "some") if row.channel == "text" and row.stage == split]
        assert len(rows) == people and all(row.guarantee == expected.guarantee for row in rows)
        assert all(math.isinf(row.epsilon) == (expected is clear) for row in rows)
        rung = {r["rung"]: r for r in line["ladder" if split == "train" else "test_ladder"]}["text"]
        worst = expected.guarantee.worst_case()  # which the exact composition of its parts may undercut
        assert math.isinf(float(rung["epsilon"])) if expected is clear else 0.9 * worst < rung["epsilon"] <= worst
        truth = padded_word_ids(held[split], expected)[[row.user % USERS for row in rows]]
        released = np.stack([np.frombuffer(row.payload, "<i4") for row in rows])
        known = truth != NOTHING
        counted = {"words": int(known.sum()), "perturbed": int((known & (released != truth)).sum())}
        assert line["perturbed"][split] == counted
        assert (counted["perturbed"] == 0) == (expected is clear)
    asking = line["budget"]["asking_epsilon"]
    assert math.isinf(line["budget"]["worst_case_epsilon"]) == (perturb == "test")
    assert asking == {"both": None, "train": math.inf, "test": sanitized.guarantee.worst_case()}[perturb]
    (before,) = of_experiment(study, texts={"some": sanitized})
    for key in ("ladder", "test_ladder"):
        assert [r["epsilon"] for r in before[key] if r["rung"] == "text"] == [
            r["epsilon"] for r in line[key] if r["rung"] == "text"
        ]
    results = {"arms": [line], "chance": 0.5, "classes": ["a", "b"], "way": line["way"]}
    said = [note for note in notes(results) if note.startswith("Words replaced or removed: ")]
    assert len(said) == 1 and " in training, " in said[0] and said[0].endswith(" to ask.")
    assert line["liars"] == before["liars"] == "" and not any("liars" in note for note in notes(results))

    from client.node import load_node

    nodes = [load_node(path.parent) for path in sorted(folder.glob("*/node.json"))]
    target = Target(tmp_path, study, study.setups[0], nodes)
    attacked = words.held_of(target, words.mechanism_of(target)[0])
    assert attacked.stage == ("test" if perturb == "test" else "train")
    assert len(attacked.texts) == (TEST if perturb == "test" else USERS)


def test_what_leaves_in_clear_has_to_be_said(shared: Path) -> None:
    for perturb, whose in (("test", "training users"), ("train", "users who ask")):
        with pytest.raises(UserError, match=rf'^arm "some": perturb: "{perturb}" has the texts of {whose} [^\n]*$'):
            study_of(shared, perturb=perturb, text=SANTEXT, reference=False)
    with pytest.raises(UserError, match=r'^arm "some": perturb: goes with users who teach by texts[^\n]*$'):
        study_of(shared, perturb="test", protocol="public-only")
    with pytest.raises(UserError, match=r'^arm "some": perturb: must be "both", "train", "test"[^\n]*$'):
        study_of(shared, perturb="none")
    assert study_of(shared).arms[0].perturb == "both"
    assert texts_to_price(study_of(shared, perturb="test")).keys() == {"some"}


def test_only_who_asks_by_the_same_texts_is_a_baseline(shared: Path) -> None:
    alone = {"name": "alone", "protocol": "public-only", "text": SANTEXT}
    arms = [{"name": kind, "text": SANTEXT, "reference": True, "perturb": kind} for kind in PERTURBED]
    study = text_study(shared, alone, *arms)
    result = {arm.name: baseline(study.arms, arm) for arm in study.arms}
    assert {name for name, base in result.items() if base is not None} == {"test", "both"}


# --- pairs of texts, released as two

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
    people = {"users": 20, "users-per-node": 10}
    arms = {"name": "two texts", "text": SANTEXT}, joining
    study = text_study(tmp_path, *arms, training={"epochs": 1}, population=people)
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
