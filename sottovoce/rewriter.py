"""Rewriter of texts with the default vocabulary, where simulations are installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client.rewrite import Rewriter as _Rewriter
from mechanisms.catalogue import admit
from mechanisms.facts import AboutWords, facts_of
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism


class Rewriter(_Rewriter):
    """Text mechanism with the vocabulary of its output: `Rewriter("santext", epsilon=5).rewrite("a fine film")`.

    Args:
        mechanism: Name of a text mechanism; its description, as {"mechanism": "santext", "epsilon": 5.0}; or a
            `TextMechanism`.
        vocabulary: Vocabulary, or the folder of one. None takes the words of the default encoder, which need
            `pip install 'sottovoce[simulation]'`.
        model: Folder of the language model that the mechanism reads, if it reads one.
        parameters: Parameters of the mechanism, as epsilon=5.0 or length="kept".

    Raises:
        ValueError: The arguments do not fit together. The message is one line.
    """

    def __init__(
        self,
        mechanism: TextMechanism | Mapping[str, Any] | str,
        vocabulary: Vocabulary | Path | str | None = None,
        *,
        model: Path | str | None = None,
        **parameters: Any,
    ) -> None:
        if vocabulary is None and model is None and not isinstance(mechanism, TextMechanism):
            vocabulary = _usual(mechanism if isinstance(mechanism, str) else str(mechanism.get("mechanism")))
        super().__init__(mechanism, vocabulary, model=model, **parameters)


def _usual(name: str) -> Path:
    """Return the folder of the default encoder's words, with the tags that the mechanism needs."""
    from simulations.artifacts.vocabulary import vocabulary_folder

    requirements = facts_of(admit(name)).needs
    return vocabulary_folder(tags=True) if AboutWords.TAGS in requirements else vocabulary_folder()
