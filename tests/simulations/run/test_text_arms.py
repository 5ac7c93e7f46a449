"""The text channel from a user's review to its line of the table, without Flower, and once with it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.models import language_models, texts
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from mechanisms.catalogue import CATALOGUE
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import parameters
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import request_from_record, request_to_record
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from server.model import Pipeline
from server.training.end_to_end import train_on_text
from server.validation import validate
from simulations.artifacts.text_channel import StudyRewriter, prepare_rewriter
from simulations.errors import UserError
from simulations.experiment import Experiment, stand_in, text_mechanism
from simulations.experiment.preflight import check_text
from sottovoce.deployment.devices.bundle import chosen
from tests.simulations.run.test_embeddings_arm import charged, sent
from tests.support.requests import made
from tests.support.studies import (
    RANDOMIZED,
    TEST,
    USERS,
    LocalGrid,
    Ran,
    ledger_rows,
    placed,
    run_arms,
    use_folder,
)
from tests.support.texts import PLUS, RANDOM, SANTEXT, TOKENS, VERBATIM, text_prepared, text_study, vocabulary
from tests.support.tiny_generators import tiny_generator
from tests.support.tiny_models import reviews

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


def run(study: Experiment, folder: Path, shared: Path, **grid: Any) -> tuple[dict[str, Ran], LocalGrid]:
    """Every arm of the study; nodes are handed out where there are none yet."""
    ready = text_prepared(study, shared)
    there = folder.exists()
    nodes = len(list(folder.glob("*"))) if there else placed(study, ready, folder)
    local = LocalGrid(nodes, **grid)
    return run_arms(study, local, ready=ready, models=folder.parent / "models", nodes=folder), local


@pytest.mark.parametrize("name", ARMS)
def test_a_line_of_the_table_and_the_ledgers_behind_it(name: str, folder: Path, shared: Path) -> None:
    study = text_study(shared, arm(name), policy={"accept-unprotected": DECLARED})
    outcomes, grid = run(study, folder, shared)
    line, spec = outcomes[name].line, ARMS[name]["text"]
    public_only, reference = name == "public-only", name == "no noise"

    assert line["mechanism"] == spec["mechanism"] and line["epsilon"] == spec.get("epsilon")
    assert line["way"] == ("public-only" if public_only else "sanitized-text")
    assert line["dropped"] == {} and line["errors"] == {}
    assert line["users"] == line["delivered"] == (0 if public_only else USERS)
    assert line["bytes_per_user"] == (0 if public_only else 4 * TOKENS + 2)  # int32 numbers of words, an int16 label
    assert 0 <= line["accuracy"] <= 1 and 0 <= line["accuracy_clean_test"] <= 1
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
    saved = Pipeline.from_pretrained(folder.parent / "models" / outcomes[name].line["name"].replace(" ", "-"))
    np.testing.assert_array_equal(saved.maps().m1, outcomes[name].model.maps.m1)


def test_texts_beside_vectors_are_released_trained_on_and_charged_as_alone(folder: Path, shared: Path) -> None:
    """A comparison in one table: same requests, releases, ledgers and line."""
    beside = text_study(
        shared,
        arm("random") | {"protocol": "sanitized-text"},
        training={"protocol": "statistics"},
        policy={"accept-unprotected": DECLARED},
    )
    alone = text_study(
        shared, arm("random"), training={"train-encoder": False}, policy={"accept-unprotected": DECLARED}
    )
    results = []
    for study in (beside, alone):
        outcomes, grid = run(study, folder, shared)
        results.append((outcomes["random"].line, charged(folder, "random"), sorted(map(str, sent(grid)))))
        shutil.rmtree(folder)
    (one, *rest), (other, *same) = results
    assert rest == same and one["way"] == "sanitized-text"
    assert {key: one[key] for key in one if key != "seconds"} == {key: other[key] for key in other if key != "seconds"}


def test_texts_stand_beside_vectors_alone(shared: Path) -> None:
    own = arm("random") | {"protocol": "sanitized-text"}
    with pytest.raises(UserError, match=r'"sanitized-text" does not go with training.protocol'):
        text_study(shared, own, training={"protocol": "release-once"})
    study = text_study(shared, own, training={"protocol": "statistics"}, policy={"accept-unprotected": DECLARED})
    with pytest.raises(UserError, match=r'^--arm "random": texts beside training.protocol = "statistics" are for'):
        chosen(study, "random")


def test_what_users_add_can_be_learned(folder: Path, shared: Path) -> None:
    whole = {"name": "no noise", "reference": True, "text": VERBATIM | {"tokens": 16}}
    study = text_study(shared, whole, population={"users": 240, "users-per-node": 120}, training={"epochs": 8})
    outcomes, _ = run(study, folder, shared)
    assert outcomes["no noise"].line["accuracy"] > 0.75  # chance is a half


def test_a_cohort_answers_as_its_users_would_alone(tmp_path: Path, shared: Path, monkeypatch) -> None:
    results = []
    for per_node, together in ((20, 2**14), (7, 3), (1, 2**14)):
        monkeypatch.setattr(texts, "_TEXTS", together)
        people = {"users": 20, "users-per-node": per_node}
        study = text_study(shared, *map(arm, ("santext", "random")), population=people, training={"epochs": 1})
        folder = tmp_path / str(per_node)
        use_folder(folder, monkeypatch)
        _, grid = run(study, folder, shared)
        results.append(sent(grid))
    assert results[0] == results[1] == results[2]


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
        "text": parameters(text_mechanism(SANTEXT, WORDS)),
        "vocabulary": WORDS,
    }
    return made(**values | changes)


def known(identity: str) -> Any:
    if identity != WORDS.identity:
        raise Refused("vocabulary")
    return WORDS


@pytest.mark.parametrize("label", [None, {"mechanism": "randomized-response", "epsilon": 1.0}])
def test_request_round_trip(label: Any) -> None:
    request = text_request(label=label, part=(1, 2))
    read = request_from_record(request_to_record(request), known)
    assert read.channels == request.channels == ("text",) + (("label",) if label else ())
    assert (
        read.named("text").spec == request.named("text").spec and read.vocabulary is WORDS and read.projection is None
    )
    assert [read.digest(c) for c in read.channels] == [request.digest(c) for c in request.channels]
    assert read.named("text").payload_form == ("w", np.dtype(np.int32), (TOKENS,))
    with pytest.raises(ValueError, match="needs a vocabulary"):
        request_from_record(request_to_record(request))
    with pytest.raises(Refused):
        request_from_record(request_to_record(request), lambda identity: known("0" * 64))


def test_a_texts_digest_covers_what_its_draw_depends_on() -> None:
    base = text_request()
    same = [text_request(arm="b"), text_request(minimum_users=3), text_request(part=(0, 2)), text_request(stage="x")]
    assert {r.digest("text") for r in same} == {base.digest("text")}
    moved = Vocabulary(WORDS.words, WORDS.vectors + np.float32(1), WORDS.counts, WORDS.tags)
    other = [
        text_request(split="test"),
        text_request(text=parameters(text_mechanism(SANTEXT | {"epsilon": 5.0}, WORDS))),
        text_request(text=parameters(text_mechanism(SANTEXT | {"tokens": 9}, WORDS))),
        text_request(text=parameters(text_mechanism(SANTEXT | {"length": "kept"}, WORDS))),
        text_request(text=parameters(text_mechanism(SANTEXT | {"stop_words": "drop"}, WORDS))),
        text_request(text=parameters(text_mechanism(SANTEXT, moved)), vocabulary=moved),
    ]
    assert len({base.digest("text"), *(r.digest("text") for r in other)}) == 1 + len(other)
    reader = {"mechanism": "dp-mlm", "epsilon": 50.0, "low": 0.0, "high": 8.0, "vocabulary": WORDS.identity}
    models = [text_request(text=reader, masked_lm=c * 64) for c in "ab"]
    assert models[0].digest("text") != models[1].digest("text")


GOOD = parameters(text_mechanism(SANTEXT, WORDS))
BAD = {
    "text": [
        {},
        GOOD | {"vocabulary": "no hash"},
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


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_bad_requests_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        text_request(**{field: value})


def test_an_encoder_that_no_question_reads_is_refused() -> None:
    arrays, about = text_request().parts()
    assert Request.from_parts(arrays, about, known).encoder == ""
    maps = {"mean": np.zeros(4, np.float32), "m1": np.eye(4, 2, dtype=np.float32)}
    for other, said in ((arrays | maps, about), (arrays, about | {"encoder": "ab" * 32})):
        with pytest.raises(ValueError, match=r"^request: [^\n]+$"):
            Request.from_parts(other, said, known)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w, None),  # holes are no fault
        (lambda w: w.astype(np.int64), "text: dtype"),
        (lambda w: w[:, :-1].copy(), "text: shape"),
        (lambda w: np.full_like(w, len(WORDS)), "text: no word of the vocabulary"),
        (lambda w: np.full_like(w, -2), "text: no word of the vocabulary"),
    ],
)
def test_malformed_texts_are_dropped(change: Any, reason: str | None) -> None:
    request = text_request()
    w = np.full((2, TOKENS), -1, np.int32)
    w[0, 3] = len(WORDS) - 1
    guarantee = request.named("text").mechanism.guarantee
    release = Release({"w": change(w)}, "text", "train", guarantee, request.digest("text"))
    valid, dropped = validate(Reply(np.arange(2), np.zeros(2, np.int64), (release,)), request, enrolled=range(2))
    assert dict(dropped) == ({} if reason is None else {reason: 2}) and len(valid) == 2 - dropped.total()


def exposing() -> list[tuple[str, dict[str, Any]]]:
    """Every catalogue mechanism of texts, as it is and with each thing passed through that a text may pass through."""
    extra = {"w": 0.5, "p": 0.3, "k": 5, "low": 0.0, "high": 1.0, "epsilon": 1.0, "rest": 2.0}
    extra |= {"delta": 1e-6, "width": 4}
    results = []
    for name, kind in CATALOGUE.items():
        if getattr(kind, "channel", None) != "text":
            continue
        takes = {f.name for f in dataclasses.fields(kind)}
        spec = {"mechanism": name} | {k: v for k, v in extra.items() if k in takes}
        kept = [] if getattr(kind, "moves", False) else ["stop_words", "punctuation", "numbers"]
        lengths = [] if getattr(kind, "whole", False) else [{"length": "kept"}]
        changes = [{}, *lengths, *({kind: "keep"} for kind in kept)]
        results += [(name, spec | change) for change in changes]
        results += [(name, spec | {"mode": "paper"})] if "mode" in takes else []
    return results


@pytest.mark.parametrize(("name", "spec"), exposing())
def test_policies_refuse_what_is_passed_through_and_nobody_declared(name: str, spec: dict[str, Any]) -> None:
    words = stand_in()
    text = text_mechanism(spec | {"tokens": 4}, words)
    reads = "ab" * 32 if text.word.reads else ""
    request = text_request(text=parameters(text), vocabulary=words, masked_lm=reads)
    exposes = request.named("text").mechanism.guarantee.exposes
    with pytest.raises(Refused) as caught:
        Policy().check(request)
    # the default policy allows no ε at all; one without limits still refuses what is exposed
    assert caught.value.reason in ("channel", "unprotected") and (not exposes or caught.value.reason == "unprotected")
    if not exposes:
        Policy(text=math.inf, delta=1e-6).check(request)
        if text.guarantee.sigma is not None:  # which has no ε without a δ
            with pytest.raises(Refused, match="unprotected"):
                Policy(text=math.inf).check(request)
        return
    for some in range(len(exposes)):
        names = exposes[:some]
        with pytest.raises(Refused, match="unprotected"):
            Policy(text=math.inf, accept_unprotected=tuple(f"{n}: a reason" for n in names)).check(request)
    declared = Policy(text=math.inf, accept_unprotected=tuple(f"{n}: a reason" for n in exposes))
    declared.check(request)
    cost = declared.cost(request.named("text").mechanism.guarantee).epsilon
    assert math.isfinite(cost)
    if cost == 0:  # words by chance and a length that is public: nothing is left that could cost
        return
    with pytest.raises(Refused, match="epsilon on the channel"):
        Policy(text=cost * 0.99, accept_unprotected=declared.accept_unprotected).check(request)


def test_budgets_count_exposed_releases_as_the_policy_declares(tmp_path: Path) -> None:
    from client.shard import write_shard
    from client.store.ledger import Ledger

    shard = write_shard(tmp_path, "train", np.array([0]), np.array([0]), ["the film was good"], np.array([1]))
    spec = parameters(text_mechanism(SANTEXT | {"length": "kept"}, WORDS))
    request = text_request(text=spec)
    one = request.named("text").mechanism.guarantee.worst_case(declared=["length"])
    policy = Policy(text=1.5 * one, accept_unprotected=("length: known",))
    with Ledger(tmp_path / "ledger.sqlite", durable=False) as ledger:
        sanitizer = Sanitizer(policy, ledger, SimulationStreams(1))
        first = sanitizer.answer(request, shard)
        again = sanitizer.answer(request, shard)
        np.testing.assert_array_equal(again.releases[0].payload["w"], first.releases[0].payload["w"])
        assert [row.epsilon for row in ledger.rows()] == [one]
        with pytest.raises(Refused, match="budget"):
            sanitizer.answer(text_request(text=spec, stage="again"), shard)
        strict = Sanitizer(Policy(text=1e9), ledger, SimulationStreams(1))
        with pytest.raises(Refused, match="unprotected"):
            strict.answer(request, shard)


def test_a_node_answers_about_its_own_vocabulary_only(folder: Path, shared: Path) -> None:
    study = text_study(shared, arm("random"), training={"epochs": 1})
    ready = text_prepared(study, shared)
    placed(study, ready, folder)
    for path in folder.glob("*/node.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": None}))
    outcomes, _ = run(study, folder, shared)
    line = outcomes["random"].line
    assert line["errors"]["the request names a vocabulary that this client does not have"] == 2 * 6
    assert line["delivered"] == 0 and line["accuracy"] is None and line["accuracy_clean_test"] is not None
    assert ledger_rows(folder, "random") == []


def test_nothing_to_train_on_is_no_model(folder: Path, shared: Path) -> None:
    study = text_study(shared, arm("random"), data={"public": {"labels": False}}, shuffle={"minimum-users": 30})
    outcomes, grid = run(study, folder, shared, lost={1, 2, 3, 4})
    line = outcomes["random"].line
    assert outcomes["random"].model is None and line["accuracy"] is None and line["accuracy_clean_test"] is None
    assert {m.content["text.about"]["stage"] for m in grid.sent} == {"train"}, "test users must not pay for nothing"


def test_labels_under_noise_are_corrected(shared: Path) -> None:
    texts_, y = reviews(320, 7)
    rng = np.random.default_rng(1)
    flipped = np.where(rng.random(len(y)) < 0.2, 1 - y, y)
    transition = np.where(flipped[:, None] == np.arange(2), 0.8, 0.2)
    text_study(shared, arm("random"))  # makes the checkpoint
    pipeline = train_on_text(
        shared / "bert", texts_, flipped, classes=2, dim=4, label_transition=transition, epochs=8, seed=1
    )
    test, truth = reviews(200, 8)
    maps = pipeline.maps()
    assert np.mean(maps.predict(maps.project(pipeline.embed(test))) == truth) > 0.85
    with pytest.raises(ValueError, match="label_transition"):
        train_on_text(shared / "bert", texts_, flipped, classes=2, dim=4, label_transition=transition[:5], seed=1)


@pytest.mark.parametrize(
    ("arms", "sections", "words"),
    [
        ({"text": SANTEXT, "embedding": {"mechanism": "identity"}}, {}, "embedding: does not go with"),
        ({"text": SANTEXT}, {"training": {"protocol": "release-once"}}, "does not go with training.protocol"),
        ({"embedding": {"mechanism": "identity"}}, {}, "embedding: does not go with"),
        ({"text": SANTEXT | {"epsilom": 1.0}}, {}, "did you mean 'epsilon'"),
        ({"text": SANTEXT | {"dim": 4}}, {}, "text.dim"),
        ({"text": SANTEXT | {"length": "kept"}}, {}, "the number of tokens (length)"),
        ({"text": VERBATIM}, {"policy": {"accept-unprotected": ["label: x", "length: x"]}}, "sent unprotected"),
        ({"text": SANTEXT}, {"training": {"label-stages": 2}}, "label-stages"),
        ({"text": SANTEXT}, {"encoder": {"fine-tune-on-public": True}}, "fine-tune-on-public"),
        ({"text": SANTEXT, "label": {"mechanism": "randomized-response-prior", "epsilon": 1.0}}, {}, "an embedding"),
        ({"text": SANTEXT, "protocol": "public-only"}, {"data": {"public": {"labels": False}}}, "labelled public text"),
        ({"text": SANTEXT}, {"policy": {"accept-unprotected": ["label: x", "lengths: x"]}}, "each entry"),
    ],
)
def test_studies_that_make_no_sense(arms: dict, sections: dict, words: str, shared: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$") as caught:
        text_study(shared, {"name": "a", **arms}, **sections)
    assert words in str(caught.value)


def test_a_worst_case_above_the_policy_is_said_before_anything_starts(shared: Path) -> None:
    study = text_study(shared, arm("santext"), policy={"text": 10.0})
    with pytest.raises(UserError, match=r'arm "santext": text: worst-case ε [\d.]+ is above policy.text = 10'):
        check_text(study.setups[0], text_mechanism(SANTEXT, WORDS))


def test_every_exposure_is_known_to_the_policy() -> None:
    for name in EXPOSURES:
        assert Policy(accept_unprotected=(f"{name}: a reason",)).unprotected == {name}


# --- texts that models generate anew


def test_a_study_reads_a_language_model_of_each_kind(folder: Path, shared: Path, monkeypatch) -> None:
    """Each arm by its own; what is charged is every draw and the length; a node without the model refuses."""
    names = {"dp-mlm": "masked-lm", "dp-prompt": "generator", "dp-paraphrase": "paraphraser"}
    arms: list[dict[str, Any]] = [
        {"name": name, "text": {"mechanism": name, "epsilon": 40.0, "tokens": TOKENS}} for name in names
    ]
    words = ("<pad>", "</s>", "<unk>", *WORDS.words[:40])
    checkpoints = {
        "generator": str(tiny_generator(shared / "causal", "causal", words)),
        "paraphraser": str(tiny_generator(shared / "t5", "t5", words)),
    }
    study = text_study(shared, *arms, training={"epochs": 1}, text=checkpoints)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
        use_folder(folder, monkeypatch)
        ready = text_prepared(study, shared)
        rewriter = ready.public.rewriter
        assert isinstance(rewriter, StudyRewriter) and rewriter.masked_lm is not None
        made = [rewriter.mechanism(each) for each in study.arms]
        assert len({rewriter.identity(text) for text in made} - {""}) == 3
        for text in made:
            model = language_models.load(rewriter.masked_lm, names[text.name])
            assert (text.word.low, text.word.high) == (model.low, model.high)
        outcomes, _ = run(study, folder, shared)
        for name in names:
            line = outcomes[name].line
            assert line["delivered"] == USERS and line["errors"] == line["dropped"] == {}
            costs = {r.epsilon for r in ledger_rows(folder, name) if r.channel == "text"}
            (worst,) = costs
            assert worst == line["budget"]["worst_case_epsilon"] == TOKENS * 40.0 + TOKENS
        for path in folder.glob("*/node.json"):  # one that has the masked model alone
            alone = str(language_models.part(rewriter.masked_lm, "masked-lm"))
            path.write_text(json.dumps(json.loads(path.read_text()) | {"masked_lm": alone}))
        again, _ = run(study, folder, shared)
        missing = "the request names a language model that this client does not have"
        assert again["dp-mlm"].line["errors"] == {}
        assert all(again[name].line["errors"] == {missing: 2 * 6} for name in names if name != "dp-mlm")


def test_a_generating_arm_without_its_checkpoint_is_refused(shared: Path) -> None:
    for name, kind in (("dp-prompt", "generator"), ("dp-paraphrase", "paraphraser")):
        study = text_study(shared, {"name": "a", "text": {"mechanism": name, "epsilon": 1.0}})
        with pytest.raises(UserError, match=rf"text\.{kind} = the folder of a checkpoint that generates text$"):
            prepare_rewriter(
                study.setups, study.text, ["the film was good"], model=study.encoder.model, seed=study.seed
            )
    with pytest.raises(UserError, match=r"text\.prompt: goes with text\.generator"):
        text_study(shared, arm("random"), text={"prompt": "{text} :"})
    with pytest.raises(UserError, match=r"text\.prompt: must name \{text\} once"):
        text_study(shared, arm("random"), text={"prompt": "no place", "generator": "x"})
