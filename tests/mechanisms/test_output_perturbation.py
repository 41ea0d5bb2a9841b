"""Output perturbation: how far two answers are apart, exact privacy on the line, and losses with kinks."""

import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]
ADJACENCIES = ("replace-one", "add-remove")
LOSSES = {
    "hinge": lambda m: np.maximum(1 - m, 0.0),
    "logistic": lambda m: np.logaddexp(0.0, -m),
    "absolute": lambda m: np.abs(1 - m),
}


def template(kind: str, features: int = 1, regularization: float = 0.1) -> dp.Template:
    w = cp.Variable(features, name="w")
    atoms = {
        "hinge": lambda m: cp.pos(1 - m),
        "logistic": lambda m: cp.logistic(-m),
        "absolute": lambda m: cp.abs(1 - m),
    }
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: atoms[kind](y * (x @ w)),
        regularizer=regularization / 2 * cp.sum_squares(w),
    )


def data(margins: Array) -> dict[str, Any]:
    """Records on the line with y x = margins."""
    return {"x": np.abs(margins)[:, None], "y": np.where(margins >= 0, 1, -1)}


def minimiser(kind: str, margins: Array, mu: float) -> float:
    """Minimise the sum of losses plus mu/2 w^2 on the line by golden-section search."""
    low, high = -len(margins) / mu - 1, len(margins) / mu + 1

    def value(w: float) -> float:
        return float(LOSSES[kind](margins * w).sum() + mu / 2 * w * w)

    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if value(left) < value(right) else (left, high)
    return (low + high) / 2


def neighbours(adjacency: str) -> list[tuple[Array, Array]]:
    found = []
    for others in (np.full(5, 1.0), np.full(5, -1.0), np.array([1.0, -1.0, 0.4, -0.7, 0.1]), np.full(5, 0.05)):
        for v in (1.0, -1.0, 0.5):
            mine = np.append(others, v)
            found.extend(
                [(mine, others)] if adjacency == "add-remove" else [(mine, np.append(others, u)) for u in (-1.0, 1.0)]
            )
    return found


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", LOSSES)
def test_answers_of_neighbours_are_no_further_apart_than_certified(kind: str, adjacency: str) -> None:
    mechanism = dp.OutputPerturbation(added=0.0)
    certificate = mechanism.certify(analyse(template(kind)), dp.Privacy(1.0, adjacency=adjacency), 6)
    mu, reach = certificate.strong_convexity, certificate.noise_scale  # at epsilon = 1
    assert mu == pytest.approx(0.6)
    assert reach == pytest.approx(certificate.sensitivity / mu)
    gaps = [abs(minimiser(kind, a, mu) - minimiser(kind, b, mu)) for a, b in neighbours(adjacency)]
    assert max(gaps) <= reach
    # On the line two records are rarely steep at once, and logistic losses flatten out.
    assert max(gaps) >= (0.3 if kind == "logistic" else 0.45) * reach


def test_it_is_refused_without_strong_convexity_or_delta() -> None:
    w = cp.Variable(2, name="w")
    flat = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.pos(1 - x @ w), cp.norm1(w))
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(flat, dp.Privacy(1.0), 10, dp.OutputPerturbation())
    assert dp.is_private(flat, dp.Privacy(1.0), 10, dp.OutputPerturbation(added=1.0))
    with pytest.raises(dp.NotPrivate, match="delta = 0"):
        dp.verify(template("hinge"), dp.Privacy(1.0), 10, dp.OutputPerturbation("gaussian"))
