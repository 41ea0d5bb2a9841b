"""Certificates print what was proved and survive a round trip; options, the added quadratic, and noise on the output."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

import dpconvex as dp
from dpconvex.core.derivation import Derivation
from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.added_quadratic import SHARE
from dpconvex.release.verify import analyse


@pytest.fixture(scope="module")
def certificate() -> dp.Certificate:
    return dp.verify(dp.load("large_margin_gaussian", features=9), dp.Privacy(1.0), size=583)


def every(step: Derivation) -> Iterator[Derivation]:
    yield step
    for child in step.children:
        yield from every(child)


def test_it_prints_every_constant_and_where_it_is_from(certificate: dp.Certificate) -> None:
    text = str(certificate)
    assert "epsilon = 1, replace-one" in text
    for line in (
        r"gradient bound G +1\.41421 ",
        r"sensitivity G_adj +2\.82843 ",
        r"strong convexity mu .* size 583 x regularizer",
        r"largest Hessian eigenvalue +2 ",
        r"sensitive subspace +55 dimensions",
        r"noise scale 1/beta .* mean norm of b: ",
        r"distance tau .* from the exact one",
        r"noise that covers tau .* discrete Laplace on a grid of step 2\^-\d+",
    ):
        assert re.search(line, text), line
    assert "Chaudhuri, Monteleoni & Sarwate 2011" in text
    for step in every(certificate.derivation):
        assert step.rule in text
    for assumption in certificate.assumptions:
        assert assumption in text


@pytest.mark.parametrize("problem", ["logistic_regression", "huber_svm", "large_margin_gaussian"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_it_survives_json(problem: str, adjacency: str) -> None:
    before = dp.verify(dp.load(problem, features=3), dp.Privacy(0.7, adjacency=adjacency), size=50)
    text = json.dumps(before.to_dict(), allow_nan=False)
    after = dp.Certificate.from_dict(json.loads(text))
    assert after == before
    assert str(after) == str(before)
    assert after._repr_html_() == before._repr_html_()


LEARNER = dp.load("logistic_regression", features=2)


def test_a_promise_without_delta_says_up_to_which_probability_it_holds(certificate: dp.Certificate) -> None:
    for mechanism in (dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma")):
        for privacy in (dp.Privacy(1.0), dp.Privacy(1.0, adjacency="add-remove"), dp.Privacy(1.0, 1e-40)):
            found = dp.verify(LEARNER, privacy, 100, mechanism)
            said = f"up to a probability of 2^{-99 if privacy.adjacency == 'add-remove' else -100}"
            assert str(found).splitlines()[1] == found.proviso == f"It is so {said} (docs/release.md, section 5)."
            assert said in found._repr_html_()
            assert dp.Certificate.from_dict(json.loads(json.dumps(found.to_dict()))).proviso == found.proviso
    said = "up to a probability of 2^-100"  # the matrix-shaped law, and k-means below
    assert said in certificate.proviso
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    assert said in dp.verify_mixture(mixture, dp.Privacy(1.0), 1000).proviso


def test_the_runs_of_a_search_count_that_probability_each() -> None:
    data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    found = dp.tune_repeated([LEARNER], data, dp.Privacy(2.0), repetitions=dp.Repetitions(mean=3)).release.certificate
    assert found is not None
    assert "up to a probability of 2^-100, times 3 on average for the runs" in found.proviso


CASES: dict[Any, list[dict[str, Any]]] = {
    dp.NoisyKMeans: [{"rounds": 1}, {"rounds": 2.5}, {"rounds": True}],
    dp.OutputPerturbation: [{"noise": "matrix"}, {"added": -1.0}, {"reference_norm": math.nan}],
    dp.ObjectivePerturbation: [{"noise": "laplace"}, {"added": -1.0}, {"reference_norm": True}],
    dp.PrivateWhitening: [{"share": 0.0}, {"share": 1.0}, {"share": True}, {"field": 3}],
    dp.Cover: [{"share": 0.0}, {"share": 1.0}, {"tolerance": 0.0}, {"tolerance": math.inf}],
    dp.Repetitions: [
        *({"mean": 1.0}, {"mean": math.nan}, {"mean": True}, {"shape": -1.0}, {"shape": math.inf}),
        *({"share": 0.0}, {"share": 1.0}, {"share": "0.1"}),
    ],
    dp.NoisyGradientDescent: [
        *({"steps": 0}, {"steps": 2.5}, {"steps": True}, {"step_size": -1.0}, {"clip": 0.0}),
        *({"clip": math.inf}, {"momentum": 0.5}, {"clip": 1.0, "momentum": 1.0}),
        {"clip": 1.0, "sampling": 1.0},
    ],
}


@pytest.mark.parametrize(("kind", "options"), [(kind, one) for kind, many in CASES.items() for one in many])
def test_bad_options_are_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(dp.TemplateError, match=rf"{kind.__name__}.*{list(options)[-1]}"):
        kind(**options)


SIZE = 2000
DIFFERENCES = np.array([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])


def declared(kind: str, loss: float = 1.0, feature: float = 1.0, target: float = 1.0) -> dp.Template:
    """A learner whose loss, features and target are multiplied with constants, and its regularizer accordingly."""
    classes = 3 if kind == "softmax" else 1
    w = cp.Variable((2, classes), name="w")
    y: Any = dp.Box(-target, target) if kind in ("huber", "square") else dp.Choice([-1, 1])
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "logistic": lambda x, y: cp.logistic(-y * (x @ w)[0]),
        "hinge": lambda x, y: dp.huber_hinge(1 - y * (x @ w)[0], width=0.5),
        "softmax": lambda x, y: cp.log_sum_exp(x @ (w @ DIFFERENCES)),
        "huber": lambda x, y: cp.huber((x @ w)[0] - y, 0.5 * target),
        "square": lambda x, y: cp.square((x @ w)[0] - y),
    }
    unit = feature / target if kind in ("huber", "square") else feature
    return dp.Template(
        dp.Record(x=dp.Ball(2, radius=feature), y=y),
        lambda x, y: loss * functions[kind](x, y),
        loss * 1e-6 * feature**2 * cp.sum_squares(w),
        [cp.norm(w) <= 2 / unit] if kind == "square" else [],
    )


KINDS = ["logistic", "hinge", "softmax", "huber", "square"]
MECHANISMS = [
    (dp.ObjectivePerturbation(), dp.Privacy(1.0)),
    (dp.ObjectivePerturbation("gaussian"), dp.Privacy(0.3, 1e-6, "add-remove")),
    (dp.OutputPerturbation(), dp.Privacy(1.0)),
]


@pytest.mark.parametrize(("mechanism", "privacy"), MECHANISMS)
@pytest.mark.parametrize("kind", KINDS)
def test_units_change_nothing(kind: str, mechanism: Any, privacy: dp.Privacy) -> None:
    plain = dp.verify(declared(kind), privacy, SIZE, mechanism)
    assert plain.added > 0
    # Losses times 7: gradients, noise and the quadratic times 7.
    louder = dp.verify(declared(kind, loss=7.0), privacy, SIZE, mechanism)
    assert louder.added == pytest.approx(7 * plain.added, rel=1e-3)
    # Features times 5: parameters are a fifth, so that a quadratic of theirs is worth the same at 25 times the modulus.
    longer = dp.verify(declared(kind, feature=5.0), privacy, SIZE, mechanism)
    assert longer.added == pytest.approx(25 * plain.added, rel=1e-3)
    # Targets times 3: parameters times 3, losses times 9.
    if kind in ("huber", "square"):
        farther = dp.verify(declared(kind, target=3.0), privacy, SIZE, mechanism)
        assert farther.added == pytest.approx(plain.added, rel=1e-3)


def test_summed_hinges_leave_most_of_epsilon_to_the_noise() -> None:
    template = dp.load("large_margin_gaussian", features=2, classes=8, competitors="summed")
    certificate = dp.verify(template, dp.Privacy(1.0), SIZE, dp.ObjectivePerturbation())
    assert certificate.jacobian_epsilon <= 2 * SHARE


def test_a_regularizer_near_the_largest_number_is_refused_in_words() -> None:
    with pytest.raises(DPConvexError, match="rescale the problem"):
        dp.verify(dp.load("logistic_regression", features=3, regularization=1e300), dp.Privacy(1.0), 100)


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


def minimiser(kind: str, margins: Array, mu: float) -> float:
    """Minimise the sum of losses plus mu/2 w^2 on the line."""
    reach = len(margins) / mu + 1
    value = lambda w: float(LOSSES[kind](margins * w).sum() + mu / 2 * w * w)  # noqa: E731
    return float(minimize_scalar(value, bounds=(-reach, reach), method="bounded", options={"xatol": 1e-10}).x)


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
