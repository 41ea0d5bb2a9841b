"""Mixtures with component labels that are learnt privately: a clustering of every class, then a fit, under one promise.

The clustering gets a declared share of the promise.  Given its centres, the component of a record is a function of that record,
so the fit sees neighbours that differ in one record, and the two add up (docs/theory.md, section 16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.certificate import Certificate, ClusteringNoise
from dpconvex.columns import BLOCK_BYTES, blocks
from dpconvex.components import Components, in_steps
from dpconvex.derivation import Derivation
from dpconvex.errors import DomainError, TemplateError
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.clustering import NoisyKMeans, nearest
from dpconvex.mechanisms.cover import Cover, left
from dpconvex.noise import seeded_generator, system_generator
from dpconvex.privacy import Budget, Privacy
from dpconvex.record import Ball, Batch, Choice, Record
from dpconvex.release import Release
from dpconvex.solve import public_size, resolved, solve
from dpconvex.template import Template
from dpconvex.verify import verify

__all__ = ["Mixture", "cluster", "solve_mixture", "verify_mixture"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

SOURCE = (
    "adaptive composition of the clustering and the fit (Dwork & Roth 2014, section 3.5); docs/theory.md, section 16"
)
ASSUMED = (
    "The clustering's noise is drawn in floating point and rounded to the grid of the records; the rounded draw is taken to have "
    "the law of a rounded ideal one."
)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture, fitted with component labels of its own.

    Attributes
    ----------
    components : Components
        The centres that gave the labels.  Predictions do not need them.
    release : Release
        The fit; its certificate is that of the whole.
    spent : Privacy or None
        What the clustering and the fit cost together.  None if a seed was given.
    """

    components: Components
    release: Release
    spent: Privacy | None

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """Predict from the released parameters, as `Release.predict` does."""
        return self.release.predict(x)


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
    if not isinstance(privacy, Privacy):
        raise TemplateError(f"cluster: privacy must be a Privacy, not {type(privacy).__name__}.")
    method = method_of(clustering)
    declared = record.record if isinstance(record, Template) else record
    part = clustered(declared, features, group)
    noise = calibrated(method, privacy, part, features, group, components)
    rng = system_generator() if seed is None else seeded_generator(seed)
    if budget is not None:
        budget.spend(privacy, label)
    if not hasattr(data, "keys"):
        raise DomainError(f"the data must map each declared field to its column, not be a {type(data).__name__}.")
    columns = {name: data[name] for name in part.fields if name in data}
    records = Records(part, part.validate(columns, clip=clip), noise.step, features, group)
    return released(method, noise, records, privacy, rng, seed, classes_of(part, group))


def verify_mixture(
    template: Template,
    privacy: Privacy,
    size: int,
    mechanism: Mechanism | None = None,
    cover: Cover | None = None,
    *,
    clustering: NoisyKMeans | Components | None = None,
    share: float = 0.2,
    features: str = "x",
    group: str | None = "y",
    component: str = "m",
) -> Certificate:
    """Prove private what `solve_mixture` does, without data; parameters as there.

    Returns
    -------
    Certificate
        Of the clustering and the fit together.

    Raises
    ------
    NotPrivate, MissingRule, TemplateError
        As for `verify`.
    """
    return Plan(template, privacy, clustering, share, features, group, component).certify(size, mechanism, cover)


def solve_mixture(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    clustering: NoisyKMeans | Components | None = None,
    share: float = 0.2,
    features: str = "x",
    group: str | None = "y",
    component: str = "m",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    label: str = "solve_mixture",
    seed: int | None = None,
    cover: Cover | None = None,
) -> Mixture:
    """Cluster the records of every class privately, and fit a template on the labels; the whole keeps one promise.

    Parameters
    ----------
    template : Template
        Its record has a field for the component, which the data do not have.
    data : mapping of str to array_like
        One entry for each of the other fields.
    privacy : Privacy
        The promise of the whole.
    mechanism, backend, size, clip, budget, label, cover
        As for `solve`.
    clustering : NoisyKMeans or Components, optional
        How to cluster, or centres that were declared without data; these cost nothing, and the fit gets all of the promise.
    share : float
        Fraction of epsilon and delta that pays for the clustering, in (0, 1).  With a single component there is nothing to
        learn, and nothing is paid.
    features, group, component : str
        The fields that are clustered, that hold the class (None for none) and that get the component.
    seed : int, optional
        For tests; the outcome is then not private.

    Returns
    -------
    Mixture

    Raises
    ------
    NotPrivate
        If there is no proof; no data are read.
    TemplateError
        If the template has no such fields, the share is out of range, or the centres do not fit.
    DomainError, NotConverged, BudgetExceeded
        As for `solve`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    >>> data = {"x": [[-0.9], [-0.3], [0.3], [0.9]] * 50, "y": [0, 1, 0, 1] * 50}
    >>> mixture = solve_mixture(learner, data, dp.Privacy(4.0))
    >>> print(mixture.spent, "of which", mixture.components.spent)
    epsilon = 4, replace-one of which epsilon = 0.8, replace-one
    """
    plan = Plan(template, privacy, clustering, share, features, group, component)
    public = public_size(template, data, privacy, size)
    certificate = plan.certify(public, mechanism, cover)
    solver = resolved(backend)
    rng = system_generator() if seed is None else seeded_generator(seed)
    if component in data:
        raise DomainError(
            f"the data have the component field {component!r}, which solve_mixture fills in; take it out."
        )
    if budget is not None:
        budget.spend(privacy, label)
    columns = {name: data[name] for name in data.keys()}  # noqa: SIM118  (not every table is a Mapping)
    checked = plan.others.checked(columns, clip)
    components = plan.components(checked.batch, rng, seed)
    values = plan.values(components, checked.batch)
    later = None if seed is None else int(rng.integers(2**62))
    fit = solve(
        template,
        {**columns, component: values},
        plan.rest,
        mechanism,
        solver,
        size=public if privacy.adjacency == "add-remove" else None,
        clip=clip,
        seed=later,
        cover=cover,
    )
    seeded = "" if seed is None else f"the noise was drawn with the seed {seed}"
    spent = privacy if seed is None else None
    release = replace(fit, certificate=certificate, spent=spent, not_private_because=seeded)
    return Mixture(components, release, spent)


