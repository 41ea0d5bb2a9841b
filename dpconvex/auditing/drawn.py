"""The noise as it is drawn: a mechanism runs on a problem without losses, and its noise is compared with the claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, gamma, ks_2samp

from dpconvex.auditing.report import Attack
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.rank_one_gradients import degrees_of_freedom
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noise_laws import shape_of
from dpconvex.noise.matrix_variate import best_structure
from dpconvex.noise.samplers import system_generator

Array = NDArray[np.float64]

# With this probability an honest sampler is called broken.
ALARM = 1e-9


class Nothing:
    """An engine without data: its minimiser is the linear term, its gradient 0, and K all of space.  It notes all steps."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.seen: list[Array] = []

    def minimise(
        self,
        strong_convexity: float,
        tolerance: float,
        linear: Array | None = None,
        added: float = 0.0,
        smoothing: float = 0.0,
    ) -> Array:
        return np.zeros(self.dim) if linear is None else linear

    def loss_gradient(self, theta: Array) -> Array:
        return np.zeros(self.dim)

    @property
    def records(self) -> int:
        return 0

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        return np.zeros(self.dim)

    def public_gradient(self, theta: Array) -> Array:
        return np.zeros(self.dim)

    def project(self, theta: Array) -> Array:
        """Note the point, and return 0."""
        self.seen.append(theta)
        return np.zeros(self.dim)


def attack_drawing(analysis: Analysis, certificate: Certificate, mechanism: Mechanism, draws: int) -> Attack:
    """Compare the noise that a mechanism draws with the law that its certificate claims."""
    return attack_vectors(analysis, certificate, drawn(analysis, certificate, mechanism, draws))


def attack_vectors(analysis: Analysis | None, certificate: Certificate, vectors: Array) -> Attack:
    """Compare noise vectors, shape (m, dim), with a claimed law; that of matrices needs the constants of their template."""
    p, scale, claimed = certificate.noise_dimension, certificate.noise_scale, 1 / certificate.noise_scale
    norms = np.linalg.norm(vectors, axis=1)
    count = len(vectors)
    if certificate.noise == "gamma":
        found = float(gamma.ppf(ALARM, count * p)) / float(norms.sum())
    elif certificate.noise == "gaussian":
        found = float(np.sqrt(chi2.ppf(ALARM, count * p) / (norms**2).sum()))
    else:
        assert analysis is not None
        structure = best_structure(analysis)
        ideal = reference(*shape_of(certificate), scale, count)
        expected = np.linalg.norm(ideal @ np.asarray(structure.map.T.todense()), axis=1)
        same = ks_2samp(norms, expected).pvalue >= ALARM
        found = claimed * (1.0 if same else float(np.median(expected) / np.median(norms)))
    return Attack(
        part="noise as drawn",
        what="1/scale",
        epsilon=claimed,
        delta=0.0,
        found_epsilon=found,
        found_delta=0.0,
        how=f"{count} draws: the claimed scale is {'above' if found > claimed else 'not above'} its upper confidence limit",
    )


def drawn(analysis: Analysis, certificate: Certificate, mechanism: Mechanism, draws: int) -> Array:
    """Return noise vectors, shape (m, dim)."""
    dim = analysis.form.space.dim
    rng = system_generator()
    if not certificate.minimises:
        steps = int(certificate.settings["steps"])
        settings = {**certificate.settings, "steps": float(min(steps, draws)), "momentum": 0.0}
        one = replace(certificate, settings=settings)
        found: list[Array] = []
        while len(found) < draws:
            engine = Nothing(dim)
            mechanism.run(analysis, one, engine, rng)
            found.extend(engine.seen[1:])  # the first is the start
        return np.asarray(found) / certificate.settings["step_size"]
    found = []
    for _ in range(draws):
        engine = Nothing(dim)
        answer = mechanism.run(analysis, certificate, engine, rng)
        found.append(engine.seen[0] if engine.seen else answer)
    return np.asarray(found)


def reference(rows: int, columns: int, scale: float, count: int) -> Array:
    """Draw matrix-variate t noise in another way, from Wishart matrices, shape (count, rows * columns)."""
    rng = system_generator()
    freedom = degrees_of_freedom(rows, columns)
    normal = rng.standard_normal((count, rows, freedom))
    values, vectors = np.linalg.eigh(normal @ np.swapaxes(normal, 1, 2))
    root = (vectors / np.sqrt(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    matrix = root @ rng.standard_normal((count, rows, columns))
    return np.asarray(matrix.reshape(count, -1) * (scale * (freedom + columns) / 2))
