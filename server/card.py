"""Model card of a trained model, with the guarantee of its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WAYS = {
    "release-once": "every user released a sanitized embedding and label once; the rest is post-processing",
    "statistics": "every user released one vector, of how features go with labels; the server learnt from their mean, "
    "and the rest is post-processing",
    "sanitized-text": "every user released a sanitized text and label once; the rest is post-processing",
    "text-then-embeddings": "half of the users released a sanitized text, the others a sanitized embedding under the "
    "encoder trained on these, each with a label; the rest is post-processing",
    "public-only": "public data alone; no user took part",
    "paper": "a trusted simulation of the published procedure; gradients depend on raw text: NOT private",
}
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


def model_card(about: Mapping[str, Any]) -> str:
    """Return the README.md of a saved model, as Markdown.

    Args:
        about: Facts about the model. Missing keys and keys with the value None are left out. Keys: name, way,
            mechanism, epsilon, dim, classes (names or a number), encoder (hash or name), reference (True: not private),
            released ("text", otherwise embeddings), accuracy, accuracy_clean_test, users, delivered, guarantee (in
            words), and budget (a mapping with statement, worst_case_epsilon, its delta, label_epsilon). ladder and
            test_ladder hold rungs as dicts, for a training user and for a test user (`mechanisms.accounting.ladder`).
    """
    budget = about.get("budget") or {}
    classes = about.get("classes")
    rows = {
        "Way of training": _way(about.get("way")),
        "Mechanism": about.get("mechanism"),
        "Guarantee": about.get("guarantee"),
        "Metric guarantee of one user's release": budget.get("statement"),
        f"Its worst case over all texts (ε, at δ = {budget.get('delta') or 0:g})": budget.get("worst_case_epsilon"),
        "Label ε (at δ = 0)": budget.get("label_epsilon"),
        "Worst case of a user who asks (ε)": budget.get("asking_epsilon"),
        "Coordinates of a release (m')": about.get("dim"),
        "Classes": classes if isinstance(classes, int) or classes is None else ", ".join(map(str, classes)),
        "Encoder": about.get("encoder"),
        "Users": about.get("users"),
        "Users delivered": about.get("delivered"),
        "Accuracy, sanitized test sentences": about.get("accuracy"),
        "Accuracy, clean test sentences": about.get("accuracy_clean_test"),
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
        rung["rung"], _epsilon(rung["epsilon"]), "–" if none else f"{rung['delta']:.3g}", _epsilon(rung["worst_case"]),
        "–" if rung.get("crowd") is None else rung["crowd"], rung["neighbours"], rung["assumption"],
    ]  # fmt: skip
    return f"| {' | '.join(_text(cell) for cell in cells)} |"


def _epsilon(value: Any) -> str:
    return "–" if value is None else "∞" if value in ("inf", math.inf) else f"{value:.4g}"


def _way(way: str | None) -> str | None:
    return None if way is None else f"{way}: {WAYS[way]}" if way in WAYS else way


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "∞ (no protection)" if math.isinf(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")
