"""Server of the page of `sottovoce explore`, which runs until a signal stops it."""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn

from client.device.bundle import Bundle, open_bundle
from simulations.errors import Terminated, UserError
from simulations.experiment import load
from simulations.transport import https as listeners
from sottovoce.explore import service, study
from sottovoce.explore.device import SCRATCH, Device
from sottovoce.explore.explorer import Explorer, Loading
from sottovoce.explore.settings import Settings
from sottovoce.explore.world import World, builtin_world, bundle_world, run_world, settings_of

_CONNECTIONS = 32


@contextmanager
def explorer(
    *,
    run: Path | None = None,
    bundle: Path | None = None,
    node: Path | None = None,
    make: Callable[[], World] | None = None,
) -> Iterator[Explorer]:
    """Make the page's contents for the duration of a context; public data load meanwhile.

    Args:
        run: Folder of a finished run, whose data, encoder and accuracies are shown.
        bundle: Bundle of a device, whose request and policy apply.
        node: Folder of that device, whose own ledger is charged. None makes a temporary ledger.
        make: Function that makes the world, in place of these.

    Raises:
        UserError: The arguments do not go together, or a folder is invalid. The message is one line.
        ValueError: A folder is invalid. The message is one line.
    """
    if run is not None and bundle is not None:
        raise UserError("explore: give --run RUN_DIR or --bundle DIR, not both")
    if node is not None and bundle is None:
        raise UserError("explore: --device goes with --bundle DIR, whose question the device was installed for")
    opened = None if bundle is None else open_bundle(bundle)
    finished = None if run is None else study.read_study(run)
    first = Settings() if opened is None else settings_of(opened.request)
    with ExitStack() as held:
        device = _device(held, opened, node)
        loading = Loading(make or _world(run, opened))
        classes = 2 if opened is None else opened.request.classes
        if finished is None:
            yield Explorer(device, loading, first, None, classes)
        else:
            yield Explorer(device, loading, finished.first, finished.told, classes)


def _device(held: ExitStack, bundle: Bundle | None, node: Path | None) -> Device:
    if node is not None:
        return Device.real(node)
    folder = held.enter_context(tempfile.TemporaryDirectory(prefix="sottovoce-explore-", ignore_cleanup_errors=True))
    return Device.made(Path(folder) / "device", SCRATCH if bundle is None else bundle.policy)


def _world(run: Path | None, bundle: Bundle | None) -> Callable[[], World]:
    if bundle is not None:
        return partial(bundle_world, bundle)
    if run is not None:
        load(str(run / "experiment.toml"), [])  # reports its errors before the page is there
        return partial(run_world, run)
    return builtin_world


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


def run(
    *,
    run: Path | None = None,
    bundle: Path | None = None,
    node: Path | None = None,
    port: int = 0,
    say: Callable[[str], None],
) -> None:
    """Serve the page until a signal stops it (SIGINT, SIGTERM).

    Args:
        run: As in `explorer`.
        bundle: As in `explorer`.
        node: As in `explorer`.
        port: Port to listen on; 0 for a free one.
        say: Function that receives the address once the server listens.

    Raises:
        UserError: `explorer` raises it, or the port cannot be used. The message is one line.
        ValueError: `explorer` raises it. The message is one line.
    """
    token = secrets.token_urlsafe(24)
    with explorer(run=run, bundle=bundle, node=node) as shown, listeners.listening("127.0.0.1", port) as listener:
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
