"""The published mechanism is what the papers print, and is refused for each of its defects by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, strategies as st

import dpconvex as dp
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import NoMinimiser, reproduce
from benchmarks.published.stationarity_attack import explain
from dpconvex.core.evaluate import evaluate
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noise_coverage import check_coverage, find_gap
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.verify import analyse

PROMISE = dp.Privacy(epsilon=1.0)
OWN = {"shared": False}  # a matrix of its own for each class


def two_groups(size: int, features: int, classes: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Overlapping classes in the unit ball."""
    rng = np.random.default_rng(seed)
    y = np.arange(size) % classes
    x = rng.normal(size=(size, features)) * 0.25
    x[:, 0] += np.linspace(-0.4, 0.4, classes)[y]
    return {"x": x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), "y": y}


def every_defect(mechanism: PublishedPerturbation, template: dp.Template, **promise: Any) -> tuple[NotPrivate, ...]:
    return mechanism.defects(analyse(template), dp.Privacy(1.0, **promise), 80)


# Each defect alone

ALONE = {
    "one b for all classes": (
        "pathak_raj_2012",
        {"rescale": True},
        {},
        "replace-one",
        "shared by all classes, does not cover the sensitive subspace: it misses 10 of the 10",
        "Phi_0",
        "independent symmetric matrix for each class",
    ),
    "one b for all components": (
        "pathak_raj_2012_mixture",
        {"rescale": True},
        {},
        "replace-one",
        "shared by all classes, does not cover the sensitive subspace: it misses 30 of the 30",
        "Phi_",
        "noise on the sensitive subspace",
    ),
    "no strong convexity": (
        "pathak_raj_2010",
        {"rescale": True},
        OWN | {"rate": 0.5, "mean": False},
        "replace-one",
        "not strongly convex: a trace is linear",
        "Phi_0[:3, :3]",
        "add lambda * cp.sum_squares",
    ),
    "a unit element outside the unit ball": (
        "pathak_raj_2012",
        {},
        OWN,
        "replace-one",
        r"unit ball.* here that can be 2, because a unit element appended",
        "Phi_",
        "z = (x / radius, 1) / sqrt(2)",
    ),
    "mixture labels learnt from the data": (
        "pathak_raj_2012_mixture",
        {"rescale": True},
        OWN | {"fitted": ("m",)},
        "replace-one",
        "the field 'm' of a record is learnt from all the private records",
        "m=Choice",
        "assign it by a public rule",
    ),
    "features scaled by their largest values": (
        "pathak_raj_2012",
        {"rescale": True},
        OWN | {"fitted": ("x",)},
        "replace-one",
        "the field 'x' of a record is learnt from all the private records",
        "x=Ball",
        "assign it by a public rule",
    ),
    "a mean over a protected number of records": (
        "pathak_raj_2012",
        {"rescale": True},
        OWN,
        "add-remove",
        "divides the losses by the number of records, which add-remove adjacency protects",
        "huber",
        "public nominal number",
    ),
    "noise for the gradient of one class": (
        "pathak_raj_2010",
        {"rescale": True, "regularization": 10.0},
        OWN | {"rate": 0.5, "mean": False},
        "replace-one",
        r"the noise is too small: its scale is 2\.0\d*, but 2\.8\d* is needed.* moves those of all classes together",
        "huber",
        "use ObjectivePerturbation",
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_each_defect_alone_is_refused(case: str) -> None:
    name, options, variant, adjacency, reason, where, remedy = ALONE[case]
    template = dp.load(name, features=3, **options)
    mechanism = PublishedPerturbation(**variant)
    assert len(every_defect(mechanism, template, adjacency=adjacency)) == 1
    promise = dp.Privacy(1.0, adjacency=adjacency)
    with pytest.raises(NotPrivate, match=reason) as info:
        dp.verify(template, promise, 80, mechanism)
    assert info.value.expression is not None
    assert where in info.value.expression
    assert info.value.remedy is not None
    assert remedy in info.value.remedy
    assert not dp.is_private(template, promise, 80, mechanism)


def test_every_reason_differs() -> None:
    reasons = set()
    for name, options, variant, adjacency, *_ in ALONE.values():
        (defect,) = every_defect(
            PublishedPerturbation(**variant), dp.load(name, features=3, **options), adjacency=adjacency
        )
        reasons.add(defect.reason)
    assert len(reasons) == len(ALONE)


# All of them, and their repair one by one


def test_the_order_in_which_defects_are_found() -> None:
    repairs: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("cover the sensitive", {"regularization": 0.0}, {"fitted": ("m",)}, "add-remove"),
        ("strongly convex", {"regularization": 0.0}, OWN | {"fitted": ("m",)}, "add-remove"),
        ("unit ball", {"regularization": 0.31}, OWN | {"fitted": ("m",)}, "add-remove"),
        ("learnt from all", {"rescale": True}, OWN | {"fitted": ("m",)}, "add-remove"),
        ("divides the losses", {"rescale": True}, OWN, "add-remove"),
    ]
    for step, (reason, options, variant, adjacency) in enumerate(repairs):
        template = dp.load("pathak_raj_2012_mixture", features=3, **options)
        mechanism = PublishedPerturbation(**variant)
        found = every_defect(mechanism, template, adjacency=adjacency)
        assert len(found) == len(repairs) - step
        for defect, (expected, *_) in zip(found, repairs[step:], strict=True):
            assert expected in defect.reason
        with pytest.raises(NotPrivate, match=reason):
            dp.verify(template, dp.Privacy(1.0, adjacency=adjacency), 80, mechanism)
    repaired = dp.load("large_margin_gaussian_mixture", features=3)
    certificate = dp.verify(repaired, dp.Privacy(1.0, adjacency="add-remove"), 80, ObjectivePerturbation())
    assert certificate.noise_dimension == 30
    assert dp.verify(repaired, dp.Privacy(1.0, adjacency="add-remove"), 80).epsilon == 1.0


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e3])
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


