"""Inequalities of the mechanisms, of adaptive queries and of statistics: with the claimed noise, the guarantee holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product, zip_longest
from math import prod
from operator import mul
from typing import Any

from dpconvex.checker.constants import Claim, Loss, curvature_of_people, joint, moved, person, sensitivity
from dpconvex.checker.exact import ONE, WIDE, ZERO, Range, common, exp, log, root, up
from dpconvex.checker.expansion import RecordBounds
from dpconvex.checker.gaussian import NEAR, gaussian_delta, perturbation_delta
from dpconvex.checker.reading import Unreplayed, indices, require, spend
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.table import ONE_RUN, RANGE, RUNS

GRID_LOSS = Fraction(1, 10**60)  # Loss of integer noise relative to continuous noise (docs/theory.md, section 8)
GRID_VARIANCE = Fraction(9)
ROOM = 1 + Fraction(1, 2**40)  # Tolerance for rounding of printed numbers, which no other inequality uses
SPARE = 1 + Fraction(11, 10**13)  # A release may exceed the level by this factor, for rounding
TRUSTED_OF_QUERIES = (
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
MOST_POINTS, MOST_VARIABLES, MOST_DEGREE = 20_000, 12, 16
TRUNCATED = Fraction(1, 2**100)  # Probability that noise exceeds its cap
# The remaining epsilon and delta of a guarantee
Left = tuple[Fraction, Fraction]
Parts = list[dict[str, Fraction]]  # Least numbers of an event's parts


def values(found: Claim, keys: str) -> list[Fraction]:
    return [found[key] for key in keys.split()]


def keeps(law: Any, shift: Fraction, epsilon: Fraction, delta: Fraction) -> bool:
    """Return whether noise keeps (epsilon, delta) if neighbours differ by `shift` times its scale."""
    return shift <= epsilon if law == "gamma" else law == "gaussian" and gaussian_delta(epsilon, up(shift)) <= delta


def perturbation_cost(
    losses: list[Loss], rows: GeneratorRows, beta: Fraction, mu: Fraction, claim: Claim, most: Fraction, nuclear: bool
) -> Fraction:
    """Bound ``beta ||g - g'|| + log det(I + H/mu)``: term by term, or jointly for the first record's gradient and curvature."""
    length, adjacency = max(loss.length for loss in losses), claim["privacy"]["adjacency"]
    (count, weight) = person(claim)
    if count > 1:
        sides = 2 if adjacency == "replace-one" else 1
        apart = weight * sides * length if nuclear else moved(claim, losses, rows, ZERO)
        found = beta * apart + curvature_of_people(losses, rows, mu, count, weight)
        other = beta * length * (sides - 1)
        each = [joint(loss, rows, beta, mu) + other for loss in losses]
        return min(found, count * max(each)) if weight == count else found
    other = beta * length if adjacency == "replace-one" else ZERO
    together = max(joint(loss, rows, beta, mu) for loss in losses) + other
    if together <= most:
        return together
    # In the nuclear norm, the sum of both norms bounds the difference of two gradients of rank one.
    apart = beta * length + other if nuclear else beta * sensitivity(losses, rows, adjacency, ZERO)
    return min(together, apart + max(joint(loss, rows, ZERO, mu) for loss in losses))


def other_costs(claim: Claim, record: RecordBounds, dimension: int) -> tuple[Left, Parts]:
    """Check all costs except that of the mechanism's noise; return the remaining epsilon and delta, and parts of the event."""
    replaced, queries = claim["privacy"]["adjacency"] == "replace-one", claim["perturbed"] == "queries"
    epsilon, delta = values(claim["privacy"], "epsilon delta")
    if RUNS in claim["settings"]:
        epsilon, delta = check_runs(claim["settings"], epsilon, delta)
    paid = [] if queries else [check_cover(claim, claim["cover"], dimension, replaced)]
    if "clustering" in claim:
        paid.append(check_clustering(claim["clustering"], record, replaced))
    target = claim["settings"].get(RANGE, ZERO)
    paid.append((target, ZERO, [{"epsilon": target}]))
    left = epsilon - sum(e for e, *_ in paid), delta - sum(d for _, d, _ in paid)
    return left, [part for *_, parts in paid for part in parts]


