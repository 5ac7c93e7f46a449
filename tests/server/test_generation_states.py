"""DP-BART on tiny random models of two parts, as clients run them: what reads, what writes, what a device charges."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from client.device.bundle import Parts, write_bundle
from client.models import language_models
from client.models import texts as client_texts
from client.models import vocabulary as vocabularies
from client.models.generator import Generator
from client.models.reading import private_arguments
from client.models.tokens import padded_word_ids
from client.policy import Policy, Refused
from client.rewrite import Rewriter, describe_cost
from client.sanitizer import Sanitizer
from client.shard import Shard
from client.store.ledger import Ledger
from mechanisms.messages.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from server.generation import export_generator
from tests.support.requests import made
from tests.support.tiny_generators import WORDS, tiny_generator

LONG = "the book was a film and the film was bad " * 9
TEXTS = ["the film was good", "a bad book", LONG, ""]
NUMBER = {w: i for i, w in enumerate(WORDS)}
WINDOW, WIDTH, TOKENS = 6, 16, 5
SPEC = {"mechanism": "dp-bart", "epsilon": 8.0, "delta": 1e-6, "window": WINDOW, "clip": 3.0, "tokens": TOKENS}


@pytest.fixture(scope="module", params=("t5", "bart"))
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    tiny_generator(folder / "model", request.param)
    export_generator(folder / "model", folder / "made", public_texts=TEXTS, seed=0, prompt="{text}")
    return folder


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bart")
    tiny_generator(folder / "model", "bart")
    export_generator(folder / "model", folder / "made", public_texts=TEXTS, seed=0, prompt="{text}")
    return folder / "made"


class Spy:
    """A session that remembers what it was fed."""

    def __init__(self, session: Any) -> None:
        self.session, self.fed = session, list[dict[str, np.ndarray]]()

    def run(self, names: Any, feeds: Any) -> Any:
        self.fed.append(feeds)
        return self.session.run(names, feeds)

    def get_outputs(self) -> Any:
        return self.session.get_outputs()


def prompt_of(text: str) -> list[int]:
    """As many tokens as fit behind the one that stands before a text, lest the input be empty."""
    return [0, *(NUMBER.get(w, 2) for w in text.split())][:WINDOW]


def test_states_are_the_encoders_of_a_public_number_of_tokens(checkpoint):
    """Padded, cut, to the last bit alike alone and in a cohort; every pass is of one size, whatever is in the text."""
    model = Generator(checkpoint / "made")
    model._encoder = spy = Spy(model._encoder)
    found = model.states(TEXTS, WINDOW)
    assert found.shape == (4, WINDOW * WIDTH) and model.width == WIDTH
    encoder = AutoModelForSeq2SeqLM.from_pretrained(checkpoint / "model").eval().get_encoder()
    for row, text in enumerate(TEXTS):
        prompt = prompt_of(text)
        ids = torch.tensor([prompt + [0] * (WINDOW - len(prompt))])
        mask = torch.tensor([[1] * len(prompt) + [0] * (WINDOW - len(prompt))])
        with torch.no_grad():
            states = encoder(input_ids=ids, attention_mask=mask)[0].numpy().ravel()
        assert found[row] == pytest.approx(states, abs=1e-4)
        np.testing.assert_array_equal(model.states([text], WINDOW)[0], found[row])
    assert {feeds["input_ids"].shape[1] for feeds in spy.fed} == {WINDOW}
    assert model.states([], WINDOW).shape == (0, WINDOW * WIDTH)


def test_the_decoder_writes_by_the_states_it_is_given_and_by_nothing_else(checkpoint):
    """Greedily, as the checkpoint does where it attends to all of the states, whoever's states were made before; a row
    as it is written alone. The end that ends a text is the model's, and is no word."""
    model = Generator(checkpoint / "made")
    v, n = model.vocabulary, 40
    states = np.random.default_rng(5).normal(size=(n, WINDOW * WIDTH)) * 2.0
    model._session = spy = Spy(model._session)
    written = model.writer(v, WINDOW)(states, TOKENS)
    assert written.shape == (n, TOKENS) and (v.exact_word_id("</s>") != written).all()
    for feeds in spy.fed:  # one mask, of all the states, in every row
        assert (feeds["attention_mask"] == (np.arange(feeds["attention_mask"].shape[1]) < WINDOW)).all()
    torch_model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint / "model").eval()
    allowed = [NUMBER[w] for w in v.words]
    start = torch_model.config.decoder_start_token_id
    for row in range(n):
        given = torch.tensor(states[row].reshape(1, WINDOW, WIDTH), dtype=torch.float32)
        hidden = BaseModelOutput(last_hidden_state=given)
        ids, out = [start], []
        while len(out) < TOKENS:
            with torch.no_grad():
                answer = torch_model(
                    encoder_outputs=hidden, attention_mask=torch.ones(1, WINDOW), decoder_input_ids=torch.tensor([ids])
                )
            best = allowed[int(answer.logits[0, -1, allowed].argmax())]
            if best == NUMBER["</s>"]:
                break
            ids.append(best)
            out.append(v.words.index(WORDS[best]))
        assert written[row].tolist() == [*out, *[NOTHING] * (TOKENS - len(out))]
    model.states(TEXTS, WINDOW)
    again = model.writer(v, WINDOW)
    np.testing.assert_array_equal(again(states, TOKENS), written)
    for row in (0, 7):
        np.testing.assert_array_equal(again(states[row : row + 1], TOKENS)[0], written[row])
    assert again(states[:0], TOKENS).shape == (0, TOKENS)
    few = Vocabulary(("film", "cinema", "good"), np.zeros((3, 1), np.float32))
    assert set(np.unique(model.writer(few, WINDOW)(states, TOKENS))) <= {NOTHING, 0, 2}


