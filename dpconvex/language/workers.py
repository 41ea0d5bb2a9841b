"""Partitions on the workers of a Dask cluster: what is asked goes out, and what comes back is as small as a sum.

A partition that was read is the result of a task that its worker holds; if the worker is lost, Dask computes it again elsewhere,
and it passes the same check.  Errors come back as results, because Dask writes exceptions into its logs, and those of a check
name values of records.  Names of tasks are random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from sys import getsizeof
from typing import Any
from uuid import uuid4

from dpconvex.core.packing import packed, unpacked
from dpconvex.core.summation import Tree
from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.language.batch import Batch
from dpconvex.language.dask_sources import Lazy
from dpconvex.language.places import Check, unchanged, unreadable, within
from dpconvex.language.worker_groups import Group, Kept, groups_of, neighbours

# After so many seconds without a result it is asked whether any workers are left; and so many times.
PATIENCE, TIMES = 10.0, 3
# Results that are fetched at once.
TOGETHER = 16
# A task that failed for want of a file or a connection is tried so many times more.
RETRIES = 2


class Shared:
    """An object that many tasks need: unpacked once in each process."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self.payload,)

    @cached_property
    def value(self) -> Any:
        """The object."""
        return unpacked(self.payload)


class Outcome:
    """What a task returned, or why it did not; nothing of it is shown."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value, self.error = value, error

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + getsizeof(self._value)

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


def answered(source: Any, function: Callable[[Any], int], number: int) -> int:
    """Ask a partition for a number."""
    return int(within(number, function, source))


def checked(source: Any, check: Shared, number: int) -> Batch:
    """Read a partition."""
    batch: Batch = within(number, check.value, source)
    return batch


def size_of(part: Outcome) -> tuple[int, int]:
    """Return the number of records of a partition that was read, and of their bytes."""
    return int(part.value.size), getsizeof(part.value)


def applied(part: Outcome, function: Callable[..., Any], shared: Shared, number: int, size: int, own: Any) -> Any:
    """Call a function with a partition, which must have as many records as when it was checked first."""
    return within(number, function, unchanged(part.value, number, size), shared.value, *own)


def added_up(
    parts: Sequence[Outcome],
    function: Callable[..., Any],
    shared: Shared,
    asked: Sequence[tuple[int, int, Any]],
    pairs: dict[int, tuple[int, int]],
    threads: int,
) -> dict[int, Any]:
    def one(part: Outcome, question: tuple[int, int, Any]) -> Any:
        number, size, own = question
        try:
            return applied(part, function, shared, number, size, own)
        except Exception as error:
            error.partition = number  # type: ignore[attr-defined]
            raise

    total = Tree.of(pairs)
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        found = pool.map(one, parts, asked) if pool else map(one, parts, asked)
        for (number, _, _), part in zip(asked, found, strict=True):
            if part is None:
                return {number: None}
            total.add(number, part)
    return total.waiting


class Workers:
    """The workers of a cluster."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._groups: tuple[list[Any], list[Group]] = [], []

    def asked(self, function: Callable[[Any], int], sources: Sequence[Any]) -> list[int]:
        """Return a number for each partition, which a function reads."""
        tasks = [self._task(answered, source, function, k) for k, source in enumerate(sources)]
        return [int(found) for _, found in self._results(tasks)]

    def read(self, sources: Sequence[Any], check: Check, keep: bool | None) -> tuple[list[Any], list[int]]:
        """See `Place`."""
        shared = self.share(check)
        parts = [self._delayed(checked, source, shared, number) for number, source in enumerate(sources)]
        if keep is not False:
            where = self._sent(neighbours, self.client, len(parts))  # Dask knows better where it made something
            parts = [
                self._sent(
                    self.client.compute, part, retries=RETRIES, **preferred("" if isinstance(source, Lazy) else address)
                )
                for part, source, address in zip(parts, sources, where, strict=True)
            ]
        found = [kept for _, kept in self._results([self._task(size_of, part) for part in parts])]
        kept = [Kept(part, number, *size) for number, (part, size) in enumerate(zip(parts, found, strict=True))]
        return kept, [size for size, _ in found]

    def share(self, value: Any) -> Any:
        """See `Place`."""
        return self._sent(self.client.submit, Shared, packed(value), key=name("shared"), pure=False)

    def each(
        self, function: Callable[..., Any], shared: Any, parts: Mapping[int, Kept], own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """See `Place`."""
        numbers = list(parts)
        tasks = [
            self._task(applied, part.future, function, shared, part.number, part.size, own[k])
            for k, part in parts.items()
        ]
        yield from self._results(tasks, numbers)

    def sums(
        self,
        function: Callable[..., Any],
        shared: Any,
        parts: Mapping[int, Kept],
        own: Mapping[int, tuple[Any, ...]],
        tree: Tree,
    ) -> Iterator[tuple[int, Any]]:
        """See `Place`: a task for each group of partitions that lie together."""
        if not all(is_future(part.future) for part in parts.values()):  # each is read for its own task
            yield from self.each(function, shared, parts, own)
            return
        tasks, first = [], []
        for group in self._grouped(list(parts.values())):
            asked = [(part.number, part.size, own[part.number]) for part in group.parts]
            futures, pairs = [part.future for part in group.parts], tree.below([part.number for part in group.parts])
            given = futures, function, shared, asked, pairs, group.threads
            tasks.append(self._started(added_up, *given, address=group.address))
            first.append(group.parts[0].number)
        for _, found in self._results(tasks, first):
            yield from found.items()

    def _grouped(self, parts: list[Kept]) -> list[Group]:
        """Return the groups of some partitions; once found they stay, because Dask brings a lost worker's together elsewhere."""
        futures = [part.future for part in parts]
        if self._groups[0] != futures:
            self._groups = futures, self._sent(groups_of, self.client, parts)
        return self._groups[1]

    def mapped(
        self,
        function: Callable[..., Batch],
        shared: Any,
        parts: Sequence[Kept],
        own: Sequence[Any],
        sizes: Sequence[int],
    ) -> list[Kept]:
        """See `Place`."""
        made = [
            self._delayed(applied, part.future, function, shared, part.number, part.size, given)
            for part, given in zip(parts, own, strict=True)
        ]
        futures = [
            self._sent(self.client.compute, new, retries=RETRIES) if is_future(old.future) else new
            for new, old in zip(made, parts, strict=True)
        ]
        return [replace(old, future=new, size=size) for new, old, size in zip(futures, parts, sizes, strict=True)]

    def _delayed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a task that is not started yet."""
        from dask.delayed import delayed

        values = [argument.value if isinstance(argument, Lazy) else argument for argument in arguments]
        return delayed(outcome, pure=False)(function, *values, dask_key_name=name(function.__name__))

    def _task(self, function: Callable[..., Any], first: Any, *arguments: Any) -> Any:
        if not is_future(first):
            return self._sent(self.client.compute, self._delayed(function, first, *arguments), retries=RETRIES)
        return self._started(function, first, *arguments)

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

    def _results(self, tasks: list[Any], numbers: Sequence[int] | None = None) -> Iterator[tuple[int, Any]]:
        known = range(len(tasks)) if numbers is None else numbers
        for start in range(0, len(tasks), TOGETHER):
            some = slice(start, start + TOGETHER)
            for number, found in zip(known[some], self._gathered(tasks[some], known[some]), strict=True):
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
                    for number, task in zip(numbers, tasks, strict=True):
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
