"""Default plans: mechanisms by public sizes (docs/choosing.md), for fits that name no mechanism."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dpconvex.certificates.certificate import Certificate, OutputCertificate
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.expressions.atoms.extremes import is_hinge
from dpconvex.expressions.atoms.powers import HUBER, POWER
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps, tells_classes
from dpconvex.mechanisms.added_quadratic import check_strong_convexity
from dpconvex.mechanisms.base import Engine, ForUnits, Mechanism
from dpconvex.mechanisms.gradient_descent import NoisyGradientDescent
from dpconvex.mechanisms.noisy_frank_wolfe import NoisyFrankWolfe, num_vertex_axes, signal_to_noise
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.mechanisms.target_range import target_of
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import gaussian_level
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm, nonsmooth_nodes
from dpconvex.sensitivity.public_terms import move_public_terms
from dpconvex.sensitivity.rank_one_gradients import rank_one_structures
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.util.arrays import Array

Candidate = ObjectivePerturbation | OutputPerturbation | NoisyGradientDescent

# Records, for each parameter and unit of the Gaussian mechanism's level, from which minimisers are exact enough.
ENOUGH = 10.0
ENOUGH_AT_KINKS = 100.0  # ... if fields have no weights or the regularizer is not quadratic: clipped steps then err
# The clip next to the gradient bound: gradients are long at the start, but at the end only of few records.
PART = 0.25
MOST_CONSTRAINED = 1_000  # Most parameters under constraints: a conic solver takes seconds for these
# Features of classes from which clipped steps are the default; WIDE if records times level for each feature are below SPARSE.
WIDEST, WIDE, SPARSE = 4_096, 1_000, 3.0
MOST_STATISTICS = 25_000  # With more statistics fits take too long
# Guarantees beyond these have no plan by size: some levels would be beyond floating-point numbers.
LEAST, MOST, MOST_IN_STEPS, LEAST_DELTA = 1e-6, 1e3, 100.0, 1e-100
# A mechanism replaces a preferred one only if its predicted risk is below this fraction of the other's. Smaller gains are
# within the prediction's error, and matrix-shaped noise has heavier tails, which cost the residual noise more.
CLEARLY = 0.85


def plans(
    form: Callable[[], LossForm], analysed: Callable[[], Analysis], privacy: Privacy, size: int
) -> Iterator[Mechanism]:
    """Yield default mechanisms by preference. The first that certifies is used; if none does, the last error is raised."""
    with suppress(DPConvexError, OverflowError):  # Squares of labels alone are counts, for any guarantee
        if not form().template.record.continuous and few_statistics(form(), privacy):
            yield SufficientStatistics.usual(privacy)
    if LEAST <= privacy.epsilon <= MOST and privacy.delta >= LEAST_DELTA:
        yield from best_for_size(form, analysed, privacy, size)
    if privacy.pure:
        with suppress(DPConvexError, OverflowError):
            if target_of(form()) is not None:
                yield TargetRange()
    yield Automatic()


def best_for_size(
    form: Callable[[], LossForm], analysed: Callable[[], Analysis], privacy: Privacy, size: int
) -> Iterator[Mechanism]:
    """Yield the most accurate mechanisms for this number of records and a guarantee with delta, before the general ones."""
    with suppress(DPConvexError, OverflowError):
        if has_many_vertices(form(), privacy, size):
            yield NoisyFrankWolfe()
        if has_many_features(form(), privacy, size) and analysed().unbounded is None:
            yield clipped_steps(analysed(), privacy)
        if steps := learns_in_steps(form(), analysed, privacy, size):
            yield AdaptiveSteps()
            steps = privacy.epsilon < MOST_IN_STEPS and not is_constrained(form())
        if few_statistics(form(), privacy):
            yield SufficientStatistics.usual(privacy)
        elif steps or worth_clipping(analysed(), privacy, size):
            yield clipped_steps(analysed(), privacy)


def learns_in_steps(form: LossForm, analysed: Callable[[], Analysis], privacy: Privacy, size: int) -> bool:
    """Return whether adaptive steps are the default; for classes only with derivatives, free parameters or many records."""
    if has_nonsmooth_loss(form):
        hinges = all(nonsmooth_parts(form).values()) and records_per_parameter(form, privacy, size) >= ENOUGH
        if not (hinges or is_constrained(form) or has_kink(analysed) or lacks_minimiser(analysed)):
            return False
    if all(loss.is_affine for loss in move_public_terms(form.template).losses):
        return False
    cells = tells_classes(form) and not weighs_features(form) and not any(loss.fields for loss in form.losses)
    if cells and records_per_parameter(form, privacy, size) >= ENOUGH and has_bounded_gradients(analysed):
        return False  # Each parameter has its own records, and noise on all parameters hides these less
    if is_constrained(form):
        return form.space.dim <= MOST_CONSTRAINED
    few = tells_classes(form) and weighs_features(form) and few_statistics(form, privacy)
    return not (few and records_per_parameter(form, privacy, size) < 1)


def has_bounded_gradients(analysed: Callable[[], Analysis]) -> bool:
    """Return whether records' gradients are bounded, as noisy minimisers require."""
    with suppress(DPConvexError, OverflowError):
        return analysed().unbounded is None
    return False


