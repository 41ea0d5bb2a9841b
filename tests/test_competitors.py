"""Competing classes, summed or soft: what one record can do does not grow with the number of classes if they are soft."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.neighbour_differences import Difference, differences
from dpconvex.core.evaluate import evaluate
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.release.verify import analyse

PROMISE = dp.Privacy(1.0)
SINGLE, MIXTURE = "large_margin_gaussian", "large_margin_gaussian_mixture"
DIGITS = {"rel": 1e-9, "abs": 0.0}


def of(name: str, **options: Any) -> Analysis:
    return analyse(dp.load(name, **options))


def vertices(item: Difference) -> dict[float, int]:
    assert item.vertices is not None
    return {round(float(length), 5): int(count) for length, count in zip(*item.vertices, strict=True)}


def values(template: dp.Template, parameters: dict[str, Any], data: dict[str, Any]) -> np.ndarray:
    """Loss of each record alone."""
    space = analyse(template).form.space
    theta = space.pack(parameters)
    batches = [template.record.validate({name: column[k : k + 1] for name, column in data.items()}) for k in range(40)]
    return np.array([BatchedLoss(template, space, batch).value_and_gradient(theta)[0] for batch in batches])


def sample(classes: int, components: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw parameters and 40 records in two dimensions."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-0.7, 0.7, size=(40, 2))
    halves = rng.normal(size=(classes, components, 3, 3)) * 1.5
    named = {
        f"Phi_{c}" if components == 1 else f"Phi_{c}_{k}": halves[c, k] @ halves[c, k].T
        for c in range(classes)
        for k in range(components)
    }
    return named, {"x": x, "y": np.arange(40) % classes, "m": np.arange(40) // classes % components}


# The constants


@pytest.mark.parametrize("width", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("classes", [3, 4, 10])
def test_the_trace_of_the_hessian_is_the_one_known_by_hand(classes: int, width: float) -> None:
    # With s the sum of squares of the softmax weights, |E v|^2 = 1 + s and tr Cov = 1 - s for vertices v = e_y - e_c.
    s = np.array([1 / (classes - 1), 1.0])
    exact = max((1 + s) / (2 * width) + 1 - s)
    for loss in of(SINGLE, features=2, classes=classes, width=width).losses:
        assert loss.curvature.trace == pytest.approx(exact, **DIGITS)
        assert loss.curvature.rank == classes - 1
        if width <= 0.5:
            assert loss.curvature.trace == pytest.approx(1 / width, **DIGITS)


@pytest.mark.parametrize(("classes", "components"), [(3, 1), (6, 1), (3, 2), (4, 3)])
def test_differences_have_the_vertices_of_softmax(classes: int, components: int) -> None:
    options = {"features": 2, "classes": classes} | ({"components": components} if components > 1 else {})
    analysis = of(MIXTURE if components > 1 else SINGLE, **options)
    others = (classes - 1) * components
    (alone,) = differences(analysis, "add-remove")
    assert vertices(alone) == {round(math.sqrt(2), 5): others}
    assert alone.dimension == others
    pairs = differences(analysis, "replace-one")
    for pair in pairs:
        found = vertices(pair)
        assert found[round(math.sqrt(2), 5)] == 2 * others
        assert sum(found.values()) == 2 * others + others**2
        assert max(found) <= round(2 * math.sqrt(2), 5)
        assert pair.dimension == min(2 * others, analysis.form.noise_dimension)
    assert max(max(vertices(pair)) for pair in pairs) == round(2 * math.sqrt(2), 5)


def test_summed_competitors_cost_more_with_every_class() -> None:
    soft, summed = [], []
    promise = dp.Privacy(1.0, 1e-6)
    for classes in (3, 8):
        for competitors, sigmas in (("soft", soft), ("summed", summed)):
            template = dp.load(SINGLE, features=2, classes=classes, competitors=competitors)
            mechanism = dp.ObjectivePerturbation("gaussian", added=200.0)
            sigmas.append(dp.verify(template, promise, 1000, mechanism).noise_scale)
    assert soft[-1] < 1.15 * soft[0]
    assert summed[-1] > 2 * summed[0]
    assert summed[0] > 1.4 * soft[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (SINGLE, {"classes": 4, "width": 2.0}),
        (SINGLE, {"classes": 3, "competitors": "summed"}),
        pytest.param(SINGLE, {"classes": 8}, marks=pytest.mark.slow),
        pytest.param(MIXTURE, {"classes": 4}, marks=pytest.mark.slow),
        pytest.param(MIXTURE, {"classes": 3, "competitors": "summed"}, marks=pytest.mark.slow),
    ],
)
def test_the_constants_are_attacked_and_reached(name: str, options: dict[str, Any]) -> None:
    found = dp.falsify(dp.load(name, features=2, **options), starts=8, steps=40, seed=3)
    for constant, finding in found.items():
        assert finding.ratio <= 1 + 1e-9, constant
    assert found["gradient_bound"].ratio >= 0.95
    assert found["sensitivity"].ratio >= 0.95
    assert found["noise_dimension"].ratio == 1


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", [SINGLE, MIXTURE])
def test_matrix_shaped_noise_is_chosen_where_it_is_smaller(name: str, adjacency: str) -> None:
    template = dp.load(name, features=9, classes=3)
    promise = dp.Privacy(1.0, adjacency=adjacency)
    gamma = dp.verify(template, promise, 1000, dp.ObjectivePerturbation())
    chosen = dp.verify(template, promise, 1000)
    assert chosen.noise == "matrix"
    assert chosen.expected_noise < 0.8 * gamma.expected_noise


# The loss


@pytest.mark.parametrize("components", [1, 2])
def test_the_soft_loss_is_above_the_largest_hinge_and_below_that_of_the_sum(components: int) -> None:
    classes, width = 4, 0.5
    parameters, data = sample(classes, components)
    options: dict[str, Any] = {"features": 2, "classes": classes, "width": width, "competitors": "soft"}
    if components > 1:
        options["components"] = components
    else:
        del data["m"]
    found = values(dp.load(MIXTURE if components > 1 else SINGLE, **options), parameters, data)

    z = np.column_stack([data["x"], np.ones(40)]) / np.sqrt(2)
    names = list(parameters)
    scores = np.array([np.einsum("ni,ij,nj->n", z, parameters[name], z) for name in names]).T
    label = np.repeat(np.arange(classes), components)
    for value, row, y, m in zip(found, scores, data["y"], data.get("m", np.zeros(40, dtype=int)), strict=True):
        violations = row[label == y][m] - row[label != y]
        soft = np.log(np.exp(violations).sum())
        assert value == pytest.approx(hinge(1 + soft, width), rel=1e-12)
        assert (
            hinge(1 + violations.max(), width) <= value <= hinge(1 + violations.max() + np.log(len(violations)), width)
        )


def hinge(m: float, h: float) -> float:
    return 0.0 if m < -h else (m + h) ** 2 / (4 * h) if m <= h else m


@pytest.mark.parametrize("name", [SINGLE, MIXTURE])
def test_for_two_classes_both_are_the_same_expression(name: str) -> None:
    losses = [
        [str(loss) for loss in dp.load(name, features=2, competitors=competitors).losses]
        for competitors in (None, "soft", "summed")
    ]
    assert losses[0] == losses[1] == losses[2]


def test_one_component_is_a_single_gaussian() -> None:
    parameters, data = sample(3)
    plain = values(dp.load(SINGLE, features=2, classes=3), parameters, {"x": data["x"], "y": data["y"]})
    renamed = {f"{name}_0": value for name, value in parameters.items()}
    mixture = values(dp.load(MIXTURE, features=2, classes=3, components=1), renamed, data)
    assert mixture == pytest.approx(plain, rel=1e-12)


# The default regularization


@pytest.mark.parametrize("classes", [2, 3, 10, 26])
def test_the_default_penalty_is_less_than_a_tenth_of_what_zero_costs(classes: int) -> None:
    template = dp.load(SINGLE, features=2, classes=classes, trace=0.0)
    zero = 1 + math.log(classes - 1)
    theta = {variable: 5 * zero * np.eye(3) / math.sqrt(3) for variable in template.variables}
    assert 0 < float(evaluate(template.regularizer, theta)) < zero / 10
