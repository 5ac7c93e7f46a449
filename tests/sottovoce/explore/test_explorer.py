"""What the page shows is what the client did: bytes, charges, repetitions, refusals, and what follows from them."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from mechanisms.quantizer import SPHERE
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.tokens import unigram
from sottovoce.explore import inference
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.settings import MECHANISMS, SLIDERS, Settings
from sottovoce.explore.world import World
from tests.sottovoce.explore.conftest import TEXT, TOKEN, Ask
from tests.support.budgets import answer, rung

LABEL = {"channel": "label", "epsilon": 2.0}


def rows(shown: Explorer) -> list[Any]:
    with shown.device.node.ledger("") as ledger:
        return ledger.rows()


def test_the_bytes_on_the_page_are_those_on_the_ledger(ask: Ask, shown: Explorer) -> None:
    for settings in (
        {"dim": 3, "label_epsilon": 1.0, "epsilon": 4.0},
        {"channel": "text", "epsilon": 3.0},
        {"channel": "statistic", "dim": 4},
    ):
        sent = ask("send", settings)
        kept = {row.channel: row for row in rows(shown)}
        for channel in sent["channels"]:
            assert bytes.fromhex(channel["bytes"]) == kept[channel["channel"]].payload
            assert not channel["repeated"]
    point = ask("send", {"dim": 3, "epsilon": 4.0})["channels"][0]
    codes = np.frombuffer(bytes.fromhex(point["bytes"]), "<i2")
    assert np.allclose(SPHERE.decode(codes), point["point"], atol=1e-4)
    assert math.isclose(np.linalg.norm(point["truth"]), 1.0, abs_tol=1e-3)


def test_the_same_question_repeats_and_the_next_round_costs_again(ask: Ask, shown: Explorer) -> None:
    first, again = ask("send"), ask("send")
    assert again["channels"][0]["repeated"] and again["channels"][0]["bytes"] == first["channels"][0]["bytes"]
    assert len(rows(shown)) == 1
    second = ask("send", round=2)
    assert not second["channels"][0]["repeated"]
    assert second["channels"][0]["bytes"] != first["channels"][0]["bytes"]
    spent = ask("ledger")["spent"]
    assert spent["releases"] == 2 and math.isclose(spent["epsilon"], 2 * 6 * math.pi, rel_tol=1e-6)


def test_a_device_has_one_vector_a_round(ask: Ask) -> None:
    one = {"channel": "statistic", "dim": 4}
    first = ask("send", one)["channels"][0]
    other = ask("send", one, text="another film")["channels"][0]
    assert other["repeated"] and other["bytes"] == first["bytes"]


def test_what_the_policy_refuses_is_refused_and_not_charged(ask: Ask, shown: Explorer) -> None:
    grouped = {"channel": "text", "mechanism": "custext", "k": 3}
    frequent = {"channel": "text", "mechanism": "santext+", "p": 0.5, "w": 0.5}
    for settings, reason in (({"epsilon": 13.0}, "channel"), (grouped, "unprotected"), (frequent, "unprotected")):
        refused = ask("send", settings)["refused"]
        assert refused["reason"] == reason and refused["text"] and refused["why"]
    assert rows(shown) == []


def test_two_tabs_keep_one_ledger_right(ask: Ask, shown: Explorer) -> None:
    """Eight at once ask the same, then eight in rounds of their own: one draw, then as many as the record's limit."""

    def at_once(numbers: list[int]) -> list[Any]:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda n=n: found.append(ask("send", LABEL, round=n))) for n in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    same = at_once([1] * 8)
    assert len({one["channels"][0]["bytes"] for one in same}) == 1 and len(rows(shown)) == 1
    assert sorted(one["channels"][0]["repeated"] for one in same) == [False] + [True] * 7
    others = at_once(list(range(2, 10)))
    assert sorted(one["refused"] is None for one in others) == [False] * 7 + [True]  # 2 + 2 of 5 a record
    assert len(rows(shown)) == 2 and ask("ledger")["spent"] == {"epsilon": 4.0, "releases": 2}


