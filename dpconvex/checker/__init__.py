"""A checker of certificates: replays a proof (docs/checking.md) with exact numbers and the standard library alone.

It shares no line with what makes proofs, and believes none of their claims.
"""

from dataclasses import dataclass
from typing import Any

from dpconvex.checker.constants import Loss, constants
from dpconvex.checker.expansion import Template
from dpconvex.checker.mechanisms import check_cover, check_noise, sensitivity, value
from dpconvex.checker.public import Feasible, is_modulus
from dpconvex.checker.reading import Rejected, Unreplayed, numbers, parsed, part, require, whole, wholes
from dpconvex.checker.rows import Rows
from dpconvex.checker.rules import Rules, dimension
from dpconvex.checker.statistics import check_statistics

TRUSTED = (
    "what is proved about mechanisms (docs/theory.md, sections 6 to 8, 13 and 18, and docs/release.md)",
    "noise is drawn from the law that the certificate names, and its norm stays below its cap but for a probability of 2^-100",
    "the computed answer lies within the tolerance of the exact one: each fit proves that, of its own data",
    "one record is one person, and every array in the template is public",
)


@dataclass(frozen=True)
class Report:
    """What was replayed: how many steps, what is trusted, and what there is no rule for."""

    steps: int
    trusted: tuple[str, ...]
    unreplayed: tuple[str, ...]


def check(text: bytes) -> Report:
    """Replay a proof.

    Raises
    ------
    Rejected
        At the first step that does not follow, with what it is; and of what is no proof.
    """
    trusted: tuple[str, ...] = TRUSTED
    try:
        proof = parsed(text)
        template, claim = Template(proof), part(proof, "claim", dict)
        if any(node.name == "declared" for node in template.nodes):
            trusted = (*TRUSTED, "functions that a user declared have the declared slopes")
        steps = replay(proof, template, claim)
    except Unreplayed as missing:
        return Report(0, trusted, (str(missing),))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Rejected(f"it is no proof: {type(error).__name__}, {error}") from None
    return Report(steps, trusted, ())


def replay(proof: dict[str, Any], template: Template, claim: dict[str, Any]) -> int:
    kind, adjacency = part(claim, "perturbed", str), part(claim, "privacy", dict).get("adjacency")
    require(kind in ("objective", "output", "gradients", "statistics"), f"nothing is known of noise on the {kind}")
    require(adjacency in ("replace-one", "add-remove"), f"no adjacency: {adjacency!r}")
    last, settings = len(template.nodes) - 1, part(claim, "settings", dict)
    clip = value(settings, "clip") * (2 if adjacency == "replace-one" else 1)
    clipped = kind == "gradients" and 0 < clip <= value(claim, "sensitivity")
    losses: list[Loss] = []
    if kind != "statistics":
        rows = Rows(template, wholes(proof.get("cells"), 10**6), wholes(proof.get("parts"), 10**6))
        feasible, roots = Feasible(template, part(proof, "constraints")), wholes(proof.get("losses"), last)
        rules, p = Rules(template, rows, feasible, roots), whole(claim.get("noise_dimension"), 10**7)
        require(len(roots) > 0, "the proof has no losses")
        require(kind == "output" or dimension(rules.coefficients) <= p, "the noise has fewer dimensions than gradients")
        if not clipped:
            rows.lengths = numbers(part(proof, "lengths"))
            require(all(length > 0 for length in rows.lengths), "a length is not positive")
            rows.centres = [rules.combination(centre) for centre in part(proof, "centres")]
            losses = [constants(rules.walk(k)[0], rows, p) for k in roots]
            require(
                max(loss.length for loss in losses) <= value(claim, "gradient_bound"),
                "a gradient is longer than claimed",
            )
            claimed = value(claim, "sensitivity")
            require(
                sensitivity(losses, rows, adjacency, claimed) <= claimed,
                "neighbours' gradients differ by more than claimed",
            )
        if claim.get("noise") == "matrix":
            if not part(proof, "layout"):
                raise Unreplayed("in which layout gradients are matrices of rank one")
            sides = [whole(value(settings, key).numerator, 10**6) for key in ("rows", "columns")]
            require(
                rules.is_rank_one(part(proof, "layout"), *sides), "gradients are no matrices of rank one in this layout"
            )
        if kind in ("objective", "output"):
            claim["strong_convexity"] = mu = value(proof, "modulus")
            size, regularizer = whole(claim.get("size"), 10**18, 1), whole(proof.get("regularizer"), last)
            strong = is_modulus(template, feasible, regularizer, size, value(claim, "added"), mu)
            require(mu > 0 and strong, "the objective is less strongly convex than claimed")
    else:
        check_statistics(part(proof, "moments"), template.record, claim, adjacency)
    released = whole(claim.get("noise_dimension"), 10**7) if kind == "statistics" else len(template.weights)
    epsilon, delta = check_cover(claim, part(claim, "cover", dict), released)
    left = value(claim["privacy"], "epsilon") - epsilon, value(claim["privacy"], "delta") - delta
    check_noise(claim, losses, rows if losses else None, left)
    return len(template.nodes) + len(losses)
