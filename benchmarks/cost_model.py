"""What a fit on many workers takes: ``python -m benchmarks.cost_model [--check] [--workers 2 4 8]``.

A pass over the records takes

    start  +  records' bytes / (threads * pace)  +  task * workers  +  part * partitions  +  hops * latency
           +  2 * workers * (8 p + message) / bandwidth,

the records' part at once by all threads of all workers, the others at the driver (docs/scale.md).  The constants
are measured here; with
`--check` passes are timed on a cluster behind a slow network (`benchmarks.slow_network`) and held against the formula.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, fewer
from benchmarks.slow_network import Link, cluster
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.batch_loss import BatchedLoss

__all__ = ["Constants", "measured", "pass_time"]

# One-way trips in a pass, one after the other: the parameters, the worker's word that it is done, the driver's demand for the
# sum, and the sum.
HOPS = 4
# So many partitions more show what one costs.
PARTS = 64
# Fits that the table predicts.
RECORDS, FEATURES, PASSES = 10**9, 100, 50
THREADS = ((10, 1), (100, 1), (1000, 1), (1008, 16))  # of all workers, and of one


@dataclass(frozen=True)
class Constants:
    """What one machine was measured to do.

    Attributes
    ----------
    pace : float
        Bytes of records that one thread goes through in a second, as they lie in memory.
    single : float
        Records that are stored in single precision: their bytes a second.
    task : float
        Seconds that a driver and its scheduler spend on one task, which is what a worker does in one pass.
    part : float
        Seconds that they spend on one partition more in a task.
    start : float
        Seconds of a pass, however little there is to do: what driver, scheduler and workers wait for each other.
    message : float
        Bytes that a task adds to the parameters, and its answer to the sum.
    """

    pace: float
    single: float
    task: float
    part: float
    start: float
    message: float = 3000.0


def pass_time(
    constants: Constants,
    link: Link,
    threads: int,
    workers: int,
    partitions: int,
    size: float,
    parameters: int,
    single: bool = False,
) -> float:
    """Predict the seconds of one value and gradient of records of so many bytes (in double precision)."""
    pace = 2 * constants.single if single else constants.pace
    wire = 2 * workers * (8 * parameters + constants.message) / link.bandwidth
    driver = constants.start + constants.task * workers + constants.part * partitions
    return driver + size / (threads * pace) + HOPS * link.latency + wire


def tree_pays(constants: Constants, link: Link) -> float:
    """Return from how many parameters on workers should add up among themselves.

    Each addition is a task more, and saves the driver one sum's way.
    """
    return constants.task * link.bandwidth / 8


def learner(features: int) -> dp.Template:
    """Logistic regression."""
    return dp.load("logistic_regression", features=features, regularization=1e-3)


def records(size: int, features: int, kind: Any = float) -> dict[str, Any]:
    """Random records of norm 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, features))
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    return {"x": x.astype(kind), "y": rng.choice([-1, 1], size=size)}


def passes(template: dp.Template, data: Any) -> Callable[[], Any]:
    """Return a function that goes through data once, which were checked."""
    space = Space(template.variables)
    loss = BatchedLoss(template, space, template.record.validate(data))
    theta = np.random.default_rng(1).normal(size=space.dim)
    return lambda: loss.value_and_gradient(theta)


