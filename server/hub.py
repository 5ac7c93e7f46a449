"""Whether a model or data hub answers. Its own client libraries keep trying for half a minute or more."""

from __future__ import annotations

import httpx
from huggingface_hub import constants

SECONDS = 4.0


def reachable() -> bool:
    """Whether the hub that the libraries would ask answers anything at all, within a few seconds.

    False in their offline mode. Proxies of the environment are used, as the libraries use them.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True
