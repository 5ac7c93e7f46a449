"""Model card of a trained model, with the guarantee of its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NOT_PRIVATE = "\n**Not private: a reference.** Nothing protects the users of this model.\n"

ON_EMBEDDINGS = """The maps and the head are in `maps.safetensors`. They predict from *sanitized embeddings*, without
BERT:

```python
from server.maps import Maps

maps = Maps.load("this folder")
classes = maps.predict(z)  # z: decoded releases, unit rows of m' coordinates
```

The metric guarantee is about the mapped, normalized embedding: texts that it puts far apart are the less
hidden. Inference needs a release too, and that release costs the user who asks.
"""
ON_TEXT = """The encoder was trained on *sanitized texts*, and predicts from such:

```python
from server.model import Pipeline

pipeline = Pipeline.from_pretrained("this folder")
maps = pipeline.maps()
classes = maps.predict(maps.project(pipeline.embed(texts)))  # texts: released words with spaces between
```

The metric guarantee is about the words' vectors: words that lie far apart are the less hidden. Inference needs a
release too, and that release costs the user who asks; on the user's own device, it needs none.
"""


Rungs = Sequence[Mapping[str, Any]]
#: Who pays what a ladder says, by its key.
PAYERS = {"ladder": "training user", "test_ladder": "test user"}


class Price(NamedTuple):
    """(ε, δ) of all that one user releases, trusting nobody; whose: of PAYERS, "" where nobody releases anything.

    epsilon: inf where nothing is promised, None where it is not known, or nobody releases anything; why: in words,
    where it is None.
    """

    epsilon: float | None
    delta: float = 0.0
    whose: str = ""
    why: str = ""


def price_of(rungs: Rungs | None, whose: str) -> Price | None:
    """Return what the users of one ladder pay: the theorems' worst case, or ε at the ladder's δ where these have none.

    whose: of PAYERS. None where there is no ladder: nobody released anything, or what they released is not said.
    """
    if not rungs:
        return None
    user = next((rung for rung in rungs if rung["rung"] == "user"), None)
    if user is None:
        return Price(None, whose=whose, why="the results do not say")
    if user["epsilon"] is None:
        return Price(None, whose=whose, why=str(user.get("assumption") or "").partition(";")[0])
    worst, proved = float(user["worst_case"]), float(user["epsilon"])
    return Price(worst, whose=whose) if math.isfinite(worst) else Price(proved, user["delta"], whose)


def dearest(ladders: Mapping[str, Rungs | None]) -> Price:
    """Return what the user pays who pays most, training user or test user, whoever it is.

    What is not known of one of them is not known of the dearest, unless the other is promised nothing. The δ is the
    largest of them, so that (ε, δ) holds of everybody. ladders: by whose they are, of PAYERS.
    """
    prices = [price for whose, rungs in ladders.items() if (price := price_of(rungs, whose)) is not None]
    if not prices:
        return Price(None, why="nothing is released")
    infinite = [price for price in prices if price.epsilon == math.inf]
    unknown = [price for price in prices if price.epsilon is None]
    if infinite or unknown:
        return (infinite or unknown)[0]
    most = max(prices, key=lambda price: price.epsilon or 0.0)
    return most._replace(delta=max(price.delta for price in prices))


def model_card(about: Mapping[str, Any]) -> str:
    """Return the README.md of a saved model, as Markdown.

    Args:
        about: Facts about the model. Missing keys and keys with the value None are left out. Keys: name, way
            (in words), mechanism, epsilon, dim, classes (names or a number), encoder (hash or name), reference (True:
            not private), released ("text", otherwise embeddings), users, delivered, guarantee (in words), measured
            (values by their headings, as accuracies), and budget (a mapping with statement, worst_case_epsilon, its
            delta, label_epsilon). ladder and test_ladder hold rungs as dicts, for a training user and for a test user
            (`mechanisms.accounting.ladder`).
    """
    budget = about.get("budget") or {}
    classes = about.get("classes")
    rows = {
        "Way of training": about.get("way"),
        "Mechanism": about.get("mechanism"),
        "Guarantee": about.get("guarantee"),
        "Metric guarantee of one user's release": budget.get("statement"),
        f"Its worst case over all texts (ε, at δ = {budget.get('delta') or 0:g})": budget.get("worst_case_epsilon"),
        "Label ε (at δ = 0)": budget.get("label_epsilon"),
        "Worst case of one question of a user who asks (ε)": budget.get("asking_epsilon"),
        "All that one user releases, at most, trusting nobody": _most(about),
        "Coordinates of a release (m')": about.get("dim"),
        "Classes": classes if isinstance(classes, int) or classes is None else ", ".join(map(str, classes)),
        "Encoder": about.get("encoder"),
        "Users": about.get("users"),
        "Users delivered": about.get("delivered"),
        **(about.get("measured") or {}),
    }
    table = "\n".join(f"| {name} | {_text(value)} |" for name, value in rows.items() if value is not None)
    warning = NOT_PRIVATE if about.get("reference") else ""
    return f"""---
library_name: sottovoce
tags: [text-classification, local-differential-privacy]
---

# {about.get("name") or "A model trained on sanitized releases"}
{warning}
| | |
|---|---|
{table}
{_ladders(about)}
{ON_TEXT if about.get("released") == "text" else ON_EMBEDDINGS}"""


def _most(about: Mapping[str, Any]) -> str | None:
    """The price of the user who pays most, and whose it is; None where no ladder is known."""
    price = dearest({whose: about.get(key) for key, whose in PAYERS.items()})
    if not price.whose:
        return None
    if price.epsilon is None:
        return f"not known of a {price.whose}: {price.why}"
    delta = f" at δ = {price.delta:.3g}" if price.delta and math.isfinite(price.epsilon) else ""
    return f"ε = {_epsilon(price.epsilon)}{delta} (a {price.whose})"


def _ladders(about: Mapping[str, Any]) -> str:
    """Return the ladders of a training user and a test user as Markdown; "" if no ladder is known."""
    parts = []
    for who, key in (("a training user", "ladder"), ("a user who asks (a test user)", "test_ladder")):
        if rungs := about.get(key):
            parts.append(
                f"\n## What it costs {who}\n\n| rung | ε | δ | worst case (δ = 0) | crowd | neighbours | rests on |\n"
                "|---|---:|---:|---:|---:|---|---|\n" + "\n".join(_rung(rung) for rung in rungs) + "\n"
            )
    return "".join(parts)


def _rung(rung: Mapping[str, Any]) -> str:
    none = rung["epsilon"] is None
    cells = [
        rung["rung"],
        _epsilon(rung["epsilon"]),
        "–" if none else f"{rung['delta']:.3g}",
        _epsilon(rung["worst_case"]),
        "–" if rung.get("crowd") is None else rung["crowd"],
        rung["neighbours"],
        rung["assumption"],
    ]
    return f"| {' | '.join(_text(cell) for cell in cells)} |"


def _epsilon(value: Any) -> str:
    return "–" if value is None else "∞" if value in ("inf", math.inf) else f"{value:.4g}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "∞ (no protection)" if math.isinf(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")
