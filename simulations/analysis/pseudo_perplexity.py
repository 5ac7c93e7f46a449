"""Pseudo-perplexity: likelihood of texts under a masked language model, by the words around each word.

Salazar et al. 2020, "Masked Language Model Scoring". The pseudo-log-likelihood of a text of pieces w_1 .. w_n is

    PLL(W) = Σ_t log Pr[w_t | w_1 .. w_{t-1}, [MASK], w_{t+1} .. w_n]          (their equation 1)

with each piece masked in turn. For all texts together, which have N pieces,

    PPPL = exp(-1/N · Σ_W PLL(W))                                              (their equation 2).

The measure depends on the model: it is not reliable for texts unlike its training texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulations.errors import UserError
from simulations.progress import Progress

# torch is imported where it is called, since it is slow to load.

_BATCH = 64
_SAID_EVERY = 4096


@dataclass(frozen=True)
class PseudoPerplexity:
    """Pseudo-perplexity of texts.

    Attributes:
        value: Value of at least 1; smaller is likelier.
        error: Standard error to first order, with texts as observations; NaN for one text.
        pieces: N, the number of masked pieces.
    """

    value: float
    error: float
    pieces: int


def pseudo_perplexity(texts: Sequence[str], checkpoint: Path | str, *, progress: Progress) -> PseudoPerplexity:
    """Return the pseudo-perplexity of all texts together by a masked language model with a prediction head.

    Texts are cut to what the model reads.

    Raises:
        UserError: The checkpoint cannot be read, or no text has a piece.
    """
    from server.accelerator import lent
    from server.checkpoint import positions
    from server.masked_lm import layout, load
    from server.text_batches import pieces_of

    try:
        model, tokenizer = load(checkpoint)
    except ValueError as error:
        raise UserError(str(error)) from None
    about = layout(model, tokenizer)
    room = (positions(model) or 512) - len(about["before"]) - len(about["after"])
    pieces = [ids[:room] for ids in pieces_of(tokenizer, texts)]
    waiting = [(row, place) for row, ids in enumerate(pieces) for place in range(len(ids))]
    if not waiting:
        raise UserError("pseudo-perplexity: no text has a word that the masked language model reads")
    waiting.sort(key=lambda each: len(pieces[each[0]]))  # rows of a batch are alike in length
    found = np.zeros(len(texts))
    with lent(model):
        for at in range(0, len(waiting), _BATCH):
            batch = waiting[at : at + _BATCH]
            np.add.at(found, [row for row, _ in batch], _log_probs(model, about, pieces, batch))
            if at // _SAID_EVERY != (at + _BATCH) // _SAID_EVERY:
                progress(f"{at + _BATCH:,} of {len(waiting):,} pieces masked")
    counts = np.array([len(ids) for ids in pieces], dtype=np.float64)
    mean = found.sum() / counts.sum()
    value, n = math.exp(-mean), int((counts > 0).sum())
    spread = float(np.sqrt(((found - mean * counts) ** 2).sum() * n / (n - 1))) if n > 1 else math.nan
    return PseudoPerplexity(value, value * spread / float(counts.sum()), int(counts.sum()))


def _log_probs(model: Any, about: Any, pieces: Sequence[Sequence[int]], batch: Sequence[tuple[int, int]]) -> Any:
    """Return log Pr of the piece at each masked place of a text, (b,)."""
    import torch

    from server.masked_lm import inputs_of, logits_at

    masked = [[*pieces[row][:at], about["mask"], *pieces[row][at + 1 :]] for row, at in batch]
    inputs, starts = inputs_of(about, [(None, ids) for ids in masked])
    columns = torch.tensor([start + at for start, (_, at) in zip(starts, batch, strict=True)])
    with torch.no_grad():
        logits = logits_at(model, inputs, torch.arange(len(batch)), columns).double()
    truth = torch.tensor([pieces[row][at] for row, at in batch])
    return torch.log_softmax(logits, dim=1).cpu()[torch.arange(len(batch)), truth].numpy()
