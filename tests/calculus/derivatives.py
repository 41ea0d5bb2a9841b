"""Values, gradients and Hessians of every subexpression of a loss, in closed form, with NumPy.

Affine leaves come from their polynomials (which are tested against CVXPY); everything above them follows the chain rule with
each atom's own first and second derivatives, written here once more and independently of the calculus.  At a kink the
derivatives are those of one side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.atoms.extremes import SUM_LARGEST
from dpconvex.core.atoms.matrices import LOG_DET
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expression import Expression
from dpconvex.core.polynomial import Polynomial
from dpconvex.language.record import Record
from dpconvex.language.template import Template

Array = np.ndarray
Local = tuple[Array, Array, Array]


@dataclass
class Jet:
    """An expression at every pair of a point (first axis) and a record (second); entries in column order."""

    value: Array
    gradient: Array
    hessian: Array


class Jets:
    """Evaluates subexpressions of a template's losses.

    Parameters
    ----------
    form : LossForm
    fields : dict of str to ndarray, shape (records, *field)
    points : ndarray, shape (points, dim)
    """

    def __init__(self, form: LossForm, fields: dict[str, Array], points: Array) -> None:
        self.form, self.fields, self.points = form, fields, points
        self.count = len(next(iter(fields.values())))
        self.known: dict[Expression, Jet] = {}
        self.scalars = self._scalars()

    def of(self, expression: Expression) -> Jet:
        """Return the jet of an expression."""
        if expression not in self.known:
            self.known[expression] = self._evaluate(expression)
        return self.known[expression]

    def record_values(self, expression: Expression) -> Array:
        """Evaluate an expression of the record alone, shape (records, entries)."""
        records = ({name: column[z] for name, column in self.fields.items()} for z in range(self.count))
        return np.stack([evaluate(expression, record).reshape(-1, order="F") for record in records])

    def jacobian(self, polynomial: Polynomial) -> Array:
        """Rows of A_z of a leaf, shape (records, entries, dim)."""
        part = polynomial.part(with_theta=True)
        result = np.zeros((self.count, polynomial.size, self.form.space.dim))
        for z, record in enumerate(np.column_stack([self.scalars, np.ones(self.count)])):
            np.add.at(result[z], (part.entry, part.coordinate), part.coefficient * record[part.monomial].prod(axis=1))
        return result

    def _scalars(self) -> Array:
        """Return the record's scalars; functions of the record that are no polynomials are evaluated."""
        columns = {
            base.start: self.fields[base.name].reshape(self.count, -1)
            for base in self.form.bases.bases
            if base.name in self.fields
        }
        for expression, polynomial in self.form.expander._functions.items():
            columns[int(polynomial.monomial[0, 0])] = self.record_values(expression)
        return np.concatenate([columns[start] for start in sorted(columns)], axis=1)

    def _evaluate(self, expression: Expression) -> Jet:
        dim, points = self.form.space.dim, len(self.points)
        if not expression.variables:
            value = np.broadcast_to(self.record_values(expression), (points, self.count, expression.size))
            return Jet(value, np.zeros((*value.shape, dim)), np.zeros((*value.shape, dim, dim)))
        if expression.is_affine:
            polynomial = self.form.expander.expand(expression)
            rows = self.jacobian(polynomial)
            constant = polynomial.part(with_theta=False)
            offset = np.stack([constant.evaluate(z, np.zeros(dim)).reshape(-1, order="F") for z in self.scalars])
            value = np.einsum("zkd,pd->pzk", rows, self.points) + offset
            gradient = np.broadcast_to(rows, (points, *rows.shape))
            return Jet(value, gradient, np.zeros((*gradient.shape, dim)))
        inner = [self.of(argument) for argument in expression.args]
        assert expression.atom is not None
        if expression.atom.affine != "curved":
            return self._combine(expression, inner)
        columns = [chain(picked, outer_function(expression)) for picked in groups(expression, inner)]
        return Jet(
            np.concatenate([c.value for c in columns], axis=2),
            np.concatenate([c.gradient for c in columns], axis=2),
            np.concatenate([c.hessian for c in columns], axis=2),
        )

    def _combine(self, expression: Expression, inner: list[Jet]) -> Jet:
        """Apply an affine atom whose coefficients may depend on the record, by applying it to unit vectors."""
        varying = [k for k, argument in enumerate(expression.args) if argument.variables]
        parts = []
        for z in range(self.count):
            fixed = [
                jet.value[0, z].reshape(argument.shape, order="F") if k not in varying else np.zeros(argument.shape)
                for k, (argument, jet) in enumerate(zip(expression.args, inner, strict=True))
            ]
            offset = applied(expression, fixed)
            columns = []
            for k in varying:
                for unit in np.eye(expression.args[k].size):
                    values = list(fixed)
                    values[k] = unit.reshape(expression.args[k].shape, order="F")
                    columns.append(applied(expression, values) - offset)
            matrix = np.stack(columns, axis=1)
            value, gradient, hessian = (
                np.concatenate([getattr(inner[k], name)[:, z] for k in varying], axis=1)
                for name in ("value", "gradient", "hessian")
            )
            parts.append(
                (
                    offset + value @ matrix.T,
                    np.einsum("kj,pjd->pkd", matrix, gradient),
                    np.einsum("kj,pjde->pkde", matrix, hessian),
                )
            )
        return Jet(*(np.stack(column, axis=1) for column in zip(*parts, strict=True)))


