"""An experiment, run: prepared once, each arm through Flower on Ray, everything a reader needs left in a folder."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from simulations import arm_ladder
from simulations.arm import ArmRun
from simulations.arm_base import ASKED, ArmBase, Outcome
from simulations.engine import run_on_flower
from simulations.evaluation import chance
from simulations.experiment import TEXT_WAYS, Arm, Experiment, slug, to_toml
from simulations.gather import FlowerUsers, Users
from simulations.hand_out import hand_out
from simulations.prepare import Prepared, Progress, prepare
from simulations.public_part import PublicPart
from simulations.report import json_ready
from simulations.resume import Journal, versions

Engine = Callable[..., Any]
Line = dict[str, Any]


def run(experiment: Experiment, out: Path, *, progress: Progress, engine: Engine = run_on_flower) -> dict[str, Any]:
    """Runs every arm and writes the run folder `out` (which must exist): nodes/, models/, experiment.toml.

    A run that was killed goes on where it stopped, in the same folder: arms that are finished are not run again, and
    users who have released something repeat it. Returns the results as the report and `--json` show them.
    engine(job, nodes=, folder=) runs job(grid) on Flower; another one is for apps that Flower itself has started.
    Raises ValueError, in one line, for what a user can mend.
    """
    start = time.perf_counter()
    journal = Journal(out)
    journal.check_code()
    (out / "experiment.toml").write_text(to_toml(experiment), encoding="utf-8")
    prepared = prepare(experiment, progress=progress)
    journal.check_data(experiment, prepared)
    lines = {arm.name: line for arm in experiment.arms if (line := journal.finished(slug(arm.name))) is not None}
    if lines:
        progress(f"finished before: {', '.join(lines)}")
    unfinished = [arm for arm in experiment.arms if arm.name not in lines]
    if unfinished:
        lines |= _run_arms(experiment, unfinished, prepared, out, journal, progress, engine)
    return results(experiment, prepared, [lines[arm.name] for arm in experiment.arms], time.perf_counter() - start)


def _run_arms(
    experiment: Experiment, arms: list[Arm], prepared: Prepared, out: Path, journal: Journal, progress: Progress,
    engine: Engine,
) -> dict[str, Line]:  # fmt: skip
    """The arms' lines, by name; each is in the journal as soon as its model is saved."""
    models, folder = out / "models", out / "nodes"
    paper = experiment.training.way == "paper"
    if not paper:
        nodes = _handed_out(experiment, prepared, folder, journal)
    runs = arms_of(experiment, prepared, models=models, nodes=folder, arms=arms, journal=journal)

    def job(users: Users | None) -> dict[str, Line]:
        lines = {}
        for each in runs:
            place = models / slug(each.arm.name)
            shutil.rmtree(place, ignore_errors=True)  # what a run that was killed has left of it
            outcome = each.run(users, progress=progress)
            progress(f"{each.arm.name}: accounting: what one user's releases cost, rung by rung")
            add_ladder(experiment, prepared, each.arm, outcome)
            save_model(place, prepared, outcome)
            outcome.line["model"] = str(place.relative_to(out))
            lines[each.arm.name] = journal.finish(slug(each.arm.name), outcome.line)
        return lines

    if paper:
        return job(None)

    def on_flower(grid: Any) -> dict[str, Line]:
        # OpenBLAS with several threads has been seen to spin for minutes inside eigh once Ray runs beside it; the
        # matrices here are small, and one thread also keeps results from depending on the cores.
        with threadpool_limits(1, user_api="blas"):
            return job(FlowerUsers(grid, experiment))

    progress(f"starting Flower on Ray with {nodes} nodes for {experiment.population.users:,} users")
    lines: dict[str, Line] = engine(on_flower, nodes=nodes, folder=folder)
    return lines


