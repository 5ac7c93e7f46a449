"""What figures from the pages' tables claim of them."""

from __future__ import annotations

from docs.table_figures import bounded_successes


def test_no_attack_is_above_its_bound() -> None:
    found = bounded_successes()
    assert len(found) >= 4
    above = {name: [pair for pair in pairs if pair[1] > pair[0]] for name, pairs in found.items()}
    assert not any(above.values()), above
