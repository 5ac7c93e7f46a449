"""Simulation of an experiment, from its description to its folder: the commands `demo` and `simulate` in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from simulations.experiment import Experiment, load
from simulations.output.atomic import local_path
from simulations.run.journal import begun, resumed, started
from simulations.transport.engine import check_address, run_on_flower

# `run` is imported where it is called: it loads torch, and an error in an experiment must be reported at once.


def simulate(
    experiment: Experiment | Path | str,
    out: Path | str,
    *,
    overrides: Iterable[str] = (),
    ray_address: str | None = None,
    actors: int | None = None,
) -> dict[str, Any]:
    """Run every arm of an experiment on Flower and Ray, and write results.json, table, figures, models and ledgers.

    `experiment` is the result of `load`, a TOML file or a bundled name. `overrides` change it, such as
    "population.users=500". `out` is the run folder, new or empty. `ray_address` is host:port of a Ray cluster to join.
    `actors` is the number of processes that run nodes, by default one for each core. A run that was stopped goes on
    with `resume`.

    Returns:
        The contents of results.json, with infinities as floats.

    Raises:
        UserError: The experiment, its data or `out` cannot be used.
    """
    engine = _engine(ray_address, actors)
    study = experiment if isinstance(experiment, Experiment) else load(experiment, overrides)
    with started(local_path(out)) as part:
        return _results(study, part, engine)


def resume(out: Path | str, *, ray_address: str | None = None, actors: int | None = None) -> dict[str, Any]:
    """Run the rest of a stopped run into `out`, and return the results of the whole run, as `simulate` does.

    Users repeat what they have released, at no cost.

    Raises:
        UserError: There is no run to resume, or the code or the data have changed.
    """
    engine = _engine(ray_address, actors)
    with resumed(local_path(out)) as part:
        return _results(load(part / "experiment.toml"), part, engine)


def gone_on(experiment: Experiment | Path | str, out: Path | str, **how: Any) -> dict[str, Any]:
    """Return the results of `resume` if a run into `out` was stopped, and of `simulate` otherwise."""
    if begun(Path(out)):
        return resume(out, **how)
    return simulate(experiment, out, **how)


def _engine(ray_address: str | None, actors: int | None) -> Callable[..., Any]:
    if ray_address is not None:
        check_address(ray_address)
    return partial(run_on_flower, address=ray_address, actors=actors)


def _results(study: Experiment, part: Path, engine: Callable[..., Any]) -> dict[str, Any]:
    from simulations.run import report
    from simulations.run.run import run

    results = run(study, part, engine=engine)
    report.write(results, part)
    return results
