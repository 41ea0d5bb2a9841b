"""Confidence intervals around a fit by objective perturbation, whose noise has a known law (docs/theory.md, section 22)."""

from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.accounting.budget import Budget
from dpconvex.certificates.certificate import ObjectiveCertificate
from dpconvex.data.domains import Ball
from dpconvex.data.record import Record, in_one_place
from dpconvex.errors import DomainError, NotConverged, NotPrivate, TemplateError
from dpconvex.expressions.evaluate import evaluations
from dpconvex.expressions.parameter_space import Space
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob, released
from dpconvex.fitting.statistics import Coefficients, Statistics, names
from dpconvex.fitting.verify import Method, analyse, check_template, form_of
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.sets.kinks import split_kinks
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.engine import RecordSums
from dpconvex.sums.forms import LeafForm, form_of as leaves_of
from dpconvex.util.arguments import FRACTION, instance
from dpconvex.util.arrays import Array

FARTHEST = 1e100  # Scores of fits beyond this may overflow
SAMPLED = 64  # Records
FAR = 0.2  # What the step may do to the curvature, times its length in standard errors
BY_CHANCE = 0.25  # What noise and sampling may do to it


@lru_cache(maxsize=64)
def squares_template(dim: int, steep: float, bent: float) -> Template:
    """Return the learner whose statistics are the Hessian, if it is asked for, and the second moment of gradients, as long."""
    step, spread = cp.Variable(dim, name="step"), cp.Variable(dim, name="spread")
    own = {"bend": Ball(dim, radius=bent)} if bent else {}

    def loss(slope: cp.Expression, bend: cp.Expression | None = None) -> cp.Expression:
        squares = cp.square(slope @ spread) * ((bent / steep) ** 2 if bent else 1) / 2
        return squares + (cp.square(bend @ step) / 2 if bent else 0)

    return Template(Record(slope=Ball(dim, radius=steep), **own), loss, regularizer=0 * cp.sum_squares(spread))


