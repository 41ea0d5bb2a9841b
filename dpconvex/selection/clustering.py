"""Cluster centres, declared or from noisy k-means; given them, the component of a record depends on that record only."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.budget import Budget, charge, charge_schema
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import ClusteringNoise
from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, check_aligned, check_names, dense, names_of, per_block
from dpconvex.data.dask_columns import is_frame
from dpconvex.data.domains import Ball
from dpconvex.data.encoded import learnt_cost, origins
from dpconvex.data.learnt import Learnt
from dpconvex.data.partitions import Partitions, normalized
from dpconvex.data.record import Record, columns_of, feature_names
from dpconvex.data.schema import check_unit
from dpconvex.data.validation import check_labels, finite_numbers
from dpconvex.errors import DomainError, TemplateError
from dpconvex.fitting.files import Released
from dpconvex.mechanisms.noisy_kmeans import ASSUMED, NoisyKMeans, grid_step, least_scale, nearest_centers, sensitivity
from dpconvex.model.privacy import Privacy, calibration, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.samplers import NoiseSource
from dpconvex.numerics import RECORD_TOLERANCE, TAIL_SLACK
from dpconvex.util.arguments import NOT_AN_ARRAY, TRUTH, between, instance, number, one_of, recast, require
from dpconvex.util.arrays import Array, Indices, frozen
from dpconvex.util.runtime import one_blas_thread, quietly

FARTHEST = 2.0  # Largest distance of a declared centre from the middle, in radii


@dataclass(frozen=True, eq=False, repr=False)
class ComponentCenters(Released):
    """Hold K centres for each of C classes.

    Parameters
    ----------
    centers : array_like, shape (C, K, d)
        Finite, at most twice the radius from the middle of the domain; rounded to the grid.
    classes : sequence, optional
        The declared labels, in the order of the first axis; none if there is one clustering of all records.
    radius, middle : float, and float or array_like of shape (d,)
        Public bound on the distance of a record's features from the middle of the domain.
    step : float
        Grid step that records and centres are rounded to, a power of two; 0 picks between 2^-17 and 2^-16 of the radius.
    noise, derivation, spent, not_private_because : optional
        The noise and proof of learnt centres, their cost, or the reason for no guarantee; None for declared centres.
    names : tuple of str, optional
        Names of the features' columns; `assign` requires the same.
    learnt : Learnt, optional
        The cost of a learnt schema behind the features.

    Examples
    --------
    >>> places = ComponentCenters([[[-0.5], [0.5]]], radius=1.0)  # declared: these cost nothing
    >>> places.assign([[-0.9], [0.1], [0.7]])
    array([0, 1, 1])
    >>> places
    ComponentCenters(classes 1, centres each 2, features 1; declared without data)
    """

    form = "dpconvex clustering"
    kept = (
        *("centers", "classes", "radius", "middle", "step"),
        *("noise", "derivation", "spent", "not_private_because", "names", "learnt"),
    )

    centers: Array
    classes: Sequence[Hashable] = ()
    radius: float = 1.0
    middle: Array | float = 0.0
    step: float = 0.0
    noise: ClusteringNoise | None = None
    derivation: Derivation | None = None
    spent: Privacy | None = None
    not_private_because: str = ""
    names: tuple[str, ...] | None = None
    learnt: Learnt | None = None

    def __post_init__(self) -> None:
        owner = "ComponentCenters"
        with recast(f"{owner}: centres and middle must be numbers, classes a list", *NOT_AN_ARRAY, kind=TemplateError):
            centers, middle = np.array(self.centers, dtype=float), np.array(self.middle, dtype=float)
            classes = tuple(self.classes)
            distinct = len(set(classes)) == len(classes) and not isinstance(self.classes, str | bytes)
        between(1e-100, 1e100).check(owner, radius=self.radius)
        number("a power of two, or 0", lambda s: s == 0 or (0 < s < 1e300 and np.frexp(s)[0] == 0.5)).check(
            owner, step=self.step
        )
        said = f"centres have three axes, (classes, K, d), of finite numbers, not the shape {centers.shape}"
        require(centers.ndim == 3 and 0 not in centers.shape and np.isfinite(centers).all(), f"{owner}: {said}.")
        features, step = centers.shape[2:], float(self.step) or grid_step(self.radius)
        fits = middle.shape in ((), features) and np.isfinite(middle).all()
        require(fits, f"{owner}: {features[0]} features, but a middle of shape {middle.shape}, or not finite.")
        fits = len(classes or (None,)) == len(centers) and distinct
        require(fits, f"{owner}: centres for {len(centers)} classes, but the classes are {self.classes!r}.")
        farthest = FARTHEST * self.radius + step * math.sqrt(features[0])
        said = f"a centre lies farther from the middle than {FARTHEST:g} times the radius, {self.radius:g}"
        require(np.linalg.norm(centers - middle, axis=2).max() <= farthest, f"{owner}: {said}.")
        states = (self.spent is not None) + (str(self.not_private_because) != "")
        said = "centres that were learnt say how, and either what they cost or why they are not private"
        require(states == (self.noise is not None), f"{owner}: {said}.")
        if not self.declared:
            self.check_paid()
        if self.noise is not None and self.spent is not None:  # perhaps of an edited file
            law, adjacency, rounds = self.noise.noise, self.spent.adjacency, self.noise.rounds
            once = sensitivity(law, adjacency, self.radius, self.noise.weight)
            known: Any = dict(zip(("classes", "components", "features"), centers.shape, strict=True))
            known |= {"epsilon": self.spent.epsilon, "delta": self.spent.delta, "radius": self.radius, "step": step}
            same = self.noise == replace(self.noise, sensitivity=once, weight=abs(self.noise.weight), **known)
            require(same, f"{owner}: its noise is that of other centres, or of another cost.")
            fits, most = law == "gamma" or not self.spent.pure, self.noise.scale * (1 + TAIL_SLACK)
            fits = fits and least_scale(law, self.spent, once, rounds) <= most
            require(fits, f"{owner}: its noise, of scale {self.noise.scale:g}, is less than {self.spent} asks for.")
        centers, whole = np.rint((centers - middle) / step) * step + middle, np.array(np.broadcast_to(middle, features))
        self.__dict__.update(centers=frozen(centers), middle=frozen(whole), classes=classes)
        self.__dict__.update(radius=float(self.radius), step=step)

    @property
    def declared(self) -> bool:
        """Whether the centres were declared without data, at no cost."""
        return self.noise is None

    @property
    def status(self) -> str:
        return "declared without data" if self.declared else super().status

    def __repr__(self) -> str:
        classes, count, features = self.centers.shape
        return f"ComponentCenters(classes {classes}, centres each {count}, features {features}; {self.status})"

    def __str__(self) -> str:
        proof = [] if self.derivation is None else [*self.derivation.lines(), f"Assumed: {ASSUMED}"]
        return "\n  ".join([repr(self), *proof])

    def assign(self, x: ArrayLike, y: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return the component of each record, shape (n,): the index of the nearest centre of its class, exactly.

        `x` holds features within the declared domain, shape (n, d), and `y` labels, shape (n,), if the centres have classes.
        """
        check_aligned({"x": x, "y": y})
        check_names("assign", self.names, names_of(x))
        values, d = dense(finite_numbers("x", x)), self.centers.shape[2]
        said = f"assign: expected {d} features of each record, not the shape {values.shape}."
        require(values.ndim and math.prod(values.shape[1:]) == d, said, DomainError)
        records = values.reshape(len(values), d)
        far = np.linalg.norm(records - self.middle, axis=1) > self.radius * (1 + RECORD_TOLERANCE)
        if far.any():
            raise DomainError(f"assign: {far.sum()} records lie outside of the domain (first: row {np.argmax(far)}).")
        codes = check_labels("y", self.classes, [] if y is None else y) if self.classes else np.zeros(len(records), int)
        if len(codes) != len(records):
            raise DomainError(f"assign: {len(records)} records, but {len(codes)} labels; centres of classes need them.")
        return self.nearest(in_grid_steps(records, self.middle, self.step), codes)

    def nearest(self, steps: Array, codes: Indices) -> Indices:
        return nearest_of_class(steps, codes, np.rint((self.centers - self.middle) / self.step))

    def to_bytes(self) -> bytes:
        fits = all(isinstance(c, str | int | None) or (isinstance(c, float) and math.isfinite(c)) for c in self.classes)
        require(fits, f"ComponentCenters: a file cannot hold the classes {self.classes!r} as they are.")
        return super().to_bytes()


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
    entry: str = "cluster",
    seed: int | None = None,
) -> ComponentCenters:
    """Cluster the records of every class privately.  A fit that uses the labels has its own cost in addition.

    Parameters
    ----------
    record : Record or Template
        Declares the domains of the fields.
    components : int
        K: number of centres for each class.
    clustering : NoisyKMeans, optional
    features, group : str
        The field to cluster, and the field of the classes; None for one clustering of all records.
    data, privacy, clip, budget, entry, seed
        As for `solve`. Other fields of the data are not read.
    """
    check_privacy("cluster", privacy)
    whole = record.record if isinstance(record, Template) else record
    instance(Record, "or a Template").check("cluster", record=whole)
    grouping = Grouping(whole, features, group)
    grouping = replace(grouping, record=Record(**{n: whole.fields[n] for n in (features, group) if n is not None}))
    plan = grouping.planned(clustering, privacy, components)
    source, protected = NoiseSource(seed), privacy.adjacency == "add-remove"
    columns = normalized(selected_fields(list(grouping.record.fields), Partitions(data) if is_frame(data) else data))
    TRUTH.check("", clip=clip)
    grouping.record.check_form(columns, empty=protected)
    check_unit(None, *origins(columns))
    learnt = learnt_cost(origins(columns))
    charge_schema(budget, learnt)
    charge(budget, privacy, entry)
    found = plan.released(grouping.record.validate(columns, clip=clip, empty=protected), source)
    return replace(found, names=feature_names(columns, features), learnt=learnt)


