"""What is paid for ends in a release, whatever the data are: a small run of `benchmarks.soak`."""

import pytest

from benchmarks.soak import attempt, case, soak


def test_a_few_random_fits():
    counts, failures = soak(first=0, fits=12, seconds=60.0)
    assert not failures
    assert counts["released"] > 5


# Zeros alone in sparse data; whitened components of a mixture; a minimiser where all records meet an edge of their loss.
@pytest.mark.parametrize("number", [51, 83, 70615])
def test_cases_that_failed_once(number):
    assert attempt(*case(number)) == "released"


# Heights that cost a 1e-15th of what records add up to; steep losses in a small box; a solver that finds no point.
@pytest.mark.parametrize("number", [63, 140, 144, 1029, 1063, 1209, 1507, 10470, 10856])
def test_templates_that_failed_once(number):
    assert attempt(*case(number, own=True)) == "released"