def test_a_swapped_encoder_changes_nothing_behind_the_noise(bart, monkeypatch):
    """The same noisy states give the same output whatever the texts were: what is read of a text goes through the draw
    alone. With states of their own the outputs differ, so the test can fail."""
    model = language_models.load(bart, language_models.PARAPHRASER)
    text = Rewriter(SPEC | {"epsilon": 1000.0, "delta": 0.5}, model=bart).text
    rows = np.arange(30)

    def drawn(texts):
        rng = SimulationStreams(3).rows(rows, np.zeros_like(rows), stage="s", channel="text")
        x = padded_word_ids(texts, text)
        return text.sample(x, rng=rng, **private_arguments(text, texts, x, bart))

    assert (drawn(["the film"] * 30) != drawn([LONG] * 30)).any()
    fixed = np.random.default_rng(1).normal(size=(30, WINDOW * WIDTH)).astype(np.float32)
    monkeypatch.setattr(type(model), "states", lambda self, texts, window: fixed[: len(texts)])
    np.testing.assert_array_equal(drawn([""] * 30), drawn([LONG] * 30))


def test_an_encoder_that_overflows_on_a_text_does_not_show_it(bart, monkeypatch):
    model = language_models.load(bart, language_models.PARAPHRASER)
    made = model.states(["a", "a"], WINDOW)
    made[0], made[1, ::2] = np.nan, np.inf
    monkeypatch.setattr(type(model), "states", lambda self, texts, window: made)
    assert all(isinstance(text, str) for text in Rewriter(SPEC, model=bart).rewrite(["a", "b"]))


# -- what it costs


def test_what_it_costs_is_said_with_its_delta(bart):
    one, two = (Rewriter(SPEC | {"sides": sides}, model=bart) for sides in (1, 2))
    said = "at δ = 1e-06, for any two texts"
    assert describe_cost(one.text) == f"ε = 8 {said} (one draw of the whole text); none at δ = 0"
    assert describe_cost(two.text) == f"ε = 12.114 {said} (one draw of each of 2 sides); none at δ = 0"
    rng = SimulationStreams(1).rows(np.zeros(1, np.int64), np.zeros(1, np.int64), stage="s", channel="text")
    shown = one.explain("the film was good", rng=rng)
    assert [t.note for t in shown[:4]] == ["read"] * 4 and {t.note for t in shown[4:]} <= {"drawn at once"}
    assert all(t.epsilon == pytest.approx(8.0) for t in shown[4:])
    assert client_texts.batch_size(one.text) <= 2**10
    big = replace(one.text, word=replace(one.text.word, width=768, window=20))
    assert 100 < client_texts.batch_size(big) < 200 and big.guarantee == one.text.guarantee


def asked(model: Generator, **changes: Any) -> Request:
    spec = SPEC | {"width": WIDTH, "vocabulary": model.vocabulary.identity} | changes
    return made(
        arm="",
        stage="train",
        split="train",
        classes=2,
        minimum_users=0,
        text=spec,
        vocabulary=model.vocabulary,
        masked_lm=model.identity,
    )


