"""Names that were replaced keep working, and warn."""

import ast
import inspect
from textwrap import dedent

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.util.deprecated import NAMES

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


def test_every_argument_of_a_public_function_is_read():
    """An option that nothing reads would be dropped without a word."""
    functions = {name: inspect.unwrap(getattr(dp, name)) for name in dir(dp)}
    found = {name: function for name, function in functions.items() if inspect.isfunction(function)}
    assert {"solve", "tune", "tune_repeated", "sweep", "evaluate", "solve_mixture", "cluster"} <= {*found}
    for name, function in found.items():
        tree = ast.parse(dedent(inspect.getsource(function)))
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert {*inspect.signature(function).parameters} <= read, name


def test_shares_of_components_that_are_not_learnt_are_refused():
    mixture = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    centers = dp.ComponentCenters([[[-0.5], [0.5]], [[-0.5], [0.5]]], classes=(0, 1))
    with pytest.raises(dp.TemplateError, match="declared centers cost nothing"):
        dp.verify_mixture(mixture, dp.Privacy(1.0), 100, clustering=centers, share=0.5)
    for kind, given in (("given", None), ("nearest", centers.centers)):
        for options in ({"share": 0.5}, {"rounds": 3}):
            with pytest.raises(dp.TemplateError, match="share and rounds"):
                dp.LargeMarginGaussianMixture(component_labels=kind, centers=given, **options).certificate(1, 100)
