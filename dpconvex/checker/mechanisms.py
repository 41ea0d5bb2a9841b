"""The inequalities of the mechanisms: the constants of one record, the noise, and the promise that it keeps."""

from fractions import Fraction
from typing import Any

from dpconvex.checker.constants import Loss, difference, joint, log_det
from dpconvex.checker.exact import ONE, ZERO, exp, normal_tail, root, up
from dpconvex.checker.reading import number, require
from dpconvex.checker.rows import Rows

# Probability with which noise may exceed its cap, under either neighbour, on top of the promise if delta does not pay for it.
TAIL = Fraction(1, 2**100)
# What noise on integers loses against noise on numbers (docs/theory.md, section 8).
GRID_LOSS = Fraction(1, 10**60)
GRID_VARIANCE = Fraction(9)


def value(found: Any, key: str) -> Fraction:
    return number(found.get(key, 0) if isinstance(found, dict) else 0)


def gaussian_delta(epsilon: Fraction, shift: Fraction) -> Fraction:
    """The exact delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8), rounded up."""
    if not shift:
        return ZERO
    first, second = normal_tail(epsilon / shift - shift / 2), normal_tail(epsilon / shift + shift / 2)
    return max(first[1] - exp(epsilon)[0] * second[0], ZERO)


def integer_shift(moved: Fraction, scale: Fraction) -> Fraction:
    """The shift of a Gaussian mechanism that integer noise is as private as (docs/theory.md, section 8)."""
    variance = scale**2 - GRID_VARIANCE
    require(variance > 0, "integer noise is too small for its grid")
    return moved / root(variance)[0]


def perturbation_cost(losses: list[Loss], rows: Rows, beta: Fraction, mu: Fraction, adjacency: str, most: Fraction) -> Fraction:
    """Bound ``beta ||g - g'|| + log det(I + H/mu)``: apart, or gradient and curvature of the first record together."""
    length = max(loss.length for loss in losses)
    other = beta * length if adjacency == "replace-one" else ZERO
    together = max(joint(loss, rows, beta, mu, most - other) for loss in losses) + other
    if together <= most:
        return together
    curved = max(min(log_det(loss, mu), joint(loss, rows, ZERO, mu, ZERO)) for loss in losses)
    return min(together, beta * sensitivity(losses, rows, adjacency) + curved)


def sensitivity(losses: list[Loss], rows: Rows, adjacency: str) -> Fraction:
    if adjacency == "add-remove":
        return max(loss.length for loss in losses)
    return max(difference(one, two, rows) for k, one in enumerate(losses) for two in losses[k:])


def check_cover(claim: dict[str, Any], cover: dict[str, Any], dimension: int) -> tuple[Fraction, Fraction]:
    """Check integer noise for answers within tau of the exact one; return its share of the promise."""
    tau, step, scale = (value(cover, key) for key in ("distance", "step", "scale"))
    epsilon, delta, counting = (value(cover, key) for key in ("epsilon", "delta", "counting"))
    require(tau > 0 and step > 0 and scale > 0, "cover: distance, grid and scale are not positive")
    require(tau >= value(claim, "tolerance"), "cover: it is for a shorter distance than the tolerance")
    side = root(Fraction(dimension))[1]
    if cover.get("noise") == "discrete Laplace":
        moved = 2 * tau * side / step + dimension
        require(moved // 1 <= scale * epsilon, "cover: discrete Laplace noise is too small for two answers 2 tau apart")
    else:
        shift = integer_shift(2 * tau / step + side, scale)
        paid = gaussian_delta(epsilon, shift) + (1 + exp(epsilon)[1]) * GRID_LOSS
        require(paid <= delta, "cover: discrete Gaussian noise is too small for two answers 2 tau apart")
    return epsilon + counting, delta


def check_noise(claim: dict[str, Any], losses: list[Loss], rows: Rows, left: tuple[Fraction, Fraction]) -> list[str]:
    """Check that the noise keeps what is left of the promise; return what is not replayed."""
    kind, law, adjacency = claim.get("perturbed"), claim.get("noise"), claim["privacy"]["adjacency"]
    scale, mu, settings = value(claim, "noise_scale"), value(claim, "strong_convexity"), claim.get("settings", {})
    epsilon, delta = left
    require(scale > 0, "the noise has no scale")
    if kind == "objective" and law == "gamma":
        cost = perturbation_cost(losses, rows, 1 / scale, mu, adjacency, epsilon)
        require(not any(loss.scalar.kink for loss in losses), "objective perturbation of a loss with a kink")
        require(cost <= epsilon, f"objective perturbation costs epsilon = {float(cost):.12g}, of {float(epsilon):.12g}")
        return []
    if kind == "output" and law == "gamma":
        reach = sensitivity(losses, rows, adjacency) / mu
        require(reach <= scale * epsilon, "output perturbation: the noise is too small for the distance of two answers")
        return []
    if kind in ("output", "gradients") and law == "gaussian" and "sampling" not in settings:
        whitening, both = claim.get("whitening") or {}, ZERO
        if kind == "output":
            shift = sensitivity(losses, rows, adjacency) / mu / scale
        else:
            clip = value(settings, "clip")
            apart = clip * (2 if adjacency == "replace-one" else 1) if clip else ZERO
            proved = sensitivity(losses, rows, adjacency) if losses else apart
            apart = min(apart, proved) if apart and proved and max(x.length for x in losses) < clip else apart or proved
            require(value(claim, "sensitivity") >= apart > 0, "the sensitivity is below that of clipped gradients")
            shift = value(claim, "sensitivity") * root(value(settings, "steps"))[1] / scale
        if whitening:
            least = root(Fraction(2))[1] if adjacency == "replace-one" else ONE
            require(value(whitening, "sensitivity") >= least, "whitening: second moments of neighbours are farther apart")
            both = value(whitening, "sensitivity") / value(whitening, "sigma") * (1 + Fraction(1, 10**9))
        total = root(shift**2 + both**2)[1]
        require(epsilon > 0, "nothing is left of the promise")
        paid = gaussian_delta(epsilon, up(total)) + ((1 + exp(epsilon)[1]) * GRID_LOSS if whitening else ZERO)
        require(paid <= delta * (1 + Fraction(1, 10**6)), f"Gaussian noise costs delta = {float(paid):.6g}, of {float(delta):.6g}")
        return []
    return [f"the calibration of {claim.get('mechanism')}"]
