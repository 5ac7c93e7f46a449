"""Bundle of a device, made from a study: the server's request, and the files that a device needs to answer."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from client.device.bundle import NO_KEYS, Bundle, Keys, Parts, write_bundle
from client.policy import Policy
from client.store.text_column import TextColumn
from mechanisms.channels import ANSWER, CHANNELS, EMBEDDING
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import QUESTIONS, LabelQuestion, TextQuestion
from mechanisms.messages.request import Request
from server.maps import Maps
from server.protocols.models import ENCODER
from server.protocols.protocol import Channels, Public
from simulations.artifacts.encoder import training_of
from simulations.artifacts.model_folder import read_about
from simulations.artifacts.public import CachedEncoder, encoder_of, prepare_public
from simulations.artifacts.text_channel import StudyRewriter
from simulations.artifacts.ways import protocol_of
from simulations.corpora.corpus import Corpus
from simulations.corpora.parts import load_split
from simulations.errors import UserError
from simulations.experiment import Arm, ArmSetup, Experiment, answer_of, embedding_mechanism, label_of, load, slug
from simulations.experiment.arm import embeddings_of
from simulations.run.prepare import check_asked
from simulations.run.prepare import parts as data_parts

log = logging.getLogger(__name__)

#: Default of the seconds within which a device's answers leave.
WINDOW = 10.0


def bundle_of_run(
    run: Path,
    arm_name: str | None,
    out: Path,
    *,
    precision: str | None = None,
    records: int | None = None,
    keys: Keys = NO_KEYS,
    window: float = WINDOW,
) -> Bundle:
    """Write the bundle for users of a finished run's model: its encoder and its final maps.

    Args:
        run: Folder of the run.
        arm_name: Name of the arm; None if there is only one.
        out: Folder for the bundle.
        precision: Precision of the encoder, if it differs from the run's. This is another encoder with another
            identity, and the maps come from slightly different embeddings.
        records: Records of a user for which the total pays; None for the largest number of a user of the study.
        keys: As in `client.device.bundle.write_bundle`.
        window: Window of the policy, in seconds.

    Raises:
        UserError: There is no such run or arm, or its encoder or vocabulary cannot be made again.
    """
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        experiment = load(str(run / "experiment.toml"), [])
    except (OSError, json.JSONDecodeError):
        raise UserError(f"--run {run}: holds no finished run; name the folder that `sottovoce simulate` left") from None
    setup = chosen(experiment, arm_name)
    records = records or _most_records(experiment, setup)
    arm = setup.arm
    model = run / "models" / slug(arm.name)
    settings = _at(experiment, precision).encoder
    if experiment.training.protocol.releases_text:
        public = prepare_public(experiment, _public(experiment))
        assert public.rewriter is not None
        _same(run, "vocabulary", (results.get("vocabulary") or {}).get("sha256"), public.rewriter.vocabulary.identity)
        request = _first_request(experiment, arm, public)
        return _write(experiment.name, setup, request, public, out, records=records, keys=keys, window=window)
    maps = Maps.load(model)
    if (model / ENCODER).is_dir():  # the run has trained it
        encoder = CachedEncoder(model / ENCODER)
    else:
        # without fine-tuning the encoder needs no data, and the run's data may be gone
        corpus = (
            _public(experiment) if settings.fine_tune_on_public else Corpus(TextColumn.of(()), np.zeros(0, int), ("",))
        )
        encoder = encoder_of(replace(experiment, encoder=settings), corpus)
        if settings == experiment.encoder:
            _same(run, "encoder", results["encoder"]["sha256"], encoder.identity)
        else:
            log.info(f"the encoder is {precision}, and the run's maps were learned at {experiment.encoder.precision}")
    label = label_of(arm, maps.classes)
    channels = Channels(
        arm="",
        classes=maps.classes,
        label=label,
        answer=answer_of(arm, maps.classes),
        minimum_users=experiment.shuffle.least,
    )
    if channels.answer is not None:
        request = channels.answers(encoder.identity, maps, stage="train", split="train")
    elif arm.embedding is not None:
        request = channels.embeddings(
            encoder.identity,
            maps,
            embedding_mechanism(arm.embedding, maps.dim),
            stage="train",
            split="train",
            label=not arm.public_only and arm.statistic is None,
            prior=maps.folded() if getattr(label, "needs_prior", False) else None,
        )
    else:
        raise UserError(f"--run {run}: nobody asks the model of {arm.name}, and it has been taught; give --experiment")
    return _write(
        experiment.name,
        setup,
        request,
        Public((), None, read_about(model)[0], encoder),
        out,
        records=records,
        teaching=request.find(LabelQuestion) is not None,
        asking=True,
        keys=keys,
        window=window,
    )


def bundle_of_experiment(
    experiment: Experiment,
    arm_name: str | None,
    out: Path,
    *,
    precision: str | None = None,
    records: int | None = None,
    keys: Keys = NO_KEYS,
    window: float = WINDOW,
    public: Public | None = None,
) -> Bundle:
    """Write the bundle for a study's first users, before any release: maps from public data alone.

    Args:
        experiment: The study.
        arm_name: Name of the arm; None if there is only one.
        out: Folder for the bundle.
        precision: Precision of the encoder, in place of the study's, also for learning the maps.
        records: Records of a user for which the total pays; None for the largest number of a user of the study.
        keys: As in `client.device.bundle.write_bundle`.
        window: Window of the policy, in seconds.
        public: The study's public part, if it is already loaded.

    Raises:
        UserError: The study has no such arm, or its protocol needs more than a bundle holds.
    """
    setup = chosen(experiment, arm_name)
    records, arm = records or _most_records(experiment, setup), setup.arm
    study = _at(experiment, precision)
    if public is None:
        public = prepare_public(study, _public(study))
    request = _first_request(study, arm, public)
    return _write(
        study.name,
        study.setup(arm),
        request,
        public,
        out,
        records=records,
        teaching=not arm.public_only,
        asking=arm.public_only,
        keys=keys,
        window=window,
    )


def _most_records(experiment: Experiment, setup: ArmSetup) -> int | None:
    """Return the largest number of records of a user of the study; None if a policy does not depend on it."""
    if setup.records is not None or math.isfinite(setup.policy.total):
        return None
    split, holders, _ = data_parts(experiment)
    _, test_holders = check_asked(experiment.data, experiment.population, experiment.shuffle, split.test)
    return max(holders.most, test_holders.most)


def _first_request(experiment: Experiment, arm: Arm, public: Public) -> Request:
    """Return the first request of the arm's protocol; without training users, the request of inference."""
    texts = arm.public_only and arm.text is not None  # whose question is the same, and its model takes an hour
    setup = experiment.setup(replace(arm, way=None) if texts else arm)
    training = training_of(experiment)
    if isinstance(public.rewriter, StudyRewriter):  # the request does not depend on this pretraining
        public = replace(public, rewriter=replace(public.rewriter, pretrain=None))
    with threadpool_limits(1, user_api="blas"):  # as in a training server, whose maps must be equal to the last bit
        protocol = protocol_of(setup, training, public, folder=Path())
        try:
            request = next(protocol)
            protocol.close()
        except StopIteration as end:
            request = end.value.question()
    assert isinstance(request, Request)
    request = replace(request, arm="", stage="train", part=(0, 1))
    return request.without(LabelQuestion) if texts else request


