"""Answers of the page's endpoints, as plain dictionaries that are ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from client.models.tokens import padded_word_ids
from client.policy import Refused
from mechanisms.messages.questions import QUESTIONS, LabelQuestion, MappedQuestion, TextQuestion
from mechanisms.messages.request import Request
from mechanisms.vocabulary import NOTHING
from simulations.errors import UserError
from sottovoce.explore import costs, inference
from sottovoce.explore.device import Device, Sent, refusal
from sottovoce.explore.inference import Truth
from sottovoce.explore.settings import MECHANISMS, RANGES, SLIDERS, Settings
from sottovoce.explore.world import World
from sottovoce.report.glossary import entries

#: Draws beside a release, and most characters of a sentence.
OTHERS, CHARACTERS = 200, 100_000
_PLACES = 4


@dataclass(frozen=True, eq=False)
class Explorer:
    """Contents of one page: a device, and the public data around it.

    Args:
        device: Device of the page.
        world: World of the page.
    """

    device: Device
    world: World

    def state(self) -> dict[str, Any]:
        """Return the page's constants: possible choices, and the glossary."""
        return {
            "first": asdict(Settings()),
            "mechanisms": MECHANISMS,
            "sliders": {name: slider._asdict() for name, slider in SLIDERS.items()},
            "ranges": RANGES,
            "classes": list(self.world.classes),
            "name": self.world.name,
            "glossary": entries(),
        }

    def cost(self, settings: Settings, text: str, label: int) -> dict[str, Any]:
        """Return an answer's cost, and other possible outputs for the sentence.

        Args:
            settings: Settings of the page.
            text: The sentence.
            label: Its label.
        """
        result = costs.cost(settings, self.world, self.device.policy.declared)
        kind = QUESTIONS[settings.channel]
        result["draws"] = result["outputs"] = None
        if kind is TextQuestion:
            result["outputs"] = self._outputs(settings, text)
        elif text.strip() and issubclass(kind, MappedQuestion):
            request, truth = self._asked(settings, text, label)
            question = request.question(kind)
            draws = inference.others(question, truth, OTHERS, stage=request.stage)
            result["draws"] = {
                "points": _rounded(question.decode(draws)),
                "truth": _rounded(inference.own_point(question, truth)),
            }
        return result

    def _outputs(self, settings: Settings, text: str) -> dict[str, Any]:
        """Return each word of a text, with its likeliest outputs."""
        mechanism: Any = self.world.mechanisms(settings)[0]
        ids = padded_word_ids([text], mechanism)[0]
        ids = ids[ids != NOTHING].tolist()
        distinct = list(dict.fromkeys(ids))
        alternatives = inference.alternatives(mechanism, distinct)
        size, words = len(mechanism.vocabulary), mechanism.vocabulary.words
        word_rows = [
            {"word": "(a word that is in no list)" if i == size else words[i], "alternatives": alternatives[i]}
            for i in ids
        ]
        return {
            "words": word_rows,
            "most": mechanism.tokens,
            "draws": inference.draws_behind(mechanism, len(distinct)),
        }

    def send(self, settings: Settings, text: str, label: int, rounds: int) -> dict[str, Any]:
        """Release a sentence, and return the release with its inferences, or the refusal.

        Args:
            settings: Settings of the page.
            text: The sentence.
            label: Its label.
            rounds: Number of the round.
        """
        if not text.strip():
            raise UserError("type a sentence first")
        request, truth = self._asked(settings, text, label)
        request = replace(request, stage=f"{request.stage}-{rounds}")  # in which a record may be released once
        try:
            submission = self.device.send(request, text, label, self.world.encoder)
        except Refused as error:
            return {"refused": refusal(error)}
        return {
            "refused": None,
            "stage": request.stage,
            "wire": submission.wire,
            "channels": [self._released(submission, channel, truth) for channel in request.channels],
        }

    def _asked(self, settings: Settings, text: str, label: int) -> tuple[Request, Truth]:
        classes = len(self.world.classes)
        if not 0 <= label < classes:
            raise UserError(f"label: must be from 0 to {classes - 1}")
        return self.world.request(settings), Truth(text, label, self.world.embed(text))

    def _released(self, sent: Sent, channel: str, truth: Truth) -> dict[str, Any]:
        """Return one channel of a release: its bytes, their meaning, and a server's inferences."""
        question, payload, world = sent.request.named(channel), sent.payload(channel), self.world
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
        vocabulary, exact = mechanism.vocabulary, inference.draws_behind(mechanism) is None
        words = []
        for place in np.flatnonzero(payload != NOTHING).tolist():
            y, token = int(payload[place]), int(x[place])
            chance = None
            if token != NOTHING and exact:
                chance = float(np.exp(mechanism.word.log_prob(np.array([y]), np.array([token]))[0]))
            original = None if token == NOTHING else vocabulary.words[token] if token < len(vocabulary) else "(unknown)"
            words.append({"left": vocabulary.words[y], "original": original, "probability": chance})
        return {
            "value": " ".join(vocabulary.text(payload).split()),
            "words": words,
            "closed": exact,
            "inferred": inference.of_words(mechanism, payload[payload != NOTHING].astype(np.int64)),
        }


def _chances(mechanism: Any, classes: tuple[str, ...], label: int) -> list[dict[str, Any]]:
    x = np.full(len(classes), label)
    pairs = zip(classes, np.exp(mechanism.log_prob(np.arange(len(classes)), x)), strict=True)
    return [{"name": name, "probability": float(p), "mine": i == label} for i, (name, p) in enumerate(pairs)]


def _rounded(values: Any) -> Any:
    return np.round(np.asarray(values, float), _PLACES).tolist()
