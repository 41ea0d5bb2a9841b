"""Partitions on the workers of a Dask cluster: what is asked goes out, and what comes back is as small as a sum.

Neighbours are read by one task, whose result its worker holds; if the worker is lost, Dask computes it again elsewhere, and it
passes the same check.  Errors come back as results, because Dask writes exceptions into its logs, and those of a check name
values of records.  Names of tasks are random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.language.batch import Batch
from dpconvex.language.dask_sources import Source
from dpconvex.language.places import Check, unchanged, unreadable, within

# After so many seconds without a result it is asked whether any workers are left; and so many times.
PATIENCE, TIMES = 10.0, 3
# A task that failed for want of a file or a connection is tried so many times more.
RETRIES = 2
# Neighbouring partitions are read together so that there are so many tasks for each thread at most.
TASKS = 4


@dataclass(frozen=True)
class Bundle:
    """Neighbouring partitions that one task reads: number of the first, and what was seen of each, if it must stay so."""

    task: Any
    first: int
    seen: Sequence[tuple[int, int] | None]


# What workers do


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a result, or the error instead of it."""
    from distributed.protocol import pickle

    try:
        return function(*arguments)
    except Exception as error:
        if isinstance(error.__cause__, OSError):
            raise  # may pass: Dask tries again
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            kind = type(error).__name__
            return DomainError(f"a partition cannot be read: {kind}, which its worker cannot send.")
        return error


def result(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def called(first: int, function: Callable[[Any], Any], sources: Sequence[Any]) -> list[Any]:
    """Call a function with what each partition is before it was read."""
    return [within(number, function, source) for number, source in enumerate(sources, first)]


def seen_of(parts: Any) -> list[tuple[int, int]]:
    return [part.seen for part in result(parts)]


def applied(
    parts: Any,
    first: int,
    seen: Sequence[tuple[int, int] | None],
    function: Callable[..., Any],
    shared: Any,
    own: Mapping[int, tuple[Any, ...]],
) -> dict[int, Any]:
    """Call a function with partitions, which must be as they were."""
    found = {}
    for number, (part, known) in enumerate(zip(result(parts), seen, strict=True), first):
        if number in own:
            found[number] = within(number, function, unchanged(part, number, known), shared, *own[number])
    return found


def changed(*arguments: Any) -> list[Batch]:
    return list(applied(*arguments).values())


# What the client asks


class Workers:
    """Partitions with the workers of a cluster, in bundles of neighbours."""

    def __init__(self, client: Any, bundles: Sequence[Bundle] = ()) -> None:
        self.client, self.bundles = client, bundles

    def asked(self, function: Callable[[Any], int], sources: Sequence[Source]) -> list[int]:
        tasks = {bundle.first: bundle.task for bundle in self._bundles(function, sources)}
        return [int(number) for found in self._results(tasks) for number in found]

    def read(self, sources: Sequence[Source], check: Check, keep: bool | None) -> tuple[Workers, list[int]]:
        bundles = self._bundles(check, sources)
        if keep is not False:
            threads = [address for address, count in sorted(self._threads().items()) for _ in range(count)]
            for k, bundle in enumerate(bundles):  # spread evenly; Dask knows better where it made something
                place = (
                    threads[k * len(threads) // len(bundles)] if threads and not sources[bundle.first].lazy else None
                )
                bundles[k] = Bundle(self._started(bundle.task, place), bundle.first, ())
        found = self._results({bundle.first: task(seen_of, bundle.task) for bundle in bundles})
        bundles = [Bundle(bundle.task, bundle.first, seen) for bundle, seen in zip(bundles, found, strict=True)]
        return Workers(self.client, bundles), [seen[0] for bundle in bundles for seen in bundle.seen if seen]

    def share(self, value: Any) -> Any:
        """Return a future of an object, unpacked once in each process; the payload is kept, for workers that are lost."""
        from distributed.protocol import pickle

        with reachable():
            return self.client.submit(pickle.loads, pickle.dumps(value), key=name("shared"), pure=False)

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        tasks = {}
        for bundle in self.bundles:
            mine = {k: own[k] for k in range(bundle.first, bundle.first + len(bundle.seen)) if k in own}
            if mine:
                tasks[min(mine)] = task(applied, bundle.task, bundle.first, bundle.seen, function, shared, mine)
        for found in self._results(tasks):
            yield from found.items()

    def mapped(self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]]) -> Workers:
        made = []
        for old in self.bundles:
            mine = {k: own[k] for k in range(old.first, old.first + len(old.seen))}
            new = task(changed, old.task, old.first, old.seen, function, shared, mine)
            new = new if hasattr(old.task, "compute") else self._started(new)  # is kept if that one is
            made.append(Bundle(new, old.first, [None] * len(old.seen)))
        return Workers(self.client, made)

    def _bundles(self, function: Callable[..., Any], sources: Sequence[Source]) -> list[Bundle]:
        """Return tasks, not started yet, that call a function with neighbouring partitions."""
        step, shared = -(-len(sources) // (TASKS * max(sum(self._threads().values()), 1))), self.share(function)
        values = [source.value for source in sources]
        return [Bundle(task(called, k, shared, values[k : k + step]), k, ()) for k in range(0, len(values), step)]

    def _threads(self) -> dict[str, int]:
        with reachable():
            return dict(self.client.nthreads())

    def _started(self, tasks: Any, place: str | None = None) -> Any:
        options = {} if place is None else {"workers": [place], "allow_other_workers": True}
        with reachable():
            return self.client.compute(tasks, retries=RETRIES, **options)

    def _results(self, tasks: Mapping[int, Any]) -> Iterator[Any]:
        """Yield what tasks return, each of which begins with some partition."""
        with reachable():
            outcomes = self._gathered(self._started(list(tasks.values())), list(tasks))
        yield from map(result, outcomes)

    def _gathered(self, tasks: list[Any], numbers: Sequence[int]) -> list[Any]:
        """Wait for tasks, as long as there is anybody to do them."""
        from distributed import wait

        lonely = 0
        while lonely < TIMES:
            try:
                wait(tasks, timeout=PATIENCE)
            except TimeoutError:
                lonely = 0 if self.client.scheduler_info()["workers"] else lonely + 1
                continue
            for number, future in zip(numbers, tasks, strict=True):
                error = future.exception(timeout=PATIENCE) if future.status == "error" else None
                if error is not None and not of_cluster(error):
                    raise error if isinstance(error, DPConvexError) else unreadable(number, error) from error
            return list(self.client.gather(tasks))
        raise RuntimeError("there are no workers left")


def task(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a task that is not started yet."""
    from dask.delayed import delayed

    return delayed(outcome, pure=False)(function, *arguments, dask_key_name=name(function.__name__))


def name(what: str) -> str:
    """Return a name for a task, of which dashboards show the beginning."""
    return f"dpconvex-{what}-{uuid4().hex}"


def of_cluster(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("distributed", "tornado")


@contextmanager
def reachable() -> Iterator[None]:
    """Context in which the cluster is asked: whatever fails is that there is nobody to answer."""
    try:
        yield
    except DPConvexError:
        raise
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else "no reason given"
        raise WorkersLost(
            f"the partitions cannot be summed up on their workers ({type(error).__name__}: {said}); nothing is released, and "
            "what was paid stays paid. Look after the scheduler and its workers, and solve again."
        ) from error


def workers() -> Workers | None:
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return Workers(default_client())
    except ValueError:
        return None
