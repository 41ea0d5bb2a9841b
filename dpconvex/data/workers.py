"""Partitions on the workers of a Dask cluster: tasks for neighbouring partitions, and the handling of lost workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any
from uuid import uuid4

from dpconvex.data.batch import Place, in_partition, unreadable_error
from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.util.runtime import Interrupt

# Seconds without a result before workers are counted, and number of counts without a worker before an error.
PATIENCE, TIMES = 10.0, 3
RETRIES = 2  # number of times that Dask retries a task after a failure of a file or a connection
TASKS = 4  # tasks for each thread at most; neighbouring partitions share a task


class Workers(Place):
    """Partitions on the workers of a cluster; neighbouring partitions share a task."""

    def __init__(self, client: Any, values: Sequence[Any], keep: bool | None) -> None:
        with reachable():
            threads = sum(client.nthreads().values())
        self.client, self.keep, every = client, keep is not False, range(len(values))
        step = -(-len(values) // (TASKS * max(threads, 1)))
        numbers = [every[k : k + step] for k in every[::step]]
        self.bundles: list[tuple[range, Any]] = [(n, list(values[n.start : n.stop])) for n in numbers]

    def share(self, value: Any) -> Any:
        """Return a future of an object, unpacked once in each process; the pickled object is kept in case workers are lost."""
        from distributed.protocol import pickle

        with reachable():
            key = f"dpconvex-shared-{uuid4().hex}"
            return self.client.submit(pickle.loads, pickle.dumps(value), key=key, pure=False)

    def each(self, function: Callable[..., Any], own: Mapping[int, tuple[Any, ...]]) -> Iterator[Any]:
        tasks = {numbers[0]: task for numbers, task in self._tasks(function, own)}
        with reachable():
            outcomes = self._gathered(self.client.compute(list(tasks.values()), retries=RETRIES), list(tasks))
        for found in outcomes:
            if isinstance(found, Exception):
                raise found
            yield from found

    def turned(self, function: Callable[..., Any], own: Sequence[tuple[Any, ...]]) -> Place:
        made, tasks = copy(self), list(self._tasks(function, dict(enumerate(own))))
        with reachable():
            futures = self.client.compute([task for _, task in tasks], retries=RETRIES) if self.keep else None
        made.bundles = [(numbers, futures[k] if futures else task) for k, (numbers, task) in enumerate(tasks)]
        return made

    def _tasks(self, function: Callable[..., Any], own: Mapping[int, tuple[Any, ...]]) -> Iterator[tuple[range, Any]]:
        """Yield the partition numbers of each task, and the task: `function` of each partition that has arguments in `own`."""
        from dask.delayed import delayed

        for numbers, values in self.bundles:
            mine = {k: own[k] for k in numbers if k in own}
            if mine:
                key = f"dpconvex-{function.__name__}-{uuid4().hex}"
                task = delayed(outcomes_of, pure=False)(function, list(numbers), values, mine, dask_key_name=key)
                yield numbers, task

    def _gathered(self, tasks: list[Any], numbers: Sequence[int]) -> list[Any]:
        from distributed import wait

        lonely = 0
        while lonely < TIMES:
            try:
                wait(tasks, timeout=PATIENCE)
            except TimeoutError:
                Interrupt.check()  # raises at the caller's time limit
                lonely = 0 if self.client.scheduler_info()["workers"] else lonely + 1
                continue
            for number, future in zip(numbers, tasks, strict=True):
                error = future.exception(timeout=PATIENCE) if future.status == "error" else None
                if error is not None and type(error).__module__.partition(".")[0] not in ("distributed", "tornado"):
                    raise error if isinstance(error, DPConvexError) else unreadable_error(number, error) from error
            return list(self.client.gather(tasks))
        raise RuntimeError("there are no workers left")


def outcomes_of(function: Callable[..., Any], numbers: list[int], values: Any, own: Mapping[int, Any]) -> Any:
    """Return the results of a function for partitions, or the error of this task or of the preceding task."""
    from distributed.protocol import pickle

    if isinstance(values, Exception):
        return values
    try:
        return [in_partition(k, function, value, *own[k]) for k, value in zip(numbers, values, strict=True) if k in own]
    except Exception as error:
        if isinstance(error.__cause__, OSError):
            raise  # may be temporary: Dask retries
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            what = type(error.__cause__ or error).__name__
            return DomainError(f"a partition cannot be read: {what} (its worker cannot send the message).")
        return error


@contextmanager
def reachable() -> Iterator[None]:
    """Context for calls to the cluster; errors become `WorkersLost`, except those of this package."""
    try:
        yield
    except DPConvexError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        why = f"the partitions cannot be summed up on their workers ({said})"
        raise WorkersLost(f"{why}; nothing is released, and the charge stays. Solve again.") from error
