"""Results as `simulations.run.run.run` returns them, made up: for the report and the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulations.run.measures import Guesses


def user(epsilon: float | None, *, public: Sequence[str] = (), **more: Any) -> list[dict[str, Any]]:
    """Return a ladder of its rung of a user alone, who pays ε between data that agree in what is public."""
    same = "".join(f", {'the same' if name == 'label' else 'that agree in'} {name} (public)" for name in public)
    about = {"delta": 0.0, "unit": "user", "neighbours": f"any two users' data{same}", "assumption": "drawn once"}
    spent = {"epsilon": epsilon, "worst_case": epsilon, "statement": None, "unprotected": [], "crowd": None}
    return [{"rung": "user"} | about | spent | more]


def _line(
    name: str,
    mechanism: str | None,
    epsilon: float | None,
    accuracy: float | None,
    *,
    metric: str | None = "angular",
    label: float | None = math.inf,
    clean: float = 0.9,
    way: str = "release-once",
    reference: bool = False,
) -> dict[str, Any]:
    public_label = label == math.inf and not reference
    diameter = math.pi if metric == "angular" else 2.0
    worst = None if epsilon is None else epsilon * diameter
    paid = math.inf if reference else (worst or 0.0) + (0.0 if label is None or public_label else label)
    return {
        "ladder": None if way == "public-only" else user(paid, public=("label",) if public_label else ()),
        "test_ladder": None if worst is None else user(worst),
        "name": name,
        "mechanism": mechanism,
        "epsilon": None if epsilon == math.inf else epsilon,
        "label_mechanism": "identity",
        "label_epsilon": None if label == math.inf else label,
        "dim": 16,
        "accuracy": accuracy,
        "accuracy_se": None if accuracy is None else 0.012,
        "accuracy_clean_test": clean,
        "accuracy_clean_test_se": 0.01,
        "users": 2000,
        "delivered": 2000,
        "dropped": {},
        "errors": {},
        "bytes_per_user": 34.0,
        "seconds": 8.25,
        "reference": reference,
        "way": way,
        "budget": {
            "metric_epsilon": epsilon,
            "metric": metric,
            "statement": "10·d_angular",
            "worst_case_epsilon": worst,
            "label_epsilon": None if public_label else label,
            "public_label": public_label,
        },
    }


def demo() -> dict[str, Any]:
    arms = [
        _line("public-only", "purkayastha", 10.0, 0.81, label=None, way="public-only", clean=0.83),
        _line("no noise", "identity", math.inf, 0.91, metric="euclidean", reference=True),
        _line("Purkayastha, ε = 10", "purkayastha", 10.0, 0.90),
        _line("planar Laplace, ε = 10", "planar-laplace", 10.0, 0.895, metric="euclidean"),
        _line("Purkayastha, ε = 10, label ε = 2", "purkayastha", 10.0, 0.885, label=2.0),
        _line("Purkayastha, ε = 0.5", "purkayastha", 0.5, 0.56, clean=0.88),
    ]
    arms[2]["dropped"] = {"not on the sphere": 3}
    arms[2]["errors"] = {"the request could not be answered": 1}
    arms[0] |= {"users": 0, "delivered": 0, "bytes_per_user": 0}
    return {
        "name": "demo",
        "seed": 1,
        "way": "release-once",
        "way_sentence": None,
        "chance": 0.507,
        "classes": ["bad", "good"],
        "arms": arms,
        "seconds": 61.0,
        "corpus": {"source": "built-in"},
        "encoder": {"model": "minilm", "sha256": "00"},
        "randomness": "simulation",
        "versions": {"numpy": "2"},
    }


def guesses(
    scores: np.ndarray,
    labels: np.ndarray,
    texts: np.ndarray | None = None,
    *,
    numbers: Sequence[float] | None = None,
    seed: int = 1,
) -> Guesses:
    """Guesses of as many distinct texts and users as there are rows."""
    rows = np.arange(len(labels))
    names = [str(k) for k in range(scores.shape[1])]
    return Guesses(scores, labels, rows if texts is None else texts, rows, names, numbers, seed)
