"""Partitions on the workers of a Dask cluster: what is asked goes out, and what comes back is as small as a sum.

Neighbours are read by one task, whose result its worker holds; if the worker is lost, Dask computes it again elsewhere, and it
passes the same check.  Errors come back as results, because Dask writes exceptions into its logs, and those of a check name
values of records.  Names of tasks are random.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from sys import getsizeof
from typing import Any
from uuid import uuid4

from dpconvex.core.summation import Tree
from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.language.batch import Batch
from dpconvex.language.dask_sources import Lazy
from dpconvex.language.places import Check, Seen, unchanged, unreadable, within

# After so many seconds without a result it is asked whether any workers are left; and so many times.
PATIENCE, TIMES = 10.0, 3
# Results that are fetched at once.
TOGETHER = 16
# A task that failed for want of a file or a connection is tried so many times more.
RETRIES = 2
# Neighbouring partitions are read together so that there are so many tasks for each thread at most.
TASKS = 4


class Shared:
    """An object that many tasks need: unpacked once in each process."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self.payload,)

    @cached_property
    def value(self) -> Any:
        return pickle.loads(self.payload)


class Outcome:
    """What a task returned, or why it did not; nothing of it is shown."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self.error = value, error

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(getsizeof, self._value if isinstance(self._value, list) else ()))

    @property
    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value


def outcome(function: Callable[..., Any], *arguments: Any) -> Outcome:
    from distributed.protocol import pickle

    try:
        return Outcome(function(*arguments))
    except OSError:
        raise  # may pass: Dask tries again
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            kind = type(error).__name__
            return Outcome(error=DomainError(f"a partition cannot be read: {kind}, which its worker cannot send."))
        return Outcome(error=error)


@dataclass(frozen=True)
class Bundle:
    """Neighbouring partitions that one task has read: number of the first, and what was seen of each."""

    future: Any
    number: int
    seen: tuple[Seen, ...]

    def asked(self, own: Mapping[int, tuple[Any, ...]]) -> Asked:
        """Return number, what was seen, and arguments of each partition; no arguments for those that are not asked."""
        return [(k, seen, own.get(k)) for k, seen in enumerate(self.seen, self.number)]


Asked = list[tuple[int, Seen, tuple[Any, ...] | None]]


def called(sources: Sequence[Any], function: Shared, first: int) -> list[Any]:
    """Call a function with what each partition is before it was read."""
    return [within(number, function.value, source) for number, source in enumerate(sources, first)]


def seen_of(parts: Outcome) -> tuple[Seen, ...]:
    return tuple((part.size, part.fingerprint) for part in parts.value)


def applied(
    parts: Outcome, function: Callable[..., Any], shared: Shared, asked: Asked, pairs: dict[int, tuple[int, int]]
) -> dict[int, Any]:
    """Call a function with each partition, which must be as it was; neighbours in the order of a tree are added up."""
    total = Tree.of(pairs)
    for (number, seen, own), part in zip(asked, parts.value, strict=True):
        if own is not None:
            found = within(number, function, unchanged(part, number, seen), shared.value, *own)
            if found is None and pairs:
                return {number: None}
            total.add(number, found)
    return total.waiting


def changed(parts: Outcome, function: Callable[..., Any], shared: Shared, asked: Asked) -> list[Batch]:
    return list(applied(parts, function, shared, asked, {}).values())


class Workers:
    """Partitions with the workers of a cluster, in bundles of neighbours."""

    def __init__(self, client: Any, bundles: Sequence[Bundle] = ()) -> None:
        self.client, self.bundles = client, bundles

    def asked(self, function: Callable[[Any], int], sources: Sequence[Any]) -> list[int]:
        tasks = [self._started(part) for part, _ in self._called(function, sources)]
        return [int(number) for _, found in self._results(tasks, range(len(tasks))) for number in found]

    def read(self, sources: Sequence[Any], check: Check, keep: bool | None) -> tuple[Workers, list[int]]:
        parts, firsts = zip(*self._called(check, sources), strict=True)
        if keep is not False:
            threads = [address for address, number in sorted(self._threads().items()) for _ in range(number)]
            where = [threads[k * len(threads) // len(parts)] if threads else "" for k in range(len(parts))]
            # Dask knows better where it made something.
            where = ["" if isinstance(sources[k], Lazy) else to for k, to in zip(firsts, where, strict=True)]
            parts = tuple(self._started(part, to) for part, to in zip(parts, where, strict=True))
        found = self._results([self._task(seen_of, part) for part in parts], firsts)
        bundles = [Bundle(part, first, seen) for part, (first, seen) in zip(parts, found, strict=True)]
        return Workers(self.client, bundles), [size for bundle in bundles for size, _ in bundle.seen]

    def share(self, value: Any) -> Any:
        import cloudpickle

        with reachable():
            return self.client.submit(Shared, cloudpickle.dumps(value), key=name("shared"), pure=False)

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]], tree: Tree | None = None
    ) -> Iterator[tuple[int, Any]]:
        tasks, numbers = [], []
        for bundle in self.bundles:
            asked = bundle.asked(own)
            known = [number for number, _, given in asked if given is not None]
            if known:
                pairs = tree.below(known) if tree else {}
                tasks.append(self._task(applied, bundle.future, function, shared, asked, pairs))
                numbers.append(known[0])
        for _, found in self._results(tasks, numbers):
            yield from found.items()

    def mapped(
        self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]], sizes: Sequence[int]
    ) -> Workers:
        made = []
        for old in self.bundles:
            numbers = range(old.number, old.number + len(old.seen))
            new = self._delayed(changed, old.future, function, shared, old.asked({k: own[k] for k in numbers}))
            new = self._started(new) if is_future(old.future) else new
            made.append(Bundle(new, old.number, tuple((sizes[k], None) for k in numbers)))
        return Workers(self.client, made)

    def _threads(self) -> dict[str, int]:
        with reachable():
            return dict(self.client.nthreads())

    def _called(self, function: Callable[..., Any], sources: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return tasks that call a function with neighbouring partitions, not started yet, and the first of each."""
        step = -(-len(sources) // (TASKS * max(sum(self._threads().values()), 1)))
        given = [source.value if isinstance(source, Lazy) else source for source in sources]
        cuts, shared = [*range(0, len(sources), step), len(sources)], self.share(function)
        return [(self._delayed(called, given[a:b], shared, a), a) for a, b in pairwise(cuts)]

    def _delayed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from dask.delayed import delayed

        return delayed(outcome, pure=False)(function, *arguments, dask_key_name=name(function.__name__))

    def _started(self, task: Any, address: str = "") -> Any:
        options = {"workers": [address], "allow_other_workers": True} if address else {}
        with reachable():
            return self.client.compute(task, retries=RETRIES, **options)

    def _task(self, function: Callable[..., Any], first: Any, *arguments: Any) -> Any:
        if not is_future(first):
            return self._started(self._delayed(function, first, *arguments))
        options = {"key": name(function.__name__), "pure": False, "retries": RETRIES}
        with reachable():
            return self.client.submit(outcome, function, first, *arguments, **options)

    def _results(self, tasks: list[Any], numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the number of the first partition of each task, and what the task returned."""
        for start in range(0, len(tasks), TOGETHER):
            some = slice(start, start + TOGETHER)
            with reachable():
                outcomes = self._gathered(tasks[some], numbers[some])
            for number, found in zip(numbers[some], outcomes, strict=True):
                try:
                    value = found.value
                except DPConvexError:
                    raise
                except Exception as error:
                    error.add_note(f"in partition {getattr(error, 'partition', number)}, on its worker")
                    raise
                yield number, value

    def _gathered(self, tasks: list[Any], numbers: Sequence[int]) -> list[Outcome]:
        """Wait for the tasks of some partitions, as long as there is anybody to do them."""
        from distributed import wait

        lonely = 0
        while lonely < TIMES:
            try:
                wait(tasks, timeout=PATIENCE)
            except TimeoutError:
                lonely = 0 if self.client.scheduler_info()["workers"] else lonely + 1
                continue
            for number, task in zip(numbers, tasks, strict=True):
                if task.status == "error" and not of_cluster(error := task.exception(timeout=PATIENCE)):
                    raise unreadable(getattr(error, "partition", number), error) from error
            return list(self.client.gather(tasks))
        raise RuntimeError("there are no workers left")


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


def is_future(value: Any) -> bool:
    from distributed import Future

    return isinstance(value, Future)


def name(what: str) -> str:
    """Return a name for a task, of which dashboards show the beginning."""
    return f"dpconvex-{what}-{uuid4().hex}"


def workers() -> Workers | None:
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return Workers(default_client())
    except ValueError:
        return None
