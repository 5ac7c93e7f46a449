"""The protocol `statistics` in one process, with its encoders run by torch, on a GPU where there is one.

    python -m benchmarks.in_process EXPERIMENT [--seeds 1] [--set KEY=VALUE ...] [--out FILE]

A simulation runs every encoder on CPUs, as devices do. Where a large encoder is trained on much public text, that takes
hours. Here all users are in one process, one user for each record, without shuffler and ledgers. Data, draws and
training are those of a simulation, and so are the accuracies (equal on CR in four arms, MiniLM, seed 1). It prints one
line a seed and arm: the accuracy of the model on clean test texts. --out also writes the lines to a file, as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.channels import VECTOR
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import Lent, VectorQuestion
from mechanisms.messages.release import Release
from mechanisms.messages.request import Request
from mechanisms.streams import SimulationStreams
from server.accelerator import beside, device, lent
from server.checkpoint import load as load_checkpoint
from server.model import pool
from server.protocols.drive import Collected, Driver
from server.protocols.models import STUDENT
from server.protocols.protocol import Public
from server.protocols.statistics import statistics
from server.text_batches import collate, tokenize
from simulations.artifacts.encoder import layers_of, pooling_of, student_of, training_of
from simulations.artifacts.public import public_labels, with_maps
from simulations.artifacts.ways import channels_of
from simulations.corpora.corpus import Corpus
from simulations.experiment import EncoderConfig, load
from simulations.progress import progress_lines
from simulations.run.prepare import parts

BATCH = 256
Array = np.ndarray


class TorchEncoder:
    """Encoder run by torch (`server.protocols.protocol.Encoding`).

    Args:
        checkpoint: Checkpoint of the encoder.
        settings: Layers, pooling and maximal length.
    """

    #: Nobody compares it or reads its files: all users are in this process.
    identity, folder, precision = "0" * 64, Path(), "fp32"

    def __init__(self, checkpoint: str | Path, settings: EncoderConfig) -> None:
        self.model, self.tokenizer = load_checkpoint(checkpoint)
        self._layers, self._pooling, self._most = layers_of(settings), pooling_of(settings), settings.max_length

    def embed(self, texts: Sequence[Any]) -> Array:
        """Return sentence embeddings (n, m) of texts."""
        rows = tokenize(self.tokenizer, texts, self._most)
        order = np.argsort([len(row["input_ids"]) for row in rows], kind="stable")
        batches: list[Array] = []
        with lent(self.model), torch.no_grad():
            for start in range(0, len(order), BATCH):
                inputs = beside(self.model, collate(self.tokenizer, [rows[i] for i in order[start : start + BATCH]]))
                out = self.model(**inputs, output_hidden_states=bool(self._layers))
                states = [out.hidden_states[layer] for layer in self._layers] or [out.last_hidden_state]
                batches.append(pool(torch.cat(states, dim=-1), inputs["attention_mask"], self._pooling).cpu().numpy())
        return np.concatenate(batches)[np.argsort(order)]


def released(request: Request, embeddings: Array, labels: Array, starts: Array, users: Array, seed: int) -> Collected:
    """Return the vectors of users, drawn as a simulation draws them.

    Args:
        request: Request for vectors.
        embeddings: Embeddings (n, m) of the users' records, contiguous for each user.
        labels: Labels (n,) of the same records.
        starts: Start (u + 1,) of each user, and the end of the last.
        users: Numbers (u,) of the users.
        seed: Seed of the draws.
    """
    question = request.question(VectorQuestion)
    rng = SimulationStreams(seed).rows(users, np.zeros_like(users), stage=request.stage, channel=VECTOR.name)
    values = question.draw(question.means(embeddings, labels, starts), Lent(lambda: rng, _no_texts))
    guarantee, digest = question.mechanism.guarantee, request.digest(question.channel)
    release = Release({question.array: values}, VECTOR.name, request.stage, guarantee, digest)
    return Collected(Batch((release,), users=len(users), duplicates=0))


def _no_texts(*_: Any) -> Any:
    raise AssertionError("users release vectors alone")


class Users:
    """Training users in this process, one for each record (`server.protocols.drive.Users`).

    Args:
        corpus: Records.
        numbers: User (n,) of each record.
        embeddings: Embeddings (n, m) of the records by the first encoder.
        seed: Seed of their draws.
        student: Settings of the student that self-training publishes.
    """

    def __init__(self, corpus: Corpus, numbers: Array, embeddings: Array, seed: int, student: EncoderConfig) -> None:
        self._corpus, self._numbers, self._embeddings = corpus, numbers, embeddings
        self._seed, self._student = seed, student

    def collect(self, request: Request) -> Collected:
        """Return the releases of the group that a request names."""
        number, groups = request.part
        rows = np.flatnonzero(self._numbers % groups == number)
        starts = np.arange(len(rows) + 1)
        return released(
            request, self._embeddings[rows], self._corpus.labels[rows], starts, self._numbers[rows], self._seed
        )

    def publish(self, encoder: Path, splits: Sequence[str]) -> TorchEncoder:
        """Answer under a student from now on: it is the same as the exported encoder beside it."""
        student = TorchEncoder(encoder.parent / STUDENT, self._student)
        if "train" in splits:
            self._embeddings = student.embed(self._corpus.texts)
        return student


def measured(name: str, seed: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Return one line an arm: its accuracy on clean test texts, and its users."""
    experiment = load(name, [f"seed={seed}", *overrides])
    split, holders, _ = parts(experiment)
    people, settings = experiment.population, experiment.encoder
    for here, what in (
        (holders.most > 1, "users of several records"),
        (people.dropout + people.late > 0, "population.dropout or late"),
        (settings.precision != TorchEncoder.precision, "encoder.precision"),
        (settings.fine_tune_on_public, "encoder.fine-tune-on-public"),
    ):
        if here:
            raise SystemExit(f"in_process: {what} needs a simulation: sottovoce simulate")
    checkpoint = experiment.encoder.model
    encoder = TorchEncoder(checkpoint, experiment.encoder)
    public = with_maps(
        experiment,
        Public(
            split.public.texts,
            public_labels(experiment.data.public, split.public, seed),
            split.public.classes,
            encoder,
            checkpoint=checkpoint,
        ),
    )
    training = training_of(experiment)
    student = student_of(experiment.encoder, experiment.training)
    lines, embeddings = [], encoder.embed(split.train.texts)
    for setup in experiment.setups:
        if setup.statistic is None and not setup.arm.public_only:
            print(f"{setup.arm.name}: left out, its users do not release one vector", flush=True)
            continue
        start = time.perf_counter()
        users = Users(split.train, holders.users, embeddings, seed, student)
        with tempfile.TemporaryDirectory() as folder:
            model = Driver(users).train(statistics(public, channels_of(setup, public), training, folder=Path(folder)))
        right = None if model is None else model.classify(split.test.texts) == split.test.labels
        line = {
            "experiment": experiment.name,
            "seed": seed,
            "arm": setup.arm.name,
            "encoder": checkpoint,
            "public": len(split.public),
            "users": len(split.train),
            "tests": len(split.test),
            "accuracy": None if right is None else round(float(right.mean()), 4),
            "seconds": round(time.perf_counter() - start, 1),
            "device": device().type,
        }
        print(json.dumps(line, ensure_ascii=False), flush=True)
        lines.append(line)
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.in_process", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="file of the lines")
    given = parser.parse_args()
    with progress_lines(clock=True):
        lines = [line for seed in given.seeds for line in measured(given.experiment, seed, given.overrides)]
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
