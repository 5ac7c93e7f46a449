"""Processes of a deployment: start, watch and stop them. No other process is ever touched.

Each party leads a process group of its own. processes.json in the deployment's folder lists the parties' numbers, each
with its start, because the system uses numbers again. The file names its folder, so a copy of the folder stops nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulations.errors import Terminated, UserError
from simulations.output.atomic import whole
from simulations.transport.signals import handling

log = logging.getLogger(__name__)

LIST, COMMANDS, LOG = "processes.json", "commands.txt", "log"
UP = "deploy up"
#: Least port at which every process may listen, and number of ports to try.
_UNPRIVILEGED, _TRIED = 1024, 100
#: Seconds for a process to end by itself, and then to disappear after a kill.
GRACE, GONE = 10.0, 10.0
_POLL = 0.1
_PROC = Path("/proc")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: Pattern of a line of `simulations.progress.progress_lines`.
_PROGRESS = re.compile(r" *\d+\.\d s  (.+)")
#: Pattern of a line about an error; a logger of that name does not match.
_WRONG = re.compile(r"(?<![.\w])error\b|\w+error: |sottovoce: ", re.IGNORECASE)

Line = Callable[[str], None]


@dataclass(frozen=True)
class Process:
    """Process of the system.

    Args:
        party: Name of the party.
        pid: Number of the process, and of the group that a party leads.
        start: Its start: of this machine, and of the process since then. A number with a start is unique.
    """

    party: str
    pid: int
    start: str


class Parties:
    """Processes that this process starts for a deployment, each in its own session and process group.

    Args:
        folder: Folder of the deployment.
        show: Function that receives every command as it runs.

    Raises:
        UserError: The system has no /proc.
    """

    def __init__(self, folder: Path, *, show: Line) -> None:
        if not (_PROC / "self/stat").exists():
            raise UserError("deploy: needs Linux, whose /proc tells when a process was started")
        self.folder = folder
        self._show = show
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, _Log] = {}
        self._list: list[Process] = []
        self._remember(UP, os.getpid())

    def start(
        self, party: str, place: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a party's process.

        Args:
            party: Name of the party.
            place: Its folder in the deployment's folder, for its log.
            command: Command line.
            environment: Other variables of its environment.

        Raises:
            UserError: It cannot be started.
        """
        folder = self.folder / place
        folder.mkdir(parents=True, exist_ok=True)
        line = shown(command, environment)
        with open(self.folder / COMMANDS, "a", encoding="utf-8") as file:
            file.write(f"# {party}\n{line}\n")
        self._show(line)
        path = folder / LOG
        self._logs[party] = _Log(path)
        variables = os.environ | dict(environment or {})
        with open(path, "ab") as log:
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(f"{party}: {command[0]}: cannot be started: {error.strerror}") from error
        self._alive[party] = process
        self._remember(party, process.pid)
        return process

    def check(self, *, but: str = "") -> None:
        """Pass on the parties' progress, and check that all of them run.

        Args:
            but: Name of a party that may end.

        Raises:
            UserError: A party has ended. The message is one line.
        """
        # in this order: a party's last line is in its log before it ends
        exit_codes = [(party, process.poll()) for party, process in self._alive.items() if party != but]
        self._relay()
        for party, code in exit_codes:
            if code is not None:
                raise UserError(self._epitaph(party, code))

    def until(self, ready: Callable[[], bool], *, what: str, seconds: float) -> None:
        """Wait until a condition holds.

        Args:
            ready: The condition.
            what: Error message for a timeout.
            seconds: Longest wait.

        Raises:
            UserError: A party ends before, or the time is over.
        """
        end = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise UserError(f"{what} within {seconds:.0f} s; the logs are in {self.folder}")
            time.sleep(_POLL)

    def finish(self, party: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait for a party whose work has an end.

        Args:
            party: Name of the party.
            meanwhile: Function to call repeatedly.

        Raises:
            UserError: The party fails, or another one ends before.
        """
        process = self._alive[party]
        while (code := process.poll()) is None:
            self.check(but=party)
            meanwhile()
            time.sleep(_POLL)
        self._relay()
        if code:
            raise UserError(self._epitaph(party, code))
        del self._alive[party]

    def _epitaph(self, party: str, code: int) -> str:
        """Return how a party has ended, the most useful line of its log, and the log's path."""
        end = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
        line = self._logs[party].telling()
        return f"{party} {end}{f': {line}' if line else ''}; its log is {self._logs[party].path}"

    def stop(self) -> None:
        """Stop all parties and their children."""
        stop(self.folder)
        for process in self._alive.values():
            _send(process.pid, signal.SIGKILL, group=True)  # what is left of its group, whose number it still holds
            process.wait()
        self._alive.clear()

    def _relay(self) -> None:
        for party, party_log in self._logs.items():
            for line in party_log.progress():
                log.info(f"{party}: {line}")

    def _remember(self, party: str, pid: int) -> None:
        if (start := _start(pid)) is not None:  # it may be dead already
            self._list.append(Process(party, pid, start))
        table = {"folder": os.path.realpath(self.folder), "processes": [asdict(p) for p in self._list]}
        with whole(self.folder / LIST) as file:
            file.write(json.dumps(table, indent=1).encode() + b"\n")


class _Log:
    """Log of a party, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def progress(self) -> list[str]:
        """Return the lines of progress since the last call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        result = (_PROGRESS.fullmatch(line.decode(errors="replace")) for line in lines)
        return [match[1] for match in result if match]

    def telling(self) -> str:
        """Return the last line about an error, or else the last line; at most 300 characters of it."""
        try:
            with open(self.path, "rb") as file:
                file.seek(max(0, self.path.stat().st_size - 2**16))
                text = _COLOURS.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if _WRONG.search(line)]
        last = (errors or lines or [""])[-1].removeprefix("sottovoce: ")
        return last if len(last) <= 300 else f"{last[:299]}…"


