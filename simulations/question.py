"""What a finished run's model asks of users who want a sentence classified, and what answers them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from client import encoder as encoders
from client.model import STAGE
from mechanisms.mechanism import parameters
from mechanisms.request import Request
from server.maps import FILE, Maps
from server.predict import Predictor
from simulations.device import chosen
from simulations.errors import UserError
from simulations.experiment import HALVES, embedding_mechanism, load, slug


def predictor(place: Path, arm_name: str | None = None, *, private_key: bytes | None = None) -> Predictor:
    """The model of an arm of a finished run, and its question: the embedding of one sentence, by the mechanism that
    test users of the run were asked with, from the maps that the run was left with.

    place: the run's folder, or models/ARM in it. arm_name: which arm, where the folder is the run's and there are
    several. private_key: as in `Predictor`.
    Raises UserError where there is no such model, or its users release texts.
    """
    if (place / FILE).is_file() and place.parent.name == "models":
        place, arm_name = place.parents[1], place.name
    try:
        results: Any = json.loads((place / "results.json").read_text(encoding="utf-8"))
        experiment = load(str(place / "experiment.toml"), [])
        classes = tuple(map(str, results["classes"]))
    except (OSError, json.JSONDecodeError, TypeError, KeyError):
        raise UserError(f"{place}: holds no finished run; name the folder that `simulate` or `deploy` left") from None
    arm = chosen(experiment, arm_name)
    if not arm.embedding:
        raise UserError(f"{place}: users of {arm.name} release texts, and a sentence is asked about by its embedding")
    model = place / "models" / slug(arm.name)
    maps = Maps.load(model)
    mechanism = embedding_mechanism(arm.embedding, maps.dim)
    request = Request(
        arm="", stage=STAGE, split="test", encoder=_encoder(model, halves=experiment.training.way == HALVES),
        mean=maps.mean, m1=maps.m1, embedding=parameters(mechanism), label=None, classes=maps.classes, minimum_users=0,
    )  # fmt: skip
    return Predictor(request, maps, classes, private_key)


def _encoder(model: Path, *, halves: bool) -> str:
    """The name of the encoder before the maps: one that the arm has trained itself, or that all arms share."""
    if halves:
        return encoders.identity(model / "client")
    try:
        return str(json.loads((model / "encoder.json").read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{model / 'encoder.json'}: does not name the model's encoder; run the study again") from None