def _handed_out(experiment: Experiment, prepared: Prepared, folder: Path, journal: Journal) -> int:
    """The number of nodes, whose folders are under `folder`: all of them, or it is not there.

    Those of a run that goes on keep their ledgers and get everything else again: it may name places in a cache that
    has been tidied up since. Their number stays, or users would move to nodes whose ledgers do not know them.
    """
    draft = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    nodes = hand_out(experiment, prepared, draft, nodes=journal.nodes())
    journal.keep_nodes(nodes)
    if not folder.exists():
        draft.rename(folder)
        return nodes
    for place in draft.iterdir():
        for file in place.iterdir():
            file.replace(folder / place.name / file.name)
    shutil.rmtree(draft)
    return nodes


def arms_of(
    experiment: Experiment, prepared: Prepared, *, models: Path, nodes: Path, arms: list[Arm] | None = None,
    journal: Journal | None = None,
) -> list[Any]:  # fmt: skip
    """What runs the arms (all, where `arms` is None), each with `arm` and `run(users, progress=)`.

    models: where ways that train BERT itself save it. nodes: where the nodes' folders are.
    """
    way = experiment.training.way
    kind: type[ArmBase] = ArmRun
    places: dict[str, Any] = {}
    chosen = list(experiment.arms) if arms is None else arms
    if way == "paper":
        from simulations.paper import paper_arms

        return paper_arms(experiment, chosen, prepared, models=models)
    if way in TEXT_WAYS:
        from simulations.text_arm import TextArmRun
        from simulations.text_then_embeddings import TextThenEmbeddings

        if way == "sanitized-text":
            kind, places = TextArmRun, {"models": models}
        else:
            kind, places = TextThenEmbeddings, {"models": models, "nodes": nodes}
    else:
        places = {"public": PublicPart(experiment, prepared)}
    return [kind(experiment, arm, prepared, journal=journal, **places) for arm in chosen]


def add_ladder(experiment: Experiment, prepared: Prepared, arm: Arm, outcome: Outcome) -> None:
    """The line gets its "ladder" and "test_ladder", from what was delivered: for the results and the model card."""
    records = int(prepared.held.records.max()) + 1
    outcome.line.update(arm_ladder.of_run(experiment, arm, outcome.spent, records=records))


def save_model(folder: Path, prepared: Prepared, outcome: Outcome) -> None:
    """The trained maps and head, with a card that states their guarantee; in asked/ the maps that training users were
    sent, under which their releases are to be read.

    The encoder before them is in the folder where the arm has trained it; where all arms share one, encoder.json says
    which it is and where it lies: {"sha256", "folder"}.
    """
    from server.card import model_card

    folder.mkdir(parents=True, exist_ok=True)
    if outcome.maps is not None:
        outcome.maps.save(folder)
    if outcome.asked is not None:
        outcome.asked.save(folder / ASKED)
    encoder = prepared.encoder
    identity = None if encoder is None else encoder.identity
    if encoder is not None and not (folder / "pipeline.json").exists():
        where = {"sha256": identity, "folder": str(encoder.folder)}
        (folder / "encoder.json").write_text(json.dumps(where) + "\n", encoding="utf-8")
    named = None if encoder is None else f"{identity}, {encoder.precision}"
    about = outcome.line | {"encoder": named, "classes": list(prepared.split.train.classes)}
    about |= {"released": "text"} if outcome.spent.embedding is None and outcome.spent.text is not None else {}
    (folder / "README.md").write_text(model_card(about), encoding="utf-8")
    (folder / "guarantee.json").write_text(json.dumps(json_ready(outcome.line["budget"]), indent=1), encoding="utf-8")


def results(experiment: Experiment, prepared: Prepared, lines: list[Line], seconds: float) -> dict[str, Any]:
    """The results object: what `--json` prints and results.json keeps. seconds: since the run began, or went on."""
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
        "arms": lines,
        "seconds": seconds,
        "corpus": prepared.about_corpus,
        "encoder": {
            "model": experiment.encoder.model,
            "precision": experiment.encoder.precision,
            "sha256": None if prepared.encoder is None else prepared.encoder.identity,
        },
        "vocabulary": None if prepared.words is None else {
            "words": len(prepared.words.vocabulary), "sha256": prepared.words.vocabulary.identity,
        },
        "randomness": "simulation: Philox4x32-10 streams from the root seed, one for each user, record and stage",
        "versions": versions(),
    }
