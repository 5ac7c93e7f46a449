"""Generating language model that clients can run, made once from a checkpoint and public texts, then cached."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from client.models import generator, language_models
from mechanisms.pieces import Text
from simulations.artifacts.cache import folder_once
from simulations.artifacts.encoder import LIBRARIES
from simulations.artifacts.provenance import made_by
from simulations.errors import UserError

log = logging.getLogger(__name__)


#: Texts of the built-in corpus that a language model learns from by default.
_PUBLIC = 3000


def public_sentences() -> Sequence[Text]:
    """Return the default texts for a language model, of the built-in corpus."""
    from simulations.corpora.builtin import builtin

    return builtin(task="sentiment", public=_PUBLIC, train=1, test=1, seed=0).public.texts


def generator_folder(
    checkpoint: str | Path,
    public_texts: Sequence[Text],
    *,
    kind: str,
    prompt: str | None = None,
    seed: int,
) -> Path:
    """Return the folder of an exported generating model (`client.models.generator`), clip bounds from the public texts.

    A folder that is one already stays as it is.

    Args:
        checkpoint: Checkpoint, or the folder of an exported model.
        public_texts: Public texts.
        kind: "generator" or "paraphraser". It determines the default prompt: nothing, or the request of a paraphrase.
        prompt: Prompt around the text, or None.
        seed: Seed of the export.

    Raises:
        UserError: A prompt is given beside a folder that has its own.
        ValueError: The checkpoint cannot be read.
    """
    folder = Path(checkpoint).expanduser()
    if (folder / generator.FILES[-1]).is_file():
        if prompt is not None:
            raise UserError(f"{checkpoint}: was exported with a prompt of its own; name its checkpoint, or no prompt")
        return folder
    from server.accelerator import device
    from server.checkpoint_files import fingerprint
    from server.generation import PARAPHRASE, PROMPT, export_generator

    texts = [side for text in public_texts for side in ((text,) if isinstance(text, str) else text)]
    if prompt is None:
        prompt = PROMPT if kind == language_models.GENERATOR else PARAPHRASE
    about = [fingerprint(checkpoint), texts, prompt, seed, made_by(("server.generation",), LIBRARIES), device().type]

    def make(place: Path) -> None:
        log.info(f"exporting the generating model {checkpoint}")
        export_generator(checkpoint, place, public_texts=texts, seed=seed, prompt=prompt)

    return folder_once("generators", about, make)


def together(folders: Mapping[str, Path]) -> Path:
    """Return the folder of the language models of a run, by kind: the only one, or one that holds all of them."""
    if len(folders) == 1:
        return next(iter(folders.values()))
    names = {kind: language_models.identity(folder, kind) for kind, folder in folders.items()}

    def make(place: Path) -> None:
        for kind, folder in folders.items():
            shutil.copytree(language_models.part(folder, kind), place / kind)

    return folder_once("language-models", sorted(names.items()), make)
