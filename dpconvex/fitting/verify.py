"""Verification: from a template and a guarantee to a certificate, or to an error with the reason. No data are read."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from dpconvex.accounting.budget import Budget
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.text import UNIT_COST
from dpconvex.checker.reading import Rejected
from dpconvex.errors import DPConvexError, MissingRule, NotConverged, NotPrivate, TemplateError
from dpconvex.fitting.fit_warnings import constant_value, few_records
from dpconvex.fitting.proof import proof_of
from dpconvex.fitting.usual_steps import steps_are_default
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.noisy_frank_wolfe import NoisyFrankWolfe, vertex_reach
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.plans import Automatic, TargetRange, plan_reason, plans
from dpconvex.mechanisms.residual_noise import ResidualNoise
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.mechanisms.target_range import RangePlan, Target, target_of
from dpconvex.model.people import template_to_fit
from dpconvex.model.privacy import Privacy, calibration, check_privacy, not_for_units
from dpconvex.model.template import Template
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm, check_loss, check_public
from dpconvex.sensitivity.public_terms import move_public_terms
from dpconvex.sums.linear_scores import linear_scores, refusal
from dpconvex.sums.translation import check_translation
from dpconvex.util.arguments import COUNT, SWITCH, TRUTH, Kind, check_fields, instance, require, whole
from dpconvex.util.runtime import Stage, once, quietly

IN_RANGE = (
    "The range of most targets is found first. Widths and thresholds of the loss are in proportion to it, and the loss is "
    "linear for long residuals. Name `ObjectivePerturbation()` or `SufficientStatistics()` for the loss as declared."
)
PUBLIC = "Terms of the loss that no record enters count as part of the regularizer, which is multiplied by n."
LEAST = 0.25  # The smallest share of the guarantee that is tried for a proof that the checker replays
EXAMPLE = "an object such as dp.AdaptiveSteps() or dp.ObjectivePerturbation()"
MECHANISM = Kind(EXAMPLE, lambda given: isinstance(given, Mechanism) and not isinstance(given, type)).or_none


def check_template(template: object) -> None:
    instance(Template, "such as dp.load('logistic_regression', features=3)").check("", template=template)


def form_of(template: Template) -> LossForm:
    check_template(template)
    return read_form(template)


@once
def read_form(template: Template, convex: bool = True) -> LossForm:
    if convex:  # the form is the same with and without this check
        check_public(template)
        check_loss(template)
        return read_form(template, False)
    form = LossForm(template, convex)
    check_translation(form)
    return form


def analyse(template: Template, mechanism: Mechanism | None = None) -> Analysis:
    """Return the constants of a template, computed once; they may lack bounds if the mechanism needs none."""
    check_template(template)
    if isinstance(mechanism, SufficientStatistics | AdaptiveSteps):
        return analysed(
            move_public_terms(template), "nothing about it is asked", not isinstance(mechanism, AdaptiveSteps)
        )
    try:
        return analysed(template)
    except (NotPrivate, MissingRule) as error:
        if getattr(mechanism, "bounds_gradients", False):
            return analysed(template, str(error), False)
        with suppress(NotPrivate, MissingRule):  # public terms of the loss may have no bounds
            if move_public_terms(template) is not template:
                return analysed(move_public_terms(template))
        raise


@once
def analysed(template: Template, why: str = "", convex: bool = True) -> Analysis:
    return Analysis(read_form(template, convex), unbounded=DPConvexError(why) if why else None)


@quietly
def verify(
    template: Template,
    privacy: Privacy,
    size: int,
    mechanism: Mechanism | None = None,
    residual_noise: ResidualNoise | None = None,
    *,
    proof: bool = True,
    checked: bool = False,
) -> Certificate:
    """Prove that a mechanism on a template is private, or raise `NotPrivate` or another error, with the place and a remedy.

    Parameters
    ----------
    template : Template
    privacy : Privacy
    size : int
        Public number of records; under add-remove, a public nominal number.
    mechanism : Mechanism, optional
        By default the mechanism with the lowest expected error for this size (docs/choosing.md). With delta: `AdaptiveSteps` for
        most losses of linear scores, `SufficientStatistics` for other quadratic losses, and gradient descent on clipped
        gradients for classifiers with few records per parameter.  The last need not converge to the ERM solution.  Otherwise the
        provable mechanism with the smallest predicted excess risk.
    residual_noise : ResidualNoise, optional
        Noise that hides the distance of the computed answer from the exact one; by default from 1 % of the guarantee.
    proof : bool
        Attach a proof, which `Certificate.check` replays.  It is written when it is first used.
    checked : bool
        Certify only proofs that the checker accepts completely.  If its simpler bounds do not prove the noise, the noise is that
        of the largest share of the guarantee, in steps of 1 %, that the checker accepts.  Usually nothing changes; otherwise the
        search takes some seconds.  If a quarter of the guarantee is not enough, the error names the step that is not replayed.
    """
    SWITCH.check("verify", proof=proof)
    options = FitOptions(mechanism, residual_noise, checked=checked, units=True)
    found = options.prove(template, privacy, size).certificate
    return found if proof else found.copied(event=found.event, writer=None)


def written(template: Template, mechanism: Mechanism, certificate: Certificate) -> bytes:
    analysis, width = analyse(template, mechanism), certificate.smoothing
    return proof_of(smooth_analysis(analysis, width) if width else analysis, certificate)


@dataclass(frozen=True)
class CertifiedFit:
    """A fit that was proved private: its template, certificate and mechanism."""

    template: Template
    certificate: Certificate
    mechanism: Mechanism
    ranged: "Ranged | None" = None  # if the range of the target is found first

    def advised(self, said: str) -> Self:
        return replace(self, certificate=self.certificate.advised(said)) if said else self


# The plan that finds the range of the target, the target, and the fit with its part of the guarantee
Ranged = tuple[RangePlan, Target, CertifiedFit]


@dataclass(frozen=True)
class FitOptions:
    """Options of `solve`, `verify`, `sweep`, `tune`, `evaluate`, mixtures and intervals; only this class checks them."""

    mechanism: Mechanism | None = None
    residual_noise: ResidualNoise | None = None
    backend: Any = None
    size: int | None = None
    clip: bool = False
    budget: Budget | None = None
    entry: str = "solve"
    seed: int | None = None
    workers: int | None = None
    unit: Any = None
    checked: bool = False
    units: bool = False  # whether the calling function can protect people with several records

    def __post_init__(self) -> None:
        check_fields(self, "", mechanism=MECHANISM, residual_noise=instance(ResidualNoise).or_none, checked=SWITCH)
        check_fields(self, "", clip=TRUTH, budget=instance(Budget).or_none, size=COUNT.or_none, workers=COUNT.or_none)

    def prove(self, template: Template, privacy: Privacy, size: int) -> CertifiedFit:
        """Choose a plan once and certify it; the result names the plan, so that a fit need not choose again."""
        Stage.begin("proving")
        check_privacy("this", privacy, self.units)
        check_template(template)
        template = template_to_fit(template, privacy)
        if not self.checked:
            return self._proved(template, privacy, size)
        return replayed(partial(self._proved, template, size=size), privacy)

    def _proved(self, template: Template, privacy: Privacy, size: int) -> CertifiedFit:
        whole(1, 2**53).check("verify", size=size)  # larger ones are not exact as floating-point numbers
        if len(set(template.losses)) == 1 and not template.losses[0].fields:
            said = "the loss is the same for all records; your own data in it would be public, without protection"
            remedy = f"write the loss of one record, from its arguments ({', '.join(template.record.fields)})"
            raise NotPrivate(said, template.losses[0], remedy)
        found, plan = self._chosen(template, privacy, int(size))
        found = found or certified(template, privacy, int(size), plan, self.residual_noise)
        found = found.advised(few_records(form_of(template), found.certificate, fits=False))
        found = found.advised(constant_value(analyse(found.template, found.mechanism), found.certificate))
        if privacy.most > 1:
            found = found.advised(self._cost_of_unit(found, privacy))
        if self.mechanism is not None or isinstance(found.mechanism, Automatic):
            return found
        return found.advised(plan_reason(found.mechanism, form_of(template), privacy, int(size)))

    def _cost_of_unit(self, found: CertifiedFit, privacy: Privacy) -> str:
        """Return advice, before any charge, on the cost of further records of a person; an empty text if there is none."""
        one, size = replace(privacy, most=1), found.certificate.size
        with suppress(DPConvexError, OverflowError):
            plain, plan = self._chosen(found.template, one, size)
            plain = plain or certified(found.template, one, size, plan, self.residual_noise)
            times = found.certificate.expected_noise / plain.certificate.expected_noise
            if plain.certificate.perturbed == found.certificate.perturbed != "queries":  # query sums grow differently
                return f"{UNIT_COST}{privacy.unit} is {times:.3g} times that for one record of each."
        return ""

    def plan(self, template: Template, privacy: Privacy, size: int) -> Mechanism:
        return self._chosen(template, privacy, size)[1]

    def _chosen(self, template: Template, privacy: Privacy, size: int) -> tuple[CertifiedFit | None, Mechanism]:
        """Return the first plan with a proof, and its fit; the last plan is returned untried, without a fit."""
        if self.mechanism is not None:
            return None, self.mechanism
        known = partial(form_of, template), partial(analyse, template, None)
        for plan in plans(*known, privacy, size):
            if isinstance(plan, AdaptiveSteps) and not steps_are_default(*known, privacy, size, plan):
                continue
            if type(plan) is not Automatic:  # after an error, the next plan follows
                with suppress(DPConvexError, OverflowError):
                    return certified(template, privacy, size, plan, self.residual_noise), plan
        return None, plan


def replayed(prove: Callable[[Privacy], CertifiedFit], privacy: Privacy) -> CertifiedFit:
    """Return the fit for the largest share of the guarantee with a proof that the checker accepts; it has more noise."""
    found, missing = attempted(prove, privacy, 1.0)
    if missing:
        low, high = LEAST, 1.0
        found, missing = attempted(prove, privacy, low)
        if missing:
            remedy = "leave checked=True out, or bound parameters by a norm"
            raise MissingRule(f"the checker does not replay this: {missing}", None, remedy)
        while high - low > 0.01:
            share = (low + high) / 2
            other, missing = attempted(prove, privacy, share)
            low, high, found = (low, share, found) if missing else (share, high, other)
        part = f"{100 * low:.0f} % of the guarantee"
        found = found.advised(f"The noise is that of {part}, because the checker replays simpler bounds.")
    return found


def attempted(prove: Callable[[Privacy], CertifiedFit], privacy: Privacy, share: float) -> tuple[CertifiedFit, str]:
    """Return the fit for a share of the guarantee, stated for all of the guarantee, and the steps that are not replayed."""
    found = prove(replace(privacy, epsilon=share * privacy.epsilon, delta=share * privacy.delta))
    event = found.certificate.event if share == 1.0 else None  # of less than the guarantee that a file states
    found = replace(found, certificate=found.certificate.copied(event=event, privacy=privacy))
    try:
        return found, "; ".join(found.certificate.check().unreplayed)
    except Rejected as step:
        return found, str(step)


def certified(template: Template, privacy: Privacy, size: int, mechanism: Mechanism, cover: Any) -> CertifiedFit:
    """Return a certified fit from a cache, as a copy; mechanisms of users are not cached, because they may change."""
    ask = remembered if type(mechanism).__module__.startswith("dpconvex.") else proved
    found = ask(template, privacy, size, mechanism, cover or ResidualNoise())
    certificate = found.certificate
    parts = {name: getattr(certificate, name) for name in ("cover", "clustering")}
    own: dict[str, Any] = {name: part and replace(part) for name, part in parts.items()}
    own |= {"event": certificate.event, "settings": dict(certificate.settings)}
    return replace(found, certificate=certificate.copied(**own))


def proved(template: Template, privacy: Privacy, size: int, mechanism: Mechanism, cover: ResidualNoise) -> CertifiedFit:
    if privacy.unit is not None and not getattr(mechanism, "units", False):
        raise not_for_units(f"the mechanism {type(mechanism).__name__}", privacy)
    if isinstance(mechanism, TargetRange):
        return in_range(template, privacy, size, mechanism, cover)
    try:
        analysis = analyse(template, mechanism)
    except NotPrivate:
        if isinstance(mechanism, Automatic):
            with suppress(NotPrivate, TemplateError):  # gradients of a quadratic loss need not be bounded
                return proved(template, privacy, size, SufficientStatistics.usual(privacy), cover)
        raise
    feasible = analysis.form.feasible
    if feasible.obstacle is not None:
        raise NotConverged(f"{feasible.obstacle}.")
    with calibration(privacy):
        if isinstance(mechanism, AdaptiveSteps):
            scores = linear_scores(analysis.form)
            if isinstance(mechanism, NoisyFrankWolfe):
                alone = not scores.is_shared and scores.lift.shape[0] == scores.lift.shape[1]
                if scores.bounds is None or not alone or not len(scores.features):
                    raise refusal(analysis.form, "vertex steps need scores that are linear in one field")
                vertex_reach(analysis.form, scores.indices[: len(scores.features)].ravel())
            require(cover == ResidualNoise(), "AdaptiveSteps: leave residual_noise out: all sums are exact.")
            certificate = mechanism.certify(analysis, privacy, size)
        else:
            certificate = cover.certify(mechanism, analysis, privacy, size)
    certificate = certificate.copied(event=certificate.event, writer=partial(written, template, mechanism))
    found = CertifiedFit(template, certificate, mechanism)
    if analysis.form.template.public_terms is not None and certificate.perturbed != "queries":
        found = found.advised(PUBLIC)
    conic = "Constraints: no projection in closed form: a conic solver, certified by multipliers."
    return found if certificate.perturbed == "statistics" or feasible.has_projection else found.advised(conic)


def in_range(
    template: Template, privacy: Privacy, size: int, mechanism: TargetRange, cover: ResidualNoise
) -> CertifiedFit:
    target = target_of(form_of(template))
    assert target is not None  # otherwise there is no such plan
    plan = RangePlan(privacy, size, target.level)
    fit = proved(target.capped(plan.times(target.form.noise_dimension)), plan.rest, size, Automatic(), cover)
    whole = plan.whole(fit.certificate)
    return replace(fit, certificate=whole, mechanism=mechanism, ranged=(plan, target, fit)).advised(IN_RANGE)


remembered = once(proved)


@quietly
def is_private(
    template: Template,
    privacy: Privacy,
    size: int,
    mechanism: Mechanism | None = None,
    residual_noise: ResidualNoise | None = None,
) -> bool:
    """Return whether `verify` finds a proof."""
    with suppress(NotPrivate):
        verify(template, privacy, size, mechanism, residual_noise)
        return True
    return False
