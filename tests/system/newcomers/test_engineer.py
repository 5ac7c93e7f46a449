"""An engineer walks from a study to a device that asks a model, a mechanism of his own and the mod in his app, by
docs/how-to/device.md, own-mechanism.md and flower-app.md, and errs on the way."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import tomli_w

from mechanisms import catalogue
from mechanisms.messages.refusals import REFUSALS
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.predict import predictor, serving
from tests.support.clients import context
from tests.support.newcomers import Newcomer
from tests.support.paths import ROOT
from tests.support.quickstart import asks, quickstart

STUDY = {
    "name": "mine",
    "data": {"public-size": 80, "test-size": 40},
    "population": {"users": 60},
    "encoder": {"model": "bert", "max-length": 32},
    "shuffle": {"minimum-users": 5},
    "policy": {"embedding": 32.0, "label": 3.0},
    "arm": [
        {
            "name": "vectors",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 8},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        }
    ],
}
SENTENCE = '"a fine film"'


def python_of(page: str, number: int = 0) -> str:
    """An example on a page of docs/how-to."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to" / page).read_text("utf-8"), re.DOTALL)[number]


@pytest.fixture
def engineer(newcomer: Newcomer) -> Newcomer:
    """With a study that has run, keys, and notes of his user."""
    (newcomer.home / "study.toml").write_text(tomli_w.dumps(STUDY), encoding="utf-8")
    (newcomer.home / "notes.csv").write_text(
        "said;mood\nthe film was good;positive\na bad book;negative\n", encoding="utf-8"
    )
    newcomer.types("simulate study.toml --out run")
    newcomer.types("deploy keys make keys --nodes 1")
    return newcomer


def makes_a_device(engineer: Newcomer) -> None:
    """A bundle, and a device of it."""
    errs, types, home = engineer.errs, engineer.types, engineer.home
    keys = "--sign-key keys/publisher/sign.key --seal-to keys/server/seal.pub --model-seal-to keys/predict/seal.pub"
    keys += " --shuffler-seal-to keys/shuffler/seal.pub"

    errs("device bundle --out bundle", "device bundle: give either --run RUN_DIR or --experiment FILE.toml")
    errs(
        "device bundle --run runs --out bundle",
        "--run runs: holds no finished run; name the folder that `sottovoce simulate` left",
    )
    errs("device bundle --run run --out bundle --arm vector", '--arm "vector": there is none; choose one of "vectors"')
    errs(
        "device bundle --run run --out bundle --precision fp16",
        'encoder.precision: must be "fp32", "int8", "int4", got \'fp16\'; did you mean "fp32"?',
    )
    errs(
        f"device bundle --run run --out run {keys}",
        "bundle: run is there already and not an empty folder; name another one",
    )
    assert "for embedding, label of vectors" in types(f"device bundle --run run --out bundle {keys}")

    install = "device install --bundle bundle --device me"
    errs(install, "bundle: nobody says whose bundles this device trusts; give the publisher's public key")
    errs(
        f"{install} --publisher notes.csv",
        "notes.csv: is no key to seal or to sign with, which is 64 hexadecimal digits",
    )
    signed, given = (
        f"{read_key(home / 'keys' / name).hex()[:16]}…" for name in ("publisher/sign.pub", "server/seal.pub")
    )
    errs(
        f"{install} --publisher keys/server/seal.pub",
        f"bundle: {home / 'bundle'} is signed by {signed}, and this device trusts {given} alone",
    )
    assert "answers for embedding, label by bundle" in types(f"{install} --publisher keys/publisher/sign.pub")


def gives_it_records(engineer: Newcomer) -> None:
    errs, types = engineer.errs, engineer.types
    errs("device add me --file notes.csv", "notes.csv: name the column of the texts with --text")
    errs("device add me --file keys --text said", "keys: is a folder; name a file in it")
    errs(
        "device add me --file notes.csv --text said --label said",
        "notes.csv: line 2: its label is none of the 2 classes; correct it, or name the classes as the bundle does",
    )
    assert "2 records of user 0" in types("device add me --file notes.csv --text said --label mood")
    errs("device ledger bundle", "bundle: is no device's folder; name the one that holds node.json and ledger.sqlite")
    assert "nothing has left this device" in types("device ledger me")


