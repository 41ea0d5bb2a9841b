"""Promises about people with several records: exact laws on the line, sums that are clipped, and every door for data."""

import decimal
import json
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from refused import refused
from scipy.integrate import trapezoid
from scipy.special import expit
from scipy.stats import norm

import dpconvex as dp
from dpconvex.accounting.events import Hull, Perturbation
from dpconvex.certificates.certificate import Certificate
from dpconvex.checker import Rejected, check
from dpconvex.errors import DomainError, NotPrivate, TemplateError
from dpconvex.fitting.release import functions_of
from dpconvex.fitting.verify import analyse, form_of
from dpconvex.noise.gaussian import gaussian_delta, profile_epsilon
from dpconvex.sums.batch_loss import BatchedLoss

LINE = dp.load("logistic_regression", features=1, regularization=0.05)
SQUARES = dp.load("ridge_regression", features=1, regularization=0.05)
ADJACENCIES = ("add-remove", "replace-one")


def visits(delta=0.0, adjacency="add-remove", most=2, keep=None, epsilon=1.0):
    return dp.Privacy(epsilon, delta, adjacency, unit="patient", most=most, keep=keep)


def left(certificate: Certificate):
    """Return what the mechanism by itself claims: epsilon and delta."""
    return certificate.noise_epsilon + certificate.jacobian_epsilon, certificate.noise_delta


# The attack on who has two visits: the exact loss of the person, under the noise of either promise
def loss_of_two_visits(certificate: Certificate, adjacency: str):
    """Return the exact privacy loss of two equal visits, at the noise's delta, of losses that are as steep as they can be."""
    sides = 2 if adjacency == "replace-one" else 1
    moved = 2.0 * sides  # the slopes of both visits, 1 each, to 0 or to those of opposite ones
    if certificate.perturbed == "output":
        moved /= certificate.strong_convexity
    elif certificate.perturbed == "gradients":
        moved = min(moved, sides * certificate.clip) * certificate.steps**0.5
    elif certificate.perturbed == "statistics":  # of x = 1, y = 1 against x = 0 or y = -1: x^2 / 2 and sqrt(2) x y
        x, y = (np.array(values, dtype=float) for values in ([1.0, 1.0], [1.0, -1.0]))
        record = np.array([1.0, 2**0.5])
        moved = 2 * np.linalg.norm(record * [0, 2] if sides == 2 else record) * x[0] * y[0]
    loss = moved / certificate.noise_scale
    return profile_epsilon(loss, left(certificate)[1]) if certificate.is_gaussian else loss


CASES = {
    "objective, Gamma": (LINE, dp.ObjectivePerturbation(added=1e3), 0.0),
    "objective, Gaussian": (LINE, dp.ObjectivePerturbation("gaussian", added=1e5), 1e-6),
    "output, Gamma": (LINE, dp.OutputPerturbation(), 0.0),
    "output, Gaussian": (LINE, dp.OutputPerturbation("gaussian"), 1e-6),
    "clipped steps": (LINE, dp.NoisyGradientDescent(clip=0.5), 1e-6),
    "statistics, Gamma": (SQUARES, dp.SufficientStatistics("gamma"), 0.0),
    "statistics, Gaussian": (SQUARES, dp.SufficientStatistics(), 1e-6),
}


@pytest.mark.parametrize("name", CASES)
def test_two_visits_lose_what_is_claimed_and_more_where_the_unit_is_left_out(name):
    template, mechanism, delta = CASES[name]
    honest = dp.verify(template, visits(delta), 1000, mechanism)
    claimed = left(honest)[0]
    assert 0.99 * claimed <= loss_of_two_visits(honest, "add-remove") <= claimed * (1 + 1e-9)
    naive = dp.verify(template, dp.Privacy(1.0, delta, "add-remove"), 1000, mechanism)
    if name != "clipped steps":  # there each visit is clipped by itself, twice what a person's sum is clipped to
        assert loss_of_two_visits(naive, "add-remove") > 1.5 * left(naive)[0]
    else:
        twice = 2 * naive.clip * naive.steps**0.5 / naive.noise_scale
        assert profile_epsilon(twice, left(naive)[1]) > 1.5 * left(naive)[0]


@dataclass
class Person:
    """Records on the line of one person: slopes -y x sigma(-y x w), and their curvature."""

    x: np.ndarray
    y: np.ndarray
    weight: float = 1.0

    def slopes(self, w):
        s = expit(-np.outer(w, self.y * self.x))
        return tuple(self.weight * part.sum(axis=1) for part in (-s * self.y * self.x, s * (1 - s) * self.x**2))


