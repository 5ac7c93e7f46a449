"""Execution of an experiment: prepared once, each arm through Flower on Ray, all outputs in one folder."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from server.protocols.protocol import Public
from simulations.artifacts.encoder import training_of
from simulations.artifacts.model_folder import save_model
from simulations.artifacts.ways import embeddings_of
from simulations.experiment import Arm, Experiment, slug, to_toml
from simulations.run.arm import ArmRun
from simulations.run.collect import FlowerUsers
from simulations.run.comparison import differences
from simulations.run.evaluation import Answers, Trained, evaluate, read_answers, write_answers
from simulations.run.journal import Journal, trained_on, versions
from simulations.run.measures import chance, measures_of
from simulations.run.partition import hand_out
from simulations.run.prepare import Held, Prepared, prepare
from simulations.run.references import centralised, paper
from simulations.transport.engine import run_on_flower

log = logging.getLogger(__name__)

Engine = Callable[..., Any]
#: Source of the users' noise in a simulation.
SIMULATED = "simulation: Philox4x32-10 streams from the root seed, one for each user, record and stage"
#: Line of an arm in results.json, except for infinity.
Line = Mapping[str, Any]


def run(experiment: Experiment, out: Path, *, engine: Engine = run_on_flower) -> dict[str, Any]:
    """Run every arm, write its files into the existing folder `out`, and return the results.

    The files are nodes/, models/, answers/ and experiment.toml. A run that was killed goes on in the same folder:
    finished arms are not run again, and users repeat their releases. The results are those of the report and of
    `--json`. `engine`(job, nodes=, folder=) runs job(grid) on Flower; another engine serves apps that Flower has
    started.

    Raises:
        ValueError: The experiment or its data cannot be used.
    """
    start = time.perf_counter()
    journal = Journal(out)
    processor = trained_on(experiment.encoder, experiment.training)
    if not (out / "experiment.toml").is_file():  # first: a run whose code is recorded can be resumed
        (out / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
    journal.check_code(processor)
    arms = f"{len(experiment.arms)} arm{'s' * (len(experiment.arms) > 1)}"
    headline = f"{experiment.name}: {experiment.population.users:,} users, {arms}"
    prepared = prepare(experiment, headline=headline)
    journal.check_data(experiment.training.protocol, prepared.public, prepared.held)
    finished = {arm.name: journal.finished(slug(arm.name)) for arm in experiment.arms}
    lines: dict[str, Line] = {name: line for name, line in finished.items() if line is not None}
    if lines:
        log.info(f"finished before: {', '.join(lines)}")
    unfinished = [arm for arm in experiment.arms if arm.name not in lines]
    if unfinished:
        lines |= _run_arms(experiment, unfinished, prepared, out, journal, engine)
    answers = {arm.name: read_answers(_answers(out, arm)) for arm in experiment.arms}
    seconds = time.perf_counter() - start
    result = results(experiment, prepared, [lines[arm.name] for arm in experiment.arms], answers, seconds=seconds)
    return result | {"trained_on": processor}


def _answers(out: Path, arm: Arm) -> Path:
    return out / "answers" / f"{slug(arm.name)}.tsv"


def _run_arms(
    experiment: Experiment, arms: list[Arm], prepared: Prepared, out: Path, journal: Journal, engine: Engine
) -> dict[str, Line]:
    """Return the arms' lines, by name. Each is in the journal as soon as its model is saved."""
    models, folder, held = out / "models", out / "nodes", prepared.held
    private, seed = experiment.training.protocol.private, experiment.seed
    setups = {arm.name: experiment.setup(arm) for arm in arms if not arm.centralised}
    # Everything that may not fit the data is made before Flower starts.
    if private:
        nodes = _handed_out(experiment, prepared.public, held, folder, journal)
        training = training_of(experiment)
        ready = {n: ArmRun(s, training, prepared, models=models, before=journal.ask) for n, s in setups.items()}
    else:
        mechanisms = {name: embeddings_of(setup, prepared.public)[0] for name, setup in setups.items()}

    def train(arm: Arm, users: FlowerUsers | None) -> Trained:
        if arm.centralised:
            return centralised(experiment, arm, prepared)
        if users is None:
            return paper(experiment, setups[arm.name], held, mechanisms[arm.name])
        return ready[arm.name].run(users)

    def job(users: FlowerUsers | None) -> dict[str, Line]:
        lines: dict[str, Line] = {}
        for arm in arms:
            place = models / slug(arm.name)
            shutil.rmtree(place, ignore_errors=True)  # remains of a run that was killed
            trained = train(arm, users)
            result, answers = evaluate(trained, experiment.data, held, seed=seed)
            if not arm.centralised:  # a centralised arm is a reference, and its model is not kept
                result = replace(result, model=str(place.relative_to(out)))
                save_model(place, trained.model, prepared.public, result)
            write_answers(_answers(out, arm), held, answers)
            lines[arm.name] = journal.finish(slug(arm.name), result.to_dict())
        return lines

    def on_flower(grid: Any) -> dict[str, Line]:
        # With several threads OpenBLAS may spin for minutes inside eigh while Ray runs. The matrices are small, and one
        # thread makes results independent of the number of cores.
        with threadpool_limits(1, user_api="blas"):
            return job(FlowerUsers(grid, experiment.population, held, seed=seed, nodes=folder))

    if not private:
        return job(None)
    log.info(f"starting Flower on Ray with {nodes} nodes for {experiment.population.users:,} users")
    lines: dict[str, Line] = engine(on_flower, nodes=nodes, folder=folder)
    return lines


