"""A run whose folder is behind a URL: it works in a folder of this machine, and what it has done is put there.

Before users are asked, the URL has all that the run has done so far: its ledgers, the arms that are finished, and what
users are about to be asked. So check, record, act holds there as it does here. A ledger is on this machine's disk
before its node answers, as in every run. Where that disk is lost with the machine, a run that goes on from the URL asks
the very request that the URL names, or stops; and a user's answer to it, drawn from the stream of the seed, the user,
the record and the stage, is the same, byte for byte.

Whoever goes on with a run leaves a mark at the URL. Who finds another mark there than its own asks nobody any more.
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

#: Of the run, in its folder on both sides: the mark of who is at work on it.
_MARK = f"{UNFINISHED}/mark.json"
_RESULTS = "results.json"
_CODE = f"{UNFINISHED}/code.json"


class Published:
    """A run's folder `part` on this machine, put to a URL as it comes to be."""

    def __init__(self, remote: Remote, part: Path) -> None:
        self._remote, self._part = remote, part
        self._mark = _marked(part)
        self._there: dict[str, tuple[int, int]] = {}

    @property
    def ours(self) -> bool:
        """Whether nobody else has gone on with the run."""
        there = self._remote.read(_MARK)
        return there is None or json.loads(there) == self._mark

    def __call__(self) -> None:
        """Puts there what has changed: last what says that it is done, or asked. UserError where another process goes
        on with the run."""
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
        """Puts there all that the finished run holds, its results last: once they are there, it is finished."""
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
            # What nodes hold is handed out anew where a run goes on; but for what they have released.
            if name.startswith("nodes") and path.suffix != ".sqlite":
                continue
            about = path.stat()
            if self._there.get(name) != (about.st_size, about.st_mtime_ns):
                yield name


@contextmanager
def started_at(url: str, experiment: str) -> Iterator[tuple[Path, Published]]:
    """As `journal.started`, of a run whose folder is behind a URL."""
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
    """As `journal.resumed`, of a run whose folder is behind a URL: from what this machine has of it, if nobody has gone
    on with it since, or else from what the URL has, in the folder where the command runs."""
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
    """The URL that an unfinished run is put to, by it or by the folder where it works; None of a run that is not."""
    if is_url(out):
        return str(out)
    folder = Path(out)
    part = folder if folder.suffix == ".part" else folder.with_name(f"{folder.name}.part")
    return _marked(part).get("url")


@contextmanager
def finished(place: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """The folder of a finished run or study on this machine; of a URL a copy, for as long as the block lasts. wanted:
    which files of it, by name. UserError where the URL has no finished one."""
    if is_url(place):
        remote = Remote(place)
        if not any(map(remote.exists, (_RESULTS, "study.json"))):
            more = f"the run is not finished; {_continue(place)}" if remote.exists(_CODE) else "holds no finished run"
            raise UserError(f"{place}: {more}")
    with here(place, wanted) as folder:
        yield folder


def unfinished_at(url: str) -> bool:
    """Whether there is a run behind the URL that can be resumed."""
    remote = Remote(url)
    return remote.exists(_CODE) and not remote.exists(_RESULTS)


def working_folder(url: str, under: str = "runs") -> Path:
    """Where a run into the URL works until it is finished, in a folder of the folder where the command runs."""
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:8]
    return Path(os.path.abspath(under)) / f"{slug(url.rstrip('/').rpartition('/')[2])}-{digest}"


@contextmanager
def _publishing(remote: Remote, part: Path) -> Iterator[Published]:
    published = Published(remote, part)
    try:
        yield published
    except BaseException:
        with suppress(Exception):  # that it fails is not what is to be said
            if Journal(part).worth_keeping:
                published()
            elif published.ours:
                remote.delete(UNFINISHED)
                remote.delete("experiment.toml")
        raise
    published.finish()


def _fetched(remote: Remote, part: Path) -> None:
    """What the URL has of an unfinished run. The folder where the command runs takes the place of the one where it ran
    before."""
    draft = part.with_name(f".{part.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700, parents=True)
    for name in remote.files():
        remote.download(name, draft / name)
    code = json.loads((draft / _CODE).read_text(encoding="utf-8"))
    (draft / _CODE).write_text(json.dumps(code | {"cwd": os.getcwd()}), encoding="utf-8")
    draft.rename(part)


def _as_committed(ledger: Path) -> bytes:
    """A ledger as its last commit left it, though a node that came too late may be at work on the next one."""
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
