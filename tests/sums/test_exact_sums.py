"""Sums for adaptive steps: whole numbers, each record's part at most the bound as computed, whatever stands beside it."""

from dataclasses import replace
from itertools import cycle, product

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.data.columns import FileRows
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.noisy_queries import QueryNoise
from dpconvex.optim.row_metrics import Metric
from dpconvex.sums import linear_scores as linear
from dpconvex.sums.exact_rows import MATRIX_BITS
from dpconvex.sums.exact_sums import SLOPE_BITS
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.private_queries import COUNT_BITS, LIMB, PrivateQueries

ADD = dp.Privacy(1.0, 1e-6, "add-remove")
OF_FOUR = [dp.Privacy(1.0, 1e-6, kind, unit="who", most=4) for kind in ("add-remove", "replace-one")]


class Recorded(QueryNoise):
    """Queries that add no noise, and remember sums and sensitivities."""

    def __init__(self):
        super().__init__(1e9, None)
        self.seen = []

    def noisy(self, sums, sensitivity, level):
        self.seen.append((np.array(sums, dtype=object), sensitivity))
        return np.array(sums, dtype=np.int64)

    def noisy_symmetric(self, sums, sensitivity, level):
        return self.noisy(sums, sensitivity, level)


def softmax(classes=3, constant=1.0, features=4):
    return dp.load("softmax_regression", features=features, classes=classes, radius=2.0, constant=constant)


def steep(features=4, kind=cp.square):
    w, b = cp.Variable(features, name="w"), cp.Variable(name="b")
    record = dp.Record(x=dp.Ball(features, 2.0), y=dp.Box(-1e70, 1e70), g=dp.Box(0, 3))
    return dp.Template(record, lambda x, y, g: g * kind(x @ w + b - y))


def choice():
    return dp.load("conditional_logit", features=2, radius=2.0)


def pairs():
    """Return squares of a difference of scores of two fields, which share slopes."""
    w, b = cp.Variable(3, name="w"), cp.Variable(2, name="b")
    record = dp.Record(x=dp.Ball(3, 2.0), u=dp.Box([-3] * 3, [1] * 3), y=dp.Box(-1e70, 1e70), g=dp.Box(0, 3))
    return dp.Template(record, lambda x, u, y, g: g * cp.sum_squares(x @ w - u @ w + b - y))


NONE = {"x": np.zeros((0, 6)), "y": np.zeros(0, dtype=int)}


def queries(template, data, privacy=ADD, people=None):
    batch = template.record.validate(data, clip=False, empty=True)
    scores = linear_scores(analyse(template, dp.AdaptiveSteps()).form)
    scores = replace(scores, width=0.01 * (template in KINKED))
    return PrivateQueries(scores, batch, privacy, Recorded(), people)


def asked(found, seed=0, clip=0.25, scale=1.0, leverage=0.5, directions=None):
    """Ask for everything at a random table, in a random metric; return all sums."""
    rng = np.random.default_rng(seed)
    rows, columns = found.scores.shape
    moment, _ = found.second_moment(1.0)
    found.set_metric(rng.normal(size=(directions or rows, rows)) * 10.0 ** rng.uniform(-3, 0, rows))
    table, edges = scale * rng.normal(size=(rows, columns)), 2.0 ** np.arange(-8, 9)
    probe = np.ones(len(found.scores.projection))
    common = {"edges": edges, "histogram_level": 1.0, "along_level": 1.0}
    found.query(table, clip, leverage, 1.0, cap=0.5, probe=probe, **common)
    found.query(table, clip, leverage, 1.0, cap=0.3, **common)
    found.query(table, clip, leverage, 1.0, cap=0.0, **common)
    found.second_moment_in_metric(leverage, 1.0)
    for kind in () if directions else ("gradients", "roots"):
        found.vectors(table, kind, clip * leverage, 1.0)
        found.vectors(table, kind, 1.0, 1.0, edges)
        found.vectors(table, kind, 1.0, 1.0, edges[-4:-3])
    found.lengths(edges, 1.0)
    found.clip_rows(leverage)
    found.second_moment(1.0)
    return moment, [sums for sums, _ in found.noise.seen], [far for _, far in found.noise.seen]


