"""A user's own atom: believed only if an attack fails, and then used like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.declared_atoms import Atom


def softplus(m: Any) -> Any:
    import jax.numpy as jnp

    return jnp.logaddexp(m, 0.0)


def piecewise(m: Any) -> Any:
    """Return 0, then m^2/2, then m - 1/2: curvature 1 on an interval of length 1e-3 far from zero."""
    import jax.numpy as jnp

    t = m - 37.0
    return jnp.where(t > 1e-3, 1e-3 * t - 5e-7, jnp.where(t > 0, t**2 / 2, 0.0))


def test_true_constants_survive_and_are_tight() -> None:
    ratios = Atom("softplus", softplus, (0.0, 1.0), 0.25, 0.0).attack()
    assert all(0.99 <= ratio <= 1 + 1e-6 for ratio in ratios.values())


@pytest.mark.parametrize(
    ("numpys", "jaxs"),
    [
        (lambda m: np.logaddexp(m, 0.0), softplus),
        (lambda m: np.logaddexp(0.0, -m) + m, softplus),
        (lambda m: np.maximum(m, 0.0) + np.log1p(np.exp(-np.abs(m))), softplus),
        (lambda m: m * m / (1 + np.sqrt(1 + np.square(m))), lambda m: (1 + m * m) ** 0.5 - 1),
    ],
)
def test_functions_in_numpy_run_as_those_in_jax(numpys: Callable[[Any], Any], jaxs: Callable[[Any], Any]) -> None:
    pytest.importorskip("jax")
    ours, theirs = (Atom("mine", function, (-1.0, 1.0), 1.0) for function in (numpys, jaxs))
    points = np.linspace(-30.0, 30.0, 1001)
    assert ours.evaluate(points) == pytest.approx(theirs.evaluate(points), abs=1e-7)
    assert ours.evaluate(points, 1) == pytest.approx(theirs.evaluate(points, 1), abs=2e-9)


def test_a_function_that_mixes_points_is_refused() -> None:
    with pytest.raises(dp.TemplateError, match="of one scalar"):
        Atom("mine", lambda m: m * np.max(np.abs(m)), (0.0, 1.0), 1.0).attack()


@pytest.mark.parametrize(
    ("slope", "curvature", "lower", "function", "message"),
    [
        ((0.0, 0.9), 0.25, 0.0, softplus, "slopes in"),
        ((0.1, 1.0), 0.25, 0.0, softplus, "slopes in"),
        ((0.0, 1.0), 0.2, 0.0, softplus, "curvature"),
        ((0.0, 1.0), 0.25, 0.1, softplus, "lower bound"),
        ((-1.0, 1.0), 10.0, 0.0, abs, "kink"),
        ((-1.0, 0.0), 0.25, -np.inf, lambda m: -softplus(m), "not convex"),
        ((-1e9, 1e9), 2.0, -np.inf, lambda m: 1 / m, "finite"),
        ((0.0, 1e-3), 0.9, 0.0, piecewise, "curvature"),
    ],
)
def test_false_constants_are_refused(
    slope: tuple[float, float], curvature: float, lower: float, function: Callable[[Any], Any], message: str
) -> None:
    atom = Atom("mine", function, slope, curvature, lower)
    with pytest.raises(dp.NotPrivate, match=message) as caught:
        atom.attack()
    assert caught.value.remedy
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: atom(x @ w), 0.1 * cp.sum_squares(w))
    assert not dp.is_private(template, dp.Privacy(1.0), size=100)


@pytest.mark.parametrize(
    "bad", [{"slope": (1.0, 0.0)}, {"slope": (0.0, np.inf)}, {"curvature": -1.0}, {"lower": np.nan}, {"function": 3}]
)
def test_malformed_declarations(bad: dict[str, Any]) -> None:
    with pytest.raises(dp.TemplateError):
        Atom(**{"name": "a", "function": softplus, "slope": (0.0, 1.0), "curvature": 0.25, **bad})


def test_it_gives_the_constants_of_the_derived_twin() -> None:
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    atom = Atom("softplus", softplus, (0.0, 1.0), 0.25, 0.0)
    declared = dp.Template(record, lambda x, y: atom(-y * (x @ w)), 0.05 * cp.sum_squares(w))
    derived = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 0.05 * cp.sum_squares(w))
    first, second = (
        dp.verify(t, dp.Privacy(1.0), 200, dp.ObjectivePerturbation(added=0.0)) for t in (declared, derived)
    )
    for name in ("gradient_bound", "sensitivity", "hessian_bound", "noise_dimension"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-9)
    assert any("softplus" in text and "declared" in text for text in first.assumptions)
    assert not any("declared" in text for text in second.assumptions)
    batch = record.sample(200, np.random.default_rng(0))
    data = {"x": batch.fields["x"], "y": np.array([-1, 1])[batch.group]}
    np.testing.assert_allclose(dp.minimize(declared, data)["w"], dp.minimize(derived, data)["w"], atol=1e-5)


def test_the_smooth_hinge_learns() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 2))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.where(x[:, 0] > 0, 1, -1)
    template = dp.load("smooth_hinge_svm", features=2, regularization=1e-3)
    certificate = dp.verify(template, dp.Privacy(3.0), size=2000)
    assert certificate.hessian_bound == pytest.approx(1.5)
    release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(3.0), seed=0)
    assert np.mean(release.predict(x) != y) < 0.1


def steeper_far_out(m: Any) -> Any:
    """Return softplus, whose slope doubles beyond 1e9."""
    import jax.numpy as jnp

    return softplus(m) + jnp.where(m > 1e9, m - 1e9, 0.0)


def kink_at_500(m: Any) -> Any:
    import jax.numpy as jnp

    return jnp.maximum(m - 500.3, 0.0)


FALSE = {
    "curvature of something small": (lambda m: 1e-9 * softplus(m), (0.0, 1e-9), 2.4e-10, 0.0),
    "slope of something small": (lambda m: 1e-9 * softplus(m), (0.0, 0.999e-9), 2.5e-10, 0.0),
    "value of something small": (lambda m: 1e-9 * softplus(m), (0.0, 1e-9), 2.5e-10, 1e-12),
    "tiny and not convex": (lambda m: -1e-12 * softplus(m), (-1e-12, 0.0), 2.5e-13, -np.inf),
    "grows far out": (lambda m: 0.5 * 1e-9 * m**2, (-1e-3, 1e-3), 1e-9, 0.0),
    "steeper far out": (steeper_far_out, (0.0, 1.0), 0.25, 0.0),
    "a kink at 500.3": (kink_at_500, (0.0, 1.0), 0.25, 0.0),
    "a kink at 500.3, high curvature": (kink_at_500, (0.0, 1.0), 1e6, 0.0),
    "a kink at -12345.6": (lambda m: kink_at_500(m + 12845.9), (0.0, 1.0), 1e4, 0.0),
    "not bounded below": (softplus, (0.0, 1.0), 0.25, 1e-3),
    "of one sign, bounded below": (lambda m: m + softplus(m), (1.0, 2.0), 0.25, 0.0),
}


@pytest.mark.parametrize("name", FALSE)
def test_claims_that_are_false_by_little_or_far_out_are_refused(name: str) -> None:
    function, slope, curvature, lower = FALSE[name]
    with pytest.raises(dp.NotPrivate):
        Atom("mine", function, slope, curvature, lower).attack()


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("function", [softplus, kink_at_500, lambda m: softplus(m) + 1e-9 * kink_at_500(m)])
def test_what_runs_has_the_declared_constants_whatever_the_function_does(
    function: Callable[[Any], Any], scale: float
) -> None:
    """Also where no node shows that a claim is false: between neighbouring points, slopes keep to the declared bounds."""
    atom = Atom("mine", lambda m: scale * function(m), (0.0, scale), 0.25 * scale, -np.inf)
    try:
        atom.attack()
    except dp.NotPrivate:
        assert function is kink_at_500
        return
    nodes = atom.running.nodes
    points = np.unique(np.concatenate([nodes, np.nextafter(nodes, np.inf), (nodes[1:] + nodes[:-1]) / 2]))
    slopes = atom.evaluate(points, 1)
    room = 1e-14 * scale
    assert slopes.min() >= -room
    assert slopes.max() <= scale + room
    assert (np.diff(slopes) <= 0.25 * scale * np.diff(points) * (1 + 1e-9) + room).all()
    assert (np.diff(slopes) >= -room).all()
    near = np.linspace(-20.0, 20.0, 1001)
    import jax

    with jax.enable_x64(True):
        wanted = np.asarray(jax.vmap(jax.grad(atom.function))(near))
        found = np.asarray(jax.vmap(jax.grad(atom.apply))(near))
    assert np.abs(atom.evaluate(near, 1) - wanted).max() <= 1e-6 * scale
    np.testing.assert_allclose(found, atom.evaluate(near, 1), rtol=0, atol=1e-14 * scale)


def test_values_are_the_integral_of_slopes_and_keep_to_the_lower_bound() -> None:
    atom = Atom("softplus", softplus, (0.0, 1.0), 0.25, 0.0)
    points = np.linspace(-60.0, 60.0, 20001)
    values = atom.evaluate(points)
    assert values.min() >= -1e-12
    np.testing.assert_allclose(values, np.logaddexp(points, 0.0), atol=1e-5)
    middle = atom.evaluate((points[1:] + points[:-1]) / 2, 1)
    np.testing.assert_allclose(np.diff(values), middle * np.diff(points), atol=1e-9)


def test_a_declaration_cannot_change_later() -> None:
    slope, factor = [0.0, 1.0], [1.0]
    atom = Atom("mine", lambda m: factor[0] * softplus(m), slope, 0.25, 0.0)  # type: ignore[arg-type]
    atom.attack()
    before = atom.evaluate(np.array([3.0]), 1)
    slope[1], factor[0] = 0.1, 100.0
    assert atom.slope == (0.0, 1.0)
    assert atom.evaluate(np.array([3.0]), 1) == before
