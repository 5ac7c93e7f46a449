"""Protocol statistics: users release one vector each, and the head follows from their mean in closed form.

A user vector says how features go with labels. With self-training, a group's model labels public text, which trains an
encoder. The next group answers under that encoder. Each user answers once, and nothing of a user enters but the mean of
a group.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import softmax

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.channels import ANSWER, EMBEDDING, VECTOR
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import CLIP_STEPS, VectorQuestion, decoded
from mechanisms.messages.release import Release
from mechanisms.messages.request import Request
from mechanisms.privunit import PrivUnit
from mechanisms.projection import constant_share
from server.maps import Maps, factored, pca_maps, rescaled
from server.protocols.declaration import Alone, Option, TrainingProtocol
from server.protocols.models import ENCODER, STUDENT, EmbeddingModel
from server.protocols.protocol import Channels, Conversation, Encoding, Public, Publish, Training
from server.training.class_names import RATE, name_probabilities, pseudo_labels
from server.training.descent import DPSGD
from server.training.public_maps import dim_of
from server.training.robust_mean import MAX_TESTED, BatchTest, honest_moment, robust_mean
from server.training.statistic_head import (
    CANDIDATES,
    FALSE_ALARM,
    SHARED,
    Evidence,
    Prospects,
    covering_features,
    expected_gain,
    head_with_names,
    linear_head,
    mean_noise,
    of_labels,
    of_users,
    records_of,
    shared_codes,
    simplex_codes,
    swapped_names,
    vector_mean,
    wide_features,
)

log = logging.getLogger(__name__)

#: Share of a query's length that is left to undecided directions. For two classes it is next to nothing, because a
#: query is then a sign. SST-2, 19,903 private phrases, m' = 2: accuracy on the device .810. Queries under κ = 1, 2 and
#: 4: .694, .776 and .806 with .1 left, .701, .782 and .808 with .01 or less.
REST = 0.01
#: Parts of the public labels, each left out once, to see whether labels or class names are better.
FOLDS = 5
#: Factor of the first head's logits, whose classes of public text take the place of class names in the second. Noise
#: shrinks logits: on queues they state .55 where .86 are right.
SHARPENED = 2.0
#: Doublings of a user for which a forecast is made: up to half a billion users.
MOST_DOUBLINGS = 30
#: Name of the student that is the experiment's own encoder.
SAME = "same"
#: Number of groups of users, and training of the encoder between them.
ROUNDS = Option("rounds", 1, "Number of groups of disjoint users that release vectors, one after another.", least=1)
SELF_TRAINING = Option(
    "self_training",
    False,
    "True if the model of one group labels public text, on which the encoder of the next group "
    "and of the final model is trained.",
)
STUDENT_ENCODER = Option(
    "student",
    SAME,
    "Encoder that self-training fine-tunes, named as in encoder.model, so that a large encoder labels "
    'public text for a small one that devices run; "same" for the experiment\'s.',
)
STUDENT_EPOCHS = Option("student_epochs", 3, "Number of epochs of self-training.", least=1)
RECORDS = Option(
    "records",
    1,
    "Number of records of a typical user, from public knowledge. A user's mean is clipped at C, the root mean square "
    "length of a mean of so many public texts: the noise variance falls by C² at the same ε. 1 clips nothing. "
    "Estimates count so many records of each user.",
    least=1,
)
ROBUST = Option(
    "robust", True, "True if user vectors that honest users would not have released are left out of their mean."
)
#: Measured (MiniLM; expected gain, change of accuracy): banking77, 9,000 users, ε = 6: .004, -.005; AG News, 300,
#: ε = 3: .011, +.001; CR, 300, ε = 3: .022, +.036.
LEAST_GAIN = Option(
    "least_gain",
    0.01,
    "Least expected gain of user vectors over class names, as a share of what class names explain. Below it, no user "
    "is queried. This assumes that the names are right. 0 always queries.",
)


@dataclass(frozen=True, eq=False)
class Belief:
    """Labels of public text that training uses.

    Args:
        values: Labels (n,), -1 for an unknown one, or probabilities of classes (n, K).
        by_names: Whether the probabilities come from class names, not from a model.
        doubt: Warning that public labels contradict class names, without a full stop; "" if there is none.
    """

    values: NDArray[Any]
    by_names: bool = False
    doubt: str = ""

    @property
    def rows(self) -> IntArray:
        """Return the rows of public text with a label or with label probabilities."""
        return np.arange(len(self.values)) if self.values.ndim == 2 else np.flatnonzero(self.values >= 0)

    def evidence(self, features: NDArray[Any], codes: NDArray[np.float32]) -> Evidence:
        """Return the `Evidence` of these labels on the features (n, d) of public text."""
        rows = self.rows
        return of_labels(features[rows], self.values[rows], codes, by_names=self.by_names)


@dataclass(eq=False)
class Batches:
    """Means of batches of user vectors, with tests for dishonest users and for swapped class names.

    Args:
        robust: Whether `robust_mean` drops reports that no honest user would have sent.
        like_public: Whether each user holds one text, of public text's domain, so that public text gives its law.
        classes: Names of the classes.
    """

    robust: bool
    like_public: bool
    classes: Sequence[str] = ()
    tests: list[BatchTest] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def mean(
        self, mechanism: Mechanism, release: Release, features: FloatArray, codes: NDArray[np.float32]
    ) -> tuple[FloatArray, float]:
        """Return the debiased mean (D,) of a batch, and the variance of its noise in each coordinate.

        Args:
            mechanism: Mechanism of the vectors.
            release: Vectors.
            features: Features (N, d) of public text.
            codes: Codes of labels.
        """
        if not isinstance(mechanism, PrivUnit) or mechanism.dim > MAX_TESTED or not mechanism.scale or len(release) < 2:
            return vector_mean(mechanism, release.values)
        honest = honest_moment(mechanism, features if self.like_public else None, codes.shape[1])
        estimate = robust_mean(mechanism, release.values, honest, codes.shape[1])
        test = BatchTest(release.stage, len(release), estimate.excess, estimate.dropped if self.robust else 0.0)
        self.tests.append(test)
        if test.alarm:
            log.warning(f"stage {release.stage}: {test.finding}")
        if not self.robust:
            return vector_mean(mechanism, release.values)
        return estimate.mean, mean_noise(mechanism, users=int(estimate.kept.sum()))

    def compare(self, features: FloatArray, likely: NDArray[Any], users: Evidence) -> None:
        """Add a doubt if users contradict the names of two classes."""
        pair = swapped_names(features, likely, simplex_codes(len(self.classes)), users)
        if pair is not None:
            first, second = (self.classes[k] for k in pair)
            self.doubts.append(
                f'users contradict the class names of "{first}" and "{second}" beyond their noise: names may be swapped'
            )
            log.warning(self.doubts[-1])


def statistics(public: Public, channels: Channels, training: Training, *, folder: Path) -> Conversation:
    """Train on groups of users, one group after another, each user in one group.

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        folder: Folder for the encoders that are trained.
    """
    assert public.encoder is not None and public.embeddings is not None
    encoder, embeddings = public.encoder, public.embeddings
    rounds, self_training = ROUNDS.of(training.options), SELF_TRAINING.of(training.options)
    group = first_group(public, channels, training)
    maps, user_maps = None, None
    batches = Batches(ROBUST.of(training.options), channels.one_record and not public.elsewhere, public.classes)
    if group.believed is not None and group.believed.doubt:
        batches.doubts.append(group.believed.doubt)
        log.warning(group.believed.doubt)
    gain = group.gain_beyond_names()
    if gain is not None and gain < (least := LEAST_GAIN.of(training.options)):
        log.info(f"{channels.arm}: no user is queried: {not_worth(gain, least, channels.users)}")
        channels = replace(channels, teaching=False, statistic=None, curator=None)
        group = replace(group, channels=channels)
    for number in range(rounds):
        release = yield from group.request(encoder, (number, rounds))
        user_maps = group.frame if channels.teaching else None
        maps = group.maps(release, batches, seed=[training.seed, number])
        if maps is None:
            return None
        if not self_training:
            break
        from server.export import export_encoder  # loads torch, which a head on user vectors alone does without
        from server.training.finetune import finetune

        last = number + 1 == rounds
        believed = Belief(pseudo_labels(maps, embeddings, public.labels))
        place = folder if last else folder / f"round-{number + 1}"
        student = finetune(
            training.student or public.checkpoint,
            public.texts,
            believed.values,
            place / STUDENT,
            classes=channels.classes,
            epochs=STUDENT_EPOCHS.of(training.options),
            lr=RATE,
            batch_size=training.batch_size,
            seed=training.seed,
            pooling=training.pooling,
            max_length=training.max_length,
        )
        export_encoder(student, place / ENCODER, **training.export)
        encoder = yield Publish(place / ENCODER, splits=("test" if last else "train",))
        embeddings = encoder.embed(public.texts)
        group = replace(group, embeddings=embeddings, believed=believed)
        if last:
            maps = _head(group.frame, embeddings, believed, None)
    assert maps is not None
    mechanism = channels.embedding[0] if channels.asking else None
    if mechanism is not None:
        maps = rescaled(maps, public=embeddings, dim=dim_of(mechanism), rest=REST)
    return EmbeddingModel(channels, encoder, mechanism, maps, user_maps, tuple(batches.tests), tuple(batches.doubts))


def first_group(public: Public, channels: Channels, training: Training) -> Group:
    """Return the group of users that is asked first; it exists before anybody is asked."""
    assert public.embeddings is not None
    codes = codes_asked(public, SELF_TRAINING.of(training.options))
    believed = first_belief(public, public.embeddings)
    return Group(public.embeddings, believed, channels, codes, RECORDS.of(training.options))


def codes_asked(public: Public, self_training: bool) -> NDArray[np.float32]:
    """Return the codes of labels (K, c) for the request.

    If public text is of another domain, the codes have a coordinate that tells where users' features are. They do not
    have it if the head is to label public text.
    """
    shared = public.elsewhere and not self_training
    return shared_codes(len(public.classes)) if shared else simplex_codes(len(public.classes))


def first_belief(public: Public, embeddings: NDArray[np.float32]) -> Belief | None:
    """Return the labels of public text that the first group's training believes; None if there are none.

    All labels may be public, or none; then class names, if they say something, take their place. If some are public,
    these decide which is better on them: the names, or a head from labels, cross-validated.
    """
    labels, names = public.labels, public.names
    belief = None if labels is None else Belief(labels)
    if names is None or (belief is not None and len(belief.rows) == len(embeddings)):
        return belief
    likely = Belief(name_probabilities(names, embeddings, labels), by_names=True)
    if labels is None or belief is None or len(belief.rows) < FOLDS:
        return likely
    rows = belief.rows
    guesses = name_probabilities(names, embeddings)[rows].argmax(axis=1)
    right, doubt = guesses == labels[rows], _doubt(guesses, labels[rows], len(public.classes))
    better = right.mean() >= _left_out(embeddings, labels, rows, len(public.classes)).mean()
    return replace(likely if better else belief, doubt=doubt)


def _doubt(guesses: IntArray, labels: IntArray, classes: int) -> str:
    """Return a sentence if guesses by class names are right less often than guesses that ignore the text; else "".

    By a binomial test at FALSE_ALARM. Chance is the agreement of independent guesses and labels of these frequencies.
    """
    shares = [np.bincount(of, minlength=classes) / len(of) for of in (guesses, labels)]
    chance, right = float(shares[0] @ shares[1]), int((guesses == labels).sum())
    if stats.binom.cdf(right, len(labels), chance) >= FALSE_ALARM:
        return ""
    return (
        f"class names are right about {right:,} of {len(labels):,} public labels, less than by chance "
        f"({chance:.1%}): names may be swapped"
    )


def _left_out(embeddings: NDArray[np.float32], labels: IntArray, rows: IntArray, classes: int) -> BoolArray:
    """Return whether a head from the other folds' labels is right, for each labelled row."""
    codes, fold = simplex_codes(classes), np.arange(len(rows)) % FOLDS
    dim = Prospects(embeddings, codes).best(lambda size: 0.0, users=len(rows))[0]
    features = pca_maps(embeddings, dim=dim, classes=classes).project(embeddings)
    right = np.zeros(len(rows), bool)
    for out in range(FOLDS):
        kept, fold_rows = rows[fold != out], rows[fold == out]
        weight, bias = linear_head(features, codes, labels=of_labels(features[kept], labels[kept], codes))
        right[fold == out] = (features[fold_rows] @ weight + bias).argmax(axis=1) == labels[fold_rows]
    return right


