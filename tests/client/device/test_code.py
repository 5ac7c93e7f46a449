"""A client compares what a run ships with what is installed, and reads no more of it than that takes."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import pytest

from client.device import code
from client.device.code import installed, same_code
from sottovoce.deployment.superlink import app_bundle
from tests.support.paths import ROOT

#: Of a library that builds Flower's bundles.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


def archive(files, *, how=zipfile.ZIP_DEFLATED, comment=b""):
    """A ZIP of (name, content) pairs, in any order, and with a name twice if it is there twice."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as out:
        for name, content in files:
            out.writestr(zipfile.ZipInfo(name), content, how)
        out.comment = comment
    return made.getvalue()


@pytest.fixture(scope="module")
def fab():
    return app_bundle()


@pytest.fixture
def mine():
    return dict(installed())


def peak_of(fab):
    """Whether a bundle is taken for the client, and how many bytes that took."""
    installed()
    tracemalloc.start()
    try:
        return same_code(fab), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_installed_client_is_every_source_file_of_the_client_and_the_mechanisms(mine):
    files = [path for package in ("client", "mechanisms") for path in (ROOT / package).rglob("*.py")]
    assert mine == {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}


def test_the_bundle_of_the_installed_packages_is_accepted_and_holds_no_more_than_the_client(fab, mine):
    assert same_code(fab) and app_bundle() == fab
    names = zipfile.ZipFile(io.BytesIO(fab)).namelist()
    assert sorted(names) == sorted([*mine, "pyproject.toml", ".info/CONTENT"])


def test_the_server_may_ship_what_it_likes_beside_the_client(mine):
    assert same_code(archive([*mine.items(), ("server/query.py", b"1/0"), ("pyproject.toml", b"")]))


def test_one_byte_changed_is_refused(mine):
    for name in ("client/app.py", "mechanisms/accounting/__init__.py"):
        content = bytearray(mine[name] or b"#")
        content[-1] ^= 1
        assert not same_code(archive((mine | {name: bytes(content)}).items()))


def test_a_file_that_is_missing_extra_twice_or_spelled_otherwise_is_refused(mine):
    for name in ("client/app.py", "mechanisms/streams.py"):
        assert not same_code(archive((key, value) for key, value in mine.items() if key != name))
    extra = [
        "client/more.py",
        "mechanisms/accounting/more.py",
        "client/",
        "..",
        "",
        "Client/app.py",
        "./client/more.py",
    ]
    for name in [*extra, "/client/more.py", "client//app.py", "client\\more.py", "server/../client/app.py"]:
        assert not same_code(archive([*mine.items(), (name, b"")])), name
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive([*mine.items(), ("client/app.py", mine["client/app.py"])])
    assert not same_code(twice)


def test_what_is_no_archive_and_what_stands_around_one_are_refused(mine, fab):
    for bad in (
        b"",
        b"PK",
        b"no archive at all" * 100,
        b"\0" * 10_000,
        b"#!/bin/sh\n" + fab,
        fab + b"\0",
        fab[:-2] + b"\1\0",
    ):
        assert not same_code(bad)
    assert not same_code(archive(mine.items(), comment=b"PK\x05\x06"))


def test_damage_anywhere_is_survived(fab):
    for at in [*range(0, len(fab), len(fab) // 20), *range(len(fab) - 22, len(fab))]:
        damaged = bytearray(fab)
        damaged[at] ^= 0xFF
        same_code(bytes(damaged))  # what is in pyproject.toml does not matter; it must not raise


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_bomb_is_refused_without_unpacking_it(mine, how):
    bomb = archive((mine | {"client/app.py": bytes(16 * 2**20)}).items(), how=how)
    assert len(bomb) < 2**20  # and 16 times that in memory
    same, peak = peak_of(bomb)
    assert not same
    assert peak < 8 * 2**20


def test_a_bomb_that_lies_about_its_size_is_refused_without_unpacking_it(mine):
    name = b"client/app.py"
    bomb = bytearray(archive([("client/app.py", bytes(32 * 2**20))]))
    table = bomb.rindex(name) - 46  # of the one entry: its length stands at 24
    bomb[table + 24 : table + 28] = len(mine["client/app.py"]).to_bytes(4, "little")
    same, peak = peak_of(bytes(bomb))
    assert not same
    assert peak < 4 * 2**20


def test_a_table_of_many_entries_is_refused_before_it_is_read():
    """Also where it lies about their number."""
    many = bytearray(archive((str(i), b"") for i in range(20_000)))
    assert peak_of(bytes(many)) == (False, pytest.approx(0, abs=2**16))
    for at in (8, 10):
        many[len(many) - 22 + at : len(many) - 22 + at + 2] = (5).to_bytes(2, "little")
    same, peak = peak_of(bytes(many))
    assert not same
    assert peak < 2**16


def test_a_table_elsewhere_is_refused(fab):
    """ZIP64 lets an archive name another table, which the limits of this one would not hold for."""
    locator = b"PK\x06\x07" + bytes(16)
    end = bytearray(fab[-22:])
    size = int.from_bytes(end[12:16], "little") + len(locator)
    end[12:16] = size.to_bytes(4, "little")
    assert not same_code(fab[:-22] + locator + bytes(end))


def test_more_than_flower_takes_is_refused():
    assert peak_of(bytes(code.MAX_BUNDLE + 1)) == (False, pytest.approx(0, abs=2**16))