@dataclass(frozen=True)
class Grouping:
    """The names of the field to cluster and of the field with the class, or None."""

    record: Record
    features: str
    group: str | None

    def __post_init__(self) -> None:
        record, features, group = self.record, self.features, self.group
        one_of(record.continuous).check("cluster", features=features)
        one_of(record.discrete).or_none.check("cluster", "With None all records are clustered together.", group=group)

    @property
    def classes(self) -> tuple[Any, ...]:
        return () if self.group is None else self.record.discrete[self.group].values

    @property
    def extent(self) -> tuple[Array, float]:
        """The middle of the domain, shape (d,), and a bound on the distance of records from it."""
        domain = self.record.continuous[self.features]
        lower, upper = (np.ravel(bound) for bound in domain.bounds)
        if isinstance(domain, Ball):
            return np.zeros(len(lower)), domain.norm_bound
        middle = (lower + upper) / 2
        # Rounding is monotone: the computed difference of a record from the middle is at most that of a bound.
        return middle, float(np.linalg.norm(np.maximum(upper - middle, middle - lower))) * (1 + 1e-12)

    def planned(self, clustering: Any, privacy: Privacy, components: int) -> "Clustering":
        """Return the calibrated clustering, before the data are read."""
        method = NoisyKMeans() if clustering is None else clustering
        instance(NoisyKMeans).check("", clustering=method)
        middle, radius = self.extent
        shape = {"classes": len(self.classes) or 1, "components": components, "features": len(middle)}
        with calibration(privacy):
            noise = method.calibrate(privacy, **shape, radius=radius)
        return Clustering(self, method, noise, method.derive(noise, privacy.adjacency), privacy)

    def blocks(self, batch: Batch, step: float) -> Iterator[tuple[Array, Indices]]:
        """Yield blocks of records in steps of a grid, shape (n, d), and the codes of their classes."""
        middle = self.extent[0]
        whose = np.zeros(batch.size, np.int64) if self.group is None else self.record.codes(batch, self.group)
        rows = per_block(middle.shape)
        pairs = zip(blocks(batch.fields[self.features], rows), blocks(whose, rows), strict=False)
        for block, codes in pairs:  # some columns without records yield one empty block
            yield in_grid_steps(dense(block).reshape(len(codes), len(middle)), middle, step), codes

    def assigned(self, batch: Batch, components: ComponentCenters) -> Indices:
        found = (components.nearest(*block) for block in self.blocks(batch, components.step))
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])