def intervals(
    template: Template,
    release: Release,
    data: object,
    privacy: Privacy,
    confidence: float = 0.95,
    *,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    entry: str = "intervals",
    seed: int | None = None,
) -> Coefficients:
    """Estimate confidence intervals of the parameters for sampling and noise, at a privacy cost of its own.

    A fit by objective perturbation reveals the gradient of all losses up to noise of a known distribution.  So a Newton step,
    which removes the shift by regularization, needs only the Hessian.  This function releases it with the second moment of
    gradients.  Intervals are those of the sandwich estimator plus both noises (docs/theory.md, section 22). They hold for many
    records if the Hessian exceeds its noise.  Otherwise `NotConverged` is raised, after payment, by a test on released numbers.

    Parameters
    ----------
    template : Template
        The learner; its losses have bounded gradients.  For losses of several scores, such as softmax, intervals assume that the
        model's probabilities are right (the second moment of gradients replaces the Hessian).
    release : Release
        A fit of the template with ``mechanism=dp.ObjectivePerturbation(...), whitening=False``. Other fits raise an error.
    privacy : Privacy
        Guarantee of the second moments, in addition to the fit's.
    confidence : float
        Confidence of each interval separately.
    data, size, clip, budget, entry, seed
        As for `solve`.

    Raises
    ------
    NotConverged
        If no intervals hold.  The fit stays valid.

    Examples
    --------
    >>> import dpconvex as dp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.7, 0.7, (20_000, 2))
    >>> data = {"x": X, "y": np.where(X[:, 0] + 0.5 * rng.logistic(size=20_000) > 0, 1, -1)}
    >>> learner, privacy = dp.load("logistic_regression", features=2), dp.Privacy(1.0, 1e-6)
    >>> fit = dp.solve(learner, data, privacy, dp.ObjectivePerturbation("gaussian"), whitening=False, seed=1)
    >>> found = dp.intervals(learner, fit, data, privacy, seed=2)
    >>> (found.lower < [2.0, 0.0]).all() and (found.upper > [2.0, 0.0]).all()  # what is true here
    np.True_
    """
    FRACTION.check("intervals", confidence=confidence)
    check_privacy("intervals", privacy)
    check_template(template)
    instance(Release, "such as model.release_").check("intervals", release=release)
    theta, analysis = start_of(template, release), analyse(template)
    leaves, basis = leaves_of(template, analysis.form.space), analysis.form.basis.toarray()
    steep, bent = analysis.gradient_bound, np.sqrt(analysis.hessian_bound) if leaves.forms == 1 else 0.0
    if analysis.kink is not None or not np.isfinite(bent):
        raise NotPrivate("the loss has kinks, and no Hessian", template.losses[0], "smooth it")
    certificate = objective_of(release)
    mu = analysis.strong_convexity(certificate.size, certificate.added)
    known = certificate.gradient_bound, certificate.hessian_bound, certificate.strong_convexity
    if not np.allclose(known, (steep, analysis.hessian_bound, mu), rtol=1e-9, atol=0):
        raise TemplateError("intervals: the release is of another template, with other constants than its certificate.")
    if not (abs(basis).sum(axis=1) > 0).all():
        raise TemplateError("intervals: no record enters one of the parameters, which has no intervals.")
    if not (bent or is_likelihood(template, analysis.form.space)):
        scores = f"reads {leaves.forms} scores" if leaves.forms != 1 else "of one score has no curvature"
        why = f"the loss {scores}, and is no logarithm of probabilities: exp(-loss) does not add up to 1 over labels"
        raise TemplateError(f"intervals: {why}, so that the second moment of gradients says nothing of its Hessian.")
    tuple(names(analysis.form.space))  # refuses what has none
    method = Method(SufficientStatistics("gamma" if privacy.pure else "gaussian"))
    squares = squares_template(basis.shape[1], float(steep), float(bent))
    fit = FitJob(data, privacy, [squares], method, None, size, clip, budget, entry, seed, record=template.record)
    in_one_place("intervals", fit.data, "pass arrays")
    release.check_data("intervals", fit.data)
    if not fit.protected and fit.size != certificate.size:
        raise DomainError(f"intervals: the fit was of {certificate.size} records, and here are {fit.size}.")
    stage = fit.proved_and_paid()
    batch = template.record.validate(fit.data, clip=clip, empty=fit.protected)
    slopes, bends = np.split(RecordSums(leaves, batch).each_gradient(theta), [len(theta)], axis=1)
    mapped = {"slope": slopes @ basis} | ({"bend": bends @ basis} if bent else {})
    moments: Any = released(stage, mapped, None, fit.source, True)
    public = BatchedLoss(template, analysis.form.space, batch)
    slope = certificate.size * public.regularizer_value_and_gradient(theta)[1] + certificate.added * theta
    curved = certificate.size * public.regularizer_hessian(theta).toarray() + certificate.added * np.eye(len(theta))
    gamma = 1.0 if certificate.is_gaussian else float(np.sqrt(certificate.noise_dimension + 1))
    around = basis.T @ slope, basis.T @ curved @ basis, certificate.noise_scale * gamma
    step, of_noise, of_records, reach_of_step, moved = newton_step(
        moments, basis, (steep / bent) ** 2 if bent else 0.0, *around
    )
    cover = certificate.cover
    if cover is not None:
        of_noise += (cover.step * cover.scale) ** 2 * (1.0 if cover.is_gaussian else 2.0)
    variances = of_noise + of_records
    # What is left out is of the order of the change of curvature along the step (docs/theory.md, section 22).
    rate = 4 * analysis.hessian_bound / slope_range(template, leaves, len(theta))
    turn = rate * float(np.linalg.norm(step))
    if rate / 2 * moved > BY_CHANCE:
        why = "noise, or chance, moves the fit so far that the curvature changes on the way"
        raise NotConverged(f"intervals: {why}. More records or a larger epsilon of the fit help; this one stands.")
    if turn / 2 * max(float((reach_of_step / np.sqrt(variances)).max()), 1.0) > FAR:
        why = "regularization, or noise, holds the fit too far from what minimises the expected loss; it stands"
        raise NotConverged(f"intervals: {why}. Another fit, with less of it (regularization=, size=), has them.")
    paid = fit.source.spending(privacy)
    paid["not_private_because"] = release.not_private_because or paid["not_private_because"]
    return Coefficients.around(analysis.form.space, theta + basis @ step, variances, of_noise, confidence, **paid)


def start_of(template: Template, release: Release) -> Array:
    """Return the released parameters of a free fit."""
    space, form = Space(template.variables), form_of(template)
    if not form.feasible.is_space:
        raise TemplateError("intervals: constraints bend the law of the answer; only free parameters have intervals.")
    if split_kinks(form.feasible, template.regularizer)[1]:
        raise TemplateError("intervals: the regularizer has kinks, at which the law of the answer has no density.")
    shapes = {name: np.shape(value) for name, value in release.parameters.items()}
    if shapes != {variable.name: variable.shape for variable in template.variables}:
        raise TemplateError("intervals: the release is no fit of the template, which has other parameters.")
    theta = space.pack(release.parameters)
    if not (np.abs(theta) < FARTHEST).all():
        raise TemplateError(f"intervals: parameters of the release are beyond {FARTHEST:g}.")
    return theta


