"""Confidence intervals by a noisy Newton step and a sandwich covariance with the noise (docs/theory.md, section 22)."""

import math

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpconvex.accounting.budget import Budget
from dpconvex.errors import NotConverged, NotPrivate, TemplateError, warn
from dpconvex.expressions.discipline import is_convex
from dpconvex.fitting.adaptive import estimate_with_covariance, fewest_records
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob, checked_batch
from dpconvex.fitting.statistics import Coefficients, coefficient_names
from dpconvex.fitting.verify import FitOptions, analyse, read_form
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps
from dpconvex.mechanisms.plans import nonsmooth_parts
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.optim.newton_step import NewtonPoint
from dpconvex.optim.noisy_quadratic import minimise_by_cone
from dpconvex.optim.row_metrics import in_natural_units
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.util.arguments import FRACTION, instance, require
from dpconvex.util.arrays import Array

MOST = 300  # Largest number of parameters with intervals
# Multiple of the fewest records, below which there is a warning. At 6 times, .24 of calls raised with a rare level, and .14 with
# collinear features; at 16 times .01 and none (docs/intervals.md). Counts in natural units: 1 of 12 at 18 times, none at 60.
ENOUGH = 20
ACTIVE = "If a constraint moves parameters by more than their error, no interval holds."
DOUBT = "Intervals may be undetermined, or fail after the charge."
OUTSIDE, ROUNDING = 3.0, 1e-6  # Standard errors by which estimates may lie outside of K; relative error of a projection


def intervals(
    template: Template,
    release: Release | None,
    data: object,
    privacy: Privacy,
    confidence: float = 0.95,
    *,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    entry: str = "intervals",
    seed: int | None = None,
    unit: ArrayLike | None = None,
) -> Coefficients:
    """Estimate parameters with confidence intervals for sampling and noise, at a privacy cost of its own.

    A noisy gradient and a noisy Hessian, at a release or at the end of adaptive steps that are part of the cost, give an
    estimate with a known distribution. The estimate is of the minimiser of the expected loss, without regularizer and
    constraints. Intervals are those of the sandwich estimator plus the noise (docs/theory.md, section 22). The model need not
    be right, unless few records decide about it (docs/intervals.md has measured coverage). If noise hides the curvature along
    some parameters, their numbers are NaN, and `undetermined` names them.

    Parameters
    ----------
    template : Template
        The learner; its losses are convex and have second derivatives.
    release : Release or None
        A fit of the template, by any mechanism, that was paid for.  Pass None to spend all of `privacy` in one call.
    privacy : Privacy
        Guarantee of the intervals, in addition to the fit's.  It needs a delta.
    confidence : float
        Confidence of each interval separately.
    data, size, clip, budget, entry, seed, unit
        As for `solve`.

    Raises
    ------
    NotConverged
        If no intervals hold.  If public sizes show this, nothing is spent; if they leave a doubt, a `PrivacyWarning` precedes
        the charge.  The fit stays valid.

    Examples
    --------
    >>> import dpconvex as dp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.7, 0.7, (20_000, 2))
    >>> data = {"x": X, "y": np.where(X[:, 0] + 0.5 * rng.logistic(size=20_000) > 0, 1, -1)}
    >>> learner, privacy = dp.load("logistic_regression", features=2), dp.Privacy(1.0, 1e-6)
    >>> found = dp.intervals(learner, None, data, privacy, seed=2)
    >>> (found.lower < [2.0, 0.0]).all() and (found.upper > [2.0, 0.0]).all()  # what is true here
    np.True_
    """
    FRACTION.check("intervals", confidence=confidence)
    check_privacy("intervals", privacy, units=True)
    if privacy.pure:
        raise NotPrivate("intervals: Gaussian noise needs a delta", "delta = 0", "pass dp.Privacy(epsilon, 1e-6)")
    instance(Release, "such as model.release_, or None").or_none.check("intervals", release=release)
    options = FitOptions(AdaptiveSteps(), None, None, size, clip, budget, entry, seed, unit=unit, units=True)
    job = FitJob(data, privacy, [template], options, release=release)
    learner = job.templates[0]
    form = read_form(learner, False)  # terms that no record enters are part of the expected loss
    check_loss(form)
    if release is not None:
        shapes = {name: np.shape(value) for name, value in release.parameters.items()}
        same = shapes == {variable.name: variable.shape for variable in learner.variables}
        require(same, "intervals: the release has other parameters than this template.")
        release.check_data("intervals", job.data)
    found = options.prove(learner, privacy, job.size)
    far = ", ".join(map(repr, in_natural_units(learner.record)))
    units = f" Other units may help: scale {far} to -1 to 1 by public bounds, before the fit." if far else ""
    fewest = fewest_records(form, found.certificate, release is None)
    if job.size < fewest:
        why = f"at {privacy} these parameters need at least {fewest:,} records, but there are {job.size:,}"
        raise NotConverged(f"intervals: {why}; nothing was spent. A larger epsilon or fewer features help.")
    enough = fewest * ENOUGH
    if job.size < enough:
        why = f"at {privacy} {job.size:,} records may be too few: with rare levels, about {enough:,} are needed"
        warn(f"intervals: {why}. {DOUBT} A larger epsilon helps.{units}")
    region = form.feasible.region
    if release is None and (region.blocks or region.curved):
        warn(f"intervals: {ACTIVE} {DOUBT} Leave it out, or pass a release that shows whether it is active.")
    elif touches(form, form.identified[1] if release is None else form.space.pack(release.parameters)):
        where = "" if release is None else " at the release"
        warn(f"intervals: a constraint is active{where}. {ACTIVE} {DOUBT} Leave it out.")
    job.check(found)
    job.pay(found.certificate.event)
    with job.told():
        batch = checked_batch(found, job.data, clip, job.people)
        people = None if job.people is None else job.people.of
        start = None if release is None else release.parameters
        try:
            estimate = estimate_with_covariance(form, found.certificate, batch, job.source, people, start)
        except NotConverged as error:
            raise NotConverged(f"{error}{units}") from error
    check_inside(form, estimate)
    theta, both = np.where(estimate.hidden, np.nan, estimate.theta), estimate.of_noise + estimate.of_records
    stated = {"ratio": template.ratio} | job.stated(privacy)
    return Coefficients.around(form.space, theta, both, estimate.of_noise, confidence, **stated)


