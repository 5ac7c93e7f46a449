"""From a study to a device's bundle: what its server would ask of users, and what they need to answer."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from client.bundle import Bundle, write_bundle
from client.encoder import Encoder
from client.policy import Policy
from mechanisms import catalogue
from mechanisms.mechanism import parameters
from mechanisms.request import Request
from server.maps import Maps
from simulations.cache import Progress, embed
from simulations.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import HALVES, PUBLIC_ONLY, Arm, Experiment, embedding_mechanism, load, slug
from simulations.hand_out import policy_of
from simulations.prepare import encoder_folder, load_split
from simulations.public_part import PublicPart, dim_of
from simulations.text_channel import Words, prepare_words


def bundle_of_run(
    run: Path, arm_name: str | None, out: Path, *, precision: str | None = None, progress: Progress
) -> Bundle:
    """What users of a finished run's model need: its encoder, and the maps that it was left with.

    precision: of the encoder, where it shall be another than the run's. It is then another encoder, by another name,
    and the maps were learned from embeddings that differ a little.
    Raises UserError where there is no such run or arm, or its encoder or vocabulary cannot be had as they were.
    """
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        experiment = load(str(run / "experiment.toml"), [])
    except (OSError, json.JSONDecodeError):
        raise UserError(f"--run {run}: holds no finished run; name the folder that `sottovoce simulate` left") from None
    arm = chosen(experiment, arm_name)
    _check_precision(experiment, precision, known=run / "models" / slug(arm.name) / "client")
    if experiment.training.way == "sanitized-text":
        words = prepare_words(experiment, _public(experiment), progress=progress)
        assert words is not None
        _same(run, "vocabulary", (results.get("vocabulary") or {}).get("sha256"), words.vocabulary.identity)
        return _of_text(experiment, arm, words, out)
    model = run / "models" / slug(arm.name)
    maps = Maps.load(model)
    if experiment.training.way == HALVES:
        encoder = Encoder(model / "client")
    else:
        # without fine-tuning the encoder needs no data, and the run's need not be there any more
        public = _public(experiment) if experiment.encoder.fine_tune_on_public else Corpus([], np.zeros(0, int), ("",))
        encoder = Encoder(encoder_folder(_at(experiment, precision), public, progress=progress))
        if precision in (None, experiment.encoder.precision):
            _same(run, "encoder", results["encoder"]["sha256"], encoder.identity)
        else:
            progress(f"the encoder is {precision}, and the run's maps were learned at {experiment.encoder.precision}")
    assert arm.embedding is not None
    return _of_embedding(experiment, arm, embedding_mechanism(arm.embedding, maps.dim), maps, encoder, out)


def bundle_of_experiment(
    experiment: Experiment, arm_name: str | None, out: Path, *, precision: str | None = None, progress: Progress
) -> Bundle:
    """What a study's first users need, before anybody has released anything: maps from public data alone.

    precision: of the encoder, in place of the study's, also for learning the maps.
    Raises UserError where the study has no such arm, or its way of training asks for what a bundle does not hold.
    """
    arm = chosen(experiment, arm_name)
    if experiment.training.way == HALVES:
        raise UserError(
            f'training.way: "{HALVES}" trains the encoder of its second half; run it first, and give --run RUN_DIR'
        )
    _check_precision(experiment, precision)
    public = _public(experiment)
    if experiment.training.way == "sanitized-text":
        words = prepare_words(experiment, public, progress=progress)
        assert words is not None
        return _of_text(experiment, arm, words, out)
    encoder = Encoder(encoder_folder(_at(experiment, precision), public, progress=progress))
    embeddings: Any = np.asarray(embed(encoder, public.texts, progress=progress))
    progress(f"{arm.name}: learning maps on {len(public):,} public texts")
    known: Any = SimpleNamespace(public_embeddings=embeddings, split=SimpleNamespace(public=public))
    part = PublicPart(experiment, known)
    mechanism = part.best(part.candidates(arm))
    return _of_embedding(experiment, arm, mechanism, part.maps(mechanism), encoder, out)


def _of_embedding(
    experiment: Experiment, arm: Arm, mechanism: Any, maps: Maps, encoder: Encoder, out: Path
) -> Bundle:
    label = _label(arm, maps.classes)
    request = Request(
        arm="", stage="train", split="train", encoder=encoder.identity, mean=maps.mean, m1=maps.m1,
        embedding=parameters(mechanism), label=None if label is None else parameters(label), classes=maps.classes,
        minimum_users=_least(experiment), prior=maps.folded() if getattr(label, "needs_prior", False) else None,
    )  # fmt: skip
    assert dim_of(mechanism) == maps.dim
    return _write(experiment, arm, request, out, encoder=encoder.folder, precision=encoder.precision)


def _of_text(experiment: Experiment, arm: Arm, words: Words, out: Path) -> Bundle:
    text = words.mechanism(arm)
    classes = _classes(experiment)
    label = _label(arm, classes)
    request = Request(
        arm="", stage="train", split="train", encoder="", mean=None, m1=None, embedding=None,
        label=None if label is None else parameters(label), classes=classes, minimum_users=_least(experiment),
        text=parameters(text), vocabulary=words.vocabulary, masked_lm=words.identity(text),
    )  # fmt: skip
    return _write(experiment, arm, request, out, vocabulary=words.folder, masked_lm=words.masked_lm)


def _write(experiment: Experiment, arm: Arm, request: Request, out: Path, **parts: Any) -> Bundle:
    """A device's policy is the study's, for the mechanisms of this arm alone."""
    policy: Policy = policy_of(experiment, arm)
    asked = tuple(sorted({request.mechanism(channel).name for channel in request.channels}))
    policy = replace(policy, mechanisms=asked)
    policy.check(request)  # a bundle whose own device would refuse is a mistake of ours
    return write_bundle(
        out, request, policy, name=experiment.name, arm=arm.name, made_by=f"sottovoce {version('sottovoce')}",
        **parts,
    )  # fmt: skip


def chosen(experiment: Experiment, name: str | None) -> Arm:
    """The arm of that name, or the only one that a device can be made for."""
    if experiment.training.way == "paper":
        raise UserError('training.way: "paper" is a trusted simulation; a device has no part in it')
    fit = [arm for arm in experiment.arms if not arm.reference and (arm.embedding or arm.text)]
    names = ", ".join(f'"{arm.name}"' for arm in fit)
    if not fit:
        raise UserError(f"{experiment.name}: has no arm whose users release anything under a guarantee")
    if name is None:
        if len(fit) > 1:
            raise UserError(f"--arm: is missing; choose one of {names}")
        return fit[0]
    found = [arm for arm in experiment.arms if name in (arm.name, slug(arm.name))]
    if not found:
        raise UserError(f'--arm "{name}": there is none; choose one of {names}')
    if found[0] not in fit:
        raise UserError(f'--arm "{name}": is a reference, or releases nothing; choose one of {names}')
    return found[0]


def _at(experiment: Experiment, precision: str | None) -> Experiment:
    """The study with an encoder of that precision."""
    if precision is None:
        return experiment
    return replace(experiment, encoder=replace(experiment.encoder, precision=precision))


def _check_precision(experiment: Experiment, precision: str | None, known: Path | None = None) -> None:
    """known: the encoder that a run has trained, if it has."""
    if precision is None:
        return
    if experiment.training.way == "sanitized-text":
        raise UserError("--precision: is the encoder's, and users of this study release texts, which need none")
    _at(experiment, precision)  # says what it may be
    if experiment.training.way == HALVES and known is not None and Encoder(known).precision != precision:
        raise UserError(f"--precision {precision}: this run has trained and exported its encoder itself; leave it out")


def _label(arm: Arm, classes: int) -> Any:
    """The mechanism of labels; None where no user releases one."""
    if arm.way == PUBLIC_ONLY:
        return None
    return catalogue.build(arm.label or {"mechanism": "identity"}, channel="label", classes=classes)


def _least(experiment: Experiment) -> int:
    return experiment.shuffle.minimum_users if experiment.shuffle.enabled else 0


def _public(experiment: Experiment) -> Corpus:
    return load_split(experiment)[0].public


def _classes(experiment: Experiment) -> int:
    return len(load_split(experiment)[0].train.classes)


def _same(run: Path, what: str, was: str | None, now: str) -> None:
    if was != now:
        raise UserError(
            f"--run {run}: its {what} cannot be made again: it was {str(was)[:16]}…, and here it becomes {now[:16]}…; "
            "run the study again with this version"
        )
