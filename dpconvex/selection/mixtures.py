"""Mixtures with privately learnt components: cluster every class, then fit on the component labels, under one guarantee.

Given the centres, neighbouring data remain neighbours for the fit, so that the two costs compose (docs/theory.md, section 16).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.budget import Budget
from dpconvex.accounting.events import Composition
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.data.batch import Batch
from dpconvex.data.record import Record
from dpconvex.errors import DomainError
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob
from dpconvex.fitting.verify import FitOptions, check_template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.noisy_kmeans import ASSUMED, NoisyKMeans
from dpconvex.mechanisms.residual_noise import ResidualNoise
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.selection.clustering import Clustering, ComponentCenters, Grouping
from dpconvex.util.arguments import FRACTION, one_of, require
from dpconvex.util.arrays import Indices, frozen
from dpconvex.util.runtime import one_blas_thread, quietly

SHARE = 0.2
SOURCE = "adaptive composition of clustering and fit (Dwork & Roth 2014, section 3.5); docs/theory.md, section 16"


@dataclass(frozen=True, eq=False)
class Mixture:
    """Hold a fitted mixture and the centres of its components.

    Attributes
    ----------
    components, release : ComponentCenters and Release
        The centres that gave the labels, and the fit, with the certificate of the whole.
    spent : Privacy or None
        Cost of both together; None if a seed was given, here or to learn the schema.
    """

    components: ComponentCenters
    release: Release
    spent: Privacy | None

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """Predict as `Release.predict` does; centres are not needed."""
        return self.release.predict(x)


@quietly
def verify_mixture(
    template: Template,
    privacy: Privacy,
    size: int,
    mechanism: Mechanism | None = None,
    residual_noise: ResidualNoise | None = None,
    *,
    clustering: NoisyKMeans | ComponentCenters | None = None,
    share: float = SHARE,
    features: str = "x",
    group: str | None = "y",
    component: str = "m",
) -> Certificate:
    """Prove `solve_mixture` private, without data; parameters as there, and errors as for `verify`."""
    plan = MixturePlan(template, privacy, clustering, share, features, group, component)
    return plan.whole(FitOptions(mechanism, residual_noise).prove(template, plan.rest, size).certificate)


@quietly
def solve_mixture(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    clustering: NoisyKMeans | ComponentCenters | None = None,
    share: float = SHARE,
    features: str = "x",
    group: str | None = "y",
    component: str = "m",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    entry: str = "solve_mixture",
    seed: int | None = None,
    residual_noise: ResidualNoise | None = None,
) -> Mixture:
    """Cluster the records of every class privately, and fit a template on the labels, under one guarantee.

    Parameters
    ----------
    template : Template
        Its record has a field for the component, which the data lack.
    clustering : NoisyKMeans or ComponentCenters, optional
        Settings of the clustering, or centres declared without data.  These cost nothing: the fit gets the whole guarantee.
    share : float
        Fraction of epsilon and delta that pays for the clustering, in (0, 1); a single component costs nothing.
    features, group, component : str
        The field to cluster, the field of the class (None for none), and the field that gets the component.
    data, privacy, mechanism, backend, size, clip, budget, entry, seed, residual_noise
        As for `solve`, for the fit.  Components are learnt from original records.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    >>> data = {"x": [[-0.9], [-0.3], [0.3], [0.9]] * 50, "y": [0, 1, 0, 1] * 50}
    >>> mixture = solve_mixture(learner, data, dp.Privacy(4.0))
    >>> print(mixture.spent, "of which", mixture.components.spent)
    epsilon = 4, replace-one of which epsilon = 0.8, replace-one
    """
    plan = MixturePlan(template, privacy, clustering, share, features, group, component)
    options = FitOptions(mechanism, residual_noise, backend, size, clip, budget, entry, seed)
    call = FitJob(data, privacy, [template], options, plan.others)
    fit = options.prove(template, plan.rest, call.size)
    said = f"the data have the field {component!r}, which solve_mixture fills in; take it out."
    require(component not in (call.data.keys() or ()), said, DomainError)
    call.check(fit)
    call.pay(plan.whole(fit.certificate).event)
    batch = plan.others.validate(call.data, clip=clip, empty=True)
    made = plan.places
    components: Any = made
    if isinstance(made, Clustering):
        components = replace(made.released(batch, call.source), learnt=call.learnt)
    places = batch.share((plan.grouping, components, np.array(plan.groups)))
    found = call.run(fit, batch.mapped(labelled, places), call.source.next())
    assert isinstance(found.certificate, Certificate)
    release = replace(found, certificate=plan.whole(found.certificate), **call.source.spending(privacy))
    return Mixture(components, release, release.spent if release.private else None)


class MixturePlan:
    """Division of the guarantee of `solve_mixture`, fixed before the data are read; parameters as there."""

    def __init__(self, template: Template, privacy: Privacy, clustering: Any, share: Any, *names: Any) -> None:
        features, group, component = names
        check_privacy("solve_mixture", privacy)
        check_template(template)
        FRACTION.check("solve_mixture", share=share)
        said = f"solve_mixture: declared centres cost nothing; leave share out, which is {share!r}."
        require(share == SHARE or not isinstance(clustering, ComponentCenters), said)
        fields = dict(template.record.fields)
        one_of(template.record.discrete).check("solve_mixture", component=component)
        choice: Any = fields.pop(component)
        self.privacy, self.others = privacy, Record(**fields)
        self.grouping = grouping = Grouping(self.others, features, group)
        known, count = template.record.combinations, len(choice.values)
        # Maps the combination of a record's other discrete fields, and its component, to its group.
        self.groups = [[known.index({**own, component: m}) for m in choice.values] for own in self.others.combinations]
        self.places: ComponentCenters | Clustering
        self.rest = privacy
        (middle, radius), classes = grouping.extent, grouping.classes
        shape = (len(classes) or 1, count, len(middle))
        if isinstance(clustering, ComponentCenters):
            said = "solve_mixture: these centres were learnt; fit with solve on what they assign(x, y)."
            require(clustering.declared, said)
            fits = clustering.centers.shape == shape and clustering.classes == classes
            require(fits, f"solve_mixture: centres must have the shape {shape}, for the classes {classes!r}.")
            self.places = replace(clustering, radius=radius, middle=middle, step=0.0)
        elif count == 1:  # a single centre for each class needs no data
            self.places = ComponentCenters(np.broadcast_to(middle, shape), classes, radius, middle)
        else:
            part = Privacy(share * privacy.epsilon, share * privacy.delta, privacy.adjacency)
            self.places, self.rest = grouping.planned(clustering, part, count), privacy.minus(part)

    def whole(self, fit: Certificate) -> Certificate:
        if isinstance(self.places, ComponentCenters):
            return fit
        noise = self.places.noise
        steps = self.places.derivation, fit.derivation
        return fit.copied(
            privacy=self.privacy,
            clustering=noise,
            derivation=Derivation("component labels, then the fit", "", self.privacy.claims, SOURCE, steps),
            assumptions=(*fit.assumptions, ASSUMED),
            event=None if fit.event is None else Composition((noise.event, fit.event)),
        )


def labelled(batch: Batch, made: tuple[Grouping, ComponentCenters, Indices]) -> Batch:
    grouping, components, groups = made
    with one_blas_thread():
        return Batch(batch.fields, frozen(groups[batch.group, grouping.assigned(batch, components)]))
