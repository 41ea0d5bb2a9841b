"""Random learners on the line and in the plane, and their exact privacy: losses are written out here a second time, in NumPy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.auditing.laws import Masses, gaussian_density, grid, line_masses, sampled_delta

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


def nothing() -> Loss:
    return Loss("0", lambda m: 0 * m, lambda m: (np.zeros_like(m), np.zeros_like(m)))


numbers = st.sampled_from([-2.0, -1.0, -0.7, 0.3, 1.0, 1.5, 4.0])
shifts = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0])
scales = st.sampled_from([0.2, 1.0, 3.0, 20.0])
widths = st.sampled_from([0.01, 0.1, 0.5, 2.0])

losses = st.one_of(
    st.builds(logistic, numbers, shifts, scales),
    st.builds(hinge, numbers, shifts, scales, widths),
    st.builds(exponential_sum, numbers, shifts, scales),
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
        scale, half = certificate.noise_scale, features / 2
        constant = math.lgamma(half) - math.lgamma(features) - math.log(2) - half * math.log(math.pi)
        return lambda b: np.asarray(constant - features * math.log(scale) - np.linalg.norm(b, axis=-1) / scale)
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
    """Return the exact laws on the line of the answers for neighbours, with a rest of the data."""
    center = middle_of(promise, rest, curvature)
    scale = certificate.noise_scale
    tail = {"gaussian": 9.0, "gamma": 50.0, "matrix": 300.0}[certificate.noise]
    reach = (tail * scale + 2 * certificate.gradient_bound) / (promise.modulus + curvature)
    points = grid(float(center[0]), reach, *(promise.ends or (-np.inf, np.inf)), count, 0.05)
    sides = [promise.slopes(record, rest, curvature) for record in pair]
    if certificate.noise != "matrix":
        slopes = [lambda t, side=side: side(t[:, None])[0][:, 0] for side in sides]
        return line_masses(points, slopes[0], slopes[1], certificate.noise, scale)
    law, widths, masses = log_noise(certificate, 1), np.gradient(points), []
    for side in sides:  # densities alone: the ends of K have masses that are not compared
        gradient, hessian = side(points[:, None])
        masses.append(np.exp(law(-gradient)) * hessian[:, 0, 0] * widths)
    return Masses(*masses, error=1e-9)


def in_the_plane(promise: Promise, certificate: dp.Certificate, pair: Any, rest: Array, curvature: float) -> float:
    """Return found over claimed from the densities inside K: by sampling, or the largest ratio among many answers."""
    rng, law = np.random.default_rng(0), log_noise(certificate, 2)
    sides = [promise.slopes(record, rest, curvature) for record in pair]
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon

    def log_laws(theta: Array) -> tuple[Array, Array]:
        logs = [law(-gradient) + np.linalg.slogdet(hessian)[1] for gradient, hessian in (side(theta) for side in sides)]
        low, high = promise.ends or (-np.inf, np.inf)
        inside = ((theta > low) & (theta < high)).all(axis=1)
        if promise.disc:
            inside &= np.linalg.norm(theta, axis=1) < high
        return np.where(inside, logs[0], -np.inf), np.where(inside, logs[1], 0.0)

    center = middle_of(promise, rest, curvature)
    spread = certificate.noise_scale / (promise.modulus + curvature) * np.eye(2)
    if promise.noise == "gaussian":
        assert certificate.cover is not None
        least = sampled_delta(log_laws, epsilon, center, spread, 20_000, rng)[1]
        return least / (certificate.delta - certificate.cover.delta)
    points = center + rng.normal(size=(20_000, 2)) * 10.0 ** rng.uniform(-3, 1.5, size=(20_000, 1))
    first, second = log_laws(points)
    return float((first - second).max()) / epsilon


def worst(
    promise: Promise, certificate: dp.Certificate, rng: np.random.Generator, most: int, places: int
) -> tuple[float, Any]:
    """Return found over claimed for the worst neighbours that were tried, and where that was."""
    assert certificate.cover is not None
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
    delta, best, place = certificate.delta - certificate.cover.delta, 0.0, None
    for pair in promise.pairs(rng, most):
        for rest, curvature in aims(promise, certificate, pair, rng, places):
            if promise.features == 2:
                found = in_the_plane(promise, certificate, pair, rest, curvature)
            for count in (600, 6000) if promise.features == 1 else ():  # a second look where the first is alarming
                masses = exact(promise, certificate, pair, rest, curvature, count)
                found = masses.delta(epsilon) / delta if promise.noise == "gaussian" else masses.epsilon / epsilon
                if found <= 1:
                    break
            if found > best:
                best, place = found, (pair, rest, curvature)
    return best, place
