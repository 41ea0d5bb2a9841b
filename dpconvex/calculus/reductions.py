"""Rules for atoms that combine many entries: log-sum-exp, maxima, norms, quadratics, divergences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.lambda_max import lambda_max
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.quad_form import QuadForm, SymbolicQuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.atoms.sigma_max import sigma_max

from dpconvex.calculus.abstract_values import Kink, Piece, Scalar, Term, hull_of
from dpconvex.calculus.bilinear_forms import EPSILON, Interval
from dpconvex.calculus.elementwise import CALCULUS, NO_SMOOTHNESS, absolute_value, bounded, largest, positive
from dpconvex.calculus.gram import ROUNDING
from dpconvex.calculus.interpreter import Entries, outer_rule
from dpconvex.errors import MissingRule, NotPrivate

__all__: list[str] = []

SPECTRAL_REMEDY = f"use cp.sum_squares of the matrix on bounded parameters, or a trace; {NO_SMOOTHNESS}"
INFINITE = float("inf")
ONE = Interval(1.0, 1.0)


def along_axis(expression: Any, entries: Entries) -> list[Entries]:
    """Group the entries of the first argument as the atom's axis says, in column order of the result."""
    axis = getattr(expression, "axis", None)
    if axis is None:
        return [list(entries)]
    numbers = np.arange(len(entries)).reshape(expression.args[0].shape, order="F")
    lines = np.moveaxis(numbers, axis, -1)
    flat = lines.reshape(-1, lines.shape[-1], order="F")
    return [[entries[k] for k in line] for line in flat]


@outer_rule(
    cp.log_sum_exp,
    name="log-sum-exp",
    statement="gradient a convex combination of the arguments' (so bounded by the largest, not the root sum of squares); "
    "Hessian their covariance under softmax weights, plus the arguments' own",
    source="Boyd & Vandenberghe, Convex Optimization, section 3.1.5; Popoviciu's inequality for the eigenvalues",
)
def log_sum_exp(expression: Any, arguments: list[Entries]) -> Entries:
    """Softmax weights p: gradient ``sum p_j g_j``, Hessian ``Cov_p(g) + sum p_j H_j``."""
    result = []
    for group in along_axis(expression, arguments[0]):
        hull = hull_of(group)
        pieces = tuple(piece for entry in group for piece in entry.pieces)
        kink = next((entry.kink for entry in group if entry.kink), None)
        spread = (Piece((hull,), 0.0, 1.0),) if len(hull.rows) > 1 else ()
        low = float(np.logaddexp.reduce([entry.value.low for entry in group]))
        high = float(np.logaddexp.reduce([entry.value.high for entry in group]))
        sizes = [abs(end) for entry in group for end in (entry.value.low, entry.value.high) if np.isfinite(end)]
        value = Interval(low, high).rounded(len(group) * max([1.0, *sizes]))
        result.append(Scalar(value, (hull,), spread + pieces, 1, kink))
    return result


@outer_rule(
    cp.max,
    name="max",
    statement="largest entry: gradient a convex combination of the entries'; not differentiable",
    source=CALCULUS,
)
def maximum_entry(expression: Any, arguments: list[Entries]) -> Entries:
    """As the elementwise maximum."""
    return [largest(expression, group) for group in along_axis(expression, arguments[0])]


@outer_rule(cp.norm1, name="norm1", statement="sum of |m_j|: rules of abs and sum", source=CALCULUS)
def norm1(expression: Any, arguments: list[Entries]) -> Entries:
    """Add up absolute values."""
    kink = Kink(
        "the 1-norm is not differentiable where an entry is 0",
        expression,
        f"cp.sum(cp.huber(m, M)) rounds the corners off; {NO_SMOOTHNESS}",
    )
    result = []
    for group in along_axis(expression, arguments[0]):
        total = absolute_value(expression, group[0], kink)
        for entry in group[1:]:
            total = total + absolute_value(expression, entry, kink)
        result.append(total)
    return result


