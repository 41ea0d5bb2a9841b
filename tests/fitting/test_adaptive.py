"""Releases of adaptive steps: what they learn, what they accept and refuse, and in which order they pay, read and compute."""

from functools import cache

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import CUTS, pieces

import dpconvex as dp

STEPS = dp.AdaptiveSteps()
ADD, REPLACE = (dp.Privacy(3.0, 1e-5, adjacency) for adjacency in ("add-remove", "replace-one"))
SIZE, FEATURES = 4000, 4
SLOPES = np.array([2.0, -1.0, 0.5, 0.0])
rng = np.random.default_rng(7)
X = dp.Ball(FEATURES).project(rng.normal(size=(SIZE, FEATURES)) / 2)
SCORES = X @ SLOPES


def scored(loss, columns=(), regularizer=lambda w: 0.0, constraints=lambda w: (), radius=1.0, **fields):
    """Return the template of a loss of ``x @ w + b``."""
    w, b = cp.Variable((FEATURES, *columns), name="w"), cp.Variable(columns, name="b")
    record = dp.Record(x=dp.Ball(FEATURES, radius), **fields)
    return dp.Template(record, lambda x, y: loss(x @ w + b, y), regularizer(w), constraints(w))


def linear(**options):
    return scored(lambda score, y: cp.square(score - y), y=dp.Box(-4, 4), **options)


def logistic(**options):
    return scored(lambda score, y: cp.logistic(-y * score), y=dp.Choice([-1, 1]), **options)


TARGETS = np.clip(0.3 + SCORES + 0.2 * rng.normal(size=SIZE), -4, 4)
SIGNS = np.where(SCORES + 0.3 + 0.3 * rng.logistic(size=SIZE) > 0, 1, -1)
COUNTS = np.minimum(rng.poisson(np.exp(SCORES - 0.2)), 29)
CLASSES = {k: np.argmax(5 * np.eye(4, k).T @ X.T + rng.gumbel(size=(k, SIZE)), axis=0) for k in (2, 3, 5)}
LEARNERS = {
    "linear": (linear(), TARGETS),
    "logistic": (logistic(), SIGNS),
    "counts": (scored(lambda score, y: cp.exp(score) - y * score, y=dp.Choice(range(30))), COUNTS),
}
LEARNERS |= {
    f"softmax of {k}": (scored(lambda s, y: cp.log_sum_exp(s) - s[y], (k,), y=dp.Choice(range(k))), y)
    for k, y in CLASSES.items()
}
DATA = {"x": X, "y": SIGNS}


def test_losses_with_kinks_are_learnt():
    for name, loss in (
        ("median", cp.abs),
        ("wide", lambda r: cp.pos(cp.abs(r) - 0.1)),
        ("high", lambda r: cp.maximum(-r, r / 4)),
    ):
        template = scored(lambda score, y, loss=loss: loss(score - y), y=dp.Box(-4, 4))
        data = {"x": X, "y": TARGETS}
        found = dp.solve(template, data, ADD, size=SIZE)
        assert found.certificate.mechanism == STEPS.name
        constant = {"w": np.zeros(FEATURES), "b": np.quantile(TARGETS, 0.8 if name == "high" else 0.5)}
        assert mean_loss(template, data, found) < 0.5 * mean_loss(template, data, constant), name


def mean_loss(template, data, found):
    problem = template.problem(data, size=0)  # without the regularizer
    for variable in problem.variables():
        variable.save_value(np.asarray(found[variable.name()]))
    return float(problem.objective.value) / len(data["x"])


@cache
def exact(kind):
    """Return a template, its records, and the mean losses of the minimiser and of a constant."""
    template, y = LEARNERS[kind]
    data = {"x": X, "y": y}
    least, constant = (
        mean_loss(template, data, dp.solve_without_privacy(template, fitted)) for fitted in (data, data | {"x": 0 * X})
    )
    return template, data, least, constant


