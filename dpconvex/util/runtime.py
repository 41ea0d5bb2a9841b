"""Process and threads: interrupts, caches on objects, shared contexts, and tasks in order."""

import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import cache, wraps
from threading import Lock, current_thread, get_ident, main_thread
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
LOG = logging.getLogger("dpconvex")
SIGNALS = tuple(map(int, signal.valid_signals()))


class Stage:
    """Current stage of a long computation: one of a few fixed names, which say nothing about the data."""

    name = "preparing"

    @classmethod
    def begin(cls, name: str) -> None:
        """Enter a stage, and log its name for the owner of the data (logger "dpconvex", level INFO)."""
        cls.name = name
        LOG.info("%s", name)

    @classmethod
    def steps(cls, count: int) -> Iterator[int]:
        """Yield the indices of steps, whose number is public, and enter a stage for each."""
        for k in range(count):
            cls.begin(f"step {k + 1} of {count}")
            yield k


class Interrupt:
    """A Ctrl-C noted by the command line, or an error of a signal handler, because predictors and solvers may lose both."""

    noted = closed = noting = False
    raised: BaseException | None = None

    @classmethod
    def check(cls) -> None:
        """Raise a noted interrupt, before a charge or a call of other code."""
        if cls.noted or cls.raised is not None:
            raise KeyboardInterrupt if cls.raised is None else cls.raised

    @classmethod
    def close(cls) -> None:
        """Raise a noted interrupt before a file is written; afterwards the command line ignores Ctrl-C."""
        cls.closed = True
        cls.check()


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that proves or fits: underflow gives 0, because an error could depend on the records.

    An error of a signal handler, such as a time limit, is raised at the end if other code loses it.
    """
    import numpy as np

    @wraps(function)
    def quiet(*arguments: P.args, **options: P.kwargs) -> R:
        if Interrupt.noting or current_thread() is not main_thread():  # the thread of signal handlers
            return function(*arguments, **options)
        usual = {number: found for number in SIGNALS if callable(found := signal.getsignal(number))}

        def note(number: int, frame: Any) -> None:
            try:
                usual[number](number, frame)
            except BaseException as error:
                Interrupt.raised = error if Interrupt.noting else None
                raise

        Interrupt.noting = True
        try:
            for number in usual:
                signal.signal(number, note)
            return function(*arguments, **options)
        finally:
            Interrupt.noting, lost, Interrupt.raised = False, Interrupt.raised, None
            try:
                list(map(signal.signal, usual, usual.values()))
            finally:  # again, because a signal may have interrupted the first attempt
                list(map(signal.signal, usual, usual.values()))
            if lost is not None:
                raise lost

    return np.errstate(under="ignore")(quiet)


class Memo(dict[object, Any]):
    """Cached results about an object, kept on the object so that both are collected together; copies begin with none."""

    owner: Callable[[], object] = staticmethod(lambda: None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Memo, ()


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Decorate a function of an object and hashable arguments: results are cached on the object, and collected with it."""

    @wraps(function)
    def remembered(subject: T, /, *arguments: P.args, **options: P.kwargs) -> R:
        memo = vars(subject).get("_memo")
        if memo is None or memo.owner() is not subject:  # a copy shares its attributes with the original
            memo = vars(subject)["_memo"] = Memo()
            memo.owner = ref(subject)
        key = function, arguments, tuple(sorted(options.items()))
        if key not in memo:
            memo[key] = function(subject, *arguments, **options)
        found: R = memo[key]
        return found

    return remembered


_forks = 0


def this_process() -> tuple[int, int]:
    """Return the process id and the number of forks; an object such as a budget refuses to work in another process."""
    return os.getpid(), _forks


def _forked() -> None:
    """Drop pools of threads, which do not survive a fork, and locks that a thread may have held."""
    global _forks
    _forks += 1
    Interrupt.noting = False
    pool.cache_clear()
    for shared in Shared.known:
        shared.lock = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


class Shared:
    """A context of the whole process: its first user starts a generator, and its last user closes the generator."""

    known: list["Shared"] = []  # noqa: RUF012

    def __init__(self, make: Callable[[], Generator[Any]]) -> None:
        self.make, self.lock, self.context = make, Lock(), make()
        self.users: dict[object, int] = {}  # thread identifiers; the key of each use is its own
        self.value: Any = None
        self.known.append(self)

    @contextmanager
    def held(self) -> Iterator[Any]:
        use = object()
        try:
            with self.lock:
                if not self.users:
                    self.context = self.make()
                    self.value = next(self.context)
                self.users[use] = get_ident()
            yield self.value
        finally:
            try:
                self._leave(use)
            finally:  # again, because a signal may have interrupted the first attempt
                self._leave(use)

    def _leave(self, use: object) -> None:
        with self.lock:
            self.users.pop(use, None)
            if not self.users:
                self.context.close()


# Threads for pieces of work: as many as linear algebra would use; it then uses one in each (docs/performance.md)


@cache
def controller() -> Any:
    import scipy.linalg  # noqa: F401  (loads SciPy's own library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def limited() -> Generator[int]:
    threads = max((found["num_threads"] or 1 for found in controller().info()), default=1)
    with controller().limit(limits=1):
        yield threads


# Context in which linear algebra uses one thread; yields the number that it would use otherwise.
one_blas_thread: Callable[[], AbstractContextManager[int]] = Shared(limited).held


@cache
def pool(workers: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads; new threads for each pass over the records would cost a tenth of the time."""
    return ThreadPoolExecutor(workers, thread_name_prefix=name)


def in_order(tasks: Iterable[Callable[[], T]], workers: int, name: str = "dpconvex") -> Iterator[T]:
    """Yield the results of tasks in the order of the tasks; tasks that wait for others need a pool of another name."""
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
        # Wait for tasks that have begun: nothing runs on after an error or an interrupt.
        wait([future for future in waiting if not future.cancel()])


def or_refusal(tasks: Iterable[Callable[[], T]]) -> Iterator[Callable[[], T]]:
    """Yield tasks; an error of the iterable becomes a failing task, after the tasks before it."""
    try:
        yield from tasks
    except Exception as error:
        refused: Future[T] = Future()
        refused.set_exception(error)
        yield refused.result