@outer_rule(
    cp.norm_inf,
    name="norm_inf",
    statement="largest |m_j|: gradient a convex combination of the signed entries'",
    source=CALCULUS,
)
def norm_inf(expression: Any, arguments: list[Entries]) -> Entries:
    """The maximum over the entries' absolute values: concave entries, which CVXPY allows below zero, change sign too."""
    kink = Kink(
        "the infinity norm is not differentiable at 0, nor where two entries tie in size",
        expression,
        f"cp.log_sum_exp(cp.hstack([m, -m])) is a smooth substitute; {NO_SMOOTHNESS}",
    )
    result = []
    for group in along_axis(expression, arguments[0]):
        sizes = [absolute_value(expression, entry, kink) for entry in group]
        result.append(largest(expression, sizes).with_value(absolute_range(group)))
    return result


def absolute_range(group: Entries) -> Interval:
    """Bound the largest absolute value of several entries."""
    sizes = [max(abs(entry.value.low), abs(entry.value.high)) for entry in group]
    least = [max(entry.value.low, -entry.value.high, 0.0) for entry in group]
    return Interval(max(least), max(sizes))


@outer_rule(
    Pnorm,
    PnormApprox,
    name="p-norm",
    statement="gradient sum u_j g_j with ||u||_2 <= 1 (p >= 2) or <= k^(1/p - 1/2) (p < 2); not differentiable at 0",
    source=CALCULUS,
)
def p_norm(expression: Any, arguments: list[Entries]) -> Entries:
    """Away from zero the Euclidean norm has curvature 1/norm; at zero it has a kink."""
    order = float(expression.original_p)
    if order < 1:
        raise MissingRule("p-norms have a rule for p >= 1", None, "use another norm")
    result = []
    for group in along_axis(expression, arguments[0]):
        rows = affine_rows(group, "a norm")
        size = 1.0 if order >= 2 else len(group) ** (1.0 / order - 0.5)
        least = float(np.linalg.norm([max(e.value.low, -e.value.high, 0.0) for e in group], ord=order))
        most = float(np.linalg.norm([max(abs(e.value.low), abs(e.value.high)) for e in group], ord=order))
        value = Interval(least, most).rounded(count=8 + len(group))
        least = value.low
        term = Term(size * rows, True, scaled_mass(group, size))
        if order == 2 and least > 0:
            pieces = tuple(Piece((Term(row[None, :]),), 1.0 / least) for row in rows)
            result.append(Scalar(value, (term,), pieces))
        else:
            reason = (
                "the Euclidean norm is not differentiable where its argument vanishes"
                if order == 2
                else f"no curvature bound is known for the p-norm with p = {order:g}"
            )
            remedy = "cp.norm(cp.hstack([m, 0.1])) rounds the corner off; cp.sum_squares needs bounded parameters"
            kink = Kink(reason, expression, f"{remedy}; {NO_SMOOTHNESS}")
            result.append(Scalar(value, (term,), (), 1, kink))
    return result


def scaled_mass(group: Entries, factor: float) -> np.ndarray | None:
    """Return the mass of a ball whose axes are the rows of affine entries, if some are sums; see `Term`."""
    masses = [term.masses[0] for entry in group for term in entry.terms]
    return factor * np.max(masses, axis=0) if any(t.mass is not None for e in group for t in e.terms) else None


def affine_rows(group: Entries, what: str) -> np.ndarray:
    """Return the rows of affine entries, shape (k, generators), or refuse."""
    width = max((entry.terms[0].rows.shape[1] for entry in group if entry.terms), default=0)
    rows = []
    for entry in group:
        if not entry.is_affine or len(entry.terms) > 1 or (entry.terms and len(entry.terms[0].rows) != 1):
            raise MissingRule(
                f"{what} of terms that are not affine in the parameters has no rule", None, "expand the composition"
            )
        rows.append(entry.terms[0].rows[0] if entry.terms else np.zeros(width))
    return np.stack(rows)


