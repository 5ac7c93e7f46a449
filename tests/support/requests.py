"""Requests by the fields of their wire: a test changes one of these, whichever question it belongs to."""

from __future__ import annotations

from typing import Any

from mechanisms.messages.questions import (
    AnswerQuestion,
    EmbeddingQuestion,
    LabelQuestion,
    Prior,
    Projection,
    Question,
    TextQuestion,
    VectorQuestion,
)
from mechanisms.messages.request import Request

#: Of a request itself; all other fields are of its questions.
_OWN = ("arm", "stage", "split", "part", "minimum_users")


def made(
    *,
    classes: int,
    encoder: str = "",
    mean: Any = None,
    m1: Any = None,
    embedding: Any = None,
    label: Any = None,
    text: Any = None,
    statistic: Any = None,
    answer: Any = None,
    prior: Any = None,
    codes: Any = None,
    head: Any = None,
    vocabulary: Any = None,
    masked_lm: str = "",
    **own: Any,
) -> Request:
    """A request whose mechanisms, maps and other parameters are given by name; what no question reads is left out."""
    questions: list[Question] = []
    if text is not None:
        questions.append(TextQuestion(text, classes=classes, vocabulary=vocabulary, masked_lm=masked_lm))
    maps: Any = None
    if any(spec is not None for spec in (embedding, statistic, answer)):
        maps = Projection(encoder, mean, m1)
    if embedding is not None:
        questions.append(EmbeddingQuestion(embedding, classes=classes, projection=maps))
    if statistic is not None:
        questions.append(VectorQuestion(statistic, projection=maps, codes=codes))
    if answer is not None:
        questions.append(AnswerQuestion(answer, projection=maps, head=head))
    if label is not None:
        known = None if prior is None else Prior(prior, next((q for q in questions if q.projection is maps), None))
        questions.append(LabelQuestion(label, classes=classes, prior=known))
    return Request(questions=tuple(questions), **own)


def fields(request: Request) -> dict[str, Any]:
    """What `made` makes an equal request of."""
    found: dict[str, Any] = {name: getattr(request, name) for name in (*_OWN, "classes")}
    for question in request.questions:
        found[question.channel] = question.spec
        for name in ("codes", "head", "vocabulary", "masked_lm"):
            if getattr(question, name, None) is not None:
                found[name] = getattr(question, name)
        if question.projection is not None:
            found |= {name: getattr(question.projection, name) for name in ("encoder", "mean", "m1")}
        if getattr(question, "prior", None) is not None:
            found["prior"] = question.prior.weights
    return found


def changed(request: Request, **changes: Any) -> Request:
    """A request that differs in these fields; None leaves one out."""
    return made(**{name: value for name, value in (fields(request) | changes).items() if value is not None})
