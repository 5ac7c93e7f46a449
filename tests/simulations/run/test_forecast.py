"""What is said of a run before it runs, beside what a run would do."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from client.models.encoder import Encoder
from client.models.masked_lm import MaskedLM
from client.models.tokens import padded_word_ids
from client.models.vocabulary import load as load_vocabulary
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from server.export import export_encoder
from server.masked_lm import export_masked_lm
from server.training import pretrain as pretrain_module
from server.training.finetune import finetune
from simulations.analysis.budget import texts_to_price
from simulations.artifacts.lengths import token_lengths
from simulations.artifacts.masked_lm import masked_lm_folder
from simulations.artifacts.vocabulary import MINILM, vocabulary_folder
from simulations.corpora.builtin import builtin
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, from_table, text_mechanism, to_toml
from simulations.experiment.ladder import of_experiment
from simulations.run import forecast as forecasts
from simulations.run.forecast import forecast, operations
from simulations.run.prepare import parts
from sottovoce.cli import check
from sottovoce.cli import main as cli
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
        "data": {"public-size": 40, "test-size": 50},
        "population": {"users": 60},
        "encoder": {"model": str(bert), "max-length": 24},
        "shuffle": {"minimum-users": 20},
        "policy": {"embedding": 40.0, "label": 5.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    }
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values if isinstance(values, dict) else values
    return from_table({"name": "small", **table})


def said(experiment: Experiment) -> dict[str, Any]:
    return forecast(experiment)


def test_it_counts_what_the_run_would_work_on_and_leaves_nothing_behind(bert: Path, tmp_path: Path) -> None:
    experiment = study(bert)
    found = said(experiment)
    split, _, _ = parts(experiment)
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


def table(path: Path, owned: dict[str, int], seed: int) -> None:
    """Texts with a class and a user; owned: how many rows each user has."""
    words, rng = ["bad", "bright", "cold", "film", "good", "plot", "quick", "slow"], np.random.default_rng(seed)
    lines = ["text,label,user"]
    for user, rows in owned.items():
        lines += [f"{' '.join(rng.choice(words, 9))} {user} {i},{(len(lines) + i) % 2},{user}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def by_people(bert: Path, train: dict[str, int], test: dict[str, int], **sections: Any) -> Experiment:
    table(Path("train.csv"), train, 1)
    table(Path("test.csv"), test, 2)
    arm = {
        "name": "one vector",
        "vector": {"mechanism": "privunit", "epsilon": 6.0, "dim": 4},
        "answer": {"mechanism": "randomized-response", "epsilon": 4.0},
    }
    data = {
        "source": "files",
        "path": ".",
        "train": "train.csv",
        "test": "test.csv",
        "text": "text",
        "label": "label",
        "user": "user",
        "public": {"fraction": 0.25, "labels": False},
    }
    made: dict[str, Any] = {
        "name": "owned",
        "data": data,
        "population": {"users": 30},
        "encoder": {"model": str(bert), "max-length": 24},
        "training": {"protocol": "statistics"},
        "shuffle": {"minimum-users": 20},
        "arm": [arm],
        "policy": {"vector": 8.0, "answer": 4.0},
    }
    for name, values in sections.items():
        made[name] = made.get(name, {}) | values if isinstance(values, dict) else values
    return from_table(made)


@pytest.mark.parametrize(("most", "others"), [(50, 2), (1, 7)])
def test_each_kind_of_user_is_priced_with_their_own_records(most: int, others: int, bert: Path) -> None:
    """One test user of 50 rows pays 200 beside training users of 2; of one row each 4, beside users of 7."""
    experiment = by_people(
        bert,
        {f"u{i}": others for i in range(40)},
        {"heavy": most} | {f"t{i}": 1 for i in range(24)},
        population={"late": 0.2},
    )
    found = said(experiment)
    (arm,) = found["arms"]
    users = {key: next(rung for rung in arm[key] if rung["rung"] == "user") for key in ("ladder", "test_ladder")}
    assert users["ladder"]["worst_case"] == pytest.approx(6.0)
    assert users["test_ladder"]["worst_case"] == pytest.approx(4.0 * most)
    assert found["crowds"]["test"]["users"] == 20
    shuffled = next(rung for rung in arm["test_ladder"] if rung["rung"] == "shuffled")
    assert shuffled["crowd"] == (20 if shuffled["epsilon"] is not None else None)
    assert f" All that one test user releases: ε = {4 * most}" in check.lines(found)


def test_it_names_arms_whose_users_will_not_be_queried(bert: Path) -> None:
    """By class names, assumed right; an encoder that is trained first, and a gate that is off, are not forecast."""

    def names(descriptions: Any = None, **sections: Any) -> list[str]:
        described = {"class-descriptions": descriptions or {"0": "a bad film", "1": "a good film"}}
        weak = {"name": "weak", "vector": {"mechanism": "privunit", "epsilon": 0.01, "dim": 4}}
        users = {f"u{i}": 2 for i in range(40)}, {f"t{i}": 1 for i in range(24)}
        found = said(by_people(bert, *users, data=described, arm=[weak], **sections))
        assert found["warnings"][: len(found["names"])] == found["names"]
        return list(found["names"])

    (line,) = names()
    assert line.startswith('arm "weak": no user will be queried: if the class names are right, 30 user vectors')
    assert not names(training={"least-gain": 0.0}) and not names("none")


@pytest.mark.parametrize("classes", [23, 77, 150])
def test_many_classes_are_priced_as_a_run_asks(classes: int, bert: Path) -> None:
    """By numbers of features that a vector has room for; the statistic's own, where the arm names none."""
    experiment = by_people(bert, {}, {})
    arm = experiment.arms[0]
    chosen = replace(experiment, arms=(replace(arm, statistic={"mechanism": "privunit", "epsilon": 6.0}),))
    (line,) = of_experiment(chosen, classes=classes, records=2, test_records=1, tests=30, public=400)
    assert {rung["rung"]: rung["worst_case"] for rung in line["ladder"]}["user"] == pytest.approx(6.0)
    chosen.setups[0].check_requests(classes=classes, width=384)
    wide = replace(arm, statistic={"mechanism": "privunit", "epsilon": 6.0, "dim": 384})
    with pytest.raises(UserError, match=f"384 features of {classes} classes take"):
        chosen.setup(wide).check_requests(classes=classes, width=384)


