"""Gain of a trusted server that trains the encoder itself by DP-SGD, instead of a head alone.

The data are SST-2 or another folder of its form. A run takes up to an hour on a CPU, and a minute on a GPU:

    python -m benchmarks.private_encoder FOLDER [--seed 1] [--users 20000] [--epsilon 1] [--rank 4] [--set KEY=VALUE]

Half of ε and δ make a linear head (`server/training/descent.py: DPSGD`). Under that fixed head, the other half trains
low-rank changes (LoRA, Hu et al. 2022) of the encoder's queries and values by Opacus. Opacus computes each user's own
gradient, which is clipped, summed over a Poisson sample, and noised. The noise is calibrated for the replacement of a
record. --epsilon inf is the same without noise. Users trust the server with every record.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from benchmarks.in_process import TorchEncoder
from server.accelerator import beside, lent, place
from server.checkpoint import load as load_checkpoint
from server.checkpoint_files import read_layout
from server.maps import Maps, factored, pca_maps
from server.model import pool
from server.text_batches import collate, tokenize
from server.training.descent import DPSGD
from simulations.experiment import load
from simulations.progress import progress_lines
from simulations.run.prepare import parts

DELTA, BATCH, FEATURES = 1e-6, 64, 64
#: Steps that train the encoder: a user's share of them, their number, the clip, and Adam's usual learning rate for
#: LoRA. None of it was tuned.
STEPS = DPSGD(epsilon=1.0, delta=DELTA, clip=0.1, learning_rate=1e-3, rate=0.05, steps=25)
#: Names of the linear maps to queries and values in the encoders of `transformers`; the last makes keys too. DeBERTa's
#: queries stay: they also read positions, which the records of a batch share, so no record has a gradient of its own.
CHANGED = ("query", "value", "q", "v", "value_proj", "q_proj", "v_proj", "Wqkv")
Array = np.ndarray


class Lora(torch.nn.Module):
    """Linear map with a low-rank change, 0 at first: x ↦ W·x + 2·B·A·x."""

    def __init__(self, frozen: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = torch.nn.Linear(frozen.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, frozen.out_features, bias=False)
        torch.nn.init.normal_(self.down.weight, std=frozen.in_features**-0.5)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the changed map of x."""
        change: torch.Tensor = self.frozen(x) + 2.0 * self.up(self.down(x))
        return change


