"""Clusters the records of every class privately: where data meet noisy k-means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.record_domains import Ball
from dpconvex.core.runtime import quietly
from dpconvex.errors import TemplateError
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.columns import BLOCK_BYTES, blocks, dense
from dpconvex.language.partitions import Partitions, is_frame
from dpconvex.language.privacy import Privacy, check_privacy, computable
from dpconvex.language.record import Record, check_clip, table
from dpconvex.language.template import Template
from dpconvex.learners.components import Components, in_steps
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise, NoisyKMeans, nearest
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


@quietly
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
    clip, budget, label, seed
        As for `solve`.

    Returns
    -------
    Components
        A release.  A fit that uses its labels costs its own promise on top; `solve_mixture` does both under one.

    Raises
    ------
    TemplateError, DomainError, BudgetExceeded
        As for `solve`; also if there is no such field, or a number is out of range.
    """
    check_privacy("cluster", privacy)
    method = method_of(clustering)
    grouping = Grouping.of(record.record if isinstance(record, Template) else record, features, group)
    noise = grouping.calibrated(method, privacy, components)
    source = NoiseSource(seed)
    protected = privacy.adjacency == "add-remove"
    record = Record(**grouping.fields)
    columns = picked(list(record.fields), Partitions(data) if is_frame(data) else data)
    check_clip(clip)
    record.check_form(columns, empty=protected)
    pay(budget, privacy, label)
    batch = record.validate(columns, clip=clip, empty=protected)
    return replace(grouping, record=record).released(method, noise, batch, privacy, source)


@dataclass(frozen=True)
class Grouping:
    """Which field of a record is clustered, and which one holds its class, if any."""

    record: Record
    features: str
    group: str | None

    @staticmethod
    def of(record: Any, features: str, group: str | None) -> Grouping:
        """Return the part of a record that a clustering reads, or raise `TemplateError`."""
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
                f"cluster: the record has no Choice {group!r}; it has {list(record.discrete)}. Pass group=None to cluster "
                "all records together."
            )
        return Grouping(record, features, group)

    @property
    def fields(self) -> dict[str, Any]:
        """The domains of the fields that are read."""
        return {name: self.record.fields[name] for name in (self.features, self.group) if name is not None}

    @property
    def classes(self) -> tuple[Any, ...]:
        """The declared classes, none if all records are clustered together."""
        return () if self.group is None else self.record.discrete[self.group].values

    @property
    def extent(self) -> tuple[Array, float]:
        """The middle of the features' domain, shape (d,), and a bound on the distance of records from it."""
        domain = self.record.continuous[self.features]
        lower, upper = (np.ravel(bound) for bound in domain.bounds)
        if isinstance(domain, Ball):
            return np.zeros(len(lower)), domain.norm_bound
        middle = (lower + upper) / 2
        # Rounding is monotone: a computed difference from the middle is at most that of a bound.
        return middle, float(np.linalg.norm(np.maximum(upper - middle, middle - lower))) * (1 + 1e-12)

    def calibrated(self, method: NoisyKMeans, privacy: Privacy, components: int) -> ClusteringNoise:
        middle, radius = self.extent
        classes = len(self.classes) or 1
        with computable(privacy):
            return method.calibrate(
                privacy, classes=classes, components=components, features=len(middle), radius=radius
            )

    def released(
        self, method: NoisyKMeans, noise: ClusteringNoise, batch: Batch, privacy: Privacy, source: NoiseSource
    ) -> Components:
        """Cluster, and say what it cost."""
        middle, radius = self.extent
        centers = method.run(noise, Records(self, batch, noise.step).statistics, source.rng)
        return Components(
            centers=centers * noise.step + middle,
            classes=self.classes,
            radius=radius,
            middle=middle,
            step=noise.step,
            noise=noise,
            derivation=method.derive(noise, privacy.adjacency),
            **source.spending(privacy),
        )


def cells_of(batch: Batch, shared: tuple[Grouping, float], centers: Array) -> Array:
    """Return the sums over the records of a partition."""
    with one_blas_thread():
        return Records(shared[0], batch, shared[1]).cells(centers)


def picked(names: list[str], data: Any) -> Any:
    """Return those fields of the data, of a partition of them, or of all partitions."""
    if not isinstance(data, Partitions):
        return {name: data[name] for name in names if name in table(data)}
    known = data.keys()
    return data.turned(partial(picked, names), [name for name in names if known is None or name in known])


class Records:
    """The records of a batch, in steps of a grid, with the codes of their classes; the only place that reads them."""

    def __init__(self, grouping: Grouping, batch: Batch, step: float) -> None:
        self.grouping, self.batch, self.step = grouping, batch, step
        self.middle, self.radius = grouping.extent

    def blocks(self) -> Iterator[tuple[Array, Codes]]:
        """Yield blocks of records in steps, shape (n, d), and their classes, shape (n,)."""
        name, combinations = self.grouping.group, self.grouping.record.combinations
        place = [0 if name is None else self.grouping.classes.index(chosen[name]) for chosen in combinations]
        codes, start = np.array(place)[self.batch.group], 0
        for block in blocks(self.batch.fields[self.grouping.features], max(1, BLOCK_BYTES // (8 * len(self.middle)))):
            values = dense(block)
            steps = in_steps(values.reshape(len(values), len(self.middle)), self.middle, self.step)
            yield steps, codes[start : start + len(steps)]
            start += len(steps)

    def cells(self, centers: Array) -> Array:
        """Return the sum of the records in each cell, and behind it their number, shape (C, k, d + 1)."""
        classes, count, features = centers.shape
        total = np.zeros((classes * count, features + 1))
        for steps, codes in self.blocks():
            cell = codes * count
            for code, mine in enumerate(centers):
                rows = codes == code
                cell[rows] += nearest(steps[rows], mine)
            ones = sp.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(len(total), len(cell)))
            total[:, :-1] += ones @ steps  # integers, far below 2^53: exact in any order
            total[:, -1] += np.bincount(cell, minlength=len(total))
        return total.reshape(classes, count, features + 1)

    def statistics(self, centers: Array) -> tuple[Array, Array]:
        """Return the sum of the records in each cell, shape (C, k, d), and their number, shape (C, k), wherever they lie."""
        if isinstance(self.batch, PartitionedBatch):
            shared = self.batch.place.share((self.grouping, self.step))
            found = self.batch.added_up(cells_of, shared, centers)
            cells = np.zeros((*centers.shape[:2], centers.shape[2] + 1)) if found is None else np.asarray(found)
        else:
            cells = self.cells(centers)
        return cells[..., :-1], cells[..., -1]

    def assigned(self, components: Components) -> Codes:
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *(components.of(steps, codes) for steps, codes in self.blocks())])


def method_of(clustering: NoisyKMeans | None) -> NoisyKMeans:
    if clustering is None:
        return NoisyKMeans()
    if not isinstance(clustering, NoisyKMeans):
        raise TemplateError(f"clustering must be a NoisyKMeans, not {clustering!r}.")
    return clustering
