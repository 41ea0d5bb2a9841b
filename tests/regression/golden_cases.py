"""What is measured: learners on data sets, scaled by bounds that are declared here, and the guarantees of their fits.

Options are written out where they matter, so that a changed default moves only what it should.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets

import dpconvex as dp
from benchmarks import public_data as loaders
from dpconvex.datasets import breast_cancer as load_breast_cancer, unit_ball
from tests.learners_of_tests import bounded

PURE = dp.Privacy(1.0)
APPROXIMATE = dp.Privacy(1.0, 1e-6)
ADD_REMOVE = dp.Privacy(1.0, 1e-6, "add-remove")


class Dataset(NamedTuple):
    """Records in the unit ball, shape (n, d), numbers of their classes, and the columns in their own units."""

    x: np.ndarray
    y: np.ndarray
    raw: np.ndarray


def iris():
    """Four lengths in cm: 150 records, 3 classes."""
    bunch = datasets.load_iris()
    return Dataset(unit_ball(bunch.data, 0, 10), bunch.target.astype(np.int64), bunch.data)


def breast_cancer():
    """Wisconsin, original: 683 records, nine gradings from 1 to 10; class 1 is malignant."""
    raw, labels = load_breast_cancer()
    return Dataset(unit_ball(raw, 1, 10), (labels == "malignant").astype(np.int64), raw)


def adult():
    """UCI Adult: 45,222 records, 105 columns, each record divided by its own norm; class 1 earns more than 50,000."""
    table = loaders.adult()
    return Dataset(table.design(unit=True).toarray(), (table.y > 0).astype(np.int64), table.numeric)


def thinned(data, step):
    """Take each `step`-th record, for tests that have little time."""
    return lambda: Dataset(*(column[::step] for column in data()))


@dataclass(frozen=True, eq=False)
class Fit:
    """A private fit with a seed; no mechanism is the best of those that end near a minimiser."""

    privacy: dp.Privacy = PURE
    mechanism: Any = None
    seed: int = 1

    @property
    def name(self):
        promise = f"{self.privacy.adjacency}, epsilon {self.privacy.epsilon:g}"
        promise += f", delta {self.privacy.delta:g}" if self.privacy.delta else ""
        return f"{promise}, {'automatic' if self.mechanism is None else self.mechanism.name}"


@dataclass(frozen=True, eq=False)
class Case:
    """A learner on a data set, whose fields a function of COLUMNS makes."""

    golden: str
    data: Callable[[], Dataset]
    name: str
    problem: str
    columns: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fits: tuple[Fit, ...] = (Fit(),)
    slow: bool = False
    shared: bool = False


def pairs(d):
    """Differences of records, and whether they are of one class."""
    other = (np.arange(len(d.y)) * 7 + 11) % len(d.y)
    return {"x": d.x - d.x[other], "y": np.where(d.y == d.y[other], "alike", "different")}


COLUMNS = {
    "classes": lambda d: {"x": d.x, "y": d.y},
    "virginica": lambda d: {"x": d.x, "y": np.where(d.y == 2, 1, -1)},
    "signs": lambda d: {"x": d.x, "y": 2 * d.y - 1},
    # The class, and a component by a public rule: is the first feature above the middle of its range?
    "components": lambda d: {"x": d.x, "y": d.y, "m": (d.x[:, 0] > 0).astype(int)},
    "pairs": pairs,
    # Iris: the last length, declared to lie between 0 and 3 cm, from the others
    "petal width": lambda d: {"x": d.x[:, :3], "y": (d.raw[:, 3] - 1.5) / 1.5},
    "location": lambda d: {"x": d.x},
}

WEAK = Fit(dp.Privacy(10.0))  # on a hundred records nothing stronger leaves anything to learn
WEAK_GAUSSIAN = Fit(dp.Privacy(10.0, 1e-6), dp.ObjectivePerturbation("gaussian"))
OUTPUT = Fit(mechanism=dp.OutputPerturbation())
GAUSSIAN = Fit(APPROXIMATE, dp.ObjectivePerturbation("gaussian"))
DESCENT = Fit(APPROXIMATE, dp.NoisyGradientDescent(steps=30))
TENTH = Fit(dp.Privacy(0.1))
MATRIX = Fit(dp.Privacy(10.0, adjacency="add-remove"), dp.ObjectivePerturbation("matrix"))
THREE = {"classes": 3, "regularization": 0.01}
SOFT = THREE | {"competitors": "soft"}
BOTH = (WEAK, WEAK_GAUSSIAN)
LESS = {"regularization": 1e-3}

on_iris = partial(Case, "iris", iris, fits=(WEAK,))
on_original = partial(Case, "breast_cancer", breast_cancer)
on_fourth = partial(Case, "breast_cancer", thinned(breast_cancer, 4))
on_adult = partial(Case, "adult", adult, shared=True, slow=True)

CASES = (
    on_iris("softmax", "softmax_regression", "classes", THREE, fits=(*BOTH, MATRIX)),
    on_iris("large-margin Gaussians, soft", "large_margin_gaussian", "classes", SOFT, fits=BOTH),
    on_iris("large-margin Gaussians, summed", "large_margin_gaussian", "classes", THREE | {"competitors": "summed"}),
    on_iris("large-margin mixture, soft", "large_margin_gaussian_mixture", "components", SOFT),
    on_iris("logistic, virginica", "logistic_regression", "virginica", fits=(WEAK, Fit(ADD_REMOVE))),
    on_iris("Huber regression of petal width", "huber_regression", "petal width"),
    on_iris("quantile regression of petal width", "quantile_regression", "petal width", {"quantile": 0.8}),
    on_iris("ridge regression of petal width", "ridge_regression", "petal width", {"bound": 1.0}, fits=(WEAK, DESCENT)),
    on_iris("robust location", "robust_location", "location", fits=(WEAK, DESCENT)),
    on_iris("metric", "metric_learning", "pairs", {"radius": 2.0}),
    on_original("logistic", "logistic_regression", "signs", fits=(Fit(), OUTPUT, GAUSSIAN)),
    on_original("Huber machine", "huber_svm", "signs", fits=(Fit(), Fit(ADD_REMOVE))),
    on_original("hinge machine", "hinge_svm", "signs", fits=(OUTPUT, DESCENT)),
    on_original("large-margin Gaussians", "large_margin_gaussian", "classes", LESS, fits=(Fit(), GAUSSIAN)),
    on_original("elastic net", "elastic_net_logistic", "signs"),
    on_original("smooth hinge machine", "smooth_hinge_svm", "signs"),
    on_fourth("large-margin mixture, every fourth", "large_margin_gaussian_mixture", "components"),
    Case("adult", thinned(adult, 10), "logistic, every tenth", "logistic_regression", "signs", shared=True),
    on_adult("logistic", "logistic_regression", "signs", fits=(TENTH, Fit(ADD_REMOVE))),
    on_adult("Huber machine", "huber_svm", "signs", fits=(TENTH,)),
)

# Problems whose certificates are kept: each with its defaults, what depends on the number of classes with more of them, and
# with larger records what costs no curvature on small ones.
GALLERY = {name: (name, bounded(name)) for name in dp.problems()} | {
    "logistic_regression_of_larger_records": ("logistic_regression", {"radius": 4.0}),
    "softmax_regression_of_five": ("softmax_regression", {"classes": 5}),
    "softmax_regression_of_larger_records": ("softmax_regression", {"classes": 3, "radius": 2.0}),
    "large_margin_gaussian_of_five": ("large_margin_gaussian", {"classes": 5, "competitors": "soft"}),
    "large_margin_gaussian_of_five_summed": ("large_margin_gaussian", {"classes": 5, "competitors": "summed"}),
    "large_margin_gaussian_mixture_of_three": ("large_margin_gaussian_mixture", {"classes": 3, "competitors": "soft"}),
}
