"""A bundle is whole or refused, and a client answers from it alone."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.app import answer
from client.device.bundle import FORMAT, MANIFEST, SIGNATURE, Bundle, open_bundle
from client.node import load_node, write_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.shard import write_shard
from mechanisms.messages.request import Request
from mechanisms.messages.signature import sign
from mechanisms.messages.wire import reply_from_record, request_to_record
from mechanisms.streams import SecureStreams
from simulations.experiment import Experiment, from_table, slug, to_toml
from simulations.run.prepare import prepare
from sottovoce.cli import main as cli
from sottovoce.deployment.devices import bundle as device
from tests.support.devices import POLICY, PUBLISHER, SENTENCES, SIGNER, make_bundle, make_text_bundle
from tests.support.requests import changed
from tests.support.tiny_models import tiny_bert


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


@pytest.fixture(scope="module")
def made(shared: Path) -> Bundle:
    return make_bundle(shared)


@pytest.fixture
def bundle(made: Bundle, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(made.folder, tmp_path / "bundle"))


def test_what_is_written_is_what_is_opened(made: Bundle) -> None:
    opened = open_bundle(made.folder)
    assert opened.identity == made.identity and opened.policy == POLICY
    assert opened.request.digest("embedding") == made.request.digest("embedding")
    assert opened.size == sum(p.stat().st_size for p in made.folder.rglob("*") if p.is_file())
    for split in ("train", "test"):
        assert opened.manifest["digests"][split]["label"] == replace(made.request, split=split).digest("label")
    assert (opened.vocabulary, opened.masked_lm) == (None, None)


@pytest.mark.parametrize("make", [lambda shared: open_bundle(shared / "bundle"), make_text_bundle])
def test_a_client_answers_from_the_bundle_alone(
    make: Callable[[Path], Bundle], made: Bundle, shared: Path, tmp_path: Path
) -> None:
    given = make(shared)
    moved = open_bundle(shutil.copytree(given.folder, tmp_path / "elsewhere"))
    moved.install(tmp_path / "node", PUBLISHER)
    users = np.zeros(len(SENTENCES), np.int64)
    records = np.arange(len(SENTENCES), dtype=np.int64)
    write_shard(tmp_path / "node", "train", users, records, SENTENCES, users)
    node = load_node(tmp_path / "node")
    assert node.streams == SecureStreams() and node.policy("") == given.policy
    asked = moved.request
    if "label" in asked.channels:  # 40 in total: one record's worth
        write_shard(tmp_path / "node", "train", records, users, SENTENCES, users)
    reply = reply_from_record(answer(request_to_record(asked), node))
    assert [r.channel for r in reply.releases] == list(asked.channels) and len(reply) == len(SENTENCES)
    assert all(r.digest == given.manifest["digests"]["train"][r.channel] for r in reply.releases)


def test_a_file_that_is_not_what_the_manifest_says_is_named(bundle: Path, tmp_path: Path) -> None:
    for name in ("encoder/model.onnx", "policy.json"):
        path = bundle / name
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        for other in (flipped, data[:-1]):
            path.write_bytes(other)
            with pytest.raises(ValueError, match=f"{name} is not what the manifest says"):
                open_bundle(bundle)
        path.rename(tmp_path / "moved")
        for link in (False, True):  # a link is no file
            if link:
                path.symlink_to(tmp_path / "moved")
            with pytest.raises(ValueError, match=f"{name} is missing"):
                open_bundle(bundle)
        path.unlink()
        path.write_bytes(data)
    (bundle / "encoder" / "more.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"encoder/more\.bin is not in the manifest"):
        open_bundle(bundle)


def manifest(bundle: Path, **changes: object) -> None:
    """Changes of the manifest, signed by the one who published it: what remains to be checked is what it says."""
    path = bundle / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (bundle / SIGNATURE).write_text(sign(SIGNER, "bundle", path.read_bytes()).hex())


def test_a_manifest_that_says_something_else_is_refused(bundle: Path) -> None:
    original = (bundle / MANIFEST).read_text()
    files = json.loads(original)["files"]
    for changes, said in (
        ({"format": "sottovoce-bundle-9"}, f"'sottovoce-bundle-9', and this client reads '{FORMAT}'"),
        ({"digests": {"train": {}, "test": {}}}, "names releases otherwise"),
        *(
            ({"files": files | {name: {"bytes": 0, "sha256": "0" * 64}}}, r"is damaged|cannot be read")
            for name in ("../x", "/etc/passwd", "a/b/c", ".hidden", "", "x\n")
        ),
    ):
        (bundle / MANIFEST).write_text(original)
        manifest(bundle, **changes)
        with pytest.raises(ValueError, match=said):
            open_bundle(bundle)
    (bundle / "policy.json").unlink()
    manifest(bundle, files={name: file for name, file in files.items() if name != "policy.json"})
    with pytest.raises(ValueError, match=r"^bundle: [^\n]+$"):
        open_bundle(bundle)


def test_parts_that_do_not_go_together_are_refused(shared: Path, made: Bundle, bundle: Path) -> None:
    """Every hash is right, and the request names another encoder."""
    import hashlib

    path = bundle / "request.json"
    path.write_text(path.read_text().replace(made.request.encoder, "cd" * 32))
    files = json.loads((bundle / MANIFEST).read_text())["files"]
    data = path.read_bytes()
    files["request.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    moved = changed(made.request, encoder="cd" * 32)
    digests = {s: {c: replace(moved, split=s).digest(c) for c in moved.channels} for s in ("train", "test")}
    manifest(bundle, files=files, digests=digests)
    with pytest.raises(ValueError, match="encoder is not what the bundle's request names"):
        open_bundle(bundle)


def test_a_bundle_is_written_whole_or_not_at_all(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (shared / "broken").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("client.device.bundle._copy", full)
        with pytest.raises(OSError, match="No space"):
            make_bundle(shared, "broken")
    assert not list((shared / "broken").iterdir()) and not list(shared.glob(".draft*"))
    make_bundle(shared, "broken")
    with pytest.raises(ValueError, match="not an empty folder"):
        make_bundle(shared, "broken")


# -- of a study, of a run ---------------------------------------------------------------------------------------------


def study(shared: Path, **changes: object) -> Experiment:
    model = shared / "bert"
    if not model.exists():
        tiny_bert(model)
    table: dict[str, object] = {
        "name": "small",
        "seed": 3,
        "data": {"source": "built-in", "public-size": 60, "test-size": 40},
        "population": {"users": 60},
        "shuffle": {"minimum-users": 10},
        "encoder": {"model": str(model), "max-length": 24},
        "policy": {"embedding": 32.0, "label": 5.0},
        "arm": [
            {
                "name": "private",
                "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4},
                "label": {"mechanism": "randomized-response", "epsilon": 3.0},
            },
            {"name": "clear", "reference": True, "embedding": {"mechanism": "identity", "dim": 4}},
        ],
    }
    return from_table(table | changes)


@pytest.fixture
def cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))


@pytest.mark.usefixtures("cache")
def test_of_a_study_before_it_is_run(shared: Path, tmp_path: Path) -> None:
    made = device.bundle_of_experiment(study(shared), None, tmp_path / "b")
    assert made.manifest["arm"] == "private" and made.request.channels == ("embedding", "label")
    assert made.policy.mechanisms == ("purkayastha", "randomized-response") and made.policy.minimum_users == 10
    assert made.request.minimum_users == 10 and made.request.projection.dim == 4
    assert made.manifest["encoder"] == {"sha256": made.request.encoder, "precision": "fp32"}


def a_run(shared: Path, folder: Path, experiment: Experiment, **changes: object) -> Path:
    """What a finished run leaves, as far as a bundle reads it."""
    from server.maps import Maps

    made = device.bundle_of_experiment(experiment, None, folder / "first")
    sent = made.request.projection
    m, dim = sent.m1.shape
    rng = np.random.default_rng(0)
    maps = Maps(sent.mean, rng.normal(size=(m, dim)), rng.normal(size=(dim, m)), np.zeros((m, 2)), np.zeros(2))
    maps.save(folder / "models" / slug("private"))
    about = {"classes": ["negative", "positive"], "encoder": made.request.encoder}
    (folder / "models" / slug("private") / "model.json").write_text(json.dumps(about))
    (folder / "experiment.toml").write_text(to_toml(experiment))
    (folder / "results.json").write_text(json.dumps({"encoder": {"sha256": made.request.encoder}} | changes))
    return folder


@pytest.mark.usefixtures("cache")
def test_of_a_run_with_the_maps_that_it_was_left_with(shared: Path, tmp_path: Path) -> None:
    from server.maps import Maps

    run = a_run(shared, tmp_path / "run", study(shared))
    made = device.bundle_of_run(run, "private", tmp_path / "b")
    np.testing.assert_array_equal(made.request.projection.m1, Maps.load(run / "models" / "private").m1)
    question = changed(made.request, split="test", label=None)  # whoever asks has no label to tell
    listed = {made.request.digest("embedding"), made.request.digest("label"), question.digest("embedding")}
    assert set(made.policy.questions or ()) == listed and made.policy.lists(question)
    small = device.bundle_of_run(run, None, tmp_path / "small", precision="int8")
    assert small.manifest["encoder"]["precision"] == "int8" and small.request.encoder != made.request.encoder
    assert small.size < made.size
    a_run(shared, tmp_path / "other", study(shared), encoder={"sha256": "ab" * 32})
    with pytest.raises(ValueError, match="encoder cannot be made again"):
        device.bundle_of_run(tmp_path / "other", None, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("cache")
def test_users_who_teach_by_one_vector_and_ask_by_answers(shared: Path, tmp_path: Path) -> None:
    """Before a run the question is of the vector, after it of the model that the run was left with. A device of those
    who are there before it answers both."""
    arm = {
        "name": "private",
        "vector": {"mechanism": "privunit", "epsilon": 6.0, "dim": 4},
        "answer": {"mechanism": "randomized-response", "epsilon": 4.0},
    }
    policy = {"vector": 6.0, "answer": 4.0}
    taught = study(shared, training={"protocol": "statistics"}, arm=[arm], policy=policy, shuffle={"enabled": False})
    run = a_run(shared, tmp_path / "run", taught)
    first = open_bundle(run / "first")
    assert first.request.channels == ("statistic",) and first.policy.mechanisms == ("privunit", "randomized-response")
    made = device.bundle_of_run(run, None, tmp_path / "b")
    assert made.request.channels == ("answer",) and made.request.named("answer").head[0].shape == (4, 2)
    assert {"head_w.npy", "head_b.npy"} <= made.manifest["files"].keys()
    made.policy.check(replace(made.request, split="test", stage="test"))
    asks = made.policy
    assert (asks.answer, asks.total, asks.releases, asks.mechanisms) == (4.0, 4.0, 1, ("randomized-response",))
    assert first.policy.total == pytest.approx(10.0) and first.policy.releases == 2
    allowing = first.policy.listing(made.request)
    assert allowing.lists(first.request) and not first.policy.lists(made.request)
    del arm["answer"]
    alone = study(shared, training={"protocol": "statistics"}, arm=[arm], policy=policy, shuffle={"enabled": False})
    unasked = a_run(shared, tmp_path / "unasked", alone)
    with pytest.raises(ValueError, match=r"nobody asks the model of private[^\n]+$"):
        device.bundle_of_run(unasked, None, tmp_path / "none")


TEXT_ARM = {"name": "words", "text": {"mechanism": "santext", "epsilon": 1.0, "tokens": 8}}
LABEL = {"policy": {"text": 1000.0, "accept-unprotected": ["label: a test"]}}


@pytest.mark.usefixtures("cache")
def test_of_a_study_of_texts(shared: Path, tmp_path: Path) -> None:
    texts = study(shared, training={"protocol": "sanitized-text"}, arm=[TEXT_ARM], **LABEL)
    made = device.bundle_of_experiment(texts, None, tmp_path / "b")
    assert made.request.channels == ("text", "label") and made.encoder is None and made.masked_lm is None
    assert made.manifest["vocabulary"] == made.request.vocabulary.identity
    with pytest.raises(ValueError, match="which need none"):
        device.bundle_of_experiment(texts, None, tmp_path / "c", precision="int8")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--experiment", "labelled-demo"], "--arm: is missing; choose one of"),
        (["--experiment", "labelled-demo", "--arm", "zzz"], '--arm "zzz": there is none'),
        (["--experiment", "labelled-demo", "--arm", "no noise"], "is a reference"),
        (["--experiment", "labelled-demo", "--run", "x"], "give either --run RUN_DIR or --experiment"),
        (["--run", "nowhere"], "holds no finished run"),
        (["--run", "nowhere", "--seal-to", "server/seal.key"], "a private key by its name; give the public one"),
        (["--run", "nowhere", "--set", "seed=1"], "a run is as it was"),
        (["--experiment", "sst2-paper", "--data", "x"], "trusted simulation"),
        (["--experiment", "labelled-demo", "--arm", "purkayastha-eps-10", "--precision", "int2"], "encoder.precision"),
    ],
)
def test_bad_input_ends_in_one_line(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["device", "bundle", "--out", "out", *options]) == 2
    said = capsys.readouterr()
    complaint = said.err.splitlines()[-1]
    assert line in complaint and complaint.startswith("sottovoce: ") and said.out == ""
    assert os.listdir(tmp_path) == []


# -- the policy of a device that was made for an arm

#: A study that compares: its users' policy lets labels go in clear, and no total is set.
COMPARING: dict[str, Any] = {
    "policy": {"embedding": 32.0, "accept-unprotected": ["label: one arm shows them", "length: no arm of this study"]},
    "arm": [
        {
            "name": "noisy label",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        },
        {"name": "small", "embedding": {"mechanism": "purkayastha", "epsilon": 0.5, "dim": 4}},
    ],
}


def of_arm(shared: Path, out: Path, called: str, **changes: object) -> tuple[Request, Policy]:
    bundle = device.bundle_of_experiment(study(shared, **COMPARING | changes), called, out)
    return bundle.request, bundle.policy


def refusal(policy: Policy, request: Request) -> str | None:
    try:
        policy.check(request)
    except Refused as error:
        return error.reason
    return None


@pytest.mark.usefixtures("cache")
def test_a_device_of_an_arm_is_held_to_it(shared: Path, tmp_path: Path) -> None:
    """What the study shows in another arm, at no charge, and what it spends there, are not this arm's."""
    request, policy = of_arm(shared, tmp_path / "a", "noisy label")
    assert refusal(policy, request) is None and not policy.accept_unprotected
    for epsilon, said in ((2.0, None), (2.1, "channel"), (1000.0, "channel")):
        label = {"mechanism": "randomized-response", "epsilon": epsilon}
        assert refusal(policy, changed(request, label=label)) == said
    request, policy = of_arm(shared, tmp_path / "b", "small")
    assert policy.accept_unprotected == ("label: one arm shows them",)
    for epsilon, said in ((0.5, None), (0.51, "channel"), (10.18, "channel")):
        embedding = {"mechanism": "purkayastha", "epsilon": epsilon}
        assert refusal(policy, changed(request, embedding=embedding)) == said