def test_nothing_but_sending_charges_anything(ask: Ask, shown: Explorer) -> None:
    ask("ledger")
    for settings in ({"dim": 3}, LABEL, {"channel": "text"}, {"channel": "statistic"}):
        ask("price", settings)
        ask("loss", settings)
    assert len(ask("price", {"channel": "text"})["outputs"]["words"]) == 12
    assert rows(shown) == []


def test_without_privacy_loss_nothing_is_learned(ask: Ask) -> None:
    """At ε = 0 what the server believes is what it believed before, and the theorem allows no more."""
    sent = ask("send", {"epsilon": 0.0, "label_epsilon": 0.0})
    found = sent["channels"][0]["inferred"]
    for line in found["sentences"]["listed"]:
        assert math.isclose(line["share"], 0.01, rel_tol=1e-6)
    assert found["sentences"]["limit"] < 0.0101 and found["sentences"]["alike"] == 99
    for one in (found["label"], sent["channels"][1]["inferred"]["label"]):
        assert all(math.isclose(line["share"], line["prior"], rel_tol=1e-6) for line in one["listed"])
        assert math.isclose(one["limit"], one["prior"], abs_tol=1e-4)


def guessed(words: list[str]) -> float:
    """The limit of a guess, in per cent, as the page has it in words."""
    return float(re.findall(r"right in at most ([\d.]+)%", " ".join(words))[0])


def test_what_is_said_at_once_is_what_the_whole_law_says(ask: Ask) -> None:
    """Of every mechanism: the worst case; and much privacy loss allows more than little."""
    for channel, names in MECHANISMS.items():
        for name in names:
            about = {"channel": channel, "mechanism": name, "epsilon": 1.5, "w": 1.0, "k": 20, "dim": 3}
            price, loss = ask("price", about), ask("loss", about)
            assert price["worst_case"] == loss["worst_case"]
            assert loss["local"] == "inf" or 0 < loss["local"] <= float(loss["worst_case"]) * (1 + 1e-9)
            if channel != "text":
                assert guessed(loss["words"]) < guessed(ask("loss", about | {"epsilon": 3.0})["words"])


def test_a_label_beside_it_raises_what_a_guess_may_reach(ask: Ask) -> None:
    alone, beside = (guessed(ask("loss", {"dim": 3} | more)["words"]) for more in ({}, {"label_epsilon": 1.0}))
    assert alone < beside <= math.e * alone + 0.1
    assert guessed(ask("loss", {"dim": 3, "label_epsilon": 0.0})["words"]) == alone


def test_words_are_told_with_their_probabilities(ask: Ask) -> None:
    sent = ask("send", {"channel": "text", "epsilon": 2.0})["channels"][0]
    assert [word["original"] for word in sent["words"]] == TEXT.split()
    assert all(0 < word["probability"] < 1 for word in sent["words"])
    seen = ask("guesses", {"channel": "text", "epsilon": 2.0}, released=[word["number"] for word in sent["words"]])
    assert seen["draws"] is None and [len(guesses) for guesses in seen["guesses"]] == [3] * 12
    listed = ask("price", {"channel": "text", "epsilon": 2.0})["outputs"]["words"]
    assert all(sum(a["probability"] for a in one["alternatives"]) <= 1 + 1e-9 for one in listed)
    assert 0 < seen["limit"] < 1