def delta_of(certificate, first, second, pull, epsilon):
    """Integrate ``(f - e^epsilon f')_+`` for the laws of the perturbed answer, beside other records with a constant slope."""
    w = np.sinh(np.linspace(-9, 9, 100_001))
    mu, scale, logs = certificate.strong_convexity, certificate.noise_scale, []
    for person in (first, second):
        slope, bend = person.slopes(w)
        noise = -(slope + mu * w + pull)
        law = norm.logpdf(noise / scale) if certificate.is_gaussian else -np.abs(noise) / scale
        logs.append(law - np.log(scale * (1 if certificate.is_gaussian else 2)) + np.log(bend + mu))
    assert trapezoid(np.exp(logs[1]), w) == pytest.approx(1, abs=1e-3)
    delta = trapezoid(np.maximum(np.exp(logs[0]) - np.exp(epsilon + logs[1]), 0), w)
    return float(delta), float((logs[0] - logs[1]).max())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("keep", "most"), [(None, 2), (None, 3), ("weights", 3)])
@pytest.mark.parametrize("noise", ["gamma", "gaussian"])
def test_no_person_on_the_line_breaks_a_promise_whatever_the_labels(noise, keep, most, adjacency):
    delta, mechanism = 1e-3 if noise == "gaussian" else 0.0, dp.ObjectivePerturbation(noise, added=4.0)
    found = dp.verify(LINE, visits(delta, adjacency, most, keep, epsilon=1.5), 20, mechanism)
    claimed, lost = left(found)
    rng, worst, nobody = np.random.default_rng(0), 0.0, Person(np.zeros(0), np.zeros(0))
    for _ in range(15):
        people = []
        for count in rng.integers(1, most + 1, 2) if rng.random() < 0.5 else (most, most):
            x = np.ones(count) if rng.random() < 0.7 else rng.uniform(-1, 1, count)
            y = np.full(count, rng.choice([-1, 1])) if rng.random() < 0.6 else rng.choice([-1, 1], count)
            people.append(Person(x, y, 1 / count if keep == "weights" else 1.0))
        first, second = people if adjacency == "replace-one" else (people[0], nobody)
        for one, other in ((first, second), (second, first)):
            d, ratio = delta_of(found, one, other, rng.choice([-1, 0, 1]) * rng.uniform(0, 20), claimed)
            assert d <= lost + 1e-6 if noise == "gaussian" else ratio <= claimed * (1 + 1e-6)
            worst = max(worst, d / lost if noise == "gaussian" else ratio / claimed)
    if adjacency == "add-remove":  # slopes of opposite records on the line differ by less than their bounds allow
        assert worst > (0.05 if noise == "gaussian" else 0.5)


@pytest.mark.parametrize("problem", [LINE, dp.load("softmax_regression", features=3, classes=3)])
def test_curvature_of_a_persons_rows_adds_up_inside_of_one_determinant(problem):
    analysis, rng = analyse(problem), np.random.default_rng(1)
    for rows in (1, 2, 3, 6):
        for mu in (0.05, 1.0):
            claimed = analysis.log_det(mu, visits(most=rows).person)[0]
            assert claimed <= rows * analysis.log_det(mu)[0] * (1 + 1e-9)
            for _ in range(20):
                loss = BatchedLoss(problem, analysis.form.space, problem.record.sample(rows, rng))
                hessian = loss.hessian(rng.normal(size=analysis.form.space.dim) * rng.choice([0.1, 1.0, 5.0]))
                assert np.linalg.slogdet(np.eye(len(hessian)) + hessian / mu)[1] <= claimed * (1 + 1e-9)


