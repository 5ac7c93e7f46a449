"""Folder of a node: its configuration (node.json), its shards, its ledgers.

On a device: {"encoder": folder or null, "randomness": "secure", "policy": {...}}, and optional keys. "seal" is the
training server's public key, 64 hexadecimal digits, if releases leave sealed, and "shuffler_seal" the shuffler's. They
stand here and never come with a message, because the carrier of messages could replace them by its own. "model_seal"
is the key of the model for inference, which is exposed, and opens nothing that was sealed to the other keys.
"publisher" is the public key whose bundles the device accepts. "classes" names the classes of labels 0, 1, and so on.
device.key signs replies to the shuffler; its public half, device.pub, is for the enrolment authority.

In a simulation: {"encoder": folder or null, "simulation": {"seed": int, "arms": {slug: policy}}}.

Either may have "vocabulary" (of texts) and "masked_lm" (read by some text mechanisms), each a folder or null. Only a
simulation has a seed; anywhere else it is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.models import vocabulary as vocabularies
from client.policy import Policy, Refused
from client.shard import Shard
from client.store.durable import replacing
from client.store.ledger import Ledger
from mechanisms.catalogue import admit, admit_installed
from mechanisms.checks import is_hex
from mechanisms.messages import signature
from mechanisms.messages.sealed import require_public_key
from mechanisms.plugin import is_reference
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.vocabulary import Vocabulary

NODE = "node.json"
_FOLDERS = ("encoder", "vocabulary", "masked_lm")
_SEALS = ("seal", "shuffler_seal", "model_seal")
_DEVICE = {*_FOLDERS, *_SEALS, "randomness", "policy", "publisher", "classes"}
#: Files of the keys by which a device signs its replies.
DEVICE_KEY, DEVICE_PUBLIC = "device.key", "device.pub"
_SIMULATION = {*_FOLDERS, "simulation"}


@dataclass(frozen=True)
class Node:
    """Configuration of a node.

    Attributes:
        folder: Folder of the node.
        encoder: Folder of its encoder, if it has one.
        seed: Seed of a simulation; None on a device.
        policies: Policies by arm; a device has the one arm "".
        vocabulary_folder: Folder of its vocabulary, if it has one.
        masked_lm: Folder of its language model, if it has one.
        seal: Public key that its releases are sealed to, 32 bytes; None if they leave in clear, as in a simulation.
        shuffler_seal: Public key of the shuffler, 32 bytes; it is there if `seal` is.
        classes: Names of the classes of labels 0, 1, ..., from the bundle of a device.
        publisher: Public key, 32 bytes, whose bundles a device accepts; None if it accepts none.
        model_seal: Public key that releases for inference are sealed to, 32 bytes, or None.
    """

    folder: Path
    encoder: Path | None
    seed: int | None
    policies: Mapping[str, Policy]
    vocabulary_folder: Path | None = None
    masked_lm: Path | None = None
    seal: bytes | None = None
    publisher: bytes | None = None
    model_seal: bytes | None = None
    shuffler_seal: bytes | None = None
    classes: tuple[str, ...] = ()

    @property
    def device_key(self) -> bytes:
        """Return the private key by which the device signs, 32 bytes.

        Raises:
            ValueError: It cannot be read.
        """
        try:
            key = (self.folder / DEVICE_KEY).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            key = ""
        if not is_hex(key):
            raise ValueError(f"node: {self.folder / DEVICE_KEY} cannot be read; install the bundle anew")
        return bytes.fromhex(key)

    @property
    def exposed(self) -> bool:
        """Return whether a device's policy requires a crowd for its releases, but no key hides their content."""
        return not self.simulated and self.seal is None and self.policy("").minimum_users > 0

    @property
    def simulated(self) -> bool:
        """Return whether this is a simulation's node."""
        return self.seed is not None

    @property
    def streams(self) -> SimulationStreams | SecureStreams:
        """Return the source of randomness: the operating system, unless this is a simulation."""
        return SecureStreams() if self.seed is None else SimulationStreams(self.seed)

    def policy(self, arm: str) -> Policy:
        """Return the policy of an arm.

        Raises:
            Refused: The node does not have the arm.
        """
        if arm not in self.policies:
            raise Refused("arm")
        return self.policies[arm]

    def ledger(self, arm: str) -> Ledger:
        """Return the ledger of an arm, opened.

        Raises:
            Refused: The node does not have the arm.
        """
        return Ledger(self.ledger_path(arm), durable=not self.simulated)

    def ledger_path(self, arm: str) -> Path:
        """Return the path of the ledger of an arm.

        Raises:
            Refused: The node does not have the arm.
        """
        self.policy(arm)
        return self.folder / (f"ledger-{arm}.sqlite" if arm else "ledger.sqlite")

    def shard(self, split: str) -> Shard:
        """Return the node's records of a split, "train" or "test"."""
        return Shard.load(self.folder, split, self.encoder, self.masked_lm)

    def vocabulary(self, identity: str) -> Vocabulary:
        """Return the installed vocabulary of that identity.

        Raises:
            Refused: It is not installed.
        """
        installed = None if self.vocabulary_folder is None else vocabularies.load_cached(self.vocabulary_folder)
        if installed is None or installed.identity != identity:
            raise Refused("vocabulary")
        return installed


