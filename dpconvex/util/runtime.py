"""What is asked of the process and its threads: answers found once, work in order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from functools import cache, wraps
from threading import Lock, current_thread, get_ident, main_thread
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
SIGNALS = tuple(map(int, signal.valid_signals()))


class Stage:
    """Current stage of a long computation: one of a few fixed names, which say nothing about the data."""

    name = "preparing"


class Interrupt:
    """A Ctrl-C that the command line noted, or what a handler of a signal raised: a predictor or a solver may lose it."""

    noted = closed = noting = False
    raised: BaseException | None = None

    @classmethod
    def check(cls) -> None:
        """Raise again before something is paid, or other code is called."""
        if cls.noted or cls.raised is not None:
            raise KeyboardInterrupt if cls.raised is None else cls.raised

    @classmethod
    def close(cls) -> None:
        """Raise again before something is written; from then on the command line ignores a Ctrl-C."""
        cls.closed = True
        cls.check()


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what proves and what fits: what underflows is 0, for an error could depend on the records.

    What a handler of a signal raises, such as a time limit, is raised at the end if other code loses it.
    """
    import numpy as np

    @wraps(function)
    def quiet(*arguments: P.args, **options: P.kwargs) -> R:
        if Interrupt.noting or current_thread() is not main_thread():  # which handlers run in
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
            finally:  # again, for a signal may have come just now
                list(map(signal.signal, usual, usual.values()))
            if lost is not None:
                raise lost

    return np.errstate(under="ignore")(quiet)


class Memo(dict[object, Any]):
    """Answers about an object, kept on the object itself so that both are collected together; copies begin with none."""

    owner: Callable[[], object] = staticmethod(lambda: None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Memo, ()


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Compute a function of an object, and of further hashable arguments, once for each; it is forgotten with the object."""

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
    """Return the numbers of this process and of forks: what must not be there twice, such as a budget, stops elsewhere."""
    return os.getpid(), _forks


def _forked() -> None:
    """Forget threads, which do not survive a fork, and a lock that one of them may have held."""
    global _forks
    _forks += 1
    Interrupt.noting = False
    pool.cache_clear()
    for shared in Shared.known:
        shared.lock = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


class Shared:
    """A context of the whole process: the first thread that needs it enters it, and the last one leaves it."""

    known: list["Shared"] = []  # noqa: RUF012

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self.make, self.lock, self.stack = make, Lock(), ExitStack()
        self.users: list[int] = []  # their threads
        self.value: Any = None
        self.known.append(self)

    @contextmanager
    def held(self) -> Iterator[Any]:
        own = get_ident()
        with self.lock:
            if not self.users:
                self.value = self.stack.enter_context(self.make())
            self.users.append(own)
        try:
            yield self.value
        finally:
            with self.lock:
                if own in self.users:
                    self.users.remove(own)
                if not self.users:
                    self.stack.close()


# Threads over pieces of work: as many as linear algebra would use, which then uses one in each (docs/performance.md)


@cache
def controller() -> Any:
    import scipy.linalg  # noqa: F401  (loads SciPy's own library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def limited() -> Iterator[int]:
    threads = max((found["num_threads"] or 1 for found in controller().info()), default=1)
    with controller().limit(limits=1):
        yield threads


# Context in which linear algebra uses one thread, while anybody needs it; yields how many it would use.
one_blas_thread: Callable[[], AbstractContextManager[int]] = Shared(limited).held


@cache
def pool(workers: int, name: str) -> ThreadPoolExecutor:
    """Return threads that wait for work: to start them anew for each pass over the records would cost a tenth of it."""
    return ThreadPoolExecutor(workers, thread_name_prefix=name)


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
