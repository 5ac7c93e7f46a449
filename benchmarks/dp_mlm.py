"""Tokens a minute of DP-MLM with the bundled MiniLM, one thread: `python -m benchmarks.dp_mlm [texts]`.

The baseline is the published program: one forward pass for each token at batch 1, in torch, with the logits of every
position. The client's own graph at batch 1 shows the gain of batches alone. The head is untrained; it costs the same.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import streams
from client.models.language_models import MaskedLM
from client.models.tokens import padded_word_ids
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words import language_model
from mechanisms.words.dp_mlm import DpMlm
from mechanisms.words.text import TextMechanism
from server.masked_lm import export_masked_lm, layout, read
from simulations.corpora.builtin import builtin

EPSILON, ALONE = 50.0, 20


def published(model, about, pieces, x, vocabulary, low, high, most):
    """Return the seconds for each of at most `most` tokens of the first texts."""
    special = about["mask"]
    temperature = 2 * (high - low) / EPSILON
    torch.manual_seed(0)
    done, start = 0, None
    for row in x:
        first = [i for w in row if w != NOTHING for i in pieces.ids[w]]
        private = list(first)
        for at in range(len(first)):
            if done == 3:  # the first passes warm caches
                start = time.perf_counter()
            masked = [*private[:at], special, *private[at + 1 :]]
            ids = [*about["before"], *first, *about["between"], *masked, *about["after"]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, len(ids) - len(masked) - 1 + at]
            private[at] = int(torch.multinomial(torch.softmax(logits.clamp(low, high) / temperature, 0), 1))
            done += 1
            if done == most + 3:
                return (time.perf_counter() - start) / most
    raise SystemExit("bench: more texts are needed")


def ours(model, text, x):
    """Return the seconds for each token."""
    rng = streams(len(x))
    start = time.perf_counter()
    text.sample(x, rng=rng, scores=model.scores(x, text.vocabulary))
    return (time.perf_counter() - start) / (x != NOTHING).sum()


def main() -> None:
    """Print the figures."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    torch.set_num_threads(1)
    public = builtin(task="sentiment", public=max(n, 100), train=1, test=1, seed=1).public.texts
    with tempfile.TemporaryDirectory() as name:
        checkpoint, folder = Path(name) / "checkpoint", Path(name) / "exported"
        model, tokenizer, _ = read("minilm")
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        export_masked_lm(checkpoint, folder, public_texts=public[:100], seed=1)
        client = MaskedLM(folder)
    words = [w for w in tokenizer.get_vocab() if not w.startswith(("##", "["))]
    vocabulary = Vocabulary(tuple(sorted(words)), np.zeros((len(words), 1), np.float32))
    text = TextMechanism(DpMlm(EPSILON, client.low, client.high, vocabulary), tokens=40, length="kept")
    x = padded_word_ids(public[:n], text)
    model.eval()
    pieces, about = client._pieces(vocabulary), layout(model, tokenizer)
    ours(client, text, x[:2])
    slow = [published(model, about, pieces, x, vocabulary, client.low, client.high, ALONE) for _ in range(2)]
    fast = ours(client, text, x)
    slow += [published(model, about, pieces, x, vocabulary, client.low, client.high, ALONE)]
    single = np.mean([ours(client, text, x[i : i + 1]) for i in range(2)])
    print(f"{len(words):,} words, {n} texts of {(x != NOTHING).sum() / n:.1f} tokens, blocks of {language_model.BLOCK}")
    baseline = ("one pass a token, torch, all logits (baseline)", np.median(slow))
    for label, seconds in (baseline, ("one text at a time", single), ("together", fast)):
        print(f"{label:<50}{60 / seconds:>10,.0f} tokens/min{np.median(slow) / seconds:>8.1f} times")


if __name__ == "__main__":
    main()
