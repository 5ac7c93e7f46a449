"""A causal or sequence-to-sequence language model as what DP-Prompt and DP-Paraphrase draw tokens from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.language_model import Scores
from server.checkpoint import first_line
from server.checkpoint_files import resolve
from server.clipping import clip_bounds
from server.hub import reachable

PLACE = "{text}"
#: The prompt of Utpala et al. 2023, and none, for a model that was trained to paraphrase what precedes.
PROMPT = f"Document : {PLACE}\nParaphrase of the document :"
PARAPHRASE = f"{PLACE}\n"
_BATCH = 32


class Generator:
    """Any checkpoint that generates text, with a prompt in which the private text stands at "{text}".

    Runs where torch is: a simulation, or a device that has it. Every token is one forward pass, in batches of 32 texts
    of one call, without a cache of the passes before. max_length: tokens of the prompt with its text, which is cut to
    fit. Raises ValueError, one line, where the checkpoint cannot be read or the prompt has no place for the text.
    """

    def __init__(self, checkpoint: str | Path, *, prompt: str = PROMPT, max_length: int = 512) -> None:
        if prompt.count(PLACE) != 1:
            raise ValueError(f"generation: the prompt must name {PLACE} once, got {prompt!r}")
        source = resolve(checkpoint)
        logging.disable_progress_bar()
        try:
            cached = not Path(source).is_absolute() and not reachable()
            config = AutoConfig.from_pretrained(source, local_files_only=cached)
            kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            self._tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
            model = kind.from_pretrained(source, use_safetensors=True, local_files_only=cached)
        except Exception as error:  # of many kinds: OSError, ValueError, JSON, safetensors, HTTP
            raise ValueError(f"generation: {checkpoint} cannot be read: {first_line(error)}") from error
        self._model: Any = model.float().eval()
        self._two_parts = bool(config.is_encoder_decoder)
        self._pieces = min(len(self._tokenizer), model.get_input_embeddings().num_embeddings)
        self._before, self._after = (self._plain(part) for part in prompt.split(PLACE))
        own = self._tokenizer("")["input_ids"]  # what the tokenizer puts around a text by itself
        if self._two_parts:
            self._after = [*self._after, *(i for i in own if i == self._tokenizer.eos_token_id)]
        else:
            self._before = [*(i for i in own if i == self._tokenizer.bos_token_id), *self._before]
        self._room = max_length - len(self._before) - len(self._after)
        if self._room < 1:
            raise ValueError(f"generation: max-length {max_length} leaves no room for a text in the prompt")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens by their own names (pieces of words, not words), and their input embeddings."""
        names = self._tokenizer.convert_ids_to_tokens(list(range(self._pieces)))
        vectors = self._model.get_input_embeddings().weight[: self._pieces].detach().numpy()
        return Vocabulary(tuple(name or f"<{i}>" for i, name in enumerate(names)), vectors.astype(np.float32))

    @property
    def end(self) -> str:
        """The token that ends a text; "" where the model has none."""
        return self._tokenizer.eos_token or ""

    def scores(self, texts: Sequence[str]) -> Scores:
        """What `DpPrompt.sample` asks: raw logits of the next token after the prompt with each private text, and after
        the tokens drawn so far."""
        prompts = [[*self._before, *self._plain(text)[: self._room], *self._after] for text in texts]

        def ask(
            positions: NDArray[np.int64], words: NDArray[np.int64], rows: NDArray[np.int64]
        ) -> NDArray[np.float64]:
            table = np.empty((len(rows), self._pieces))
            order = np.argsort([len(prompts[row]) for row in rows], kind="stable")
            for start in range(0, len(rows), _BATCH):
                batch = order[start : start + _BATCH]
                drawn = [[w for w in words[rows[i], : positions[i]].tolist() if w != NOTHING] for i in batch]
                table[batch] = self._next([prompts[rows[i]] for i in batch], drawn)
            return table

        return ask

    def bounds(self, public_texts: Sequence[str]) -> tuple[float, float]:
        """Where to clip (see `server.clipping`): by the logits at each token of *public* texts, each after a prompt
        with itself."""
        return clip_bounds("generation", self._moments(public_texts))

    def _moments(self, public_texts: Sequence[str]) -> Iterator[tuple[int, float, float]]:
        ask = self.scores(public_texts)
        written = [self._plain(text)[:32] for text in public_texts]
        for at in range(max((len(ids) for ids in written), default=0)):
            rows = np.array([i for i, ids in enumerate(written) if len(ids) > at], dtype=np.int64)
            words = np.full((len(written), at + 1), NOTHING, dtype=np.int64)
            for row in rows:
                words[row] = written[row][: at + 1]
            logits = ask(np.full(len(rows), at), words, rows)
            yield logits.size, float(logits.sum()), float((logits**2).sum())

    def decode(self, numbers: NDArray[Any]) -> list[str]:
        """Drawn tokens (n, L), NOTHING after the end, as texts."""
        rows = [[int(i) for i in row if i != NOTHING] for row in numbers]
        return [self._tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows]

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _next(self, prompts: list[list[int]], drawn: list[list[int]]) -> NDArray[np.float64]:
        if self._two_parts:
            ids, mask = self._padded(prompts)
            written, _ = self._padded([[self._model.config.decoder_start_token_id, *row] for row in drawn])
            given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": written}
            last = [len(row) for row in drawn]
        else:
            ids, mask = self._padded([[*a, *b] for a, b in zip(prompts, drawn, strict=True)])
            given = {"input_ids": ids, "attention_mask": mask}
            last = [len(a) + len(b) - 1 for a, b in zip(prompts, drawn, strict=True)]
        with torch.no_grad():  # padding stands behind what is asked for, where no position looks
            logits = self._model(**given).logits[torch.arange(len(last)), torch.tensor(last), : self._pieces]
        return logits.double().numpy()

    def _padded(self, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id or 0, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return ids, mask