def fit(template, data, privacy=ADD, seed=1, **options):
    return dp.solve(template, data, privacy, STEPS, size=SIZE, seed=seed, **options)


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("privacy", [ADD, REPLACE], ids=lambda privacy: privacy.adjacency)
@pytest.mark.parametrize(
    "kind",
    LEARNERS,
)
def test_most_of_the_gain_over_a_constant_is_kept(kind, privacy):
    template, data, least, constant = exact(kind)
    for seed in (0,):
        kept = (constant - mean_loss(template, data, fit(template, data, privacy, seed))) / (constant - least)
        assert 0.95 <= kept <= 1 + 1e-9


def test_seeded_fits_repeat_and_say_that_they_are_not_private_and_others_differ():
    one, again, other = (fit(logistic(), DATA, seed=seed) for seed in (5, 5, 6))
    same(one, again)
    assert not np.array_equal(one["w"], other["w"])
    assert not one.private
    assert one.spent is None
    assert "NOT PRIVATE" in repr(one)
    drawn = [dp.solve(logistic(), DATA, ADD, STEPS, size=SIZE) for _ in range(2)]
    assert drawn[0].private
    assert drawn[0].spent == ADD
    assert drawn[0].certificate == dp.verify(logistic(), ADD, SIZE, STEPS)
    assert not np.isclose(drawn[0]["w"], drawn[1]["w"], rtol=1e-12, atol=0).any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["linear", "softmax of 5"])
def test_partitions_give_the_release_of_arrays_to_the_bit(kind, tmp_path):
    template, y = LEARNERS[kind]
    data = {"x": X, "y": y}
    cuts = [*CUTS, SIZE]
    one = fit(template, data)
    same(one, fit(template, dp.Partitions(pieces(data, cuts))))
    same(one, fit(template, dp.Partitions([lambda piece=piece: piece for piece in pieces(data, cuts)])))


def test_partitions_of_dask_give_the_release_of_arrays_to_the_bit():
    delayed = pytest.importorskip("dask.delayed").delayed
    one = fit(logistic(), DATA)
    same(
        one,
        fit(logistic(), dp.Partitions([delayed(lambda piece=piece: piece)() for piece in pieces(DATA, [*CUTS, SIZE])])),
    )


def test_sparse_rows_give_the_release_of_dense_ones_and_float32_that_of_its_numbers():
    rounded = X.astype(np.float32) * np.float32(0.999)
    one = fit(logistic(), DATA | {"x": rounded.astype(float)})
    same(one, fit(logistic(), DATA | {"x": rounded}))
    same(one, fit(logistic(), DATA | {"x": sp.csr_array(rounded.astype(float))}))


