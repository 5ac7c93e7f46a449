"""Figures that can be read in print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from simulations.errors import UserError
from simulations.output.atomic import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with every common colour blindness; markers tell apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure that no global state knows of, drawn by Agg at 300 dpi; inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=300, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


#: What a figure can be kept as, by the suffix of its file.
SUFFIXES = (".pdf", ".svg", ".png")


def check_figure(path: Path) -> None:
    """Raises UserError unless the suffix says what the figure is to be, and its folder is there."""
    if not path.parent.is_dir():
        raise UserError(f"--figure {path}: there is no folder {path.parent}; make it first, or name another")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--figure {path}: must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")


def save(figure: Figure, path: Path | BinaryIO) -> None:
    """As the file's suffix says, whole or not at all; to an open file as PNG. UserError on another suffix.

    A PNG has a palette of 64 colours, which lines and bars do not exceed: a third of the size. Text stays text in PDF
    and SVG, and neither says when it was made: the same figure is the same file.
    """
    if not isinstance(path, Path):
        _save_png(figure, path)
        return
    check_figure(path)
    with whole(path) as file:
        if path.suffix.lower() == ".png":
            _save_png(figure, file)
            return
        import matplotlib

        kind = path.suffix.lower()[1:]
        undated = {"CreationDate": None} if kind == "pdf" else {"Date": None}
        fonts = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "sottovoce"}
        with matplotlib.rc_context(fonts):
            figure.savefig(file, format=kind, metadata=undated)


def _save_png(figure: Figure, file: BinaryIO) -> None:
    from PIL import Image

    figure.canvas.draw()  # type: ignore[attr-defined]
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
    palette = Image.fromarray(np.ascontiguousarray(pixels)).quantize(64, dither=Image.Dither.NONE)
    palette.save(file, "PNG", optimize=True, dpi=(figure.dpi, figure.dpi))
