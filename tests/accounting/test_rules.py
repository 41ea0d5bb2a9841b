"""Ledgers that add up events: they hold more than sums of promises do, never too much, and are what they were when read again."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from dpconvex.accounting.events import Approximate, Composition, Event, Gaussian, Pure, Tail
from dpconvex.accounting.totals import SPARE, Amount, Entry, converted, rule_of
from dpconvex.errors import BudgetExceeded, DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.noise.profiles import gaussian_delta, gaussian_sigma, profile_epsilon
from dpconvex.release.budget import Budget

TOTAL = Privacy(1.0, 1e-6)
SIGMA = gaussian_sigma(1.0, 1e-6, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def release(mu: float) -> tuple[Privacy, str, Event]:
    """A Gaussian release, promised at a tenth of the total's delta."""
    return Privacy(profile_epsilon(mu, 1e-7), 1e-7), "gauss", Gaussian(mu)


@pytest.mark.parametrize(("rule", "most"), [("gaussian", 1.02), ("renyi", 1.1)])
def test_ten_gaussian_releases_fit_at_the_root_of_ten_times_the_noise(rule: str, most: float) -> None:
    budget = Budget(TOTAL, accounting=rule)
    assert budget.accounting == rule
    spend = release(1 / (most * math.sqrt(10) * SIGMA))
    for _ in range(10):
        budget.spend(*spend)
    assert 0.95 < budget.spent.epsilon <= 1.0
    assert budget.spent.delta == 1e-6
    assert budget.remaining.epsilon < 0.5
    with pytest.raises(BudgetExceeded, match=rf"is left under {rule} accounting"):
        budget.spend(*spend)
    assert len(budget.entries) == 10
    plain = Budget(TOTAL)
    for _ in range(3):
        plain.spend(*spend)
    with pytest.raises(BudgetExceeded):
        plain.spend(*spend)


def test_ledgers_of_events_outlive_their_process(path: Path) -> None:
    event = Composition((Gaussian(0.05), Pure(0.001), Tail(1e-30)))
    Budget(TOTAL, path, "renyi").spend(Privacy(0.3, 1e-7), "a", event)
    for again in (Budget.open(path), Budget(TOTAL, path), Budget(TOTAL, path, "renyi")):
        assert again.accounting == "renyi"
        assert again.entries == (Entry("a", Privacy(0.3, 1e-7), event),)
    for other in ("basic", "gaussian"):
        with pytest.raises(TemplateError, match=r"accounting is 'renyi'.*cannot be changed"):
            Budget(TOTAL, path, other)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0]["accounting"] == "renyi"
    assert lines[1]["event"]["kind"] == "composition"


def test_a_ledger_from_before_there_were_events_reads_the_same(path: Path) -> None:
    path.write_text(
        '{"ledger": "dpconvex", "version": 1, "epsilon": 1.0, "delta": 1e-06, "adjacency": "add-remove"}\n'
        '{"label": "a", "epsilon": 0.25, "delta": 1e-07}\n'
        '{"label": "b", "epsilon": 0.5, "delta": 0.0}\n',
        encoding="utf-8",
    )
    budget = Budget.open(path)
    assert budget.accounting == "basic"
    assert budget.spent == Amount(0.75, 1e-7)
    assert budget.remaining == Amount(0.25, 9e-7)
    assert [item.known for item in budget.entries] == [Approximate(0.25, 1e-7), Pure(0.5)]
    budget.spend(Privacy(0.25, 9e-7, "add-remove"), "c", Gaussian(0.05))
    assert budget.remaining == Amount(0.0, 0.0)
    fresh = Budget(Privacy(1.0, 1e-6), path.with_name("fresh"))
    assert json.loads(fresh.path.read_text("utf-8")).keys() == {"ledger", "version", "epsilon", "delta", "adjacency"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "event", ['{"kind": "magic"}', '{"kind": "gaussian", "mu": -1}', "3", '{"kind": "gaussian", "mu": NaN}']
)
def test_an_event_that_is_not_known_is_no_spend(event: str, path: Path) -> None:
    Budget(TOTAL, path, "gaussian")
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f'{{"label": "a", "epsilon": 0.1, "delta": 0.0, "event": {event}}}\n')
    with pytest.raises(DPConvexError, match="line 2: not a spend"):
        Budget.open(path)


def test_a_ledger_that_exceeds_its_total_is_refused(path: Path) -> None:
    budget = Budget(TOTAL, path, "gaussian")
    budget.spend(*release(0.2))
    line = path.read_text("utf-8").splitlines()[1]
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(DPConvexError, match="exceed its total"):
        Budget.open(path)


def test_promises_without_events_count_in_full_under_every_rule() -> None:
    """A release of which only (epsilon, delta) is known loses its delta, and no more than a tenth of the total may be lost."""
    budget = Budget(TOTAL, accounting="gaussian")
    with pytest.raises(BudgetExceeded):
        budget.spend(Privacy(0.1, 2e-7), "unknown")
    budget.spend(Privacy(0.1, 9e-8), "unknown")
    with pytest.raises(BudgetExceeded):
        budget.spend(Privacy(0.01, 2e-8), "unknown")


events = st.one_of(
    st.builds(Gaussian, st.floats(0.0, 0.15)),
    st.builds(Pure, st.floats(1e-6, 0.3)),
    st.builds(Approximate, st.floats(1e-6, 0.2), st.floats(0.0, 6e-8)),
    st.builds(Tail, st.floats(0.0, 1e-9)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(events, max_size=12), st.sampled_from(["gaussian", "renyi"]))
def test_what_is_accepted_is_private_by_the_theorem_of_its_rule(spends: list[Event], name: str) -> None:
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
        order = rule_of(name, TOTAL).order  # type: ignore[attr-defined]
        divergence, lost = Composition(tuple(accepted)).renyi(order)
        assert divergence + converted(order, (1 - SPARE) * 1e-6) <= 1.0
        delta = (1 - SPARE) * 1e-6
    assert delta + lost + tails <= 1e-6


@pytest.mark.parametrize("accounting", ["gaussian", "renyi"])
def test_what_is_left_is_nothing_where_no_fit_has_room_for_its_tail(accounting: str) -> None:
    fit = Composition((Gaussian(0.01), Tail(2.0**-100)))
    for epsilon, most in ((40.0, 40), (50.0, 24), (53.0, 1), (60.0, 0)):  # a tail takes 2^-100 exp(epsilon) of 1e-7
        budget, count = Budget(Privacy(epsilon, 1e-6), accounting=accounting), 0
        while budget.remaining.epsilon > 0 and count < 40:
            budget.spend(Privacy(0.1, 1e-8), "fit", fit)
            count += 1
        assert count == most
        if count < 40:
            with pytest.raises(BudgetExceeded, match=r"epsilon = 0 is left .* noise beyond its cap counts"):
                budget.spend(Privacy(0.1, 1e-8), "fit", fit)
