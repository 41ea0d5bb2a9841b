"""One way to write a loss: like terms together, and affine terms where the proofs see them best.

Constants belong to a function, and should not depend on how it is written.  Before anything else reads it, a loss is rewritten,
from the inside out, by identities that are exact in real arithmetic:

    c f + d f = (c + d) f,  0 f = 0                      for one and the same f
    c lse(m) + a = c lse(m + a/c)                        for affine m and a, and c > 0, where no other term is curved
    c logistic(m) - c m = c logistic(-m)
    ||m||^2 = sum(m^2) = sum_squares(m),  |m|^2 = m^2

A loss that none of these changes stays the very object that its user wrote, and so does one that is not convex: it is refused
later, in the words that it was written in.
"""

from fractions import Fraction

import numpy as np

from dpconvex.core.atoms.arrangement import BROADCAST, RESHAPE, reshape
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP, LOGISTIC, logistic
from dpconvex.core.atoms.norms import NORM, quad_over_lin
from dpconvex.core.atoms.powers import ABS, POWER, square
from dpconvex.core.atoms.products import DIVIDE, MULTIPLY
from dpconvex.core.atoms.sums import ADD, NEGATE, SUMMED, add
from dpconvex.core.discipline import is_convex
from dpconvex.core.expression import Expression, constant, postorder
from dpconvex.errors import MissingRule, NotPrivate

Terms = list[tuple[Fraction, Expression]]


def normal_form(loss: Expression) -> Expression:
    """Return the normal form of a scalar expression: the expression itself, if no identity changes it.

    >>> from dpconvex.core.atoms.exponentials import log_sum_exp
    >>> from dpconvex.core.expression import Field, Variable
    >>> W, x = Variable.of((2, 3), "W", 1), Field.of((2,), "x")
    >>> print(normal_form(log_sum_exp(x @ W) / 2 + log_sum_exp(x @ W) / 2 - x @ W[:, 0]))
    log_sum_exp(x @ W - x @ W[:, 0])
    """
    found: dict[Expression, Expression] = {}
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not read
            for node in postorder([loss]):
                args = [found[argument] for argument in node.args]
                same = node.atom is None or all(new is old for new, old in zip(args, node.args, strict=True))
                made = node if same or node.atom is None else node.atom(*args, **dict(node.options))
                made = as_squares(made)
                found[node] = made if made.is_affine or not made.is_scalar else gathered(made)
    except (NotPrivate, MissingRule, OverflowError, ValueError):
        return loss
    result = found[loss]
    return result if result is loss or (is_convex(loss) and is_convex(result)) else loss


def as_squares(node: Expression) -> Expression:
    """Write the square of a Euclidean norm, and sums of squares, as a sum of squares, and that of |m| as m's."""
    inner = node.args[0] if node.args else node
    squared = node.atom is POWER and node.option("p") == 2
    if squared and (inner.atom is ABS or (inner.atom is NORM and inner.args[0].size == 1)):
        return square(reshape(inner.args[0], node.shape))
    if squared and inner.atom is NORM and inner.option("p") == 2:
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
    return add(*(times(factor, reshape(term, ())) for factor, term in parts)) if parts else constant(0.0)


def times(factor: Fraction, term: Expression) -> Expression:
    """Multiply by a number, which is rounded only here."""
    number = float(factor)
    if factor != 0 and number == 0:
        raise OverflowError("a factor rounds to 0")
    return term if number == 1 else -term if number == -1 else number * term


def gathered(root: Expression) -> Expression:
    """Collect like terms of a sum, and move affine ones into the curved one, if there is only one."""
    found: dict[Expression, Fraction] = {}
    parts = terms(root)
    for factor, term in parts:
        found[term] = found.get(term, Fraction(0)) + factor
    kept = [(factor, term) for term, factor in found.items() if factor]
    curved = [part for part in kept if not part[1].is_affine]
    if len(curved) == 1 and curved[0][0] > 0:
        moving = [part for part in kept if part[1].is_affine and part[1].variables]
        merged = absorbed(*curved[0], moving)
        if merged is not None:
            fixed = [part for part in kept if not part[1].variables]
            return reshape(together([*merged, *fixed]), root.shape)
    return root if len(kept) == len(parts) else reshape(together(kept), root.shape)


def absorbed(factor: Fraction, term: Expression, moving: Terms) -> Terms | None:
    """Put affine terms into a log-sum-exp or a logistic function of affine entries; None if there is nothing to do."""
    inner = term.args[0]
    if term.atom not in (LOGISTIC, LOG_SUM_EXP) or not inner.is_affine:
        return None
    if term.atom is LOGISTIC:
        own = terms(inner)
        opposite = sorted((-factor * scale, id(part)) for scale, part in own if part.variables)
        if not moving or sorted((scale, id(part)) for scale, part in moving) != opposite:
            return None
        return [(factor, logistic(-inner)), *((factor * scale, part) for scale, part in own if not part.variables)]
    if not moving:
        return None
    added = together(moving)
    return [(factor, term.atom(inner + (added if factor == 1 else added / float(factor)), **dict(term.options)))]