@dataclass(frozen=True)
class Clustering:
    grouping: Grouping
    method: NoisyKMeans
    noise: ClusteringNoise
    derivation: Derivation
    privacy: Privacy

    def released(self, batch: Batch, source: NoiseSource) -> ComponentCenters:
        (middle, radius), step = self.grouping.extent, self.noise.step
        centers = self.method.run(self.noise, partial(self.statistics, batch), source.rng) * step + middle
        how = {"noise": self.noise, "derivation": self.derivation, **source.spending(self.privacy)}
        return ComponentCenters(centers, self.grouping.classes, radius, middle, step, **how)

    def statistics(self, batch: Batch, centers: Array) -> tuple[Array, Array]:
        """Return the sum, shape (C, k, d), and number, shape (C, k), of the records nearest to each centre."""
        found = batch.added_up(cell_sums, batch.share((self.grouping, self.noise.step)), centers)
        total = np.zeros((*centers.shape[:2], centers.shape[2] + 1)) if found is None else np.asarray(found)
        return total[..., :-1], total[..., -1]


def cell_sums(batch: Batch, shared: tuple[Grouping, float], centers: Array) -> Array:
    classes, count, features = centers.shape
    total = np.zeros((classes * count, features + 1))
    with one_blas_thread():
        for steps, codes in shared[0].blocks(batch, shared[1]):
            cell = codes * count + nearest_of_class(steps, codes, centers)
            ones = sp.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(len(total), len(cell)))
            total[:, :-1] += ones @ steps  # integers, far below 2^53: exact in any order
            total[:, -1] += np.bincount(cell, minlength=len(total))
    return total.reshape(classes, count, features + 1)


def in_grid_steps(records: Array, middle: Array | float, step: float) -> Array:
    """Round each record towards the middle of its domain, to whole steps of the grid; shape (n, d)."""
    return np.asarray(np.trunc((records - middle) / step))


def nearest_of_class(steps: Array, codes: Indices, centers: Array) -> Indices:
    """Return the index of the nearest centre of each record's class; records and centres are in steps of the grid."""
    found = np.zeros(len(steps), dtype=np.int64)
    for code, mine in enumerate(centers):
        rows = codes == code
        found[rows] = nearest_centers(steps[rows], mine)
    return found


def selected_fields(names: list[str], data: Any) -> Any:
    if not isinstance(data, Partitions):
        return {name: data[name] for name in names if name in columns_of(data)}
    known = data.keys()
    return data.turned(partial(selected_fields, names), [name for name in names if known is None or name in known])
