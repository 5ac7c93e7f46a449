"""A node's folder: its configuration (node.json), its shards, its ledgers.

On a device: {"encoder": folder or null, "randomness": "secure", "policy": {...}}, and "seal" where its releases leave
sealed: the training server's public key, 64 hexadecimal digits. It stands here and never comes with a message: whoever
carries messages would put in a key of their own. "model_seal", likewise: the key of the model that users ask, which is
exposed, and opens nothing that was sealed to the other. "publisher": the public key whose bundles the device takes.
In a simulation: {"encoder": folder or null, "simulation": {"seed": int, "arms": {slug: policy}}}.
Either may have "vocabulary" (of texts) and "masked_lm" (what some text mechanisms read), each a folder or null.
Only a simulation has a seed; anywhere else it is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from mechanisms.messages.sealed import require_public_key
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.vocabulary import Vocabulary

NODE = "node.json"
_FOLDERS = ("encoder", "vocabulary", "masked_lm")
_DEVICE = {*_FOLDERS, "randomness", "policy", "seal", "model_seal", "publisher"}
_SIMULATION = {*_FOLDERS, "simulation"}
_SEALS = ("seal", "model_seal")
#: Between the name of an arm and the end of the name of the ledger of its stand-ins.
_STAND_INS = ".stand-ins"


class NoDevice(ValueError):
    """A folder is not a device's, where one was asked for."""


@dataclass(frozen=True)
class Node:
    """What a node is. seed: None on a device. policies: by arm; a device has the one arm "".

    encoder, vocabulary_folder, masked_lm: the folders of its encoder, its vocabulary and its masked language model,
    where it has them. seal: the public key that its releases are sealed to, 32 bytes; None where they leave in clear,
    as in a simulation. model_seal: likewise, of what asks the model. publisher: the public key, 32 bytes, whose bundles
    a device takes; None where it takes none.
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

    @property
    def exposed(self) -> bool:
        """Whether a device's policy lets releases go only among others', and it has no key to hide what they say."""
        return not self.simulated and self.seal is None and self.policy("").minimum_users > 0

    @property
    def simulated(self) -> bool:
        return self.seed is not None

    @property
    def streams(self) -> SimulationStreams | SecureStreams:
        """Where its randomness comes from: the operating system, unless this is a simulation."""
        return SecureStreams() if self.seed is None else SimulationStreams(self.seed)

    def policy(self, arm: str) -> Policy:
        """The policy of an arm. Raises Refused for an arm that the node does not have."""
        if arm not in self.policies:
            raise Refused("arm")
        return self.policies[arm]

    def ledger(self, arm: str) -> Ledger:
        """The ledger of an arm, opened. Raises Refused for an arm that the node does not have."""
        return Ledger(self.ledger_path(arm), durable=not self.simulated)

    def ledger_path(self, arm: str) -> Path:
        """Where the ledger of an arm lies. Raises Refused for an arm that the node does not have."""
        self.policy(arm)
        return self.folder / (f"ledger-{arm}.sqlite" if arm else "ledger.sqlite")

    def stand_ins(self, arm: str) -> Ledger | None:
        """The ledger of what an arm released in place of users who could pay no more, opened; None where its policy has
        no such thing. Raises Refused for an arm that the node does not have."""
        if not self.policy(arm).stand_ins:
            return None
        return Ledger(self.ledger_path(arm).with_suffix(f"{_STAND_INS}.sqlite"), durable=not self.simulated)

    def shard(self, split: str) -> Shard:
        """The node's records of a split, "train" or "test"."""
        return Shard.load(self.folder, split, self.encoder, self.masked_lm)

    def vocabulary(self, identity: str) -> Vocabulary:
        """The vocabulary of that identity, of those that are installed here. Raises Refused for another."""
        installed = None if self.vocabulary_folder is None else vocabularies.load_cached(self.vocabulary_folder)
        if installed is None or installed.identity != identity:
            raise Refused("vocabulary")
        return installed


def load_node(folder: Path | str) -> Node:
    """The node in a folder. Raises ValueError where node.json is missing or says anything it may not say."""
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
    publisher = _public_key(values.get("publisher"), "publisher", path)
    seal, model_seal = (_seal(values.get(name), name, path) for name in _SEALS)
    return Node(path.parent, encoder, None, {"": policy}, vocabulary, masked_lm, seal, publisher, model_seal)


