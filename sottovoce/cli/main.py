"""Command `sottovoce`: results on stdout, progress and errors on stderr.

An error that a user can correct is one line, with exit code 2; SOTTOVOCE_DEBUG=1 shows the traceback too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from simulations.errors import INTERRUPTED, TERMINATED, Interrupted, Terminated, UserError, masked
from simulations.output import streams
from simulations.transport.quiet import QUIET
from simulations.transport.signals import handling
from sottovoce.cli import adversary, budget, experiments, text
from sottovoce.cli import deploy as deploy_command
from sottovoce.cli import device as device_command
from sottovoce.cli.options import AsJson, Data, RayAddress, Set, Track, end_undelivered, overrides, show_progress
from sottovoce.extras import install_command

if TYPE_CHECKING:
    from simulations.run.track import Tracker

# This file must not import torch, Flower or matplotlib, because `--help` and the error for a mistyped file must come
# fast.

#: Panels of `--help`, in its order.
START, EXPERIMENTS = "Start", "Experiments"
PRIVACY, DEVICE = "Text, privacy, adversary and reports", "Device and deployment"


class _Main(TyperGroup):
    """Group whose help lists commands alone, so that it fits one screen. Its last line names the options."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options, hidden."""
        result = super().get_params(ctx)
        for parameter in result:
            if isinstance(parameter, click.Option):
                parameter.hidden = True
        return result


app = typer.Typer(
    cls=_Main,
    help="Train text classifiers on users' devices under local differential privacy.",
    epilog="First: sottovoce demo | sottovoce explore | sottovoce init --from FILE.csv\n\n"
    "Options: -h, --help, --version, --install-completion",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FOLDER", help="Results folder, new or empty (default: runs/NAME-DATE-TIME)."),
]