# Sums of people that are clipped
@pytest.mark.parametrize("sparse", [False, True])
def test_sums_of_people_are_clipped_and_no_person_changes_what_another_adds(sparse, monkeypatch):
    template = dp.load("softmax_regression", features=4, classes=3)
    monkeypatch.setattr("dpconvex.sums.engine.WRITTEN", 2**12)  # several chunks
    form, rng = form_of(template), np.random.default_rng(3)
    x, y, people = dp.Ball(4).project(rng.normal(size=(700, 4))), rng.integers(0, 3, 700), rng.integers(0, 200, 700)
    x, theta = sp.csr_array(x) if sparse else x, rng.normal(size=form.space.dim)
    loss_of = lambda rows: BatchedLoss(template, form.space, template.record.validate({"x": x[rows], "y": y[rows]}))  # noqa: E731
    sums = lambda rows, clip: loss_of(rows).clipped_sums(theta, clip, people[rows])  # noqa: E731
    each = np.array([loss_of(np.flatnonzero(people == person)).gradient(theta) for person in np.unique(people)])
    clipped = each * np.minimum(1, 0.6 / np.linalg.norm(each, axis=1))[:, None]
    assert np.linalg.norm(each, axis=1).min() < 0.6 < np.linalg.norm(each, axis=1).max()
    assert sums(np.arange(700), 0.6) == pytest.approx(clipped.sum(axis=0), rel=1e-12, abs=1e-12)
    for person in (0, 17):  # to the last bit: of one person by itself, and beside a copy of somebody else
        own = np.flatnonzero(people == person)
        assert np.linalg.norm(sums(own, 0.6)) <= 0.6 * (1 + 1e-12)
        beside = rng.permutation(np.flatnonzero(people != person))
        both = sums(np.concatenate([beside[:300], own, beside[300:]]), 0.6) - sums(beside, 0.6)
        assert both == pytest.approx(sums(own, 0.6), abs=1e-13)


# Doors
@dataclass(frozen=True)
class Own:
    """A mechanism of somebody's own, which knows nothing of people."""

    def certify(self, analysis, privacy, size):
        return dp.OutputPerturbation().certify(analysis, privacy, size)

    def run(self, analysis, certificate, engine, rng):
        return engine.project(np.zeros(analysis.form.space.dim))


X, Y, IDS = np.linspace(-1, 1, 60)[:, None], np.repeat([-1, 1], 30), np.repeat(np.arange(30), 2)
DATA = {"x": X, "y": Y}


@pytest.mark.parametrize(
    "door",
    [
        lambda p: dp.tune([LINE], DATA, p),
        lambda p: dp.tune_repeated([LINE], DATA, p),
        lambda p: dp.sweep(LINE, DATA, [p]),
        lambda p: dp.calibrate(LINE, p, 100),
        lambda p: dp.evaluate(LINE, dp.solve_without_privacy(LINE, DATA), DATA, p),
        lambda p: dp.evaluate(LINE, dp.Release({"w": [0.5]}, spent=p, **functions_of(LINE)), DATA, dp.Privacy(1.0)),
        lambda p: dp.intervals(LINE, dp.Release({"w": [0.5]}, spent=p), DATA, dp.Privacy(9.0, 1e-6)),
        lambda p: dp.cluster(dp.Record(x=dp.Ball(1), y=dp.Choice([-1, 1])), DATA, p, 2),
        lambda p: dp.verify(LINE, p, 100, Own()),
        lambda p: dp.verify(LINE, visits(1e-6), 100, dp.NoisyGradientDescent(clip=0.3, sampling=0.1)),
        lambda p: dp.audit(LINE, p, size=100, runs=30),
        lambda p: dp.solve(LINE, DATA, p),
        lambda p: dp.solve(LINE, DATA, dp.Privacy(1.0), unit=IDS),
        lambda p: dp.LogisticRegression(unit="patient", most=2, radius=1.0).fit(X, Y),
        lambda p: dp.solve(LINE, DATA, p, unit=IDS[:-1]),
        lambda p: dp.solve(LINE, DATA, p, unit=[None, *IDS[1:]]),
        lambda p: dp.solve(LINE, DATA, p, unit=[decimal.Decimal("NaN") for _ in IDS]),
        lambda p: dp.solve(LINE, DATA, p, unit=np.array([complex("nan")] * len(IDS))),
        lambda p: dp.solve(LINE, DATA, p, unit=np.array([(1, np.nan)] * len(IDS), dtype="i8,f8")),
    ],
)
def test_every_door_honours_a_unit_or_refuses_it(door):
    with pytest.raises((NotPrivate, TemplateError, DomainError), match=r"unit|single records|several|identifier"):
        door(visits(adjacency="replace-one"))


@pytest.mark.parametrize("keep", [None, "weights"])
def test_more_records_than_promised_are_refused_before_payment_and_told_without_values(keep):
    budget = dp.Budget(visits(adjacency="replace-one"))
    with pytest.raises(DomainError, match="more than the declared 2") as told:
        dp.solve(LINE, DATA, visits(adjacency="replace-one", keep=keep), unit=[*IDS[:-1], 0], budget=budget)
    assert budget.entries == ()
    assert " 3 " not in str(told.value)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([2.0**53, 1.0]),
        np.array([2**24, 1], dtype=np.float32),
        [2**53 + 1, 2.0**53],
        *(pd.to_datetime([1, 2], unit="ns", utc=zone) for zone in (False, True)),
    ],
)
def test_identifiers_whose_digits_may_be_lost_are_refused(ids):
    """Two people would be one person, or, in two partitions of other types, one person two people."""
    refused(DomainError, "may have rounded different", dp.split, ids)
    schema = dp.Schema({"x": (0, 1)}, "y", ["no", "yes"], privacy_unit="who")
    parts = dp.Partitions([{"x": [0.5], "y": ["no"], "who": ids[k : k + 1]} for k in range(2)], schema)
    refused(DomainError, "may have rounded different", parts.identifiers)


