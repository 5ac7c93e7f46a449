"""Summary of runs of one experiment with different seeds: one table and one figure of means.

`python -m benchmarks.summary RUN ... [--figure FILE]` makes the tables of docs/results from runs that were made one by
one. The table of `sottovoce sweep` has the means of a sweep.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.errors import UserError
from simulations.experiment.result import SPLITS, ArmResult, arms_of
from simulations.output.figures import COLOURS, MARKERS, new_figure
from simulations.output.markdown import table as markdown_table
from simulations.output.numbers import is_finite
from simulations.run import trust
from simulations.run.comparison import added, gap, matrices
from simulations.run.figures import over_seeds
from simulations.run.frontier import frontier_figure
from simulations.run.journal import refuse_unfinished
from simulations.run.over_runs import NONE, accuracies, moments, standard_error
from simulations.run.table import SAID, beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
#: Runs by their number of public labels, None for all; in this order in tables and figures.
Groups = Mapping[int | None, Sequence[Results]]

#: Largest number of arms whose differences are shown.
_MOST = 12
_DEVICE = "on_device"


def summarize(folders: Sequence[Path | str]) -> str:
    """Return a Markdown table: for each arm mean ± standard error over runs, and in brackets the error by test text.

    The error over runs shows how much seeds differ: users, public split, noise, and test texts if each seed has its
    own. The error by text shows the effect of other test texts. More seeds do not reduce it if all runs have the same
    test texts, so it is not divided. One run has no error over runs.

    "users added" is the accuracy (on the device, if no request is sent) less that of the public-only arm with the same
    inference, in the same run.
    The differences of all arms follow. Runs may also differ in the number of public labels
    (`labels_table`), or in the encoder: one table for each.

    Raises:
        UserError: A folder holds no results, the runs are of several experiments, or seeds are repeated or missing.
    """
    runs = read(folders)
    if len(groups := by_labels(runs)) > 1:
        return labels_table(groups)
    encoders = by_encoder(runs)
    if len(encoders) == 1:
        return _summary(runs)
    return "\n\n".join(f"Encoder {name}. {_summary(same)}" for name, same in encoders.items())


def by_encoder(runs: Sequence[Results]) -> dict[str, list[Results]]:
    """Return runs by the name of their encoder, in the order given."""
    names = dict.fromkeys(run["encoder"] for run in runs)
    return {name: [run for run in runs if run["encoder"] == name] for name in names}


def _summary(runs: Sequence[Results]) -> str:
    """Return the summary of runs that differ in their seed alone."""
    seeds = ", ".join(str(run["seed"]) for run in runs)
    one = len(runs) == 1
    every = list(zip(*map(arms_of, runs), strict=True))
    trusted = trust.anybody(arms_of(runs[0]))
    priced = trust.columns(every) | (trust.central_columns(every) if trusted else {})
    lines = [
        f"{runs[0]['name']}, {len(runs)} {'seed' if one else 'seeds'} ({seeds}): mean "
        + ("(standard error by test text)" if one else "± standard error over seeds (and by test text)"),
        "",
        f"| arm | accuracy, sanitized | users added | accuracy, on device | m' | {' | '.join(priced)} | users |",
        "| --- | " + " | ".join(["---:"] * (5 + len(priced))) + " |",
    ]
    for arms, *prices in zip(every, *priced.values(), strict=True):
        name = arms[0].name.replace("|", "\\|") + (" †" if trust.unprotected(*arms) else "")
        sanitized, on_device = (mean_accuracy(arms, split) for split in SPLITS)
        lines.append(
            f"| {name} | {sanitized} | {_added(runs, arms[0].name)} | {on_device} | "
            f"{_range(arm.dim for arm in arms)} | "
            f"{' | '.join(prices)} | "
            f"{_range(arm.delivered for arm in arms)} |"
        )
    if any(trust.unprotected(*arms) for arms in every):
        lines += ["", f"† {trust.UNPROTECTED}"]
    for line in [trust.PAID_NOTE, *trust.conditions(runs)]:
        lines += ["", line]
    lines += ["", trust.NOTE] if trusted else []
    if runs[0].get("way_sentence"):
        lines += ["", runs[0]["way_sentence"]]
    for heading, (names, *rows) in beside(runs):
        lines += ["", f"{heading or 'Other measures'}:", "", markdown_table(names, rows)]
    for heading, (names, *rows) in _matrices(runs):
        lines += ["", f"Row less column, {heading}:", "", markdown_table(names, rows)]
    return "\n".join(lines)


def read(folders: Sequence[Path | str]) -> list[Results]:
    """Return the results of runs of one experiment, with two more keys of each.

    "labelled" is the number of public labels, None for all, and "encoder" the encoder in words.

    Raises:
        UserError: `summarize` would raise it.
    """
    runs = [_results(Path(folder)) for folder in folders]
    first, varied = _experiment(Path(folders[0]))
    runs[0] |= varied
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        experiment, varied = _experiment(Path(folder))
        run |= varied
        if (other := _other(first, experiment)) is not None:
            raise UserError(
                f"{folder}: is not a run of the experiment of {folders[0]}: {other}; runs to be summarized differ in "
                "their seed alone, and either in data.public.labelled or in the encoder"
            )
    _name_encoders(runs)
    groups, encoders = by_labels(runs), by_encoder(runs)
    if len(groups) > 1 and len(encoders) > 1:
        raise UserError(
            f"{folders[0]} and the others: differ in data.public.labelled and in the encoder; summarize the runs of "
            "one encoder at a time"
        )
    same = [*groups.values()] if len(groups) > 1 else [*encoders.values()]
    seeds = [sorted(run["seed"] for run in group) for group in same]
    if any(len(set(group)) < len(group) for group in seeds):
        raise UserError(f"{folders[0]} and the others: two runs have the same seed; a mean needs different ones")
    if any(group != seeds[0] for group in seeds):
        key = "data.public.labelled: runs of each number" if len(groups) > 1 else "encoder: runs of each"
        raise UserError(f"{folders[0]} and the others: {key} need the same seeds")
    return runs


def _name_encoders(runs: Sequence[Results]) -> None:
    """Replace the encoder of each run by the keys that differ, in words: "mpnet, layers 7, 9"."""
    keys = dict.fromkeys(key for run in runs for key in run["encoder"])
    differ = [key for key in keys if any(run["encoder"].get(key) != runs[0]["encoder"].get(key) for run in runs)]
    for run in runs:
        run["encoder"] = ", ".join(_key_in_words(key, run["encoder"].get(key)) for key in differ)


def _key_in_words(key: str, value: Any) -> str:
    said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return said if key == "model" else f"{key} {said}"


def _experiment(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the experiment without what runs may differ in, and the number of public labels and the encoder."""
    try:
        table = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
        labelled = table.get("data", {}).get("public", {}).pop("labelled", None)
        encoder = dict(table.pop("encoder", {}))
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{folder}: holds no readable experiment.toml; name the folder of a finished run") from None
    rest = {key: value for key, value in table.items() if key != "seed"}
    return rest, {"labelled": labelled, "encoder": encoder}


