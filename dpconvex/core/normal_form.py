"""One way to write a function: what is read is rewritten by identities that are exact in real arithmetic.

    ||m||^2 = sum(m^2) = sum_squares(m),  |m|^2 = m^2
    c lse(m) + a = c lse(m + a/c)                        for affine m and a, and c > 0, where no other term is curved
    c logistic(m) - c m = c logistic(-m),  0 m = 0

Constants belong to a function, and should not depend on how it is written; proofs see these forms best.
"""

from fractions import Fraction

from dpconvex.core.atoms.arithmetic import ADD, DIVIDE, MULTIPLY, NEGATE, SUMMED, add
from dpconvex.core.atoms.arrangement import BROADCAST, RESHAPE, reshape
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP, LOGISTIC, logistic
from dpconvex.core.atoms.norms import NORM, quad_over_lin
from dpconvex.core.atoms.powers import ABS, POWER, square
from dpconvex.core.expression import Expression, constant

Terms = list[tuple[Fraction, Expression]]


def normal(node: Expression) -> Expression:
    """Return the normal form of an atom whose arguments have theirs: the atom itself, if no identity changes it.

    >>> from dpconvex.core.atoms.exponentials import log_sum_exp
    >>> from dpconvex.core.expression import Field, Variable
    >>> W, x = Variable.of((2, 3), "W", 1), Field.of((2,), "x")
    >>> print(normal(log_sum_exp(x @ W) - x @ W[:, 0]))
    log_sum_exp(x @ W - x @ W[:, 0])
    """
    inner = node.args[0] if node.args else node
    squared = node.atom is POWER and node.option("p") == 2
    if squared and (inner.atom is ABS or (inner.atom is NORM and inner.args[0].size == 1)):
        return square(reshape(inner.args[0], node.shape))
    if squared and inner.atom is NORM and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, inner.option("axis"), inner.option("keepdims"))
    if node.atom is SUMMED and inner.atom is POWER and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, node.option("axis"), node.option("keepdims"))
    return absorbed(node) if node.atom is ADD and node.is_scalar and not node.is_affine else node


def absorbed(node: Expression) -> Expression:
    """Put affine terms of a sum into its only curved one, a log-sum-exp or a logistic function of affine entries; 0 m is 0."""
    curved = [part for part in node.args if not part.is_affine]
    affine = [part for part in node.args if part.is_affine and part.variables]
    moving = [part for part in affine if any(scale for scale, _ in terms(part))]
    fixed = [part for part in node.args if not part.variables]
    if len(moving) < len(affine):
        node = add(*curved, *moving, *fixed)
    (factor, term), *more = terms(curved[0])
    if more or len(curved) > 1 or not moving or not 1e-300 < factor < 1e300:
        return node
    if term.atom is LOG_SUM_EXP and term.args[0].is_affine:
        shift = reshape(add(*moving), ())
        merged = term.atom(term.args[0] + (shift if factor == 1 else shift / float(factor)), **dict(term.options))
    elif term.atom is LOGISTIC and term.args[0].is_affine:
        own = terms(term.args[0])
        opposite = sorted((-factor * scale, id(part)) for scale, part in own if part.variables)
        if sorted((scale, id(part)) for scale, part in terms(add(*moving))) != opposite:
            return node
        merged = logistic(-term.args[0])
        fixed.append(times(factor, together([(scale, part) for scale, part in own if not part.variables])))
    else:
        return node
    return add(*(reshape(part, node.shape) for part in (times(factor, merged), *fixed)))


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
    return term if number == 1 else -term if number == -1 else number * term
