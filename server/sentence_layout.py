"""Layout of a sentence encoder as sentence-transformers writes it: pooling, prefix and length, from its JSON files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.checkpoint_files import MINILM, file_of, resolve

#: Poolings of token states into an embedding. The normalized ones have unit length.
POOLINGS = ("mean", "cls", "last", "mean-normalized", "cls-normalized", "last-normalized")
_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
#: Keys that older versions write in place of "pooling_mode".
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"


@dataclass(frozen=True)
class SentenceLayout:
    """Form in which a checkpoint was trained to embed a sentence.

    Attributes:
        pooling: One of `POOLINGS`.
        max_length: Tokens of a text, at most; None if its files name no number.
        prefix: Text that is put before every sentence.
        lowercase: Whether texts are read in lower case, whatever the tokenizer does.
    """

    pooling: str = "mean"
    max_length: int | None = None
    prefix: str = ""
    lowercase: bool = False


def read(checkpoint: str | Path) -> SentenceLayout:
    """Return the layout that a checkpoint's files state, as sentence-transformers reads them.

    A checkpoint without modules.json is pooled by the mean, without normalization. So is "minilm", although its files
    normalize: its identity, which requests name, is that of the mean.

    Args:
        checkpoint: "minilm", a named checkpoint, a local folder, or the name of a model on a hub.

    Raises:
        ValueError: The files cannot be read, or name a part that is not supported. The message is one line.
    """
    if checkpoint == MINILM:
        return SentenceLayout()
    source = resolve(checkpoint)
    modules = _json(source, "modules.json", list)
    prompts = _json(source, "config_sentence_transformers.json", dict) or {}
    length = _json(source, "sentence_bert_config.json", dict) or {}
    try:
        prefix = _prefix(prompts)
        pooling = "mean" if modules is None else _pooling(source, modules, prefix)
        longest = length.get("max_seq_length")
        if longest is not None and (not isinstance(longest, int) or longest < 3):
            raise ValueError(f"its sentence_bert_config.json says max_seq_length = {longest!r}")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"encoder: {source}: its sentence-transformers files cannot be read") from None
    except ValueError as error:
        raise ValueError(f"encoder: {source}: {error}") from None
    return SentenceLayout(pooling, longest, prefix, length.get("do_lower_case") is True)


def _pooling(source: str, modules: list[dict[str, Any]], prefix: str) -> str:
    """Return the pooling that a list of modules performs. Raises ValueError if Sottovoce has no such modules."""
    kinds = [
        str(module["type"]).rpartition(".")[2] if str(module["type"]).startswith("sentence_transformers.") else ""
        for module in modules
    ]
    for kind, module in zip(kinds, modules, strict=True):
        if kind not in (_TRANSFORMER, _POOLING, _NORMALIZE):
            raise ValueError(f"its modules.json names {module['type']}; Transformer, Pooling and Normalize can be read")
    if kinds[:2] != [_TRANSFORMER, _POOLING] or kinds[2:] not in ([], [_NORMALIZE]):
        raise ValueError(f"its modules.json names {', '.join(kinds)}; Transformer, Pooling, Normalize can be read")
    if modules[0]["path"]:
        raise ValueError(f"its weights are in {modules[0]['path']}; only those beside modules.json can be read")
    about = _json(source, f"{modules[1]['path']}/config.json", dict)
    if about is None:
        raise ValueError(f"{modules[1]['path']}/config.json is missing")
    modes = about.get("pooling_mode", [mode for key, mode in _FLAGS.items() if about.get(key)] or "mean")
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in _NAMES:
        raise ValueError(f"it pools by {', '.join(map(str, modes))}; one of mean, cls and lasttoken can be read")
    if prefix and about.get("include_prompt", True) is not True:
        raise ValueError("it leaves the prefix out of the pooling, which cannot be done here")
    return _NAMES[modes[0]] + ("-normalized" if kinds[2:] else "")


def _prefix(about: dict[str, Any]) -> str:
    """Return the prompt that sentence-transformers uses where none is named."""
    name = about.get("default_prompt_name")
    if name is None:
        return ""
    prefix = about["prompts"][name]
    if not isinstance(prefix, str):
        raise TypeError
    return prefix


def _json(source: str, name: str, kind: Callable[[Any], Any]) -> Any:
    """Return the content of one of the checkpoint's JSON files; None if there is none."""
    file = file_of(source, name)
    if file is None:
        return None
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        about = None
    if not isinstance(about, kind):  # type: ignore[arg-type]
        raise ValueError(f"encoder: {source}: its {name} cannot be read")
    return about
