"""Random private fits, each of which must end in a release once it is paid for: ``python -m benchmarks.soak --fits 300``.

A case is made from its number alone: ``--first 17 --fits 1 --verbose`` repeats number 17.  A refusal with words before payment
is no failure.
"""

import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

import dpconvex as dp
from benchmarks import chosen, soak_sets
from benchmarks.soak_templates import drawn
from dpconvex.fitting.problem_files import options

LARGEST, FITS_OF_A_SET = 5000, 8
OWN, SETS = "own template", "set and cost"
# Problems that came later are drawn from this number on: before it, cases keep their numbers.
ALL = 10**9
LATER = {f"{kind}_regression" for kind in ("poisson", "negative_binomial", "gamma", "tweedie", "expectile", "probit")}
LATER |= {"expected_shortfall", "sparse_logistic", "sparse_regression"}
LATER |= {"discrete_hazards", "conditional_logit", "bradley_terry"}
DRAWN = {OWN: drawn, SETS: soak_sets.drawn}
MECHANISMS: list[Any] = [None, None, None, dp.ObjectivePerturbation(), dp.ObjectivePerturbation("gaussian")]
MECHANISMS += [dp.OutputPerturbation(), dp.OutputPerturbation("gaussian"), dp.NoisyGradientDescent()]
MECHANISMS += [dp.SufficientStatistics(), dp.SufficientStatistics("gaussian")]


@dataclass
class Case:
    """A fit: what is declared, and what lies in the data."""

    number: int
    learner: str
    settings: dict[str, Any]
    privacy: dp.Privacy
    mechanism: Any
    backend: Any
    records: int
    size: int | None
    data: str
    sparse: str

    def __str__(self) -> str:
        what = f"{self.learner}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"
        if self.learner in DRAWN:
            what = DRAWN[self.learner](**self.settings)[1]
        how = f"mechanism={self.mechanism!r}, backend={self.backend!r}, size={self.size}"
        data = f"{self.records} records, {self.data}, {self.sparse}"
        return f"number {self.number}: {what}, {self.privacy}, {how}; {data}"


def case(number: int, own: bool = False) -> tuple[Case, np.random.Generator]:
    """Return the case of a number; with `own`, of a template as users write them."""
    rng = np.random.default_rng(number)
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    # Additive models are logistic and linear regressions with other features: without them, cases keep their numbers.
    names = [name for name in dp.problems() if number >= ALL or name not in LATER]
    learner = pick([name for name in names if not name.startswith("additive")])
    known = options(learner)
    settings: dict[str, Any] = {"features": int(pick([1, 2, 3, 5, 8, 13]))}
    if learner == "kernel_svm":
        settings["components"] = int(pick([1, 5, 20]))
    if ("classes" in known and known["classes"].default != 2) or (
        known.get("labels") and known["labels"].default is None
    ):
        settings["classes"] = int(pick([2, 3, 4]))
    if rng.random() < 0.7:
        settings["regularization"] = float(pick([1e-8, 1e-6, 1e-4, 1e-2, 0.3, 10.0]))
    if "radius" in known and rng.random() < 0.15:
        settings["radius"] = float(pick([1e-3, 0.1, 7.0, 1e3]))
    adjacency = pick(["replace-one", "add-remove"])
    epsilon = float(f"{10 ** rng.uniform(-2, 2):.5g}")
    privacy = dp.Privacy(epsilon, float(pick([0.0, 1e-9, 1e-6, 1e-3])), adjacency)
    records = int(pick([1, 2, 3, 10, 55, int(rng.integers(1, LARGEST)), int(rng.integers(1, LARGEST))]))
    data = pick(["random", "random", "edge", "constant", "duplicated", "zeros", "one class"])
    backend = pick([None, None, "first-order", "conic"])
    if backend == "conic":  # which takes a minute for thousands of records with matrices
        records = min(records, 200)
    size = None
    if adjacency == "add-remove":
        size = max(1, int(records * pick([0.1, 1, 1, 1.3, 20])))
        if rng.random() < 0.1:
            data, records = "random", 0
    if own:
        learner, settings = OWN, {"seed": number}
    mechanism = pick(MECHANISMS)
    rng.integers(6)  # so that cases keep their numbers
    sparse = pick(["dense", "dense", "csr", "csr with zeros", "csc", "single"])
    return Case(number, learner, settings, privacy, mechanism, backend, records, size, data, sparse), rng


def case_of_sets(number: int) -> tuple[Case, np.random.Generator]:
    """Return the case of a number of a set and a cost that need a conic solver; so many numbers in turn share these."""
    rng, seed = np.random.default_rng([number, 1]), number // FITS_OF_A_SET
    privacy = dp.Privacy(float(f"{10 ** rng.uniform(-1, 1):.5g}"), float(rng.choice([0.0, 1e-6])))
    noise = "gamma" if privacy.pure or rng.random() < 0.3 else "gaussian"
    smooth = not soak_sets.drawn(seed)[1].startswith("pinball")
    mechanisms = [None, dp.OutputPerturbation(noise), dp.ObjectivePerturbation(noise if smooth else "gamma")]
    mechanism = mechanisms[int(rng.integers(3 if smooth else 2))]
    data = str(rng.choice(["random", "edge", "constant", "duplicated", "zeros", "one class"]))
    backend = "conic" if rng.random() < 0.1 else None
    records = int(rng.integers(20, 201))
    return Case(number, SETS, {"seed": seed}, privacy, mechanism, backend, records, None, data, "dense"), rng


