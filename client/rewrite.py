"""Sanitized texts for your own programs: the command `sottovoce sanitize` in two lines of Python.

    from sottovoce import Rewriter
    print(Rewriter("santext", "my-vocabulary", epsilon=10.0).rewrite("a fine film"))

"my-vocabulary" is a folder that client.models.vocabulary.save wrote; sottovoce.vocabulary_folder() returns that of the
default checkpoint. Each call draws anew, and has a new privacy cost: these draws are charged on no ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from client.draw import batch_size, private_arguments
from client.models import language_models, tokens
from client.models import vocabulary as vocabularies
from client.models.language_models import Generator
from mechanisms.catalogue import admit, build
from mechanisms.channels import TEXT
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.mechanism import Uniforms
from mechanisms.pieces import Text
from mechanisms.streams import SecureStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import TextMechanism


@dataclass(frozen=True)
class Token:
    """Token of a text with its draw, for the owner of the text alone.

    Attributes:
        original: Token as written; None if the text was padded to the drawn length.
        substitute: Drawn token; None if nothing was drawn.
        probability: Probability of the substitute, given the token; None if the mechanism has no closed form.
        epsilon: Worst case of its draw, given what the guarantee exposes; inf if it was passed through, 0 without a
            draw.
        note: "unknown", "kept" (passed through), "dropped" (first), "left out" (cut, or nothing drawn), "filled", or
            "". For a generating model, tokens of input and output do not correspond: those of the text are "read", and
            those of the output "drawn"; or "drawn at once", if the epsilon beside each is the cost of a single draw of
            all of them.
    """

    original: str | None
    substitute: str | None
    probability: float | None
    epsilon: float
    note: str


class Rewriter:
    """Text mechanism with the vocabulary of its output.

    Args:
        mechanism: Name of a text mechanism; its description, as {"mechanism": "santext", "epsilon": 10.0}; or a
            `TextMechanism`.
        vocabulary: Vocabulary, or the folder of one, if `mechanism` is a description.
        model: Folder of the language model by which the mechanism reads the whole text, if it does
            (`client.models.language_models`). With a generating model, a description without a vocabulary writes in the
            model's own tokens. Bounds and widths that the description does not state are the model's.
        parameters: Parameters of the mechanism, with a name or a description: epsilon=10.0, length="kept".

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
        if isinstance(mechanism, TextMechanism):
            if parameters:
                raise ValueError(f"rewriter: the mechanism has its parameters; leave {next(iter(parameters))} out")
            self.text = mechanism
        else:
            mechanism = ({"mechanism": mechanism} if isinstance(mechanism, str) else dict(mechanism)) | parameters
            if isinstance(vocabulary, str | Path):
                vocabulary = vocabularies.load_cached(vocabulary)
            if model is not None:
                mechanism, vocabulary = _completed(mechanism, vocabulary, model)
            self.text = build(mechanism, channel=TEXT.name, vocabulary=vocabulary)
        self._model = model
        if self.text.word.reads and model is None:
            raise ValueError(f"{self.text.name}: reads the whole text with a language model; give the model's folder")
        #: Recommended number of texts for one call, by memory.
        self.batch_size = batch_size(self.text)

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of one rewritten text; k texts of a user cost k times as much."""
        return self.text.guarantee

    def worst_case(self, text: Text | None = None) -> float:
        """Return ε between a text and any other that agrees with it in what the guarantee exposes.

        Args:
            text: A text whose length is exposed (length="kept"), to count its tokens. None takes the longest text. The
                value for a text says how long it is: keep it on the device.
        """
        guarantee = self.guarantee
        bound = guarantee.worst_case(declared=guarantee.exposes)
        if text is None or "length" not in guarantee.exposes:
            return bound
        read = int((tokens.padded_word_ids([text], self.text) != NOTHING).sum())
        return min(bound, read * cost_of(self.text.word))

    @overload
    def rewrite(self, texts: str, *, rng: Uniforms | None = None) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def rewrite(self, texts: Sequence[Text], *, rng: Uniforms | None = None) -> list[Any]: ...
    def rewrite(self, texts: str | Sequence[Text], *, rng: Uniforms | None = None) -> Any:
        """Return one draw for each text, in their order; none holds a line break or a tab.

        A mechanism of two sides returns one pair for each pair of texts, with both sides drawn independently.

        Args:
            texts: One text, which returns one text; or a sequence of texts or pairs, which returns a list.
            rng: Uniforms of as many rows, for reproducible results that are not private. None takes the operating
                system's secure generator.

        Raises:
            TypeError: Something is no text.
        """
        if isinstance(texts, str):
            return self.rewrite([texts], rng=rng)[0]
        texts = texts_of(texts)
        if rng is not None:
            return self.decoded(self.draw(texts, rng=rng)[0])
        starts = range(0, len(texts), self.batch_size)
        batches = (self.draw(texts[start : start + self.batch_size], rng=None)[0] for start in starts)
        return [text for word_ids in batches for text in self.decoded(word_ids)]

    def explain(self, text: Text, *, rng: Uniforms | None = None) -> list[Token]:
        """Return a draw for one text, token by token; for a pair, the second text follows the first."""
        return self.explain_draw(text, self.draw([text], rng=rng)[0][0])

    def draw(self, texts: Sequence[Text], *, rng: Uniforms | None) -> tuple[NDArray[np.int32], int]:
        """Return word ids (n, positions) of the texts, and the number of tokens read (private); see `rewrite`."""
        if rng is None:
            rows = np.arange(len(texts))
            rng = SecureStreams().rows(rows, np.zeros_like(rows), stage="rewrite", channel=TEXT.name)
        x = tokens.padded_word_ids(texts, self.text)
        drawn = self.text.sample(x, rng=rng, **private_arguments(self.text, texts, x, self._model))
        return drawn, int((x != NOTHING).sum())

    def decoded(self, word_ids: NDArray[np.int32]) -> list[Any]:
        """Return drawn word ids (n, positions) as texts, or pairs, with one space between words."""
        texts = self.text.texts(word_ids)
        if self.text.sides == 1:
            return [" ".join(text.split()) for text in texts]
        return [tuple(" ".join(side.split()) for side in text) for text in texts]

    def explain_draw(self, text: Text, drawn: NDArray[np.int32]) -> list[Token]:
        """Return the tokens of a text with the word ids (positions,) that `draw` returned for it."""
        sides = zip(tokens.sides_of(text, self.text.sides), self.text.slices, strict=True)
        return [token for part, side in sides for token in self._explained(part, drawn[side])]

    def _explained(self, text: str, drawn: NDArray[np.int32]) -> list[Token]:
        vocabulary, end = self.text.vocabulary, self.text.tokens
        rows: list[tuple[str | None, int, int, str]] = []  # original, its id, drawn id, note
        at = 0
        for token in tokens.tokenize(text, vocabulary):
            word_id = vocabulary.word_id(token)
            if self.text.dropped[word_id]:
                rows.append((token, word_id, NOTHING, "dropped"))
                continue
            output = int(drawn[at]) if at < end else NOTHING
            at += 1
            kept = bool(self.text.kept[word_id])
            unknown = "unknown" if word_id == vocabulary.unknown else ""
            rows.append((token, word_id, output, "left out" if output == NOTHING else "kept" if kept else unknown))
        rows += [(None, vocabulary.unknown, int(y), "filled") for y in drawn[at:] if y != NOTHING]
        if language_models.kind_of(self.text) != language_models.MASKED_LM:
            rows = [(token, word_id, NOTHING, "read") for token, word_id, _, _ in rows if token is not None]
            rows += [(None, vocabulary.unknown, int(y), "drawn") for y in drawn if y != NOTHING]

        cost = cost_of(self.text.word)
        chances = self._probabilities([(x, y) for _, x, y, _ in rows])
        return [
            Token(
                original,
                vocabulary.words[output] if output != NOTHING else None,
                None if output == NOTHING else 1.0 if note == "kept" else chance,
                math.inf if note == "kept" else 0.0 if output == NOTHING else cost,
                note,
            )
            for (original, _, output, note), chance in zip(rows, chances, strict=True)
        ]

    def _probabilities(self, pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        """Return the probability of each output given its input, if a closed form of the two exists."""
        form = getattr(self.text.word, "log_prob", None)
        places = [i for i, (_, y) in enumerate(pairs) if y != NOTHING]
        chances: list[float | None] = [None] * len(pairs)
        if form is None or self.text.word.reads or not places:
            return chances
        x, y = (np.array([pairs[i][side] for i in places], dtype=np.int64) for side in (0, 1))
        try:
            values = np.exp(form(y, x))
        except NotImplementedError:  # a mode without one
            return chances
        for i, value in zip(places, values, strict=True):
            chances[i] = float(value)
        return chances


def _completed(
    spec: Mapping[str, Any], vocabulary: Vocabulary | None, model: Path | str
) -> tuple[Mapping[str, Any], Vocabulary | None]:
    """Return a description completed by its language model.

    The model supplies bounds of logits, and, if it generates, the tokens of the output and the one that ends a text.
    """
    kind = admit(str(spec.get("mechanism", "")))
    if not getattr(kind, "reads", ()):
        return spec, vocabulary
    language_model = language_models.load(model, language_models.kind_of(kind))
    names = {f.name for f in fields(kind)}
    arguments = language_models.said(kind, language_model)
    if {"low", "high"} & spec.keys():  # bounds go together
        arguments = {name: value for name, value in arguments.items() if name not in ("low", "high")}
    if isinstance(language_model, Generator) and vocabulary is None:
        vocabulary = language_model.vocabulary
        arguments |= {"end": language_model.end} if "end" in names else {}
    return arguments | dict(spec), vocabulary


def texts_of(texts: Any) -> list[Any]:
    """Return a sequence of texts, or of pairs, as a list.

    Raises:
        TypeError: It is no sequence of texts.
    """
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Iterable):
        raise TypeError(f"texts must be a text or a sequence of texts, got {type(texts).__name__}")
    items = list(texts)
    for text in items:
        pair = isinstance(text, tuple | list) and all(isinstance(side, str) for side in text)
        if not isinstance(text, str) and not pair:
            raise TypeError(f"texts must be texts, got one of type {type(text).__name__}")
    return items


def describe_cost(text: TextMechanism) -> str:
    """Return the cost of one text for people: its worst case, the reason, and its exposures."""
    word, guarantee = text.word.guarantee, text.guarantee
    bound = _public(guarantee)
    if bound == math.inf:
        return "no protection: ε = ∞ for any two texts that differ"
    detail = f"{text.tokens} tokens at {_number(_public(word))} each"
    if text.lengths is not None:
        detail += f", their number at {_number(text.lengths.guarantee.worst_case())}"
    detail += "" if text.sides == 1 else f", on each of {text.sides} sides"
    if not guarantee.exposes:
        return f"ε = {_number(bound)} at worst, for any two texts ({detail})"
    shown = " and ".join(EXPOSURES[name] for name in guarantee.exposes)
    return f"exposed: {shown}; texts that agree in that: ε = {_number(bound)} at worst ({detail}); any others: ε = ∞"


def cost_of(word: Any) -> float:
    """Return the worst case of one draw, with its exposures taken as public."""
    return _public(word.guarantee)


def _public(guarantee: Guarantee) -> float:
    """Return the worst case with the exposures of the guarantee taken as public."""
    return guarantee.worst_case(declared=guarantee.exposes)


def _number(value: float) -> str:
    return "∞" if value == math.inf else f"{value:,.5g}"
