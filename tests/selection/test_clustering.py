"""Clusterings and mixtures: what is read, paid and refused; records stand by themselves, and both stages share one promise."""

import itertools
from dataclasses import replace
from functools import cache

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from refused import refused

import dpconvex as dp
from dpconvex.fitting.verify import FitOptions
from dpconvex.mechanisms import noisy_kmeans
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans, sensitivity
from dpconvex.noise.samplers import seeded_generator
from dpconvex.selection import clustering
from dpconvex.selection.clustering import Grouping

RECORD = dp.Record(x=dp.Ball(3, radius=2.0), y=dp.Choice(["a", "b", "none"]))
PROMISE = dp.Privacy(4.0, 1e-5)


@pytest.mark.parametrize("form", [np.array, sp.csr_array, lambda x: x.astype(np.float32)])
def test_a_record_is_rounded_by_itself(form):
    # One record far outside makes a clipped column be projected; it must not move any other record by a single step.
    rng = np.random.default_rng(0)
    sphere = rng.normal(size=(300, 3))
    x = 2.0 * sphere / np.linalg.norm(sphere, axis=1, keepdims=True)
    x[::3] = 2.0 * np.eye(3)[rng.integers(0, 3, 100)]
    x[1::3] = np.array([1.2, 1.6, 0.0])
    y, rows = np.full(301, "a"), []
    for last in ([0.0, 0.0, 0.0], [9.0, 0.0, 0.0]):
        batch = RECORD.validate({"x": form(np.vstack([x, last])), "y": y}, clip=True)
        rows.append(np.concatenate([steps for steps, _ in Grouping(RECORD, "x", "y").blocks(batch, 2.0**-52)]))
    np.testing.assert_array_equal(rows[0][:-1], rows[1][:-1])
    assert np.linalg.norm(rows[1][-1]) * 2.0**-52 == pytest.approx(2.0)


CENTERS = [[[-0.5, 0.0], [0.5, 0.0]], [[0.0, -0.5], [0.0, 0.5]]]


@pytest.mark.parametrize("learnt", [False, True])
def test_saved_centres_are_the_same(learnt, tmp_path):
    places = dp.cluster(learner(), SMALL, PROMISE) if learnt else dp.ComponentCenters(CENTERS, classes=("a", "b"))
    places.save(tmp_path / "places.npz")
    again = dp.ComponentCenters.load(tmp_path / "places.npz")
    assert again.to_bytes() == places.to_bytes()
    assert (str(again), again.spent, again.noise) == (str(places), places.spent, places.noise)
    np.testing.assert_array_equal(again.centers, places.centers)
    for call, message in (
        (lambda: dp.ComponentCenters(CENTERS, classes=((1, 2), "b")).to_bytes(), "cannot hold the classes"),
        (lambda: dp.ComponentCenters.load(tmp_path / "places.npz", learner()), "without a template"),
        (lambda: dp.ComponentCenters([[[3.0, 0.0]]]), "farther from the middle"),
        (lambda: dp.ComponentCenters(CENTERS, classes=("a", "a")), "classes are"),
    ):
        refused(dp.TemplateError, message, call)


@pytest.mark.parametrize("change", [{"epsilon": 1.0}, {"delta": 0.0}, {"adjacency": "replace-one"}])
def test_centres_whose_noise_keeps_less_than_they_say_are_refused(change):
    found = dp.cluster(RECORD, {"x": np.ones((9, 3)), "y": ["a"] * 9}, replace(PROMISE, adjacency="add-remove"))
    refused(dp.TemplateError, "its noise", replace, found, spent=replace(found.spent, **change))
    for told in ({"components": 9}, {"radius": 9.0}, {"sensitivity": 0.0}, {"weight": -found.noise.weight}):
        refused(dp.TemplateError, "of other centres", replace, found, noise=replace(found.noise, **told))


# Mixtures
WHOLE = dp.Privacy(2.0, 1e-6)


def moons(size, rng):
    """Return two interleaved half circles in the unit ball: no quadratic separates them, two for each class do."""
    y, angle = rng.integers(0, 2, size), rng.uniform(0, np.pi, size)
    first = np.column_stack([np.cos(angle), np.sin(angle)])
    x = np.where(y[:, None] == 0, first, [1.0, 0.5] - first) - [0.5, 0.25]
    x = (x + 0.08 * rng.normal(size=x.shape)) / 1.9
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), y