def test_people_with_several_records_are_protected_together():
    whose = np.arange(SIZE) // 2
    privacy = dp.Privacy(3.0, 1e-5, "add-remove", unit="patient", most=2)
    template, y = LEARNERS["linear"]
    data = {"x": X, "y": y}
    found = fit(template, data, privacy, unit=whose)
    assert found.certificate.privacy == privacy
    assert 1 - mean_loss(template, data, found) / y.var() >= 0.8
    cut = dp.Partitions(pieces(data, [0, 1000, 2500, SIZE]))
    same(found, fit(template, cut, privacy, unit=whose))
    budget = dp.Budget(privacy)
    with pytest.raises(dp.DomainError, match="more records than"):
        fit(template, data, privacy, unit=whose // 2, budget=budget)
    with pytest.raises(dp.DomainError, match="several partitions"):
        fit(template, dp.Partitions(pieces(data, [0, 999, SIZE])), privacy, unit=whose, budget=budget)
    assert not budget.entries


def test_pure_privacy_is_refused_with_a_remedy():
    with pytest.raises(dp.NotPrivate, match=r"(?s)delta.*remedy: .*ObjectivePerturbation"):
        dp.verify(logistic(), dp.Privacy(1.0), SIZE, STEPS)


def choice():
    """Return choices among three alternatives, which share slopes."""
    w = cp.Variable(3, name="w")
    x = dp.Ball(9).project(rng.normal(size=(SIZE, 9)) / 3)
    y = np.argmax(8 * x.reshape(-1, 3, 3) @ np.array([1.0, -1.0, 0.5]) + rng.gumbel(size=(SIZE, 3)), axis=1)

    def loss(x, y):
        scores = cp.hstack([x[:3] @ w, x[3:6] @ w, x[6:] @ w])
        return cp.log_sum_exp(scores) - scores[y]

    return dp.Template(dp.Record(x=dp.Ball(9), y=dp.Choice(range(3))), loss), {"x": x, "y": y}


def match(shared):
    """Return matches of two fields, which share slopes or have their own."""
    v = cp.Variable(4, name="v")
    w = v if shared else cp.Variable(4, name="w")
    other = X[rng.permutation(SIZE)]
    y = np.where(6 * (X - other) @ SLOPES + rng.logistic(size=SIZE) > 0, 1, -1)
    record = dp.Record(x=dp.Ball(4), u=dp.Box([-1] * 4, [1] * 4), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, u, y: cp.logistic(-y * (x @ v - u @ w))), {"x": X, "u": other, "y": y}


def grades():
    cuts = np.quantile(SCORES, [0.2, 0.6])
    template = dp.load("ordinal_regression", features=4, classes=3, regularization=1e-6)
    return template, {"x": X, "y": np.searchsorted(cuts, SCORES + 0.1 * rng.logistic(size=SIZE))}


def product():
    """Return squares of a score that is quadratic in the record."""
    q = cp.Variable((4, 4), name="q", symmetric=True)
    y = np.clip(2 * X[:, 0] * X[:, 1] - X[:, 2] ** 2 + 0.1 * rng.normal(size=SIZE), -4, 4)
    return dp.Template(dp.Record(x=dp.Ball(4), y=dp.Box(-4, 4)), lambda x, y: cp.square(x @ q @ x - y)), {
        "x": X,
        "y": y,
    }


def centre():
    """Return the distance from a point, which is no function of scores."""
    m = cp.Variable(4, name="m")
    place = dp.Ball(4).project(X / 4 + np.array([0.5, -0.3, 0.2, 0.4]))
    return dp.Template(dp.Record(x=dp.Ball(4)), lambda x: cp.norm(cp.hstack([0.1, x - m]))), {"x": place}


FORMS = {
    "shared slopes": choice,
    "two fields": lambda: match(False),
    "two fields that share slopes": lambda: match(True),
    "ordered classes": grades,
    "products of features": product,
    "no scores": centre,
}


def gain(template, data, found):
    """Return the share of the gain over parameters of 0 that is kept of what is gained without privacy."""
    exact = dp.solve_without_privacy(template, data)
    nothing = {name: 0 * np.asarray(value) for name, value in exact.items()}
    least, none, own = (mean_loss(template, data, point) for point in (exact, nothing, found))
    return (none - own) / (none - least)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_scores_of_any_form_are_learnt(form):
    template, data = FORMS[form]()
    assert gain(template, data, fit(template, data)) > 0.9


@pytest.mark.parametrize("form", ["shared slopes", "ordered classes"])
def test_whole_gradients_are_clipped_where_many_parameters_are_shared(form, monkeypatch):
    monkeypatch.setattr("dpconvex.sums.linear_scores.MOST_SHARED", 2)
    template, data = FORMS[form]()
    assert gain(template, data, fit(template, data)) > 0.8


def test_rows_keep_what_bends_only_far_from_0():
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(4), y=dp.Box(-4, 4))
    data = {"x": X, "y": np.clip(3 + 2 * X[:, 2], -4, 4)}
    template = dp.Template(
        record, lambda x, y: cp.logistic(x[:2] @ w) + cp.square(cp.pos(3 - x[2:] @ w)) + cp.square(x[2:] @ w + 3 - y)
    )
    assert gain(template, data, fit(template, data)) > 0.9


