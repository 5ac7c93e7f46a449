"""Answers of the page's endpoints, as plain dictionaries that are ready for JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client.models.tokens import padded_word_ids
from client.policy import Refused
from mechanisms.messages.questions import LabelQuestion, MappedQuestion, TextQuestion
from mechanisms.messages.request import Request
from mechanisms.vocabulary import NOTHING
from simulations.errors import UserError
from simulations.progress import lines_to
from sottovoce.explore import costs, inference
from sottovoce.explore.device import Device, Sent, told
from sottovoce.explore.inference import Truth
from sottovoce.explore.settings import MECHANISMS, SLIDERS, Settings, slider_of
from sottovoce.explore.world import CLASSES, World, kind_of
from sottovoce.report.glossary import entries

#: Draws beside a release, and most characters of a sentence.
OTHERS, CHARACTERS = 200, 100_000
_PLACES = 4


class Loading:
    """World that is made in a thread. `line` is its progress.

    Args:
        make: Function that makes the world.
    """

    def __init__(self, make: Callable[[], World]) -> None:
        self.line = "loading"
        self._world: Future[World] = Future()
        threading.Thread(target=self._run, args=(make,), daemon=True).start()

    def _run(self, make: Callable[[], World]) -> None:
        try:
            with lines_to(self._say, thread=threading.get_ident()):
                self._world.set_result(make())
        except Exception as error:  # the page shows any error in place of a world
            self._world.set_exception(UserError(" ".join(str(error).split()) or type(error).__name__))

    def _say(self, line: str) -> None:
        self.line = line

    @property
    def failed(self) -> str:
        """Return the reason if the world cannot be made."""
        return str(self._world.exception() or "") if self._world.done() else ""

    @property
    def ready(self) -> bool:
        """Return True if the world is made."""
        return self._world.done() and not self.failed

    def world(self, seconds: float = 600.0) -> World:
        """Return the world, after a wait of at most `seconds`.

        Raises:
            UserError: It cannot be made, or not in time.
        """
        try:
            return self._world.result(seconds)
        except TimeoutError:
            raise UserError("still loading; try again in a moment") from None


@dataclass(frozen=True, eq=False)
class Explorer:
    """Contents of one page: a device, and the public data around it.

    Args:
        device: Device of the page.
        loading: World of the page.
    """

    device: Device
    loading: Loading

    def state(self) -> dict[str, Any]:
        """Return the page's constants: possible choices, and the glossary."""
        world = self._loaded
        return {
            "ready": world is not None,
            "line": self.loading.line,
            "failed": self.loading.failed,
            "first": Settings().to_dict(),
            "mechanisms": MECHANISMS,
            "sliders": {name: slider_of(name) for name in SLIDERS},
            "channels": list(MECHANISMS if world is None else world.channels),
            "classes": [] if world is None else list(world.classes),
            "name": "" if world is None else world.name,
            "glossary": entries(),
        }

    def price(self, settings: Settings, text: str, label: int) -> dict[str, Any]:
        """Return the fast part of an answer's cost, and other possible outputs for the sentence.

        A moving slider requests this. It requests the slow part when it rests.

        Args:
            settings: Settings of the page.
            text: The sentence.
            label: Its label.
        """
        world = self._loaded
        classes, words = self._sizes(world)
        result = costs.price(settings, classes, words, self.device.policy.declared)
        result["draws"] = result["outputs"] = None
        if world is not None and kind_of(settings) is TextQuestion:
            result["outputs"] = self._outputs(settings, world, text, drawn=False)
        if world is not None and text.strip() and issubclass(kind := kind_of(settings), MappedQuestion):
            request, truth = self._asked(world, settings, text, label)
            question = request.question(kind)
            draws = inference.others(question, truth, OTHERS, stage=request.stage)
            result["draws"] = {
                "points": _rounded(question.decode(draws)),
                "truth": _rounded(inference.own_point(question, truth)),
            }
        return result

    def _outputs(self, settings: Settings, world: World, text: str, *, drawn: bool) -> dict[str, Any] | None:
        """Return each word of a text, with its likeliest outputs; None for an estimate if `drawn` is False."""
        mechanism: Any = settings.mechanisms(len(world.classes), world.vocabulary)[0]
        ids = padded_word_ids([text], mechanism)[0]
        ids = ids[ids != NOTHING].tolist()
        distinct = list(dict.fromkeys(ids))
        draws = inference.estimated(mechanism, len(distinct))
        if draws is not None and not drawn:
            return None
        alternatives = inference.alternatives(mechanism, distinct)
        size, words = len(mechanism.vocabulary), mechanism.vocabulary.words
        word_rows = [
            {"word": "(a word that is in no list)" if i == size else words[i], "alternatives": alternatives[i]}
            for i in ids
        ]
        return {"words": word_rows, "most": mechanism.tokens, "draws": draws}

    def loss(self, settings: Settings, text: str) -> dict[str, Any]:
        """Return the results from the distribution of an answer's loss, and outputs of words that need an estimate.

        Args:
            settings: Settings of the page.
            text: The sentence.
        """
        world = self._world if kind_of(settings) is TextQuestion else self._loaded
        classes, words = self._sizes(world)
        result = costs.loss(settings, classes, words, self.device.policy.declared)
        result["outputs"] = None
        if world is not None and kind_of(settings) is TextQuestion:
            result["outputs"] = self._outputs(settings, world, text, drawn=True)
        return result

    def guesses(self, settings: Settings, released: list[int]) -> dict[str, Any]:
        """Return a server's guesses of released words; this computes every pair of words.

        Args:
            settings: Settings of the page.
            released: Numbers of the released words.
        """
        world = self._world
        mechanism: Any = settings.mechanisms(len(world.classes), world.vocabulary)[0]
        if kind_of(settings) is not TextQuestion or not all(0 <= y < len(mechanism.vocabulary) for y in released):
            raise UserError("guesses: must be numbers of released words")
        return {
            "guesses": inference.of_words(mechanism, np.array(released, np.int64)),
            "draws": inference.estimated(mechanism),
            "limit": inference.word_limit(mechanism),
        }

    def send(self, settings: Settings, text: str, label: int, rounds: int) -> dict[str, Any]:
        """Release a sentence, and return the release with its inferences, or the refusal.

        Args:
            settings: Settings of the page.
            text: The sentence.
            label: Its label.
            rounds: Number of the round.
        """
        world = self._world
        if not text.strip():
            raise UserError("type a sentence first")
        request, truth = self._asked(world, settings, text, label)
        request = replace(request, stage=f"{request.stage}-{rounds}")  # in which a record may be released once
        try:
            submission = self.device.send(request, text, label, world.encoder)
        except Refused as error:
            return {"refused": told(error)}
        return {
            "refused": None,
            "stage": request.stage,
            "wire": submission.wire,
            "channels": [self._released(world, submission, channel, truth) for channel in request.channels],
        }

    @property
    def _world(self) -> World:
        return self.loading.world()

    @property
    def _loaded(self) -> World | None:
        """Return the world, if it is loaded."""
        return self.loading.world() if self.loading.ready else None

    def _sizes(self, world: World | None) -> tuple[int, Any]:
        return (CLASSES, None) if world is None else (len(world.classes), world.vocabulary)

    def _asked(self, world: World, settings: Settings, text: str, label: int) -> tuple[Request, Truth]:
        if settings.channel not in world.channels:
            raise UserError(f"{settings.channel}: what is loaded here has no part that could release it")
        if not 0 <= label < len(world.classes):
            raise UserError(f"label: must be from 0 to {len(world.classes) - 1}")
        request = world.request(settings)
        embedding = world.embed(text) if request.encoder else None
        return request, Truth(text, label, embedding)

    def _released(self, world: World, sent: Sent, channel: str, truth: Truth) -> dict[str, Any]:
        """Return one channel of a release: its bytes, their meaning, and a server's inferences."""
        question, payload = sent.request.named(channel), sent.payload(channel)
        mechanism: Any = question.mechanism
        payload_bytes = np.ascontiguousarray(payload, payload.dtype.newbyteorder("<"))
        result: dict[str, Any] = {
            "channel": channel,
            "repeated": sent.repeated[channel],
            "bytes": payload_bytes.tobytes().hex(),
            "each": payload.dtype.itemsize,
            "guarantee": costs.named(mechanism),
        }
        if isinstance(question, LabelQuestion):
            return result | {
                "value": world.classes[int(payload)],
                "same": bool(int(payload) == truth.label),
                "chances": _chances(mechanism, world.classes, truth.label),
                "inferred": {"label": inference.of_label(world, question, payload, truth)},
            }
        if isinstance(question, TextQuestion):
            return result | self._text(mechanism, payload, truth)
        assert isinstance(question, MappedQuestion)
        return result | {
            "point": _rounded(question.decode(payload)),
            "truth": _rounded(inference.own_point(question, truth)),
            "inferred": inference.of_vector(world, question, payload, truth),
        }

    def _text(self, mechanism: Any, payload: Any, truth: Truth) -> dict[str, Any]:
        """Return a text word by word: inputs, outputs and their probabilities."""
        x = padded_word_ids([truth.text], mechanism)[0]
        vocabulary, exact = mechanism.vocabulary, inference.estimated(mechanism) is None
        words = []
        for place in np.flatnonzero(payload != NOTHING).tolist():
            y, token = int(payload[place]), int(x[place])
            chance = None
            if token != NOTHING and exact:
                chance = float(np.exp(mechanism.word.log_prob(np.array([y]), np.array([token]))[0]))
            original = None if token == NOTHING else vocabulary.words[token] if token < len(vocabulary) else "(unknown)"
            words.append({"left": vocabulary.words[y], "number": y, "original": original, "probability": chance})
        return {
            "value": " ".join(vocabulary.text(payload).split()),
            "words": words,
            "vocabulary": len(vocabulary),
            "closed": exact,
            "inferred": {},
        }


def _chances(mechanism: Any, classes: tuple[str, ...], label: int) -> list[dict[str, Any]]:
    x = np.full(len(classes), label)
    pairs = zip(classes, np.exp(mechanism.log_prob(np.arange(len(classes)), x)), strict=True)
    return [{"name": name, "probability": float(p), "mine": i == label} for i, (name, p) in enumerate(pairs)]


def _rounded(values: Any) -> Any:
    return np.round(np.asarray(values, float), _PLACES).tolist()
