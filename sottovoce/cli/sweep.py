"""Command `sottovoce sweep`: runs of an experiment over a grid of its keys and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, Data, RayAddress, Set, Track, overrides, print_json, show_progress

# This file must not import NumPy or matplotlib before the command runs, because `--help` must start fast.


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE.toml", help="An experiment with [sweep], or the name of a bundled sweep.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Results folder, new or of the same sweep (default: studies/NAME)."
        ),
    ] = None,
    data: Data = None,
    set_: Set = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Number of runs at once (default: by cores and memory).")
    ] = None,
    ray_address: RayAddress = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment over a grid of keys and seeds.

    Write tables and figures. A second call resumes the sweep.
    """
    from simulations.experiment import slug
    from simulations.output.atomic import local_path
    from simulations.run import track as tracking
    from simulations.sweep.definition import load_study
    from simulations.sweep.run import run_study
    from simulations.sweep.tables import read

    trackers = [tracking.tracker(where) for where in track or ()]  # reports errors of a tracker before any run
    study = load_study(file, overrides(set_, data))
    folder = local_path(out or Path("studies") / slug(study.name))
    if ray_address is not None:
        from simulations.transport.engine import check_address

        check_address(ray_address)
    show_progress()
    paths = run_study(study, folder, jobs=jobs, ray_address=ray_address)
    for point in read(folder).points if trackers else ():
        for results in point.results:
            tracking.track(trackers, results)
    if as_json:
        files = [str(path) for path in paths]
        return print_json({"name": study.name, "runs": len(study.runs), "out": str(folder), "files": files})
    print((folder / "study.md").read_text(encoding="utf-8").rpartition("\n\n![")[0])
    print(f"\nTables, figures and runs: {folder}")
