"""An experiment, run: prepared once, each arm through Flower on Ray, everything a reader needs left in a folder."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from simulations import arm_ladder
from simulations.arm import ArmRun
from simulations.arm_base import ArmBase, Outcome
from simulations.engine import run_on_flower
from simulations.evaluation import chance
from simulations.experiment import TEXT_WAYS, Experiment, slug, to_toml
from simulations.hand_out import hand_out
from simulations.prepare import Prepared, Progress, prepare
from simulations.public_part import PublicPart
from simulations.report import json_ready

PACKAGES = ("flwr", "ray", "torch", "transformers", "numpy", "scipy", "onnxruntime", "tokenizers", "sottovoce")
#: Seconds a stage waits for its nodes before the missing ones count as stragglers: a language model takes long over
#: thousands of texts, and a node that has died is told at once.
STAGE_TIMEOUT = 3600.0

Engine = Callable[..., Any]


def run(experiment: Experiment, out: Path, *, progress: Progress, engine: Engine = run_on_flower) -> dict[str, Any]:
    """Runs every arm and writes the run folder `out` (which must exist): nodes/, models/, experiment.toml.

    Returns the results as the report and `--json` show them. engine(job, nodes=, folder=) runs job(grid) on
    Flower; another one is for apps that Flower itself has started. Raises ValueError, in one line, for what a
    user can mend.
    """
    start = time.perf_counter()
    prepared = prepare(experiment, progress=progress)
    if experiment.training.way == "paper":
        from simulations.paper import run_paper

        outcomes = run_paper(experiment, prepared, progress=progress)
    else:
        folder = out / "nodes"
        nodes = hand_out(experiment, prepared, folder)
        arms = arms_of(experiment, prepared, models=out / "models", nodes=folder)

        def job(grid: Any) -> list[Outcome]:
            # OpenBLAS with several threads has been seen to spin for minutes inside eigh once Ray runs beside
            # it; the matrices here are small, and one thread also keeps results from depending on the cores.
            with threadpool_limits(1, user_api="blas"):
                return [arm.run(grid, progress=progress) for arm in arms]

        progress(f"starting Flower on Ray with {nodes} nodes for {experiment.population.users:,} users")
        outcomes = engine(job, nodes=nodes, folder=folder)
    (out / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
    progress("accounting: what one user's releases cost, rung by rung")
    add_ladders(experiment, prepared, outcomes)
    for arm, outcome in zip(experiment.arms, outcomes, strict=True):
        save_model(out / "models" / slug(arm.name), prepared, outcome)
    return results(experiment, prepared, outcomes, seconds=time.perf_counter() - start)


def arms_of(experiment: Experiment, prepared: Prepared, *, models: Path, nodes: Path) -> list[ArmBase]:
    """The arms of a way that runs on Flower. models: where ways that train BERT itself save it. nodes: where the
    nodes' folders are."""
    way, kind, places = experiment.training.way, ArmRun, {}
    if way in TEXT_WAYS:
        from simulations.text_arm import TextArmRun
        from simulations.text_then_embeddings import TextThenEmbeddings

        if way == "sanitized-text":
            kind, places = TextArmRun, {"models": models}
        else:
            kind, places = TextThenEmbeddings, {"models": models, "nodes": nodes}
    else:
        places = {"public": PublicPart(experiment, prepared)}
    return [kind(experiment, arm, prepared, timeout=STAGE_TIMEOUT, **places) for arm in experiment.arms]


def add_ladders(experiment: Experiment, prepared: Prepared, outcomes: list[Outcome]) -> None:
    """Every line gets its "ladder" and "test_ladder", from what was delivered: for the results and the model card."""
    records = int(prepared.held.records.max()) + 1
    for arm, outcome in zip(experiment.arms, outcomes, strict=True):
        outcome.line.update(arm_ladder.of_run(experiment, arm, outcome.spent, records=records))


def save_model(folder: Path, prepared: Prepared, outcome: Outcome) -> None:
    """The trained maps and head, with a card that states their guarantee; the encoder is named by its hash, or, where
    the arm has trained it, saved there already."""
    from server.card import model_card

    folder.mkdir(parents=True, exist_ok=True)
    if outcome.maps is not None:
        outcome.maps.save(folder)
    encoder = None if prepared.encoder is None else prepared.encoder.identity
    about = outcome.line | {"encoder": encoder, "classes": list(prepared.split.train.classes)}
    about |= {"released": "text"} if outcome.spent.embedding is None and outcome.spent.text is not None else {}
    (folder / "README.md").write_text(model_card(about), encoding="utf-8")
    (folder / "guarantee.json").write_text(json.dumps(json_ready(outcome.line["budget"]), indent=1), encoding="utf-8")


def results(
    experiment: Experiment, prepared: Prepared, outcomes: list[Outcome], *, seconds: float
) -> dict[str, Any]:
    """The results object: what `--json` prints and results.json keeps."""
    way = experiment.training.way
    sentence = None
    if way == "paper":
        from server.training.paper import SENTENCE

        sentence = SENTENCE
    return {
        "name": experiment.name,
        "seed": experiment.seed,
        "way": way,
        "way_sentence": sentence,
        "chance": chance(prepared.split.test.labels),
        "classes": list(prepared.split.train.classes),
        "arms": [outcome.line for outcome in outcomes],
        "seconds": seconds,
        "corpus": prepared.about_corpus,
        "encoder": {
            "model": experiment.encoder.model,
            "sha256": None if prepared.encoder is None else prepared.encoder.identity,
        },
        "vocabulary": None if prepared.words is None else {
            "words": len(prepared.words.vocabulary), "sha256": prepared.words.vocabulary.identity,
        },
        "randomness": "simulation: Philox4x32-10 streams from the root seed, one for each user, record and stage",
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
