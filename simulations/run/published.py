"""Runs into a folder behind a URL. The run works in a folder of this machine, and its progress is copied to the URL.

Before users are queried, the URL has the whole progress: the ledgers, the finished arms and the request to be sent. So
check, record and act keep their order there too. A ledger is on this machine's disk before its node answers, as in
every run. If that disk is lost, a run that goes on from the URL sends the request that the URL names, or stops. A
user's answer to it is the same, byte for byte: it is drawn from the stream of the seed, the user, the record and the
stage.

A process that goes on with a run leaves a mark at the URL. A process that finds another mark than its own stops.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from simulations.errors import UserError
from simulations.experiment import slug
from simulations.output.remote import Remote, here, is_url
from simulations.run.journal import UNFINISHED, Journal, begun, resumed, started

#: File of the mark of the active process, in the run's folder on both sides.
_MARK = f"{UNFINISHED}/mark.json"
_RESULTS = "results.json"
_CODE = f"{UNFINISHED}/code.json"


class Published:
    """Folder `part` of a run on this machine, copied to a URL as it grows."""

    def __init__(self, remote: Remote, part: Path) -> None:
        self._remote, self._part = remote, part
        self._mark = _marked(part)
        self._there: dict[str, tuple[int, int]] = {}

    @property
    def ours(self) -> bool:
        """Return True if no other process has gone on with the run."""
        there = self._remote.read(_MARK)
        return there is None or json.loads(there) == self._mark

    def __call__(self) -> None:
        """Copy what has changed, and last the files that say that something is finished or requested.

        Raises:
            UserError: Another process has gone on with the run.
        """
        if not self.ours:
            raise UserError(f"{self._remote.url}: another process goes on with this run, and this one stops")
        for name in sorted(self._changed(), key=lambda name: (name.startswith(UNFINISHED), name)):
            path = self._part / name
            about = path.stat()
            if path.suffix == ".sqlite":
                self._remote.write(name, _as_committed(path), private=True)
            else:
                self._remote.upload(name, path, private=name.startswith("answers/"))
            self._there[name] = (about.st_size, about.st_mtime_ns)

    def finish(self) -> None:
        """Copy all files of the finished run. Its results are last, since they mark it as finished."""
        from simulations.transport.node_store import packed

        self()
        for node in sorted(self._part.glob("nodes/*")):
            for name, content in packed(node).items():
                self._remote.write(f"nodes/{node.name}/{name}", content.tobytes(), private=True)
        self._remote.upload(_RESULTS, self._part / _RESULTS)
        self._remote.delete(UNFINISHED)

    def _changed(self) -> Iterator[str]:
        for path in self._part.rglob("*"):
            name = path.relative_to(self._part).as_posix()
            if not path.is_file() or name in (_RESULTS, f"{UNFINISHED}/lock") or path.name.startswith("."):
                continue
            # A resumed run writes the nodes' folders anew, except their ledgers.
            if name.startswith("nodes") and path.suffix != ".sqlite":
                continue
            about = path.stat()
            if self._there.get(name) != (about.st_size, about.st_mtime_ns):
                yield name


@contextmanager
def started_at(url: str, experiment: str) -> Iterator[tuple[Path, Published]]:
    """Yield the folder of a new run whose folder is behind a URL, as `journal.started` does."""
    remote = Remote(url)
    if remote.exists(_RESULTS) or (remote.files() and not remote.exists(_CODE)):
        raise UserError(f"--out {url}: is there already and not empty; name another one")
    if remote.exists(_CODE):
        raise UserError(f"--out {url}: holds an unfinished run; {_continue(url)}, or name another one")
    folder = working_folder(url)
    part = folder.with_name(f"{folder.name}.part")
    if begun(folder):
        if Journal(part).worth_keeping:
            raise UserError(f"--out {url}: {part} is of an earlier run into it; delete that, or name another one")
        shutil.rmtree(part)
    with started(folder, experiment, hint=_continue(url)) as part:
        (part / _MARK).write_text(json.dumps({"url": url, "mark": secrets.token_hex(8)}), encoding="utf-8")
        with _publishing(remote, part) as published:
            yield part, published
    shutil.rmtree(folder)


@contextmanager
def resumed_at(url: str) -> Iterator[tuple[Path, Published]]:
    """Yield the folder of an unfinished run behind a URL, as `journal.resumed` does.

    It uses this machine's folder if no other process has gone on with the run since. Otherwise it copies the URL's
    files into the folder where the command runs.
    """
    remote = Remote(url)
    if remote.exists(_RESULTS):
        raise UserError(f"--resume {url}: is finished already")
    if not remote.exists(_CODE):
        raise UserError(f"--resume {url}: there is no unfinished run")
    folder, there = working_folder(url), remote.read(_MARK)
    part = folder.with_name(f"{folder.name}.part")
    if not part.exists():
        _fetched(remote, part)
    elif there is not None and _marked(part) != json.loads(there):
        raise UserError(
            f"--resume {url}: another process has gone on with the run since it worked in {part}; delete that folder"
        )
    with resumed(folder, hint=_continue(url)) as part:
        mark = {"url": url, "mark": secrets.token_hex(8)}
        (part / _MARK).write_text(json.dumps(mark), encoding="utf-8")
        remote.upload(_MARK, part / _MARK)
        with _publishing(remote, part) as published:
            yield part, published
    shutil.rmtree(folder)


def url_of(out: Path | str) -> str | None:
    """Return the URL of an unfinished run, from the URL or from its working folder; None for another run."""
    if is_url(out):
        return str(out)
    folder = Path(out)
    part = folder if folder.suffix == ".part" else folder.with_name(f"{folder.name}.part")
    return _marked(part).get("url")


@contextmanager
def finished(place: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Yield the folder of a finished run or sweep on this machine. A URL is copied for the duration of the block.

    `wanted` selects files by name.

    Raises:
        UserError: The URL has no finished run.
    """
    if is_url(place):
        remote = Remote(place)
        if not any(map(remote.exists, (_RESULTS, "study.json"))):
            more = f"the run is not finished; {_continue(place)}" if remote.exists(_CODE) else "holds no finished run"
            raise UserError(f"{place}: {more}")
    with here(place, wanted) as folder:
        yield folder


