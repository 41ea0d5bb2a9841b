"""Pure fits to targets in a small part of their bounds, after two choices of that range (docs/theory.md, section 24)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpconvex.accounting.events import Composition, Pure
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.checker.table import RANGE
from dpconvex.data.batch import Batch
from dpconvex.data.domains import Box
from dpconvex.expressions.atoms.extremes import is_hinge, is_zero
from dpconvex.expressions.atoms.powers import ABS, HUBER, POWER, huber
from dpconvex.expressions.evaluate import evaluations
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.expressions.rewriting import PASSING
from dpconvex.mechanisms.private_selection import mistake_rate, select
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import substitute
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.projections import AxisHull, ConvexSet, IntervalSet, NormBall
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array, Indices, frozen
from dpconvex.util.runtime import once

SOURCE = "permute-and-flip (McKenna & Sheldon 2020), then the fit, composed adaptively; docs/theory.md, section 24"
TARGET = "y"  # The field of the targets
# The choices' share of epsilon falls with the root of records times epsilon; the middle has MIDDLE of it, or up to MOST.
FALLING, LARGEST, MIDDLE, MOST = 6.5, 0.6, 0.6, 0.8
# Cells of the bounds, with one in the middle; and the charge for doubling the width, in the exponent of its probability.
CELLS, DOUBLED = 2047, 2.0
MISSED = 10.0  # Inverse of the largest probability that the middle is at a place without targets
SIDES = np.unique(np.rint(np.minimum(2.0 ** (np.arange(-2, 23) / 2), CELLS))).astype(np.int64)
PARTS, FAR = 1000, 1e6  # Denominator of a level; residuals at which losses are linear, in halves of the bounds
# Residuals from which squares continue as lines, in halves of the found range; larger if noise is small.
CLOSE, FARTHEST, SMALL = 0.25, 8.0, 600.0


@dataclass(frozen=True)
class RangePlan:
    """The division of a pure guarantee between the range of the target and the fit, fixed before the data are read."""

    privacy: Privacy
    size: int
    level: float | None  # Quantile of the targets at the middle; None for 0, if predictions have no constant

    @property
    def epsilon(self) -> float:  # For the range
        return self.privacy.epsilon * min(FALLING / math.sqrt(self.size * self.privacy.epsilon), LARGEST)

    def times(self, parameters: int) -> float:
        """Return a factor for the residuals at which squares become lines: large if there are many records for each parameter."""
        return float(np.clip(self.size * self.privacy.epsilon / (SMALL * parameters**1.5), 1.0, FARTHEST))

    @property
    def rest(self) -> Privacy:
        return self.privacy.minus(self.privacy.part(self.epsilon))

    def whole(self, fit: Certificate) -> Certificate:
        """Return the certificate of the range and the fit together."""
        step = Derivation("range of the target", "", {"epsilon": self.epsilon}, "choices of a middle and of a width")
        both = step, fit.derivation
        return fit.copied(
            privacy=self.privacy,
            settings=fit.settings | {RANGE: self.epsilon},
            derivation=Derivation("range of the target, then the fit", "", self.privacy.claims, SOURCE, both),
            event=fit.event and Composition((Pure(self.epsilon), fit.event)),
        )

    def chosen(self, counts: Indices, rng: np.random.Generator | None) -> tuple[float, float]:
        """Choose the middle of a range and half its width, from counts of targets in cells from -1 to 1.

        One record moves the counts below and above a cell, less their parts of all records, by at most 1 (by the larger part
        under add-remove).  It moves the count outside of a range by at most 1, in one direction under add-remove.
        """
        epsilon, adjacency, most = self.epsilon, self.privacy.adjacency, self.privacy.most
        upto, place = np.cumsum(counts), CELLS // 2
        if self.level is not None:
            needed = math.log(MISSED * CELLS) * most / (self.size * mistake_rate(1.0, adjacency))
            middle = min(max(MIDDLE * epsilon, 2 * needed), MOST * epsilon)
            least = min(needed / middle, 0.5)  # otherwise the middle may be at a place without targets
            level, whole = Fraction(min(max(self.level, least), 1 - least)).limit_denominator(PARTS).as_integer_ratio()
            below = whole * (upto - counts) - level * upto[-1]
            above = whole * (upto[-1] - upto) - (whole - level) * upto[-1]
            unit = most * (2 * max(level, whole - level) if adjacency == "add-remove" else whole)
            lost = np.maximum(np.maximum(below, above), 0)
            place = select([Fraction(n, unit) for n in lost.tolist()], middle, adjacency, rng)
            epsilon -= middle
        padded = np.pad(upto, (CELLS + 1, CELLS), constant_values=(0, upto[-1]))
        outside = upto[-1] - padded[place + CELLS + 1 + SIDES] + padded[place + CELLS - SIDES]
        charges = DOUBLED * np.log2(2 * SIDES + 1) / mistake_rate(epsilon, adjacency)
        pairs = zip(outside.tolist(), charges.tolist(), strict=True)
        side = SIDES[select([Fraction(n, most) + Fraction(charge) for n, charge in pairs], epsilon, adjacency, rng)]
        return (2 * place + 1) / CELLS - 1, float(2 * side + 1) / CELLS


@dataclass(frozen=True, eq=False)
class Target:
    """The bounded target of a regression with losses of residuals: predictions minus targets."""

    form: LossForm
    middle: float
    half: float
    constant: Array  # Parameters with prediction 1 for all records, shape (dim,); 0 if there are none
    factors: dict[Expression, float]  # Of the residual in affine leaves

    @cached_property
    def level(self) -> float | None:
        """The quantile of targets that the best constant estimates if residuals are large; None without a constant."""
        losses, far, fields = self.capped().losses, FAR * self.half, self.form.template.record.continuous
        known = {field: fields[field.name].bounds[1] for loss in losses for field in loss.fields}
        sides = ({leaf: far * sign * factor for leaf, factor in self.factors.items()} for sign in (1, -1))
        above, below = (sum(float(evaluations(losses, known | side)[loss][0]) for loss in losses) for side in sides)
        part = below / (below + above) if below + above else 0.5  # weights may be 0 at the bounds of other fields
        return min(max(part, 1 / PARTS), 1 - 1 / PARTS) if self.constant.any() else None

    @once
    def capped(self, times: float = 1.0, width: float = 0.25 / CELLS, offset: float = 0.0) -> Template:
        """Return the template for targets moved to a range, with squares that continue as lines for long residuals."""
        done: dict[Expression, Expression] = {}
        for node in postorder(self.form.losses):
            args, most = [done[side] for side in node.args], times * CLOSE * self.half
            if (leaf := residual_of(node)) is None or (node.atom is HUBER and node.args[0] is not leaf):
                done[node] = node.operation(*args, **dict(node.options)) if args else node
            else:
                declared = node.option("M") if node.atom is HUBER else math.inf
                done[node] = huber(args[0], min(most * abs(self.factors[leaf]), declared))
        template, shift = self.form.template, self.form.space.unpack(offset * self.constant)
        own: dict[Expression, Expression] = {v: width * v + shift[v.name] for v in template.variables}
        inside = (replace(one, args=tuple(substitute(side, own) for side in one.args)) for one in template.constraints)
        return template.with_parts(losses=tuple(done[loss] for loss in self.form.losses), constraints=tuple(inside))

    def offset(self, where: tuple[float, float]) -> float:
        """Return the original prediction at 0 in the range."""
        return self.middle * (1 - where[1]) + self.half * where[0]

    def restored(self, parameters: Mapping[str, Array], where: tuple[float, float]) -> dict[str, Array]:
        """Return parameters that predict the original targets; they are in K, but for rounding."""
        theta = where[1] * self.form.space.pack(parameters) + self.offset(where) * self.constant
        return self.form.space.unpack(self.form.feasible.project(theta))


def residual_of(node: Expression) -> Expression | None:
    """Return the affine m if a node is the square or the Huber loss of m or of its positive part; otherwise None."""
    if node.atom is HUBER or (node.atom is POWER and node.option("p") == 2):
        (inner,) = (side for side in node.args[0].args if not is_zero(side)) if is_hinge(node.args[0]) else node.args
        return inner if inner.is_affine and inner.variables else None
    return None


def powers(node: Expression) -> set[int]:
    """Return the powers of residuals in a loss: rescaling changes the ratio of squares to absolute values."""
    if node.is_affine or not node.variables:
        return set()
    if residual_of(node) is not None:
        return {2}
    return {power for side in node.args for power in powers(side)} if node.atom in PASSING else {1}


def is_homogeneous(node: Expression) -> bool:
    """Return whether an expression is proportional to residuals, or is a loss of residuals that `capped` can rewrite."""
    public = [] if node.is_affine else [side for side in node.args if not side.variables]
    if TARGET in (field.name for side in public for field in side.fields):  # they would be other weights in a range
        return False
    linear = node.is_affine or node.atom in PASSING or node.atom is ABS or is_hinge(node)
    return linear or residual_of(node) is not None


def is_symmetric(piece: ConvexSet, region: Region) -> bool:
    """Return whether a piece of K is symmetric, and keeps its projection when shifted because each coordinate is read once."""
    if isinstance(piece, AxisHull):  # rounding may separate two reads
        here, bounds = piece.coordinates, np.array([region.lower, region.upper])
        read = sum(np.isin(cone.matrix.indices, here).sum() for cone in region.cones)
        single = read == len(here) and np.isinf(bounds[:, here]).all()
        return bool(single) and not piece.anchor.any() and np.array_equal(-piece.low, piece.high)
    low, high = piece.bounds()
    return isinstance(piece, NormBall | IntervalSet) and np.array_equal(-low, high)


@once
def target_of(form: LossForm) -> Target | None:
    """Return the target of a loss of residuals; None for other losses, constant predictions, or another kind of K."""
    box, feasible = form.template.record.continuous.get(TARGET), form.feasible
    if not isinstance(box, Box) or box.shape:
        return None
    usual = feasible.has_projection and FeasibleSet(form.space, ()).is_space
    usual = usual and all(is_symmetric(piece, feasible.region) for piece in feasible.pieces)
    usual = usual and ridge_of(form, free=False) is not None and all(map(is_homogeneous, postorder(form.losses)))
    usual = usual and len({power for loss in form.losses for power in powers(loss)}) == 1
    if not usual:
        return None
    smooth = [node for node in postorder(form.losses) if node.atom is HUBER and is_hinge(node.args[0])]
    moves = {residual_of(node): node.option("M") / 2 for node in smooth}  # of the corners of smoothed hinges
    place = form.bases.polynomials[TARGET].monomial.item()
    factors, fixed, varied = dict[Expression, float](), list[Array](), np.zeros(form.space.dim, dtype=bool)
    for leaf in dict.fromkeys(form.every_leaf):
        found = form.polynomial(leaf)
        free, degree = found.coordinate >= 0, (found.monomial >= 0).sum(axis=1)
        reads = (found.monomial == place).any(axis=1)
        alone, offset = reads & ~free & (degree == 1), found.coefficient[~free & (degree == 0)].sum()
        known = (free | alone | (degree == 0)).all() and offset in (0.0, moves.get(leaf))
        if found.size != 1 or reads.sum() != 1 or not alone.any() or not known:
            return None
        factors[leaf] = -found.coefficient[alone].item()
        weights = np.where(free & (degree == 0), found.coefficient / factors[leaf], 0.0)
        fixed.append(np.bincount(np.maximum(found.coordinate, 0), weights, form.space.dim).astype(float))
        varied[found.coordinate[free & (degree > 0)]] = True
    table = np.array(fixed)
    constant = np.where(varied, 0.0, np.linalg.lstsq(table * ~varied, np.ones(len(table)))[0])
    constant = constant if np.allclose(table @ constant, 1.0, 1e-9, 0.0) else np.zeros(len(constant))
    (low, high), one_number = map(float, box.bounds), not varied.any() and not np.ptp(table, axis=0).any()
    inside = all(np.array_equal(feasible.project(end * constant), end * constant) for end in (low, high))
    if one_number or not inside or not low < high or not (constant.any() or low == -high):
        return None
    return Target(form, low / 2 + high / 2, high / 2 - low / 2, constant, factors)


def counts_of(batch: Batch, bounds: tuple[float, float]) -> Indices:
    """Count targets by cell."""
    places = np.floor(((np.asarray(batch.fields[TARGET][:]) - bounds[0]) / bounds[1] + 1) / 2 * CELLS)
    return np.bincount(np.clip(places, 0, CELLS - 1).astype(np.int64), minlength=CELLS)


def rescaled_targets(batch: Batch, places: tuple[float, float, float, float]) -> Batch:
    """Return the batch with targets rescaled, so that a range fills the bounds."""
    middle, half, centre, width = places
    y = np.clip(((np.asarray(batch.fields[TARGET][:]) - middle) / half - centre) / width, -1.0, 1.0)
    return Batch(batch.fields | {TARGET: frozen(np.clip(middle + half * y, middle - half, middle + half))}, batch.group)
