"""Bundle of a device: one folder with all that a client needs to answer, and nothing else.

    manifest.json     the format, the origin of the bundle, the keys that releases are sealed to, the size and SHA-256
                      of every other file; and manifest.sig, the signature of the publisher
    request.json      the public parameters of a server's requests, and mean.npy, m1.npy, ... their arrays
    policy.json       the limits that the client agrees to
    encoder/          model.onnx, tokenizer.json, encoder.json, if embeddings are requested
    vocabulary/       words and vectors, if texts are; masked_lm/ if their mechanism reads a language model

Nothing in it is private or secret. The manifest is identified by its own hash, and signed by its publisher. A user pins
the publisher's public key when a device is installed; bundles signed by another key are refused from then on.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from client.device.records import encode_records
from client.models import encoder as encoders
from client.models import language_models as models
from client.models import vocabulary as vocabularies
from client.node import NODE, are_classes, changing, load_node, write_node
from client.policy import Policy
from client.store.durable import creating_folder, file_hash, require_free
from mechanisms.catalogue import admit_installed
from mechanisms.checks import is_hex
from mechanisms.messages.questions import TextQuestion
from mechanisms.messages.request import SPLITS, Request
from mechanisms.messages.sealed import require_public_key
from mechanisms.messages.signature import SIGNATURE_BYTES, public_of, sign, verified
from mechanisms.vocabulary import Vocabulary

FORMAT = "sottovoce-bundle-4"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"

_SEALS = ("seal", "shuffler_seal", "model_seal")
_PARTS = ("encoder", "vocabulary", "masked_lm")
_KEYS = {"format", "made_by", "name", "arm", "classes", "digests", "guarantees", "files", "publisher", *_PARTS, *_SEALS}
_PURPOSE = "bundle"
_VOCABULARY = ("vocabulary.json", "words.json", "vectors.npy", "counts.npy", "tags.npy")
#: A manifest is small, and is read before anything in it is known to be true.
_LARGEST_MANIFEST = 2**20
#: Characters of a library's message about a file that it cannot read.
_LINE = 300
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Keys:
    """Keys of the publisher of a bundle and of the recipients of its devices' releases; 32 bytes each.

    Attributes:
        signer: Private key of the publisher. With None, nobody can install the bundle.
        seal: Public key of the training server. None sends releases in clear.
        shuffler_seal: Public key of the shuffler, to whom the sealed releases are sealed once more; with `seal` alone.
        model_seal: Public key of the model for inference. None sends releases in clear within TLS.

    Raises:
        ValueError: A value is no key, two public keys are equal, or one of training server and shuffler is missing.
    """

    signer: bytes | None = field(default=None, repr=False)
    seal: bytes | None = None
    shuffler_seal: bytes | None = None
    model_seal: bytes | None = None

    def __post_init__(self) -> None:
        keys = [key for key in (self.seal, self.shuffler_seal, self.model_seal) if key is not None]
        for key in keys:
            require_public_key(key)
        if len(set(keys)) < len(keys):
            raise ValueError("bundle: training server, shuffler and model need a key each: one would open another's")
        if (self.seal is None) != (self.shuffler_seal is None):
            raise ValueError(
                "bundle: give the keys of the training server and of the shuffler, or neither: with one layer, whoever "
                "carries messages would tell the training server whose rows are whose"
            )


NO_KEYS = Keys()


@dataclass(frozen=True)
class Parts:
    """Folders that a bundle copies, as far as its request names their content.

    Attributes:
        encoder: Folder of the encoder.
        precision: Precision of the encoder, for people.
        vocabulary: Folder of the vocabulary.
        masked_lm: Folder of the language model.
    """

    encoder: Path | None = None
    precision: str | None = None
    vocabulary: Path | None = None
    masked_lm: Path | None = None


@dataclass(frozen=True, eq=False)
class Bundle:
    """Bundle whose every file matches its manifest.

    Attributes:
        request: Request of a server for everything, at the stage and split "train".
        identity: SHA-256 (hex) of the manifest, which covers all other files.
        encoder: Folder of the encoder; None if the request needs none.
        vocabulary: Folder of the vocabulary; None if the request needs none.
        masked_lm: Folder of the language model; None if the request needs none.
        publisher: Public key of the signer, 32 bytes; None if the bundle is not signed.
        seal: Training server's public key, 32 bytes; None if releases leave in clear.
        shuffler_seal: Shuffler's public key, 32 bytes; None if releases leave in clear.
        model_seal: Public key of the model for inference, 32 bytes; None if releases leave in clear within TLS.
    """

    folder: Path
    identity: str
    manifest: Mapping[str, Any]
    request: Request
    policy: Policy
    encoder: Path | None
    vocabulary: Path | None
    masked_lm: Path | None
    publisher: bytes | None
    seal: bytes | None
    shuffler_seal: bytes | None
    model_seal: bytes | None

    @property
    def size(self) -> int:
        """Return the number of bytes of all files."""
        files = self.manifest["files"].values()
        own = (self.folder / name for name in (MANIFEST, SIGNATURE))
        return sum(int(f["bytes"]) for f in files) + sum(path.stat().st_size for path in own if path.exists())

    def install(self, node: Path | str, publisher: bytes | None = None) -> None:
        """Turn a folder into a device that answers by this bundle, or replace the bundle of an existing device.

        From then on the device trusts the publisher of this bundle alone.

        Args:
            node: Folder of the device.
            publisher: Public key that the user trusts, 32 bytes. None takes the one that the device has pinned.

        Raises:
            ValueError: The bundle is not signed by that key; the device was installed for another; the policy has no
                finite total; or the policy requires a shuffler's crowd and releases are not sealed. The message is one
                line, and nothing changes.
        """
        node = Path(node)
        path = node / NODE
        if path.exists():
            pinned = load_node(node).publisher
            if pinned is None or publisher not in (None, pinned):
                raise ValueError(
                    f"bundle: {path} is there already, of a device that trusts {_named(pinned)}; give another folder"
                )
            publisher = pinned
        if publisher is None:
            raise ValueError("bundle: nobody says whose bundles this device trusts; give the publisher's public key")
        if self.publisher != publisher:
            raise ValueError(
                f"bundle: {self.folder} is signed by {_named(self.publisher)}, and this device trusts "
                f"{_named(publisher)} alone"
            )
        self.policy.require_end(f"bundle: {self.folder}: its policy")
        if self.policy.minimum_users and None in (self.seal, self.shuffler_seal):
            raise ValueError(
                f"bundle: {self.folder} lets releases go only among those of {self.policy.minimum_users:,} users, and "
                "holds no key to seal them to; make it with one"
            )
        if path.exists() and self.encoder is not None:  # before a server's request: its time reveals lengths
            encode_records(replace(load_node(node), encoder=self.encoder))
        with changing(node) if path.exists() else nullcontext():
            parts: dict[str, Any] = {name: getattr(self, name) for name in (*_PARTS, *_SEALS)}
            write_node(node, policy=self.policy, publisher=publisher, classes=self.manifest["classes"], **parts)


def open_bundle(folder: Path | str) -> Bundle:
    """Return the bundle in a folder, after comparing all of it with its manifest.

    Raises:
        ValueError: A file is missing, changed, or present without being listed; the bundle has another format than this
            client's; or its parts do not fit together. The message is one line that names the file.
    """
    folder = Path(folder).resolve()
    manifest, identity = _manifest(folder)
    signed = [] if manifest["publisher"] is None else [SIGNATURE]
    _verify(folder, manifest["files"], beside=(MANIFEST, *signed))
    try:
        policy = Policy.from_dict(json.loads((folder / "policy.json").read_text()))
        admit_installed(policy.mechanisms)
        about = json.loads((folder / "request.json").read_text())
        names = [name.removesuffix(".npy") for name in manifest["files"] if name.endswith(".npy") and "/" not in name]
        arrays = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in names}
        request = Request.from_parts(arrays, about, lambda identity: _vocabulary(folder, identity))
    except Exception as error:  # readers of JSON, arrays and archives raise many kinds
        raise ValueError(f"bundle: {folder}: {' '.join(str(error).split())[:_LINE]}") from None
    if len(manifest["classes"]) != request.classes:
        raise ValueError(f"bundle: {folder}: its classes are not those of its request")
    if manifest["digests"] != _digests(request):
        raise ValueError(f"bundle: {folder} was made by a version that names releases otherwise; make it anew")
    for part, wanted, identity_of in (
        ("encoder", request.encoder, encoders.identity),
        ("masked_lm", request.masked_lm, lambda place: models.identity(place, _reads(request))),
    ):
        if bool(wanted) != bool(manifest[part]) or (wanted and identity_of(folder / part) != wanted):
            raise ValueError(f"bundle: {folder / part} is not what the bundle's request names")
    parts: dict[str, Any] = {part: folder / part if manifest[part] else None for part in _PARTS}
    for name in ("publisher", *_SEALS):
        parts[name] = None if manifest[name] is None else bytes.fromhex(manifest[name])
    return Bundle(folder, identity, manifest, request, policy, **parts)


def write_bundle(
    folder: Path | str,
    request: Request,
    policy: Policy,
    *,
    name: str,
    arm: str,
    classes: Sequence[str],
    made_by: str,
    parts: Parts,
    keys: Keys = NO_KEYS,
) -> Bundle:
    """Write a bundle, completely or not at all, into a new or empty folder, and open it.

    Args:
        folder: The folder.
        request: Request that devices answer.
        policy: Policy of the devices.
        name: Name of the experiment, for people.
        arm: Arm of the experiment, for people.
        classes: Names of the classes in the order of their numbers.
        made_by: Origin of the bundle, for people.
        parts: Folders of encoder, vocabulary and language model.
        keys: Keys of the publisher and of the recipients.

    Raises:
        ValueError: The parts do not fit together, or the folder is not empty.
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
        kind = _reads(request)
        model = None if parts.masked_lm is None or not request.masked_lm else models.part(parts.masked_lm, kind)
        for part, source, names in (
            ("encoder", parts.encoder if request.encoder else None, encoders.FILES),
            ("vocabulary", parts.vocabulary if request.vocabulary is not None else None, _VOCABULARY),
            ("masked_lm", model, () if model is None else models.files(model, kind)),
        ):
            if source is not None:
                _copy(source, draft / part, names)
        paths = sorted(p for p in draft.rglob("*") if p.is_file())
        _write(
            draft / MANIFEST,
            {
                "format": FORMAT,
                "made_by": made_by,
                "name": name,
                "arm": arm,
                "classes": list(classes),
                "encoder": {"sha256": request.encoder, "precision": parts.precision} if request.encoder else None,
                "vocabulary": request.vocabulary.identity if request.vocabulary is not None else None,
                "masked_lm": request.masked_lm or None,
                "digests": _digests(request),
                "guarantees": {
                    question.channel: question.mechanism.guarantee.to_dict() for question in request.questions
                },
                "publisher": None if keys.signer is None else public_of(keys.signer).hex(),
                **{name: None if (key := getattr(keys, name)) is None else key.hex() for name in _SEALS},
                "files": {
                    p.relative_to(draft).as_posix(): {"bytes": p.stat().st_size, "sha256": file_hash(p)} for p in paths
                },
            },
        )
        if keys.signer is not None:
            signature = sign(keys.signer, _PURPOSE, (draft / MANIFEST).read_bytes())
            (draft / SIGNATURE).write_text(f"{signature.hex()}\n")
        bundle = open_bundle(draft)
    folder = folder.resolve()
    moved: dict[str, Any] = {part: folder / part for part in _PARTS if bundle.manifest[part]}
    return replace(bundle, folder=folder, **moved)


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
    keys = [values.get(name) for name in ("publisher", *_SEALS)]
    valid = isinstance(files, dict) and all(map(_listed, files.items()))
    valid = valid and all(key is None or is_hex(key) for key in keys)
    valid = valid and are_classes(values.get("classes"))
    if set(values) != _KEYS or not valid:
        raise ValueError(f"bundle: {path} is damaged")
    if values["publisher"] is not None and not _signed(folder, data, bytes.fromhex(values["publisher"])):
        raise ValueError(f"bundle: {folder / SIGNATURE} is not the signature of {path}; copy the bundle anew")
    return values, hashlib.sha256(data).hexdigest()


