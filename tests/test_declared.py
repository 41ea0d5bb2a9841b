"""A user's own atom: believed only if an attack fails, and then used like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.declared import Atom


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
