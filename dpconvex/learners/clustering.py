"""Clusters the records of every class privately: where data meet noisy k-means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.record_domains import Ball
from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.columns import BLOCK_BYTES, blocks, dense
from dpconvex.language.privacy import Privacy, check_privacy, computable
from dpconvex.language.record import Batch, Record
from dpconvex.language.template import Template
from dpconvex.learners.components import Components, in_steps
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise, NoisyKMeans, nearest
from dpconvex.noise.samplers import generator
from dpconvex.release.budget import Budget, pay

__all__ = ["Records", "calibrated", "classes_of", "cluster", "clustered", "extent", "method_of", "released"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


def cluster(
    record: Record | Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    components: int = 2,
    clustering: NoisyKMeans | None = None,
    *,
    features: str = "x",
    group: str | None = "y",
    clip: bool = False,
    budget: Budget | None = None,
    label: str = "cluster",
    seed: int | None = None,
) -> Components:
    """Cluster the records of every class privately.

    Parameters
    ----------
    record : Record or Template
        Declares the domains of the fields.
    data : mapping of str to array_like
        Fields other than the two below are not looked at.
    privacy : Privacy
        The promise of the clustering.
    components : int
        K: number of centres for each class.
    clustering : NoisyKMeans, optional
    features : str
        A field with a bounded domain.
    group : str or None
        The field whose values are the classes; None for one clustering of all records.
    clip : bool
        Project records onto their declared domain instead of raising.
    budget : Budget, optional
        A ledger that the cost is recorded in before the data are read.
    label : str
        Name of the spend in the ledger.
    seed : int, optional
        For tests; the centres are then not private, and say so.

    Returns
    -------
    Components
        A release.  A fit that uses its labels costs its own promise on top; `solve_mixture` does both under one.

    Raises
    ------
    TemplateError
        If there is no such field, or a number is out of range.
    DomainError
        If a record is outside its declared domain.
    BudgetExceeded
        If the ledger has not enough left.
    """
    check_privacy("cluster", privacy)
    method = method_of(clustering)
    declared = record.record if isinstance(record, Template) else record
    part = clustered(declared, features, group)
    noise = calibrated(method, privacy, part, features, group, components)
    rng = generator(seed)
    pay(budget, privacy, label)
    if not hasattr(data, "keys"):
        raise DomainError(f"the data must map each declared field to its column, not be a {type(data).__name__}.")
    columns = {name: data[name] for name in part.fields if name in data}
    batch = part.validate(columns, clip=clip, empty=privacy.adjacency == "add-remove")
    records = Records(part, batch, noise.step, features, group)
    return released(method, noise, records, privacy, rng, seed, classes_of(part, group))


class Records:
    """The records of a batch, in steps of a grid, with the codes of their classes; the only place that reads them.

    Parameters
    ----------
    record : Record
    batch : Batch
        Validated by it.
    step : float
        Of the grid.
    features : str
    group : str or None
    """

    def __init__(self, record: Record, batch: Batch, step: float, features: str, group: str | None) -> None:
        self.column = batch.fields[features]
        self.step = step
        self.middle, self.radius = extent(record, features)
        if group is None:
            self.codes = np.zeros(batch.size, dtype=np.int64)
        else:
            values = record.discrete[group].values
            place = np.array([values.index(chosen[group]) for chosen in record.combinations])
            self.codes = place[batch.group]

    def blocks(self) -> Iterator[tuple[Array, Codes]]:
        """Yield blocks of records in steps, shape (n, d), and their classes, shape (n,)."""
        rows = max(1, BLOCK_BYTES // (8 * len(self.middle)))
        start = 0
        for block in blocks(self.column, rows):
            values = dense(block)
            steps = in_steps(values.reshape(len(values), len(self.middle)), self.middle, self.step)
            yield steps, self.codes[start : start + len(steps)]
            start += len(steps)

    def statistics(self, centers: Array) -> tuple[Array, Array]:
        """Return the sum of the records in each cell, shape (C, k, d), and their number, shape (C, k)."""
        classes, count, features = centers.shape
        sums, counts = np.zeros((classes * count, features)), np.zeros(classes * count)
        for steps, codes in self.blocks():
            cell = codes * count
            for code, mine in enumerate(centers):
                rows = codes == code
                cell[rows] += nearest(steps[rows], mine)
            ones = sp.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(len(counts), len(cell)))
            sums += ones @ steps  # integers, far below 2^53: exact in any order
            counts += np.bincount(cell, minlength=len(counts))
        return sums.reshape(centers.shape), counts.reshape(classes, count)

    def assigned(self, components: Components) -> Codes:
        """Return the component of each record, shape (n,)."""
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *(components.of(steps, codes) for steps, codes in self.blocks())])


def released(
    method: NoisyKMeans,
    noise: ClusteringNoise,
    records: Records,
    privacy: Privacy,
    rng: np.random.Generator,
    seed: int | None,
    classes: tuple[Any, ...],
) -> Components:
    """Cluster, and say what it cost."""
    centers = method.run(noise, records.statistics, rng)
    return Components(
        centers=centers * noise.step + records.middle,
        classes=classes,
        radius=records.radius,
        middle=records.middle,
        step=noise.step,
        noise=noise,
        derivation=method.derive(noise, privacy.adjacency),
        spent=privacy if seed is None else None,
        not_private_because="" if seed is None else f"the noise was drawn with the seed {seed}",
    )


def clustered(record: Any, features: str, group: str | None) -> Record:
    """Return the part of a record that a clustering reads."""
    if not isinstance(record, Record):
        raise TemplateError(f"cluster: expected a Record or a Template, not {type(record).__name__}.")
    for name in (features, group):
        if not isinstance(name, str | None):
            raise TemplateError(f"cluster: the name of a field must be a text, not {name!r}.")
    if features not in record.continuous:
        raise TemplateError(
            f"cluster: the record has no continuous field {features!r} to cluster; it has {list(record.continuous)}."
        )
    if group is not None and group not in record.discrete:
        raise TemplateError(
            f"cluster: the record has no Choice {group!r}; it has {list(record.discrete)}. Pass group=None to cluster all "
            "records together."
        )
    return Record(**{name: record.fields[name] for name in (features, group) if name is not None})


def extent(record: Record, features: str) -> tuple[Array, float]:
    """Return the middle of a field's domain, shape (d,), and a bound on the distance of records from it."""
    domain = record.continuous[features]
    lower, upper = (np.ravel(bound) for bound in domain.bounds)
    if isinstance(domain, Ball):
        return np.zeros(len(lower)), domain.norm_bound
    middle = (lower + upper) / 2
    # Rounding is monotone: a computed difference from the middle is at most that of a bound.
    return middle, float(np.linalg.norm(np.maximum(upper - middle, middle - lower))) * (1 + 1e-12)


def classes_of(record: Record, group: str | None) -> tuple[Any, ...]:
    """Return the declared classes, none if all records are clustered together."""
    return () if group is None else record.discrete[group].values


def calibrated(
    method: NoisyKMeans, privacy: Privacy, record: Record, features: str, group: str | None, components: int
) -> ClusteringNoise:
    """Return the noise of a clustering of some fields."""
    middle, radius = extent(record, features)
    classes = len(classes_of(record, group)) or 1
    with computable(privacy):
        return method.calibrate(privacy, classes=classes, components=components, features=len(middle), radius=radius)


def method_of(clustering: NoisyKMeans | None) -> NoisyKMeans:
    """Return how to cluster."""
    if clustering is None:
        return NoisyKMeans()
    if not isinstance(clustering, NoisyKMeans):
        raise TemplateError(f"clustering must be a NoisyKMeans, not {clustering!r}.")
    return clustering
