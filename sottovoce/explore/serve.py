"""Server of the page of `sottovoce explore`, which runs until a signal stops it."""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn

from simulations.errors import Terminated
from simulations.experiment import load
from simulations.transport import https as listeners
from sottovoce.explore import service
from sottovoce.explore.device import Device
from sottovoce.explore.explorer import Explorer, Loading
from sottovoce.explore.world import World, builtin_world, run_world

_CONNECTIONS = 32


@contextmanager
def explorer(*, run: Path | None = None, make: Callable[[], World] | None = None) -> Iterator[Explorer]:
    """Make the page's contents for the duration of a context; public data load meanwhile.

    Its device has a temporary ledger.

    Args:
        run: Folder of a finished run, whose data and encoder are shown.
        make: Function that makes the world, in place of it.

    Raises:
        UserError: The folder holds no run. The message is one line.
    """
    with tempfile.TemporaryDirectory(prefix="sottovoce-explore-", ignore_cleanup_errors=True) as folder:
        yield Explorer(Device(Path(folder) / "device"), Loading(make or _world(run)))


def _world(run: Path | None) -> Callable[[], World]:
    if run is None:
        return builtin_world
    load(str(run / "experiment.toml"), [])  # reports its errors before the page is there
    return partial(run_world, run)


@contextmanager
def serving(shown: Explorer, *, port: int = 0, token: str | None = None) -> Iterator[str]:
    """Serve the page in a thread for the duration of a context, and return its address.

    Args:
        shown: Contents of the page.
        port: Port to listen on; 0 for a free one.
        token: Token of the address; None for a random one.

    Raises:
        UserError: The port cannot be used.
    """
    token = token or secrets.token_urlsafe(24)
    with listeners.listening("127.0.0.1", port) as listener:
        server = _server(shown, token)
        with listeners.in_thread(server, listener):
            yield f"http://{listeners.address(listener)}/{token}/"


def run(*, run: Path | None = None, port: int = 0, say: Callable[[str], None]) -> None:
    """Serve the page until a signal stops it (SIGINT, SIGTERM).

    Args:
        run: As in `explorer`.
        port: Port to listen on; 0 for a free one.
        say: Function that receives the address once the server listens.

    Raises:
        UserError: `explorer` raises it, or the port cannot be used. The message is one line.
    """
    token = secrets.token_urlsafe(24)
    with explorer(run=run) as shown, listeners.listening("127.0.0.1", port) as listener:
        say(f"http://{listeners.address(listener)}/{token}/")
        with suppress(KeyboardInterrupt, Terminated):  # the normal end
            _server(shown, token).run(sockets=[listener])


def _server(shown: Explorer, token: str) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            service.application(shown, token),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level=logging.CRITICAL,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
