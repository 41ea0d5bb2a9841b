"""The noisy search for a constant: how near it comes where targets lie in a small part of their bounds."""

import numpy as np

from dpconvex.optim.class_descent import shorter
from dpconvex.optim.constant_search import Sought, search
from dpconvex.optim.slope_histograms import LengthHistograms

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


def test_clips_leave_little_of_a_tail_that_noise_hides() -> None:
    """Few records with long rows were cut to the length of others, so they counted far less."""
    draw, edges, lost, clips = np.random.default_rng(0), 2.0 ** np.arange(-10.0, 14), [], []
    for _ in range(RUNS):
        skewed, normal = draw.lognormal(0, 1.3, 5000), draw.normal(size=5000)
        for slopes in (skewed, normal):
            counts = np.stack([np.histogram(side, np.append(0, edges))[0] for side in (slopes, -slopes)])
            noisy = counts + 20 * draw.normal(size=counts.shape)
            clips.append(LengthHistograms(edges, 20.0, 5000, True).clip(noisy, 25.0**2, 1.0, 0.0))
        lost.append(np.maximum(skewed - clips[-2], 0).mean() / skewed.mean())
    assert np.mean(lost) <= 0.05
    assert np.mean(clips[1::2]) <= 4
