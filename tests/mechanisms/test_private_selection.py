"""The law of the number of runs, and exact privacy of the best run on mechanisms small enough to enumerate."""

import json
import math
from itertools import product

import cvxpy as cp
import mpmath
import numpy as np
import pytest
from learners_of_tests import choice_law, excess
from scipy import stats

import dpconvex as dp
from dpconvex.accounting.events import Pure
from dpconvex.checker import Rejected, check
from dpconvex.fitting import verify
from dpconvex.fitting.verify import form_of
from dpconvex.mechanisms import target_range
from dpconvex.mechanisms.private_selection import Repetitions, log_inverse_gamma, mistake_rate, select
from dpconvex.mechanisms.target_range import CELLS, RangePlan
from dpconvex.noise.samplers import seeded_generator

ALARM = 1e-7
SHAPES = (-0.5, 0.0, 1e-9, 0.5, 1.0, 4.0)


def generating(law, x):
    """Probability generating function E[x^K] (Papernot & Steinke 2022, definition 1)."""
    rest, eta = 1 - (1 - law.gamma) * x, law.shape
    if abs(eta) < 1e-6:
        return np.asarray(np.log(rest) / math.log(law.gamma))
    return np.asarray((rest**-eta - 1) / (law.gamma**-eta - 1))


def probabilities_of(law, count):
    """Probabilities of 1, ..., count runs, each from the one before (the same definition)."""
    rest, eta, length = 1 - law.gamma, law.shape, -math.log(law.gamma)
    first = rest * eta / math.expm1(eta * length) if eta else rest / length
    return first * np.cumprod([1.0, *(rest * (k + eta) / (k + 1) for k in range(1, count))])


def best_of(base, law):
    """Law of the best of K draws from `base`, whose outcomes are ordered from worst to best."""
    return np.diff(generating(law, np.minimum(np.concatenate([[0.0], np.cumsum(base)]), 1.0)))


def loss(first, second):
    """The exact epsilon between two discrete laws."""
    return float(np.abs(np.log(first / second)).max())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10.0])
def test_the_number_of_runs_has_its_law(mean, shape):
    law = Repetitions(mean, shape)
    probabilities = probabilities_of(law, 20_000)
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert probabilities @ np.arange(1, 20_001) == pytest.approx(mean, rel=1e-6)
    for x in (0.3, 0.9, 0.999):
        series = probabilities @ x ** np.arange(1.0, 20_001)
        assert series == pytest.approx(float(generating(law, np.array(x))), rel=1e-6)
    rng = seeded_generator(11)
    drawn = np.array([law.draw(rng) for _ in range(6_000)])
    cells = law.quantile(0.95)
    observed = np.bincount(np.minimum(drawn, cells + 1), minlength=cells + 2)[1:]
    expected = np.append(probabilities[:cells], probabilities[cells:].sum())
    assert stats.chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > ALARM
    wrong = probabilities_of(Repetitions(2 * mean, shape + 0.5), cells)
    wrong = np.append(wrong, 1 - wrong.sum())
    assert stats.chisquare(observed, wrong * observed.sum()).pvalue < ALARM


# Exact privacy under direct accounting.
@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 4.0])
@pytest.mark.parametrize("mean", [2.0, 10.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_pure_cost_is_exact(mean, shape, epsilon):
    law = Repetitions(mean, shape)
    claimed = law.total(dp.Privacy(epsilon)).epsilon
    assert claimed <= (2 + shape) * epsilon * (1 + 1e-9)
    rng, worst = np.random.default_rng(5), 0.0
    for _ in range(200):
        levels, first = rng.choice([-0.5, 0.5], size=5) * epsilon, rng.dirichlet(np.full(5, 0.5))
        second = first * np.exp(levels)
        second /= second.sum()
        if loss(first, second) <= epsilon:
            worst = max(worst, loss(best_of(first, law), best_of(second, law)))
    # The extreme case: randomised response, and between its two answers one that hardly ever occurs.
    rare, odds = 1e-7, math.exp(epsilon)
    first, second = np.array([odds, rare * odds, 1.0]), np.array([1.0, rare, odds])
    first, second = first / first.sum(), second / second.sum()
    assert loss(first, second) == pytest.approx(epsilon, rel=1e-6)
    extreme = loss(best_of(first, law), best_of(second, law))
    assert max(worst, extreme) <= claimed * (1 + 1e-6)
    assert extreme >= 0.999 * claimed


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0])
def test_the_approximate_cost_covers_everything_and_not_much_more(shape):
    law, epsilon, delta = Repetitions(6.0, shape), 0.7, 1e-3
    claimed = law.total(dp.Privacy(epsilon, delta))
    assert claimed.delta == pytest.approx(6 * delta)
    odds = math.exp(epsilon)
    inner, worst = np.array([odds, 1.0]) / (1 + odds) * (1 - delta), 0.0
    # Randomised response that gives itself away with probability delta: the general case of an (epsilon, delta) pair.
    for order in product(*[range(k, 4) for k in range(4)]):
        places = list(range(4))
        for k, other in enumerate(order):
            places[k], places[other] = places[other], places[k]
        first, second = np.array([delta, *inner, 0.0])[places], np.array([0.0, *inner[::-1], delta])[places]
        assert excess(epsilon, first, second) <= delta + 1e-15
        worst = max(worst, excess(claimed.epsilon, best_of(first, law), best_of(second, law)))
    assert 0.5 * claimed.delta <= worst <= claimed.delta


