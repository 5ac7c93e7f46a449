"""A hub that does not answer is found out in seconds, and asked no more."""

from __future__ import annotations

import httpx
import pytest
from huggingface_hub import constants

from server import checkpoint, hub


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("Name or service not known"), httpx.ReadTimeout("x"), httpx.InvalidURL("x")]
)
def test_no_answer_is_no_hub(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def head(url: str, *, timeout: float) -> httpx.Response:
        assert url == constants.ENDPOINT and timeout <= 5
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(httpx, "head", head)
    assert not hub.reachable()


def test_any_answer_is_a_hub_unless_it_must_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "head", lambda *_, **__: httpx.Response(503))
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert hub.reachable() is not offline


def test_a_model_that_no_hub_gives_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "reachable", lambda: False)
    monkeypatch.setattr(httpx.Client, "send", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(ValueError, match="no model hub or cache gives it now; name a folder or minilm") as caught:
        checkpoint.load("nobody/no-such-model")
    assert "'nobody/no-such-model' is no folder here" in str(caught.value) and "\n" not in str(caught.value)
