"""An independent checker of certificates: replays proofs in exact arithmetic, without code of the calculus (docs/checking.md)."""

from dataclasses import dataclass
from typing import Any

from dpconvex.checker.constants import Loss, loss_constants, moved, person
from dpconvex.checker.exact import ONE, ZERO
from dpconvex.checker.expansion import TemplateGraph
from dpconvex.checker.gaussian import check_event, event_parts
from dpconvex.checker.mechanisms import (
    CELLS,
    CHOICES,
    ROOM,
    TRUSTED_OF_QUERIES,
    check_noise,
    check_queries,
    check_statistics,
    costs_as_much,
    other_costs,
)
from dpconvex.checker.public import Feasible, is_modulus
from dpconvex.checker.reading import Rejected, Steps, Unreplayed, as_exact, indices, read_proof, reader, require, spend
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.rules import Rules
from dpconvex.checker.scalar_bounds import span_dimension
from dpconvex.checker.table import ONE_RUN, PARTS, RANGE, RUNS

TRUSTED = (
    "the theorems on mechanisms (docs/theory.md, sections 4 to 11, 16 and 18, and docs/release.md, section 3)",
    "noise is drawn from the distribution that the certificate names; it exceeds its cap with a probability of 2^-100 at most",
    "the computed answer lies within the tolerance of the exact one: each fit proves this for its own data",
    "if noisy steps are released, rounding moves sums of gradients by no more than its part of the sensitivity",
    "a fit minimises the sum of the losses, of size times the regularizer and of added/2 times the squared norm, on K",
    "noise is drawn on a space that contains all differences of gradients; failures of fits do not depend on the data",
    "the graph and all losses are those of the fit; texts, and numbers that no inequality uses, are right (docs/checking.md)",
    "one record is one person; arrays in the template are public, and functions that a user declares are as declared",
)

WEIGHT = "weight_of_a_record"
OTHER_PARTS = "every record is in one part of the data, and releases on other parts keep the same guarantee"
OF_RANGE = "targets were scaled by two private choices, which cost the epsilon of the range"
BEST_RUN = "runs of other candidates keep the same guarantee, one record changes one mistake, and the number of runs stays secret"


@dataclass(frozen=True)
class Report:
    """Result of a replay: the number of steps, the assumptions, the parts without a rule, and the format of a file."""

    steps: int
    trusted: tuple[str, ...]
    unreplayed: tuple[str, ...]
    form: str = ""

    def __str__(self) -> str:
        if self.unreplayed:
            return f"not replayed: {'; '.join(self.unreplayed)}"
        return f"replayed: {self.steps} steps, {len(self.trusted)} facts trusted"


def check(text: bytes, event: Any = None) -> Report:
    """Replay a proof, and the event of a release, if one is given: it must cost at least as much as the claim's numbers.

    Unknown keys of an event are rejected.  A choice among fits must have no event, because only its guarantee is known.

    Raises
    ------
    Rejected
        At the first step that does not follow, or if the text is no proof.
    """
    try:
        proof = read_proof(text)
        if proof["claim"]["perturbed"] == "queries":  # the guarantee holds for any template
            clustered = "clustering" in proof["claim"]
            require(len(proof) == 2 + clustered == 2 + ("record" in proof), "a proof about queries has no graph")
            proof = {"record": {}, "nodes": []} | proof
        known = None if event is None else reader("event")(as_exact(event))
        return replay(proof, TemplateGraph(proof), proof["claim"], known)
    except Unreplayed as missing:
        return Report(0, TRUSTED, (str(missing),))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Rejected(f"not a proof: {type(error).__name__}, {error}") from None
    finally:
        Steps.known.clear()


