"""Membership inference on whole runs, of tiny models: what is attacked, what is skipped, and what a user reads."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from simulations.corpora.corpus import Corpus, Split
from simulations.experiment import Experiment, from_table, to_toml
from simulations.run import report
from simulations.run.journal import UNFINISHED
from simulations.run.run import run
from sottovoce.adversary.attacks import knowledge as attack_public
from sottovoce.adversary.attacks import membership as attack_membership
from sottovoce.adversary.attacks.run import Attack
from sottovoce.adversary.attacks.run import run as attack
from sottovoce.adversary.estimators import membership
from sottovoce.cli.main import main
from tests.support.studies import (
    CLASSES,
    PRIOR,
    USERS,
    KnownEncoder,
    LocalGrid,
    in_process,
    make_nodes,
    prepared,
    run_arms,
    use_folder,
)
from tests.support.studies import experiment as made_up
from tests.support.tiny_models import WORDS, tiny_bert

MADE_UP_CLASSES = 2
THRESHOLDS = ("membership-confidence", "membership-drops")
IDENTITY = {"mechanism": "identity", "dim": 4}
PURKAYASTHA = {"mechanism": "purkayastha", "epsilon": 2.0, "dim": 4}


def study(folder: Path, way: str, *arms: dict, **sections: dict) -> Experiment:
    """Texts of random words with random labels: whatever a model knows of a training label, it has by heart."""
    if not (folder / "bert").exists():
        tiny_bert(folder / "bert")
        rng = np.random.default_rng(1)
        for name, n in (("train.tsv", 160), ("test.tsv", 80)):
            lines = {" ".join(rng.choice(WORDS[:13], size=8)): int(rng.integers(MADE_UP_CLASSES)) for _ in range(n)}
            rows = [f"{text}\t{label}" for text, label in lines.items()]
            (folder / name).write_text("\n".join(["text\tlabel", *rows]) + "\n")
    table: dict[str, dict] = {
        "data": {
            "source": "files",
            "path": str(folder),
            "train": "train.tsv",
            "test": "test.tsv",
            "text": "text",
            "label": "label",
            "public": {"fraction": 0.2, "labels": True, "split": "random"},
            "overlap": "made of few words",
        },
        "population": {"users": USERS, "users-per-node": 30},
        "encoder": {"model": str(folder / "bert"), "max-length": 16},
        "training": {"protocol": way, "epochs": 2, "batch-size": 10},
        "shuffle": {"enabled": False},
        "policy": {"embedding": 7.0, "text": 1000.0, "label": 3.0, "accept-unprotected": ["label: made up"]},
    }
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values
    return from_table({"name": "small", "seed": 5, "arm": list(arms), **table})


def finished(experiment: Experiment, out: Path) -> Path:
    """The run folder of a study, made without Flower."""
    out.mkdir()
    report.write(run(experiment, out, engine=in_process), out)
    shutil.rmtree(out / UNFINISHED)
    return out


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield tmp_path_factory.mktemp("shared")


def results(folder: Path, *names: str, **asked: object) -> dict[str, dict]:
    found = attack(Attack(folder, names or tuple(attack_membership.ATTACKS), **asked))
    return {f"{e['arm']}: {e['attack'].removeprefix('membership-')}": e for e in found["entries"]}


def remembers(e: dict) -> bool:
    """Of a model that does not, with a probability of 0.6 %."""
    return e["auc"] > 0.5 + 2.5 * e["auc_error"]


def shorter(text: str) -> list[str]:
    """What may be left of a text that loses words."""
    words = text.split()
    return [" ".join(left) for n in range(1, len(words)) for left in combinations(words, n)]


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A run folder of 60 users who released made-up embeddings, and its data, which attacks read again."""
    arms = [
        {"name": "public", "protocol": "public-only", "embedding": PURKAYASTHA},
        {"name": "clear", "reference": True, "embedding": IDENTITY},
        {"name": "noisy", "embedding": PURKAYASTHA, "label": {"mechanism": "randomized-response", "epsilon": 1.0}},
        {"name": "prior", "embedding": PURKAYASTHA, "label": PRIOR},
    ]
    small = made_up(*arms, data={"test-size": USERS}, training={"label-stages": 2})
    ready = prepared(small)
    train, embeddings = ready.held.train, ready.held.train_embeddings
    near = 0.1 * np.random.default_rng(2).standard_normal(embeddings.shape)
    more = Corpus([f"other {i}" for i in range(USERS)], train.labels, train.classes)
    use_folder(tmp_path / "nodes", monkeypatch)
    run_arms(small, LocalGrid(make_nodes(small, tmp_path / "nodes")), models=tmp_path / "models")
    texts = [*train.texts, *more.texts]
    known = dict(zip(texts, [*embeddings, *(embeddings + near)], strict=True))
    encoder = KnownEncoder({short: h for text, h in known.items() for short in shorter(text)} | known)
    public, held = replace(ready.public, encoder=encoder), replace(ready.held, test=more)
    ready = ready._replace(public=public, held=held)
    (tmp_path / "experiment.toml").write_text(to_toml(small), encoding="utf-8")
    again = SimpleNamespace(ready=ready)
    for module in (attack_membership, attack_public):
        monkeypatch.setattr(module, "prepared", lambda run: again.ready)
    split = Split(Corpus([], np.zeros(0, int), train.classes), train, more)
    monkeypatch.setattr("sottovoce.adversary.attacks.target.load_split", lambda *_: (split, {}))
    return tmp_path, again


