"""Folder of a trained model: the model, its preprocessing, and a card that states its guarantee."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.tokens import in_form
from mechanisms.pieces import Text
from server.card import model_card
from server.maps import Maps
from server.protocols import described
from server.protocols.models import ENCODER, TextModel
from server.protocols.protocol import Public
from simulations.artifacts.public import CachedEncoder
from simulations.errors import UserError
from simulations.experiment.result import SHOWN, ArmResult
from simulations.output.jsonable import json_ready

_ABOUT = "model.json"
_SENTENCES = {"sanitized": "sanitized", "on_device": "clean"}
#: File that identifies a pipeline that was trained end to end.
PIPELINE = "pipeline.json"


def save_model(folder: Path, model: Any, public: Public, result: ArmResult) -> None:
    """Write an arm's model, if it has one, and its card. The folder asked/ holds the maps under which users released.

    The file model.json has "classes" and "encoder". If the encoder is elsewhere, it also has "encoder_folder". For a
    model of released texts, "sides" is 2 if pairs are two texts, and 1 if they are joined.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = None
    if model is not None:
        model.save(folder)
        encoder = model.encoder
    about: dict[str, Any] = {"classes": list(public.classes), "encoder": None if encoder is None else encoder.identity}
    if isinstance(model, TextModel) and model.channels.text is not None:
        about["sides"] = model.channels.text.sides
    if encoder is not None and folder not in encoder.folder.parents:
        about["encoder_folder"] = str(encoder.folder)
    (folder / _ABOUT).write_text(json.dumps(about, ensure_ascii=False) + "\n", encoding="utf-8")
    named = None if encoder is None else f"{encoder.identity}, {encoder.precision}"
    card = result.to_dict() | {"encoder": named, "classes": list(public.classes), "measured": _measured(result)}
    card |= {"way": described(result.way)}
    card |= {"released": "text"} if public.rewriter is not None and encoder is None else {}
    (folder / "README.md").write_text(model_card(card), encoding="utf-8")
    (folder / "guarantee.json").write_text(json.dumps(json_ready(result.budget.to_dict()), indent=1), encoding="utf-8")


def _measured(result: ArmResult) -> dict[str, float]:
    """Return the accuracies and measures of the model's card, by heading."""
    shown = {"accuracy": "accuracy"} | SHOWN
    return {
        f"{shown[it.metric][0].upper()}{shown[it.metric][1:]}, {_SENTENCES[it.split]} test sentences": it.value
        for it in result.estimates()
        if it.split is not None and it.metric in shown
    }


def read_about(folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the names of a saved model's classes and the identity of its encoder.

    Raises:
        UserError: The folder does not have them.
    """
    about = _about(folder)
    return tuple(map(str, about["classes"])), str(about["encoder"])


def _about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if not isinstance(about["classes"], list) or "encoder" not in about or about.get("sides") not in (None, 1, 2):
            raise ValueError
        return about
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{folder / _ABOUT}: does not say what the model is; run the study again") from None


def classify(folder: Path, public: Public, texts: Sequence[Text]) -> NDArray[np.int64]:
    """Return a saved model's classes of texts in clear, (n,), as a user's own device computes them.

    Raises:
        ValueError: There is no model.
    """
    if (folder / PIPELINE).is_file():
        from server.model import Pipeline  # torch

        pipeline = Pipeline.from_pretrained(folder)
        maps, sides = pipeline.maps(), _about(folder).get("sides")
        return maps.predict(maps.project(pipeline.embed(texts if sides is None else in_form(texts, sides))))
    own = folder / ENCODER
    encoder = CachedEncoder(own) if own.is_dir() else public.encoder
    assert encoder is not None
    maps = Maps.load(folder)
    return maps.predict(maps.project(encoder.embed(texts)))
