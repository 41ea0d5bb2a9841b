"""Public data sets as features of norm at most 1 and a target, split into training and test records.

Features are those of the duel in docs/choosing.md: public bounds only, then rows of length 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import fewer, public_data
from benchmarks.levels import ADULT_LEVELS
from benchmarks.utility import r_tables
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.errors import DomainError
from dpconvex.util.arrays import Array


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test records; `classes` is 0 for regression, whose targets lie in [-1, 1]."""

    name: str
    x: Array
    y: NDArray[Any]
    x_test: Array
    y_test: NDArray[Any]
    classes: int

    @property
    def data(self) -> dict[str, Any]:
        """Return the training records as a template takes them."""
        return {"x": self.x, "y": self.y}

    def error(self, predictions: NDArray[Any]) -> float:
        """Return the share of mistakes, or 1 - R^2 for regression, on the test records."""
        if self.classes:
            return float(np.mean(predictions != self.y_test))
        apart = self.y_test - self.y_test.mean()
        return float(np.sum((predictions - self.y_test) ** 2) / np.sum(apart**2))


def unit_rows(x: Array) -> Array:
    """Divide each row by its own length."""
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def with_one(x: Array) -> Array:
    """Append a constant to rows of length at most 1, and keep them so."""
    return np.column_stack([x, np.ones(len(x))]) / np.sqrt(2)


def scaled(x: Array, lower: Any, upper: Any) -> Array:
    """Scale by public bounds into the unit ball, with a constant."""
    return with_one(unit_ball(x, lower=lower, upper=upper))


def bundled(name: str) -> tuple[Array, NDArray[Any]]:
    """Load one of scikit-learn's own data sets."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return np.asarray(x, dtype=float), np.asarray(y)


# Public bounds of columns that have none by definition: generous round numbers.
CELL = [30, 40, 200, 2600, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1, 3, 5, 22, 550, 0.04, 0.14, 0.4, 0.06, 0.08, 0.03]
CELL += [40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21]


def digits() -> tuple[Array, NDArray[Any]]:
    """Pixels less their row's mean, rows of length 1."""
    x, y = bundled("digits")
    return unit_rows(x - x.mean(axis=1, keepdims=True)), y


def wisconsin() -> tuple[Array, NDArray[Any]]:
    """Nine gradings from 1 to 10."""
    x, labels = breast_cancer()
    return scaled(x, 1, 10), (labels == "malignant").astype(int)


def diagnostic() -> tuple[Array, NDArray[Any]]:
    """Thirty measurements of cells."""
    x, y = bundled("breast_cancer")
    return scaled(np.clip(x, 0, CELL), np.zeros(30), CELL), y


def letter() -> tuple[Array, NDArray[Any]]:
    """Sixteen counts about their middle, rows of length 1, and a constant."""
    table = public_data.letter()
    return with_one(unit_rows((table.numeric - 7.5) / 7.5)), np.unique(table.y, return_inverse=True)[1]


def landsat() -> tuple[Array, NDArray[Any]]:
    """Four spectra of nine pixels, by their bounds."""
    table = public_data.landsat()
    return scaled(table.numeric, 0, 255), np.unique(table.y, return_inverse=True)[1]


def adult() -> tuple[Array, NDArray[Any]]:
    """Numbers in [0, 1] and one-hot levels, rows of length 1."""
    table = public_data.adult()
    return np.asarray(table.design(unit=True).todense()), (table.y > 0).astype(int)


def kdd() -> tuple[Array, NDArray[Any]]:
    """Every tenth connection; is it an attack."""
    x, kind = attacks()
    return x, (kind > 0).astype(int)


def parity() -> tuple[Array, NDArray[Any]]:
    """Digits: is it odd."""
    x, y = digits()
    return x, y % 2


def level_of(name: str) -> tuple[Array, NDArray[Any]]:
    """Adult: a categorical column from all others, income included."""
    table = public_data.adult()
    place = list(ADULT_LEVELS).index(name)
    start = table.numeric.shape[1] + sum(len(levels) for levels in table.levels[:place])
    x = np.delete(np.asarray(table.design().todense()), np.s_[start : start + len(table.levels[place])], axis=1)
    return unit_rows(np.column_stack([x, table.y > 0])), table.codes[:, place]


