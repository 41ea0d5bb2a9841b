"""Curvature of a regularizer, where its answers are: what certificates of distance rest on.

A squared term has a curvature that is read off.  What is left is treated like a loss that no record enters, by the same rules,
over K or a ball that holds all answers.  The absolute values that a proximal map handles do not count.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import cvxpy as cp
import scipy.sparse as sp

from dpconvex.calculus.abstract_values import Kink
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.record_domains import Box
from dpconvex.core.remembered import once
from dpconvex.errors import MissingRule, NotPrivate, TemplateError
from dpconvex.geometry.absolute_values import split_absolute
from dpconvex.geometry.constraints import split
from dpconvex.geometry.quadratics import Bend, quadratic
from dpconvex.language.record import Record
from dpconvex.language.template import Template

__all__ = ["bend_of", "bends"]

_PARTS: WeakKeyDictionary[LossForm, tuple[float, tuple[Any, ...]]] = WeakKeyDictionary()


def bend_of(form: LossForm, radius: float) -> Bend:
    """Bound the curvature of a template's regularizer at all points of K up to a norm.

    Parameters
    ----------
    form : LossForm
    radius : float
        Rounded up to a power of two, so that few radii are looked at.
    """
    bounded = form.feasible.norm_bound
    radius = bounded if bounded <= radius else 2.0 ** math.ceil(math.log2(max(radius, 1e-100)))
    return found(form, radius)


def bends(form: LossForm) -> bool:
    """Whether a regularizer has terms besides squares, affine terms and absolute values that a proximal map handles."""
    return bool(parts(form)[1])


def parts(form: LossForm) -> tuple[float, tuple[Any, ...]]:
    """Return the largest absolute row sum of the Hessian of a regularizer's squares, and its other terms."""
    if form not in _PARTS:
        smooth, absolute = split_absolute(form.template.regularizer, form.space)
        if absolute is None or not form.feasible.bounds_only(absolute.weights > 0):
            smooth = form.template.regularizer
        hessian, rest = sp.csr_array((form.space.dim, form.space.dim)), []
        for factor, atom in split(smooth)[0]:
            if factor == 0:
                continue
            square = quadratic(factor * atom, form.space)
            if square is None:
                rest.append(factor * atom)
            else:
                hessian = hessian + square.hessian
        _PARTS[form] = float(abs(hessian).sum(axis=1).max()) if hessian.nnz else 0.0, tuple(rest)
    return _PARTS[form]


@once
def found(form: LossForm, radius: float) -> Bend:
    """Do the work of `bend_of`."""
    stiff, rest = parts(form)
    if not rest:
        return Bend(stiff, 0.0, math.inf)
    if not math.isfinite(radius):
        return Bend(stiff, math.inf, radius, "nothing bounds the answer")
    variables = form.template.variables
    everything = cp.hstack([cp.vec(variable, order="F") for variable in variables])
    near = list(form.constraints)
    if not form.feasible.norm_bound <= radius:
        near.append(cp.norm(everything, 2) <= radius)
    total: Any = reduce(lambda a, b: a + b, rest)
    try:
        alone = Template(Record(unused=Box(0.0, 1.0)), lambda unused: total, cp.sum_squares(everything), near)
        analysis = Analysis(LossForm(alone))
        kink: Kink | None = analysis.kink
        if kink is not None:
            return Bend(stiff, math.inf, radius, kink.reason)
        return Bend(stiff, analysis.hessian_bound, radius)
    except (NotPrivate, MissingRule, TemplateError) as error:
        return Bend(stiff, math.inf, radius, str(error).splitlines()[0])
