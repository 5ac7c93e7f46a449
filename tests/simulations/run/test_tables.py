"""Any table, through `init` and `check`: no traceback, no row lost without a word, no cell of anybody in an error."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from simulations.run.proposal import Proposal, propose
from sottovoce.cli import main as cli
from tests.support.studies import split_of
from tests.support.tables import Made, made

#: Of the seeds, how many are tried by default, and in all.
FEW, MANY = 10, 2000
#: One of so many is accounted too, which takes most of the time and does not depend on what a table is like.
ACCOUNTED = 20


def gone_through(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What came of a table: "run", or by which command it was refused. Asserts what must hold of any."""
    table, out, kept = made(folder, seed), folder / "out", []

    def proposed(*arguments: object, **options: object) -> Proposal:
        kept.append(propose(*arguments, **options))  # type: ignore[arg-type]
        return kept[-1]

    monkeypatch.setattr("simulations.run.proposal.propose", proposed)
    options = [word for name, value in table.options.items() for word in (f"--{name}", value)]
    capsys.readouterr()
    code = cli.main(["init", str(out), "--from", str(table.file), *options])
    captured = capsys.readouterr()
    assert code in (0, 2), (seed, code)
    if code == 2:
        assert not out.exists(), seed
        refused(table, captured.err, seed)
        return "init refused"
    all_rows(kept[-1], table, seed)
    if seed % ACCOUNTED:
        monkeypatch.setattr("simulations.run.check.of_experiment", lambda *_, **__: [])
    code = cli.main(["check", str(out / "experiment.toml")])
    captured = capsys.readouterr()
    assert code in (0, 2), (seed, code)
    if code == 2:
        refused(table, captured.err, seed)
    shutil.rmtree(out)
    return "run" if code == 0 else "check refused"


def refused(table: Made, said: str, seed: int) -> None:
    """One line, and no word of anybody's in it."""
    line = said.removesuffix("\n").splitlines()[-1]
    assert line.startswith("sottovoce: ") and line.isprintable() and len(line) < 600, (seed, said)
    text = line.replace(str(table.file), "")
    assert not [word for word in table.private if word in text], (seed, said)
    assert "Traceback" not in said and ".part" not in said, (seed, said)


def all_rows(proposal: Proposal, table: Made, seed: int) -> None:
    """All rows are used or named, by what the command says and by what its experiment reads."""
    used, left = proposal.used, proposal.left
    assert table.rows == len(used) + sum(left.values()), (seed, left)
    assert set(left) <= set(proposal.findings), seed
    assert f"{len(used):,} of {table.rows:,} rows" in proposal.findings[0], seed
    split, about = split_of(proposal.experiment)
    parts = (split.public, split.train, split.test)
    assert sum(map(len, parts)) + int(str(about.get("dropped", 0))) == len(used), seed
    if used.users is not None:
        whose = [set(part.users or ()) for part in parts]
        assert not whose[0] & whose[1] and not (whose[0] | whose[1]) & whose[2], seed


@pytest.mark.parametrize(
    "part",
    [
        range(FEW),
        *(
            pytest.param(range(start, start + 200), marks=[pytest.mark.slow, pytest.mark.soak])
            for start in range(FEW, MANY, 200)
        ),
    ],
)
def test_tables_of_any_kind(
    tmp_path: Path, part: range, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = Counter(gone_through(tmp_path, seed, monkeypatch, capsys) for seed in part)
    assert result["run"] > len(part) / 8 and result["init refused"] > len(part) / 20, result
