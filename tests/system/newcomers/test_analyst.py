"""An analyst walks from a protocol of three embeddings and two texts a user to what it costs, and to an audit of a
mechanism of her own, sound and at fault, by docs/how-to/privacy-review.md, and errs on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from client.models.embeddings import write_embeddings
from mechanisms import catalogue
from sottovoce import (
    Ledger,
    Policy,
    Purkayastha,
    Sanitizer,
    SanText,
    Shard,
    SimulationStreams,
    TextMechanism,
    compose,
    ladder,
)
from tests.support.clients import ENCODER
from tests.support.devices import words
from tests.support.newcomers import Newcomer
from tests.support.own_package import write_package
from tests.support.requests import made

PROTOCOL = {
    "name": "protocol",
    "data": {"public-size": 80, "test-size": 40},
    "population": {"users": 1000},
    "shuffle": {"minimum-users": 40},
    "policy": {"embedding": 40.0, "label": 3.0},
    "arm": [
        {
            "name": "vectors",
            "embedding": {"mechanism": "purkayastha", "epsilon": 4.0, "dim": 16},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        }
    ],
}
EMBEDDINGS, TEXTS, DIM, DELTA = 3, 2, 16, 1e-6
VECTOR = Purkayastha(DIM, 4.0)
TEXT = TextMechanism(SanText(2.0, words()), tokens=6)
#: At worst: an embedding at an angle of π; a text of which every word is another, as far off as any, and its length.
WORST = 4 * np.pi, 6 * TEXT.word.guarantee.worst_case() + 6


def charged(folder: Path) -> Path:
    """The ledger of one user who has released an embedding of each of three records, and two of these as texts."""
    file, rng = folder / "ledger.sqlite", np.random.default_rng(0)
    known = words()
    texts = ["good film", "bad book", "fine"]
    shard = Shard(np.zeros(3, np.int64), np.arange(3), None, texts, folder, "train")
    write_embeddings(folder, "train", ENCODER, rng.normal(size=(3, 24)).astype(np.float32))
    about = {"arm": "", "split": "train", "label": None, "classes": 2, "minimum_users": 0}
    vectors = made(
        stage="vectors",
        encoder=ENCODER,
        mean=np.zeros(24, np.float32),
        **about,
        m1=rng.normal(size=(24, DIM)).astype(np.float32),
        embedding={"mechanism": "purkayastha", "epsilon": 4.0},
    )
    said = made(
        stage="texts",
        encoder="",
        mean=None,
        m1=None,
        embedding=None,
        vocabulary=known,
        text={"mechanism": "santext", "epsilon": 2.0, "tokens": 6, "vocabulary": known.identity},
        **about,
    )
    policy = Policy(embedding=40.0, text=1000.0, total=1000.0, mechanisms=("purkayastha", "santext"))
    with Ledger(file) as ledger:
        client = Sanitizer(policy, ledger, SimulationStreams(1))
        client.answer(vectors, shard)
        client.answer(said, Shard(shard.users[:2], shard.records[:2], None, texts[:2], folder, "train"))
    return file


def test_what_a_protocol_costs(newcomer: Newcomer) -> None:
    errs, types, home = newcomer.errs, newcomer.types, newcomer.home
    (home / "protocol.toml").write_text(tomli_w.dumps(PROTOCOL), encoding="utf-8")
    one = "budget ladder protocol.toml"
    errs("budget ladder protocl.toml", "protocl.toml: there is no such file")
    errs("budget ladder", "budget ladder: give one of FILE.toml, --mechanism or --ledger")
    errs(f"{one} --delta 1", "--delta: must be above 0 and below 1, got 1")
    errs(f"{one} --users 9", "budget ladder: --users goes with --mechanism; a file says it itself, or --set KEY=VALUE")
    errs(f"{one} --records 0", "--records: must be at least 1, got 0")
    errs(
        f"{one} --set arm.0.embedding.epsilon=40",
        'protocol.toml: arm "vectors": embedding: worst-case ε 125.7 is above policy.embedding = 40, so its users '
        "refuse; raise the limit or lower epsilon",
    )
    errs(
        f"{one} --set arm.0.embedding.dim=1e3",
        'protocol.toml: arm "vectors": embedding.dim: must be a whole number '
        "of at least 2, or a list of them, got 1000.0",
    )
    errs("budget ladder --mechanism purkayastha:epsilon=4", "purkayastha: missing parameter dim")
    errs(
        "budget ladder --mechanism purkayastha:epsilon=-1,dim=16", "purkayastha: epsilon must be from 0 to 1000, got -1"
    )
    errs("budget plan --mechanism purkayastha:dim=16 --epsilon 1 --delta 1e-6", "--users: say how many are invited")
    assert "14.57" in types(one)

    charged(home)
    errs("budget ladder --ledger .", "--ledger .: is a folder; name the ledger in it, as ledger.sqlite")
    errs("budget ladder --ledger ledger.sqlite --set x=1", "budget ladder: --set goes with FILE.toml")
    rungs = {rung["rung"]: rung for rung in json.loads(types("budget ladder --ledger ledger.sqlite --json"))["ladder"]}
    assert len(newcomer.mistakes) >= 10
    for rung in ("embedding", "text", "record"):  # both releases are about the text of one record
        assert rungs[rung]["worst_case"] == pytest.approx(sum(WORST))
    user = EMBEDDINGS * WORST[0] + TEXTS * WORST[1]
    assert rungs["user"]["worst_case"] == pytest.approx(user)
    exact = compose([(VECTOR, EMBEDDINGS), (TEXT, TEXTS)], delta=DELTA).epsilon
    assert ladder(VECTOR, records=EMBEDDINGS, delta=DELTA)[5].epsilon < exact < user


def test_whether_it_is_so(newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch) -> None:
    """False alarms have probability 1e-3, on fixed seeds; the fault, a coordinate that is not blurred, is found."""
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    monkeypatch.syspath_prepend(str(write_package(newcomer.home)))
    errs = newcomer.errs
    errs(
        "audit --mechanism quiet-coins",
        "--mechanism quiet-coins: there is none of that name; did you mean 'quiet-coin'?",
    )
    missing = "is its package installed, or its folder on PYTHONPATH?"
    errs(
        "audit --mechanism quiet.noise:Direktion",
        "quiet.noise:Direktion: cannot be imported (AttributeError: module "
        f"'quiet.noise' has no attribute 'Direktion'); {missing}",
    )
    own = "audit --mechanism quiet.noise:Direction"
    errs(f"{own} --draws 10", "--draws 10: at the confidence of an audit take from 20,000 to 2,000,000 draws")
    errs(f"{own} --draws many", "Invalid value for '--draws': 'many' is not a valid integer.")
    errs(f"{own} --delta 0", "--delta 0: must be above 0 and below 1")
    errs(f"{own} --seed -1", "Invalid value for '--seed': -1 is not in the range 0<=x<=18446744073709551615.")
    errs(
        f"{own} --out quiet",
        f"--out {newcomer.home / 'quiet'}: is there already and not an empty folder; name another one",
    )
    errs("attack quiet", "quiet: is no run folder: it has no experiment.toml")
    assert "0 of 2 entries violated" in newcomer.types(f"{own} --draws 20000 --out sound")
    said = newcomer.finds("audit --mechanism quiet.noise:Forgetful --draws 20000")
    assert "1 of 2 entries violated" in said and "violated" in said
