"""Ladder of an experiment or of mechanisms, as rungs and as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from mechanisms.accounting.ladder import Rung, ladder_of

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


def ladder(
    source: Any,
    *,
    users: int | None = None,
    records: int | None = 1,
    stages: int = 1,
    delta: float = 1e-6,
    classes: int = 2,
    words: str | None = None,
    accept_unprotected: Sequence[str] = (),
    crowd: int | None = None,
) -> Any:
    """Return ε of one user, rung by rung.

    Args:
        source: An experiment, as a file, a bundled name or the result of `load`; or a mechanism; or a list of
            mechanisms, one for each channel that is released of a record. In a list, a mechanism may be text, as
            "purkayastha:epsilon=4,dim=16" or "santext:epsilon=10,tokens=20".
        users: Number of users that a shuffler delivers; None without a shuffler.
        records: Maximum number of records of a user; None if unknown.
        stages: Number of stages in which a user releases every record anew.
        delta: δ of every rung.
        classes: Number of classes of a label that is given as text.
        words: Word vectors of a text that is given as text, a file or a checkpoint; "minilm" by default.
        accept_unprotected: What leaves in clear and is public, "NAME: why" each, as in a policy.
        crowd: Least number of delivered users who share what is public.

    Returns:
        A `Ladder` of mechanisms; `Ladders` of an experiment, at the δ, the users and the records that it states.

    Raises:
        ValueError: The arguments do not fit together. The message is one line.
    """
    arguments = (users, records, stages, delta, classes, words, tuple(accept_unprotected), crowd)
    if isinstance(source, str | PathLike) or hasattr(source, "arms"):
        if arguments != (None, 1, 1, 1e-6, 2, None, (), None):
            raise ValueError("ladder: an experiment states all this itself; change it with load(file, [...])")
        return _of_experiment(source)
    mechanisms = [source] if hasattr(source, "guarantee") else list(source)
    numbers: dict[str, Any] = {"users": users, "records": records, "stages": stages, "delta": delta}
    if words is None and not accept_unprotected and not any(isinstance(item, str) for item in mechanisms):
        return Ladder(ladder_of(mechanisms, crowd=crowd, **numbers))
    from simulations.analysis.budget import Texts, ladder_of_release

    texts = Texts(words, None, accept_unprotected, crowd)
    return Ladder(ladder_of_release(mechanisms, classes=classes, texts=texts, **numbers)[1])


def _of_experiment(source: Any) -> Ladders:
    from simulations.analysis.budget import ladders_of_experiment
    from simulations.experiment import load

    experiment = source if hasattr(source, "arms") else load(fspath(source))
    result = Ladders()
    for arm in ladders_of_experiment(experiment, records=None, classes=None)["arms"]:
        for user, key in (("training", "ladder"), ("inference", "test_ladder")):
            if arm[key] is not None:
                result[arm["arm"], user] = Ladder(map(_rung, arm[key]))
    return result


def _rung(entry: Mapping[str, Any]) -> Rung:
    """Return a rung from its JSON-ready form."""
    values = {key: value for key, value in entry.items() if key not in ("rung", "statement", "unprotected")}
    values |= {key: _number(values[key]) for key in ("epsilon", "worst_case")}
    return Rung(entry["rung"], statement=entry["statement"] or "", unprotected=tuple(entry["unprotected"]), **values)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _row(rung: Rung) -> Iterable[Any]:
    entry = rung.to_dict()
    return [_number(entry[name]) if name in ("epsilon", "worst_case") else entry[name] for name in COLUMNS]
