"""The processes of a deployment: started, watched, found again, and stopped; no other process is ever touched.

Each carries the deployment's folder in its environment (`MARK`), and so does whatever it starts. The system keeps that
for as long as it lives, so that all of them are found by anyone who knows the folder, even where the process that has
started them was killed between two lines of its own. That one has no mark, and holds a file of the folder open instead.
processes.json gives the processes names: it is not believed, since a folder may be copied, and a number used again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulations.errors import Terminated, UserError
from simulations.output.atomic import whole
from simulations.transport.signals import handling

MARK = "SOTTOVOCE_DEPLOYMENT"
LIST, COMMANDS, LOG = "processes.json", "commands.txt", "log"
UP = "deploy up"
_HELD = ".up"
#: Seconds that a process has to end by itself, and then to be gone once it was killed.
GRACE, GONE = 10.0, 10.0
#: Seconds that a process may take to become another program.
_BEGINS = 1.0
_POLL = 0.1
_PROC = Path("/proc")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: A line of `simulations.progress.progress_lines`.
_PROGRESS = re.compile(r" *\d+\.\d s  (.+)")
#: A line that speaks of an error; not one of a logger that is called so.
_WRONG = re.compile(r"(?<![.\w])error\b|\w+error: |sottovoce: ", re.IGNORECASE)

Line = Callable[[str], None]


@dataclass(frozen=True)
class Process:
    """A process as the system knows it: a number may be another's later, a number and a start time may not.

    started: clock ticks since the machine's start. boot: which start of the machine that was.
    """

    party: str
    pid: int
    started: int
    boot: str


class Parties:
    """The processes that this one starts for a deployment; each in a session of its own, with its log beside its files.

    show: is given every command as it is run. progress: is given what the parties say of their progress.
    """

    def __init__(self, folder: Path, *, show: Line, progress: Line) -> None:
        if not _PROC.joinpath("self/environ").exists():
            raise UserError("deploy: needs Linux, whose /proc tells which processes are a deployment's")
        self.folder = folder
        self._show = show
        self._progress = progress
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, _Log] = {}
        self._list: list[Process] = []
        self._held = open(folder / _HELD, "w")  # noqa: SIM115  for as long as this process is at work
        self._remember(UP, os.getpid())

    def start(
        self, party: str, place: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a party's process. place: its folder in the deployment's, where its log goes. Raises UserError."""
        folder = self.folder / place
        folder.mkdir(parents=True, exist_ok=True)
        said = shown(command, environment or {})
        with open(self.folder / COMMANDS, "a", encoding="utf-8") as file:
            file.write(f"# {party}\n{said}\n")
        self._show(said)
        path = folder / LOG
        self._logs[party] = _Log(path)
        variables = os.environ | dict(environment or {}) | {MARK: mark_of(self.folder)}
        with open(path, "ab") as log:
            try:
                process = subprocess.Popen(
                    list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=variables,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UserError(f"{party}: {command[0]}: cannot be started: {error.strerror}") from error
        self._alive[party] = process
        self._remember(party, process.pid)
        return process

    def check(self, *, but: str = "") -> None:
        """Passes on what the parties say. Raises UserError, one line, where one has ended that should be at work."""
        # in this order: what a party says last is in its log before it has ended
        ended = [(party, process.poll()) for party, process in self._alive.items() if party != but]
        self._relay()
        for party, code in ended:
            if code is not None:
                raise UserError(self._epitaph(party, code))

    def until(self, ready: Callable[[], bool], *, what: str, seconds: float) -> None:
        """Waits until it is ready. Raises UserError where a party ends before, or the time is over."""
        end = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise UserError(f"{what} within {seconds:.0f} s; the logs are in {self.folder}")
            time.sleep(_POLL)

    def finish(self, party: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Waits for a party whose work has an end, and does something again and again. Raises UserError where the party
        fails, or another one ends before."""
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
        """Of a party that has ended: how, the line of its log that tells most, and where that is."""
        how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
        line = self._logs[party].telling()
        return f"{party} {how}{f': {line}' if line else ''}; its log is {self._logs[party].path}"

    def stop(self) -> None:
        """Stops all of them, and whatever they have started."""
        stop(self.folder, but=(os.getpid(),))
        for process in self._alive.values():
            process.wait()  # it has ended; the system may now forget it
        self.leave()

    def leave(self) -> None:
        """Leaves them at work."""
        self._alive.clear()
        self._held.close()

    def _relay(self) -> None:
        for party, log in self._logs.items():
            for line in log.progress():
                self._progress(f"{party}: {line}")

    def _remember(self, party: str, pid: int) -> None:
        if (started := _started(pid)) is not None:  # it may be dead already
            self._list.append(Process(party, pid, started, _boot()))
        with whole(self.folder / LIST) as file:
            file.write(json.dumps([asdict(p) for p in self._list], indent=1).encode() + b"\n")


class _Log:
    """A party's log, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def progress(self) -> list[str]:
        """What it has said of its progress since this was last asked."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return []
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        found = (_PROGRESS.fullmatch(line.decode(errors="replace")) for line in lines)
        return [match[1] for match in found if match]

    def telling(self) -> str:
        """The last line that speaks of an error, or else the last line at all; at most 300 letters of it."""
        try:
            with open(self.path, "rb") as file:
                file.seek(max(0, self.path.stat().st_size - 2**16))
                text = _COLOURS.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        wrong = [line for line in lines if _WRONG.search(line)]
        last = (wrong or lines or [""])[-1].removeprefix("sottovoce: ")
        return last if len(last) <= 300 else f"{last[:299]}…"


# --- found again, and stopped


def mark_of(folder: Path) -> str:
    """What the environment of a deployment's processes says."""
    return os.path.realpath(folder)


def running(folder: Path, *, but: Sequence[int] = ()) -> list[Process]:
    """The deployment's processes that are alive, however they came about, without those of the numbers `but`."""
    names = {(p.pid, p.started): p for p in _listed(folder) if p.boot == _boot()}
    wanted = f"{MARK}={mark_of(folder)}".encode()
    found = []
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        if pid in but or (started := _started(pid)) is None:
            continue
        known = names.get((pid, started))
        if wanted in _environment(pid):
            found.append(known or Process("a process of theirs", pid, started, _boot()))
        elif known is not None and known.party == UP and _holds(pid, folder / _HELD):
            found.append(known)
    return found


def down(folder: Path) -> list[str]:
    """Stops whatever is left of a deployment; the names of the parties that were.

    Raises UserError where the folder is of no deployment, or a process cannot be stopped.
    """
    there = (folder / LIST).is_file()
    ended = stop(folder, but=(os.getpid(),))
    if not there and not ended:
        raise UserError(f"{folder}: is no deployment's folder; name the one that `sottovoce deploy up` has made")
    return [process.party for process in ended]


def stop(folder: Path, *, but: Sequence[int] = ()) -> list[Process]:
    """Asks all of a deployment's processes to end, kills those that do not, and returns which there were.

    Raises UserError where some cannot be stopped.
    """
    met: dict[Process, int] = {}
    start = time.monotonic()
    while alive := running(folder, but=but):
        late = time.monotonic() - start
        if late > GRACE + GONE:
            pids = ", ".join(str(p.pid) for p in alive)
            raise UserError(f"{folder}: these processes cannot be stopped: {pids}")
        number = signal.SIGTERM if late <= GRACE else signal.SIGKILL
        for one in alive:
            if met.get(one) != number:
                met[one] = number
                _send(one, number)
        time.sleep(_POLL / 2)
    return list(met)


def _send(one: Process, number: int) -> None:
    """A signal to that process, and to no other that may have its number by now."""
    try:
        handle = os.pidfd_open(one.pid)
    except ProcessLookupError:
        return
    try:
        # The handle is of one process for ever: if the number is still that of `one`, so was it when it was opened.
        if _started(one.pid) == one.started:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or it is not ours to end, which the caller notices
    finally:
        os.close(handle)


def _listed(folder: Path) -> list[Process]:
    try:
        return [Process(**entry) for entry in json.loads((folder / LIST).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def _started(pid: int) -> int | None:
    """When the process of that number was started; None where there is none that is alive."""
    state, fields = _stat(pid)
    return None if state in "ZX" else int(fields[18])


def _stat(pid: int) -> tuple[str, list[str]]:
    """What the system says of a process: its state, and what follows from field 4 on (proc(5)); "X" of none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "X", []
    state, *fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return state, fields


@cache
def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _environment(pid: int) -> list[bytes]:
    end = time.monotonic() + _BEGINS
    try:
        while not (known := (_PROC / str(pid) / "environ").read_bytes()) and _begins(pid):
            if time.monotonic() > end:
                break
            time.sleep(0.001)
    except OSError:
        return []  # it has ended, or is another user's
    return known.split(b"\0")


def _begins(pid: int) -> bool:
    """Whether a process that showed no environment will: while it becomes another program it has none for a moment, in
    which it would be nobody's. A thread of the system's has no memory, and some programs are started with nothing."""
    state, fields = _stat(pid)
    if state in "ZX" or fields[19] == "0":
        return False
    start, end = fields[46:48]
    return end == "0" or start != end


def _holds(pid: int, file: Path) -> bool:
    """Whether a process has the file open."""
    place = os.path.realpath(file)
    try:
        return any(os.readlink(handle) == place for handle in (_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False


# --- what a deployment needs beside


def free_port() -> int:
    """A port of this machine that nobody listens on, for now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def check_port(port: int) -> None:
    """Raises UserError where the port cannot be had."""
    if not 0 < port < 2**16:
        raise UserError(f"--port {port}: must be from 1 to 65535")
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; choose another, or leave it out") from error


def answers(port: int) -> bool:
    """Whether something on this machine listens on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def command_of(name: str, *arguments: Any) -> list[str]:
    """A command of this installation."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]


def shown(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as one types it here."""
    program = Path(command[0])
    name = program.name if shutil.which(program.name) == str(program) else str(program)
    before = [f"{key}={shlex.quote(value)}" for key, value in environment.items()]
    return " ".join([*before, shlex.join([name, *command[1:]])])


#: What ends a command that somebody started.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM raises Terminated in the main thread, and a closed terminal what Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with handling(dict.fromkeys(_ENDS, interrupt)):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Not even Ctrl-C ends this: for what takes a bounded time and must be done."""
    with handling(dict.fromkeys(_ENDS, signal.SIG_IGN)):
        yield
