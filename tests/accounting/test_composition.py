"""What releases cost together: events against exact densities, totals, and ledgers that add up events."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refused import refused
from scipy.signal import fftconvolve

from dpconvex.accounting.budget import Budget
from dpconvex.accounting.composition import SPARE, best_total, rdp_term, rule_of, totals
from dpconvex.accounting.events import Approximate, Composition, Gaussian, Hull, Perturbation, Pure, Tail, event_of
from dpconvex.errors import BudgetExceeded, TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import gaussian_delta, gaussian_sigma, profile_epsilon

TOTAL = Privacy(1.0, 1e-6)
SIGMA = gaussian_sigma(1.0, 1e-6, 1.0)


def release(mu):
    """A Gaussian release, promised at a tenth of the total's delta."""
    return Privacy(profile_epsilon(mu, 1e-7), 1e-7), "gauss", Gaussian(mu)


@pytest.mark.parametrize(("rule", "most"), [("gaussian", 1.02), ("renyi", 1.1)])
def test_ten_gaussian_releases_fit_at_the_root_of_ten_times_the_noise(rule, most):
    budget = Budget(TOTAL, accounting=rule)
    assert budget.accounting == rule
    spend = release(1 / (most * math.sqrt(10) * SIGMA))
    for _ in range(10):
        budget.spend(*spend)
    assert 0.95 < budget.spent.epsilon <= 1.0
    assert budget.spent.delta == 1e-6
    assert budget.remaining.epsilon < 0.5
    refused(BudgetExceeded, rf"is left under {rule} accounting", budget.spend, *spend)
    assert len(budget.entries) == 10


def test_ledgers_of_events_outlive_their_process(path):
    event = Composition((Gaussian(0.05), Pure(0.001), Tail(1e-30)))
    Budget(TOTAL, path, "renyi").spend(Privacy(0.3, 1e-7), "a", event)
    for again in (Budget.open(path), Budget(TOTAL, path), Budget(TOTAL, path, "renyi")):
        assert again.accounting == "renyi"
        assert [(item.label, item.privacy, item.event) for item in again.entries] == [("a", Privacy(0.3, 1e-7), event)]
    for other in ("basic", "gaussian"):
        refused(TemplateError, r"accounting is 'renyi'.*cannot be changed", Budget, TOTAL, path, other)
    for total, asked in ((3.0, 1.0), (1e-3, 9e-4)):
        with pytest.raises(BudgetExceeded, match=r"Ask for an epsilon of .* or less, or .*='basic'") as said:
            Budget(Privacy(total, 1e-5), accounting="gaussian").spend(Privacy(asked), "pure", Pure(asked))
        most = float(str(said.value).partition("an epsilon of ")[2].partition(" ")[0])
        Budget(Privacy(total, 1e-5), accounting="gaussian").spend(Privacy(most), "pure", Pure(most))
        spend = Budget(Privacy(total, 1e-5), accounting="gaussian").spend
        refused(BudgetExceeded, "or less", spend, Privacy(1.01 * most), "pure")
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0]["accounting"] == "renyi"
    assert lines[1]["event"]["kind"] == "composition"


events = st.one_of(
    *(st.builds(Gaussian, st.floats(0.0, 0.15)), st.builds(Pure, st.floats(1e-6, 0.3))),
    *(st.builds(Approximate, st.floats(1e-6, 0.2), st.floats(0.0, 6e-8)), st.builds(Tail, st.floats(0.0, 1e-9))),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(events, max_size=12), st.sampled_from(["gaussian", "renyi"]))
