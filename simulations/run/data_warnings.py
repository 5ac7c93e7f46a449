"""What of an experiment's data somebody would want to look at before a run: people, classes, language."""

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

#: Share of a part's rows that is much for one user: accuracy moves by as much where this person stays away, more than
#: arms differ by. And how many times an equal share it has to be, as of five users each has a fifth.
_LARGE, _TIMES = 0.1, 2


def unknown_words(model: str, split: Split, texts: Mapping[str, TextMechanism]) -> list[dict[str, Any]]:
    """The share of the users' words that the encoder, and the vocabulary of text mechanisms, do not have: {"where",
    "share"} each; none of an encoder, `model`, that is not on this machine."""
    said, found = [*split.train.texts, *split.test.texts], []
    try:
        if Path(resolve(model)).is_dir():
            found.append({"where": f"encoder.model {model}", "share": unknown_share(model, said)})
    except OSError:
        pass
    written = [text for text in texts.values() if kind_of(text) == MASKED_LM]  # others write what they read
    if written:
        share = outside(written[0].vocabulary, sampled(said))  # of the study
        found.append({"where": "the vocabulary (text.words)", "share": share})
    return found


def data_warnings(data: Data, split: Split, about: Mapping[str, Any]) -> list[str]:
    """Return a line for each class that a limit left without a row, for each group of classes that may be one, and for
    each user who holds a large share of a part."""
    lines = []
    if untested := about.get("untested"):
        lines.append(f"data.test-limit: no row is left of {listed(untested)}: accuracy says nothing of it; raise it")
    for group in alike(split.train.classes, folded):
        lines.append(f"data.label: classes {listed(list(map(spelled, group)))} differ in case or width alone")
    if data.user is not None:
        for name in ("train", "test"):
            lines += _large(name, getattr(split, name))
    return lines


def _large(name: str, part: Corpus) -> list[str]:
    """A line for each user who holds a large share of the rows."""
    counts = Counter(part.users or ())
    least = max(_LARGE, _TIMES / max(1, len(counts))) * len(part)
    return [
        f"{name}: user {shown(user)} holds {n:,} of {len(part):,} rows ({n / len(part):.0%}): a figure over rows is "
        "largely this person's; take some of these rows out, or give more users"
        for user, n in counts.most_common() if n > least
    ]  # fmt: skip
