"""Sentences a second of the encoder, and of a round whose users encode their own texts.

The encoder runs in float32 and int8, beside plain transformers on the same cores in one run. The round runs beside the
encoder alone. `python -m benchmarks.encoder [MODEL ...] --data FOLDER_WITH_SST2` measures named encoders in both
precisions, beside a product of matrices on the same cores in the same run.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks import round as bench_round
from client.models.encoder import Encoder
from client.models.onnx import cores
from simulations.artifacts.encoder import encoder_folder
from simulations.corpora import builtin, files
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import from_table

log = logging.getLogger(__name__)


MODEL, PLAIN_BATCH, MAX_LENGTH = "minilm", 256, 128
TEXTS = 2048
REPEATS = 3

Embeddings = NDArray[np.float32]


def phrases(data: Path | None, n: int, *, seed: int) -> tuple[list[str], str]:
    """Return n distinct random texts, and their source: SST-2 in the folder `data`, or the built-in corpus.

    Args:
        data: Folder of SST-2; None for the built-in corpus.
        n: Number of texts.
        seed: Seed of the choice.
    """
    if data is None:
        corpus, source = builtin.builtin(task="sentiment", public=1, train=n, test=1, seed=seed).train, "built-in"
    else:
        corpus, _ = files.read_files(str(data), "train.tsv", "dev.tsv", text="sentence", label="label")
        source = "SST-2"
    known = list(dict.fromkeys(str(t) for t in corpus.texts))
    if len(known) < n:
        if data is not None:
            raise UserError(f"{data}: {n} texts were asked for, and it has {len(known)}; ask for fewer")
        return [known[i % len(known)] for i in range(n)], source
    return [known[i] for i in np.random.default_rng([seed, 1]).permutation(len(known))[:n].tolist()], source


def exported(precision: str, model: str = MODEL) -> Path:
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


def run(texts: Sequence[str], *, seed: int, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure the encoders; they take turns, so that other load on the machine affects all of them.

    Args:
        texts: Texts to encode.
        seed: Seed of the baseline's batches.
        repeats: Number of repeats.

    Returns:
        {"texts", "cores", "plain" | "fp32" | "int8": {"per_second" of each repeat, "median", "ratio" to plain, "cosine"
        and "least_cosine" to plain, "sha256"}}.
    """
    encoders = {p: Encoder(exported(p)) for p in ("fp32", "int8")}
    ways: dict[str, Callable[[], Embeddings]] = {"plain": _plain(texts, seed=seed)}
    ways |= {p: (lambda e=e: e.encode(texts)) for p, e in encoders.items()}  # type: ignore[misc]
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Embeddings] = {}
    for repeat in range(repeats):
        for name, work in ways.items():
            start = time.perf_counter()
            found[name] = work()
            speeds[name].append(len(texts) / (time.perf_counter() - start))
            log.info(f"encoder, {name}: {speeds[name][-1]:,.0f} texts/s ({repeat + 1} of {repeats})")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    results: dict[str, Any] = {"texts": len(texts), "cores": cores(), "plain_batch": PLAIN_BATCH}
    for name in ways:
        cosine = _cosine(found[name], found["plain"])
        results[name] = {
            "per_second": speeds[name],
            "median": medians[name],
            "ratio": medians[name] / medians["plain"],
            "cosine": float(cosine.mean()),
            "least_cosine": float(cosine.min()),
            "sha256": encoders[name].identity if name in encoders else None,
        }
    return results


def round_with_encoding(texts: Sequence[str], *, seed: int, folder: Path) -> dict[str, Any]:
    """Measure one release-once round through Flower on Ray, whose users have one text each without an embedding.

    Nodes encode in their actors, one thread each. The encoder alone encodes the same texts on all cores, before and
    after. "share" is the round's rate over the mean of both.

    Args:
        texts: One text for each user.
        seed: Seed of the round.
        folder: Folder of the round.

    Returns:
        {"users", "delivered", "round_per_second", "encoder_per_second": [before, after], "share", "seconds"}.
    """
    where = exported("fp32")
    alone = [_rate(where, texts)]
    log.info(f"encoder alone: {alone[0]:,.0f} texts/s")
    found = bench_round.run(len(texts), seed=seed, folder=folder, texts=texts, encoder=where)
    alone.append(_rate(where, texts))
    log.info(f"encoder alone: {alone[1]:,.0f} texts/s; a round with it: {found['users_per_second']:,.0f} users/s")
    return {
        "users": len(texts),
        "delivered": found["delivered"],
        "nodes": found["nodes"],
        "round_per_second": found["users_per_second"],
        "encoder_per_second": alone,
        "share": found["users_per_second"] / statistics.mean(alone),
        "seconds": found["seconds"],
    }


