"""What constraints say by themselves: whether they are public and convex, where they have kinks and domains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpconvex.core.atoms.arrangement import repeated
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.constraint import Constraint
from dpconvex.core.discipline import is_concave, is_convex
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.errors import TemplateError, shorten

# Atoms with kinks that no condition of ours avoids; norms of order 1 and infinity have them too.
KINKED = (ABS, MAX, MAXIMUM, SUM_LARGEST, LAMBDA_MAX, SIGMA_MAX, NORM_NUC)


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
