"""Sanitized texts as a data set in Hugging Face's layout: its rows, its card, and nothing that is half there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import load_dataset

from sottovoce.cli import main as cli

TEXTS = ["the film is good", "a bad plot", "fine"]
SANTEXT = ["text", "sanitize", "--words", "w.txt", "--mechanism", "santext:epsilon=2"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    words = sorted({word for text in TEXTS for word in text.split()})
    Path("w.txt").write_text("".join(f"{word} {' '.join(map(str, rng.normal(size=4)))}\n" for word in words))
    Path("rows.csv").write_text("who,review\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    Path("rows.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def card(folder: str) -> tuple[dict, str]:
    _, front, text = (Path(folder) / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


@pytest.mark.parametrize(("source", "column"), [("rows.csv", "review"), ("rows.txt", None)])
def test_a_data_set_with_its_card(source: str, column: str | None, tmp_path: Path) -> None:
    more = [] if column is None else ["--column", column]
    assert cli.main([*SANTEXT, "--in", source, *more, "--out", "hf:made"]) == 0
    rows = load_dataset("made", split="train", cache_dir=str(tmp_path / "datasets"))
    texts = rows[column or "text"]
    assert len(texts) == len(TEXTS) and list(texts) != TEXTS
    front, text = card("made")
    (files,) = front["configs"][0]["data_files"]
    assert (Path("made") / files["path"]).is_file() and "local-differential-privacy" in front["tags"]
    assert "santext" in text and "at worst, for any two texts" in text and "Not private" not in text
    assert ("**Passed through unchanged, without any protection:** `who`." in text) == (column is not None)
    if column is not None:
        assert list(rows["who"]) == [0, 1, 2]


def test_what_is_drawn_from_a_seed_says_so_and_the_card_says_nothing_of_the_texts() -> None:
    assert cli.main([*SANTEXT, "--in", "rows.txt", "--seed", "1", "--out", "hf:one"]) == 0
    Path("rows.txt").write_text("\n".join([*TEXTS[:2], "fine fine fine the film"]) + "\n")
    assert cli.main([*SANTEXT, "--in", "rows.txt", "--seed", "1", "--out", "hf:other"]) == 0
    assert card("one") == card("other") and "Not private" in card("one")[1]


def test_a_folder_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SANTEXT, "--in", "rows.txt", "--out", "hf:"]) == 2
    assert "--out hf: names no folder" in capsys.readouterr().err and not Path("hf:").exists()


def test_a_folder_with_something_in_it_and_half_a_run_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/x").write_text("")
    assert cli.main([*SANTEXT, "--in", "rows.txt", "--out", "hf:full"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("sottovoce: --out ") and "full: is there already and not an empty folder" in line
    Path("rows.csv").write_text("who,review\n1,fine\n2,fine,more,than,that\n")
    assert cli.main([*SANTEXT, "--in", "rows.csv", "--column", "review", "--out", "hf:made"]) == 2
    assert not Path("made").exists() and [p.name for p in Path("full").iterdir()] == ["x"]