def operations(folder: Path, texts: Sequence[str]) -> float:
    """Return the floating-point operations of the products by constant matrices, for texts without padding.

    Products of two states, in attention, are left out: less than a hundredth for texts of a sentence.

    Args:
        folder: Folder of a float32 encoder.
        texts: Texts to encode.
    """
    graph = onnx.load(str(folder / "model.onnx")).graph
    weights = {w.name: w.dims for w in graph.initializer}
    products = [weights[n.input[1]] for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]
    tokens = sum(rows.size * len(each[0]) for rows, each in Encoder(folder)._batches(texts))
    return 2.0 * tokens * sum(int(np.prod(dims)) for dims in products)


def limit() -> float:
    """Return the floating-point operations a second of a float32 product of two matrices, on all threads of NumPy."""
    a = np.random.default_rng(0).normal(size=(1536, 1536)).astype(np.float32)
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        _ = a @ a
        spent.append(time.perf_counter() - start)
    return 2.0 * len(a) ** 3 / min(spent)


def named(models: Sequence[str], texts: Sequence[str], *, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Measure encoders in float32 and int8; the precisions of one encoder take turns.

    Args:
        models: Names of encoders, as in an experiment file.
        texts: Texts to encode.
        repeats: Number of repeats.

    Returns:
        For each encoder and precision {"model", "precision", "per_second", "flops" (operations a second), "share" of
        `limit` in the same run, "cosine", "least_cosine" to float32}; medians of the repeats.
    """
    rows = []
    for model in models:
        folders = {p: exported(p, model) for p in ("fp32", "int8")}
        encoders = {p: Encoder(folder) for p, folder in folders.items()}
        work = operations(folders["fp32"], texts)
        spent: dict[str, list[float]] = {p: [] for p in encoders}
        limits, found = [], {}
        for _ in range(repeats):
            limits.append(limit())
            for precision, encoder in encoders.items():
                start = time.perf_counter()
                found[precision] = encoder.encode(texts)
                spent[precision].append(time.perf_counter() - start)
        for precision, seconds in spent.items():
            cosine, flops = _cosine(found[precision], found["fp32"]), work / statistics.median(seconds)
            rows.append(
                {
                    "model": model,
                    "precision": precision,
                    "per_second": len(texts) / statistics.median(seconds),
                    "flops": flops,
                    "share": flops / statistics.median(limits),
                    "cosine": float(cosine.mean()),
                    "least_cosine": float(cosine.min()),
                }
            )
    return rows


def _rate(folder: Path, texts: Sequence[str]) -> float:
    encoder = Encoder(folder)
    start = time.perf_counter()
    encoder.encode(texts)
    return len(texts) / (time.perf_counter() - start)


def _plain(texts: Sequence[str], *, seed: int) -> Callable[[], Embeddings]:
    """Return a simple baseline with transformers: random batches, padded to their longest, mean pooling."""
    import torch

    from server.checkpoint import load
    from server.model import pool

    model, tokenizer = load(MODEL)
    order = np.random.default_rng([seed, 2]).permutation(len(texts))

    def encode() -> Embeddings:
        before = torch.get_num_threads()
        torch.set_num_threads(cores())
        found = np.empty((len(texts), model.config.hidden_size), np.float32)
        try:
            with torch.inference_mode():
                for start in range(0, len(texts), PLAIN_BATCH):
                    rows = order[start : start + PLAIN_BATCH]
                    inputs = tokenizer(
                        [texts[i] for i in rows],
                        padding=True,
                        truncation=True,
                        max_length=MAX_LENGTH,
                        return_tensors="pt",
                    )
                    found[rows] = pool(model(**inputs).last_hidden_state, inputs["attention_mask"], "mean").numpy()
        finally:
            torch.set_num_threads(before)
        return found

    return encode


def _cosine(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a.astype(np.float64), b.astype(np.float64)))
    return (a * b).sum(axis=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of named encoders."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder", description=__doc__)
    parser.add_argument("models", nargs="*", default=[MODEL], help="names of encoders, as in an experiment file")
    parser.add_argument("--data", type=Path, help="folder with SST-2 (default: built-in texts)")
    parser.add_argument("--texts", type=int, default=TEXTS, help="texts to encode (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="repeats (default: %(default)s)")
    asked = parser.parse_args(arguments)
    texts, source = phrases(asked.data, asked.texts, seed=1)
    print(f"{len(texts):,} texts ({source}), {cores()} threads")
    for row in named(asked.models, texts, repeats=asked.repeats):
        print(
            f"{row['model']:<12}{row['precision']:<6}{row['per_second']:>9,.0f} texts/s{row['flops'] / 1e9:>8,.0f} "
            f"GFLOPS{row['share']:>8.0%} of a product of matrices   cosine {row['cosine']:.4f}, least "
            f"{row['least_cosine']:.4f}"
        )


if __name__ == "__main__":
    main()
