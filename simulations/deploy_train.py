"""The training server of a deployment: asks a shuffler in the place of users, opens what it delivers, and trains.

It never learns who sent what. A study's shuffler also writes down whose the rows of a batch are (`--origins`), so that
predictions can be scored; no real one does, and without that an accuracy on sanitized sentences is not known.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mechanisms.request import Request
from mechanisms.sealed import sealed_bytes
from mechanisms.wire import record_to_bytes, request_to_record
from server.batches import Taken, open_batch
from simulations.cache import Progress
from simulations.device import chosen
from simulations.errors import UserError
from simulations.experiment import Experiment, slug, to_toml
from simulations.gather import Gathered, Users
from simulations.keys import read_key
from simulations.prepare import prepare
from simulations.report import Results, staged, write
from simulations.run import add_ladder, arms_of, results, save_model
from simulations.shuffler import Batch, Origin, too_few
from simulations.shuffler_client import Shuffler

#: What results say that the users' noise was drawn from.
RANDOMNESS = "deployment: the operating system's generator on each device, nothing seeded"


class RemoteShuffler:
    """The users behind a shuffler, as an arm asks them.

    seal_key: the file of the private key that devices seal to; beside it, in batches/, is what was taken so far.
    timeout: seconds that devices have to answer. origins: where a study's shuffler says whose rows are.
    """

    def __init__(
        self, shuffler: Shuffler, *, seal_key: Path, timeout: float, origins: Path | None, progress: Progress
    ) -> None:
        self._shuffler = shuffler
        self._key = read_key(seal_key)
        self._taken = Taken(seal_key.parent / "batches")
        self._timeout = timeout
        self._origins = origins
        self._progress = progress

    def gather(self, request: Request, *, enrolled: range) -> Gathered:
        """The batch of a stage, the same whenever it is asked for. Who is enrolled is the shuffler's to check.

        Raises UserError where the shuffler refuses, cannot be reached, or delivers what it may not: rows of another
        length, a batch of another stage, another batch than before.
        """
        del enrolled
        asked = replace(request, arm="")  # a device has the one arm, which has no name
        got = self._shuffler.batch(
            asked.stage, record_to_bytes(request_to_record(asked)), row_bytes=sealed_bytes(asked),
            timeout=self._timeout, progress=self._progress,
        )  # fmt: skip
        dropped, users, reply = Counter(got.dropped), got.users, None
        if len(got.rows):
            self._taken.take(asked.stage, got.batch, got.rows)
            reply, lost = open_batch(got.rows, asked, self._key)
            # A row that comes to nothing may have been all that its user sent: nobody here can tell, and n may only be
            # counted too low.
            dropped, users = lost + dropped, max(0, users - sum(lost.values()))
        if reply is None or users < asked.minimum_users:
            batch, origin = Batch((), 0, got.duplicates, too_few(users, asked.minimum_users)), _nowhere()
        else:
            batch = Batch(reply.releases if len(reply) else (), users, got.duplicates)
            origin = self._origin(asked.stage, reply.records)
        return Gathered(batch, origin, dropped, Counter(got.errors))

    def _origin(self, stage: str, places: NDArray[np.int64]) -> Origin:
        """Whose the rows at these places of a stage's batch are, for a study's score; nobody's, where nobody knows."""
        if self._origins is None:
            return _nowhere()
        path = self._origins / f"{stage}.npy"
        try:
            whose = np.load(path, allow_pickle=False)[places]
        except (OSError, ValueError, IndexError):
            raise UserError(f"--origins {path}: does not say whose the rows of the stage's batch are") from None
        return Origin(whose[:, 0], whose[:, 1])


def train(
    experiment: Experiment, arm_name: str | None, out: Path, *, users: Users, progress: Progress
) -> Results:
    """Trains one arm on what the users release; leaves `out` as a simulation leaves its folder, or not at all.

    Returns the results. Raises UserError, in one line, for what can be mended.
    """
    start = time.perf_counter()
    arm = chosen(experiment, arm_name)
    with staged(out) as part:
        (part / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
        prepared = prepare(experiment, progress=progress)
        models = part / "models"
        (run,) = arms_of(experiment, prepared, models=models, nodes=part / "nodes", arms=[arm])
        with threadpool_limits(1, user_api="blas"):  # as in a simulation, whose results they are compared with
            outcome = run.run(users, progress=progress)
            progress(f"{arm.name}: accounting: what one user's releases cost, rung by rung")
            add_ladder(experiment, prepared, arm, outcome)
        save_model(models / slug(arm.name), prepared, outcome)
        outcome.line["model"] = f"models/{slug(arm.name)}"
        found = results(experiment, prepared, [outcome.line], time.perf_counter() - start) | {"randomness": RANDOMNESS}
        write(found, part)
    return found


def _nowhere() -> Origin:
    none = np.zeros(0, np.int64)
    return Origin(none, none)
