"""Runs a published mechanism as it was printed, to study it.  What comes out is not private, and says so.

The verifier refuses these mechanisms; here their noise is drawn and their objective minimised all the same, so that what
the papers computed can be compared with a repaired learner, and attacked.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.published.chaudhuri import published_calibration
from benchmarks.published.pathak_raj import PublishedPerturbation
from dpconvex.errors import NotConverged
from dpconvex.expressions.parameter_space import Space
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.release import Release
from dpconvex.fitting.verify import analyse
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.noise.samplers import gamma_direction, seeded_generator, system_generator
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arrays import Array

__all__ = ["NoMinimiser", "escape", "repeat_chaudhuri", "reproduce"]

# How far along a ray the objective must still fall before it is called unbounded.
FAR = 1e6
PROXIMAL_STEPS = 500


class NoMinimiser(NotConverged):
    """The perturbed objective falls without limit, so there is nothing to release."""


def reproduce(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: PublishedPerturbation | None = None,
    *,
    tolerance: float = 1e-8,
    seed: int | None = None,
) -> Release:
    """Draw published noise and minimise the published objective; the release is marked as not private, with the reason.

    The mechanism is that of Pathak & Raj 2012 by default.  `tolerance` is the largest distance from the exact minimiser, or
    without strong convexity the largest length of a subgradient.  Raises `NoMinimiser` if the perturbed objective falls
    without limit, as it does for most draws of Pathak & Raj 2010.
    """
    chosen = mechanism if mechanism is not None else PublishedPerturbation()
    analysis = analyse(template)
    batch = template.record.validate(data)
    size = batch.size
    defects = chosen.defects(analysis, privacy, size)
    why = defects[0].reason if defects else "nothing was accounted for"
    rng = system_generator() if seed is None else seeded_generator(seed)
    space = analysis.form.space
    noise = chosen.noise(space, chosen.scale(privacy.epsilon, size), rng)
    engine = DataEngine(analysis, batch, size, None)
    if analysis.modulus > 0:
        theta = engine.minimise(size * analysis.modulus, tolerance, linear=noise)
    else:
        theta = without_convexity(analysis, engine, noise, tolerance)
    return Release(
        parameters=space.unpack(theta),
        not_private_because=f"it reproduces a published mechanism: {why}",
        source=template.source,
        predictor=template.predict,
    )


def repeat_chaudhuri(
    template: Template,
    data: Mapping[str, ArrayLike],
    epsilon: float,
    algorithm: int = 2,
    *,
    draws: int = 1,
    tolerance: float = 1e-8,
    seed: int | None = None,
) -> Iterator[Release]:
    """Yield runs of Algorithm 1 (output) or 2 (objective) of Chaudhuri et al. (2011), each with noise of its own.

    Noise has the paper's calibration, in all dimensions, and every release is marked as not private.  Records are checked
    once, and Algorithm 1 minimises once.
    """
    analysis = analyse(template)
    batch = template.record.validate(data)
    size, space = batch.size, analysis.form.space
    found = published_calibration(analysis, epsilon, size, algorithm)
    rng = system_generator() if seed is None else seeded_generator(seed)
    engine = DataEngine(analysis, batch, size, None)
    added = size * found.added
    mu = size * analysis.modulus + added
    exact = engine.minimise(mu, tolerance) if algorithm == 1 else None
    for _ in range(draws):
        noise = gamma_direction(space.dim, 1 / found.rate, rng)
        theta = engine.minimise(mu, tolerance, linear=noise, added=added) if exact is None else exact + noise
        yield Release(
            parameters=space.unpack(theta),
            not_private_because=(
                f"its noise is calibrated as published (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm {algorithm}) and "
                "not certified"
            ),
            source=template.source,
            predictor=template.predict,
        )


def without_convexity(analysis: Analysis, engine: DataEngine, noise: Array, tolerance: float) -> Array:
    """Minimise an objective that is convex but not strongly so, by proximal points.

    Each step adds ``(rho/2) ||theta - previous||^2``, so that ``rho (previous - theta)`` is a subgradient of the objective
    at theta up to the step's own error (Rockafellar 1976, "Monotone operators and the proximal point algorithm").

    Raises
    ------
    NoMinimiser
        If the objective falls without limit along a ray that `escape` finds.
    NotConverged
        If no subgradient got short enough.
    """
    space = analysis.form.space
    slope = escape(space, engine, noise)
    if slope is not None:
        raise NoMinimiser(
            "the perturbed objective has no minimiser for this draw of b: without a strongly convex term it falls along "
            f"equal matrices (Phi, ..., Phi), by {-slope:.3g} per unit of Phi for ever; nothing is released. A term such as "
            "lambda * cp.sum_squares(Phi_c) would give it one."
        )
    rho = float(engine.size)
    theta = np.zeros(space.dim)
    for _ in range(PROXIMAL_STEPS):
        previous, theta = theta, engine.minimise(rho, tolerance / (4 * rho), linear=noise - rho * theta, added=rho)
        if rho * float(np.linalg.norm(theta - previous)) <= tolerance / 2:
            return theta
        rho = max(rho / 2, 1e-3 * engine.size)
    raise NotConverged(
        f"the perturbed objective is not strongly convex, and {PROXIMAL_STEPS} proximal steps did not settle; nothing is "
        "released."
    )


def escape(space: Space, engine: DataEngine, noise: Array) -> float | None:
    """Look for a ray of equal positive semidefinite matrices along which the perturbed objective falls for ever.

    Losses of margins do not change when the same matrix is added to every class.  Along (V, ..., V) only the public terms
    and the noise are left, and if they are linear the slope is the inner product of V with their sum over the classes: it
    is negative for some V unless that sum is positive semidefinite.

    Returns
    -------
    float or None
        The slope for the steepest V of rank one and norm 1, still the same a million units away; None if there is no such
        ray, or the variables are not symmetric matrices of one size.
    """
    blocks = list(space.blocks.values())
    if len({block.dim for block in blocks}) != 1 or not all(block.symmetric for block in blocks):
        return None

    def slopes(theta: Array) -> Array:
        return engine.loss_gradient(theta) + engine.public_gradient(theta) + noise

    first = slopes(np.zeros(space.dim))
    total = sum(space.unpack(first).values(), np.zeros(blocks[0].variable.shape))
    values, vectors = np.linalg.eigh(total)
    if values[0] >= 0:
        return None
    matrix = np.outer(vectors[:, 0], vectors[:, 0])
    ray = space.pack({block.variable.name: matrix for block in blocks})
    slope = float(slopes(FAR * ray) @ ray)
    return slope if slope < 0 else None
