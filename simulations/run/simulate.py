"""A study from its description to its folder: what the commands `demo` and `simulate` do, for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from simulations.experiment import Experiment, load, to_toml
from simulations.output.remote import is_url
from simulations.run.journal import begun, resumed, started
from simulations.run.published import resumed_at, started_at, unfinished_at, url_of
from simulations.transport.engine import check_address, run_on_flower

# `run` is imported where it is called: it loads torch, and a mistake in an experiment must be said at once.


def simulate(
    experiment: Experiment | Path | str, out: Path | str, *, overrides: Iterable[str] = (),
    ray_address: str | None = None, actors: int | None = None, share: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Run every arm of an experiment on Flower and Ray, and leave its folder: results.json, the table, figures, models
    and ledgers.

    experiment: what `load` gives; or a TOML file, or the name of a bundled one, with overrides such as
    "population.users=500". out: the run folder, new or empty, or a URL of fsspec's that it is put to. ray_address: of
    a Ray cluster to join, host:port. actors: how many processes answer for nodes, one for each core where it is None.
    share: of how many runs at once on the cluster this is one. Returns what results.json holds, with infinities as
    floats.

    A run that is stopped goes on with `resume`. Raises UserError, one line, on what a user can mend.
    """
    if ray_address is not None:
        check_address(ray_address)
    engine = partial(run_on_flower, address=ray_address, actors=actors, share=share)
    study = experiment if isinstance(experiment, Experiment) else load(experiment, overrides)
    if is_url(out):
        with started_at(str(out), to_toml(study)) as (part, publish):
            return _results(study, part, engine, publish)
    with started(Path(out), to_toml(study)) as part:
        return _results(study, part, engine)


def resume(
    out: Path | str, *, ray_address: str | None = None, actors: int | None = None, share: int = 1
) -> dict[str, Any]:
    """The rest of a run into the folder `out` that was stopped, and the results of all of it; see `simulate`.

    Users repeat what they have released, at no cost. UserError where there is nothing to go on with, or the code or
    the data are others.
    """
    if ray_address is not None:
        check_address(ray_address)
    engine = partial(run_on_flower, address=ray_address, actors=actors, share=share)
    if (url := url_of(out)) is not None:
        with resumed_at(url) as (part, publish):
            return _results(load(part / "experiment.toml"), part, engine, publish)
    with resumed(Path(out)) as part:
        return _results(load(part / "experiment.toml"), part, engine)


def gone_on(experiment: Experiment | Path | str, out: Path | str, **how: Any) -> dict[str, Any]:
    """`resume` where a run into `out` was stopped after it had begun, else `simulate`; how: what both take."""
    if unfinished_at(str(out)) if is_url(out) else begun(Path(out)):
        return resume(out, **how)
    return simulate(experiment, out, **how)


def _results(
    study: Experiment, part: Path, engine: Callable[..., Any], publish: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    from simulations.run import report
    from simulations.run.run import run

    results = run(study, part, engine=engine, publish=publish)
    report.write(results, part)
    return results
