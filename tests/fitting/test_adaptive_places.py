"""Adaptive steps on scores far from 0, in any unit: they begin in the middle of what the declared domain says."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import FEATURES, SIZE, STEPS, TARGETS, X, scored, small
from refused import refused, warnings_of
from scipy.optimize import minimize

import dpconvex as dp

PRIVACY, MIDDLE, HALF = dp.Privacy(1.0, 1e-6), 90.0, 70.0
KINKED = {
    "median": lambda r, unit: cp.abs(r),
    "quantile": lambda r, unit: cp.maximum(0.9 * r, -0.1 * r),
    "huber": lambda r, unit: cp.huber(r, 0.1 * unit),
    "insensitive": lambda r, unit: cp.pos(cp.abs(r) - 0.02 * unit),
    "square": lambda r, unit: cp.square(r),
}
LEVELS = np.array([0.1, 0.5, 0.9])


def solved(loss, fields, ends, parameters, unit, constraints=(), **data):
    template = dp.Template(dp.Record(**fields, y=dp.Box(*ends)), lambda **r: loss(**r, unit=unit), 0.0, constraints)
    found = dp.solve(template, data, PRIVACY, STEPS, seed=3)
    return [np.asarray(found[name]) for name in parameters]


@pytest.mark.parametrize(("name", "size"), [*((name, SIZE) for name in KINKED), ("quantile", 300)])
def test_an_answer_follows_where_targets_lie_and_their_unit(name, size):
    w, b, y = cp.Variable(FEATURES, name="w"), cp.Variable(name="b"), np.clip(TARGETS / 4, -1, 1)[:size]
    loss = lambda x, y, unit: KINKED[name](y - x @ w - b, unit)  # noqa: E731
    answers = []
    for middle, half in ((0.0, 1.0), (MIDDLE, HALF), (-1e4, 0.01)):
        ends, data = (middle - half, middle + half), {"x": X[:size], "y": middle + half * y}
        answers.append(solved(loss, {"x": dp.Ball(FEATURES)}, ends, "wb", half, **data))
    near = 0.06 if size == SIZE else 0.15  # Where noise is large, ties on the bounds of the domain count
    for (slopes, constant), (middle, half) in zip(answers[1:], ((MIDDLE, HALF), (-1e4, 0.01)), strict=True):
        np.testing.assert_allclose(slopes / half, answers[0][0], atol=near)
        np.testing.assert_allclose((constant - middle) / half, answers[0][1], atol=near)


@pytest.mark.parametrize("low", [0.0, 20.0])
@pytest.mark.parametrize("has_constant", [False, True], ids=["as a feature", "by itself"])
def test_quantiles_that_do_not_cross_are_found_wherever_targets_lie(low, has_constant):
    rng, size = np.random.default_rng(2), 20_000
    a = rng.uniform(0, 1, size)
    x = np.column_stack([np.ones(size), a, a**2])[:, has_constant:] / np.sqrt(3)
    y = np.clip(50 + 60 * a**0.7 + (3 + 8 * a) * rng.normal(size=size), 20, 160)
    features = x.shape[1]
    W, b = cp.Variable((3, features), name="W"), cp.Variable(3, name="b")
    grid, constant = x[:20], b if has_constant else np.zeros(3)
    ordered = [grid @ W[k] + constant[k] <= grid @ W[k + 1] + constant[k + 1] for k in range(2)]

    def loss(x, y, unit):
        rest = y - W @ x - constant
        return sum(cp.maximum(q * rest[k], (q - 1) * rest[k]) for k, q in enumerate(LEVELS))

    slopes, *rest = solved(loss, {"x": dp.Ball(features)}, (low, 160), "Wb"[: 1 + has_constant], 1.0, ordered, x=x, y=y)
    scores = x @ slopes.T + (rest[0] if rest else 0)
    lost = np.maximum(LEVELS * (y[:, None] - scores), (LEVELS - 1) * (y[:, None] - scores)).sum(axis=1).mean()
    assert lost < 7.0  # 5.3 at best, 13 of constants, 120 of none


def test_curves_of_people_begin_in_the_middle_of_their_box():
    rng, size, hours = np.random.default_rng(0), 500, 48
    m, truth = cp.Variable(hours, name="m"), 0.5 + 0.3 * np.sin(np.linspace(0, 2 * np.pi, hours))
    y = np.clip(truth + 0.2 * rng.normal(size=(size, hours)), 0, 1)
    loss = lambda y, unit: cp.sum(cp.huber(y - m, 0.1))  # noqa: E731
    (found,) = solved(loss, {}, (np.zeros(hours), np.ones(hours)), "m", 1.0, y=y)
    assert np.sqrt(np.mean((found - truth) ** 2)) < 0.15  # 0.15 of the middle alone


@pytest.mark.parametrize("low", [0.0, 0.01])
def test_weights_of_a_mixture_are_learnt(low):
    """Steps began at weights of 0, where no record has a loss, left K, and ended at a vertex: 2.4 for 1.34 at best."""
    rng, centres, weights = np.random.default_rng(0), np.linspace(0, 1, 6), [0.05, 0.4, 0.05, 0.3, 0.15, 0.05]
    z = centres[rng.choice(6, 20_000, p=weights)] + 0.08 * rng.normal(size=20_000)
    likely = np.exp(-((z[:, None] - centres) ** 2) / 2 / 0.08**2)
    data = np.maximum(likely / likely.max(axis=1, keepdims=True), 0.01)
    q, record = cp.Variable(6, name="q"), dp.Record(p=dp.Box(np.full(6, low), np.ones(6)))
    inside = [cp.sum(q) == 1, q >= 0.001]
    template = dp.Template(record, lambda p: -cp.log(p @ q), 1e-6 * cp.sum_squares(q), inside)
    found = dp.solve(template, {"p": data}, PRIVACY, seed=3)
    assert found.certificate.mechanism == STEPS.name
    even, best, own = (-np.log(data @ p).mean() for p in (np.full(6, 1 / 6), weights, found["q"]))
    assert own - best < 0.25 * (even - best)


def test_censored_times_are_fitted_with_their_deviation():
    """Olsen's convex form: steps begin inside of K, at a point of more digits than SciPy's functions take."""
    rng, w = np.random.default_rng(0), cp.Variable(2, name="w")
    b, unit, x = cp.Variable(name="b"), cp.Variable(name="unit"), rng.uniform(-1, 1, (3000, 2))
    times, ends = 4 + x[:, 0] + rng.normal(size=3000), rng.uniform(2, 8, 3000)

    def loss(x, y, seen):
        far = unit * y - x @ w - b
        return cp.square(far) / 2 - cp.log(unit) if seen else -dp.log_normcdf(-far)

    record = dp.Record(x=dp.Box([-1, -1], [1, 1]), y=dp.Box(0, 9), seen=dp.Choice([0, 1]))
    template = dp.Template(record, loss, 1e-6 * cp.sum_squares(w), constraints=[unit >= 0.05, unit <= 5])
    data = {"x": x, "y": np.minimum(times, ends).clip(0, 9), "seen": (times < ends).astype(int)}
    found = dp.solve(template, data, dp.Privacy(20.0, 1e-5), seed=0)
    learnt = np.array([*found["w"], found["b"], 1.0]) / found["unit"]
    np.testing.assert_allclose(learnt, [1.0, 0.0, 4.0, 1.0], atol=0.25)


def test_steps_are_not_usual_where_they_cannot_begin():
    q = cp.Variable(3, name="q")
    record = dp.Record(l=dp.Box(np.full(3, 0.01), np.ones(3)))
    template = dp.Template(record, lambda l: -cp.log(l @ q), cp.sum_squares(q))  # noqa: E741
    refused(dp.NotPrivate, "log needs an argument", dp.verify, template, PRIVACY, 1000)


def test_costs_of_errors_as_fields_keep_scores_in_their_unit() -> None:
    fields = {"x": dp.Ball(3), "y": dp.Choice([-1, 1]), "missed": dp.Box(0, 50), "false": dp.Box(0, 50)}
    template = scored(lambda s, y, missed, false: (missed if y == 1 else false) * cp.logistic(-y * s), **fields)
    draw = np.random.default_rng(0)
    x = dp.Ball(3).project(draw.normal(size=(4000, 3)))
    y = np.where(draw.random(4000) < 1 / (1 + np.exp(1 - 3 * x[:, 0])), 1, -1)
    data = {"x": x, "y": y, "missed": draw.uniform(2, 8, 4000), "false": draw.uniform(0.5, 2, 4000)}
    release, exact = dp.solve(template, data, dp.Privacy(3, 1e-6), seed=1), dp.solve_without_privacy(template, data)
    assert np.abs(release["w"] - exact["w"]).max() < 1
    assert abs(release["b"] - exact["b"]) < 0.5


def test_negative_binomial_counts_with_weights_and_wide_targets_are_learnt() -> None:
    draw = np.random.default_rng(0)
    template = dp.load("negative_binomial_regression", features=3, dispersion=0.5, target=500, weight=10, constant=1.0)
    x, weight = dp.Ball(3).project(draw.normal(size=(4000, 3))), draw.gamma(2, 0.5, 4000).clip(0, 10)
    y = draw.poisson(np.exp(0.8 + x @ [1.5, -1, 0]) * draw.gamma(2, 0.5, 4000)).clip(0, 500)
    release = dp.solve(template, {"x": x, "y": y, "weight": weight}, dp.Privacy(3, 1e-6), seed=1)
    assert np.abs(release["w"] - [1.5, -1, 0]).max() < 0.5
    assert abs(release["b"] - 0.8) < 0.3


def test_exponential_survival_in_days_is_learnt_as_in_years() -> None:
    draw = np.random.default_rng(0)
    x, days = dp.Ball(3).project(draw.normal(size=(4000, 3))), 3650.0
    slopes, ends = np.array([1.5, -1.0, 0.0]), draw.uniform(30, days, 4000)
    time = draw.exponential(1500 * np.exp(-x @ slopes))
    died = (time <= ends).astype(int)
    for unit in (1.0, days):
        fields = {"x": dp.Ball(3), "t": dp.Box(0, days / unit), "died": dp.Choice([0, 1])}
        template = scored(lambda s, t, died: t * cp.exp(s) - died * s, **fields)
        data = {"x": x, "t": np.minimum(time, ends) / unit, "died": died}
        release = dp.solve(template, data, dp.Privacy(3, 1e-6), seed=1)
        assert np.abs(release["w"] - slopes).max() < 0.5
        assert abs(release["b"] - np.log(unit / 1500)) < 0.3


def test_counts_far_below_their_bounds_are_not_taken_for_few_records() -> None:
    draw, fields = np.random.default_rng(0), {"x": dp.Ball(3), "y": dp.Box(0, 1e5)}
    template = scored(lambda s, y: cp.exp(s) - y * s, constant=False, **fields)
    x = dp.Ball(3).project(draw.normal(size=(3000, 3)))
    assert not warnings_of(dp.solve, template, {"x": x, "y": draw.poisson(np.exp(x[:, 0]))}, PRIVACY)


@pytest.mark.parametrize("part", [0.05, 0.9])
def test_expectiles_far_from_the_mean_are_learnt_within_wide_bounds(part: float) -> None:
    draw, fields = np.random.default_rng(0), {"x": dp.Box([0, 0], [30, 1]), "y": dp.Box(0, 5000)}
    x = draw.uniform([0, 0], [30, 1], size=(20_000, 2))
    y = 500 + x @ [12.0, 300.0] + draw.gamma(2, 80, len(x))
    loss = lambda s, y: part * cp.square(cp.pos(y - s)) + (1 - part) * cp.square(cp.pos(s - y))  # noqa: E731
    found = dp.solve(scored(loss, regularizer=small, **fields), {"x": x, "y": y}, PRIVACY, seed=0)
    above = y > x @ found["w"] + found["b"]
    away = np.abs(y - x @ found["w"] - found["b"])
    assert part * away[above].sum() == pytest.approx((1 - part) * away[~above].sum(), rel=0.1)


SHALLOW = {
    "low power": (lambda r: cp.power(cp.abs(r), 1.5), lambda r: np.abs(r) ** 1.5),
    "linex": (lambda r: cp.exp(-r / 200) + r / 200, lambda r: np.exp(np.minimum(-r / 200, 50)) + r / 200),
}


@pytest.mark.parametrize("kind", SHALLOW)
def test_losses_whose_slopes_lie_far_below_those_of_their_domain_are_learnt(kind) -> None:
    draw, (loss, size) = np.random.default_rng(0), SHALLOW[kind]
    usual = draw.normal(15, 8, 20_000), draw.random(20_000) < 0.3, draw.gamma(4, 2, 20_000), draw.gamma(2, 10, 20_000)
    domain = dp.Box([-10, 0, 0, 0], [40, 1, 30, 100])
    x = domain.project(np.column_stack(usual).astype(float))
    y = (400 + x @ [12.0, 300.0, -15.0, 4.0] + draw.gamma(2, 80, len(x))).clip(0, 5000)
    template = scored(lambda s, y: loss(s - y), regularizer=small, x=domain, y=dp.Box(0, 5000))
    rows = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])
    best = minimize(lambda q: size(rows @ q - y).mean(), [90.0, 130, -60, 60, 700]).fun
    constant = minimize(lambda q: size(q - y).mean(), 700.0).fun
    for seed in range(3):
        found = dp.solve(template, {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=seed)
        assert constant - size(x @ found["w"] + found["b"] - y).mean() >= 0.93 * (constant - best)


def test_losses_that_are_exponentials_of_scores_less_targets_are_those_of_links() -> None:
    """Their mean slope was expected to fall like that of counts where scores rise, so a constant stayed far above its place."""
    kept, fields = list[float](), {"x": dp.Box(-np.ones(3), np.ones(3)), "y": dp.Box(0, 15)}
    template = scored(lambda s, y: cp.exp(s - y) - (s - y), regularizer=small, **fields)
    size = lambda far: np.mean(np.exp(far) - far)  # noqa: E731
    for seed in range(4):
        draw = np.random.default_rng(seed)
        x = draw.uniform(-1, 1, (500, 3))
        y = (6 + x @ [1, 0.7, -0.5] + 1.2 * draw.normal(size=500)).clip(0, 15)
        found = dp.solve(template, {"x": x, "y": y}, dp.Privacy(1.0, 1e-6), seed=seed)
        rows = np.column_stack([x, np.ones(500)])
        best = minimize(lambda q, rows=rows, y=y: size(rows @ q - y), [0.0, 0, 0, 5]).fun
        constant = size(-np.log(np.exp(-y).mean()) - y)
        kept.append((constant - size(x @ found["w"] + found["b"] - y)) / (constant - best))
    assert np.mean(kept) > 0.5


@pytest.mark.parametrize("norm", [cp.normNuc, cp.sigma_max])
def test_matrix_norms_of_residuals_end_near_their_minimum(norm):
    x = dp.Ball(3).project(np.random.default_rng(0).normal(size=(2000, 3)) * [0.6, 0.3, 0.1])
    P = cp.Variable((3, 3), name="P", PSD=True)
    template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: norm(P - cp.outer(x, x)), 1e-3 * cp.sum_squares(P))
    found = dp.solve(template, {"x": x}, dp.Privacy(1.0, 1e-5), seed=0)["P"]
    values = np.linalg.svd(found - x[:, :, None] * x[:, None, :], compute_uv=False)
    loss = values.sum(axis=1) if norm is cp.normNuc else values[:, 0]
    assert loss.mean() < (x**2).sum(axis=1).mean()  # That of P = 0


def test_quantiles_of_people_whose_records_agree_are_not_cut_towards_the_median():
    """Four slopes of a person add up, and the histogram that chooses the clip did not reach as far."""
    rng = np.random.default_rng(0)
    level, people = np.repeat(rng.normal(50, 10, 2000), 4), np.repeat(np.arange(2000), 4)
    x, y = np.repeat(rng.uniform(-0.5, 0.5, (2000, 2)), 4, axis=0), level.clip(0, 100)
    model = dp.QuantileRegressor(quantile=0.9, epsilon=8.0, delta=1e-6, bounds=(0, 100), unit="p", most=4, seed=0)
    assert np.mean(y < model.fit(x, y, unit=people).predict(x)) == pytest.approx(0.9, abs=0.02)