def test_release_once(released, capsys):
    """Without noise a release tells its record, though the model on it tells nothing; with ε=2 neither does."""
    folder, _ = released
    found = results(folder, shadows=8)
    assert set(found) == {
        f"{arm}: {name.removeprefix('membership-')}"
        for arm in ("clear", "noisy", "prior")
        for name in attack_membership.ATTACKS
    }
    for name, e in found.items():
        assert (e["texts"], e["others"], e["baseline"], e["stage"]) == (USERS, USERS, 0.5, "train-1, train-2")
        if name != "clear: releases":
            assert abs(e["success"] - 0.5) < 4 * 0.065, name  # sixty scored texts, false alarms below 1e-4
    assert found["clear: releases"]["success"] > 0.9 and found["clear: releases"]["bound"] == 1.0
    assert found["noisy: lira"]["shadow_models"] == 8 and found["noisy: lira"]["shadow_texts"] == USERS
    both = [(Purkayastha(epsilon=2.0, dim=4), 1), (RandomizedResponse(epsilon=1.0, classes=CLASSES), 1)]
    assert found["noisy: confidence"]["bound"] == membership.bound(both) < 1
    assert found["noisy: confidence"]["worst_case_epsilon"] == pytest.approx(2 * math.pi + 1)
    # the same run gives the same results, and the command prints them
    assert results(folder, "membership-lira", shadows=8)["prior: lira"] == found["prior: lira"]
    assert main(["attack", str(folder), "--arm", "noisy", "--attack", "membership-releases"]) == 0
    out = capsys.readouterr().out
    assert "| noisy | membership-releases |" in out and "Membership: of so many" in out


def test_what_cannot_be_attacked_is_one_line(released, capsys):
    folder, again = released

    def complains(*options: str) -> str:
        assert main(["attack", str(folder), *options]) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    lira = ("--attack", "membership-lira")
    assert "membership-lira on public: no user takes part in it" in complains("--arm", "public", *lira)
    assert "needs 30 training records and as many others" in complains("--arm", "noisy", "--limit", "10", *lira)
    assert complains("--shadows", "5") == "sottovoce: --shadows 5: an even number is needed, at least 4"
    kept, train = again.ready, again.ready.held.train
    moved = Corpus(train.texts[::-1], train.labels, train.classes)
    again.ready = kept._replace(held=replace(kept.held, train=moved))
    assert "not those that the run was made with" in complains("--arm", "noisy", *lira)
    again.ready = kept
    (folder / "results.json").write_text(json.dumps({"arms": [{"name": "noisy", "delivered": 0}]}))
    assert "no training user's release was delivered" in complains("--arm", "noisy", *lira)


