"""Arms whose users release texts: requests, policies, what each user is charged, and the line of the table."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.models import language_models
from client.models.tokens import padded_word_ids
from client.node import load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.shard import write_shard
from client.store.ledger import Ledger
from mechanisms.accounting.ladder import shared as shared_of
from mechanisms.catalogue import CATALOGUE
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import parameters
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import request_from_record, request_to_record
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from server.model import Pipeline
from server.validation import validate
from simulations.artifacts.model_folder import classify
from simulations.artifacts.text_channel import StudyRewriter, prepare_rewriter
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment, stand_in, text_mechanism
from simulations.experiment.ladder import of_experiment
from simulations.experiment.preflight import check_prices
from simulations.experiment.sections import Data
from simulations.run.comparison import baseline
from sottovoce.adversary.attacks import words as words_attack
from sottovoce.adversary.attacks.target import Target
from sottovoce.deployment.devices.bundle import chosen
from tests.support.requests import made
from tests.support.studies import (
    RANDOMIZED,
    TEST,
    USERS,
    LocalGrid,
    Ran,
    charged,
    ledger_rows,
    placed,
    run_arms,
    sent,
    use_folder,
)
from tests.support.texts import PLUS, RANDOM, SANTEXT, TOKENS, VERBATIM, text_prepared, text_study, vocabulary
from tests.support.tiny_generators import tiny_generator

ARMS = {
    "public-only": {"protocol": "public-only", "text": SANTEXT},
    "no noise": {"reference": True, "text": VERBATIM},
    "santext": {"text": SANTEXT},
    "random": {"text": RANDOM, "label": RANDOMIZED},
    "kept": {"text": PLUS | {"length": "kept", "stop_words": "drop"}},
}
DECLARED = ["label: public in this test", "length: short reviews", "frequent-words: a test"]
WORDS = vocabulary()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_folder(tmp_path / "nodes", monkeypatch)
    return tmp_path / "nodes"


def arm(name: str) -> dict[str, Any]:
    return {"name": name, **ARMS[name]}


def run(study: Experiment, folder: Path, shared: Path, *, ready: Any = None, **grid: Any) -> Any:
    """Run every arm of the study; nodes are handed out where there are none yet."""
    ready = ready or text_prepared(study, shared)
    nodes = len(list(folder.glob("*"))) if folder.exists() else placed(study, ready, folder)
    local = LocalGrid(nodes, **grid)
    return run_arms(study, local, ready=ready, models=folder.parent / "models", nodes=folder), local


@pytest.mark.parametrize("name", ["public-only", "no noise", "random", "kept"])
def test_a_line_of_the_table_and_the_ledgers_behind_it(name: str, folder: Path, shared: Path) -> None:
    study = text_study(shared, arm(name), policy={"accept-unprotected": DECLARED})
    outcomes, grid = run(study, folder, shared)
    line, spec = outcomes[name].line, ARMS[name]["text"]
    public_only, reference = name == "public-only", name == "no noise"
    assert line["mechanism"] == spec["mechanism"] and line["epsilon"] == spec.get("epsilon")
    assert line["way"] == ("public-only" if public_only else "sanitized-text")
    assert line["dropped"] == line["errors"] == {}
    assert line["users"] == line["delivered"] == (0 if public_only else USERS)
    assert line["bytes_per_user"] == (0 if public_only else 4 * TOKENS + 2)  # int32 numbers of words, an int16 label
    assert line["budget"]["statement"].startswith("no protection") is reference

    rows = charged(folder, name)
    assert rows == sent(grid), "what left and what was charged differ"
    stages = {"test": {"text"}} | ({} if public_only else {"train": {"text", "label"}})
    assert {(r[2], r[3]) for r in rows} == {(s, c) for s, channels in stages.items() for c in channels}
    assert len(rows) == TEST + (0 if public_only else 2 * USERS)
    guarantee = text_mechanism(spec, WORDS).guarantee
    declared = {entry.partition(":")[0] for entry in DECLARED}
    for row in ledger_rows(folder, name):
        if row.channel == "text":
            assert row.guarantee == guarantee and row.epsilon == guarantee.worst_case(declared=declared)
            assert row.epsilon == line["budget"]["worst_case_epsilon"]
        elif name == "random":
            assert row.epsilon == line["budget"]["label_epsilon"] == 3.0
    place = folder.parent / "models" / name.replace(" ", "-")
    saved, card = Pipeline.from_pretrained(place), (place / "README.md").read_text()
    assert f"| Accuracy, sanitized test sentences | {line['accuracy']:.4g} |" in card
    np.testing.assert_array_equal(saved.maps().m1, outcomes[name].model.maps.m1)


def test_texts_beside_vectors_are_released_trained_on_and_charged_as_alone(folder: Path, shared: Path) -> None:
    """In one table with user vectors: same requests, releases, ledgers and line. A bundle takes such an arm alone."""
    own, policy = arm("random") | {"protocol": "sanitized-text"}, {"accept-unprotected": DECLARED}
    beside = text_study(shared, own, training={"protocol": "statistics"}, policy=policy)
    alone = text_study(shared, arm("random"), training={"train-encoder": False}, policy=policy)
    results = []
    for study in (beside, alone):
        outcomes, grid = run(study, folder, shared)
        line = outcomes["random"].line | {"seconds": 0}
        results.append((line, charged(folder, "random"), sorted(map(str, sent(grid)))))
        shutil.rmtree(folder)
    assert results[0] == results[1]
    with pytest.raises(UserError, match=r'"sanitized-text" does not go with training.protocol'):
        text_study(shared, own, training={"protocol": "release-once"})
    with pytest.raises(UserError, match=r'^--arm "random": texts beside training.protocol = "statistics" are for'):
        chosen(beside, "random")


def test_what_users_add_can_be_learned(folder: Path, shared: Path) -> None:
    whole = {"name": "no noise", "reference": True, "text": VERBATIM | {"tokens": 16}}
    study = text_study(shared, whole, population={"users": 240, "users-per-node": 120}, training={"epochs": 8})
    outcomes, _ = run(study, folder, shared)
    assert outcomes["no noise"].line["accuracy"] > 0.75  # chance is a half


def test_a_cohort_answers_as_its_users_would_alone(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for per_node, together in ((7, 3), (1, 2**14)):
        monkeypatch.setattr("client.draw._TEXTS", together)
        people = {"users": 20, "users-per-node": per_node}
        study = text_study(shared, *map(arm, ("santext", "random")), population=people, training={"epochs": 1})
        folder = tmp_path / str(per_node)
        use_folder(folder, monkeypatch)
        results.append(sent(run(study, folder, shared)[1]))
    assert results[0] == results[1]


def test_a_node_answers_about_its_own_vocabulary_only(folder: Path, shared: Path) -> None:
    study = text_study(shared, arm("random"), training={"epochs": 1})
    placed(study, text_prepared(study, shared), folder)
    for path in folder.glob("*/node.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": None}))
    outcomes, _ = run(study, folder, shared)
    line = outcomes["random"].line
    assert line["errors"]["the request names a vocabulary that this client does not have"] == 2 * 6
    assert line["delivered"] == 0 and line["accuracy"] is None and line["accuracy_clean_test"] is not None
    assert ledger_rows(folder, "random") == []


def test_without_a_model_test_users_pay_nothing(folder: Path, shared: Path) -> None:
    study = text_study(shared, arm("random"), data={"public": {"labels": False}}, shuffle={"minimum-users": 30})
    outcomes, grid = run(study, folder, shared, lost={1, 2, 3, 4})
    line = outcomes["random"].line
    assert outcomes["random"].model is None and line["accuracy"] is None and line["accuracy_clean_test"] is None
    assert {m.content["text.about"]["stage"] for m in grid.sent} == {"train"}


def test_an_arm_reads_a_language_model_of_its_own_kind(
    folder: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draw and the length are charged; a node without the model refuses."""
    names = {"dp-mlm": "masked-lm", "dp-prompt": "generator", "dp-paraphrase": "paraphraser"}
    arms = [{"name": name, "text": {"mechanism": name, "epsilon": 40.0, "tokens": TOKENS}} for name in names]
    words = ("<pad>", "</s>", "<unk>", *WORDS.words[:40])
    checkpoints = {
        "generator": str(tiny_generator(shared / "causal", "causal", words)),
        "paraphraser": str(tiny_generator(shared / "t5", "t5", words)),
    }
    study = text_study(shared, *arms, training={"epochs": 1}, text=checkpoints)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    ready = text_prepared(study, shared)
    rewriter = ready.public.rewriter
    assert isinstance(rewriter, StudyRewriter) and rewriter.masked_lm is not None
    mechanisms = [rewriter.mechanism(each) for each in study.arms]
    assert len({rewriter.identity(text) for text in mechanisms} - {""}) == 3
    for text in mechanisms:
        model = language_models.load(rewriter.masked_lm, names[text.name])
        assert (text.word.low, text.word.high) == (model.low, model.high)
    outcomes: dict[str, Ran] = run(study, folder, shared, ready=ready)[0]
    for name in names:
        line = outcomes[name].line
        assert line["delivered"] == USERS and line["errors"] == line["dropped"] == {}
        (worst,) = {r.epsilon for r in ledger_rows(folder, name) if r.channel == "text"}
        assert worst == line["budget"]["worst_case_epsilon"] == TOKENS * 40.0 + TOKENS
    for path in folder.glob("*/node.json"):  # one that has the masked model alone
        alone = str(language_models.part(rewriter.masked_lm, "masked-lm"))
        path.write_text(json.dumps(json.loads(path.read_text()) | {"masked_lm": alone}))
    again = run(study, folder, shared, ready=ready)[0]
    missing = "the request names a language model that this client does not have"
    assert again["dp-mlm"].line["errors"] == {}
    assert all(again[name].line["errors"] == {missing: 2 * 6} for name in names if name != "dp-mlm")


