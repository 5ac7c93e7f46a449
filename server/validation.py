"""Checks of the server on every reply before training. A client may be broken or hostile."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request


def validate(reply: Reply, request: Request, *, enrolled: range) -> tuple[Reply, Counter[str]]:
    """Return the valid rows of a reply, and the number of dropped rows by reason.

    A fault of the message drops all its rows: channels, stage, digest, guarantee, or the names, dtype or shape of its
    arrays. A fault of a row drops that row from every channel: a user who is unknown or of another part, an embedding
    that is off its quantizer, not finite or off the sphere by more than rounding, a word or a label out of range.
    Reasons are fixed words: no text of a client gets into them. This never raises.

    Args:
        reply: Reply of a client.
        request: Request that it answers.
        enrolled: Users who received the request. Participation is public. A made-up user would be trained on, and would
            count towards the batch that hides the others.
    """
    try:
        return _validate(reply, request, enrolled)
    except Exception:  # a hostile reply must not stop a round, whatever error it provokes
        return _empty(), Counter({"unreadable": max(1, _rows(reply))})


def _validate(reply: Reply, request: Request, enrolled: range) -> tuple[Reply, Counter[str]]:
    fault = _fault(reply, request)
    if fault:
        return _empty(), Counter({fault: n} if (n := len(reply)) else {})
    index, count = request.part
    rows = {
        "user or record below 0": (reply.users >= 0) & (reply.records >= 0),
        "unknown user": (reply.users >= enrolled.start) & (reply.users < enrolled.stop),
        "user of another part": reply.users % count == index,
    }
    for release in reply.releases:
        rows |= request.named(release.channel).checks(release.values)
    good = np.ones(len(reply), dtype=np.bool_)
    reasons: Counter[str] = Counter()
    for reason, passed in rows.items():  # a row counts once, under the first check that it fails
        reasons[reason] = int((good & ~passed).sum())
        good &= passed
    reasons = +reasons
    return (reply if good.all() else reply.take(good)), reasons


def _fault(reply: Reply, request: Request) -> str | None:
    if sorted(r.channel for r in reply.releases) != sorted(request.channels):
        return "channels"
    for release in reply.releases:
        channel = release.channel
        if release.stage != request.stage:
            return f"{channel}: stage"
        if release.digest != request.digest(channel):
            return f"{channel}: digest"
        question = request.named(channel)
        if not release.guarantee.agrees(question.mechanism.guarantee):
            return f"{channel}: guarantee"
        name, dtype, shape = question.payload_form
        if set(release.payload) != {name}:
            return f"{channel}: payload"
        array = release.payload[name]
        if array.dtype != dtype:
            return f"{channel}: dtype"
        if array.shape != (len(reply), *shape):
            return f"{channel}: shape"
    return None


def _rows(reply: Reply) -> int:
    try:
        return len(reply)
    except Exception:
        return 0


def _empty() -> Reply:
    none = np.zeros(0, np.int64)
    return Reply(none, none.copy(), ())
