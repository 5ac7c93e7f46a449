"""Names of commands and options of the version before, read with a warning until the next version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Commands that have another name, by their old words. Longer names are looked up first.
COMMANDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("sanitize",): ("text", "sanitize"),
    ("paraphraser",): ("text", "paraphraser"),
    ("deniability",): ("text", "deniability"),
    ("similarity",): ("text", "similarity"),
    ("bench",): ("dev", "bench"),
    ("budget", "report"): ("report",),
    ("deploy", "register"): ("deploy", "keys", "register"),
}
#: Commands of `deploy keys`. `deploy keys FOLDER` was `deploy keys make FOLDER`.
KEYS = ("make", "register")
#: Options that have another name, by the command.
OPTIONS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    ("device", "install"): {"--node": "--device"},
}
#: Options that are parameters of the mechanism now, by the command.
_RELEASE = {"--epsilon": "epsilon", "--sigma": "sigma", "--dim": "dim"}
_TEXT = {"--tokens": "tokens", "--length": "length"}
PARAMETERS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    ("budget", "ladder"): _RELEASE,
    ("budget", "plan"): {"--dim": "dim"} | _TEXT,
    ("text", "sanitize"): {"--epsilon": "epsilon", "--delta": "delta", "--mode": "mode", "--set": ""} | _TEXT,
}


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line with the names of this version, and a warning for each old name in it.

    Args:
        arguments: Arguments of the command line.
    """
    words, warnings = list(arguments), []
    for length in (2, 1):
        old = tuple(words[:length])
        if old in COMMANDS:
            words[:length] = COMMANDS[old]
            warnings.append(_warning(" ".join(old), " ".join(COMMANDS[old])))
            break
    if words[:2] == ["deploy", "keys"] and len(words) > 2 and words[2] not in KEYS and not words[2].startswith("-"):
        words.insert(2, "make")
        warnings.append(_warning("deploy keys FOLDER", "deploy keys make FOLDER"))
    for command, names in OPTIONS.items():
        if tuple(words[: len(command)]) == command:
            for i, word in enumerate(words):
                name, equals, value = word.partition("=")
                if name in names:
                    words[i] = names[name] + equals + value
                    warnings.append(_warning(name, names[name]))
    command = tuple(words[:2])
    if command in PARAMETERS:
        words, more = _with_parameters(words, PARAMETERS[command])
        warnings += more
    return words, warnings


def _warning(old: str, new: str) -> str:
    return f"{old} is {new} now; the next version reads the new name alone"


def _with_parameters(words: Sequence[str], names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Move options into the value of --mechanism, if there is one; the mechanism follows them or precedes them."""
    left: list[str] = []
    moved: list[str] = []
    at: int | None = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--raw" and "--epsilon" in names and "--sigma" in names:
            moved.append("normalize=false")
        elif name in names and (equals or rest):
            value = value if equals else rest.pop(0)
            moved.append(f"{names[name]}={value}" if names[name] else value)
        elif name == "--mechanism" and (equals or rest):
            at = len(left)
            left.append(f"--mechanism={value if equals else rest.pop(0)}")
        else:
            left.append(word)
    if not moved:
        return list(words), []
    if at is None:
        if words[:2] != ["budget", "plan"]:
            return list(words), []
        at = len(left)
        left.append("--mechanism=purkayastha")
    named = left[at].partition("=")[2]
    text = named + ("," if "=" in named else ":") + ",".join(moved)
    left[at] = f"--mechanism={text}"
    return left, [f"parameters stand behind the mechanism now: --mechanism {text}; the next version reads these alone"]