def load_device(folder: Path, *, simulated: str, missing: str = "make it one with: sottovoce device install") -> Node:
    """The device in a folder. Raises NoDevice, one line, where there is none (`missing`: what to do about it) or it is
    a simulation's node (`simulated`: how the line goes on, and why that will not do); ValueError as `load_node` does.
    """
    if not (folder / NODE).is_file():
        raise NoDevice(f"{folder}: is no device's folder; {missing}")
    node = load_node(folder)
    if node.simulated:
        raise NoDevice(f"{folder}: is a simulation's node{simulated}")
    return node


def write_node(
    folder: Path | str,
    *,
    encoder: Path | str | None = None,
    vocabulary: Path | str | None = None,
    masked_lm: Path | str | None = None,
    policy: Policy | None = None,
    seal: bytes | None = None,
    model_seal: bytes | None = None,
    publisher: bytes | None = None,
    seed: int | None = None,
    arms: Mapping[str, Policy] | None = None,
) -> None:
    """Write node.json, whole: of a device (a policy, the keys that it seals to, the publisher that it trusts), or of a
    simulation (a seed, and a policy for each arm)."""
    folders = {"encoder": encoder, "vocabulary": vocabulary, "masked_lm": masked_lm}
    values: dict[str, Any] = {k: None if v is None else str(v) for k, v in folders.items()}
    seals = dict(zip(_SEALS, (seal, model_seal), strict=True))
    if policy is not None and seed is None and arms is None:
        values |= {"randomness": "secure", "policy": policy.to_dict()}
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
    with replacing(Path(folder) / NODE) as (draft,):
        draft.write_text(json.dumps(values, indent=1) + "\n")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """One at a time changes a device, its records or its node.json; the next one waits."""
    while True:
        opened = os.open(folder / NODE, os.O_RDONLY)  # not the folder: its lock is the witness's
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if os.fstat(opened).st_ino == (folder / NODE).stat().st_ino:  # whoever was waited for may have replaced it
                yield
                return
        finally:
            os.close(opened)


def _folder(values: Mapping[str, Any], name: str, path: Path) -> Path | None:
    folder = values.get(name)
    if not (folder is None or isinstance(folder, str)):
        raise ValueError(f"node: {path}: {name} must be a folder or null")
    return None if folder is None else path.parent / folder  # an absolute folder stays as it is


def _seal(key: Any, name: str, path: Path) -> bytes | None:
    read = _public_key(key, name, path)
    try:
        if read is not None:
            require_public_key(read)
    except ValueError:
        raise ValueError(f"node: {path}: {name} must be a public key, 64 hexadecimal digits") from None
    return read


def _public_key(key: Any, name: str, path: Path) -> bytes | None:
    if key is None:
        return None
    if not is_hex(key):
        raise ValueError(f"node: {path}: {name} must be a public key, 64 hexadecimal digits")
    return bytes.fromhex(key)


def _simulation(values: Any, path: Path) -> tuple[int, dict[str, Policy]]:
    if not isinstance(values, dict):
        raise ValueError(f"node: {path}: simulation must be a table")
    _known(values, {"seed", "arms"}, path)
    seed, arms = values.get("seed"), values.get("arms")
    if type(seed) is not int or not isinstance(arms, dict):
        raise ValueError(f"node: {path}: a simulation needs an integer seed and a table of arms")
    if any(arm.endswith(_STAND_INS) for arm in arms):  # its ledger would be that of another arm's stand-ins
        raise ValueError(f"node: {path}: the name of an arm cannot end in {_STAND_INS}")
    policies = {arm: Policy.from_dict(policy) for arm, policy in arms.items()}
    for name in {name for policy in policies.values() for name in policy.mechanisms}:
        admit(name)  # by its place too: whoever runs the simulation has named it
    return seed, policies


def _known(values: Mapping[str, Any], keys: set[str], path: Path) -> None:
    unknown = sorted(set(values) - keys)
    if unknown:
        raise ValueError(f"node: {path}: unknown key {unknown[0]!r}; known here: {', '.join(sorted(keys))}")
