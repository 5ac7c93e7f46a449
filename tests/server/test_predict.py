"""A deployed model answers releases as the maps predict them, over HTTPS, and anything else in one constant text."""

from __future__ import annotations

import json
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from client.node import load_node
from client.sanitizer import Sanitizer
from client.shard import write_shard
from mechanisms.mechanism import parameters
from mechanisms.messages.reply import Reply
from mechanisms.messages.sealed import seal
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_to_record,
    request_from_record,
    sealed_to_record,
)
from server.predict import MOST, Predictor
from simulations.artifacts.model_folder import read_about
from simulations.experiment import to_toml
from sottovoce.deployment.predict import REFUSED, predictor, serving
from tests.sottovoce.deployment.devices.test_bundle import a_run, study
from tests.support.asking import CLASSES, World, make_world
from tests.support.devices import SENTENCES
from tests.support.fuzz import Fuzzer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("predict"))


def released(world: World, folder: Path) -> Reply:
    """What a device releases of all sentences, as it leaves: without its user and records."""
    node, n = world.device(folder), len(SENTENCES)
    numbers = np.arange(n, dtype=np.int64)
    write_shard(node, "test", np.zeros(n, np.int64), numbers, SENTENCES, None)
    device = load_node(node)
    with device.ledger("") as ledger:
        return Sanitizer(device.policy(""), ledger, device.streams).answer(world.request(), device.shard("test"))


def plain(reply: Reply) -> bytes:
    return record_to_bytes(reply_to_record(reply))


def test_the_prediction_is_that_of_the_maps(world: World, tmp_path: Path) -> None:
    reply, model = released(world, tmp_path / "node"), world.model()
    answer = model.answer(plain(reply))
    grid = model.request.named("embedding").mechanism.grid
    z = grid.decode(reply.releases[0].payload["z"])
    shares = np.array(answer["probabilities"])
    assert answer["classes"] == list(CLASSES) and shares.shape == (len(SENTENCES), len(CLASSES))
    assert (shares.argmax(axis=1) == model.maps.predict(z)).all()
    logits = model.maps.logits(z)
    np.testing.assert_allclose(np.log(shares[:, 1] / shares[:, 0]), logits[:, 1] - logits[:, 0], rtol=1e-9)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_sealed_releases_open_with_the_key_and_no_others_are_taken(world: World, tmp_path: Path) -> None:
    reply, request = released(world, tmp_path / "node"), world.request()
    sealed = record_to_bytes(sealed_to_record(seal(reply, request, world.public)))
    with_key, without = world.model(sealed=True), world.model()
    assert with_key.answer(sealed) == without.answer(plain(reply))
    changed = seal(reply, request, world.public)
    changed = replace(changed, rows=np.concatenate([changed.rows[:-1], changed.rows[-1:] ^ 1]))
    spoilt = record_to_bytes(sealed_to_record(changed))
    for model, body in ((with_key, plain(reply)), (without, sealed), (with_key, spoilt)):
        with pytest.raises(ValueError, match="not an answer to the question"):
            model.answer(body)


def test_what_was_not_asked_for_is_refused(world: World, tmp_path: Path) -> None:
    reply, model = released(world, tmp_path / "node"), world.model()
    nobody = np.zeros(0, np.int64)
    others = [
        replace(reply, users=reply.users + 1),
        replace(reply, records=reply.records - 1),
        reply.take(np.zeros(len(reply), np.bool_)),
        Reply(nobody, nobody, ()),
        replace(reply, releases=(replace(reply.releases[0], stage="train"),)),
        replace(reply, releases=(replace(reply.releases[0], digest="ab" * 32),)),
        replace(reply, releases=(replace(reply.releases[0], payload={"z": reply.releases[0].payload["z"] * 0}),)),
    ]
    for other in others:
        with pytest.raises(ValueError, match="not an answer to the question"):
            model.answer(plain(other))
    z = np.repeat(reply.releases[0].payload["z"], MOST, axis=0)
    many = Reply(np.zeros(len(z), np.int64), np.arange(len(z)), (replace(reply.releases[0], payload={"z": z}),))
    assert model.probabilities(many.take(np.arange(len(z)) < MOST)).shape == (MOST, len(CLASSES))
    with pytest.raises(ValueError, match="not the releases"):
        model.probabilities(many)


def test_a_question_of_other_maps_is_a_mistake(world: World) -> None:
    maps = world.maps()
    with pytest.raises(ValueError, match="model's own maps"):
        Predictor(world.request(mean=maps.mean + 1), maps, CLASSES)
    with pytest.raises(ValueError, match="for an embedding, with the classes"):
        Predictor(world.request(), maps, CLASSES[:2])


# -- the service ------------------------------------------------------------------------------------------------------


