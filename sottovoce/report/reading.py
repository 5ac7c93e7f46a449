"""Contents of a run's folder for its report: results, attacks, audit, ledgers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from client.store.ledger import Ledger, LedgerError
from simulations.errors import UserError
from simulations.experiment import slug
from simulations.experiment.result import ArmResult, arms_of, with_infinity
from simulations.run.journal import refuse_unfinished

#: Bytes of ledgers up to which they are read; larger ones are not, because a row takes more in memory than on disk.
MOST_READ = 64 * 2**20


@dataclass(frozen=True)
class Account:
    """Charges of all nodes' ledgers in one arm, in training and inference together.

    Args:
        users: Number of users.
        releases: Number of releases.
        most: Most releases of one user.
        bytes: Bytes of all releases.
    """

    users: int
    releases: int
    most: int
    bytes: int


@dataclass(frozen=True)
class Finished:
    """One run.

    Args:
        folder: Folder of the run; for a protocol that has not run, the experiment's file.
        results: Content of results.json, with infinite ε as floats.
        attacks: Content of attacks.json; None if there is no such file.
        audit: Content of audit.json; None if there is no such file.
        accounts: Charges by arm; None if the ledgers are too large to read.
        has_run: False for a protocol that has not run.
    """

    folder: Path
    results: Mapping[str, Any]
    attacks: Mapping[str, Any] | None
    audit: Mapping[str, Any] | None
    accounts: Mapping[str, Account] | None
    has_run: bool = True

    @property
    def name(self) -> str:
        """Return the name that distinguishes it from other runs of a report."""
        return f"{self.results['name']}, seed {self.results['seed']}"

    @cached_property
    def arms(self) -> tuple[ArmResult, ...]:
        """Return its results, arm by arm."""
        return arms_of(self.results)


def read(folder: Path | str) -> Finished:
    """Read a finished run.

    Raises:
        UserError: The folder holds no finished run, or a file in it is not readable. The message is one line.
    """
    folder = Path(folder)
    refuse_unfinished(folder)
    results = _json(folder / "results.json")
    if results is None:
        raise UserError(f"{folder}: holds no results.json; name the folder of a finished run")
    arms = results.get("arms")
    complete = {"name", "seed", "way", "classes", "chance"} <= set(results) and isinstance(arms, list)
    if not complete or not all(isinstance(arm, dict) and "name" in arm and "way" in arm for arm in arms or [None]):
        raise UserError(f"{folder / 'results.json'}: is no result of a run; name the folder of a finished run")
    rungs = [rung for arm in arms or [] for key in ("ladder", "test_ladder") for rung in arm.get(key) or []]
    if not _all_have(rungs, _RUNG):
        raise UserError(f"{folder / 'results.json'}: its ladders are of another version; run the experiment again")
    attacks = _json(folder / "attacks.json")
    audit = _json(folder / "audit" / "audit.json")
    for name, content, keys in (("attacks.json", attacks, _ATTACK), ("audit/audit.json", audit, _AUDIT)):
        if content is not None and not _all_have(content.get("entries"), keys):
            raise UserError(f"{folder / name}: is not what this version writes; make it again")
    return Finished(folder, results, attacks, audit, _accounts(folder, [arm.name for arm in arms_of(results)]))


#: Keys that the report needs in an entry.
_RUNG = {"rung", "epsilon", "delta", "unit", "neighbours", "assumption", "worst_case", "unprotected"}
_ATTACK = {"arm", "attack", "success", "baseline", "bound", "interval", "alarm"}
_AUDIT = {"name", "pair", "verdict"}


def _all_have(entries: Any, keys: set[str]) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, dict) and keys <= set(entry) for entry in entries)


def _json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file; None if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not readable; make it again") from None
    try:
        content = with_infinity(json.loads(text))
    except ValueError:
        raise UserError(f"{path}: is not readable; make it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not readable; make it again")
    return content


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
