"""Maps, their training on public data, and the head's training on releases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechanisms.gaussian import Gaussian
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.streams import SimulationStreams
from server.maps import SHARPEN, Maps, factored, pca_maps, rescaled
from server.training.head import train_head
from server.training.noise import Noise, sanitize_public
from server.training.public_maps import learn_maps

WIDTH, NAMES = 24, ("mean", "m1", "m2", "head_w", "head_b")


def corpus(n: int, classes: int, *, seed: int, gap: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings whose classes differ in small coordinates, under larger ones that say nothing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    centres = np.random.default_rng(99).standard_normal((classes, 6)) * gap
    h = rng.standard_normal((n, WIDTH))
    h[:, :6] = 0.5 * (centres[y] + h[:, :6])
    h[:, 6:] *= 2.0
    return (h + 5.0).astype(np.float32), y


def random_maps(dim: int = 4, classes: int = 3) -> Maps:
    rng = np.random.default_rng(0)
    return factored(
        rng.standard_normal(WIDTH),
        rng.standard_normal((WIDTH, dim)),
        rng.standard_normal((dim, classes)),
        np.ones(classes),
    )


def randomized(y: np.ndarray, epsilon: float, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Released labels, and the probability of each under each class."""
    response = RandomizedResponse(epsilon, classes)
    rows = SimulationStreams(3).rows(np.arange(len(y)), np.zeros(len(y), np.int64), stage="users", channel="label")
    labels = response.sample(y, rng=rows)
    columns = [response.log_prob(labels, np.full(len(y), k)) for k in range(classes)]
    return labels, np.exp(np.stack(columns, axis=1))


def test_folded_maps_predict_what_the_maps_do() -> None:
    maps = random_maps()
    z = maps.project(np.random.default_rng(1).standard_normal((50, WIDTH)))
    weight, bias = maps.folded()
    np.testing.assert_allclose(z @ weight + bias, maps.logits(z), atol=1e-5)


def test_saved_maps_come_back_and_a_broken_file_is_one_line(tmp_path) -> None:
    maps = random_maps()
    maps.save(tmp_path)
    again = Maps.load(tmp_path)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(again, name), getattr(maps, name))
    (tmp_path / "maps.safetensors").write_bytes(b"nonsense")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"^maps: [^\n]* cannot be read[^\n]*$"):
            Maps.load(folder)


@pytest.mark.parametrize(("classes", "spread"), [(2, 0.1), (3, 10.0)])
def test_sharpened_maps_keep_nearly_all_decisions_without_a_bias(classes, spread) -> None:
    maps = random_maps(dim=4, classes=classes)
    maps = Maps(maps.mean, maps.m1, maps.m2, maps.head_w, np.linspace(0.5, -0.5, classes))
    _, _, vt = np.linalg.svd(maps.folded()[0].T @ maps.m1.T)
    stretch = np.full(WIDTH, spread)  # how long texts are beside what decides: the bias is in units of that length
    stretch[: classes - 1] = 1.0
    h = np.random.default_rng(1).standard_normal((4000, WIDTH)) * stretch @ vt + maps.mean
    sharp = rescaled(maps, public=h[:2000])
    assert np.ptp(sharp.folded()[1]) < 1e-6
    ignored = Maps(maps.mean, maps.m1, maps.m2, maps.head_w, np.zeros(classes))
    before = maps.predict(maps.project(h[2000:]))
    agreement = (sharp.predict(sharp.project(h[2000:])) == before).mean()
    without = (ignored.predict(ignored.project(h[2000:])) == before).mean()
    # a cone about the mean becomes a hyperplane beside it: not the same, but the bias is not lost
    assert agreement > 0.9 and 1 - agreement < 0.6 * (1 - without)


def test_sharpening_shrinks_only_what_the_head_does_not_read() -> None:
    maps = random_maps(dim=4, classes=3)
    sharp = rescaled(maps, public=np.random.default_rng(1).standard_normal((100, WIDTH)))
    weight = maps.folded()[0].astype(np.float64)
    read, _, _ = np.linalg.svd(weight - weight.mean(axis=1, keepdims=True))
    before, after = maps.m1 @ read, sharp.m1 @ read  # three classes: two contrasts
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-5)
    np.testing.assert_allclose(after[:, 2:], SHARPEN * before[:, 2:], atol=1e-5)


