"""Noisy k-means: centres from noisy counts and sums of cells, in rounds (docs/theory.md, section 16; Blum et al. 2005)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import ClusteringNoise
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.noise.samplers import SPHERICAL, seeded_generator
from dpconvex.numerics import NORM_SLACK
from dpconvex.util.arguments import COUNT, between, whole
from dpconvex.util.arrays import Array

Statistics = Callable[[Array], tuple[Array, Array]]

# The grid next to the radius, and next to the noise, so that rounding hardly changes its distribution.
FINE, BELOW_NOISE = 2.0**-16, 2.0**-24
LARGEST_NOISE = 2.0**26  # With noise of more radii on a sum, clustering is impossible
LARGEST = 10**7  # Most numbers in the centres
# Default rounds, also for a pure guarantee. More rounds converge further on the data, with more noise.
ROUNDS, PURE_ROUNDS = 5, 3
# Public candidates for well-spread starting points.
CANDIDATES = 2000
SOURCE = "docs/theory.md, section 16"
ASSUMED = (
    "The clustering's noise is drawn in floating point and rounded to the grid of the records; the rounded draw is taken to have "
    "the law of a rounded ideal one."
)
COMPOSED = {
    "gaussian": "adaptive Gaussian releases add up in squares (Dong, Roth & Su 2022, corollary 3.3); exact profile of the "
    "Gaussian mechanism (Balle & Wang 2018, theorem 8)",
    "gamma": "the density of each cell's noise is log-Lipschitz in its norm; rounds add up (Dwork & Roth 2014, section 3.5)",
}


@dataclass(frozen=True)
class NoisyKMeans:
    """Run private k-means within every class, in a fixed number of rounds.

    The first round releases the mean of every class.  Centres then start around it in public directions, and every further
    round moves each centre to the mean of the records that are nearest to it.

    Parameters
    ----------
    rounds : int or None
        T: number of releases of counts and sums; at least 2. Noise on each grows with sqrt(T), or with T for a pure guarantee.
        So None means 5 rounds, or 3 for a pure guarantee.
    """

    rounds: int | None = None

    def __post_init__(self) -> None:
        whole(2).or_none.check("NoisyKMeans", rounds=self.rounds)

    def calibrate(
        self, privacy: Privacy, *, classes: int, components: int, features: int, radius: float
    ) -> ClusteringNoise:
        """Return the noise of all rounds for a guarantee: Gaussian, or Gamma noise if that is smaller.

        There are `components` centres for each class, and `radius` is a public bound on the norm of features.
        """
        centres = f"clustering: {classes} x {components} centres of {features} features"
        COUNT.check("clustering", classes=classes, components=components, features=features)
        if classes * components * features > LARGEST:
            raise TemplateError(f"{centres} are more than {LARGEST:,} numbers. Use fewer features or centres.")
        between(1e-100, 1e100).check("clustering", radius=radius)
        rounds = int(self.rounds or (PURE_ROUNDS if privacy.pure else ROUNDS))
        shape = (rounds, int(classes), int(components), int(features), float(radius))

        def noise(law: str, weight: float) -> ClusteringNoise:
            once = sensitivity(law, privacy.adjacency, radius, weight)
            scale = least_scale(law, privacy, once, rounds)
            step = grid_step(radius, scale)
            return ClusteringNoise(law, privacy.epsilon, privacy.delta, *shape, weight, once, scale, step)

        balanced = radius * features**-0.25  # the weight with the least error of centres from sums and counts
        chosen = noise("gamma", balanced)
        if not privacy.pure:  # under replace-one, counts weighted by the radius cost nothing
            other = noise("gaussian", balanced if privacy.adjacency == "add-remove" else float(radius))
            chosen = min(chosen, other, key=lambda n: n.deviation)
        if chosen.scale > LARGEST_NOISE * radius:
            why = f"the clustering's share of the guarantee needs noise of {chosen.scale / radius:.3g} times the radius"
            remedy = "ask for a larger epsilon, or give the clustering a larger share"
            raise NotPrivate(why, f"epsilon = {privacy.epsilon:g}", remedy)
        return chosen

    def run(self, noise: ClusteringNoise, statistics: Statistics, rng: np.random.Generator) -> Array:
        """Return centres, shape (C, K, d), in steps.  `statistics` maps centres to sums and counts of cells, (C, k)."""
        centers = self._moved(noise, np.zeros((noise.classes, 1, noise.features)), statistics, rng)
        spread = start_directions(noise.components, noise.features)
        centers = np.rint(centers + spread * (noise.radius / noise.step / 2))
        for _ in range(noise.rounds - 1):
            centers = self._moved(noise, centers, statistics, rng)
        return centers

    def _moved(self, noise: ClusteringNoise, centers: Array, statistics: Statistics, rng: np.random.Generator) -> Array:
        """Move centres to the noisy means of their cells; a centre with a count below the noise stays."""
        sums, counts = statistics(centers)
        drawn = draw(noise, sums.shape[:2], rng)
        sums = sums + np.rint(drawn[..., :-1] / noise.step)
        counts = counts + np.rint(drawn[..., -1] / noise.weight)
        # From here on, only the noisy numbers are used.
        reach = noise.radius / noise.step
        least = 2 * noise.deviation * math.sqrt(noise.features) / noise.radius
        means = sums / np.maximum(counts, 1.0)[..., None]
        length = np.linalg.norm(means, axis=-1, keepdims=True)
        means *= np.minimum(1.0, reach / np.maximum(length, reach))
        return np.where((counts > least)[..., None], np.rint(means), centers)

    def derive(self, noise: ClusteringNoise, adjacency: str) -> Derivation:
        record = {"radius": noise.radius, "weight of a count": noise.weight, "of one round": noise.sensitivity}
        why = f"a record is in one cell; {SOURCE}, {adjacency}"
        rounds = {"rounds": float(noise.rounds), "of all rounds": noise.composed, noise.law.symbol: noise.scale}
        steps = (
            Derivation("one record's share in counts and sums", "", record, why),
            Derivation("composition of all rounds", "", rounds, COMPOSED[noise.noise]),
        )
        claims = {"epsilon": noise.epsilon} | ({"delta": noise.delta} if noise.delta else {})
        return Derivation("noisy k-means", "", claims, SOURCE, steps)


def sensitivity(law: str, adjacency: str, radius: float, weight: float) -> float:
    """Return the sensitivity of sums and weighted counts of cells; for Gamma noise, the sum of the cells' norms."""
    record = math.hypot(radius, weight)
    if adjacency == "add-remove":
        return record
    # Replacing a record by its negative, or by a record of another cell.
    return 2 * record if law == "gamma" else max(2 * radius, math.sqrt(2) * record)


