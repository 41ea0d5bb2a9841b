"""Identifiers of people: what would make two of one is refused, before anything is paid."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import dpconvex as dp

DAY, NAMES = datetime(2020, 1, 1), {"a": 0, "b": 1, "c": 2}
NOW = datetime(
    2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")
)  # clocks go back: Python says that both zones differ
REFUSED = {
    r"all of one kind|must be numbers, texts or dates": [
        *([7, "7", "8"], ["a", b"a", "b"], [date(2020, 1, 1), DAY, date(2020, 1, 2)]),
        [DAY, DAY.replace(tzinfo=UTC), datetime(2020, 1, 2)],
        [type("Name", (str,), {"__hash__": object.__hash__})("a"), "a", "b"],
    ],
    "more records than": [[NOW, NOW.astimezone(UTC), NOW.replace(year=2023)]],
    r"unit.*(one identifier|one value per record)": [
        *([[1, 2], [3], [4]], [[1], [2], [3]], np.array(["a", "b", "c"])[:, None], set("abc"), NAMES.keys(), NAMES),
        *(iter("abc"), "abc", np.array(3), ["a", "b"], 7),
    ],
    "one number": [["7", "07", "8"]],
    "word.*two spellings in Unicode": [["caf\u00e9", "cafe\u0301", "bar"]],
}


@pytest.mark.parametrize(("said", "ids"), [(said, ids) for said, many in REFUSED.items() for ids in many])
def test_identifiers_are_one_for_each_record_and_of_one_kind(said, ids):
    data, budget = {"x": np.zeros((3, 2)), "y": np.ones(3, int)}, dp.Budget(dp.Privacy(1.0, unit="patient", most=1))
    with pytest.raises(dp.DomainError, match=said):
        dp.solve(dp.load("logistic_regression", features=2), data, budget.privacy, unit=ids, budget=budget)
    assert not budget.entries
