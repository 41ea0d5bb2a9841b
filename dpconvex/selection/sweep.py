"""Fit the same data several times privately, and calibrate the noise of each fit to one total guarantee."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from numpy.typing import ArrayLike

from dpconvex.accounting.budget import Budget, charge
from dpconvex.accounting.composition import Entry, Total, as_fraction, best_total, floor
from dpconvex.accounting.events import Composition, Event
from dpconvex.certificates.certificate import Certificate
from dpconvex.errors import DPConvexError, NotPrivate
from dpconvex.fitting.release import Release, annotated
from dpconvex.fitting.solve import FitJob, public_size, run
from dpconvex.fitting.verify import CertifiedFit, FitOptions
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation
from dpconvex.mechanisms.plans import Automatic
from dpconvex.mechanisms.residual_noise import ResidualNoise
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.certify import Warm
from dpconvex.util.arguments import COUNT, require
from dpconvex.util.runtime import in_order, quietly, this_process

# The search for the guarantee of each release stops at this fraction of the total, or after so many trials.
CLOSE, TRIES = 0.998, 10


@quietly
def sweep(
    template: Template | Sequence[Template],
    data: Mapping[str, ArrayLike],
    privacies: Privacy | Sequence[Privacy] | None = None,
    *,
    total: Privacy | None = None,
    draws: int = 1,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    residual_noise: ResidualNoise | None = None,
    workers: Any = None,
) -> Iterator[Release]:
    """Fit repeatedly with fresh noise, and yield releases in order of templates, then guarantees, then draws.

    The data are checked once.  Each fit starts from the last answer, which changes only its running time.  If you stop or
    interrupt the iteration, you keep every yielded release.  A fit that has begun is charged.

    Parameters
    ----------
    template : Template or sequence of Template
        For instance one learner with several regularizations.
    privacies : Privacy or sequence of Privacy, optional
        The guarantee of each release separately.
    total : Privacy, optional
        Instead of `privacies`, the guarantee of all releases together.  `calibrate` finds the guarantee of each.  The total is
        charged to the budget before the first fit.
    draws : int
        Fits for each template and guarantee.
    data, mechanism, backend, size, clip, budget, residual_noise
        As for `solve`.
    seed : int, optional
        For tests: fit number k uses ``seed + k``, and is marked as not private.
    workers : int, optional
        Number of fits at a time, in threads of this process (docs/performance.md). Each fit then starts from zero, so with a
        seed every number of workers gives the bits of single fits.  That many fits are begun, and charged, ahead.
    """
    one = (privacies is None) != (total is None)
    require(one, "sweep: give the guarantee of each release, or the `total` of all of them.")
    COUNT.check("sweep", draws=draws)
    templates = list(template) if isinstance(template, Iterable) else [template]
    promises: list[Any] = list(privacies) if isinstance(privacies, Iterable) else [total or privacies]
    for privacy in promises:
        check_privacy("sweep", privacy)
    if not templates or not promises:
        return iter(())
    options = FitOptions(mechanism, residual_noise, backend, size, clip, budget, "sweep", seed, workers)
    call = FitJob(data, promises[0], templates, options)
    event, order = None, list[CertifiedFit]()
    if total is None:
        for learner, privacy in product(templates, promises):
            order += [options.prove(learner, privacy, public_size(learner, call.data, privacy, size))] * draws
    else:
        plan = calibrate_together(templates, total, call.size, draws, options, None)
        event, order = plan.event, list(plan.fits)
    for learner in templates[1:]:
        learner.record.check_form(call.data, empty=call.protected)
    call.check(*order[::draws])
    return fits(order, call, event, warm=workers is None and backend in (None, "first-order"))


def fits(order: Sequence[CertifiedFit], call: FitJob, event: Event | None, warm: bool) -> Iterator[Release]:
    """Run the fits of a sweep.  With an event, charge all fits first; otherwise charge each before it starts."""
    began, options = this_process(), call.options

    def tasks() -> Iterator[Callable[[], Release]]:
        last: Template | None = None
        for number, found in enumerate(order):
            certificate = found.certificate
            public_size(found.template, call.data, certificate.privacy, certificate.size)  # raises if it has changed
            if event is None:
                charge(options.budget, certificate.privacy, options.entry, certificate.event)
            elif not number:
                call.pay(event)
            if found.template is not last:
                last = found.template
                batch = call.batch(last.record)
                backend = Warm() if warm else call.backend
            source = NoiseSource(None if options.seed is None else options.seed + number)
            yield partial(quietly(run), found, batch, backend, source)

    for release in in_order(tasks(), options.workers or 1, "fits"):
        yield annotated(release, call.data)
        if event is not None and this_process() != began:
            raise DPConvexError("sweep: this is a fork of the process that paid for the whole; begin anew here.")


# Shares of one guarantee


@dataclass(frozen=True)
class Calibration:
    """Hold the guarantee of each of several releases that together keep one guarantee.

    Attributes
    ----------
    each, mechanism : Privacy and Mechanism or None
        Arguments of `solve` for one release; the mechanism is None if it is the default.
    total, event : Total and Event
        Cost of all together at the total delta, with its accountant; and its event for a `Budget`.
    """

    each: Privacy
    fits: tuple[CertifiedFit, ...]
    total: Total
    event: Event
    mechanism: Mechanism | None = None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates of the releases, in order."""
        return tuple(fit.certificate for fit in self.fits)

    @property
    def risk(self) -> float:
        """The sum of the releases' predicted excess risks."""
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
    residual_noise: ResidualNoise | None = None,
) -> Calibration:
    """Find the guarantee of each of several releases so that all together keep one guarantee; no data are needed.

    The total is the smallest of basic composition and of the RDP, GDP and PLD accountants.  It holds for non-adaptive
    composition.  If later releases depend on earlier ones, use a `Budget`.

    Parameters
    ----------
    template, privacy
        As for `sweep`, and its total.
    size, residual_noise
        As for `verify`.
    releases : int
        Number of fits of each template.
    mechanism : Mechanism, optional
        By default the choice of `verify` for each release.  If that ends near a minimiser for all templates, the mechanism with
        the smallest predicted excess risk of all releases together.
    """
    learners = list(template) if isinstance(template, Iterable) else [template]
    return calibrate_together(learners, privacy, size, releases, FitOptions(mechanism, residual_noise), None)


