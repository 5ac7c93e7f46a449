"""Server side of a Flower round: one request to every node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flwr.app import Message

from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record, request_to_record

MESSAGE_TYPE = "query.release"


def ask(grid: Any, request: Request, *, timeout: float) -> Iterator[Reply | str]:
    """Send the request to every node of the grid, and yield one answer for each, in any order.

    No message of a client can make this raise.

    Args:
        grid: Flower's grid.
        request: Request to send.
        timeout: Seconds until a silent node counts as "no answer".

    Yields:
        A reply that is not yet validated, or the reason why there is none: "code N" for an error of the client or of
        Flower, "unreadable reply", or "no answer" after the timeout. The server never reads an error's text: a client
        that raises may have put private text into it.
    """
    nodes = list(grid.get_node_ids())
    content = request_to_record(request)
    messages = [Message(content=content, dst_node_id=n, message_type=MESSAGE_TYPE) for n in nodes]
    answered = 0
    for message in grid.send_and_receive(messages, timeout=timeout):
        answered += 1
        yield _read(message)
    for _ in range(len(nodes) - answered):
        yield "no answer"


def _read(message: Any) -> Reply | str:
    if message.has_error():
        return f"code {int(message.error.code)}"
    try:
        return reply_from_record(message.content)
    except Exception:  # one broken reply must not stop a round
        return "unreadable reply"