def test_scores_of_too_many_products_are_refused_with_place_and_remedy():
    template = dp.load("large_margin_gaussian", features=100, classes=2)
    with pytest.raises(dp.NotPrivate, match=r"(?s)adaptive steps.*where: .*remedy: .*NoisyGradientDescent"):
        dp.verify(template, ADD, SIZE, STEPS)


def test_constraints_and_regularizers_are_kept_by_the_answer():
    template, y = LEARNERS["linear"]
    data = {"x": X, "y": y}
    small = fit(linear(constraints=lambda w: [cp.norm(w) <= 0.5, w >= 0]), data)["w"]
    assert (small >= 0).all()
    assert 0.45 <= np.linalg.norm(small) <= 0.5
    lasso = fit(linear(regularizer=lambda w: 0.08 * cp.norm1(w)), data)["w"]
    assert lasso[3] == pytest.approx(0.0, abs=1e-6)
    assert lasso[0] > 1.2
    free, ridge = (fit(learner, data)["w"] for learner in (template, linear(regularizer=lambda w: cp.sum_squares(w))))
    assert np.linalg.norm(ridge) < 0.5 * np.linalg.norm(free)


def test_a_ridge_is_that_of_the_mean_loss_at_any_strength():
    data = {"x": X, "y": TARGETS}
    for strength in (1e-3, 0.1, 10.0):
        template = linear(regularizer=lambda w, s=strength: s * cp.sum_squares(w))
        wanted = dp.solve_without_privacy(template, data)["w"]
        assert np.linalg.norm(fit(template, data)["w"] - wanted) <= 0.1 * np.linalg.norm(wanted) + 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0], ids=str)
@pytest.mark.parametrize("form", ["arrays", "partitions"])
def test_a_bad_record_is_an_error_after_the_budget_is_charged(bad, form):
    x = X.copy()
    x[17, 1] = bad
    data = DATA | {"x": x}
    budget = dp.Budget(ADD)
    with pytest.raises(dp.DomainError):
        fit(logistic(), data if form == "arrays" else dp.Partitions(pieces(data, [0, 9, SIZE])), budget=budget)
    assert len(budget.entries) == 1


def test_a_budget_is_charged_before_records_are_read_and_refuses_what_it_cannot_pay():
    budget, read = dp.Budget(ADD), []

    def piece():
        read.append(len(budget.entries))
        return DATA

    fit(logistic(), dp.Partitions([piece]), budget=budget)
    assert read
    assert set(read) == {1}
    read.clear()
    with pytest.raises(dp.BudgetExceeded):
        fit(logistic(), dp.Partitions([piece]), budget=budget)
    assert not read


def test_certificates_compose_in_a_budget_better_than_their_sum():
    one = dp.Privacy(0.5, 1e-6, "add-remove")
    budget = dp.Budget(dp.Privacy(2.0, 1e-5, "add-remove"), accounting="gaussian")
    for k in range(8):
        dp.solve(logistic(), DATA, one, STEPS, size=SIZE, seed=k, budget=budget)
    assert len(budget.entries) == 8  # 4 in plain sums


def test_certificates_say_that_nothing_of_the_loss_was_proved():
    assert any(
        "does not rest on how the loss is read" in text for text in dp.verify(logistic(), ADD, SIZE, STEPS).assumptions
    )
    read = dp.verify(scored(lambda score, y: cp.exp(score) - y * score, y=dp.Choice(range(5))), ADD, SIZE, STEPS)
    assert read.event == dp.verify(logistic(), ADD, SIZE, STEPS).event  # the same for every loss


def test_answers_do_not_depend_on_the_units_of_features():
    """Rows and the radius in other units give the same scores, as a power of two changes no rounding."""
    wide = scored(lambda score, y: cp.logistic(-y * score), radius=8.0, y=dp.Choice([-1, 1]))
    one, other = fit(logistic(), DATA), fit(wide, DATA | {"x": 8.0 * X})
    np.testing.assert_allclose(8.0 * other["w"], one["w"], rtol=1e-9)
    np.testing.assert_allclose(other["b"], one["b"], rtol=1e-9)


