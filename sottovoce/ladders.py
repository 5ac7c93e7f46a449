"""Ladder of an experiment or of a mechanism, as rungs and as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from mechanisms.accounting.ladder import Rung
from mechanisms.accounting.ladder import ladder as _of_releases
from mechanisms.channels import EMBEDDING

if TYPE_CHECKING:
    from pandas import DataFrame

# pandas and the simulations are imported where they are used: a device has neither.

COLUMNS = ("rung", "epsilon", "delta", "worst_case", "unit", "neighbours", "assumption")


class Ladder(tuple[Rung, ...]):
    """Rungs of one user, from the smallest unit up."""

    __slots__ = ()

    def to_frame(self) -> DataFrame:
        """Return one row for each rung, with the columns COLUMNS; NaN where an ε does not apply."""
        import pandas

        return pandas.DataFrame([_row(rung) for rung in self], columns=list(COLUMNS))


class Ladders(dict[tuple[str, str], Ladder]):
    """Ladders of an experiment, by (arm, user): the user is "training" or "inference"."""

    def to_frame(self) -> DataFrame:
        """Return one row for each arm, user and rung, with the columns "arm", "user" and COLUMNS."""
        import pandas

        rows = [(arm, user, *_row(rung)) for (arm, user), rungs in self.items() for rung in rungs]
        return pandas.DataFrame(rows, columns=["arm", "user", *COLUMNS])


def ladder(source: Any, label: Any = None, *, users: int | None = None, delta: float = 1e-6, **more: Any) -> Any:
    """Return ε of one user, rung by rung.

    Args:
        source: An experiment, as a file, a bundled name or the result of `load`; or a mechanism, of any channel; or
            None if only other channels release.
        label: Mechanism of a label that is released too.
        users: Number of users that a shuffler delivers; None without a shuffler.
        delta: δ of every rung.
        more: Further arguments of `mechanisms.accounting.ladder.ladder`, as records or stages.

    Returns:
        A `Ladder` of a mechanism; `Ladders` of an experiment, at the δ, the users and the records that it states.

    Raises:
        ValueError: The arguments do not fit together. The message is one line.
    """
    if isinstance(source, str | PathLike) or hasattr(source, "arms"):
        if label is not None or users is not None or more:
            raise ValueError("ladder: an experiment states labels and users itself; change it with load(file, [...])")
        return _of_experiment(source)
    channel = EMBEDDING.name if source is None or source.name == "identity" else source.channel
    mechanisms = {EMBEDDING.name: None, channel: source}
    if channel == "label":
        if label is not None:
            raise ValueError("ladder: the mechanism is a label's already; leave label out")
        label = mechanisms.pop("label")
    embedding = mechanisms.pop(EMBEDDING.name)
    return Ladder(_of_releases(embedding, label, users=users, delta=delta, **mechanisms, **more))


def _of_experiment(source: Any) -> Ladders:
    from simulations.analysis.budget import ladders_of_experiment
    from simulations.experiment import load

    experiment = source if hasattr(source, "arms") else load(fspath(source))
    found = Ladders()
    for arm in ladders_of_experiment(experiment, records=None, classes=None)["arms"]:
        for user, key in (("training", "ladder"), ("inference", "test_ladder")):
            if arm[key] is not None:
                found[arm["arm"], user] = Ladder(map(_rung, arm[key]))
    return found


def _rung(said: Mapping[str, Any]) -> Rung:
    """Return a rung from its JSON-ready form."""
    own = {key: value for key, value in said.items() if key not in ("rung", "statement", "unprotected")}
    own |= {key: _number(own[key]) for key in ("epsilon", "worst_case")}
    return Rung(said["rung"], statement=said["statement"] or "", unprotected=tuple(said["unprotected"]), **own)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _row(rung: Rung) -> Iterable[Any]:
    said = rung.to_dict()
    return [_number(said[name]) if name in ("epsilon", "worst_case") else said[name] for name in COLUMNS]
