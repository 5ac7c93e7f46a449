"""Prediction head that the bundled checkpoint lacks, as package data: DP-MLM needs no training on a new machine.

MiniLM comes without a head. `make head` trains one on the built-in public texts, together with the encoder
(`server.training.pretrain`: a frozen encoder does not learn to read a text beside its masked copy). It keeps what the
training changed: the head in half precision, and of each matrix of the encoder the 16 directions in which it moved
farthest. That is 1.7 MB, and finds 89 % of the masked words of other built-in texts; the whole finds 96 %. The SHA-256
here identifies the file; the checkpoint that it is added to has its own (`server.checkpoint_files`). Clients run the
shipped file, wherever it was made: training again on another machine gives another file in its last bits.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulations.artifacts.cache import folder_once
from simulations.artifacts.encoder import LIBRARIES
from simulations.artifacts.provenance import made_by
from simulations.artifacts.vocabulary import MINILM
from simulations.errors import UserError
from simulations.progress import progress_lines

# Nothing here may import torch before it is needed: the cache holds what was made once.

HEAD = Path(__file__).with_name("minilm_head.npz")
SHA256 = "e20f269076124695cfa06c655c3562ade43012367219b3df258028c6531898d6"
#: Directions of a matrix that are kept; texts of the training, its batches, their rows and the pieces of a pair.
RANK, TEXTS, STEPS, BATCH, PIECES = 16, 3000, 600, 16, 80
_HEAD = "cls."
#: Most tokens that clients read.
_MAX_LENGTH = 256


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
        write_masked_lm(model, tokenizer, folder, low=low, high=high, max_length=_MAX_LENGTH)

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


def compress(base: Mapping[str, Any], trained: Mapping[str, Any], rank: int) -> dict[str, np.ndarray]:
    """Return the change from the tensors `base` to `trained`, float16.

    For the head it has the values; for a matrix the first `rank` terms of its change's singular value decomposition,
    NAME.left (n, rank) and NAME.right (rank, m); else the change. Unchanged tensors are left out.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in trained.items():
        after = tensor.detach().double().numpy()
        if name.startswith(_HEAD):
            arrays[name] = after
            continue
        change = after - base[name].detach().double().numpy()
        if not change.any():
            continue
        if change.ndim == 2 and min(change.shape) > rank:
            left, scale, right = np.linalg.svd(change, full_matrices=False)
            root = np.sqrt(scale[:rank])
            arrays[f"{name}.left"], arrays[f"{name}.right"] = left[:, :rank] * root, root[:, None] * right[:rank]
        else:
            arrays[name] = change
    return {name: array.astype(np.float16) for name, array in arrays.items()}


def restore(model: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Apply the inverse of `compress` in place: the head's values and the encoder's changes.

    The encoder's second text then has the positions of the first.

    Raises:
        ValueError: An array does not belong to this model.
    """
    import torch

    from server.masked_lm import ALIGNED

    known = dict(model.named_parameters())
    names = {name.removesuffix(".left").removesuffix(".right") for name in arrays} - {"bounds"}
    if not names <= known.keys():
        raise ValueError(f"masked-lm: the head is of another model; {min(names - known.keys())} is not there")
    with torch.no_grad():
        for name in sorted(names):
            if f"{name}.left" in arrays:
                left, right = (arrays[f"{name}.{side}"].astype(np.float32) for side in ("left", "right"))
                known[name] += torch.from_numpy(left @ right)
            elif name.startswith(_HEAD):
                known[name].copy_(torch.from_numpy(arrays[name].astype(np.float32)))
            else:
                known[name] += torch.from_numpy(arrays[name].astype(np.float32))
    setattr(model.config, ALIGNED, True)


def make(path: Path) -> None:
    """Train the head on the built-in public texts and write the file. It prints its accuracy and its SHA-256."""
    from server.training.pretrain import pretrain
    from simulations.corpora.builtin import builtin

    public = builtin(task="sentiment", public=TEXTS, train=1, test=1, seed=0).public.texts
    texts = [text for text in public if isinstance(text, str)]
    with tempfile.TemporaryDirectory() as name:
        whole = pretrain(MINILM, texts, Path(name), steps=STEPS, batch_size=BATCH, max_length=PIECES, seed=0)
        write(whole, path, texts)


def write(trained: Path, path: Path, texts: Sequence[str]) -> None:
    """Write the changes of a training of the bundled checkpoint as the file, with clip bounds from public texts."""
    from server.masked_lm import bounds_of, read
    from server.training.pretrain import masked_accuracy
    from simulations.corpora.builtin import builtin

    after, tokenizer, _ = read(trained)
    model = read(MINILM)[0]
    arrays = compress(dict(model.named_parameters()), dict(after.named_parameters()), RANK)
    restore(model, arrays)
    others = builtin(task="genre", public=300, train=1, test=1, seed=1).public.texts
    unseen = [text for text in others if isinstance(text, str)]
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name, safe_serialization=True)
        tokenizer.save_pretrained(name)
        for which, folder in (("trained", trained), ("kept", name)):
            right, constant = masked_accuracy(folder, unseen, paired=True, seed=0)
            print(f"{which}: {right:.3f} of the masked words of other texts (the best constant {constant:.3f})")
    arrays["bounds"] = np.array(bounds_of(model, tokenizer, texts, seed=0, max_length=_MAX_LENGTH))
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    data = path.read_bytes()
    print(f"{path}: {len(data) / 1e6:.2f} MB, SHA256 = {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    with progress_lines(clock=False):
        make(Path(sys.argv[1]) if len(sys.argv) > 1 else HEAD)
