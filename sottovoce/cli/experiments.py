"""Commands on experiments: `sottovoce sweep`, `encoders` and `reproduce`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, Data, Set, Track, overrides, print_json, show_progress

# This file must not import NumPy, torch or the mechanisms before a command runs, because `--help` must start fast.


def sweep(
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

    trackers = [tracking.tracker(target) for target in track or ()]  # reports errors of a tracker before any run
    study = load_study(file, overrides(set_, data))
    folder = local_path(out or Path("studies") / slug(study.name))
    show_progress()
    paths = run_study(study, folder, jobs=jobs)
    for point in read(folder).points if trackers else ():
        for results in point.results:
            tracking.track(trackers, results)
    if as_json:
        files = [str(path) for path in paths]
        return print_json({"name": study.name, "runs": len(study.runs), "out": str(folder), "files": files})
    print((folder / "study.md").read_text(encoding="utf-8").rpartition("\n\n![")[0])
    print(f"\nTables, figures and runs: {folder}")


def encoders(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Encoder to download: a named one, or a model of a hub.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="With NAME: text before every sentence, as 'query: '.")
    ] = None,
) -> None:
    """List the named encoders, or download one into the cache and check its SHA-256."""
    from simulations.artifacts import encoders
    from simulations.errors import UserError

    if name is not None:
        show_progress()
        return print(encoders.get(name, prefix=prefix))
    if prefix is not None:
        raise UserError("encoders: --prefix goes with NAME")
    for encoder, info in encoders.ENCODERS.items():
        print(f"{encoder:<12} {'here' if encoders.here(encoder) else '-':<5} {info.about} ({info.license})")
    print("\nencoder.model takes a name, a folder, or a model of a hub. To download: sottovoce encoders NAME")


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="PAPER", help="yue-2021, arnold-2023, fu-2024, du-2023 or meisenbacher-2024.")
    ],
    table: Annotated[
        str | None, typer.Option("--table", help="One table by its number, or words of an item's name.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few arms and sentences: minutes, to see that it runs.")
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="N",
            help="Training sentences, or all (default: 2000, half an hour or more a paper on two cores).",
        ),
    ] = None,
    set_: Set = None,
    data: Annotated[Path, typer.Option("--data", help="Folder that contains the data sets: sst2, cola, ...")] = Path(
        "data"
    ),
    out: Annotated[
        Path, typer.Option("--out", help="Where the runs' folders are; finished ones are not run again, others go on.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments, and print its numbers beside ours.

    Differences are printed with their reasons.
    """
    from simulations.errors import UserError
    from simulations.papers.reproduce import ROWS, Size, chosen, load_paper, reproduce, text
    from simulations.run.simulate import gone_on

    if quick and rows is not None:
        raise UserError("--quick: has a size of its own; leave --rows out")
    if rows not in (None, "all") and not (rows.isdecimal() and int(rows) >= 100):
        raise UserError(f"--rows {rows}: give a number from 100, or all")
    number = ROWS if rows is None else None if rows == "all" else int(rows)
    paper, size = load_paper(name), Size(number, quick, tuple(overrides(set_, None)))
    show_progress()
    items = chosen(paper, table)
    out.mkdir(parents=True, exist_ok=True)
    result = reproduce(paper, items, size, data=data, out=out, run=gone_on)
    if all(comparison.why for comparison in result):
        raise UserError(f"{name}: nothing was run: {result[0].why}")
    if as_json:
        keys = ("arm", "paper", "ours", "error")
        tables = {item.item: [dict(zip(keys, row, strict=True)) for row in item.rows] for item in result}
        return print_json({"paper": paper.name, "quick": quick, "items": tables})
    print(text(paper, items, result, size), end="")


def init(
    from_: Annotated[Path, typer.Option("--from", metavar="FILE", help="CSV, TSV, JSONL or Parquet, a text a row.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the new folder (default: the file's).")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Column of the texts.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column of the labels.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Column that names the user of a row.")] = None,
    second: Annotated[str | None, typer.Option("--second", help="Column of the second texts of pairs.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Further column to copy, as of groups.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", help="What to compare: vectors (one a user), or texts (sanitized word by word).")
    ] = "vectors",
    records: Annotated[
        int | None,
        typer.Option(
            "--records",
            min=1,
            help="Records of a typical user (default: the median of the users whose rows become public).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the split into training and test rows.")] = 1,
) -> None:
    """Write an experiment on your own table of texts and labels."""
    from simulations.run.proposal import propose

    out = Path(name or from_.stem)
    study_files = propose(
        from_,
        out,
        text=text,
        label=label,
        user=user,
        second=second,
        kept=tuple(keep or ()),
        seed=seed,
        kind=kind,
        records=records,
    )
    study = shlex.quote(str(study_files.file))
    print("\n".join(study_files.findings))
    print(
        f"\nWritten: {study_files.file}, {out / 'train.csv'}, {out / 'test.csv'}. Next:\n"
        f"    sottovoce check {study}      # what it costs, before it runs\n"
        f"    sottovoce simulate {study}\n"
        f"    sottovoce sweep {study}      # {'' if kind == 'texts' else 'five ε by '}three seeds: a figure, and "
        "tables for a paper"
    )


def explore(
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN_DIR", help="Finished run whose data and encoder are used.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page (0: a free one).")] = 0,
) -> None:
    """Serve a local page: type a sentence, see what leaves a device."""
    from sottovoce.explore import service

    show_progress()
    service.run(run=run, port=port, say=lambda line: print(line, flush=True))
