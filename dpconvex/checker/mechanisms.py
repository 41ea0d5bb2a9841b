"""The inequalities of the mechanisms: the constants of one record, the noise, and the promise that it keeps."""

from fractions import Fraction
from typing import Any

from dpconvex.checker.constants import Loss, difference, joint, log_det
from dpconvex.checker.exact import ONE, ZERO, exp, normal_tail, root, up
from dpconvex.checker.reading import Unreplayed, require, value
from dpconvex.checker.rows import Rows

GRID_LOSS = Fraction(1, 10**60)  # of noise on integers against noise on numbers (docs/theory.md, section 8)
GRID_VARIANCE, GRID_ROOM = Fraction(9), 1 + Fraction(1, 10**9)


def gaussian_delta(epsilon: Fraction, shift: Fraction) -> Fraction:
    """The exact delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8), rounded up."""
    first, second = normal_tail(epsilon / shift - shift / 2), normal_tail(epsilon / shift + shift / 2)
    return max(first[1] - exp(epsilon)[0] * second[0], ZERO)


def perturbation_cost(
    losses: list[Loss], rows: Rows, beta: Fraction, mu: Fraction, adjacency: str, most: Fraction, nuclear: bool
) -> Fraction:
    """Bound ``beta ||g - g'|| + log det(I + H/mu)``: apart, or gradient and curvature of the first record together."""
    length = max(loss.length for loss in losses)
    other = beta * length if adjacency == "replace-one" else ZERO
    together = max(joint(loss, rows, beta, mu, most - other) for loss in losses) + other
    if together <= most:
        return together
    curved = max(min(log_det(loss, mu), joint(loss, rows, ZERO, mu, ZERO)) for loss in losses)
    # In the nuclear norm gradients of rank one are as far apart as they are long together.
    apart = beta * length + other if nuclear else beta * sensitivity(losses, rows, adjacency, ZERO)
    return min(together, apart + curved)


def sensitivity(losses: list[Loss], rows: Rows, adjacency: str, enough: Fraction) -> Fraction:
    """Bound how far one record moves the gradient of the sum of losses, down to what is enough."""
    if adjacency == "add-remove":
        return max(loss.length for loss in losses)
    largest = ZERO
    for k, one in enumerate(losses):
        for two in losses[k:]:
            apart = one.length + two.length
            largest = max(largest, apart if apart <= max(enough, largest) else difference(one, two, rows))
    return largest


def check_cover(claim: dict[str, Any], cover: dict[str, Any], dimension: int) -> tuple[Fraction, Fraction]:
    """Check integer noise for answers within tau of the exact one; return its share of the promise."""
    tau, step, scale = (value(cover, key) for key in ("distance", "step", "scale"))
    epsilon, delta, counting = (value(cover, key) for key in ("epsilon", "delta", "counting"))
    require(min(tau, step, scale, epsilon) > 0 and min(delta, counting) >= 0, "cover: a number of it is not positive")
    require(tau >= value(claim, "tolerance"), "cover: it is for a shorter distance than the tolerance")
    side = root(Fraction(dimension))[1]
    if cover.get("noise") == "discrete Laplace":
        moved = 2 * tau * side / step + dimension
        require(moved // 1 <= scale * epsilon, "cover: discrete Laplace noise is too small for two answers 2 tau apart")
    else:
        require(scale**2 > GRID_VARIANCE, "integer noise is too small for its grid")
        shift = (2 * tau / step + side) / root(scale**2 - GRID_VARIANCE)[0]
        paid = gaussian_delta(epsilon, shift) + (1 + exp(epsilon)[1]) * GRID_LOSS
        require(paid <= delta, "cover: discrete Gaussian noise is too small for two answers 2 tau apart")
    return epsilon + counting, delta


def check_noise(claim: dict[str, Any], losses: list[Loss], rows: Rows | None, left: tuple[Fraction, Fraction]) -> None:
    """Check that the mechanism's noise keeps what is left of the promise."""
    kind, law, adjacency = claim["perturbed"], claim.get("noise"), claim["privacy"]["adjacency"]
    scale, settings, whitening = value(claim, "noise_scale"), claim["settings"], claim.get("whitening")
    (epsilon, delta), apart = left, value(claim, "sensitivity")
    require(scale > 0 and epsilon > 0 and delta >= 0, "there is no noise, or nothing of the promise is left for it")
    if kind == "objective" and rows is not None:
        require(not any(loss.scalar.kink for loss in losses), "objective perturbation of a loss with a kink")
        if law not in ("gamma", "matrix") or whitening:
            raise Unreplayed(f"the calibration of {claim.get('mechanism')}")
        mu, nuclear = claim["strong_convexity"], law == "matrix"
        cost = perturbation_cost(losses, rows, 1 / scale, mu, adjacency, epsilon, nuclear)
        require(cost <= epsilon, f"the noise costs epsilon = {float(cost):.9g} of {float(epsilon):.9g} that is left")
        return
    if kind == "output":
        apart /= claim["strong_convexity"]
    elif kind == "gradients":
        if "sampling" in settings:
            raise Unreplayed("the noise of Poisson samples")
        steps = value(settings, "steps")
        require(steps >= 1 and steps.denominator == 1, "there is no such number of steps")
        apart *= root(steps)[1]
    if law == "gamma" and kind != "gradients" and not whitening:
        require(apart <= scale * epsilon, "Gamma noise is too small for what neighbours are apart")
        return
    require(law == "gaussian", f"no noise of the law {law!r}")
    shift, lost = apart / scale, ZERO
    require(shift > 0, "there are no steps, or no sensitivity")
    if whitening:
        least = root(Fraction(2))[1] if adjacency == "replace-one" else ONE
        level, moved = value(whitening, "sensitivity") / value(whitening, "sigma"), value(whitening, "sensitivity")
        require(moved >= least and level > 0, "whitening: second moments of neighbours are farther apart")
        shift, lost = root(shift**2 + (level * GRID_ROOM) ** 2)[1], (1 + exp(epsilon)[1]) * GRID_LOSS
    paid = gaussian_delta(epsilon, up(shift)) + lost
    require(paid <= delta, f"Gaussian noise costs delta = {float(paid):.9g} of {float(delta):.9g} that is left")
