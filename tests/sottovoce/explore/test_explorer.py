"""The page shows what the client did: bytes, charges, repetitions, refusals, and what follows from them."""

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
from sottovoce.explore.explorer import Explorer
from sottovoce.explore.settings import MECHANISMS, SLIDERS, Settings
from sottovoce.explore.world import World
from tests.sottovoce.explore.conftest import TEXT, TOKEN, Ask
from tests.support.budgets import answer, rung

LABEL = {"channel": "label", "epsilon": 2.0}
WORDS = {"channel": "text", "epsilon": 2.0}


def rows(shown: Explorer) -> list[Any]:
    with shown.device.node.ledger("") as ledger:
        return ledger.rows()


def test_the_bytes_on_the_page_are_those_on_the_ledger(ask: Ask, shown: Explorer) -> None:
    for settings in (WORDS, {"channel": "statistic", "dim": 4}, {"dim": 3, "label_epsilon": 1.0, "epsilon": 4.0}):
        sent = ask("send", settings)["channels"]
        payloads = {row.channel: row.payload for row in rows(shown)}
        assert all(bytes.fromhex(part["bytes"]) == payloads[part["channel"]] for part in sent)
        assert not any(part["repeated"] for part in sent)
    point = sent[0]
    codes = np.frombuffer(bytes.fromhex(point["bytes"]), "<i2")
    assert np.allclose(SPHERE.decode(codes), point["point"], atol=1e-4)
    assert math.isclose(np.linalg.norm(point["truth"]), 1.0, abs_tol=1e-3)


def test_a_repeated_request_is_free_and_the_next_round_costs_again(ask: Ask, shown: Explorer) -> None:
    first, again = ask("send")["channels"][0], ask("send")["channels"][0]
    assert again["repeated"] and again["bytes"] == first["bytes"] and len(rows(shown)) == 1
    second = ask("send", round=2)["channels"][0]
    assert not second["repeated"] and second["bytes"] != first["bytes"]
    spent = ask("ledger")["spent"]
    assert spent["releases"] == 2 and math.isclose(spent["epsilon"], 2 * 6 * math.pi, rel_tol=1e-6)
    vector = {"channel": "statistic", "dim": 4}  # of the user, whatever the sentence
    first, other = (ask("send", vector, text=text)["channels"][0] for text in (TEXT, "another film"))
    assert other["repeated"] and other["bytes"] == first["bytes"]


def test_a_refusal_is_told_and_not_charged(ask: Ask, shown: Explorer) -> None:
    grouped = {"channel": "text", "mechanism": "custext", "k": 3}
    frequent = {"channel": "text", "mechanism": "santext+", "p": 0.5, "w": 0.5}
    for settings, reason in (({"epsilon": 13.0}, "channel"), (grouped, "unprotected"), (frequent, "unprotected")):
        refused = ask("send", settings)["refused"]
        assert refused["reason"] == reason and refused["text"] and refused["why"]
    assert rows(shown) == []


