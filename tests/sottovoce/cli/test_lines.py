"""Single lines that commands print."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from simulations.experiment import from_table
from simulations.run import simulate
from sottovoce.cli.main import main


@pytest.mark.parametrize("typed", ["budget laddr", "budgett", "simulat", "device ledgr", "budget zzz"])
def test_what_was_meant_is_asked_once(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count("Did you mean") == (typed != "budget zzz")


def test_a_folder_in_place_of_a_ledger_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "ladder", "--ledger", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}: is a folder; name the ledger in it, as {tmp_path / 'ledger.sqlite'}" in line


@pytest.mark.parametrize(("arms", "said"), [(1, "1 arm"), (2, "2 arms")])
def test_one_arm_is_one(arms: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    embedding = {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 2}
    table: dict[str, Any] = {
        "name": "s",
        "policy": {"embedding": 4.0, "accept-unprotected": ["label: test"]},
        "arm": [{"name": f"a{i}", "embedding": embedding} for i in range(arms)],
    }
    lines: list[str] = []

    class Stop(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            raise KeyboardInterrupt

    stop, engine = Stop(), cast(Any, None)
    logger = logging.getLogger("simulations")
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate._results(from_table(table), tmp_path, engine)
    finally:
        logger.removeHandler(stop)
    assert lines[0].endswith(f", {said}")


def test_a_plan_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["budget", "plan", "--mechanism", "purkayastha:dim=2", "--users", "50", "--label-epsilon", "1"]
    assert main([*asked, "--epsilon", "4", "--delta", "1e-6", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("{") and "label ε = 1: split 1 of 1" in said.err
