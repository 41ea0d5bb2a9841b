"""Inequalities of the mechanisms: with the claimed constants and noise, the guarantee holds."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpconvex.checker.constants import Claim, Loss, curvature_of_people, joint, moved, person, sensitivity
from dpconvex.checker.exact import ZERO, exp, log, root, up
from dpconvex.checker.expansion import RecordBounds
from dpconvex.checker.gaussian import gaussian_delta, perturbation_delta
from dpconvex.checker.reading import Unreplayed, require
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.table import RANGE, RUN, RUNS

GRID_LOSS = Fraction(1, 10**60)  # Loss of integer noise relative to continuous noise (docs/theory.md, section 8)
GRID_VARIANCE = Fraction(9)
ROOM = 1 + Fraction(1, 2**40)  # Tolerance for rounding of printed numbers, which no other inequality uses
# The remaining epsilon and delta of a guarantee
Left = tuple[Fraction, Fraction]


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
        each = [joint(loss, rows, beta, mu, most / count - other) + other for loss in losses]
        return min(found, count * max(each)) if weight == count else found
    other = beta * length if adjacency == "replace-one" else ZERO
    together = max(joint(loss, rows, beta, mu, most - other) for loss in losses) + other
    if together <= most:
        return together
    # In the nuclear norm, the sum of both norms bounds the difference of two gradients of rank one.
    apart = beta * length + other if nuclear else beta * sensitivity(losses, rows, adjacency, ZERO)
    return min(together, apart + max(joint(loss, rows, ZERO, mu, ZERO) for loss in losses))


def other_costs(claim: Claim, record: RecordBounds, dimension: int) -> Left:
    """Check all costs except that of the mechanism's noise; return the remaining epsilon and delta."""
    replaced = claim["privacy"]["adjacency"] == "replace-one"
    epsilon, delta = values(claim["privacy"], "epsilon delta")
    if RUNS in claim["settings"]:
        epsilon, delta = check_runs(claim["settings"], epsilon, delta)
    paid = [check_cover(claim, claim["cover"], dimension, replaced)]
    if "clustering" in claim:
        paid.append(check_clustering(claim["clustering"], record, replaced))
    paid.append((claim["settings"].get(RANGE, ZERO), ZERO))
    return epsilon - sum(e for e, _ in paid), delta - sum(d for _, d in paid)


def check_cover(claim: Claim, cover: Claim, dimension: int, replaced: bool) -> tuple[Fraction, Fraction]:
    """Check residual noise for answers within tau of the exact one; return its share of the guarantee."""
    tau, step, scale, epsilon, delta, counting = values(cover, "distance step scale epsilon delta counting")
    require(cover["dimension"] == dimension, "cover: its dimension is not that of the release")
    require(tau >= claim["tolerance"], "cover: its distance is below the tolerance")
    require(step.numerator & (step.numerator - 1) == 0, "cover: the step is no power of two")
    require((counting == 0) == replaced, "cover: a noisy number of records is for add-remove adjacency")
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
    """Check the cost of the best of a random number of runs (docs/theory.md, theorem 8b); return the guarantee of one fit."""
    if "gamma" not in settings:
        raise Unreplayed("there is no rule for accounting for several fits and a choice")
    eta, gamma, fit, score, lost = (settings[key] for key in RUN)
    require(eta > -1, "runs: eta must exceed -1")
    ratios = [eta / (1 - end) for end in exp(eta * log(gamma))] if eta else [-1 / log(gamma)]
    mean, odds = (1 / gamma - 1) * max(ratios), exp(fit + score)[1]
    require(min(ratios) > 0 and mean <= settings[RUNS] * ROOM, "runs: their mean number exceeds the stated one")
    cost = fit + score + (1 + eta) * log((odds + gamma) / (1 + gamma * odds))
    require(cost <= epsilon and mean * lost <= delta, "runs: the best of them costs more than the guarantee")
    return fit, lost


def check_clustering(noise: Claim, record: RecordBounds, replaced: bool) -> tuple[Fraction, Fraction]:
    """Check noise on rounds of counts and sums of cells (docs/theory.md, section 16); return its share of the guarantee."""
    epsilon, delta = values(noise, "epsilon delta")
    shift = clustering_shift(noise, record, replaced)
    require(keeps(noise["noise"], shift, epsilon, delta), "clustering: its noise is too small for its rounds")
    return epsilon, delta


def clustering_shift(noise: Claim, record: RecordBounds, replaced: bool) -> Fraction:
    """Bound the shift of all rounds together, in scales of their noise."""
    rounds, scale, weight, features = values(noise, "rounds scale weight features")
    halves = [ZERO for _ in record.sizes]
    for base, low, high in zip(record.owner, record.lower, record.upper, strict=True):
        halves[base] += (high - low) ** 2 / 4
    # One of the fields with this number of features is clustered, about the middle of its domain.
    square = max(min(s, h) for s, h, n in zip(record.squares, halves, record.sizes, strict=True) if n == features)
    one, pure = square + weight**2, noise["noise"] == "gamma"
    moved = one if not replaced else 4 * one if pure else max(4 * square, 2 * one)
    return root(Fraction(moved * (rounds**2 if pure else rounds)))[1] / scale


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
    claim: Claim, losses: list[Loss], rows: GeneratorRows | None, left: Left, given: Any
) -> tuple[str, ...]:
    """Check the mechanism's noise against the remaining guarantee; return the further trusted facts."""
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
        return ()
    if kind == "output":
        apart /= claim["strong_convexity"]
    elif kind == "gradients":
        if "sampling" in settings:
            require(law == "gaussian", "samples: their accounting is for Gaussian noise")
            return (check_samples(claim, losses, given, left),)
        require(law == "gaussian", "noisy steps need Gaussian noise")
        apart *= root(Fraction(settings["steps"]))[1]
    require(keeps(law, apart / scale, epsilon, delta), f"{law} noise is too small for the sensitivity")
    return ()