@cache
def learner(components=2):
    return dp.load("large_margin_gaussian_mixture", features=2, components=components, regularization=3e-4, trace=0.0)


X, Y = moons(4000, np.random.default_rng(0))
DATA = {"x": X, "y": Y}
SMALL = {"x": X[:300], "y": Y[:300]}


def test_two_components_learnt_privately_beat_one():
    x, y = moons(4000, np.random.default_rng(1))
    errors = {}
    for components in (1, 2):
        mixtures = [dp.solve_mixture(learner(components), DATA, WHOLE, seed=seed) for seed in range(2)]
        errors[components] = [np.mean(mixture.predict(x) != y) for mixture in mixtures]
        certificate = mixtures[0].release.certificate
        assert (certificate.privacy, certificate.clustering is None) == (WHOLE, components == 1)
    assert min(errors[1]) > 0.1
    assert max(errors[2]) < 0.09


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_parts_add_up_to_the_promise(delta, adjacency):
    privacy = dp.Privacy(1.0, delta, adjacency)
    certificate = dp.verify_mixture(learner(), privacy, 4000, share=0.3)
    noise, cover = certificate.clustering, certificate.cover
    assert (certificate.privacy, noise.epsilon) == (privacy, 0.3)
    assert noise.delta == pytest.approx(0.3 * delta, rel=1e-12)
    parts = certificate.noise_epsilon + certificate.jacobian_epsilon + noise.epsilon
    assert (cover is None) == (delta > 0)  # adaptive steps have no residual noise
    if cover:
        assert (cover.counting > 0) == (adjacency == "add-remove")
        parts += cover.epsilon + cover.counting
    assert parts == pytest.approx(1.0, rel=1e-9)
    # Each part by itself is what was proved for its share.
    part, rest = (dp.Privacy(share, share * delta, adjacency) for share in (0.3, 0.7))
    fit = FitOptions().prove(learner(), rest, 4000).certificate
    assert certificate.noise_scale == pytest.approx(fit.noise_scale, rel=1e-9)
    alone = dp.NoisyKMeans().calibrate(part, classes=2, components=2, features=2, radius=1.0)
    assert noise.scale == pytest.approx(alone.scale, rel=1e-9)


def test_given_the_centres_a_neighbour_has_one_other_label():
    places, record = dp.cluster(learner(), SMALL, WHOLE, seed=0), dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    grouping = Grouping(record, "x", "y")
    before, rng = grouping.assigned(record.validate(SMALL), places), np.random.default_rng(0)
    for row, value in zip(rng.integers(0, 300, 20), dp.Ball(2).sample(20, rng), strict=True):
        x, y = SMALL["x"].copy(), SMALL["y"].copy()
        x[row], y[row] = value, 1 - y[row]
        after = grouping.assigned(record.validate({"x": x, "y": y}), places)
        assert set(np.flatnonzero(before != after)) <= {row}
        without = grouping.assigned(record.validate({"x": np.delete(x, row, axis=0), "y": np.delete(y, row)}), places)
        np.testing.assert_array_equal(without, np.delete(before, row))
    np.testing.assert_array_equal(before, places.assign(**SMALL))


@pytest.mark.parametrize("saved", [False, True])
def test_records_are_assigned_by_the_columns_and_rows_that_they_belong_to(saved):
    pd, rng = pytest.importorskip("pandas"), np.random.default_rng(0)
    x = pd.DataFrame(rng.uniform(-0.5, 0.5, (200, 2)), columns=["a", "b"])
    y, record = pd.Series(rng.choice([-1, 1], 200)), dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    found = dp.cluster(record, {"x": x, "y": y}, dp.Privacy(1.0))
    found = dp.ComponentCenters.from_bytes(found.to_bytes()) if saved else found
    assert (found.assign(x, y) == found.assign(x.to_numpy(), y.to_numpy())).all()
    refused(dp.DomainError, "columns", found.assign, x[["b", "a"]], y)
    refused(dp.DomainError, "different indexes", found.assign, x, y[::-1])


