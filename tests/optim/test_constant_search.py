"""The noisy search for a constant: how near it comes where targets lie in a small part of their bounds."""

import numpy as np

from dpconvex.optim.class_descent import shorter
from dpconvex.optim.constant_search import Sought, search

HALF, RUNS = 1e6, 200


def test_targets_in_a_small_part_of_their_bounds_are_found_in_all_runs() -> None:
    draw, missed = np.random.default_rng(0), []
    targets = draw.normal(50, 12, 2000)
    for _ in range(RUNS):
        noise = 0.0175  # Of an answer, next to its clip

        def ask(tried, clip, noise=noise):
            return np.array([np.clip(2 * (tried[0] - targets), -clip, clip).mean() + clip * noise * draw.normal()])

        sought = Sought(HALF, (2.0, 2.0))
        search(ask, noise, [sought], np.inf)
        missed.append(abs(sought.place - 50))
    assert max(missed) < 200


def test_steps_that_stand_out_along_the_constant_alone_become_no_longer() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        point, constant = draw.normal(size=(12, 1)), draw.normal(size=12)
        kept, lost = np.where(np.arange(12) == 11, draw.uniform(), 0.0), draw.uniform()
        found = shorter(point, kept, lost * kept, constant, None, 0.5)
        along = constant * point[-1, 0] / constant[-1]
        assert np.linalg.norm(found) <= 2 * (np.linalg.norm(point) + np.linalg.norm(along))