@outer_rule(
    quad_over_lin,
    name="quad_over_lin",
    statement="||m||^2 / y on bounded m and y >= l > 0; with constant y (sum_squares): gradient 2 sum m_j g_j / y, "
    "Hessian (2/y) sum g_j g_j'",
    source=CALCULUS,
)
def quadratic_over_linear(expression: Any, arguments: list[Entries]) -> Entries:
    """With varying y the Hessian is ``(2/y) sum_j v_j v_j'``, ``v_j = g_j - (m_j/y) g_y``, less ``||m||^2/y^2`` times y's."""
    (divisor,) = arguments[1]
    low = positive(divisor, "quad_over_lin", "divisor")
    result = []
    for group in along_axis(expression, arguments[0]):
        ranges = [bounded(entry, "a square") for entry in group]
        if any(not e.is_affine and (e.value.low if e.sign > 0 else -e.value.high) < 0 for e in group):
            raise MissingRule("the square of a curved term that can change its sign", None, "square affine expressions")
        sizes = np.array([max(abs(r.low), abs(r.high)) for r in ranges])
        least = sum(max(r.low, -r.high, 0.0) ** 2 for r in ranges)
        value = Interval(least / divisor.value.high, float((sizes**2).sum()) / low)
        value = ranges[0].power(2) if len(group) == 1 and divisor.value == ONE else value.rounded(count=8 + len(group))
        if len(group) == 1:
            slope = Interval(
                2 * min(ranges[0].low / low, ranges[0].low / divisor.value.high),
                2 * max(ranges[0].high / low, ranges[0].high / divisor.value.high),
            )
            terms = tuple(term.scaled(slope) for term in group[0].terms)
        else:
            steepest = 2 * float(np.linalg.norm(sizes)) / low
            terms = (Term(affine_rows(group, "a sum of squares") * steepest, True, scaled_mass(group, steepest)),)
        pieces = []
        for entry, interval in zip(group, ranges, strict=True):
            ratio = Interval(-interval.high, -interval.low) * Interval(1 / divisor.value.high, 1 / low)
            extra = tuple(term.scaled(ratio) for term in divisor.terms)
            pieces.append(Piece(entry.terms + extra, 2.0 / low))
            pieces.extend(piece.scaled(2 * max(abs(interval.low), abs(interval.high)) / low) for piece in entry.pieces)
        if divisor.terms:
            bound = Interval(-value.high / low, -value.low / divisor.value.high)
            terms = terms + tuple(term.scaled(bound) for term in divisor.terms)
            pieces.extend(piece.scaled(value.high / low) for piece in divisor.pieces)
        kink = next((entry.kink for entry in (*group, divisor) if entry.kink), None)
        result.append(Scalar(value, terms, tuple(pieces), 1, kink))
    return result


@outer_rule(
    QuadForm,
    SymbolicQuadForm,
    name="quad_form",
    statement="m' P m with constant P >= 0: the sum of squares of P^(1/2) m",
    source=CALCULUS,
)
def quadratic_form(expression: Any, arguments: list[Entries]) -> Entries:
    """Rows are combined by a square root of P; ranges by interval arithmetic."""
    if expression.args[1].parameters():
        raise MissingRule("the matrix of a quadratic form depends on the record", None, "write it as a sum of squares")
    value = expression.args[1].value
    matrix = np.asarray(value.toarray() if sp.issparse(value) else value, dtype=float)
    matrix = (matrix + matrix.T) / 2
    diagonal = np.diag(matrix)
    exact = np.array_equal(matrix, np.diag(diagonal))
    values, vectors = (diagonal, np.eye(len(matrix))) if exact else np.linalg.eigh(matrix)
    # Eigenvalues are computed but for this; those of a diagonal matrix are there to be read.
    error = 0.0 if exact else 8 * len(matrix) * EPSILON * float(np.abs(values).max())
    if values.min() < -error:
        raise NotPrivate("the matrix of a quadratic form is not positive semidefinite", None, "use a convex quadratic")
    factor = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    combined = []
    for row in factor[values > 0]:
        total = Scalar(Interval(0.0, 0.0))
        rows = affine_rows(arguments[0], "a quadratic form")
        for weight, entry in zip(row, arguments[0], strict=True):
            total = total + Scalar(entry.value).scaled(Interval(float(weight), float(weight)))
        mass = np.abs(row) @ np.abs(rows)
        combined.append(Scalar(total.value, (Term((row @ rows)[None, :], mass=mass),)))
    if not combined:
        return [Scalar(Interval(0.0, 0.0))]
    (result,) = quadratic_over_linear(_Whole(), [combined, [Scalar(ONE)]])
    # What the square root misses of P moves the gradient by so much; it goes with what terms are sums of (see `Term`).
    rows, reach = affine_rows(arguments[0], "a quadratic form"), [entry.value.size for entry in arguments[0]]
    missed = 2 * (error / ROUNDING) * float(np.linalg.norm(reach)) * np.linalg.norm(rows, axis=0)
    terms = (
        tuple(replace(term, mass=term.masses.max(axis=0) + missed) for term in result.terms) if error else result.terms
    )
    return [replace(result, terms=terms)]


