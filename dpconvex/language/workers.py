"""Partitions on the workers of a Dask cluster: what is asked goes out, and what comes back is as small as a sum.

A partition that was read is the result of a task that its worker holds, with its neighbours if they are small; if the worker is
lost, Dask computes it again elsewhere, and it passes the same check.  Errors come back as results, because Dask writes exceptions
into its logs, and those of a check name values of records.  Names of tasks are random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from itertools import pairwise
from os import PathLike
from os.path import getsize
from sys import getsizeof
from typing import Any
from uuid import uuid4

from dpconvex.core.packing import packed, unpacked
from dpconvex.core.summation import Tree
from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.language.batch import Batch
from dpconvex.language.dask_sources import Lazy
from dpconvex.language.file_rows import FileRows
from dpconvex.language.places import Check, unchanged, unreadable, within
from dpconvex.language.worker_groups import Bundle, Group, groups_of, neighbours

# After so many seconds without a result it is asked whether any workers are left; and so many times.
PATIENCE, TIMES = 10.0, 3
# Results that are fetched at once.
TOGETHER = 16
# A task that failed for want of a file or a connection is tried so many times more.
RETRIES = 2
# Partitions become tasks of their own where there are at most so many for each thread, and the first ones have so many bytes.
MANY, SMALL = 16, 2**22


class Shared:
    """An object that many tasks need: unpacked once in each process."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self.payload,)

    @cached_property
    def value(self) -> Any:
        return unpacked(self.payload)


class Outcome:
    """What a task returned, or why it did not; nothing of it is shown."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self.error = value, error

    def __sizeof__(self) -> int:
        whole = sum(map(getsizeof, self._value)) if isinstance(self._value, list) else getsizeof(self._value)
        return object.__sizeof__(self) + whole

    @property
    def value(self) -> Any:
        """What it returned; raises its error."""
        if self.error is not None:
            raise self.error
        return self._value


def outcome(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Call a function, on a worker."""
    try:
        return Outcome(function(*arguments))
    except OSError:
        raise  # may pass: Dask tries again
    except Exception as error:
        return Outcome(error=sendable(error))


def sendable(error: Exception) -> Exception:
    """Return an error, or, if it cannot be sent, one that says what it was."""
    from distributed.protocol import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DomainError(f"a partition cannot be read: {type(error).__name__}, which cannot be sent from its worker.")
    return error


