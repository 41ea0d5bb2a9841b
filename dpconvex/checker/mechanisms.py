"""The inequalities of the mechanisms: the constants of one record, the noise, and the guarantee that it keeps."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

from dpconvex.checker.constants import Loss, difference, joint, spread_out
from dpconvex.checker.exact import ONE, PI, ZERO, chi_tail, down, exp, log, normal_tail, root, up
from dpconvex.checker.expansion import RecordBounds
from dpconvex.checker.reading import Unreplayed, require, spend
from dpconvex.checker.rows import GeneratorRows, multiple
from dpconvex.checker.rules import Hull, ends_of
from dpconvex.checker.table import RUN, RUNS

GRID_LOSS = Fraction(1, 10**60)  # of noise on integers against noise on numbers (docs/theory.md, section 8)
GRID_VARIANCE, GRID_ROOM = Fraction(9), 1 + Fraction(1, 10**9)
ROOM = 1 + Fraction(1, 2**40)  # for the rounding of numbers that are shown, and that no inequality uses
SLICES, HALVINGS = 60, 14  # where slopes move
WIDTH, CUT = Fraction(1, 80), Fraction(1, 10**8)  # of a cell of the norm's law, and where its tail is cut
MOST_RECORDS = 10**4  # of one person
Claim = dict[str, Any]
# What is left of a guarantee: epsilon, delta, and a Gaussian level that adds up in squares
Left = tuple[Fraction, Fraction, Fraction]


def values(found: Claim, keys: str) -> list[Fraction]:
    return [found[key] for key in keys.split()]


def gaussian_delta(epsilon: Fraction, shift: Fraction) -> Fraction:
    """The exact delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8), rounded up."""
    spend(60)
    first, second = normal_tail(epsilon / shift - shift / 2), normal_tail(epsilon / shift + shift / 2)
    return max(first[1] - exp(epsilon)[0] * second[0], ZERO)


def chi_delta(epsilon: Fraction, dimension: int, shift: Fraction) -> Fraction:
    """Bound ``E[(1 - exp(epsilon - shift t - shift^2/2))_+]`` for t the norm of so many normal variates (theorem 7, *chi*).

    It is the integral of ``shift exp(-shift (t - start)) P[norm > t]``, whose second factor is below its logarithm's tangents.
    """
    start = down(epsilon / shift - shift / 2, 64)
    if start <= 0 or dimension == 0:
        return ONE if dimension else ZERO
    found, middle, left = ZERO, start + WIDTH / 2, ONE
    while left > CUT * found:
        tail, hazard = chi_tail(middle, dimension)
        before, after = shift + hazard[1], shift + hazard[0]
        halves = (exp(before * WIDTH / 2)[1] - 1) / before + (1 - exp(-after * WIDTH / 2)[0]) / after
        found = up(found + shift * exp(-shift * (middle - start))[1] * tail[1] * halves)
        left, middle = tail[1], middle + WIDTH
    return up(found + left)


def keeps(law: Any, shift: Fraction, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether noise is enough for what neighbours move by so many scales of it."""
    return shift <= epsilon if law == "gamma" else law == "gaussian" and gaussian_delta(epsilon, up(shift)) <= delta


def curvature_of_people(losses: list[Loss], rows: GeneratorRows, mu: Fraction, most: int, weight: int) -> Fraction:
    """Bound ``log det(I + H/mu)`` for the sum H of a person's Hessians: each by itself, or by the trace and rank of all."""
    one = max(joint(loss, rows, ZERO, mu, ZERO) for loss in losses)
    traces = [sum((t for t, _ in loss.traces), ZERO) for loss in losses]
    ranks = [sum(r for _, r in loss.traces) for loss in losses]
    if most == 1:
        return one
    return min(most * one, spread_out(weight * max(traces), min(most * max(ranks), losses[0].most), mu))