def _other(one: Any, other: Any, place: str = "") -> str | None:
    """Return the first difference of two experiments in words; None if there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{place}.{key}".lstrip("."), one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{place}.{i}", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else f"{place} is {_short(other)} there, and {_short(one)} here"
    return next((found for key, *pair in pairs if (found := _other(*pair, key)) is not None), None)


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{len(value)} entries"
    return "not given" if value is None else repr(value)


def figure(folders: Sequence[Path]) -> Figure:
    """Draw each arm's mean accuracy with its standard error: sanitized (filled) and on the device (hollow).

    If users of some arm trust the server, draw accuracy against ε instead (`simulations.run.frontier`). If runs differ
    in the number of public labels, draw accuracy against that.

    Raises:
        UserError: `read` raises it, or runs of several encoders have no central ε.
    """
    runs = read(folders)
    if len(groups := by_labels(runs)) > 1:
        return labels_figure(groups)
    encoders = by_encoder(runs)
    every = list(zip(*map(arms_of, runs), strict=True))
    if trust.anybody(arms_of(runs[0])):
        return frontier_figure(encoders)
    if len(encoders) > 1:
        raise UserError(f"{folders[0]} and the others: a figure of several encoders needs arms with a central ε")
    drawn, axes = new_figure(7.2, 0.9 + 0.32 * len(every))
    # points of one arm are drawn apart, or one would hide the other
    for split, aside, colour, marker, face in zip(
        SPLITS, (-0.12, 0.12), COLOURS, "os", (COLOURS[0], "white"), strict=False
    ):
        found = [(row + aside, *mean) for row, arms in enumerate(every) if (mean := moments(accuracies(arms, split)))]
        errors = [error or 0.0 for *_, error in found]
        style = {"fmt": marker, "color": colour, "markerfacecolor": face, "markersize": 6, "capsize": 3}
        axes.errorbar(
            [mean for _, mean, _ in found], [row for row, *_ in found], xerr=errors, label=SAID[split], **style
        )
    axes.set_yticks(range(len(every)), [trust.marked(*arms) for arms in every])
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy")
    axes.set_title(over_seeds(runs), loc="left", fontsize=9)
    drawn.legend(loc="outside right upper", fontsize=8, frameon=False)
    return drawn


def _added(runs: Sequence[Results], name: str) -> str:
    """Return what users added to an arm; "–" if it has no baseline."""
    return mean_difference([added(run).get(name) for run in runs])


def _matrices(runs: Sequence[Results]) -> list[tuple[str, list[list[str]]]]:
    """Return the differences of arms over all runs (`simulations.run.comparison.matrices`)."""
    return matrices(
        runs[0], most=_MOST, cell=lambda arm, less, kind: mean_difference([gap(run, arm, less, kind) for run in runs])
    )


def _results(folder: Path) -> dict[str, Any]:
    refuse_unfinished(Path(folder))
    path = Path(folder) / "results.json"
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {key: results.get(key) for key in ("name", "seed", "arms", "way_sentence", "differences", "measures")}
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{folder}: holds no readable results.json; name the folder of a finished run") from None


def _range(found: Iterable[int | None]) -> str:
    values = sorted({value or 0 for value in found})
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,}–{values[-1]:,}"


# --- runs that differ in the number of public labels


def by_labels(runs: Sequence[Results]) -> Groups:
    """Return runs by their "labelled", fewest first, all last."""
    numbers = sorted({run["labelled"] for run in runs}, key=lambda n: math.inf if n is None else n)
    return {number: [run for run in runs if run["labelled"] == number] for number in numbers}


def labels_table(groups: Groups) -> str:
    """Return a Markdown table with a row for each number of public labels.

    It has each arm's mean accuracy on the device ± standard error over seeds, in brackets by test text, and the
    difference from the public-only arm, paired by seed and text.
    """
    first = next(iter(groups.values()))[0]
    arms = [arm.name for arm in arms_of(first)]
    alone = next((arm.name for arm in arms_of(first) if arm.way == PUBLIC_ONLY.name), None)
    added = [] if alone is None else [name for name in arms if name != alone]
    shown = [arm.name + (" †" if trust.unprotected(arm) else "") for arm in arms_of(first)]
    rows = [["public labels", *shown, *(f"{name}: users added" for name in added)]]
    for number, runs in groups.items():
        accuracies = [mean_accuracy(_arm(runs, name), _DEVICE) for name in arms]
        gains = [mean_difference([gap(run, name, alone, _DEVICE) for run in runs]) for name in added]
        rows.append([_number(number), *accuracies, *gains])
    seeds = ", ".join(str(run["seed"]) for run in next(iter(groups.values())))
    said = f"{first['name']}, seeds {seeds}: accuracy on the device, mean ± standard error over seeds (and by text)"
    lines = [said, "", markdown_table(rows[0], rows[1:])]
    return "\n".join(lines + (["", f"† {trust.UNPROTECTED}"] if shown != arms else []))


def labels_figure(groups: Groups) -> Figure:
    """Draw the same as lines. There is no point where an arm has no model, for want of labels and users."""
    figure, axes = new_figure(7.2, 3.6)
    first = next(iter(groups.values()))[0]
    numbers, at = list(groups), range(len(groups))
    arms = arms_of(first)
    for i, arm in enumerate(arms):
        every = (accuracies(_arm(runs, arm.name), _DEVICE) for runs in groups.values())
        found = [moments(values) or (math.nan, math.nan) for values in every]
        means, errors = zip(*((mean, error or 0.0) for mean, error in found), strict=True)
        label = trust.marked(arm)
        style: dict[str, Any] = {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "markersize": 5, "linewidth": 1.4}
        aside = 0.06 * (i - (len(arms) - 1) / 2)  # or one would hide the other
        axes.errorbar([x + aside for x in at], means, yerr=errors, capsize=2, label=label, **style)
    axes.set_xticks(list(at), [_number(number) for number in numbers])
    axes.set_xlabel("public texts with a label")
    axes.set_ylabel("test accuracy, on the device")
    axes.set_title(over_seeds(next(iter(groups.values()))), loc="left", fontsize=9)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    return figure


def _number(number: int | None) -> str:
    return "all" if number is None else f"{number:,}"


def _arm(runs: Sequence[Results], name: str) -> list[ArmResult]:
    """Return one arm in each run."""
    return [next(arm for arm in arms_of(run) if arm.name == name) for run in runs]


# --- means in cells


def mean_accuracy(arms: Sequence[ArmResult], split: str) -> str:
    """Return an arm's mean accuracy on a split over runs; NONE if a run lacks it."""
    found = [score for arm in arms if (score := arm.score(split)) is not None]
    return NONE if len(found) < len(arms) else _mean([each.accuracy for each in found], [each.error for each in found])


def mean_difference(pairs: Sequence[Mapping[str, float] | None]) -> str:
    """Return the mean of one difference over runs (`simulations.run.comparison.gap`); NONE if a run lacks it."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return NONE
    return _mean([p["difference"] for p in there], [p["error"] for p in there], "+.3f")


def _mean(values: Sequence[float], by_text: Sequence[float | None], form: str = ".3f") -> str:
    """Return mean and errors. The error by text is the mean of the runs' errors: more runs do not reduce it."""
    error = standard_error(values)
    over_runs = "" if error is None else f" ± {error:.3f}"
    known = [error for error in by_text if is_finite(error)]
    texts = f" ({fmean(known):.3f})" if len(known) == len(by_text) else ""
    return f"{fmean(values):{form}}{over_runs}{texts}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, draw the figure, and return the exit code."""
    from simulations.output.figures import check_figure, save

    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="figure to draw: .pdf, .svg or .png")
    given = parser.parse_args(arguments)
    try:
        if given.figure is not None:
            check_figure(given.figure)
        print(summarize(given.runs))
        if given.figure is not None:
            save(figure(given.runs), given.figure)
    except UserError as error:
        print(f"summary: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