def weighs_features(form: LossForm) -> bool:
    """Return whether parameters are weights of fields; otherwise records choose among them, as for strata or table entries."""
    scores = map(form.polynomial, form.every_leaf)
    return any((score.monomial[score.coordinate >= 0] >= 0).any() for score in scores)


def has_kink(analysed: Callable[[], Analysis]) -> bool:
    """Return whether a loss has a nonsmooth point, or has no proved constants, so that no minimiser can be released."""
    with suppress(NotPrivate):
        return analysed().kink is not None
    return True


def lacks_minimiser(analysed: Callable[[], Analysis]) -> bool:
    """Return whether some parameter, such as a free intercept, is bounded neither by the regularizer nor by K."""
    with suppress(DPConvexError, OverflowError):
        check_strong_convexity(analysed(), None)
        return False
    return True


def is_constrained(form: LossForm) -> bool:
    """Return whether losses of classes have constraints, or a penalty other than a ridge."""
    return tells_classes(form) and ridge_of(form) is None


def has_many_features(form: LossForm, privacy: Privacy, size: int) -> bool:
    """Return whether losses of classes read too many features for noise on their second moment."""
    record = form.template.record
    count, level = features_of(form), gaussian_level(privacy.epsilon, privacy.delta)
    return bool(record.discrete) and count > (WIDE if size * level < SPARSE * count else WIDEST)


def features_of(form: LossForm) -> int:
    """Return the number of entries of the largest field."""
    return max((math.prod(domain.shape) for domain in form.template.record.continuous.values()), default=0)


def has_many_vertices(form: LossForm, privacy: Privacy, size: int) -> bool:
    """Return whether K is an l1 ball or simplex with more features than a third of records times the level."""
    with suppress(DPConvexError):
        enough = signal_to_noise(privacy, gaussian_level(privacy.epsilon, privacy.delta), size) / 3
        return num_vertex_axes(form) > enough and not has_nonsmooth_loss(form)
    return False


def plan_reason(mechanism: Mechanism, form: LossForm, privacy: Privacy, size: int) -> str:
    """Return the reason for the plan and how to choose another; empty if mechanisms were compared."""
    if isinstance(mechanism, SufficientStatistics):
        return "Chosen because the loss is quadratic: noisy sums over the data are released once."
    if isinstance(mechanism, NoisyFrankWolfe):
        return (
            f"Chosen because there are {num_vertex_axes(form):,} features, more than n mu / 3 (n records, mu of GDP). "
            "Noisy choices of few features are then more accurate than noise on all. Name `AdaptiveSteps()` to use all."
        )
    if isinstance(mechanism, AdaptiveSteps):
        return (
            "Chosen because scores are linear in the parameters. Adaptive clipped steps are then more accurate than exact "
            "minimisers, whose noise covers the worst record. Name `ObjectivePerturbation()` for a minimiser."
        )
    if not isinstance(mechanism, NoisyGradientDescent):
        return ""
    if has_many_features(form, privacy, size):
        return (
            f"Chosen because noise on the second moment of {features_of(form):,} features takes long to draw. "
            "With many records `AdaptiveSteps()`, which draws it, is more accurate."
        )
    better = "clipped steps are more accurate than exact minimisers. "
    better += "Name `ObjectivePerturbation()`, or `OutputPerturbation()` at kinks, for a minimiser."
    if (found := records_per_parameter(form, privacy, size)) >= ENOUGH:
        return f"Chosen because the loss has kinks, and there are constraints: {better}"
    return f"Chosen by size: n mu / p is {found:.3g} (n records, mu of GDP, p parameters). Below {ENOUGH:g}, {better}"


def has_nonsmooth_loss(form: LossForm) -> bool:
    """Return whether a loss has a nonsmooth point, apart from squared or Huber hinges of targets or of constrained classes."""
    hides = not form.template.record.discrete or ridge_of(form) is None
    return any(node.variables and not (hides and hidden) for node, hidden in nonsmooth_parts(form).items())


def has_domain(form: LossForm) -> bool:
    """Return whether losses may be undefined at some scores, as logarithms are."""
    return any(
        domain is not None and argument.variables
        for node in postorder(form.losses)
        if node.atom is not None
        for argument, domain in zip(node.args, node.atom.domain(node), strict=True)
    )


