"""One key vouches for what a device is given: its policy, its models, the key that it seals to. And a device that shall
be hidden among others never answers in clear."""

from __future__ import annotations

import json
import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from client.app import answer, respond
from client.device.bundle import MANIFEST, SIGNATURE, Bundle, Keys, open_bundle
from client.device.serve import serve
from client.node import DEVICE_KEY, DEVICE_PUBLIC, load_node, write_node
from mechanisms.messages import signature
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.wire import request_to_record, sealed_from_record
from tests.support.answers import reason
from tests.support.clients import make_node, message, request
from tests.support.devices import POLICY, PUBLISHER, SHUFFLER, SIGNER, make_bundle, make_text_bundle

_, SEAL = generate_keys()
STRANGER, STRANGERS = signature.generate_keys()
HIDDEN = replace(POLICY, minimum_users=100)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installed")


@pytest.fixture(scope="module")
def made(place: Path) -> Bundle:
    return make_bundle(place, policy=HIDDEN, seal=SEAL)


def same(bundle: Bundle, **changes: object) -> dict[str, object]:
    return json.loads((bundle.folder / MANIFEST).read_text()) | changes


# -- signatures -------------------------------------------------------------------------------------------------------


def test_a_signature_is_of_its_data_its_purpose_and_its_key() -> None:
    """RFC 8032, 7.1, has the public key of a secret one; the rest is what a signature must refuse."""
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert signature.public_of(secret).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signed = signature.sign(SIGNER, "bundle", b"data")
    assert len(signed) == signature.SIGNATURE_BYTES and signature.verified(PUBLISHER, "bundle", b"data", signed)
    for public, purpose, data, by in (
        (PUBLISHER, "bundle", b"dat", signed),
        (PUBLISHER, "question", b"data", signed),
        (STRANGERS, "bundle", b"data", signed),
        (PUBLISHER, "bundle", b"data", signed[:-1]),
        (PUBLISHER, "bundle", b"data", bytes([signed[0] ^ 1]) + signed[1:]),
        (b"", "bundle", b"data", signed),
    ):
        assert not signature.verified(public, purpose, data, by)


def test_a_manifest_that_changed_is_not_signed(made: Bundle, tmp_path: Path) -> None:
    """Somebody on the way puts in a seal key of their own: every hash is right."""
    copy = Path(shutil.copytree(made.folder, tmp_path / "copy"))
    (copy / MANIFEST).write_text(json.dumps(same(made, seal="ab" * 32)))
    with pytest.raises(ValueError, match=r"manifest\.sig is not the signature of [^\n]+$"):
        open_bundle(copy)
    (copy / MANIFEST).write_bytes((made.folder / MANIFEST).read_bytes())
    for spoiled in ("", "zz", "ab" * 64, (made.folder / SIGNATURE).read_text()[:-3]):
        (copy / SIGNATURE).write_text(spoiled)
        with pytest.raises(ValueError, match=r"manifest\.sig is not the signature"):
            open_bundle(copy)
    (copy / SIGNATURE).unlink()
    with pytest.raises(ValueError, match=r"manifest\.sig is not the signature"):
        open_bundle(copy)
    (copy / MANIFEST).write_text(json.dumps(same(made, publisher=None)))
    nobodys = open_bundle(copy)  # which can be profiled
    with pytest.raises(ValueError, match="is signed by nobody, and this device trusts"):
        nobodys.install(tmp_path / "node", PUBLISHER)
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize("bad", [7, "", "AB" * 32, "ab" * 31, []])
def test_a_manifest_with_a_key_that_is_none(made: Bundle, tmp_path: Path, bad: object) -> None:
    for name in ("seal", "shuffler_seal", "model_seal", "publisher"):
        (tmp_path / MANIFEST).write_text(json.dumps(same(made, **{name: bad})))
        with pytest.raises(ValueError, match="is damaged"):
            open_bundle(tmp_path)


# -- the pinned key ---------------------------------------------------------------------------------------------------


