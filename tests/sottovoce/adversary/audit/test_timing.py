"""The time of an answer: the test of signs is exact whatever the noise, and finds texts encoded when asked for.

No test here looks at a real clock: times are simulated, or a clock is that goes as far as the work it stands for.
"""

import numpy as np
import pytest
from scipy import stats

from client import sanitizer
from sottovoce.adversary.audit.clients import Clients, request
from sottovoce.adversary.audit.measure import Audit, results
from sottovoce.adversary.audit.run import FAMILY, table
from sottovoce.adversary.audit.timing import LONG, OTHER, PROMISED, timed
from sottovoce.adversary.estimators.timing import Told

#: Of each of 480 figures of a whole audit.
ALPHA = FAMILY / 480


def noise(rng, n):
    """Milliseconds as machines take them: heavy tails, a drift, and a jump in the middle, the same for both texts."""
    drift = np.linspace(0, 3, n) + 5 * (np.arange(n) > n / 2)
    return (drift + rng.standard_t(1.5, size=(2, n))).astype(float)


def test_the_rate_of_false_alarms_is_the_stated_one():
    """Of 1,000 tests at .05 so many alarm that the rate is at most .05 and, the test being discrete, at least .01; one
    that took a chance for a third of what it is would not pass (binomial, each side wrong with 1e-6)."""
    rng = np.random.default_rng(1)
    chances = np.array([Told.of(*noise(rng, 80)).chance for _ in range(1000)])
    alarms = int((chances <= 0.05).sum())
    assert stats.binom.isf(1 - 1e-6, 1000, 0.01) < alarms <= stats.binom.isf(1e-6, 1000, 0.05)
    assert (chances / 3 <= 0.05).sum() > stats.binom.isf(1e-6, 1000, 0.05)


@pytest.mark.parametrize(("longer", "found"), [(0.0, False), (0.2, False), (3.0, True)])
def test_a_longer_text_is_found_where_it_stands_out_of_the_noise(longer, found):
    first, second = noise(np.random.default_rng(2), 200)
    told = Told.of(first, second + longer)
    assert (told.chance < ALPHA) == found and told.apart == pytest.approx(longer, abs=0.5) and told.noise > 1
    assert told.share > 0.5 or not found


def test_times_that_never_differ_and_none_at_all():
    assert Told.of(np.ones(5), np.ones(5)).chance == 1.0 and Told.of(np.ones(5), np.ones(5)).share == 0.5
    with pytest.raises(ValueError, match="needs pairs"):
        Told.of(np.zeros(0), np.zeros(0))


class Clock:
    """Goes on by what is said to take time, and by a noise of its own whenever it is looked at."""

    def __init__(self):
        self.now, self._rng = 0.0, np.random.default_rng(3)

    def __call__(self):
        self.now += self._rng.exponential(1e-3)
        return self.now


@pytest.mark.parametrize(("channel", "fault"), [*((channel, True) for channel in PROMISED), ("statistic", False)])
def test_encoding_when_a_server_asks_is_found(channel, fault, tmp_path, monkeypatch):
    """A microsecond a character, beside a noise of milliseconds."""
    clock, draw = Clock(), sanitizer._Draws.draw

    def encoding(self, one, rows, step, before):
        clock.now += 1e-6 * sum(len(self.shard.texts[row]) for row in self.answering.take(rows).rows) * fault
        return draw(self, one, rows, step, before)

    monkeypatch.setattr(sanitizer._Draws, "draw", encoding)
    (found,) = timed(Clients(tmp_path), 20, 1, channels=(channel,), clock=clock)
    line, asked = found.entry(ALPHA), request(channel)
    assert line["verdict"] == ("violated" if fault else "no violation found")
    assert not fault or found.told.apart == pytest.approx(1e-6 * len(LONG) * len(asked.channels), rel=0.2)
    assert line["pair"] in table(results(Audit(), [line], family=0.1, figures=1))


def test_of_texts_that_are_read_when_asked_for_nothing_is_promised(tmp_path):
    (found,) = timed(Clients(tmp_path), 2, 1, channels=OTHER, clock=Clock())
    assert found.entry(1.0)["verdict"] == "no claim"