def nonsmooth_parts(form: LossForm) -> dict[Expression, bool]:
    """Return the nonsmooth nodes of the losses, and for each whether it is a hinge inside squares or Huber losses alone."""
    squared = {n: n.atom is HUBER or (n.atom is POWER and n.option("p") >= 2) for n in postorder(form.losses)}
    seen = {side for node, square in squared.items() if not square for side in node.args} | set(form.losses)
    return {node: is_hinge(node) and node not in seen for node in nonsmooth_nodes(form.losses)}


def few_statistics(form: LossForm, privacy: Privacy) -> bool:
    """Return whether the losses are quadratic, with few enough statistics for a fast fit."""
    with suppress(DPConvexError):
        return 0 < SufficientStatistics.usual(privacy).moments(form, privacy.adjacency).count <= MOST_STATISTICS
    return False


def records_per_parameter(form: LossForm, privacy: Privacy, size: int) -> float:
    return size * gaussian_level(privacy.epsilon, privacy.delta) / max(form.noise_dimension, 1)


def worth_clipping(analysis: Analysis, privacy: Privacy, size: int) -> bool:
    """Return whether classes have too few records for minimisers, or a nonsmooth loss with constrained parameters."""
    form = analysis.form
    if not form.template.record.discrete or analysis.unbounded is not None:
        return False
    if analysis.kink is not None:
        steady = weighs_features(form) and as_quadratic(form.template.regularizer, form.space) is not None
        return is_constrained(form) and (steady or records_per_parameter(form, privacy, size) < ENOUGH_AT_KINKS)
    plain = as_quadratic(form.template.regularizer, form.space) is not None and form.feasible.has_projection
    return plain and records_per_parameter(form, privacy, size) < ENOUGH


def clipped_steps(analysis: Analysis, privacy: Privacy) -> NoisyGradientDescent:
    """Return clipped steps, with a part of the gradient bound as clip; a person's clip grows with the root of the weight."""
    return NoisyGradientDescent(clip=PART * math.sqrt(privacy.person.weight) * analysis.gradient_bound)


@dataclass(frozen=True)
class Automatic(ForUnits):
    """The certified mechanism with the smallest predicted excess risk: the last default plan of `verify` and `solve`."""

    def candidates(self, analysis: Analysis, delta: bool) -> tuple[Candidate, ...]:
        """Return the mechanisms to compare, with or without delta, in order of preference at equal risk."""
        smooth = analysis.kink is None
        found: list[Candidate] = []
        if smooth:
            found.append(ObjectivePerturbation())
            p = analysis.form.noise_dimension
            if any(structure.square < p * (p + 1) for structure in rank_one_structures(analysis)):
                found.append(ObjectivePerturbation("matrix"))
            if delta:
                found.append(ObjectivePerturbation("gaussian"))
        if delta or not smooth:
            found.append(OutputPerturbation())
        if delta:
            found.append(OutputPerturbation("gaussian"))
            if analysis.form.feasible.bounded and analysis.form.feasible.has_projection:
                found.append(NoisyGradientDescent())
        return tuple(found)

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        certificates: list[Certificate] = []
        refusals: list[NotPrivate] = []
        for mechanism in self.candidates(analysis, not privacy.pure):
            try:
                certificates.append(mechanism.certify(analysis, privacy, size))
            except NotPrivate as error:
                refusals.append(error)
            except TemplateError:
                continue  # no step size can be proposed
        if not certificates:
            raise refusals[0]
        best = certificates[0]
        for certificate in certificates[1:]:
            if weighted_risk(certificate) < CLEARLY * weighted_risk(best):
                best = certificate
        compared = "; ".join(f"{c.mechanism} {weighted_risk(c):.4g}" for c in sorted(certificates, key=weighted_risk))
        how = "objective perturbation, unless another is clearly better; risks of output perturbation count 50 times"
        return best.advised(f"Mechanisms compared by predicted excess risk ({how}): {compared}.")

    def others(self, analysis: Analysis, certificate: Certificate) -> list[Candidate]:
        """Return the mechanisms that were not chosen; some need a delta, and raise without it."""
        return [m for m in self.candidates(analysis, delta=True) if m != self.chosen(certificate)]

    def chosen(self, certificate: Certificate) -> Candidate:
        if not certificate.minimises:
            return NoisyGradientDescent()
        kind = OutputPerturbation if isinstance(certificate, OutputCertificate) else ObjectivePerturbation
        return kind(certificate.noise)

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        return self.chosen(certificate).run(analysis, certificate, engine, rng)


class TargetRange(Automatic):
    """`Automatic` after two private choices of the target's range: the default for pure regressions."""


def weighted_risk(certificate: Certificate) -> float:
    return math.inf if certificate.predicted_risk is None else certificate.predicted_risk * certificate.risk_factor