def records(template, n, rng):
    x = template.record.continuous["x"].sample(n, rng)
    x[: n // 8] *= 1e-300
    x[n // 8 : n // 4] *= 10.0 ** rng.uniform(-12, 0, (n // 4 - n // 8, 1))
    x[n // 4] = 0.0
    data = {"x": x}
    for name, domain in template.record.fields.items():
        if name != "x":
            data[name] = domain.sample(n, rng) if hasattr(domain, "sample") else rng.choice(domain.values, n)
    if "g" in data:
        data["y"] = rng.choice([0.0, 1e70, -1e70, 1e-320, 0.5, 3.0], n) * rng.choice([1.0, 1e-50], n)
        data["g"] = rng.uniform(0, 3, n)
    return data


TEMPLATES = [softmax(), softmax(5, 0.0), steep(), steep(kind=lambda u: cp.exp(cp.huber(u)))]
TEMPLATES += [dp.load("logistic_regression", features=4)]
KINKED = [steep(kind=cp.abs)]
SHARED = [choice(), pairs(), dp.load("ordinal_regression", features=4, classes=4, radius=2.0)]
SHARED += [dp.load("large_margin_gaussian", features=2, classes=2)]
SHARED += [dp.load("robust_location", features=4, radius=2.0)]  # whose scores read nothing


@pytest.mark.sampled(12)
@pytest.mark.parametrize("template", TEMPLATES + SHARED + KINKED)
def test_a_record_adds_what_it_adds_alone_and_no_more_than_the_bound(template):
    rng = np.random.default_rng(3)
    data = records(template, 200, rng)
    for seed, scale in enumerate([0.0, 1.0, 1e3, 1e100]):
        _, together, far = asked(queries(template, data), seed, scale=scale)
        left_out = rng.integers(0, 200, 5)
        for k in left_out:
            some = {name: np.delete(column, k, axis=0) for name, column in data.items()}
            one = {name: column[k : k + 1] for name, column in data.items()}
            _, without, _ = asked(queries(template, some), seed, scale=scale)
            _, alone, _ = asked(queries(template, one), seed, scale=scale)
            for number, (a, b, c, moved) in enumerate(zip(together, without, alone, far, strict=True)):
                rounding = number in (3, 6, 9)  # gradients: floors of exact sums in the metric
                assert (np.abs((a - b) - c) <= rounding).all()
                length = sum(int(entry) ** 2 for entry in (a - b).flat)
                assert length <= moved**2 * (1 + 1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("template", [softmax(), *SHARED])
def test_sums_do_not_depend_on_blocks_formats_or_partitions(template):
    rng = np.random.default_rng(0)
    data = records(template, 300, rng)
    expected, sparse = asked(queries(template, data))[1], {**data, "x": sp.csr_array(data["x"])}
    order = rng.permutation(300)
    shuffled = {name: column[order] for name, column in data.items()}
    halves_of = [{name: column[some] for name, column in data.items()} for some in (slice(0, 77), slice(77, 300))]
    for other in (sparse, shuffled, dp.Partitions([lambda part=part: part for part in halves_of])):
        for a, b in zip(asked(queries(template, other))[1], expected, strict=True):
            assert (a == b).all()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("template", TEMPLATES[:3] + SHARED + KINKED)
@pytest.mark.parametrize("privacy", OF_FOUR)
def test_a_person_moves_every_sum_by_no_more_than_its_sensitivity(template, privacy):
    rng = np.random.default_rng(5)
    data, people = records(template, 120, rng), np.sort(rng.integers(0, 40, 120))
    kept = np.concatenate([np.flatnonzero(people == who)[:4] for who in np.unique(people)])
    data, people = {name: column[kept] for name, column in data.items()}, people[kept]
    others = records(template, 4, rng)
    for who in (0, 7, 21, 33):
        rest = people != who
        some = {name: column[rest] for name, column in data.items()}
        after, whose = some, people[rest]
        if privacy.adjacency == "replace-one":
            after = {name: np.concatenate([some[name], others[name]]) for name in some}
            whose = np.concatenate([people[rest], np.full(4, 99)])
        for seed, (scale, directions) in enumerate([(0.0, None), (1.0, None), (30.0, None), (1.0, 1)]):
            _, before, far = asked(queries(template, data, privacy, people), seed, scale=scale, directions=directions)
            _, then, _ = asked(queries(template, after, privacy, whose), seed, scale=scale, directions=directions)
            for a, b, moved in zip(before, then, far, strict=True):
                assert sum(int(entry) ** 2 for entry in (a - b).flat) <= moved**2 * (1 + 1e-12)


@pytest.mark.parametrize("directions", [1, 2, None])
def test_people_of_one_record_have_the_lengths_of_records(directions):
    template, privacy = softmax(), dp.Privacy(1.0, 1e-6, "add-remove", unit="who", most=1)
    data, edges = records(template, 200, np.random.default_rng(4)), 2.0 ** np.arange(-8, 9, 0.5)
    found = [queries(template, data), queries(template, data, privacy, np.arange(200))]
    for each in found:
        rng = np.random.default_rng(0)
        rows, columns = each.scores.shape
        each.set_metric(rng.normal(size=(directions or rows, rows)))
        each.query(rng.normal(size=(rows, columns)), edges=edges, histogram_level=1.0)
    one, other = (each.noise.seen[-1][0] for each in found)
    assert sum(abs(one - other).flat) <= 2e-3 * sum(one.flat)
    assert np.count_nonzero(one) > 5


@pytest.mark.parametrize("many", [300, 5000])
def test_people_with_many_records_move_gradients_by_the_bound_and_hardly_less(many):
    template, rng = softmax(constant=0.0), np.random.default_rng(1)
    data = records(template, many + 50, rng)
    people = np.concatenate([np.zeros(many, dtype=np.int64), np.arange(1, 51)])
    data["x"][:many], data["y"][:many] = 0.9 * data["x"][many] + 1e-3 * rng.normal(size=(many, 4)), 1
    privacy = dp.Privacy(1.0, 1e-6, "add-remove", unit="who", most=many)
    rest = {name: column[many:] for name, column in data.items()}
    cases = (data, people), (rest, people[many:])
    both = [asked(queries(template, some, privacy, who), clip=1e-9) for some, who in cases]
    for number in (3, 9):
        moved = sum(int(entry) ** 2 for entry in (both[0][1][number] - both[1][1][number]).flat) ** 0.5
        assert 0.6 * both[0][2][number] < moved <= both[0][2][number]


ODD = {"cap": [np.nan, -0.5, np.inf, 1e-320], "clip": [np.nan, 1e-300, -1.0], "table": [np.nan, 1e-310]}
ODD |= {"probe": [np.inf], "leverage": [0.0, -1.0], "edges": [np.nan]}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("template", [softmax(), choice()])
@pytest.mark.parametrize("odd", [{name: value} for name in ODD for value in ODD[name]])
def test_no_question_moves_a_sum_farther_than_its_sensitivity(odd, template):
    """Whoever asks is no part of the proof: a cap that is no number had made a record's curvature 2^63."""
    rng = np.random.default_rng(3)
    data, both = records(template, 40, rng), []
    for some in (data, {name: column[1:] for name, column in data.items()}):
        found = queries(template, some)
        found.set_metric(np.eye(found.scores.shape[0]))
        given = {"clip": 0.25, "leverage": 0.5, "cap": 0.5} | {k: v for k, v in odd.items() if k not in "table edges"}
        given["probe"] = np.full(found.scores.to_forms.shape[0], odd.get("probe", 1.0))
        edges, table = np.full(9, odd["edges"]) if "edges" in odd else 2.0 ** np.arange(-4, 5), odd.get("table", 0.0)
        with np.errstate(all="ignore"):  # of what is made of the answers
            found.second_moment_in_metric(odd.get("clip", 1.0), 1.0)
            for kind, bins in product(("gradients", "roots"), (edges, edges[:1], edges[:0])):
                found.vectors(np.full(found.scores.shape, table), kind, odd.get("clip", 1.0), 1.0, bins)
            levels = dict.fromkeys(("level", "histogram_level", "along_level"), 1.0)
            found.query(np.full(found.scores.shape, table), edges=edges, **levels, **given)
            given.pop("probe")
            found.query(np.full(found.scores.shape, table), along_level=1.0, **given)
            found.lengths(edges, 1.0)
            found.clip_rows(odd.get("clip", np.inf))
            found.second_moment(1.0)
        both.append(found.noise.seen)
    for (one, far), (other, _) in zip(*both, strict=True):
        assert sum(int(entry) ** 2 for entry in (one - other).flat) <= far**2 * (1 + 1e-12)


def test_a_length_between_two_bins_does_not_depend_on_the_records_beside_it():
    """Squares were added in another order for one record than for two: the length of this one lies on an edge."""
    w = cp.Variable((3, 12), name="w")
    record = dp.Record(x=dp.Ball(3, 2.0), y=dp.Choice(range(12)), g=dp.Box(0, 3))
    template = dp.Template(record, lambda x, y, g: g * (cp.log_sum_exp(x @ w) - (x @ w)[y]))
    row = [-0.6353815259854739, -0.12595672195730034, 0.7618564304579585]
    edges = np.sqrt(33 / 4097) * np.sqrt(2) ** np.arange(-20, 20)
    table, counts = np.random.default_rng(0).normal(size=(3, 12)), []
    for n in (1, 2):
        found = queries(template, {"x": [row] * n, "y": [0] * n, "g": [0.1416776768609886] * n})
        found.set_metric(np.eye(3))
        found.vectors(table, "roots", float(edges[-1]), 1.0, edges)
        counts.append(found.noise.seen[-1][0])
    assert (counts[1] == 2 * counts[0]).all()


def test_one_edge_asks_how_many_are_beyond_it():
    template, x = dp.load("ridge_regression", features=1), np.array([[0.1], [0.2], [0.4], [-0.8]])
    for privacy in (ADD, dp.Privacy(1.0, 1e-6)):
        found = queries(template, {"x": x, "y": np.full(4, -1.0)}, privacy)
        found.set_metric(np.eye(found.scores.shape[0]))
        found.vectors(np.zeros(found.scores.shape), "gradients", 1.0, 1.0, np.array([0.3]))
        counts, moved = found.noise.seen[-1]
        assert (counts / 2**COUNT_BITS).tolist() == [2]
        assert moved == 2**COUNT_BITS


def test_tables_that_are_too_large_for_exact_sums_are_refused(monkeypatch):
    assert linear.MOST * 2**MATRIX_BITS * 2**LIMB <= 2**53
    assert SLOPE_BITS < 21
    monkeypatch.setattr(linear, "MOST", 3)
    for template in (softmax(2, 0.0, 4), softmax(4, 0.0, 2)):
        with pytest.raises(dp.NotPrivate, match="features or columns"):
            dp.verify(template, ADD, 1000, dp.AdaptiveSteps())


def test_edges_in_any_order_put_a_record_into_one_bin_whatever_the_others_are():
    template, rng = softmax(), np.random.default_rng(3)
    data, counts = records(template, 60, rng), []
    edges = rng.permutation(np.r_[2.0 ** np.arange(-12, 12), np.nan])
    for some in (data, {name: column[1:] for name, column in data.items()}):
        found = queries(template, some)
        found.set_metric(np.eye(found.scores.shape[0]))
        found.query(np.zeros((5, 3)), edges=edges, histogram_level=1.0)
        counts.append(found.noise.seen[-1][0])
    assert np.abs(counts[0] - counts[1]).sum() == 2**8


def test_products_of_fields_are_cut_alike_for_one_record_and_for_many():
    w, v = (cp.Variable(40, name=name) for name in "wv")
    record = dp.Record(x=dp.Ball(40), u=dp.Ball(40), y=dp.Box(-1, 1))
    template = dp.Template(record, lambda x, u, y: cp.square(x @ w + u @ v - y))
    made = linear_scores(analyse(template, dp.AdaptiveSteps()).form).monomials
    rng = np.random.default_rng(0)
    columns = [*rng.normal(size=(2, 300, 40)), np.zeros(300)]  # longer than the bounds say
    together = made(columns)
    for k in range(300):
        assert (made([column[k : k + 1] for column in columns])[0] == together[k]).all()


def test_mirrored_and_repeated_records_of_a_person_move_squares_by_their_bound():
    template, both = dp.load("logistic_regression", features=4), []
    data = records(template, 32, np.random.default_rng(11))
    data["x"] = np.repeat(data["x"][::4], 4, axis=0) * np.tile([1, -1, 1 - 1e-15, 0.5], 8)[:, None]
    privacy, people = dp.Privacy(1.0, 1e-6, "add-remove", unit="who", most=4), np.repeat(np.arange(8), 4)
    for some in (slice(0, 32), slice(0, 28)):
        found = queries(template, {name: column[some] for name, column in data.items()}, privacy, people[some])
        found.set_metric(np.eye(4))
        for kind in ("gradients", "roots"):
            found.vectors(np.ones((4, 1)), kind, 1e-9, 1.0)
        both.append(found.noise.seen)
    for (a, moved), (b, _) in zip(*both, strict=True):
        assert 0.99 * moved < sum(int(entry) ** 2 for entry in (a - b).flat) ** 0.5 <= moved


def test_noise_of_many_features_makes_no_record_shorter():
    """Where most eigenvalues of a second moment are noise, its directions are still those that records have in the metric."""
    rng = np.random.default_rng(0)
    moment, noise = np.diag([4000.0, 2000.0, 1000.0, *[2.0] * 197]), rng.normal(scale=10.0, size=(200, 200))
    noisy = moment + (noise + noise.T) / 2
    metric = Metric.of(noisy, 200.0, 0.5, np.inf, denoised=True)
    leverage = np.trace(metric.matrix @ moment @ metric.matrix.T)
    assert 0.9 < metric.effective_dim / leverage < 1.1
    assert Metric.of(noisy, 200.0, 0.5, np.inf).effective_dim > 5 * leverage


@pytest.mark.parametrize("kind", ["gradients", "roots"])
@pytest.mark.parametrize(("turn", "longest"), [(1.0, 1e146), (np.nan, 1.0), (np.inf, 1.0), (1.0, 1.0)])
def test_no_record_raises_what_some_raise(kind, turn, longest):
    """Numbers that are public may overflow: then they do for no record, too, or the error would tell that there is one."""
    template, outcomes = choice(), []
    for count in (0, 1, 3):
        found = queries(template, records(template, count, np.random.default_rng(0)) if count else NONE)
        matrix = np.eye(found.rows.count)
        matrix[0, 0] = turn
        try:
            with np.errstate(all="ignore"):
                found.set_metric(matrix)
                found.vectors(np.zeros(found.scores.shape), kind, longest, 1.0)
        except (ArithmeticError, ValueError):
            outcomes.append("raised")
        else:
            outcomes.append("answered")
    assert len(set(outcomes)) == 1
    assert outcomes[0] == ("answered" if turn == longest == 1 else "raised")


def test_a_record_of_a_file_that_changes_between_readings_adds_no_more_than_the_bound(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.full((1, 4), 0.45))
    read, sizes = FileRows.__getitem__, cycle((1e-3, 1.0))
    monkeypatch.setattr(FileRows, "__getitem__", lambda self, rows: read(self, rows) * next(sizes))
    parts = dp.Partitions([{"x": tmp_path / "x.npy", "y": [1]}])
    _, sums, far = asked(queries(TEMPLATES[-1], parts), scale=0.0)
    for own, moved in zip(sums, far, strict=True):
        assert sum(int(entry) ** 2 for entry in own.flat) <= moved**2 * (1 + 1e-12)


@pytest.mark.parametrize("directions", [1, 2, 7])
def test_moments_in_a_metric_are_as_large_as_it_is(directions):
    """The one sum of a single direction filled a table of as many rows as records have, each paid for as if it was alone."""
    found = queries(softmax(), NONE | {"x": np.zeros((0, 4))})
    found.set_metric(np.ones((directions, 5)))
    assert found.second_moment_in_metric(0.5, 1.0).shape == found.noise.seen[-1][0].shape == (directions, directions)
