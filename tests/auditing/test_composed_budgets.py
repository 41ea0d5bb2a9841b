"""Several releases of one budget against one adversary: the exact law of all answers together, next to the ledger's total."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.stats import norm

import dpconvex as dp

TOTAL = dp.Privacy(3.0, 1e-5, "add-remove")
EACH = dp.Privacy(0.8, 1e-6, "add-remove")
SIZE, STEP, WIDTH = 400, 2e-3, 6000
LEARNER = dp.load("logistic_regression", features=1, regularization=0.05)


def on_grid(loss, mass):
    """Put masses on privacy losses that are rounded down to a grid: what is shown so is never more than the truth."""
    return np.bincount(np.clip(np.floor(loss / STEP).astype(int), -WIDTH, WIDTH) + WIDTH, mass, 2 * WIDTH + 1)


def objective(certificate, appears):
    """One record with margin t next to records that agree with it: the density of the exact minimiser, in closed form."""
    sigma, mu = certificate.noise_scale, certificate.strong_convexity
    t = np.linspace(-9 * sigma - 2, 9 * sigma + 2, 400_001)
    slope = 1 / (1 + np.exp(-t / mu - 30.0))  # a record that everything else contradicts: its slope is 1
    without = norm.logpdf(t, scale=sigma)
    with_it = norm.logpdf(t + slope, scale=sigma) + np.log1p((slope * (1 - slope)) / mu)
    first, second = (with_it, without) if appears else (without, with_it)
    return on_grid(first - second, np.exp(first) * (t[1] - t[0]))


def descent(certificate):
    """A record whose gradient is longer than the clip at every step: a walk with steps that are apart by all of it."""
    mu = certificate.settings["clip"] * math.sqrt(certificate.settings["steps"]) / certificate.noise_scale
    loss = np.linspace(mu * mu / 2 - 10 * mu, mu * mu / 2 + 10 * mu, 200_001)
    return on_grid(loss, norm.pdf(loss, mu * mu / 2, mu) * (loss[1] - loss[0]))


def count(epsilon):
    """One mistake more or less under integer noise of the two-sided geometric law."""
    k, ratio = np.arange(-400, 401), math.exp(-epsilon)
    return on_grid(np.where(k <= 0, epsilon, -epsilon) * (1 - 1e-12), (1 - ratio) / (1 + ratio) * ratio ** np.abs(k))


def shown(parts, delta):
    masses, lowest = parts[0], -WIDTH
    for part in parts[1:]:
        masses, lowest = np.maximum(fftconvolve(masses, part), 0.0), lowest - WIDTH
    losses = STEP * (lowest + np.arange(len(masses)))
    excess = lambda epsilon: float((masses * -np.expm1(np.minimum(epsilon - losses, 0.0))).sum()) - 1e-12 - delta  # noqa: E731
    return float(brentq(excess, 0.0, 20.0)) if excess(0.0) > 0 else 0.0


def fitted(budget, mechanism):
    rng = np.random.default_rng(0)
    data = {"x": rng.uniform(-1, 1, size=(SIZE, 1)), "y": rng.choice([-1, 1], size=SIZE)}
    return dp.solve(LEARNER, data, EACH, mechanism, size=SIZE, budget=budget).certificate


@pytest.mark.parametrize("accounting", ["gaussian", "renyi", "basic"])
def test_the_exact_law_of_all_answers_stays_below_the_ledgers_total_and_near_it(accounting):
    budget = dp.Budget(TOTAL, accounting=accounting)
    first = fitted(budget, dp.ObjectivePerturbation("gaussian"))
    second = fitted(budget, dp.NoisyGradientDescent(clip=0.25, steps=20))
    budget.spend(dp.Privacy(0.1, 0.0, "add-remove"), "mistakes")
    rest = [descent(second), count(0.1)]
    found = [shown([objective(first, appears), *rest], TOTAL.delta) for appears in (True, False)]
    # Noise covers, which nobody attacks here, and tenths of delta; divergences of one order lose more.
    assert {"gaussian": 0.85, "renyi": 0.6, "basic": 0.58}[accounting] * budget.spent.epsilon <= max(found)
    assert max(found) <= budget.spent.epsilon
    best = budget.totals()[0]  # what is known of releases that were fixed beforehand, as these were
    assert max(found) <= best.epsilon
    assert max(found) >= (0.92 if best.rule == "convolution" else 0.85) * best.epsilon


def test_an_event_that_says_too_little_would_be_found_out():
    certificate = fitted(dp.Budget(TOTAL), dp.NoisyGradientDescent(clip=0.25, steps=20))
    parts = [descent(certificate)] * 3
    honest, event = dp.Budget(TOTAL, accounting="gaussian"), certificate.event
    wrong = replace(event, parts=tuple(replace(e, mu=e.mu / 2) if e.kind == "gaussian" else e for e in event.parts))
    lying = dp.Budget(TOTAL, accounting="gaussian")
    for _ in range(3):
        honest.spend(EACH, "descent", event)
        lying.spend(EACH, "descent", wrong)
    assert lying.spent.epsilon < 0.7 * shown(parts, TOTAL.delta) < shown(parts, TOTAL.delta) <= honest.spent.epsilon