def costs_as_much(given: Sequence[Mapping[str, Any]], least: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the parts of an event cost as much as these: shifts and epsilons one by one, probabilities in sum."""
    costs: Any = [
        [sorted((Fraction(part.get(key, 0)) for part in parts), reverse=True) for parts in (given, least)]
        for key in ("mu", "epsilon", "probability", "delta")
    ]
    costs = costs[:2] + [[[sum(side)] for side in both] for both in costs[2:]]
    return all(have * NEAR >= want for both in costs for have, want in zip_longest(*both, fillvalue=ZERO))


def check_cover(claim: Claim, cover: Claim, dimension: int, replaced: bool) -> tuple[Fraction, Fraction, Parts]:
    """Check residual noise for answers within tau of the exact one; return its share of the guarantee, and of the event."""
    tau, step, scale, epsilon, delta, counting = values(cover, "distance step scale epsilon delta counting")
    require(cover["dimension"] == dimension, "cover: its dimension is not that of the release")
    require(tau >= claim["tolerance"], "cover: its distance is below the tolerance")
    require(step.numerator & (step.numerator - 1) == 0, "cover: the step is no power of two")
    require((counting == 0) == replaced, "cover: a noisy number of records is for add-remove adjacency")
    side = root(Fraction(dimension))[1]
    parts = [{"epsilon": counting}, {"probability": TRUNCATED * (1 + (counting > 0))}]
    if cover["noise"] == "discrete Laplace":
        enough = (2 * tau * side / step + dimension) // 1 <= scale * epsilon
        parts.append({"epsilon": epsilon})
    else:
        require(scale**2 > GRID_VARIANCE, "integer noise is too small for its grid")
        shift = (2 * tau / step + side) / root(scale**2 - GRID_VARIANCE)[0]
        enough = keeps("gaussian", shift, epsilon, delta - (1 + exp(epsilon)[1]) * GRID_LOSS)
        parts += [{"mu": shift}, {"probability": GRID_LOSS}]
    require(enough, f"cover: {cover['noise']} noise is too small for two answers 2 tau apart")
    return epsilon + counting, delta, parts


def check_runs(settings: Claim, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, Fraction]:
    """Check the cost of the best of a random number of runs (docs/theory.md, theorem 8b); return the guarantee of one fit."""
    if "gamma" not in settings:
        raise Unreplayed("there is no rule for accounting for several fits and a choice")
    eta, gamma, fit, score, lost = (settings[key] for key in ONE_RUN)
    require(eta > -1, "runs: eta must exceed -1")
    ratios = [eta / (1 - end) for end in exp(eta * log(gamma))] if eta else [-1 / log(gamma)]
    mean, odds = (1 / gamma - 1) * max(ratios), exp(fit + score)[1]
    require(min(ratios) > 0 and mean <= settings[RUNS] * ROOM, "runs: their mean number exceeds the stated one")
    cost = fit + score + (1 + eta) * log((odds + gamma) / (1 + gamma * odds))
    require(cost <= epsilon and mean * lost <= delta, "runs: the best of them costs more than the guarantee")
    return fit, lost


def check_clustering(noise: Claim, record: RecordBounds, replaced: bool) -> tuple[Fraction, Fraction, Parts]:
    """Check noise on rounds of counts and sums of cells (docs/theory.md, section 16); return its share, as for residual noise."""
    epsilon, delta, rounds, scale, weight, features = values(noise, "epsilon delta rounds scale weight features")
    halves = [ZERO for _ in record.sizes]
    for base, (low, high) in zip(record.owner, record.ranges, strict=True):
        halves[base] += (high - low) ** 2 / 4
    # One of the fields with this number of features is clustered, about the middle of its domain.
    square = max(min(s, h) for s, h, n in zip(record.squares, halves, record.sizes, strict=True) if n == features)
    one, pure = square + weight**2, noise["noise"] == "gamma"
    moved = one if not replaced else 4 * one if pure else max(4 * square, 2 * one)
    shift = root(Fraction(moved * (rounds**2 if pure else rounds)))[1] / scale
    require(keeps(noise["noise"], shift, epsilon, delta), "clustering: its noise is too small for its rounds")
    return epsilon, delta, [{"epsilon": epsilon} if pure else {"mu": shift}]


def check_samples(claim: Claim, losses: list[Loss], given: Claim, left: Left) -> str:
    """Check that noise has the given multiplier, and hides rounding within the remaining guarantee; return the trusted fact."""
    settings = claim["settings"]
    require(bool(given), "samples: their accounting is missing")
    (*kind, epsilon, delta) = values(given, "steps sampling multiplier epsilon delta")
    (steps, rate, multiplier), rest = kind, (left[0] - epsilon, left[1] - delta)
    same = kind == values(settings, "steps sampling multiplier")
    require(same and claim["privacy"]["adjacency"] == "add-remove", "samples: their accounting is for others")
    require(min(rest) > 0, "samples: their accounting exceeds the remaining guarantee")
    longest = max((loss.length for loss in losses), default=settings.get("clip", ZERO))
    length, apart, scale = values(claim, "gradient_bound sensitivity noise_scale")
    more, hidden = apart - length, scale**2 - (multiplier * length) ** 2
    require(length >= longest and hidden > 0 <= more, "samples: their accounting is for more noise")
    require(not more or keeps("gaussian", root(steps * more**2 / hidden)[1], *rest), "samples: rounding is not hidden")
    said = f"{steps} samples of probability {float(rate)!r} with noise of {float(multiplier)!r} gradients"
    return f"{said} cost epsilon = {float(epsilon)!r} and delta = {float(delta)!r}: a convolution of privacy losses"


def check_noise(
    claim: Claim, losses: list[Loss], rows: GeneratorRows | None, left: Left, given: Any, least: Parts
) -> tuple[str, ...]:
    """Check the mechanism's noise against the remaining guarantee, and append its part of the event; return trusted facts."""
    kind, law, settings = claim["perturbed"], claim["noise"], claim["settings"]
    (epsilon, delta), (apart, scale) = left, values(claim, "sensitivity noise_scale")
    require(epsilon > 0 <= delta, "no guarantee remains for the noise")
    shown = sum(values(claim, "noise_epsilon jacobian_epsilon"))
    require(shown <= epsilon * ROOM, "the printed cost of noise and curvature exceeds the remaining guarantee")
    if kind == "objective" and rows is not None:
        require(not any(loss.scalar.kink for loss in losses), "objective perturbation of a loss with a kink")
        mu, nuclear = claim["strong_convexity"], law == "matrix"
        if law == "gaussian" and perturbation_delta(losses, rows, claim, epsilon, delta) > delta:
            raise Unreplayed("the bounds of the checker on Gaussian noise are too wide for this")
        if law != "gaussian":
            require(nuclear or law == "gamma", f"unknown noise {law!r}")
            cost = perturbation_cost(losses, rows, 1 / scale, mu, claim, epsilon, nuclear)
            lines = [replace(loss, rank=1, traces=[(size, 1) for size, _ in loss.traces]) for loss in losses]
            if cost > epsilon >= perturbation_cost(lines, rows, 1 / scale, mu, claim, epsilon, nuclear):
                raise Unreplayed("the checker cannot show that all rows of a record are multiples of one row")
            said = f"the noise costs epsilon = {float(cost):.9g}, and only {float(epsilon):.9g} remains"
            require(cost <= epsilon, said)
            least.append({"epsilon": epsilon})
        return ()
    if kind == "output":
        apart /= claim["strong_convexity"]
    elif kind == "gradients":
        if "sampling" in settings:
            require(law == "gaussian", "samples: their accounting is for Gaussian noise")
            least.append({"epsilon": epsilon, "delta": delta})
            return (check_samples(claim, losses, given, left),)
        require(law == "gaussian", "noisy steps need Gaussian noise")
        apart *= root(Fraction(settings["steps"]))[1]
    require(keeps(law, apart / scale, epsilon, delta), f"{law} noise is too small for the sensitivity")
    least.append({"epsilon": epsilon} if law == "gamma" else {"mu": apart / scale})
    return ()


def check_queries(claim: dict[str, Any], left: Left, least: Parts) -> None:
    """Check that noise of the claimed level keeps the remaining guarantee for all queries together."""
    level, (epsilon, delta) = claim["settings"]["level"], left
    require(1 <= claim["noise_scale"] * level * ROOM <= ROOM**2, "the noise is not that of the level")
    printed = epsilon <= claim["noise_epsilon"] * ROOM <= epsilon * ROOM**2
    require(printed, "the printed cost of the noise is not the remaining guarantee")
    require(claim["noise_dimension"] > 0, "the noise has no dimension")
    rest = delta - (1 + exp(epsilon)[1]) * GRID_LOSS
    enough = epsilon > 0 < rest and keeps("gaussian", level * SPARE, epsilon, rest)
    require(enough, "gaussian noise is too small for its level")
    least += [{"mu": level}, {"probability": GRID_LOSS}]


def check_statistics(
    given: list[Any], record: RecordBounds, claim: dict[str, Any], adjacency: str, most: int, weight: int
) -> None:
    """Check the claimed sensitivity of moments: products of fields times patterns of the discrete fields."""
    kinds, count = [], 0
    for item in given:
        bases, patterns = indices(item["bases"], len(record.sizes)), item["patterns"]
        require(len(bases) <= MOST_DEGREE, "the degree of a moment is too high")
        owners = [sorted(record.owner[k] for k in indices(m, len(record.owner))) for m in item["monomials"]]
        require(all(o == sorted(bases) for o in owners), "a moment is not of its kind")
        require(len({tuple(sorted(m)) for m in item["monomials"]}) == len(owners), "a moment occurs twice")
        require(len({len(row) for row in patterns}) == 1, "patterns have rows of different lengths")
        spend(100 * len(bases))
        scale = up(item["scale"] ** 2 * prod((record.squares[b] for b in bases), start=ONE), WIDE)
        unit = common(a for row in patterns for a in row)
        kinds.append((Counter(bases), scale / unit**2, [[int(a * unit) for a in row] for row in patterns]))
        count += len(owners) * len(patterns[0])
    require(count == claim["noise_dimension"], "the number of moments is not the noise dimension")
    labels = range(len(kinds[0][2]) if kinds else 0)
    require(all(len(patterns) == len(labels) for *_, patterns in kinds), "patterns have different numbers of labels")
    claimed, farthest = (claim["sensitivity"] / weight) ** 2, ZERO

    def products(y: int, other: int) -> list[Fraction]:
        spend(10 + sum(len(p[0]) for *_, p in kinds) // 4)
        return [scale * sum(map(mul, p[y], p[other])) for *_, scale, p in kinds]

    own = [products(y, y) for y in labels]
    if adjacency == "add-remove" or most > 1:  # a person's further rows may stand alone
        farthest = max((sum(each, ZERO) for each in own), default=ZERO)
    for y, other in combinations_with_replacement(labels, 2) if adjacency == "replace-one" else ():
        farthest = max(farthest, farthest_apart(kinds, [own[y], own[other], products(y, other)], record, claimed))
    require(farthest <= claimed, f"statistics of neighbours are {float(farthest) ** 0.5:.9g} apart")


def farthest_apart(kinds: list[Any], three: list[list[Fraction]], record: RecordBounds, claimed: Fraction) -> Fraction:
    """Bound K(z, z) + K(z', z') - 2 K(z, z'), a polynomial in inner products of fields and in the values of one scalar field."""
    fields = sorted({b for bases, *_ in kinds for b in bases})
    scalar = next((b for b in fields if record.sizes[b] == 1), None)
    ranges: list[Range] = []
    powers: list[list[list[int]]] = []  # exponents of each variable in terms of the first record, the second, and both
    none, both = [0] * len(kinds), range(len(kinds))
    for b in fields:
        exponents, square = [kinds[k][0][b] for k in both], record.squares[b]
        if b == scalar:  # the two values, divided by their largest absolute value
            k, size = record.owner.index(b), root(square)[0]
            low, high = record.ranges[k]
            ranges += 2 * [(low / size, high / size)]
            twice = [2 * e for e in exponents]
            powers += [[twice, none, exponents], [none, twice, exponents]]
        else:
            low, high = record.inner[b][False]
            ranges.append((low / square, high / square))
            powers.append([none, none, exponents])
    terms = [
        (value, [column[part][k] for column in powers])
        for part, values in enumerate((*three[:2], [-2 * c for c in three[2]]))
        for k, value in enumerate(values)
        if value
    ]
    return highest(terms, ranges, [max(column[2]) > 1 for column in powers], claimed)


def highest(
    terms: list[tuple[Fraction, list[int]]], ranges: list[Range], curved: list[bool], claimed: Fraction
) -> Fraction:
    """Bound a polynomial in variables from -1 to 1, convex in each one that is not `curved` (docs/theory.md, section 18).

    Near a maximum, with convex variables at their ends, some grid value is lower by at most (step/2)^2/2 times the absolute
    second derivatives.
    """
    degrees = [sum(e for e, bent in zip(exponents, curved, strict=True) if bent) for _, exponents in terms]
    bend = sum((abs(value) * d * (d - 1) for (value, _), d in zip(terms, degrees, strict=True)), ZERO)
    require(len(ranges) <= MOST_VARIABLES, "statistics of too many fields")
    points = set(product(*ranges))
    steps = [high - low if bent else ZERO for (low, high), bent in zip(ranges, curved, strict=True)]
    for _ in range(60):
        room = bend * max(steps, default=ZERO) ** 2 / 8
        spend(len(points) * len(terms) * (1 + len(ranges)))
        values = {
            point: sum((v * prod(x**e for x, e in zip(point, es, strict=True) if e) for v, es in terms), ZERO)
            for point in points
        }
        kept = [point for point, found in values.items() if found + room > claimed]
        if not kept or len(kept) > MOST_POINTS:
            break
        steps = [step / 2 for step in steps]
        spend(len(kept) * prod(3 if step else 1 for step in steps))
        ways = list(product(*[(-step, ZERO, step) if step else (ZERO,) for step in steps]))
        points = {
            tuple(min(max(x + m, low), high) for x, m, (low, high) in zip(point, way, ranges, strict=True))
            for point in kept
            for way in ways
        }
    return claimed if not kept else claimed + room + 1
