"""Consent to requests that the policy does not list: described in words, and allowed by the user or the publisher."""

from __future__ import annotations

from pathlib import Path

from client.consent import Question, allow_question, kept_questions, read_question
from client.device.statement import describe_question
from client.node import Node, load_device
from client.policy import Refused


def waiting(folder: Path) -> str:
    """Return lines for people about the requests that a device refused because its policy does not list them."""
    node = _device(folder)
    lines: list[str] = []
    for path in kept_questions(node):
        lines += [f"{path}", *_told(node, read_question(path, node))]
    if not lines:
        return f"{folder}: no question waits for you"
    return "\n".join([*lines, f"Agree to one: sottovoce device allow {folder} --question FILE --yes"])


def allow(folder: Path, file: Path, *, agreed: bool) -> str:
    """Add the request in a file to a device's policy, and return lines for people.

    Args:
        folder: Folder of the device.
        file: File of the request.
        agreed: Whether the user has read the request and agrees.

    Raises:
        ValueError: The user has not agreed and the request is not signed by the publisher that the device has pinned;
            or the device's limits forbid it in any case. The message is one line.
    """
    node = _device(folder)
    question = read_question(file, node)
    if node.policy("").questions is None:
        raise ValueError(f"{folder}: its policy lists no questions, and answers any within its limits")
    vouched = question.vouched(node.publisher)
    if not (vouched or agreed):
        told = "; ".join(describe_question(question.request, node.policy("")))
        raise ValueError(f"{file}: is not signed by the publisher of this device; if you agree, say --yes ({told})")
    allow_question(node, question.request)
    by = "its publisher has signed it" if vouched else "you have agreed"
    return "\n".join([f"{folder}: answers this question from now on; {by}:", *_told(node, question)])


def _told(node: Node, question: Question) -> list[str]:
    policy = node.policy("")
    lines = [f"  {line}" for line in describe_question(question.request, policy)]
    try:
        policy.listing(question.request).check(question.request)
    except Refused as error:
        lines.append(f"  which the limits forbid in any case: {error}")
    return lines


def _device(folder: Path) -> Node:
    return load_device(folder, simulated=", whose users are asked nothing")
