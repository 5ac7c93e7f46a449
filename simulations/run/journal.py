"""Journal of a run, which lets a run that was killed go on: its folder, its progress, and its lock.

A run into DIR works in DIR.part, which is renamed to DIR when it is complete. DIR.part/unfinished records the inputs
that determine the result, the requests that were sent to users, and the finished arms. The rest is in the nodes'
ledgers: a resumed run sends the requests of unfinished arms again, and users repeat their releases at no cost.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from mechanisms.messages.request import Request
from simulations.errors import Interrupted, Terminated, UserError, comes_again
from simulations.experiment import EncoderConfig
from simulations.experiment.sections import TrainingConfig
from simulations.output.atomic import alone, followed, refuse_taken, whole

if TYPE_CHECKING:
    from server.protocols.declaration import TrainingProtocol
    from server.protocols.protocol import Public
    from simulations.run.prepare import Held

UNFINISHED = "unfinished"
PACKAGES = ("flwr", "ray", "torch", "transformers", "numpy", "scipy", "onnxruntime", "tokenizers", "sottovoce")
_CODE = Path(__file__).parents[2]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def versions() -> dict[str, str]:
    """Return the versions of Python and of all packages that a result may depend on."""
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}


def trained_on(encoder: EncoderConfig, training: TrainingConfig) -> str | None:
    """Return the device on which models are trained, "cpu" or "cuda" (`server.accelerator`).

    None if the run trains no model that would use a GPU, so that its result is the same with one.

    Raises:
        ValueError: The environment names a device that does not exist.
    """
    from server.accelerator import device  # torch

    here = device().type
    return here if training.protocol.checkpoint or encoder.fine_tune_on_public else None


class Journal:
    """Progress of a run, in the run's folder, which need not exist yet."""

    def __init__(self, run: Path) -> None:
        self.folder = run / UNFINISHED

    def check_code(self, trained_on: str | None = None) -> None:
        """Record code, packages, working folder and training device of a new run, or compare those of a resumed run.

        Raises:
            UserError: The resumed run had others.
        """
        code = {"the code of Sottovoce": _code(), "the device that trains models (SOTTOVOCE_DEVICE)": trained_on}
        self._compare("code.json", code | versions(), cwd=os.getcwd())

    def check_data(self, protocol: TrainingProtocol, public: Public, held: Held) -> None:
        """Record the data of a new run, or compare them with those of a resumed run.

        Raises:
            UserError: The resumed run had others.
        """
        self._compare("data.json", _data(protocol, public, held))

    def _compare(self, file: str, now: Mapping[str, Any], **more: Any) -> None:
        record = _read(self.folder / file)
        if record is None:
            _write(self.folder / file, {**now, **more})
            return
        for name in dict.fromkeys([*now, *record]):  # also what was there then and is not now
            old, value = record.get(name), now.get(name)
            if old != value and name not in more:
                short = f" ({old} then, {value} now)" if len(f"{old}{value}") < 40 else ""
                raise UserError(
                    f"{self.folder.parent}: was started with other values of {name}{short}; restore them, or run the "
                    "experiment anew into another folder"
                )

    def nodes(self) -> int | None:
        """Return the number of nodes; None before it is determined."""
        count: int | None = _read(self.folder / "nodes.json")
        return count

    def keep_nodes(self, nodes: int) -> None:
        """Record the number of nodes."""
        _write(self.folder / "nodes.json", nodes)

    def ask(self, request: Request) -> None:
        """Record a request before it is sent to users.

        Another number of threads, or another kind of processor, may have trained a model that differs in its last bits.

        Raises:
            UserError: Users have answered another request at this stage, so this one would charge them twice.
        """
        path = self.folder / "asked" / request.arm / f"{request.stage}.json"
        now = {channel: request.digest(channel) for channel in request.channels}
        record = _read(path)
        if record is None:
            _write(path, now)
        elif record != now:
            raise UserError(
                f"{self.folder.parent}: arm {request.arm}: stage {request.stage}: this machine comes to another "
                "request than the one that users have answered, and asking again would charge them twice; resume "
                "where the run was started, or run the experiment anew into another folder"
            )

    def finished(self, arm: str) -> dict[str, Any] | None:
        """Return the line of a finished arm, by its slug; None if it is not finished."""
        return _read(self.folder / "arms" / f"{arm}.json")

    def finish(self, arm: str, line: Mapping[str, Any]) -> dict[str, Any]:
        """Record that an arm is finished, and return its line as `finished` does."""
        _write(self.folder / "arms" / f"{arm}.json", line)
        record = self.finished(arm)
        assert record is not None
        return record

    @property
    def worth_keeping(self) -> bool:
        """Return True if users have released something, or an arm is finished."""
        run = self.folder.parent
        return any((self.folder / "arms").glob("*.json")) or any(run.glob("nodes/*/*.sqlite"))