@dataclass(frozen=True, eq=False)
class Group:
    """Group of users, and what the server knows before it asks them.

    Args:
        embeddings: Public embeddings (n, m).
        believed: Labels of public text; None if there are none.
        channels: Releases of the arm's users.
        codes: Codes of labels in the request (K, c).
        records: Number of records that a user is assumed to hold.
    """

    embeddings: NDArray[np.float32]
    believed: Belief | None
    channels: Channels
    codes: NDArray[np.float32]
    records: int

    @cached_property
    def frame(self) -> Maps:
        """Return the maps from embeddings to features.

        They are the most informative number of principal components of public text. Without training users, that
        number follows from labels without noise. With class names, users' vectors have as many features as the names
        need.
        """
        channels, features = self.channels, self.channels.features
        if features is None:
            answers = channels.users if channels.teaching else 0 if self.believed is None else len(self.believed.rows)
            features, _ = self._best(max(answers, 1))
        if channels.asking:
            features = max(features, dim_of(channels.embedding[0]))
        return pca_maps(self.embeddings, dim=features, classes=channels.classes)

    @cached_property
    def clip(self) -> float:
        """Return C, at which users' means are clipped (`mechanisms.projection.signed_directions`)."""
        return self._clip(self.frame)

    def expected(self) -> tuple[float, int | None]:
        """Return what users should teach, as a share of what they would without noise, and how many would teach half.

        It assumes that directions of public text go with labels as in the corpora of `statistic_head.DECAY`. It knows
        neither whether the encoder holds the labels, nor how much names say already: the page on one vector holds it
        against nine tasks. None: half would take more than are forecast.
        """
        share = self._best(max(self.channels.users, 1))[1]
        half = next((2**k for k in range(MOST_DOUBLINGS) if self._best(2**k)[1] >= 0.5), None)
        low = 0 if half is None else half // 2
        while half is not None and half - low > max(1, half // 32):
            middle = (low + half) // 2
            low, half = (low, middle) if self._best(middle)[1] >= 0.5 else (middle, half)
        return share, half

    def noise(self, users: int, size: int, clip: float) -> float:
        """Return the variance of the noise in each coordinate of users' mean, whose vectors have `size` coordinates.

        Its standard deviation is proportional to C: C bounds a user's effect on a curator's sum, and scales a
        mechanism's releases.
        """
        curator, statistic = self.channels.curator, self.channels.statistic
        if isinstance(curator, DPSGD):
            return curator.noise_of_mean(size, users)
        if curator is not None:
            return (clip * curator.sigma / users) ** 2
        return 0.0 if statistic is None else clip**2 * mean_noise(statistic(size), users=users)

    def gain_beyond_names(self) -> float | None:
        """Return the expected gain of users' vectors beyond class names; None if no names are believed.

        Neither names nor users have been checked: the names are assumed to be right (`expected_gain`).
        """
        if not self.channels.teaching or self.believed is None or not self.believed.by_names:
            return None
        users = max(self.channels.users, 1)
        noise = self.noise(users, self.codes.shape[1] * (self.frame.dim + 1), self.clip) / self._signal
        features = self.frame.project(self.embeddings)
        return expected_gain(features, self.believed.values, self._own, noise, users=users * self.records)

    def request(self, encoder: Encoding, part: tuple[int, int]) -> Generator[Request, Batch, Release | None]:
        """Request user vectors from the group, (number, groups); return None if nobody is asked or nothing arrives."""
        if not self.channels.teaching:
            return None
        stage = "train" if part[1] == 1 else f"train-{part[0] + 1}"
        request = self.channels.statistics(
            encoder.identity, self.frame, self.codes, clip=self.clip, stage=stage, part=part
        )
        size = request.question(VectorQuestion).dim
        clipped = f", means clipped at {self.clip:.3f}" if self.clip < 1 else ""
        log.info(f"stage {stage}: {self.frame.dim} features, {size} coordinates of a user{clipped}")
        return (yield request).of(VectorQuestion)

    def maps(self, release: Release | None, batches: Batches, *, seed: list[int]) -> Maps | None:
        """Return the head from the group's release and labels of public text, after its maps; None if both are missing.

        A vector about many classes tells few features of each. A second head takes the first one's classes of public
        text as class names: where texts of a class are alike, other features follow from them (`_with_names`). This is
        post-processing. Of two classes a vector tells as many features as its size: a second head then changes accuracy
        by -.015 to +.019 (CR, SST-2, POPQUORN, Subj, seed 1), and there is none. Nor is there one of fewer than K - 1
        features, which cannot hold K classes apart, so that the first head confuses some: -.003 to -.017 with 77
        classes by 24 features. Nor is there one if public text has labels, or is of another domain than users' text.

        Args:
            release: Users' vectors; None if nobody was asked.
            batches: Means of batches, and their tests for dishonest users.
            seed: Seed of a trusted curator's draws.
        """
        frame, embeddings, believed, users = self.frame, self.embeddings, self.believed, None
        if release is not None:
            assert self.channels.statistic is not None
            mechanism = self.channels.statistic(self.codes.shape[1] * (frame.dim + 1))
            if isinstance(self.channels.curator, DPSGD):
                user_records = records_of(decoded(mechanism, release.values), self.codes)
                return _descended(frame, embeddings, believed, user_records, self.channels.curator, seed)
            users = self._evidence(mechanism, release, batches, seed)
        if users is None and believed is None:
            return None
        if users is None or (believed is not None and not believed.by_names):
            return _head(frame, embeddings, believed, users)
        first = _head(frame, embeddings, None, users) if believed is None else self._with_names(believed.values, users)
        elsewhere, classes = users.mean is not None, self.channels.classes
        if elsewhere or classes == 2 or frame.dim < classes - 1:
            return first
        return self._with_names(softmax(SHARPENED * first.logits(first.project(embeddings)), axis=1), users)

    def _with_names(self, likely: NDArray[Any], users: Evidence) -> Maps:
        """Return a head from users' vectors and probabilities of classes (n, K) by class names or an earlier head.

        It has as many features as public text supports, unless users report where theirs are.
        """
        frame = self.frame
        if users.mean is None and wide_features(self.embeddings) > frame.dim:
            frame = self._widest
        weight, bias = head_with_names(frame.project(self.embeddings), likely, self._own, users)
        return factored(frame.mean, frame.m1, weight, bias)

    def _evidence(self, mechanism: Mechanism, release: Release, batches: Batches, seed: list[int]) -> Evidence | None:
        """Return the evidence in the group's release; None if it says nothing (ε = 0)."""
        clip, features = self.clip, self.frame.project(self.embeddings)
        if self.channels.curator is None:
            mean, noise = batches.mean(mechanism, release, features, self.codes)
            mean, noise = clip * mean, clip**2 * noise
        else:
            vectors = decoded(mechanism, release.values)  # the grid may lengthen a vector of length 1
            vectors *= np.minimum(1, clip / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300))
            noise = self.noise(len(release), vectors.shape[1], clip)
            mean = vectors.mean(axis=0)
            mean = mean + np.random.default_rng(seed).normal(scale=noise**0.5, size=len(mean))
        if np.isinf(noise):
            return None
        users = of_users(mean, noise, users=len(release) * self.records, codes=self.codes)
        if self.believed is not None and self.believed.by_names:
            # a row a user: whatever the number of records is, this alarm keeps its rate
            batches.compare(features, self.believed.values, replace(users, rows=len(release)))
        return users

    @property
    def _own(self) -> NDArray[np.float32]:
        """Return the codes without the coordinate that all classes share."""
        return simplex_codes(self.channels.classes)

    @property
    def _signal(self) -> float:
        """Return the share of a vector's squared length that tells labels."""
        return 1 - SHARED if self.codes.shape[1] > self._own.shape[1] else 1.0

    @cached_property
    def _prospects(self) -> Prospects:
        fixed = CANDIDATES if self.channels.features is None else (self.frame.dim,)
        return Prospects(self.embeddings, self._own, length=self.codes.shape[1], candidates=fixed)

    @cached_property
    def _least(self) -> int:
        """Return the number of features that the names need, if users' vectors are to correct names."""
        if self.believed is None or not self.believed.by_names or not self.channels.teaching:
            return 0
        return covering_features(self.embeddings, self.believed.values, self._own)

    @cached_property
    def _widest(self) -> Maps:
        """Return the maps to as many features as public text supports."""
        return pca_maps(self.embeddings, dim=wide_features(self.embeddings), classes=self.channels.classes)

    @cached_property
    def _widest_clip(self) -> float:
        """Return C under the widest frame: the length of a mean of records hardly depends on the number of features."""
        return 1.0 if self.records == 1 else self._clip(self._widest)

    def _best(self, users: int) -> tuple[int, float]:
        """Return the best number of features for so many users, and what they should teach (`Prospects.best`)."""
        c = self._own.shape[1]
        return self._prospects.best(
            lambda size: self.noise(users, size // c * self.codes.shape[1], self._widest_clip) / self._signal,
            users=users * (self.records if self.channels.teaching else 1),
            least=self._least,
        )

    def _clip(self, frame: Maps) -> float:
        """Return C under a frame; 1 where means need not be clipped.

        It is the root mean square length of the mean of m records whose vectors x are drawn independently from public
        text with the believed labels, E|mean|² = 1/m + (1 - 1/m)·|E x|², rounded up to a step of the request. Without
        labels and class names all classes are taken as equally likely for each text, so that means of users with
        unequal classes are clipped, and the shares of frequent classes learnt too small. Public data and earlier
        releases enter alone: a C of users' own records would be a release without a guarantee.
        """
        channels, codes = self.channels, self.codes
        if self.records == 1 or not channels.teaching or channels.statistic is None:
            return 1.0
        in_clear = isinstance(channels.statistic(2 * codes.shape[1]), Identity)  # of any size: a frame may be too large
        if in_clear and not isinstance(channels.curator, Gaussian):
            return 1.0
        equal = np.full((len(self.embeddings), channels.classes), 1 / channels.classes)
        believed = Belief(equal) if self.believed is None else self.believed
        seen = believed.evidence(frame.project(self.embeddings), codes)
        share = constant_share(frame.dim)
        common = (1 - share) * float((seen.cross**2).sum()) + share * float((seen.constant**2).sum())
        length = math.sqrt(1 / self.records + (1 - 1 / self.records) * common)
        return min(math.ceil(length * CLIP_STEPS), CLIP_STEPS) / CLIP_STEPS


def not_worth(gain: float, least: float, users: int) -> str:
    """Return in words why no user is queried, without a full stop."""
    return (
        f"if the class names are right, {users:,} user vectors are expected to explain {gain:.2%} of what the names "
        f"explain, less than training.least-gain = {least:g}; 0 always queries"
    )


def _descended(
    frame: Maps,
    embeddings: NDArray[Any],
    believed: Belief | None,
    records: tuple[FloatArray, IntArray],
    curator: DPSGD,
    seed: list[int],
) -> Maps:
    """Return the head after a curator's steps on users' records, starting from the head of public labels."""
    public = frame.project(embeddings)
    start = np.zeros((frame.dim, frame.classes)), np.zeros(frame.classes)
    if believed is not None:
        codes = simplex_codes(frame.classes)
        start = linear_head(public, codes, labels=believed.evidence(public, codes))
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    weight, bias = curator.head(*records, public, start, seed=number)
    return factored(frame.mean, frame.m1, weight, bias)


def _head(frame: Maps, embeddings: NDArray[Any], believed: Belief | None, users: Evidence | None) -> Maps:
    """Return the frame with a head, from the users' mean and from labels of public text."""
    features, codes = frame.project(embeddings), simplex_codes(frame.classes)
    labels = None if believed is None else believed.evidence(features, codes)
    weight, bias = linear_head(features, codes, users=users, labels=labels)
    return factored(frame.mean, frame.m1, weight, bias)


def _check(options: Mapping[str, Any]) -> None:
    if ROUNDS.of(options) > 1 and not SELF_TRAINING.of(options):
        raise ValueError("rounds: must be 1 without self-training: with one encoder, all users in one round tell more")
    for option in (STUDENT_ENCODER, STUDENT_EPOCHS):
        if option.of(options) != option.default and not SELF_TRAINING.of(options):
            raise ValueError(f"{option.name.replace('_', '-')}: goes with self-training = true; set it, or remove this")


STATISTICS = TrainingProtocol(
    "statistics",
    "every user released one vector, of how features go with labels; the server learnt from their mean, "
    "and the rest is post-processing",
    steps=statistics,
    trains_on=frozenset({VECTOR.name}),
    queried=frozenset({EMBEDDING.name, ANSWER.name}),
    public_text=True,
    some_labels=True,
    encoder=True,
    checkpoint=True,
    alone=Alone.DESCRIBED,
    options=(RECORDS, ROUNDS, SELF_TRAINING, STUDENT_ENCODER, STUDENT_EPOCHS, ROBUST, LEAST_GAIN),
    stages=ROUNDS.of,
    check=_check,
)
