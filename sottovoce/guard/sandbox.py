"""Sandbox of one app's run: bubblewrap, with no network, no environment and one folder to write to, which is emptied.

Bubblewrap is the distribution's (`bwrap`). There is no other sandbox, and no run without one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.guard.inside import NOBODY, READY

_INSIDE = Path(__file__).with_name("inside.py")
#: Folders of the system that programs need.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_FILES = ("/etc/ld.so.cache", "/etc/localtime")
#: Folders that an app may write to: they are in memory, and go with it.
_SCRATCH = ("/tmp", "/dev/shm")
#: Everything that an app finds in its environment.
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TMPDIR": "/tmp",
    "FLWR_HOME": "/tmp/.flwr",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
}
_READ = 2**16
#: Seconds that bubblewrap may take to start, and to end.
_START = 30.0


class Broken(Exception):
    """Error of a sandbox that did not start: no app has run."""


@dataclass(frozen=True)
class Limits:
    """Limits on what a server sends and on what an app uses.

    Attributes:
        request: Bytes of a request.
        objects: Number of Flower's objects that make a request: a message, its records, arrays and pieces of arrays.
        seconds: Seconds that an app may take.
        memory: Bytes of address space of each of its processes.
        processes: Number of its processes and threads.
        scratch: Bytes that it may write to /tmp, which is emptied, and as many to /dev/shm.
        state: Bytes that it may keep for its next message, which never leave the node.
    """

    request: int = 2**26
    objects: int = 1024
    seconds: float = 600.0
    memory: int = 2**33
    processes: int = 256
    scratch: int = 2**28
    state: int = 2**20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole = type(value) is int or (name == "seconds" and type(value) is float)
            if not (whole and 0 < value < 2**60):
                raise ValueError(f"limits: {name} must be a positive number, got {value!r}")


@dataclass(frozen=True)
class Sandbox:
    """Sandbox of apps.

    Attributes:
        data: Files and folders that an app may read.
        limits: Limits of a run.
    """

    data: tuple[Path, ...]
    limits: Limits

    @property
    def visible(self) -> tuple[Path, ...]:
        """Return what an app sees of the machine's files: the system's programs, this Python, and the data."""
        python = [place for each in (sys.prefix, sys.base_prefix) for place in (Path(each), Path(each).resolve())]
        return tuple(dict.fromkeys([*(Path(each) for each in _SYSTEM if Path(each).exists()), *python, *self.data]))

    def command(self, program: Sequence[str], *, root: bool, info: int) -> list[str]:
        """Return the command line that runs a program in the sandbox.

        Args:
            program: The program and its arguments.
            root: Whether the guard is root. An app is then another user outside too; otherwise it is the guard's user,
                and nobody in a user namespace that holds no other.
            info: File descriptor to which bubblewrap writes the process id of the sandbox.
        """
        names = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if root:
            names += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            names += ["--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        mounts: list[str] = []
        for there in _SCRATCH:
            mounts += ["--perms", "1777", "--size", str(self.limits.scratch), "--tmpfs", there]
        folders = {parent for path in (*self.visible, Path(_FILES[0])) for parent in path.parents}
        for folder in sorted(folders - {Path("/"), *map(Path, _SCRATCH)}):
            mounts += ["--perms", "0755", "--dir", str(folder)]
        for path in self.visible:
            there = str(path)
            link = there in _SYSTEM and path.is_symlink()  # as /bin, where it is a part of /usr
            mounts += ["--symlink", os.readlink(path), there] if link else ["--ro-bind", there, there]
        for there in _FILES:
            mounts += ["--ro-bind-try", there, there]
        variables = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
        return [
            "bwrap",
            *names,
            "--hostname",
            "sandbox",
            "--die-with-parent",
            "--new-session",
            "--info-fd",
            str(info),
            "--clearenv",
            *variables,
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            *mounts,
            "--ro-bind",
            str(_INSIDE),
            "/inside.py",
            "--remount-ro",
            "/dev",
            "--remount-ro",
            "/",
            "--chdir",
            "/tmp",
            "--",
            *program,
        ]

    def check(self) -> None:
        """Check that apps can be run.

        Raises:
            ValueError: Bubblewrap is missing or does not work here, or the data holds a way out. The message is one
                line.
        """
        if shutil.which("bwrap") is None:
            raise ValueError("guard: bubblewrap is not installed, and no app runs without it; apt install bubblewrap")
        for path in self.data:
            for each in (path, *path.rglob("*")):
                if each.is_socket() or each.is_fifo() or each.is_block_device() or each.is_char_device():
                    raise ValueError(f"guard: {path}: holds a socket, a pipe or a device; an app could write to it")
        with suppress(Broken):
            self._start(["/bin/sh", "-c", r"printf '\001'"]).read(0, time.monotonic() + _START)
            return
        raise ValueError("guard: bubblewrap cannot make a sandbox here; try: bwrap --unshare-all --ro-bind / / true")

    def run(self, task: bytes, message: bytes, state: bytes, values: Sequence[tuple[str, str, Any]]) -> bytes:
        """Return what an app writes: 8 bytes for each number of `values`, then its state; less if it fails.

        A state that is longer than its limit is cut one byte after it.

        Everything that the app has started is dead when this returns.

        Args:
            task: Input of Flower's task: the app, its run and its context.
            message: The message with its content.
            state: State that the app kept after an earlier message.
            values: Record, key and shape of each array, or None in place of a shape for a label.

        Raises:
            Broken: The sandbox did not start. The app has not run.
        """
        limits = self.limits
        spec = {"memory": limits.memory, "processes": limits.processes, "scratch": limits.scratch, "values": values}
        given = b"".join(
            struct.pack("<Q", len(part)) + part for part in (json.dumps(spec).encode(), task, message, state)
        )
        running = self._start([sys.executable, "-I", "/inside.py"], given)
        return running.read(size_of(values) + limits.state + 1, time.monotonic() + limits.seconds)

    def _start(self, program: Sequence[str], given: bytes = b"") -> _Running:
        found = shutil.which("bwrap")
        if found is None:
            raise Broken("bubblewrap is not installed")
        read, write = os.pipe()
        try:
            process = subprocess.Popen(
                self.command(program, root=os.geteuid() == 0, info=write),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(write,),
                env={},
                cwd="/",
                executable=found,
            )
        except OSError as error:
            os.close(read)
            raise Broken(f"bubblewrap cannot be started: {error.strerror}") from None
        finally:
            os.close(write)
        return _Running(process, read, given)


def size_of(values: Sequence[tuple[str, str, Any]]) -> int:
    """Return the number of bytes of values."""
    total = 0
    for _, _, shape in values:
        count = 1
        for length in shape or ():
            count *= length
        total += 8 * count
    return total


class _Running:
    """Process of bubblewrap, and the first process of its sandbox, whose death is that of all others in it."""

    def __init__(self, process: subprocess.Popen[bytes], info: int, given: bytes) -> None:
        self._process, self._info, self._given = process, info, given

    def read(self, most: int, end: float) -> bytes:
        """Return what is written, up to `most` bytes, and end everything."""
        assert self._process.stdout is not None
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        read = bytearray()
        out = self._process.stdout.fileno()
        try:
            while len(read) <= most:
                left = end - time.monotonic()
                if left <= 0 or not select.select([out], [], [], left)[0]:
                    break
                part = os.read(out, min(_READ, most + 1 - len(read)))
                if not part:
                    break
                read += part
        finally:
            self._end()
            writer.join()
            self._process.stdout.close()
        if read[:1] != READY:
            raise Broken("no sandbox was made")
        return bytes(read[1:])

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(self._given)
        with suppress(OSError):
            self._process.stdin.close()

    def _end(self) -> None:
        """Kill the sandbox's first process, and wait for bubblewrap, which waits for it and so for all others."""
        first = self._first()
        if first is not None and self._process.poll() is None:  # bubblewrap has not reaped it: the number is its own
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        try:
            self._process.wait(_START if first is not None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _first(self) -> int | None:
        """Return the process id that bubblewrap has written; None if it has not come so far."""
        said = b""
        with os.fdopen(self._info, "rb", buffering=0) as info:
            while select.select([info], [], [], 1.0)[0] and (part := info.read(4096)):
                said += part
                if b"}" in part:
                    break
        try:
            return int(json.loads(said)["child-pid"])
        except (ValueError, KeyError, TypeError):
            return None
