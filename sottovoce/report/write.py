"""A report of finished runs and studies, or of protocols that have not run, and its privacy label beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.errors import UserError
from simulations.output.atomic import whole
from sottovoce.report.label import label
from sottovoce.report.page import page, page_of_plan
from sottovoce.report.planned import planned
from sottovoce.report.reading import read
from sottovoce.report.studies import Study, is_study, read_study


def report(folders: Sequence[Path | str], out: Path | str = "report.html") -> list[Path]:
    """Write the report of runs, and of studies, to `out`, one HTML file, and the privacy label beside it with the
    suffix .json: each takes the place of one that is there. Returns both paths. Raises UserError, one line, where a
    folder holds no finished run or study, the same is named twice, or out is no .html file in a folder that is
    there."""
    out = _file(out)
    places = [Path(folder) for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise UserError(f"{places[0]} and the others: a run is named twice; name each once")
    read_ones = [read_study(place) if is_study(place) else read(place) for place in places]
    studies = [each for each in read_ones if isinstance(each, Study)]
    runs = [run for each in read_ones for run in (each.runs if isinstance(each, Study) else [each])]
    return _written(out, page(runs, studies), label(runs, studies))


def report_of_plan(
    file: Path | str, out: Path | str = "report.html", *, overrides: Sequence[str] = ()
) -> list[Path]:
    """The same of an experiment that has not run: a TOML file, or a bundled one's name. Raises UserError."""
    out = _file(out)
    plan = planned(file, list(overrides))
    return _written(out, page_of_plan(plan), label([plan]))


def _file(out: Path | str) -> Path:
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: must end in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")
    return out


def _written(out: Path, html: str, about: dict[str, Any]) -> list[Path]:
    told = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    paths = [out, out.with_suffix(".json")]
    for path, text in zip(paths, (html, told), strict=True):
        with whole(path) as file:
            file.write(text.encode())
    return paths
