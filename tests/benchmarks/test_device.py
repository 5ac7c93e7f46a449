"""The time, memory and bytes of a sentence on a device: they add up, and what is measured is charged."""

from __future__ import annotations

from pathlib import Path

from benchmarks import device
from client.store.ledger import Ledger
from mechanisms.messages.sealed import sealed_bytes
from tests.support.devices import SENTENCES, make_bundle, make_text_bundle


def test_a_profile_adds_up(tmp_path: Path) -> None:
    made = make_bundle(tmp_path)
    found = device.measure(made, SENTENCES * 4, tmp_path / "run")
    times = found["milliseconds"]
    assert set(times) == {*device.STEPS, "all", "seal"} and times["seal"]["p50"] > 0
    for step in times.values():
        assert 0 <= step["p50"] <= step["p90"] <= step["p99"]
    assert sum(times[step]["p50"] for step in device.STEPS) < 3 * times["all"]["p50"]
    assert found["sentences"] == 4 * len(SENTENCES) - device.WARM_UP
    assert found["first_seconds"] > 0 and found["memory"] > 10_000_000
    payload = 2 * made.request.projection.dim + 2 + 16  # coordinates, label, user and record
    assert found["wire"]["answer"] > payload and found["wire"]["question"] > made.request.projection.m1.nbytes
    assert found["wire"]["sealed"] > sealed_bytes(made.request) + 16
    with Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(ledger.rows()) == 2 * 4 * len(SENTENCES)


def test_texts_are_profiled_too(tmp_path: Path) -> None:
    found = device.measure(make_text_bundle(tmp_path), SENTENCES, tmp_path / "run")
    assert found["milliseconds"]["encode"]["p99"] == 0 and found["milliseconds"]["sanitize"]["p50"] > 0
