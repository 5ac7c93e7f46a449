"""Redaction: names, places, numbers and addresses are removed from a text, and every other word passes unchanged.

It is common practice and the baseline of the other text mechanisms. It protects nothing by a theorem: every word that
no rule finds is released as written, and what is removed shows in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from mechanisms.facts import Absent, Facts, Pair
from mechanisms.words.verbatim import Verbatim

#: Mark in place of a removed word. Vocabularies seldom have it: then nothing is released in that place.
MARK = "█"

#: Places that are removed wherever they stand; elsewhere in a sentence, the rule for capitals finds the others.
_PLACES = (
    "Africa",
    "America",
    "Asia",
    "Europe",
    "Argentina",
    "Australia",
    "Austria",
    "Belgium",
    "Brazil",
    "Britain",
    "Canada",
    "Chile",
    "China",
    "Denmark",
    "Egypt",
    "England",
    "Finland",
    "France",
    "Germany",
    "Greece",
    "India",
    "Indonesia",
    "Ireland",
    "Israel",
    "Italy",
    "Japan",
    "Kenya",
    "Mexico",
    "Netherlands",
    "New Zealand",
    "Nigeria",
    "Norway",
    "Pakistan",
    "Poland",
    "Portugal",
    "Russia",
    "Scotland",
    "South Africa",
    "South Korea",
    "Spain",
    "Sweden",
    "Switzerland",
    "Turkey",
    "Ukraine",
    "United Kingdom",
    "United States",
    "UK",
    "US",
    "USA",
    "Amsterdam",
    "Athens",
    "Bangkok",
    "Barcelona",
    "Beijing",
    "Berlin",
    "Boston",
    "Brussels",
    "Buenos Aires",
    "Cairo",
    "Chicago",
    "Copenhagen",
    "Delhi",
    "Dublin",
    "Hong Kong",
    "Istanbul",
    "Johannesburg",
    "Lisbon",
    "London",
    "Los Angeles",
    "Madrid",
    "Melbourne",
    "Mexico City",
    "Milan",
    "Montreal",
    "Moscow",
    "Mumbai",
    "Munich",
    "New York",
    "Oslo",
    "Paris",
    "Prague",
    "Rio de Janeiro",
    "Rome",
    "San Francisco",
    "Seattle",
    "Seoul",
    "Shanghai",
    "Singapore",
    "Stockholm",
    "Sydney",
    "Tokyo",
    "Toronto",
    "Vancouver",
    "Vienna",
    "Warsaw",
    "Washington",
    "Zurich",
)
#: Days and months, without those that begin sentences as other words (March, May).
_DATES = (
    "January",
    "February",
    "April",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
#: Email and web addresses, names of accounts, and everything with a digit (telephone numbers, dates, amounts).
_ADDRESSES = re.compile(r"\S*(?:@|://|\bwww\.|\d|\w\.(?:com|org|net|edu|gov|io|co|info|de|uk)\b)\S*", re.IGNORECASE)
_LISTED = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, (*_PLACES, *_DATES)), key=len, reverse=True))})\b")
#: Start of a sentence, or of a quotation or bracket in it: the capital there says nothing.
_START = re.compile(r"(?:^|[.!?:;…*\n]|[-–—]\s|[\"“(\[])[\s\"'“”‘’(\[)\]*]*$")
_CAPITAL = re.compile(r"(?<![\w'’])[^\W\d_]\w*")
#: Words with a capital wherever they stand.
_NO_NAMES = frozenset({"I", "OK", "TV"})


@dataclass(frozen=True)
class Redaction(Verbatim):
    """Rule-based removal of what looks personal; no guarantee (ε = ∞).

    Removed are email and web addresses, names of accounts, everything with a digit, days and months, listed places, and
    words with a capital that do not begin a sentence, with the same words where they do. Names at the start of a
    sentence alone, names in lower case and everything that is personal by its meaning stay. Words outside the
    vocabulary are left out, as by `identity`.
    """

    name: ClassVar[str] = "redaction"
    facts: ClassVar[Facts] = Facts(pair=Pair.WORDS, slider=Absent("which has no ε"))

    def read_as(self, text: str) -> str:
        """Return a text with `MARK` in place of each word to remove."""
        spans = [found.span() for rule in (_ADDRESSES, _LISTED) for found in rule.finditer(text)]
        capitals = [found for found in _CAPITAL.finditer(text) if found[0][0].isupper() and found[0] not in _NO_NAMES]
        names = {found[0] for found in capitals if not _START.search(text, max(0, found.start() - 16), found.start())}
        return marked(text, [*spans, *(found.span() for found in capitals if found[0] in names)])


@dataclass(frozen=True)
class Presidio(Redaction):
    """Removal of what Microsoft Presidio finds in English text, by its own models; no guarantee (ε = ∞).

    It needs the extra `presidio` and a spaCy model, and is named by its place in experiment files.
    Its recognizer of addresses asks the network once for a list of domains (nothing of a text), and goes on without it.
    """

    name: ClassVar[str] = "mechanisms.words.redaction:Presidio"

    def __post_init__(self) -> None:
        _analyzer()

    def read_as(self, text: str) -> str:
        """Return a text with `MARK` in place of each word to remove."""
        return marked(text, [(found.start, found.end) for found in _analyzer().analyze(text=text, language="en")])


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    """Return Presidio's analyzer with the largest English spaCy model that is installed.

    Raises:
        ValueError: The package or a model is missing.
    """
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
        from spacy.util import get_installed_models
    except ImportError as error:
        raise ValueError(
            "Presidio: is not installed; pip install 'sottovoce[presidio]', and an English spaCy model"
        ) from error
    installed = [f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm")]
    model = next((name for name in installed if name in get_installed_models()), None)
    if model is None:
        raise ValueError("Presidio: finds no English spaCy model; install one, as en_core_web_lg")
    models = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": model}]}
    return AnalyzerEngine(nlp_engine=NlpEngineProvider(nlp_configuration=models).create_engine())


def marked(text: str, spans: list[tuple[int, int]]) -> str:
    """Return a text with `MARK` in place of each word inside the spans."""
    parts, at = [], 0
    for start, end in sorted(spans):
        if end > at:
            parts += [text[at:start], re.sub(r"\S+", MARK, text[max(at, start) : end])]
            at = end
    return "".join([*parts, text[at:]])
