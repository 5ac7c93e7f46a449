"""What must be remarked of references before anything is read off them: that they do not say what noise costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from simulations.experiment import CENTRALISED
from simulations.output.numbers import is_finite
from simulations.run import trust
from simulations.run.comparison import gap, shown
from simulations.run.over_runs import standard_error

Results = Mapping[str, Any]
Arm = Mapping[str, Any]


def remarks(runs: Sequence[Results]) -> list[str]:
    """A line for each reference without noise that private arms beat, on the device, by more than the error of the
    difference, and for each that lies so far below a centralised one. runs: of the same arms, one for each seed."""
    arms = runs[0]["arms"]
    private = [arm["name"] for arm in arms if not trust.unprotected(arm)]
    centralised = [arm["name"] for arm in arms if arm.get("way") == CENTRALISED]
    lines = []
    for arm in filter(_without_noise, arms):
        name, other = arm["name"], arm.get("way") != CENTRALISED
        if above := [each for each in private if _below(runs, name, each)]:
            why = _MAPS if other else _HEAD
            lines.append(f"{name}: lies below {', '.join(above)}, which are private: {why}.")
        for best in centralised if other else ():
            if (found := _below(runs, name, best)) is not None:
                lines.append(
                    f"{name}: lies below {best}, by {shown(found).removeprefix('+')}: that much is lost on the way to "
                    "what users release, before any noise."
                )
    return lines


_MAPS = (
    "its maps or its head are the limit (too little public text?), so what it has over the others is not what noise "
    "costs"
)
_HEAD = "its head is the limit, so it is no upper line for these data"


def _without_noise(arm: Arm) -> bool:
    return bool(arm.get("reference")) and (arm.get("budget") or {}).get("central_epsilon") is None


def _below(runs: Sequence[Results], name: str, other: str) -> dict[str, float] | None:
    """{"difference", "error"} of what `other` has over `name`, where that is above its error: the standard error over
    runs, and no less than by test text, since runs may share their test texts. None where it is not, or not known."""
    pairs = [gap(results, other, name, "on_device") for results in runs]
    known = [pair for pair in pairs if pair]
    if len(known) < len(pairs):
        return None
    values = [pair["difference"] for pair in known]
    by_text = [pair["error"] for pair in known if is_finite(pair["error"])]
    error = max(fmean(by_text) if by_text else 0.0, standard_error(values) or 0.0)
    return {"difference": fmean(values), "error": error} if fmean(values) > error else None