@contextmanager
def started(out: Path, *, in_place: bool = False) -> Iterator[Path]:
    """Yield the folder of a new run, which is renamed to `out` if the block succeeds.

    If the block fails before there is anything worth keeping, the folder is removed. Otherwise it stays, and the error
    says how to go on.

    Args:
        out: Folder of the finished run.
        in_place: True to work in `out` itself, for nodes that know it by name.

    Raises:
        UserError: `out` exists and is not empty, or another run into it is active or unfinished.
    """
    out = followed(out)
    part = out if in_place else _part(out)
    refuse_taken(out)
    if part != out and part.exists():
        if _locked(part):
            raise UserError(f"--out {out}: another run into it is at work; wait for it, or name another folder")
        raise UserError(f"--out {out}: {part.name} holds an unfinished run; {_continue(out)}, or name another folder")
    parents = [p for p in out.parents if not p.exists()]
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    try:
        with _finishing(part, out, _continue(out)):
            yield part
    except BaseException:
        if part.exists() and not Journal(part).worth_keeping:
            shutil.rmtree(part, ignore_errors=True)
            for parent in parents:
                if parent.exists() and not any(parent.iterdir()):
                    parent.rmdir()
        raise


@contextmanager
def resumed(out: Path) -> Iterator[Path]:
    """Yield the folder of an unfinished run into `out`, as `started` does.

    The block runs in the working folder of the command that started the run, so that the data's relative paths are
    valid.

    Raises:
        UserError: There is no run to resume.
    """
    out = followed(out)
    if out.suffix == ".part" and out.is_dir():
        out = out.with_suffix("")
    part = out if (out / UNFINISHED).is_dir() else _part(out)
    if not part.is_dir():
        if (out / "results.json").is_file():
            raise UserError(f"--resume {out}: is finished already")
        raise UserError(f"--resume {out}: there is no unfinished run of that name ({part})")
    if _locked(part):
        raise UserError(f"--resume {out}: another process is at work on this run; wait for it")
    record = _read(part / UNFINISHED / "code.json")
    if record is None or not (part / "experiment.toml").is_file():
        raise UserError(f"--resume {out}: the run was stopped before it had begun; delete {part} and run it anew")
    hint = _continue(out)  # relative to the user's folder
    if not os.path.isdir(record["cwd"]):
        raise UserError(f"--resume {out}: the run was started in {record['cwd']}, which is gone")
    with chdir(record["cwd"]), _finishing(part, out, hint):
        yield part


def begun(out: Path) -> bool:
    """Return True if a run into `out` can be resumed. Delete what an earlier stop left that has no content.

    Raises:
        UserError: Another process is active on it.
    """
    part = _part(followed(out))
    if not part.is_dir():
        return False
    if (part / UNFINISHED / "code.json").is_file():
        return True
    if _locked(part):
        raise UserError(f"{out}: another process is at work on this run; wait for it")
    shutil.rmtree(part)
    return False


def refuse_unfinished(folder: Path) -> None:
    """Refuse a folder of an unfinished run.

    Raises:
        UserError: It is one.
    """
    folder = followed(folder)
    out = folder.with_suffix("") if folder.suffix == ".part" else folder
    if (folder / UNFINISHED).is_dir() or (not folder.exists() and (_part(folder) / UNFINISHED).is_dir()):
        raise UserError(f"{folder}: the run is not finished; {_continue(out)}")


