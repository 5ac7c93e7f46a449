"""Cost of one sentence on a device: time by step, memory, and bytes on the wire.

    python -m benchmarks.device BUNDLE [FILE]

The measured code is the code that answers servers. A device with the bundle answers one sentence after another, on one
core. FILE has a sentence a line; without it they are made up. The result is JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import processor
from client.device.bundle import Bundle, open_bundle
from client.models import encoder as encoders
from client.models.tokens import padded_word_ids
from client.node import Node, load_node, write_node
from client.sanitizer import Sanitizer
from client.shard import write_shard
from client.store.ledger import Ledger
from mechanisms.messages.questions import TextQuestion
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

STEPS = ("read", "tokenize", "encode", "sanitize", "ledger", "wire")
PERCENTILES = (50, 90, 99)
#: Made-up sentences.
SENTENCES = 200
#: Sentences whose times do not count: the first ones load the model and fill caches.
WARM_UP = 5

_LEDGER = ("commit", "recall", "spent", "spent_on")
_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger(__name__)


def measure(bundle: Bundle, sentences: Sequence[str], folder: Path) -> dict[str, Any]:
    """Answer each sentence as the only record of a new user, one at a time, and return the measurements.

    Args:
        bundle: Bundle of the device.
        sentences: The sentences.
        folder: Folder for the device, which a ledger fills.

    Returns:
        "milliseconds": percentiles by step and of "all", without the warm-up. "read" is reading a record from the disk,
            "wire" is parsing the request and serializing the answer, and "seal" is the additional time of sealing the
            answer, on a device that has a key to seal to; it is not in "all".
        "first_seconds": seconds of the first answer, including the loading of the model.
        "memory": peak of this process, in bytes.
        "wire": median bytes of a request, an answer, and a sealed answer, with their framing.

    Raises:
        ValueError: There are too few sentences.
    """
    if len(sentences) <= WARM_UP:
        raise ValueError(f"profile: give at least {WARM_UP + 1} sentences, the first {WARM_UP} only warm up")
    nodes = [_node(bundle, text, user, folder / str(user)) for user, text in enumerate(sentences)]
    clock = _Clock()
    request = request_to_record(bundle.request)
    ledger_file = folder / "ledger.sqlite"
    answers: list[tuple[Reply, int]] = []
    start, first, last_line = time.perf_counter(), 0.0, time.monotonic()
    with _timed_encoder(bundle, clock):
        for user, node in enumerate(nodes):
            if user == WARM_UP:
                clock.forget()
                answers.clear()
            answers.append(_answer(node, request, ledger_file, clock))
            if time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                log.info(f"{user + 1:,} of {len(nodes):,} sentences")
            first = first or time.perf_counter() - start
    tokenizing = _tokenizing(bundle, sentences[WARM_UP:])
    holder = "encode" if bundle.encoder is not None else "sanitize"
    times = {name: np.array(clock.steps[name]) for name in STEPS if name != "tokenize"}
    times["tokenize"] = np.minimum(tokenizing, times[holder])
    times[holder] = times[holder] - times["tokenize"]
    times["all"] = np.sum([times[name] for name in STEPS], axis=0)
    times["seal"], sealed = _sealing(bundle, [reply for reply, _ in answers])
    return {
        "milliseconds": {
            name: {f"p{p}": 1000 * float(np.percentile(times[name], p)) for p in PERCENTILES}
            for name in (*STEPS, "all", "seal")
        },
        "sentences": len(answers),
        "first_seconds": first,
        "memory": _peak_memory(),
        "wire": {"question": _size(request), "answer": int(np.median([size for _, size in answers])), "sealed": sealed},
    }


class _Clock:
    """Seconds by step, one number for each answer."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {name: [] for name in STEPS}
        self._now: dict[str, float] = {}

    def timed(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, with its time added to the step's."""

        def called(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._now[step] = self._now.get(step, 0.0) + time.perf_counter() - start

        return called

    def answered(self) -> None:
        """Finish an answer. Sanitization is the rest of its time without the encoder's and the ledger's."""
        inside = self._now.get("encode", 0.0) + self._now.get("ledger", 0.0)
        self._now["sanitize"] = self._now.get("sanitize", 0.0) - inside
        for name in STEPS:
            self.steps[name].append(self._now.get(name, 0.0))
        self._now.clear()

    def forget(self) -> None:
        """Discard the times so far."""
        for times in self.steps.values():
            times.clear()


@contextmanager
def _timed_encoder(bundle: Bundle, clock: _Clock) -> Iterator[None]:
    """Load the encoder that `Shard.embeddings` calls, and time it."""
    if bundle.encoder is None:
        yield
        return
    model = encoders.load(bundle.encoder)
    model.encode = clock.timed("encode", model.encode)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.encode


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


def _answer(node: Node, content: Any, ledger_file: Path, clock: _Clock) -> tuple[Reply, int]:
    """Return the timed reply of `client.app.answer` in clear, and its bytes. All sentences share one ledger."""
    request = clock.timed("wire", request_from_record)(content, node.vocabulary)
    shard = clock.timed("read", node.shard)(request.split)

    def sanitized() -> Any:
        with clock.timed("ledger", Ledger)(ledger_file) as ledger:
            for name in _LEDGER:
                setattr(ledger, name, clock.timed("ledger", getattr(ledger, name)))
            return Sanitizer(node.policy(""), ledger, node.streams).answer(request, shard)

    reply = clock.timed("sanitize", sanitized)()
    size: int = clock.timed("wire", lambda: _size(reply_to_record(reply)))()
    clock.answered()
    return reply, size


def _sealing(bundle: Bundle, replies: Sequence[Reply]) -> tuple[np.ndarray, int]:
    """Return seconds to seal each reply twice, to keys that are discarded, and the median bytes of a sealed answer."""
    (device, key), (_, shuffler) = generate_keys(), generate_keys()
    identity = request_identity(request_to_record(bundle.request))
    times, sizes = [], []
    for reply in replies:
        start = time.perf_counter()
        sealed = envelop(seal(reply, bundle.request, key), identity, shuffler, device)
        times.append(time.perf_counter() - start)
        sizes.append(_size(sealed_to_record(sealed)))
    return np.array(times), int(np.median(sizes))


def _tokenizing(bundle: Bundle, sentences: Sequence[str]) -> np.ndarray:
    """Return seconds to tokenize each sentence for the encoder, or else for the text's mechanism."""
    question = bundle.request.find(TextQuestion)

    def tokenize_for_the_text(sentence: str) -> Any:
        assert question is not None
        return padded_word_ids([sentence], question.text)

    tokenize: Callable[[str], Any] = tokenize_for_the_text
    if bundle.encoder is not None:
        from tokenizers import Tokenizer

        tokenize = Tokenizer.from_file(str(bundle.encoder / "tokenizer.json")).encode
    times = []
    for sentence in sentences:
        start = time.perf_counter()
        tokenize(sentence)
        times.append(time.perf_counter() - start)
    return np.array(times)


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
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    sentences = builtin(task="sentiment", public=1, train=SENTENCES, test=1, seed=0).train.texts
    if len(sys.argv) > 2:
        sentences = [line for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if line.strip()]
    bundle = open_bundle(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(bundle, [*sentences[:WARM_UP], *sentences], Path(folder))
    print(json.dumps(measured | {"bundle": bundle.size, "processor": processor()}, indent=2))


if __name__ == "__main__":
    main()
