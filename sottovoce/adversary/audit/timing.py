"""Test of whether the time of an answer reveals the length of its text, on the deployed client without a window.

Two users hold one record each, with the same data except the text: a word, or as much as a client reads. Each pair of
users has its own folders. A coin decides which text is in which folder, and another one who receives the request first.
A first request, which is not timed, opens the ledgers. The second request is timed, and its answer is drawn anew.

Times are real, and differ from run to run. A difference that is small beside the noise is not found. Texts that are
sanitized word by word are read at the request, so nothing is promised about their time (a device's window covers it).
For all other channels, embeddings of the texts exist beforehand.
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
from sottovoce.adversary.audit.measure import NO_CLAIM, NOT_FOUND, VIOLATED
from sottovoce.adversary.estimators.timing import Told

TIMING = "client-timing"
#: Channels whose answers must not take longer for a longer text, and one whose answers may.
PROMISED, OTHER = ("embedding", "statistic", "answer"), ("text",)
#: The two texts: a word, and the longest text that a client reads.
SHORT, LONG = "good", "a good film " * 1365
#: Pairs of each channel: most, least, and draws of an audit for each pair.
_PAIRS, _LEAST, _EACH = 400, 60, 2500
#: Seconds of a monotonic clock.
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timed:
    """Measurement on a channel.

    Args:
        channel: Name of the channel.
        told: Result of the test.
        promised: Whether its times are promised to be equal.
    """

    channel: str
    told: Told
    promised: bool

    def entry(self, alpha: float) -> dict[str, Any]:
        """Return the entry, JSON-ready, in the form of `adversary.audit.run.entry`.

        It is violated if chance explains it with probability below alpha.
        """
        told = self.told
        broken = self.promised and told.chance < alpha
        return {
            "name": TIMING,
            "about": self.channel,
            "pair": f"one word / {len(LONG):,} characters: the longer text's answer took longer in {told.longer} of "
            f"{told.pairs} pairs, by {1e3 * told.apart:.2g} ± {1e3 * told.noise:.2g} ms",
            "pairs": told.pairs,
            "longer": told.longer,
            "chance": told.chance,
            "apart": told.apart,
            "noise": told.noise,
            "confidence": 1 - alpha,
            "verdict": NO_CLAIM if not self.promised else VIOLATED if broken else NOT_FOUND,
        }


def pairs_of(draws: int) -> int:
    """Return the number of pairs of users on a channel, for an audit's number of draws."""
    return max(_LEAST, min(_PAIRS, draws // _EACH))


def timed(
    clients: Clients,
    pairs: int,
    seed: int,
    *,
    channels: Sequence[str] = (*PROMISED, *OTHER),
    clock: Clock = time.perf_counter,
) -> list[Timed]:
    """Measure each channel by pairs of users.

    Each promised figure can raise an alarm.

    Args:
        clients: Clients; deployed ones for figures about devices.
        pairs: Number of pairs.
        seed: Seed of the coins.
        channels: Names of the channels.
        clock: Clock.

    Raises:
        UserError: A client does not answer.
    """
    return [
        Timed(channel, Told.of(*_times(clients, channel, pairs, seed, clock)), channel in PROMISED)
        for channel in channels
    ]


def _times(
    clients: Clients, channel: str, pairs: int, seed: int, clock: Clock
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds of answers about the short and the long text, (pairs,) each."""
    rng = np.random.default_rng([seed, pairs])
    found = np.zeros((2, pairs))
    for i in range(pairs):
        names, of = (f"{channel}-{i}-a", f"{channel}-{i}-b"), rng.permutation(2)
        for name, text in zip(names, of, strict=True):
            embeddings = np.eye(1, WIDTH, dtype=np.float32)
            clients.write(
                name,
                np.array([i]),
                np.zeros(1, np.int64),
                texts=[(SHORT, LONG)[text]],
                labels=np.zeros(1, np.int64),
                embeddings=None if channel in OTHER else embeddings,
                seed=seed,
            )
        for stage in ("train", "second"):
            for place in rng.permutation(2):
                found[of[place], i] = _answered(clients, names[place], channel, stage, clock)
        for name in names:
            shutil.rmtree(clients.folder / name)
    return found[0], found[1]


def _answered(clients: Clients, name: str, channel: str, stage: str, clock: Clock) -> float:
    """Return the seconds of a node's answer."""
    content = request_to_record(clients.request(channel, stage=stage))
    began = clock()
    clients.answer(name, lambda: content)
    return clock() - began
