"""Does the time of an answer tell how long its text is? Measured on the client as it is deployed, without a window.

Two users hold one record each, the same but for the text: a word, or as much as a client reads. Each pair of users has
folders of its own, which text is in which is drawn by a coin, and so is who is asked first. A first question, of which
no time is taken, opens the ledgers; the time of the second is that of an answer that is drawn anew.

Times are real, and differ from run to run: a difference that is small beside the noise is not found. Texts that are
sanitized word by word are read when a server asks, so that nothing is promised of their time (a device's window covers
it); of all else the texts' embeddings are there before.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.wire import request_to_record
from sottovoce.adversary.audit.clients import WIDTH, Clients
from sottovoce.adversary.estimators.timing import Told

TIMING = "client-timing"
#: Channels whose answers may take no longer for a longer text, and one whose may.
PROMISED, OTHER = ("embedding", "statistic", "answer"), ("text",)
#: The two texts: a word, and as much as is ever read of one.
SHORT, LONG = "good", "a good film " * 1365
#: Pairs of each channel, for so many draws of an audit.
_PAIRS, _LEAST, _EACH = 400, 60, 2500
#: Seconds by a clock that only goes forward.
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timed:
    """What was measured on a channel, and whether anything is promised of it."""

    channel: str
    told: Told
    promised: bool

    def entry(self, alpha: float) -> dict[str, Any]:
        """JSON-ready, as of `adversary.audit.run.entry`; violated where chance explains it with less than alpha."""
        told = self.told
        broken = self.promised and told.chance < alpha
        return {
            "name": TIMING, "about": self.channel,
            "pair": f"one word / {len(LONG):,} characters: the longer text's answer took longer in {told.longer} of "
            f"{told.pairs} pairs, by {1e3 * told.apart:.2g} ± {1e3 * told.noise:.2g} ms",
            "pairs": told.pairs, "longer": told.longer, "chance": told.chance,
            "apart": told.apart, "noise": told.noise, "confidence": 1 - alpha,
            "verdict": "no claim" if not self.promised else "violated" if broken else "holds",
        }  # fmt: skip


def pairs_of(draws: int) -> int:
    """How many pairs of users are asked on a channel, in an audit of so many draws."""
    return max(_LEAST, min(_PAIRS, draws // _EACH))


def timed(
    clients: Clients, pairs: int, seed: int, *, channels: Sequence[str] = (*PROMISED, *OTHER),
    clock: Clock = time.perf_counter,
) -> list[Timed]:  # fmt: skip
    """What so many pairs on each channel show. clients: deployed, if it is to be about devices. Each figure that is
    promised is one that can raise an alarm. UserError where a client does not answer."""
    return [
        Timed(channel, Told.of(*_times(clients, channel, pairs, seed, clock)), channel in PROMISED)
        for channel in channels
    ]


def _times(
    clients: Clients, channel: str, pairs: int, seed: int, clock: Clock
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds of answers about the short and the long text, (pairs,) each."""
    rng = np.random.default_rng([seed, pairs])
    found = np.zeros((2, pairs))
    for i in range(pairs):
        names, of = (f"{channel}-{i}-a", f"{channel}-{i}-b"), rng.permutation(2)
        for name, text in zip(names, of, strict=True):
            embeddings = np.eye(1, WIDTH, dtype=np.float32)
            clients.write(
                name, np.array([i]), np.zeros(1, np.int64), texts=[(SHORT, LONG)[text]], labels=np.zeros(1, np.int64),
                embeddings=None if channel == "text" else embeddings, seed=seed,
            )  # fmt: skip
        for stage in ("train", "second"):
            for place in rng.permutation(2):
                found[of[place], i] = _answered(clients, names[place], channel, stage, clock)
        for name in names:
            shutil.rmtree(clients.folder / name)
    return found[0], found[1]


def _answered(clients: Clients, name: str, channel: str, stage: str, clock: Clock) -> float:
    """The seconds that a node takes for an answer."""
    content = request_to_record(clients.request(channel, stage=stage))
    began = clock()
    clients.answer(name, lambda: content)
    return clock() - began