class Headed(torch.nn.Module):
    """Logits (n, K) of texts: a fixed linear head on the checkpoint's embedding, mapped to length 1.

    Raises:
        ValueError: The encoder has no maps to queries and values of a known name.
    """

    def __init__(self, checkpoint: str, maps: Maps, rank: int) -> None:
        super().__init__()
        self.model, self.tokenizer = load_checkpoint(checkpoint)
        self.model.requires_grad_(False)
        self.pooling = read_layout(checkpoint).pooling
        places = [
            name.rpartition(".")[::2]
            for name, part in self.model.named_modules()
            if isinstance(part, torch.nn.Linear) and name.rpartition(".")[2] in CHANGED
        ]
        if not places:
            raise ValueError(f"encoder: {checkpoint} has no linear maps named {', '.join(CHANGED)}")
        for within, name in places:
            layer = self.model.get_submodule(within)
            setattr(layer, name, Lora(getattr(layer, name), rank))
        weight, bias = maps.folded()
        for name, values in (("mean", maps.mean), ("m1", maps.m1), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (n, K) of tokenized inputs."""
        pooled = pool(self.model(**inputs).last_hidden_state, inputs["attention_mask"], self.pooling)
        logits: torch.Tensor = normalize((pooled - self.mean) @ self.m1) @ self.weight + self.bias
        return logits


def rows_of(model: Headed, texts: Sequence[Any]) -> list[Any]:
    """Return the tokenized texts."""
    return list(tokenize(model.tokenizer, texts, 128))


def batches(rows: Sequence[Any], chosen: Array) -> list[Array]:
    """Return the chosen rows in batches, the shortest first."""
    order = chosen[np.argsort([len(rows[i]["input_ids"]) for i in chosen], kind="stable")]
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def right(model: Headed, rows: Sequence[Any], labels: Array) -> float:
    """Return the share of rows whose label is predicted."""
    correct = np.empty(len(rows), dtype=bool)
    with lent(model), torch.no_grad():
        for at in batches(rows, np.arange(len(rows))):
            inputs = beside(model, collate(model.tokenizer, [rows[i] for i in at]))
            correct[at] = model(inputs).argmax(1).cpu().numpy() == labels[at]
    return float(correct.mean())


def noisy_steps(
    steps: DPSGD, model: Headed, rows: Sequence[Any], labels: Array, *, noise: float, seed: int
) -> Iterator[int]:
    """Train the low-rank changes of `model`, in place, and yield the number of each step.

    Args:
        steps: Settings of the steps.
        model: Model to train.
        rows: Tokenized texts.
        labels: Their labels.
        noise: Noise in units of the clip.
        seed: Seed of samples and noise.
    """
    from opacus import GradSampleModule  # slow to import
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(model)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.Adam(trained, lr=steps.learning_rate),
        noise_multiplier=noise,
        max_grad_norm=steps.clip,
        expected_batch_size=steps.rate * len(rows),
        generator=torch.Generator(place(model)).manual_seed(seed),
    )
    rng, target = np.random.default_rng(seed), torch.tensor(labels, device=place(model))
    for number in range(steps.steps):
        sample = batches(rows, steps.sampled(len(rows), rng))
        for i, at in enumerate(sample):
            optimizer.signal_skip_step(do_skip=i < len(sample) - 1)
            optimizer.zero_grad()
            logits = module(beside(model, collate(model.tokenizer, [rows[j] for j in at])))
            loss = torch.nn.functional.cross_entropy(logits, target[at])
            with warnings.catch_warnings():  # about hooks, because token ids have no gradients
                warnings.simplefilter("ignore", UserWarning)
                loss.backward()
            optimizer.step()
        yield number + 1


def main() -> None:
    """Print the accuracy of the head alone, and after every fifth step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, kind, default in (("seed", int, 1), ("users", int, 20_000), ("epsilon", float, 1.0), ("rank", int, 4)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    fixed = [f"data.path={given.folder}", f"seed={given.seed}", f"population.users={given.users}", "encoder.layers=[6]"]
    experiment = load("frontier", [*fixed, *given.overrides])
    checkpoint = experiment.encoder.model
    with progress_lines(clock=False):
        split, _, _ = parts(experiment)
    encoder = TorchEncoder(checkpoint, experiment.encoder)
    half = min(given.epsilon, 1e3) / 2
    curator = DPSGD(epsilon=half, delta=DELTA / 2, learning_rate=8.0 if given.epsilon >= 1 else 4.0)
    labels, public = split.train.labels, encoder.embed(split.public.texts)
    frame = pca_maps(public, dim=FEATURES, classes=2)
    users_features, public_features = frame.project(encoder.embed(split.train.texts)), frame.project(public)
    head = curator.head(
        users_features, labels, public_features, (np.zeros((FEATURES, 2)), np.zeros(2)), seed=given.seed
    )
    torch.manual_seed(given.seed)
    model = Headed(checkpoint, factored(frame.mean, frame.m1, *head), given.rank)
    rows, test_rows = rows_of(model, split.train.texts), rows_of(model, split.test.texts)
    print(f"a head alone, ε = {half:g}: {right(model, test_rows, split.test.labels):.4f}", flush=True)
    private = not math.isinf(given.epsilon)
    steps = replace(STEPS, epsilon=half, delta=DELTA / 2) if private else STEPS
    start = time.perf_counter()
    noise = steps.noise if private else 0.0
    with lent(model):
        for number in noisy_steps(steps, model, rows, labels, seed=given.seed, noise=noise):
            if number % 5 == 0:
                correct, seconds = right(model, test_rows, split.test.labels), time.perf_counter() - start
                print(f"step {number} of {steps.steps}: {correct:.4f} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
