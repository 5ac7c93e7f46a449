"""Figures for print and for HTML pages."""

from __future__ import annotations

import logging
import re
import textwrap
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from simulations.output.atomic import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# If matplotlib cannot write its cache, it makes another one and warns at length. Figures are drawn all the same.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

# Okabe and Ito's palette: distinct for every common colour blindness; markers are distinct in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure without global state, drawn by Agg at 300 dpi, and its axes.

    Args:
        width: Width in inches.
        height: Height in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=300, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's suffix, atomically.

    Text stays text in PDF and SVG. Neither holds a creation date: the same figure is the same file.
    """
    import matplotlib

    kind = path.suffix.lower()[1:]
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    fonts = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "sottovoce"}
    with whole(path) as file, matplotlib.rc_context(fonts):
        figure.savefig(file, format=kind, metadata=undated)


def folded(name: str, width: int = 34, most: int = 3) -> str:
    """Return a name wrapped to at most `most` lines of at most `width` characters: a figure has room for no more."""
    return "\n".join(textwrap.wrap(name, width, max_lines=most, placeholder=" …")) or name


def inline(figure: Figure, description: str, prefix: str) -> str:
    """Return the figure as an <svg> element for an HTML page.

    Args:
        figure: The figure.
        description: Description for a reader who cannot see it.
        prefix: Prefix of its ids, which must differ among the figures of a page.
    """
    import matplotlib

    written = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sottovoce"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", written.getvalue()[written.getvalue().index("<svg") :], flags=re.S)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.S)
    box = re.search(r'viewBox="([^"]*)"', svg)
    svg = re.sub(
        r"<svg[^>]*>",
        f'<svg role="img" viewBox="{box[1] if box else ""}" stroke-linejoin="round" '
        f'stroke-linecap="butt">\n <title>{escape(description)}</title>',
        svg,
        count=1,
    )
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines())
