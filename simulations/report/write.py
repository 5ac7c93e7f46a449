"""A report of finished runs, and its privacy label beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from simulations.errors import UserError
from simulations.output.atomic import whole
from simulations.report.label import label
from simulations.report.page import page
from simulations.report.reading import read


def report(folders: Sequence[Path | str], out: Path | str = "report.html") -> list[Path]:
    """Write the report of runs to `out`, one HTML file, and the privacy label beside it with the suffix .json: each
    takes the place of one that is there. Returns both paths. Raises UserError, one line, where a folder holds no
    finished run, the same is named twice, or out is no .html file in a folder that is there."""
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: must end in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")
    places = [Path(folder) for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise UserError(f"{places[0]} and the others: a run is named twice; name each once")
    runs = [read(place) for place in places]
    told = json.dumps(label(runs), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    paths = [out, out.with_suffix(".json")]
    for path, text in zip(paths, (page(runs), told), strict=True):
        with whole(path) as file:
            file.write(text.encode())
    return paths
