"""Checks of constraints, and the constraints that domains of atoms imply, in constraints and in a regularizer."""

from collections.abc import Callable, Iterator, Sequence

from dpconvex.errors import NotPrivate
from dpconvex.expressions.atoms.arrangement import broadcast
from dpconvex.expressions.discipline import is_concave, is_convex, sign
from dpconvex.expressions.expansion import Expander
from dpconvex.expressions.expression import Constraint, Expression, postorder


def has_kinks(expression: Expression) -> bool:
    return any(node.atom is not None and bool(node.atom.kinks) for node in postorder([expression]))


def check_constraint(constraint: Constraint) -> None:
    """Raise if a constraint contains a field of the record, or is not convex by CVXPY's rules."""
    if constraint.fields:
        why = "a constraint mentions a field of the record, so the feasible set would depend on data"
        remedy = "state the constraint with public constants, or penalise its violation in the loss"
        raise NotPrivate(why, constraint, remedy)
    known = all(argument.is_affine for argument in constraint.args)
    if constraint.kind == "inequality":
        known = is_convex(constraint.args[0]) and is_concave(constraint.args[1])
    if not known:
        remedy = "bound convex functions from above and concave ones from below; let equations be affine"
        raise NotPrivate("a constraint is not convex by CVXPY's rules", constraint, remedy)


def domains(expression: Expression) -> Iterator[tuple[Expression, Expression, str]]:
    """Yield the conditions of atoms' domains: the atom's node, its argument, and the kind of condition."""
    for node in postorder([expression]):
        for argument, kind in zip(node.args, node.atom.domain(node), strict=True) if node.atom is not None else ():
            # At the end of its domain, a function of one argument is infinite: closing the domain adds no point.
            if kind is not None:
                yield node, argument, "not negative" if kind == "positive" and len(node.args) == 1 else kind


def not_negative(argument: Expression) -> Constraint:
    return Constraint("inequality", (broadcast(0.0, argument.shape), argument))


def with_domains(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Return the constraints together with the domains of their atoms, as further constraints."""
    found = list(constraints)
    for constraint in constraints:
        for _, argument, kind in (one for root in constraint.args for one in domains(root)):
            if kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
            elif kind in ("not negative", "positive") and argument.variables and is_concave(argument):
                found.append(not_negative(argument))
    return list(dict.fromkeys(found))


def implicit_constraints(
    regularizer: Expression, expander: Expander, least_entry: Callable[[Expression], float]
) -> list[Constraint]:
    """Return the domains of a regularizer's atoms, if K may leave them, as constraints; CVXPY keeps them implicitly."""
    found: list[Constraint] = []
    for node, argument, kind in domains(regularizer):
        if kind in ("symmetric", "semidefinite"):  # CVXPY would add symmetry as a constraint
            if not (argument.is_affine and expander.expand(argument).is_symmetric):
                why = f"{node.operation.name} is defined for symmetric matrices, and this one is not known to be symmetric"
                raise NotPrivate(why, node, "declare the variable symmetric (or PSD), and keep the matrix symmetric")
            if kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
            continue
        least = least_entry(argument)
        if kind == "positive" and not least > 0:
            why = "the divisor of squares in the regularizer is not known to be positive"
            remedy = "divide by a positive number, or bound the divisor away from zero by a constraint"
            raise NotPrivate(why, node, remedy)
        if least >= 0 or (not argument.is_affine and sign(argument) == 1):
            continue
        if not is_concave(argument) or not argument.variables:
            why = "an atom of the regularizer needs an argument that is not negative, and this one may be negative"
            remedy = "write an argument of known sign, or constrain the variables"
            raise NotPrivate(why, node, remedy)
        found.append(not_negative(argument))
    return found