class Plan:
    """What a private mixture does with its promise, fixed before the data are read."""

    def __init__(
        self,
        template: Template,
        privacy: Privacy,
        clustering: NoisyKMeans | Components | None,
        share: float,
        features: str,
        group: str | None,
        component: str,
    ) -> None:
        if not isinstance(template, Template):
            raise TemplateError(f"solve_mixture: expected a Template, not {type(template).__name__}.")
        if not isinstance(privacy, Privacy):
            raise TemplateError(f"solve_mixture: privacy must be a Privacy, not {type(privacy).__name__}.")
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 < share < 1):
            raise TemplateError(f"solve_mixture: share must be a number between 0 and 1, not {share!r}.")
        fields = template.record.fields
        choice = fields.get(component)
        if not isinstance(choice, Choice):
            raise TemplateError(
                f"solve_mixture: the record has no Choice {component!r} for the component; its fields are {list(fields)}."
            )
        self.template, self.privacy = template, privacy
        self.names: tuple[Any, ...] = choice.values
        self.features, self.group = features, group
        self.others = Record(**{name: domain for name, domain in fields.items() if name != component})
        domain = clustered(self.others, features, group)
        self.rest = privacy
        self.noise: ClusteringNoise | None = None
        self.fixed: Components | None = None
        if isinstance(clustering, Components):
            self.fixed = fitting(clustering, domain, features, group, len(self.names))
        elif len(self.names) == 1:
            self.fixed = trivial(domain, features, group)
        else:
            self.method = method_of(clustering)
            part = Privacy(share * privacy.epsilon, share * privacy.delta, privacy.adjacency)
            self.part = part
            self.rest = Privacy(left(privacy.epsilon, part.epsilon), left(privacy.delta, part.delta), privacy.adjacency)
            self.noise = calibrated(self.method, part, domain, features, group, len(self.names))

    def certify(self, size: int, mechanism: Mechanism | None, cover: Cover | None) -> Certificate:
        """Return the certificate of the whole."""
        fit = verify(self.template, self.rest, size, mechanism, cover)
        if self.noise is None:
            return fit
        claims = {"epsilon": self.privacy.epsilon} | ({} if self.privacy.pure else {"delta": self.privacy.delta})
        clustering = self.method.derive(self.noise, self.privacy.adjacency)
        return replace(
            fit,
            privacy=self.privacy,
            clustering=self.noise,
            derivation=Derivation("component labels, then the fit", "", claims, SOURCE, (clustering, fit.derivation)),
            assumptions=(*fit.assumptions, ASSUMED),
        )

    def components(self, batch: Batch, rng: np.random.Generator, seed: int | None) -> Components:
        """Return the centres."""
        if self.fixed is not None:
            return self.fixed
        assert self.noise is not None
        records = Records(self.others, batch, self.noise.step, self.features, self.group)
        return released(self.method, self.noise, records, self.part, rng, seed, classes_of(self.others, self.group))

    def values(self, components: Components, batch: Batch) -> NDArray[Any]:
        """Return the component of each record, as the template names it."""
        records = Records(self.others, batch, components.step, self.features, self.group)
        column = np.empty(len(self.names), dtype=object)
        column[:] = self.names
        return np.asarray(column[records.assigned(components)])


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
            dense = block.toarray() if sp.issparse(block) else np.asarray(block)
            steps = in_steps(dense.reshape(len(dense), -1), self.middle, self.step)
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
        return np.concatenate([components.of(steps, codes) for steps, codes in self.blocks()])


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
    return method.calibrate(privacy, classes=classes, components=components, features=len(middle), radius=radius)


def fitting(components: Components, record: Record, features: str, group: str | None, count: int) -> Components:
    """Return centres that a user declared, or say why they do not fit."""
    if not components.declared:
        raise TemplateError(
            "solve_mixture: these centres were learnt, and paid for apart from this promise. Fit on their labels with solve: the "
            "data need a column for the component, components.assign(x, y)."
        )
    middle, radius = extent(record, features)
    classes = classes_of(record, group)
    wanted = (len(classes) or 1, count, len(middle))
    if components.centers.shape != wanted or components.classes != classes:
        raise TemplateError(
            f"solve_mixture: the centres have the shape {components.centers.shape} for the classes {components.classes!r}, "
            f"and must have {wanted} for {classes!r}."
        )
    return replace(components, radius=radius, middle=middle, step=0.0)


def trivial(record: Record, features: str, group: str | None) -> Components:
    """Return the one centre for each class that needs no data."""
    middle, radius = extent(record, features)
    classes = classes_of(record, group)
    return Components(np.tile(middle, (len(classes) or 1, 1, 1)), classes, radius, middle)


def method_of(clustering: NoisyKMeans | None) -> NoisyKMeans:
    """Return how to cluster."""
    if clustering is None:
        return NoisyKMeans()
    if not isinstance(clustering, NoisyKMeans):
        raise TemplateError(f"clustering must be a NoisyKMeans, not {clustering!r}.")
    return clustering