def test_components_are_found_once_for_the_same_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other values, or of the same bytes in another shape, they are found anew, and right each time."""
    calls, eigh = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda c: calls.append(c.shape) or eigh(c))
    h = np.random.default_rng(7).standard_normal((12, 6))
    asked = ((h, 2), (h.copy(), 4), (h.reshape(6, 12), 4), (h + 1, 2))
    made = [pca_maps(rows, dim=dim, classes=2) for rows, dim in asked]
    assert calls == [(6, 6), (12, 12), (6, 6)]
    np.testing.assert_array_equal(made[0].m1, made[1].m1[:, :2])
    for maps, (rows, _) in zip(made, asked, strict=True):
        np.testing.assert_allclose(maps.mean, rows.mean(axis=0), rtol=1e-5, atol=1e-6)
        scores = (rows - rows.mean(axis=0)) @ maps.m1
        np.testing.assert_allclose(np.cov(scores, rowvar=False), np.diag(scores.var(axis=0, ddof=1)), atol=1e-5)


def test_maps_whose_head_knows_nothing_are_not_sharpened() -> None:
    maps = pca_maps(np.random.default_rng(1).standard_normal((50, WIDTH)), dim=4, classes=2)
    assert rescaled(maps, public=np.ones((3, WIDTH))) is maps


def test_maps_that_do_not_fit_are_refused() -> None:
    fields, bad = {name: getattr(random_maps(), name) for name in NAMES}, (np.nan, np.inf, -np.inf)
    numbers = [{name: np.where(a == a.max(), number, a)} for name, a in fields.items() for number in bad]
    for change in [{"m1": np.zeros((WIDTH, 1))}, {"mean": np.zeros(3)}, *numbers]:
        with pytest.raises(ValueError, match=r"^maps: "):
            Maps(**(fields | change))


@pytest.mark.parametrize("mechanism", [Purkayastha(5, 6.0), PlanarLaplace(5, 6.0)])
def test_the_noise_moves_with_its_input(mechanism) -> None:
    """The value is the mechanism's own draw, and its gradient that of a draw turned with its input."""
    z = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(1)).double(), dim=1)
    z.requires_grad_()
    noise = Noise(mechanism, seed=7, stage="test")
    drawn = noise(z)
    assert not torch.equal(noise(z), drawn)  # at each call anew
    rows = SimulationStreams(7).rows(np.arange(40), np.zeros(40, np.int64), stage="test", channel="embedding", step=0)
    np.testing.assert_allclose(drawn.detach().numpy(), mechanism.sample(z.detach().numpy(), rng=rows), atol=1e-9)
    # a draw keeps its angle to z: the derivative of (draw · z) along the sphere is 0
    (gradient,) = torch.autograd.grad((drawn * z).sum(), z)
    along = gradient - (gradient * z).sum(1, keepdim=True) * z
    assert along.abs().max() < 1e-6


@pytest.mark.parametrize("mechanism", [Purkayastha(2, 4.0), Gaussian(2, 0.3)])
def test_learned_maps_beat_principal_components_under_noise(mechanism) -> None:
    h, y = corpus(1500, 2, seed=1)
    test, truth = corpus(1500, 2, seed=2)

    def accuracy(maps: Maps) -> float:
        noisy = sanitize_public(mechanism, maps.project(test), seed=5, stage="test")
        return float(np.mean(maps.predict(noisy) == truth))

    learned = learn_maps(h, y, classes=2, mechanism=mechanism, seed=3)
    components = pca_maps(h, dim=2, classes=2)
    noisy = sanitize_public(mechanism, components.project(h), seed=5, stage="public")
    assert accuracy(learned) > 0.85
    assert accuracy(train_head(components, noisy, y)) < 0.65


@pytest.mark.parametrize("dim", [2, WIDTH])
def test_learned_maps_know_more_than_two_classes_whatever_the_dim(dim) -> None:
    h, y = corpus(1500, 6, seed=1, gap=2.0)
    maps = learn_maps(h, y, classes=6, mechanism=Purkayastha(dim, 40.0), seed=3, steps=60)
    assert np.mean(maps.predict(maps.project(h)) == y) > (0.6 if dim == 2 else 0.8)


