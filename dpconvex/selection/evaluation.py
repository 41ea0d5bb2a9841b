"""Evaluations computed from released counts, at no further cost: errors, curves and calibration, with intervals."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.special import xlogy

from dpconvex.accounting.events import Pure
from dpconvex.data.learnt import Learnt
from dpconvex.errors import TemplateError
from dpconvex.fitting.files import StatedNumbers
from dpconvex.mechanisms.cell_counts import DEVIANCES, PREDICTIONS, RESIDUALS, Cells
from dpconvex.model.privacy import MOST_ROWS, Privacy
from dpconvex.numerics import TAIL_SLACK
from dpconvex.selection import measures
from dpconvex.selection.measures import MEANING, Curve, Estimate, bins, curve, estimate, ratio, share, whole
from dpconvex.util.arguments import Kind, number_in, require
from dpconvex.util.arrays import Array
from dpconvex.util.markup import digits

REPLICATES = 400  # Bootstrap replicates for intervals
RARE = 0.02  # Least share of records in a cell of predictions with a printed result
MOST = 0.5  # Share of records in one cell of scores from which finer cells are advised


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(StatedNumbers):
    """Hold the errors and curves of a release on records, computed from noisy counts; print a summary.

    All numbers follow from `sums`, at no further cost.  Each is an `Estimate`, whose ``interval`` covers the sampling of
    records and the noise.

    Attributes
    ----------
    cells : Cells
        The public cells in which records were counted.
    sums, scale : tuple of float, and float
        The released numbers, in records: weighted sums of the counts, with discrete Laplace noise of this scale on each.
    total : int or None
        Number of records (of people, if records are weighted); None if it is protected.
    spent : Privacy or None
        None if a seed was given.
    labels, groups, label, bounds
        Names of the labels and of the groups, the field that is predicted, and the bounds of a number.
    clusters : int
        Bound on the number of one person's records.  Intervals assume that all of these are alike.
    chosen : int or None
        Index of the group to which all numbers refer.
    not_private_because, learnt : str, and Learnt or None
        Why the numbers or the release are not private, such as a seed; and the cost of a learnt schema.
    threshold : float
        Score at which prints and reports tell `rates`; ``dataclasses.replace(found, threshold=0.1)`` changes it.
    """

    form = "dpconvex evaluation 2"

    cells: Cells
    sums: tuple[float, ...]
    scale: float
    total: int | None
    spent: Privacy | None
    labels: tuple[Any, ...] = ()
    groups: tuple[Any, ...] = ()
    label: str = "y"
    bounds: tuple[float, float] = (0.0, 1.0)
    clusters: int = 1
    chosen: int | None = None
    not_private_because: str = ""
    learnt: Learnt | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        seeded = "the noise was drawn with a seed" if self.spent is None else ""
        object.__setattr__(self, "not_private_because", self.not_private_because or seeded)

    @property
    def event(self) -> Pure | None:
        """Event of the release."""
        return None if self.spent is None else Pure(self.spent.epsilon)

    @property
    def records(self) -> int:
        """Number of records; noisy if it is protected, or for a group."""
        return round(float(self._sizes[0])) if self.total is None or self.chosen is not None else self.total

    @property
    def is_hidden(self) -> bool:
        """Whether noise outweighs the number of a group's records, so that its rates raise."""
        return self.chosen is not None and bool(self._sizes[0] <= measures.WITHIN * self._sizes[1:].std())

    @property
    def _sizes(self) -> Array:
        """Numbers of records, shape (1 + replicates,)."""
        return whole(self._of_group(next(iter(self.cells.tables))))

    def _of_group(self, name: str) -> Array:
        """Return the counts of a table for the chosen group (or all records), shape (1 + replicates, *cells)."""
        return self._counts[name][:, 0 if self.chosen is None else 1 + self.chosen]

    @cached_property
    def _counts(self) -> dict[str, Array]:
        """The counts of cells, shape (1 + replicates, 1 + groups, *cells): the estimate, then bootstrap replicates."""
        return self.cells.estimates(np.array(self.sums), self.total, self.scale, self.clusters, REPLICATES)

    def _table(self, *names: str) -> Array:
        """Return the counts of the first existing table, as `_of_group` does; raise if none exists or noise hides the group."""
        if self.is_hidden:
            said = "noise outweighs the number of its records, so its rates are not available. Use a larger epsilon"
            raise TemplateError(f"the group {self.groups[self.chosen or 0]!r}: {said}.")
        known = [name for name in names if name in self.cells.tables]
        require(known, f"this evaluation counted {self.cells.kind}, not the {names[0]} that this number needs.")
        return self._of_group(known[0])

    def group(self, name: Any) -> Self:
        """Return the evaluation of one of the declared groups."""
        Kind(f"one of {', '.join(map(repr, self.groups))}", lambda given: given in self.groups).check("", group=name)
        made = replace(self, chosen=self.groups.index(name))
        vars(made)["_counts"] = self._counts
        return made

    def by_group(self) -> dict[Any, Self]:
        """Return the evaluation of each declared group, without the groups in `hidden`."""
        return {name: own for name in self.groups if not (own := self.group(name)).is_hidden}

    @property
    def hidden(self) -> list[Any]:
        """The groups with too few records compared with the noise."""
        return [name for name in self.groups if self.group(name).is_hidden]

    @property
    def error(self) -> Estimate:
        """Share of wrong labels, or mean squared error."""
        size = self._range**2 if self.cells.kind == "numbers" else 1.0
        if "error" in self.cells.tables:
            table = self._table("error")
            return share(size * table[:, 1], table, size)
        if self.cells.kind == "numbers":
            return self._beside_constant(estimate(self._squares, size), 1.0)
        table = self._confusions(0.5)
        return share(table[:, 0, 1] + table[:, 1, 0], table)

    @property
    def constant(self) -> Estimate:
        """The error of the best constant: of the most frequent label, or of the mean."""
        if self.cells.kind == "numbers":
            found = estimate(self._variances, self._range**2)
            return found.within(2 * found)
        table = self._table("labels", "probabilities", "scores")
        return share(whole(table) - table.sum(axis=2).max(axis=1), table, 1 - 1 / table.shape[1])

    @property
    def first(self) -> Estimate:
        """The first number of `summary`: the error, if it was measured."""
        return next(iter(self.summary().values()))

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the first number of `summary`."""
        return self.first.interval

    @property
    def measure(self) -> str:
        """Name of the first number, with the units of a mean squared error."""
        name = next(iter(self.summary())).replace("_", " ")
        known = f"mean squared error of {self.label} between {digits(self.bounds[0])} and {digits(self.bounds[1])}:"
        return known if self.cells.kind == "numbers" and name == "error" else name

    # Probabilities, and scores of two labels

    @property
    def log_loss(self) -> Estimate:
        """Mean negative logarithm of the label's probability. For two labels, a fitted curve gives frequencies within cells."""
        table, edges = self._table("probabilities", "likelihood"), self.cells.edges
        if table.ndim == 2:
            loss = 1 - np.diff(xlogy(edges, edges)) / np.diff(edges)  # probabilities are uniform in each cell
            return share(table @ loss, table, np.inf).within(np.log(max(len(self.labels), 2)))
        return share(measures.surprises(table, edges, self._variance / self.clusters), table, np.inf).within(np.log(2))

    @property
    def brier(self) -> Estimate:
        """Mean squared difference of probability and outcome."""
        table, edges = self._table("probabilities"), self.cells.edges
        return share(measures.moments(table[:, 0], edges) + measures.moments(table[:, 1], edges - 1), table)

    @property
    def auc(self) -> Estimate:
        """Area under the ROC curve. Within a cell, odds rise at least like probabilities; at the interval's lower end not."""
        table = self._table("probabilities", "scores")
        no, yes, _ = measures.calibrated(table, self.cells.edges, self._variance / self.clusters)
        found, even = (share(*measures.label_pairs(no, yes, self.cells.edges, ordered)) for ordered in (True, False))
        known = Estimate(found, (min(found.interval[0], even.interval[0]), found.interval[1]), found.most)
        return measures.unless_hidden(known, table[0].sum(axis=1).min(), self._variance * table.shape[2])

    @property
    def _variance(self) -> float:
        return 2 * self.scale**2 * (max(len(self.groups), 1) if self.chosen is None else 1)

    def roc(self) -> Curve:
        """Return true positive rates (y) by false positive rates (x); `at` are thresholds of the score."""
        false, true = np.moveaxis(ratio(self._above, self._above[..., :1]), 1, 0)
        level = [np.interp(false[0, ::-1], x[::-1], y[::-1])[::-1] for x, y in zip(false[1:], true[1:], strict=True)]
        return curve(false[0], np.array([true[0], *level]), self.cells.edges)

    def precision_recall(self) -> Curve:
        """Return precisions (y) by recalls (x); `at` are thresholds of the score."""
        found = self._above[..., :-1]
        return curve(ratio(found[0, 1], found[0, 1, :1]), ratio(found[:, 1], found.sum(axis=1)), self.cells.edges[:-1])

    def confusion(self, threshold: float = 0.5) -> Array:
        """Return the confusion matrix at a score threshold, shape (2, 2): rows are labels, columns are predictions.

        Exact at cuts between cells, up to the noise.  Inside a cell, densities and odds are interpolated from other cells.
        """
        return np.asarray(self._confusions(threshold)[0])

    def rates(self, threshold: float | None = None) -> dict[str, Estimate]:
        """Return sensitivity, specificity, precision, and the share of records above a threshold, by name."""
        at = self.threshold if threshold is None else threshold
        table, noise = self._confusions(at), self._variance * (len(self.cells.edges) - 1)
        (true_no, said_yes), (_, true_yes) = np.moveaxis(table, 0, -1)
        said, (no, yes) = said_yes + true_yes, table.sum(axis=2).T
        found = {"sensitivity": (true_yes, yes, 1.0, noise), "specificity": (true_no, no, 1.0, noise)}
        found["precision"] = true_yes, said, 1.0, 2 * self._variance * sum(self.cells.edges > at)
        return {name: share(*parts) for name, parts in found.items()} | {"selected": share(said, table)}

    def calibration(self) -> Curve:
        """Return observed shares of the second label (y) by mean probabilities (x), in up to ten bins; `at` holds bins' shares.

        NaN where noise hides the share of records.
        """
        shares, observed, said = bins(self._table("probabilities"), self.cells.edges)
        return curve(said[0], np.where(measures.clear(shares), observed, np.nan), shares[0])

    @property
    def crowding(self) -> str:
        """Advice if most records lie in one cell of scores, as for rare labels; otherwise an empty text."""
        name = next((name for name in ("probabilities", "scores") if name in self.cells.tables), "")
        records = self._of_group(name)[0].sum(axis=0) if name else np.zeros(1)
        if records.max() <= MOST * records.sum():
            return ""
        first, last = (f"{self.cells.edges[np.argmax(records) + k]:g}" for k in (0, 1))
        why = f"{records.max() / records.sum():.0%} of records lie in one cell, of {name} from {first} to {last}"
        return f"{why}, which blurs log loss and calibration: evaluations with finer cells= (--cells) there tell more"

    @property
    def calibration_error(self) -> Estimate:
        """Mean distance of observed shares from probabilities, over the records in the bins of `calibration`."""
        shares, observed, said = bins(self._table("probabilities"), self.cells.edges)
        apart = np.nan_to_num(observed - said)  # 0 for bins without records, which have no weight
        found = estimate((shares * np.abs(apart)).sum(axis=1))
        # Chance increases distances near 0 by more than replicates show. The lower end of the interval allows for it.
        square, chance = (shares[0] * apart[0] ** 2).sum(), (shares[0] * apart[1:].var(axis=0)).sum()
        least = np.sqrt(max(square - 2 * chance, 0.0)) - (found.interval[1] - found)
        return Estimate(found, (min(max(least, 0.0), found.interval[0]), found.interval[1]), found.most)

    @property
    def _above(self) -> Array:
        """The counts of both labels above each edge, shape (1 + replicates, 2, edges)."""
        found = np.cumsum(self._table("probabilities", "scores")[..., ::-1], axis=-1)[..., ::-1]
        return np.concatenate([found, np.zeros((*found.shape[:-1], 1))], axis=-1)

    def _confusions(self, threshold: float) -> Array:
        table = self._table("probabilities", "scores")
        yes = measures.above(threshold, table, self.cells.edges, self._variance / self.clusters)
        return np.stack([self._above[..., 0] - yes, yes], axis=2)

    # A number that is predicted

    @property
    def r2(self) -> Estimate:
        """One minus the ratio of the mean squared error to that of the mean."""
        return measures.gain(self._squares, self._variances)

    @property
    def absolute_error(self) -> Estimate:
        """Mean absolute error."""
        found, blur = measures.mean_length(self.cells, "residuals", self._table("residuals"))
        return self._beside_constant(estimate(self._range * found, self._range, blur=self._range * blur), 0.5)

    def _beside_constant(self, found: Estimate, power: float) -> Estimate:
        """Limit the interval's length to twice the number, or to twice the constant's error, if that is larger and determined."""
        if "targets" not in self.cells.tables:
            return found
        return found.within(2 * max(found, 0.0 if self.constant.is_undetermined else self.constant**power))

    def residual_quantile(self, level: float) -> Estimate:
        """Return the quantile of label minus prediction at a level between 0 and 1."""
        found, blur = measures.quantile(self.cells, "residuals", self._table("residuals"), level)
        return estimate(self._range * found, self._range, -np.inf, self._range * blur)

    def coverage(self, lower: float, upper: float) -> Estimate:
        """Return the share of records with label minus prediction between two numbers: inside a prediction interval."""
        number_in(-np.inf, np.inf).check("coverage", lower=lower, upper=upper)
        ends = lower / self._range, upper / self._range
        found, blur = measures.share_between(self.cells, "residuals", self._table("residuals"), *ends)
        return estimate(found, blur=blur)

    def residuals(self, level: float = 0.5) -> Curve:
        """Return a quantile of label minus prediction (y) by prediction (x); `at` holds shares of records. NaN if few."""
        table, said = self._table("by_prediction"), measures.middles(np.array([0.0, *PREDICTIONS, 1.0]))
        parts = (measures.quantile(self.cells, "by_prediction", part, level) for part in np.moveaxis(table, 1, 0))
        found, blur = zip(*parts, strict=True)
        records = ratio(table.sum(axis=2), whole(table)[:, None])
        values = np.where(measures.clear(records, RARE), self._range * np.stack(found, axis=1), np.nan)
        return curve(self.bounds[0] + self._range * said, values, records[0], np.inf, self._range * np.array(blur))

    @property
    def deviance(self) -> Estimate:
        """Mean Poisson deviance of counts, or positive targets; predictions are raised to a thousandth of the largest target."""
        return estimate(self._deviances, np.inf).within(2 * float(self._deviances_of_mean[0]))

    @property
    def deviance_gain(self) -> Estimate:
        """One minus the ratio of the mean Poisson deviance to that of the mean of all counts."""
        return measures.gain(self._deviances, self._deviances_of_mean)

    @property
    def _deviances_of_mean(self) -> Array:
        table, knots = self._table("counts"), np.array(self.cells.count_knots)
        mean = ratio(table @ knots, whole(table))
        least = ratio(table @ (xlogy(knots, knots) - measures.entropy_bends(knots, self.cells.whole)), whole(table))
        return np.asarray(2 * (least - xlogy(mean, mean)) * self._range / self.cells.upper)

    @property
    def _deviances(self) -> Array:
        table = self._table("deviance")
        largest = self.cells.largest_deviance * self._range / self.cells.upper
        return ratio(largest * (table @ np.array(DEVIANCES)), whole(table))

    @property
    def concordance(self) -> Estimate:
        """Share of pairs of survival times in the order of their predictions.

        Harrell's concordance: a record with an event in an interval, against each that lived through that interval.  Pairs
        within one interval are left out, so few intervals give higher numbers than `SurvivalRegressor.score`.
        """
        table, count = self._table("survival"), self.cells.labels
        return share(*measures.survival_pairs(table[:, :count], table[:, count + 1 :], self.cells.edges))

    @property
    def _range(self) -> float:
        return self.bounds[1] - self.bounds[0]

    @property
    def _squares(self) -> Array:
        table = self._table("residuals")
        return ratio(table @ np.square(RESIDUALS), whole(table)) * self._range**2

    @property
    def _variances(self) -> Array:
        table = self._table("targets")
        knots = self.cells.knots["targets"]
        mean = ratio(table @ (np.sign(knots) * measures.lengths(knots)), whole(table))
        return np.maximum(ratio(table @ np.square(knots), whole(table)) - mean**2, 1e-12) * self._range**2

    def summary(self) -> dict[str, Estimate]:
        """Return the main numbers of these counts, by name; the error, and that of a constant, come first."""
        found = {}
        for name in MEANING:
            with suppress(TemplateError):
                found[name] = getattr(self, name)
        return found

    def __repr__(self) -> str:
        found = self.summary()
        head = f"{self.measure} {found.pop(next(iter(found)))} on {self.records} records"
        head += f"; of a constant {found.pop('constant')}" if "constant" in found else ""
        lines = [head, *(f"  {name.replace('_', ' ')} {value}" for name, value in found.items())]
        for name, own in self.by_group().items() if self.chosen is None else ():
            said = "; ".join(f"{what} {value}" for what, value in own.main().items())
            lines.append(f"  {name}, {own.records} records: {said}")
        hidden = self.hidden if self.chosen is None else ()
        lines += [f"  {name}: noise outweighs its records; no rates are available" for name in hidden]
        lines += [f"  {self.crowding}"] * bool(self.crowding and self.chosen is None)
        return "\n".join([*lines, f"  intervals of 95 %, for sampling and noise; {self.status}"])

    def main(self) -> dict[str, Estimate]:
        """Return the first number of `summary`, and `rates` if scores have a threshold, by name."""
        name, value = next(iter(self.summary().items()))
        return {name: value} | (self.rates() if {"probabilities", "scores"} & set(self.cells.tables) else {})

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"cells": asdict(self.cells)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        found = super().from_dict(given)
        spent, cells = found.spent, found.cells
        fits = len(found.sums) == cells.noisy and found.scale > 0 and cells.groups == max(len(found.groups), 1)
        fits &= 0 < found.clusters <= MOST_ROWS and found.chosen in (None, *range(len(found.groups)))
        fits &= (found.total or 0) >= 0 <= found.threshold <= 1 and found.bounds[0] < found.bounds[1]
        fits &= cells.kind in ("numbers", "survival") or len(found.labels) in (0, cells.labels)
        noise = found.scale if spent is None else cells.noise(spent).scale / cells.steps(spent)
        fits &= abs(found.scale - noise) <= TAIL_SLACK * noise
        require(fits and np.isfinite(found.sums).all(), "Evaluation: its numbers, cells and cost do not fit together.")
        return found
