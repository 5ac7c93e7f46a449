"""Tables for LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "∞": r"$\infty$",
    "≤": r"$\le$",
    "·": r"$\cdot$",
    "–": "--",
    "−": r"$-$",
}


def escaped(text: str) -> str:
    """Return the text escaped for LaTeX; line ends become spaces."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    r"""Return a table environment for \input; it needs \usepackage{booktabs}.

    The columns up to the one called "arm" are aligned left, numbers right.
    """
    left_columns = headings.index("arm") + 1 if "arm" in headings else 1
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * left_columns}{'r' * (len(headings) - left_columns)}}}",
        r"\toprule",
        " & ".join(map(escaped, headings)) + r" \\",
        r"\midrule",
        *(" & ".join(map(escaped, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