@app.command(rich_help_panel=START, epilog="Example: sottovoce demo --seed 2")
def demo(
    out: Out = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Root seed.")] = None,
    set_: Set = None,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Run the experiment demo: 800 users, about two minutes."""
    _start("demo", [*(set_ or ()), *([] if seed is None else [f"seed={seed}"])], out, ray_address, as_json)


app.command("explore", rich_help_panel=START, epilog="Example: sottovoce explore")(experiments.explore)
app.command(
    "init",
    rich_help_panel=START,
    epilog="Example: sottovoce init mine --from reviews.csv --text review --label sentiment",
)(experiments.init)
app.command("check", rich_help_panel=EXPERIMENTS, epilog="Example: sottovoce check demo")(budget.check)


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example: sottovoce simulate text-demo --out runs/text")
def simulate(
    file: Annotated[str | None, typer.Argument(metavar="FILE.toml")] = None,
    out: Out = None,
    data: Data = None,
    set_: Set = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Run that was stopped, to continue.")
    ] = None,
    ray_address: RayAddress = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run the experiment in a TOML file, or a bundled one by its name."""
    if resume is not None:
        if file is not None or out is not None or data is not None or set_:
            raise click.UsageError("--resume takes a run as it was started: no FILE.toml, --out, --data or --set")
        _resume(resume, ray_address, as_json, track or ())
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE.toml', or --resume RUN_DIR")
    _start(file, overrides(set_, data), out, ray_address, as_json, track or ())


app.command("sweep", rich_help_panel=EXPERIMENTS, epilog="Example: sottovoce sweep mine/experiment.toml --jobs 2")(
    experiments.sweep
)


app.command("encoders", rich_help_panel=EXPERIMENTS, epilog="Example: sottovoce encoders mpnet")(experiments.encoders)
app.command(
    "reproduce", rich_help_panel=EXPERIMENTS, epilog="Example: sottovoce reproduce yue-2021 --data FOLDER --quick"
)(experiments.reproduce)


app.command(
    "sanitize",
    rich_help_panel=PRIVACY,
    epilog="Example: sottovoce sanitize --mechanism tem:epsilon=20,gamma=1.25 --in notes.txt",
)(text.sanitize)
app.command(
    "compare",
    rich_help_panel=PRIVACY,
    epilog="Example: sottovoce compare --mechanism santext --epsilon 5 --out runs/words",
)(text.compare)
app.add_typer(budget.app, name="budget", rich_help_panel=PRIVACY)
app.command("report", rich_help_panel=PRIVACY, epilog="Example: sottovoce report runs/text --out text.html")(
    adversary.report
)
app.command("audit", rich_help_panel=PRIVACY, epilog="Example: sottovoce audit --mechanism privunit")(adversary.audit)
app.command("attack", rich_help_panel=PRIVACY, epilog="Example: sottovoce attack runs/text --attack strongest")(
    adversary.attack
)
app.add_typer(device_command.app, name="device", rich_help_panel=DEVICE)
app.add_typer(deploy_command.app, name="deploy", rich_help_panel=DEVICE)


@app.callback(invoke_without_command=True)
def version_(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Print the version, if --version is given."""
    if version:
        from importlib.metadata import version as installed

        print(f"sottovoce {installed('sottovoce')}")
        raise typer.Exit


def _start(
    file: str, changes: list[str], out: str | None, ray_address: str | None, as_json: bool, track: Sequence[str] = ()
) -> None:
    """Start a new run, and print its results."""
    from simulations.run.track import tracker

    trackers = [tracker(target) for target in track]  # reports errors of a tracker before the run
    from simulations.experiment import load, slug
    from simulations.run.simulate import simulate as run

    experiment = load(file, changes)
    out = out or f"runs/{slug(experiment.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    show_progress()
    with _stdout_is_stderr():
        results = run(experiment, out, ray_address=ray_address)
    _show(results, out, as_json, trackers)


def _resume(out: str, ray_address: str | None, as_json: bool, track: Sequence[str]) -> None:
    """Finish a stopped run, and print the results of all of it. Export a finished one to its trackers."""
    from simulations.run import track as tracking

    trackers = [tracking.tracker(target) for target in track]
    if trackers and (results_file := Path(out) / "results.json").is_file():
        tracking.track(trackers, json.loads(results_file.read_text(encoding="utf-8")))
        return print(f"{out}: exported to {len(trackers)} tracker{'s' * (len(trackers) > 1)}")
    from simulations.run.simulate import resume

    show_progress()
    with _stdout_is_stderr():
        results = resume(out, ray_address=ray_address)
    finished = out if Path(out).exists() else out.rstrip("/").removesuffix(".part")  # RUN.part is renamed to RUN
    _show(results, finished, as_json, trackers)


def _show(results: dict[str, Any], out: str, as_json: bool, trackers: Sequence[Tracker]) -> None:
    from simulations.experiment.result import arms_of
    from simulations.run import report
    from simulations.run.track import track

    report.say(results, out, "Results, figures and the model", as_json=as_json)
    track(trackers, results)
    end_undelivered(arms_of(results))


@contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Send output of libraries and their workers to stderr during a run: stdout is for results."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return the exit code.

    Returns:
        0 for success, 1 for bad results, 2 after a user's mistake, 130 after Ctrl-C, 143 after SIGTERM.
    """
    os.environ.update(QUIET)
    try:
        streams.prepare()
    except UserError as error:
        return _complain(str(error), 2)
    with handling({signal.SIGTERM: _terminate}):
        return _run(arguments)


def _terminate(number: int, frame: Any) -> None:
    """Raise Terminated in the main thread for SIGTERM."""
    raise Terminated


@cache
def _command() -> Any:
    """Return the click command, cached because typer builds it from all signatures in a tenth of a second."""
    return typer.main.get_command(app)


def _run(arguments: list[str] | None) -> int:
    try:
        command = _command()
        words = sys.argv[1:] if arguments is None else arguments
        code = command(args=words, prog_name="sottovoce", standalone_mode=False)
        sys.stdout.flush()  # where it fails, that is said like any other mistake
        if code == INTERRUPTED:  # typer has caught Ctrl-C itself
            return _complain("interrupted; nothing was kept", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except Interrupted as error:
        return _complain(str(error), error.code)
    except Terminated:
        return _complain("interrupted; nothing was kept", TERMINATED)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted; nothing was kept", INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        line, mark, hint = error.format_message().partition(" Did you mean")  # typer adds this to click's message
        return _complain(line + mark + hint.partition(" (Did you mean")[0].partition(" Did you mean")[0], 2)
    except ModuleNotFoundError as error:
        if (command := install_command(error.name)) is None:
            raise
        return _complain(f"{error.name} is not installed; this command needs: {command}", 2)
    except BrokenPipeError:  # as click does while a command runs: whoever read our output has seen enough
        return 1
    except OSError as error:
        # An error without a file name is no mistake of the user.
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}", 2)
    except ValueError as error:
        return _complain(str(error) or type(error).__name__, 2)


def _complain(line: str, code: int) -> int:
    if os.environ.get("SOTTOVOCE_DEBUG"):
        traceback.print_exc()
    print(f"sottovoce: {' '.join(masked(line).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