@pytest.mark.parametrize("text", ["NA", " nan", "None", " "])
def test_people_of_whom_nothing_is_known_are_no_person(text):
    refused(DomainError, "have no identifier", dp.split, ["a", text, text])


@pytest.mark.parametrize(("keep", "size"), [("first", 50), ("random", 50), ("weights", 30)])
def test_records_are_cut_or_weighted_by_rules_that_depend_on_nobody_else(keep, size):
    ids = np.where(np.arange(60) < 12, 0, IDS) if keep != "weights" else IDS
    release = dp.solve(LINE, DATA, visits(adjacency="replace-one", keep=keep), unit=ids)
    assert (release.certificate.size, release.certificate.check().unreplayed) == (size, ())


def test_records_that_are_left_out_do_not_choose_what_is_released(monkeypatch):
    model, sizes = dp.LinearRegression(bounds=(-1, 1), delta=1e-6, unit="patient", keep="first", seed=0), []
    monkeypatch.setattr(dp.LinearRegression, "_ridge", lambda self, features, size: sizes.append(size) or 1 / 0)
    for more in (0, 50):  # of one patient
        with pytest.raises(ZeroDivisionError):
            model.fit(np.full((20 + more, 1), 0.1), np.zeros(20 + more), unit=[*range(20), *[0] * more])
    assert sizes == [20, 20]


def test_a_field_of_the_users_own_is_not_taken_for_the_weights():
    theta = cp.Variable(1, name="t")
    record = dp.Record(x=dp.Ball(1, radius=1.0), weight_of_a_record=dp.Box(0.0, 1.0))
    loss = lambda x, weight_of_a_record: cp.logistic(-(x @ theta))  # noqa: E731
    own = dp.Template(record, loss, cp.sum_squares(theta) / 2)
    refused(TemplateError, "give yours another name", dp.verify, own, visits(keep="weights", most=10), 500)


def test_records_of_a_person_in_several_partitions_are_added_up_but_not_clipped_apart():
    cut = [slice(0, 21), slice(21, 60)]  # through a person
    parts = dp.Partitions([{"x": X[s], "y": Y[s]} for s in cut])
    steps = dp.NoisyGradientDescent(clip=0.3)
    whole = [dp.solve(LINE, data, visits(), unit=IDS, size=60, seed=1)["w"] for data in (DATA, parts)]
    assert whole[0] == pytest.approx(whole[1], rel=1e-6)
    budget = dp.Budget(visits(1e-6))
    with pytest.raises(DomainError, match="several partitions"):
        dp.solve(LINE, parts, visits(1e-6), steps, unit=IDS, size=60, budget=budget)
    assert budget.entries == ()
    by_person = dp.Partitions([{"x": X[s], "y": Y[s]} for s in (slice(0, 20), slice(20, 60))])
    fits = [dp.solve(LINE, d, visits(1e-6), steps, unit=IDS, size=60, seed=1)["w"] for d in (DATA, by_person)]
    assert fits[0] == pytest.approx(fits[1], rel=1e-6)


def test_estimators_schemas_ledgers_and_files_know_the_unit(tmp_path):
    table = {"age": np.arange(60.0), "sick": ["no", "yes"] * 30, "id": IDS.tolist()}
    schema = dp.Schema({"age": (0, 100)}, label="sick", labels=["no", "yes"], privacy_unit="id", ignore=())
    x, y = schema.encode(table)
    assert (x.shape, schema.units(table).tolist()) == ((60, 1), IDS.tolist())
    assert dp.Schema.from_dict(schema.to_dict()) == schema
    options = {"epsilon": 2.0, "classes": ("no", "yes"), "adjacency": "replace-one"}
    ledger = tmp_path / "budget.jsonl"
    budget = dp.Budget(dp.Privacy(5.0, unit="patient", most=2), ledger)
    model = dp.LogisticRegression(unit="patient", most=2, budget=budget, **options).fit(x, y, unit=schema.units(table))
    promise = model.release_.spent
    assert (promise.unit, promise.most) == ("patient", 2)
    assert "of one patient, at most 2" in str(model.release_.certificate)
    model.save(tmp_path / "model.npz", schema)
    assert dp.Release.load(tmp_path / "model.npz").spent == promise
    assert dp.Budget.open(ledger).spent.epsilon == 2.0
    cutting = dp.Budget(dp.Privacy(5.0, unit="patient", most=2, keep="first"))
    refused(TemplateError, "any number", cutting.spend, promise, "who has more records is refused")
    cutting.spend(dp.Privacy(2.0, unit="patient", most=2, keep="random"), "who has more records is cut")
    refused(TemplateError, "unit is one patient", budget.spend, dp.Privacy(1.0), "a record")
    refused(TemplateError, "protects single records", dp.solve, LINE, dp.Partitions([table], schema), dp.Privacy(1.0))


