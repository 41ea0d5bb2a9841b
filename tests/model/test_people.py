"""Identifiers of people: what would make two of one is refused, before anything is paid."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.errors import DomainError


@pytest.mark.parametrize(
    "ids",
    [
        [7, "7", "8"],
        ["a", b"a", "b"],
        [date(2020, 1, 1), datetime(2020, 1, 1), date(2020, 1, 2)],
        [datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2)],
        [type("Name", (str,), {"__hash__": object.__hash__})("a"), "a", "b"],
    ],
)
def test_identifiers_of_different_kinds_would_make_two_people_of_one(ids):
    data, budget = {"x": np.zeros((3, 2)), "y": np.ones(3, int)}, dp.Budget(dp.Privacy(1.0, unit="patient", most=1))
    with pytest.raises(DomainError, match=r"all of one kind|must be numbers, texts or dates"):
        dp.solve(dp.load("logistic_regression", features=2), data, budget.privacy, unit=ids, budget=budget)
    assert not budget.entries


def test_one_time_in_two_zones_is_one_person():
    now = datetime(
        2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")
    )  # clocks go back: Python says that these differ
    data, privacy = {"x": np.zeros((2, 2)), "y": np.ones(2, int)}, dp.Privacy(1.0, unit="patient", most=1)
    with pytest.raises(DomainError, match="more records than"):
        dp.solve(dp.load("logistic_regression", features=2), data, privacy, unit=[now, now.astimezone(UTC)])


@pytest.mark.parametrize(
    "ids",
    [
        [[1, 2], [3], [4]],
        [[1], [2], [3]],
        np.array(["a", "b", "c"])[:, None],
        {"a", "b", "c"},
        {"a": 0, "b": 1, "c": 2}.keys(),
        {"a": 0, "b": 1, "c": 2},
        iter("abc"),
        "abc",
        np.array(3),
        ["a", "b"],
        7,
    ],
    ids=["ragged", "nested", "column", "set", "keys", "mapping", "iterator", "text", "scalar", "short", "number"],
)
def test_identifiers_are_one_for_each_record_in_their_order(ids):
    data, budget = {"x": np.zeros((3, 2)), "y": np.ones(3, int)}, dp.Budget(dp.Privacy(1.0, unit="patient", most=1))
    with pytest.raises(DomainError, match=r"unit.*(one identifier|one value per record)"):
        dp.solve(dp.load("logistic_regression", features=2), data, budget.privacy, unit=ids, budget=budget)
    assert not budget.entries


@pytest.mark.parametrize(
    ("ids", "said"),
    [(("7", "07", "8"), "one number"), (("caf\u00e9", "cafe\u0301", "bar"), "word.*two spellings in Unicode")],
)
def test_a_person_who_is_spelled_in_two_ways_is_refused_in_words_that_say_so(ids, said):
    data, privacy = {"x": np.zeros((3, 2)), "y": np.ones(3, int)}, dp.Privacy(1.0, unit="patient", most=1)
    with pytest.raises(DomainError, match=said):
        dp.solve(dp.load("logistic_regression", features=2), data, privacy, unit=list(ids))
