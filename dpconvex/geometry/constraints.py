"""What constraints say by themselves: are they public and convex, have they kinks; and domains of atoms, as constraints."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpconvex.core.atoms.arrangement import repeated
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.discipline import is_concave, is_convex, sign
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Constraint, Expression, postorder
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate, TemplateError, shorten

# Atoms with kinks that no condition of ours avoids; norms of order 1 and infinity have them too.
KINKED = (ABS, MAX, MAXIMUM, SUM_LARGEST, LAMBDA_MAX, SIGMA_MAX, NORM_NUC)
# Entries of a symmetric matrix may differ from their mirror images by this fraction of the largest.
SYMMETRIC = 1e-12


def has_kinks(expression: Expression) -> bool:
    return any(
        node.atom in KINKED or (node.atom is NORM and node.option("p") in (1.0, np.inf))
        for node in postorder([expression])
    )


def states_convex_set(constraint: Constraint) -> bool:
    if constraint.kind == "inequality":
        smaller, larger = constraint.args
        return is_convex(smaller) and is_concave(larger)
    return all(argument.is_affine for argument in constraint.args)


def check(constraint: Constraint, space: Space) -> None:
    """Refuse what is not public, not about these variables, or not convex."""
    text = shorten(str(constraint))
    if constraint.fields:
        named = ", ".join(sorted(field.name for field in constraint.fields))
        raise TemplateError(f"the constraint {text} mentions {named}: constraints are public, without parameters.")
    foreign = [variable.name for variable in constraint.variables if variable.name not in space.blocks]
    if foreign:
        raise TemplateError(f"the constraint {text} mentions unknown variables: {', '.join(sorted(foreign))}.")
    if not states_convex_set(constraint):
        raise TemplateError(f"the constraint {text} is not convex by the rules of DCP; rewrite it with convex atoms.")


@dataclass(frozen=True, eq=False)
class Condition:
    """What the domain of an atom asks of one of its arguments."""

    atom: Expression
    argument: Expression
    kind: str


def domains(expression: Expression) -> Iterator[Condition]:
    """Yield the conditions of all atoms in a tree."""
    for node in postorder([expression]):
        if node.atom is None:
            continue
        for argument, kind in zip(node.args, node.atom.domain(node), strict=True):
            # At the end of its domain, a function of one argument is infinite: to close the domain adds no point.
            if kind is not None:
                yield Condition(node, argument, "not negative" if kind == "positive" and len(node.args) == 1 else kind)


def not_negative(argument: Expression) -> Constraint:
    return Constraint("inequality", (repeated(0.0, argument.shape), argument))


def with_domains(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Add where the atoms in constraints are defined, as constraints of their own."""
    found = list(constraints)
    for constraint in constraints:
        more = [rel_entr(*constraint.args[1:])] if constraint.kind == "exponential cone" else []
        for condition in (one for root in (*constraint.args, *more) for one in domains(root)):
            argument = condition.argument
            if condition.kind in ("not negative", "positive") and argument.variables and is_concave(argument):
                found.append(not_negative(argument))
            elif condition.kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
    return list(dict.fromkeys(found))


def implicit_constraints(
    regularizer: Expression, expander: Expander, least_entry: Callable[[Expression], float]
) -> list[Constraint]:
    """Return the domains of a regularizer's atoms that do not contain K, as constraints; entries are bounded over K from below.

    CVXPY keeps them implicitly: ``power(w, 3)`` is convex because w is not negative there.  Compiled code would leave them.
    """
    found: list[Constraint] = []
    for condition in domains(regularizer):
        argument = condition.argument
        if condition.kind in ("symmetric", "semidefinite"):
            check_symmetric(condition, expander)
            if condition.kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
            continue
        least = least_entry(argument)
        if condition.kind == "positive" and not least > 0:
            raise NotPrivate(
                "the divisor of squares in the regularizer is not known to be positive",
                condition.atom,
                "divide by a positive number, or bound the divisor away from zero by a constraint",
            )
        if least >= 0 or (not argument.is_affine and sign(argument) == 1):
            continue
        if not is_concave(argument) or not argument.variables:
            raise NotPrivate(
                "an atom of the regularizer is defined only where its argument is not negative, which is not known",
                condition.atom,
                "write an argument whose sign follows from its parts, or constrain the variables",
            )
        found.append(not_negative(argument))
    return found


def check_symmetric(condition: Condition, expander: Expander) -> None:
    """Refuse a spectral function of a matrix that is not symmetric for all parameters: CVXPY would add that as a constraint."""
    name = condition.atom.atom.name if condition.atom.atom is not None else "the function"
    if not (condition.argument.is_affine and is_symmetric(expander.expand(condition.argument))):
        raise NotPrivate(
            f"{name} is defined for symmetric matrices, and this one is not known to be symmetric",
            condition.atom,
            "declare the variable symmetric (or PSD), and keep the matrix symmetric",
        )


def is_symmetric(matrix: Polynomial) -> bool:
    """Whether an affine matrix is symmetric for all parameters and records, but for the rounding of its coefficients."""
    difference = matrix + matrix.gathered(matrix.numbers().T).scaled(-1.0)
    return bool((np.abs(difference.coefficient) <= SYMMETRIC * np.abs(matrix.coefficient).max(initial=0.0)).all())
