"""A bundle around an encoder of two layers, and a device's environment, for tests of the device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from client.device.bundle import Bundle, Keys, Parts, write_bundle
from client.models import vocabulary as vocabularies
from client.models.encoder import Encoder
from client.policy import Policy
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.signature import public_of
from mechanisms.vocabulary import Vocabulary
from server.export import export_encoder
from tests.support.clients import request, without
from tests.support.paths import ROOT
from tests.support.requests import made
from tests.support.tiny_models import tiny_bert

DIM = 4
POLICY = Policy(embedding=32.0, label=3.0, total=40.0, mechanisms=("purkayastha", "randomized-response"))
SENTENCES = ["the film was good", "a bad book", "not very fine", "the plot was awful .", "good and bad", "a", "film"]

#: A device's environment, played in ours: what `pip install sottovoce` alone does not bring cannot be imported.
BLOCKED = {
    "torch",
    "transformers",
    "ray",
    "datasets",
    "pyarrow",
    "dp_accounting",
    "safetensors",
    "onnx",
    "matplotlib",
    "threadpoolctl",
    "sklearn",
    "HanTa",
}
PROGRAM = (
    without(BLOCKED)
    + """
from sottovoce.cli.main import main
code = main(sys.argv[2:])
assert not BLOCKED & {name.partition(".")[0] for name in sys.modules}
sys.exit(code)
"""
)


#: Who signs the bundles of tests: the private key, and the public one that devices pin.
SIGNER = bytes(range(32))
PUBLISHER = public_of(SIGNER)
_, SHUFFLER = generate_keys()


def on_a_device(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def encoder_folder(place: Path) -> Path:
    """The exported encoder under `place`, made where it is not there."""
    folder = place / "encoder"
    if not folder.exists():
        export_encoder(tiny_bert(place / "bert"), folder, max_length=32)
    return folder


def request_for(encoder: Encoder, /, **changes: Any) -> Request:
    """A request of embeddings by this encoder, and of labels of two classes."""
    m1 = np.random.default_rng(1).normal(size=(encoder.dim, DIM)).astype(np.float32)
    maps = {"encoder": encoder.identity, "mean": np.zeros(encoder.dim, np.float32), "m1": m1}
    return request(**{"arm": "", "classes": 2} | maps | changes)


def make_bundle(place: Path, name: str = "bundle", *, policy: Policy = POLICY, **keys: Any) -> Bundle:
    """A bundle of embeddings and labels in `place`/name. keys: as in `Keys`, in place of the tests' own."""
    folder = encoder_folder(place)
    return write_bundle(
        place / name,
        request_for(Encoder(folder)),
        policy,
        name="small",
        arm="a",
        classes=("bad", "good"),
        made_by="tests",
        parts=Parts(folder, "fp32"),
        keys=Keys(**{"signer": SIGNER, "shuffler_seal": SHUFFLER if "seal" in keys else None} | keys),
    )


def words() -> Vocabulary:
    vectors = np.random.default_rng(4).normal(size=(6, 5)).astype(np.float32)
    return Vocabulary(("good", "bad", "fine", "film", "book", "the"), vectors)


def make_text_bundle(place: Path, *, seal: bytes | None = None) -> Bundle:
    """A bundle of texts alone."""
    known = words()
    vocabularies.save(known, place / "words")
    text = {"mechanism": "santext", "epsilon": 2.0, "tokens": 6, "vocabulary": known.identity}
    asked = made(arm="", stage="train", split="train", classes=2, minimum_users=0, text=text, vocabulary=known)
    policy = Policy(text=1000.0, total=1000.0, mechanisms=("santext",))
    return write_bundle(
        place / "text",
        asked,
        policy,
        name="small",
        arm="words",
        classes=("bad", "good"),
        made_by="tests",
        parts=Parts(vocabulary=place / "words"),
        keys=Keys(signer=SIGNER, seal=seal, shuffler_seal=None if seal is None else SHUFFLER),
    )
