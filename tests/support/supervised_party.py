"""A party of a deployment under a supervisor that starts it again, as its unit says (`sottovoce.deployment.units`),
and what a test does to its process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.deployments import _with_us
from tests.support.paths import ROOT
from tests.support.rough_checks import Sample

#: Seconds before a party is started again; a unit's are 5.
AGAIN = 1.0


class Party:
    """A party, from `start` to `end`. place: the folder whose disk it fills.

    gone: is called when a process of it has ended, before the next one is started. Whatever it says is read through a
    pipe: its log is not on the disk that is full.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        place: Path,
        log: Path,
        environment: Mapping[str, str],
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.place, self.log = name, place, log
        self.samples: list[Sample] = []
        self.codes: list[int] = []
        self._command, self._environment, self._gone = list(command), dict(environment), gone
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._full = self._ending = False
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        """Starts it, and has it started again until it ends by itself or is told to."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended by itself, its work done."""
        return not self._thread.is_alive()

    def send(self, number: signal.Signals) -> None:
        """A signal to its process, where there is one."""
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def fill(self, full: bool) -> None:
        """Its files may grow no more, or may again; a process that is started meanwhile has the same disk."""
        self._full = full
        if (process := self._process) is not None:
            self._limit(process.pid)

    def end(self) -> None:
        """Has it end for good, soon."""
        self._ending = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Returns once it has ended; kills it where that takes longer."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
            self.send(signal.SIGKILL)
            self._thread.join()

    def sample(self, minutes: float) -> None:
        """Takes down what memory of its own the process has now."""
        if (process := self._process) is None:
            return
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
            age = time.monotonic() - self._since
            self.samples.append(Sample(process.pid, age, minutes, kilobytes / 1024))

    def _supervise(self) -> None:
        with open(self.log, "ab", buffering=0) as log:
            while not self._ending:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    env=os.environ | self._environment,
                    start_new_session=True,
                    preexec_fn=_with_us,
                )
                self._since, self._process = time.monotonic(), process
                if self._full:
                    self._limit(process.pid)
                assert process.stdout is not None
                while said := process.stdout.read1():  # type: ignore[attr-defined]
                    log.write(said)
                code = process.wait()
                self._process = None
                self.codes.append(code)
                log.write(f"-- ended: {code}\n".encode())
                self._gone()
                if code == 0:
                    return
                time.sleep(AGAIN)

    def _limit(self, pid: int) -> None:
        """What a full disk does to a file: it grows no further than the largest one is."""
        most = max((path.stat().st_size for path in self.place.rglob("*") if path.is_file()), default=0)
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if self._full else hard, hard))
