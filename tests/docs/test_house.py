"""The map of the house: it is that of the imports, and no arrow points up."""

from __future__ import annotations

from html import unescape
from types import ModuleType

import pytest

from tests.support.paths import ROOT
from tests.support.programs import program

PICTURE = ROOT / "docs" / "figures" / "house.svg"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return program("house")


def test_the_map_is_that_of_the_imports(house: ModuleType) -> None:
    drawn = unescape(PICTURE.read_text(encoding="utf-8"))
    assert house.words(house.imports()) in drawn, "the rooms or their imports are others now: run `make house`"


def test_every_room_is_on_the_map(house: ModuleType) -> None:
    known = house.imports()
    on_the_map = {f"{r.package}.{name}" for floor in house.storeys() for r in floor for name in r.names}
    packages = [ROOT / name for row in house.HOUSE for name in row]
    modules = {
        f"{package.name}.{path.stem}"
        for package in packages
        for path in package.iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert on_the_map == known.keys() == modules


def test_an_arrow_that_points_up_is_refused(house: ModuleType) -> None:
    known = house.imports()
    known["simulations.errors"] |= {"sottovoce.cli"}
    with pytest.raises(ValueError, match="errors imports cli, which is not below it"):
        house.words(known)


def test_what_follows_from_other_arrows_is_left_out(house: ModuleType) -> None:
    one, two, three = (house.Room("server", (name,), 1) for name in ("one", "two", "three"))
    known = {"server.one": {"server.two", "server.three"}, "server.two": {"server.three"}, "server.three": set()}
    assert house.arrows([[one], [two], [three]], known) == {one: {two}, two: {three}, three: set()}
