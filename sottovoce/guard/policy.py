"""Policy of a guard: a TOML file of the node's operator, which no app and no server can read or change."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from client.accounted import Accountant
from client.policy import Policy
from mechanisms.catalogue import admit_installed
from mechanisms.checks import is_hex
from sottovoce.guard.sandbox import Limits, Sandbox

_KEYS = {"ledger", "data", "apps", "publishers", "policy", "limits", "releases", "instead"}
#: Seconds of a window's first half that are left for everything but the app.
_BESIDE = 5.0


@dataclass(frozen=True)
class GuardPolicy:
    """Policy of a guard.

    Attributes:
        accountant: Ledger, limits on ε and δ, and for each type of message the parts of an answer that leave.
        sandbox: Sandbox in which apps run.
        apps: SHA-256 (hex) of the app bundles that may run.
        publishers: Ed25519 keys (OpenSSH), by their Flower id, of publishers whose signed bundles may run.
    """

    accountant: Accountant
    sandbox: Sandbox
    apps: tuple[str, ...]
    publishers: Mapping[str, str]

    @property
    def window(self) -> float:
        """Return the seconds within which an answer leaves; 0 if it leaves at once."""
        return self.accountant.policy.window


def load_policy(path: Path) -> GuardPolicy:
    """Return the policy in a file. Paths in it are relative to its folder.

    Args:
        path: TOML file. `docs/how-to/guard.md` has its keys.

    Raises:
        ValueError: The file is missing or invalid, or an app could see the policy or the ledger. The message is one
            line.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"guard: {path}: cannot be read as TOML: {' '.join(str(error).split())}") from None
    try:
        made = _policy(values, path.resolve().parent)
        hidden(made.sandbox, path)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return made


def hidden(sandbox: Sandbox, *files: Path) -> None:
    """Check that no app sees a file.

    Raises:
        ValueError: It lies in a folder that the sandbox shows.
    """
    for file in files:
        for place in sandbox.visible:
            if file.resolve().is_relative_to(place.resolve()):
                raise ValueError(f"guard: {file}: lies in {place}, which apps can read; move it")


def _policy(values: Mapping[str, Any], folder: Path) -> GuardPolicy:
    if unknown := sorted(set(values) - _KEYS):
        raise ValueError(f"guard: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    if not isinstance(values.get("ledger"), str):
        raise ValueError("guard: ledger must name a file")
    ledger = (folder / values["ledger"]).resolve()
    apps, publishers = values.get("apps", []), _table(values, "publishers")
    if not (isinstance(apps, list) and all(is_hex(each) for each in apps)):
        raise ValueError("guard: apps must list SHA-256 digests of bundles, 64 hexadecimal digits each")
    if not apps and not publishers:
        raise ValueError("guard: no app may run; list digests in apps, or keys in publishers")
    data = values.get("data", [])
    if not (isinstance(data, list) and all(isinstance(each, str) for each in data)):
        raise ValueError("guard: data must list files or folders")
    given = _table(values, "limits")
    if unknown := sorted(set(given) - {field.name for field in fields(Limits)}):
        raise ValueError(f"limits: unknown key {unknown[0]!r}")
    sandbox = Sandbox(tuple((folder / each).resolve() for each in data), Limits(**given))
    for place in sandbox.data:
        if not place.exists():
            raise ValueError(f"guard: data: {place}: there is no such file or folder")
    hidden(sandbox, ledger)
    policy = Policy.from_dict(_table(values, "policy"))
    admit_installed(policy.mechanisms)
    if policy.window and sandbox.limits.seconds + _BESIDE > policy.window / 2:
        raise ValueError(
            f"guard: an answer must be ready in the first half of the window: {sandbox.limits.seconds:g} s for the app "
            f"and {_BESIDE:g} s more are over {policy.window / 2:g} s; set limits.seconds or policy.window"
        )
    releases = _table(values, "releases")
    if not releases:
        raise ValueError("guard: no type of message is released; add [releases.train.arrays]")
    accountant = Accountant.of(ledger, policy, releases, _table(values, "instead"))
    return GuardPolicy(accountant, sandbox, tuple(apps), publishers)


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"guard: {name} must be a table")
    return table
