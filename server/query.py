"""The server's side of a Flower round: one question to every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record, request_to_record

MESSAGE_TYPE = "query.release"


@dataclass(frozen=True)
class Answer:
    """What came of asking one node: a reply, not yet validated, or the reason that there is none.

    error: "code N" of the client's or of Flower's error, "unreadable reply", or "no answer" in time. Its text
    is never read: a client that raises may have put private text into it.
    """

    reply: Reply | None = None
    error: str | None = None


def ask(grid: Any, request: Request, *, timeout: float) -> Iterator[Answer]:
    """Sends the request to every node of the grid and yields one answer for each, in any order.

    timeout: seconds until nodes that have not answered count as "no answer". Nothing that a client sends can
    make this raise.
    """
    nodes = list(grid.get_node_ids())
    content = request_to_record(request)
    messages = [Message(content=content, dst_node_id=n, message_type=MESSAGE_TYPE) for n in nodes]
    answered = 0
    for message in grid.send_and_receive(messages, timeout=timeout):
        answered += 1
        yield _read(message)
    for _ in range(len(nodes) - answered):
        yield Answer(error="no answer")


def _read(message: Any) -> Answer:
    if message.has_error():
        return Answer(error=f"code {int(message.error.code)}")
    try:
        return Answer(reply=reply_from_record(message.content))
    except Exception:  # one broken reply must not stop a round
        return Answer(error="unreadable reply")
