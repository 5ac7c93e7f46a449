"""Questions of a request, one class a channel. A new channel is a module with a class and one line here."""

from __future__ import annotations

from mechanisms.catalogue import OWN_KINDS
from mechanisms.channels import CHANNELS
from mechanisms.messages.questions.answer import AnswerQuestion
from mechanisms.messages.questions.embedding import EmbeddingQuestion
from mechanisms.messages.questions.label import LabelQuestion, Prior
from mechanisms.messages.questions.question import MAX_CLASSES, MAX_WIDTH, Projection, Question
from mechanisms.messages.questions.text import TextQuestion
from mechanisms.messages.questions.vector import VectorQuestion

#: Channels that every request lists, whether it asks for them or not, in their order on the wire: the label last,
#: because its prior may depend on the released embedding.
LISTED: tuple[type[Question], ...] = (TextQuestion, EmbeddingQuestion, VectorQuestion, AnswerQuestion, LabelQuestion)
#: Question classes by the name of their channel.
QUESTIONS: dict[str, type[Question]] = {kind.channel: kind for kind in LISTED}


def register(kind: type[Question]) -> None:
    """Add the channel of a question class, with its own mechanisms, to those that this process reads.

    Raises:
        ValueError: The name is taken.
    """
    if (QUESTIONS.setdefault(kind.channel, kind), CHANNELS.setdefault(kind.channel, kind.about)) != (kind, kind.about):
        raise ValueError(f"channel {kind.channel!r}: is registered already")
    OWN_KINDS.update({(mechanism.name, kind.channel): mechanism for mechanism in kind.mechanisms})


__all__ = [
    "LISTED",
    "MAX_CLASSES",
    "MAX_WIDTH",
    "QUESTIONS",
    "AnswerQuestion",
    "EmbeddingQuestion",
    "LabelQuestion",
    "Prior",
    "Projection",
    "Question",
    "TextQuestion",
    "VectorQuestion",
    "register",
]
