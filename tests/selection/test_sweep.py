"""Many fits: complete releases, each with its own noise, paid one by one, or all under one promise that accounting shares out."""

import os
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from learners_of_tests import X, Y
from refused import refused

import dpconvex as dp

LARGE = {"x": X[:300], "y": Y[:300]}
DATA = {name: column[:60] for name, column in LARGE.items()}
PROMISES = [dp.Privacy(1.0), dp.Privacy(5.0)]
ADJACENCIES = ["replace-one", "add-remove"]


@cache
def learner(regularization=0.1):
    return dp.load("logistic_regression", features=3, regularization=regularization)


def test_what_cannot_be_paid_for_learns_nothing_of_the_records():
    wrong = {"x": np.full((60, 3), 3.0), "y": DATA["y"]}
    for total, data, error in ((1.5, DATA, None), (1.5, wrong, dp.DomainError), (0.5, wrong, dp.BudgetExceeded)):
        budget = dp.Budget(dp.Privacy(total))
        with pytest.raises(error, match=r"stays paid for|left") if error else nullcontext():
            list(dp.sweep(learner(), data, PROMISES[0], budget=budget))
        assert len(budget.entries) == (total > 1)


def test_an_interruption_releases_nothing_half_done_and_is_paid_for():
    budget, count = dp.Budget(dp.Privacy(10.0)), 0
    seen = []

    class Interrupted:
        def solve(self, problem, tolerance):
            nonlocal count
            count += 1
            if count == 3:
                raise KeyboardInterrupt
            return dp.ConicSolver().solve(problem, tolerance)

    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=5, budget=budget, backend=Interrupted())
    refused(KeyboardInterrupt, None, seen.extend, releases)
    assert len(seen) == 2
    assert budget.spent.epsilon == pytest.approx(3.0)


def bits(releases):
    return [b"".join(value.tobytes() for value in release.parameters.values()) for release in releases]


def test_no_two_fits_share_noise_few_are_begun_ahead_and_one_that_fails_ends_the_sweep():
    budget = dp.Budget(dp.Privacy(9.5))
    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=10, workers=3, budget=budget)
    found = [next(releases)]
    assert 1 <= len(budget.entries) <= 4
    refused(dp.BudgetExceeded, None, found.extend, releases)
    assert len(set(bits(found))) == len(found) == 9
    assert all(release.spent == PROMISES[0] for release in found)
    assert len(budget.entries) == 9
    refused(dp.TemplateError, "workers must be a positive", dp.sweep, learner(), DATA, PROMISES[0], workers="two")


def test_a_total_is_for_the_records_that_it_was_proved_for():
    total = dp.Privacy(2.0, 1e-6)
    for templates, begun in ((learner(), 0), ([learner(), learner(0.2)], 1)):
        data, budget = dict(DATA), dp.Budget(total)
        fits = dp.sweep(templates, data, total=total, draws=2 - begun, budget=budget)
        assert len([next(fits) for _ in range(begun)]) == len(budget.entries)
        data.update({name: column[:4] for name, column in DATA.items()})
        # They are read anew for each learner.
        refused(dp.TemplateError, "size is 60, but there are 4 records", next, fits)
        assert len(budget.entries) == begun


@pytest.mark.filterwarnings("ignore:.*fork")  # other packages warn of forks where there are threads
def test_a_fork_does_not_go_on_with_a_sweep_that_was_paid_for_once():
    fits = dp.sweep(learner(), DATA, total=dp.Privacy(2.0, 1e-6), draws=3)
    next(fits)
    child = os.fork()
    if not child:
        try:
            next(fits)
        except dp.DPConvexError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(fits)) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_fits_that_share_a_promise_are_what_the_size_chooses_and_paid_in_whole_at_first(adjacency):
    whole = dp.Privacy(3.0, 1e-5, adjacency)
    size, grid = 300 if adjacency == "add-remove" else None, [learner(0.01), learner()]
    budget, plan = dp.Budget(whole), dp.calibrate(grid, whole, 300, 2)
    swept = dp.sweep(grid, LARGE, total=whole, draws=2, size=size, budget=budget)
    assert budget.entries == ()
    first = next(swept)
    assert [(entry.privacy, entry.event) for entry in budget.entries] == [(whole, plan.event)]
    found = [first, *swept]
    assert [fit.certificate for fit in found] == list(plan.certificates)
    assert {release.certificate.perturbed for release in found} == {"queries"}
    assert len(budget.entries) == 1
    budget = dp.Budget(whole)
    chosen = dp.tune(grid, LARGE, whole, split=False, size=size, budget=budget)
    certificate = chosen.release.certificate
    assert chosen.release.certificate.perturbed == "queries"
    assert (chosen.spent, certificate.privacy, budget.remaining.epsilon) == (whole, whole, 0)
    leaves = [leaf.epsilon for leaf in certificate.event.leaves() if leaf.kind == "pure"]
    assert pytest.approx(0.3) in leaves  # the choice
    both = [dp.tune(grid, LARGE, whole, split=False, size=size, seed=3, workers=w).release["w"] for w in (None, 1)]
    np.testing.assert_array_equal(*both)
    for promises in ({}, {"privacies": whole, "total": whole}):
        refused(dp.TemplateError, "the guarantee of each release, or the `total`", dp.sweep, grid, LARGE, **promises)