def perturbation_cost(
    losses: list[Loss], rows: GeneratorRows, beta: Fraction, mu: Fraction, claim: Claim, most: Fraction, nuclear: bool
) -> Fraction:
    """Bound ``beta ||g - g'|| + log det(I + H/mu)``: apart, or gradient and curvature of the first record together."""
    length, adjacency = max(loss.length for loss in losses), claim["privacy"]["adjacency"]
    (count, weight) = person(claim)
    if count > 1:
        sides = 2 if adjacency == "replace-one" else 1
        apart = weight * sides * length if nuclear else moved(claim, losses, rows, ZERO)
        found = beta * apart + curvature_of_people(losses, rows, mu, count, weight)
        other = beta * length * (sides - 1)
        each = [joint(loss, rows, beta, mu, most / count - other) + other for loss in losses]
        return min(found, count * max(each)) if weight == count else found
    other = beta * length if adjacency == "replace-one" else ZERO
    together = max(joint(loss, rows, beta, mu, most - other) for loss in losses) + other
    if together <= most:
        return together
    # In the nuclear norm gradients of rank one are as far apart as they are long together.
    apart = beta * length + other if nuclear else beta * sensitivity(losses, rows, adjacency, ZERO)
    return min(together, apart + max(joint(loss, rows, ZERO, mu, ZERO) for loss in losses))


def perturbation_delta(
    losses: list[Loss],
    rows: GeneratorRows,
    sigma: Fraction,
    mu: Fraction,
    claim: Claim,
    epsilon: Fraction,
    enough: Fraction,
) -> Fraction:
    """Bound delta of normal noise by the vertices of differences of gradients, down to what is enough (theorem 7)."""
    found, adjacency, (most, weight) = [ZERO], claim["privacy"]["adjacency"], person(claim)
    replaced = adjacency == "replace-one"
    if most > 1:
        if weight == most:  # one row after the other, each for its part of epsilon
            part = epsilon / most
            kinds = [claim | {"privacy": {"adjacency": a}} for a in {"add-remove", adjacency}]
            grown = sum((exp(k * part)[1] for k in range(most)), ZERO)
            single = max(perturbation_delta(losses, rows, sigma, mu, kind, part, enough / grown) for kind in kinds)
            if single * grown <= enough:
                return single * grown
        left = epsilon - curvature_of_people(losses, rows, mu, most, weight)
        terms = 2 * most - 1 if replaced and weight < most else most
        pairs = [(one, other) for one in losses for other in [None, *(losses if replaced else [])]]
        if left < 0:
            return ONE
        if losses[0].most == 1:  # an interval, with two ends
            return 2 * gaussian_delta(left, up(moved(claim, losses, rows, ZERO) / sigma))
        for one, other in pairs:
            spend(1)
            ends = other.vertices if other else ((),)
            found.append(terms * of_vertices(left, shifts_of(one.vertices or (), ends or (), rows, sigma / weight)))
        if any(loss.vertices is None for loss in losses) or max(found) > enough:
            rank = min(most * (1 + replaced) * max(loss.rank for loss in losses), losses[0].most)
            return chi_delta(left, rank, up(moved(claim, losses, rows, ZERO) / sigma, 64))
        return max(found)
    for front, back in product(losses, losses if replaced else [None]):
        curved, ends = joint(front, rows, ZERO, mu, ZERO), ((),) if back is None else back.vertices
        left, delta = epsilon - curved, ONE
        if front.vertices is not None and ends is not None:
            fronts = front.vertices if back else ends_of((*front.vertices, ()))  # 0 is the record that is not there
            shifts = shifts_of(fronts, ends, rows, sigma)
            delta = of_vertices(left, shifts) if left >= 0 else ONE
            if delta > enough:
                delta = min(delta, of_vertices(epsilon, shifts) + moving(front, ends, rows, sigma, mu, epsilon, curved))
        if delta > enough and left > 0:
            apart = difference(front, back, rows) if back else front.length
            rank = min(front.rank + (back.rank if back else 0), front.most)
            delta = min(delta, chi_delta(left, rank, up(apart / sigma, 64)))
        found.append(delta)
    return max(found)


def shifts_of(first: Hull, second: Hull, rows: GeneratorRows, sigma: Fraction) -> Counter[Fraction]:
    """Return how far vertices of two hulls are apart, but for equal ones, and how often each distance occurs."""
    found = Counter[Fraction]()
    for square, count in rows.all_apart(first, second).items():
        if square > 0:
            found[up(root(up(square, 64))[1] / sigma)] += count
    return found


def of_vertices(epsilon: Fraction, shifts: Counter[Fraction]) -> Fraction:
    return sum((n * gaussian_delta(epsilon, shift) for shift, n in shifts.items()), ZERO)