def numbered(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition; any error of it remembers which it is."""
    try:
        return within(number, function, *arguments)
    except Exception as error:
        error.partition = number  # type: ignore[attr-defined]
        raise


def answered(sources: Sequence[Any], function: Callable[[Any], int], first: int) -> list[int]:
    return [int(numbered(first + k, function, source)) for k, source in enumerate(sources)]


def checked(sources: Sequence[Any], check: Shared, first: int) -> list[Batch]:
    return [numbered(first + k, check.value, source) for k, source in enumerate(sources)]


def seen_of(parts: Outcome) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the number of records and the fingerprint of each partition, and the bytes of all."""
    return tuple((part.size, part.fingerprint) for part in parts.value), getsizeof(parts)


Asked = Sequence[tuple[int, tuple[int, int | None], Any]]


def applied(parts: Outcome, function: Callable[..., Any], shared: Shared, asked: Asked) -> list[Any]:
    """Call a function with each partition, which must be as it was when it was checked first; None for one that is not asked."""
    return [
        None if own is None else numbered(number, function, unchanged(part, number, seen), shared.value, *own)
        for (number, seen, own), part in zip(asked, parts.value, strict=True)
    ]


def added_up(
    bundles: Sequence[Outcome],
    function: Callable[..., Any],
    shared: Shared,
    asked: Sequence[Asked],
    pairs: dict[int, tuple[int, int]],
    threads: int,
) -> dict[int, Any]:
    """Add up what a function returns of each partition, as far as they are neighbours in the order of a tree."""
    given = [
        (part, item)
        for bundle, items in zip(bundles, asked, strict=True)
        for part, item in zip(bundle.value, items, strict=True)
        if item[2] is not None
    ]

    def one(what: tuple[Batch, tuple[int, tuple[int, int | None], Any]]) -> Any:
        part, (number, seen, own) = what
        return numbered(number, function, unchanged(part, number, seen), shared.value, *own)

    total = Tree.of(pairs)
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        found = pool.map(one, given) if pool else map(one, given)
        for (_, (number, _, _)), part in zip(given, found, strict=True):
            if part is None:
                return {number: None}
            total.add(number, part)
    return total.waiting


def weight(source: Any) -> int:
    """Return about how many bytes a partition takes."""
    from dask.sizeof import sizeof

    found = source() if callable(source) else source
    if isinstance(found, str | PathLike):
        return 8 * getsize(found)
    if isinstance(found, Mapping):
        return sum(c.nbytes if isinstance(c, FileRows) else sizeof(c) for c in found.values())
    return int(sizeof(found))


class Workers:
    """Partitions with the workers of a cluster, in bundles of neighbours."""

    def __init__(self, client: Any, bundles: Sequence[Bundle] = ()) -> None:
        self.client, self.bundles = client, bundles
        self._groups: list[Group] | None = None

    def asked(self, function: Callable[[Any], int], sources: Sequence[Any]) -> list[int]:
        """Return a number for each partition, which a function reads."""
        cuts = self._cuts(sources)
        tasks = [self._computed(answered, sources[a:b], function, a) for a, b in pairwise(cuts)]
        return [int(found) for _, bundle in self._results(tasks, cuts) for found in bundle]

    def read(self, sources: Sequence[Any], check: Check, keep: bool | None) -> tuple[Workers, list[int]]:
        """Read and check partitions; return those that passed, and how many records they have."""
        shared, cuts = self.share(check), self._cuts(sources)
        parts = [self._delayed(checked, sources[a:b], shared, a) for a, b in pairwise(cuts)]
        if keep is not False:
            where = self._sent(neighbours, self.client, len(parts))  # Dask knows better where it made something
            where = ["" if isinstance(sources[a], Lazy) else address for a, address in zip(cuts, where, strict=False)]
            parts = [
                self._sent(self.client.compute, part, retries=RETRIES, **preferred(address))
                for part, address in zip(parts, where, strict=True)
            ]
        found = [seen for _, seen in self._results([self._task(seen_of, part) for part in parts], cuts)]
        bundles = [Bundle(part, first, *seen) for part, first, seen in zip(parts, cuts, found, strict=False)]
        return Workers(self.client, bundles), [size for bundle in bundles for size, _ in bundle.seen]

    def _cuts(self, sources: Sequence[Any]) -> list[int]:
        """Return the numbers of the first partitions of bundles, and the number of all: many small ones are read together."""
        count, threads, step = len(sources), sum(self._sent(self.client.nthreads).values()), 1
        if count > MANY * max(threads, 1):
            some = range(0, count, count // 4)
            found = self._results([self._computed(answered, [sources[k]], weight, k) for k in some], some)
            largest = max(size for _, (size,) in found)
            step = max(1, min(-(-count // (MANY * max(threads, 1))), SMALL // max(largest, 1)))
        return [*range(0, count, step), count]

    def share(self, value: Any) -> Any:
        return self._sent(self.client.submit, Shared, packed(value), key=name("shared"), pure=False)

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        bundles = [bundle for bundle in self.bundles if any(k in own for k in bundle.numbers)]
        tasks = [self._task(applied, bundle.future, function, shared, asked_of(bundle, own)) for bundle in bundles]
        for first, found in self._results(tasks, [bundle.number for bundle in bundles]):
            yield from ((k, value) for k, value in enumerate(found, first) if k in own)

    def sums(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]], tree: Tree
    ) -> Iterator[tuple[int, Any]]:
        """See `Place`: a task for each group of partitions that lie together."""
        if not all(is_future(bundle.future) for bundle in self.bundles):  # each is read for its own task
            yield from self.each(function, shared, own)
            return
        if self._groups is None:  # they stay, because Dask brings a lost worker's together elsewhere
            self._groups = self._sent(groups_of, self.client, [bundle for bundle in self.bundles if bundle.size])
        tasks = []
        for group in self._groups:
            asked = [asked_of(bundle, own) for bundle in group.parts]
            pairs = tree.below([k for bundle in group.parts for k in bundle.numbers if k in own])
            given = [bundle.future for bundle in group.parts], function, shared, asked, pairs, group.threads
            tasks.append(self._started(added_up, *given, address=group.address))
        for _, found in self._results(tasks, [group.parts[0].number for group in self._groups]):
            yield from found.items()

    def mapped(
        self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]], sizes: Sequence[int]
    ) -> Workers:
        made = []
        for old in self.bundles:
            asked = asked_of(old, {k: own[k] for k in old.numbers})
            new = self._delayed(applied, old.future, function, shared, asked)
            if is_future(old.future):
                new = self._sent(self.client.compute, new, retries=RETRIES)
            made.append(Bundle(new, old.number, tuple((sizes[k], None) for k in old.numbers), old.bytes))
        return Workers(self.client, made)

    def _delayed(self, function: Callable[..., Any], first: Any, *arguments: Any) -> Any:
        """Return a task that is not started yet."""
        from dask.delayed import delayed

        sources = [s.value if isinstance(s, Lazy) else s for s in first] if isinstance(first, list | tuple) else first
        return delayed(outcome, pure=False)(function, sources, *arguments, dask_key_name=name(function.__name__))

    def _computed(self, function: Callable[..., Any], first: Any, *arguments: Any) -> Any:
        return self._sent(self.client.compute, self._delayed(function, first, *arguments), retries=RETRIES)

    def _task(self, function: Callable[..., Any], first: Any, *arguments: Any) -> Any:
        return (self._started if is_future(first) else self._computed)(function, first, *arguments)

    def _started(self, function: Callable[..., Any], *arguments: Any, address: str = "") -> Any:
        options = {"key": name(function.__name__), "pure": False, "retries": RETRIES, **preferred(address)}
        return self._sent(self.client.submit, outcome, function, *arguments, **options)

    def _sent(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Start tasks, if there is still somebody to take them."""
        try:
            return call(*arguments, **options)
        except Exception as error:
            if not of_cluster(error):
                raise
            raise lost(error) from error

    def _results(self, tasks: list[Any], numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the number of the first partition of each task, and what the task returned."""
        for start in range(0, len(tasks), TOGETHER):
            some = slice(start, start + TOGETHER)
            for number, found in zip(numbers[some], self._gathered(tasks[some], numbers[some]), strict=False):
                try:
                    value = found.value
                except DPConvexError:
                    raise
                except Exception as error:
                    error.add_note(f"in partition {at_fault(error, number)}, on its worker")
                    raise
                yield number, value

    def _gathered(self, tasks: list[Any], numbers: Sequence[int]) -> list[Outcome]:
        """Wait for the tasks of some partitions, as long as there is anybody to do them."""
        from distributed import wait

        try:
            lonely = 0
            while True:
                try:
                    wait(tasks, timeout=PATIENCE)
                    for number, task in zip(numbers, tasks, strict=False):
                        if task.status == "error" and not of_cluster(error := task.exception(timeout=PATIENCE)):
                            raise unreadable(at_fault(error, number), error) from error
                    return list(self.client.gather(tasks))
                except TimeoutError:
                    lonely = 0 if self.client.scheduler_info()["workers"] else lonely + 1
                    if lonely == TIMES:
                        raise RuntimeError("there are no workers left") from None
        except DPConvexError:
            raise
        except Exception as error:
            raise lost(error) from error


def asked_of(bundle: Bundle, own: Mapping[int, tuple[Any, ...]]) -> Asked:
    """Return number, what was seen, and arguments of each partition of a bundle; no arguments for those that are not asked."""
    return [(k, seen, own.get(k)) for k, seen in zip(bundle.numbers, bundle.seen, strict=True)]


def at_fault(error: BaseException, number: int) -> int:
    """Return the number of the partition that an error is about: one of several that its task went through, or the only one."""
    return int(getattr(error, "partition", number))


def preferred(address: str) -> dict[str, Any]:
    """Return options of a task that is to run on a worker if that can be."""
    return {"workers": [address], "allow_other_workers": True} if address else {}


def of_cluster(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("distributed", "tornado")


def lost(error: Exception) -> WorkersLost:
    """Say that the cluster failed."""
    text = str(error).splitlines()[0] if str(error) else "no reason given"
    return WorkersLost(
        f"the partitions cannot be summed up on their workers ({type(error).__name__}: {text}); nothing is released, and "
        "what was paid stays paid. Look after the scheduler and its workers, and solve again."
    )


def is_future(value: Any) -> bool:
    """Whether a worker computes something already."""
    from distributed import Future

    return isinstance(value, Future)


def name(what: str) -> str:
    """Return a name for a task, of which dashboards show the beginning."""
    return f"dpconvex-{what}-{uuid4().hex}"


def workers() -> Workers | None:
    """Return the workers of the client at hand; None without one."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return Workers(default_client())
    except ValueError:
        return None