def test_of_very_many_words_the_limit_is_that_of_the_worst_case(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no distances, and is never below the tighter one."""
    text: Any = Settings.of({"channel": "text", "epsilon": 0.7}).mechanisms(2, world.vocabulary)[0]
    inference.word_limit.cache_clear()
    tight = inference.word_limit(text)
    monkeypatch.setattr(inference, "_TABLE", 3)
    inference.word_limit.cache_clear()
    assert tight <= inference.word_limit(text) <= 1
    inference.word_limit.cache_clear()


@pytest.mark.parametrize("name", ["custext", "santext+", "tem"])
def test_guesses_are_those_of_the_whole_table(
    name: str, ask: Ask, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are gathered block by block are the table's, of groups and of words that stay too."""
    monkeypatch.setattr("sottovoce.adversary.estimators.channel._ENTRIES", 1)
    about = {"channel": "text", "mechanism": name, "epsilon": 2.0, "k": 3, "p": 0.5, "w": 0.5}
    text: Any = Settings.of(about).mechanisms(2, world.vocabulary)[0]
    size = len(text.vocabulary)
    table = Channel(text).log_probs(np.arange(size + 1))
    assert np.allclose(np.exp(inference._columns(text, (1, 4, 9))), np.exp(table[:, [1, 4, 9]]))
    after = table[:, 4] + np.log(np.maximum(unigram(text.vocabulary), 1e-300))
    (guesses,) = ask("guesses", about, released=[4])["guesses"]
    assert guesses[0]["word"] == text.vocabulary.words[int(after[:-1].argmax())]
    assert guesses[0]["share"] == pytest.approx(np.exp(after - logsumexp(after))[:-1].max())


def test_what_nobody_can_write_down_is_estimated_and_says_so(ask: Ask) -> None:
    """MADLIB's chances: none at once, then from draws."""
    about = {"channel": "text", "mechanism": "madlib", "epsilon": 6.0}
    assert ask("price", about)["outputs"] is None
    outputs = ask("loss", about)["outputs"]
    assert outputs["draws"] == 200 and len(outputs["words"]) == 12
    sent = ask("send", about)["channels"][0]
    assert not sent["closed"] and {word["probability"] for word in sent["words"]} == {None}
    assert ask("guesses", about, released=[sent["words"][0]["number"]])["draws"] == 200


def test_gaussian_noise_has_no_worst_case_and_holds_nearly_always(ask: Ask, shown: Explorer) -> None:
    about = {"mechanism": "gaussian", "epsilon": 3.0, "dim": 3}
    price, loss = ask("price", about), ask("loss", about)
    assert price["worst_case"] == "inf" and "promises nothing of every draw" in price["words"][0]
    assert loss["local"] == pytest.approx(3.0, rel=1e-6) and guessed(loss["words"]) < 100
    sent = ask("send", about)
    assert sent["refused"] is None and "σ = " in sent["channels"][0]["inferred"]["by"]
    assert len(rows(shown)) == 1


def test_every_mechanism_that_can_be_chosen_can_be_drawn(ask: Ask) -> None:
    """And every slider moved to both ends."""
    for channel, names in MECHANISMS.items():
        for name in names:
            about = {"channel": channel, "mechanism": name, "epsilon": 1.0, "w": 1.0, "k": 3, "dim": 3}
            for end in (SLIDERS[name].least, SLIDERS[name].most):
                assert ask("price", about | {"epsilon": end})["words"]
            assert ask("send", about)["refused"] is None or name in ("custext", "custext+", "santext+")
            assert Settings.of(Settings.of(about).to_dict()) == Settings.of(about)


def test_the_page_says_what_can_be_chosen(client: Any) -> None:
    told = client.get(f"/{TOKEN}/api/state").json()
    assert told["ready"] and told["classes"] == ["negative", "positive"]
    assert told["channels"] == list(MECHANISMS) and "ε (epsilon)" in told["glossary"]
    assert Settings.of(told["first"]) == Settings()


@pytest.mark.parametrize(
    "about",
    [
        {"epsilon": 3.0, "dim": 16, "label_epsilon": 1.0},
        {"mechanism": "gaussian", "epsilon": 4.0, "dim": 16, "delta": 1e-5},
        {"channel": "statistic", "epsilon": 1.0, "dim": 8, "delta": 1e-8},
    ],
)
def test_settings_cost_what_the_command_line_says(
    about: dict[str, Any], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.of(about)
    size, label = settings.size(2), settings.label_epsilon
    own = f"{settings.mechanism}:epsilon={settings.epsilon}" + ("" if size is None else f",dim={size}")
    beside = [] if label is None else ["--mechanism", f"randomized-response:epsilon={label}"]
    price, loss = ask("price", about, text=""), ask("loss", about)
    result = answer(capsys, "ladder", "--mechanism", own, *beside, "--delta", str(settings.delta))
    record = rung(result["ladder"], "record")
    assert price["worst_case"] == record["worst_case"] and loss["local"] == record["epsilon"]
    assert price["mechanisms"] == result["mechanisms"]
