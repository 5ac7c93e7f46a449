"""Every interactive example of README and the pages prints what it says; the five that a newcomer tries first work."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if page.name != "api.md" and ">>> " in page.read_text(encoding="utf-8")
]
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "".join(block for block in _BLOCK.findall(page.read_text(encoding="utf-8")) if ">>> " in block)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert runner.tries and not runner.failures, "".join(said)


def test_there_are_such_pages() -> None:
    assert {"README", "sanitize"} <= {page.stem for page in PAGES}


def test_what_is_no_text_is_an_error() -> None:
    """A text was once taken for a list of its characters."""
    import numpy as np

    from sottovoce import Purkayastha, Rewriter, SanitizedEncoder
    from tests.support.devices import words

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
    from sottovoce import Rewriter
    from tests.support.devices import words

    kept = Rewriter("santext", words(), epsilon=5, length="kept", tokens=8)
    each = kept.worst_case("good film") / 2
    assert each == pytest.approx(kept.worst_case("good")) and kept.worst_case() == pytest.approx(8 * each)
    drawn = Rewriter("santext", words(), epsilon=5, tokens=8)
    assert drawn.worst_case("good") == drawn.worst_case() > 8 * each


def test_a_ladder_is_a_frame_with_named_columns() -> None:
    from sottovoce import PrivUnit, RandomizedResponse, ladder

    frame = ladder("labelled-demo").to_frame()
    assert list(frame.columns[:4]) == ["arm", "user", "rung", "epsilon"] and set(frame["user"]) == {
        "training",
        "inference",
    }
    alone = ladder(PrivUnit(dim=8, epsilon=2.0), users=1000).to_frame().set_index("rung")
    assert alone.loc["user", "epsilon"] == pytest.approx(2, abs=1e-6) and alone.loc["shuffled", "epsilon"] < 2
    assert ladder(RandomizedResponse(1.0, 3)).to_frame()["worst_case"].max() == 1
    with pytest.raises(ValueError, match="two mechanisms are of the channel label"):
        ladder([RandomizedResponse(1.0, 3), RandomizedResponse(1.0, 3)])
    with pytest.raises(ValueError, match="an experiment states all this itself"):
        ladder("labelled-demo", stages=2)


def test_a_mechanism_takes_a_generator_of_numpy_by_hand() -> None:
    import numpy as np

    from sottovoce import PrivUnit, RandomizedResponse

    x = np.zeros(20_000, np.int64)
    drawn = RandomizedResponse(1.0, 2).sample(x, rng=np.random.default_rng(7))
    kept = np.e / (1 + np.e)  # false alarm below 1e-6: five standard errors; a scale of 2/3 or 3/2 is .07 or .09 off
    assert abs((drawn == 0).mean() - kept) < 5 * np.sqrt(kept * (1 - kept) / len(x)) < 0.02
    same = [PrivUnit(dim=4, epsilon=3.0).sample(np.eye(4), rng=np.random.default_rng(1)) for _ in range(2)]
    assert np.array_equal(*same)
