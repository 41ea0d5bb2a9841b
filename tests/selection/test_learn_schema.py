"""Learnt schemas: what the counts tell of one person, what is refused, and that no value of a table makes them fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
from learnt_tables import PRIVACY, table_of, with_rows
from scipy.special import ndtr, ndtri

import dpconvex as dp
from dpconvex.accounting.events import Approximate, Gaussian, event_of
from dpconvex.mechanisms.noisy_queries import QueryNoise
from dpconvex.noise.gaussian import gaussian_delta, grid_loss
from dpconvex.selection import learn_schema as module


class Transcript:
    """Answers that one run drew and a second run gets, with the exact sums of both."""

    def __init__(self, monkeypatch):
        self.answers, self.asked, self.replaying, self.place = [], [], False, 0
        original = QueryNoise.drawn

        def drawn(noise, scale, sums):
            if self.replaying:
                answer, first, known = self.answers[self.place]
                assert known == scale  # nothing but earlier answers decides it
                self.place += 1
                self.asked.append((np.asarray(sums), first, scale))
                return answer
            answer = original(noise, scale, sums)
            self.answers.append((answer, np.asarray(sums), scale))
            return answer

        monkeypatch.setattr(QueryNoise, "drawn", drawn)

    def shift(self):
        """Return how far the two runs are apart, in deviations of a Gaussian mechanism."""
        apart = [(float(((one - two) ** 2).sum()), scale**2 - 9) for one, two, scale in self.asked]
        return math.sqrt(sum(square / variance for square, variance in apart))


PATIENTS, OF_FOUR = np.repeat(np.arange(1500), 4)[:6000], {"unit": "patient", "most": 4}
ODD = {"age": -1e9, "ward": "west", "day": "?", "weight": 0, "cost": 1e300}
FAR = {"age": 1e9, "ward": "west", "day": "1999-01-01", "weight": 1e-9, "cost": -5}
NEIGHBOURS = {
    "replace-one": (dp.Privacy(3.0, 1e-4), {7: ODD}, None),
    "missing": (dp.Privacy(3.0, 1e-4), {7: dict.fromkeys(ODD)}, None),
    "add-remove": (dp.Privacy(3.0, 1e-4, "add-remove"), {7: None}, None),
    "people": (dp.Privacy(3.0, 1e-4, **OF_FOUR), dict.fromkeys(range(4), FAR), PATIENTS),
    "people come and go": (dp.Privacy(3.0, 1e-4, "add-remove", **OF_FOUR), dict.fromkeys(range(4)), PATIENTS),
}


def shift_of(name, monkeypatch):
    privacy, changed, whose = NEIGHBOURS[name]
    table, transcript = table_of(6000), Transcript(monkeypatch)
    del table["name"]  # no level of which is common: see `test_rare_levels`
    gone = [k for k, row in changed.items() if row is None]
    options = {"label": "cost", "seed": 0}
    whose = None if whose is None else whose.tolist()
    schema = dp.learn_schema(table, privacy, unit=whose, **options)
    transcript.replaying = True
    others = None if whose is None else [person for k, person in enumerate(whose) if k not in gone]
    again = dp.learn_schema(with_rows(table, changed), privacy, unit=others, **options)
    assert again.features == schema.features
    assert again.label_bounds == schema.label_bounds
    assert again.learnt.columns == schema.learnt.columns
    assert again.ignore == schema.ignore
    parts = event_of(schema.learnt.event).parts
    return transcript.shift(), next(part.mu for part in parts if isinstance(part, Gaussian))


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_as_far_apart_as_the_event_says(name, monkeypatch):
    found, claimed = shift_of(name, monkeypatch)
    assert 0 < found <= claimed
    if name == "replace-one":  # which takes all of it, but for counts in which a record stays where it was
        assert found > 0.7 * claimed


ERRORS = {
    "replace-one": lambda weights, moved: (weights, moved / 2**0.5),  # as if no record left a cell
    "add-remove": lambda weights, moved: (2 * weights, moved),
    "people": lambda weights, moved: (weights - weights + 2**16, moved),  # each record weighs as much as a person
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_planted_error_in_the_sensitivity_is_found(name, monkeypatch):
    original = module.Counts
    planted = lambda noise, weights, moved, tail: original(noise, *ERRORS[name](weights, moved), tail)  # noqa: E731
    monkeypatch.setattr(module, "Counts", planted)
    found, claimed = shift_of(name, monkeypatch)
    assert found > claimed


def passes(runs, people=1):
    """Return how often the level that these people alone have is learnt."""
    privacy = dp.Privacy(1.0, 0.2)
    table = {"ward": ["east", "west"] * 60 + ["secret"] * people, "cost": [0.0] * (120 + people)}
    options = {"label": "cost", "label_bounds": (0, 1), "known": {"ward": "category"}}
    found = (dp.learn_schema(table, privacy, seed=seed, **options) for seed in range(runs))
    return sum("secret" in schema.features["ward"].levels for schema in found)


def test_rare_levels_pass_as_seldom_as_the_event_says(monkeypatch):
    table = {"a": ["x", "y"] * 500, "b": [0] * 1000}
    schema = dp.learn_schema(table, dp.Privacy(1.0, 0.2), label="b", label_bounds=(0, 1))
    *_, lost = event_of(schema.learnt.event).parts
    assert isinstance(lost, Approximate)
    assert (lost.epsilon, lost.delta) <= (0, 0.02)
    runs = 500
    most = runs * lost.delta
    assert passes(runs) <= most + 4 * math.sqrt(most)
    group = event_of(schema.learnt.event).of_group(3).parts[-1].delta  # the counts of a group add up
    assert 0.2 * 100 < passes(100, 3) <= 100 * group
    # Planted: the threshold forgets the record itself.
    monkeypatch.setattr(module, "ndtri", lambda tail: ndtri(tail) + 1.2)
    assert passes(runs) > most + 4 * math.sqrt(most)


def test_the_threshold_covers_the_law_on_the_integers():
    privacy = dp.Privacy(0.5, 1e-6, unit="patient", most=3)
    _, tail, shares, event = module.counting_plan(privacy, {"a": None, "b": "category"}, "b", None)
    lost = event.parts[-1].delta
    assert tail * 3 * 2 == pytest.approx(lost)
    assert lost <= 1e-7
    mu = event.parts[0].mu
    assert sum(shares.values()) + module.COUNTING == pytest.approx(1)
    assert gaussian_delta(0.5, mu) + grid_loss(0.5) + lost <= 1e-6


def test_noise_passes_for_a_number_in_one_column_of_ten_thousand():
    cells = 2 * module.OCTAVE, 2 * module.COMMON
    assert cells[0] * ndtr(-module.FAR) + cells[1] * ndtr(-module.SURE) < 1.1e-4


def test_stated_shares_hold():
    wrong, total = 0, 0
    for seed in range(5):
        table = table_of(6000, seed)
        schema = dp.learn_schema(table, PRIVACY, label="cost")
        for name, outside in schema.learnt.columns.items():
            column, values = {**schema.features, schema.label: schema.target}[name], table[name]
            if isinstance(column, dp.Categorical):
                share = np.mean([value not in column.levels for value in values])
            else:
                numbers = np.array([column.reads(value) for value in values])
                share = np.mean((numbers < column.ends[0]) | (numbers > column.ends[1]))
            wrong, total = wrong + (share > outside), total + 1
    assert wrong <= 0.05 * total


def test_bounds_end_at_zero_unless_records_lie_beyond():
    rng = np.random.default_rng(0)
    claims, below = np.where(rng.random(6000) < 0.7, 0.0, rng.gamma(2.0, 200.0, 6000)), rng.uniform(-0.4, 10.0, 6000)
    for seed in range(6):
        table, share = {"claims": claims, "below": below, "x": claims > 0}, dp.Privacy(1.0, 2e-6)
        schema = dp.learn_schema(table, share, label="claims", known={"below": "number"}, seed=seed)
        assert schema.label_bounds[0] == 0  # a log link fits what exceeds the lower bound
        column = schema.features["below"]
        outside = np.mean((below < column.lower) | (below > column.upper))
        assert outside <= schema.learnt.columns["below"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [5e-324, 1e-305, 1e305, 1.7e308])
def test_numbers_beyond_any_use_are_zeros_or_the_largest(scale):
    rng = np.random.default_rng(0)
    table = {"x": rng.choice([scale, -scale, 0.0], 5000), "z": rng.normal(size=5000), "y": rng.normal(size=5000)}
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="y")
    assert ("x" in schema.features) == (scale > 1)
    found = np.unique(schema.encode(table)[0][:, 0]) if scale > 1 else np.zeros(3)
    assert len(found) == 3 or scale < 1


def test_a_file_of_an_earlier_version_counts_rare_levels_in_groups_and_once_in_its_ledger():
    """Events had a failure of probability p for rare levels, which adds up to too little for groups of people."""
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="ward")
    *most, rare = schema.learnt.event["parts"]
    failure = {"kind": "tail", "probability": rare["delta"] / (1 + math.exp(PRIVACY.epsilon))}
    earlier = replace(schema.learnt, event={"kind": "composition", "parts": [*most, failure]})
    X, y = replace(schema, learnt=earlier).encode(table_of(4000))
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    budget.spend(PRIVACY, earlier.entry, event_of(earlier.event))
    model = dp.SoftmaxRegression(epsilon=1.0, delta=1e-6, classes=schema.labels, budget=budget).fit(X, y)
    assert len(budget.entries) == 2
    group = model.release_.certificate.whole[1].of_group(4)
    assert sum(part.delta for part in group.leaves() if isinstance(part, Approximate)) > 10 * failure["probability"]
