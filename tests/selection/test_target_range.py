"""Pure fits whose targets lie in a small part of their bounds: the range is chosen privately, and paid for."""

import json

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.accounting.events import Pure
from dpconvex.checker import Rejected, check
from dpconvex.selection import target_range
from dpconvex.selection.target_range import CELLS, RangePlan

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(500, 5)) / np.sqrt(5)
Y = 5 + 2 * X[:, 0] + RNG.normal(scale=0.5, size=500)


def test_a_pure_ridge_with_wide_bounds_is_better_than_a_constant():
    budget = dp.Budget(dp.Privacy(1.0))
    model = dp.Ridge(epsilon=1.0, bounds=(0, 60), seed=2, budget=budget).fit(X, Y)
    assert np.mean((model.predict(X) - Y) ** 2) < 0.9 * Y.var()
    certificate = model.release_.certificate
    assert (certificate.privacy, budget.spent.epsilon) == (dp.Privacy(1.0), 1.0)
    assert model.certificate(5, 500) == certificate
    paid = certificate.settings["epsilon_of_the_range"]
    assert Pure(paid) in certificate.event.leaves()
    assert sum(leaf.epsilon for leaf in certificate.event.leaves() if isinstance(leaf, Pure)) == pytest.approx(1.0)
    assert any("range" in fact or "moved" in fact for fact in certificate.check().trusted)
    forged = json.loads(certificate.proof)
    forged["claim"]["settings"]["epsilon_of_the_range"] = float(1.01 * paid).hex()
    with pytest.raises(Rejected, match="is left"):
        check(json.dumps(forged).encode())


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_one_person_moves_no_mistake_farther_than_the_choice_allows(adjacency, monkeypatch):
    rng, seen = np.random.default_rng(1), []
    unit = {"unit": "person", "most": 3}
    plan = RangePlan(dp.Privacy(1.0, 0.0, adjacency, **unit), 60, 0.5)

    def taken(mistakes, epsilon, adjacency, rng):
        seen.append(np.array(mistakes, dtype=float))
        return 1000 % len(mistakes)

    monkeypatch.setattr(target_range, "select", taken)
    for _ in range(6):
        places = rng.integers(0, CELLS, 60) if rng.random() < 0.5 else rng.choice([3, 1000, 1001], 60)
        other = places[3:] if adjacency == "add-remove" else np.r_[rng.choice([0, CELLS - 1], 3), places[3:]]
        for data in (places, other):
            plan.chosen(np.bincount(data, minlength=CELLS), None)
    for middle, width, moved_middle, moved_width in zip(*(seen[k::4] for k in range(4)), strict=True):
        bound = 0.5 if adjacency == "add-remove" else 1.0
        assert np.abs(middle - moved_middle).max() <= bound + 1e-9
        change = width - moved_width
        assert (change >= -1e-9).all() or adjacency == "replace-one"
        assert np.abs(change).max() <= 1 + 1e-9
