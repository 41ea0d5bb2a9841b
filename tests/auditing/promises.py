"""Random learners on the line and in the plane, and their exact privacy: losses are written out here a second time, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.auditing.line import grid, line_masses
from dpconvex.auditing.masses import Masses
from dpconvex.auditing.noises import gamma_density, gaussian_density
from dpconvex.auditing.plane import Disc, Rectangle, plane_masses

Array = NDArray[np.float64]
# Slope and curvature of a function of one margin.
Derivatives = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Loss:
    """A convex function of the margin ``m = <x, theta>``, in CVXPY and as derivatives."""

    name: str
    expression: Callable[[Any], Any]
    derivatives: Derivatives
    bounded: bool = True  # its slopes, without a bound on K


def sigmoid(m: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -m))


def logistic(a: float, shift: float, scale: float) -> Loss:
    def derivatives(m: Array) -> tuple[Array, Array]:
        s = sigmoid(a * m + shift)
        return scale * a * s, scale * a * a * s * (1 - s)

    return Loss(f"{scale} logistic({a} m + {shift})", lambda m: scale * cp.logistic(a * m + shift), derivatives)


def hinge(a: float, shift: float, scale: float, width: float) -> Loss:
    def derivatives(m: Array) -> tuple[Array, Array]:
        t = a * m + shift
        inside = np.abs(t) < width
        return scale * a * np.clip((t + width) / (2 * width), 0, 1), scale * a * a * np.where(
            inside, 1 / (2 * width), 0
        )

    return Loss(
        f"{scale} huber_hinge({a} m + {shift}, {width})",
        lambda m: scale * dp.huber_hinge(a * m + shift, width),
        derivatives,
    )


def huber(a: float, shift: float, scale: float, width: float) -> Loss:
    def derivatives(m: Array) -> tuple[Array, Array]:
        t = a * m + shift
        return scale * a * 2 * np.clip(t, -width, width), scale * a * a * 2 * (np.abs(t) < width)

    return Loss(
        f"{scale} huber({a} m + {shift}, {width})", lambda m: scale * cp.huber(a * m + shift, width), derivatives
    )


def square(a: float, shift: float, scale: float) -> Loss:
    def derivatives(m: Array) -> tuple[Array, Array]:
        t = a * m + shift
        return scale * 2 * a * t, np.full_like(m, 2 * scale * a * a)

    return Loss(
        f"{scale} square({a} m + {shift})", lambda m: scale * cp.square(a * m + shift), derivatives, bounded=False
    )


def exponential_sum(a: float, shift: float, scale: float) -> Loss:
    """A softmax in one margin: log(exp(a m) + exp(-m/2 + shift) + 1)."""
    slopes, offsets = np.array([a, -0.5, 0.0]), np.array([0.0, shift, 0.0])

    def derivatives(m: Array) -> tuple[Array, Array]:
        t = m[..., None] * slopes + offsets
        p = np.exp(t - np.logaddexp.reduce(t, axis=-1)[..., None])
        mean = p @ slopes
        return scale * mean, scale * (p @ slopes**2 - mean**2)

    return Loss(
        f"{scale} lse({a} m, -m/2 + {shift}, 0)",
        lambda m: scale * cp.log_sum_exp(cp.hstack([a * m, -0.5 * m + shift, 0.0])),
        derivatives,
    )


def quartic() -> dp.Atom:
    """Return the twice differentiable hinge of half-width 1/2, as a user declares it."""
    import jax.numpy as xp

    def function(m: Any) -> Any:
        t = 2 * m
        return xp.where(t > 1, m, xp.where(t < -1, 0.0, (3 + 8 * t + 6 * t**2 - t**4) / 32))

    return dp.Atom("smooth hinge", function, slope=(0.0, 1.0), curvature=1.5, lower=0.0)


SMOOTH = quartic()


def declared(a: float, shift: float, scale: float) -> Loss:
    def derivatives(m: Array) -> tuple[Array, Array]:
        t = np.clip(2 * (a * m + shift), -1, 1)
        slope = (8 + 12 * t - 4 * t**3) / 16
        return scale * a * slope, scale * a * a * (12 - 12 * t**2) / 8

    return Loss(f"{scale} smooth({a} m + {shift})", lambda m: scale * SMOOTH(a * m + shift), derivatives)


def nothing() -> Loss:
    return Loss("0", lambda m: 0 * m, lambda m: (np.zeros_like(m), np.zeros_like(m)))


numbers = st.sampled_from([-2.0, -1.0, -0.7, 0.3, 1.0, 1.5, 4.0])
shifts = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0])
scales = st.sampled_from([0.2, 1.0, 3.0, 20.0])
widths = st.sampled_from([0.01, 0.1, 0.5, 2.0])

losses = st.one_of(
    st.builds(logistic, numbers, shifts, scales),
    st.builds(hinge, numbers, shifts, scales, widths),
    st.builds(huber, numbers, shifts, scales, widths),
    st.builds(exponential_sum, numbers, shifts, scales),
    st.builds(declared, numbers, shifts, scales),
    st.builds(square, numbers, shifts, scales),
    st.builds(nothing),
)


@dataclass(frozen=True)
class Promise:
    """A learner and what is promised about it.

    Attributes
    ----------
    features : int
        1 or 2.
    kinds : tuple of Loss
        One for each label.
    lower, upper : float
        Bounds of every feature.
    modulus, middle : float
        The regularizer is ``modulus/2 ||theta - middle||^2``, in sum form.
    absolute : float
        Weight of ``||theta||_1`` in the regularizer, in sum form.
    ends : tuple of float or None
        Bounds of every parameter; if they are opposite in the plane, the radius of a disc.
    """

    features: int
    kinds: tuple[Loss, ...]
    lower: float
    upper: float
    modulus: float
    middle: float
    absolute: float
    ends: tuple[float, float] | None
    noise: str
    privacy: dp.Privacy
    size: int

    @property
    def disc(self) -> bool:
        return self.features == 2 and self.ends is not None and self.ends[0] == -self.ends[1]

    @property
    def template(self) -> dp.Template:
        theta = cp.Variable(self.features, name="theta")
        regularizer = self.modulus / 2 * cp.sum_squares(theta - self.middle) + self.absolute * cp.norm1(theta)
        constraints: list[Any] = []
        if self.disc and self.ends is not None:
            constraints = [cp.norm(theta, 2) <= self.ends[1]]
        elif self.ends is not None:
            constraints = [theta >= self.ends[0], theta <= self.ends[1]]
        shape = (self.features,)
        record = dp.Record(
            x=dp.Box(np.full(shape, self.lower), np.full(shape, self.upper)), y=dp.Choice(range(len(self.kinds)))
        )
        return dp.Template(
            record, lambda x, y: self.kinds[y].expression(x @ theta), regularizer / self.size, constraints
        )

    def certificate(self) -> dp.Certificate | None:
        """Return the proof, or None if the learner is refused."""
        try:
            return dp.verify(self.template, self.privacy, self.size, dp.ObjectivePerturbation(self.noise, added=0.0))
        except dp.NotPrivate:
            return None

    def public(self, theta: Array) -> tuple[Array, Array]:
        """Return gradient (m, d) and Hessian (m, d, d) of the regularizer; off the axes, where that has kinks."""
        gradient = self.modulus * (theta - self.middle) + self.absolute * np.sign(theta)
        return gradient, np.broadcast_to(
            self.modulus * np.eye(self.features), (len(theta), self.features, self.features)
        )

    def slopes(self, record: tuple[int, Array] | None, slope: Array, curvature: float) -> Any:
        """Return gradient and Hessian of an objective with one record, or none, and a convex rest."""

        def at(theta: Array) -> tuple[Array, Array]:
            gradient, hessian = self.public(theta)
            gradient, hessian = gradient + slope + curvature * theta, hessian + curvature * np.eye(self.features)
            if record is not None:
                label, x = record
                first, second = self.kinds[label].derivatives(theta @ x)
                gradient, hessian = gradient + first[:, None] * x, hessian + second[:, None, None] * np.outer(x, x)
            return gradient, hessian

        return at

    def pairs(self, rng: np.random.Generator, most: int) -> list[tuple[Any, Any]]:
        """Return neighbours, in both orders: corners, and anything."""
        corners = [
            np.array(v)
            for v in np.stack(np.meshgrid(*[[self.lower, self.upper]] * self.features), -1).reshape(-1, self.features)
        ]
        inner = [rng.uniform(self.lower, self.upper, self.features) for _ in range(2)]
        records: list[Any] = [(label, x) for label in range(len(self.kinds)) for x in [*corners, *inner]]
        others = [None] if self.privacy.adjacency == "add-remove" else records
        found = [pair for a in records for b in others for pair in ((a, b), (b, a)) if a is not b]
        if len(found) > most:
            found = [found[k] for k in rng.choice(len(found), most, replace=False)]
        return found


@st.composite
def promises(draw: Any, features: int) -> Promise:
    """Compose a learner and a promise."""
    count = draw(st.sampled_from([1, 2, 2, 3]))
    kinds = tuple(draw(losses) for _ in range(count))
    ends = draw(st.sampled_from([None, None, (-0.3, 0.3), (-2.0, 2.0), (0.5, 1.5), (-1.0, 3.0)]))
    if ends is None and not all(kind.bounded for kind in kinds):
        ends = (-1.0, 1.0)
    noise = draw(st.sampled_from(["gamma", "gaussian", "gaussian", "matrix"]))
    delta = draw(st.sampled_from([1e-6, 1e-3, 1e-2])) if noise == "gaussian" else 0.0
    adjacency = draw(st.sampled_from(["replace-one", "add-remove"]))
    return Promise(
        features,
        kinds,
        draw(st.sampled_from([-1.0, -0.3, 0.999])),
        1.0,
        draw(st.sampled_from([0.1, 0.5, 2.0, 10.0, 50.0, 300.0])),
        draw(st.sampled_from([0.0, 0.0, -1.0, 5.0])),
        draw(st.sampled_from([0.0, 0.0, 0.7])),
        ends,
        noise,
        dp.Privacy(draw(st.sampled_from([0.3, 1.0, 3.0, 8.0])), delta, adjacency=adjacency),
        draw(st.sampled_from([1, 2, 50])),
    )


def log_noise(certificate: dp.Certificate, features: int) -> Callable[[Array], Array]:
    """Return the log density of the noise; a vector is a matrix of one row."""
    if certificate.noise == "gamma":
        return gamma_density(features, certificate.noise_scale)
    if certificate.noise == "gaussian":
        return gaussian_density(features, certificate.noise_scale)
    freedom = certificate.settings["degrees_of_freedom"]
    order = (freedom + features) / 2
    spread = certificate.noise_scale * order
    constant = (
        math.lgamma(order) - math.lgamma(freedom / 2) - features / 2 * math.log(math.pi) - features * math.log(spread)
    )
    return lambda b: np.asarray(constant - order * np.log1p((b**2).sum(axis=-1) / spread**2))


def aims(
    promise: Promise, certificate: dp.Certificate, pair: Any, rng: np.random.Generator, count: int
) -> list[tuple[Array, float]]:
    """Return rests of the data, as gradients and curvatures, with which the neighbours are told apart well.

    Where the gradients differ by D and the curvatures by a factor e^J, the loss exceeds epsilon for noise along D that is not
    much longer than necessary; the rest is chosen so that this noise leads there.
    """
    d = promise.features
    points = rng.normal(size=(400, d)) * 10.0 ** rng.uniform(-2, 1.7, size=(400, 1))
    if promise.ends is not None:
        points[:200] = rng.uniform(*promise.ends, size=(200, d))
        points = np.clip(points, *promise.ends) * (1 - 1e-9)
        if promise.disc:
            points *= np.minimum(1, promise.ends[1] / np.linalg.norm(points, axis=1, keepdims=True)) * (1 - 1e-9)
    curvature = float(rng.choice([0.0, 0.0, 0.0, promise.modulus]))
    (g1, h1), (g2, h2) = (promise.slopes(record, np.zeros(d), curvature)(points) for record in pair)
    difference = g1 - g2
    jump = np.linalg.slogdet(h1)[1] - np.linalg.slogdet(h2)[1]
    length = np.maximum(np.linalg.norm(difference, axis=1), 1e-12)
    sigma, epsilon = certificate.noise_scale, certificate.noise_epsilon + certificate.jacobian_epsilon
    wish, worth = np.zeros(len(points)), length / sigma + jump
    if certificate.noise == "gaussian":
        wish = np.clip((epsilon - jump) * sigma / length - length / (2 * sigma) + 0.4, -8, 8) * sigma
        worth = -wish
    if certificate.noise == "matrix":
        wish = sigma * rng.choice([1.0, 3.0, 5.0], size=len(points))
    best = np.argsort(-worth)[:count]
    return [(-g1[k] - wish[k] * difference[k] / length[k], curvature) for k in best]


def middle_of(promise: Promise, rest: Array, curvature: float) -> Array:
    """Return the minimiser without records."""
    pull = promise.modulus * promise.middle - rest
    center = np.sign(pull) * np.maximum(np.abs(pull) - promise.absolute, 0) / (promise.modulus + curvature)
    return center if promise.ends is None else np.clip(center, *promise.ends)


def exact(
    promise: Promise, certificate: dp.Certificate, pair: Any, rest: Array, curvature: float, count: int
) -> Masses:
    """Return the exact laws of the answers for neighbours, with a rest of the data."""
    center = middle_of(promise, rest, curvature)
    first, second = (promise.slopes(record, rest, curvature) for record in pair)
    scale = certificate.noise_scale
    tail = {"gaussian": 9.0, "gamma": 50.0, "matrix": 300.0}[certificate.noise]
    reach = (tail * scale + 2 * certificate.gradient_bound) / (promise.modulus + curvature)
    ends = promise.ends or (-np.inf, np.inf)
    law = log_noise(certificate, promise.features)
    if promise.features == 1:
        points = grid(float(center[0]), reach, *ends, count, 0.05)
        if certificate.noise != "matrix":
            sides = [lambda t, side=side: side(t[:, None])[0][:, 0] for side in (first, second)]
            return line_masses(points, *sides, certificate.noise, scale)
        widths, masses = np.gradient(points), []  # densities alone: the ends of K have masses that are not compared
        for side in (first, second):
            gradient, hessian = side(points[:, None])
            masses.append(np.exp(law(-gradient)) * hessian[:, 0, 0] * widths)
        return Masses(*masses, error=1e-9)
    region = Disc(np.zeros(2), ends[1]) if promise.disc else Rectangle(np.full(2, ends[0]), np.full(2, ends[1]))
    cells = {600: 40, 6000: 240, 12000: 360}[count]
    return plane_masses(region, first, second, law, center, np.full(2, reach), tail * scale, cells)


def worst(
    promise: Promise, certificate: dp.Certificate, rng: np.random.Generator, most: int, places: int
) -> tuple[float, Any]:
    """Return found over claimed for the worst neighbours that were tried, and where that was."""
    assert certificate.cover is not None
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
    delta = certificate.delta - certificate.cover.delta
    best, place = 0.0, None
    for pair in promise.pairs(rng, most):
        for rest, curvature in aims(promise, certificate, pair, rng, places):
            for count in (600, 6000):  # a second look, with fine cells, where the first is alarming
                masses = exact(promise, certificate, pair, rest, curvature, count)
                found = masses.delta(epsilon) / delta if promise.noise == "gaussian" else masses.epsilon / epsilon
                if found <= 1:
                    break
            if found > 1 and promise.features == 2 and promise.noise == "gaussian":  # midpoints have an error
                rough = exact(promise, certificate, pair, rest, curvature, 2 * count).delta(epsilon) / delta
                found -= 2 * abs(rough - found) + 2e-3 * found
            if found > best:
                best, place = found, (pair, rest, curvature)
    return best, place