@pytest.mark.parametrize("unit", [2.0**-10, 1.0, 2.0**10])
def test_answers_follow_the_units_of_targets(unit):
    learner = scored(lambda score, y: cp.square(score - y), y=dp.Box(-4 * unit, 4 * unit))
    found = fit(learner, {"x": X, "y": unit * TARGETS})
    np.testing.assert_allclose(found["w"] / unit, SLOPES, atol=0.1)
    np.testing.assert_allclose(found["b"] / unit, 0.3, atol=0.05)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-1, 30), (-1, 300), (-100, 1)])
def test_bounds_of_targets_may_be_too_wide_on_either_side(low, high):
    """The constant is found first, so what noise first steps leave is that of residuals, and not of bounds."""
    rng, n, features = np.random.default_rng(5), 1000, 15
    x = rng.normal(size=(n, features)) / 2 / np.sqrt(features)
    y = np.clip(x[:, 0] + 0.05 * rng.normal(size=n), -1, 1)
    w, b = cp.Variable(features, name="w"), cp.Variable(name="b")
    record = dp.Record(x=dp.Ball(features), y=dp.Box(low, high))
    learner = dp.Template(record, lambda x, y: cp.square(x @ w + b - y))
    for seed in range(3):
        found = dp.solve(learner, {"x": x, "y": y}, dp.Privacy(0.5, 1e-5, "add-remove"), STEPS, size=n, seed=seed)
        assert 1 - np.mean((x @ found["w"] + found["b"] - y) ** 2) / y.var() >= 0.6


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_log_links_may_start_far_from_where_they_end(unit):
    costs = np.minimum(unit * np.exp(SCORES) * np.random.default_rng(3).gamma(4, 0.25, SIZE), 50 * unit)
    learner = scored(lambda score, y: y * cp.exp(-score) + score, y=dp.Box(0, 50 * unit))
    for seed in range(2):
        found = fit(learner, {"x": X, "y": costs}, dp.Privacy(1.0, 1e-5, "add-remove"), seed)
        assert np.sqrt(np.mean((X @ found["w"] + found["b"] - np.log(unit) - SCORES) ** 2)) <= 0.2


def test_the_mean_of_counts_with_a_long_tail_is_not_clipped_away():
    """Clips that are best for all directions lose the tail on one side; the last step of the constant has a wider one."""
    rng, ratios = np.random.default_rng(3), []
    visits = np.minimum(rng.poisson(np.exp(SCORES + 1) * rng.gamma(0.4, 2.5, SIZE)), 150)
    learner = scored(lambda score, y: cp.exp(score) - y * score, y=dp.Box(0, 150))
    for seed in range(5):
        found = fit(learner, {"x": X, "y": visits}, dp.Privacy(0.3, 1e-5, "add-remove"), seed)
        ratios.append(np.exp(X @ found["w"] + found["b"]).mean() / visits.mean())
    assert 0.69 <= np.mean(ratios) <= 1.1


def test_the_mean_of_few_counts_with_many_zeros_is_found():
    """Where noise hides histograms of slopes, sums of slopes with a wide clip find the level."""
    rng, size, excess = np.random.default_rng(3), 2500, []
    x, y = X[:size], np.where(rng.random(SIZE) < 0.7, 0, np.minimum(np.exp(rng.normal(SCORES, 1.2)), 100))[:size]
    learner = scored(lambda score, y: cp.exp(score) - y * score, y=dp.Box(0, 100))
    for seed in range(2):
        found = dp.solve(learner, {"x": x, "y": y}, dp.Privacy(0.1, 1e-5, "add-remove"), STEPS, size=size, seed=seed)
        score = x @ found["w"] + found["b"]
        excess.append(np.mean(np.exp(score) - y * score) - y.mean() * (1 - np.log(y.mean())))
    assert np.mean(excess) <= 0.5 * y.mean()


