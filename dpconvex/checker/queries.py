"""Checks adaptive queries: the noise of their total level keeps the guarantee (docs/theory.md, theorem 8.9)."""

from fractions import Fraction
from typing import Any

from dpconvex.checker.constants import person
from dpconvex.checker.exact import ZERO, exp
from dpconvex.checker.expansion import RecordBounds
from dpconvex.checker.gaussian import event_parts
from dpconvex.checker.mechanisms import GRID_LOSS, ROOM, check_clustering, check_runs, clustering_shift, keeps, values
from dpconvex.checker.reading import require
from dpconvex.checker.table import RUNS

SPARE = 1 + Fraction(11, 10**13)  # A release may exceed the level by this factor, for rounding
TRUSTED = (
    "the theorems on adaptive queries, and on integer noise (docs/theory.md, theorems 8.8 and 8.9)",
    "a fit reads its records only by noisy sums, and refuses queries beyond the level",
    "the part of one record (or person) in each sum depends only on it and on released numbers, and is at most the sensitivity",
    "integer noise has the scale that the sensitivity and the level of the query require",
    "failures of fits do not depend on the data; texts, and numbers that no inequality uses, are right (docs/checking.md)",
    "one record is one person; arrays in the template are public",
)
CELLS = (
    "the theorem on noisy k-means (docs/theory.md, section 16); its noise is drawn from the distribution that the certificate "
    "names, and the domains of the record and the size of the clustered field are those of the fit"
)
CHOICES = (
    "vertices are drawn exactly in proportion to weights; neighbours change log weights within a range that the level of the "
    "choices allows (docs/theory.md, propositions 8.10 and 8.11)"
)


def check_queries(claim: dict[str, Any], event: Any, record: RecordBounds) -> None:
    """Check that noise of the claimed level keeps the guarantee for all queries together, and that the event covers its cost."""
    settings, (epsilon, delta) = claim["settings"], values(claim["privacy"], "epsilon delta")
    pure = shift = ZERO
    person(claim)
    if RUNS in settings:
        epsilon, delta = check_runs(settings, epsilon, delta)
    if "clustering" in claim:
        clustering, replaced = claim["clustering"], claim["privacy"]["adjacency"] == "replace-one"
        own, lost = check_clustering(clustering, record, replaced)
        moved = clustering_shift(clustering, record, replaced)
        pure, shift = (own, ZERO) if clustering["noise"] == "gamma" else (ZERO, moved)
        epsilon, delta = epsilon - own, delta - lost
    level = settings["level"]
    require(1 <= claim["noise_scale"] * level * ROOM <= ROOM**2, "the noise is not that of the level")
    printed = epsilon <= claim["noise_epsilon"] * ROOM <= epsilon * ROOM**2
    require(printed, "the printed cost of the noise is not the remaining guarantee")
    require(claim["noise_dimension"] > 0, "the noise has no dimension")
    left = delta - (1 + exp(epsilon)[1]) * GRID_LOSS
    enough = epsilon > 0 < left and keeps("gaussian", level * SPARE, epsilon, left)
    require(enough, "gaussian noise is too small for its level")
    if event is not None:
        parts = event_parts(event)
        paid = sum(Fraction(part["mu"]) ** 2 for part in parts if part["kind"] == "gaussian")
        failing = sum(Fraction(part["probability"]) for part in parts if part["kind"] == "tail")
        known = sum(Fraction(part["epsilon"]) for part in parts if part["kind"] == "pure")
        enough = level**2 + shift**2 <= paid and known >= pure and failing * ROOM >= GRID_LOSS
        require(enough, "the event costs less than the queries: than their level, or than integer noise")