def applied(expression: Expression, values: list[Array]) -> Array:
    """Return the entries of an atom of numbers, in column order."""
    assert expression.atom is not None
    found = expression.atom.value(np, expression, *(value[..., None] for value in values))
    return np.asarray(found)[..., 0].reshape(-1, order="F")


def groups(expression: Expression, inner: list[Jet]) -> list[list[Jet]]:
    """Return, for each entry of a curved expression, what it is a function of."""
    if expression.atom in (SUM_LARGEST, LOG_DET):
        return [inner]
    if not any(name == "axis" for name, _ in expression.options):
        return [[part_of(jet, [k]) for jet in inner] for k in range(expression.size)]
    numbers = np.arange(expression.args[0].size).reshape(expression.args[0].shape, order="F")
    axis = expression.option("axis")
    rest = tuple(k for k in range(numbers.ndim) if k not in axis)
    lines = numbers.transpose((*rest, *axis)).reshape(expression.size, -1, order="F")
    return [[part_of(inner[0], line), *inner[1:]] for line in lines]


def part_of(jet: Jet, places: Any) -> Jet:
    """Return some entries of a jet."""
    return Jet(jet.value[:, :, places], jet.gradient[:, :, places], jet.hessian[:, :, places])


def chain(inner: list[Jet], outer: Callable[[list[Array]], Local]) -> Jet:
    """Compose with a scalar function of all entries, given its value, gradient and Hessian in them."""
    gradient, hessian = (np.concatenate([getattr(j, n) for j in inner], axis=2) for n in ("gradient", "hessian"))
    value, slope, bend = outer([jet.value for jet in inner])
    curved = np.einsum("pzjl,pzjd,pzle->pzde", bend, gradient, gradient, optimize=True)
    return Jet(
        value[:, :, None],
        np.einsum("pzj,pzjd->pzd", slope, gradient)[:, :, None],
        (np.einsum("pzj,pzjde->pzde", slope, hessian) + curved)[:, :, None],
    )


def outer_function(expression: Expression) -> Callable[[list[Array]], Local]:
    """Return an atom as a function of lists of entries, with its first and second derivatives."""
    assert expression.atom is not None
    return OUTER[expression.atom.name](expression)


def one_variable(function: Callable[[Array], tuple[Array, Array, Array]]) -> Callable[[list[Array]], Local]:
    """Turn a function of one number into one of a list with one entry."""

    def apply(arguments: list[Array]) -> Local:
        value, slope, bend = function(arguments[0][..., 0])
        return value, slope[..., None], bend[..., None, None]

    return apply


def sigmoid(m: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -m))


def logistic(expression: Any) -> Any:
    return one_variable(lambda m: (np.logaddexp(0, m), sigmoid(m), sigmoid(m) * sigmoid(-m)))


def huber(expression: Any) -> Any:
    limit = expression.option("M")

    def apply(m: Array) -> tuple[Array, Array, Array]:
        inside = np.abs(m) < limit
        value = np.where(inside, m**2, 2 * limit * np.abs(m) - limit**2)
        return value, 2 * np.clip(m, -limit, limit), 2.0 * inside

    return one_variable(apply)