# --- requests for texts


def text_request(**changes: Any) -> Request:
    values: dict[str, Any] = {
        "arm": "a",
        "stage": "train",
        "split": "train",
        "encoder": "",
        "mean": None,
        "m1": None,
        "embedding": None,
        "label": None,
        "classes": 2,
        "minimum_users": 0,
        "text": GOOD,
        "vocabulary": WORDS,
    }
    return made(**values | changes)


def known(identity: str) -> Any:
    if identity != WORDS.identity:
        raise Refused("vocabulary")
    return WORDS


GOOD = parameters(text_mechanism(SANTEXT, WORDS))


def test_a_request_for_texts_reads_back_with_its_vocabulary() -> None:
    request = text_request(label={"mechanism": "randomized-response", "epsilon": 1.0}, part=(1, 2))
    read = request_from_record(request_to_record(request), known)
    assert read.channels == request.channels == ("text", "label") and read.vocabulary is WORDS
    assert read.named("text").spec == request.named("text").spec and read.projection is None
    assert [read.digest(c) for c in read.channels] == [request.digest(c) for c in request.channels]
    assert read.named("text").payload_form == ("w", np.dtype(np.int32), (TOKENS,))
    with pytest.raises(Refused):
        request_from_record(request_to_record(request), lambda identity: known("0" * 64))