@pytest.mark.usefixtures("cache")
def test_the_total_is_of_what_the_arm_asks_and_of_nothing_more(shared: Path, tmp_path: Path) -> None:
    """A user's record and one question, each once: whatever is asked beside it, or again under another name, finds
    nothing left."""
    request, policy = of_arm(shared, tmp_path / "a", "noisy label")
    worst = policy.cost(request.named("embedding").mechanism.guarantee).epsilon
    assert policy.total == pytest.approx(2 * worst + 2.0) and math.isfinite(policy.total) and policy.releases == 3
    node = tmp_path / "node"
    write_node(node, encoder=tmp_path / "a" / "encoder", policy=replace(policy, minimum_users=0, questions=None))
    one, none = np.array([1]), np.array([0])
    write_shard(node, "train", one, none, SENTENCES[:1], none)
    write_shard(node, "test", one, one, SENTENCES[1:2], None)
    device_ = load_node(node)
    question = changed(request, split="test", stage="test", label=None)
    with device_.ledger("") as ledger:
        client = Sanitizer(device_.policy(""), ledger, device_.streams)
        assert len(client.answer(request, device_.shard("train"))) == 1
        with pytest.raises(Refused, match="what is left of the policy"):
            client.answer(replace(request, stage="again"), device_.shard("train"))
        assert len(client.answer(question, device_.shard("test"))) == 1
        assert len(client.answer(question, device_.shard("test"))) == 1  # the same again, at no cost
        with pytest.raises(Refused):
            client.answer(replace(question, stage="again"), device_.shard("test"))