def attacks() -> tuple[Array, NDArray[Any]]:
    """Every tenth connection: normal, smurf, neptune, or another attack."""
    table = public_data.kdd()
    keep = np.random.default_rng(0).permutation(len(table.y))[:50_000]
    usual = ["normal", "smurf", "neptune"]
    kind = np.array([usual.index(name) if name in usual else 3 for name in table.y[keep]])
    return np.asarray(table.design(unit=True)[keep].todense()), kind


def diabetes() -> tuple[Array, Array]:
    """Ten columns that come standardised, in [-0.2, 0.2]; the target, 0 to 400, moved into [-1, 1]."""
    x, y = bundled("diabetes")
    return scaled(np.clip(x, -0.2, 0.2), -0.2, 0.2), np.clip((y - 200) / 200, -1, 1)


def hours() -> tuple[Array, Array]:
    """Adult: hours a week, 0 to 100, from the other columns."""
    table = public_data.adult()
    x = np.asarray(table.design().todense())
    numeric = table.numeric.shape[1]
    return unit_rows(np.delete(x, numeric - 1, axis=1)), np.clip((table.numeric[:, numeric - 1] - 50) / 50, -1, 1)


def infrared() -> tuple[Array, Array]:
    """Landsat: the last band of the last pixel from the other bands."""
    table = public_data.landsat()
    return scaled(table.numeric[:, :35], 0, 255), (table.numeric[:, 35] - 127.5) / 127.5


def heavy_tails(n: int = 25_000, d: int = 20) -> tuple[Array, Array]:
    """Draw linear targets with Student noise of two degrees of freedom, clipped to [-1, 1]."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    slopes = rng.normal(size=d)
    mean = 0.5 * x @ slopes / np.linalg.norm(slopes) * np.sqrt(d) / 2
    return x, np.clip(mean + 0.1 * rng.standard_t(2, size=n), -1, 1)


# Loader, share of the records for training, classes.
Loader = Callable[[], tuple[Array, NDArray[Any]]]
CLASSES: dict[str, tuple[Loader, float, int]] = {
    "wisconsin": (wisconsin, 0.8, 2),
    "diagnostic": (diagnostic, 0.8, 2),
    "digits": (digits, 0.7, 10),
    "landsat": (landsat, 0.7, 6),
    "letter": (letter, 0.8, 26),
    "adult": (adult, 0.667, 2),
    "kdd": (kdd, 0.8, 2),
    "parity": (parity, 0.7, 2),
    "sex": (lambda: level_of("sex"), 0.667, 2),
    "occupation": (lambda: level_of("occupation"), 0.667, 14),
    "attacks": (attacks, 0.8, 4),
}
CLASSES |= {
    name: (source.classes, 0.67, classes)
    for (name, source), classes in zip(r_tables.CLASSES.items(), (2, 2, 4, 5, 5, 5, 12, 12, 7, 4, 2, 2), strict=True)
}
# No choice and no number of the toolkit was ever made by these.
HELD_OUT = ("parity", "sex", "occupation", "attacks", *r_tables.CLASSES)
HELD_OUT_REGRESSION = tuple(r_tables.TARGETS)
REGRESSION: dict[str, tuple[Loader, float, int]] = {
    "diabetes": (diabetes, 0.8, 0),
    "infrared": (infrared, 0.8, 0),
    "hours": (hours, 0.667, 0),
    "heavy tails": (heavy_tails, 0.8, 0),
}
REGRESSION |= {name: (source.targets, 0.67, 0) for name, source in r_tables.TARGETS.items()}


def find(name: str, seed: int = 0, most: int | None = None) -> Split | None:
    """Load and split a data set, with at most so many training records; None where its file is not found."""
    load, share, classes = {**CLASSES, **REGRESSION}[name]
    try:
        x, y = load()
    except (DomainError, ModuleNotFoundError):
        return None
    order = np.random.default_rng(seed).permutation(len(y))[: fewer(len(y))]
    cut = round(share * len(order))
    train, test = order[:cut][:most], order[cut:][:10_000]
    return Split(name, x[train], y[train], x[test], y[test], classes)
