"""Linear classifiers on public tables: folds, and the test errors of plain, published and certified fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import dpconvex as dp
from benchmarks.papers.kdd_mix import full_mix, rows_of
from benchmarks.public_data import Table, adult, kdd
from benchmarks.published.reproduce import repeat_chaudhuri

__all__ = [
    "LEARNERS",
    "Fold",
    "Records",
    "adult_records",
    "certified",
    "errors",
    "folds",
    "kdd_records",
    "plain",
    "published",
]

Array = NDArray[np.float64]

LEARNERS = {"logistic": "logistic_regression", "Huber": "huber_svm"}
# Fits without a guarantee end where the gradient, per record, is no longer than this; the second is for regularizations below
# NEGLIGIBLE, whose minimisers are far away and matter to no prediction.
GRADIENTS = 1e-6, 1e-4
NEGLIGIBLE = 1e-6
# What certified releases pay for the residual; the default is a hundredth.
COVER = dp.ResidualNoise(share=1e-3)


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records in the unit ball: x sparse of shape (n, d), y in {-1, 1}.

    `groups` says how many columns belong to each categorical one; they are the last.
    """

    x: sp.csr_matrix
    y: NDArray[np.int64]
    groups: tuple[int, ...] = ()

    def some(self, rows: NDArray[np.int64]) -> Records:
        """Return some of them."""
        return Records(self.x[rows], self.y[rows], self.groups)

    @property
    def data(self) -> dict[str, Any]:
        """As `dp.solve` takes them."""
        return {"x": self.x, "y": self.y}

    def error(self, release: dp.Release) -> float:
        """Return the fraction of wrong predictions."""
        return float(np.mean((self.x @ release["w"] > 0) != (self.y > 0)))


@dataclass(frozen=True, eq=False)
class Fold:
    """Records to fit, and others to test on."""

    train: Records
    test: Records


def adult_records(path: str | None = None) -> Records:
    """Load Adult as the paper prepares it: columns divided by their maxima, rows by their norms, 105 columns, no intercept."""
    table = adult(path)
    return prepared(table, table.y)


def kdd_records(path: str | None = None, count: int = 70_000, rng: np.random.Generator | None = None) -> Records:
    """Draw records of KDD Cup 1999 in the full file's mix of labels, normal (1) against the rest (-1), prepared likewise."""
    table = kdd(path)
    rows = full_mix(table.y, count, rng if rng is not None else np.random.default_rng(0))
    chosen = rows_of(table, rows)
    return prepared(chosen, np.where(chosen.y == "normal", 1, -1))


def prepared(table: Table, y: NDArray[np.int64]) -> Records:
    """Divide columns by their maxima, which looks at the data as the paper did, and rows by their norms."""
    return Records(sp.csr_matrix(table.design(maxima=True, unit=True)), y, tuple(map(len, table.levels)))


def folds(records: Records, number: int = 10, seed: int = 0) -> Iterator[Fold]:
    """Yield the folds of a cross-validation; the first ones only if a smaller number is taken off the iterator."""
    parts = np.array_split(np.random.default_rng(seed).permutation(len(records.y)), number)
    for k, part in enumerate(parts):
        rest = np.concatenate([other for j, other in enumerate(parts) if j != k])
        yield Fold(records.some(rest), records.some(part))


def learner(name: str, records: Records, regularization: float) -> dp.Template:
    """Return a linear classifier without intercept for records in the unit ball, as the paper has it."""
    return dp.load(LEARNERS[name], features=records.x.shape[1], regularization=regularization)


def projection(features: int, groups: tuple[int, ...]) -> Array:
    """Project on the vectors in which the columns of each group have the same sum; the groups are the last columns."""
    sums, start = np.zeros((len(groups), features)), features - sum(groups)
    for row, size in zip(sums, groups, strict=True):
        row[start : start + size] = 1
        start += size
    equal = np.diff(sums, axis=0)
    return np.eye(features) - np.linalg.pinv(equal) @ equal


@cache
def one_hot_learner(name: str, features: int, groups: tuple[int, ...], regularization: float) -> dp.Template:
    """Return the same classifier, with what is public about one-hot columns.

    A record has one level in each categorical column, so the columns of any two of them have equal sums: x = P x for a public
    projection P.  Written as x'(P w) the loss of every record is what it was, and it is seen that no noise is needed
    elsewhere.
    """
    matrix = projection(features, groups)
    w = cp.Variable(features, name="w")

    def loss(x: cp.Expression, y: int) -> cp.Expression:
        margin = y * (x @ (matrix @ w))
        return cp.logistic(-margin) if name == "logistic" else dp.huber_hinge(1 - margin, width=0.5)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=1.0), y=dp.Choice([-1, 1])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
    )


def tolerance(regularization: float) -> float:
    """Return how far from the minimiser a fit without a guarantee may end."""
    return GRADIENTS[regularization < NEGLIGIBLE] / regularization


def plain(name: str, regularization: float, train: Records) -> Iterator[dp.Release]:
    """Fit without privacy."""
    yield dp.solve_without_privacy(
        learner(name, train, regularization), train.data, tolerance=tolerance(regularization)
    )


def published(
    name: str, regularization: float, train: Records, epsilon: float, algorithm: int, draws: int
) -> Iterator[dp.Release]:
    """Fit with the paper's Algorithm 1 or 2, to the letter."""
    template = learner(name, train, regularization)
    # Algorithm 2 adds to a regularization that is too small; minimisers are then not far away.
    within = tolerance(regularization) if algorithm == 1 else min(tolerance(regularization), 1e-3)
    return repeat_chaudhuri(template, train.data, epsilon, algorithm, draws=draws, tolerance=within)


def certified(
    name: str, regularization: float, train: Records, privacy: dp.Privacy, added: float | None, draws: int
) -> Iterator[dp.Release]:
    """Fit with objective perturbation as this toolkit proves and calibrates it; none if there is no proof.

    With ``added=0`` the regularization is what it says; with None the mechanism may add to it, by public numbers.  Under
    add-remove neighbours the nominal number of records is the true one, rounded to three digits.
    """
    count = len(train.y)
    size = count if privacy.adjacency == "replace-one" else round(count, 3 - len(str(count)))
    template = one_hot_learner(name, train.x.shape[1], train.groups, regularization)
    mechanism = proved(template, privacy, added, size)
    if mechanism is not None:
        yield from dp.sweep(
            template, train.data, privacy, mechanism=mechanism, draws=draws, size=size, residual_noise=COVER
        )


@cache
def proved(
    template: dp.Template, privacy: dp.Privacy, added: float | None, size: int
) -> dp.ObjectivePerturbation | None:
    """Return the mechanism with what it adds made explicit, so that this is chosen once; None if there is no proof."""
    noise = "gamma" if privacy.pure else "gaussian"
    try:
        proof = dp.verify(template, privacy, size, dp.ObjectivePerturbation(noise, added=added), COVER)
    except dp.NotPrivate:
        return None
    return dp.ObjectivePerturbation(noise, added=proof.added)


def errors(releases: Iterable[dp.Release], test: Records) -> list[float]:
    """Return the test error of each release."""
    return [test.error(release) for release in releases]
