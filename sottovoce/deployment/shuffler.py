"""Process of the shuffler: its store, its connection to the nodes through Flower, its service."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from client.device.https import host_and_port
from simulations.errors import Terminated, UserError
from simulations.shuffler.enrolment import read_tokens
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store, StoreError
from sottovoce.deployment import superlink as superlinks
from sottovoce.deployment.keys import read_key, read_public_key
from sottovoce.deployment.processes import ending_on_signals
from sottovoce.deployment.shuffler_service import ORIGINS, STORE, serving

log = logging.getLogger(__name__)

#: Seconds between two checks for open stages.
_LOOK = 0.2


def run(
    folder: Path,
    *,
    superlink: str,
    root_certificates: Path,
    secret: Path,
    users: Path,
    enrolment_key: Path,
    seal_key: Path,
    origins: bool = False,
    **where: Any,
) -> None:
    """Run the shuffler until a signal stops it (SIGINT, SIGTERM); stages that were open continue.

    Args:
        folder: Folder of the store.
        superlink: HOST:PORT of the SuperLink.
        root_certificates: Certificates of the authority of SuperLink and training server.
        secret: File that the SuperLink was started with.
        users: Tokens of enrolment, signed by the enrolment authority (`simulations.shuffler.enrolment`).
        enrolment_key: File of that authority's public key.
        seal_key: File of the private key that devices seal their replies to.
        origins: Whether to record the users of a batch's rows in `folder`/origins, for a study's score.
        **where: The shuffler's own certificate and key, and where it listens, as in `serving`.

    Raises:
        ValueError: An address, a file, the port, the store or the SuperLink cannot be used. The message is one line.
    """
    host_and_port(superlink, "--superlink")
    enrolled, private_key = read_tokens(users, read_public_key(enrolment_key)), read_key(seal_key)
    for path in (root_certificates, secret):
        if not path.is_file():
            raise UserError(f"{path}: is not there")
    news = threading.Event()
    grid: Any = None

    def ask(record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Any]:
        return superlinks.ask(grid, record, nodes, timeout=timeout)

    try:
        with (
            ending_on_signals(again=signal.SIG_DFL),
            Store(folder / STORE, origins=folder / ORIGINS if origins else None) as store,
            serving(
                rounds := Rounds(store, enrolled, ask, private_key),
                root_certificates=root_certificates,
                on_opened=news.set,
                **where,
            ) as (at, thread),
        ):
            number = superlinks.start_run(superlink, root_certificates, superlinks.app_bundle())
            grid = superlinks.acquire_grid(superlink, root_certificates, secret, run_id=number)
            log.info(f"run {number} on the SuperLink; the training server is served at {at}")
            try:
                while thread.is_alive():
                    news.clear()
                    if not rounds.work():
                        news.wait(_LOOK)
            finally:
                superlinks.finish(grid)
            raise UserError(f"{at}: the service has ended")
    except StoreError as error:
        raise UserError(str(error)) from error
    except (KeyboardInterrupt, Terminated):
        log.info("stopped by a signal")
