"""A shuffler takes rows of those whom the enrolment authority vouches for, as it has signed it, and of nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechanisms.messages import signature
from simulations.errors import UserError
from simulations.shuffler.enrolment import _said, read_table, read_tokens, tokens
from simulations.shuffler.store import CLOSED, DISCARDED, Store
from sottovoce.cli.main import main
from tests.support.rounds import ONE, TWO, Nodes, answer, device, served, wanted

SIGNER, AUTHORITY = signature.generate_keys()


def devices(people: dict[str, dict[str, int]]) -> dict[str, dict[str, Any]]:
    """A table of the users of each node, with its device's key."""
    return {node: {"key": device(int(node))[1].hex(), "users": users} for node, users in people.items()}


TABLE = devices({str(ONE): {"103": 7, "100": 1, "20": 2}, str(TWO): {"104": 1}})
KEY = device(ONE)[1].hex()


def written(folder: Path, table: dict[str, dict[str, Any]], signer: bytes = SIGNER) -> Path:
    path = folder / "tokens.jsonl"
    path.write_text(tokens(table, signer))
    return path


def test_what_an_authority_has_signed_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["deploy", "keys", "make", str(tmp_path), "--nodes", "1"])
    table, out, keys = tmp_path / "table.json", tmp_path / "tokens.jsonl", tmp_path / "enrolment"
    table.write_text(json.dumps(TABLE))
    capsys.readouterr()
    main(["deploy", "enrol", str(table), "--sign-key", str(keys / "sign.key"), "--out", str(out)])
    assert capsys.readouterr().out == f"{out}: 4 users on 2 devices\n"
    read = read_tokens(out, bytes.fromhex((keys / "sign.pub").read_text()))
    assert {node: (e.users.tolist(), e.records.tolist()) for node, e in read.items()} == {
        ONE: ([20, 100, 103], [2, 1, 7]),
        TWO: ([104], [1]),
    }


def text_of(*entries: tuple[str, str]) -> str:
    """Return a table of nodes with the JSON of their users, each with a key of its own."""
    keys = (device(number)[1].hex() for number in range(len(entries)))
    lines = [
        f'"{node}": {{"key": "{key}", "users": {users}}}' for key, (node, users) in zip(keys, entries, strict=True)
    ]
    return f"{{{', '.join(lines)}}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "is no table"),
        ("[" * 100_000, "is no table"),
        ("{}", "has no users"),
        ('{"1": {"2": 1}}', "is no table"),
        (json.dumps({"1": {"key": KEY[:-2], "users": {"2": 1}}}), "is no table"),
        (json.dumps({"1": {"key": KEY, "users": {"2": 1}, "more": 1}}), "is no table"),
        (json.dumps({n: {"key": KEY, "users": {n: 1}} for n in "12"}), "two nodes have one key"),
        (text_of(("1", '{"1": 1, "2": 1}'), ("2", '{"2": 1}')), "user 2 is there twice"),
        (text_of(("1", '{"7": 1}'), ("1", '{"8": 1}')), "each node"),
        (text_of(("1", '{"7": 1, "7": 1}')), "each user once"),
        *((text_of((node, '{"1": 1}')), "is no table") for node in ("a", "0", "9" * 5000)),
        *(
            (text_of(("1", f"{{{entry}}}")), "is no table")
            for entry in ('"-1": 1', '"1": true', '"1": 0', '"1": 2000000', '"9223372036854775808": 1')
        ),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "enrolment.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        read_table(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def changed(line: str, **fields: object) -> str:
    return json.dumps(json.loads(line) | fields)


FORGED: dict[str, Callable[[list[str]], list[str]]] = {
    "one user more": lambda lines: [changed(lines[0], users=TABLE[str(ONE)]["users"] | {"55": 1}), lines[1]],
    "more records": lambda lines: [changed(lines[0], users=TABLE[str(ONE)]["users"] | {"100": 2}), lines[1]],
    "another key": lambda lines: [changed(lines[0], key=device(1)[1].hex()), lines[1]],
    "another node": lambda lines: [changed(lines[0], node="77"), lines[1]],
    "another token's signature": lambda lines: [changed(lines[0], signature=json.loads(lines[1])["signature"])],
    "of another authority": lambda lines: tokens(TABLE, signature.generate_keys()[0]).splitlines(),
    "of a publisher's kind": lambda lines: [
        changed(
            lines[1],
            signature=signature.sign(SIGNER, "bundle", _said(str(TWO), device(TWO)[1].hex(), {"104": 1})).hex(),
        )
    ],
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=list(FORGED))
def test_whoever_is_no_authority_enrols_nobody(tmp_path: Path, forge: Callable[[list[str]], list[str]]) -> None:
    """Who registers devices, hands on the file or holds another deployment's: one line, and no shuffler starts."""
    path = written(tmp_path, TABLE)
    path.write_text("\n".join(forge(path.read_text().splitlines())) + "\n")
    with pytest.raises(UserError, match=rf"{path}, line 1: is not signed by the enrolment authority") as caught:
        read_tokens(path, AUTHORITY)
    assert "\n" not in str(caught.value)


def test_the_order_in_which_users_are_written_is_not_signed(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE)
    first, second = path.read_text().splitlines()
    path.write_text(f"{second}\n{changed(first, users=dict(reversed(TABLE[str(ONE)]['users'].items())))}\n")
    assert read_tokens(path, AUTHORITY)[ONE].records.tolist() == [2, 1, 7]


@pytest.mark.parametrize("line", ["", "[]", '{"node": "1"}', "[" * 50_000, '{"signature": 3}', "\ud83d"])
def test_lines_that_are_no_token(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, TABLE)
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(UserError, match=r"no token of enrolment|is no text") as caught:
        read_tokens(path, AUTHORITY)
    assert "\n" not in str(caught.value)


def test_one_user_has_one_place_and_one_node_one_token(tmp_path: Path) -> None:
    twice = tokens(devices({"1": {"5": 1}, "2": {"5": 1}}), SIGNER)
    (tmp_path / "tokens.jsonl").write_text(twice)
    with pytest.raises(UserError, match="user 5 is there twice"):
        read_tokens(tmp_path / "tokens.jsonl", AUTHORITY)
    (tmp_path / "tokens.jsonl").write_text(
        tokens(devices({"1": {"5": 1}}), SIGNER) + tokens(devices({"1": {"6": 1}}), SIGNER)
    )
    with pytest.raises(UserError, match="node 1 is there twice"):
        read_tokens(tmp_path / "tokens.jsonl", AUTHORITY)


@pytest.mark.parametrize(("vouched", "state"), [(7, CLOSED), (2, DISCARDED)])
def test_a_crowd_is_of_those_who_are_vouched_for(tmp_path: Path, vouched: int, state: str) -> None:
    """Two devices with four users each; a batch needs three. Those that nobody vouches for are sent too, and do not
    count: seven real users make a batch, two among six strangers do not."""
    request = wanted()
    people: dict[str, dict[str, int]] = {str(ONE): {}, str(TWO): {}}
    for user in range(100, 100 + vouched):
        people[str(ONE) if user < 104 else str(TWO)][str(user)] = 1
    enrolled = read_tokens(
        written(tmp_path, devices({node: users for node, users in people.items() if users})), AUTHORITY
    )
    nodes = Nodes({ONE: answer(request, range(100, 104)), TWO: answer(request, range(104, 108), seed=2)})
    with Store(tmp_path / "store") as store:
        done = served(store, nodes, request, enrolled=enrolled)
    assert (done.users, done.state) == (vouched, state)