def _part(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


def _continue(out: Path) -> str:
    place = os.path.relpath(out)
    return f"continue it with: sottovoce simulate --resume {quote(str(out) if place.startswith('..') else place)}"


@contextmanager
def _finishing(part: Path, out: Path, hint: str) -> Iterator[None]:
    """Hold the folder's lock during the block, and finish the run after it. `hint` says how to go on after an error."""
    (part / UNFINISHED).mkdir(exist_ok=True)
    with alone(part / UNFINISHED / "lock", f"{out}: another process is at work on this run; wait for it"):
        with _saying_how_to_go_on(part, out, hint):
            yield
        _whole(part, out)


def _locked(part: Path) -> bool:
    if not (part / UNFINISHED).is_dir():
        return False
    with suppress(UserError), alone(part / UNFINISHED / "lock", ""):
        return False
    return True


@contextmanager
def _saying_how_to_go_on(part: Path, out: Path, hint: str) -> Iterator[None]:
    """Add to an error how to go on, if the run can be resumed."""
    try:
        yield
    except BaseException as error:
        kept = Journal(part).worth_keeping
        if isinstance(error, OSError) and error.errno in _FULL:
            then = f"make room, then {hint}" if kept else "make room, then run it again"
            raise UserError(f"{error.filename or out}: {error.strerror} (is the disk full?); {then}") from error
        if not kept:
            raise
        if isinstance(error, KeyboardInterrupt | Terminated):
            raise Interrupted(f"interrupted; what users have released is kept in {part}; {hint}", by=error) from error
        if isinstance(error, ValueError):
            raise UserError(f"{error}; what users have released is kept in {part}") from error
        again = f"kept in {part}; resumed, the run would fail so again: run the experiment anew into another folder"
        error.add_note(f"What users have released is {again if comes_again(error) else f'kept; {hint}'}")
        raise


def _whole(part: Path, out: Path) -> None:
    """Rename the finished folder and delete its journal. A run that is killed between the two can be resumed."""
    if part != out:
        part.replace(out)
    gone = out / f".{UNFINISHED}"
    (out / UNFINISHED).rename(gone)
    shutil.rmtree(gone)


def _data(protocol: TrainingProtocol, public: Public, held: Held) -> dict[str, Any]:
    """Return what the result depends on beside experiment and code, by name: digests and numbers."""
    about: dict[str, Any] = {}
    for name, texts, labels in (
        ("public texts", public.texts, public.labels),
        ("training texts", held.train.texts, held.train.labels),
        ("test texts", held.test.texts, held.test.labels),
    ):
        sha = hashlib.sha256(repr(public.classes).encode())
        for text in texts:
            sha.update(repr(text).encode())
        sha.update(b"" if labels is None else labels.tobytes())
        about[name] = sha.hexdigest()
    for name, holders in (("users' records", held.holders), ("test users' records", held.test_holders)):
        about[name] = hashlib.sha256(holders.users.tobytes() + holders.records.tobytes()).hexdigest()
    if public.embeddings is not None:
        about["public embeddings"] = hashlib.sha256(public.embeddings.tobytes()).hexdigest()
    about["the encoder"] = None if public.encoder is None else public.encoder.identity
    about["the vocabulary"] = None if public.rewriter is None else public.rewriter.vocabulary.identity
    if protocol.checkpoint:
        import torch

        about["the number of threads (OMP_NUM_THREADS)"] = torch.get_num_threads()
    return about


def _code() -> str:
    """Return the SHA-256 of all code that takes part in a run."""
    sha = hashlib.sha256()
    for package in ("mechanisms", "client", "server", "simulations"):
        for path in sorted((_CODE / package).rglob("*.py")):
            sha.update(f"{path.relative_to(_CODE)}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()


def _read(path: Path) -> Any:
    """Return the JSON in a file, infinity included; None if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _write(path: Path, value: Any) -> None:
    """Write JSON completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        file.write(json.dumps(value, ensure_ascii=False).encode())
