"""Golden files are complete, and comparing with them finds what should be found and nothing else."""

from collections.abc import Iterator
from typing import Any

import golden_files
import pytest
from golden_cases import CASES
from golden_files import CALIBRATED, compare, load, names

GALLERY = [name for name in names() if name.startswith(golden_files.CERTIFICATES)]
SETS = [name for name in names() if name not in GALLERY and name != "draws"]


def floats(golden: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (group, name) of every number of every group."""
    for name, value in golden.items():
        if isinstance(value, dict):
            yield from floats(value)
        elif isinstance(value, float):
            yield golden, name


@pytest.mark.parametrize("name", SETS)
def test_a_file_holds_its_cases(name: str) -> None:
    golden = load(name)
    assert list(golden) == golden_files.expected(name)
    for case in CASES:
        if case.golden == name:
            assert set(golden[case.name]) == {"minimum", *(fit.name for fit in case.fits)}


@pytest.mark.parametrize("name", GALLERY)
def test_a_constant_that_moves_by_a_millionth_is_found(name: str) -> None:
    golden = load(name)
    checked = 0
    for group, constant in floats(golden):
        value = group[constant]
        given = group.get("given", False) or not group.get("added")
        if value == 0 or (not given and constant in {"added", *CALIBRATED}):
            continue
        if constant in ("jacobian_epsilon", "derivation_logarithms") and abs(value) < 0.1:
            continue  # a difference, or a sum, that happens to be small; what it is made of is compared
        group[constant] = value * (1 + 1e-6)
        moved = list(compare(load(name), golden))
        group[constant] = value
        assert [change.new for change in moved] == [value * (1 + 1e-6)], f"{constant} = {value}"
        checked += 1
    assert checked > 50
