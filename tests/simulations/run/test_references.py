"""Warnings about reference arms and about models that learned nothing."""

from __future__ import annotations

from simulations.run.remarks import remarks


def results(*gaps: float, error: float = 0.01) -> list[dict[str, object]]:
    """Runs in which the arm "private" is better than "no noise" by each gap."""

    def pair(arm: str, less: str, gap: float) -> dict[str, object]:
        return {"arm": arm, "less": less, "on_device": {"difference": gap, "error": error}, "sanitized": None}

    arms = [
        {"name": "all", "reference": True, "way": "centralised", "budget": {}},
        {"name": "no noise", "reference": True, "way": "statistics", "budget": {}},
        {"name": "private", "reference": False, "way": "statistics", "budget": {}},
    ]
    pairs = [("private", "no noise", 0.0), ("no noise", "all", -0.1), ("private", "all", -0.1)]
    return [
        {"arms": arms, "differences": [pair(a, b, gap * (a == "private") + more) for a, b, more in pairs]}
        for gap in gaps
    ]


def test_a_reference_below_a_private_arm_is_named_beyond_its_error() -> None:
    lost = "no noise: lies below all, by 0.100 ± 0.010: that much is lost on the way to what users release, before any"
    (line,) = remarks(results(-0.05))
    assert line.startswith(lost)
    assert remarks(results(0.05))[0].startswith("no noise: lies below private, which are private: its maps or its head")
    assert len(remarks(results(0.2, -0.1, 0.05))) == 1  # over seeds the error is .09
    assert len(remarks(results(0.05, 0.05, error=0.05))) == 1  # as is that by the texts that runs share
    assert remarks(results(0.25, 0.3))[0].startswith("all: lies below private, which are private: its head is the")


def taught(chance: float, accuracy: float, guesses: list[int], **more: object) -> dict[str, object]:
    arm = {
        "name": "a",
        "way": "statistics",
        "budget": {},
        "accuracy": None,
        "accuracy_clean_test": accuracy,
        "accuracy_clean_test_se": 0.02,
        "guessed": {"sanitized": [], "on_device": guesses},
    }
    return {"arms": [arm], "differences": [], "chance": chance, "classes": ["no", "yes"]} | more


def test_a_model_of_one_class_and_one_below_chance_are_named() -> None:
    (one,) = remarks([taught(0.97, 0.97, [200, 0])])
    assert one == 'a: on the device its model says of every text "no": it tells no classes apart.'
    (most,) = remarks([taught(0.5, 0.5, [1, 199]), taught(0.5, 0.6, [90, 110])])
    assert 'says of 199 of 200 texts "yes" with 1 of 2 seeds' in most
    (below,) = remarks([taught(0.7, 0.6, [90, 110])])
    assert below.startswith("a: on the device its accuracy, 0.600 ± 0.020, lies below chance, 0.700")
    assert remarks([taught(0.7, 0.67, [90, 110])]) == []  # within two standard errors
    assert remarks([taught(0.7, 0.6, [90, 110], label_range=[0.0, 1.0])]) == []