def timed(function: Callable[[], Any], repetitions: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median time of calls after the first two."""
    found = []
    for _ in range(repetitions + 2):
        start = clock()
        function()
        found.append(clock() - start)
    return median(found[2:])


def partitioned(size: int, features: int, partitions: int) -> dp.Partitions:
    """Return records in partitions that the workers at hand make."""
    return dp.Partitions([partial(records, size // partitions, features) for _ in range(partitions)])


def over_network(
    workers: int,
    link: Link,
    partitions: int,
    size: int,
    features: int,
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time a pass over partitions on workers behind a link; the processors' clock counts driver and scheduler only."""
    with cluster(workers, link):
        return timed(passes(learner(features), partitioned(size, features, partitions)), repetitions, clock)


def measured(repetitions: int) -> Constants:
    """Measure the constants on this machine, most in processor time: what else runs here stretches it less."""
    count, features = fewer(400_000), 100

    def pace(kind: Any) -> float:
        data = records(count, features, kind)
        return data["x"].nbytes / timed(passes(learner(features), data), repetitions, time.process_time)

    few, many = (over_network(2, Link(), k, 64 * k, 2, repetitions, time.process_time) for k in (4, 4 + PARTS))
    task = part = max(many - few, 0.0) / PARTS  # each partition is a task of its own
    start = over_network(2, Link(), 4, 64 * 4, 2, repetitions) - 2 * task - 4 * part
    return Constants(pace(np.float64), pace(np.float32), task, part, start)


def check(constants: Constants, workers: list[int], repetitions: int) -> None:
    """Hold the formula against passes behind slow networks."""
    print("\n| workers | features | latency [ms] | bandwidth [MB/s] | measured [s] | predicted [s] | ratio |")
    print("|---" * 7 + "|")
    cores = os.cpu_count() or 1
    for count in workers:
        for link in (Link(), Link(0.02), Link(0.0, 4e6), Link(0.01, 4e6)):
            for features in (20, 10_000):
                size = 200 * count
                found = over_network(count, link, count, size, features, repetitions)
                busy = min(count, cores)
                guess = pass_time(constants, link, busy, count, count, 8.0 * size * features, features)
                wide = f"{link.bandwidth / 1e6:g}" if np.isfinite(link.bandwidth) else "all"
                cells = (f"{count}", f"{features:,}", f"{1e3 * link.latency:g}", wide)
                print(f"| {' | '.join(cells)} | {found:.3f} | {guess:.3f} | {found / guess:.2f} |", flush=True)


def prediction(constants: Constants, link: Link) -> None:
    """Print what a fit on a billion records should take."""
    size = 8.0 * RECORDS * FEATURES
    print(f"\n{RECORDS:,} x {FEATURES}, {PASSES} passes, {1e6 * link.latency:g} us, {link.bandwidth / 1e9:g} GB/s:\n")
    print(
        "| workers, threads of one, partitions | records [s] | tasks [s] | network and waiting [s] | fit [s] "
        "| in single precision [s] |"
    )
    print("|---" * 6 + "|")
    for threads, own in THREADS:
        workers = threads // own
        given = constants, link, threads, workers, threads, size, FEATURES
        whole, single = (PASSES * pass_time(*given, single=which) for which in (False, True))
        reading = PASSES * size / (threads * constants.pace)
        tasks = PASSES * (constants.task * workers + constants.part * threads)
        cells = (reading, tasks, whole - reading - tasks, whole, single)  # waiting counts as the network's
        print(f"| {workers:,}, {own}, {threads:,} | {' | '.join(f'{cell:.3g}' for cell in cells)} |")
    print(f"\nSums of pairs of workers pay from {tree_pays(constants, link):,.0f} parameters on.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, predict and, if asked, check."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=__doc__)
    parser.add_argument("--check", action="store_true", help="time passes behind slow networks")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8], help="of the clusters that are checked")
    parser.add_argument("--repetitions", type=int, default=7)
    options = chosen(parser, arguments, repetitions=1)
    constants = measured(options.repetitions)
    print(
        f"one worker goes through {constants.pace / 1e9:.2f} GB/s ({constants.single / 1e9:.2f} in single precision); "
        f"a task costs {1e3 * constants.task:.2f} ms, a partition more in it {1e3 * constants.part:.2f}, and a pass "
        f"{1e3 * constants.start:.0f} ms besides"
    )
    prediction(constants, Link(1e-4, 1.25e9))
    if options.check:
        check(constants, options.workers, options.repetitions)


if __name__ == "__main__":
    main()
