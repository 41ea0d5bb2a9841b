"""Partitions on the workers of a Dask cluster: what is asked goes out, and what comes back is as small as a sum.

If a worker is lost, Dask computes its partitions again elsewhere, and they pass the same check.  Errors come back as results:
Dask writes exceptions into its logs, and those of a check name values of records.  Names of tasks are random.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from uuid import uuid4

from dpconvex.errors import DomainError, DPConvexError, WorkersLost
from dpconvex.language.batch import Place, unreadable

# After so many seconds without a result it is asked whether any workers are left; and so many times.
PATIENCE, TIMES = 10.0, 3
# A task that failed for want of a file or a connection is tried so many times more.
RETRIES = 2
# Neighbouring partitions are read together so that there are so many tasks for each thread at most.
TASKS = 4


class Workers(Place):
    """The workers of a cluster, as the `Place` of partitions."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @cached_property
    def threads(self) -> list[str]:
        """Addresses of workers, each as often as it has threads."""
        with reachable():
            return [address for address, count in sorted(self.client.nthreads().items()) for _ in range(count)]

    def step(self, count: int) -> int:
        return -(-count // (TASKS * max(len(self.threads), 1)))

    def share(self, value: Any) -> Any:
        """Return a future of an object, unpacked once in each process; the payload is kept, for workers that are lost."""
        from distributed.protocol import pickle

        with reachable():
            return self.client.submit(pickle.loads, pickle.dumps(value), key=name("shared"), pure=False)

    def task(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from dask.delayed import delayed

        return delayed(outcome, pure=False)(function, *arguments, dask_key_name=name(function.__name__))

    def keeps(self, value: Any, keep: bool | None) -> bool:
        return keep is not False

    def held(self, task: Any, spread: float | None = None) -> Any:
        options = {}
        if spread is not None and self.threads:
            options = {"workers": [self.threads[int(spread * len(self.threads))]], "allow_other_workers": True}
        with reachable():
            return self.client.compute(task, retries=RETRIES, **options)

    def results(self, tasks: Mapping[int, Any]) -> Iterator[Any]:
        with reachable():
            outcomes = self._gathered(self.client.compute(list(tasks.values()), retries=RETRIES), list(tasks))
        for found in outcomes:
            if isinstance(found, Exception):
                raise found
            yield found

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
                if error is not None and type(error).__module__.partition(".")[0] not in ("distributed", "tornado"):
                    raise error if isinstance(error, DPConvexError) else unreadable(number, error) from error
            return list(self.client.gather(tasks))
        raise RuntimeError("there are no workers left")


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a result, or instead of it the error, of this task or of one that it needs."""
    from distributed.protocol import pickle

    for argument in arguments:
        if isinstance(argument, Exception):
            return argument
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


def name(what: str) -> str:
    """Return a name for a task, of which dashboards show the beginning."""
    return f"dpconvex-{what}-{uuid4().hex}"


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
