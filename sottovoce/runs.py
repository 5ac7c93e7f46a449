"""Runs and sweeps for programs and notebooks: results with tables of pandas, figures and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.experiment import load, slug
from simulations.run import simulate as running

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from simulations.sweep.tables import Finished

# pandas, matplotlib and the reports are imported where they are used.


class Run(dict[str, Any]):
    """Results of one run: the contents of results.json, with a table, a figure and a report.

    Attributes:
        out: Folder of the run.
    """

    def __init__(self, results: Mapping[str, Any], out: Path | str) -> None:
        super().__init__(results)
        self.out = out

    @property
    def table(self) -> DataFrame:
        """Return one row for each arm: protocol, users, accuracies with standard errors, local and central ε.

        Each ε holds between data that agree in what the column "public" names; between others it is infinite.
        """
        import pandas

        from simulations.experiment.result import arms_of
        from simulations.run import trust

        rows = [
            {
                "arm": arm.name,
                "protocol": arm.way,
                "reference": arm.reference,
                "users": arm.delivered,
                "accuracy": arm.accuracy,
                "accuracy_error": arm.accuracy_se,
                "on_device": arm.accuracy_clean_test,
                "on_device_error": arm.accuracy_clean_test_se,
                "local_epsilon": trust.local(arm),
                "central_epsilon": trust.central(arm)[0],
                "trusts": trust.central(arm)[1],
                "public": " and ".join(trust.public(arm)),
            }
            for arm in arms_of(self)
        ]
        return pandas.DataFrame(rows).set_index("arm")

    def plot(self) -> Figure:
        """Return a figure of accuracy against local and central ε."""
        from simulations.run.figures import frontier_figure

        return frontier_figure([self])

    def report(self, out: Path | str = "report.html") -> list[Path]:
        """Write the HTML report and the privacy label of the run, and return their paths."""
        return _report(self.out, out)


@dataclass(frozen=True)
class Sweep:
    """Finished sweep, with tables, a figure and a report.

    Attributes:
        out: Folder of the sweep.
    """

    out: Path

    @cached_property
    def _found(self) -> Finished:
        from simulations.sweep.tables import read

        return read(self.out)

    @property
    def table(self) -> DataFrame:
        """Return means over seeds: one row for each point of the grid, arm, metric and split."""
        from simulations.sweep.tables import means

        return means(self._found.points)

    @property
    def runs(self) -> DataFrame:
        """Return one row for each run, arm, metric and split."""
        from simulations.sweep.tables import tidy

        return tidy(self._found)

    def plot(self) -> Figure:
        """Return a figure of the accuracy of every point and arm against ε."""
        from simulations.sweep.tables import figure

        return figure(self._found)

    def report(self, out: Path | str = "report.html") -> list[Path]:
        """Write the HTML report and the privacy label of the sweep, and return their paths."""
        return _report(self.out, out)


def simulate(
    experiment: Any,
    out: Path | str | None = None,
    *,
    seed: int | None = None,
    overrides: Iterable[str] = (),
    **how: Any,
) -> Run:
    """Run every arm of an experiment on Flower and Ray, and write results, figures, models and ledgers.

    Args:
        experiment: A TOML file, a bundled name, or the result of `load`.
        out: Run folder, new or empty; None makes runs/NAME-DATE-TIME.
        seed: Seed, in place of the experiment's.
        overrides: Texts "section.key=value" that change a file.
        how: Further arguments of `simulations.run.simulate.simulate`, as actors or ray_address.

    Raises:
        UserError: The experiment, its data or `out` cannot be used.
    """
    study = experiment if hasattr(experiment, "arms") else load(experiment, overrides)
    if seed is not None:
        study = replace(study, seed=seed)
    out = Path("runs") / f"{slug(study.name)}-{datetime.now():%Y%m%d-%H%M%S}" if out is None else out
    return Run(running.simulate(study, out, **how), out)


def resume(out: Path | str, **how: Any) -> Run:
    """Run the rest of a stopped run into `out`. Users repeat what they have released, at no cost.

    Args:
        out: Run folder.
        how: Further arguments of `simulations.run.simulate.resume`.

    Raises:
        UserError: There is no run to resume, or the code or the data have changed.
    """
    return Run(running.resume(out, **how), out)


def sweep(file: Path | str, out: Path | str | None = None, *, overrides: Iterable[str] = (), **how: Any) -> Sweep:
    """Run an experiment over a grid of keys and seeds. A second call continues an interrupted sweep.

    Args:
        file: An experiment's file with [sweep], or a bundled sweep.
        out: Folder, new or of the same sweep; None makes studies/NAME.
        overrides: Texts "section.key=value" that change every run.
        how: Further arguments of `simulations.sweep.run.run_study`, as jobs.

    Raises:
        UserError: The sweep cannot be used, or a run fails.
    """
    from simulations.output.atomic import local_path
    from simulations.sweep.definition import load_study
    from simulations.sweep.run import run_study

    study = load_study(file, tuple(overrides))
    folder = Path("studies") / slug(study.name) if out is None else local_path(out)
    run_study(study, folder, **how)
    return Sweep(folder)


def _report(of: Path | str, out: Path | str) -> list[Path]:
    from sottovoce.report.write import report

    return report([of], out)
