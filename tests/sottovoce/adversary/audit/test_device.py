"""The client as it is deployed, and its texts: faults of randomness, draw and reply are found.

Statistical, at the audit's own rate: on devices the operating system draws, elsewhere seeds are fixed. A false alarm of
sound draws has probability 1e-3 for all figures of one test together.
"""

from dataclasses import replace

import numpy as np
import pytest

from client import app
from mechanisms.streams import SecureUniforms, SimulationStreams
from mechanisms.vocabulary import NOTHING
from mechanisms.words.length import Length
from mechanisms.words.santext import SanText
from simulations.errors import UserError
from sottovoce.adversary.audit import run as audit
from sottovoce.adversary.audit.client import Clients, client_text_games, device_games
from sottovoce.adversary.audit.run import Audit

#: Of 4 to 10 figures at no less confidence than each of 480 figures has in a whole audit.
WHOLE = audit.FAMILY / 120
CHANNELS = ("embedding", "text", "statistic")


def found(folder, channel):
    games = [g for g in device_games(Clients(folder, deployed=True), 1e-3) if g.about.startswith(channel)]
    return {f.game.pair: f.verdict for f in audit.measure(games, Audit(draws=20_000), family=WHOLE)}


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_sound_device_holds_and_draws_no_simulated_noise(channel, tmp_path, monkeypatch):
    monkeypatch.setattr(SimulationStreams, "rows", None)
    assert set(found(tmp_path, channel).values()) == {"no violation found"}


@pytest.mark.parametrize(("channel", "value"), list(zip(CHANNELS, (0.3, 0.5, 0.3), strict=True)))
def test_randomness_of_a_device_that_is_constant(channel, value, tmp_path, monkeypatch):
    monkeypatch.setattr(SecureUniforms, "further", lambda self, rows, k: np.full((len(rows), k), value))
    assert "violated" in found(tmp_path, channel).values()


@pytest.mark.parametrize("channel", ["embedding", "statistic"])
def test_randomness_of_which_nothing_can_be_drawn(channel, tmp_path, monkeypatch):
    """Normals of 1/2 are all 0 and have no direction: nothing leaves, and the audit says so."""
    monkeypatch.setattr(SecureUniforms, "further", lambda self, rows, k: np.full((len(rows), k), 0.5))
    with pytest.raises(UserError, match="a client does not answer"):
        found(tmp_path, channel)


@pytest.mark.parametrize("channel", [c for c in CHANNELS if c != "text"])
def test_two_users_of_a_device_on_one_stream(channel, tmp_path, monkeypatch):
    further = SecureUniforms.further

    def one_of_two(self, rows, k):
        return np.repeat(further(self, rows, k)[::2], 2, axis=0)[: len(rows)]

    monkeypatch.setattr(SecureUniforms, "further", one_of_two)
    (beside,) = [verdict for pair, verdict in found(tmp_path, channel).items() if "own noise" in pair]
    assert beside == "violated"


def test_sealed_rows_that_do_not_open_are_said(tmp_path, monkeypatch):
    def damaged(reply, request, key):
        sealed = seal(reply, request, key)
        rows = sealed.rows.copy()
        rows[3, 40] ^= 1
        return replace(sealed, rows=rows)

    seal = app.seal
    monkeypatch.setattr(app, "seal", damaged)
    with pytest.raises(UserError, match="does not open"):
        found(tmp_path, "embedding")


# --- faults of a whole text, in its words behind the first and in its length

#: Of 32 figures; see WHOLE.
WHOLE_TEXT = audit.FAMILY / 11


def violated(folder):
    games = client_text_games(Clients(folder), 1e-3)
    findings = audit.measure(games, Audit(draws=20_000), family=WHOLE_TEXT)
    return {f.game.pair for f in findings if f.verdict == "violated"}


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