def power(expression: Any) -> Any:
    p = expression.option("p")

    def at(m: Array, exponent: float) -> Array:
        return np.ones_like(m) if exponent == 0 else np.sign(m) ** (exponent % 2) * np.abs(m) ** exponent

    if p == int(p) and p > 0:
        return one_variable(lambda m: (at(m, p), p * at(m, p - 1), p * (p - 1) * at(m, p - 2)))
    return one_variable(lambda m: (m**p, p * m ** (p - 1), p * (p - 1) * m ** (p - 2)))


def selected(signed: bool = False) -> Callable[[list[Array]], Local]:
    """Return the largest entry, or absolute value."""

    def apply(arguments: list[Array]) -> Local:
        entries = np.concatenate(arguments, axis=2)
        place = np.argmax(np.abs(entries) if signed else entries, axis=2)[..., None]
        value = np.take_along_axis(entries, place, axis=2)
        slope = np.zeros_like(entries)
        np.put_along_axis(slope, place, np.sign(value) if signed else np.ones_like(value), axis=2)
        result = np.abs(value) if signed else value
        return result[..., 0], slope, np.zeros((*entries.shape, entries.shape[2]))

    return apply


def log_sum_exp(arguments: list[Array]) -> Local:
    entries = np.concatenate(arguments, axis=2)
    value = np.logaddexp.reduce(entries, axis=2)
    weight = np.exp(entries - value[..., None])
    return value, weight, diagonal(weight) - weight[..., :, None] * weight[..., None, :]


def norm(expression: Expression) -> Callable[[list[Array]], Local]:
    """Return a p-norm; its second derivatives only for p >= 2, away from zero."""
    p = expression.option("p")
    if np.isinf(p):
        return selected(signed=True)

    def apply(arguments: list[Array]) -> Local:
        (entries,) = arguments
        value = np.linalg.norm(entries, ord=p, axis=2)
        safe = np.where(value > 0, value, 1.0)[..., None]
        slope = np.sign(entries) * (np.abs(entries) / safe) ** (p - 1)
        flat = (
            diagonal((np.abs(entries) / safe) ** (p - 2 if p >= 2 else 0)) - slope[..., :, None] * slope[..., None, :]
        )
        return value, slope, (p - 1) * flat / safe[..., None] if p >= 2 else np.zeros_like(flat)

    return apply


def sum_largest(expression: Expression) -> Callable[[list[Array]], Local]:
    """Return the sum of the k largest entries."""

    def apply(arguments: list[Array]) -> Local:
        (entries,) = arguments
        places = np.argsort(entries, axis=2)[..., -expression.option("k") :]
        slope = np.zeros_like(entries)
        np.put_along_axis(slope, places, 1.0, axis=2)
        return np.sum(slope * entries, axis=2), slope, np.zeros((*entries.shape, entries.shape[2]))

    return apply


def log_det(expression: Expression) -> Callable[[list[Array]], Local]:
    """Return the logarithm of the determinant of a positive definite matrix, given its entries in column order."""
    side = expression.args[0].shape[0]

    def apply(arguments: list[Array]) -> Local:
        (entries,) = arguments
        inverse = np.linalg.inv(entries.reshape(*entries.shape[:2], side, side))
        bend = -np.einsum("pzac,pzdb->pzabcd", inverse, inverse)
        slope = inverse.reshape(entries.shape)
        return -np.linalg.slogdet(inverse)[1], slope, bend.reshape(*entries.shape, entries.shape[2])

    return apply


def ratio(arguments: list[Array]) -> Local:
    """Sum of squares of the first argument over the second."""
    m, y = arguments
    square = np.sum(m**2, axis=2)
    slope = np.concatenate([2 * m / y, -square[..., None] / y**2], axis=2)
    bend = np.zeros((*slope.shape, slope.shape[2]))
    k = m.shape[2]
    bend[..., :k, :k] = diagonal(np.broadcast_to(2 / y, m.shape))
    bend[..., :k, k] = bend[..., k, :k] = -2 * m / y**2
    bend[..., k, k] = 2 * square / y[..., 0] ** 3
    return square / y[..., 0], slope, bend