def test_no_more_test_users_hide_one_than_the_data_have(bert: Path) -> None:
    """`test-limit` is no number of users: the test part may have fewer rows."""
    answer = {"mechanism": "randomized-response", "epsilon": 1.0}
    arm = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED, "answer": answer}
    table(Path("train.csv"), {f"u{i}": 1 for i in range(90)}, 1)
    table(Path("test.csv"), {f"t{i}": 1 for i in range(30)}, 2)
    data = {
        "source": "files",
        "path": ".",
        "train": "train.csv",
        "test": "test.csv",
        "text": "text",
        "label": "label",
        "test-limit": 500,
        "public": {"fraction": 0.25},
    }
    experiment = from_table(
        {
            "name": "few",
            "data": data,
            "population": {"users": 60},
            "encoder": {"model": str(bert), "max-length": 24},
            "shuffle": {"minimum-users": 20},
            "policy": {"embedding": 40.0, "label": 5.0, "answer": 1.0},
            "arm": [arm],
        }
    )
    (line,) = said(experiment)["arms"]
    assert [rung["crowd"] for rung in line["test_ladder"] if rung["rung"] == "shuffled"] == [30]
    (unread,) = of_experiment(experiment)
    shuffled = unread["test_ladder"][-1]
    assert shuffled["crowd"] == 500 and "if there are as many as data.test-limit" in shuffled["assumption"]


def test_a_text_mechanisms_limit_cuts_what_it_says(bert: Path) -> None:
    arm = {"name": "a", "text": SANTEXT, "label": RANDOMIZED}
    reasons = ["length: of this test"]
    experiment = study(
        bert,
        training={"protocol": "sanitized-text"},
        arm=[arm, arm | {"name": "b"}],
        policy={"text": 10_000.0, "accept-unprotected": reasons},
    )
    split, _, _ = parts(experiment)
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
        bert,
        population={"late": 0.5},
        shuffle={"minimum-users": 40},
        encoder={"max-length": 8},
        arm=[clear],
        policy={"accept-unprotected": ["label: of this test"]},
    )
    warnings = "\n".join(said(late)["warnings"])
    assert "30 train users are expected in a batch" in warnings and "25 test users are expected" in warnings
    assert "of the texts are longer than 8 tokens" in warnings
    (warning,) = said(study(bert, encoder={"max-length": 64}))["warnings"]
    assert "of the words: is it made for this language?" in warning  # the tiny model's vocabulary has few


