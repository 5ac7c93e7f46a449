"""What a device is given: one folder with all that a client needs to answer, and nothing else.

    manifest.json     the format, what the bundle is of, the size and SHA-256 of every other file
    request.json      the public parameters that a server asks with, and mean.npy, m1.npy, ... their arrays
    policy.json       what the client agrees to
    encoder/          model.onnx, tokenizer.json, encoder.json, where embeddings are asked for
    vocabulary/       words and vectors, where texts are; masked_lm/ where their mechanism reads a language model

Nothing in it is private or secret. The manifest is named by its own hash, which whoever hands out bundles may publish.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from client.models import encoder as encoders
from client.models import masked_lm as models
from client.models import vocabulary as vocabularies
from client.models.content import file_hash
from client.node import write_node
from client.policy import Policy
from client.store.durable import creating_folder, require_free
from mechanisms.messages.request import SPLITS, Request
from mechanisms.vocabulary import Vocabulary

FORMAT = "sottovoce-bundle-1"
MANIFEST = "manifest.json"

_KEYS = {"format", "made_by", "name", "arm", "encoder", "vocabulary", "masked_lm", "digests", "guarantees", "files"}
_ARRAYS = ("mean", "m1", "prior_w", "prior_b", "codes", "head_w", "head_b")
_VOCABULARY = ("vocabulary.json", "words.json", "vectors.npy", "counts.npy", "tags.npy")
#: A manifest is small, and is read before anything in it is known to be true.
_LARGEST_MANIFEST = 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle whose every file has been found to be what the manifest says.

    request: as a server would ask for everything, at the stage and split "train". identity: SHA-256 (hex) of the
    manifest, and with it of all the rest. encoder, vocabulary, masked_lm: folders, None where the request needs none.
    """

    folder: Path
    identity: str
    manifest: Mapping[str, Any]
    request: Request
    policy: Policy

    @property
    def encoder(self) -> Path | None:
        return self._part("encoder")

    @property
    def vocabulary(self) -> Path | None:
        return self._part("vocabulary")

    @property
    def masked_lm(self) -> Path | None:
        return self._part("masked_lm")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        files = self.manifest["files"].values()
        return sum(int(f["bytes"]) for f in files) + (self.folder / MANIFEST).stat().st_size

    def install(self, node: Path | str, seal: bytes | None = None) -> None:
        """Make a folder a device's, which answers by this bundle: its node.json. Raises ValueError where it has one.

        seal: the training server's public key, 32 bytes; None: the device's releases leave it in clear.
        """
        node = Path(node)
        if (node / "node.json").exists():
            raise ValueError(f"bundle: {node / 'node.json'} is there already; give another folder")
        write_node(
            node, encoder=self.encoder, vocabulary=self.vocabulary, masked_lm=self.masked_lm, policy=self.policy,
            seal=seal,
        )  # fmt: skip

    def _part(self, name: str) -> Path | None:
        return self.folder / name if self.manifest[name] else None


def open_bundle(folder: Path | str) -> Bundle:
    """The bundle in a folder, all of it read and compared with its manifest.

    Raises ValueError, one line that names the file, where one is missing, changed, or there without being listed,
    where the bundle is of another format than this client's, or where its parts do not go together.
    """
    folder = Path(folder).resolve()
    manifest, identity = _manifest(folder)
    _verify(folder, manifest["files"])
    try:
        about = json.loads((folder / "request.json").read_text())
        there = [name for name in _ARRAYS if f"{name}.npy" in manifest["files"]]
        arrays = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in there}
        request = Request.from_parts(arrays, about, lambda identity: _vocabulary(folder, identity))
        policy = Policy.from_dict(json.loads((folder / "policy.json").read_text()))
    except (ValueError, EOFError) as error:
        raise ValueError(f"bundle: {folder}: {' '.join(str(error).split())}") from None
    if manifest["digests"] != _digests(request):
        raise ValueError(f"bundle: {folder} was made by a version that names releases otherwise; make it anew")
    for part, wanted, identity_of in (
        ("encoder", request.encoder, encoders.identity), ("masked_lm", request.masked_lm, models.identity)
    ):  # fmt: skip
        if bool(wanted) != bool(manifest[part]) or (wanted and identity_of(folder / part) != wanted):
            raise ValueError(f"bundle: {folder / part} is not what the bundle's request names")
    return Bundle(folder, identity, manifest, request, policy)


