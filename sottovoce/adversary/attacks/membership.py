"""Membership inference for a record, from the trained model and from the releases.

The adversary (`adversary.estimators`) knows the target records, the trained model, public data, the protocol and, if
users release something, their releases. Only `adversary.attacks.scores` compares its guesses with the true
members. Attacks that set a threshold are the exception: they see the truth about one half of the records, and are
scored on the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.tokens import padded_word_ids
from mechanisms.channels import LABEL
from mechanisms.identity import Identity
from mechanisms.words.text import TextMechanism
from server.protocols.decoding import log_transition
from server.protocols.protocol import Public
from simulations.errors import UserError
from simulations.progress import prefixed
from sottovoce.adversary.attacks import scores as scores
from sottovoce.adversary.attacks.knowledge import Delivered, members_and_others, prepared
from sottovoce.adversary.attacks.knowledge import delivered as delivered_to
from sottovoce.adversary.attacks.target import Result, Skipped, Target, collect
from sottovoce.adversary.estimators import membership, presence
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.sequences import Table

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "membership-confidence": "how sure the model is of the record's own label",
    "membership-drops": "that of the record and of copies that lack words at random, on average (Du et al. 2023)",
    "membership-shadow": "a network of 64 hidden units, trained on what models of the server's own making say",
    "membership-lira": "the likelihood ratio of what the model says, record by record, from such models",
    "membership-releases": "whether one of the releases is the record's, by their likelihood, whatever the model says",
}
#: Explanation of their table's columns.
READING = (
    "Membership: of so many texts of training users and as many of nobody's, which are which? Success is balanced "
    "accuracy, and a coin has .5. Attacks that set a threshold choose it on one half of the records, whose "
    "membership they are told, and are scored on the other. AUC, and the share of members found where 1 % of the "
    "others are taken for some, are of all records and need no threshold. The theorem allows: the largest balanced "
    "accuracy that any guess about one record can have, (1 + TV)/2 with TV from the loss distributions of all that a "
    "record releases; 1 where a part of it is in clear."
)
#: Most public texts that represent the population of texts.
_POOL = 1000
#: Copies of each record with dropped words, and the share of words that each drops.
_COPIES, _DROPPED = 8, 0.1
_SHADOWS = ("membership-shadow", "membership-lira")


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of membership inference: see `Target`.

    Raises:
        UserError: The run's data or models are missing. The message is one line.
    """
    try:
        attack = _Membership.opened(target)
    except Skipped as why:
        return [], [f"{name} on {target.arm.name}: {why}" for name in names]
    return collect(names, lambda name: [attack.result(name)], on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _Membership:
    """Membership inference on one arm.

    model is the attacked model (`adversary.attacks.shadow_models`). members is the truth, for scores and for the half
    that sets thresholds.
    """

    target: Target
    public: Public
    model: Any
    members: BoolArray
    delivered: Delivered | None

    @classmethod
    def opened(cls, target: Target) -> _Membership:
        arm = target.arm
        if arm.public_only:
            raise Skipped("no user takes part in it")
        if arm.centralised:
            raise Skipped("nothing is released: its server has every text")
        from sottovoce.adversary.attacks.shadow_models import AttackedRecords, model_of

        delivery = delivered_to(target)
        run_data = prepared(target.run)
        member_rows = np.arange(len(run_data.held.train)) if delivery is None else delivery.rows(run_data.held)
        member_records, nonmembers, rng = members_and_others(target, run_data.held, member_rows)
        order = rng.permutation(2 * len(member_records))
        members = order < len(member_records)
        texts, labels = (
            [*member_records.texts, *nonmembers.texts],
            np.concatenate([member_records.labels, nonmembers.labels]),
        )
        records = AttackedRecords([texts[i] for i in order], labels[order], trained=len(member_rows))
        try:
            model = model_of(target, run_data.public, records)
        except ValueError as error:
            raise UserError(f'{target.run}: arm "{arm.name}": {error}') from error
        return cls(target, run_data.public, model, members, delivery)

    def result(self, name: str) -> Result:
        """Return one attack's result; raise Skipped if it does not apply."""
        shadow_counts: dict[str, Any] = {}
        if name in _SHADOWS:
            evidence, shadow_counts = self._by_shadows(name)
            rate, note, details = scores.of_members(evidence, self.members, 0.0)
        else:
            evidence = {
                "membership-confidence": lambda: membership.confidence(self._outputs, self.model.records.labels),
                "membership-drops": self._beside_drops,
                "membership-releases": self._by_releases,
            }[name]()
            rate, note, details = scores.of_members(evidence, self.members)
        arm = self.target.arm
        notes = [note]
        if "shadow_models" in shadow_counts:
            notes.append(f"{shadow_counts['shadow_models']} shadow models of {shadow_counts['shadow_texts']:,} texts")
        bound = self._allowed
        notes += [bound["bound_why"]] if bound["bound_why"] else []
        spec = arm.text or arm.embedding or {}
        return Result(
            attack=name,
            arm=arm.name,
            mechanism=spec.get("mechanism"),
            epsilon=spec.get("epsilon"),
            worst_case_epsilon=bound["worst_case_epsilon"],
            stage="every step" if self.delivered is None else self.delivered.stage,
            texts=int(self.members.sum()),
            rate=rate,
            baseline=0.5,
            bound=bound["bound"],
            bound_counts=bound["bound"],
            note="; ".join(notes),
            more={
                "others": int((~self.members).sum()),
                "trained": self.model.records.trained,
                "bound_protected": bound["bound_protected"],
                "bound_why": bound["bound_why"],
            }
            | details
            | shadow_counts,
        )

    # --- evidence from the model

    @cached_property
    def _outputs(self) -> FloatArray:
        try:
            result: FloatArray = self.model.outputs()
        except ValueError as error:
            raise UserError(f'{self.target.run}: arm "{self.target.arm.name}": {error}') from error
        return result

    def _beside_drops(self) -> FloatArray:
        """Return the mean confidence of each record and its copies; the model gets all copies at once."""
        records = self.model.records
        rng = np.random.default_rng([self.target.seed, 12])
        copies = [membership.without_words(t, share=_DROPPED, rng=rng) for _ in range(_COPIES) for t in records.texts]
        result = membership.confidence(self.model.outputs(copies), np.tile(records.labels, _COPIES))
        confidences = membership.confidence(self._outputs, records.labels)
        mean: FloatArray = (confidences + result.reshape(_COPIES, -1).sum(axis=0)) / (_COPIES + 1)
        return mean

    def _by_shadows(self, name: str) -> tuple[FloatArray, dict[str, Any]]:
        members, outputs, texts = self._shadows
        counts = {"shadow_models": len(members), "shadow_texts": texts}
        if name == "membership-lira":
            labels = self.model.records.labels
            shadows = np.stack([membership.scaled(item, labels) for item in outputs])
            return membership.likelihood_ratio(membership.scaled(self._outputs, labels), shadows, members), counts
        evidence = membership.shadow_network(np.concatenate(outputs), members.ravel(), seed=self.target.seed)
        return evidence(self._outputs), counts

    @cached_property
    def _shadows(self) -> tuple[BoolArray, list[FloatArray], int]:
        """Return each shadow model's training records (S, n), its outputs, and the least number of training texts."""
        count = self.target.shadows or self.model.shadows
        if count is None:
            raise Skipped("trains BERT anew for each shadow model; say how many with --shadows, as --shadows 8")
        rng = np.random.default_rng([self.target.seed, 11])
        members = membership.halves(len(self.members), count, rng=rng)
        outputs, texts = [], []
        for number, row in enumerate(members):
            if not number or number % max(1, count // 8) == 0:
                log.info(f"{self.target.arm.name}: shadow model {number + 1} of {count}")
            with prefixed(None):  # one line a model is enough
                log_probs, text_count = self.model.shadow(row, number)
            outputs.append(log_probs)
            texts.append(text_count)
        return members, outputs, min(texts)

    # --- evidence from the releases

    def _by_releases(self) -> FloatArray:
        delivery, model = self.delivered, self.model
        if delivery is None:
            raise Skipped("nothing is released in this way: its noise is drawn anew at every step")
        if delivery.w is not None:
            return self._by_texts(delivery.w)
        assert delivery.z is not None
        public, labels = self.public, None
        response: Any = model.channels.label
        if delivery.y is not None and public.labels is not None and not response.needs_prior:
            if isinstance(response, Identity):
                law = np.where(delivery.y[:, None] == np.arange(len(public.classes)), 0.0, -np.inf)
            else:
                law = log_transition(response, delivery.y, classes=len(public.classes))
            labels = law, model.records.labels, public.labels
        return presence.embedding_evidence(
            model.mechanism, delivery.z, model.units(model.embeddings), model.units(public.embeddings), labels=labels
        )

    def _by_texts(self, released: IntArray) -> FloatArray:
        text: TextMechanism = self.model.text
        word_ids, public = (
            padded_word_ids(item, text) for item in (self.model.records.texts, self.public.texts[:_POOL])
        )
        try:
            channel = Channel(text, self.target.seed)
        except ValueError:  # more than the word in its place decides a released word
            return presence.overlap(released, word_ids, len(text.vocabulary))
        table = Table.of(channel, np.concatenate([word_ids, public]), released)
        try:
            return presence.text_evidence(table, released, word_ids, public)
        except ValueError as error:
            raise Skipped(str(error)) from error

    # --- bounds of the theorem

    @cached_property
    def _allowed(self) -> dict[str, Any]:
        """Return bound, worst_case_epsilon, bound_protected and bound_why.

        bound_protected is between records that agree in their public part.
        """
        arm = self.target.arm
        if self.delivered is None:
            return {
                "bound": 1.0,
                "bound_protected": None,
                "worst_case_epsilon": math.inf,
                "bound_why": "nothing is promised: gradients depend on raw text",
            }
        data = self.model.text if arm.text is not None else self.model.mechanism
        label = self.model.channels.label
        declarations = self.target.setup.declared
        names = data.guarantee.exposes
        public = [name for name in names if name in declarations]
        worst = data.guarantee.worst_case(declared=tuple(public))
        # a text's draws compose more tightly than the text's own theorem, which alone knows what it exposes
        parts = list(data.parts()) if arm.text is not None and not names else [(data, 1)]
        if arm.label is None and LABEL.name in declarations:
            public.append(LABEL.name)
        else:
            worst += label.guarantee.worst_case()
            parts.append((label, 1))
        result = membership.bound(parts) if set(names) <= set(declarations) else 1.0
        reason = ""
        if public and not arm.reference:
            reason = f"{' and '.join(public)} in clear: between records alike in that, the theorem allows {result:.3g}"
        return {
            "bound": 1.0 if public else result,
            "bound_protected": result,
            "worst_case_epsilon": worst,
            "bound_why": reason,
        }
