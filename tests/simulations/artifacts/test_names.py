"""What was trained on a GPU is kept beside what was trained on the CPU, and not in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.artifacts import encoder, generator, masked_lm
from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.generator import generator_folder
from simulations.artifacts.masked_lm import masked_lm_folder
from simulations.corpora.corpus import Corpus
from tests.support.stand_in_gpu import stand_in_gpu
from tests.support.studies import PURKAYASTHA, RANDOMIZED, experiment
from tests.support.tiny_models import tiny_bert

TEXTS = ["a good film", "a bad book"]
PUBLIC = Corpus(TEXTS, np.array([1, 0]), ("bad", "good"))


def test_only_what_would_differ_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of a checkpoint as it is, is the same with a GPU."""
    bert = tiny_bert(tmp_path / "bert")

    def named(name: str, make: Any) -> Path:
        return Path(name)

    for module in (encoder, masked_lm, generator):
        monkeypatch.setattr(module, "folder_once", named)

    def exported(tuned: bool) -> Path:
        settings = {"model": str(bert), "fine-tune-on-public": tuned}
        arm = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}
        return encoder_folder(experiment(arm, encoder=settings).encoder, PUBLIC, batch_size=32, seed=1)

    made: dict[str, Callable[[], Path]] = {
        "as it is": lambda: exported(False),
        "tuned": lambda: exported(True),
        "masked": lambda: masked_lm_folder(bert, TEXTS, seed=1),
        "generating": lambda: generator_folder(bert, TEXTS, kind="generator", seed=1),
    }
    monkeypatch.setenv("SOTTOVOCE_DEVICE", "cpu")
    here = {name: folder() for name, folder in made.items()}
    monkeypatch.delenv("SOTTOVOCE_DEVICE")
    with stand_in_gpu():
        there = {name: folder() for name, folder in made.items()}
    assert {name for name in made if here[name] != there[name]} == {"tuned", "masked", "generating"}
