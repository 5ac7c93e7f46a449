"""Cost of a sealed row for each party: sealing on a device, storing in the shuffler, opening in the server.

Run it with `python -m benchmarks.rows`. Each step runs in its own process, so that its memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Projection
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import Sealed, generate_keys, seal, sealed_bytes
from mechanisms.quantizer import SPHERE
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from server.sealed_batches import open_batch
from simulations.output.markdown import table
from simulations.shuffler.store import Store

WIDTH, DIM, CLASSES = 384, 16, 2
#: Rows of one device's reply if a device has many users' records; a phone's has one.
MANY = 1000
#: Number of replies of one row that the shuffler stores.
ALONE = 500


def request(stage: str, seed: int, *, users: int) -> Request:
    """Return a request for an embedding of 16 coordinates and a label, 112 bytes sealed (`benchmarks.round`).

    Args:
        stage: Name of the stage.
        seed: Seed of the maps.
        users: Smallest batch.
    """
    m1 = np.random.default_rng([seed, 9]).standard_normal((WIDTH, DIM), dtype=np.float32)
    projection = Projection("be" * 32, np.zeros(WIDTH, np.float32), m1)
    embedding = parameters(Purkayastha(dim=DIM, epsilon=10.0))
    label = parameters(RandomizedResponse(epsilon=2.0, classes=CLASSES))
    questions = (
        EmbeddingQuestion(embedding, projection=projection, classes=CLASSES),
        LabelQuestion(label, classes=CLASSES),
    )
    return Request(arm="", stage=stage, split="train", minimum_users=users, questions=questions)


def sealing(rows: int, seed: int) -> dict[str, Any]:
    """Measure the sealing of a reply, as on a device, without its draws."""
    release_request = request("rows", seed, users=0)
    reply, (_, public) = _reply(release_request, rows, seed), generate_keys()
    return _timed("seal", lambda: seal(reply, release_request, public), rows)


def opening(rows: int, seed: int) -> dict[str, Any]:
    """Measure the opening and validation of a batch, as in a training server."""
    release_request = request("rows", seed, users=0)
    private, public = generate_keys()
    sealed = seal(_reply(release_request, rows, seed), release_request, public).rows
    return _timed("open", lambda: open_batch(sealed, release_request, [private]), rows)


def shuffling(rows: int, seed: int) -> dict[str, Any]:
    """Measure a stage in the shuffler's store: storing, closing (permuting), and sending.

    Rows are random bytes, because the store reads none. Each commit is on disk before the next. Commits have `MANY`
    rows, and one row each at first.
    """
    width = sealed_bytes(request("rows", seed, users=0))
    singles = min(rows // 10, ALONE)

    def reply(first: int, n: int) -> Sealed:
        data = np.frombuffer(os.urandom(n * width), np.uint8).reshape(n, width)
        return Sealed(np.arange(first, first + n, dtype=np.int64), np.zeros(n, np.int64), data)

    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder, Store(Path(folder) / "s.sqlite") as store:
        store.open_stage("rows", b"asked", row_bytes=width, minimum_users=1, timeout=1.0)
        results = _timed("take one by one", lambda: [store.add("rows", reply(i, 1)) for i in range(singles)], singles)
        starts = range(singles, rows, MANY)
        results |= _timed(
            "take", lambda: [store.add("rows", reply(i, min(MANY, rows - i))) for i in starts], rows - singles
        )
        before = _disk(folder)
        results |= _timed("close", lambda: store.close("rows", dropped={}, errors={}), rows)
        results |= _timed("give", lambda: sum(map(len, store.pieces("rows"))), rows)
        return results | {"disk": max(before, _disk(folder))}


def _reply(release_request: Request, rows: int, seed: int) -> Reply:
    rng = np.random.default_rng([seed, 3])
    x = rng.normal(size=(rows, DIM))
    values = {
        "embedding": SPHERE.encode(x / np.linalg.norm(x, axis=1, keepdims=True)),
        "label": rng.integers(CLASSES, size=rows).astype(np.int16),
    }
    releases = tuple(
        release_request.release(question, values[question.channel]) for question in release_request.questions
    )
    return Reply(np.arange(rows), np.zeros(rows, np.int64), releases)


def _timed(step: str, work: Callable[[], object], rows: int) -> dict[str, Any]:
    start, worked = time.perf_counter(), time.process_time()
    work()
    return {step: [rows / (time.perf_counter() - start), rows / max(1e-6, time.process_time() - worked)]}


def _disk(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


#: Steps with their smaller and larger number of rows; memory and disk of a million rows are from the difference.
STEPS = {
    "sealing": (sealing, 10_000, 50_000),
    "shuffling": (shuffling, 50_000, 500_000),
    "opening": (opening, 10_000, 50_000),
}


def apart(step: str, rows: int) -> dict[str, Any]:
    """Return the measurements of a step in its own process, with its peak memory."""
    command = [sys.executable, "-m", "benchmarks.rows", step, str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(arguments: list[str]) -> None:
    """Print the table, or measure one step."""
    if arguments:
        step, rows = arguments
        result = STEPS[step][0](int(rows), 1)
        print(json.dumps(result | {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
        return
    lines, growth = [], []
    for step, (_, fewer, rows) in STEPS.items():
        less, more = apart(step, fewer), apart(step, rows)
        for name in ("memory", "disk"):
            if name in more:
                size = max(0.0, more.pop(name) - less[name]) / (rows - fewer)
                growth.append(f"{step}: {size:,.0f} MB of {name} for a million rows")
        lines += [[name, f"{rows:,}", f"{speed:,.0f}", f"{work:,.0f}"] for name, (speed, work) in more.items()]
    print(table(("step", "rows", "rows/s", "rows for a second of a core's work"), lines), *growth, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
