"""The benchmarks' table: what it shows with and without an accelerator."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as program, cases
from benchmarks.data import clouds, problem_of
from benchmarks.timing import Row, compare

ROW = Row("case", "measured", 1.5, 1.0, "s", "ratio <= 2", True, accelerated=0.25)


def test_without_an_accelerator_there_is_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "accelerator", lambda: "")
    assert program.table([ROW]).splitlines()[-1] == "| case | measured | 1.5 s | 1 s | 1.50 | ratio <= 2 | yes |"
    assert "cores, Python" in program.machine()


def test_an_accelerator_has_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (program, cases):
        monkeypatch.setattr(module, "accelerator", lambda: "Some GPU")
    head, _, line = program.table([ROW]).splitlines()
    assert head.endswith("| reached | Some GPU |")
    assert line.endswith("| yes | 0.25 s |")
    assert "cores, Some GPU, Python" in program.machine()
    problem = problem_of(cases.summed(features=2, classes=2), clouds(40, 2, 2))
    found = cases.on_accelerator(problem, 1)
    assert found is not None
    assert found > 0
    value, gradient = cases.evaluation(problem, "device")()
    other = cases.evaluation(problem)()
    assert value == pytest.approx(other[0])
    assert gradient == pytest.approx(other[1])


def test_medians_of_turns() -> None:
    calls: list[str] = []
    found = compare({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert set(found) == {"a", "b"}
    assert calls == ["a", "b"] * 4
