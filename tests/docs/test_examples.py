"""Each example of the pages prints what the page says, and docs/reference/api.md lists every public name."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import sottovoce
from mechanisms.catalogue import CATALOGUE
from mechanisms.mechanism import Mechanism
from server.protocols.drive import Driver
from sottovoce import PrivUnit, Purkayastha, RandomizedResponse, Rewriter, SanitizedEncoder, ladder
from tests.support.devices import words
from tests.support.paths import ROOT, program
from tests.support.studies import run_in_process

API = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if page.name != "api.md" and ">>> " in page.read_text(encoding="utf-8")
]
SECTIONS = dict(section.split("\n", 1) for section in re.split(r"^## ", API, flags=re.MULTILINE)[1:])
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder; studies run in this process."""
    run_in_process(monkeypatch)
    monkeypatch.chdir(tmp_path)


def run(text: str, place: str) -> None:
    """Run the examples of a page or section, one after another."""
    blocks = "".join(block for block in _BLOCK.findall(text) if ">>> " in block)
    test = doctest.DocTestParser().get_doctest(blocks, {}, place, place, 0)
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=output.append)
    assert runner.tries and not runner.failures, "".join(output)


@pytest.mark.parametrize("interface", [Mechanism, Driver])
def test_the_toy_of_an_interface(interface: type) -> None:
    run(f"```python\n{inspect.cleandoc(interface.__doc__ or '')}\n```", interface.__name__)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_examples_of_a_section(section: str) -> None:
    run(SECTIONS[section], section)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page(page: Path) -> None:
    run(page.read_text(encoding="utf-8"), page.name)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the output that it was kept with, but for digits that depend on the machine."""
    monkeypatch.syspath_prepend(tmp_path)
    notebooks = program("notebooks")
    cells = [(notebooks.output(cell), now) for cell, now in notebooks.run(notebooks.load(path))]
    assert len(cells) >= 3 and all(bool(kept) == bool(now) for kept, now in cells)
    if path.stem != "first-study":  # whose last digits are those of the machine's arithmetic
        assert [now for _, now in cells] == [kept for kept, _ in cells]


def test_every_public_name_has_an_example() -> None:
    assert {"README", "sanitize"} <= {page.stem for page in PAGES}
    imports = re.findall(r"^>>> from sottovoce import (.+?)(?:  #.*)?$", API, re.MULTILINE)
    assert sorted({name for line in imports for name in line.split(", ")}) == sottovoce.__all__
    public = {getattr(sottovoce, name) for name in sottovoce.__all__}
    assert not [kind.__name__ for kind in CATALOGUE.values() if kind not in public]


# --- by hand


def test_other_types_than_texts_are_refused() -> None:
    rewriter = Rewriter("santext", words(), epsilon=5)
    assert isinstance(rewriter.rewrite("good film"), str) and isinstance(rewriter.rewrite(["good film"]), list)
    for wrong in (b"good", 3, [3], [b"good"], None):
        with pytest.raises(TypeError, match="texts must be"):
            rewriter.rewrite(wrong)  # type: ignore[call-overload]
    assert rewriter.worst_case() == rewriter.guarantee.worst_case()

    class Fixed:
        def encode(self, texts: list[str]) -> object:
            return np.tile(np.eye(1, 4, dtype=np.float32), (len(texts), 1))

    encoder = SanitizedEncoder(Fixed(), Purkayastha(dim=4, epsilon=2.0))
    assert encoder.encode("good").shape == (4,) and encoder.encode(["good", "bad"]).shape == (2, 4)
    with pytest.raises(TypeError, match="texts must be"):
        encoder.encode(b"good")  # type: ignore[arg-type]


def test_the_worst_case_of_a_text_counts_its_tokens_where_its_length_is_public() -> None:
    kept = Rewriter("santext", words(), epsilon=5, length="kept", tokens=8)
    token = kept.worst_case("good film") / 2
    assert token == pytest.approx(kept.worst_case("good")) and kept.worst_case() == pytest.approx(8 * token)
    drawn = Rewriter("santext", words(), epsilon=5, tokens=8)
    assert drawn.worst_case("good") == drawn.worst_case() > 8 * token


def test_a_ladder_is_a_frame_with_named_columns() -> None:
    frame = ladder("labelled-demo").to_frame()
    assert list(frame.columns[:4]) == ["arm", "user", "rung", "epsilon"]
    assert set(frame["user"]) == {"training", "inference"}
    alone = ladder(PrivUnit(dim=8, epsilon=2.0), users=1000).to_frame().set_index("rung")
    assert alone.loc["user", "epsilon"] == pytest.approx(2, abs=1e-6) and alone.loc["shuffled", "epsilon"] < 2
    assert ladder(RandomizedResponse(1.0, 3)).to_frame()["worst_case"].max() == 1
    with pytest.raises(ValueError, match="channel label"):
        ladder([RandomizedResponse(1.0, 3), RandomizedResponse(1.0, 3)])
    with pytest.raises(ValueError, match="experiment"):
        ladder("labelled-demo", stages=2)