def test_over_https_hostile_messages_get_one_constant_text(world: World, tmp_path: Path) -> None:
    body = plain(released(world, tmp_path / "node"))
    with serving(world.model(), **world.pair) as address, httpx.Client(verify=_trust(world)) as client:
        question = request_from_record(record_from_bytes(client.get(f"{address}/v1/question").content))
        assert question.digest("embedding") == world.request().digest("embedding") and question.minimum_users == 0
        assert client.get(f"{address}/v1/ask").status_code == 405 and client.get(f"{address}/").status_code == 404
        for hostile in (b"", b"\x00", b"{}", b"\xff" * 1000, body[:-1]):
            answer = client.post(f"{address}/v1/ask", content=hostile)
            assert (answer.status_code, answer.json()) == (400, REFUSED)
        answer = client.post(f"{address}/v1/ask", content=body)
        assert answer.status_code == 200 and answer.json() == world.model().answer(body)
        assert "server" not in answer.headers


@pytest.mark.parametrize("sealed", [False, True])
def test_hostile_messages_in_clear_and_sealed(world: World, tmp_path: Path, sealed: bool) -> None:
    reply, model = released(world, tmp_path / "node"), world.model(sealed=sealed)
    record = sealed_to_record(seal(reply, model.request, world.public)) if sealed else reply_to_record(reply)
    refused = 0
    for message in Fuzzer([record], seed=7).messages(300):
        with suppress(ValueError):  # some cannot be written at all
            body = record_to_bytes(message)
            try:
                assert np.isfinite(model.answer(body)["probabilities"]).all()
            except ValueError as error:
                assert str(error) == "predict: the message is not an answer to the question"
                refused += 1
    assert refused > 100


def test_a_message_is_read_up_to_a_limit(world: World) -> None:
    model = world.model()
    assert model.largest < 2**18

    def endless():
        for _ in range(10_000):
            sent.append(1)
            yield bytes(2**16)

    sent: list[int] = []
    with serving(model, **world.pair) as address, httpx.Client(verify=_trust(world)) as client:
        with suppress(httpx.HTTPError):  # it hangs up in the middle
            assert client.post(f"{address}/v1/ask", content=endless()).status_code == 400
        assert len(sent) < 1000
        assert client.get(f"{address}/v1/question").status_code == 200


def test_bad_files_and_ports_are_said_in_one_line(world: World, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no certificate")
    for pair in ({"certificate": tmp_path / "x", "key": tmp_path / "x"}, world.pair | {"key": tmp_path / "none"}):
        with pytest.raises(ValueError, match="are no PEM certificate and its key"), serving(world.model(), **pair):
            pass
    with serving(world.model(), **world.pair) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ValueError, match="cannot be listened at"), serving(world.model(), **world.pair, port=port):
            pass


def _trust(world: World) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(world.ca))


# -- of a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(world: World) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(world.place / "cache"))
        folder = a_run(world.place, world.place / "run", study(world.place))
    results = json.loads((folder / "results.json").read_text())
    about = {"classes": ["negative", "positive"], "encoder": results["encoder"]["sha256"], "encoder_folder": "gone"}
    (folder / "models" / "private" / "model.json").write_text(json.dumps(about))
    return folder


def test_the_model_of_a_run_asks_for_one_embedding(run: Path) -> None:
    for place, arm in ((run, None), (run, "private"), (run / "models" / "private", None)):
        model = predictor(place, arm)
        asked = model.request
        assert (asked.arm, asked.stage, asked.split, asked.minimum_users) == ("", "ask", "test", 0)
        assert asked.channels == ("embedding",) and asked.part == (0, 1) and model.private_keys == ()
        question = asked.named("embedding")
        assert question.spec == parameters(question.mechanism) and question.spec["epsilon"] == 10.0
        assert asked.encoder == json.loads((run / "results.json").read_text())["encoder"]["sha256"]
        assert model.classes == ("negative", "positive")


def test_a_model_that_devices_run_by_themselves_is_not_served(world: World, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a reference"):
        predictor(run, "clear")
    arm = {
        "name": "private",
        "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4},
        "label": {"mechanism": "randomized-response", "epsilon": 3.0},
        "answer": {"mechanism": "randomized-response", "epsilon": 4.0},
    }
    asked = study(world.place, arm=[arm], policy={"embedding": 32.0, "label": 3.0, "answer": 4.0})
    (tmp_path / "experiment.toml").write_text(to_toml(asked))
    with pytest.raises(ValueError, match=r"^[^\n]*users of private run all of it on their devices[^\n]*$"):
        predictor(tmp_path)


def test_a_model_that_does_not_say_what_it_is_is_one_line(tmp_path: Path) -> None:
    for text in (None, "{}", "[]", "x"):
        if text is not None:
            (tmp_path / "model.json").write_text(text)
        with pytest.raises(ValueError, match=r"^[^\n]*does not say what the model is; run the study again$"):
            read_about(tmp_path)
