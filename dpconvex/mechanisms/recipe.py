"""The recipe: whether to whiten records, and what fits them then, from public sizes.

Clipped steps on whitened records learn more from few records for each parameter than any exact minimiser does; with many, the two
do the same.  Where between lies is measured, not proved (docs/choosing.md): with mu the level of the Gaussian mechanism for the
promise, n records and p free parameters, exact minimisers are worth choosing where ``n mu / p`` is above about 300.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.record_domains import Ball
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.geometry.quadratics import quadratic
from dpconvex.language.privacy import Privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.automatic import Automatic
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.gradient_descent import NoisyGradientDescent
from dpconvex.mechanisms.private_whitening import MOST_FEATURES, PrivateWhitening, level

__all__ = ["Whitened", "clipped_steps", "prepared", "worth_whitening"]

Whitened = PrivateWhitening | bool | Literal["auto"] | None

# From this many records on, for each parameter and unit of the Gaussian mechanism's level, minimisers are exact enough.
ENOUGH = 300.0
# The clip, as a part of the gradient bound: gradients are long at the start, and at the end for few records only.
PART = 0.25


def prepared(
    whitening: Whitened, mechanism: Mechanism | None, analysed: Callable[[], Analysis], privacy: Privacy, size: int
) -> tuple[Mechanism, PrivateWhitening | None]:
    """Return what is meant by the options `whitening` and `mechanism`; no data are needed, so the choice costs nothing."""
    usual = mechanism if mechanism is not None else Automatic()
    if whitening is None or whitening is False:
        return usual, None
    if isinstance(whitening, PrivateWhitening):
        return usual, whitening
    if whitening is not True and not (isinstance(whitening, str) and whitening == "auto"):
        raise TemplateError(f'whitening must be a PrivateWhitening, True, False, None or "auto", not {whitening!r}.')
    if whitening is not True and (privacy.pure or not worth_whitening(analysed(), privacy, size)):
        return usual, None
    if mechanism is not None:
        return mechanism, PrivateWhitening()
    steps = clipped_steps(analysed())
    if whitening is not True:
        try:
            steps.certify(analysed(), privacy, size)
        except (NotPrivate, TemplateError):  # what is proved without the recipe is not refused with it
            return usual, None
    return steps, PrivateWhitening()


def worth_whitening(analysis: Analysis, privacy: Privacy, size: int) -> bool:
    """Say whether there are few records for each parameter, and scores of classes that are linear in a ball of records.

    Parameters are free, for what constrains them speaks of original features.  Whitened records are all of one length, which
    classes can do without, and targets cannot.
    """
    form, record = analysis.form, analysis.form.template.record
    balls = [domain for domain in record.continuous.values() if isinstance(domain, Ball) and domain.norm == 2]
    if not record.discrete or len(record.continuous) != 1 or len(balls) != 1 or balls[0].dim > MOST_FEATURES:
        return False
    if analysis.unbounded is not None or analysis.kink is not None or not turns_freely(form):
        return False
    scores = (form.polynomial(leaf).part(with_theta=True) for group in form.leaves for leaf in group)
    linear = all(((score.monomial >= 0).sum(axis=1) == 1).all() for score in scores)
    if not linear or not predicts_alike(form.template, int(balls[0].dim)):
        return False
    return size * level(privacy.epsilon, privacy.delta) < ENOUGH * form.noise_dimension


def turns_freely(form: LossForm) -> bool:
    """Say whether parameters are free, and regularized by their length alone: other wishes are about original features."""
    found = quadratic(form.template.regularizer, form.space)
    if not form.feasible.is_space or found is None or found.slope.any():
        return False
    diagonal = found.hessian.diagonal()
    return bool((diagonal == diagonal[0]).all()) and not (found.hessian - sp.diags_array(diagonal)).count_nonzero()


def predicts_alike(template: Template, dim: int) -> bool:
    """Say whether what predicts is linear in records too, and maps none of them first: it gets whitened ones."""
    parameters = {variable.name: np.ones(variable.shape) for variable in template.variables}
    records = np.linspace(-1.0, 1.0, 3 * dim).reshape(3, dim)
    if template.decision is None:
        return False
    try:
        once, twice = (np.asarray(template.decision(parameters, k * records)) for k in (1.0, 2.0))
    except (DPConvexError, TypeError, ValueError, LookupError, ArithmeticError):
        return False
    return once.shape == twice.shape and bool(np.allclose(twice, 2 * once))


def clipped_steps(analysis: Analysis) -> NoisyGradientDescent:
    """Return gradient descent with the clip that needs no tuning."""
    return NoisyGradientDescent(clip=PART * analysis.gradient_bound)