class Margin(NamedTuple):
    """Gradients that are slopes times one row: what matters of them."""

    square: Fraction  # of the longest gradient
    slopes: list[Fraction]  # next to its slope
    bend: Fraction  # of a logistic loss: the curvature at a slope of s is at most this times s (1 - s); else 0


def margin_of(front: Loss, rows: GeneratorRows) -> Margin | None:
    """Return the margin of a loss; None where gradients are no multiples of one row."""
    vertices, lead, pieces = front.vertices or ((),), front.scalar.lead, front.scalar.pieces
    steepest = max(vertices, key=rows.square)
    slopes = [u[0][1] / steepest[0][1] if u else ZERO for u in vertices]
    if [multiple(steepest, slope) for slope in slopes] != [*vertices]:
        return None
    square, bend = rows.square(steepest), ZERO
    if lead and not pieces[0].outer and {*pieces[0].hull} == {(), multiple(steepest, 1 / lead)}:
        bend = pieces[0].spread * square / lead**2
    return Margin(square, slopes, bend)


def moving(
    front: Loss, ends: Hull, rows: GeneratorRows, sigma: Fraction, mu: Fraction, epsilon: Fraction, curved: Fraction
) -> Fraction:
    """Bound what curvature adds where all gradients are slopes times one row (docs/theory.md, section 7, one margin)."""
    margin = margin_of(front, rows)
    if margin is None:
        return ONE
    unit, bend, total, slopes = root(margin.square)[1] / sigma, margin.bend / mu, ZERO, margin.slopes
    for side in (slopes, [-slope for slope in slopes]):
        steep, least = max(side), max(min(side), ZERO)
        for k in range(SLICES if steep > least else 0):
            first, last = (least + (steep - least) * m / SLICES for m in (k, k + 1))
            s = min(max(Fraction(1, 2), first), last)
            most = up(min(curved, log(1 + bend * s * (1 - s))) if bend else curved, 64)
            for w in ends if most else ():
                spend(1)
                length = up(last * unit + root(rows.square(w))[1] / sigma, 64)
                total += (last - first) * unit * falling(epsilon, length, most)
    return total


def falling(epsilon: Fraction, length: Fraction, curved: Fraction) -> Fraction:
    """Bound what curvature adds to delta, for each deviation that a slope falls by: the S of docs/theory.md, section 7."""
    spend(30)
    base = length**2 / 2 + curved - epsilon
    low = max(-base / length, ZERO)
    high = max((curved - base) / length, low)
    for _ in range(HALVINGS):  # towards the largest value of a log-concave function
        middle = (low + high) / 2
        steep = [middle * (end - 1) for end in exp(length * middle + base)]
        low, high = (middle if steep[1] < length else low), (middle if steep[0] >= length else high)
    gained = (1 - 1 / exp(min(length * high + base, curved))[1]) / (1 - 1 / exp(curved)[0])
    return up(gained * exp(-(low**2) / 2)[1] / root(2 * PI[0])[0])


def sensitivity(losses: list[Loss], rows: GeneratorRows, adjacency: str, enough: Fraction) -> Fraction:
    """Bound how far one record moves the gradient of the sum of losses, down to what is enough."""
    if adjacency == "add-remove":
        return max(loss.length for loss in losses)
    largest = ZERO
    for one, two in combinations_with_replacement(losses, 2):
        apart = one.length + two.length
        largest = max(largest, apart if apart <= max(enough, largest) else difference(one, two, rows))
    return largest


def person(claim: Claim) -> tuple[int, int]:
    """Return how many records a person has at most, and what they weigh together."""
    privacy = claim["privacy"]
    most, keep = privacy.get("most", 1), privacy.get("keep")
    require(most <= MOST_RECORDS and (not keep or "unit" in privacy), "it is not said whose records are protected")
    return most, 1 if keep == "weights" else most


def moved(claim: Claim, losses: list[Loss], rows: GeneratorRows, enough: Fraction) -> Fraction:
    """Bound how far all records of a person move the gradient: each replaced, or some that stand alone."""
    (most, weight), adjacency = person(claim), claim["privacy"]["adjacency"]
    apart = sensitivity(losses, rows, adjacency, enough / weight)
    return apart if most == 1 else weight * max(apart, *(loss.length for loss in losses))


