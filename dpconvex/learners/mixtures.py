"""Mixtures with component labels that are learnt privately: a clustering of every class, then a fit, under one promise.

The clustering gets a declared share of the promise.  Given its centres, the component of a record is a function of that record,
so the fit sees neighbours that differ in one record, and the two add up (docs/theory.md, section 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.arguments import is_real
from dpconvex.core.derivation import Derivation
from dpconvex.core.record_domains import Choice
from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Batch, Record, check_clip
from dpconvex.language.template import Template
from dpconvex.learners.clustering import Records, calibrated, classes_of, clustered, extent, method_of, released
from dpconvex.learners.components import Components
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noisy_kmeans import ASSUMED, ClusteringNoise, NoisyKMeans
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.noise.samplers import generator
from dpconvex.release.budget import Budget, pay
from dpconvex.release.release import Release
from dpconvex.release.solve import public_size, resolved, solve
from dpconvex.release.verify import check_solvable, verify

__all__ = ["Mixture", "solve_mixture", "verify_mixture"]

SOURCE = (
    "adaptive composition of the clustering and the fit (Dwork & Roth 2014, section 3.5); docs/theory.md, section 16"
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
    plan.certify(public, mechanism, cover)  # raises before anything is paid
    check_solvable(template)
    check_clip(clip)
    solver = resolved(backend)
    rng = generator(seed)
    if component in data:
        raise DomainError(
            f"the data have the component field {component!r}, which solve_mixture fills in; take it out."
        )
    pay(budget, privacy, label)
    columns = plan.others.held(data)
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
    assert fit.certificate is not None
    release = replace(fit, certificate=plan.whole(fit.certificate), spent=spent, not_private_because=seeded)
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
        check_privacy("solve_mixture", privacy)
        if not (is_real(share) and 0 < share < 1):
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
            self.rest = privacy.minus(part)
            self.noise = calibrated(self.method, part, domain, features, group, len(self.names))

    def certify(self, size: int, mechanism: Mechanism | None, cover: Cover | None) -> Certificate:
        """Return the certificate of the whole, without data."""
        return self.whole(verify(self.template, self.rest, size, mechanism, cover))

    def whole(self, fit: Certificate) -> Certificate:
        """Return the certificate of the whole, from that of the fit."""
        if self.noise is None:
            return fit
        clustering = self.method.derive(self.noise, self.privacy.adjacency)
        return replace(
            fit,
            privacy=self.privacy,
            clustering=self.noise,
            derivation=Derivation(
                "component labels, then the fit", "", self.privacy.claims, SOURCE, (clustering, fit.derivation)
            ),
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