def test_learned_maps_are_a_function_of_their_arguments() -> None:
    h, y = corpus(300, 2, seed=1)
    arguments = {"classes": 2, "mechanism": Purkayastha(3, 5.0), "steps": 10}
    one, same = (learn_maps(h, y, seed=1, **arguments) for _ in range(2))
    other = learn_maps(h, y, seed=2, **arguments)
    np.testing.assert_array_equal(one.m1, same.m1)
    assert (one.m1 != other.m1).any()


@pytest.mark.parametrize(
    ("h", "y", "dim", "words"),
    [
        (np.ones((5, 4)), [0] * 5, 2, "no example of class 1"),
        (np.ones((5, 4)), [0, 1, 2, 0, 1], 2, "labels must be 0 to 1"),
        (np.ones((5, 4)), [0] * 4, 2, "labels of shape"),
        (np.ones((5, 4)), [0, 1, 0, 1, 0], 5, "dim must be between 2 and the encoder's width 4"),
        (np.full((5, 4), np.nan), [0, 1, 0, 1, 0], 2, "finite"),
    ],
)
def test_public_data_that_do_not_fit_are_refused(h, y, dim, words) -> None:
    with pytest.raises(ValueError, match=rf"^maps: [^\n]*{words}"):
        learn_maps(h, np.array(y), classes=2, mechanism=Purkayastha(dim, 1.0), seed=1)


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 1.0), (12, None), (12, 1.0)])
def test_a_head_learns_from_releases_alone(classes, epsilon) -> None:
    """From components and an empty head; randomized labels are corrected for."""
    h, y = corpus(20_000, classes, seed=1, gap=4.0)
    maps = pca_maps(h[:, :6] - 5, dim=6, classes=classes)
    mechanism = Purkayastha(6, 30.0)
    z = sanitize_public(mechanism, maps.project(h[:, :6] - 5), seed=2, stage="users")
    labels, transition = (y, None) if epsilon is None else randomized(y, epsilon, classes)
    best = np.mean(train_head(maps, z, y).predict(z) == y)
    trained = train_head(maps, z, labels, label_transition=transition)
    assert best > 0.7
    assert np.mean(trained.predict(z) == y) > best - 0.05
    np.testing.assert_array_equal(trained.m1, maps.m1)


def test_correction_finds_the_true_probabilities_and_its_absence_does_not() -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((50_000, 3))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    weight = np.array([[2.0, -2.0], [0.5, -0.5], [0.0, 0.0]])
    y = (rng.random(len(z)) < 1 / (1 + np.exp(z @ (weight[:, 0] - weight[:, 1])))).astype(np.int64)
    labels, transition = randomized(y, 1.0, 2)
    maps = factored(np.zeros(8), np.eye(8, 3), np.zeros((3, 2)), np.zeros(2))
    folded = [train_head(maps, z, labels, label_transition=by).folded()[0] for by in (transition, None)]
    right, wrong = (weight[0, 0] - weight[0, 1] for weight in folded)
    assert abs(right - 4.0) < 0.4 and wrong < 2.5


def test_a_handful_of_releases_does_not_undo_what_public_data_taught() -> None:
    h, y = corpus(1500, 2, seed=1)
    mechanism = Purkayastha(2, 1.0)
    maps = learn_maps(h, y, classes=2, mechanism=mechanism, seed=3)
    z = sanitize_public(mechanism, maps.project(h[:20]), seed=5, stage="users")
    trained = train_head(maps, z, y[:20], label_transition=np.full((20, 2), 0.5))  # labels that say nothing
    np.testing.assert_allclose(trained.folded()[0], maps.folded()[0], atol=1e-4)
    few = train_head(maps, z, y[:20])
    assert np.mean(few.predict(few.project(h)) == y) > np.mean(maps.predict(maps.project(h)) == y) - 0.02
    assert train_head(maps, z[:0], y[:0]) is maps


@pytest.mark.parametrize(
    ("z", "y", "transition"),
    [
        (np.ones((3, 5)), np.zeros(3, int), None),
        (np.ones((3, 4)), np.zeros(2, int), None),
        (np.ones((3, 4)), np.full(3, 3), None),
        (np.ones((3, 4)), np.zeros(3, int), np.ones((3, 2))),
        (np.ones((3, 4)), np.zeros(3, int), np.zeros((3, 3))),
    ],
)
def test_releases_that_do_not_fit_are_one_line(z, y, transition) -> None:
    with pytest.raises(ValueError, match=r"^training: [^\n]*$"):
        train_head(random_maps(), z, y, label_transition=transition)
