"""Sentences a second of encoders in float32 and int8, beside plain transformers on the same cores in one run.

Run it with `python -m benchmarks.encoder [MODEL ...] [--data FOLDER_WITH_SST2] [--texts 2048]`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import seconds
from client.models.encoder import Encoder
from client.models.onnx import cores
from server.checkpoint import load
from server.checkpoint_files import read_layout
from server.model import pool
from simulations.artifacts.encoder import encoder_folder
from simulations.corpora import builtin, files
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import from_table

PLAIN_BATCH, MAX_LENGTH = 256, 128
Embeddings = NDArray[np.float32]


def phrases(data: Path | None, n: int) -> list[str]:
    """Return n random texts: distinct ones of SST-2 in the folder `data`, or those of the built-in corpus."""
    if data is None:
        return list(builtin.builtin(task="sentiment", public=1, train=n, test=1, seed=1).train.texts)
    corpus, _ = files.read_files(str(data), "train.tsv", "dev.tsv", text="sentence", label="label")
    known = list(dict.fromkeys(map(str, corpus.texts)))
    if len(known) < n:
        raise UserError(f"{data}: has {len(known)} texts; ask for that many or fewer")
    return [known[i] for i in np.random.default_rng(1).permutation(len(known))[:n].tolist()]


def exported(precision: str, model: str) -> Path:
    """Return a model in client form, from the cache."""
    experiment = from_table(
        {
            "name": "bench",
            "encoder": {"model": model, "max-length": MAX_LENGTH, "precision": precision},
            "arm": [{"name": "bench", "reference": True, "embedding": {"mechanism": "identity", "dim": 16}}],
        }
    )
    nothing = Corpus((), np.zeros(0, np.int64), ("negative", "positive"))  # data for fine-tuning, which is off
    return encoder_folder(experiment.encoder, nothing, batch_size=1, seed=1)


def plain(model: str, texts: Sequence[str]) -> Callable[[], Embeddings]:
    """Return the baseline with transformers: random batches, padded to their longest."""
    network, tokenizer = load(model)
    pooling, order = read_layout(model).pooling, np.random.default_rng(2).permutation(len(texts))

    def encode() -> Embeddings:
        result = np.empty((len(texts), network.config.hidden_size), np.float32)
        with torch.inference_mode():
            for rows in np.split(order, range(PLAIN_BATCH, len(texts), PLAIN_BATCH)):
                batch = [texts[i] for i in rows]
                inputs = tokenizer(batch, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
                result[rows] = pool(network(**inputs).last_hidden_state, inputs["attention_mask"], pooling).numpy()
        return result

    return encode


def main() -> None:
    """Print the figures of named encoders."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["minilm"], help="names of encoders, as in an experiment file")
    parser.add_argument("--data", type=Path, help="folder with SST-2 (default: built-in texts)")
    parser.add_argument("--texts", type=int, default=2048, help="texts to encode (default: %(default)s)")
    given = parser.parse_args()
    texts = phrases(given.data, given.texts)
    torch.set_num_threads(cores())
    print(f"{len(texts):,} texts, {cores()} threads")
    for model in given.models:
        programs = {"transformers": plain(model, texts)}
        for precision in ("fp32", "int8"):
            encoder = Encoder(exported(precision, model))
            programs[precision] = lambda encoder=encoder: encoder.encode(texts)
        first = {name: work() for name, work in programs.items()}
        first = {name: x / np.linalg.norm(x, axis=1, keepdims=True) for name, x in first.items()}
        spent = {name: seconds(work, clock=time.perf_counter) for name, work in programs.items()}
        for name, time_spent in spent.items():
            ratio = spent["transformers"] / time_spent
            cosine = (first[name] * first["transformers"]).sum(axis=1)
            print(
                f"{model:<12}{name:<14}{len(texts) / time_spent:>9,.0f} texts/s{ratio:>7.1f} times "
                f"   cosine {cosine.mean():.4f}, least {cosine.min():.4f}"
            )


if __name__ == "__main__":
    main()
