"""Arms that perturb the texts of training users alone, or of those who ask alone: what each user is charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.models.tokens import padded_word_ids
from mechanisms.accounting.ladder import shared as shared_of
from mechanisms.vocabulary import NOTHING
from simulations.analysis.budget import texts_to_price
from simulations.errors import UserError
from simulations.experiment import Experiment, text_mechanism
from simulations.experiment.ladder import of_experiment
from simulations.run.comparison import baseline
from simulations.run.report import notes
from sottovoce.adversary.attacks import words
from sottovoce.adversary.attacks.target import Target
from tests.support.studies import TEST, USERS, LocalGrid, ledger_rows, placed, run_arms, use_folder
from tests.support.texts import RANDOM, SANTEXT, TOKENS, text_prepared, text_study, vocabulary

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
    target = Target(
        tmp_path,
        study.setups[0],
        seed=study.seed,
        data=study.data,
        population=study.population,
        encoder=study.encoder,
        training=study.training,
        clear=None,
        nodes=nodes,
        limit=500,
    )
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
    found = {arm.name: baseline(study.arms, arm) for arm in study.arms}
    assert {name for name, base in found.items() if base is not None} == {"test", "both"}