@pytest.mark.usefixtures("cache")
def test_what_is_known_when_a_bundle_is_made_is_listed_and_nothing_else(shared: Path, tmp_path: Path) -> None:
    """Before training: what training users are asked, under maps of public data. The model's question is listed where
    nobody is asked before it, where it is a text, and in a bundle of the trained model."""
    request, policy = of_arm(shared, tmp_path / "a", "noisy label")
    assert set(policy.questions or ()) == {request.digest("embedding"), request.digest("label")}
    policy.check(replace(request, stage="any"))
    for other in (changed(request, split="test", label=None), changed(request, m1=-request.projection.m1)):
        assert refusal(policy, other) == "question"
    embedding = {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4}
    alone = {"name": "alone", "protocol": "public-only", "embedding": embedding}
    request, policy = of_arm(shared, tmp_path / "b", "alone", arm=[alone])
    policy.check(replace(request, split="test", stage="test", minimum_users=10))
    assert refusal(policy, replace(request, split="train")) == "question"


@pytest.mark.usefixtures("cache")
def test_the_total_pays_for_the_most_records_of_a_user_of_the_study(shared: Path, tmp_path: Path) -> None:
    """Or for as many as somebody says."""
    dealt = {"population": {"users": 20, "assignment": "dirichlet", "alpha": 1.0}}
    experiment: Experiment = study(shared, **COMPARING | dealt)
    few = device.bundle_of_experiment(experiment, "noisy label", tmp_path / "b", records=3).policy
    one = of_arm(shared, tmp_path / "c", "noisy label")[1]
    assert few.total == pytest.approx(3 * one.total) and few.releases == 3 * one.releases
    held = prepare(experiment).held
    most = max(held.holders.most, held.test_holders.most)
    assert most > 3 and of_arm(shared, tmp_path / "a", "noisy label", **dealt)[1].releases == most * one.releases
    limited = study(shared, **COMPARING | {"policy": COMPARING["policy"] | {"total": 70.0}})
    assert device.bundle_of_experiment(limited, "noisy label", tmp_path / "d", records=3).policy.total == 70.0


