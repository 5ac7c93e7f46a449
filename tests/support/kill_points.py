"""A process killed before any one of its writes, and a disk that loses what was not synced: Linux, by ptrace.

Every system call that changes a file or sends is a point. Between two points nothing changes, so all points are all
the ways to be killed. A power cut also leaves the folder as a disk may hold it: of each file what was last synced,
under the names of the folder's last sync.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Numbers of the system calls that write, x86_64 and aarch64; those that open count where they make a file.
_NUMBERS = {
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "rename": (82, -1),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, -1),
    "linkat": (265, 37),
    "unlink": (87, -1),
    "unlinkat": (263, 35),
    "mkdir": (83, -1),
    "mkdirat": (258, 34),
    "open": (2, -1),
    "openat": (257, 56),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
_CALLS = {} if _COLUMN is None else {n[_COLUMN]: name for name, n in _NUMBERS.items() if n[_COLUMN] >= 0}
_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_OPTIONS = 1 | 0x100000  # system calls are told from signals, and the fork dies with this process
_ENTRY, _EXIT = 1, 2
_STOP = signal.SIGTRAP | 0x80


class _Info(ctypes.Structure):
    """ptrace_syscall_info: at an entry `values` are the number and six arguments, at an exit what came back."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64),
        ("values", ctypes.c_int64 * 7),
    )


@dataclass
class Disk:
    """What of a folder is safe from a power cut: contents by inode, and names as of the folder's last sync."""

    folder: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.folder.iterdir():  # what was there before is safe
            self.names[path.name] = path.stat().st_ino
            self.contents[path.stat().st_ino] = path.read_bytes()

    def synced(self, path: Path) -> None:
        """The file or folder of that path was synced."""
        if path == self.folder:
            self.names = {p.name: p.stat().st_ino for p in self.folder.iterdir()}
            self.contents = {i: self.contents[i] for i in self.names.values() if i in self.contents}
        elif path.parent == self.folder:
            self.contents[path.stat().st_ino] = path.read_bytes()

    def cut(self) -> None:
        """Leaves the folder as it is when the power comes back."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, inode in self.names.items():
            (self.folder / name).write_bytes(self.contents.get(inode, b""))


def kill(child: Callable[[], None], folder: Path, k: int, *, power: bool = False) -> str | None:
    """Run child() in a fork, which writes into `folder` alone, and kill it as it enters its point k, from 0.

    Returns the name of the call that it was about to make, or None where it had no such point and has ended well.
    """
    disk = Disk(folder) if power else None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _ptrace(_TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            child()
            status = 0
        finally:
            os._exit(status)
    killed = _trace(pid, k, disk)
    if disk is not None:
        disk.cut()
    return killed


def _trace(pid: int, k: int, disk: Disk | None) -> str | None:
    os.waitpid(pid, 0)
    _ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
    info, seen, passed = _Info(), 0, 0
    syncing: Path | None = None
    while True:
        _ptrace(_SYSCALL, pid, 0, passed)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            assert os.WIFEXITED(status) and not os.WEXITSTATUS(status), "the child failed by itself"
            return None
        passed = 0
        if os.WSTOPSIG(status) != _STOP:
            passed = os.WSTOPSIG(status)
            continue
        _ptrace(_GET_SYSCALL_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info))
        if info.op == _EXIT and syncing is not None and disk is not None:
            disk.synced(syncing)
            syncing = None
        name = _point(info) if info.op == _ENTRY else None
        if name is None:
            continue
        if seen == k:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return name
        seen += 1
        if name in ("fsync", "fdatasync"):
            syncing = Path(os.readlink(f"/proc/{pid}/fd/{info.values[1]}"))


def _point(info: _Info) -> str | None:
    name = _CALLS.get(info.values[0])
    if name in ("open", "openat"):
        flags = info.values[2] if name == "open" else info.values[3]
        return name if flags & os.O_CREAT else None
    return name


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def traceable() -> bool:
    """Whether this system lets a process trace its own fork."""
    if sys.platform != "linux" or _COLUMN is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(int(_libc.ptrace(_TRACEME, 0, 0, 0) < 0))
    return os.waitpid(pid, 0)[1] == 0
