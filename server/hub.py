"""Check of whether a model or data hub answers. Its client libraries retry for half a minute or more."""

from __future__ import annotations

import httpx
from huggingface_hub import constants

SECONDS = 4.0


def reachable() -> bool:
    """Return True if the hub of the client libraries answers within a few seconds.

    It is False in their offline mode. Proxies of the environment are used, as the libraries use them.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True
