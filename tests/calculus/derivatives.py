"""Values, gradients and Hessians of every subexpression of a loss: slopes, and how they change along imaginary directions.

They rest on the atoms' values and slopes, which are tested against CVXPY and automatic differentiation, and on nothing of the
calculus.  At a kink they are slopes of both sides, mixed, and no Hessians.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.evaluate import STEP, over_records, slopes
from dpconvex.core.expression import Expression, postorder
from dpconvex.language.record import Record
from dpconvex.language.template import Template

Array = np.ndarray


@dataclass
class Jet:
    """An expression at every pair of a point (first axis) and a record (second); entries in column order."""

    value: Array
    gradient: Array
    hessian: Array


class Jets:
    """Evaluates subexpressions of a template's losses at all pairs of points, shape (points, dim), and records' fields."""

    def __init__(self, form: LossForm, fields: dict[str, Array], points: Array) -> None:
        self.form, self.count, dim = form, len(next(iter(fields.values()))), form.space.dim
        self.shape = len(points), self.count, dim  # of the last axis: points, records, directions
        moved = np.repeat(points, self.count, axis=0)[:, None, :] + 1j * STEP * np.eye(dim)
        self.theta = moved.reshape(-1, dim).T
        index = np.repeat(np.tile(np.arange(self.count), len(points)), dim)
        self.fields = {name: np.moveaxis(column[index], 0, -1) for name, column in fields.items()}
        self.known: dict[Expression, Jet] = {}

    def of(self, expression: Expression) -> Jet:
        """Return the jet of an expression."""
        if expression not in self.known:
            self.known[expression] = self._evaluate(expression)
        return self.known[expression]

    def _evaluate(self, expression: Expression) -> Jet:
        entries = [expression[place[::-1]] if place else expression for place in np.ndindex(expression.shape[::-1])]
        leaves: dict[Expression, Array] = {leaf: self.fields[leaf.name] for leaf in expression.fields}
        for block in self.form.space.blocks.values():
            values = block.lift @ self.theta[block.slice]
            leaves[block.variable] = values.reshape(*block.variable.shape, -1, order="F")
        found = over_records(entries, leaves)
        parts = []
        for entry in entries:
            with np.errstate(all="ignore"):  # the slope of a norm at 0 is no number, or 0
                pulled = slopes(postorder([entry]), found, entry) if expression.variables else {}
            total = np.zeros((len(self.theta), self.theta.shape[1]), dtype=complex)
            for block in self.form.space.blocks.values():
                if block.variable in pulled:
                    each = np.broadcast_to(
                        np.nan_to_num(pulled[block.variable]), (*block.variable.shape, total.shape[1])
                    )
                    total[block.slice] = block.lift.T @ each.reshape(-1, total.shape[1], order="F")
            value = np.broadcast_to(found[entry], (total.shape[1],)).reshape(self.shape)
            slope = total.T.reshape(*self.shape, -1)  # directions, then coordinates
            parts.append((value[..., 0].real, slope[..., 0, :].real, slope.imag / STEP))
        return Jet(*(np.stack(column, axis=2) for column in zip(*parts, strict=True)))


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
