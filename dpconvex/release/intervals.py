"""Confidence intervals around a released fit: one private Newton step from it, and the sandwich (docs/theory.md, section 22)."""

from functools import lru_cache
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
from scipy.stats import norm

from dpconvex.calculus.moments import turned_parameters
from dpconvex.core.arrays import Array
from dpconvex.core.parameter_space import Space
from dpconvex.core.plain_data import is_real
from dpconvex.core.record_domains import Ball
from dpconvex.errors import NotConverged, NotPrivate, TemplateError
from dpconvex.evaluation.engine import Engine
from dpconvex.evaluation.forms import form_of as leaves_of
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Record, in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit, released
from dpconvex.release.statistics import Coefficients, Statistics, names
from dpconvex.release.verify import Method, analyse, form_of
from dpconvex.release.whitening import typical_length

WEIGHT = 1.5  # Of the sum of gradients, beside both second moments
FARTHEST = 1e100  # Scores of fits beyond this may overflow
CLEAR = 1.0  # The Hessian's least eigenvalue is above that of noise, times this
FIRST = 0.3  # Share of the first of two steps, which brings the second near enough


@lru_cache(maxsize=64)
def newton_template(dim: int, steep: float, bent: float) -> Template:
    """Return the learner whose statistics are those of a Newton step, and of a sandwich, which is as long as the Hessian."""
    step, spread = cp.Variable(dim, name="step"), cp.Variable(dim, name="spread")
    own = {"bend": Ball(dim, radius=bent)} if bent else {}

    def loss(slope: cp.Expression, bend: cp.Expression | None = None) -> cp.Expression:
        squares = cp.square(slope @ spread) * ((bent / steep) ** 2 if bent else 1) / 2
        return squares + slope @ step + (cp.square(bend @ step) / 2 if bent else 0)

    return Template(
        record=Record(slope=Ball(dim, radius=steep), **own), loss=loss, regularizer=0 * cp.sum_squares(step)
    )


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
    """Estimate the parameters that minimise the expected loss, with intervals for sampling and noise; this is paid for.

    Two Newton steps from the released fit, of private gradients and Hessians: they take off what regularization and noise did,
    of any mechanism that ends at the ERM solution, whitened or not.  Intervals are those of the sandwich, and of the noise, whose
    law is known (docs/theory.md, section 22).  They hold for many records, and where the Hessian stands out of its noise;
    else they are refused, after payment, by what was released.

    Parameters
    ----------
    template : Template
        The learner; its losses have bounded gradients.  Of losses of several scores, such as softmax, intervals are those of a
        model whose probabilities are right (the second moment of gradients stands for the Hessian).
    release : Release
        A fit of the template; one of clipped gradient steps is refused, which may end far from the ERM solution.
    privacy : Privacy
        Of the step, beside that of the fit.
    confidence : float
        Of each interval by itself.
    data, size, clip, budget, entry, seed
        As for `solve`.

    Raises
    ------
    NotConverged
        If no intervals hold; the fit stands.

    Examples
    --------
    >>> import dpconvex as dp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.7, 0.7, (20_000, 2))
    >>> data = {"x": X, "y": np.where(X[:, 0] + 0.5 * rng.logistic(size=20_000) > 0, 1, -1)}
    >>> learner, privacy = dp.load("logistic_regression", features=2), dp.Privacy(1.0, 1e-6)
    >>> fit = dp.solve(learner, data, privacy, seed=1)
    >>> found = dp.intervals(learner, fit, data, privacy, seed=2)
    >>> (found.lower < [2.0, 0.0]).all() and (found.upper > [2.0, 0.0]).all()  # what is true here
    np.True_
    """
    if not (is_real(confidence) and 0 < confidence < 1):
        raise TemplateError(f"intervals: confidence must be a number between 0 and 1, not {confidence!r}.")
    check_privacy("intervals", privacy)
    start, analysis = start_of(template, release), analyse(template)
    leaves, basis = leaves_of(template, analysis.form.space), analysis.form.basis.toarray()
    steep, bent = analysis.gradient_bound, np.sqrt(analysis.hessian_bound) if leaves.forms == 1 else 0.0
    if analysis.kink is not None or not np.isfinite(bent):
        raise NotPrivate("the loss has kinks, and no Hessian", template.losses[0], "smooth it")
    tuple(names(analysis.form.space))  # refuses what has none
    method = Method(SufficientStatistics("gamma" if privacy.pure else "gaussian", WEIGHT))
    step = newton_template(basis.shape[1], float(steep), float(bent))
    fit = Fit(data, privacy, [step], method, None, size, clip, budget, entry, seed, record=template.record)
    in_one_place("intervals", fit.data, "pass arrays")
    part = privacy.part(FIRST * privacy.epsilon, FIRST * privacy.delta)
    stages = [method.prove(step, share, fit.size) for share in (part, privacy.minus(part))]
    fit.check(*stages)
    fit.pay()
    engine = Engine(leaves, template.record.validate(fit.data, clip=clip, empty=fit.protected))
    for stage in stages:
        slopes, bends = np.split(engine.each_gradient(start), [len(start)], axis=1)
        mapped = {"slope": slopes @ basis} | ({"bend": bends @ basis} if bent else {})
        sums: Any = released(stage, mapped, None, fit.source, True)
        found = newton_step(sums, basis, (steep / bent) ** 2 if bent else 0.0)
        if stage is stages[0]:
            start = start + basis @ found.step
    if not found.clear > CLEAR:
        why = f"the least curvature is {found.clear:.3g} times what noise alone makes, which has to be more than {CLEAR:g}"
        raise NotConverged(f"intervals: {why}. More records, a larger epsilon or fewer features help; the fit stands.")
    estimates, errors = start + basis @ found.step, np.sqrt(found.of_noise + found.of_records)
    reach = errors * float(norm.isf((1 - confidence) / 2))
    return Coefficients(
        names=tuple(names(analysis.form.space)),
        estimates=estimates,
        standard_errors=errors,
        noise_errors=np.sqrt(found.of_noise),
        lower=estimates - reach,
        upper=estimates + reach,
        confidence=float(confidence),
        residual_deviation=None,
        spent=privacy if seed is None else None,
    )