def test_the_command(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(to_toml(study(bert)), encoding="utf-8")
    assert cli.main(["check", "study.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(said(study(bert))))
    assert cli.main(["check", "study.toml", "--set", "encoder.max-length=8"]) == 0
    shown = capsys.readouterr().out
    assert "All that one training user releases: ε = 34.42" in shown and "60 expected, of at least 20: met" in shown
    assert "About 1" in shown and "Look at: encoder.max-length" in shown
    assert cli.main(["check", "study.toml", "--set", "data.test-repeats=0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert "NOT met" in "\n".join(check.lines(found | {"crowds": {"train": {"users": 1, "least": 2}}}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "seed=1", "--set", "seed = 2"], "seed is set twice, by seed=1 too"),
        (["--set", "data.path=x", "--data", "y"], "data.path is set twice, by --data too"),
        (["--set", "encoder.max-length=65"], "encoder.max-length: must be from 3 to the encoder's 64 places"),
        (["--set", "encoder.max-length=2"], "encoder.max-length: must be from 3 to the encoder's 64 places, got 2"),
        (["--set", "encoder.layers=[3]"], "encoder.layers: 3 is above the encoder's 2 layers"),
        (["--set", "arm.0.embedding.dim=33"], "embedding.dim: 33 is above the encoder's width 32"),
    ],
)
def test_what_a_run_refuses_is_refused_before_it_in_one_line(
    options: list[str], said: str, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.toml").write_text(to_toml(study(bert)), encoding="utf-8")
    assert cli.main(["check", "study.toml", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_what_pretraining_is_priced_by_is_what_it_does() -> None:
    default = {name: each.default for name, each in inspect.signature(pretrain_module.pretrain).parameters.items()}
    assert (default["steps"], default["batch_size"], default["max_length"]) == (
        forecasts.PRETRAINING,
        forecasts.BATCH,
        forecasts.PIECES,
    )
    assert (pretrain_module.PAIRED, pretrain_module.MASKED) == (forecasts.PAIRED, forecasts.MASKED)
    assert inspect.signature(masked_lm_folder).parameters["steps"].default == forecasts.PRETRAINING


def test_pretraining_and_fine_tuning_multiply_as_often_as_is_reckoned(bert: Path, tmp_path: Path) -> None:
    """Forwards and backwards, by torch's own count: padding and the head's own layer are a part of neither."""
    corpus = builtin(task="sentiment", public=64, train=1, test=1, seed=0).public
    texts = [" ".join(text.split()[:10]) for text in corpus.texts]
    tokens = token_lengths(str(bert), texts).astype(np.float64)
    model = forecasts.Transformer.of(str(bert))
    with FlopCounterMode(display=False) as counter:
        pretrain_module.pretrain(bert, texts, tmp_path / "a", steps=20, seed=1)
    assert 0.6 < counter.get_total_flops() / (3 * forecasts.pretraining(tokens, model, 20)) < 1.6
    with FlopCounterMode(display=False) as counter:
        finetune(bert, texts, corpus.labels, tmp_path / "b", classes=2, epochs=2, seed=1)
    assert 0.6 < counter.get_total_flops() / (3 * 2 * float(model.operations(tokens).sum())) < 1.6


def reading(bert: Path, **sections: Any) -> dict[str, Any]:
    """The estimate of a study of one text arm, on a machine so slow that every part of it counts."""
    arm = {"name": "a", "text": SANTEXT | sections.pop("text_arm", {}), "label": RANDOMIZED}
    experiment = study(
        bert,
        arm=[arm],
        training={"protocol": "sanitized-text"} | sections.pop("training", {}),
        policy={"text": 10_000.0, "accept-unprotected": ["length: of this test"]},
        **sections,
    )
    estimate: dict[str, Any] = said(experiment)["estimate"]
    return estimate


def test_reading_and_pretraining_are_a_part_of_the_estimate(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "FLOPS", 1e6)
    plain = reading(bert)
    restored = reading(bert, text={"pretrain": True, "pretrain-steps": 100})
    again = reading(bert, text={"pretrain": True, "pretrain-steps": 200})
    assert again["training"] - restored["training"] == pytest.approx(restored["training"] - plain["training"])
    assert restored["training"] > 2 * plain["training"] > 0 == plain["encoding"] and plain["rewriting"] > 0
    read = reading(bert, text={"masked-lm": str(bert)}, text_arm={"mechanism": "dp-mlm", "epsilon": 50.0})
    assert read["rewriting"] > 20 * plain["rewriting"] and read["training"] > 5 * plain["training"]
    assert read["seconds"] > read["rewriting"] + read["training"]


def test_what_is_trained_before_the_arms_is_named(bert: Path) -> None:
    """A head that a checkpoint lacks takes as long as a run; the bundled one is not trained."""
    assert reading(bert)["before"] == []
    dp_mlm = {"mechanism": "dp-mlm", "epsilon": 50.0}
    assert reading(bert, text={"masked-lm": "bundled"}, text_arm=dp_mlm)["before"] == []
    for sections, what in (
        ({"text": {"masked-lm": MINILM}, "text_arm": dp_mlm}, 'a prediction head for text.masked-lm = "minilm", which'),
        ({"text": {"pretrain": True}}, "the encoder on sanitized texts (text.pretrain), 500 batches"),
    ):
        estimate = reading(bert, **sections)
        (each,) = estimate["before"]
        assert each["what"].startswith(what) and 0 < each["seconds"] < estimate["training"]
        said = f"First, and once for all runs, public texts train {what}"
        assert [line for line in check._estimate(estimate) if line.startswith(said)]


def test_public_texts_without_labels_are_not_trained_on(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "FLOPS", 1e6)
    labelled, unlabelled = reading(bert), reading(bert, data={"public": {"labels": False}})
    assert unlabelled["training"] < labelled["training"] < 2.5 * unlabelled["training"]


def test_encoders_that_are_trained_on_the_way_are_run(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "FLOPS", 1e6)
    arm = {"name": "a", "vector": {"mechanism": "privunit", "epsilon": 4.0, "dim": 4}}
    taught = {"protocol": "statistics", "maps": "principal-components"}
    sections: dict[str, Any] = {"arm": [arm], "policy": {"vector": 4.0}}
    once = said(study(bert, training=taught, **sections))["estimate"]
    rounds = said(study(bert, training=taught | {"rounds": 2, "self-training": True}, **sections))["estimate"]
    assert 2 * once["encoding"] < rounds["encoding"] < 4 * once["encoding"] and rounds["training"] > 0
    student = {"self-training": True, "student": "minilm", "student-epochs": 1}
    large = said(study(bert, training=taught | student, **sections))["estimate"]
    assert large["training"] > 50 * rounds["training"] and large["encoding"] > 10 * rounds["encoding"]
    assert large["memory"] > rounds["memory"] + 2**28
    read_all = said(
        study(
            bert,
            training=taught,
            **sections | {"arm": [arm, {"name": "all", "protocol": "centralised", "reference": True}]},
        )
    )["estimate"]
    assert read_all["training"] > once["training"] == 0


@pytest.mark.soak
@pytest.mark.slow
def test_the_rates_are_within_a_factor_of_two(tmp_path: Path) -> None:
    """By this process' own seconds, which others on the machine hardly change: every kind of work, as it is priced.

    A machine that is not of the kind that was measured is told by encoding: rates are of it.
    """
    corpus = builtin(task="sentiment", public=128, train=1, test=1, seed=0).public
    texts, model = list(corpus.texts), forecasts.Transformer.of(MINILM)
    tokens = token_lengths(MINILM, texts).astype(np.float64)
    torch.set_num_threads(1)

    def seconds(doing: Callable[[], object]) -> float:
        start = time.process_time()
        doing()
        return time.process_time() - start

    export_encoder(MINILM, tmp_path / "encoder", max_length=128)
    encoder = Encoder(tmp_path / "encoder", threads=1)
    encoder.encode(texts[:8])
    rate = float(model.operations(tokens).sum()) / seconds(lambda: encoder.encode(texts))
    assert 0.5 < rate / forecasts.FLOPS < 2
    through = float(model.operations(tokens).sum())
    found = {
        "training": seconds(
            lambda: finetune(MINILM, texts, corpus.labels, tmp_path / "b", classes=2, epochs=1, seed=1, max_length=128)
        )
        * rate
        / (3 * forecasts.TORCH * through)
    }
    begun = seconds(lambda: pretrain_module.pretrain(MINILM, texts, tmp_path / "c", steps=1, seed=1))
    more = seconds(lambda: pretrain_module.pretrain(MINILM, texts, tmp_path / "d", steps=6, seed=1))
    priced = 3 * forecasts.TORCH * forecasts.pretraining(tokens, model, 5)
    found["pretraining"] = (more - begun) * rate / priced
    export_masked_lm(tmp_path / "d", tmp_path / "lm", public_texts=texts[:32], seed=1, max_length=128)
    vocabulary, reader = load_vocabulary(vocabulary_folder(MINILM)), MaskedLM(tmp_path / "lm", threads=1)
    spec = {"mechanism": "dp-mlm", "epsilon": 50.0, "tokens": 32, "length": "kept"}
    text = text_mechanism(spec, vocabulary, model={"low": reader.low, "high": reader.high})
    x = padded_word_ids(texts[:16], text)
    rng = SimulationStreams(1).rows(np.arange(16), np.zeros(16, np.int64), stage="t", channel="text")
    drawn = seconds(lambda: text.sample(x, rng=rng, scores=reader.scores(x, vocabulary)))
    arm = Arm(name="a", text=spec)
    settings = study(
        tmp_path,
        data={"public": {"labels": False}},
        arm=[{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
        text={"masked-lm": "bundled"},
    )
    none = np.zeros(0)
    found["rewriting"] = (
        drawn * rate / forecasts._rewritten(settings, arm, forecasts.Parts(none, tokens[:16], none), text)
    )
    assert all(0.5 < ratio < 2 for ratio in found.values()), found