@pytest.mark.parametrize(
    ("mean", "shape"), [(100.0, -0.9), (990_000.0, -0.5), (1.5, -0.99), (1.000001, 900.0), (10.0, 0.0)]
)
@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 18.0, 40.0, 300.0, 1000.0])
def test_the_cost_keeps_its_digits(mean, shape, epsilon):
    law = Repetitions(mean, shape)
    with mpmath.workdps(1000):
        gamma = mpmath.exp(-mpmath.mpf(log_inverse_gamma(mean, shape)))

        def exact(run):
            e = mpmath.exp(mpmath.mpf(run))
            return run + (1 + mpmath.mpf(shape)) * mpmath.log((e + gamma) / (1 + gamma * e))

        assert exact(epsilon) <= law.total(dp.Privacy(epsilon)).epsilon <= exact(epsilon) * (1 + 3e-12)
        assert exact(law.each(dp.Privacy(epsilon)).epsilon) <= epsilon


# Choices whose laws are enumerated: they cost their epsilon and no more, and a tenth too much would be seen
ADJACENCIES = ("replace-one", "add-remove")


def worst_choice(factor, adjacency):
    moves = [np.array(move) for move in product((-1.0, 0.0, 1.0), repeat=3)]
    if adjacency == "add-remove":
        moves = [move for move in moves if (move >= 0).all() or (move <= 0).all()]
    gaps = np.unique(np.rint(np.append(0, np.geomspace(1, 12 / min(factor, 1.0) + 1, 8))))
    worst = 0.0
    for gap in product(gaps, repeat=2):
        counts = np.array([*gap, 0.0]) + 1
        law = np.log(np.maximum(choice_law(counts, factor), 1e-300))
        worst = max(worst, *((law - np.log(choice_law(counts + move, factor) + 1e-300)).max() for move in moves))
    return worst


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_choice_costs_its_epsilon_and_no_more(adjacency):
    rng = seeded_generator(5)
    drawn = np.bincount([select([3, 1, 2], 1.5, adjacency, rng) for _ in range(20_000)], minlength=3) / 20_000
    assert np.abs(drawn - choice_law(np.array([3.0, 1, 2]), mistake_rate(1.5, adjacency))).max() < 0.02
    for epsilon in (0.1, 1.0, 4.0):
        assert 0.95 * epsilon < worst_choice(mistake_rate(epsilon, adjacency), adjacency) <= epsilon * (1 + 1e-9)
        assert worst_choice(1.1 * mistake_rate(epsilon, adjacency), adjacency) > epsilon


# --- The range of a target. ---
def test_a_pure_ridge_with_wide_bounds_is_better_than_a_constant():
    rng, budget = np.random.default_rng(0), dp.Budget(dp.Privacy(1.0))
    x = rng.uniform(-1, 1, size=(500, 5)) / np.sqrt(5)
    y = 5 + 2 * x[:, 0] + rng.normal(scale=0.5, size=500)
    model = dp.Ridge(epsilon=1.0, bounds=(0, 60), seed=2, budget=budget).fit(x, y)
    assert np.mean((model.predict(x) - y) ** 2) < 0.9 * y.var()
    certificate = model.release_.certificate
    assert (certificate.privacy, budget.spent.epsilon) == (dp.Privacy(1.0), 1.0)
    assert model.certificate(5, 500) == certificate
    paid = certificate.settings["epsilon_of_the_range"]
    assert Pure(paid) in certificate.event.leaves()
    assert sum(leaf.epsilon for leaf in certificate.event.leaves() if isinstance(leaf, Pure)) == pytest.approx(1.0)
    assert any("range" in fact or "moved" in fact for fact in certificate.check().trusted)
    forged = json.loads(certificate.proof)
    forged["claim"]["settings"]["epsilon_of_the_range"] = float(1.01 * paid).hex()
    with pytest.raises(Rejected, match="remaining guarantee"):
        check(json.dumps(forged).encode())


def target(loss, **fields):
    w, record = cp.Variable(2, name="w"), dp.Record(x=dp.Ball(2), **{"y": dp.Box(-1, 1)} | fields)
    return target_range.target_of(form_of(dp.Template(record, lambda **f: loss(w, **f), cp.sum_squares(w))))


