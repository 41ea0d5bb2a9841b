"""A checker of certificates: replays a proof (docs/checking.md) with exact numbers and the standard library alone.

It shares no line with what makes proofs, and believes none of their claims.
"""

from dataclasses import dataclass
from typing import Any

from dpconvex.checker.constants import Loss, constants
from dpconvex.checker.expansion import Template
from dpconvex.checker.mechanisms import ROOM, RUN, RUNS, check_noise, moved, person, promised
from dpconvex.checker.public import Feasible, is_modulus
from dpconvex.checker.reading import Rejected, Unreplayed, numbers, parsed, part, require, spend, value, whole, wholes
from dpconvex.checker.rows import Rows
from dpconvex.checker.rules import Rules, dimension
from dpconvex.checker.statistics import check_statistics

TRUSTED = (
    "what is proved about mechanisms (docs/theory.md, sections 4 to 11, 16 and 18, and docs/release.md, section 3)",
    "noise is drawn from the law that the certificate names, and its norm stays below its cap but for a probability of 2^-100",
    "the computed answer lies within the tolerance of the exact one: each fit proves that, of its own data",
    "what rounding does to sums of gradients is within the part of the sensitivity that is for it, where steps are released",
    "the graph, the losses of all labels, and the stages are those of the fit; words and numbers that no inequality uses",
    "one record is one person; arrays in the template are public, and functions that a user declares are as they are declared",
)

CLAIMS = {"privacy", "mechanism", "size", "gradient_bound", "sensitivity", "strong_convexity", "added", "hessian_bound"}
CLAIMS |= {"jacobian_epsilon", "noise_epsilon", "noise_dimension", "noise_scale", "tolerance", "perturbed", "noise"}
CLAIMS |= {"settings", "cover", "clustering", "whitening"}
# Public numbers that cost nothing, or are looked at.
SETTINGS = {"clip", "steps", "step_size", "largest_step", "momentum", "radius", "smoothing", "sampling", "rows"}
SETTINGS |= {"length_steps", "averaged", "directions"}
SETTINGS |= {"columns", "degrees_of_freedom", "nuclear_sensitivity", "weight_of_linear_statistics"}
SETTINGS |= {"statistics_of_residuals", "whitened_field", "multiplier", RUNS, *RUN.split()}
WEIGHT = "weight_of_a_record"
BEST_RUN = (
    "runs of other candidates keep what this one keeps, one record changes one mistake, and their number stays secret"
)


@dataclass(frozen=True)
class Report:
    """What was replayed: how many steps, what is trusted, and what there is no rule for."""

    steps: int
    trusted: tuple[str, ...]
    unreplayed: tuple[str, ...]

    def __str__(self) -> str:
        if self.unreplayed:
            return f"not replayed: {'; '.join(self.unreplayed)}"
        return f"replayed: {self.steps} steps, {len(self.trusted)} facts trusted"


def check(text: bytes) -> Report:
    """Replay a proof.

    Raises
    ------
    Rejected
        At the first step that does not follow, with what it is; and of what is no proof.
    """
    try:
        proof = parsed(text)
        return replay(proof, Template(proof), part(proof, "claim", dict))
    except Unreplayed as missing:
        return Report(0, TRUSTED, (str(missing),))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Rejected(f"it is no proof: {type(error).__name__}, {error}") from None


def replay(proof: dict[str, Any], template: Template, claim: dict[str, Any]) -> Report:
    kind, adjacency = part(claim, "perturbed", str), part(claim, "privacy", dict).get("adjacency")
    require(kind in ("objective", "output", "gradients", "statistics"), f"nothing is known of noise on the {kind}")
    require(adjacency in ("replace-one", "add-remove"), f"no adjacency: {adjacency!r}")
    settings, p = part(claim, "settings", dict), whole(claim.get("noise_dimension"), 10**7)
    require({*claim} <= CLAIMS and "tolerance" in claim, "it claims something else than a certificate, or less")
    if {*settings} - SETTINGS:
        raise Unreplayed(f"what pays for {', '.join(sorted({*settings} - SETTINGS))}")
    known = {"epsilon", "delta", "adjacency", "unit", "most", "keep"}
    require({*claim["privacy"]} <= known, "it guarantees something else")
    most, _ = person(claim)
    if most > 1 and (RUNS in settings or claim.get("clustering") or "sampling" in settings):
        raise Unreplayed("runs, clusters and samples for people with several records")
    require(not any(is_negative(value) for value in claim.values()), "a number of the claim is negative")
    losses, rows = list[Loss](), None
    if claim["privacy"].get("keep") == "weights" and not is_weighted(proof, template):
        raise Unreplayed("how the losses are weighted")
    if kind == "statistics":
        check_statistics(part(proof, "moments"), template.record, claim, adjacency, *person(claim))
    else:
        feasible = Feasible(template, part(proof, "constraints"))
        try:
            losses, rows = bounded(proof, template, claim, feasible)
        except Rejected as error:
            if feasible.unread:
                raise Unreplayed(f"{error}, by what is read of the constraints") from None
            raise
        root = whole(proof.get("regularizer"), len(template.nodes) - 1)
        require(not template.nodes[root].private, "the regularizer reads the record")
        if kind in ("objective", "output"):
            shown, mu = value(claim, "strong_convexity"), value(proof, "modulus")
            require(mu <= shown <= mu * ROOM, "another strong convexity is shown than what is proved")
            claim["strong_convexity"] = mu
            size = whole(claim.get("size"), 10**18, 1)
            strong = mu > 0 and is_modulus(template, feasible, root, size, value(claim, "added"), mu)
            require(strong, "the objective is less strongly convex than claimed")
    released = p if kind == "statistics" else len(template.weights)
    more = check_noise(claim, losses, rows, promised(claim, template.record, released), proof.get("sampled"))
    unit = claim["privacy"].get("unit")
    one = (
        f"nobody has more than {most} of the records ({unit}), of which a fit keeps so many; sums of theirs are clipped"
    )
    own = (*TRUSTED[:-1], one, TRUSTED[-1].partition("; ")[2]) if unit else TRUSTED
    trusted = (*own, *more, *((BEST_RUN,) if RUNS in settings else ()))
    return Report(len(template.nodes) + len(losses), trusted, ())