def start_of(template: Template, release: Release) -> Array:
    """Return the released parameters, those for records if they are for whitened ones."""
    space, form = Space(template.variables), form_of(template)
    if not form.feasible.is_space:
        raise TemplateError("intervals: constraints bend the law of the answer; only free parameters have intervals.")
    shapes = {name: np.shape(value) for name, value in release.parameters.items()}
    if shapes != {variable.name: variable.shape for variable in template.variables}:
        raise TemplateError(
            "intervals: the release has other parameters than the template, of which it should be a fit."
        )
    theta = space.pack(release.parameters)
    if not (np.abs(theta) < FARTHEST).all():
        raise TemplateError(f"intervals: parameters of the release are beyond {FARTHEST:g}.")
    whitening, certificate = release.whitening, release.certificate
    if isinstance(certificate, Certificate) and not certificate.minimises:
        why = "clipped gradient steps may end far from the ERM solution, where two Newton steps do not lead to it"
        raise TemplateError(f"intervals: {why}. Fit with mechanism=dp.ObjectivePerturbation('gaussian').")
    if whitening is None or not isinstance(certificate, Certificate) or certificate.whitening is None:
        return theta
    typical = typical_length(whitening.matrix, certificate.whitening.sigma, certificate.size)
    return np.asarray(turned_parameters(form, whitening.field, whitening.matrix / typical) @ theta)


class Step(NamedTuple):
    """A Newton step, in the basis, the variances of coordinates, and the least curvature over what noise alone makes."""

    step: Array
    of_noise: Array
    of_records: Array
    clear: float


def newton_step(statistics: Statistics, basis: Array, scale: float) -> Step:
    """Return what the statistics of a step say; `scale` is that of the second moment of gradients, 0 if it is the Hessian."""
    noisy, dim = statistics.quadratic(), basis.shape[1]
    q, size = noisy.hessian.toarray(), statistics.certificate.size
    spread = q[dim:, dim:] * (scale or 1.0)
    hessian, places = (q[:dim, :dim], np.arange(dim)) if scale else (spread, np.arange(dim, 2 * dim))
    values, vectors = np.linalg.eigh(hessian)
    edge = noisy.edge(places)
    inverse = (vectors / np.maximum(values, CLEAR * edge)) @ vectors.T
    step = inverse @ noisy.slope[:dim]
    step /= max(float(np.sqrt(max(step @ hessian @ step, 0.0) / size)), 1.0)  # no farther than where the model is one
    both = (
        noisy.gradient_map(np.concatenate([step * (scale > 0), step * (scale == 0)])).toarray() * statistics.deviation
    )
    back = basis @ inverse
    moved = back @ (both[:dim] if scale else both[:dim] + both[dim:])
    of_records = np.einsum("ij,ij->i", back @ spread, back) * size / max(size - dim, 1.0)
    return Step(step, np.einsum("ij,ij->i", moved, moved), np.maximum(of_records, 0.0), float(values[0] / edge))
