"""Squares as such, and affine terms inside the log-sum-exp that they are added to, where the proofs see them best.

Before anything else reads a loss, it is rewritten, from the inside out, by identities that are exact in real arithmetic:

    c lse(m) + a = c lse(m + a/c)      for affine m and a, and c > 0, where no other term is curved
    ||m||^2 = sum(m^2) = sum_squares(m),  |m|^2 = m^2      for affine m
"""

from dpconvex.core.atoms.arrangement import BROADCAST, RESHAPE, reshape
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP
from dpconvex.core.atoms.norms import NORM, quad_over_lin
from dpconvex.core.atoms.powers import ABS, POWER, square
from dpconvex.core.atoms.products import DIVIDE, MULTIPLY
from dpconvex.core.atoms.sums import ADD, NEGATE, SUMMED, add
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Expression, constant

Terms = list[tuple[float, Expression]]


def normal_form(loss: Expression) -> Expression:
    """Return the normal form of a scalar expression: the expression itself, if no identity changes it.

    >>> from dpconvex.core.atoms.exponentials import log_sum_exp
    >>> from dpconvex.core.expression import Field, Variable
    >>> W, x = Variable.of((2, 3), "W", 1), Field.of((2,), "x")
    >>> print(normal_form(log_sum_exp(x @ W) / 2 - x @ W[:, 0] / 2))
    0.5 * log_sum_exp(x @ W - x @ W[:, 0])
    """
    found: dict[Expression, Expression] = {}
    for node in postorder([loss]):
        args = [found[argument] for argument in node.args]
        same = node.atom is None or all(new is old for new, old in zip(args, node.args, strict=True))
        made = as_squares(node if same or node.atom is None else node.atom(*args, **dict(node.options)))
        found[node] = absorbed(made) if made.atom is ADD and made.is_scalar and not made.is_affine else made
    return found[loss]


def as_squares(node: Expression) -> Expression:
    """Write the square of a Euclidean norm, and sums of squares, as a sum of squares, and that of |m| as m's."""
    inner = node.args[0] if node.args else node
    if not (inner.args and inner.args[0].is_affine):
        return node
    squared = node.atom is POWER and node.option("p") == 2
    if squared and (inner.atom is ABS or (inner.atom is NORM and inner.args[0].size == 1)):
        return square(reshape(inner.args[0], node.shape))
    if squared and inner.atom is NORM and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, inner.option("axis"), inner.option("keepdims"))
    if node.atom is SUMMED and inner.atom is POWER and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, node.option("axis"), node.option("keepdims"))
    return node


def terms(root: Expression) -> Terms:
    """Take sums and constant factors of a scalar apart."""
    if root.atom is ADD:
        return [term for argument in root.args for term in terms(argument)]
    if root.atom is NEGATE:
        return [(-factor, term) for factor, term in terms(root.args[0])]
    if root.atom in (RESHAPE, SUMMED, BROADCAST) and root.args[0].is_scalar:
        return terms(root.args[0])
    if root.atom is DIVIDE and root.args[1].is_constant and root.args[1].number.item() != 0:
        return [(factor / root.args[1].number.item(), term) for factor, term in terms(root.args[0])]
    for number, other in ((0, 1), (1, 0)) if root.atom is MULTIPLY else ():
        if root.args[number].is_constant:
            scale = root.args[number].number.item()
            return [(factor * scale, term) for factor, term in terms(root.args[other])]
    return [(1.0, root)]


def together(parts: Terms) -> Expression:
    """Add terms up, as numbers; nothing is 0."""
    scaled = ((factor, reshape(term, ())) for factor, term in parts)
    return add(*(t if c == 1 else -t if c == -1 else c * t for c, t in scaled)) if parts else constant(0.0)


def absorbed(root: Expression) -> Expression:
    """Put the affine terms of a sum into its log-sum-exp of affine entries, if that is its only curved term."""
    parts = terms(root)
    moving = [part for part in parts if part[1].is_affine and part[1].variables]
    curved = [part for part in parts if not part[1].is_affine]
    if len(curved) != 1 or not moving:
        return root
    ((factor, term),) = curved
    overflows = not all(1e-100 < abs(c) < 1e100 for c, _ in parts)
    if term.atom is not LOG_SUM_EXP or not term.args[0].is_affine or factor < 0 or overflows:
        return root
    inner = term.args[0] + together([(c / factor, part) for c, part in moving])
    fixed = [part for part in parts if not part[1].variables]
    return reshape(together([(factor, term.atom(inner, **dict(term.options))), *fixed]), root.shape)
