"""How much noise each of several releases needs, for all of them together to keep one promise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpconvex.accounting.events import Composition, Event
from dpconvex.accounting.rules import Entry, exact, floor
from dpconvex.accounting.totals import Total, best_total
from dpconvex.core.arguments import is_whole
from dpconvex.core.double_precision import quietly
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.automatic import Automatic
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.release.verify import meant, verify

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
        Of each release, in order.
    total : Total
        What they cost together, at the delta of the whole, and by which rule that is proved.
    event : Event
        What they are together, for the ledger of a `Budget`.
    mechanism : Mechanism or None
        The mechanism that all of this is about, which `solve` takes too; None where the size chooses for each release.
    """

    each: Privacy
    certificates: tuple[Certificate, ...]
    total: Total
    event: Event
    mechanism: Mechanism | None = None

    @property
    def risk(self) -> float:
        """The sum of the predicted excess risks."""
        return math.fsum(math.inf if item.predicted_risk is None else item.predicted_risk for item in self.certificates)

    def __str__(self) -> str:
        return f"{len(self.certificates)} releases, each {self.each}; together {self.total}"


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

    The total is the smallest that basic composition, Rényi divergences, Gaussian shifts and numerical convolution prove.
    It holds for releases that are fixed beforehand: their number, templates and
    noise may not depend on what the first of them show.  For releases that are chosen one after the other, keep a `Budget`.

    Parameters
    ----------
    template : Template or sequence of Template
    privacy : Privacy
        The promise of all releases together.
    size : int
        Public number of records; under add-remove, a public nominal number.
    releases : int
        How often each template is fitted.
    mechanism : Mechanism, optional
        By default what `verify` chooses for the promise of each release, by the size (docs/choosing.md).  Where that leaves it to
        mechanisms that end near a minimiser, for all templates, the one with the smallest predicted excess risk of all releases
        together: noise that is best for a single release need not be for many.
    cover : Cover, optional
        As for `verify`.
    whitening : PrivateWhitening, bool or "auto", optional
        As for `verify`: each release whitens by a noisy second moment of its own.  False, with no mechanism named, is for
        mechanisms that end near a minimiser.

    Returns
    -------
    Shared

    Raises
    ------
    NotPrivate, MissingRule, TemplateError
        As for `verify`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=2, regularization=0.01)
    >>> noise = dp.ObjectivePerturbation("gaussian")
    >>> ten = calibrate(learner, dp.Privacy(1.0, 1e-6, "add-remove"), 4000, releases=10, mechanism=noise)
    >>> ten.each.epsilon > 0.3  # adding epsilons leaves 0.1 for each
    True
    """
    check_privacy("calibrate", privacy)
    if not is_whole(releases, 1):
        raise TemplateError(f"calibrate: releases must be a positive integer, not {releases!r}.")
    learners = [template] if isinstance(template, Template) else list(template)
    if not learners:
        raise TemplateError("calibrate: there is no template to fit.")

    count = len(learners) * int(releases)

    def planned(chosen: Mechanism | None) -> Shared:
        def certify(each: Privacy) -> list[Certificate]:
            found = (verify(item, each, size, chosen, cover, whitening=whitening) for item in learners)
            return [item for item in found for _ in range(int(releases))]

        return replace(shared(certify, privacy, count), mechanism=chosen)

    return plan_of(planned, learners, privacy, size, count, mechanism, whitening)


def plan_of(
    planned: Callable[[Mechanism | None], Shared],
    templates: Sequence[Template],
    privacy: Privacy,
    size: int,
    count: int,
    mechanism: Mechanism | None,
    whitening: Whitened,
) -> Shared:
    """Return the plan of what was named; else of what the size chooses; where that is nothing, of the smallest predicted risk."""
    if mechanism is not None or whitening not in (None, False):
        return planned(mechanism)
    # What is not chosen for the least that a release may promise is not chosen for more.
    least = Privacy(floor(exact(privacy.epsilon) / count), floor(exact(privacy.delta) / count), privacy.adjacency)
    if whitening is None and chosen_by_size(templates, least, size):
        plan = planned(None)
        if chosen_by_size(templates, plan.each, size):
            return plan
    return cheapest(planned, privacy, count)


def chosen_by_size(templates: Sequence[Template], privacy: Privacy, size: int) -> bool:
    """Say whether a default fit of one of the templates is not left to mechanisms that are compared."""
    return any(not isinstance(meant(None, item, None, privacy, size)[0], Automatic) for item in templates)


def cheapest(planned: Callable[[Mechanism | None], Shared], privacy: Privacy, count: int) -> Shared:
    """Return the plan with the smallest predicted risk: the automatic one, or one whose noise is Gaussian throughout."""
    best = planned(Automatic())
    for other in (ObjectivePerturbation("gaussian"), OutputPerturbation("gaussian")) if count > 1 else ():
        try:
            found = best if privacy.pure else planned(other)
        except NotPrivate:
            continue
        best = min(best, found, key=lambda plan: plan.risk)
    return best


def shared(
    certify: Callable[[Privacy], list[Certificate]], privacy: Privacy, count: int, beside: Privacy | None = None
) -> Shared:
    """Search for the largest promise of each of `count` releases; `beside` is a pure promise of something else that is paid."""
    extra = [] if beside is None else [Entry("beside", beside)]
    left = exact(privacy.epsilon) - sum((exact(item.privacy.epsilon) for item in extra), start=exact(0.0))

    def tried(epsilon: float) -> Shared:
        each = Privacy(epsilon, floor(exact(privacy.delta) / count), privacy.adjacency)
        certificates = certify(each)
        entries = [*extra, *(Entry("", item.privacy, item.event) for item in certificates)]
        events = tuple(item.known for item in entries)
        found = best_total([item.privacy for item in entries], events, privacy.delta)
        return Shared(each, tuple(certificates), found, Composition(events))

    least = floor(left / count)
    best = tried(least)  # whatever these are, their promises add up
    best = replace(best, total=capped(best.total, privacy))
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


def capped(total: Total, privacy: Privacy) -> Total:
    """Return a total that basic composition bounds by the promise exactly, whatever floating-point sums say."""
    return total if total.epsilon <= privacy.epsilon else Total(privacy.epsilon, privacy.delta, "basic")