def records_of(template: dp.Template, made: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Return valid records of the kind that a case asks for."""
    record, n = template.record, made.records
    batch = record.sample(n, rng)
    columns = {name: np.array(batch.fields[name]) for name in record.continuous}
    columns |= {name: record.values(batch, name) for name in record.discrete}
    if made.data == "random":  # within, not on the edge, and some of small size
        columns |= {name: columns[name] * rng.random() ** 2 for name in record.continuous if inside(record, name)}
    if made.data == "zeros":
        columns |= {name: columns[name] * 0 for name in record.continuous if inside(record, name)}
    if made.data == "constant":
        columns = {name: np.repeat(column[:1], n, axis=0) for name, column in columns.items()}
    if made.data == "duplicated":
        rows = np.arange(n) // 2
        columns = {name: column[rows] for name, column in columns.items()}
    if made.data == "one class":
        columns |= {name: np.repeat(columns[name][:1], n, axis=0) for name in record.discrete}
    columns |= {name: np.array(list(columns[name])) for name in record.discrete if n}
    for name in record.continuous:
        if columns[name].ndim == 2:
            columns[name] = stored(columns[name], made.sparse)
    return columns


def inside(record: dp.Record, name: str) -> bool:
    """Say whether a smaller multiple of a record is one, too."""
    return bool(record.continuous[name].excess(np.zeros((1, *record.continuous[name].shape)))[0] <= 0)


def stored(column: Any, how: str) -> Any:
    if how == "single":
        return column.astype(np.float32)
    if how == "csr with zeros":
        found = sp.csr_array(np.ones_like(column))
        found.data[:] = column.ravel()
        return found
    return {"csr": sp.csr_array, "csc": sp.csc_array}.get(how, np.asarray)(column)


def attempt(made: Case, rng: np.random.Generator, verbose: bool = False) -> str:
    """Fit; return "released", "refused" before payment, or what went wrong."""
    budget = dp.Budget(dp.Privacy(1e9, 0.999, made.privacy.adjacency))
    load, own = DRAWN.get(made.learner), made.settings
    fit: Any = dp.solve_mixture if "mixture" in made.learner and made.number % 2 else dp.solve
    try:
        template = load(**own)[0] if load else dp.load(made.learner, **own)
        data = records_of(template, made, rng)
        if fit is dp.solve_mixture:
            data.pop("m", None)
        how = {"size": made.size, "budget": budget, "clip": made.sparse == "single"}
        release = fit(template, data, made.privacy, made.mechanism, made.backend, **how)
        str(release), str(getattr(release, "release", release).certificate)
        return "released"
    except Exception as error:
        if verbose:
            traceback.print_exc()
        if not budget.entries and isinstance(error, dp.errors.DPConvexError):
            return "refused"
        where = traceback.extract_tb(error.__traceback__)[-1]
        paid = "paid, and failed" if budget.entries else "a raw error"
        return f"{paid}: {type(error).__name__}: {error} ({where.filename.rpartition('dpconvex/')[2]}:{where.lineno})"


def soak(
    first: int, fits: int, seconds: float, verbose: bool = False, own: bool = False, sets: bool = False
) -> tuple[dict[str, int], list[str]]:
    """Run cases from a number on until so many were paid for or the time is over; return counts and failures."""
    counts, failures, number = {"released": 0, "refused": 0, "failed": 0}, list[str](), first
    end = time.monotonic() + seconds
    while counts["released"] + counts["failed"] < fits and time.monotonic() < end:
        made, rng = case_of_sets(number) if sets else case(number, own)
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = attempt(made, rng, verbose)
        counts[outcome if outcome in counts else "failed"] += 1
        if outcome not in counts:
            failures.append(f"{made}\n    {outcome}")
            print(failures[-1], flush=True)
        if verbose:
            print(f"{made}: {outcome}", flush=True)
        if time.monotonic() - began > 20:
            print(f"slow, {time.monotonic() - began:.0f} s: {made}", flush=True)
        number += 1
    return counts | {"next": number}, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases; the exit status is 1 if one failed."""
    known: dict[str, Any] = {
        "--fits": (300, "paid fits"),
        "--seconds": 300.0,
        "--first": (0, "number of the first case"),
    }
    known |= {"--verbose": False, "--own": (False, "random templates in place of the shipped learners")}
    known |= {"--sets": (False, "random sets and costs of all scales, in their place")}
    given = chosen(__doc__, arguments, known, fits=3)
    counts, failures = soak(given.first, given.fits, given.seconds, given.verbose, given.own, given.sets)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
