"""Refusals: constant answers of a client in place of a release, with their meaning."""

from __future__ import annotations

#: All answers of a client in place of a release: a code and a text, both constant.
REFUSALS = {
    "malformed": (101, "the request is malformed"),
    "arm": (102, "the request names an arm that this client does not have"),
    "encoder": (103, "the request names an encoder that this client does not have"),
    "mechanism": (104, "the policy does not allow the mechanism"),
    "unprotected": (105, "the policy does not accept an unprotected channel"),
    "channel": (106, "the policy does not allow so large an epsilon on the channel"),
    "total": (107, "the policy does not allow so large a total epsilon or delta"),
    "minimum-users": (108, "the policy asks for a larger minimum batch"),
    "no-labels": (109, "this client has no labels"),
    "failed": (110, "the request could not be answered"),
    "vocabulary": (111, "the request names a vocabulary that this client does not have"),
    "masked-lm": (112, "the request names a language model that this client does not have"),
    "storage": (113, "this client cannot write its ledger"),
    "code": (114, "this client runs its own code, and the run ships another"),
    "releases": (115, "the policy does not allow so many releases"),
    "unsealed": (116, "the policy asks for a larger batch than one, and this client has no key to seal to"),
    "question": (117, "the policy does not list this question, and the user has not been asked yet"),
    "unaccounted": (118, "nothing accounts for what the answer would say"),
    "spent": (119, "what is left of the policy's budget does not cover the request"),
}

#: Flower's own codes, for nodes that could not answer at all.
_FLOWER = (
    (0, "a worker died, or no reason was given"),
    (1, "the client app could not be loaded"),
    (2, "the client app raised"),
    (5, "the node is not there"),
    (8, "the client app crashed"),
)
_TEXTS = {f"code {code}": text for code, text in (*_FLOWER, *REFUSALS.values())}


def describe_error(error: str) -> str:
    """Return the meaning of a node's error: "code N" in the project's words, never in those of the message.

    Another error stays as it is.
    """
    return _TEXTS.get(error, error)
