"""A node's folder: its configuration (node.json), its shards, its ledgers.

On a device: {"encoder": folder or null, "randomness": "secure", "policy": {...}}.
In a simulation: {"encoder": folder or null, "simulation": {"seed": int, "arms": {slug: policy}}}.
Only a simulation has a seed; anywhere else it is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.ledger import Ledger
from client.policy import Policy, Refused
from client.shard import Shard
from mechanisms.streams import SecureStreams, SimulationStreams

_DEVICE = {"encoder", "randomness", "policy"}
_SIMULATION = {"encoder", "simulation"}


@dataclass(frozen=True)
class Node:
    """What a node is. seed: None on a device. policies: by arm; a device has the one arm ""."""

    folder: Path
    encoder: Path | None
    seed: int | None
    policies: Mapping[str, Policy]

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
        self.policy(arm)
        name = f"ledger-{arm}.sqlite" if arm else "ledger.sqlite"
        return Ledger(self.folder / name, durable=not self.simulated)

    def shard(self, split: str) -> Shard:
        """The node's records of a split, "train" or "test"."""
        return Shard.load(self.folder, split, self.encoder)


def load_node(folder: Path | str) -> Node:
    """The node in a folder. Raises ValueError where node.json is missing or says anything it may not say."""
    path = Path(folder) / "node.json"
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        raise ValueError(f"node: {path} cannot be read as JSON") from None
    if not isinstance(values, dict):
        raise ValueError(f"node: {path} is not a table")
    encoder = values.get("encoder")
    if not (encoder is None or isinstance(encoder, str)):
        raise ValueError(f"node: {path}: encoder must be a folder or null")
    where = None if encoder is None else path.parent / encoder  # an absolute folder stays as it is
    if "simulation" in values:
        _known(values, _SIMULATION, path)
        seed, arms = _simulation(values["simulation"], path)
        return Node(path.parent, where, seed, arms)
    if "seed" in values:
        raise ValueError(f"node: {path}: a seed belongs in a simulation; a device has none")
    _known(values, _DEVICE, path)
    if values.get("randomness") != "secure":
        raise ValueError(f'node: {path}: randomness must be "secure" on a device')
    if "policy" not in values:
        raise ValueError(f"node: {path}: a device needs a policy")
    return Node(path.parent, where, None, {"": Policy.from_dict(values["policy"])})


def write_node(
    folder: Path | str,
    *,
    encoder: Path | str | None = None,
    policy: Policy | None = None,
    seed: int | None = None,
    arms: Mapping[str, Policy] | None = None,
) -> None:
    """Write node.json: of a device (a policy), or of a simulation (a seed, and a policy for each arm)."""
    values: dict[str, Any] = {"encoder": None if encoder is None else str(encoder)}
    if policy is not None and seed is None and arms is None:
        values |= {"randomness": "secure", "policy": policy.to_dict()}
    elif policy is None and seed is not None and arms is not None:
        values["simulation"] = {"seed": seed, "arms": {arm: p.to_dict() for arm, p in arms.items()}}
    else:
        raise ValueError("node: give a policy (a device), or a seed and arms (a simulation)")
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "node.json").write_text(json.dumps(values, indent=1) + "\n")


def _simulation(values: Any, path: Path) -> tuple[int, dict[str, Policy]]:
    if not isinstance(values, dict):
        raise ValueError(f"node: {path}: simulation must be a table")
    _known(values, {"seed", "arms"}, path)
    seed, arms = values.get("seed"), values.get("arms")
    if type(seed) is not int or not isinstance(arms, dict):
        raise ValueError(f"node: {path}: a simulation needs an integer seed and a table of arms")
    return seed, {arm: Policy.from_dict(policy) for arm, policy in arms.items()}


def _known(values: Mapping[str, Any], keys: set[str], path: Path) -> None:
    unknown = sorted(set(values) - keys)
    if unknown:
        raise ValueError(f"node: {path}: unknown key {unknown[0]!r}; known here: {', '.join(sorted(keys))}")