def _handed_out(experiment: Experiment, public: Public, held: Held, folder: Path, journal: Journal) -> int:
    """Write the nodes' folders under `folder`, completely or not at all, and return the number of nodes.

    A resumed run keeps the ledgers and writes everything else again, since it may name places in a cache that were
    deleted. Their number stays, or users would move to nodes whose ledgers do not know them.
    """
    draft = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    nodes = hand_out(
        experiment.setups, experiment.population, public, held, draft, seed=experiment.seed, nodes=journal.nodes()
    )
    journal.keep_nodes(nodes)
    if not folder.exists():
        draft.rename(folder)
        return nodes
    for place in draft.iterdir():
        for file in place.iterdir():
            file.replace(folder / place.name / file.name)
    shutil.rmtree(draft)
    return nodes


def results(
    experiment: Experiment,
    prepared: Prepared,
    lines: list[Line],
    answers: Mapping[str, Answers],
    *,
    seconds: float | None,
    randomness: str = SIMULATED,
) -> dict[str, Any]:
    """Return the results that `--json` prints and results.json keeps.

    Args:
        experiment: Experiment.
        prepared: Data of the run.
        lines: Lines of the arms.
        answers: Answers of every arm, by its name.
        seconds: Duration since the run began, or was resumed.
        randomness: Source of the users' noise, in words.
    """
    public, held = prepared.public, prepared.held
    protocol, rewriter = experiment.training.protocol, public.rewriter
    sentence = None
    if not protocol.private:
        from server.training.end_to_end import NOT_PRIVATE

        sentence = NOT_PRIVATE
    return {
        "name": experiment.name,
        "seed": experiment.seed,
        "way": protocol.name,
        "way_sentence": sentence,
        "chance": chance(held.test.labels),
        "classes": list(public.classes),
        "arms": lines,
        "differences": differences(experiment.arms, answers),
        "label_range": experiment.data.label_range,
        "measures": list(measures_of(experiment.data, held)),
        "seconds": seconds,
        "corpus": prepared.about,
        "encoder": {
            "model": experiment.encoder.model,
            "precision": experiment.encoder.precision,
            "sha256": None if public.encoder is None else public.encoder.identity,
            "student": experiment.training.student,
        },
        "vocabulary": None
        if rewriter is None
        else {"words": len(rewriter.vocabulary), "sha256": rewriter.vocabulary.identity},
        "policy": experiment.allowed(),
        "randomness": randomness,
        "versions": versions(),
    }
