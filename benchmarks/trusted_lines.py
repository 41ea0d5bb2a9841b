"""How many lines have to be right for a certificate to be true: ``python -m benchmarks.trusted_lines`` (docs/architecture.md).

Whole files are counted, of which a line ran in a function.  Left out are files that only choose, search, compare, charge, speak
or check again: if one is wrong, a release is worse, refused or badly described, but as private as its certificate says.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, heading, row
from benchmarks.levels import words
from dpconvex.errors import DPConvexError
from dpconvex.fitting.problem_files import options

PACKAGE = Path(dp.__file__).parent
LEFT_OUT = words(
    "mechanisms/plans.py fitting/usual_steps.py mechanisms/added_quadratic.py optim/quasi_newton.py "
    "optim/proximal_newton.py optim/hessian_models.py sets/barrier.py model/template.py "
    "sums/translation.py accounting/budget.py accounting/file_ledger.py errors.py checker/ fitting/proof.py util/markup.py "
    "certificates/text.py fitting/fit_warnings.py __init__.py selection/evaluate.py selection/evaluation.py selection/measures.py"
)
# Adaptive steps get sums with noise through one door.  Any function of one record and of public numbers may be summed: files that
# read the loss, and what they and the steps call, are public.  What computes slopes, record by record, is counted.
DOOR = "sums/private_queries.py"
PUBLIC = words(
    "expressions/expansion.py optim/ sets/ sensitivity/ model/template.py fitting/problem_files.py sums/translation.py"
)
NOT_FOR_STEPS = words(  # that read it; that name answers, charge, refuse; that this fit did not ask for
    "expressions/expression.py expressions/atom.py expressions/expansion.py expressions/polynomial.py sums/forms.py "
    "expressions/parameter_space.py accounting/ util/arguments.py util/plain_data.py mechanisms/base.py "
    "data/partitions.py data/dask_columns.py data/schema.py data/encoded.py data/learnt.py model/people.py "
    "mechanisms/residual_noise.py fitting/engine.py fitting/files.py"
)
DELTA, ADDED = dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")


def traced(call: Callable[[], Any], public: tuple[str, ...] = (), door: str = "") -> dict[str, set[int]]:
    """Return the lines of the package that ran in functions, by file.

    Left out is what files of public computations call, but for what they call through one door to the records.
    """
    ran: dict[str, set[int]] = defaultdict(set)
    root = f"{PACKAGE}/"

    def inside(frame: FrameType | None) -> bool:
        while frame is not None and public:
            file = frame.f_code.co_filename.removeprefix(root)
            if file == door or file.startswith(public):
                return file == door
            frame = frame.f_back
        return True

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            ran[frame.f_code.co_filename[len(root) :]].add(frame.f_lineno)
        return local

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        own = frame.f_code.co_filename.startswith(root) and frame.f_code.co_flags & CO_OPTIMIZED  # no class nor module
        return local if own and inside(frame) else None

    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(None)
    return ran


def logistic(privacy: dp.Privacy, solved: bool) -> None:
    # Seeded: which methods a fit tries depends on its draw
    learner = dp.load("logistic_regression", features=3)
    if solved:
        dp.solve(learner, {"x": np.full((100, 3), 0.1), "y": [-1, 1] * 50}, privacy, seed=0)
    else:
        dp.verify(learner, privacy, size=100)


def adaptive() -> None:
    data = {"x": np.full((100, 3), 0.1), "y": [-1, 1] * 50}
    dp.solve(dp.load("logistic_regression", features=3), data, ADDED, dp.AdaptiveSteps(), size=100)


def all_problems() -> None:
    for name in dp.problems():
        for privacy in (dp.Privacy(1.0), DELTA):
            try:
                learner = dp.load(name, features=3, **({"classes": 3} if "classes" in options(name) else {}))
                batch = learner.record.sample(60, np.random.default_rng(0))
                fields = {field: np.asarray(batch.fields[field]) for field in learner.record.continuous}
                fields |= {field: list(learner.record.values(batch, field)) for field in learner.record.discrete}
                dp.solve(learner, fields, privacy, seed=0)
            except DPConvexError:
                continue


RUNS: dict[str, Callable[[], None]] = {
    "a certificate of logistic regression": lambda: logistic(dp.Privacy(1.0), False),
    "the same, and its release": lambda: logistic(dp.Privacy(1.0), True),
    "the same with delta = 1e-5: adaptive steps": adaptive,
    "certificates and releases of all problems, with and without delta": all_problems,
}


def traced_run(said: str) -> list[str]:
    """Trace one run; return its row, and the lines of each room."""
    steps = RUNS[said] is adaptive
    with warnings.catch_warnings(action="ignore"):
        ran, left_out = traced(RUNS[said], PUBLIC * steps, DOOR), LEFT_OUT + NOT_FOR_STEPS * steps
    counted = {file: len((PACKAGE / file).read_text().splitlines()) for file in ran}
    kept = {file: size for file, size in counted.items() if not file.startswith(left_out)}
    rooms: dict[str, int] = defaultdict(int)
    for file, size in kept.items():
        rooms[file.removesuffix(file.partition("/")[2])] += size
    sizes = ", ".join(f"`{room}` {size:,}" for room, size in sorted(rooms.items()))
    lines = f"{sum(kept.values()):,} of {sum(counted.values()):,}"
    return [said, f"{len(kept)} of {len(counted)}", lines, f"{sum(len(ran[file]) for file in kept):,}", sizes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace and print."""
    options = chosen(__doc__, arguments, {"--rows": (len(RUNS), "how many; the last one takes minutes")}, rows=1)
    heading("guarantee", "trusted files, of all files that ran", "lines of these files", "lines that ran")
    for said in list(RUNS)[: options.rows]:
        row(*(cells := traced_run(said))[:-1])
        print(f"    {cells[-1]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
