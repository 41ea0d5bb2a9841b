"""Values, gradients and Hessians of every subexpression of a loss: slopes, and how they change along imaginary directions.

They rest on the atoms' values and slopes, which are tested against CVXPY and automatic differentiation, and on nothing of the
calculus.  At a kink they are slopes of both sides, mixed, and no Hessians.
"""

from collections import namedtuple

import numpy as np

from dpconvex.data.record import Record
from dpconvex.expressions.evaluate import STEP, gradients, over_records
from dpconvex.expressions.expression import postorder
from dpconvex.model.template import Template
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm

# An expression at every pair of a point (first axis) and a record (second); entries in column order
Jet = namedtuple("Jet", "value gradient hessian")


class Jets:
    """Evaluates subexpressions of a template's losses at all pairs of points, shape (points, dim), and records' fields."""

    def __init__(self, form, fields, points):
        self.form, self.shape = form, (len(points), len(next(iter(fields.values()))))
        self.theta = np.repeat(points, self.shape[1], axis=0)
        self.fields = {n: np.tile(column, (len(points), *[1] * (column.ndim - 1))) for n, column in fields.items()}
        self.known = {}

    def of(self, expression):
        if expression not in self.known:
            self.known[expression] = self._evaluate(expression)
        return self.known[expression]

    def _evaluate(self, expression):
        value, gradient = self._slopes(expression, self.theta, self.fields)
        dim = self.form.space.dim
        moved = (self.theta[:, None, :] + 1j * STEP * np.eye(dim)).reshape(-1, dim)
        repeated = {name: np.repeat(column, dim, axis=0) for name, column in self.fields.items()}
        turned = self._slopes(expression, moved, repeated)[1]
        hessian = np.nan_to_num(turned.imag / STEP).reshape(len(value), dim, -1, dim).swapaxes(1, 2)
        return Jet(*(part.reshape(*self.shape, *part.shape[1:]) for part in (value, gradient, hessian)))

    def _slopes(self, expression, theta, fields):
        """Return values and slopes of all entries, shapes (points, entries) and (points, entries, dim)."""
        entries = [expression[place[::-1]] if place else expression for place in np.ndindex(expression.shape[::-1])]
        leaves = {leaf: np.moveaxis(fields[leaf.name], 0, -1) for leaf in expression.fields}
        blocks, count = self.form.space.blocks.values(), len(theta)
        for block in blocks:
            leaves[block.variable] = (block.lift @ theta.T[block.slice]).reshape(*block.variable.shape, -1, order="F")
        found = over_records(entries, leaves)
        result = np.zeros((count, len(entries), theta.shape[1]), dtype=theta.dtype)
        for k, entry in enumerate(entries):
            with np.errstate(all="ignore"):
                pulled = gradients(postorder([entry]), found, entry) if expression.variables else {}
            for block in blocks:
                if block.variable in pulled:
                    each = np.broadcast_to(pulled[block.variable], (*block.variable.shape, count))
                    result[:, k, block.slice] = (block.lift.T @ each.reshape(-1, count, order="F")).T
        return np.stack([np.broadcast_to(found[entry], (count,)) for entry in entries], axis=1), result


def form_of(loss, constraints=(), regularizer=0.0, **fields):
    return LossForm(Template(Record(**fields), loss, regularizer, list(constraints)))


def analyse(loss, constraints=(), regularizer=0.0, **fields):
    return Analysis(form_of(loss, constraints, regularizer, **fields))


def compare(analysis, fields, points, tightness=0.5):
    """Assert that no constant of the first loss is seen above its certificate, nor below a part of it; return the ratios.

    Constants are seen at all pairs of records and points; log det with mu = 1.
    """
    form, (loss,), ratios = analysis.form, analysis.losses, {}
    assert all(np.allclose(form.feasible.project(point), point, atol=1e-9) for point in points)
    jet = Jets(form, fields, points).of(form.template.losses[0])
    gradient, spectrum = jet.gradient[:, :, 0], np.linalg.eigvalsh(jet.hessian[:, :, 0])
    apart = np.linalg.norm(gradient[:, :, None] - gradient[:, None, :], axis=-1)
    known = {"gradient": (np.linalg.norm(gradient, axis=-1), loss.gradient_bound)}
    known["replacement"] = apart, analysis.replacement_bound
    if analysis.kink is None:
        curvature, logs = loss.curvature, np.log1p(np.maximum(spectrum, 0.0)).sum(axis=-1)
        known |= {"eigenvalue": (spectrum, curvature.eigenvalue), "log det": (logs, curvature.log_det(1.0))}
        known["trace"] = spectrum.sum(axis=-1), curvature.trace
    value, least, largest = loss.scalar.value, jet.value.min(), jet.value.max()
    slack = 1e-9 * (1 + abs(least) + abs(largest))
    assert value.low - slack <= least <= largest <= value.high + slack
    for name, (seen, bound) in known.items():
        said = f"{name}: {seen.max()} observed, {bound} certified"
        assert seen.max() <= bound * (1 + 1e-9), said
        ratios[name] = seen.max() / bound if bound else 1.0
        assert ratios[name] >= (tightness.get(name, 0.5) if isinstance(tightness, dict) else tightness), said
    return ratios
