"""A checker of certificates: replays a proof (docs/checking.md) with exact numbers and the standard library alone.

It shares no line with what makes proofs, and trusts none of their claims but those it lists.
"""

from dataclasses import dataclass
from fractions import Fraction

from dpconvex.checker.constants import Loss, constants
from dpconvex.checker.exact import ZERO, log, up
from dpconvex.checker.expansion import Template
from dpconvex.checker.mechanisms import TAIL, check_cover, check_noise, sensitivity, value
from dpconvex.checker.public import Feasible, is_modulus
from dpconvex.checker.reading import Rejected, number, numbers, parsed, part, require, whole, wholes
from dpconvex.checker.rows import Rows, vector
from dpconvex.checker.rules import Rules

__all__ = ["Rejected", "Report", "check"]


@dataclass(frozen=True)
class Report:
    """What was replayed: how many steps, on which theorems they rest, and what was not."""

    steps: int
    trusted: tuple[str, ...]
    unreplayed: tuple[str, ...]


def check(text: bytes) -> Report:
    """Replay a proof; raises `Rejected` at the first step that does not follow."""
    proof = parsed(text)
    claim, template = part(proof, "claim", dict), Template(proof)
    adjacency = part(claim, "privacy", dict).get("adjacency")
    require(adjacency in ("replace-one", "add-remove"), f"no adjacency: {adjacency!r}")
    rows = Rows(template, wholes(proof.get("cells"), 10**6), wholes(proof.get("parts"), 10**6))
    feasible = Feasible(template, part(proof, "constraints"))
    count = len(template.nodes) - 1
    roots = wholes(proof.get("losses"), count)
    rules, scalars = Rules(template, rows, feasible, roots), []
    for centre in part(proof, "centres"):
        rows.centres.append(rules.combination(centre))
    rows.lengths = numbers(part(proof, "lengths"))
    require(all(length > 0 for length in rows.lengths), "a length is not positive")
    for k in roots:
        (scalar,) = rules.walk(k)
        scalars.append(scalar)
    dimension = whole(claim.get("noise_dimension"), 10**7)
    require(claim["perturbed"] == "output" or rules.dimension() <= dimension, "the noise has fewer dimensions than gradients")
    losses: list[Loss] = [constants(scalar, rows, dimension) for scalar in scalars]
    if losses and "clip" not in claim.get("settings", {}):
        require(max(loss.length for loss in losses) <= value(claim, "gradient_bound"), "a gradient is longer than claimed")
        require(sensitivity(losses, rows, adjacency) <= value(claim, "sensitivity"), "gradients differ by more than claimed")
    size = whole(claim.get("size"), 10**18, 1)
    if claim["perturbed"] in ("objective", "output"):
        mu, regularizer = value(proof, "modulus"), whole(proof.get("regularizer"), count)
        require(mu > 0 and is_modulus(template, regularizer, size, value(claim, "added"), mu), "it is less strongly convex")
        claim["strong_convexity"] = mu
    left = value(claim["privacy"], "epsilon"), value(claim["privacy"], "delta")
    spent = check_cover(claim, part(claim, "cover", dict), len(template.weights))
    unreplayed = check_noise(claim, losses, rows, (left[0] - spent[0], left[1] - spent[1]))
    return Report(len(template.nodes) + len(losses), (), tuple(unreplayed))