def test_offsets_and_weights_are_those_of_the_loss():
    w, b = cp.Variable(FEATURES, name="w"), cp.Variable(name="b")
    record = dp.Record(x=dp.Ball(FEATURES), y=dp.Box(-4, 4), shift=dp.Box(-2, 2), weight=dp.Box(0, 5))
    template = dp.Template(record, lambda x, y, shift, weight: weight * cp.square(x @ w + b + shift - y))
    kept = np.arange(SIZE) % 2
    data = {"x": X, "y": np.where(kept, TARGETS, 4.0), "shift": np.full(SIZE, 0.5), "weight": 1.0 * kept}
    found = fit(template, data)
    np.testing.assert_allclose(found["w"], SLOPES, atol=0.15)
    np.testing.assert_allclose(found["b"], -0.2, atol=0.05)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("few", [0, 1, 20])
@pytest.mark.parametrize(
    "privacy", [ADD, dp.Privacy(1e-3, 1e-5, "add-remove")], ids=lambda privacy: f"epsilon {privacy.epsilon:g}"
)
def test_noise_alone_makes_no_large_answer(few, privacy):
    for seed in range(5):
        assert np.linalg.norm(fit(linear(), {"x": X[:few], "y": TARGETS[:few]}, privacy, seed)["w"]) < 200


@pytest.mark.sampled(2)
@pytest.mark.parametrize("epsilon", [10.0, 100.0])
@pytest.mark.parametrize("kind", ["linear", "counts"])
def test_large_guarantees_lose_next_to_nothing(kind, epsilon):
    template, data, least, constant = exact(kind)
    found = fit(template, data, dp.Privacy(epsilon, 1e-5, "add-remove"))
    assert (constant - mean_loss(template, data, found)) / (constant - least) >= 0.99


def test_steps_of_classes_settle_and_find_their_length_where_noise_is_small():
    draw, size, shares = np.random.default_rng(0), 3000, np.geomspace(1, 0.02, 10)
    x = np.column_stack([np.zeros((size, 10)), np.full(size, 0.8)])
    x[np.arange(size), draw.choice(10, size, p=shares / shares.sum())] = 0.6
    y = np.where(x[:, :10] @ draw.normal(size=10) / 0.6 + draw.logistic(size=size) > 0, 1, -1)
    template, data = dp.load("logistic_regression", features=11), {"x": x, "y": y}
    least = mean_loss(template, data, dp.solve_without_privacy(template, data))
    lost = mean_loss(template, data, fit(template, data, dp.Privacy(30.0, 1e-5, "add-remove"))) - least
    assert lost <= 0.2 * (np.log(2) - least)  # 0.37 of the gain if steps turn back and forth, 0.28 if slopes are cut


def test_residual_noise_is_refused_by_name_and_asks_for_another_mechanism_by_default():
    cover = dp.ResidualNoise(tolerance=1e-3)
    with pytest.raises(dp.TemplateError, match="residual_noise"):
        dp.verify(linear(), ADD, 1000, dp.AdaptiveSteps(), cover)
    assert dp.verify(dp.load("huber_regression", features=3), ADD, 1000, residual_noise=cover).perturbed != "queries"


STEEP_FACTORS = (1e70, 1e70, 1e70, 1e40)


@pytest.mark.parametrize("atom", [cp.sigma_max, cp.normNuc, cp.lambda_max], ids=lambda atom: atom.__name__)
@pytest.mark.parametrize("mechanism", [dp.AdaptiveSteps(rounds=2), dp.NoisyGradientDescent(clip=1.0, steps=2)])
def test_no_record_makes_a_fit_fail(atom, mechanism):
    """Factors whose product is 1 overflow for one record alone, whose matrix is then none of numbers."""
    w, mix = cp.Variable(2, name="w"), np.eye(2) if atom is cp.lambda_max else np.array([[1.0, 0.0], [0.5, 1.0]])

    def loss(x, z):
        score = cp.exp(cp.sum(z)) * (x @ w)
        for factor in (*STEEP_FACTORS, *(1 / factor for factor in STEEP_FACTORS)):
            score = factor * score
        return atom(mix * score) + cp.square(x @ w - 1)

    template = dp.Template(dp.Record(x=dp.Ball(2), z=dp.Box(-5 * np.ones(30), 5 * np.ones(30))), loss)
    data = {"x": X[:300, :2] / 2, "z": np.zeros((300, 30))}
    data["z"][7] = 5.0
    found = dp.solve(template, data, REPLACE, mechanism, seed=0)
    assert np.isfinite(found["w"]).all()