def write_bundle(
    folder: Path | str, request: Request, policy: Policy, *, name: str, arm: str, made_by: str,
    encoder: Path | None = None, precision: str | None = None, vocabulary: Path | None = None,
    masked_lm: Path | None = None,
) -> Bundle:  # fmt: skip
    """Write a bundle, whole or not at all, into a new or empty folder, and open it.

    name, arm, made_by, precision: for people. encoder, vocabulary, masked_lm: the folders that the request names by
    their content. Raises ValueError.
    """
    folder = Path(folder).absolute()
    require_free(folder, "bundle")
    request = replace(request, arm="", stage="train", split="train", part=(0, 1))
    with creating_folder(folder) as draft:
        arrays, about = request.parts()
        for key, values in arrays.items():
            np.save(draft / f"{key}.npy", values, allow_pickle=False)
        _write(draft / "request.json", about)
        _write(draft / "policy.json", policy.to_dict())
        for part, source, names in (
            ("encoder", encoder if request.encoder else None, encoders.FILES),
            ("vocabulary", vocabulary if request.text else None, _VOCABULARY),
            ("masked_lm", masked_lm if request.masked_lm else None, models.FILES),
        ):
            if source is not None:
                _copy(source, draft / part, names)
        paths = sorted(p for p in draft.rglob("*") if p.is_file())
        _write(draft / MANIFEST, {
            "format": FORMAT,
            "made_by": made_by,
            "name": name,
            "arm": arm,
            "encoder": {"sha256": request.encoder, "precision": precision} if request.encoder else None,
            "vocabulary": request.vocabulary.identity if request.vocabulary is not None else None,
            "masked_lm": request.masked_lm or None,
            "digests": _digests(request),
            "guarantees": {c: request.mechanism(c).guarantee.to_dict() for c in request.channels},
            "files": {
                p.relative_to(draft).as_posix(): {"bytes": p.stat().st_size, "sha256": file_hash(p)} for p in paths
            },
        })  # fmt: skip
        made = open_bundle(draft)
    return replace(made, folder=folder.resolve())


def _manifest(folder: Path) -> tuple[dict[str, Any], str]:
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_MANIFEST + 1)
    except OSError:
        raise ValueError(f"bundle: {path} cannot be read; {folder} holds no bundle") from None
    try:
        values = json.loads(data) if len(data) <= _LARGEST_MANIFEST else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or "format" not in values:
        raise ValueError(f"bundle: {path} is no manifest")
    if values["format"] != FORMAT:
        raise ValueError(
            f"bundle: {folder} is of the format {str(values['format'])[:40]!r}, and this client reads {FORMAT!r}; "
            "make the bundle anew with this version"
        )
    files = values.get("files")
    if set(values) != _KEYS or not isinstance(files, dict) or not all(map(_listed, files.items())):
        raise ValueError(f"bundle: {path} is damaged")
    return values, hashlib.sha256(data).hexdigest()


def _listed(entry: tuple[str, Any]) -> bool:
    name, about = entry
    return (
        _NAME.fullmatch(name) is not None
        and isinstance(about, dict)
        and set(about) == {"bytes", "sha256"}
        and type(about["bytes"]) is int
        and isinstance(about["sha256"], str)
        and _HASH.fullmatch(about["sha256"]) is not None
    )


def _verify(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless the folder holds these files and no others, and each is what is listed."""
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}
    if unlisted := sorted(there - {MANIFEST, *files}):
        raise ValueError(f"bundle: {folder / unlisted[0]} is not in the manifest; remove it")
    for name, about in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"bundle: {path} is missing, or not a plain file")
        try:
            same = path.stat().st_size == about["bytes"] and file_hash(path) == about["sha256"]
        except OSError:
            raise ValueError(f"bundle: {path} cannot be read") from None
        if not same:
            raise ValueError(f"bundle: {path} is not what the manifest says; copy the bundle anew")


def _digests(request: Request) -> dict[str, dict[str, str]]:
    """What releases are named by in the ledger and on the wire, by split and channel."""
    requests = {split: replace(request, split=split) for split in SPLITS}
    return {split: {channel: one.digest(channel) for channel in one.channels} for split, one in requests.items()}


def _vocabulary(folder: Path, identity: str) -> Vocabulary:
    vocabulary = vocabularies.load(folder / "vocabulary")
    if vocabulary.identity != identity:
        raise ValueError("its request names another vocabulary")
    return vocabulary


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    target.mkdir()
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n")
