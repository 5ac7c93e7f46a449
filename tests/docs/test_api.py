"""docs/reference/api.md: it lists every public name, and each example says what comes out."""

from __future__ import annotations

import doctest
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import sottovoce
from mechanisms.catalogue import CATALOGUE
from mechanisms.mechanism import Mechanism, WordMechanism
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
#: Names whose examples start Ray, train or read a language model. Those of one run follow one another in its folder.
RUN = ("simulate", "resume", "attack")
SLOW = {*RUN, "vocabulary_folder"}
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """What the page has of a name: its one line of words, its section's beginning and its example."""

    about: str
    beginning: str
    example: str


def entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        beginning, *parts = re.split(r"^### ", section, flags=re.MULTILINE)
        for part in parts:
            heading, _, rest = part.partition("\n")
            name = heading.strip().strip("`")
            assert name not in found, f"{name} stands on the page twice"
            found[name] = Entry(
                _BLOCK.sub("", rest).strip(), "".join(_BLOCK.findall(beginning)), "".join(_BLOCK.findall(rest))
            )
    return found


ENTRIES = entries()


def run(*names: str) -> None:
    """The examples of names of one section, one after another."""
    text = ENTRIES[names[0]].beginning + "".join(ENTRIES[name].example for name in names)
    test = doctest.DocTestParser().get_doctest(text, {}, ", ".join(names), "docs/reference/api.md", 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert runner.tries >= len(names) and not runner.failures, "".join(said)


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in SLOW])
def test_the_example_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_examples_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(*RUN)


@pytest.mark.slow
def test_the_slow_example_of_a_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("vocabulary_folder")


def test_the_page_lists_every_public_name_and_no_other() -> None:
    assert sorted(ENTRIES) == sottovoce.__all__


@pytest.mark.parametrize("name", sottovoce.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.about and len(entry.about) < 250, "one line about each name, or two"
    assert re.search(rf"^>>> from sottovoce import .*\b{name}\b", entry.example, re.MULTILINE), "its import is shown"
    value = getattr(sottovoce, name)
    documented = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    # a dataclass without words of its own is given its signature for a docstring
    assert documented and not documented.startswith(f"{name}("), "it has a docstring of its own"


def test_every_member_of_a_public_class_says_what_it_is() -> None:
    """Its own docstring, or that of what every mechanism is: what `make docs` shows has words beside it."""
    promised = set(re.findall(r"(\w+): ", f"{Mechanism.__doc__} {WordMechanism.__doc__}"))
    silent = [
        f"{name}.{member}"
        for name in sottovoce.__all__
        if inspect.isclass(kind := getattr(sottovoce, name))
        for member, value in vars(kind).items()
        if not member.startswith("_") and (isinstance(value, property) or inspect.isroutine(value))
        if member not in promised and not inspect.getdoc(getattr(kind, member))
    ]
    assert {"guarantee", "grid"} <= promised and not silent


def test_every_mechanism_of_the_catalogue_is_public() -> None:
    public = {getattr(sottovoce, name) for name in sottovoce.__all__}
    missing = [kind.__name__ for kind in CATALOGUE.values() if kind not in public]
    assert not missing, "a line in sottovoce/__init__.pyi and an example in docs/reference/api.md are missing"
