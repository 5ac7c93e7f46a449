"""Model card of a trained model, with the guarantee of its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mechanisms.accounting.ladder import shared
from mechanisms.guarantee import condition

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
    """Price (ε, δ) of all that one user releases over a whole run, with the condition under which it holds.

    Args:
        epsilon: ε; inf if nothing is promised, None if it is unknown or nobody releases anything.
        delta: δ.
        whose: User who pays it, of PAYERS; "" if nobody releases anything.
        why: Reason, if there is no finite ε.
        public: What two users' data have in common, as it is declared public; between others ε is infinite.
    """

    epsilon: float | None
    delta: float = 0.0
    whose: str = ""
    why: str = ""
    public: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return ε with its δ and its condition; without a finite ε, the reason."""
        if self.epsilon is None or math.isinf(self.epsilon):
            return self.why or ("no bound" if self.epsilon is None else "∞")
        delta = f" at δ = {self.delta:.3g}" if self.delta else ""
        return f"ε = {self.epsilon:.4g}{delta}{condition(self.public)}"


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
    if math.isinf(proved):
        return Price(proved, whose=whose, why="none: something leaves without protection")
    epsilon, delta = (worst, 0.0) if math.isfinite(worst) else (proved, user["delta"])
    return Price(epsilon, delta, whose, public=shared(user))


def model_card(about: Mapping[str, Any]) -> str:
    """Return the README.md of a saved model, as Markdown.

    Args:
        about: Facts about the model. Missing keys, but for name, and keys with the value None are left out. Keys: name,
            way (in words), mechanism, epsilon, dim, classes (names), encoder (hash or name), reference (True: not
            private), released ("text", otherwise embeddings), users, delivered, measured (values by their headings, as
            accuracies), and budget (a mapping with statement). ladder and test_ladder hold rungs as dicts, for a
            training user and for a test user (`mechanisms.accounting.ladder`): the card says what each pays for all
            that it releases. The rungs and what they rest on are in results.json and its report.
    """
    budget = about.get("budget") or {}
    rows = {
        "Way of training": about.get("way"),
        "Mechanism": about.get("mechanism"),
        "Metric guarantee of one user's release": budget.get("statement"),
        **{
            f"All that one user releases in {part}, trusting nobody": price and str(price)
            for part, (key, whose) in zip(("training", "inference"), PAYERS.items(), strict=True)
            for price in [price_of(about.get(key), whose)]
        },
        "Coordinates of a release (m')": about.get("dim"),
        "Classes": ", ".join(map(str, about.get("classes") or ())) or None,
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

# {about["name"]}
{warning}
| | |
|---|---|
{table}

{ON_TEXT if about.get("released") == "text" else ON_EMBEDDINGS}"""


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "∞ (no protection)" if math.isinf(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")
