"""Faults of a whole text, in its words behind the first and in its length, are found through the client.

Statistical, at the audit's own rate, on a fixed seed; every fault is planted in what draws.
"""

import numpy as np
import pytest

from mechanisms.vocabulary import NOTHING
from mechanisms.words.length import Length
from mechanisms.words.santext import SanText
from sottovoce.adversary.audit import run as audit
from sottovoce.adversary.audit.client_games import client_text_games
from sottovoce.adversary.audit.clients import Clients
from sottovoce.adversary.audit.run import Audit

#: Of 32 figures; see test_audit.py.
WHOLE = audit.FAMILY / 11


def violated(folder, draws=20_000):
    games = client_text_games(Clients(folder), 1e-3)
    found = audit.measure(games, Audit(draws=draws), family=WHOLE)
    return {f.game.pair for f in found if f.verdict == "violated"}


def test_sound_texts_hold(tmp_path):
    assert violated(tmp_path) == set()


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_all_words_but_the_first_in_clear(share, tmp_path, monkeypatch):
    sample = SanText.sample

    def leaking(self, x, *, rng):
        drawn = sample(self, x, rng=rng)
        clear = (np.random.default_rng(3).random(len(x)) < share)[:, None] & (np.arange(x.shape[1]) > 0)
        return np.where(clear & (x != NOTHING) & (x != self.vocabulary.unknown), x, drawn)

    monkeypatch.setattr(SanText, "sample", leaking)
    assert "five words / five others" in violated(tmp_path)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_length_above_four_in_clear(share, tmp_path, monkeypatch):
    sample = Length.sample

    def leaking(self, x, *, rng):
        drawn = sample(self, x, rng=rng)
        return np.where((x > 4) & (np.random.default_rng(3).random(len(x)) < share), x, drawn)

    monkeypatch.setattr(Length, "sample", leaking)
    assert "five words / two of them" in violated(tmp_path)