def test_releases_under_encoders_that_a_run_has_trained(shared, tmp_path):
    """Two rounds of self-training: the vectors of the last are attacked under the encoder of the first, embeddings of
    test users under that of the last."""
    arm = {"name": "one", "embedding": PURKAYASTHA, "vector": {"mechanism": "privunit", "epsilon": 4.0, "dim": 4}}
    folder = finished(
        study(
            shared,
            "statistics",
            arm,
            training={"self-training": True, "rounds": 2},
            data={"public": {"fraction": 0.2, "labels": False, "split": "random"}},
            policy={"vector": 4.0, "accept-unprotected": []},
        ),
        tmp_path / "run",
    )
    found = attack(Attack(folder, ("vector-text", "attribute-adaptive"), attributes=("label",)))["entries"]
    assert [(e["attack"], e["stage"]) for e in found] == [("attribute-adaptive", "test"), ("vector-text", "train-2")]
    vectors = found[1]
    assert vectors["texts"] == USERS // 2 and vectors["baseline"] + 3 * vectors["error"] < vectors["success"]
    assert vectors["success"] <= vectors["bound"] + 5 * 0.5 / math.sqrt(USERS / 2)


@pytest.mark.slow
def test_the_published_procedure_remembers(shared, tmp_path, capsys):
    """Random labels learnt by heart are found; after a single epoch there is nothing to find."""
    training = {"acknowledge-not-private": True, "epochs": 60}
    arms = [{"name": "clear", "reference": True, "embedding": {"mechanism": "identity", "dim": 32}}]
    folder = finished(study(shared, "paper", *arms, training=training), tmp_path / "long")
    found = results(folder, *THRESHOLDS)
    assert remembers(found["clear: confidence"]) and found["clear: confidence"]["bound"] == 1.0
    assert remembers(found["clear: drops"]) and found["clear: drops"]["auc"] != found["clear: confidence"]["auc"]
    assert "gradients depend on raw text" in found["clear: confidence"]["note"]
    for name, complaint in (("lira", "--shadows 8"), ("releases", "nothing is released in this way")):
        assert main(["attack", str(folder), "--attack", f"membership-{name}"]) == 2
        assert complaint in capsys.readouterr().err
    training["epochs"] = 1
    folder = finished(study(shared, "paper", *arms, training=training), tmp_path / "short")
    found = results(folder, *THRESHOLDS, "membership-shadow", "membership-lira", shadows=4)
    assert set(e["shadow_texts"] for e in found.values() if "shadow_texts" in e) == {USERS}
    for e in found.values():
        assert abs(e["success"] - 0.5) < 4 * 0.065


@pytest.mark.slow
@pytest.mark.soak
def test_sanitized_text(shared, tmp_path):
    """A model trained on texts as they are knows them in the form that it read; random words tell nothing."""
    arms = [
        {"name": "clear", "reference": True, "text": {"mechanism": "identity", "tokens": 8, "length": "kept"}},
        {
            "name": "random",
            "text": {"mechanism": "random", "tokens": 8},
            "label": {"mechanism": "randomized-response", "epsilon": 1.0},
        },
    ]
    experiment = study(shared, "sanitized-text", *arms, training={"train-encoder": True, "epochs": 40})
    folder = finished(experiment, tmp_path / "run")
    found = results(folder, *THRESHOLDS, "membership-releases")
    assert remembers(found["clear: confidence"]) and found["clear: releases"]["success"] > 0.95
    assert remembers(found["clear: drops"])
    for name in ("confidence", "releases"):
        e = found[f"random: {name}"]
        assert abs(e["success"] - 0.5) < 4 * 0.065
    # random words say nothing, their number (ε=1 a word) and the label (ε=1) something
    assert 0.5 < found["random: confidence"]["bound"] < 1