def test_from_a_run_to_a_device_that_asks(engineer: Newcomer) -> None:
    makes_a_device(engineer)
    gives_it_records(engineer)
    errs, types, home = engineer.errs, engineer.types, engineer.home
    model = predictor(home / "run", private_keys=(read_key(home / "keys" / "predict" / "seal.key"),))
    own = home / "keys" / "predict"
    with serving(model, certificate=own / "cert.pem", key=own / "cert.key") as address:
        ask = f"device ask me {SENTENCE} --server {address} --root-certificates keys/ca/ca.pem"
        errs(
            ask,
            "me: its policy lets releases go only among those of at least 5 users, and a question goes alone; if "
            "the server may see which release is yours, set minimum_users to 0 in node.json; nothing was charged",
            makes="me/asked.sqlite",
        )
        plain = address.replace("https", "http")
        errs(
            f"device ask me {SENTENCE} --server {plain} --root-certificates keys/ca/ca.pem",
            f"{plain}: is no address of a server; give https://HOST:PORT; nothing was charged",
        )
        node = json.loads((home / "me" / "node.json").read_text())
        node["policy"]["minimum_users"] = 0
        (home / "me" / "node.json").write_text(json.dumps(node))
        assert "cost   ε = 31.42 at worst" in types(ask)
    said = types("device ledger me")
    assert "the embedding of 1 record, to the stage ask: ε = 31.42 at worst each (ε = 10·d_angular)" in said
    assert "sentence 1 that was asked about: embedding ε = 31.42 at worst" in said
    errs("budget ladder --ledger me", "--ledger me: is a folder; name the ledger in it, as me/ledger.sqlite")
    assert "31.42" in types("budget ladder --ledger me/ledger.sqlite")
    assert len(engineer.mistakes) >= 10


def test_a_mechanism_of_his_own(engineer: Newcomer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    monkeypatch.syspath_prepend(engineer.home)
    (engineer.home / "his_noise.py").write_text(python_of("own-mechanism.md"), encoding="utf-8")
    try:
        engineer.errs(
            "audit --mechanism purkayasta",
            "--mechanism purkayasta: there is none of that name; did you mean 'purkayastha'?",
        )
        engineer.errs(
            "audit --mechanism his_noise:Con",
            "his_noise:Con: cannot be imported (AttributeError: module 'his_noise' has no attribute 'Con'); is its "
            "package installed, or its folder on PYTHONPATH?",
        )
        assert "no violation found" in engineer.types("audit --mechanism his_noise:Coin --draws 20000")
        own = "simulate study.toml --set arm.0.label.mechanism=his_noise:Coin"
        engineer.errs(
            f"{own} --set arm.0.label.epsilon=4 --out own",
            'study.toml: arm "vectors": label: worst-case ε 4 is above '
            "policy.label = 3, so its users refuse; raise the limit or lower epsilon",
        )
        engineer.types(f"{own} --out own")
    finally:
        sys.modules.pop("his_noise", None)
    (arm,) = json.loads((engineer.home / "own" / "results.json").read_text())["arms"]
    assert {rung["rung"]: rung["epsilon"] for rung in arm["ladder"]}["label"] == 2.0


def test_the_mod_in_his_app(newcomer: Newcomer) -> None:
    short: dict[str, Any] = {"ClientApp": quickstart}
    exec(python_of("flower-app.md"), short)
    told = short["app"](asks(), context(2))
    assert dict(told.content["metrics"]) == {"num-examples": 1} and "arrays" in told.content
    known: dict[str, Any] = {"ClientApp": quickstart}
    exec(python_of("flower-app.md", 1), known)
    told = known["app"](asks(), context(3))
    assert dict(told.content["metrics"]) == {"num-examples": 1} and "arrays" in told.content
    refused = known["app"](asks("evaluate"), context(3))
    assert (refused.error.code, refused.error.reason) == REFUSALS["unaccounted"]
    said = newcomer.types("budget ladder --ledger ledger.sqlite")
    assert "2 releases of 2 users" in said and "statistic" in said

    accounted, sent = known["accounted"], {"train": {"arrays": known["update"]}}
    endless, small, enough = (
        known["Policy"](**limits)
        for limits in ({"statistic": 8.0}, {"statistic": 1.0, "total": 8.0}, {"statistic": 8.0, "total": 8.0})
    )
    for policy, releases, instead, line in (
        (endless, sent, {}, "accounted: the policy needs a finite total: a server may ask without end"),
        (small, sent, {}, f"accounted: train: arrays: {REFUSALS['channel'][1]}"),
        (
            enough,
            {"train": {"arrays": {"mechanism": "privunti", "epsilon": 2.0, "norm": 1.0}}},
            {},
            "statistic: unknown mechanism 'privunti'; did you mean 'privunit'?",
        ),
        (
            enough,
            {"train": {"arrays": {"mechanism": "privunit", "epsilon": 2.0}}},
            {},
            "accounted: arrays: give the norm that its update is clipped to, above 0, got None",
        ),
        (
            enough,
            sent,
            {"num-examples": 1},
            "accounted: instead: write \"record.key\" and a finite number or None, got 'num-examples'",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            accounted("other.sqlite", policy, releases, instead=instead)
        assert str(caught.value) == line
    assert not (newcomer.home / "other.sqlite").exists()