def _listed(request: Request, *, teaching: bool, asking: bool) -> tuple[str, ...]:
    """Return the digests of requests that a device may answer: for training, and for inference without a label."""
    requests = [replace(request, split="train")] if teaching else []
    if asking or request.find(TextQuestion) is not None:  # inference releases a text, as training does
        requests.append(replace(request, split="test").without(LabelQuestion))
    return tuple(sorted({item.digest(channel) for item in requests for channel in item.channels}))


def _write(
    name: str,
    setup: ArmSetup,
    request: Request,
    public: Public,
    out: Path,
    *,
    records: int | None,
    teaching: bool = True,
    asking: bool = False,
    keys: Keys,
    window: float,
) -> Bundle:
    """Write the bundle. teaching and asking state whether its request is that of training or of inference."""
    policy = policy_of(setup, request, teaching=teaching, records=records)
    policy = replace(policy, window=window, questions=_listed(request, teaching=teaching, asking=asking))
    # a bundle that its own device would refuse is our fault
    policy.check(replace(request, split="train" if teaching else "test"))
    parts = Parts()
    if isinstance(public.rewriter, StudyRewriter):
        parts = Parts(vocabulary=public.rewriter.folder, masked_lm=public.rewriter.masked_lm)
    elif public.encoder is not None:
        parts = Parts(encoder=public.encoder.folder, precision=public.encoder.precision)
    return write_bundle(
        out,
        request,
        policy,
        name=name,
        arm=setup.arm.name,
        classes=public.classes,
        made_by=f"sottovoce {version('sottovoce')}",
        parts=parts,
        keys=keys,
    )