# Proofs
def replayed(proof):
    try:
        return not check(json.dumps(proof).encode()).unreplayed
    except Rejected:
        return False


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("change", [{"most": 3}, {"keep": "weights"}, {"unit": None}, {"most": 10**5}])
def test_a_proof_is_replayed_and_one_for_fewer_records_is_not_taken_for_more(name, change):
    template, mechanism, delta = CASES[name]
    proof = json.loads(dp.verify(template, visits(delta), 1000, mechanism).proof)
    assert replayed(proof)
    proof["claim"]["privacy"] |= change
    if name == "clipped steps" and change == {"most": 3}:
        return  # a clip is a clip, of however many
    assert not replayed(proof)


# Groups
def test_groups_cost_what_the_noise_says():
    gaussian = dp.verify(LINE, dp.Privacy(1.0, 1e-6), 1000, dp.OutputPerturbation("gaussian"))
    shift, cover = gaussian.gaussian_level, gaussian.cover.epsilon
    for people in (2, 5):
        found, exact = gaussian.for_group(people), profile_epsilon(people * shift, 1e-6)
        assert exact <= found.epsilon <= exact + people * cover + 0.01
        assert found.delta == 1e-6
    assert gaussian.for_group(1) == gaussian.privacy
    assert dp.verify(LINE, dp.Privacy(1.0), 1000).for_group(3).epsilon == pytest.approx(3.0)
    steps = dp.NoisyGradientDescent(clip=0.3, sampling=0.1)
    plain = dp.verify(LINE, dp.Privacy(1.0, 1e-6, "add-remove"), 1000, steps)
    refused(NotPrivate, "so small a delta", plain.for_group, 2)
    assert plain.for_group(2, 4e-6).epsilon == pytest.approx(2.0)
    assert 0 < gaussian.for_group(5, 0.7).epsilon < 1e-9  # at so large a delta nothing is left to say
    sharp, long = Hull(1, 0.1, 1.0, (0.1,), (1.0,)), Hull(1, 2.0, 0.0, (2.0,), (1.0,))
    mixed = Perturbation(1.0, (sharp, long)).of_group(2)  # of one person of each kind, say
    assert {(hull.curvature, hull.length, hull.dimension) for hull in mixed.kinds} == {(2.0, 4.0, 2)}
    assert mixed.delta(2.5) >= max(Perturbation(1.0, (hull,)).of_group(2).delta(2.5) for hull in (sharp, long))
    normal = dp.ObjectivePerturbation("gaussian", added=50)
    perturbed = dp.verify(LINE, dp.Privacy(1.0, 1e-6, "add-remove"), 1000, normal)
    two = perturbed.for_group(2)
    pair = delta_of(perturbed, Person(np.ones(2), np.ones(2)), Person(np.zeros(0), np.zeros(0)), 0.0, two.epsilon)
    assert pair[0] <= 1e-6
    assert float(gaussian_delta(two.epsilon / 2, 2 / perturbed.noise_scale)) > 1e-6


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_the_audit_of_whole_people_comes_near_the_claim(name):
    template, mechanism, delta = CASES[name]
    found = dp.audit(template, visits(delta), mechanism, size=1000, effort=0.3, seed=0)
    assert found.holds
    part = found.attacks[0]
    assert part.found_epsilon >= 0.98 * part.epsilon or part.found_delta >= 0.9 * part.delta


def test_a_proof_that_takes_too_many_steps_is_neither_replayed_nor_false():
    privacy = dp.Privacy(5.0, 1e-4, unit="p", most=3, keep="weights")
    learner, sums = dp.load("ridge_regression", features=2), dp.SufficientStatistics(residuals=True)
    assert "too many steps" in str(dp.verify(learner, privacy, 1500, sums).check())