@pytest.mark.usefixtures("cache")
def test_a_vector_is_of_a_user_however_many_records_they_have(shared: Path, tmp_path: Path) -> None:
    arm = {"name": "vector", "vector": {"mechanism": "privunit", "epsilon": 6.0, "dim": 4}}
    taught = {"training": {"protocol": "statistics"}, "arm": [arm], "policy": {"vector": 9.0}}
    experiment = study(shared, **taught)
    policy = device.bundle_of_experiment(experiment, None, tmp_path / "a", records=5).policy
    assert policy.statistic == policy.total == pytest.approx(6.0) and policy.releases == 1
    assert (policy.embedding, policy.label, policy.text, policy.answer) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.usefixtures("cache")
def test_what_texts_show_is_exempted_where_the_arm_shows_it(shared: Path, tmp_path: Path) -> None:
    """Of two exemptions the text needs one, and the label, which is sent in clear, the other."""
    names = ["length: they are short", "label: shown", "tag: not by this mechanism"]
    arm = {"name": "words", "text": {"mechanism": "santext", "epsilon": 1.0, "tokens": 8, "length": "kept"}}
    texts = study(
        shared, training={"protocol": "sanitized-text"}, arm=[arm], policy={"text": 1000.0, "accept-unprotected": names}
    )
    bundle = device.bundle_of_experiment(texts, None, tmp_path / "a")
    assert bundle.policy.accept_unprotected == tuple(names[:2])
    bundle.policy.check(bundle.request)
    bundle.policy.check(changed(bundle.request, split="test", label=None))
    worst = bundle.policy.cost(bundle.request.named("text").mechanism.guarantee).epsilon
    assert 0 < bundle.policy.text == worst < 1000.0 and bundle.policy.total == 2 * worst
