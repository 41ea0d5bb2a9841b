"""Many fits at a time, in threads of this process, which draws all noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from dpconvex.core.arguments import is_whole
from dpconvex.errors import TemplateError

T = TypeVar("T")


def check_workers(workers: Any) -> None:
    if workers is not None and not is_whole(workers, 1):
        raise TemplateError(f"workers must be a positive number of fits at a time, not {workers!r}.")


def fitted(tasks: Iterable[Callable[[], T]], workers: int | None) -> Iterator[T]:
    """Yield the results of tasks in their order, so many of which are begun at a time."""
    if workers is None:
        for task in tasks:
            yield task()
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="dpconvex-fit") as threads:
        try:
            for task in tasks:
                waiting.append(threads.submit(copy_context().run, task))
                if len(waiting) == workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
