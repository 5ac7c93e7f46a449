"""The experiment file's keys, for editors and people, beside what reads it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from typing import Any

import jsonschema
import pytest

from simulations.errors import UserError
from simulations.experiment import from_table
from simulations.experiment.arm import Arm
from simulations.experiment.names import key
from simulations.experiment.schema import described, keys, page, schema
from simulations.experiment.sections import SECTIONS, Public
from simulations.experiment.toml import BUNDLED
from sottovoce.cli import main as cli
from tests.support.paths import ROOT

SMALL: dict[str, Any] = {
    "name": "small",
    "policy": {"embedding": 40.0, "label": 5.0},
    "arm": [
        {
            "name": "a",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        }
    ],
}


def fits(table: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema()).is_valid(table)


def test_it_is_a_schema_and_every_bundled_study_fits_it() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for file in BUNDLED.glob("*.toml"):
        jsonschema.validate(tomllib.loads(file.read_text(encoding="utf-8")), schema())


def test_the_page_is_what_reads_the_file() -> None:
    written = (ROOT / "docs" / "reference" / "experiment.md").read_text(encoding="utf-8")
    assert written == page(), "write what simulations.experiment.schema.page returns"


def test_every_attribute_of_a_section_is_a_key_with_a_description() -> None:
    for section in (*SECTIONS.values(), Public, Arm):
        assert list(described(section)) == [key(f.name) for f in fields(section) if "check" in f.metadata]
        assert all(text.endswith(".") and "  " not in text for text in described(section).values())


@pytest.mark.parametrize("row", list(keys()), ids=lambda row: row[0])
def test_every_key_is_read_and_a_value_of_another_kind_is_refused_by_both(row: tuple[str, str, str, str]) -> None:
    *place, last = row[0].split(".")
    table = json.loads(json.dumps(SMALL))
    at = table["arm"][0] if place == ["arm"] else table
    for part in place if place != ["arm"] else ():
        at = at.setdefault(part, {})
    at[last] = {"nobody": [{}]}
    assert not fits(table)
    with pytest.raises(UserError, match=last):
        from_table(table)


@pytest.mark.parametrize(
    "change",
    [
        {"populaton": {}},
        {"population": {"user": 3}},
        {"seed": -1},
        {"encoder": {"precision": "int2"}},
        {"shuffle": {"delta": 1.0}},
        {"arm": [{"embedding": {"mechanism": "identity"}}]},
    ],
    ids=str,
)
def test_what_one_refuses_the_other_does(change: dict[str, Any]) -> None:
    assert fits(SMALL) and not fits(SMALL | change)
    with pytest.raises(UserError):
        from_table(SMALL | change)


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sottovoce 0.")
