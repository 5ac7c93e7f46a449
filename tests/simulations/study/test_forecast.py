"""What is said of a run before it runs, beside what a run would do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from client.models.tokens import padded_word_ids
from mechanisms.vocabulary import NOTHING
from simulations.analysis.budget import texts_to_price
from simulations.commands import check, cli
from simulations.experiment import Experiment, from_table
from simulations.experiment.ladder import of_experiment
from simulations.study import forecast as forecasts
from simulations.study.forecast import forecast, operations
from simulations.study.prepare import parts
from tests.support.studies import PURKAYASTHA, RANDOMIZED
from tests.support.tiny_models import bert

__all__ = ["bert"]  # a fixture

SANTEXT = {"mechanism": "santext", "epsilon": 4.0, "tokens": 8, "length": "kept", "punctuation": "drop"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def study(bert: Path, **sections: Any) -> Experiment:
    table: dict[str, Any] = {
        "data": {"public-size": 40, "test-size": 50}, "population": {"users": 60},
        "encoder": {"model": str(bert), "max-length": 24}, "shuffle": {"minimum-users": 20},
        "policy": {"embedding": 40.0, "label": 5.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    }  # fmt: skip
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values if isinstance(values, dict) else values
    return from_table({"name": "small", **table})


def said(experiment: Experiment) -> dict[str, Any]:
    return forecast(experiment, progress=lambda line: None)


def test_it_counts_what_the_run_would_work_on_and_leaves_nothing_behind(bert: Path, tmp_path: Path) -> None:
    experiment = study(bert)
    found = said(experiment)
    split, _, _ = parts(experiment, progress=lambda line: None)
    for name, rows in (("public", 40), ("train", 60), ("test", 50)):
        corpus = getattr(split, name)
        counts = {label: int((corpus.labels == i).sum()) for i, label in enumerate(corpus.classes)}
        assert found["parts"][name] == {"rows": rows, "classes": counts}
    assert found["crowds"] == {"train": {"users": 60, "least": 20}, "test": {"users": 50, "least": 20}}
    assert found["arms"] == of_experiment(experiment, records=1, classes=2)
    tokenizer = Tokenizer.from_file(str(bert / "tokenizer.json"))
    every = [text for part in (split.public, split.train, split.test) for text in part.texts]
    lengths = [len(tokenizer.encode(text).ids) for text in every]
    (cut,) = found["cut"]
    assert cut["share"] == np.mean([n > 24 for n in lengths]) > 0 and cut["longest"] == max(lengths)
    assert list(tmp_path.iterdir()) == []


def test_a_text_mechanisms_limit_cuts_what_it_says(bert: Path) -> None:
    arm = {"name": "a", "text": SANTEXT, "label": RANDOMIZED}
    reasons = ["length: of this test"]
    experiment = study(
        bert, training={"way": "sanitized-text"}, arm=[arm, arm | {"name": "b"}],
        policy={"text": 10_000.0, "accept-unprotected": reasons},
    )  # fmt: skip
    split, _, _ = parts(experiment, progress=lambda line: None)
    texts = [text for part in (split.train, split.test) for text in part.texts]
    mechanism = texts_to_price(experiment)["a"]
    shorter = padded_word_ids(texts, mechanism)
    longer = padded_word_ids(texts, replace(mechanism, tokens=9))
    cut = said(experiment)["cut"][-1]
    assert cut["where"] == "text.tokens of 2 arms" and cut["most"] == 8
    assert cut["share"] == pytest.approx(float(np.mean(longer[:, -1] != NOTHING))) and shorter.shape[1] == 8


def test_operations_are_those_that_torch_counts(bert: Path) -> None:
    network = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    for tokens in (5, 17):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network.encoder(torch.zeros(1, tokens, 32))
        assert counter.get_total_flops() == operations(np.array([float(tokens)]), 2, 32, 64)[0]


def test_the_estimate_grows_with_what_is_done(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "FLOPS", 1e6)
    usual = said(study(bert))["estimate"]
    assert usual["training"] == 0 < usual["encoding"] < usual["seconds"] and "estimated, not measured" in usual["how"]
    shorter = said(study(bert, encoder={"max-length": 8}))["estimate"]
    assert shorter["encoding"] < usual["encoding"]
    int8 = said(study(bert, encoder={"precision": "int8"}))["estimate"]
    assert int8["encoding"] == pytest.approx(usual["encoding"] / forecasts.INT8)
    tuned = said(study(bert, encoder={"fine-tune-on-public": True}))["estimate"]
    assert tuned["training"] > 0 and tuned["memory"] > usual["memory"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert said(study(bert))["estimate"]["encoding"] == pytest.approx(usual["encoding"] / 2)


def test_what_is_worth_a_look_is_said(bert: Path) -> None:
    clear = {"name": "a", "embedding": PURKAYASTHA}
    late = study(
        bert, population={"late": 0.5}, shuffle={"minimum-users": 40}, encoder={"max-length": 8}, arm=[clear],
        policy={"accept-unprotected": ["label: of this test"]},
    )  # fmt: skip
    warnings = "\n".join(said(late)["warnings"])
    assert "30 train users are expected in a batch" in warnings and "25 test users are expected" in warnings
    assert "of the texts are longer than 8 tokens" in warnings
    plain = study(bert, encoder={"model": "minilm", "max-length": 128})  # the tiny one knows few words
    assert said(plain)["warnings"] == []


def test_the_command(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from simulations.experiment import to_toml

    Path("study.toml").write_text(to_toml(study(bert)), encoding="utf-8")
    assert cli.main(["check", "study.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(said(study(bert))))
    assert cli.main(["check", "study.toml", "--set", "encoder.max-length=8"]) == 0
    shown = capsys.readouterr().out
    assert "a training user, ε = 34.42 at worst" in shown and "60 expected, of at least 20: met" in shown
    assert "About 1" in shown and "Look at: encoder.max-length" in shown
    assert cli.main(["check", "study.toml", "--set", "data.test-repeats=0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert "NOT met" in "\n".join(check.lines(found | {"crowds": {"train": {"users": 1, "least": 2}}}))
