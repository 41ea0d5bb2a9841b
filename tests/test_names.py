"""Names that were replaced keep working, and warn."""

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.deprecated import NAMES

LEARNER, DATA = dp.load("logistic_regression", features=2), {"x": np.zeros((100, 2)), "y": np.ones(100)}


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_the_new_one_and_warns(old):
    with pytest.warns(DeprecationWarning, match=f"dpconvex.{old} is now dpconvex.{NAMES[old]}"):
        assert getattr(dp, old) is getattr(dp, NAMES[old])
    assert old not in dir(dp)


def test_pieces_of_a_column_are_put_together_and_warn():
    for source in ([np.zeros((2, 3)), np.ones((1, 3))], lambda: iter([np.zeros((2, 3)), np.ones((1, 3))])):
        with pytest.warns(DeprecationWarning, match=r"pass dpconvex\.Partitions"):
            assert dp.ChunkedColumn(source).sum() == 3


def test_old_arguments_are_the_new_ones_and_warn():
    budget, noise = dp.Budget(dp.Privacy(3.0)), dp.ResidualNoise(share=0.02)
    with pytest.warns(DeprecationWarning, match="verify: cover= is now residual_noise="):
        old = dp.verify(LEARNER, dp.Privacy(1.0), 100, cover=noise)
    assert old == dp.verify(LEARNER, dp.Privacy(1.0), 100, residual_noise=noise)
    with pytest.warns(DeprecationWarning, match="solve: label= is now entry="):
        release = dp.solve(LEARNER, DATA, dp.Privacy(1.0), budget=budget, label="first")
    with pytest.warns(DeprecationWarning, match="evaluate: name= is now entry="):
        dp.evaluate(LEARNER, release, DATA, dp.Privacy(1.0), budget=budget, name="second", label="y")
    assert [entry.label for entry in budget.entries] == ["first", "second"]
    with pytest.raises(TypeError, match="cover"):
        dp.load("logistic_regression", features=2).problem(DATA, cover=noise)