def relative_entropy(arguments: list[Array]) -> Local:
    m, y = arguments[0][..., 0], arguments[1][..., 0]
    slope = np.stack([np.log(m / y) + 1, -m / y], axis=2)
    bend = np.stack([np.stack([1 / m, -1 / y], axis=2), np.stack([-1 / y, m / y**2], axis=2)], axis=2)
    return m * np.log(m / y), slope, bend


def diagonal(entries: Array) -> Array:
    """Put the last axis on the diagonals of matrices."""
    return entries[..., None] * np.eye(entries.shape[-1])


OUTER: dict[str, Callable[[Any], Callable[[list[Array]], Local]]] = {
    "logistic": logistic,
    "huber": huber,
    "exp": lambda _: one_variable(lambda m: (np.exp(m), np.exp(m), np.exp(m))),
    "xexp": lambda _: one_variable(lambda m: (m * np.exp(m), (m + 1) * np.exp(m), (m + 2) * np.exp(m))),
    "log": lambda _: one_variable(lambda m: (np.log(m), 1 / m, -1 / m**2)),
    "power": power,
    "abs": lambda _: selected(signed=True),
    "maximum": lambda _: selected(),
    "max": lambda _: selected(),
    "norm": norm,
    "log_sum_exp": lambda _: log_sum_exp,
    "quad_over_lin": lambda _: ratio,
    "sum_largest": sum_largest,
    "log_det": log_det,
    "rel_entr": lambda _: relative_entropy,
}


def analyse(loss: Any, constraints: Any = (), **fields: Any) -> Analysis:
    """Return the calculus's constants of a loss of one record."""
    return Analysis(LossForm(Template(Record(**fields), loss, 0.0, list(constraints))))


def observe(analysis: Analysis, fields: dict[str, Array], points: Array) -> dict[str, float]:
    """Return the largest constants seen at all pairs of records and points of the first loss, by name."""
    form = analysis.form
    assert all(np.allclose(form.feasible.project(point), point, atol=1e-9) for point in points)
    jet = Jets(form, fields, points).of(form.template.losses[0])
    gradient, hessian = jet.gradient[:, :, 0], jet.hessian[:, :, 0]
    spectrum = np.linalg.eigvalsh(hessian)
    apart = np.linalg.norm(gradient[:, :, None] - gradient[:, None, :], axis=-1)
    return {
        "gradient": float(np.linalg.norm(gradient, axis=-1).max()),
        "replacement": float(apart.max()),
        "eigenvalue": float(spectrum.max()),
        "trace": float(spectrum.sum(axis=-1).max()),
        "log det": float(np.log1p(np.maximum(spectrum, 0.0)).sum(axis=-1).max()),
        "least value": float(jet.value.min()),
        "largest value": float(jet.value.max()),
    }


def certified(analysis: Analysis) -> dict[str, float]:
    """Return what was proved of the first loss, by the names of `observe`; log det with mu = 1."""
    (loss,) = analysis.losses
    found = {"gradient": loss.gradient_bound, "replacement": analysis.replacement_bound}
    if analysis.kink is None:
        curvature = loss.curvature
        found |= {"eigenvalue": curvature.eigenvalue, "trace": curvature.trace, "log det": curvature.log_det(1.0)}
    return found


def compare(
    analysis: Analysis, fields: dict[str, Array], points: Array, tightness: float | dict[str, float] = 0.5
) -> dict[str, float]:
    """Assert that no observed constant exceeds its certificate, nor is less than a part of it; return the ratios."""
    seen, proved = observe(analysis, fields, points), certified(analysis)
    value = analysis.losses[0].scalar.value
    slack = 1e-9 * (1 + abs(seen["least value"]) + abs(seen["largest value"]))
    assert value.low <= seen["least value"] + slack
    assert seen["largest value"] <= value.high + slack
    ratios = {}
    for name, bound in proved.items():
        assert seen[name] <= bound * (1 + 1e-9), f"{name}: {seen[name]} observed, {bound} certified"
        ratios[name] = seen[name] / bound if bound else 1.0
        least = tightness.get(name, 0.5) if isinstance(tightness, dict) else tightness
        assert ratios[name] >= least, f"{name}: {seen[name]} observed, {bound} certified"
    return ratios
