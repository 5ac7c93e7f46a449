"""A real SuperLink on this machine, for tests of a deployment: TLS, SuperNode authentication, a free port."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from simulations.transport.quiet import QUIET
from sottovoce.deployment import certificates, superlink
from sottovoce.deployment.processes import answers, free_port

#: Seconds that a process which was told to end is given, before it is killed.
_GRACE = 10.0
#: Seconds that anything may take at all, on a machine that does much else.
_LONG = 300.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Link:
    """A SuperLink that is up. folder: its files; authority: of its certificate."""

    folder: Path
    authority: Path
    address: str
    process: subprocess.Popen[bytes]

    @property
    def ca(self) -> Path:
        return self.authority / "ca.pem"

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    def node(self, folder: Path) -> tuple[Path, int]:
        """Keys for a node, in a folder, which the SuperLink is told of: the private key's file, and the node id."""
        certificates.node_keys(folder)
        return folder / "node.key", superlink.register(self.address, self.ca, folder / "node.pub")


def wait_until(done: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
    """Return once something is so. Fails where the process, which should go on, ends, or after a long while."""
    end = time.monotonic() + _LONG
    while not done():
        assert process is None or process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def _with_us() -> None:
    """The kernel kills the process when the tests' ends, even where that one was killed itself (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def running(command: list[str], *, log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, of which nothing is left afterwards, whatever happened."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            start_new_session=True,
            preexec_fn=_with_us,
        )
    try:
        yield process
    finally:
        try:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def superlink_in(folder: Path, *, port: int | None = None) -> Iterator[Link]:
    """A SuperLink whose files are in a new folder."""
    port = free_port() if port is None else port
    authority, place, address = folder / "ca", folder / "superlink", f"127.0.0.1:{port}"
    certificates.make_keys(folder, nodes=0, hosts={})
    log = place / "log.txt"
    environment = os.environ | QUIET | {"FLWR_HOME": str(place / "home")}
    with running(superlink.command(place, port=port), log=log, env=environment) as process:
        wait_until(lambda: answers(port), process)
        yield Link(place, authority, address, process)