def shard(folder: Any, texts: Any = ("the film was good", "")) -> Shard:
    n = len(texts)
    return Shard(np.zeros(n, np.int64), np.arange(n), None, list(texts), folder, "train", masked_lm=folder)


def test_a_device_charges_before_it_answers_and_not_over_its_policy(bart, tmp_path):
    """ε and δ of each text are counted, of a pair those of two draws; what needs a δ gets none where the policy has
    none; and a mechanism that the model does not fit is refused before anything is drawn."""
    model = Generator(bart)
    policy = Policy(delta=1e-6, text=8.0, total=20.0, total_delta=1e-5)

    def answer(request, policy, name, texts=("the film was good", "")):
        with Ledger(tmp_path / name) as ledger:
            try:
                reply = Sanitizer(policy, ledger, SecureStreams()).answer(request, shard(bart, texts))
                (release,) = reply.releases
                return release.payload["w"], ledger.rows(), ledger.spent(np.zeros(1, np.int64), delta=policy.delta)
            except Refused as refused:
                assert not ledger.rows()
                return refused.reason

    words, rows, spent = answer(asked(model), policy, "a")
    assert words.shape == (2, TOKENS) and words.dtype == np.int32 and len(rows) == 2
    assert [row.payload for row in rows] == [w.tobytes() for w in words]  # an empty text as long a row as any
    assert spent.epsilon[0] == pytest.approx(16.0, rel=1e-7) and spent.delta[0] == pytest.approx(2e-6)
    again, rows, _ = answer(asked(model), policy, "a")
    assert len(rows) == 2 and (again == words).all()  # remembered, at no cost
    pair = asked(model, sides=2)
    assert answer(pair, policy, "b") == "channel"
    words, rows, spent = answer(pair, replace(policy, text=13.0, total=13.0), "c", [("the film", "a bad book")])
    assert words.shape == (1, 2 * TOKENS) and spent.epsilon[0] == pytest.approx(12.1138, rel=1e-4)
    assert answer(asked(model), replace(policy, text=7.99), "d") == "channel"
    assert answer(asked(model), replace(policy, total=9.0), "e") == "spent"
    assert answer(asked(model), replace(policy, total_delta=3.9e-6), "f") == "spent"  # one half of it is the filter's
    assert answer(asked(model), replace(policy, delta=0.0, text=1e9, total=1e9), "g") == "unprotected"
    assert answer(asked(model), replace(policy, delta=1e-9), "h") == "channel"  # dearer at a smaller δ
    for misfit in ({"width": WIDTH + 1}, {"window": 65}, {"window": 1}):
        assert answer(asked(model, **misfit), policy, "i") == "masked-lm"
    assert math.isinf(asked(model).named("text").mechanism.guarantee.worst_case())


def test_a_causal_model_has_no_states(tmp_path):
    tiny_generator(tmp_path / "model", "causal")
    export_generator(tmp_path / "model", tmp_path / "made", public_texts=TEXTS, seed=0, prompt="{text}")
    model = Generator(tmp_path / "made")
    with pytest.raises(ValueError, match="dp-bart: the model has no states"):
        Rewriter(SPEC, model=tmp_path / "made")
    for ask in (lambda: model.states(["a"], WINDOW), lambda: model.writer(model.vocabulary, WINDOW)):
        with pytest.raises(ValueError, match="generator: the model is causal"):
            ask()


def test_a_device_gets_both_parts_and_reckons_the_same_noise(bart, tmp_path):
    """In its bundle; a device that finds the mechanism by its ε and δ comes to the σ and the digest of whoever asks."""
    model = Generator(bart)
    vocabularies.save(model.vocabulary, tmp_path / "words")
    request, policy = asked(model), Policy(delta=1e-6, text=8.0, total=20.0)
    made = write_bundle(
        tmp_path / "bundle",
        request,
        policy,
        name="n",
        arm="a",
        classes=("a", "b"),
        made_by="m",
        parts=Parts(vocabulary=tmp_path / "words", masked_lm=bart),
    )
    assert made.masked_lm is not None and (made.masked_lm / "encoder.onnx").is_file()
    assert made.request.digest("text") == request.digest("text") and made.policy == policy
    with Ledger(tmp_path / "ledger") as ledger:
        reply = Sanitizer(policy, ledger, SecureStreams()).answer(made.request, shard(made.masked_lm))
    (release,) = reply.releases
    assert release.guarantee == request.named("text").mechanism.guarantee and release.payload["w"].shape == (2, TOKENS)
