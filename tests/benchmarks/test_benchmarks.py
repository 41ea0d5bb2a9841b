"""The benchmarks' table: what it shows with and without an accelerator."""

import numpy as np
import pytest

import dpconvex as dp
from benchmarks import __main__ as program, timing
from benchmarks.timing import Row

ROW = Row("case", "measured", 1.5, 1.0, "s", "ratio <= 2", True, compiled=0.25)


@pytest.mark.parametrize(("found", "named"), [("", "the processor, no GPU at hand"), ("Some GPU", "Some GPU")])
def test_compiled_functions_have_a_column_that_says_on_what(
    found: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (program, timing):
        monkeypatch.setattr(module, "accelerator", lambda: found)
    head, _, line = program.table([ROW]).splitlines()
    assert head.endswith(f"| reached | compiled ({named}) |")
    assert line == "| case | measured | 1.5 s | 1 s | 1.50 | ratio <= 2 | yes | 0.25 s |"
    assert f"cores, {found}{', ' if found else ''}Python" in program.machine()


def test_bounds_are_switched_off_and_on_again() -> None:
    from benchmarks.ablation import measured, present, row, switched

    switches = present()
    assert len(switches) >= 8  # the others are in the code no longer
    name = "joint logistic" if "joint logistic" in switches else next(iter(switches))

    def build() -> dp.Template:
        return dp.load("logistic_regression", features=2)

    before = {"logistic": measured(build)}
    with switched(switches[name]):
        after = {"logistic": measured(build)}
    assert after["logistic"]["default: noise"] >= before["logistic"]["default: noise"]
    assert measured(build)["default: noise"] == before["logistic"]["default: noise"]
    assert list(row(name, before, after))


def test_a_mutant_differs_in_one_place() -> None:
    from pathlib import Path

    from benchmarks.mutants import mutant

    source, what = mutant(Path(dp.__file__).parent / "calculus" / "curvature.py", np.random.default_rng(0)) or ("", "")
    assert source
    assert "->" in what
    compile(source, "mutant", "exec")
