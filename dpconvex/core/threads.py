"""Threads over pieces of work: as many as linear algebra would use, which then uses one in each (docs/performance.md)."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def controller() -> Any:
    import scipy.linalg  # noqa: F401  (loads SciPy's own library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


class Limit:
    lock, users, threads = Lock(), 0, 1
    limiter: Any = None


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Context in which the linear algebra library uses one thread; yields how many it would use.

    The limit holds while anybody needs it: whoever comes first sets it, whoever leaves last takes it back.
    """
    with Limit.lock:
        if Limit.users == 0:
            Limit.threads = max((found["num_threads"] or 1 for found in controller().info()), default=1)
            Limit.limiter = controller().limit(limits=1)
        Limit.users += 1
    try:
        yield Limit.threads
    finally:
        with Limit.lock:
            Limit.users -= 1
            if Limit.users == 0:
                Limit.limiter.restore_original_limits()


@cache
def pool(workers: int, name: str) -> ThreadPoolExecutor:
    """Return threads that wait for work: to start them anew for each pass over the records would cost a tenth of it."""
    return ThreadPoolExecutor(workers, thread_name_prefix=name)


def after_fork() -> None:
    """Forget threads, which do not survive a fork, and a lock that one of them may have held."""
    pool.cache_clear()
    Limit.lock = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=after_fork)


def in_order(tasks: Iterable[Callable[[], T]], workers: int, name: str = "dpconvex") -> Iterator[T]:
    """Yield the results of tasks in their order, whichever ends first; those that wait for others have other threads."""
    if workers < 2:
        yield from (task() for task in tasks)
        return
    waiting: deque[Future[T]] = deque()
    try:
        for task in or_refusal(tasks):
            # Settings of the caller's context, such as `numpy.errstate`, hold in the tasks.
            waiting.append(pool(workers, name).submit(copy_context().run, task))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # What has begun is waited for: nothing runs on after an error or an interrupt.
        wait([future for future in waiting if not future.cancel()])


def or_refusal(tasks: Iterable[Callable[[], T]]) -> Iterator[Callable[[], T]]:
    """Yield tasks, and a refusal of the next one as a task that fails: what was begun before comes first."""
    try:
        yield from tasks
    except Exception as error:
        refused: Future[T] = Future()
        refused.set_exception(error)
        yield refused.result