# --- finding and stopping


def running(folder: Path) -> list[Process]:
    """Return a deployment's living processes, without this one."""
    return [item for item in _listed(folder) if item.pid != os.getpid() and _start(item.pid) == item.start]


def down(folder: Path) -> list[str]:
    """Stop all remaining processes of a deployment, and return the names of their parties.

    Raises:
        UserError: The folder is of no deployment, or a process cannot be stopped.
    """
    exists = (folder / LIST).is_file()
    processes = stop(folder)
    if not exists and not processes:
        raise UserError(f"{folder}: is no deployment's folder; name the one that `sottovoce deploy up` has made")
    return [process.party for process in processes]


def stop(folder: Path) -> list[Process]:
    """Ask all of a deployment's processes to end, kill those that do not, and return all of them.

    Raises:
        UserError: Some cannot be stopped.
    """
    signals: dict[Process, int] = {}
    start = time.monotonic()
    while alive := running(folder):
        elapsed = time.monotonic() - start
        if elapsed > GRACE + GONE:
            pids = ", ".join(str(p.pid) for p in alive)
            raise UserError(f"{folder}: these processes cannot be stopped: {pids}")
        number = signal.SIGTERM if elapsed <= GRACE else signal.SIGKILL
        for item in alive:
            if signals.get(item) != number:
                signals[item] = number
                _send(item.pid, number, group=item.party != UP)  # the group of `up` may be that of its shell
        time.sleep(_POLL / 2)
    return list(signals)


def _send(pid: int, number: int, *, group: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's, which the caller notices
        (os.killpg if group else os.kill)(pid, number)


def _listed(folder: Path) -> list[Process]:
    try:
        table = json.loads((folder / LIST).read_text(encoding="utf-8"))
        same_folder = table["folder"] == os.path.realpath(folder)
        return [Process(**entry) for entry in table["processes"]] if same_folder else []
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _start(pid: int) -> str | None:
    """Return the start of a living process, as machine and clock ticks (proc(5)); None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, *fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold any character
    return None if state in "ZX" else f"{boot} {fields[18]}"


# --- other needs of a deployment


def free_port() -> int:
    """Return a port of this machine that is free now, if possible outside of the range that connections get."""
    try:
        first, last = map(int, (_PROC / "sys/net/ipv4/ip_local_port_range").read_text().split())
    except OSError:  # not told in some containers
        first, last = _UNPRIVILEGED, 2**16 - 1
    ports = [port for port in range(_UNPRIVILEGED, 2**16) if not first <= port <= last]
    for port in (*secrets.SystemRandom().sample(ports, min(_TRIED, len(ports))), 0):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return int(listener.getsockname()[1])
    raise UserError("no port of this machine is free")


def answers(port: int) -> bool:
    """Return True if a process on this machine listens on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def command_of(name: str, *arguments: Any, **options: Any) -> list[str]:
    """Return the command line of a command of this installation; seal_key=FILE becomes --seal-key FILE."""
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    return [str(Path(sys.executable).with_name(name)), *map(str, [*arguments, *words])]


def shown(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return a command line as a user types it."""
    program = Path(command[0])
    name = program.name if shutil.which(program.name) == str(program) else str(program)
    assignments = [f"{key}={shlex.quote(value)}" for key, value in (environment or {}).items()]
    return " ".join([*assignments, shlex.join([name, *command[1:]])])


#: Signals that end a command.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_on_signals(signals: Sequence[int] = ENDS, *, again: signal.Handlers = signal.SIG_IGN) -> Iterator[None]:
    """Turn SIGTERM into Terminated in the main thread, and others into KeyboardInterrupt.

    Args:
        signals: The signals.
        again: Handler of a second one. SIG_DFL ends the process at once, so only if a kill at any moment is safe.
    """

    def interrupt(number: int, frame: Any) -> None:
        for other in signals:
            signal.signal(other, again)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with handling(dict.fromkeys(signals, interrupt)):
        yield