def test_no_data_are_read_before_the_refusal() -> None:
    template = dp.load("pathak_raj_2012", features=3)
    with pytest.raises(NotPrivate, match="does not cover"):
        dp.solve(template, {"x": np.full((4, 3), np.nan), "y": [0, 1, 0, 9]}, PROMISE, PublishedPerturbation())


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_repaired_constants(classes: int) -> None:
    template = dp.load("large_margin_gaussian", features=3, classes=classes, competitors="summed")
    replace = dp.verify(template, PROMISE, 583, ObjectivePerturbation())
    assert replace.sensitivity == pytest.approx(np.sqrt(2) * classes)
    assert replace.gradient_bound == pytest.approx(np.sqrt(classes * (classes - 1)))
    assert replace.noise_dimension == (classes - 1) * 10
    assert replace.hessian_bound == pytest.approx(classes)  # C / (2h) with h = 1/2


def test_the_noise_of_the_paper_against_the_noise_of_the_proof() -> None:
    # 583 records with ten-dimensional z and two classes, as in the paper's experiment
    size = 583
    certificate = dp.verify(
        dp.load("large_margin_gaussian", features=9, regularization=0.31),
        PROMISE,
        size,
        ObjectivePerturbation(noise="gamma", added=0.0),
    )
    assert certificate.noise_dimension == 55
    shared = certificate.noise_epsilon * certificate.expected_noise / size
    assert shared == pytest.approx(55 * 2 * np.sqrt(2) / size, rel=1e-6)
    assert shared == pytest.approx(0.267, abs=5e-4)
    printed = PublishedPerturbation().scale(1.0, size) * 10**2 / size
    assert printed == pytest.approx(100.0)
    assert printed > 300 * certificate.expected_noise / size


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


# Coverage, for any mechanism

THREE_CLASSES = dp.load("large_margin_gaussian", features=2, classes=3)


