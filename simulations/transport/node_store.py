"""Node store: it lends a run's nodes to machines that cannot see the nodes' folders.

Flower sends a node's message to any process of a cluster. The process gets the content of the node through Ray's object
store. It answers in a temporary folder of its own, and gives the ledger back. Check, record, act: `LentLedger.commit`
returns once the node store has the ledger on the run's own disk, and only after that does the answer exist. The node
store takes a ledger back only on top of the same bytes that it lent. If two processes answer for one node at once, the
second has an outdated ledger, and begins again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from client.app import respond
from client.models.embeddings import embeddings_of, read_embeddings
from client.node import NODE, Node, load_node
from client.shard import Shard
from client.store.durable import creating_folder, private_file
from client.store.ledger import Charge, Ledger, LedgerError

#: Name of the node store among the actors of a run.
NAME = "sottovoce-node-store"
#: Attempts of a process at one answer: more than the number of times a message is repeated.
_TRIES = 5
_LEDGERS = "ledger*.sqlite*"
#: Folders that a node names: they are public, large, and the same for all nodes.
_PUBLIC = ("encoder", "vocabulary", "masked_lm")

#: A folder's files by their names, as bytes (uint8).
Files = dict[str, NDArray[np.uint8]]


class Lent(NamedTuple):
    """Content of a node without its ledgers, as returned by the node store's `put`.

    Args:
        files: Files of the node.
        public: For each public folder, by the node's name for it, the hash of its files, and these files.
    """

    files: Any
    public: dict[str, tuple[str, Any]]


class NodeStore:
    """Folders of a run's nodes, under `folder`.

    On a cluster it is an actor on the run's own machine. It handles one call at a time, so that no other call comes
    between reading a ledger and replacing it.

    Args:
        folder: Folder of all nodes.
        put: Function that replaces files by a reference that travels in their place. Ray's object store keeps the files
            once for each machine.
    """

    def __init__(self, folder: str, put: Callable[[Files], Any] | None = None) -> None:
        self._folder = Path(folder)
        self._put = _ray_put if put is None else put
        self._nodes: dict[str, tuple[list[tuple[str, int, int]], Any]] = {}
        self._public: dict[Path, tuple[str, Any]] = {}

    def sees(self) -> bool:
        """Return True if the store can see and write to the folder."""
        node = self._folder / "0"
        return (node / NODE).is_file() and os.access(node, os.W_OK)

    def lend(self, node: str) -> Lent:
        """Return the current content of the node.

        Raises:
            OSError: The files cannot be read.
            ValueError: They are not the files of a node.
        """
        place = self._folder / node
        state = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _node_files(place)]
        entry = self._nodes.get(node)
        if entry is None or entry[0] != state:  # an encoder may have been published meanwhile, with its embeddings
            entry = self._nodes[node] = (state, self._put(packed(place)))
        local_node = load_node(place)
        named = zip(_PUBLIC, (local_node.encoder, local_node.vocabulary_folder, local_node.masked_lm), strict=True)
        return Lent(entry[1], {name: self._shared(folder) for name, folder in named if folder is not None})

    def ledger(self, node: str, name: str) -> bytes | None:
        """Return a node's ledger; None before it has one."""
        path = self._folder / node / name
        return path.read_bytes() if path.is_file() else None

    def keep(self, node: str, name: str, before: str | None, ledger: bytes) -> str:
        """Replace the ledger whose hash is `before` (None: no ledger yet).

        Returns:
            "kept": the new ledger survives the death of any process. Otherwise nothing has changed: "overtaken", if
            there is another ledger; "full", if the new one cannot be written.
        """
        content = self.ledger(node, name)
        if (None if content is None else _hash(content)) != before:
            return "overtaken"
        draft = self._folder / node / f".draft.{name}.{secrets.token_hex(8)}"
        try:
            with private_file(draft) as file:
                file.write(ledger)
            draft.replace(self._folder / node / name)
        except OSError:
            return "full"
        finally:
            draft.unlink(missing_ok=True)
        return "kept"

    def _shared(self, folder: Path) -> tuple[str, Any]:
        """Return the hash and files of a public folder, read once because its content is constant."""
        if folder not in self._public:
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            files = {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in paths}
            sha = hashlib.sha256()
            for name, content in files.items():
                sha.update(f"{name}\0{len(content)}\0".encode() + content.tobytes())
            self._public[folder] = sha.hexdigest(), self._put(files)
        return self._public[folder]


def packed(node: Path) -> Files:
    """Return the files of a node's folder without its ledgers, readable anywhere.

    From a table that nodes share, include only the rows of this node.
    """
    files = {}
    for path in _node_files(node):
        if ".table-" in path.name or (path.suffix == ".json" and path.name != NODE):
            continue
        if path.with_suffix(".json").is_file() and path.suffix == ".npy":
            if (of := embeddings_of(path)) is None:
                continue
            rows = read_embeddings(node, *of, n := len(Shard.load(node, of[0])))
            assert rows is not None
            written = io.BytesIO()
            np.save(written, rows.take(np.arange(n)), allow_pickle=False)
            files[path.name] = np.frombuffer(written.getbuffer(), np.uint8)
        else:
            files[path.name] = np.fromfile(path, np.uint8)
    return files


