"""How many terms one record's loss adds up in one place, in any order: a function of public shapes."""

from collections import Counter
from collections.abc import Iterable

from dpconvex.core.atoms.arithmetic import ADD, MATMUL
from dpconvex.core.atoms.arrangement import BROADCAST, CONCATENATE, INDEX, RESHAPE, SELECT, TRANSPOSE
from dpconvex.core.atoms.extremes import MAX
from dpconvex.core.expression import Expression, postorder

# What adds up nothing, though shapes change.
NONE = {RESHAPE, TRANSPOSE, INDEX, CONCATENATE, MAX}


def longest_sum(losses: Iterable[Expression]) -> int:
    """Return the largest number of terms of a sum, of values or of slopes, besides inner products."""
    nodes = postorder(list(losses))
    # The slopes of a variable, or of what is made of it, come together from all places where it stands.
    uses = Counter(argument for node in nodes for argument in node.args if argument.variables)
    return max([*map(terms, nodes), *uses.values()], default=0)


def longest_product(losses: Iterable[Expression]) -> int:
    """Return the largest number of terms of an entry of a matrix product."""
    return max((node.args[0].shape[-1] for node in postorder(list(losses)) if node.atom is MATMUL), default=0)


def terms(node: Expression) -> int:
    """Return how many terms an expression adds up; all entries of its arguments where nothing is known."""
    if node.atom is None or node.atom in NONE:
        return 0
    if node.atom is ADD:
        return len(node.args)
    if node.atom is BROADCAST:  # their slopes
        return node.size // max(node.args[0].size, 1) if node.variables else 0
    if node.atom is MATMUL:
        return max(node.shape, default=0)  # slopes; see `longest_product` for values
    if node.atom is SELECT:
        return max(Counter(node.option("places")).values(), default=0) if node.variables else 0
    entrywise = all(argument.shape == node.shape for argument in node.args)
    return 0 if entrywise else max(argument.size for argument in node.args)
