"""Row streams: the published generator, exact midpoints, rows of their own; no code draws from a shared generator."""

import inspect
import re

import numpy as np
import pytest
from scipy import stats

from mechanisms import checks
from mechanisms.streams import LATTICE, SecureStreams, SeededUniforms, SimulationStreams, drawn, philox
from tests.support.paths import ROOT

FULL = 0xFFFFFFFF


def rows(seed, users, records, stage="s", channel="embedding", step=0):
    users, records = np.asarray(users, np.int64), np.asarray(records, np.int64)
    return SimulationStreams(seed).rows(users, records, stage=stage, channel=channel, step=step)


# Random123 1.14, kat_vectors, philox4x32 10.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, words):
    found = philox(tuple(np.array([[c]], np.uint64) for c in counter), key)
    assert tuple(int(w[0, 0]) for w in found) == words


def test_layout_against_one_counter_at_a_time():
    users, records = [0, 5, 2**63 - 1, 2**40 + 3], [0, 2**32 - 1, 7, 9]
    streams = rows(3, users, records)
    found = streams.uniform(4, 5)
    for row, (user, record) in enumerate(zip(users, records, strict=True)):
        for column in range(5):
            counter = (np.array([word], np.uint64) for word in (column // 2, record, user & FULL, user >> 32))
            words = [int(word[0]) for word in philox(tuple(counter), streams._key)]
            low, high = words[2 * (column % 2) : 2 * (column % 2) + 2]
            assert found[row, column] == (((high << 32 | low) >> 12) + 0.5) * 2.0**-52


def test_uniforms_are_lattice_midpoints_inside_the_open_interval():
    for source in (
        rows(0, np.arange(1000), np.zeros(1000)),
        SecureStreams().rows(np.arange(1000), np.zeros(1000, np.int64), stage="s", channel="label"),
    ):
        u = source.uniform(1000, 101)
        assert u.shape == (1000, 101) and u.dtype == np.float64
        odd = u / LATTICE * 2
        assert np.all(odd == np.floor(odd)) and np.all(odd % 2 == 1)
        assert 0 < u.min() < 1e-3 and 1 - 1e-3 < u.max() < 1


@pytest.mark.parametrize("k", [1, 17])
def test_grouping_order_and_chunks_do_not_matter(k, monkeypatch):
    users, records = np.arange(300) // 3, np.arange(300) % 3
    whole = rows(9, users, records).uniform(300, k)
    monkeypatch.setattr("mechanisms.streams._CHUNK", 7)
    single = np.concatenate([rows(9, users[i : i + 1], records[i : i + 1]).uniform(1, k) for i in range(300)])
    np.testing.assert_array_equal(whole, single)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(rows(9, users[order], records[order]).uniform(300, k), whole[order])


def test_a_second_call_continues_the_stream():
    whole = rows(9, np.arange(50), np.zeros(50)).uniform(50, 12)
    streams = rows(9, np.arange(50), np.zeros(50))
    parts = [streams.uniform(50, k) for k in (1, 1, 0, 3, 5, 2)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_every_name_of_a_stream_matters():
    base = {"seed": 1, "users": [1], "records": [1], "stage": "a", "channel": "b", "step": 0}
    changes = [{}, {"seed": 2}, {"users": [2]}, {"users": [1 + 2**32]}, {"records": [2]}, {"stage": "ab"}]
    changes += [{"stage": "a,", "channel": "b"}, {"channel": "c"}, {"step": 1}, {"users": [2], "records": [0]}]
    draws = [tuple(rows(**(base | change)).uniform(1, 2)[0]) for change in changes]
    assert len(set(draws)) == len(changes)


def test_uniform_and_uncorrelated():
    """KS on all draws, and correlations of neighbouring columns and rows: false-alarm rate 1e-6 each."""
    u = rows(5, np.arange(40_000), np.zeros(40_000)).uniform(40_000, 8)
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-6
    limit = stats.norm.isf(5e-7)
    for a, b in ((u[:, 0], u[:, 1]), (u[:, 1], u[:, 2]), (u[:-1, 0], u[1:, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a)) < limit
    assert stats.kstest(u.ravel() ** 1.02, "uniform").pvalue < 1e-6  # the test can say no


def test_secure_streams_have_no_seed_and_do_not_repeat():
    with pytest.raises(TypeError):
        SecureStreams(1)
    assert "seed" not in inspect.signature(SecureStreams.rows).parameters
    draws = [SecureStreams().rows(np.arange(5), np.arange(5), stage="s", channel="c").uniform(5, 4) for _ in range(2)]
    assert len(set(np.concatenate(draws).ravel())) == 40


@pytest.mark.parametrize("source", [SimulationStreams(1), SecureStreams()])
def test_bad_requests_are_refused(source):
    def ask(users, records):
        return source.rows(np.asarray(users), np.asarray(records), stage="s", channel="c")

    with pytest.raises(ValueError, match="3 rows"):
        ask([1, 2], [0, 0]).uniform(3, 1)
    with pytest.raises(ValueError, match="occurs twice"):
        ask([4, 3, 4], [1, 1, 1])
    with pytest.raises(ValueError, match="2 users but 1 records"):
        ask([1, 2], [0])
    with pytest.raises(ValueError, match="at least 0"):
        ask([-1], [0])
    with pytest.raises(ValueError, match="2\\^32"):
        ask([1], [2**32])
    with pytest.raises(ValueError, match="whole numbers"):
        ask([0.5], [0])
    with pytest.raises(ValueError, match="at least 0"):
        ask([1], [0]).uniform(1, -1)
    assert ask([], []).uniform(0, 5).shape == (0, 5)


@pytest.mark.parametrize("seed", [1.0, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="seed"):
        SimulationStreams(seed)


def test_integers_of_numpy_are_taken_as_their_numbers():
    assert repr(SimulationStreams(np.int64(7))) == repr(SimulationStreams(7))
    assert type(checks.integer("m", "classes", np.uint8(3), 2, 9)) is int and checks.times("m", np.int32(2)) == 2
    assert checks.whole(np.bool_(True)) is None and checks.whole(True) is None and checks.whole(2.0) is None


def test_a_seeded_source_goes_on_and_keeps_its_rows():
    source, whole = SeededUniforms(5), SeededUniforms(5).uniform(4, 7)
    np.testing.assert_array_equal(np.hstack([source.uniform(4, 3), source.uniform(4, 4)]), whole)
    assert not np.array_equal(source.uniform(4, 7), whole) and source.further(np.array([2]), 4).shape == (1, 4)
    assert not np.array_equal(SeededUniforms(6).uniform(4, 7), whole)
    with pytest.raises(ValueError, match="5 rows of uniforms asked from streams made for 4 rows"):
        source.uniform(5, 1)


@pytest.mark.parametrize("rng", [np.random.RandomState(1), None])
def test_what_is_no_source_is_told_what_is(rng):
    with pytest.raises(TypeError, match=f"SeededUniforms.* got {type(rng).__name__}"):
        drawn(rng, 3, 2)


#: Generators that all code shares, and those that public code may make for itself.
SHARED = (
    r"^\s*(import|from) (\w+, )*(numpy\.)?random\b|\b(set_seed|rvs)\b"
    r"|\btorch(\.\w+)*\.(manual_seed|manual_seed_all|seed|seed_all)\b"
)
OWN = r"default_rng|Generator|BitGenerator|SeedSequence|Philox|PCG64"


@pytest.mark.parametrize(
    ("folder", "allowed"), [("mechanisms", "Generator"), ("client", "Generator"), ("server", OWN), ("simulations", OWN)]
)
def test_library_code_uses_no_global_generator(folder, allowed):
    """The private side draws from row streams alone; the public side may also use generator objects."""
    forbidden = re.compile(rf"{SHARED}|\b(np|numpy)\.random\.(?!({allowed})\b)", re.MULTILINE)
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files and not [str(path) for path in files if forbidden.search(path.read_text(encoding="utf-8"))]
    for code in (
        "x = np.random.normal()",
        "    import random",
        "import os, random",
        "import numpy.random as r",
        "a.rvs",
    ):
        assert forbidden.search(code), code
