"""Matrix-shaped noise: its law, its Lipschitz property, the shape of gradients that it needs, and exact privacy."""

import math

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.matrix_noise import matrix_noise, noise_bound, rounding_bound
from dpconvex.sensitivity.rank_one_gradients import degrees_of_freedom, rank_one_structures
from dpconvex.sums.batch_loss import BatchedLoss


def generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


def log_law(matrix, beta):
    """Log density of the noise up to a constant, for matrices (..., rows, columns)."""
    rows, columns = matrix.shape[-2:]
    a = (degrees_of_freedom(rows, columns) + columns) / 2
    return np.asarray(-a * np.linalg.slogdet(np.eye(rows) + matrix @ np.swapaxes(matrix, -1, -2) / (a / beta) ** 2)[1])


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (2, 3), (4, 2)])
def test_the_sampler_has_its_law(rows, columns):
    rng, count, scale = generator(1), 3000, 0.7
    drawn = np.array([matrix_noise(rows, columns, scale, rng) for _ in range(count)])
    nu = degrees_of_freedom(rows, columns)
    s = scale * (nu + columns) / 2
    # Wilks' statistic det(I + M M'/s^2)^-1 is a product of independent beta variables.
    wilks = 1 / np.linalg.det(np.eye(rows) + drawn @ np.swapaxes(drawn, 1, 2) / s**2)
    betas = [stats.beta.rvs((nu - i) / 2, columns / 2, size=20_000, random_state=i) for i in range(rows)]
    assert stats.ks_2samp(wilks, np.prod(betas, axis=0)).pvalue > 1e-3
    # One row is a multivariate t, with nu - rows + 1 degrees of freedom.
    freedom = nu - rows + 1
    row = (drawn[:, -1] ** 2).sum(axis=1) / s**2 * freedom / columns
    assert stats.kstest(row, stats.f(columns, freedom).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (2, 10), (5, 5), (9, 50)])
def test_no_rank_one_change_moves_the_log_density_by_more_than_beta(rows, columns):
    rng, beta, worst = generator(2), 1.3, 0.0
    for _ in range(200):
        matrix = matrix_noise(rows, columns, 1 / beta, rng) * rng.choice([0.1, 0.5, 1.0, 3.0])
        left, right = rng.standard_normal(rows), rng.standard_normal(columns)
        if rng.random() < 0.5:  # along the steepest singular direction
            u, _, vt = np.linalg.svd(matrix)
            left, right = u[:, 0], vt[0]
        step = np.outer(left, right) / (np.linalg.norm(left) * np.linalg.norm(right)) * rng.choice([1e-3, 0.1, 2.0])
        change = float(log_law(matrix + step, beta) - log_law(matrix, beta))
        worst = max(worst, abs(change) / float(np.linalg.norm(step)))
    assert 0.5 * beta <= worst <= beta * (1 + 1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (10, 10), (9, 50)])
def test_the_bound_on_the_norm(rows, columns):
    rng, count = generator(5), 2000
    norms = np.array([np.linalg.norm(matrix_noise(rows, columns, 1.0, rng)) for _ in range(count)])
    for probability in (0.3, 0.01):
        assert (norms > noise_bound(rows, columns, 1.0, probability)).sum() <= stats.binom.isf(1e-6, count, probability)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (2, 3), (6, 4), (10, 10)])
def test_what_errors_of_the_draw_do_to_the_noise(rows, columns):
    # The steps of the sampler, twice: with errors of the worst kind, a share `error` of each row, in the direction in which
    # the rows below have most to lose, and without.
    rng, error, probability, count = generator(6), 1e-7, 0.05, 1500
    freedom = degrees_of_freedom(rows, columns)
    s, moved = (freedom + columns) / 2, np.empty(count)
    for number in range(count):
        exact, wrong = np.zeros((0, columns)), np.zeros((0, columns))
        for k in reversed(range(rows)):
            row = rng.standard_normal(columns) / math.sqrt(rng.chisquare(freedom - rows + 1 + k))
            off = exact[np.argmax((exact**2).sum(axis=1))] if len(exact) else rng.standard_normal(columns)
            near = row + error * np.linalg.norm(row) * off / np.linalg.norm(off)
            exact, wrong = (np.vstack([r, m @ root(r)]) for r, m in ((row, exact), (near, wrong)))
        moved[number] = s * np.linalg.norm(wrong - exact)
    # `rounding_bound` counts (1.5 c + 35) units, of which an error of so many is root two.
    bound = rounding_bound(rows, columns, 1.0, probability) * math.sqrt(2) * error / ((1.5 * columns + 35) * 2.0**-53)
    assert (moved > bound).sum() <= stats.binom.isf(1e-6, count, probability)
    assert bound < 100 * np.quantile(moved, 1 - probability)


def root(row):
    value, vector = np.linalg.eigh(np.eye(len(row)) + np.outer(row, row))
    return np.asarray((vector * np.sqrt(value)) @ vector.T)


# Which templates have gradients of rank one.
def softmax(classes, features, bias=False):
    W, b = cp.Variable((classes, features), name="W"), cp.Variable(classes, name="b")

    def loss(x, y):
        scores = W @ x + b if bias else W @ x
        return cp.log_sum_exp(scores) - scores[y]

    record, ridge = dp.Record(x=dp.Ball(features), y=dp.Choice(range(classes))), cp.sum_squares(W) + cp.sum_squares(b)
    return dp.Template(record, loss, 0.1 * (ridge if bias else cp.sum_squares(W)))


SEEN = {
    "rows of a matrix": softmax(3, 4),
    "rows and an intercept": softmax(3, 4, bias=True),
    "columns of a matrix": dp.load("softmax_regression", features=4, classes=3),
    "one symmetric matrix for each class": dp.load("large_margin_gaussian", features=3, classes=3),
    "mixtures": dp.load("large_margin_gaussian_mixture", features=2, classes=2),
    "small records": dp.load("large_margin_gaussian", features=3, classes=2, radius=1e6),
}


@pytest.mark.parametrize("name", SEEN)
def test_gradients_are_of_rank_one_where_that_is_claimed(name):
    template, rng = SEEN[name], np.random.default_rng(6)
    analysis = analyse(template)
    found, space = rank_one_structures(analysis), analysis.form.space
    assert found
    batch = template.record.sample(30, rng)
    theta = space.pack({n: rng.normal(size=b.variable.shape) for n, b in space.blocks.items()})
    loss = BatchedLoss(template, space, batch)
    for gradient in (loss.clipped_gradient(theta, np.inf, one) for one in np.eye(30, dtype=bool)):
        for structure in found:
            matrix = (structure.map.T @ gradient).reshape(structure.rows, structure.columns)
            values = np.linalg.svd(matrix, compute_uv=False)
            assert values[0] == pytest.approx(np.linalg.norm(gradient), rel=1e-9, abs=1e-12)
            assert (values[1:] <= 1e-9 * values[0]).all()
            np.testing.assert_allclose(structure.map @ matrix.ravel(), gradient, atol=1e-12)