def _node_files(node: Path) -> Sequence[Path]:
    """Return a node's files, sorted, without its ledgers; incomplete files have names that begin with a dot."""
    return [
        path
        for path in sorted(node.iterdir())
        if path.is_file() and not path.match(_LEDGERS) and not path.name.startswith(".")
    ]


app = ClientApp()


@app.query("release")
def _release(message: Message, context: Context) -> Message:
    """Answer like `client.app.release`, for a node of the run's node store."""
    from ray._private import worker

    node: Any = worker._global_node
    session = Path(node.get_session_dir_path())  # ends with the cluster
    return answer(message, str(int(context.node_config["partition-id"])), _Actor(), session / "sottovoce")


def answer(message: Message, node: str, node_store: Any, shared: Path) -> Message:
    """Return the reply of a node: releases that its ledger in the node store records, or a constant text. Never raises.

    Args:
        message: The message to the node.
        node: Name of the node.
        node_store: The node store as this process reaches it: a `NodeStore` with `fetch`, which undoes its `put`.
        shared: Folder of this machine for public content, which is the same for all nodes.
    """
    for _ in range(_TRIES):
        overtaken: list[bool] = []

        def load(folder: Path, overtaken: list[bool] = overtaken) -> Node:
            lent: Lent = node_store.lend(node)
            for name, content in node_store.fetch(lent.files).items():
                with private_file(folder / name) as file:
                    content.tofile(file)
            public = {
                name: str(_unpacked(shared, digest, put, node_store)) for name, (digest, put) in lent.public.items()
            }
            about = json.loads((folder / NODE).read_text(encoding="utf-8"))
            with private_file(folder / NODE) as file:
                file.write(json.dumps(about | public).encode())
            read = load_node(folder)
            values = {field.name: getattr(read, field.name) for field in fields(read)}
            return LentNode(**values, name=node, node_store=node_store, overtaken=overtaken)

        with tempfile.TemporaryDirectory(prefix="sottovoce-node-") as scratch:
            reply = respond(message, Path(scratch), load=load)
        if not overtaken:
            break
    return reply


def _unpacked(shared: Path, digest: str, put: Any, node_store: Any) -> Path:
    """Return the public folder of that hash on this machine."""
    folder = shared / digest
    if not folder.is_dir():
        try:
            with creating_folder(folder) as draft:
                for name, content in node_store.fetch(put).items():
                    (draft / name).parent.mkdir(parents=True, exist_ok=True)
                    content.tofile(draft / name)
        except OSError:
            if not folder.is_dir():  # another process was first
                raise
    return folder


@dataclass(frozen=True)
class LentNode(Node):
    """Node in a folder of this process, whose ledgers belong to the node store.

    Args:
        name: Name of the node.
        node_store: The node store.
        overtaken: List that gets an entry if a ledger was not taken back, and the answer must begin again.
    """

    name: str = ""
    node_store: Any = None
    overtaken: list[bool] | None = None

    def ledger(self, arm: str) -> Ledger:
        """Return the current ledger of the node store.

        Raises:
            Refused: The node does not have the arm.
        """
        assert self.overtaken is not None
        path, node_store, overtaken = self.ledger_path(arm), self.node_store, self.overtaken
        content = node_store.ledger(self.name, path.name)
        if content is not None:
            with private_file(path) as file:
                file.write(content)
        before = None if content is None else _hash(content)

        def keep() -> None:
            outcome = node_store.keep(self.name, path.name, before, path.read_bytes())
            if outcome == "overtaken":
                overtaken.append(True)
            if outcome != "kept":
                cause = OSError() if outcome == "full" else None  # a place that is full must stop the run
                raise LedgerError(f"ledger: {path.name} is not kept: {outcome}") from cause

        return LentLedger(path, keep)


class LentLedger(Ledger):
    """Ledger that belongs to another process.

    Args:
        path: File of this process' copy.
        keep: Function that gives the ledger back to its owner. It works once for each `LentLedger`.
    """

    def __init__(self, path: Path, keep: Callable[[], None]) -> None:
        super().__init__(path, durable=False)
        self._keep = keep

    def commit(self, charges: Sequence[Charge]) -> None:
        """Commit the charges like `Ledger.commit`. The owner has them when this returns."""
        super().commit(charges)
        if charges:
            self._keep()


class _Actor:
    """Proxy of the run's node store, a Ray actor: it calls its methods, and `fetch` undoes its `put`."""

    def __getattr__(self, method: str) -> Callable[..., Any]:
        import ray

        return lambda *values: ray.get(getattr(ray.get_actor(NAME), method).remote(*values))

    def fetch(self, put: Any) -> Files:
        import ray

        files: Files = ray.get(put)
        return files


def _ray_put(files: Files) -> Any:
    import ray

    return ray.put(files)


def _hash(ledger: bytes) -> str:
    return hashlib.sha256(ledger).hexdigest()
