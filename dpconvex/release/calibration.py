"""How much noise each of several releases needs, for all of them together to keep one promise."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpconvex.accounting.events import Composition, Event
from dpconvex.accounting.totals import Entry, Total, best_total, exact, floor
from dpconvex.core.plain_data import is_whole
from dpconvex.core.runtime import quietly
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation
from dpconvex.mechanisms.recipe import Automatic, Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.release.verify import Method, Proved

# A total this close to the promise, from below, is close enough; and so many promises are tried.
CLOSE, TRIES = 0.998, 10


@dataclass(frozen=True)
class Shared:
    """What each of several releases may promise, so that all together keep one promise.

    Attributes
    ----------
    each : Privacy
        The promise of one release by itself; it is what `solve` takes.
    certificates : tuple of Certificate
    total : Total
        What they cost together, at the delta of the whole, and by which rule that is proved.
    event : Event
        What they are together, for the ledger of a `Budget`.
    mechanism : Mechanism or None
        What `solve` takes too; None where the size chooses for each release.
    """

    each: Privacy
    fits: tuple[Proved, ...]
    total: Total
    event: Event
    mechanism: Mechanism | None = None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Of the releases, in order."""
        return tuple(fit.certificate for fit in self.fits)

    @property
    def risk(self) -> float:
        """The sum of the predicted excess risks."""
        return math.fsum(math.inf if item.predicted_risk is None else item.predicted_risk for item in self.certificates)

    def __str__(self) -> str:
        return f"{len(self.fits)} releases, each {self.each}; together {self.total}"


@quietly
def calibrate(
    template: Template | Sequence[Template],
    privacy: Privacy,
    size: int,
    releases: int = 1,
    mechanism: Mechanism | None = None,
    cover: Cover | None = None,
    *,
    whitening: Whitened = None,
) -> Shared:
    """Find how much each of several releases may promise for all of them to keep one promise; no data are needed.

    The total is the smallest that basic composition, Rényi divergences, Gaussian shifts and numerical convolution prove.  It
    holds for releases that are fixed beforehand; for those that are chosen one after the other, keep a `Budget`.

    Parameters
    ----------
    template : Template or sequence of Template
    privacy : Privacy
        Of all releases together.
    size, cover, whitening
        As for `verify`: each release whitens by a noisy second moment of its own.
    releases : int
        How often each template is fitted.
    mechanism : Mechanism, optional
        By default what `verify` chooses for the promise of each release, by the size (docs/choosing.md).  Where that leaves it to
        mechanisms that end near a minimiser, for all templates, the one with the smallest predicted excess risk of all releases
        together: noise that is best for a single release need not be for many.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=2, regularization=0.01)
    >>> noise = dp.ObjectivePerturbation("gaussian")
    >>> ten = calibrate(learner, dp.Privacy(1.0, 1e-6, "add-remove"), 4000, releases=10, mechanism=noise)
    >>> ten.each.epsilon > 0.3  # adding epsilons leaves 0.1 for each
    True
    """
    learners = [template] if isinstance(template, Template) else list(template)
    return planned(learners, privacy, size, releases, Method(mechanism, cover, whitening))


def planned(
    templates: Sequence[Template],
    privacy: Privacy,
    size: int,
    releases: int,
    method: Method,
    beside: Privacy | None = None,
) -> Shared:
    """Do the work of `calibrate`; `beside` is a pure promise of something else that is paid."""
    check_privacy("calibrate", privacy)
    if not is_whole(releases, 1):
        raise TemplateError(f"calibrate: releases must be a positive integer, not {releases!r}.")
    if not templates:
        raise TemplateError("calibrate: there is no template to fit.")
    count = len(templates) * int(releases)

    def plan(mechanism: Mechanism | None) -> Shared:
        def prove(each: Privacy) -> list[Proved]:
            found = (replace(method, mechanism=mechanism).prove(item, each, size) for item in templates)
            return [item for item in found for _ in range(int(releases))]

        return replace(largest(prove, privacy, count, beside), mechanism=mechanism)

    def by_size(each: Privacy) -> bool:
        """Say whether a default fit of one of the templates is not left to mechanisms that are compared."""
        return any(not isinstance(Method().way(item, each, size)[0], Automatic) for item in templates)

    if method.mechanism is not None or method.whitening not in (None, False):
        return plan(method.mechanism)
    # What is not chosen for the least that a release may promise is not chosen for more.
    least = Privacy(floor(exact(privacy.epsilon) / count), floor(exact(privacy.delta) / count), privacy.adjacency)
    if method.whitening is None and by_size(least):
        found = plan(None)
        if by_size(found.each):
            return found
    best = plan(Automatic())
    for other in (ObjectivePerturbation("gaussian"), OutputPerturbation("gaussian")):
        if count > 1 and not privacy.pure:
            with suppress(NotPrivate):
                best = min(best, plan(other), key=lambda item: item.risk)
    return best


def largest(
    prove: Callable[[Privacy], list[Proved]], privacy: Privacy, count: int, beside: Privacy | None = None
) -> Shared:
    """Search for the largest promise of each of `count` releases."""
    extra = [] if beside is None else [Entry("beside", beside)]
    left = exact(privacy.epsilon) - sum((exact(item.privacy.epsilon) for item in extra), start=exact(0.0))

    def tried(epsilon: float) -> Shared:
        each = Privacy(epsilon, floor(exact(privacy.delta) / count), privacy.adjacency)
        fits = prove(each)
        entries = [*extra, *(Entry("", fit.certificate.privacy, fit.certificate.event) for fit in fits)]
        events = tuple(item.known for item in entries)
        total = best_total([item.privacy for item in entries], events, privacy.delta)
        return Shared(each, tuple(fits), total, Composition(events))

    best = tried(floor(left / count))  # whatever these are, their promises add up
    if best.total.epsilon > privacy.epsilon:  # as floating-point sums have it
        best = replace(best, total=Total(privacy.epsilon, privacy.delta, "basic"))
    if privacy.pure or count + len(extra) == 1:
        return best
    high = math.inf
    for _ in range(TRIES):
        if best.total.epsilon >= CLOSE * privacy.epsilon:
            break
        ahead = best.each.epsilon * (privacy.epsilon * (1 + CLOSE) / 2 / best.total.epsilon) ** 0.95
        epsilon = ahead if ahead < high else math.sqrt(best.each.epsilon * high)
        try:
            found = tried(epsilon)
        except NotPrivate:  # at a larger epsilon another mechanism may be asked for, which has no proof
            high = epsilon
            continue
        if found.total.epsilon <= privacy.epsilon:
            best = found
        else:
            high = epsilon
    return best