def check_loss(form: LossForm) -> None:
    """Raise for losses without a known Hessian, too many parameters, and parameters that no record enters."""
    tuple(coefficient_names(form.space))  # raises for symmetric matrices
    bare = any(node.variables and not hidden for node, hidden in nonsmooth_parts(form).items())
    said = "intervals: the loss must be convex with a bounded second derivative; smooth it"
    try:
        kinks = bare and analyse(form.template).kink is not None
    except NotPrivate as error:  # unbounded slopes, which fits with clipped steps may have
        raise TemplateError(f"{said}. {error.expression} has no bound on its slope; cvxpy.huber has one.") from error
    require(not kinks and all(map(is_convex, form.losses)), f"{said}.")
    require(form.space.dim <= MOST, f"intervals: at most {MOST} parameters have intervals, not {form.space.dim:,}.")
    if not (abs(form.basis).sum(axis=1) > 0).all():
        raise TemplateError("intervals: no record enters one of the parameters; leave it out.")


def touches(form: LossForm, theta: Array) -> bool:
    """Return whether a point lies on the boundary of K; equations along directions that no loss depends on do not count."""
    reach = math.sqrt(ROUNDING) * (1 + float(np.linalg.norm(theta)))
    moves = reach * np.hstack([form.identified[0], -form.identified[0]]).T
    return any(np.linalg.norm(form.feasible.project(theta + move) - theta - move) > ROUNDING * reach for move in moves)


def check_inside(form: LossForm, estimate: NewtonPoint) -> None:
    """Raise `NotConverged` if estimates lie outside of K by more than their error, because a constraint is active.

    The distance is the smallest in the metric of their covariance; directions that no loss depends on are free.
    """
    if form.feasible.is_space:
        return
    seen, covariance = form.basis.toarray(), estimate.of_records + estimate.of_noise
    metric = seen @ np.linalg.pinv(seen.T @ covariance @ seen, hermitian=True) @ seen.T
    away = minimise_by_cone(form, sp.csr_array(metric), metric @ estimate.theta, 0.0) - estimate.theta
    if away @ metric @ away > OUTSIDE**2:
        raise NotConverged("intervals: a constraint is active, and moves parameters by more than their error.")