def load_node(folder: Path | str) -> Node:
    """Return the node in a folder.

    Raises:
        ValueError: node.json is missing or invalid.
    """
    path = Path(folder) / NODE
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"node: {path} cannot be read as JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"node: {path} is not a table")
    encoder, vocabulary, masked_lm = (_folder(values, name, path) for name in _FOLDERS)
    if "simulation" in values:
        _known(values, _SIMULATION, path)
        seed, arms = _simulation(values["simulation"], path)
        return Node(path.parent, encoder, seed, arms, vocabulary, masked_lm)
    if "seed" in values:
        raise ValueError(f"node: {path}: a seed belongs in a simulation; a device has none")
    _known(values, _DEVICE, path)
    if values.get("randomness") != "secure":
        raise ValueError(f'node: {path}: randomness must be "secure" on a device')
    if "policy" not in values:
        raise ValueError(f"node: {path}: a device needs a policy")
    policy = Policy.from_dict(values["policy"])
    policy.require_end(f"node: {path}: a device's policy")
    admit_installed(policy.mechanisms)
    publisher = _public_key(values, "publisher", path)
    seals = {name: _public_key(values, name, path) for name in _SEALS}
    if (seals["seal"] is None) != (seals["shuffler_seal"] is None):
        raise ValueError(f"node: {path}: seal and shuffler_seal go together; install a bundle with both")
    if not are_classes(names := values.get("classes", [])):
        raise ValueError(f"node: {path}: classes must be a list of names")
    return Node(
        path.parent,
        encoder,
        None,
        {"": policy},
        vocabulary,
        masked_lm,
        publisher=publisher,
        classes=tuple(names),
        **seals,
    )


def load_device(folder: Path, *, simulated: str, missing: str = "make it one with: sottovoce device install") -> Node:
    """Return the device in a folder.

    Args:
        folder: The folder.
        simulated: Rest of the error line about a simulation's node: the reason why it is not accepted.
        missing: Advice of the error line about a folder without a node.

    Raises:
        ValueError: The folder holds no device, or a simulation's node, or is invalid. The message is one line.
    """
    if not (folder / NODE).is_file():
        raise ValueError(f"{folder}: is no device's folder; {missing}")
    node = load_node(folder)
    if node.simulated:
        raise ValueError(f"{folder}: is a simulation's node{simulated}")
    return node