def test_noise_on_the_sensitive_subspace_or_more_covers_it() -> None:
    form = analyse(THREE_CLASSES).form
    assert find_gap(form, form.basis) is None
    assert find_gap(form, np.eye(form.space.dim)) is None
    check_coverage(form, form.basis)


@given(kept=st.sets(st.integers(0, 11), max_size=11), extra=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
def test_a_missing_direction_is_found_and_counted(kept: set[int], extra: int, seed: int) -> None:
    form = analyse(THREE_CLASSES).form  # 12 sensitive directions of 18
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    full, _ = np.linalg.qr(np.column_stack([form.basis.toarray(), rng.normal(size=(18, 6))]))
    sensitive = form.basis.toarray() @ rotation
    span = np.column_stack([sensitive[:, sorted(kept)], full[:, 12 : 12 + extra]])
    gap = find_gap(form, span)
    assert gap is not None
    assert gap.dimension == 12 - len(kept)
    assert np.linalg.norm(gap.vector) == pytest.approx(1.0)
    assert np.linalg.norm(span.T @ gap.vector) < 1e-8
    assert np.linalg.norm(form.basis.T @ gap.vector) > 1e-6
    np.testing.assert_allclose(form.space.pack(gap.direction), gap.vector, atol=1e-12)


def test_what_is_missed_is_named_class_by_class() -> None:
    template = dp.load("large_margin_gaussian", features=1, labels=("a", "b"))
    form = analyse(template).form
    same = PublishedPerturbation().span(form.space)
    gap = find_gap(form, same)
    assert gap is not None
    np.testing.assert_allclose(gap.direction["Phi_0"], -gap.direction["Phi_1"], atol=1e-12)
    with pytest.raises(
        NotPrivate, match=r"it misses 3 of the 3 sensitive directions, one of them Phi_0.* by .*Phi_1"
    ) as info:
        check_coverage(form, same, "my noise")
    assert str(info.value).startswith("my noise does not cover the sensitive subspace")
    assert "as ObjectivePerturbation does" in str(info.value)


def test_a_basis_that_is_none_is_an_error() -> None:
    form = analyse(dp.load("large_margin_gaussian", features=2)).form
    with pytest.raises(TemplateError, match=r"expected a basis of shape \(12, k\)"):
        find_gap(form, np.eye(5))
    with pytest.raises(TemplateError, match=r"expected a basis of shape \(12, k\)"):
        find_gap(form, np.zeros(12))
    with pytest.raises(TemplateError, match="not orthonormal"):
        find_gap(form, 2 * np.eye(12))
    with pytest.raises(TemplateError, match="not orthonormal"):
        find_gap(form, sp.csc_array(np.full((12, 2), np.nan)))


@dataclass(frozen=True)
class NoiseOnOneClass:
    """Somebody's own mechanism, which forgets the last class."""

    def certify(self, analysis: Any, privacy: dp.Privacy, size: int) -> Certificate:
        space = analysis.form.space
        check_coverage(analysis.form, np.eye(space.dim)[:, : space.dim // 2], "noise on the first class alone")
        return ObjectivePerturbation().certify(analysis, privacy, size)

    def run(self, analysis: Any, certificate: Certificate, engine: Any, rng: np.random.Generator) -> np.ndarray:
        raise AssertionError("never reached")


def test_the_verifier_refuses_anybodys_noise_that_misses_a_direction() -> None:
    template = dp.load("large_margin_gaussian", features=2)
    with pytest.raises(NotPrivate, match=r"noise on the first class alone does not cover .* misses 6 of the 6"):
        dp.verify(template, PROMISE, 80, NoiseOnOneClass())


# The mechanism is what the papers print


def test_the_options() -> None:
    assert PublishedPerturbation.of(2012) == PublishedPerturbation(rate=1.0, shared=True, mean=True, fitted=())
    assert PublishedPerturbation.of(2010).scale(0.5, 80) == 4.0  # Gamma((d+1)^2, 2/epsilon), next to a sum
    assert PublishedPerturbation.of(2012).scale(0.5, 80) == 160.0  # Gamma((d+1)^2, 1/epsilon), next to a mean
    with pytest.raises(TemplateError, match="papers are of 2010 and 2012, not 2011"):
        PublishedPerturbation.of(2011)
    with pytest.raises(TemplateError, match="rate must be finite and positive"):
        PublishedPerturbation(rate=0.0)
    with pytest.raises(TemplateError, match=r"names of fields, such as \('m',\)"):
        PublishedPerturbation(fitted="m")
    with pytest.raises(TemplateError, match="no field 'z' in the record x, y"):
        dp.verify(dp.load("pathak_raj_2012", features=2), PROMISE, 80, PublishedPerturbation(fitted=("z",)))


def test_one_matrix_must_fit_every_variable() -> None:
    w, v = cp.Variable(2, name="w"), cp.Variable(name="v")
    template = dp.Template(
        record=dp.Record(x=dp.Ball(2)),
        loss=lambda x: cp.logistic(x @ w + v),
        regularizer=cp.sum_squares(w) + cp.square(v),
    )
    with pytest.raises(
        TemplateError, match=r"one matrix b does not fit variables of different shapes: w \(2,\), v \(\)"
    ):
        dp.verify(template, PROMISE, 80, PublishedPerturbation())


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


@pytest.mark.parametrize("name", ["pathak_raj_2010", "pathak_raj_2012", "pathak_raj_2012_mixture"])
def test_the_losses_are_those_of_the_papers(name: str) -> None:
    h = 0.5
    rng = np.random.default_rng(3)
    components = 2 if name.endswith("mixture") else 1
    options = {"classes": 3, "width": h} | ({"components": 2} if components == 2 else {})
    template = dp.load(name, features=2, **options)
    for values, loss in zip(template.record.combinations, template.losses, strict=True):
        for _ in range(5):
            x = rng.normal(size=2) * 0.5
            leaves: dict[Any, Any] = {"x": x}
            z = np.append(x, 1.0)
            distance: dict[tuple[int, int], float] = {}
            for variable in template.variables:
                half = rng.normal(size=(3, 3)) * 0.7
                leaves[variable] = half @ half.T
                c, k = (*map(int, variable.name.split("_")[1:]), 0)[:2]
                distance[c, k] = z @ half @ half.T @ z
            own = distance[values["y"], values.get("m", 0)]
            total = 0.0
            for c in range(3):
                if c != values["y"]:
                    soft = np.log(sum(np.exp(-distance[c, k]) for k in range(components)))
                    m = 1 + own + soft
                    total += 0.0 if m < -h else (m + h) ** 2 / (4 * h) if m <= h else m
            assert float(evaluate(loss, leaves)) == pytest.approx(total, rel=1e-9, abs=1e-12)


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


def test_a_reproduction_says_that_it_is_not_private() -> None:
    template = dp.load("pathak_raj_2012", features=2)
    release = reproduce(template, two_groups(10, 2), PROMISE)
    assert not release.private
    assert release.spent is None
    assert release.certificate is None
    assert (
        "it reproduces a published mechanism: one noise matrix b, shared by all classes" in release.not_private_because
    )
    repaired = dp.load("pathak_raj_2012", features=2, rescale=True)
    again = reproduce(repaired, two_groups(10, 2), PROMISE, PublishedPerturbation(shared=False))
    assert again.not_private_because == "it reproduces a published mechanism: nothing was accounted for"
    first, second = (reproduce(template, two_groups(10, 2), PROMISE, seed=s)["Phi_0"] for s in (1, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(release["Phi_0"], first)


def test_arguments_of_the_wrong_kind() -> None:
    template = dp.load("pathak_raj_2012", features=2)
    with pytest.raises(TemplateError, match="must be a PublishedPerturbation, not ObjectivePerturbation"):
        reproduce(template, two_groups(10, 2), PROMISE, ObjectivePerturbation())  # type: ignore[arg-type]
    with pytest.raises(TemplateError, match="privacy must be a Privacy, not float"):
        reproduce(template, two_groups(10, 2), 1.0)  # type: ignore[arg-type]
    with pytest.raises(dp.DomainError, match="outside"):
        reproduce(template, {"x": [[2.0, 0.0]], "y": [0]}, PROMISE)


def test_differences_of_the_matrices_are_free_of_noise() -> None:
    # Without the cone: whatever b was, Phi_0 - Phi_1 is the same, and a record less moves it.
    Phi = [cp.Variable((2, 2), symmetric=True, name=f"Phi_{c}") for c in range(2)]

    def loss(x: Any, y: int) -> Any:
        z = cp.hstack([x, 1])
        return dp.huber_hinge(1 + z @ (Phi[y] - Phi[1 - y]) @ z, width=0.5)

    template = dp.Template(
        record=dp.Record(x=dp.Ball(1), y=dp.Choice(range(2))),
        loss=loss,
        regularizer=0.1 * sum(cp.sum_squares(P) for P in Phi),
    )
    data = two_groups(12, 1)
    less = {name: column[1:] for name, column in data.items()}
    releases = [reproduce(template, data, PROMISE, seed=s) for s in range(3)]
    neighbour = reproduce(template, less, PROMISE, seed=0)
    apart = [r["Phi_0"] - r["Phi_1"] for r in (*releases, neighbour)]
    assert np.linalg.norm(releases[0]["Phi_0"] - releases[1]["Phi_0"]) > 1.0
    assert max(np.linalg.norm(a - apart[0]) for a in apart[1:3]) < 1e-6
    assert np.linalg.norm(apart[3] - apart[0]) > 1e-2


# 2010: most draws have no minimiser


def psd_draws(template: dp.Template, count: int, trace: float) -> list[int]:
    """Seeds for which ``sym(b) + lambda I_Phi`` is positive semidefinite."""
    space = analyse(template).form.space
    mechanism = PublishedPerturbation.of(2010)
    flat = np.diag([1.0, 1.0, 1.0, 0.0]) * trace
    found = []
    for seed in range(count):
        b = space.unpack(mechanism.noise(space, mechanism.scale(1.0, 80), seeded_generator(seed)))["Phi_0"]
        if np.linalg.eigvalsh(b + flat)[0] >= 0:
            found.append(seed)
    return found


def test_2010_has_no_minimiser_for_all_but_a_few_draws_in_a_thousand() -> None:
    lam, n = 0.01, 80
    template = dp.load("pathak_raj_2010", features=3, trace=lam / n)
    data = two_groups(n, 3)
    good = psd_draws(template, 4000, lam)
    # A 4 x 4 matrix of the Gaussian orthogonal ensemble is positive definite with probability 0.0025.
    assert 1 <= len(good) <= 24
    bad = [seed for seed in range(10) if seed not in good]
    for seed in bad:
        with pytest.raises(NoMinimiser, match=r"no minimiser for this draw of b.* nothing is released"):
            reproduce(template, data, PROMISE, PublishedPerturbation.of(2010), seed=seed)
    release = reproduce(template, data, PROMISE, PublishedPerturbation.of(2010), seed=good[0])
    assert explain(release, template, data, PublishedPerturbation.of(2010)).residual < 1e-8


def test_2010_falls_for_ever_along_equal_matrices() -> None:
    lam, n = 0.01, 80
    template = dp.load("pathak_raj_2010", features=3, trace=lam / n)
    space = analyse(template).form.space
    mechanism = PublishedPerturbation.of(2010)
    b = space.unpack(mechanism.noise(space, mechanism.scale(1.0, n), seeded_generator(0)))["Phi_0"]
    values, vectors = np.linalg.eigh(b + lam * np.diag([1.0, 1.0, 1.0, 0.0]))
    assert values[0] < 0
    ray = np.outer(vectors[:, 0], vectors[:, 0])
    data = two_groups(n, 3)

    def objective(t: float) -> float:
        theta = dict.fromkeys(template.variables, t * ray)
        losses = 0.0
        for x, y in zip(data["x"], data["y"], strict=True):
            losses += float(evaluate(template.losses[y], {**theta, "x": x}))
        return losses + n * float(evaluate(template.regularizer, theta)) + 2 * float(np.sum(b * t * ray))

    values_on_ray = [objective(t) for t in (0.0, 1.0, 1000.0)]
    assert values_on_ray[1] - values_on_ray[0] == pytest.approx(2 * values[0])
    assert values_on_ray[2] - values_on_ray[0] == pytest.approx(2000 * values[0])


# Problem files


@pytest.mark.parametrize(
    "name", ["pathak_raj_2010", "pathak_raj_2012", "pathak_raj_2012_mixture", "large_margin_gaussian_mixture"]
)
def test_the_problem_files_refuse_impossible_options(name: str) -> None:
    with pytest.raises(TemplateError, match="needs 3 labels, at least two"):
        dp.load(name, features=2, classes=3, labels=("a", "b"))
    with pytest.raises(TemplateError, match="at least two"):
        dp.load(name, features=2, classes=1)
    if name.endswith("mixture"):
        with pytest.raises(TemplateError, match="at least one component"):
            dp.load(name, features=2, components=0)


def test_a_mixture_predicts_by_the_soft_minimum() -> None:
    template = dp.load("large_margin_gaussian_mixture", features=2, radius=2.0, labels=("far", "near"))
    rng = np.random.default_rng(5)
    halves = {v.name: rng.normal(size=(3, 3)) for v in template.variables}
    parameters = {name: half @ half.T for name, half in halves.items()}
    x = rng.normal(size=(50, 2))
    assert template.predict is not None
    guessed = template.predict(parameters, x)
    for row, answer in zip(x, guessed, strict=True):
        z = np.append(row / 2.0, 1.0) / np.sqrt(2)
        soft = [sum(np.exp(-z @ parameters[f"Phi_{c}_{k}"] @ z) for k in range(2)) for c in range(2)]
        assert answer == ("far", "near")[int(np.argmax(soft))]


@pytest.mark.parametrize(("classes", "components"), [(2, 1), (2, 2), (2, 3), (3, 2)])
def test_a_mixture_is_certified_on_differences(classes: int, components: int) -> None:
    template = dp.load("large_margin_gaussian_mixture", features=2, classes=classes, components=components)
    certificate = dp.verify(template, PROMISE, 200)
    assert certificate.noise_dimension == (classes * components - 1) * 6
    assert certificate.gradient_bound <= np.sqrt(classes * (classes - 1)) * (1 + 1e-9)


def test_a_mixture_learns_what_one_gaussian_cannot() -> None:
    # Class 0 sits at both ends of a line and class 1 in the middle of each half and at its centre.
    rng = np.random.default_rng(0)
    places = np.array([-0.8, -0.4, 0.0, 0.4, 0.8])
    group = rng.integers(0, 5, size=150)
    x = (places[group] + rng.uniform(-0.08, 0.08, size=150))[:, None]
    y = np.array([0, 1, 0, 1, 0])[group]
    m = np.array([0, 0, 1, 1, 2])[group]
    mixture = dp.load("large_margin_gaussian_mixture", features=1, components=3, regularization=1e-4, trace=0.0)
    single = dp.load("large_margin_gaussian", features=1, regularization=1e-4, trace=0.0)
    several = dp.minimize(mixture, {"x": x, "y": y, "m": m}, tolerance=0.1)
    one = dp.minimize(single, {"x": x, "y": y}, tolerance=0.1)
    assert np.mean(several.predict(x) == y) > 0.97
    assert np.mean(one.predict(x) == y) < 0.9