def unfinished_at(url: str) -> bool:
    """Return True if the URL has a run that can be resumed."""
    remote = Remote(url)
    return remote.exists(_CODE) and not remote.exists(_RESULTS)


def working_folder(url: str, under: str = "runs") -> Path:
    """Return the folder below `under` in which a run into the URL works until it is finished."""
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:8]
    return Path(os.path.abspath(under)) / f"{slug(url.rstrip('/').rpartition('/')[2])}-{digest}"


@contextmanager
def _publishing(remote: Remote, part: Path) -> Iterator[Published]:
    published = Published(remote, part)
    try:
        yield published
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            if Journal(part).worth_keeping:
                published()
            elif published.ours:
                remote.delete(UNFINISHED)
                remote.delete("experiment.toml")
        raise
    published.finish()


def _fetched(remote: Remote, part: Path) -> None:
    """Copy an unfinished run from the URL. The current folder replaces the one in which it ran before."""
    draft = part.with_name(f".{part.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700, parents=True)
    for name in remote.files():
        remote.download(name, draft / name)
    code = json.loads((draft / _CODE).read_text(encoding="utf-8"))
    (draft / _CODE).write_text(json.dumps(code | {"cwd": os.getcwd()}), encoding="utf-8")
    draft.rename(part)


def _as_committed(ledger: Path) -> bytes:
    """Return a ledger as of its last commit, although a late node may be writing the next one."""
    place = f"file:{quote(str(ledger))}?mode=rw"
    with closing(sqlite3.connect(place, uri=True)) as there, closing(sqlite3.connect(":memory:")) as copy:
        there.backup(copy)
        return copy.serialize()


def _marked(part: Path) -> dict[str, str]:
    try:
        mark: dict[str, str] = json.loads((part / _MARK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return mark


def _continue(url: str) -> str:
    return f"continue it with: sottovoce simulate --resume {url}"
