"""Many private fits of the same data: every promise, every draw, every variant of a learner."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from itertools import product
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from dpconvex.accounting.events import Event
from dpconvex.core.plain_data import is_whole
from dpconvex.core.runtime import quietly, this_process
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.record import Checked
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay
from dpconvex.release.calibration import planned
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit, public_size, run
from dpconvex.release.verify import Method, Proved

T = TypeVar("T")


@quietly
def sweep(
    template: Template | Sequence[Template],
    data: Mapping[str, ArrayLike],
    privacies: Privacy | Sequence[Privacy] | None = None,
    *,
    total: Privacy | None = None,
    draws: int = 1,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    cover: Cover | None = None,
    whitening: Whitened = None,
    progress: bool | None = None,
    workers: Any = None,
) -> Iterator[Release]:
    """Fit privately, again and again; each release has noise of its own.

    The data are checked once, and each fit starts from the last answer: that changes how long a fit takes, not how close to the
    exact answer it is certified to be.  With `total`, all releases together keep one promise, and each gets as much of it as
    accounting proves (`calibrate`).

    Parameters
    ----------
    template : Template or sequence of Template
        For instance one learner with several regularizations.
    data : mapping of str to array_like
        For every template.
    privacies : Privacy or sequence of Privacy, optional
        The promise of each release by itself.
    total : Privacy, optional
        The promise of all releases together, in place of `privacies`.
    draws : int
        Fits for each template and promise.
    mechanism, backend, size, clip, budget, cover, whitening
        As for `solve`.  A `total` is charged to the budget in whole, before the first fit.
    seed : int, optional
        For tests: fit number k is drawn with ``seed + k``, and says that it is not private.
    progress : bool, optional
        Whether to show a progress bar (with tqdm, if it is installed); by default, on a terminal.
    workers : int, optional
        Do so many fits at a time, in threads of this process (docs/performance.md).  Each fit then starts from zero, so with a
        seed every number of workers gives the bits of single fits; so many are begun, and paid for, ahead.

    Yields
    ------
    Release
        In order of templates, then promises, then draws.  Whoever stops in between, or interrupts, has every release that was
        yielded, complete, and nothing of the others; a fit that was begun is paid for, and so is all of a `total`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=2)
    >>> data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}
    >>> promises = [dp.Privacy(1.0), dp.Privacy(10.0)]
    >>> [release.spent.epsilon for release in sweep(learner, data, promises, draws=2)]
    [1.0, 1.0, 10.0, 10.0]
    """
    templates = [template] if isinstance(template, Template) else list(template)
    if (privacies is None) == (total is None):
        raise TemplateError("sweep: give the promise of each release, or the `total` of all of them.")
    if not is_whole(draws, 1):
        raise TemplateError(f"sweep: draws must be a positive integer, not {draws!r}.")
    promises = [item for item in (privacies, total) if isinstance(item, Privacy)] or list(privacies or ())  # type: ignore[arg-type]
    if not templates or not promises:
        return iter(())
    method = Method(mechanism, cover, whitening)
    call = Fit(data, promises[0], templates, method, backend, size, clip, budget, "sweep", seed, workers)
    event, order = None, []
    if total is None:
        for learner, privacy in product(templates, promises):
            records = public_size(learner, call.data, privacy, size)
            order += [method.prove(learner, privacy, records)] * draws
    else:
        plan = planned(templates, total, call.size, draws, method)
        event, order = plan.event, list(plan.fits)
    for learner in templates:
        learner.record.check_form(call.data, empty=call.protected)
    call.check(*order[::draws])
    return fits(order, call, event, progress, workers is None and backend in (None, "first-order"))


def fits(
    order: Sequence[Proved], call: Fit, event: Event | None, progress: bool | None, warm: bool
) -> Iterator[Release]:
    """Do the fits of a sweep, which are paid for one by one, or, if there is an event, all of them now.

    Those of one learner share checked data and, one after the other, a solver.
    """
    from dpconvex.solvers.certify import Warm

    began = this_process()

    def check_size(found: Proved, data: Any) -> None:
        public_size(found.template, data, found.certificate.privacy, found.certificate.size)

    if event is not None:
        for found in order:
            check_size(found, call.data)
        call.pay(event)

    @quietly
    def fit(found: Proved, checked: Checked, stream: int | None, backend: Any) -> Release:
        check_size(found, checked)
        source = NoiseSource(stream)
        if event is None:
            pay(call.budget, found.certificate.privacy, call.label, found.certificate.event)
        return run(found, checked, backend, source, call.clip)

    def tasks() -> Iterator[Callable[[], Release]]:
        last: Template | None = None
        for number, found in enumerate(order):
            if found.template is not last:
                last, checked = found.template, found.template.record.checked(call.data, call.clip)
                backend = Warm() if warm else call.backend
            yield partial(fit, found, checked, None if call.seed is None else call.seed + number, backend)

    with bar(len(order), progress) as shown:
        for release in fitted(tasks(), call.workers):
            yield release
            if event is not None and this_process() != began:
                raise DPConvexError(
                    "sweep: this is a fork of the process that paid for the whole sweep, and the copy cannot go on with it, too. "
                    "Fit in the process that began, or begin a sweep of its own here."
                )
            if shown is not None:
                shown.update()


def bar(total: int | None, progress: bool | None) -> AbstractContextManager[Any]:
    """Return a progress bar, or something that shows nothing."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return nullcontext()
    try:
        from tqdm import tqdm
    except ImportError:
        return nullcontext()
    shown: AbstractContextManager[Any] = tqdm(total=total, desc="fits", unit="fit")
    return shown


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
