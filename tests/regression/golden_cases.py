"""What is measured: learners on data sets, and the promises that they are fitted under.

Options are written out where they matter, so that a changed default moves only what it should.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import golden_data
import numpy as np
from golden_data import Dataset, Find

import dpconvex as dp
from dpconvex.mechanisms.base import Mechanism

Data = Mapping[str, Any]
Columns = Callable[[Dataset], Data]

PURE = dp.Privacy(1.0)
WEAK = dp.Privacy(10.0)  # on a hundred records nothing stronger leaves anything to learn
APPROXIMATE = dp.Privacy(1.0, 1e-6)
ADD_REMOVE = dp.Privacy(1.0, 1e-6, "add-remove")


@dataclass(frozen=True, eq=False)
class Fit:
    """A private fit with a seed; no mechanism is the best of those that end near a minimiser."""

    privacy: dp.Privacy = PURE
    mechanism: Mechanism | None = None
    seed: int = 1

    @property
    def name(self) -> str:
        """Name in the golden file."""
        promise = f"{self.privacy.adjacency}, epsilon {self.privacy.epsilon:g}"
        promise += f", delta {self.privacy.delta:g}" if self.privacy.delta else ""
        return f"{promise}, {'automatic' if self.mechanism is None else self.mechanism.name}"


@dataclass(frozen=True, eq=False)
class Case:
    """A learner on a data set.

    `columns` makes the fields of the records from the data, and `inputs` what predictions are made from, by default the field x.
    The conic backend is asked for the objective too where it is the `oracle`.
    """

    golden: str
    name: str
    data: Callable[[Find], Dataset]
    problem: str
    columns: Columns
    options: Mapping[str, Any] = field(default_factory=dict)
    features: int | None = None
    fits: tuple[Fit, ...] = (Fit(),)
    oracle: bool = True
    inputs: Callable[[Dataset], Any] | None = None
    slow: bool = False
    shared: bool = False

    @property
    def id(self) -> str:
        """Name in test reports."""
        return f"{self.golden}-{self.name}".replace(" ", "-")


def classes(d: Dataset) -> Data:
    """Features and the number of the class."""
    return {"x": d.x, "y": d.y}


def one_against_rest(positive: int) -> Columns:
    """Features, and 1 for one class and -1 for the others."""
    return lambda d: {"x": d.x, "y": np.where(d.y == positive, 1, -1)}


def signs(d: Dataset) -> Data:
    """Two classes as -1 and 1."""
    return {"x": d.x, "y": 2 * d.y - 1}


def components(d: Dataset) -> Data:
    """The number of the class, and a component by a public rule: is the first feature above the middle of its range."""
    return {"x": d.x, "y": d.y, "m": (d.x[:, 0] > 0).astype(int)}


def locations(d: Dataset) -> Data:
    """Features alone."""
    return {"x": d.x}


def pairs(d: Dataset) -> Data:
    """Differences of records, and whether they are of one class."""
    other = (np.arange(len(d.y)) * 7 + 11) % len(d.y)
    return {"x": d.x - d.x[other], "y": np.where(d.y == d.y[other], "alike", "different")}


def petal_width(d: Dataset) -> Data:
    """Iris: the last length, declared to lie between 0 and 3 cm, from the others."""
    return {"x": d.x[:, :3], "y": (d.raw[:, 3] - 1.5) / 1.5}


FOURIER = {"components": 20, "gamma": 2.0, "seed": 0}


def fourier(columns: Columns) -> Columns:
    """Map features as the kernel machine asks."""

    def mapped(d: Dataset) -> Data:
        found = columns(d)
        mapping = dp.RandomFourierFeatures(d.x.shape[1], FOURIER["components"], "gaussian", FOURIER["gamma"], True, 0)
        return {**found, "x": mapping.transform(found["x"])}

    return mapped


def thinned(data: Callable[[Find], Dataset], step: int) -> Callable[[Find], Dataset]:
    """Take each `step`-th record."""
    return lambda find: data(find).every(step)


WEAK_GAUSSIAN = Fit(dp.Privacy(10.0, 1e-6), dp.ObjectivePerturbation("gaussian"))
OUTPUT = Fit(mechanism=dp.OutputPerturbation())
GAUSSIAN = Fit(APPROXIMATE, dp.ObjectivePerturbation("gaussian"))
DESCENT = Fit(APPROXIMATE, dp.NoisyGradientDescent(steps=30))
TENTH = Fit(dp.Privacy(0.1))
MATRIX = Fit(dp.Privacy(10.0, adjacency="add-remove"), dp.ObjectivePerturbation("matrix"))
SMALL = {"regularization": 1e-3}
THREE: dict[str, Any] = {"classes": 3, "regularization": 0.01}
SOFT = THREE | {"competitors": "soft"}
SUMMED = THREE | {"competitors": "summed"}


def case(golden: str, data: Any, name: str, problem: str, columns: Columns, **more: Any) -> Case:
    return Case(golden, name, data, problem, columns, **more)


on_iris = partial(case, "iris", golden_data.iris, fits=(Fit(WEAK),))
on_digits = partial(case, "digits", golden_data.digits)
on_original = partial(case, "breast_cancer", golden_data.breast_cancer)
on_shared = partial(case, shared=True, oracle=False)

CASES: tuple[Case, ...] = (
    on_iris("softmax", "softmax_regression", classes, options=THREE, fits=(Fit(WEAK), WEAK_GAUSSIAN, MATRIX)),
    on_iris(
        "large-margin Gaussians, soft", "large_margin_gaussian", classes, options=SOFT, fits=(Fit(WEAK), WEAK_GAUSSIAN)
    ),
    on_iris("large-margin Gaussians, summed", "large_margin_gaussian", classes, options=SUMMED),
    on_iris("large-margin mixture, soft", "large_margin_gaussian_mixture", components, options=SOFT),
    on_iris("logistic, virginica", "logistic_regression", one_against_rest(2), fits=(Fit(WEAK), Fit(ADD_REMOVE))),
    on_iris("Huber regression of petal width", "huber_regression", petal_width),
    on_iris("quantile regression of petal width", "quantile_regression", petal_width, options={"quantile": 0.8}),
    on_iris("ridge regression of petal width", "ridge_regression", petal_width, fits=(Fit(WEAK), DESCENT)),
    on_iris("robust location", "robust_location", locations, fits=(Fit(WEAK), DESCENT)),
    on_iris("metric", "metric_learning", pairs, options={"radius": 2.0}),
    on_digits("logistic, odd", "logistic_regression", lambda d: {"x": d.x, "y": 2 * (d.y % 2) - 1}),
    on_digits(
        "softmax",
        "softmax_regression",
        classes,
        options={"classes": 10, "regularization": 1e-3},
        fits=(Fit(dp.Privacy(3.0, 1e-6)),),
        oracle=False,
    ),
    Case(
        "digits",
        "large-margin Gaussians, soft, on 4 x 4 means",
        golden_data.small_digits,
        "large_margin_gaussian",
        classes,
        options={"classes": 10, "regularization": 1e-3, "competitors": "soft"},
        fits=(Fit(dp.Privacy(3.0, 1e-6)),),
        oracle=False,
    ),
    on_original("logistic", "logistic_regression", signs, fits=(Fit(), OUTPUT, GAUSSIAN)),
    on_original("Huber machine", "huber_svm", signs, fits=(Fit(), Fit(ADD_REMOVE))),
    on_original("hinge machine", "hinge_svm", signs, fits=(OUTPUT, DESCENT)),
    on_original("large-margin Gaussians", "large_margin_gaussian", classes, options=SMALL, fits=(Fit(), GAUSSIAN)),
    on_original("elastic net", "elastic_net_logistic", signs),
    on_original("smooth hinge machine", "smooth_hinge_svm", signs, oracle=False, fits=(Fit(),)),
    Case(
        "breast_cancer",
        "large-margin mixture, every fourth",
        thinned(golden_data.breast_cancer, 4),
        "large_margin_gaussian_mixture",
        components,
    ),
    on_original(
        "kernel machine",
        "kernel_svm",
        fourier(signs),
        options=FOURIER,
        features=9,
        inputs=lambda d: d.x,
    ),
    on_shared(
        "adult", thinned(golden_data.adult, 10), "logistic, every tenth", "logistic_regression", signs, oracle=True
    ),
    on_shared(
        "adult",
        golden_data.adult,
        "logistic",
        "logistic_regression",
        signs,
        fits=(TENTH, Fit(ADD_REMOVE)),
        slow=True,
    ),
    on_shared("adult", golden_data.adult, "Huber machine", "huber_svm", signs, fits=(TENTH,), slow=True),
    on_shared(
        "letter",
        golden_data.letter,
        "softmax",
        "softmax_regression",
        classes,
        options={"classes": 26, "regularization": 1e-4},
        fits=(Fit(dp.Privacy(3.0, 1e-6)),),
    ),
    on_shared(
        "letter",
        golden_data.letter,
        "large-margin Gaussians, soft",
        "large_margin_gaussian",
        classes,
        options={"classes": 26, "regularization": 1e-4, "competitors": "soft"},
        fits=(Fit(dp.Privacy(10.0, 1e-6)),),
        slow=True,
    ),
)

# Problems whose certificates are kept: each with its defaults, what depends on the number of classes with more of them, and
# with larger records what costs no curvature on small ones.
GALLERY: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in dp.problems()} | {
    "logistic_regression_of_larger_records": ("logistic_regression", {"radius": 4.0}),
    "softmax_regression_of_five": ("softmax_regression", {"classes": 5}),
    "softmax_regression_of_larger_records": ("softmax_regression", {"classes": 3, "radius": 2.0}),
    "large_margin_gaussian_of_five": ("large_margin_gaussian", {"classes": 5, "competitors": "soft"}),
    "large_margin_gaussian_of_five_summed": ("large_margin_gaussian", {"classes": 5, "competitors": "summed"}),
    "large_margin_gaussian_mixture_of_three": ("large_margin_gaussian_mixture", {"classes": 3, "competitors": "soft"}),
}
