"""Prediction head that the bundled checkpoint lacks, as package data: DP-MLM needs no training on a new machine.

MiniLM comes without a head. `benchmarks.masked_head` trains one on the built-in public texts and keeps
what the training changed: the head in half precision, and of each matrix of the encoder the 16 directions in which it
moved farthest. That is 1.7 MB, and finds 89 % of the masked words of other built-in texts; the whole finds 96 %.
The SHA-256 here identifies the file; the checkpoint that it is added to has its own (`server.checkpoint_files`).
Clients run the shipped file, wherever it was made: training again on another machine gives another file in its last
bits.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulations.artifacts.cache import folder_once
from simulations.artifacts.encoder import LIBRARIES
from simulations.artifacts.provenance import made_by
from simulations.artifacts.vocabulary import MINILM
from simulations.errors import UserError

# Nothing here may import torch before it is needed: the cache holds what was made once.

HEAD = Path(__file__).with_name("minilm_head.npz")
SHA256 = "e20f269076124695cfa06c655c3562ade43012367219b3df258028c6531898d6"
#: Start of the names of the head's parameters, and most tokens that clients read.
PARAMETERS, MAX_LENGTH = "cls.", 256


def bundled_masked_lm() -> Path:
    """Return the folder of the bundled checkpoint with its shipped head, as clients run it (`client.models.masked_lm`).

    It is made in seconds, once.

    Raises:
        UserError: The file is not the shipped one.
    """
    about = made_by(("simulations.artifacts.bundled_head", "server.masked_lm"), LIBRARIES)

    def make(folder: Path) -> None:
        from server.masked_lm import read, write_masked_lm

        arrays = _shipped()
        model, tokenizer, _ = read(MINILM)
        restore(model, arrays)
        low, high = (float(value) for value in arrays["bounds"])
        write_masked_lm(model, tokenizer, folder, low=low, high=high, max_length=MAX_LENGTH)

    return folder_once("masked-lms", (about, SHA256), make)


def _shipped() -> Mapping[str, np.ndarray]:
    try:
        data = HEAD.read_bytes()
    except OSError as error:
        raise UserError(f"{HEAD}: cannot be read ({error.strerror}); reinstall sottovoce") from None
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise UserError(f"{HEAD}: is not the prediction head that was shipped; reinstall sottovoce")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def restore(model: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Apply the inverse of `benchmarks.masked_head.compress` in place: the head's values and the encoder's changes.

    The encoder's second text then has the positions of the first.

    Raises:
        ValueError: An array does not belong to this model.
    """
    import torch

    from server.masked_lm import ALIGNED

    parameters = dict(model.named_parameters())
    names = {name.removesuffix(".left").removesuffix(".right") for name in arrays} - {"bounds"}
    if not names <= parameters.keys():
        raise ValueError(f"masked-lm: the head is of another model; {min(names - parameters.keys())} is not there")
    with torch.no_grad():
        for name in sorted(names):
            if f"{name}.left" in arrays:
                left, right = (arrays[f"{name}.{side}"].astype(np.float32) for side in ("left", "right"))
                parameters[name] += torch.from_numpy(left @ right)
            elif name.startswith(PARAMETERS):
                parameters[name].copy_(torch.from_numpy(arrays[name].astype(np.float32)))
            else:
                parameters[name] += torch.from_numpy(arrays[name].astype(np.float32))
    setattr(model.config, ALIGNED, True)
