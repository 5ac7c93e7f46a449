"""Warnings about an experiment's data before a run: users, classes and language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client.models.language_models import MASKED_LM, kind_of
from mechanisms.words.text import TextMechanism
from server.checkpoint_files import resolve
from simulations.artifacts.lengths import outside, sampled, unknown_share
from simulations.corpora.classes import listed
from simulations.corpora.columns import shown
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.names import alike, folded, spelled
from simulations.experiment.sections import Data

#: Large share of a part's rows for one user: if the user is missing, accuracy may change by as much, which is more than
#: arms differ. It must also be this many times an equal share, since each of five users has a fifth.
_LARGE, _TIMES = 0.1, 2


def unknown_words(model: str, split: Split, texts: Mapping[str, TextMechanism]) -> list[dict[str, Any]]:
    """Return the share of the users' words that the encoder and the vocabulary of text mechanisms lack.

    Each entry is {"where", "share"}. An encoder that is not on this machine has none.
    """
    said, found = [*split.train.texts, *split.test.texts], []
    try:
        if Path(resolve(model)).is_dir():
            found.append({"where": f"encoder.model {model}", "share": unknown_share(model, said)})
    except OSError:
        pass
    written = [text for text in texts.values() if kind_of(text) == MASKED_LM]  # others use their own words
    if written:
        share = outside(written[0].vocabulary, sampled(said))  # all have that of the experiment
        found.append({"where": "the vocabulary (text.words)", "share": share})
    return found


def data_warnings(data: Data, split: Split, about: Mapping[str, Any]) -> list[str]:
    """Return warnings about the data, a line each.

    They name classes that a limit left without a row, groups of classes that may be one, and users who hold a large
    share of a part.
    """
    lines = []
    if untested := about.get("untested"):
        lines.append(f"data.test-limit: no row is left of {listed(untested)}: accuracy says nothing of it; raise it")
    if groups := alike(split.train.classes, folded):
        more = f" ({len(groups) - 1:,} more groups)" if len(groups) > 1 else ""
        lines.append(f"data.label: classes {listed(list(map(spelled, groups[0])))} differ in case or width alone{more}")
    if data.user is not None:
        for name in ("train", "test"):
            lines += _large(name, getattr(split, name))
    return lines


def _large(name: str, part: Corpus) -> list[str]:
    """Return a line for each user who holds a large share of the rows."""
    counts = Counter(part.users or ())
    least = max(_LARGE, _TIMES / max(1, len(counts))) * len(part)
    return [
        f"{name}: user {shown(user)} holds {n:,} of {len(part):,} rows ({n / len(part):.0%}): a figure over rows is "
        "largely this person's; take some of these rows out, or give more users"
        for user, n in counts.most_common()
        if n > least
    ]
