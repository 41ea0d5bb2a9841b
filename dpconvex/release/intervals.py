"""Confidence intervals around a released fit: one private Newton step from it, and the sandwich (docs/theory.md, section 22)."""

from functools import lru_cache

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from dpconvex.calculus.analysis import Analysis
from dpconvex.core.arrays import Array
from dpconvex.core.record_domains import Ball
from dpconvex.core.parameter_space import Space
from dpconvex.core.plain_data import is_real
from dpconvex.errors import NotConverged, NotPrivate, TemplateError
from dpconvex.evaluation.engine import Engine
from dpconvex.evaluation.forms import form_of as leaves_of
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Record, in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit, released
from dpconvex.release.statistics import CLEAR, Coefficients, Statistics, names
from dpconvex.release.verify import Method, analyse, form_of

WEIGHT = 3.0  # Of the sum of gradients, beside both second moments


@lru_cache(maxsize=64)
def newton_template(dim: int, steep: float, bent: float) -> Template:
    """Return the learner whose statistics are a Newton step's: of gradients, and of what squares to the Hessian (0: gradients)."""
    step, spread = cp.Variable(dim, name="step"), cp.Variable(dim, name="spread")
    own = {"bend": Ball(dim, radius=bent)} if bent else {}

    def loss(slope: cp.Expression, bend: cp.Expression | None = None) -> cp.Expression:
        squares = cp.square(slope @ spread) / 2
        return squares + slope @ step + (cp.square(bend @ step) / 2 if bent else 0)

    return Template(record=Record(slope=Ball(dim, radius=steep), **own), loss=loss, regularizer=0 * cp.sum_squares(step))


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

    One Newton step from the released fit, of a private gradient and Hessian: without regularization, and wherever the fit came from
    (any mechanism, clipped, whitened).  Intervals are those of the sandwich, and of the noise, which is known.  They hold for many
    records (van der Vaart 1998, section 5.7, one-step estimators), near the fit, and where the noise on the Hessian is small next
    to it; else they are refused, after payment, by what was released.

    Parameters
    ----------
    template : Template
        The learner; its losses have bounded gradients.  Of losses of several scores, such as softmax, intervals are those of a
        model whose probabilities are right (the second moment of gradients stands for the Hessian).
    release : Release
        A fit of the template, which may come from anywhere else.
    privacy : Privacy
        Of the step, beside that of the fit.
    confidence : float
        Of each interval by itself.
    data, size, clip, budget, entry, seed
        As for `solve`.

    Returns
    -------
    Coefficients

    Raises
    ------
    NotConverged
        If no intervals hold.
    """
    if not (is_real(confidence) and 0 < confidence < 1):
        raise TemplateError(f"intervals: confidence must be a number between 0 and 1, not {confidence!r}.")
    check_privacy("intervals", privacy)
    space, start = Space(template.variables), start_of(template, release)
    statistics = step_statistics(template, start, data, privacy, size, clip, budget, entry, seed)
    return newton_step(statistics, space, start, confidence)


def start_of(template: Template, release: Release) -> Array:
    """Return the released parameters, those for records if they are for whitened ones."""
    space, form = Space(template.variables), form_of(template)
    if not form.feasible.is_space:
        raise TemplateError("intervals: constraints bend the law of the answer; only free parameters have intervals.")
    theta = space.pack(release.parameters)
    if release.whitening is not None:
        theta = release.whitening.unturned(form, theta)
    return theta


def step_statistics(
    template: Template,
    start: Array,
    data: object,
    privacy: Privacy,
    size: int | None,
    clip: bool,
    budget: Budget | None,
    entry: str,
    seed: int | None,
) -> Statistics:
    analysis: Analysis = analyse(template)
    leaves = leaves_of(template, analysis.form.space)
    bent = float(np.sqrt(analysis.hessian_bound)) if leaves.forms == 1 else 0.0
    if not np.isfinite(bent):
        raise NotPrivate("the loss has kinks, and no Hessian", template.losses[0], "smooth it")
    step = newton_template(analysis.form.space.dim, analysis.gradient_bound, bent)
    method = Method(SufficientStatistics("gamma" if privacy.pure else "gaussian", WEIGHT))
    fit = Fit(data, privacy, [step], method, None, size, clip, budget, entry, seed, record=template.record)
    in_one_place("intervals", fit.data, "pass arrays")
    proved = fit.proved_and_paid()
    batch = template.record.validate(fit.data, clip=clip, empty=fit.protected)
    found = Engine(leaves, batch).each_gradient(start)
    dim = len(start)
    mapped = {"slope": found[:, :dim]} | ({"bend": found[:, dim:]} if bent else {})
    sums = released(proved, mapped, None, fit.source, True)
    assert isinstance(sums, Statistics)
    return sums


def newton_step(statistics: Statistics, space: Space, start: Array, confidence: float) -> Coefficients:
    noisy, dim = statistics.quadratic(), len(start)
    q, size = noisy.hessian.toarray(), statistics.certificate.size
    spread = q[dim:, dim:]
    several = not q[:dim, :dim].any()
    hessian, places = (spread, np.arange(dim, 2 * dim)) if several else (q[:dim, :dim], np.arange(dim))
    values, vectors = np.linalg.eigh(hessian)
    edge = noisy.edge(places)
    if not values[0] > CLEAR * edge:
        why = f"the least curvature is {values[0]:.3g}, of which noise alone makes about {edge:.3g}"
        raise NotConverged(f"intervals: {why}. More records, a larger epsilon or fewer features help; the fit stands.")
    inverse = (vectors / values) @ vectors.T
    step = inverse @ noisy.slope[:dim]
    point = np.append(np.zeros(dim), step) if several else np.append(step, np.zeros(dim))
    moved = noisy.gradient_map(point).toarray() * statistics.deviation
    moved = (moved[:dim] + moved[dim:]) if several else moved[:dim]
    of_noise = inverse @ moved @ moved.T @ inverse
    of_records = inverse @ spread @ inverse * (size / max(size - dim, 1.0))
    total = np.diag(of_noise) + np.maximum(np.diag(of_records), 0.0)
    errors, reach = np.sqrt(total), float(norm.isf((1 - confidence) / 2))
    estimates = start + step
    return Coefficients(
        names=tuple(names(space)),
        estimates=estimates,
        standard_errors=errors,
        noise_errors=np.sqrt(np.diag(of_noise)),
        lower=estimates - reach * errors,
        upper=estimates + reach * errors,
        confidence=float(confidence),
        residual_deviation=float("nan"),
    )
