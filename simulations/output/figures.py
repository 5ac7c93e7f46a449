"""Figures that can be read in print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

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


def save(figure: Figure, path: Path | BinaryIO) -> None:
    """As PNG with a palette of 64 colours, which lines and bars do not exceed: a third of the size."""
    from PIL import Image

    figure.canvas.draw()  # type: ignore[attr-defined]
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
    palette = Image.fromarray(np.ascontiguousarray(pixels)).quantize(64, dither=Image.Dither.NONE)
    palette.save(path, "PNG", optimize=True, dpi=(figure.dpi, figure.dpi))