def test_only_losses_of_residuals_have_a_range():
    assert target(lambda w, x, y: cp.square(x @ w - y)).level is None  # predictions have no constant
    found = target(lambda w, x, y, k: k * cp.square(cp.pos(y - x @ w)), k=dp.Box(0, 2))
    assert str(found.capped(2.0).losses[0]) == "k * huber(pos(y - x @ w), 0.5)"
    constant = target(lambda w, x, y, k: cp.pos(1 - k) * cp.square(w[0] + w[1] * k - y), k=dp.Box(0, 1))
    assert constant.level == 0.5  # though weights are 0 where k is 1
    others = [
        lambda w, x, y: cp.logistic(x @ w - y),  # in other units it is another loss
        lambda w, x, y: cp.square(x @ w - y - 0.1),
        lambda w, x, y: cp.square(y * (x @ w) - 1),
        lambda w, x, y: cp.power(x @ w - y, 4),
        lambda w, x, y: cp.pos(1 + y) * cp.abs(x @ w - y),  # in a range the weights are other ones
        lambda w, x, y: cp.square(x @ w - y) + cp.abs(x @ w - y),  # so have squares next to absolute values
        lambda w, x, y: cp.square(w[0] - y),  # one number
    ]
    assert not any(map(target, others))
    assert target(others[0], y=dp.Box(0, 1)) is target(lambda w, x, y: cp.square(x @ w - y), y=dp.Box(0, 1)) is None


def test_a_release_with_a_checked_part_of_a_guarantee_states_what_was_paid(monkeypatch):
    usual = verify.attempted

    def refused_above_a_half(prove, privacy, share):
        found, missing = usual(prove, privacy, share)
        return found, "a step" if share > 0.5 else missing

    monkeypatch.setattr(verify, "attempted", refused_above_a_half)
    template, data = dp.load("ridge_regression", features=1), {"x": np.ones((9, 1)), "y": np.ones(9)}
    release = dp.solve(template, data, dp.Privacy(1.0), checked=True, seed=1)
    assert release.certificate == dp.verify(template, dp.Privacy(1.0), 9, checked=True)
    assert release.certificate.privacy == dp.Privacy(1.0)


def test_a_set_that_is_moved_must_be_symmetric_and_read_once():
    w, b = cp.Variable(1, name="w"), cp.Variable(name="b")
    both, record = cp.hstack([w, b]), dp.Record(x=dp.Ball(1), y=dp.Box(-1, 0))

    def found(*inside):
        plain = cp.sum_squares(w) + cp.square(b)
        template = dp.Template(record, lambda x, y: cp.square(x @ w + b - y), plain, list(inside))
        return target_range.target_of(form_of(template))

    assert None not in (found(cp.norm1(both) <= 1), found(cp.norm1(w) <= 1, cp.abs(b) <= 1))
    assert found(both >= -1, w[0] + b <= 0) is None  # a triangle whose corners lie at both bounds
    # Rounding may leave no projection of these: whether a fit is certified would depend on the data.
    assert found(cp.norm1(both) <= 1, cp.abs(b) <= 1) is found(cp.norm1(cp.hstack([w, 2 * b, 3 * b])) <= 9) is None


def test_constraints_in_a_range_are_those_of_the_parameters_and_imply_those_that_were_proved():
    rng, form = np.random.default_rng(0), form_of(dp.load("ridge_regression", features=2, constant=0.5))
    found = target_range.target_of(form)
    proved = form_of(found.capped()).feasible
    for where in [(0.7, 0.2), (-1.0, 1 / CELLS)]:
        inside = form_of(found.capped(1.0, where[1], found.offset(where))).feasible
        for _ in range(5):
            theta = inside.project(10 * rng.normal(size=3) / where[1])
            assert np.allclose(proved.project(theta), theta, rtol=0, atol=0)
            there = where[1] * theta + found.offset(where) * found.constant
            assert np.allclose(form.feasible.project(there), there, atol=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_one_person_moves_no_mistake_farther_than_the_choice_allows(adjacency, level, monkeypatch):
    rng, seen = np.random.default_rng(1), []
    plan = RangePlan(dp.Privacy(50.0, 0.0, adjacency, **{"unit": "person", "most": 3}), 60, level)

    def taken(mistakes, epsilon, adjacency, rng):
        seen.append(np.array(mistakes, dtype=float))
        return len(seen) // 4 % 2 * (len(mistakes) - 1)

    monkeypatch.setattr(target_range, "select", taken)
    for _ in range(6):
        places = rng.integers(0, CELLS, 60) if rng.random() < 0.5 else rng.choice([3, 1000, 1001], 60)
        other = places[3:] if adjacency == "add-remove" else np.r_[rng.choice([0, CELLS - 1], 3), places[3:]]
        for data in (places, other):
            plan.chosen(np.bincount(data, minlength=CELLS), None)
    for middle, width, moved_middle, moved_width in zip(*(seen[k::4] for k in range(4)), strict=True):
        assert np.abs(middle - moved_middle).max() <= (0.5 if adjacency == "add-remove" else 1.0) + 1e-9
        change = width - moved_width
        assert (change >= -1e-9).all() or adjacency == "replace-one"
        assert np.abs(change).max() <= 1 + 1e-9
