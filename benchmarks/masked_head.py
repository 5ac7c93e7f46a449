"""Training of the prediction head that comes with Sottovoce: `python -m benchmarks.masked_head [FILE]`.

The head is trained together with the encoder (`server.training.pretrain`): a frozen encoder does not learn to read a
text beside its masked copy. `simulations.artifacts.language_models` reads the file.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.masked_lm import bounds_of, layout, read
from server.training.pretrain import aligned, predictions, pretrain
from simulations.artifacts.language_models import HEAD, MAX_LENGTH, PARAMETERS, restore
from simulations.artifacts.vocabulary import MINILM
from simulations.corpora.builtin import builtin
from simulations.progress import progress_lines

#: Directions of a matrix that are kept; texts of the training, its batches, their rows and the pieces of a pair.
RANK, TEXTS, STEPS, BATCH, PIECES = 16, 3000, 600, 16, 80


def compress(base: Mapping[str, Any], trained: Mapping[str, Any], rank: int) -> dict[str, np.ndarray]:
    """Return the change from the tensors `base` to `trained`, float16.

    For the head it has the values; for a matrix the first `rank` terms of its change's singular value decomposition,
    NAME.left (n, rank) and NAME.right (rank, m); else the change. Unchanged tensors are left out.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in trained.items():
        after = tensor.detach().double().numpy()
        if name.startswith(PARAMETERS):
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


def masked_accuracy(checkpoint: str | Path, texts: Sequence[str]) -> tuple[float, float]:
    """Return the accuracy of the likeliest piece at a mask beside the whole text, and that of the best constant."""
    model, tokenizer, _ = read(checkpoint)
    about, rng = layout(model, tokenizer), np.random.default_rng([0, 1])
    rows = aligned(tokenizer, about, texts, None, 96)
    right, answers = 0, []
    with torch.no_grad():
        for start in range(0, len(rows), 32):
            batch = rows[start : start + 32]
            logits, targets = predictions(model, about, batch, rng, paired=True, shares=(1.0, 0.0))
            right += int((logits.argmax(dim=1) == targets).sum())
            answers.append(targets.numpy())
    every = np.concatenate(answers)
    return right / len(every), float(np.bincount(every).max() / len(every))


def make(path: Path) -> None:
    """Train the head on the built-in public texts and write the file. It prints its accuracy and its SHA-256."""
    public = builtin(task="sentiment", public=TEXTS, train=1, test=1, seed=0).public.texts
    texts = [text for text in public if isinstance(text, str)]
    with tempfile.TemporaryDirectory() as name:
        whole = pretrain(MINILM, texts, Path(name), steps=STEPS, batch_size=BATCH, max_length=PIECES, seed=0)
        write(whole, path, texts)


def write(trained: Path, path: Path, texts: Sequence[str]) -> None:
    """Write the changes of a training of the bundled checkpoint as the file, with clip bounds from public texts."""
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
            right, constant = masked_accuracy(folder, unseen)
            print(f"{which}: {right:.3f} of the masked words of other texts (the best constant {constant:.3f})")
    arrays["bounds"] = np.array(bounds_of(model, tokenizer, texts, seed=0, max_length=MAX_LENGTH))
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    data = path.read_bytes()
    print(f"{path}: {len(data) / 1e6:.2f} MB, SHA256 = {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    with progress_lines(clock=False):
        make(Path(sys.argv[1]) if len(sys.argv) > 1 else HEAD)