def least_scale(law: str, privacy: Privacy, once: float, rounds: int) -> float:
    """Return the smallest scale of noise with which all rounds keep a guarantee."""
    whole = SPHERICAL[law].composed(once, rounds) * (1 + NORM_SLACK)
    return SPHERICAL[law].calibrate(privacy.epsilon, privacy.delta, whole)


def draw(noise: ClusteringNoise, cells: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw one round's noise for every cell, shape (*cells, d + 1); the last entry is for the weighted count."""
    size = noise.features + 1
    return np.array([noise.law.draw(size, noise.scale, rng) for _ in range(math.prod(cells))]).reshape(*cells, size)


def grid_step(radius: float, scale: float = 0.0) -> float:
    """Return the grid step for records within a radius, under noise of this scale."""
    return float(2.0 ** math.floor(math.log2(max(FINE * radius, BELOW_NOISE * scale))))


def nearest_centers(records: Array, centers: Array) -> NDArray[np.int64]:
    score = 2 * (records @ centers.T) - np.sum(centers * centers, axis=1)
    return np.asarray(np.argmax(score, axis=1), dtype=np.int64)


def start_directions(components: int, features: int) -> Array:
    """Return public, well-spread points of the unit ball, shape (K, d): a regular simplex if the dimension allows it."""
    rng = seeded_generator(0)
    if components == 1:
        return np.zeros((1, features))
    if components <= features + 1:
        left, singular, _ = np.linalg.svd(np.eye(components) - 1 / components)
        points = (left * singular)[:, : components - 1]
        turn = np.linalg.qr(rng.normal(size=(features, features)))[0]
        return np.asarray(points / np.linalg.norm(points[0]) @ turn[: components - 1])
    normal = rng.normal(size=(CANDIDATES, features))
    lengths = rng.random(CANDIDATES) ** (1 / features)
    ball = normal / np.linalg.norm(normal, axis=1, keepdims=True) * lengths[:, None]
    taken = [0]
    for _ in range(components - 1):
        distance = np.min([np.linalg.norm(ball - ball[k], axis=1) for k in taken], axis=0)
        taken.append(int(np.argmax(distance)))
    return np.asarray(ball[taken])