def _signed(folder: Path, manifest: bytes, publisher: bytes) -> bool:
    try:
        with (folder / SIGNATURE).open("rb") as file:
            signature = bytes.fromhex(file.read(4 * SIGNATURE_BYTES).decode("ascii").strip())
    except (OSError, ValueError):
        return False
    return verified(publisher, _PURPOSE, manifest, signature)


def _named(key: bytes | None) -> str:
    """Return a key in the form in which people compare keys."""
    return "nobody" if key is None else f"{key.hex()[:16]}…"


def _listed(entry: tuple[str, Any]) -> bool:
    name, about = entry
    return (
        _NAME.fullmatch(name) is not None
        and isinstance(about, dict)
        and set(about) == {"bytes", "sha256"}
        and type(about["bytes"]) is int
        and is_hex(about["sha256"])
    )


def _verify(folder: Path, files: Mapping[str, Mapping[str, Any]], *, beside: tuple[str, ...]) -> None:
    """Raise unless the folder holds exactly these files, apart from those in `beside`, and each is as listed."""
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}
    if unlisted := sorted(names - {*beside, *files}):
        raise ValueError(f"bundle: {folder / unlisted[0]} is not in the manifest; remove it")
    for name, about in files.items():
        path = folder / name
        try:
            if path.is_symlink() or not path.is_file():
                raise ValueError(f"bundle: {path} is missing, or not a plain file")
            same = path.stat().st_size == about["bytes"] and file_hash(path) == about["sha256"]
        except OSError:
            raise ValueError(f"bundle: {path} cannot be read") from None
        if not same:
            raise ValueError(f"bundle: {path} is not what the manifest says; copy the bundle anew")


def _digests(request: Request) -> dict[str, dict[str, str]]:
    """Return the names of releases in the ledger and on the wire, by split and channel."""
    requests = {split: replace(request, split=split) for split in SPLITS}
    return {
        split: {channel: split_request.digest(channel) for channel in split_request.channels}
        for split, split_request in requests.items()
    }


def _reads(request: Request) -> str:
    """Return the kind of language model that the request's text mechanism reads."""
    return models.kind_of(request.question(TextQuestion).mechanism) if request.masked_lm else models.MASKED_LM


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
