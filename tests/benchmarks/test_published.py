"""The published mechanism is what the papers print, and is refused for each of its defects by itself."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from benchmarks.published.noise_coverage import check_coverage
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import NoMinimiser, reproduce
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.verify import analyse

PROMISE = dp.Privacy(epsilon=1.0)


def two_groups(size: int, features: int, classes: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Overlapping classes in the unit ball."""
    rng = np.random.default_rng(seed)
    y = np.arange(size) % classes
    x = rng.normal(size=(size, features)) * 0.25
    x[:, 0] += np.linspace(-0.4, 0.4, classes)[y]
    return {"x": x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), "y": y}


@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("pathak_raj_2010", PublishedPerturbation.of(2010)),
        ("pathak_raj_2012", PublishedPerturbation.of(2012)),
        ("pathak_raj_2012_mixture", PublishedPerturbation.of(2012, fitted=("m",))),
    ],
)
def test_the_papers_are_refused_at_every_epsilon(
    name: str, mechanism: PublishedPerturbation, adjacency: str, epsilon: float
) -> None:
    template = dp.load(name, features=3)
    with pytest.raises(NotPrivate, match="does not cover the sensitive subspace"):
        dp.verify(template, dp.Privacy(epsilon, adjacency=adjacency), 583, mechanism)


def test_noise_on_one_class_misses_a_part_of_the_sensitive_subspace() -> None:
    form = analyse(dp.load("large_margin_gaussian", features=1)).form
    first = np.eye(form.space.dim)[:, form.space.blocks["Phi_0"].slice]
    with pytest.raises(NotPrivate, match=r"(?s)does not cover the sensitive subspace.*Phi_1"):
        check_coverage(form, first, "noise on the first class alone")


def test_a_variant_with_every_premise_repaired_is_certified_and_runs() -> None:
    template = dp.load("pathak_raj_2012", features=2, rescale=True)
    mechanism = PublishedPerturbation(shared=False)
    certificate = mechanism.certify(analyse(template), PROMISE, 40)
    assert isinstance(certificate, Certificate)
    assert certificate.noise_scale == pytest.approx(40.0)
    assert certificate.noise_dimension == 2 * 3**2
    assert certificate.noise_epsilon + certificate.jacobian_epsilon < 1.0
    assert "times what the proof needs" in certificate.advice[0]
    release = dp.solve(template, two_groups(40, 2), PROMISE, mechanism)
    assert release.private
    assert release["Phi_0"].shape == (3, 3)


@pytest.mark.parametrize("shared", [True, False])
def test_the_noise_has_the_printed_law(shared: bool) -> None:
    # ||b|| ~ Gamma(m, s) with mean square m (m + 1) s^2, spread evenly over the m entries; only the symmetric part acts.
    space = analyse(dp.load("pathak_raj_2012", features=1)).form.space
    mechanism = PublishedPerturbation(shared=shared)
    rng = seeded_generator(7)
    draws = np.array([mechanism.noise(space, 3.0, rng) for _ in range(8000)]).reshape(-1, 2, 3)
    entries = 4 if shared else 8
    square = entries * (entries + 1) * 9.0 / entries * 3  # three symmetric directions in each class
    assert np.mean(np.sum(draws**2, axis=2)) == pytest.approx(square, rel=0.05)
    if shared:
        np.testing.assert_array_equal(draws[:, 0], draws[:, 1])
    else:
        assert abs(np.corrcoef(draws[:, 0, 0], draws[:, 1, 0])[0, 1]) < 0.05


@pytest.mark.slow
def test_a_reproduction_minimises_the_printed_objective() -> None:
    # J_p of 2012, equations 10, 11 and 14, written out anew and solved by a conic solver
    n, d, gamma, lam, h = 24, 2, 0.02, 0.3, 0.5
    data = two_groups(n, d)
    template = dp.load("pathak_raj_2012", features=d, regularization=lam, trace=gamma, width=h)
    release = reproduce(template, data, PROMISE, seed=11)
    space = analyse(template).form.space
    b = space.unpack(PublishedPerturbation().noise(space, 1.0, seeded_generator(11)))["Phi_0"]
    Phi = [cp.Variable((d + 1, d + 1), PSD=True) for _ in range(2)]
    z = np.column_stack([data["x"], np.ones(n)])
    distance = [cp.sum(cp.multiply(z @ P, z), axis=1) for P in Phi]
    own = data["y"] == 0
    violation = 1 + cp.multiply(np.where(own, 1, -1), distance[0] - distance[1])
    split, over = cp.Variable(n), cp.Variable(n, nonneg=True)
    objective = cp.sum(cp.square(split) / (4 * h) + over) / n + sum(
        gamma * cp.trace(P[:d, :d]) + lam * cp.sum_squares(P) + cp.sum(cp.multiply(b, P)) for P in Phi
    )
    problem = cp.Problem(cp.Minimize(objective), [split + over >= violation + h, split >= 0, split <= 2 * h])
    problem.solve(solver="CLARABEL")
    for c, P in enumerate(Phi):
        np.testing.assert_allclose(release[f"Phi_{c}"], P.value, atol=2e-4)


def test_2010_has_no_minimiser_for_nearly_all_draws() -> None:
    template, data = dp.load("pathak_raj_2010", features=3, trace=0.01 / 80), two_groups(80, 3)
    for seed in range(
        3
    ):  # a 4 x 4 matrix of the Gaussian orthogonal ensemble is positive definite with probability 0.0025
        with pytest.raises(NoMinimiser, match=r"no minimiser for this draw of b.* nothing is released"):
            reproduce(template, data, PROMISE, PublishedPerturbation.of(2010), seed=seed)
