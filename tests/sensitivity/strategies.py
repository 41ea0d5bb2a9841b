"""Random templates, composed from the atoms that the calculus has rules for.

A template is grown from a source of choices, so that a seed can repeat it.
"""

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

import dpconvex as dp
from dpconvex import Ball, Box, Choice, Record, Template


@dataclass
class Part:
    """An expression with a coarse bound on its absolute value."""

    expression: cp.Expression
    size: float

    def __add__(self, other):
        return Part(self.expression + other.expression, self.size + other.size)

    def times(self, factor):
        return Part(factor * self.expression, abs(factor) * self.size)


class Grower:
    """Grows a template from a source of choices: ``pick(options)`` returns one of a sequence."""

    def __init__(self, pick):
        self.pick, self.dim, self.constraints, self.sizes = pick, pick([1, 2, 3]), [], {}
        self.fields = {"x": Ball(self.dim, radius=pick([0.5, 1.0, 3.0]), norm=pick([1, 2, 2, np.inf]))}
        if pick([True, False]):
            self.fields["u"] = Box(*pick([(np.array([-1.0, 0.5]), np.array([2.0, 0.75])), (-np.ones(2), np.ones(2))]))
        self.fields["s"] = pick([Box(0.0, 1.0), Box(0.25, 2.0), Box(0.0, 1e-4)])
        labels = pick([(), (-1, 1), (0, 1, 2)])
        if labels:
            self.fields["y"] = Choice(labels)
        self.labels = len(labels)
        self.bounded = pick([True, True, False])
        self.w = self.variable("w", (self.dim,), pick(["ball", "box"]))
        self.v = self.variable("v", (), pick(["ball", "box", "bounds"]))
        kind = pick(["none", "plain", "symmetric", "PSD"])
        self.matrix, side = None, self.dim + 1
        if kind == "plain":
            self.matrix = self.variable("A", (2, self.dim), pick(["ball", "box"]))
        elif kind != "none":
            self.matrix = self.variable("S", (side, side), "ball", **{kind: True})

    def variable(self, name, shape, how, **attributes):
        size = float("inf")
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
            size = np.sqrt(np.prod(shape, dtype=int))
        self.sizes[id(variable)] = size
        return variable

    def template(self):
        depth = self.pick([1, 2, 3, 4])

        def loss(**fields):
            total = self.convex(fields, depth)
            for _ in range(self.pick([0, 0, 1])):
                total += self.convex(fields, depth - 1)
            return total.expression

        regularizer = self.pick([0.5, 1.0]) * cp.sum_squares(self.w) + cp.square(self.v)
        return Template(Record(**self.fields), loss, regularizer, self.constraints)

    # Affine leaves

    def extent(self, name):
        return float(self.fields[name].norm_bound)

    def leaf(self, fields):
        total = self.term(fields)
        for _ in range(self.pick([0, 1, 1, 2])):
            total += self.term(fields).times(self.pick([1.0, -1.0, 0.5, -2.0]))
        return total + self.record_function(fields) if self.pick([True, False]) else total

    def term(self, fields):
        """Return one variable times a function of the record."""
        x, s, w, v, matrix = fields["x"], fields["s"], self.w, self.v, self.matrix
        rw, rv, rx, rs = self.sizes[id(w)], self.sizes[id(v)], self.extent("x"), self.extent("s")
        mix = np.arange(self.dim**2).reshape(self.dim, self.dim) / self.dim**2 - 0.3
        function = self.record_function(fields)
        found = [
            Part(w @ x, rw * rx),
            Part(w @ x, rw * rx),
            Part(v + 0.0, rv),
            Part(v * s, rv * rs),
            Part(w @ (mix @ x), rw * rx * float(np.linalg.norm(mix))),
            Part(cp.sum(cp.multiply(w, x**2)), rw * rx**2),
            Part(v * function.expression, rv * function.size),
        ]
        if "u" in fields:
            found.append(Part(fields["u"] @ cp.hstack([w[0], v]), self.extent("u") * (rw + rv)))
        if self.labels:
            found.append(Part(float(fields["y"]) * (w @ x), 2 * rw * rx))
        if matrix is not None:
            radius, z = self.sizes[id(matrix)], cp.hstack([x, self.pick([1.0, 0.5])])
            plain = matrix.name() == "A"
            form = Part(cp.sum(matrix @ x), 2 * radius * rx) if plain else Part(z @ matrix @ z, radius * (rx**2 + 1))
            found += [Part(matrix[0, -1] * s + matrix[1, 0], radius * (rs + 1)), form, form]
        return self.pick(found)

    def vector(self, fields):
        if self.matrix is not None and self.matrix.name() == "A" and self.pick([True, False]):
            size = self.sizes[id(self.matrix)] * self.extent("x")
            return Part(self.matrix @ fields["x"] + self.pick([0.0, 1.0]), size + 2)
        parts = [self.leaf(fields) for _ in range(self.pick([2, 3]))]
        return Part(cp.hstack([part.expression for part in parts]), sum(part.size for part in parts))

    def record_function(self, fields):
        x, s, rx, rs = fields["x"], fields["s"], self.extent("x"), self.extent("s")
        norm, number = cp.norm(x, self.pick([1, 2, "inf"])), cp.Constant(self.pick([1.0, -0.5]))
        squares, decay = Part(cp.sum_squares(x), 2 * rx**2), Part(cp.exp(-s), 1.0)
        return self.pick([Part(1 - s, 1 + rs), Part(x[0], rx), Part(norm, 2 * rx), decay, squares, Part(number, 1.0)])

    # Convex atoms

    def convex(self, fields, depth):
        if depth <= 0:
            return self.leaf(fields)
        general = ["logistic", "huber", "hinge", "softmax", "sum", "weight", "divide", "softmax of convex", "softmin"]
        general += ["weighted entries", "rearranged entries", "huber of pos"]
        kinks = ["pos", "maximum", "abs", "norm", "max", "clipped", "norm of concave"]
        curved = ["square", "square of convex", "sum of squares", "exp", "power", "quad_form", "cube", *OF_POSITIVE]
        families = [general, general, general, kinks] + ([curved, curved, curved] if self.bounded else [])
        return self.compose(self.pick(self.pick(families)), fields, depth - 1)

    def positive(self, fields):
        """Return an affine scalar that is at least 1/4."""
        part = self.leaf(fields)
        size = 1.01 * part.size + self.pick([0.25, 1.0])
        return Part(part.expression + size, size + part.size)

    def compose(self, kind, fields, depth):
        if kind in OF_POSITIVE:
            first, second = self.positive(fields), self.positive(fields)
            return OF_POSITIVE[kind](self.vector(fields), first, second)
        if kind in OF_AFFINE:
            part = (self.leaf if kind in ("huber", "abs", "square") else self.vector)(fields)
            return OF_AFFINE[kind](self.pick, part.expression, part.size)
        if kind in ("weighted entries", "rearranged entries"):
            return self.of_entries(kind, fields)
        part = self.convex(fields, depth)
        inner, size = part.expression, part.size
        if kind in OF_CONVEX:
            return OF_CONVEX[kind](self.pick, inner, size)
        if kind == "weight":
            s = fields["s"]
            weight = self.pick([cp.Constant(0.5), s, s**2, cp.exp(-s)])
            return Part(weight * inner, size * max(1.0, self.extent("s") ** 2))
        if kind == "divide":
            return Part(inner / (1 + fields["s"]), size)
        other, third = self.convex(fields, self.pick([0, depth])), self.leaf(fields)
        total = size + other.size
        concave = cp.hstack([-cp.logistic(inner), -cp.pos(other.expression)])
        apart = cp.hstack([inner - third.expression, other.expression, third.expression])
        return {
            "sum": Part(inner + 0.5 * other.expression, total),
            "maximum": Part(cp.maximum(inner, other.expression), total),
            "norm of concave": Part(cp.norm(concave, "inf") + inner, 2 * total + 1),
            "softmin": Part(cp.logistic(cp.log_sum_exp(apart)), total + 2 * third.size + 3),
            "softmax of convex": Part(cp.log_sum_exp(cp.hstack([inner, other.expression, 0.0])), total + 2),
        }[kind]

    def of_entries(self, kind, fields):
        """Apply an atom entry by entry, and combine the entries with non-negative coefficients."""
        part = self.vector(fields)
        atom = self.pick([cp.logistic, lambda m: cp.huber(m, 0.5), lambda m: dp.huber_hinge(m, 0.5)])
        entries, size, s = atom(part.expression), 4 * part.size + 4, fields["s"]
        if kind == "weighted entries":
            weights = cp.hstack([s, *(0.5 for _ in range(entries.size - 2)), s**2])
            weighted = self.pick([cp.sum(cp.multiply(weights, entries)), weights @ entries])
            return Part(weighted, size * (1 + self.extent("s") ** 2))
        column = cp.reshape(entries, (entries.size, 1), order="F")
        matrix = cp.hstack([column, 2 * column[::-1]])
        combined = [
            cp.sum(cp.diag(cp.vstack([entries, 2 * entries])[:2, :2])),
            cp.sum(matrix[0], axis=0) + cp.trace(matrix[:2, :2]),
            cp.log_sum_exp(cp.sum(matrix, axis=1)),
            cp.sum(cp.upper_tri(matrix[:2, :2])) + entries[-1] / (1 + s),
        ]
        return Part(self.pick(combined), 4 * size)


