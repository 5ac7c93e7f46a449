"""What a run's folder holds for its report: results, what attacks and an audit gave, what its ledgers say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.store.ledger import Ledger, LedgerError
from simulations.errors import UserError
from simulations.experiment import slug
from simulations.run.journal import refuse_unfinished

#: Bytes of ledgers that are read; above, they are only counted: a row in memory takes more than on the disk.
MOST_READ = 64 * 2**20


@dataclass(frozen=True)
class Account:
    """What the ledgers of all nodes charged in one arm, training and asking together."""

    users: int
    releases: int
    most: int
    bytes: int


@dataclass(frozen=True)
class Finished:
    """One run. results, attacks, audit: as their files have them, with infinite ε as floats; attacks, audit: None where
    there is no such file. accounts: by arm; None where ledgers are too large to be read here. has_run: False of a
    protocol that has not run, of which `folder` is the experiment's file."""

    folder: Path
    results: Mapping[str, Any]
    attacks: Mapping[str, Any] | None
    audit: Mapping[str, Any] | None
    accounts: Mapping[str, Account] | None
    has_run: bool = True

    @property
    def name(self) -> str:
        """What tells it from other runs of a report."""
        return f"{self.results['name']}, seed {self.results['seed']}"

    @property
    def arms(self) -> list[dict[str, Any]]:
        """Its results, arm by arm."""
        return list(self.results["arms"])


def read(folder: Path | str) -> Finished:
    """A finished run. Raises UserError, one line, where the folder is none, or a file in it is not readable."""
    folder = Path(folder)
    refuse_unfinished(folder)
    results = _json(folder / "results.json")
    if results is None:
        raise UserError(f"{folder}: holds no results.json; name the folder of a finished run")
    arms = results.get("arms")
    whole = {"name", "seed", "way", "classes", "chance"} <= set(results) and isinstance(arms, list)
    if not whole or not all(isinstance(arm, dict) and "name" in arm and "way" in arm for arm in arms or [None]):
        raise UserError(f"{folder / 'results.json'}: is no result of a run; name the folder of a finished run")
    rungs = [rung for arm in arms or [] for key in ("ladder", "test_ladder") for rung in arm.get(key) or []]
    if not _all_have(rungs, _RUNG):
        raise UserError(f"{folder / 'results.json'}: its ladders are of another version; run the experiment again")
    attacks = _json(folder / "attacks.json")
    audit = _json(folder / "audit" / "audit.json")
    for name, content, keys in (("attacks.json", attacks, _ATTACK), ("audit/audit.json", audit, _AUDIT)):
        if content is not None and not _all_have(content.get("entries"), keys):
            raise UserError(f"{folder / name}: is not what this version writes; make it again")
    return Finished(folder, results, attacks, audit, _accounts(folder, [arm["name"] for arm in arms or []]))


#: What an entry must have to be told of.
_RUNG = {"rung", "epsilon", "delta", "unit", "neighbours", "assumption", "worst_case", "unprotected"}
_ATTACK = {"arm", "attack", "success", "baseline", "bound", "interval", "alarm"}
_AUDIT = {"name", "pair", "verdict"}


def _all_have(entries: Any, keys: set[str]) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, dict) and keys <= set(entry) for entry in entries)


def _json(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not readable; make it again") from None
    try:
        content = json.loads(text, object_pairs_hook=infinite)
    except ValueError:
        raise UserError(f"{path}: is not readable; make it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not readable; make it again")
    return content


#: Keys under which "inf" is a number, and no name.
_NUMBERS = ("epsilon", "worst_case", "claimed", "exact", "measured")


def infinite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which "inf" is a number where its key is that of one."""
    return {key: _number(key, value) for key, value in pairs}


def _number(key: str, value: Any) -> Any:
    return math.inf if value == "inf" and key.removesuffix("_at_delta").endswith(_NUMBERS) else value


def _accounts(folder: Path, arms: list[str]) -> dict[str, Account] | None:
    files = {arm: sorted(folder.glob(f"nodes/*/ledger-{slug(arm)}.sqlite")) for arm in arms}
    if sum(path.stat().st_size for paths in files.values() for path in paths) > MOST_READ:
        return None
    return {arm: _account(paths) for arm, paths in files.items() if paths}


def _account(paths: list[Path]) -> Account:
    releases: dict[tuple[int, int], int] = {}
    size = 0
    for node, path in enumerate(paths):
        try:
            with Ledger(path, durable=False) as ledger:
                rows = ledger.rows()
        except LedgerError as error:
            raise UserError(f"{path}: {error}") from error
        for row in rows:
            releases[node, row.user] = releases.get((node, row.user), 0) + 1
            size += len(row.payload)
    return Account(len(releases), sum(releases.values()), max(releases.values(), default=0), size)