@pytest.mark.parametrize("domain", [dp.Ball(2), pytest.param(dp.Box([-1.0, -1.0], [1.0, 1.0]), marks=pytest.mark.slow)])
def test_mixtures_of_linear_scores_are_replayed_reloaded_and_audited(domain, tmp_path):
    W, b = cp.Variable((2, 4), name="W"), cp.Variable(4, name="b")
    record = dp.Record(x=domain, y=dp.Choice([0, 1]), m=dp.Choice([0, 1]))
    loss = lambda x, y, m: cp.log_sum_exp(x @ W + b) - (x @ W + b)[2 * y + m]  # noqa: E731
    template = dp.Template(record, loss, 1e-6 * (cp.sum_squares(W) + cp.sum_squares(b)))
    x = domain.project(np.random.default_rng(0).normal(size=(200, 2)))
    data, privacy = {"x": x, "y": (x[:, 0] > 0).astype(int)}, dp.Privacy(1.0, 1e-6)
    release = dp.solve_mixture(template, data, privacy).release
    assert release.certificate.perturbed == "queries"
    assert not release.certificate.check().unreplayed
    release.save(tmp_path / "mixture.npz")
    assert dp.Release.load(tmp_path / "mixture.npz").certificate.event == release.certificate.event
    assert dp.audit(template, privacy, size=200, share=0.2, seed=0, effort=0.02).holds


# Noisy k-means: its sensitivity is attacked, its noise keeps the guarantee, and only noisy numbers are used
ADJACENCIES = ("replace-one", "add-remove")


# Sensitivity: neighbours are formed from records, and their statistics are those of the code that is run.
def cells(x, y, centers, radius):
    record = dp.Record(x=dp.Ball(x.shape[1], radius=radius), y=dp.Choice(range(len(centers))))
    batch, step = record.validate({"x": x, "y": y}), noisy_kmeans.grid_step(radius)
    found = clustering.cell_sums(batch, (clustering.Grouping(record, "x", "y"), step), np.rint(centers / step))
    found[..., :-1] *= step
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_neighbours_move_the_statistics_further_and_some_move_them_as_far(adjacency, features, ratio):
    rng, radius, worst = np.random.default_rng(features), 1.7, np.zeros(2)
    weight = ratio * radius
    bound = sensitivity("gaussian", adjacency, radius, weight), sensitivity("gamma", adjacency, radius, weight)
    inside, pole = dp.Ball(features, radius=radius).sample, radius * np.eye(features)[0]
    extreme = [(pole, 0), (-pole, 0), (pole, 1), (-pole, 1)]  # turned around, moved to another class, or both
    for trial in range(40):
        centers = inside(6, rng).reshape(2, 3, features)
        if trial % 2:  # both poles share a centre
            centers[:, 0], centers[:, 1:] = 0.0, 0.9 * radius * np.eye(features)[-1] if features > 1 else 0.0
        x, y = inside(8, rng), rng.integers(0, 2, 8)
        drawn = [(v, int(c)) for v, c in zip(inside(3, rng), rng.integers(0, 2, 3), strict=True)]
        found = [cells(np.vstack([x, v]), np.append(y, group), centers, radius) for v, group in [*extreme, *drawn]]
        others = [cells(x, y, centers, radius)]
        pairs = itertools.product(found, others) if adjacency == "add-remove" else itertools.combinations(found, 2)
        for first, second in pairs:
            lengths = np.linalg.norm((first - second) * [*np.ones(features), weight], axis=-1)
            worst = np.maximum(worst, [np.linalg.norm(lengths), lengths.sum()])  # Euclidean, and summed over cells
    assert (worst <= np.array(bound) * (1 + 1e-12)).all()
    assert (worst >= 0.999 * np.array(bound)).all()


def test_only_noisy_numbers_are_used_after_the_noise(monkeypatch):
    # Two data sets whose noisy statistics agree must give the same centres.
    method = NoisyKMeans(rounds=3)
    noise = method.calibrate(dp.Privacy(1.0, 1e-6), classes=2, components=2, features=1, radius=1.0)
    target, drawn = np.array([300.0, 900.0]), []

    def run(sums, counts):
        def fill(_, shape, __):
            drawn.append(shape)
            return np.broadcast_to((target - [sums, counts]) * [noise.step, noise.weight], (*shape, 2)).copy()

        monkeypatch.setattr(noisy_kmeans, "draw", fill)
        return method.run(noise, lambda c: (np.full(c.shape, sums), np.full(c.shape[:2], counts)), seeded_generator(0))

    np.testing.assert_array_equal(run(5.0, 2.0), run(-7.0, 30.0))
    assert drawn == [(2, 1), (2, 2), (2, 2)] * 2  # as many rounds as are paid for