# A finite matrix, all other entries 0, whose eigenvectors LAPACK does not find: it raises, for the whole stack.
UNSOLVED = {(1, 0): "0x1.66228f2e3adafp+53", (2, 1): "0x1.546969fcd858dp-504", (3, 2): "-0x1.0298ed570f0e0p-511"}


@pytest.mark.parametrize("mechanism", [dp.AdaptiveSteps(rounds=2), dp.NoisyGradientDescent(clip=1.0, steps=2)])
@pytest.mark.parametrize("atom", [cp.lambda_max, lambda m: -cp.log_det(m)], ids=["lambda_max", "log_det"])
def test_no_record_whose_matrix_has_no_decomposition_makes_a_fit_fail(atom, mechanism):
    matrix, apart = np.zeros((4, 4)), np.zeros((10, 4, 4))
    for (i, j), number in UNSOLVED.items():
        matrix[i, j] = matrix[j, i] = float.fromhex(number)
    i, j = np.tril_indices(4)
    apart[range(10), i, j] = apart[range(10), j, i] = 1
    w, bound = cp.Variable((FEATURES, 10), name="w"), 2e16 * np.ones((4, 4))

    def loss(x, y):
        return atom(cp.reshape((x @ w) @ apart.reshape(10, 16), (4, 4), order="F") + (y + y.T) / 2)

    template = dp.Template(dp.Record(x=dp.Ball(FEATURES), y=dp.Box(-bound, bound)), loss)
    data = {"x": X[:200], "y": np.eye(4) + np.zeros((200, 1, 1))}
    data["x"][7], data["y"][7] = 0.0, matrix
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.eigh(data["y"])
    assert np.isfinite(dp.solve(template, data, REPLACE, mechanism, seed=0)["w"]).all()


def test_steps_end_in_a_release_or_a_refusal_whatever_the_noisy_answers_are(monkeypatch):
    """Answers of any size, which noise can have, though it hardly ever does: matrices made of them may be singular."""
    answers, failed = np.random.default_rng(1), 0

    def drawn(law, scale, sums, rng):
        size = np.minimum(2.0 ** answers.uniform(0, 62, len(sums)), 2.0**61)
        return (size * answers.choice([-1, 1], len(sums))).astype(np.int64)

    monkeypatch.setattr("dpconvex.mechanisms.noisy_queries.drawn", drawn)
    data = {"x": X[:20], "y": TARGETS[:20]}
    for _ in range(30):
        try:
            found = dp.solve(linear(), data, ADD, STEPS, size=10**6, seed=0)
        except dp.DomainError:
            failed += 1
        else:
            assert all(np.isfinite(value).all() for value in found.values())
    assert 0 < failed < 30


def test_whole_gradients_of_many_parameters_are_clipped_by_other_steps_unless_they_are_asked_for():
    privacy, large = dp.Privacy(1.0, 1e-6, "add-remove"), dp.load("discrete_hazards", features=300)
    assert "DP-GD" in dp.verify(large, privacy, 1000).mechanism
    assert "adaptive" in dp.verify(large, privacy, 1000, dp.AdaptiveSteps()).mechanism
    assert "adaptive" in dp.verify(dp.load("discrete_hazards", features=294), privacy, 1000).mechanism


def test_classes_with_further_fields_take_steps_by_default():
    learner = dp.load("conditional_logit", features=2, availability=True)
    assert "adaptive" in dp.verify(learner, dp.Privacy(1.0, 1e-6), 1000).mechanism