def calibrate_together(
    templates: Sequence[Template], privacy: Privacy, size: int, draws: int, options: FitOptions, beside: Privacy | None
) -> Calibration:
    """Calibrate as `calibrate` does; the total also pays for `beside`, the pure guarantee of a further step."""
    check_privacy("calibrate", privacy, options.units)
    COUNT.check("calibrate", releases=draws)
    require(templates, "calibrate: there is no template to fit.")
    learners = [template for template in templates for _ in range(int(draws))]
    best = largest(learners, options, privacy, size, beside)
    by_size = any(not isinstance(fit.mechanism, Automatic) for fit in best.fits)
    if options.mechanism is not None or by_size or privacy.pure or len(learners) == 1:
        return best
    for other in (ObjectivePerturbation("gaussian"), OutputPerturbation("gaussian")):
        with suppress(NotPrivate):
            found = largest(learners, replace(options, mechanism=other), privacy, size, beside)
            best = min(best, found, key=lambda item: item.risk)
    return best


def largest(
    learners: Sequence[Template], options: FitOptions, privacy: Privacy, size: int, beside: Privacy | None
) -> Calibration:
    extra, count = [] if beside is None else [Entry("beside", beside)], len(learners)
    rest = as_fraction(privacy.epsilon) - as_fraction(0.0 if beside is None else beside.epsilon)

    def tried(epsilon: float) -> Calibration:
        each = privacy.part(epsilon, floor(as_fraction(privacy.delta) / count))
        proved = {template: options.prove(template, each, size) for template in dict.fromkeys(learners)}
        fits = tuple(proved[template] for template in learners)
        entries = [*extra, *(Entry("", fit.certificate.privacy, fit.certificate.event) for fit in fits)]
        events = tuple(item.known for item in entries)
        total = best_total([item.privacy for item in entries], events, privacy.delta)
        return Calibration(each, fits, total, Composition(events), options.mechanism)

    best, high = tried(floor(rest / count)), math.inf  # holds for any events, by basic composition
    if privacy.pure or count + len(extra) == 1:
        return best
    for _ in range(TRIES):
        if best.total.epsilon >= CLOSE * privacy.epsilon:
            break
        ahead = best.each.epsilon * (privacy.epsilon * (1 + CLOSE) / 2 / best.total.epsilon) ** 0.95
        epsilon = ahead if ahead < high else math.sqrt(best.each.epsilon * high)
        found = None
        with suppress(NotPrivate):  # at a larger epsilon the default may be a mechanism without a proof
            found = tried(epsilon)
        if found is None or found.total.epsilon > privacy.epsilon:
            high = epsilon
        else:
            best = found
    return best