def test_a_device_takes_bundles_of_the_key_that_it_has_pinned_and_of_no_other(
    place: Path, made: Bundle, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    made.install(node, PUBLISHER)
    first = load_node(node)
    assert (first.publisher, first.seal, first.policy("")) == (PUBLISHER, SEAL, HIDDEN)
    before = (node / "node.json").read_text()
    _, other_seal = generate_keys()
    foreign = make_bundle(place, "foreign", policy=HIDDEN, signer=STRANGER, seal=other_seal)
    for trusted in (None, STRANGERS, PUBLISHER):
        with pytest.raises(ValueError, match=r"trusts [0-9a-f]{16}…[^\n]*$"):
            foreign.install(node, trusted)
        assert (node / "node.json").read_text() == before
    next_one = make_bundle(place, "next", policy=replace(HIDDEN, label=1.0), seal=other_seal)
    with pytest.raises(ValueError, match="is there already"):
        next_one.install(node, STRANGERS)
    next_one.install(node)  # without being told again whom to trust
    after = load_node(node)
    assert (after.publisher, after.seal, after.policy("").label) == (PUBLISHER, other_seal, 1.0)


def test_nobody_is_trusted_unless_the_user_says_so(made: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the publisher's public key"):
        made.install(tmp_path / "new")
    with pytest.raises(ValueError, match=r"is signed by [0-9a-f]{16}…, and this device trusts [0-9a-f]{16}… alone"):
        made.install(tmp_path / "new", STRANGERS)
    assert not (tmp_path / "new").exists()
    write_node(tmp_path, policy=POLICY)  # of a person who wrote it by hand
    with pytest.raises(ValueError, match="is there already, of a device that trusts nobody"):
        made.install(tmp_path, PUBLISHER)
    for bad in ("", 7, "ab" * 31):
        path = tmp_path / "node.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"publisher": bad}))
        with pytest.raises(ValueError, match=r"publisher must be a public key, 64 hexadecimal digits$"):
            load_node(tmp_path)


# -- sealing fails closed ---------------------------------------------------------------------------------------------


def test_a_device_that_shall_be_hidden_never_answers_in_clear(tmp_path: Path) -> None:
    """No key: nothing is charged, and nothing leaves but a constant text. A key: sealed rows. Alone: in clear."""
    policy = replace(POLICY, minimum_users=50)
    folder = make_node(tmp_path / "node", seed=None, policy=policy)
    wanted = request_to_record(request(arm=""))
    assert reason(respond(message(wanted), folder)) == "unsealed" and not (folder / "ledger.sqlite").exists()
    write_node(folder, policy=policy, seal=SEAL)
    with pytest.raises(ValueError, match="seal and shuffler_seal go together"):
        load_node(folder)
    write_node(folder, policy=policy, seal=SEAL, shuffler_seal=SHUFFLER)
    assert len(sealed_from_record(answer(wanted, load_node(folder)))) == 8
    write_node(folder, policy=replace(policy, minimum_users=0))
    assert set(answer(wanted, load_node(folder))) > {"ids", "embedding.arrays"}


def test_a_device_without_a_key_is_not_served_and_not_made(place: Path, tmp_path: Path) -> None:
    folder = make_node(tmp_path / "node", seed=None, policy=HIDDEN)
    nowhere = {"root_certificates": tmp_path / "ca.pem", "key": tmp_path / "node.key"}
    with pytest.raises(ValueError, match=r"of 100 users, and it has no key to seal them to; install [^\n]+$"):
        serve(folder, superlink="127.0.0.1:1", stop=threading.Event(), **nowhere)
    keyless = make_bundle(place, "keyless", policy=HIDDEN)
    with pytest.raises(ValueError, match=r"only among those of 100 users, and holds no key [^\n]+$"):
        keyless.install(tmp_path / "new", PUBLISHER)
    endless = make_bundle(place, "endless", policy=replace(POLICY, total=math.inf))
    with pytest.raises(ValueError, match=r"its policy needs a finite total: [^\n]+$"):
        endless.install(tmp_path / "new", PUBLISHER)
    assert not (tmp_path / "new").exists()


def test_a_bundle_brings_its_key_and_the_one_who_made_it_gave_a_good_one(tmp_path: Path) -> None:
    sealed, clear = make_text_bundle(tmp_path, seal=SEAL), tmp_path / "clear"
    sealed.install(tmp_path / "node", PUBLISHER)
    node, files = load_node(tmp_path / "node"), [tmp_path / "node" / name for name in (DEVICE_KEY, DEVICE_PUBLIC)]
    assert (node.seal, node.shuffler_seal) == (SEAL, SHUFFLER) and not clear.exists()
    keys = [path.read_text().strip() for path in files]
    assert signature.public_of(node.device_key).hex() == keys[1] and files[0].stat().st_mode & 0o077 == 0
    sealed.install(tmp_path / "node")  # the device keeps the key that is enrolled
    assert [path.read_text().strip() for path in files] == keys
    (tmp_path / "other").mkdir()
    make_text_bundle(tmp_path / "other").install(clear, PUBLISHER)
    assert load_node(clear).seal is None
    (tmp_path / "bad").mkdir()
    with pytest.raises(ValueError, match="public key"):
        make_text_bundle(tmp_path / "bad", seal=b"short")


def test_the_model_has_a_key_of_its_own(place: Path, tmp_path: Path) -> None:
    """It is exposed: what was sealed to the training server it does not open, and the other way round."""
    model, other = generate_keys(), generate_keys()
    bundle = make_bundle(place, "two", seal=SEAL, model_seal=model[1])
    bundle.install(tmp_path / "node", PUBLISHER)
    node = load_node(tmp_path / "node")
    assert (node.seal, node.model_seal) == (SEAL, model[1])
    for same in ({"model_seal": SEAL, "shuffler_seal": SHUFFLER}, {"shuffler_seal": SEAL}):
        with pytest.raises(ValueError, match="training server, shuffler and model need a key each"):
            Keys(seal=SEAL, **same)
    for one in ({"seal": SEAL}, {"shuffler_seal": SHUFFLER}):
        with pytest.raises(ValueError, match=r"give the keys of the training server and of the shuffler, or neither"):
            Keys(**one)
    path = tmp_path / "node" / "node.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"model_seal": "00" * 32}))  # with which everybody shares a secret
    with pytest.raises(ValueError, match=r"model_seal must be a public key, 64 hexadecimal digits$"):
        load_node(tmp_path / "node")
    path.write_text(json.dumps(written | {"model_seal": other[1].hex()}))
    assert load_node(tmp_path / "node").model_seal == other[1]
    assert not (tmp_path / "bad" / "text").exists()
