"""Module of encoder, linear maps around a sanitized bottleneck, and task head."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.pieces import Text
from server.accelerator import beside, lent
from server.checkpoint import load
from server.checkpoint_files import POOLINGS
from server.maps import Maps
from server.text_batches import collate, tokenize

FILE = "pipeline.json"


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return sentence embeddings (n, m) of token states, as the client pools.

    Args:
        hidden: Token states (n, length, m).
        mask: Attention mask (n, length).
        pooling: One of `POOLINGS`.
    """
    kind, _, normalized = pooling.partition("-")
    if kind == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weights).sum(1) / weights.sum(1).clamp_min(1.0)
    else:
        places = torch.arange(hidden.shape[1], device=hidden.device) * mask
        at = mask.argmax(1) if kind == "cls" else places.argmax(1)
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), at]
    return torch.nn.functional.normalize(pooled, dim=1) if normalized else pooled


class Pipeline(torch.nn.Module):
    """Text -> encoder -> mean, M1, normalize -> (noise) -> M2 -> head.

    Args:
        encoder: Encoder of `checkpoint.load`.
        tokenizer: Its tokenizer.
        maps: Starting values; any number of classes.
        pooling: One of `POOLINGS`.
        max_length: Tokens of a text, at most.

    Raises:
        ValueError: The pooling is unknown, or the maps are for another width.

    Source: Du et al. 2023, Figure 1.
    """

    def __init__(
        self, encoder: Any, tokenizer: Any, maps: Maps, *, pooling: str = "mean", max_length: int = 128
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"encoder: pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
        if encoder.config.hidden_size != len(maps.mean):
            width = encoder.config.hidden_size
            raise ValueError(f"model: the encoder's width is {width}, the maps are for {len(maps.mean)}")
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.max_length = max_length
        for name in ("mean", "m1", "m2", "head_w", "head_b"):
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(getattr(maps, name).copy())))

    def maps(self) -> Maps:
        """Return the current maps and head."""
        names = ("mean", "m1", "m2", "head_w", "head_b")
        return Maps(**{name: getattr(self, name).detach().cpu().numpy().copy() for name in names})

    def forward(
        self, inputs: Mapping[str, torch.Tensor], noise: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return logits (n, K) of tokenized inputs.

        Args:
            inputs: Tokenized inputs.
            noise: Function on the unit rows (n, m') between M1 and M2; None for no noise.
        """
        z = torch.nn.functional.normalize((self._embeddings(inputs) - self.mean) @ self.m1, dim=1)
        released = z if noise is None else noise(z)
        return (released @ self.m2) @ self.head_w + self.head_b

    def embed(self, texts: Sequence[Text], *, batch_size: int = 32) -> NDArray[np.float32]:
        """Return sentence embeddings (n, m) of texts or pairs, without noise or gradient, in evaluation mode."""
        rows = tokenize(self.tokenizer, texts, self.max_length)
        order = np.argsort([len(r["input_ids"]) for r in rows], kind="stable")
        out = np.empty((len(rows), len(self.mean)), np.float32)
        training = self.training
        self.eval()
        with lent(self), torch.no_grad():
            for start in range(0, len(order), batch_size):
                at = order[start : start + batch_size]
                out[at] = self._embeddings(collate(self.tokenizer, [rows[i] for i in at])).cpu().numpy()
        self.train(training)
        return out

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder, tokenizer, maps and pipeline.json.

        The encoder and the tokenizer are a config and safetensors. `Maps.load(folder)` reads maps.safetensors alone.
        """
        folder = Path(folder)
        self.maps().save(folder)
        self.encoder.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        how = {"pooling": self.pooling, "max_length": self.max_length}
        (folder / FILE).write_text(json.dumps(how) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Pipeline:
        """Read a folder that `save_pretrained` wrote, in evaluation mode.

        Raises:
            ValueError: The folder holds no saved pipeline. The message is one line.
        """
        folder = Path(folder)
        try:
            about = json.loads((folder / FILE).read_text())
            pooling, max_length = about["pooling"], int(about["max_length"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"model: {folder} holds no saved pipeline ({FILE} cannot be read)") from error
        encoder, tokenizer = load(folder)
        return cls(encoder, tokenizer, Maps.load(folder), pooling=pooling, max_length=max_length).eval()

    def _embeddings(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        inputs = beside(self, inputs)
        return pool(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"], self.pooling)
