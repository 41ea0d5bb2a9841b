"""How the work of a proof grows with the number of labels, in calls of functions: seconds depend on the machine."""

from cProfile import Profile
from math import log

import pytest

import dpconvex as dp

LEARNERS = {
    "classes": lambda labels: dp.load("softmax_regression", features=4, classes=labels),
    "chains": lambda labels: dp.load("linear_chain_crf", features=1, length=labels.bit_length() - 1),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_calls_grow_in_proportion_to_labels(name):
    """Each label's loss has as many entries as there are labels: rules look at arrays of these, never at each."""
    calls = {}
    for labels in (2, 32, 64):  # the first prepares what is made once
        template, profile = LEARNERS[name](labels), Profile()
        profile.runcall(dp.verify, template, dp.Privacy(1.0), 1000)
        calls[labels] = sum(entry.callcount for entry in profile.getstats())
    assert log(calls[64] / calls[32]) <= log(2)
