"""Golden files are complete, and comparing with them finds a constant that moved by a millionth."""

from typing import Any

import golden_files
import pytest
from golden_cases import CASES
from golden_files import CALIBRATED, compare, load


@pytest.mark.parametrize("name", sorted({case.golden for case in CASES}))
def test_a_file_holds_its_cases(name: str) -> None:
    golden = load(name)
    assert list(golden) == golden_files.expected(name)
    for case in CASES:
        if case.golden == name:
            assert set(golden[case.name]) == {"minimum", *(fit.name for fit in case.fits)}


def test_a_constant_that_moves_by_a_millionth_is_found() -> None:
    golden: dict[str, Any] = load(golden_files.CERTIFICATES + "large_margin_gaussian")
    checked = 0
    for group in golden.values():
        given = group.get("given", False) or not group.get("added")
        for constant, value in group.items():
            if isinstance(value, float) and abs(value) > 0.1 and (given or constant not in {"added", *CALIBRATED}):
                moved = list(compare({"": group}, {"": group | {constant: value * (1 + 1e-6)}}))
                assert [change.new for change in moved] == [value * (1 + 1e-6)], f"{constant} = {value}"
                checked += 1
    assert checked > 50
