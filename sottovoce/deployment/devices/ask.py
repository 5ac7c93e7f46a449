"""Command `sottovoce device ask`: classification of a sentence, or a file of them, by a deployed model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from shlex import quote
from typing import Any, TextIO

from client.device.ask import Predictions
from client.device.ask import ask as ask_model
from client.device.statement import describe_cost, describe_guarantee
from client.store.text_column import TextColumn
from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import EmbeddingQuestion
from simulations.corpora.files import lines
from simulations.errors import Interrupted, Terminated, UserError
from simulations.output.atomic import whole

Answer = dict[str, Any]


def one(node: Path, sentence: str, **where: Any) -> Answer:
    """Return {"class", "probabilities"} of a sentence, and its cost (`_costs`).

    Args:
        node: Folder of the device.
        sentence: Sentence to classify.
        **where: Server and other arguments of `ask_model`.
    """
    with _charges_kept(node):
        answer = ask_model(node, [sentence], **where)
    shares = dict(zip(answer.classes, answer.probabilities[0].tolist(), strict=True))
    return {"class": max(shares, key=lambda name: shares[name]), "probabilities": shares} | _costs(answer)


def many(node: Path, file: Path, out: Path, **where: Any) -> Answer:
    """Write a line of answers for each line of a file, the whole file or nothing.

    A line has line number, class, the probability of each class, and sentence, separated by tabs, under a header. An
    empty line has an empty answer.

    Args:
        node: Folder of the device.
        file: File of sentences.
        out: File to write.
        **where: Server and other arguments of `ask_model`.

    Returns:
        {"out", "lines", "classes"} with the number of sentences in each class, and their cost (`_costs`).
    """
    sentences: Any = TextColumn.of(line for _, line in lines(file))
    with _charges_kept(node), _draft(out) as draft:
        answer = ask_model(node, sentences, **where)
        counts = _write(draft, answer, sentences)
    return {"out": str(out), "lines": len(sentences), "classes": counts} | _costs(answer)


def in_lines(answer: Answer) -> str:
    """Return the results as lines for people, with the cost."""
    if "class" in answer:
        shares = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
        lines = [f"{answer['class']}  ({', '.join(f'{name} {share:.3f}' for name, share in shares)})"]
    else:
        counts = ", ".join(f"{count:,} {name}" for name, count in answer["classes"].items())
        lines = [f"{answer['out']}: {answer['lines']:,} lines: {counts}"]
    at = f" at δ = {answer['delta']:g}" if answer["delta"] else ""
    price = f"{describe_cost(answer['cost'])} ({answer['statement']})"
    if answer["public"]:
        charge = f"{price}: declared public, and not counted"
    elif not answer["charged"]:
        charge = f"nothing: asked about before, at {price}"
    else:
        charge = price if answer["charged"] == 1 else f"{price} for each of {answer['charged']:,} sentences"
    total = f"{describe_cost(answer['spent'])}{at}, in all that left this device but what its policy declares public"
    lines += [f"cost   {charge}", f"spent  {total}"]
    return "\n".join(lines)


def _costs(predictions: Predictions) -> Answer:
    """Return the cost.

    cost is the worst case of each release at the policy's delta. charged is the number of new releases. public is True
    if the policy declares them public. spent is the user's total.
    """
    guarantee: Guarantee = predictions.request.question(EmbeddingQuestion).mechanism.guarantee
    return {
        "cost": predictions.epsilon,
        "delta": predictions.delta,
        "statement": describe_guarantee(guarantee),
        "charged": predictions.charged,
        "public": predictions.public,
        "spent": predictions.spent,
    }


def _write(draft: TextIO, predictions: Predictions, sentences: Sequence[str]) -> dict[str, int]:
    """Write the answers, and return the number of sentences in each class."""
    best = predictions.probabilities.argmax(axis=1)
    counts = dict.fromkeys(predictions.classes, 0)
    print("line", "class", *predictions.classes, "sentence", sep="\t", file=draft)
    for number, (sentence, row) in enumerate(zip(sentences, predictions.rows.tolist(), strict=True), 1):
        if row < 0:
            print(number, *[""] * (len(predictions.classes) + 2), sep="\t", file=draft)
            continue
        name = predictions.classes[best[row]]
        counts[name] += 1
        shares = (f"{share:.6f}" for share in predictions.probabilities[row])
        print(number, name, *shares, " ".join(sentence.split()), sep="\t", file=draft)
    return counts


@contextmanager
def _draft(out: Path) -> Iterator[TextIO]:
    """Open a file that gets its name when the context ends without error.

    Raise UserError at once if it cannot be made.
    """
    if out.exists():
        raise UserError(f"{out}: is there already; name another file with --out")
    consequence = "nothing was charged"
    try:
        with whole(out, synced=True, private=True) as file:  # it quotes the sentences
            draft = TextIOWrapper(file, encoding="utf-8", newline="\n")
            consequence = "the sentences were charged, and cost nothing when they are asked about again"
            yield draft
            draft.detach()  # flushes the text; the file must stay open until it is on disk
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); {consequence}") from None


@contextmanager
def _charges_kept(node: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        raise Interrupted(
            f"interrupted; what was charged until then stays charged (sottovoce device ledger {quote(str(node))}), and "
            "costs nothing when it is asked about again",
            by=error,
        ) from None
