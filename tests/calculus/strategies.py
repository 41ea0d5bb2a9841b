"""Random templates, composed from the atoms that the calculus has rules for.

A template is grown from a source of choices, so that Hypothesis can shrink it and a seed can repeat it.  Affine leaves mix
several fields and variables; convex atoms are stacked on them to a depth of four, with non-negative weights that may be fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from hypothesis import strategies as st

import dpconvex as dp
from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.language.record import Record
from dpconvex.language.template import Template

DEPTH = 4
INFINITE = float("inf")


@dataclass
class Part:
    """An expression with a coarse bound on its absolute value."""

    expression: cp.Expression
    size: float


class Grower:
    """Grows a template from a source of choices.

    Parameters
    ----------
    pick : callable
        ``pick(options)`` returns one of a sequence.
    """

    def __init__(self, pick: Callable[[Sequence[Any]], Any]) -> None:
        self.pick = pick
        self.number = 0
        self.fields: dict[str, Any] = {}
        self.dim = pick([1, 2, 3])
        self.fields["x"] = Ball(self.dim, radius=pick([0.5, 1.0, 3.0]), norm=pick([1, 2, 2, np.inf]))
        if pick([True, False]):
            self.fields["u"] = Box(*pick([(np.array([-1.0, 0.5]), np.array([2.0, 0.75])), (-np.ones(2), np.ones(2))]))
        self.fields["s"] = pick([Box(0.0, 1.0), Box(0.25, 2.0), Box(0.0, 1e-4)])
        labels = pick([(), (-1, 1), (0, 1, 2)])
        if labels:
            self.fields["y"] = Choice(labels)
        self.labels = len(labels)
        self.bounded = pick([True, True, False])
        self.constraints: list[cp.Constraint] = []
        self.sizes: dict[int, float] = {}
        self.w = self.variable("w", (self.dim,), pick(["ball", "box"]))
        self.v = self.variable("v", (), pick(["ball", "box", "bounds"]))
        kind = pick(["none", "plain", "symmetric", "PSD"])
        self.matrix: cp.Variable | None = None
        if kind == "plain":
            self.matrix = self.variable("A", (2, self.dim), pick(["ball", "box"]))
        elif kind != "none":
            side = self.dim + 1
            self.matrix = self.variable("S", (side, side), "ball", **{kind: True})

    def variable(self, name: str, shape: tuple[int, ...], how: str, **attributes: Any) -> cp.Variable:
        """Declare a variable and what bounds it."""
        count = int(np.prod(shape, dtype=int))
        size = INFINITE
        if self.bounded and how == "bounds":
            attributes["bounds"] = [-0.5, 1.0]
            size = 1.0
        variable = cp.Variable(shape, name=name, **attributes)
        if self.bounded and how == "ball":
            radius = self.pick([0.5, 1.5])
            self.constraints.append(cp.norm(cp.vec(variable, order="F"), 2) <= radius)
            size = radius
        elif self.bounded and how == "box":
            self.constraints += [variable >= -0.5, variable <= 1.0]
            size = np.sqrt(count)
        self.sizes[id(variable)] = size
        return variable

    def template(self) -> Template:
        """Grow the losses and return the template."""
        depth = self.pick([1, 2, 3, DEPTH])

        def loss(**fields: Any) -> cp.Expression:
            total = self.convex(fields, depth).expression
            for _ in range(self.pick([0, 0, 1])):
                total = total + self.convex(fields, depth - 1).expression
            return total

        regularizer = self.pick([0.5, 1.0]) * cp.sum_squares(self.w) + cp.square(self.v)
        return Template(Record(**self.fields), loss, regularizer, self.constraints)

    # Affine leaves

    def extent(self, name: str) -> float:
        """Bound on the norm of a field."""
        return float(self.fields[name].norm_bound)

    def leaf(self, fields: dict[str, Any]) -> Part:
        """Return a scalar that is affine in the variables."""
        total = self.term(fields)
        for _ in range(self.pick([0, 1, 1, 2])):
            other = self.term(fields)
            factor = self.pick([1.0, -1.0, 0.5, -2.0])
            total = Part(total.expression + factor * other.expression, total.size + abs(factor) * other.size)
        if self.pick([True, False]):
            offset = self.record_function(fields)
            total = Part(total.expression + offset.expression, total.size + offset.size)
        return total

    def term(self, fields: dict[str, Any]) -> Part:
        """Return one variable times a function of the record."""
        x, s = fields["x"], fields["s"]
        w, v, matrix = self.w, self.v, self.matrix
        kinds = ["wx", "wx", "v", "vs", "wAx", "wxx", "vf"]
        kinds += ["ux"] if "u" in fields else []
        kinds += [] if matrix is None else ["matrix", "matrix", "entry"]
        kinds += ["label"] if self.labels else []
        kind = self.pick(kinds)
        rw, rv, rx, rs = self.sizes[id(w)], self.sizes[id(v)], self.extent("x"), self.extent("s")
        if kind == "wx":
            return Part(w @ x, rw * rx)
        if kind == "v":
            return Part(v + 0.0, rv)
        if kind == "vs":
            return Part(v * s, rv * rs)
        if kind == "wAx":
            mix = np.arange(self.dim**2).reshape(self.dim, self.dim) / self.dim**2 - 0.3
            return Part(w @ (mix @ x), rw * rx * float(np.linalg.norm(mix)))
        if kind == "wxx":
            return Part(cp.sum(cp.multiply(w, x**2)), rw * rx**2)
        if kind == "vf":
            function = self.record_function(fields)
            return Part(v * function.expression, rv * function.size)
        if kind == "ux":
            return Part(fields["u"] @ cp.hstack([w[0], v]), self.extent("u") * (rw + rv))
        if kind == "label":
            return Part(float(fields["y"]) * (w @ x), 2 * rw * rx)
        assert matrix is not None
        radius = self.sizes[id(matrix)]
        if kind == "entry":
            return Part(matrix[0, -1] * s + matrix[1, 0], radius * (rs + 1))
        if matrix.name() == "S":
            z = cp.hstack([x, self.pick([1.0, 0.5])])
            return Part(z @ matrix @ z, radius * (rx**2 + 1))
        return Part(cp.sum(matrix @ x), radius * rx * 2)

    def vector(self, fields: dict[str, Any]) -> Part:
        """Return a vector that is affine in the variables."""
        if self.matrix is not None and self.matrix.name() == "A" and self.pick([True, False]):
            size = self.sizes[id(self.matrix)] * self.extent("x")
            return Part(self.matrix @ fields["x"] + self.pick([0.0, 1.0]), size + 2)
        parts = [self.leaf(fields) for _ in range(self.pick([2, 3]))]
        return Part(cp.hstack([part.expression for part in parts]), sum(part.size for part in parts))

    def record_function(self, fields: dict[str, Any]) -> Part:
        """Return a function of the record alone."""
        x, s = fields["x"], fields["s"]
        rx, rs = self.extent("x"), self.extent("s")
        kind = self.pick(["s", "coordinate", "norm", "exp", "square", "constant"])
        if kind == "s":
            return Part(1 - s, 1 + rs)
        if kind == "coordinate":
            return Part(x[0], rx)
        if kind == "norm":
            return Part(cp.norm(x, self.pick([1, 2, "inf"])), 2 * rx)
        if kind == "exp":
            return Part(cp.exp(-s), 1.0)
        if kind == "square":
            return Part(cp.sum_squares(x), 2 * rx**2)
        return Part(cp.Constant(self.pick([1.0, -0.5])), 1.0)

    # Convex atoms

    def convex(self, fields: dict[str, Any], depth: int) -> Part:
        """Return a convex scalar of at most the given depth."""
        if depth <= 0:
            return self.leaf(fields)
        general = ["logistic", "huber", "hinge", "softmax", "sum", "weight", "divide", "softmax of convex", "softmin"]
        general += ["weighted entries", "rearranged entries", "huber of pos"]
        kinks = ["pos", "maximum", "abs", "norm", "max", "clipped", "norm of concave"]
        curved = [
            *("square", "square of convex", "sum of squares", "exp", "power", "quad_form", "quad_over_lin"),
            *("quad_over_lin of concave", "kl_div", "rel_entr", "entr", "log", "inv_pos", "root", "cube"),
        ]
        families = [general, general, general, kinks] + ([curved, curved, curved] if self.bounded else [])
        return self.compose(self.pick(self.pick(families)), fields, depth - 1)

    def positive(self, fields: dict[str, Any]) -> Part:
        """Return an affine scalar that is at least 1/4."""
        part = self.leaf(fields)
        size = 1.01 * part.size + self.pick([0.25, 1.0])
        return Part(part.expression + size, size + part.size)

    def compose(self, kind: str, fields: dict[str, Any], depth: int) -> Part:
        """Apply an atom."""
        if kind in ("huber", "abs", "norm", "sum of squares", "square", "quad_form", "max", "softmax"):
            return self.of_affine(kind, fields)
        if kind in ("weighted entries", "rearranged entries"):
            return self.of_entries(kind, fields)
        if kind in (
            "quad_over_lin",
            "quad_over_lin of concave",
            "kl_div",
            "rel_entr",
            "entr",
            "log",
            "inv_pos",
            "root",
        ):
            return self.of_positive(kind, fields)
        part = self.convex(fields, depth)
        inner, size = part.expression, part.size
        if kind == "logistic":
            return Part(cp.logistic(inner), size + 1)
        if kind == "hinge":
            return Part(dp.huber_hinge(inner, width=self.pick([0.5, 0.1])), size + 1)
        if kind == "pos":
            return Part(cp.pos(inner), size)
        if kind == "huber of pos":
            return Part(cp.huber(cp.maximum(inner, 0), self.pick([0.5, 2.0])), 4 * size)
        if kind == "clipped":
            return Part(cp.maximum(inner, self.pick([0.5, -1.0])), size + 1)
        if kind == "square of convex":
            return Part(cp.square(cp.pos(inner)), size**2)
        if kind == "cube":
            return Part(cp.power(cp.logistic(inner), 3), (size + 1) ** 3)
        if kind == "power":
            scale = max(1.0, size)
            return Part(cp.power(cp.pos(inner) / scale + 0.5, self.pick([1.5, 2.5])), 3.0)
        if kind == "exp":
            return Part(cp.exp(inner / max(1.0, size)), 3.0)
        if kind == "weight":
            factor = self.pick(["number", "field", "square", "function"])
            s = fields["s"]
            weight = {"number": cp.Constant(0.5), "field": s, "square": s**2, "function": cp.exp(-s)}[factor]
            return Part(weight * inner, size * max(1.0, self.extent("s") ** 2))
        if kind == "divide":
            return Part(inner / (1 + fields["s"]), size)
        other = self.convex(fields, self.pick([0, depth]))
        if kind == "sum":
            return Part(inner + 0.5 * other.expression, size + other.size)
        if kind == "maximum":
            return Part(cp.maximum(inner, other.expression), size + other.size)
        if kind == "norm of concave":
            stack = cp.hstack([-cp.logistic(inner), -cp.pos(other.expression)])
            return Part(cp.norm(stack, "inf") + inner, 2 * (size + other.size) + 1)
        if kind == "softmin":
            third = self.leaf(fields)
            stack = cp.hstack([inner - third.expression, other.expression, third.expression])
            return Part(cp.logistic(cp.log_sum_exp(stack)), size + other.size + 2 * third.size + 3)
        assert kind == "softmax of convex"
        return Part(cp.log_sum_exp(cp.hstack([inner, other.expression, 0.0])), size + other.size + 2)

    def of_affine(self, kind: str, fields: dict[str, Any]) -> Part:
        """Apply an atom that takes affine arguments."""
        if kind in ("huber", "abs", "square"):
            part = self.leaf(fields)
            if kind == "huber":
                return Part(cp.huber(part.expression, self.pick([0.25, 1.0])), 2 * part.size)
            if kind == "abs":
                return Part(cp.abs(part.expression), part.size)
            return Part(cp.square(part.expression), part.size**2)
        part = self.vector(fields)
        if kind == "softmax":
            return Part(cp.log_sum_exp(part.expression), part.size + 2)
        if kind == "max":
            return Part(cp.max(part.expression), part.size)
        if kind == "norm":
            return Part(cp.norm(part.expression, self.pick([1, 1.5, 2, 3, "inf"])), 2 * part.size)
        if kind == "sum of squares":
            return Part(cp.sum_squares(part.expression), part.size**2)
        count = part.expression.size
        matrix = np.eye(count) + np.full((count, count), 0.5)
        return Part(cp.quad_form(part.expression, matrix), 3 * part.size**2)

    def of_entries(self, kind: str, fields: dict[str, Any]) -> Part:
        """Apply an atom entry by entry, and combine the entries with non-negative coefficients."""
        part = self.vector(fields)
        entries = self.pick([cp.logistic, lambda m: cp.huber(m, 0.5), lambda m: dp.huber_hinge(m, 0.5)])(
            part.expression
        )
        size, s = 4 * part.size + 4, fields["s"]
        if kind == "weighted entries":
            weights = cp.hstack([s, *(0.5 for _ in range(entries.size - 2)), s**2])
            combine = self.pick([lambda: cp.sum(cp.multiply(weights, entries)), lambda: weights @ entries])
            return Part(combine(), size * (1 + self.extent("s") ** 2))
        column = cp.reshape(entries, (entries.size, 1), order="F")
        matrix = cp.hstack([column, 2 * column[::-1]])
        combine = self.pick(
            [
                lambda: cp.sum(cp.diag(cp.vstack([entries, 2 * entries])[:2, :2])),
                lambda: cp.sum(matrix[0], axis=0) + cp.trace(matrix[:2, :2]),
                lambda: cp.log_sum_exp(cp.sum(matrix, axis=1)),
                lambda: cp.sum(cp.upper_tri(matrix[:2, :2])) + entries[-1] / (1 + s),
            ]
        )
        return Part(combine(), 4 * size)

    def of_positive(self, kind: str, fields: dict[str, Any]) -> Part:
        """Apply an atom whose argument keeps away from zero."""
        first = self.positive(fields)
        p, size = first.expression, first.size
        if kind == "log":
            return Part(-cp.log(p), 2 + size)
        if kind == "entr":
            return Part(-cp.entr(p), size**2 + 1)
        if kind == "inv_pos":
            return Part(cp.inv_pos(p), 4.0)
        if kind == "root":
            return Part(-cp.sqrt(cp.minimum(p, self.positive(fields).expression)), size)
        if kind in ("kl_div", "rel_entr"):
            second = self.positive(fields)
            atom = cp.kl_div if kind == "kl_div" else cp.rel_entr
            return Part(atom(p, second.expression), (size + second.size) ** 2)
        over = self.vector(fields)
        divisor = p if kind == "quad_over_lin" else cp.log(1 + p)
        return Part(cp.quad_over_lin(over.expression, divisor), 5 * over.size**2)


@st.composite
def templates(draw: Any) -> Template:
    """Draw a template."""
    return Grower(lambda options: draw(st.sampled_from(list(options)))).template()


def seeded_template(seed: int) -> Template:
    """Grow the template of a seed."""
    rng = np.random.default_rng(seed)
    return Grower(lambda options: options[int(rng.integers(len(options)))]).template()
