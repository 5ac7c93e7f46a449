"""Cost of one sentence on a device: time, memory, and bytes on the wire.

    python -m benchmarks.device BUNDLE [FILE]

The measured code is the code that answers servers. A device with the bundle answers one sentence after another, on one
core. FILE has a sentence a line; without it they are made up. The result is JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import processor
from client.device.bundle import Bundle, open_bundle
from client.node import Node, load_node, write_node
from client.sanitizer import Sanitizer
from client.shard import write_shard
from client.store.ledger import Ledger
from mechanisms.messages.reply import Reply
from mechanisms.messages.sealed import envelop, generate_keys, seal
from mechanisms.messages.wire import (
    reply_to_record,
    request_from_record,
    request_identity,
    request_to_record,
    sealed_to_record,
)
from simulations.corpora.builtin import builtin

PERCENTILES = (50, 90, 99)
#: Made-up sentences, and those whose times do not count: the first ones load the model and fill caches.
SENTENCES, WARM_UP = 200, 5


def measure(bundle: Bundle, sentences: Sequence[str], folder: Path) -> dict[str, Any]:
    """Answer each sentence as the only record of a new user, one at a time, and return the measurements.

    Args:
        bundle: Bundle of the device.
        sentences: The sentences, more than WARM_UP.
        folder: Folder for the device, which a ledger fills.

    Returns:
        "milliseconds": percentiles of an answer in clear, from reading the request to the bytes of the answer, without
            the warm-up.
        "first_seconds": seconds of the first answer, including the loading of the model.
        "memory": peak of this process, in bytes.
        "wire": median bytes of a request, an answer, and a sealed answer, with their framing.
    """
    request, times, replies = request_to_record(bundle.request), [], []
    for user, text in enumerate(sentences):
        node = _node(bundle, text, user, folder / str(user))
        start = time.perf_counter()
        replies.append(_answer(node, request, folder / "ledger.sqlite"))
        _size(reply_to_record(replies[-1]))
        times.append(time.perf_counter() - start)
    (device, key), (_, shuffler) = generate_keys(), generate_keys()
    identity = request_identity(request)
    sealed = [envelop(seal(reply, bundle.request, key), identity, shuffler, device) for reply in replies]
    return {
        "milliseconds": {f"p{p}": 1000 * float(np.percentile(times[WARM_UP:], p)) for p in PERCENTILES},
        "sentences": len(times) - WARM_UP,
        "first_seconds": times[0],
        "memory": _peak_memory(),
        "wire": {
            "question": _size(request),
            "answer": int(np.median([_size(reply_to_record(reply)) for reply in replies])),
            "sealed": int(np.median([_size(sealed_to_record(each)) for each in sealed])),
        },
    }


def _node(bundle: Bundle, text: str, user: int, folder: Path) -> Node:
    """Return a device that holds one sentence, with the label 0."""
    write_node(
        folder,
        encoder=bundle.encoder,
        vocabulary=bundle.vocabulary,
        masked_lm=bundle.masked_lm,
        policy=replace(bundle.policy, questions=None),
    )
    number, none = np.array([user], dtype=np.int64), np.zeros(1, np.int64)
    write_shard(folder, "train", number, none, [text], none)
    return load_node(folder)


def _answer(node: Node, content: Any, ledger_file: Path) -> Reply:
    """Return the reply of `client.app.answer` in clear. All sentences share one ledger."""
    request = request_from_record(content, node.vocabulary)
    with Ledger(ledger_file) as ledger:
        return Sanitizer(node.policy(""), ledger, node.streams).answer(request, node.shard(request.split))


def _size(record: Any) -> int:
    """Return the bytes of a Flower record on the wire, including the records inside."""
    inside = (getattr(record, "children", None) or {}).values()
    return len(record.deflate()) + sum(map(_size, inside))


def _peak_memory() -> int:
    """Return bytes. `ru_maxrss` is not used: Linux inherits it from the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Print the measurements as JSON."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sentences = list(builtin(task="sentiment", public=1, train=SENTENCES, test=1, seed=0).train.texts)
    if len(sys.argv) > 2:
        sentences = [line for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if line.strip()]
    bundle = open_bundle(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(bundle, [*sentences[:WARM_UP], *sentences], Path(folder))
    print(json.dumps(measured | {"bundle": bundle.size, "processor": processor()}, indent=2))


if __name__ == "__main__":
    main()