def test_what_is_accepted_is_private_by_the_theorem_of_its_rule(spends, name):
    budget, before = Budget(TOTAL, accounting=name), 0.0
    for event in spends:
        try:
            budget.spend(Privacy(0.5, 1e-7), "x", event)
        except BudgetExceeded:
            continue
        assert before * (1 - 1e-9) <= budget.spent.epsilon <= 1.0
        before = budget.spent.epsilon
    accepted = [item.known for item in budget.entries]
    tails = (1 + math.e) * sum(item.probability for item in accepted if isinstance(item, Tail))
    if name == "gaussian":
        mu, lost = Composition(tuple(accepted)).level() if accepted else (0.0, 0.0)
        delta = float(gaussian_delta(1.0, max(mu, 1e-9)))
    else:
        order = rule_of(name, TOTAL).order
        divergence, lost = Composition(tuple(accepted)).renyi(order)
        assert divergence + rdp_term(order, (1 - SPARE) * 1e-6) <= 1.0
        delta = (1 - SPARE) * 1e-6
    assert delta + lost + tails <= 1e-6


@pytest.mark.parametrize("accounting", ["gaussian", "renyi"])
def test_what_is_left_is_nothing_where_no_fit_has_room_for_its_tail(accounting):
    fit = Composition((Gaussian(0.01), Tail(2.0**-100)))
    for epsilon, most in ((40.0, 40), (50.0, 24), (53.0, 1)):  # a tail takes 2^-100 exp(epsilon) of 1e-7
        budget, count = Budget(Privacy(epsilon, 1e-6), accounting=accounting), 0
        while budget.remaining.epsilon > 0 and count < 40:
            budget.spend(Privacy(0.1, 1e-8), "fit", fit)
            count += 1
        assert count == most
        if count < 40:
            refused(BudgetExceeded, "epsilon = 0 is left .* truncation", budget.spend, Privacy(0.1, 1e-8), "fit", fit)
    for epsilon in (60.0, 1e40):
        refused(TemplateError, "no room for a fit", Budget, Privacy(epsilon, 1e-6), accounting=accounting)


def logistic(sigma, mu):
    step = 1 / sigma
    hull = Hull(1, step, math.log1p(0.25 / mu), (step,), (1.0,), (step, 0.0, 0.0, 1 / mu), (0.0,))
    return Perturbation(sigma, (hull,))


def union(sigma, vertices, curvature=0.0):
    lengths = (1 / sigma, 2 / sigma)
    return Perturbation(sigma, (Hull(2, 2 / sigma, curvature, lengths, (float(vertices - 1), 1.0)),))


def replaced(sigma):
    """A hinge takes the place of another, and a logistic record that of a steep one."""
    step = 1 / sigma
    hinge = Hull(2, 2 * step, 0.3, (step, 2 * step), (2.0, 1.0), (step, 0.0, 0.0, 0.0), (0.0, step))
    logistic = Hull(2, 2 * step, 0.2, (step, 2 * step), (1.0, 1.0), (step, 0.0, 0.0, 0.5), (step,))
    return Perturbation(sigma, (hinge, logistic))


