"""A training server's question that no bundle lists waits for the publisher, who signs what the limits allow."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.device.bundle import Bundle
from client.device.signed_request import write_request
from mechanisms.messages.request import Request
from mechanisms.messages.signature import generate_keys
from simulations.errors import UserError
from sottovoce.cli import main as cli
from sottovoce.deployment.questions import ASKED, SIGNED, wait_for_signature
from tests.support.devices import POLICY, SIGNER, make_bundle
from tests.support.requests import changed


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("questions")
    first = make_bundle(place)
    listed = tuple(first.request.digest(channel) for channel in first.request.channels)
    return make_bundle(place, "pinned", policy=replace(POLICY, questions=listed))


def model_question(bundle: Bundle) -> Request:
    assert bundle.request.projection is not None
    m1 = np.ascontiguousarray(bundle.request.projection.m1[:, ::-1])
    return changed(bundle.request, split="test", stage="test", label=None, m1=m1)


def test_what_is_listed_is_asked_at_once(bundle: Bundle, tmp_path: Path) -> None:
    wait_for_signature(bundle.request, tmp_path / "q", bundle, timeout=0.0)
    assert not (tmp_path / "q").exists()


def test_what_is_not_listed_is_asked_when_the_publisher_has_signed_that_very_question(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    question = model_question(bundle)
    asked, signed = tmp_path / f"test{ASKED}", tmp_path / f"test{SIGNED}"
    with pytest.raises(UserError, match=r"nobody has signed it in 0 s; its publisher does with: [^\n]+$"):
        wait_for_signature(question, tmp_path, bundle, timeout=0.0)
    assert lines == [f"stage test asks what the bundle does not list; waiting for {signed}"]
    stranger, _ = generate_keys()
    for other, by in ((question, stranger), (question, None), (bundle.request, SIGNER)):
        write_request(signed, other, by)
        with pytest.raises(UserError, match="nobody has signed it"):
            wait_for_signature(question, tmp_path, bundle, timeout=0.0)
    signed.unlink()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (wait_for_signature(question, tmp_path, bundle, timeout=60.0), done.set()))
    thread.start()
    (tmp_path / "sign.key").write_text(SIGNER.hex())
    sign = ["deploy", "sign", str(asked), "--bundle", str(bundle.folder), "--sign-key", str(tmp_path / "sign.key")]
    assert cli.main([*sign, "--out", str(signed)]) == 0
    assert "the embedding of each record of the split test" in capsys.readouterr().out
    thread.join(60)
    assert done.is_set()


def test_a_publisher_signs_nothing_beyond_the_limits(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = changed(model_question(bundle), embedding={"mechanism": "purkayastha", "epsilon": 11.0})
    other = changed(model_question(bundle), encoder="0" * 64)  # an int8 bundle beside a public part at fp32
    (tmp_path / "sign.key").write_text(SIGNER.hex())
    sign = ["deploy", "sign", str(tmp_path / "a"), "--bundle", str(bundle.folder)]
    for request, words in ((dear, "would not answer it in any case"), (other, "asks by the encoder 0000000000000000…")):
        write_request(tmp_path / "a", request)
        assert cli.main([*sign, "--sign-key", str(tmp_path / "sign.key"), "--out", str(tmp_path / "b")]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "b").exists()
    with pytest.raises(UserError, match="make bundle and public part with one encoder"):
        wait_for_signature(other, tmp_path, bundle, timeout=60.0)
