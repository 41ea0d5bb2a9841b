"""Many fits at a time: mechanisms run, and noise is drawn, in this process; workers solve problems and sum up gradients.

Each fit has a thread here, which does all that is not solving: proofs, the budget, the draw, the cover.  Threads hand a baton on:
one of them runs at a time, and fits begin in their order, so that nothing depends on which worker is done first.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from multiprocessing import get_context
from threading import Event, Lock
from typing import Any, TypeVar

from dpconvex.core.arguments import is_whole
from dpconvex.errors import NotConverged, TemplateError

T = TypeVar("T")

# For each worker, so many fits are begun before the first of them is yielded; or so many, if nobody says how many workers there
# are.
AHEAD, UNKNOWN = 2, 16


class Here:
    """An executor that does everything at once, in this process."""

    _max_workers = 1

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return what is done already."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def check_workers(workers: Any) -> None:
    from dpconvex.evaluation.devices import current

    if workers is None:
        return
    if not is_whole(workers, 1) and not callable(getattr(workers, "submit", None)):
        raise TemplateError(
            f"workers must be a positive number of processes, or an executor with the method submit, not {workers!r}."
        )
    if current().asked:
        raise TemplateError("workers compute on processors, and dp.devices asks for devices; leave one of them out.")


def fitted(tasks: Iterable[Callable[[Any], T]], workers: Any, backend: Any) -> Iterator[T]:
    """Yield the results of tasks in their order; each is given the backend that it is to solve its problems with.

    Without workers one after the other, with this backend.
    """
    if workers is None:
        for task in tasks:
            yield task(backend)
        return
    with executor_of(workers) as executor:
        yield from Team(executor, backend).results(tasks)


@contextmanager
def executor_of(workers: Any) -> Iterator[Any]:
    """Give an executor, and end it if it was made here."""
    if not is_whole(workers, 1):
        yield workers
        return
    if workers == 1:
        yield Here()
        return
    # Not forked: libraries that have started threads do not survive that.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin, initargs=(workers,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def begin(workers: int) -> None:
    """Prepare a process that shares the processors with others."""
    from dpconvex.evaluation.threads import share_processors

    os.environ["JAX_PLATFORMS"] = "cpu"  # a device's memory belongs to one process
    share_processors(workers)


class Team:
    """The workers of an executor, and the fits that are begun."""

    def __init__(self, executor: Any, backend: Any) -> None:
        from dpconvex.solvers.elsewhere import Parcels

        self.executor, self.backend, self.parcels = executor, backend, Parcels()
        self.ahead = AHEAD * (getattr(executor, "_max_workers", None) or UNKNOWN // AHEAD)
        self.baton = Lock()
        self.asked: set[Any] = set()

    def results(self, tasks: Iterable[Callable[[Any], T]]) -> Iterator[T]:
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(self.ahead, thread_name_prefix="dpconvex-fit") as threads:
            try:
                for task in tasks:
                    begun = Event()
                    waiting.append(threads.submit(copy_context().run, self._do, task, begun))
                    begun.wait()
                    if len(waiting) == self.ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in [*waiting, *list(self.asked)]:
                    future.cancel()

    def _do(self, task: Callable[[Any], T], begun: Event) -> T:
        from dpconvex.solvers.elsewhere import Elsewhere

        with self.baton:
            try:
                return task(Elsewhere(partial(self._ask, begun), self.backend, self.parcels))
            finally:
                begun.set()

    def _ask(self, begun: Event, *arguments: Any) -> Any:
        """Send a worker on an errand; meanwhile others have the baton."""
        from dpconvex.solvers.errands import done

        try:
            future = self.executor.submit(done, *arguments)
            self.asked.add(future)
            self.baton.release()
            begun.set()
            try:
                return future.result()
            finally:
                self.baton.acquire()
                self.asked.discard(future)
        except BrokenExecutor as error:
            raise NotConverged(
                f"a worker came to its end in the middle of a fit ({error}); nothing is released, and what was begun is paid "
                "for. It was killed, or out of memory; or it could not begin, because the script that wants it does not keep "
                "its own work under `if __name__ == '__main__':`."
            ) from error