def promised(claim: Claim, record: RecordBounds, dimension: int) -> Left:
    """Check all that is paid beside the mechanism's noise; return what is left for that."""
    replaced, level = claim["privacy"]["adjacency"] == "replace-one", ZERO
    epsilon, delta = values(claim["privacy"], "epsilon delta")
    if RUNS in claim["settings"]:
        epsilon, delta = check_runs(claim["settings"], epsilon, delta)
    paid = [check_cover(claim, claim["cover"], dimension, replaced)]
    if "clustering" in claim:
        paid.append(check_clustering(claim["clustering"], record, replaced))
    if "whitening" in claim:
        *own, level = check_whitening(claim["whitening"], record, (1 + replaced) * person(claim)[0] ** 2, epsilon)
        paid.append((own[0], own[1]))
    return epsilon - sum(e for e, _ in paid), delta - sum(d for _, d in paid), level


def check_cover(claim: Claim, cover: Claim, dimension: int, replaced: bool) -> tuple[Fraction, Fraction]:
    """Check integer noise for answers within tau of the exact one; return its share of the guarantee."""
    tau, step, scale, epsilon, delta, counting = values(cover, "distance step scale epsilon delta counting")
    require(cover["dimension"] == dimension, "cover: it has not one number for each that is released")
    require(tau >= claim["tolerance"], "cover: it is for a shorter distance than the tolerance")
    require(step.numerator & (step.numerator - 1) == 0, "cover: the step is no power of two")
    require((counting == 0) == replaced, "cover: records are counted where they are added or removed")
    side = root(Fraction(dimension))[1]
    if cover["noise"] == "discrete Laplace":
        enough = (2 * tau * side / step + dimension) // 1 <= scale * epsilon
    else:
        require(scale**2 > GRID_VARIANCE, "integer noise is too small for its grid")
        shift = (2 * tau / step + side) / root(scale**2 - GRID_VARIANCE)[0]
        enough = keeps("gaussian", shift, epsilon, delta - (1 + exp(epsilon)[1]) * GRID_LOSS)
    require(enough, f"cover: {cover['noise']} noise is too small for two answers 2 tau apart")
    return epsilon + counting, delta


def check_runs(settings: Claim, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, Fraction]:
    """Check what the best of a random number of runs costs (docs/theory.md, theorem 8b); return the guarantee of one fit."""
    if "gamma" not in settings:
        raise Unreplayed("the accounting for several fits and a choice")
    eta, gamma, fit, score, lost = (settings[key] for key in RUN)
    require(eta > -1, "runs: there is no such law")
    ratios = [eta / (1 - end) for end in exp(eta * log(gamma))] if eta else [-1 / log(gamma)]
    mean, odds = (1 / gamma - 1) * max(ratios), exp(fit + score)[1]
    require(min(ratios) > 0 and mean <= settings[RUNS] * ROOM, "runs: there are more of them on average")
    cost = fit + score + (1 + eta) * log((odds + gamma) / (1 + gamma * odds))
    require(cost <= epsilon and mean * lost <= delta, "runs: the best of them costs more than what is guaranteed")
    return fit, lost


def check_clustering(noise: Claim, record: RecordBounds, replaced: bool) -> tuple[Fraction, Fraction]:
    """Check noise on rounds of counts and sums of cells (docs/theory.md, section 16); return its share of the guarantee."""
    epsilon, delta, rounds, scale, weight, features = values(noise, "epsilon delta rounds scale weight features")
    halves = [ZERO for _ in record.sizes]
    for base, low, high in zip(record.owner, record.lower, record.upper, strict=True):
        halves[base] += (high - low) ** 2 / 4
    # One of the fields with so many features is clustered, about the middle of its domain.
    square = max(min(s, h) for s, h, n in zip(record.squares, halves, record.sizes, strict=True) if n == features)
    one, pure = square + weight**2, noise["noise"] == "gamma"
    moved = one if not replaced else 4 * one if pure else max(4 * square, 2 * one)
    shift = root(Fraction(moved * (rounds**2 if pure else rounds)))[1] / scale
    require(keeps(noise["noise"], shift, epsilon, delta), "clustering: its noise is too small for its rounds")
    return epsilon, delta