class _Whole:
    """Stands for an atom over all entries."""

    axis = None


@outer_rule(
    cp.kl_div,
    cp.rel_entr,
    name="relative entropy",
    statement="m log(m/y) on positive bounded m, y: Hessian (1/m) v v' with v = g_m - (m/y) g_y",
    source="Boyd & Vandenberghe, Convex Optimization, example 3.19",
)
def relative_entropy(expression: Any, arguments: list[Entries]) -> Entries:
    """`kl_div` subtracts m and adds y; the Hessian is the same, the square of ``g_m/sqrt(m) - (sqrt(m)/y) g_y``."""
    shift = 1.0 if isinstance(expression, cp.kl_div) else 0.0
    result = []
    for k in range(expression.size):
        m, y = (entries[k if len(entries) > 1 else 0] for entries in arguments)
        low_m, low_y = positive(m, "relative entropy"), positive(y, "relative entropy")
        high_m, high_y = bounded(m, "relative entropy").high, bounded(y, "relative entropy").high
        ratio = Interval(low_m / high_y, high_m / low_y)
        slope_m = Interval(float(np.log(ratio.low)) + 1 - shift, float(np.log(ratio.high)) + 1 - shift).rounded(1.0)
        slope_y = Interval(shift - ratio.high, shift - ratio.low).rounded(1.0 + ratio.high)
        corners = [a * np.log(a / b) - shift * (a - b) for a in (low_m, high_m) for b in (low_y, high_y)]
        least = 0.0 if shift else float(min(*corners, -high_y * np.exp(-1.0)))
        terms = tuple(t.scaled(slope_m) for t in m.terms) + tuple(t.scaled(slope_y) for t in y.terms)
        if not (m.is_affine and y.is_affine):
            raise MissingRule("relative entropy has a rule for affine arguments", None, "expand the composition")
        if not y.terms:
            piece = Piece(m.terms, 1.0 / low_m)
        elif not m.terms:
            piece = Piece(y.terms, high_m / low_y**2)
        else:
            own, other = Interval(high_m**-0.5, low_m**-0.5), Interval(-(high_m**0.5) / low_y, -(low_m**0.5) / high_y)
            piece = Piece((*(t.scaled(own) for t in m.terms), *(t.scaled(other) for t in y.terms)), 1.0)
        size = high_m * (1 + max(abs(np.log(ratio.low)), abs(np.log(ratio.high)))) + high_y
        value = Interval(least, float(max(corners))).rounded(float(size))
        result.append(Scalar(Interval(max(value.low, 0.0) if shift else value.low, value.high), terms, (piece,)))
    return result


@outer_rule(
    lambda_max,
    sigma_max,
    name="largest eigenvalue or singular value",
    statement="gradient in the unit Frobenius ball of the argument's entries; not differentiable",
    source="Lewis & Overton, Eigenvalue optimization, 1996",
)
def spectral(expression: Any, arguments: list[Entries]) -> Entries:
    """The gradient is a convex combination of u v' with unit u and v."""
    rows = affine_rows(arguments[0], "a spectral function")
    size = float(np.linalg.norm([max(abs(e.value.low), abs(e.value.high)) for e in arguments[0]]))
    kink = Kink(
        "the largest eigenvalue or singular value is not differentiable where two of them tie",
        expression,
        SPECTRAL_REMEDY,
    )
    least = -size if isinstance(expression, lambda_max) else 0.0
    return [Scalar(Interval(least, size), (Term(rows, ball=True),), (), 1, kink)]


@outer_rule(
    normNuc,
    name="nuclear norm",
    statement="gradient U V' of Frobenius norm at most sqrt(rank); not differentiable",
    source="Watson, Characterization of the subdifferential of some matrix norms, 1992",
)
def nuclear(expression: Any, arguments: list[Entries]) -> Entries:
    """The gradient has singular values at most one."""
    rows = affine_rows(arguments[0], "a spectral function")
    rank = min(expression.args[0].shape, default=1)
    size = float(np.linalg.norm([max(abs(e.value.low), abs(e.value.high)) for e in arguments[0]]))
    kink = Kink("the nuclear norm is not differentiable where a singular value is 0", expression, SPECTRAL_REMEDY)
    return [Scalar(Interval(0.0, size * np.sqrt(rank)), (Term(rows * np.sqrt(rank), ball=True),), (), 1, kink)]
