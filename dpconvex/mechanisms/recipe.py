"""The recipe: what fits best with how many records, from public sizes; what is used where nobody names a mechanism.

With mu the level of the Gaussian mechanism for (epsilon, delta), n records and p free parameters, clipped steps learn more than
exact minimisers where ``n mu / p`` is small: that is measured, not proved (docs/choosing.md).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpconvex.certificates.certificate import Certificate, OutputCertificate
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.expressions.atoms.extremes import is_hinge
from dpconvex.expressions.atoms.powers import POWER
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps
from dpconvex.mechanisms.base import Engine, ForUnits, Mechanism
from dpconvex.mechanisms.clipped_descent import curvature
from dpconvex.mechanisms.gradient_descent import PLENTY, NoisyGradientDescent
from dpconvex.mechanisms.noisy_frank_wolfe import NoisyFrankWolfe, told, vertices_of
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation
from dpconvex.mechanisms.private_whitening import PrivateWhitening, field_of, level
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.model.privacy import Privacy
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm, nonsmooth_nodes
from dpconvex.sensitivity.rank_one_gradients import rank_one_structures
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sets.quadratics import quadratic
from dpconvex.util.arrays import Array

Candidate = ObjectivePerturbation | OutputPerturbation | NoisyGradientDescent
Whitened = PrivateWhitening | bool | Literal["auto"] | None

# From this many records on, for each parameter and unit of the Gaussian mechanism's level, minimisers are exact enough.
ENOUGH = 10.0
# The clip, as a part of the gradient bound: gradients are long at the start, and at the end for few records only.
PART, PART_OF_MANY = 0.25, 0.5  # ... and of one score, with many whitened records
# Of whitened steps, those that look for the length alone: of one score, with many records and with few, and of several scores.
LENGTH_STEPS, FEW_LENGTH_STEPS, SCORES_APART = 8, 3, 5.0
# Statistics are those of whitened records if the second moment has this part of its noise's size: n mu / d^1.5, d features.
SEEN = 0.5
MOST_STATISTICS = 25_000  # More statistics than this take longer to fit than they are worth
# Guarantees beyond these are not chosen for: levels of some are beyond floating-point numbers.
LEAST, MOST, LEAST_DELTA = 1e-6, 1e3, 1e-100
# A mechanism replaces one of higher preference only if its foreseen risk is below this fraction of the other's: a small gain
# in a prediction is none, and matrix-shaped noise has heavier tails, which the covered release pays for.
CLEARLY = 0.85

Way = tuple[Mechanism, PrivateWhitening | None]


def ways(
    whitening: Whitened,
    mechanism: Mechanism | None,
    form: Callable[[], LossForm],
    analysed: Callable[[], Analysis],
    privacy: Privacy,
    size: int,
) -> Iterator[Way]:
    """Yield what the options mean, best first: the first that is proved private is taken; the last one's refusal is said."""
    auto = isinstance(whitening, str) and whitening == "auto"
    ordinary = LEAST <= privacy.epsilon <= MOST and privacy.delta >= LEAST_DELTA
    first = PrivateWhitening()
    if isinstance(whitening, PrivateWhitening):
        yield mechanism or Automatic(), whitening
    elif not auto and whitening is not None and not isinstance(whitening, bool):
        raise TemplateError(f'whitening must be a PrivateWhitening, True, False, None or "auto", not {whitening!r}.')
    elif mechanism is None and whitening is not True:
        if ordinary and whitening is not False:
            yield from best_for_size(form, analysed, privacy, size)
        yield Automatic(), None
    elif whitening is True and mechanism is None:
        if not privacy.pure and few_statistics(form(), privacy):
            yield SufficientStatistics.usual(privacy), first
        else:
            yield clipped_steps(analysed(), privacy, plenty(form(), privacy, size)), first
    else:
        assert mechanism is not None
        statistics = isinstance(mechanism, SufficientStatistics)
        if whitening is True or (auto and ordinary and statistics and stands_out(form(), privacy, size)):
            yield mechanism, first
        if whitening is not True:
            yield mechanism, None


def best_for_size(
    form: Callable[[], LossForm], analysed: Callable[[], Analysis], privacy: Privacy, size: int
) -> Iterator[Way]:
    """Yield what learns most from so many records for a guarantee with delta, before what is usual."""
    with suppress(DPConvexError, OverflowError):
        if has_many_vertices(form(), privacy, size):
            yield NoisyFrankWolfe(), None
        if steps := learns_in_steps(form(), privacy):
            yield AdaptiveSteps(), None
        if few_statistics(form(), privacy):
            statistics = SufficientStatistics.usual(privacy)
            if stands_out(form(), privacy, size):
                yield statistics, PrivateWhitening()
            yield statistics, None
        elif steps or worth_clipping(analysed(), privacy, size):
            yield clipped_steps(analysed(), privacy), None


def learns_in_steps(form: LossForm, privacy: Privacy) -> bool:
    """Say whether adaptive steps are usual: losses bend and have a derivative, and with classes parameters are free.

    Squares of classes release their statistics.
    """
    if has_nonsmooth_loss(form) or all(loss.is_affine for loss in form.losses):
        return False
    return not form.template.record.discrete or (ridge_of(form) is not None and not few_statistics(form, privacy))


def has_many_vertices(form: LossForm, privacy: Privacy, size: int) -> bool:
    """Say whether K is an l1 ball or a simplex with more features than a third of records times the level of the guarantee."""
    try:
        enough = told(privacy, level(privacy.epsilon, privacy.delta), size) / 3
        return vertices_of(form) > enough and not has_nonsmooth_loss(form)
    except DPConvexError:
        return False


