"""Whether a fit fails must not depend on the data, so no fit fails at all: whatever is certified is released."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from never_fails import LEARNERS, Tally, attempt, learners

import dpconvex as dp

# Fits of the long run: so many of each learner, as it comes, until there are so many in all.
MANY, EACH = int(os.environ.get("DPCONVEX_FITS", "10000")), 60
QUICK = (dp.ObjectivePerturbation(), dp.ObjectivePerturbation("matrix"), dp.OutputPerturbation())


def test_no_fit_fails() -> None:
    rng, tally = np.random.default_rng(0), Tally()
    for label, template in learners(rng):
        attempt(tally, label, template, rng, 12, sizes=(0, 1, 2, 3, 8, 30), mechanisms=QUICK)
        if tally.released >= 100 or tally.failed:
            break
    assert not tally.failed, tally.failed[0]
    assert tally.refused < tally.released


@pytest.mark.slow
def test_ten_thousand_fits_and_no_failure() -> None:
    rng, tally, seen = np.random.default_rng(1), Tally(), set()
    for label, template in learners(rng):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of searches for a predicted risk, at absurd promises
            attempt(tally, label, template, rng, EACH)
        seen.add(label.split()[0])
        if tally.released >= MANY:
            break
    assert not tally.failed, f"{len(tally.failed)} of {MANY} failed: {tally.failed[0]}"
    assert seen == set(LEARNERS) or MANY < 10_000


@pytest.mark.parametrize("size", [2, 227])
@pytest.mark.parametrize("labels", ["alternating", "equal"])
def test_records_that_all_meet_the_same_kink_of_the_curvature(labels: str, size: int) -> None:
    template = dp.load("huber_svm", features=1, regularization=1e-6, width=1e-3)
    signs = 1 - 2 * (np.arange(size) % 2)
    data = {"x": signs[:, None].astype(float), "y": signs if labels == "alternating" else np.ones(size, dtype=int)}
    for seed in range(2):
        assert dp.solve(template, data, dp.Privacy(100.0), seed=seed).certificate is not None