def check_whitening(noise: Claim, record: RecordBounds, square: int, total: Fraction) -> Left:
    """Check noise on a second moment; return its share of the guarantee, or what its grid loses and a level."""
    moved, sigma, radius, epsilon, delta = values(noise, "sensitivity sigma radius epsilon delta")
    require(noise["field"] in record.starts, "whitening: there is no such field")
    base = record.owner[record.starts[noise["field"]]]
    ball = base in record.balls and record.squares[base] == radius**2
    require(ball, "whitening: its field is no ball of that radius")
    require(moved**2 >= square, "whitening: second moments of neighbours are farther apart")
    level, lost = moved / sigma * GRID_ROOM, (1 + exp(total)[1]) * GRID_LOSS
    if noise["composed"]:
        return ZERO, lost, level
    require(keeps("gaussian", level, epsilon, delta - lost), "whitening: its noise is too small")
    return epsilon, delta, ZERO


def check_samples(claim: Claim, losses: list[Loss], given: Claim, left: Left) -> str:
    """Check that noise is what a given number is for, and hides rounding from the rest; return what is trusted."""
    settings = claim["settings"]
    require(bool(given), "samples: there is no given number for them")
    (*kind, epsilon, delta) = values(given, "steps sampling multiplier epsilon delta")
    (steps, rate, multiplier), rest = kind, (left[0] - epsilon, left[1] - delta)
    same = kind == values(settings, "steps sampling multiplier")
    require(same and claim["privacy"]["adjacency"] == "add-remove", "samples: the given number is for others")
    require(min(rest) > 0, "samples: the given number costs more than what is left")
    longest = max((loss.length for loss in losses), default=settings.get("clip", ZERO))
    length, apart, scale = values(claim, "gradient_bound sensitivity noise_scale")
    more, hidden = apart - length, scale**2 - (multiplier * length) ** 2
    require(length >= longest and hidden > 0 <= more, "samples: the given number is for more noise")
    require(not more or keeps("gaussian", root(steps * more**2 / hidden)[1], *rest), "samples: rounding is not hidden")
    said = f"{steps} samples of probability {float(rate)!r} with noise of {float(multiplier)!r} gradients"
    return f"{said} cost epsilon = {float(epsilon)!r} and delta = {float(delta)!r}: a convolution of privacy losses"


def check_noise(
    claim: Claim, losses: list[Loss], rows: GeneratorRows | None, left: Left, given: Any
) -> tuple[str, ...]:
    """Check that the mechanism's noise keeps what is left of the guarantee; return what more is trusted."""
    kind, law, settings = claim["perturbed"], claim["noise"], claim["settings"]
    (epsilon, delta, level), (apart, scale) = left, values(claim, "sensitivity noise_scale")
    require(epsilon > 0 <= delta, "nothing of the guarantee is left for the noise")
    shown = sum(values(claim, "noise_epsilon jacobian_epsilon"))
    require(shown <= epsilon * ROOM, "noise and curvature are said to cost more than what is left")
    if level and (kind == "objective" or law != "gaussian" or "sampling" in settings):
        raise Unreplayed(f"whitening and {claim['mechanism']} as one Gaussian mechanism")
    if kind == "objective" and rows is not None:
        require(not any(loss.scalar.kink for loss in losses), "objective perturbation of a loss with a kink")
        mu, nuclear = claim["strong_convexity"], law == "matrix"
        if law == "gaussian" and perturbation_delta(losses, rows, scale, mu, claim, epsilon, delta) > delta:
            raise Unreplayed("the joint bound of gradient and curvature under Gaussian noise")
        if law != "gaussian":
            require(nuclear or law == "gamma", f"no noise of the law {law!r}")
            cost = perturbation_cost(losses, rows, 1 / scale, mu, claim, epsilon, nuclear)
            said = f"the noise costs epsilon = {float(cost):.9g} of {float(epsilon):.9g} that is left"
            require(cost <= epsilon, said)
        return ()
    if kind == "output":
        apart /= claim["strong_convexity"]
    elif kind == "gradients":
        if "sampling" in settings:
            require(law == "gaussian", "samples: the given number is for normal noise")
            return (check_samples(claim, losses, given, left),)
        require(law == "gaussian", "there are no such steps")
        apart *= root(Fraction(settings["steps"]))[1]
    shift = root((apart / scale) ** 2 + level**2)[1] if level else apart / scale
    require(keeps(law, shift, epsilon, delta), f"{law} noise is too small for what neighbours are apart")
    return ()