# By name: parts made of a source of choices, an expression and its size; of a vector and two positive numbers.
OF_CONVEX = {
    "logistic": lambda pick, m, size: Part(cp.logistic(m), size + 1),
    "hinge": lambda pick, m, size: Part(dp.huber_hinge(m, width=pick([0.5, 0.1])), size + 1),
    "pos": lambda pick, m, size: Part(cp.pos(m), size),
    "huber of pos": lambda pick, m, size: Part(cp.huber(cp.maximum(m, 0), pick([0.5, 2.0])), 4 * size),
    "clipped": lambda pick, m, size: Part(cp.maximum(m, pick([0.5, -1.0])), size + 1),
    "square of convex": lambda pick, m, size: Part(cp.square(cp.pos(m)), size**2),
    "cube": lambda pick, m, size: Part(cp.power(cp.logistic(m), 3), (size + 1) ** 3),
    "power": lambda pick, m, size: Part(cp.power(cp.pos(m) / max(1.0, size) + 0.5, pick([1.5, 2.5])), 3.0),
    "exp": lambda pick, m, size: Part(cp.exp(m / max(1.0, size)), 3.0),
}
OF_AFFINE = {
    "huber": lambda pick, m, size: Part(cp.huber(m, pick([0.25, 1.0])), 2 * size),
    "abs": lambda pick, m, size: Part(cp.abs(m), size),
    "square": lambda pick, m, size: Part(cp.square(m), size**2),
    "softmax": lambda pick, m, size: Part(cp.log_sum_exp(m), size + 2),
    "max": lambda pick, m, size: Part(cp.max(m), size),
    "norm": lambda pick, m, size: Part(cp.norm(m, pick([1, 1.5, 2, 3, "inf"])), 2 * size),
    "sum of squares": lambda pick, m, size: Part(cp.sum_squares(m), size**2),
    "quad_form": lambda pick, m, size: Part(cp.quad_form(m, np.eye(m.size) + 0.5), 3 * size**2),
}
OF_POSITIVE = {
    "log": lambda v, p, q: Part(-cp.log(p.expression), 2 + p.size),
    "entr": lambda v, p, q: Part(-cp.entr(p.expression), p.size**2 + 1),
    "inv_pos": lambda v, p, q: Part(cp.inv_pos(p.expression), 4.0),
    "root": lambda v, p, q: Part(-cp.sqrt(cp.minimum(p.expression, q.expression)), p.size),
    "kl_div": lambda v, p, q: Part(cp.kl_div(p.expression, q.expression), (p.size + q.size) ** 2),
    "rel_entr": lambda v, p, q: Part(cp.rel_entr(p.expression, q.expression), (p.size + q.size) ** 2),
    "quad_over_lin": lambda v, p, q: Part(cp.quad_over_lin(v.expression, p.expression), 5 * v.size**2),
    "over concave": lambda v, p, q: Part(cp.quad_over_lin(v.expression, cp.log(1 + p.expression)), 5 * v.size**2),
}


def seeded_template(seed):
    rng = np.random.default_rng(seed)
    return Grower(lambda options: options[int(rng.integers(len(options)))]).template()
