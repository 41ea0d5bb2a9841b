"""What adaptive steps learn of parameters that levels pick, and of several targets, whatever the units are."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import scored
from learners_of_tests import calls_of
from scipy.sparse import csr_array
from scipy.special import expit, softmax
from sklearn.metrics import log_loss

import dpconvex as dp
from dpconvex.fitting.verify import form_of
from dpconvex.optim import public_slopes, row_metrics
from dpconvex.optim.adaptive_descent import AdaptiveDescent
from dpconvex.optim.class_descent import james_stein_of_classes
from dpconvex.optim.constant_models import LabelShares, PlacePosterior, locate
from dpconvex.optim.public_slopes import public_facts
from dpconvex.optim.slope_histograms import LengthHistograms
from dpconvex.sums import engine
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.programs import LANES, Lowered

SIZE, GROUPS = 20_000, 6
RANDOM = np.random.default_rng(0)
AGE, RARE = RANDOM.integers(18, 95, SIZE).astype(float), (RANDOM.random(SIZE) < 0.2) * 1.0
X, GROUP, OTHER = np.stack([AGE, RARE], axis=1), RANDOM.integers(0, GROUPS, SIZE), RANDOM.integers(0, 3, SIZE)
LEVELS, NOISE = np.linspace(-2, 2, GROUPS), RANDOM.normal(size=SIZE)
WIDE = {"x": dp.Box([18, 0], [100, 1]), "g": dp.Choice(range(GROUPS))}
PRIVACY = dp.Privacy(1.0, 1e-6)


def fit(record, loss, data, **options):
    return dp.solve(dp.Template(dp.Record(**record), loss, **options), data, PRIVACY, seed=0)


@pytest.mark.parametrize("loss", [cp.square, cp.abs, lambda r: cp.huber(r, 400.0)], ids=["squares", "lengths", "huber"])
@pytest.mark.parametrize("most", [10_000, 100_000])
def test_groups_have_levels_beside_features_in_natural_units(loss, most):
    w, a = cp.Variable(2, name="w"), cp.Variable(GROUPS, name="a")
    y = np.clip(4000 + 20 * (AGE - 50) + 500 * RARE + 300 * LEVELS[GROUP] + 200 * NOISE, 0, most)
    found = fit(WIDE | {"y": dp.Box(0, most)}, lambda x, g, y: loss(x @ w + a[g] - y), {"x": X, "g": GROUP, "y": y})
    assert ((y - X @ found["w"] - found["a"][GROUP]) ** 2).mean() <= 1.2 * 200**2


def test_rates_of_groups_are_those_of_their_indicators():
    """Counts times levels were scores of their own, and most of the gain over one rate for all was lost."""
    a, rng = cp.Variable(20, name="a"), np.random.default_rng(0)
    g, years = rng.integers(0, 20, 4000), rng.uniform(0.1, 1.0, 4000)
    visits = rng.poisson(years * np.where(g < 10, 0.5, 1.5)).clip(0, 10)
    record = {"g": dp.Choice(range(20)), "years": dp.Box(0, 1), "visits": dp.Box(0, 10)}
    loss = lambda g, years, visits: years * cp.exp(a[g]) - visits * a[g]  # noqa: E731
    found = fit(record, loss, {"g": g, "years": years, "visits": visits}, regularizer=1e-6 * cp.sum_squares(a))["a"]
    count, total = np.bincount(g, visits), np.bincount(g, years)
    best, same, own = ((total * np.exp(s) - count * s).sum() for s in (np.log(count / total), np.zeros(20), found))
    assert own - best < 0.35 * (same - best)


def test_thresholds_and_times_have_levels_beside_features_in_natural_units():
    w, t = cp.Variable(2, name="w"), cp.Variable(3, name="t")
    y = ((0.05 * (AGE - 50) + RARE + RANDOM.logistic(size=SIZE))[:, None] > [-1, 0, 2]).sum(axis=1)
    grades = lambda x, y: sum(cp.logistic(x @ w - t[k] if y <= k else t[k] - x @ w) for k in range(3))  # noqa: E731
    income = np.exp(RANDOM.normal(10, 0.5, SIZE)).clip(0, 5e5)  # says nothing, and its unit is small
    record = {"x": dp.Box([18, 0], [100, 5e5]), "y": dp.Choice(range(4))}
    found = fit(record, grades, {"x": np.stack([AGE, income], axis=1), "y": y}, constraints=[cp.diff(t) >= 0])
    assert found["w"][0] == pytest.approx(0.05, abs=0.01)
    assert abs(found["w"][1]) * income.std() <= 0.1


def test_targets_and_places_may_have_units_of_their_own():
    """One curvature for all of them lost those in which it is small."""
    W, b, c = cp.Variable((2, 2), name="W"), cp.Variable(2, name="b"), cp.Variable(2, name="c")
    mean = np.stack([120 + 0.5 * (AGE - 50), 2e4 - 150 * (AGE - 50)], axis=1)
    y = np.clip(mean + [10, 6e3] * RANDOM.normal(size=(SIZE, 2)), [50, 0], [260, 2e5])
    record, units = {"y": dp.Box([50, 0], [260, 2e5])}, np.array([10, 6e3])
    squares = lambda x, y: cp.sum_squares(cp.multiply(x @ W + b - y, 1 / units))  # noqa: E731
    found = fit({"x": WIDE["x"]} | record, squares, {"x": X, "y": y})
    assert (((X @ found["W"] + found["b"] - mean) / units) ** 2).mean() <= 0.02
    middle = fit(record, lambda y: cp.norm(cp.multiply(y - c, 1 / units)), {"y": y})["c"]
    np.testing.assert_allclose((middle - np.median(y, axis=0)) / units, 0, atol=0.2)


def test_quantiles_of_groups_may_have_one_term_for_each_side():
    a, b, y = cp.Variable(GROUPS, name="a"), cp.Variable(name="b"), 400 + 100 * LEVELS[GROUP] + 100 * NOISE**2
    record = {"g": WIDE["g"], "y": dp.Box(0, 3000)}
    for score in (lambda g: a[g], lambda g: a[g] + b):
        found = fit(record, lambda g, y, s=score: 0.9 * cp.pos(y - s(g)) + 0.1 * cp.pos(s(g) - y), {"g": GROUP, "y": y})
        told = found["a"] + (found["b"] if "b" in found.parameters else 0)
        np.testing.assert_allclose(told, 400 + 100 * LEVELS + 270, atol=40)


def test_levels_are_no_labels_where_targets_are_numbers():
    a, s, few = cp.Variable(GROUPS, name="a"), cp.Variable(GROUPS, name="s"), slice(500)
    y = np.clip(200 + 10 * LEVELS[GROUP] - (6 + GROUP / 2) * (AGE - 50) / 10 + 12 * NOISE, 0, 400)
    record = {"g": WIDE["g"], "t": dp.Box(-4, 6), "y": dp.Box(0, 400)}
    ridge, data = 1e-5 * (cp.sum_squares(a) + cp.sum_squares(s)), {"g": GROUP, "t": (AGE - 50) / 10, "y": y}
    found = fit(record, lambda g, t, y: cp.abs(a[g] + s[g] * t - y), data, regularizer=ridge)
    assert np.abs(found["a"][GROUP] + found["s"][GROUP] * data["t"] - y).mean() <= 1.02 * np.abs(12 * NOISE).mean()
    w = cp.Variable(2, name="w")
    pays = lambda t, y, c: cp.abs(w[0] + w[1] * t - y) if c else 0.3 * cp.pos(y - w[0] - w[1] * t)  # noqa: E731
    record = {"t": record["t"], "y": dp.Box(0, 800), "c": dp.Choice([0, 1])}
    told = {"t": data["t"][few], "y": y[few], "c": (OTHER[few] > 0) * 1}
    assert fit(record, pays, told)["w"][0] == pytest.approx(200, abs=30)


@pytest.mark.parametrize("kind", ["hurdle", "counts"])
def test_unlike_columns_take_steps_of_their_own(kind):
    """Of two log links one stayed at 0, and hid what the other said: hurdles lost a hundred times what constants do."""
    x, noise = RANDOM.uniform(-1, 1, (1000, 3)), RANDOM.normal(size=(1000, 2))
    W, b, z = cp.Variable((3, 2), name="W"), cp.Variable(2, name="b"), x @ [[1, 0.5], [0, -0.5], [1, 0]]
    paid = (z[:, 0] + noise[:, 0] > 0) * np.exp(7 + z[:, 1] + 0.5 * noise[:, 1])
    hurdle, top = kind == "hurdle", [1, 50_000] if kind == "hurdle" else [20, 4000]
    y = np.stack([paid > 0, paid], axis=1) if hurdle else RANDOM.poisson(np.exp(z) * [1, 200])
    y = np.minimum(y, top).astype(float)

    def losses(s, y, exp, logistic):
        if hurdle:
            return logistic(s[0]) - y[0] * s[0] + y[1] * exp(-s[1]) + y[0] * s[1]
        return exp(s[0]) - y[0] * s[0] + exp(s[1]) - y[1] * s[1]

    record = {"x": dp.Box([-1] * 3, [1] * 3), "y": dp.Box([0, 0], top)}
    found = fit(record, lambda x, y: losses(x @ W + b, y, cp.exp, cp.logistic), {"x": x, "y": y})
    own = lambda s: losses(s.T, y.T, np.exp, lambda m: np.logaddexp(0, m)).mean()  # noqa: E731
    best = [0.0, np.log(paid[paid > 0].mean())] if hurdle else np.log(y.mean(axis=0))
    assert own(x @ found["W"] + found["b"]) < own(np.broadcast_to(best, y.shape))


def test_the_unit_of_a_tail_is_that_of_scores_in_the_constraints():
    """Slopes of shortfalls are alike at all scales: the quantile of a portfolio stayed at the median."""
    w, a = cp.Variable(3, name="w", nonneg=True), cp.Variable(name="a")
    earned = np.clip(0.01 * RANDOM.standard_t(5, size=(SIZE, 3)) * [1, 2, 3], -0.3, 0.3)
    shortfall = lambda r: a + cp.pos(-(r @ w) - a) / 0.1  # noqa: E731
    found = fit({"r": dp.Box([-0.3] * 3, [0.3] * 3)}, shortfall, {"r": earned}, constraints=[cp.sum(w) == 1])
    assert found["a"] == pytest.approx(np.quantile(-earned @ found["w"], 0.9), rel=0.1)


@pytest.mark.parametrize("loss", ["squares", "counts"])
@pytest.mark.parametrize("treatment", [dp.Box(0, 1), dp.Choice([0, 1])], ids=["number", "choice"])
def test_the_effect_of_a_treatment_depends_on_features(loss, treatment):
    w, v, b, e = cp.Variable(2, name="w"), cp.Variable(2, name="v"), cp.Variable(name="b"), cp.Variable(name="e")
    draw = np.random.default_rng(1)
    treated = (draw.random(SIZE) < 0.3).astype(int)
    score = 0.02 * (AGE - 50) + 0.5 * RARE + treated * (0.4 - 0.01 * (AGE - 50) + 0.3 * RARE)
    y = draw.poisson(np.exp(score)).clip(0, 60) if loss == "counts" else 4e4 + 1e4 * score + 3e3 * NOISE
    missed = lambda s, y: cp.exp(s) - y * s if loss == "counts" else cp.square(s - y)  # noqa: E731
    record = {"x": WIDE["x"], "t": treatment, "y": dp.Box(0, 60 if loss == "counts" else 4e5)}
    data = {"x": X, "t": treated.astype(float if isinstance(treatment, dp.Box) else int), "y": y}
    found = fit(record, lambda x, t, y: missed(x @ w + b + t * (x @ v + e), y), data)
    told = X @ found["w"] + found["b"] + treated * (X @ found["v"] + found["e"])
    assert ((told - score if loss == "counts" else (told - 4e4) / 1e4 - score) ** 2).mean() <= 0.02 * score.var()


def test_many_classes_are_alike_beside_features_in_natural_units():
    draw, W, b = np.random.default_rng(11), cp.Variable((5, 8), name="W"), cp.Variable(8, name="b")
    z = np.column_stack([draw.normal(size=(25_000, 2)), draw.random((25_000, 3)) < [0.35, 0.02, 0.5]])
    x = np.column_stack([(45 + 14 * z[:, 0]).clip(18, 100), np.exp(10.5 + 0.6 * z[:, 1]).clip(0, 1e6), z[:, 2:]])
    true = z @ draw.normal(size=(5, 8))
    y = (true + draw.gumbel(size=true.shape)).argmax(axis=1)
    record = {"x": dp.Box([18, 0, 0, 0, 0], [100, 1e6, 1, 1, 1]), "y": dp.Choice(range(8))}
    losses = lambda x, y: cp.log_sum_exp(x @ W + b) - (x @ W[:, y] + b[y])  # noqa: E731
    public = 1e-6 * (cp.sum_squares(W) + cp.sum_squares(b))
    found = fit(record, losses, {"x": x[:5000], "y": y[:5000]}, regularizer=public)
    every = np.log(np.bincount(y) / len(y)) + 0 * true, x @ found["W"] + found["b"], true
    constant, told, best = (log_loss(y, softmax(scores, axis=1)) for scores in every)
    assert constant - told >= 0.6 * (constant - best)


@pytest.mark.parametrize("sizes", [(0,), (1,), (4, 0, 3)])
def test_partitions_may_have_no_records(sizes):
    a, record = cp.Variable(GROUPS, name="a"), dp.Record(g=dp.Choice(range(GROUPS)), y=dp.Box(-5, 5))
    parts = [{"g": np.arange(size) % GROUPS, "y": np.ones(size)} for size in sizes]
    privacy = dp.Privacy(1.0, 1e-6, "add-remove")
    template = dp.Template(record, lambda g, y: cp.square(a[g] - y))
    found = dp.solve(template, dp.Partitions(parts), privacy, dp.AdaptiveSteps(), size=10, seed=0)
    assert np.isfinite(found["a"]).all()


def test_sparse_rows_beside_treatments_and_levels_are_read():
    w, W, a, n = cp.Variable(2, name="w"), cp.Variable((2, 3), name="W"), cp.Variable(3, name="a"), 300
    record = {"x": dp.Ball(2), "g": dp.Choice(range(3)), "t": dp.Choice([0, 1]), "y": dp.Box(-1, 1)}
    data = {"x": X[:n] / 200, "g": OTHER[:n], "t": RARE[:n].astype(int), "y": NOISE[:n].clip(-1, 1)}
    treated = {name: record[name] for name in "xty"}, lambda x, t, y: cp.square(x @ w + t * (x @ W[:, 0]) - y)
    picked = record, lambda x, g, t, y: cp.square(a[g] + x @ W[:, g] + t * a[g] - y)
    for fields, loss in (treated, picked):
        known = {name: data[name] for name in fields}
        dense, sparse = (fit(fields, loss, known | {"x": x}) for x in (known["x"], csr_array(known["x"])))
        for name, value in dense.parameters.items():
            np.testing.assert_array_equal(sparse[name], value)


HALF, RUNS = 1e6, 200


def test_targets_in_a_small_part_of_their_bounds_are_found_in_all_runs() -> None:
    draw, missed = np.random.default_rng(0), []
    targets = draw.normal(50, 12, 2000)
    for _ in range(RUNS):
        noise = 0.0175  # Of an answer, next to its clip

        def ask(tried, clip, noise=noise):
            return np.array([np.clip(2 * (tried[0] - targets), -clip, clip).mean() + clip * noise * draw.normal()])

        sought = PlacePosterior(HALF, (2.0, 2.0))
        locate(ask, noise, [sought], np.inf)
        missed.append(abs(sought.place - 50))
    assert max(missed) < 200


def test_steps_that_stand_out_along_the_constant_alone_become_no_longer() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        point, constant = draw.normal(size=(12, 1)), draw.normal(size=12)
        kept, lost = np.where(np.arange(12) == 11, draw.uniform(), 0.0), draw.uniform()
        found = james_stein_of_classes(point, kept, lost * kept, constant, None, 0.5)
        along = constant * point[-1, 0] / constant[-1]
        assert np.linalg.norm(found) <= 2 * (np.linalg.norm(point) + np.linalg.norm(along))


def test_clips_leave_little_of_a_tail_that_noise_hides() -> None:
    draw, edges, lost, clips = np.random.default_rng(0), 2.0 ** np.arange(-10.0, 14), [], []
    for _ in range(RUNS):
        skewed, normal = draw.lognormal(0, 1.3, 5000), draw.normal(size=5000)
        for slopes in (skewed, normal):
            counts = np.stack([np.histogram(side, np.append(0, edges))[0] for side in (slopes, -slopes)])
            noisy = counts + 20 * draw.normal(size=counts.shape)
            clips.append(LengthHistograms(edges, 20.0, 5000, True).clip(noisy, 25.0**2, 1.0, 0.0))
        lost.append(np.maximum(skewed - clips[-2], 0).mean() / skewed.mean())
    assert np.mean(lost) <= 0.05
    assert np.mean(clips[1::2]) <= 4


def test_clips_keep_long_slopes_that_noise_hides_where_short_ones_tell_of_them() -> None:
    """Of an expected shortfall, one record in ten has long slopes: clips fell to the length of all others."""
    sides = public_facts(form_of(dp.load("expected_shortfall", features=2)))[1].unbalanced_slopes
    short, draw, edges = min(sides), np.random.default_rng(0), max(sides) * 2.0 ** np.arange(-10.0, 2)
    slopes = np.r_[np.full(900, short), np.full(100, -9 * short)] * (1 if sides[0] == short else -1)
    counts = np.stack([np.histogram(side, np.append(0, edges))[0] for side in (slopes, -slopes)])
    noisy = counts + 40 * draw.normal(size=counts.shape) * (counts < 100)
    clips = [LengthHistograms(edges, 60.0, 1000, False, s).clip(noisy, 9.0 * short, short, 0.0) for s in (None, sides)]
    assert clips[0] < 3 * short < clips[1]


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_of_targets_of_few_values_lose_no_more_than_a_constant(quantile: float) -> None:
    """Where a constant lies between two values there is no curvature: steps became thousands of times too long."""
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (20_000, 5))
    y = 2 * np.rint((5 + 1.5 * x[:, 0] + x[:, 1] + draw.normal(size=20_000)) / 2).clip(0, 5)
    loss = lambda s, y: cp.maximum(quantile * (y - s), (quantile - 1) * (y - s))  # noqa: E731
    fields, ridge = {"x": dp.Box(-np.ones(5), np.ones(5)), "y": dp.Box(0, 10)}, lambda w: 1e-9 * cp.sum_squares(w)
    found = dp.solve(scored(loss, regularizer=ridge, **fields), {"x": x, "y": y}, dp.Privacy(8, 1e-5), seed=0)
    far, alone = y - x @ found["w"] - float(found["b"]), y - np.quantile(y, quantile)
    lost = [np.maximum(quantile * one, (quantile - 1) * one).mean() for one in (far, alone)]
    assert lost[0] <= 0.8 * lost[1]


def test_losses_of_many_labels_are_looked_at_with_few_records_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = calls_of(monkeypatch, dp.Record, "sample", lambda record, size, *_: size)
    chain, size = dp.load("linear_chain_crf", features=1, classes=4, length=3), 3000
    start = np.random.default_rng(0).integers(0, 4, size)
    labels = np.array([" ".join(map(str, (first + np.arange(3)) % 4)) for first in start])
    release = dp.solve(chain, {"x": np.zeros((size, 3)), "y": labels}, dp.Privacy(3.0, 1e-6), seed=1)
    assert max(drawn) * 64 <= 2**20
    assert (np.argmax(release["T"], axis=1) == (np.arange(4) + 1) % 4).all()  # Labels follow each other


def test_quantiles_of_targets_of_few_values_keep_the_gain_of_weak_features() -> None:
    """A constant that lies on a tie has a curvature ten times that of other places: all later steps were too short."""
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 1, (20_000, 5)) / np.sqrt(5)
    y = np.rint(5 + (x @ [5.0, 2.5, 2.5, 1.2, 1.2] - 2.8) + 2 * draw.normal(size=20_000)).clip(0, 10)
    model = dp.QuantileRegressor(quantile=0.1, epsilon=8, delta=1e-5, bounds=(0, 10), seed=0).fit(x, y)
    lost = [np.maximum(0.1 * far, -0.9 * far).mean() for far in (y - model.predict(x), y - np.quantile(y, 0.1))]
    assert lost[0] <= 0.947 * lost[1]


def test_labels_without_slopes_at_zero_make_no_fit_fail():
    w, b = cp.Variable(3, name="w"), cp.Variable(3, name="b")
    signs = [np.where(np.arange(3) < y, 1.0, -1.0) for y in range(4)]
    loss = lambda x, y: cp.sum(cp.pos(cp.abs(cp.multiply(signs[y], b - x @ w)) - 0.5))  # noqa: E731
    apart = [b[0] + 0.5 <= b[1], b[1] + 0.5 <= b[2]]
    template = dp.Template(dp.Record(x=dp.Ball(3), y=dp.Choice(range(4))), loss, 1e-3 * cp.sum_squares(w), apart)
    data = {"x": RANDOM.uniform(-0.5, 0.5, (1000, 3)), "y": RANDOM.integers(0, 4, 1000)}
    assert np.isfinite(dp.solve(template, data, PRIVACY, dp.AdaptiveSteps(), seed=0)["w"]).all()


@pytest.mark.parametrize("noise", [1e-3, 1e-8, 1e-11])
def test_shares_of_labels_are_known_from_any_number_of_records(noise):
    """Squares of what is known drowned the rest where records are many: shares were no numbers, or paid fits failed."""
    slopes = np.array([[-1.0], [-0.2], [0.3], [0.7]])
    shares = LabelShares(lambda place: (np.zeros(4), slopes), 1)
    for _ in range(20):
        shares.learn(np.zeros(1), np.array([0.1]), noise, np.inf)
    np.testing.assert_allclose(shares.shares, [0.159, 0.256, 0.284, 0.301], atol=1e-3)


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
def test_the_best_constant_does_not_depend_on_the_unit_of_the_loss(unit):
    logistic = lambda s: (unit * np.logaddexp(0, [s[0], -s[0]]), unit * np.array([[expit(s[0])], [-expit(-s[0])]]))  # noqa: E731
    shares = LabelShares(logistic, 1)
    shares.learn(np.zeros(1), np.array([0.48 * unit]), 1e-4 * unit, np.inf)  # 98 and 2 of a hundred
    np.testing.assert_allclose(shares.best(), -np.log(49), atol=0.01)


def test_labels_alone_are_seen_by_one_record_each(monkeypatch):
    """Each of 10,000 drawn records was evaluated 285 times; and beside 13 classes and more, no two squares looked alike."""
    read = calls_of(monkeypatch, Lowered, "gradient", lambda lowered, entries, fields, size, *_: size)
    assert not public_facts(form_of(dp.load("least_squares_classifier", features=2, classes=20)))[1].is_uneven
    assert max(read) <= LANES


def test_records_of_many_grades_are_summed_many_at_a_time(monkeypatch):
    """Of 40 grades, records were looked at one by one, each beside 63 copies of itself; and the domain was, twice."""
    blocks, facts = calls_of(monkeypatch, engine, "vector_sums", lambda part, own: len(own)), []
    monkeypatch.setattr(public_slopes.DomainSlopes, "has_unlike_columns", lambda *given: facts.append(given))
    data = {"x": RANDOM.normal(size=(1000, 2)) / 3, "y": RANDOM.integers(0, 40, 1000)}
    template = dp.load("ordinal_regression", features=2, classes=40)
    dp.solve(template, data, PRIVACY, dp.AdaptiveSteps(rounds=1), clip=True, seed=0)
    assert min(blocks) > LANES
    assert len(facts) == 1


def test_few_public_records_are_looked_at_where_each_has_many_scores(monkeypatch):
    """A fit of 1,270 parameters on 200 records took 14 minutes."""
    monkeypatch.setattr(row_metrics, "MAX_SCORES", 2**9)
    seen = calls_of(monkeypatch, dp.Record, "sample", lambda record, size, *_: size)
    rows = {"x": dp.Ball(2), "y": dp.Choice([-1, 1])}
    form = form_of(scored(lambda s, y: cp.sum(cp.logistic(-y * s)), (20,), constant=False, **rows))
    public_facts(form)
    assert max(seen) * linear_scores(form).form.forms <= 2**9


def test_steps_have_the_level_of_a_look_for_a_length_that_noise_hides(monkeypatch):
    found = calls_of(monkeypatch, AdaptiveDescent, "_share_level", lambda *given: given)
    template = scored(lambda s, y: cp.square(y - s), constant=False, x=dp.Ball(20), y=dp.Box(-3, 3))
    for epsilon in (0.3, 3.0):
        dp.solve(template, {"x": np.eye(20).repeat(5, 0), "y": np.ones(100)}, dp.Privacy(epsilon, 1e-5), seed=0)
    spent = [one.rounds * (one.level / one.fit.level) ** 2 / left for one, left in found]
    assert spent == pytest.approx([1, 0.78 / 0.82], rel=1e-3)


@pytest.mark.parametrize("rounds", [None, 1, 2])
def test_steps_converge_for_rare_levels_where_records_are_many(rounds) -> None:
    """One step size for levels with unlike curvatures lost a thirtieth of the gain, whatever epsilon was."""
    draw = np.random.default_rng(8)
    part = 1 / np.arange(1, 9) ** 2
    level, rate = draw.choice(8, 60_000, p=part / part.sum()), np.exp(draw.normal(size=8) - 0.5)
    y = draw.poisson(rate[level]).clip(0, 20)
    template = scored(lambda s, y: cp.exp(s) - y * s, x=dp.Ball(8), y=dp.Box(0, 20))
    found = dp.solve(
        template, {"x": np.eye(8)[level], "y": y}, dp.Privacy(5.0, 1e-5), dp.AdaptiveSteps(rounds=rounds), seed=0
    )
    lost = lambda s: (np.exp(s) - y * s).mean() - (rate[level] - y * np.log(rate[level])).mean()  # noqa: E731
    part = 0.005 if rounds is None else 1.0
    assert lost((found["w"] + found["b"])[level]) < part * lost(np.full(len(y), np.log(y.mean())))


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_squares_that_pull_far_count_in_each_step(weight) -> None:
    """A model at the end weighed them with the curvature far away: fits of counts were as bad as constants."""
    draw, w, b = np.random.default_rng(1), cp.Variable(5, name="w"), cp.Variable(name="b")
    x = draw.uniform(-1, 1, (20_000, 5)) / np.sqrt(5)
    y = draw.poisson(np.exp(x @ (3 * draw.normal(size=5)) - 0.5)).clip(0, 30)
    record, public = dp.Record(x=dp.Ball(5), y=dp.Box(0, 30)), weight * cp.sum_squares(w) + 1e-6 * cp.square(b)
    template = dp.Template(record, lambda x, y: cp.exp(x @ w + b) - y * (x @ w + b), public)
    data, constant = {"x": x, "y": y}, {"w": np.zeros(5), "b": np.log(y.mean())}
    reached = lambda p: (np.exp(x @ p["w"] + p["b"]) - y * (x @ p["w"] + p["b"])).mean() + weight * p["w"] @ p["w"]  # noqa: E731
    best, found = (
        reached(dp.solve_without_privacy(template, data)),
        dp.solve(template, data, dp.Privacy(4.0, 1e-6), seed=0),
    )
    assert reached(found) - best < 0.05 * (reached(constant) - best)
