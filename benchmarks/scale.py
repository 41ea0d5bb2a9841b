"""Fits on a cluster of this machine's processes against one process that has all records in memory.

``python -m benchmarks.scale [--records 2000000] [--features 20] [--classes 2] [--pieces 16] [--folder FOLDER] [--kills 0]``

With two classes a logistic regression, with more large-margin Gaussians; Gaussian noise under a seed.  Records lie in .npy files
of `--folder`, where they are made if they are not there yet.  Each way to fit them runs in a process of its own, so that
memory is measured honestly: one with two threads and all records in memory, and a driver with two one-thread workers that read
the files.  With ``--kills 20``, a worker is killed in each of 20 small fits.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import chosen

PRIVACY = (1.0, 1e-6)
# Records that are made at once.
BLOCK = 100_000


def learner(features: int, classes: int) -> Any:
    """The template of the fits."""
    import dpconvex as dp

    if classes == 2:
        return dp.load("logistic_regression", features=features, regularization=1e-4)
    return dp.load("large_margin_gaussian", features=features, classes=classes)


def write(folder: Path, records: int, features: int, classes: int, pieces: int) -> None:
    """Make the files of all pieces, block by block."""
    folder.mkdir(parents=True, exist_ok=True)
    centres = np.random.default_rng(0).normal(size=(classes, features)) * 0.4 / np.sqrt(features)
    for number, (start, stop) in enumerate(edges(records, pieces)):
        paths = [folder / f"{name}{number}.npy" for name in "xy"]
        if all(path.exists() for path in paths):
            continue
        rng = np.random.default_rng([1, number])
        x = np.lib.format.open_memmap(paths[0], "w+", float, (stop - start, features))
        y = np.lib.format.open_memmap(paths[1], "w+", np.int8, (stop - start,))
        for first in range(0, stop - start, BLOCK):
            label = rng.integers(classes, size=min(BLOCK, stop - start - first))
            rows = rng.normal(size=(len(label), features)) * 0.5 / np.sqrt(features) + centres[label]
            x[first : first + BLOCK] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
            y[first : first + BLOCK] = 2 * label - 1 if classes == 2 else label
        x.flush()
        y.flush()


def edges(records: int, pieces: int) -> list[tuple[int, int]]:
    """Where pieces begin and end."""
    cuts = [round(k * records / pieces) for k in range(pieces + 1)]
    return list(pairwise(cuts))


def fitted(options: argparse.Namespace, data: Any, processors: Callable[[], list[float]]) -> dict[str, Any]:
    """Fit several times; returns the shortest time, what processors were busy then, and what was released."""
    import dpconvex as dp
    from dpconvex.optim.problem import Problem

    passes = [0]
    counted = Problem.smooth

    def smooth(self: Problem, theta: Any) -> Any:
        passes[0] += 1
        return counted(self, theta)

    times: list[tuple[float, list[float]]] = []
    release = None
    template, law = learner(options.features, options.classes), dp.ObjectivePerturbation("gaussian")
    for _ in range(options.repetitions):
        passes[0], busy, start = 0, processors(), time.perf_counter()
        with patch.object(Problem, "smooth", smooth):
            release = dp.solve(template, data, dp.Privacy(*PRIVACY), law, seed=1)
        seconds = time.perf_counter() - start
        times.append((seconds, np.subtract(processors(), busy).round(2).tolist()))
    assert release is not None
    parameters = {name: value.tolist() for name, value in release.items()}
    seconds, busy = min(times)
    return {"seconds": seconds, "busy": busy, "passes": passes[0], "parameters": parameters}


def in_memory(options: argparse.Namespace) -> dict[str, Any]:
    """One process, all records in memory."""
    columns = [[np.load(options.folder / f"{name}{k}.npy") for k in range(options.pieces)] for name in "xy"]
    x, y = (np.concatenate(columns.pop(0)) for _ in "xy")
    return {**fitted(options, {"x": x, "y": y}, lambda: [time.process_time()]), "driver": peak()}


def on_workers(options: argparse.Namespace) -> dict[str, Any]:
    """A driver, and workers that read files."""
    import dpconvex as dp

    pieces = [{name: options.folder / f"{name}{k}.npy" for name in "xy"} for k in range(options.pieces)]
    with cluster(options.workers, options.limit) as client:
        clock = time.process_time
        found = fitted(options, dp.Partitions(pieces), lambda: [clock(), *client.run(clock).values()])
        return {**found, "driver": peak(), "workers": list(client.run(peak).values())}


def cluster(workers: int, limit: str) -> Any:
    """Return a client of a new cluster of one-thread processes."""
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": size for name, size in KEPT.items()}):
        places = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        made = LocalCluster(workers, threads_per_worker=1, memory_limit=limit, **places)

    class Both(Client):  # type: ignore[misc]
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            made.close()

    return Both(made)


def peak() -> int:
    """Largest resident memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def killed(options: argparse.Namespace) -> dict[str, Any]:
    """Kill a worker, in another pass of each of some small fits."""
    import dpconvex as dp
    from dpconvex.data.workers import Workers

    pieces = [{name: options.folder / f"{name}{k}.npy" for name in "xy"} for k in range(options.pieces)]
    template, data, privacy = learner(options.features, options.classes), dp.Partitions(pieces), dp.Privacy(*PRIVACY)
    rounds, victims, waited = [0], dict[int, int](), Workers._gathered

    def gathered(self: Workers, *arguments: Any) -> Any:
        rounds[0] += 1
        if rounds[0] in victims:
            os.kill(victims.pop(rounds[0]), signal.SIGKILL)  # its tasks were sent, and some are done
        return waited(self, *arguments)

    Workers._gathered = gathered  # type: ignore[method-assign]
    same = spends = kills = fit = last = 0
    expected: Any = None
    while fit < options.kills:  # a nanny does not always manage to start a worker again
        with cluster(options.workers, options.limit) as client:
            while fit < options.kills:
                try:
                    client.wait_for_workers(options.workers, timeout=60)
                except TimeoutError:
                    break
                if expected is None:
                    expected, last = dp.solve(template, data, privacy, seed=1), rounds[0]
                rounds[0], budget = 0, dp.Budget(dp.Privacy(1e3, 0.1))
                victims[1 + fit * last // options.kills] = list(client.run(os.getpid).values())[fit % options.workers]
                release = dp.solve(template, data, privacy, seed=1, budget=budget)
                kills += not victims
                same += all((release[name] == expected[name]).all() for name in release)
                spends += len(budget.entries)
                fit += 1
                print(f"fit {fit}: {same} the same, {spends} spends, {kills} workers killed", file=sys.stderr)
    return {"fits": options.kills, "workers killed": kills, "same bits": same, "spends": spends}


# By default Dask's workers give memory back at once, and get it anew for every block (docs/scale.md).
KEPT = {"MALLOC_TRIM_THRESHOLD_": 2**28, "MALLOC_MMAP_THRESHOLD_": 2**25}
WAYS = {"memory": in_memory, "workers": on_workers, "kills": killed}


def measured(way: str, arguments: list[str], threads: int) -> dict[str, Any]:
    """Run one way in a process of its own."""
    known = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, "-m", "benchmarks.scale", *arguments, "--way", way]
    done = subprocess.run(command, env={**os.environ, **known}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    known: dict[str, Any] = {"--records": 2_000_000, "--features": 20, "--classes": 2, "--pieces": 16, "--workers": 2}
    known |= {"--repetitions": 2, "--kills": (0, "kill a worker in so many fits, and measure nothing else")}
    known |= {"--limit": ("1GB", "memory of a worker"), "--folder": {"type": Path, "default": Path("build/scale")}}
    way = {"--way": {"choices": WAYS, "help": "do only this, in this process"}}
    options = chosen(__doc__, arguments, known | way, records=4000, pieces=4, repetitions=1)
    passed = [f"{name}={vars(options)[name.removeprefix('--')]}" for name in known]
    options.folder = options.folder / f"{options.records}x{options.features}x{options.classes}in{options.pieces}"
    if options.way:
        print(json.dumps(WAYS[options.way](options)))
        return
    write(options.folder, options.records, options.features, options.classes, options.pieces)
    if options.kills:
        print(measured("kills", passed, 1))
        return
    memory, workers = measured("memory", passed, 2), measured("workers", passed, 1)
    pairs = ((value, workers["parameters"][name]) for name, value in memory["parameters"].items())
    apart = max(np.abs(np.subtract(*pair)).max() for pair in pairs)
    sizes = {name: vars(options)[name] for name in ("records", "features", "classes", "pieces")}
    print(", ".join(f"{count:,} {name}" for name, count in sizes.items()))
    for name, found in (("one process, in memory", memory), (f"{options.workers} workers, from files", workers)):
        times = f"{found['seconds']:.1f} s, {found['passes']} evaluations, processors {found['busy']} s"
        print(f"{name}: {times}, peak MB {[found['driver'], *found.get('workers', [])]}")
    print(f"ratio {workers['seconds'] / memory['seconds']:.2f}; releases differ by {apart:.1e}")


if __name__ == "__main__":
    main()
