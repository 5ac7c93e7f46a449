"""Text can be read on its ground, in light and in dark: the contrast that WCAG 2.1 asks for (1.4.3, level AA)."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

STYLE = (ROOT / "sottovoce" / "explore" / "page" / "style.css").read_text(encoding="utf-8")
#: Text, and the ground that it stands on.
PAIRS = [
    ("ink", "page"),
    ("ink", "wash"),
    ("soft", "page"),
    ("soft", "wash"),
    ("on", "blue"),
    ("warm", "page"),
    ("bad", "badwash"),
    ("page", "ink"),
    ("ink", "badwash"),
]


def palette(number: int) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]+)", re.findall(r":root \{([^}]*)\}", STYLE)[number]))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(text: str, ground: str) -> float:
    low, high = sorted((luminance(text), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("number", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read_on_its_ground(text: str, ground: str, number: int) -> None:
    colours = palette(number)
    assert contrast(colours[text], colours[ground]) >= 4.5


def test_what_cannot_be_read_is_found() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") < 4.5