def replay(proof: dict[str, Any], template: TemplateGraph, claim: dict[str, Any], event: Any) -> Report:
    kind, adjacency, settings = claim["perturbed"], claim["privacy"]["adjacency"], claim["settings"]
    p, everything = claim["noise_dimension"], TRUSTED_OF_QUERIES if kind == "queries" else TRUSTED
    require(("rows" in settings) == (claim["noise"] == "matrix"), "the noise and the settings disagree about matrices")
    require(
        event is None or not {ONE_RUN[0], PARTS} & {*settings},
        "the event of one fit is not that of a choice among fits",
    )
    require(ONE_RUN[0] not in settings or RUNS in settings, "the mean number of runs is missing")
    most, _ = person(claim)
    if most > 1 and (RUNS in settings or "clustering" in claim or "sampling" in settings):
        raise Unreplayed("there is no rule for runs, clusters or samples with several records of a person")
    losses, rows = list[Loss](), None
    if claim["privacy"].get("keep") == "weights" and kind != "queries" and not is_weighted(proof, template):
        raise Unreplayed("there is no rule for these weights of the losses")
    if kind == "statistics":
        check_statistics(proof["moments"], template.declared, claim, adjacency, *person(claim))
    elif kind != "queries":
        feasible = Feasible(template, proof["constraints"])
        try:
            losses, rows = bounded(proof, template, claim, feasible)
        except Rejected as error:
            if feasible.unread or Steps.coarse:
                raise Unreplayed(f"the bounds of the checker are too wide for this: {error}") from None
            raise
        (root,) = indices([proof["regularizer"]], len(template.nodes))
        require(not template.nodes[root].private, "the regularizer reads the record")
        if kind in ("objective", "output"):
            shown, mu = claim["strong_convexity"], proof["modulus"]
            require(mu <= shown <= mu * ROOM, "the printed strong convexity is not the proved one")
            claim["strong_convexity"] = mu
            strong = mu > 0 and is_modulus(template, feasible, root, claim["size"], claim["added"], mu)
            require(strong, "the objective is less strongly convex than claimed")
    left, least = other_costs(claim, template.declared, p if kind == "statistics" else len(template.weights))
    more = tuple[str, ...]()
    if kind == "queries":
        check_queries(claim, left, least)
    else:
        more = check_noise(claim, losses, rows, left, proof.get("sampled"), least)
    if event is not None:
        parts = event_parts(event)
        spend(10 * len(parts))
        require(costs_as_much(parts, least), "the event costs less than the noise and the failures of the claim")
        if kind == "objective" and claim["noise"] == "gaussian" and rows is not None:
            check_event(event, losses, rows, claim)
    unit = claim["privacy"].get("unit")
    if unit:
        one = f"nobody ({unit}) has more than {most} records, or the fit drops, weighs and clips them as the claim says"
        everything = *everything[:-1], one, everything[-1].partition("; ")[2]
    known = {CHOICES: "vertices" in settings, BEST_RUN: RUNS in settings, OTHER_PARTS: PARTS in settings}
    known |= {OF_RANGE: RANGE in settings, CELLS: kind == "queries" and "clustering" in claim}
    trusted = (*everything, *more, *(fact for fact, holds in known.items() if holds))
    return Report(len(template.nodes) + len(losses) + (5 + len(settings)) * (kind == "queries"), trusted, ())


def is_weighted(proof: dict[str, Any], template: TemplateGraph) -> bool:
    """Return whether every loss is a weight from 0 to 1 times an unweighted loss, and every moment has the weight."""
    record, nodes = template.declared, template.nodes
    start = record.starts.get(WEIGHT, -1)
    if start < 0 or record.ranges[start] != (ZERO, ONE) or record.sizes[record.owner[start]] != 1:
        return False
    base = record.owner[start]
    weights = {k for k, node in enumerate(nodes) if node.options.get("field") == WEIGHT}
    heads = {k for k, node in enumerate(nodes) if weights & {*node.args}}
    alone = all(nodes[k].name == "multiply" and len(weights & {*nodes[k].args}) == 1 for k in heads)
    alone &= not any(heads & {*node.args} for node in nodes)
    kinds = [indices(item["bases"], len(record.sizes)) for item in proof["moments"]]
    return alone and heads >= {*proof["losses"]} and all(base in kind for kind in kinds)


def bounded(
    proof: dict[str, Any], template: TemplateGraph, claim: dict[str, Any], feasible: Feasible
) -> tuple[list[Loss], GeneratorRows | None]:
    """Check the noise dimension and one record's gradients; return losses and rows, or ([], None) if a clip bounds gradients."""
    kind, adjacency, settings = claim["perturbed"], claim["privacy"]["adjacency"], claim["settings"]
    rows = GeneratorRows(template, proof["cells"], proof["parts"])
    roots, p = indices(proof["losses"], len(template.nodes)), claim["noise_dimension"]
    spend(2 * len(roots) ** 2)
    require(
        len(roots) > 0 and all(template.nodes[k].size == 1 for k in roots), "there is no loss, or a loss is not scalar"
    )
    rules = Rules(template, rows, feasible, roots)
    least = len(template.weights) if kind == "output" else span_dimension(rules.coefficients)
    require(least <= p <= len(template.weights), "the noise has too few dimensions, or too many")
    apart, clip, bound = claim["sensitivity"], settings.get("clip", ZERO), claim["gradient_bound"]
    weight = person(claim)[1] if kind == "gradients" and clip else 1  # clipped gradients of a person add up
    pulled = kind == "gradients" and 0 < clip * (2 if adjacency == "replace-one" else 1) <= apart
    if pulled and clip <= bound:
        return [], None
    rows.tangents = proof["tangents"]
    rows.centres = [rules.combination(centre) for centre in proof["centres"]]
    losses = [loss_constants(rules.walk(k)[0], rows, p, rules.rank(k)) for k in roots]
    longest = weight * max(loss.length for loss in losses)
    require(longest <= bound, "a gradient is longer than claimed")
    require(pulled or not clip or longest < clip, "the sensitivity is below that of clipped gradients")
    require(moved(claim, losses, rows, apart) <= apart, "gradients differ by more than claimed")
    if claim["noise"] == "matrix":
        sides = settings["rows"], settings["columns"]
        if not proof["layout"] or not rules.is_rank_one(proof["layout"], *sides):
            raise Unreplayed("no layout shows that gradients are matrices of rank one")
    return losses, rows