def test_regressions_of_few_records_stay_near_a_constant():
    """300 records whose features tell nothing, at epsilon = 0.1: steps of noise alone had 1.2 times the variance."""
    rng, found = np.random.default_rng(2), []
    x = rng.normal(size=(300, 8)) / 4
    y = 0.1 + rng.uniform(-0.5, 0.5, size=300)
    for seed in range(5):
        model = dp.Ridge(epsilon=0.1, delta=1e-5, adjacency="add-remove", size=300, radius=2.0, clip=True, seed=seed)
        found.append(np.mean((model.fit(x, y).predict(x) - y) ** 2) / y.var())
    assert np.mean(found) < 1.15


@pytest.mark.parametrize("kind", [dp.HuberRegressor, dp.QuantileRegressor])
def test_losses_with_flat_ends_are_near_a_constant_at_worst_where_bounds_are_wide(kind):
    y = -0.93 + 0.01 * TARGETS
    model = kind(epsilon=1.0, delta=1e-5, seed=0).fit(X, y)
    assert model.release_.certificate.perturbed == "queries"
    assert np.abs(model.predict(X) - y).mean() < 1.05 * np.abs(y - np.median(y)).mean()


@pytest.mark.slow
def test_narrow_quantiles_have_their_share_below():
    y = -0.8 + 0.03 * TARGETS
    model = dp.QuantileRegressor(epsilon=3.0, delta=1e-5, quantile=0.9, seed=0).fit(X, y)
    assert 0.85 < np.mean(y <= model.predict(X)) < 0.95


def between(classes, size, seed=0):
    """Return records of classes around points that are far apart, in the unit ball."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    places = np.stack([np.cos(2 * np.pi * y / classes), np.sin(2 * np.pi * y / classes)], axis=1)
    return np.clip(0.5 * places + 0.1 * rng.normal(size=(size, 2)), -0.7, 0.7), y


@pytest.mark.parametrize("size", [200, pytest.param(4000, marks=pytest.mark.slow)])
def test_classes_with_matrices_learn_with_all_products_and_without(size):
    template, (x, y) = dp.load("large_margin_gaussian", features=2, classes=3), between(3, size)
    release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(1.0, 1e-5, "add-remove"), size=len(x), seed=0)
    first, second = release["Phi_0"], release["Phi_1"]
    assert (release.predict(x) == y).mean() > 0.9
    assert min(np.linalg.eigvalsh(first)[0], np.linalg.eigvalsh(second)[0]) > -1e-6
    # With few records all classes have the same squares, so that boundaries are straight.
    apart = np.abs(first - second)
    assert (apart[:2, :2].max() < 0.05 * apart.max()) == (size < 1000)


def test_a_threshold_of_squared_distances_is_learnt():
    x, _ = between(1, 2000)
    x, template = x - [0.5, 0.0], dp.load("metric_learning", features=2, radius=1.0)
    y = np.where(np.linalg.norm(x, axis=1) < 0.12, "alike", "different")
    release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(1.0, 1e-5, "add-remove"), size=len(x), seed=0)
    assert (release.predict(x) == y).mean() > 0.8


def test_a_metric_with_a_strong_ridge_is_no_longer_than_the_ridge_allows():
    rng, M, b = np.random.default_rng(0), cp.Variable((2, 2), PSD=True, name="M"), cp.Variable(name="b")
    centres, (first, second) = rng.normal(size=(3, 2)), rng.integers(0, 3, (2, 1500))
    x = (centres[first] - centres[second] + 0.4 * rng.normal(size=(1500, 2))) / 6
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    y = np.where(first == second, 1, -1)

    def loss(x, y):
        return dp.huber_hinge(1 + y * (x @ M @ x - b), width=0.5)

    ridge = 1e-3 * (cp.sum_squares(M) + cp.square(b))
    template = dp.Template(record=dp.Record(x=dp.Ball(2), y=dp.Choice([1, -1])), loss=loss, regularizer=ridge)
    exact = dp.solve_without_privacy(template, {"x": x, "y": y})
    found = dp.solve(template, {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=0)
    assert np.linalg.norm(found["M"]) < 1.5 * np.linalg.norm(exact["M"])
