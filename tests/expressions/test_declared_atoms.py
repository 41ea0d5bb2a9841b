"""A user's own atom: what runs has the declared constants by construction, and claims that are visibly false are refused."""

import numpy as np
import pytest

import dpconvex as dp


def softplus(m):
    return np.logaddexp(m, 0.0)


def narrow(m):
    """Return 0, then t^2/2, then a line: curvature 1 on an interval of length 1e-3 far from zero."""
    t = m - 37.0
    return np.where(t > 1e-3, 1e-3 * t - 5e-7, np.where(t > 0, t**2 / 2, 0.0))


FALSE = {
    "steeper": (softplus, (0.0, 0.9), 0.25, 0.0, "slopes in"),
    "more curved": (softplus, (0.0, 1.0), 0.2, 0.0, "curvature"),
    "lower": (softplus, (0.0, 1.0), 0.25, 1e-3, "lower bound"),
    "kink": (np.abs, (-1.0, 1.0), 10.0, 0.0, "kink"),
    "concave": (lambda m: -softplus(m), (-1.0, 0.0), 0.25, -np.inf, "not convex"),
    "pole": (lambda m: 1 / m, (-1e9, 1e9), 2.0, -np.inf, "finite"),
    "curved on little": (narrow, (0.0, 1e-3), 0.9, 0.0, "curvature"),
    "jump up": (lambda m: softplus(m) + np.where(m > 0.3, 5.0, 0.0), (0.0, 1.0), 0.25, 0.0, "slopes|jumps"),
    "step": (lambda m: 0.0 * m + np.where(m > 0.0, 1.0, 0.0), (0.0, 0.0), 0.0, 0.0, "slopes|jumps"),
}


@pytest.mark.parametrize("name", FALSE)
def test_false_claims_are_refused(name):
    function, slope, curvature, lower, message = FALSE[name]
    atom = dp.Atom("mine", function, slope, curvature, lower)
    with pytest.raises(dp.NotPrivate, match=message) as caught:
        atom.attack()
    assert "mine" in str(caught.value)
    assert caught.value.remedy


def raises(m):
    raise RuntimeError("not today")


OTHERS = [raises, lambda m: np.concatenate([m, m]), lambda m: m * 1j, lambda m: m * np.max(np.abs(m))]


@pytest.mark.parametrize("function", OTHERS)
def test_functions_that_are_none_of_one_real_number_are_refused_by_name(function):
    with pytest.raises(dp.TemplateError, match=r"Atom .mine.*of one scalar"):
        dp.Atom("mine", function, (0.0, 1.0), 1.0).attack()


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("function", [softplus, lambda m: softplus(m) + 5e-10 * np.maximum(m - 500.3, 0.0)])
def test_what_runs_has_the_declared_constants_and_a_derivative(function, scale):
    """Also where no node shows that a claim is false: between neighbouring points, slopes keep to the declared bounds."""
    atom = dp.Atom("mine", lambda m: scale * function(m), (0.0, scale), 0.25 * scale, 0.0)
    nodes = atom.running.nodes
    points = np.unique(np.concatenate([nodes, np.nextafter(nodes, np.inf), (nodes[1:] + nodes[:-1]) / 2]))
    slopes, room = atom.evaluate(points, 1), 1e-14 * scale
    assert slopes.min() >= -room
    assert slopes.max() <= scale + room
    assert (np.diff(slopes) <= 0.25 * scale * np.diff(points) * (1 + 1e-9) + room).all()
    assert (np.diff(slopes) >= -room).all()
    near = np.linspace(-60.0, 60.0, 20001)
    values, middle = atom.evaluate(near), atom.evaluate((near[1:] + near[:-1]) / 2, 1)
    assert values.min() >= -1e-12 * scale
    np.testing.assert_allclose(values, scale * softplus(near), atol=1e-5 * scale)
    np.testing.assert_allclose(np.diff(values), middle * np.diff(near), atol=1e-9 * scale)