def objective_of(release: Release) -> ObjectiveCertificate:
    """Return the certificate of a fit whose noise on the objective has a known law, about single records."""
    found = release.certificate
    if found is not None and found.privacy.unit is not None:
        raise TemplateError(f"intervals: a fit about people with several records ({found.privacy}) has none.")
    if not isinstance(found, ObjectiveCertificate) or found.whitening is not None or found.noise == "matrix":
        why = "they need a fit by noise on the objective, whose law says how far the gradient is from zero"
        options = "mechanism=dp.ObjectivePerturbation('gaussian'), whitening=False"
        raise TemplateError(f"intervals: {why}. Fit with {options}.")
    return found


def is_likelihood(template: Template, space: Space) -> bool:
    """Say whether the losses of all labels are minus the logarithms of probabilities, as at public points."""
    rng = np.random.default_rng(0)
    for scale in (0.3, 1.0, 3.0):
        batch, theta = template.record.sample(1, rng), scale * rng.normal(size=space.dim)
        known = {f: np.asarray(batch.fields[f.name][0]) for loss in template.losses for f in loss.fields}
        values = evaluations(template.losses, known | space.leaves(theta))
        if not abs(sum(np.exp(-values[loss][0]).sum() for loss in template.losses) - 1) < 1e-9:
            return False
    return True


def slope_range(template: Template, leaves: LeafForm, dim: int) -> float:
    """Return how far apart the gradients of one record are, at public points near and far."""
    rng = np.random.default_rng(0)
    engine = RecordSums(leaves, template.record.sample(SAMPLED, rng))
    points = [scale * rng.normal(size=dim) for scale in (0.1, 1.0, 10.0, 100.0, 1000.0) for _ in range(4)]
    found = np.stack([engine.each_gradient(point)[:, :dim] for point in points])
    return float(max(np.linalg.norm(found - one, axis=2).max() for one in found))


def newton_step(
    moments: Statistics, basis: Array, scale: float, slope: Array, curved: Array, deviation: float
) -> tuple[Array, Array, Array, Array, float]:
    """Return a step, in the basis, the variances of its end's coordinates, by noise and by records, and its size for each.

    The size bounds what a relative change of the Hessian does to a coordinate, by Cauchy and Schwarz.  Last comes the root mean
    square by which noise and sampling move scores, weighted with their curvature, over the length of records.
    `scale` is that of the second moment of gradients, 0 if it is the Hessian; `slope` and `curved` are those of what is public.
    """
    noisy, dim = moments.quadratic(), basis.shape[1]
    q, size = noisy.hessian.toarray(), moments.certificate.size
    hessian, spread = (q[:dim, :dim], q[dim:, dim:] * scale) if scale else (q, q)
    values, vectors = np.linalg.eigh(hessian)
    edge = noisy.edge(np.arange(dim))
    if not values[0] > edge:
        why = f"the least curvature is {values[0] / edge:.3g} times what noise alone makes, which has to be more than 1"
        raise NotConverged(f"intervals: {why}. More records, a larger epsilon or fewer features help; the fit stands.")
    # An eigenvalue that is kept is one whose noise came out large, if it is near the edge: it counts for no more than one
    # that noise lifts to where it is (docs/theory.md, section 22).
    lowered = (values + np.sqrt(values**2 - edge**2)) / 2
    inverse, lowest = (vectors / lowered) @ vectors.T, (vectors * lowered) @ vectors.T
    step, of_fit = inverse @ slope, deviation**2 * np.eye(dim)
    # Noise on the Hessian counts by how far the fit is from what it estimates: by the step, and by chance.
    near = np.linalg.inv(lowest + curved)
    around = near @ (of_fit + spread) @ near
    away_by_chance = float(np.sqrt(max(np.trace(hessian @ around), 0.0) / np.trace(hessian)))
    roots, axes = np.linalg.eigh(around)
    for away in [step, *(axes * np.sqrt(np.maximum(roots, 0.0))).T]:
        moved = noisy.gradient_map(np.append(away, np.zeros(len(q) - dim))).toarray()[:dim] * moments.deviation
        of_fit = of_fit + moved @ moved.T
    back = basis @ inverse
    of_noise, of_records = (np.einsum("ij,jk,ik->i", back, part, back) for part in (of_fit, spread))
    sized = np.sqrt(max(step @ hessian @ step, 0.0) * np.einsum("ij,ij->i", back, basis))
    return step, of_noise, np.maximum(of_records * size / max(size - dim, 1.0), 0.0), sized, away_by_chance
