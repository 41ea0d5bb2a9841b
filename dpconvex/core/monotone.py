"""Whether an expression never grows, or never falls, in one of its leaves: signs of slopes, composed from what each atom says."""

from __future__ import annotations

from dpconvex.core.discipline import sign
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Expression


def direction(expression: Expression, leaf: Expression) -> int | None:
    """Return 1 if every occurrence of a leaf makes no entry fall, -1 if none makes one grow, 0 if neither is known.

    None means that the leaf does not occur.  All other leaves may have any values that their declared signs allow.
    """
    found: dict[Expression, int | None] = {}
    for node in postorder([expression]):
        if node is leaf:
            found[node] = 1
            continue
        signs, atom = [sign(argument) for argument in node.args], node.atom
        ways = {
            way * atom.slope(node, k, signs)
            for k, argument in enumerate(node.args)
            if atom is not None and (way := found[argument]) is not None
        }
        found[node] = None if not ways else ways.pop() if len(ways) == 1 else 0
        if atom is not None and any(found[a] is not None for a in node.args):
            asked = zip(atom.domain(node), node.args, strict=True)
            if not all(found[a] is None or kept(domain, a, found[a]) for domain, a in asked):
                found[node] = 0
    return found[expression]


def kept(domain: str | None, argument: Expression, way: int | None) -> bool:
    """Whether slopes are those in an atom's domain: it is never left, or a solver keeps to it and it grows with the leaf.

    Of an argument without variables nobody asks whether it is in the domain, and outside of it values mean nothing.
    """
    if domain is None:
        return True
    if domain not in ("positive", "not negative"):
        return False
    return sign(argument) == 1 or (way == 1 and bool(argument.variables))
