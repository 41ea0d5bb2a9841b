"""One way to write a loss: like terms together, and affine terms where the proofs see them best.

Constants belong to a function, and should not depend on how it is written.  Before anything else reads it, a loss is rewritten,
from the inside out, by identities that are exact in real arithmetic:

    c f + d f = (c + d) f                                          for one and the same f
    c lse(m) + a = c lse(m + a/c),  c max(m) + a = c max(m + a/c)  for affine a and c > 0, where no other term is curved
    -min(a, b) = max(-a, -b),  ||m||^2 = sum(m^2) = sum_squares(m),  f(|m|) = f(m) for the Huber function and squares
    0 f = 0
    lse(a, b) = a + logistic(b - a)                                where nothing of theta is left of a; lse(0, m) is logistic(m)

What is proved is then proved about the loss that is minimised.  A loss that none of these changes stays the very object that its
user wrote, and so does one that is not convex or cannot be read: it is refused later, in the words that it was written in.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpconvex.core.atoms.arrangement import BROADCAST, CONCATENATE, RESHAPE, entry_at, hstack, reshape
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP, LOGISTIC, log_sum_exp, logistic
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, MINIMUM, maximum
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, HUBER, POWER
from dpconvex.core.atoms.products import DIVIDE, MULTIPLY
from dpconvex.core.atoms.squares import quad_over_lin
from dpconvex.core.atoms.sums import ADD, NEGATE, SUMMED, add
from dpconvex.core.discipline import is_convex
from dpconvex.core.evaluate import postorder, substituted
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression, Variable, constant
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Fields
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import MissingRule, NotPrivate, TemplateError

Terms = list[tuple[Fraction, Expression]]
ZERO = constant(0.0)


def normal_forms(losses: Sequence[Expression], variables: Sequence[Variable], record: Fields) -> tuple[Expression, ...]:
    try:
        expander = Expander(Space(variables), Bases(record))
    except TemplateError:
        return tuple(losses)
    return tuple(normal_form(loss, expander) for loss in losses)


def normal_form(loss: Expression, expander: Expander) -> Expression:
    """Return the normal form of a scalar expression: the expression itself, if no identity changes it.

    >>> from dpconvex.core.expression import Field
    >>> from dpconvex.core.record_domains import Ball
    >>> from dpconvex.language.record import Record
    >>> W, x = Variable.of((2, 3), "W", 1), Field.of((2,), "x")
    >>> written = log_sum_exp(x @ W) / 2 + log_sum_exp(x @ W) / 2 - x @ W[:, 0]
    >>> print(normal_form(written, Expander(Space([W]), Bases(Record(x=Ball(2))))))
    log_sum_exp(x @ W - x @ W[:, 0])
    """
    found: dict[Expression, Expression] = {}
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not read
            for node in postorder([loss]):
                args = [found[argument] for argument in node.args]
                kept = node.atom is None or all(new is old for new, old in zip(args, node.args, strict=True))
                made = node if kept or node.atom is None else node.atom(*args, **dict(node.options))
                made = respelled(made)
                found[node] = made if made.is_affine or not made.is_scalar else gathered(made, expander)
    except (NotPrivate, MissingRule, OverflowError, ValueError):
        return loss
    result = found[loss]
    return result if result is loss or (is_convex(loss) and is_convex(result)) else loss


def respelled(node: Expression) -> Expression:
    """Write minus a minimum as a maximum; the square of a Euclidean norm, and sums of squares, as such a sum."""
    if node.atom is None or not node.args:
        return node
    inner = node.args[0]
    if node.atom is NEGATE and inner.atom is MINIMUM:
        return maximum(*(-argument for argument in inner.args))
    square = node.atom is POWER and node.option("p") == 2
    if (square or node.atom is HUBER) and (inner.atom is ABS or (inner.atom is NORM and inner.args[0].size == 1)):
        return node.atom(reshape(inner.args[0], node.shape), **dict(node.options))  # even functions
    if square and inner.atom is NORM and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, inner.option("axis"), inner.option("keepdims"))
    if node.atom is SUMMED and inner.atom is POWER and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, node.option("axis"), node.option("keepdims"))
    return node


def terms(root: Expression) -> Terms:
    """Take sums and constant factors of a scalar apart; factors are exact."""
    if root.atom is ADD:
        return [term for argument in root.args for term in terms(argument)]
    if root.atom is NEGATE:
        return [(-factor, term) for factor, term in terms(root.args[0])]
    if root.atom in (RESHAPE, SUMMED, BROADCAST) and root.args[0].is_scalar:
        return terms(root.args[0])
    for number, other in ((0, 1), (1, 0)) if root.atom in (MULTIPLY, DIVIDE) else ():
        if root.args[number].is_constant and (root.atom is MULTIPLY or number == 1):
            value = Fraction(root.args[number].number.item())
            if value == 0 and root.atom is DIVIDE:
                break
            scale = value if root.atom is MULTIPLY else 1 / value
            return [(factor * scale, term) for factor, term in terms(root.args[other])]
    return [(Fraction(1), root)]


def together(parts: Terms) -> Expression:
    """Add terms up, as numbers; nothing is 0."""
    return add(*(times(factor, scalar(term)) for factor, term in parts)) if parts else ZERO


def times(factor: Fraction, term: Expression) -> Expression:
    """Multiply by a number, which is rounded only here."""
    number = float(factor)
    if factor != 0 and number == 0:
        raise OverflowError("a factor rounds to 0")
    return term if number == 1 else -term if number == -1 else number * term


def gathered(root: Expression, expander: Expander) -> Expression:
    """Collect like terms of a sum, and move affine ones into the curved one, if there is only one."""
    curved: dict[Expression, Fraction] = {}
    affine, parts = Terms(), terms(root)
    for factor, term in parts:
        if term.is_affine:
            affine.append((factor, term))
        else:
            curved[term] = curved.get(term, Fraction(0)) + factor
    curved = {term: factor for term, factor in curved.items() if factor}
    if len(curved) == 1:
        ((term, factor),) = curved.items()
        moving = [part for part in affine if part[1].variables]
        found = absorbed(factor, term, moving, expander) if factor > 0 else None
        if found is not None:
            return reshape(together([*found, *(part for part in affine if part not in moving)]), root.shape)
    if len(curved) + len(affine) == len(parts):
        return root
    return reshape(together([(factor, term) for term, factor in curved.items()] + affine), root.shape)


def absorbed(factor: Fraction, term: Expression, moving: Terms, expander: Expander) -> Terms | None:
    """Put affine terms into a log-sum-exp, a logistic function or a maximum of affine entries; None if there is nothing to do."""
    if term.atom not in (LOGISTIC, LOG_SUM_EXP, MAX, MAXIMUM) or not all(a.is_affine for a in term.args):
        return None
    added = together(moving)
    shift = added if factor == 1 else added / float(factor)
    if term.atom is MAX or (term.atom is LOG_SUM_EXP and term.args[0].size != 2):
        return [(factor, term.atom(term.args[0] + shift, **dict(term.options)))] if moving else None
    if not moving and term.atom is not LOG_SUM_EXP:
        return None
    inner = term.args[0]
    if term.atom is LOG_SUM_EXP and inner.atom is CONCATENATE and len(inner.args) == 2:
        points = [scalar(part) for part in inner.args]
    elif term.atom is LOG_SUM_EXP:
        points = [entry_at(inner, np.unravel_index(k, inner.shape, order="F")) for k in range(2)]
    else:
        points = [*([ZERO] if term.atom is LOGISTIC else []), *map(scalar, term.args)]
    moved = [difference(point, -shift) for point in points] if moving else points
    still = [not depends(point, expander) for point in moved]
    if term.atom is MAXIMUM:
        if len(points) == 2 and not any(still) and not all(point.variables for point in points):
            return None  # what rounds off kinks knows a hinge
        settled = [fixed(point, expander) if zero else point for point, zero in zip(moved, still, strict=True)]
        return [(factor, maximum(*settled))]
    for base, other in ((0, 1), (1, 0)):
        if still[base]:
            rest = fixed(moved[base], expander)
            return [
                (factor, logistic(difference(points[other], points[base]))),
                *([(factor, rest)] if rest is not ZERO else []),
            ]
    return [(factor, log_sum_exp(hstack(*moved)))] if moving else None


def scalar(expression: Expression) -> Expression:
    """Return an array of one entry as a number."""
    while expression.atom is RESHAPE and expression.args[0].is_scalar:
        expression = expression.args[0]
    return reshape(expression, ())


def difference(one: Expression, other: Expression) -> Expression:
    return -other if one is ZERO else one if other is ZERO else one - other


def depends(expression: Expression, expander: Expander) -> bool:
    """Whether an affine expression changes with the parameters for any record."""
    return bool(expression.variables) and bool((expander.expand_leaf(expression).coordinate >= 0).any())


def fixed(expression: Expression, expander: Expander) -> Expression:
    """Drop what multiplies parameters from an expression that does not change with them."""
    if not expression.variables:
        return expression
    zeros: dict[Expression, Expression] = {v: constant(np.zeros(v.shape)) for v in expression.variables}
    return substituted(expression, zeros) if len(expander.expand_leaf(expression).coordinate) else ZERO