def is_weighted(proof: dict[str, Any], template: Template) -> bool:
    """Whether every loss, or every moment, is a multiple of a weight between 0 and 1."""
    record, nodes = template.record, template.nodes
    base = record.owner[record.starts[WEIGHT]] if WEIGHT in record.starts else None
    if base is None or record.sizes[base] != 1 or record.lower[record.starts[WEIGHT]] < 0 or record.squares[base] > 1:
        return False
    heads = [nodes[k] for k in wholes(proof.get("losses"), len(nodes) - 1)]
    products = [
        head.name == "multiply" and any(nodes[a].options.get("field") == WEIGHT for a in head.args) for head in heads
    ]
    kinds = [wholes(item.get("bases"), len(record.sizes) - 1) for item in part(proof, "moments")]
    return all(products) and all(base in kind for kind in kinds)


def is_negative(value: Any) -> bool:
    if isinstance(value, dict):
        return any(is_negative(part) for key, part in value.items() if key != "eta")  # of the law of runs
    return value.startswith("-") if isinstance(value, str) else isinstance(value, int) and value < 0


def bounded(
    proof: dict[str, Any], template: Template, claim: dict[str, Any], feasible: Feasible
) -> tuple[list[Loss], Rows | None]:
    """Check the dimension of the noise, and what is claimed of one record's gradients; none of it if they are clipped."""
    kind, adjacency, settings = claim["perturbed"], claim["privacy"]["adjacency"], claim["settings"]
    rows = Rows(template, wholes(proof.get("cells"), 10**6), wholes(proof.get("parts"), 10**6))
    roots, p = wholes(proof.get("losses"), len(template.nodes) - 1), claim["noise_dimension"]
    spend(2 * len(roots) ** 2)
    require(len(roots) > 0 and all(template.nodes[k].size == 1 for k in roots), "there is no loss, or one is no number")
    rules = Rules(template, rows, feasible, roots)
    least = len(template.weights) if kind == "output" else dimension(rules.coefficients)
    require(least <= p <= len(template.weights), "the noise has other dimensions than what it hides")
    apart, clip, bound = value(claim, "sensitivity"), value(settings, "clip"), value(claim, "gradient_bound")
    weight = person(claim)[1] if kind == "gradients" and clip else 1  # of what is clipped
    pulled = kind == "gradients" and 0 < clip * (2 if adjacency == "replace-one" else 1) <= apart
    if pulled and clip <= bound:
        return [], None
    rows.tangents = [(m, t, u) for m, t, u in map(numbers, part(proof, "tangents"))]
    require(all(m > 0 and t >= 0 and u >= 0 for m, t, u in rows.tangents), "a tangent is at a negative place")
    rows.centres = [rules.combination(centre) for centre in part(proof, "centres")]
    losses = [constants(rules.walk(k)[0], rows, p) for k in roots]
    longest = weight * max(loss.length for loss in losses)
    require(longest <= bound, "a gradient is longer than claimed")
    require(pulled or not clip or longest < clip, "clipped gradients differ by two clips")
    require(moved(claim, losses, rows, apart) <= apart, "gradients differ by more than claimed")
    if claim.get("noise") == "matrix":
        sides = value(settings, "rows"), value(settings, "columns")
        if not part(proof, "layout") or not rules.is_rank_one(proof["layout"], *sides):
            raise Unreplayed("in which layout gradients are matrices of rank one")
    return losses, rows