def test_two_tabs_share_one_ledger(ask: Ask, shown: Explorer) -> None:
    """Eight equal requests at once: one draw. Eight in rounds of their own: as many as the record's limit."""

    def at_once(numbers: list[int]) -> list[Any]:
        results: list[Any] = []
        threads = [threading.Thread(target=lambda n=n: results.append(ask("send", LABEL, round=n))) for n in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    same = [result["channels"][0] for result in at_once([1] * 8)]
    assert len({part["bytes"] for part in same}) == 1 and len(rows(shown)) == 1
    assert sorted(part["repeated"] for part in same) == [False] + [True] * 7
    others = at_once(list(range(2, 10)))
    assert sorted(result["refused"] is None for result in others) == [False] * 7 + [True]  # 2 + 2 of 5 a record
    assert ask("ledger")["spent"] == {"epsilon": 4.0, "releases": 2}


def test_without_privacy_loss_nothing_is_inferred(ask: Ask) -> None:
    """At ε = 0 the server's posterior is its prior, and the theorem allows no more."""
    sent = ask("send", {"epsilon": 0.0, "label_epsilon": 0.0})["channels"]
    sentences = sent[0]["inferred"]["sentences"]
    assert all(math.isclose(line["share"], 0.01, rel_tol=1e-6) for line in sentences["listed"])
    assert sentences["limit"] < 0.0101 and sentences["alike"] == 99
    for part in sent:
        label = part["inferred"]["label"]
        assert all(math.isclose(line["share"], line["prior"], rel_tol=1e-6) for line in label["listed"])
        assert math.isclose(label["limit"], label["prior"], abs_tol=1e-4)


def guess_limit(words: list[str]) -> float:
    """The limit of a guess in a cost's sentences, in per cent."""
    return float(re.findall(r"right in at most ([\d.]+)%", " ".join(words))[0])


@pytest.mark.parametrize("channel", MECHANISMS)
def test_every_mechanism_is_priced_and_drawn(channel: str, ask: Ask, shown: Explorer) -> None:
    """At both ends of its slider. A cost charges nothing, and a larger ε allows more guesses."""
    for name in MECHANISMS[channel]:
        about = {"channel": channel, "mechanism": name, "epsilon": 0.5, "w": 1.0, "k": 3, "dim": 3}
        before = len(rows(shown))
        small, large = ask("cost", about), ask("cost", about | {"epsilon": 1.0})
        assert small["local"] == "inf" or 0 < small["local"] <= float(small["worst_case"]) * (1 + 1e-9)
        assert channel == "text" or guess_limit(small["words"]) < guess_limit(large["words"])
        for end in (SLIDERS[name].least, SLIDERS[name].most):
            assert ask("cost", about | {"epsilon": end})["words"]
        sent = ask("send", about, round=1 + MECHANISMS[channel].index(name))["refused"] is None
        assert sent or name in ("custext", "custext+", "santext+")
        assert len(rows(shown)) == before + sent


def test_a_label_beside_it_raises_the_limit_of_a_guess(ask: Ask) -> None:
    alone, beside, free = (
        guess_limit(ask("cost", {"dim": 3, "label_epsilon": epsilon})["words"]) for epsilon in (None, 1.0, 0.0)
    )
    assert alone == free < beside <= math.e * alone + 0.1


def test_words_are_told_with_their_probabilities(ask: Ask) -> None:
    sent = ask("send", WORDS)["channels"][0]
    assert [word["original"] for word in sent["words"]] == TEXT.split() and sent["closed"]
    assert all(0 < word["probability"] < 1 for word in sent["words"])
    inferred, outputs = sent["inferred"], ask("cost", WORDS)["outputs"]
    assert inferred["draws"] is None and [len(guesses) for guesses in inferred["guesses"]] == [3] * 12
    assert 0 < inferred["limit"] < 1 and len(outputs["words"]) == 12 and outputs["draws"] is None
    assert all(sum(a["probability"] for a in word["alternatives"]) <= 1 + 1e-9 for word in outputs["words"])


def test_guesses_are_by_the_channel_and_public_frequencies(ask: Ask, world: World) -> None:
    about = WORDS | {"mechanism": "tem"}
    sent = ask("send", about)["channels"][0]
    text: Any = Settings.of(about).mechanisms(2, world.vocabulary)[0]
    logs = Channel(text).log_probs(np.arange(len(text.vocabulary)))
    for word, guesses in zip(sent["words"], sent["inferred"]["guesses"], strict=True):
        after = logs[:, text.vocabulary.word_id(word["left"])] + np.log(unigram(text.vocabulary)[:-1])
        assert guesses[0]["word"] == text.vocabulary.words[int(after.argmax())]
        assert guesses[0]["share"] == pytest.approx(np.exp(after - logsumexp(after)).max(), rel=1e-4)


def test_a_law_without_a_closed_form_is_estimated_and_marked(ask: Ask) -> None:
    about = {"channel": "text", "mechanism": "madlib", "epsilon": 6.0}
    outputs = ask("cost", about)["outputs"]
    assert outputs["draws"] == 200 and len(outputs["words"]) == 12
    sent = ask("send", about)["channels"][0]
    assert not sent["closed"] and {word["probability"] for word in sent["words"]} == {None}
    assert sent["inferred"]["draws"] == 200


def test_gaussian_noise_has_no_worst_case(ask: Ask) -> None:
    about = {"mechanism": "gaussian", "epsilon": 3.0, "dim": 3}
    cost = ask("cost", about)
    assert cost["worst_case"] == "inf" and "promises nothing of every draw" in cost["words"][0]
    assert cost["local"] == pytest.approx(3.0, rel=1e-6) and guess_limit(cost["words"]) < 100
    assert "σ = " in ask("send", about)["channels"][0]["inferred"]["by"]


def test_the_state_lists_what_can_be_chosen(client: Any) -> None:
    state = client.get(f"/{TOKEN}/api/state").json()
    assert state["classes"] == ["negative", "positive"] and "ε (epsilon)" in state["glossary"]
    assert list(state["mechanisms"]) == list(MECHANISMS) and Settings.of(state["first"]) == Settings()


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
    label, own = settings.label_epsilon, f"{settings.mechanism}:epsilon={settings.epsilon},dim={settings.size(2)}"
    beside = [] if label is None else ["--mechanism", f"randomized-response:epsilon={label}"]
    cost = ask("cost", about)
    result = answer(capsys, "ladder", "--mechanism", own, *beside, "--delta", str(settings.delta))
    record = rung(result["ladder"], "record")
    assert (cost["worst_case"], cost["local"]) == (record["worst_case"], record["epsilon"])
