"""Intervals around a fit: they cover, are paid for before data are looked at, and one record moves what they take as proved."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit, softmax

import dpconvex as dp
from dpconvex.fitting import intervals as module
from dpconvex.fitting.adaptive import estimate_with_covariance
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import NoiseSource
from dpconvex.sums.engine import RecordSums
from dpconvex.sums.forms import form_of as leaves_of

RNG = np.random.default_rng(0)
W = np.array([2.0, -3.0, 1.0])
HALF = dp.Privacy(1.5, 5e-7)


def features(size, rng):
    x = rng.normal(size=(size, 3)) / 2.5
    return x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None]


def drawn(kind, size, rng):
    x = features(size, rng)
    if kind == "logistic_regression":
        return {"x": x, "y": np.where(rng.random(size) < expit(x @ W), 1, -1)}, W
    if kind == "softmax_regression":
        slopes = np.outer(W, [1.0, 0.0, -1.0])
        sums = softmax(x @ slopes, axis=1).cumsum(axis=1)
        return {"x": x, "y": (rng.random(size)[:, None] > sums).sum(axis=1)}, slopes.ravel("F")
    return {"x": x, "y": np.clip(x @ W / 6 + 0.1 * rng.normal(size=size), -1, 1)}, W / 6


OBJECTIVE = dp.ObjectivePerturbation("gaussian")


def fitted(learner, data, privacy=HALF, mechanism=OBJECTIVE, **options):
    return dp.solve(learner, data, privacy, mechanism, whitening=False, **options)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(
    "kind", ["logistic_regression", "softmax_regression", "huber_regression", "quantile_regression"]
)
def test_intervals_cover_what_is_true(kind, pure):
    rng, covered = np.random.default_rng(1), []
    learner = dp.load(kind, features=3, **({"classes": 3} if kind == "softmax_regression" else {}))
    privacy, law = (dp.Privacy(6.0), "gamma") if pure else (HALF, "gaussian")
    for seed in range(25):
        data, true = drawn(kind, 20_000, rng)
        fit = fitted(learner, data, privacy, dp.ObjectivePerturbation(law), seed=seed)
        found = dp.intervals(learner, fit, data, privacy, seed=seed + 100)
        covered.append((found.lower <= true) & (true <= found.upper))
        assert (found.noise_errors < found.standard_errors).all()
    assert 0.85 < np.mean(covered) <= 1  # 75 or more: five deviations


def test_intervals_are_paid_for_before_records_are_looked_at():
    data, _ = drawn("logistic_regression", 20_000, RNG)
    learner, budget = dp.load("logistic_regression", features=3), dp.Budget(dp.Privacy(4.0, 1e-5))
    fit = fitted(learner, data, budget=budget)
    found = dp.intervals(learner, fit, data, HALF, budget=budget)
    assert [entry.label for entry in budget.entries] == ["solve", "intervals"]
    assert budget.spent.epsilon == pytest.approx(3.0)
    assert found.spent == HALF
    assert "spent" in repr(found)
    broken = {**data, "x": np.where(np.arange(3) == 1, np.nan, data["x"])}
    with pytest.raises(dp.DomainError, match="NaN"):
        dp.intervals(learner, fit, broken, dp.Privacy(0.5, 1e-7), budget=budget)
    assert len(budget.entries) == 3
    with pytest.raises(dp.DPConvexError):
        dp.intervals(learner, fit, {"x": data["x"]}, dp.Privacy(0.1, 1e-7), budget=budget)
    assert len(budget.entries) == 3


@pytest.mark.parametrize("kind", ["logistic_regression", "huber_regression", "softmax_regression"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_one_record_moves_the_statistics_of_a_step_by_their_sensitivity_at_most(kind, adjacency):
    learner = dp.load(kind, features=3, **({"classes": 3} if kind == "softmax_regression" else {}))
    analysis, leaves = analyse(learner), leaves_of(learner, analyse(learner).form.space)
    basis = analysis.form.basis.toarray()
    bent = float(np.sqrt(analysis.hessian_bound)) if leaves.forms == 1 else 0.0
    step = module.squares_template(basis.shape[1], float(analysis.gradient_bound), bent)
    privacy = dp.Privacy(1.0, 1e-6, adjacency)
    proof = dp.verify(step, privacy, 100, dp.SufficientStatistics("gaussian"))
    assert proof.check().unreplayed == ()
    batch = learner.record.sample(400, RNG)
    longest = 0.0
    for size in (0.1, 3.0, 1e3):
        found = RecordSums(leaves, batch).each_gradient(size * RNG.normal(size=analysis.form.space.dim))
        slope, bend = found[:, : len(basis)] @ basis, found[:, len(basis) :] @ basis if bent else np.zeros((400, 1))
        assert np.linalg.norm(slope, axis=1).max() <= analysis.gradient_bound * (1 + 1e-9)
        assert not bent or np.linalg.norm(bend, axis=1).max() <= bent * (1 + 1e-9)
        squares = np.einsum("ni,nj->nij", slope, slope).reshape(400, -1) * ((bent / analysis.gradient_bound) ** 2 or 1)
        squares = np.hstack([squares, *([np.einsum("ni,nj->nij", bend, bend).reshape(400, -1)] if bent else [])])
        unit = np.sqrt(2) * bent**2 if bent else analysis.gradient_bound**2
        whole = squares / unit
        pairs = whole[RNG.permutation(400)] - whole if adjacency == "replace-one" else whole
        longest = max(longest, np.linalg.norm(pairs, axis=1).max())
    assert longest <= proof.sensitivity * (1 + 1e-6)


def test_what_has_no_intervals_is_refused():
    data, _ = drawn("logistic_regression", 60, RNG)
    learner = dp.load("logistic_regression", features=3)
    fit = fitted(learner, data)
    with pytest.raises(dp.NotConverged, match="least curvature"):
        dp.intervals(learner, fit, data, HALF)
    data_of_many = drawn("logistic_regression", 20_000, RNG)[0]
    strong = dp.load(
        "logistic_regression", features=3, regularization=0.1
    )  # shrinks slopes by more than errors explain
    with pytest.raises(dp.NotConverged, match="holds the fit too far"):
        dp.intervals(strong, fitted(strong, data_of_many), data_of_many, HALF)
    others = dp.NoisyGradientDescent(clip=0.1), dp.OutputPerturbation("gaussian")
    whitened = dp.solve(learner, data, HALF, OBJECTIVE, whitening=True)
    for other in (whitened, *(fitted(learner, data, HALF, mechanism) for mechanism in others)):
        with pytest.raises(dp.TemplateError, match="a fit by noise on the objective"):
            dp.intervals(learner, other, data, HALF)
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    regularizer = cp.sum_squares(w) / 2 + cp.norm1(w)
    lasso = dp.Template(record=record, loss=lambda x, y: cp.logistic(-y * (x @ w)), regularizer=regularizer)
    with pytest.raises(dp.TemplateError, match="regularizer has kinks"):
        dp.intervals(lasso, fit, data, HALF)
    for theta, said in (([1.7e308] * 3, "beyond"), ([0.0] * 2, "other parameters")):
        other, budget = replace(fit, parameters={"w": np.array(theta)}), dp.Budget(HALF)
        with pytest.raises(dp.TemplateError, match=said):
            dp.intervals(learner, other, data, HALF, budget=budget)
        assert budget.entries == ()
    for asked, said in ((1.5, "confidence"), ("x", "confidence")):
        with pytest.raises(dp.TemplateError, match=said):
            dp.intervals(learner, fit, data, HALF, asked)
    with pytest.raises(dp.NotPrivate, match="several"):
        dp.intervals(learner, fit, data, dp.Privacy(1.0, 1e-6, unit="patient", most=2))
    bounded = dp.load("isotonic_regression", features=3)
    with pytest.raises(dp.TemplateError, match="constraints"):
        dp.intervals(
            bounded, dp.Release({v.name: np.zeros(v.shape) for v in bounded.variables}, spent=HALF), data, HALF
        )
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    kinked = dp.Template(record, lambda x, y: cp.pos(1 - y * (x @ w)), cp.sum_squares(w))
    with pytest.raises(dp.NotPrivate, match="kinks"):
        dp.intervals(kinked, dp.Release({"w": np.zeros(3)}, spent=HALF), data, HALF)


def scores(loss, labels=3, features=2):
    W = cp.Variable((features, labels), name="W")
    record = dp.Record(x=dp.Ball(features), y=dp.Choice(range(labels)))
    return dp.Template(record, lambda x, y: loss(x @ W, y), 5e-7 * cp.sum_squares(W))


def test_several_scores_need_probabilities():
    rng = np.random.default_rng(3)
    x = rng.uniform(-0.7, 0.7, (20_000, 2))
    data = {"x": x, "y": (x @ [[1.0, -1, 0], [-1, 0, 1]] + rng.gumbel(size=(len(x), 3))).argmax(axis=1)}
    right = scores(lambda s, y: cp.log_sum_exp(s) - s[y])
    assert np.isfinite(dp.intervals(right, fitted(right, data), data, HALF, seed=1).standard_errors).all()
    tripled = scores(lambda s, y: 3 * (cp.log_sum_exp(s) - s[y]))  # covered .5 of what it said
    apart = scores(lambda s, y: sum(cp.logistic(s[c] if c != y else -s[c]) for c in range(3)) / 3)
    for wrong in (tripled, apart):
        fit, budget = fitted(wrong, data), dp.Budget(HALF)
        with pytest.raises(dp.TemplateError, match="is no logarithm of probabilities"):
            dp.intervals(wrong, fit, data, HALF, budget=budget)
        assert not budget.entries


def test_units_of_the_loss_do_not_matter_to_what_is_refused():
    rng, w = np.random.default_rng(5), cp.Variable(2, name="w")
    x = rng.uniform(-0.7, 0.7, (50_000, 2))
    data = {"x": x, "y": np.where(rng.random(len(x)) < expit(x @ [4.0, -1.0]), 1, -1)}
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    for unit in (1.0, 0.05, 0.01):  # regularized as much, intervals of small losses covered .7 of what they said
        near, far = (
            dp.Template(record, lambda x, y: unit * cp.logistic(-y * (x @ w)), unit * size / 2 * cp.sum_squares(w))  # noqa: B023
            for size in (1e-4, 3e-3)
        )
        eight = dp.Privacy(4.0, 5e-7)
        assert dp.intervals(near, fitted(near, data, eight), data, eight, seed=1).noise_errors.max() < 1
        with pytest.raises(dp.NotConverged, match="holds the fit too far"):
            dp.intervals(far, fitted(far, data, eight), data, eight, seed=1)


def test_a_rare_label_does_not_hide_that_regularization_bends():
    rng = np.random.default_rng(7)
    x = np.column_stack([np.full(20_000, 0.8), rng.uniform(-0.6, 0.6, 20_000)])
    data, eight = {"x": x, "y": np.where(rng.random(len(x)) < expit(x @ [-5, 1.5]), 1, -1)}, dp.Privacy(4.0, 5e-7)
    for size, refused in ((1e-6, False), (8e-4, True)):
        learner = dp.load("logistic_regression", features=2, regularization=size)
        fit = fitted(learner, data, eight)
        if refused:
            with pytest.raises(dp.NotConverged, match="holds the fit too far"):
                dp.intervals(learner, fit, data, eight, seed=1)
        else:
            assert dp.intervals(learner, fit, data, eight, seed=1).lower[0] < -5


def test_fits_of_others_are_refused_before_payment_and_seeds_are_told():
    data, _ = drawn("logistic_regression", 6000, RNG)
    learner, budget = dp.load("logistic_regression", features=3), dp.Budget(HALF)
    fit = fitted(learner, data)
    cut = dp.Privacy(1.5, 5e-7, unit="patient", most=1, keep="first")
    people = dp.solve(learner, data, cut, OBJECTIVE, unit=np.arange(6000) // 3)
    fewer = {name: column[:5000] for name, column in data.items()}
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    unseen = dp.Template(record, lambda x, y: cp.logistic(-y * (x[:2] @ w[:2])), 1e-5 * cp.sum_squares(w))
    for template, release, records, said in (
        (learner, people, data, "people with several records"),
        (learner, fit, fewer, "the fit was of 6000 records"),
        (dp.load("logistic_regression", features=3, radius=0.5), fit, data, "another template"),
        (unseen, fitted(unseen, data), data, "no record enters one of the parameters"),
    ):
        with pytest.raises(dp.DPConvexError, match=said):
            dp.intervals(template, release, records, HALF, budget=budget)
    assert not budget.entries
    eight = dp.Privacy(8.0, 5e-7)
    seeded = dp.solve(learner, data, eight, OBJECTIVE, whitening=False, seed=3)
    assert "NOT PRIVATE: the noise was drawn with the seed 3" in repr(dp.intervals(learner, seeded, data, eight))
    assert "NOT PRIVATE" in repr(dp.intervals(learner, seeded, data, eight, seed=4))


def test_no_records_are_answered_as_few_are():
    learner, privacy = dp.load("logistic_regression", features=3), dp.Privacy(2.0, 1e-6, "add-remove")
    for size in (0, 1):
        data = {"x": np.full((size, 3), 0.1), "y": np.ones(size, int)}
        fit = dp.solve(learner, data, privacy, OBJECTIVE, size=3000, whitening=False)
        with pytest.raises(dp.NotConverged, match="intervals: "):
            dp.intervals(learner, fit, data, privacy, size=3000)


def test_a_rare_level_does_not_hide_among_others():
    rng, eight = np.random.default_rng([0, 1]), dp.Privacy(8.0, 1e-6)
    x = np.zeros((20_000, 4))
    x[:, :-1] = rng.uniform(-1, 1, (20_000, 3)) * 0.7 / 3**0.5
    x[:, -1] = 0.7 * (rng.random(20_000) < 0.01)
    data = {"x": x, "y": np.where(x @ [1, 0, 0, 3 / 0.7] + rng.logistic(size=20_000) > 0, 1, -1)}
    held = dp.load("logistic_regression", features=4, regularization=2e-4)  # intervals of the last covered .26
    with pytest.raises(dp.NotConverged, match="holds the fit too far"):
        dp.intervals(held, fitted(held, data, eight), data, eight, seed=1)


def test_slopes_that_no_curvature_belongs_to_do_not_count():
    rng, eight, w = np.random.default_rng(2), dp.Privacy(8.0, 1e-6), cp.Variable(2, name="w")
    parts = {-1: (5.0, 6.0), 1: (-6.0, -5.0)}  # of labels that were flipped at random, without bias
    atoms = {
        y: dp.Atom(
            f"flipped{y + 1}", lambda m, y=y: np.logaddexp(0, m) + (5 if y < 0 else -6) * m, slope=s, curvature=0.25
        )
        for y, s in parts.items()
    }
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    learner = dp.Template(record, lambda x, y: atoms[y](x @ w), 0.02 / 2 * cp.sum_squares(w))
    x = rng.normal(size=(50_000, 2))
    x /= np.linalg.norm(x, axis=1)[:, None]
    x[:, 0] = abs(x[:, 0])
    right = x @ [3.0, 0] + rng.logistic(size=len(x)) > 0
    data = {"x": x, "y": np.where(right ^ (rng.random(len(x)) < 5 / 11), 1, -1)}
    with pytest.raises(dp.NotConverged, match="holds the fit too far"):
        dp.intervals(learner, fitted(learner, data, eight), data, eight, seed=1)


def test_a_fit_with_another_regularization_is_anothers():
    data, _ = drawn("logistic_regression", 6000, RNG)
    strong, weak = (dp.load("logistic_regression", features=3, regularization=size) for size in (3e-2, 1e-6))
    with pytest.raises(dp.TemplateError, match="another template"):
        dp.intervals(weak, fitted(strong, data), data, HALF)


def test_a_median_between_two_clusters_has_no_intervals():
    """Before noise counted, all were accepted, and half of them missed."""
    learner, half, kept = dp.load("quantile_regression", features=1), dp.Privacy(0.25, 5e-7), 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        data = {"x": np.ones((10_000, 1)), "y": rng.choice([-0.3, 0.3], 10_000) + 0.1 * rng.normal(size=10_000)}
        data["y"] = data["y"].clip(-1, 1)
        fit = dp.solve(learner, data, half, dp.ObjectivePerturbation("gaussian"), whitening=False, seed=2 * seed)
        try:
            dp.intervals(learner, fit, data, half, seed=2 * seed + 1)
        except dp.NotConverged as error:
            assert "curvature changes" in str(error)  # noqa: PT017
        else:
            kept += 1
    assert kept <= 2
    data["y"] = (rng.choice([-0.02, 0.02], 10_000) + 0.1 * rng.normal(size=10_000)).clip(-1, 1)
    fit = dp.solve(learner, data, half, dp.ObjectivePerturbation("gaussian"), whitening=False, seed=1)
    found = dp.intervals(learner, fit, data, half, seed=2)
    assert found.lower[0] < 0 < found.upper[0]


# After adaptive steps


def steps_on(kind, data, privacy, size, seed=0, people=None, start=None, **options):
    learner = dp.load(kind, features=3, **options)
    mechanism = dp.AdaptiveSteps()
    certificate = dp.verify(learner, privacy, size, mechanism)
    batch, form = learner.record.validate(data), analyse(learner, mechanism).form
    return estimate_with_covariance(form, certificate, batch, NoiseSource(seed), people, start)


def test_an_estimate_after_steps_has_the_law_that_it_says():
    rng, privacy, away = np.random.default_rng(1), dp.Privacy(3.0, 1e-5, "add-remove"), []
    wider = []
    for seed in range(6):
        data, true = drawn("logistic_regression", 6000, rng)
        found = steps_on("logistic_regression", data, privacy, 6000, seed)
        right = expit(data["x"] @ true)
        plain = np.linalg.inv((data["x"].T * right * (1 - right)) @ data["x"])
        wider.append(np.diag(found.of_records) / np.diag(plain))
        away.append((found.theta - true) / np.sqrt(np.diag(found.of_records + found.of_noise)))
    assert 0.6 < np.std(away) < 1.4
    assert 0.7 < np.mean(wider) < 1.3


def test_estimates_of_partitions_have_the_bits_of_arrays_and_people_of_one_record_differ_in_rounding():
    data, _ = drawn("logistic_regression", 6000, RNG)
    parts = [{name: column[some] for name, column in data.items()} for some in (slice(0, 777), slice(777, 6000))]
    privacy = dp.Privacy(3.0, 1e-5, "add-remove")
    expected = steps_on("logistic_regression", data, privacy, 6000)
    cut = steps_on("logistic_regression", dp.Partitions([lambda part=part: part for part in parts]), privacy, 6000)
    start = {"w": np.round(expected.theta, 1)}
    own = steps_on("logistic_regression", data, privacy, 6000, start=start)
    again = steps_on("logistic_regression", data, privacy, 6000, people=np.arange(6000)[::-1], start=start)
    assert all((a == b).all() for a, b in zip(cut, expected, strict=True))
    for one, other in zip(again, own, strict=True):  # people's slopes are cut in finer units
        np.testing.assert_allclose(one, other, rtol=0.02, atol=2e-3)