def chosen(experiment: Experiment, name: str | None) -> ArmSetup:
    """Return the setup of the arm of a name, or of the only arm that has devices.

    Args:
        experiment: The study.
        name: Name of the arm; None if there is only one.

    Raises:
        UserError: There is no such arm, or more than one without a name.
    """
    if not experiment.training.protocol.private:
        raise UserError('training.protocol: "paper" is a trusted simulation; a device has no part in it')
    own = experiment.training.protocol
    fit = [
        setup
        for setup in experiment.setups
        if not setup.arm.reference
        and (setup.arm.statistic if setup.protocol.releases_vector else setup.arm.embedding or setup.arm.text)
        and setup.protocol.releases_text == own.releases_text
    ]
    names = ", ".join(f'"{setup.arm.name}"' for setup in fit)
    results = [setup for setup in experiment.setups if name in (setup.arm.name, slug(setup.arm.name))]
    if results and results[0].protocol.releases_text != own.releases_text:
        raise UserError(
            f'--arm "{name}": texts beside training.protocol = "{own}" are for simulations; to deploy them, write an '
            'experiment with training.protocol = "sanitized-text"'
        )
    if not fit:
        raise UserError(f"{experiment.name}: has no arm whose users release anything under a guarantee")
    if name is None:
        if len(fit) > 1:
            raise UserError(f"--arm: is missing; choose one of {names}")
        return fit[0]
    if not results:
        raise UserError(f'--arm "{name}": there is none; choose one of {names}')
    if results[0] not in fit:
        raise UserError(f'--arm "{name}": is a reference, or releases nothing; choose one of {names}')
    return results[0]


def _at(experiment: Experiment, precision: str | None) -> Experiment:
    """Return the study with an encoder of that precision.

    Raises:
        UserError: There is no such precision, or users release texts.
    """
    if precision is None:
        return experiment
    if experiment.training.protocol.releases_text:
        raise UserError("--precision: is the encoder's, and users of this study release texts, which need none")
    return replace(experiment, encoder=replace(experiment.encoder, precision=precision))


def _public(experiment: Experiment) -> Corpus:
    return load_split(experiment.data, experiment.population, experiment.seed)[0].public


def _same(run: Path, what: str, was: str | None, now: str) -> None:
    if was != now:
        raise UserError(
            f"--run {run}: its {what} cannot be made again: it was {str(was)[:16]}…, and here it becomes {now[:16]}…; "
            "run the study again with this version"
        )


# --- policy


def policy_of(setup: ArmSetup, request: Request, *, teaching: bool, records: int | None = None) -> Policy:
    """Return the policy of a device that answers `request` and queries the arm's model.

    For each record, a channel's limit is the cost of the arm's own release. For each user, the total and the number of
    releases are those of `records` training records (if `teaching`) and of as many queries, and never more than the
    study's. A declaration of the study as public is kept only if this arm needs it.

    Args:
        setup: The arm.
        request: Request of the bundle.
        teaching: Whether it is the request of training.
        records: Records of a user; None if each user of the study has one, or the study sets a total.
    """
    study = setup.policy
    training = {item.channel: item.mechanism for item in request.questions if teaching}
    query = _question(study, setup.arm, request)
    mechanisms = [*training.items(), *query.items()]
    exposed = {name for _, mechanism in mechanisms for name in mechanism.guarantee.exposes}
    clear_channels = {channel for channel, m in mechanisms if math.isinf(study.cost(m.guarantee).epsilon)}
    declarations = tuple(
        entry for entry in study.accept_unprotected if entry.partition(":")[0].strip() in exposed | clear_channels
    )
    policy = replace(study, accept_unprotected=declarations, mechanisms=tuple(sorted({m.name for _, m in mechanisms})))
    prices = [(channel, policy.cost(m.guarantee)) for channel, m in mechanisms]
    priced = [(channel, cost.epsilon) for channel, cost in prices if channel not in clear_channels]
    limits: dict[str, Any] = {
        channel: max((epsilon for name, epsilon in priced if name == channel), default=0.0) for channel in CHANNELS
    }
    policy = replace(policy, **limits)
    records = setup.records if records is None else records
    if records is None:
        return policy
    # A user has one user vector, whatever the number of records.
    times = [1 if QUESTIONS[channel].of_user else records for channel, _ in prices]
    charged = (
        n * cost.epsilon for n, (channel, cost) in zip(times, prices, strict=True) if channel not in clear_channels
    )
    return replace(policy, total=min(study.total, sum(charged)), releases=min(study.releases, sum(times)))


def _question(policy: Policy, arm: Arm, request: Request) -> Mapping[str, Mechanism]:
    """Return the most expensive mechanism that a user may need for a query of the arm's model."""
    if (answer := answer_of(arm, request.classes)) is not None:
        return {ANSWER.name: answer}
    if (text := request.find(TextQuestion)) is not None:
        return {text.channel: text.mechanism}
    if arm.embedding is None:
        return {}
    return {EMBEDDING.name: max(embeddings_of(arm), key=lambda m: policy.cost(m.guarantee).sums)}
