"""The hand-written bank behind the built-in corpus: the words of `fragments.toml`."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

_BANK: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Genre:
    """Words of one genre: names of the thing, openers, subjects (singular), and whole clauses."""

    name: str
    things: tuple[str, ...]
    openers: tuple[str, ...]
    subjects: tuple[str, ...]
    praise: tuple[str, ...]
    complaints: tuple[str, ...]


def _genre(words: dict[str, Any]) -> Genre:
    return Genre(words["name"], *(tuple(words[field.name]) for field in fields(Genre)[1:]))


GENRES = tuple(map(_genre, _BANK["genre"]))
SHARED_SUBJECTS: tuple[str, ...] = tuple(_BANK["shared-subjects"])
OPENERS: tuple[str, ...] = tuple(_BANK["openers"])
GLAD_OPENERS: tuple[str, ...] = tuple(_BANK["glad-openers"])
SORRY_OPENERS: tuple[str, ...] = tuple(_BANK["sorry-openers"])
GOOD_PREDICATES: tuple[str, ...] = tuple(_BANK["good-predicates"])
BAD_PREDICATES: tuple[str, ...] = tuple(_BANK["bad-predicates"])
GOOD_VERDICTS: tuple[str, ...] = tuple(_BANK["good-verdicts"])
BAD_VERDICTS: tuple[str, ...] = tuple(_BANK["bad-verdicts"])
UNDERSTATED_PRAISE: tuple[str, ...] = tuple(_BANK["understated-praise"])
IRONIC_BLAME: tuple[str, ...] = tuple(_BANK["ironic-blame"])
HEDGES: tuple[str, ...] = tuple(_BANK["hedges"])
CODAS: tuple[str, ...] = tuple(_BANK["codas"])
ADDITIONS: tuple[str, ...] = tuple(_BANK["additions"])
CONCESSIONS: tuple[str, ...] = tuple(_BANK["concessions"])
TURNS: dict[str, str] = _BANK["turns"]
STANDOFFS: tuple[str, ...] = tuple(_BANK["standoffs"])
ADVERBS: tuple[str, ...] = tuple(_BANK["adverbs"])
SIGN_OFFS: tuple[str, ...] = tuple(_BANK["sign-offs"])
ENDINGS: tuple[str, ...] = tuple(_BANK["endings"])
AMERICAN: dict[str, str] = _BANK["american"]
CONTRACTIONS: dict[str, str] = _BANK["contractions"]