EVENTS = [
    *(Pure(0.3), Approximate(0.2, 1e-8), Gaussian(0.4), logistic(5.0, 2.0), union(8.0, 3, 0.05), replaced(12.0)),
    *(Tail(1e-30), Composition((Gaussian(0.1), Composition((Pure(0.01), Tail(1e-30)))))),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_survives_json(event):
    again = event_of(json.loads(json.dumps(event.to_dict())))
    assert again == event
    assert hash(again) == hash(event)
    assert str(event)


def nested(depth):
    event = {"kind": "pure", "epsilon": 1.0}
    for _ in range(depth):
        event = {"kind": "composition", "parts": [event]}
    return event


HULL = {"dimension": 1, "length": 1, "curvature": 0, **dict.fromkeys(("lengths", "counts", "slopes", "behind"))}
BAD_HULLS = [
    *({"dimension": -1}, {"dimension": 1.5}, {"slopes": [1]}, {"lengths": [1], "counts": []}, {"lengths": [1]}),
    *({"lengths": [[1]], "counts": [1]}, {"more": 1}),
]
NONE = [
    *(3, {}, {"kind": "magic"}, {"kind": ["pure"]}, {"kind": "pure"}, {"kind": "pure", "epsilon": 1, "more": 2}),
    *({"kind": "pure", "epsilon": epsilon} for epsilon in (-1, math.nan, "1", True)),
    *({"kind": "gaussian", "mu": math.inf}, {"kind": "approximate", "epsilon": 1, "delta": 1.5}, nested(20_000)),
    *({"kind": "composition", "parts": parts} for parts in ([3], 3, [])),
    *({"kind": "objective perturbation", "sigma": 1, "kinds": kinds} for kinds in ({}, [{"dimension": 1}])),
    *({"kind": "objective perturbation", "sigma": 1, "kinds": [{**HULL, **bad}]} for bad in BAD_HULLS),
]


@pytest.mark.parametrize("values", NONE, ids=range(len(NONE)))
def test_what_is_no_event_is_refused(values):
    refused(TemplateError, None, event_of, values)


# Exact losses in one dimension.
class Exact:
    """Objective perturbation of one logistic record in one dimension, next to records that shift the answer."""

    def __init__(self, sigma, mu, shift=0.0, appears=True):
        # The negative noise that leads to an answer without the record.
        t = np.linspace(-14 * sigma - 3, 14 * sigma + 3, 400_001)
        slope, without = 1 / (1 + np.exp(-t / mu - shift)), -(t**2) / (2 * sigma**2) + math.log(mu)
        with_it = -((t + slope) ** 2) / (2 * sigma**2) + np.log(mu + slope * (1 - slope))
        scale = math.log((t[1] - t[0]) / mu / (sigma * math.sqrt(2 * math.pi)))
        first, second = (with_it, without) if appears else (without, with_it)
        self.p, self.loss = np.exp(first + scale), first - second

    def on_grid(self, step, width):
        """Losses rounded down to a grid: what is found so is never more than the truth."""
        at = np.clip(np.floor(self.loss / step).astype(int), -width, width)
        return np.bincount(at + width, self.p, 2 * width + 1)

    def renyi(self, order):
        return float(np.log((self.p * np.exp((order - 1) * self.loss)).sum()) / (order - 1))


CASES = [(13.4, 40.7, 0.0), (13.4, 40.7, 9.0), (4.0, 2.0, 0.0), (4.0, 2.0, 20.0), (2.0, 0.5, 3.0)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sigma", "mu", "shift"), CASES)
def test_no_exact_composition_in_one_dimension_costs_more_than_its_events(sigma, mu, shift):
    event, count = logistic(sigma, mu), 5
    epsilon, width, true = count**0.5 * 2.5 / sigma, 20_000, 0.0
    step = epsilon / 4000
    losses = step * np.arange(-count * width, count * width + 1)
    for appears in (True, False):
        several = single = Exact(sigma, mu, shift, appears).on_grid(step, width)
        for _ in range(count - 1):
            several = np.maximum(fftconvolve(several, single), 0.0)
        true = max(true, float((several * -np.expm1(np.minimum(epsilon - losses, 0.0))).sum()) - 1e-12)
    assert true > 1e-6
    claims = totals([Privacy(50.0)] * count, [event] * count, true)
    assert {item.rule for item in claims} >= {"Rényi", "Gaussian"}
    for item in claims:
        assert item.epsilon >= epsilon * (1 - 1e-3), item  # losses were rounded down by a step each
    if shift > 8.0 and mu > 40.0:
        assert claims[0].epsilon <= 1.08 * epsilon  # where the slope is 1 wherever the answer may be, little is lost


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sigma", "mu", "shift"), CASES)
@pytest.mark.parametrize("order", [1.5, 4.0, 20.0])
def test_renyi_divergences_bound_those_of_exact_densities(sigma, mu, shift, order):
    bound, lost = logistic(sigma, mu).renyi(order)
    assert lost < 1e-29
    for appears in (True, False):
        assert Exact(sigma, mu, shift, appears).renyi(order) <= bound
    plain = math.log1p(0.25 / mu) + math.log1p(math.exp(order * (order - 1) / (2 * sigma**2))) / (order - 1)
    assert bound <= plain  # the closed form of one vertex and 0, with all of the curvature


@pytest.mark.parametrize("event", [*EVENTS[:5], logistic(13.4, 40.7)], ids=str)
def test_the_gaussian_of_an_event_is_above_its_profile_everywhere(event):
    profile = event.profile()
    level, lost = profile.level, profile.lost
    x, y = profile.curve
    losses = np.linspace(-1.0, 1.0, 401) * min(float(np.log(x[-1])), 5.0)
    claimed = np.interp(np.exp(losses), x, y)
    gauss = np.array([float(gaussian_delta(float(loss), level)) for loss in losses])
    assert (gauss + lost >= claimed * (1 - 1e-9) - 1e-12).all()
    for order in (1.5, 5.0, 30.0):
        assert profile.renyi(order) <= order * level**2 / 2 * (1 + 1e-9) + 1e-9


# Totals.
def test_randomised_responses_compose_as_they_are_known_to():
    """The losses of k of them are (2j - k) epsilon with binomial weights: Kairouz, Oh & Viswanath 2015."""
    count, epsilon, delta = 30, 0.1, 1e-6
    p = 1 / (1 + math.exp(-epsilon))
    weights = [math.comb(count, j) * p**j * (1 - p) ** (count - j) for j in range(count + 1)]

    def exact(target):
        losses = [(2 * j - count) * epsilon for j in range(count + 1)]
        return sum(w * max(-math.expm1(target - loss), 0.0) for w, loss in zip(weights, losses, strict=True))

    total = best_total([Privacy(epsilon)] * count, [Pure(epsilon)] * count, delta)
    assert total.rule == "convolution"
    assert exact(total.epsilon) <= delta <= exact(total.epsilon * 0.98)


def test_noise_beyond_its_cap_and_what_is_lost_are_paid_from_delta():
    own, gauss = [Privacy(2.0, 1e-9)] * 5, [Gaussian(0.2)] * 5
    further = [], [Tail(1e-8)], [Approximate(1e-9, 5e-7)]
    plain, tails, lossy = (best_total(own, [*gauss, *more], 1e-6).epsilon for more in further)
    assert plain < min(tails, lossy)
    assert tails == pytest.approx(profile_epsilon(math.sqrt(0.2), 1e-6 - (1 + math.exp(tails)) * 1e-8), rel=2e-2)
    spent = [Privacy(2.0, 1e-5)], [Approximate(0.1, 1e-5)], 1e-6
    assert totals(*spent) == []
    assert best_total(*spent).epsilon == math.inf


EXTREMES = [
    *(Pure(value) for value in (5e-324, 1e-300, 1e-9, 50.0, 299.0, 301.0, 1e5, 1e300)),
    *(Gaussian(value) for value in (0.0, 1e-300, 1e-9, 30.0, 1e4, 1e200)),
    *(Approximate(value, 1e-12) for value in (1e-300, 400.0)),
    *(Tail(0.5), logistic(1e-3, 1e-3), logistic(1e6, 1e6), union(1e-2, 3, 500.0), union(1e6, 3, 1e-9)),
    *(replaced(1e-3), replaced(1e6), Perturbation(1.0, ())),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("event", EXTREMES, ids=str)
def test_extreme_events_have_totals_or_none(event):
    own = Privacy(1e9, 1e-7)
    for item in totals([own] * 3, [event, event, Gaussian(0.1)], 1e-6):
        assert 0 <= item.epsilon < math.inf
    assert event.level()[0] >= 0
    assert event.renyi(2.0)[0] >= 0
    if isinstance(event, Pure) and event.epsilon <= 299:
        assert gaussian_delta(0.0, event.level()[0]) >= math.tanh(event.epsilon / 2) * (1 - 1e-12)
        assert event.renyi(512.0)[0] <= event.epsilon + 1e-12