def stands_out(form: LossForm, privacy: Privacy, size: int) -> bool:
    """Say whether records can be whitened, and their second moment stands out of the noise."""
    try:
        return size * level(privacy.epsilon, privacy.delta) >= SEEN * field_of(form.template.record, None)[1].dim ** 1.5
    except DPConvexError:
        return False


def why(mechanism: Mechanism, whitening: PrivateWhitening | None, form: LossForm, privacy: Privacy, size: int) -> str:
    """Say why the recipe's choice is what it is, and how to have another; empty where mechanisms were compared."""
    if isinstance(mechanism, SufficientStatistics):
        first = "" if whitening is None else ", of whitened records (`SufficientStatistics()` by name leaves that out)"
        return f"Chosen because the loss is quadratic: what it takes from the data is released once{first}."
    if isinstance(mechanism, NoisyFrankWolfe):
        return (
            f"Chosen because there are {vertices_of(form):,} features, more than a third of records times the level: "
            "noisy choices of few features learn more than noise on all; `AdaptiveSteps()` by name takes all."
        )
    if isinstance(mechanism, AdaptiveSteps):
        return (
            "Chosen because scores are linear in the parameters: clipped steps that adapt learn more than exact minimisers "
            "under the noise of the worst record; `whitening=False` asks for a minimiser."
        )
    if not isinstance(mechanism, NoisyGradientDescent):
        return ""
    return (
        f"Chosen by size: n mu / p is {plenty(form, privacy, size):.3g} (n records, mu of GDP, p parameters). Below {ENOUGH:g}, "
        "clipped steps are more accurate than exact minimisers; `whitening=False` asks for a minimiser."
    )


def has_nonsmooth_loss(form: LossForm) -> bool:
    """Say whether a loss of the parameters has a nonsmooth point; squares of hinges of targets have none."""
    hidden = set[Expression]()
    if not form.template.record.discrete:
        squared = {node: node.atom is POWER and node.option("p") >= 2 for node in postorder(form.losses)}
        seen = {side for node, square in squared.items() if not square for side in node.args}
        hidden = {node for node in squared if is_hinge(node)} - seen - set(form.losses)
    return any(node.variables and node not in hidden for node in nonsmooth_nodes(form.losses))


def few_statistics(form: LossForm, privacy: Privacy) -> bool:
    """Say whether the losses are quadratic, with few enough statistics to fit quickly."""
    try:
        return 0 < SufficientStatistics.usual(privacy).moments(form, privacy.adjacency).count <= MOST_STATISTICS
    except DPConvexError:
        return False


def plenty(form: LossForm, privacy: Privacy, size: int) -> float:
    return size * level(privacy.epsilon, privacy.delta) / max(form.noise_dimension, 1)


def is_tame(analysis: Analysis) -> bool:
    return bool(analysis.form.template.record.discrete) and analysis.unbounded is None and analysis.kink is None


def worth_clipping(analysis: Analysis, privacy: Privacy, size: int) -> bool:
    """Say whether, without whitening, records of classes are too few for minimisers, unless these are asked for."""
    form = analysis.form
    plain = quadratic(form.template.regularizer, form.space) is not None and form.feasible.has_projection
    return is_tame(analysis) and plain and plenty(form, privacy, size) < ENOUGH


def clipped_steps(analysis: Analysis, privacy: Privacy, records: float | None = None) -> NoisyGradientDescent:
    """Return clipped steps; of whitened records, so many for each parameter and unit of the level, with some for the length."""
    length, part, single = 0, PART, analysis.form.lengths.entries == 1
    if records is not None and curvature(analysis):
        length = FEW_LENGTH_STEPS if single or records > SCORES_APART else 0
        if single and records > PLENTY:
            length, part = LENGTH_STEPS, PART_OF_MANY
    if privacy.unit is not None:  # Sums of a person's gradients that disagree grow with the root of their number
        length, part = 0, part * math.sqrt(privacy.person.weight)
    return NoisyGradientDescent(clip=part * analysis.gradient_bound, length_steps=length)


@dataclass(frozen=True)
class Automatic(ForUnits):
    """Whichever certified mechanism is foreseen to have the smallest excess risk; what `verify` and `solve` use by default."""

    def candidates(self, analysis: Analysis, delta: bool) -> tuple[Candidate, ...]:
        """Return the mechanisms that are compared, with delta or without, in order of preference at equal risk."""
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
            if foreseen(certificate) < CLEARLY * foreseen(best):
                best = certificate
        compared = "; ".join(f"{c.mechanism} {foreseen(c):.4g}" for c in sorted(certificates, key=foreseen))
        how = "objective perturbation, unless another is clearly better; risks of output perturbation count 50 times"
        said = f"Mechanisms compared by predicted excess risk ({how}): {compared}."
        return best.advised(said)

    def others(self, analysis: Analysis, certificate: Certificate) -> list[Candidate]:
        """Return what was not chosen; what needs a delta that the guarantee has not got refuses by itself."""
        return [m for m in self.candidates(analysis, delta=True) if m != self.chosen(certificate)]

    def chosen(self, certificate: Certificate) -> Candidate:
        if not certificate.minimises:
            return NoisyGradientDescent()
        kind = OutputPerturbation if isinstance(certificate, OutputCertificate) else ObjectivePerturbation
        return kind(certificate.noise)

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        return self.chosen(certificate).run(analysis, certificate, engine, rng)


def foreseen(certificate: Certificate) -> float:
    return math.inf if certificate.predicted_risk is None else certificate.predicted_risk * certificate.foreseen