def test_a_texts_digest_covers_what_its_draw_depends_on() -> None:
    base = text_request()
    same = [text_request(arm="b"), text_request(minimum_users=3), text_request(part=(0, 2)), text_request(stage="x")]
    assert {r.digest("text") for r in same} == {base.digest("text")}
    moved = Vocabulary(WORDS.words, WORDS.vectors + np.float32(1), WORDS.counts, WORDS.tags)
    changes = ({"epsilon": 5.0}, {"tokens": 9}, {"length": "kept"}, {"stop_words": "drop"})
    other = [
        text_request(split="test"),
        *(text_request(text=parameters(text_mechanism(SANTEXT | change, WORDS))) for change in changes),
        text_request(text=parameters(text_mechanism(SANTEXT, moved)), vocabulary=moved),
    ]
    reader = {"mechanism": "dp-mlm", "epsilon": 50.0, "low": 0.0, "high": 8.0, "vocabulary": WORDS.identity}
    other += [text_request(text=reader, masked_lm=c * 64) for c in "ab"]
    assert len({base.digest("text"), *(r.digest("text") for r in other)}) == 1 + len(other)


BAD = {
    "text": [
        {},
        GOOD | {"vocabulary": "ab" * 32},
        GOOD | {"mechanism": "purkayastha"},
        GOOD | {"epsilon": -1.0},
        GOOD | {"tokens": 0},
        GOOD | {"tokens": 10**9},
        GOOD | {"length": "public"},
        GOOD | {"seed": 1},
        "santext",
        {"mechanism": "dp-mlm", "epsilon": 50.0, "low": 0.0, "high": 8.0, "vocabulary": WORDS.identity},  # of no model
    ],
    "vocabulary": [None, "words"],
    "masked_lm": ["ab" * 32, "x", None],
    "label": [{"mechanism": "randomized-response-prior", "epsilon": 1.0}],
    "embedding": [{"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4}],
}


def test_bad_requests_are_refused() -> None:
    """Also an encoder that no question reads."""
    for field, value in ((field, value) for field, values in BAD.items() for value in values):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            text_request(**{field: value})
    arrays, about = text_request().parts()
    maps = {"mean": np.zeros(4, np.float32), "m1": np.eye(4, 2, dtype=np.float32)}
    for arrays_, about_ in ((arrays | maps, about), (arrays, about | {"encoder": "ab" * 32})):
        with pytest.raises(ValueError, match=r"^request: [^\n]+$"):
            Request.from_parts(arrays_, about_, known)


def test_malformed_texts_are_dropped() -> None:
    request = text_request()
    w = np.full((2, TOKENS), -1, np.int32)
    w[0, 3] = len(WORDS) - 1
    guarantee = request.named("text").mechanism.guarantee
    for content, reason in (
        (w, None),  # holes are no fault
        (w.astype(np.int64), "text: dtype"),
        (w[:, :-1].copy(), "text: shape"),
        (np.full_like(w, len(WORDS)), "text: no word of the vocabulary"),
        (np.full_like(w, -2), "text: no word of the vocabulary"),
    ):
        release = Release({"w": content}, "text", "train", guarantee, request.digest("text"))
        valid, dropped = validate(Reply(np.arange(2), np.zeros(2, np.int64), (release,)), request, enrolled=range(2))
        assert dict(dropped) == ({} if reason is None else {reason: 2}) and len(valid) == 2 - dropped.total()


# --- policies


def exposing(name: str) -> list[dict[str, Any]]:
    """Return a mechanism of texts as it is, in its published mode, and with all that a text may pass through."""
    kind: Any = CATALOGUE[name]
    extra = {"w": 0.5, "p": 0.3, "k": 5, "low": 0.0, "high": 1.0, "epsilon": 1.0, "rest": 2.0, "delta": 1e-6}
    takes = {f.name for f in dataclasses.fields(kind)}
    spec = {"mechanism": name, "tokens": 4} | {k: v for k, v in (extra | {"width": 4}).items() if k in takes}
    passed = {} if getattr(kind, "moves", False) else dict.fromkeys(("stop_words", "punctuation", "numbers"), "keep")
    passed |= {} if getattr(kind, "whole", False) else {"length": "kept"}
    return [spec, spec | passed] + ([spec | {"mode": "paper"}] if "mode" in takes else [])


def test_policies_refuse_what_is_passed_through_and_nobody_declared() -> None:
    words = stand_in()
    names = [name for name, kind in CATALOGUE.items() if getattr(kind, "channel", "") == "text"]
    for spec in (spec for name in names for spec in exposing(name)):
        text = text_mechanism(spec, words)
        reads = "ab" * 32 if text.word.reads else ""
        request = text_request(text=parameters(text), vocabulary=words, masked_lm=reads)
        exposes = request.named("text").mechanism.guarantee.exposes
        # the default policy allows no ε at all; one without limits still refuses what is exposed
        with pytest.raises(Refused, match="unprotected" if exposes else "channel|unprotected"):
            Policy().check(request)
        if not exposes:
            Policy(text=math.inf, delta=1e-6).check(request)
            if text.guarantee.sigma is not None:  # which has no ε without a δ
                with pytest.raises(Refused, match="unprotected"):
                    Policy(text=math.inf).check(request)
            continue
        reasons = tuple(f"{exposure}: a reason" for exposure in exposes)
        for some in range(len(reasons)):
            with pytest.raises(Refused, match="unprotected"):
                Policy(text=math.inf, accept_unprotected=reasons[:some]).check(request)
        declared = Policy(text=math.inf, accept_unprotected=reasons)
        declared.check(request)
        cost = declared.cost(request.named("text").mechanism.guarantee).epsilon
        assert math.isfinite(cost)
        if cost:  # of words by chance and a public length nothing is left that could cost
            with pytest.raises(Refused, match="epsilon on the channel"):
                Policy(text=cost * 0.99, accept_unprotected=reasons).check(request)
    for name in EXPOSURES:
        assert Policy(accept_unprotected=(f"{name}: a reason",)).unprotected == {name}


def test_budgets_count_exposed_releases_as_the_policy_declares(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, "train", np.array([0]), np.array([0]), ["the film was good"], np.array([1]))
    spec = parameters(text_mechanism(SANTEXT | {"length": "kept"}, WORDS))
    request = text_request(text=spec)
    one = request.named("text").mechanism.guarantee.worst_case(declared=["length"])
    policy = Policy(text=1.5 * one, accept_unprotected=("length: known",))
    with Ledger(tmp_path / "ledger.sqlite", durable=False) as ledger:
        sanitizer = Sanitizer(policy, ledger, SimulationStreams(1))
        first, again = sanitizer.answer(request, shard), sanitizer.answer(request, shard)
        np.testing.assert_array_equal(again.releases[0].payload["w"], first.releases[0].payload["w"])
        assert [row.epsilon for row in ledger.rows()] == [one]
        with pytest.raises(Refused, match="budget"):
            sanitizer.answer(text_request(text=spec, stage="again"), shard)


# --- what is refused before anything starts


@pytest.mark.parametrize(
    ("arms", "sections", "words"),
    [
        ({"text": SANTEXT, "embedding": {"mechanism": "identity"}}, {}, "embedding: does not go with"),
        ({"text": SANTEXT}, {"training": {"protocol": "release-once"}}, "does not go with training.protocol"),
        ({"text": SANTEXT | {"epsilom": 1.0}}, {}, "did you mean 'epsilon'"),
        ({"text": SANTEXT | {"dim": 4}}, {}, "text.dim"),
        ({"text": SANTEXT | {"length": "kept"}}, {}, "the number of tokens (length)"),
        ({"text": VERBATIM}, {"policy": {"accept-unprotected": ["label: x", "length: x"]}}, "sent unprotected"),
        ({"text": SANTEXT}, {"training": {"label-stages": 2}}, "label-stages"),
        ({"text": SANTEXT}, {"encoder": {"fine-tune-on-public": True}}, "fine-tune-on-public"),
        ({"text": SANTEXT, "label": {"mechanism": "randomized-response-prior", "epsilon": 1.0}}, {}, "an embedding"),
        ({"text": SANTEXT, "protocol": "public-only"}, {"data": {"public": {"labels": False}}}, "labelled public text"),
        ({"text": SANTEXT}, {"policy": {"accept-unprotected": ["label: x", "lengths: x"]}}, "each entry"),
        ({"text": RANDOM}, {"text": {"prompt": "{text} :"}}, "text.prompt: goes with text.generator"),
        ({"text": RANDOM}, {"text": {"prompt": "none", "generator": "x"}}, "text.prompt: must name {text} once"),
        ({"text": SANTEXT | {"sides": 2}}, {}, "text.sides: goes with pairs of texts, data.second-text"),
        ({"text": SANTEXT, "perturb": "test"}, {}, 'perturb: "test" has the texts of training users'),
        ({"text": SANTEXT, "perturb": "train"}, {}, 'perturb: "train" has the texts of users who ask'),
        ({"text": RANDOM, "perturb": "none"}, {}, 'perturb: must be "both", "train", "test"'),
        ({"text": RANDOM, "perturb": "test", "protocol": "public-only"}, {}, "perturb: goes with users who teach by"),
    ],
)
def test_studies_that_make_no_sense(arms: dict, sections: dict, words: str, shared: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$") as caught:
        text_study(shared, {"name": "a", **arms}, **sections)
    assert words in str(caught.value)


def test_prices_and_models_are_checked_before_anything_starts(shared: Path) -> None:
    study = text_study(shared, arm("santext"), policy={"text": 10.0})
    with pytest.raises(UserError, match=r'arm "santext": text: worst-case ε [\d.]+ is above policy.text = 10'):
        check_prices(study.setups[0], text_mechanism(SANTEXT, WORDS))
    for name, kind in (("dp-prompt", "generator"), ("dp-paraphrase", "paraphraser")):
        study = text_study(shared, {"name": "a", "text": {"mechanism": name, "epsilon": 1.0}})
        with pytest.raises(UserError, match=rf"text\.{kind} = the folder of a checkpoint that generates text$"):
            prepare_rewriter(study, ["the film was good"])


# --- texts of training users alone, or of those who ask alone

PERTURBED = {"train": {"train"}, "test": {"test"}, "both": {"train", "test"}}


@pytest.mark.parametrize("perturb", PERTURBED)
def test_users_who_are_not_perturbed_are_charged_for_a_text_in_clear(perturb: str, shared: Path, folder: Path) -> None:
    study = text_study(
        shared, {"name": "some", "text": RANDOM, "reference": True, "perturb": perturb}, training={"epochs": 1}
    )
    ready = text_prepared(study, shared)
    line = run(study, folder, shared, ready=ready)[0]["some"].line
    sanitized = text_mechanism(RANDOM, WORDS)
    clear = text_mechanism({"mechanism": "identity", "tokens": TOKENS, "length": "kept"}, WORDS)
    held = {"train": ready.held.train.texts, "test": ready.held.test.texts}
    for split, people in (("train", USERS), ("test", TEST)):
        expected = sanitized if split in PERTURBED[perturb] else clear
        rows = [row for row in ledger_rows(folder, "some") if row.channel == "text" and row.stage == split]
        assert len(rows) == people and all(row.guarantee == expected.guarantee for row in rows)
        assert all(math.isinf(row.epsilon) == (expected is clear) for row in rows)
        rung = {r["rung"]: r for r in line["ladder" if split == "train" else "test_ladder"]}["text"]
        worst = expected.guarantee.worst_case()  # which the exact composition of its parts may undercut
        assert math.isinf(float(rung["epsilon"])) if expected is clear else 0.9 * worst < rung["epsilon"] <= worst
        truth = padded_word_ids(held[split], expected)[[row.user % USERS for row in rows]]
        released = np.stack([np.frombuffer(row.payload, "<i4") for row in rows])
        words = truth != NOTHING
        changed = {"words": int(words.sum()), "perturbed": int((words & (released != truth)).sum())}
        assert line["perturbed"][split] == changed and (changed["perturbed"] == 0) == (expected is clear)
    asking = {"both": None, "train": math.inf, "test": sanitized.guarantee.worst_case()}[perturb]
    assert math.isinf(line["budget"]["worst_case_epsilon"]) == (perturb == "test")
    assert line["budget"]["asking_epsilon"] == asking
    (before,) = of_experiment(study, texts={"some": sanitized})
    for key in ("ladder", "test_ladder"):
        prices = [[rung["epsilon"] for rung in lines[key] if rung["rung"] == "text"] for lines in (before, line)]
        assert prices[0] == prices[1]
    target = Target(folder, study, study.setups[0], [load_node(place) for place in sorted(folder.iterdir())])
    attacked = words_attack.held_of(target, words_attack.mechanism_of(target)[0])  # the texts that are sanitized
    assert (attacked.stage, len(attacked.texts)) == (("test", TEST) if perturb == "test" else ("train", USERS))


def test_a_ladder_names_what_is_declared_public(shared: Path) -> None:
    """A worst case that is infinite between other texts has a mark in results."""
    kept = SANTEXT | {"length": "kept"}
    policy = {"text": 1000.0, "accept-unprotected": ["length: made up", "label: made up"]}
    study = text_study(shared, {"name": "some", "text": kept}, policy=policy)
    (line,) = of_experiment(study, texts={"some": text_mechanism(kept, WORDS)})
    assert {shared_of(rung) for rung in line["ladder"]} >= {("label", "the number of tokens")}
    assert {shared_of(rung) for rung in line["test_ladder"]} >= {("the number of tokens",)}


def test_a_baseline_asks_by_the_same_texts(shared: Path) -> None:
    alone = {"name": "alone", "protocol": "public-only", "text": SANTEXT}
    arms = [{"name": kind, "text": SANTEXT, "reference": True, "perturb": kind} for kind in PERTURBED]
    study = text_study(shared, alone, *arms)
    bases = {arm.name: baseline(study.arms, arm) for arm in study.arms}
    assert {name for name, base in bases.items() if base is not None} == {"test", "both"}


# --- pairs of texts, released as two

PAIRS = Data(
    source="files", path="none", train="a.tsv", test="b.tsv", text="question", second_text="sentence", label="label"
)


def pairs(n: int, seed: int) -> Corpus:
    rng = np.random.default_rng(seed)
    words = rng.choice(("the", "film", "book", "a", "plot", "good"), size=(n, 8)).tolist()
    sides = [(" ".join(each[:4]), " ".join(each[4:])) for each in words]
    return Corpus(sides, rng.integers(2, size=n), ("not_entailment", "entailment"))


def test_both_sides_are_released_charged_and_told_apart(folder: Path, shared: Path) -> None:
    """From the nodes' folders to the model, of a study whose data have a second text."""
    arms = {"name": "two texts", "text": SANTEXT}, {"name": "joined", "text": SANTEXT | {"sides": 1}}
    study = text_study(shared, *arms, training={"epochs": 1}, population={"users": 20, "users-per-node": 10})
    study = replace(study, data=PAIRS)
    ready = text_prepared(study, shared)
    public = pairs(len(ready.public.texts), 1)
    held = replace(ready.held, train=pairs(len(ready.held.train), 2), test=pairs(len(ready.held.test), 3))
    ready = ready._replace(
        public=replace(ready.public, texts=public.texts, labels=public.labels, classes=public.classes), held=held
    )
    outcomes, _ = run(study, folder, shared, ready=ready)
    costs = {}
    for name, sides in (("two texts", 2), ("joined", 1)):
        rows = [row for row in ledger_rows(folder, name) if row.channel == "text"]
        assert {len(row.payload) for row in rows} == {4 * TOKENS * sides}
        mechanism = text_mechanism(SANTEXT | {"sides": sides}, vocabulary())
        assert {row.guarantee for row in rows} == {mechanism.guarantee}
        (costs[sides],) = {row.epsilon for row in rows}
        line, model = outcomes[name].line, outcomes[name].model
        assert line["budget"]["worst_case_epsilon"] == costs[sides] and line["dropped"] == {}
        saved = classify(folder.parent / "models" / name.replace(" ", "-"), ready.public, held.test.texts)
        np.testing.assert_array_equal(saved, model.classify(held.test.texts))
        (text_rung,) = [rung for rung in line["ladder"] if rung["unit"] == "text"]
        assert f"{TOKENS * sides} positions" in str(text_rung)
        one, other = model.rate([("the film", "good plot"), ("the film good", "plot")])
        assert np.allclose(one, other, atol=1e-6) == (sides == 1)
    assert costs[2] == pytest.approx(2 * costs[1])