def write_node(
    folder: Path | str,
    *,
    encoder: Path | str | None = None,
    vocabulary: Path | str | None = None,
    masked_lm: Path | str | None = None,
    policy: Policy | None = None,
    seal: bytes | None = None,
    shuffler_seal: bytes | None = None,
    model_seal: bytes | None = None,
    publisher: bytes | None = None,
    classes: Sequence[str] = (),
    seed: int | None = None,
    arms: Mapping[str, Policy] | None = None,
) -> None:
    """Write node.json completely, and, for a device that seals to a shuffler, its own keys where it has none.

    A device has a policy, the keys that it seals to, and the publisher that it trusts. A simulation has a seed, and a
    policy for each arm.
    """
    folders = {"encoder": encoder, "vocabulary": vocabulary, "masked_lm": masked_lm}
    values: dict[str, Any] = {k: None if v is None else str(v) for k, v in folders.items()}
    seals = dict(zip(_SEALS, (seal, shuffler_seal, model_seal), strict=True))
    if policy is not None and seed is None and arms is None:
        values |= {"randomness": "secure", "policy": policy.to_dict(), "classes": list(classes)}
        for name, key in seals.items():
            if key is not None:
                require_public_key(key)
                values[name] = key.hex()
        if publisher is not None:
            values["publisher"] = publisher.hex()
    elif policy is None and not any((*seals.values(), publisher)) and seed is not None and arms is not None:
        values["simulation"] = {"seed": seed, "arms": {arm: p.to_dict() for arm, p in arms.items()}}
    else:
        raise ValueError("node: give a policy (a device), or a seed and arms (a simulation)")
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if shuffler_seal is not None and not (Path(folder) / DEVICE_KEY).exists():
        private, public = signature.generate_keys()
        with replacing(Path(folder) / DEVICE_PUBLIC, Path(folder) / DEVICE_KEY) as drafts:
            for draft, key in zip(drafts, (public, private), strict=True):
                draft.write_text(f"{key.hex()}\n")
    with replacing(Path(folder) / NODE) as (draft,):
        draft.write_text(json.dumps(values, indent=1) + "\n")


def write_policy(folder: Path, policy: Policy) -> None:
    """Replace the policy of a device, inside `changing`; all else in its node.json stays."""
    values = json.loads((folder / NODE).read_text()) | {"policy": policy.to_dict()}
    with replacing(folder / NODE) as (draft,):
        draft.write_text(json.dumps(values, indent=1) + "\n")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold the only right to change a device, its records or its node.json; other processes wait."""
    while True:
        opened = os.open(folder / NODE, os.O_RDONLY)  # not the folder: its lock is that of the rollback guard
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if os.fstat(opened).st_ino == (folder / NODE).stat().st_ino:  # its last holder may have replaced it
                yield
                return
        finally:
            os.close(opened)


def _folder(values: Mapping[str, Any], name: str, path: Path) -> Path | None:
    folder = values.get(name)
    if not (folder is None or isinstance(folder, str)):
        raise ValueError(f"node: {path}: {name} must be a folder or null")
    return None if folder is None else path.parent / folder  # an absolute folder stays as it is


def _public_key(values: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    if values.get(name) is None:
        return None
    if is_hex(key := values[name]):
        with suppress(ValueError):
            if name in _SEALS:
                require_public_key(bytes.fromhex(key))
            return bytes.fromhex(key)
    raise ValueError(f"node: {path}: {name} must be a public key, 64 hexadecimal digits")


def _simulation(values: Any, path: Path) -> tuple[int, dict[str, Policy]]:
    if not isinstance(values, dict):
        raise ValueError(f"node: {path}: simulation must be a table")
    _known(values, {"seed", "arms"}, path)
    seed, arms = values.get("seed"), values.get("arms")
    if type(seed) is not int or not isinstance(arms, dict):
        raise ValueError(f"node: {path}: a simulation needs an integer seed and a table of arms")
    policies = {arm: Policy.from_dict(policy) for arm, policy in arms.items()}
    names = {name for policy in policies.values() for name in policy.mechanisms}
    for name in filter(is_reference, names):
        admit(name)  # its path may be named: the simulation's operator chose it
    admit_installed(name for name in names if not is_reference(name))
    return seed, policies


def are_classes(names: object) -> bool:
    """Return whether a value is a list of names that can be shown: a terminal interprets some characters."""
    return isinstance(names, list) and all(isinstance(name, str) and name.isprintable() for name in names)


def _known(values: Mapping[str, Any], keys: set[str], path: Path) -> None:
    unknown = sorted(set(values) - keys)
    if unknown:
        raise ValueError(f"node: {path}: unknown key {unknown[0]!r}; known here: {', '.join(sorted(keys))}")
