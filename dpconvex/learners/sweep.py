"""Many private fits of the same data: every promise, every draw, every variant of a learner."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import ArrayLike

from dpconvex.accounting.events import Event
from dpconvex.core.arguments import is_whole
from dpconvex.core.processes import this_process
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.budget import Budget, pay
from dpconvex.release.calibration import calibrate
from dpconvex.release.release import Release
from dpconvex.release.solve import public_size, solve
from dpconvex.release.verify import verify

__all__ = ["sweep"]


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
) -> Iterator[Release]:
    """Fit privately, again and again; each release has noise of its own.

    The data are checked once, compiled functions are shared, and each fit starts from the last answer of its size: that
    changes how long a fit takes, not how close to the exact answer it is certified to be.  With `privacies`, each release costs
    what its promise says, and all of them together at most the sum.  With `total`, all releases together keep one promise, and
    each gets as much of it as accounting proves (`calibrate`): ten fits with Gaussian noise need little more than three times
    the noise of one.

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

    Yields
    ------
    Release
        In order of templates, then promises, then draws.  Whoever stops in between, or interrupts, has every release that was
        yielded, complete, and nothing of the others; a fit that was begun is paid for, and so is all of a `total`.

    Raises
    ------
    NotPrivate, DomainError, NotConverged, BudgetExceeded
        As for `solve`; no data are read before every combination is proved private.
    TemplateError
        If the number of records is no longer the one that a `total` was proved for; nothing is paid then.

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
    if seed is not None:
        seeded_generator(seed)  # refuses what is no seed
    options: dict[str, Any] = {"size": size, "clip": clip, "cover": cover, "whitening": whitening, "label": "sweep"}
    if total is not None:
        check_privacy("sweep", total)
        if not templates:
            return iter(())
        public = public_size(templates[0], data, total, size)
        plan = calibrate(templates, total, public, draws, mechanism, cover, whitening=whitening)
        promises, mechanism, bill = [plan.each], plan.mechanism, (budget, total, "sweep", plan.event)
        options["size"] = public  # what was proved is for so many records, whatever happens to the data until they are fitted
    else:
        assert privacies is not None
        promises = [privacies] if isinstance(privacies, Privacy) else list(privacies)
        for learner in templates:
            for privacy in promises:
                public = public_size(learner, data, privacy, size)
                verify(learner, privacy, public, mechanism, cover, whitening=whitening)
        bill, options = None, {**options, "budget": budget}
    order = [(learner, privacy) for learner in templates for privacy in promises for _ in range(draws)]
    return fits(order, data, (mechanism, backend), options, seed, progress, bill)


def fits(
    plan: Sequence[tuple[Template, Privacy]],
    data: Mapping[str, ArrayLike],
    ways: tuple[Mechanism | None, Any],
    options: Mapping[str, Any],
    seed: int | None,
    progress: bool | None,
    bill: tuple[Budget | None, Privacy, str, Event] | None = None,
) -> Iterator[Release]:
    """Do the fits of a sweep, one at a time; those of one learner share checked data and a solver."""
    from dpconvex.solvers.first_order import Warm

    began = this_process()
    if bill is not None:
        for learner, privacy in plan:
            public_size(learner, data, privacy, options["size"])
        pay(*bill)
    mechanism, backend = ways
    fitted: Template | None = None
    with bar(len(plan), progress) as shown:
        for number, (learner, privacy) in enumerate(plan):
            if bill is not None and this_process() != began:
                raise DPConvexError(
                    "sweep: this is a fork of the process that paid for the whole sweep, and the copy cannot go on with it, too. "
                    "Fit in the process that began, or begin a sweep of its own here."
                )
            if learner is not fitted:
                fitted, checked = learner, learner.record.checked(data, options["clip"])
                solver = Warm() if backend in (None, "first-order") else backend
            stream = None if seed is None else seed + number
            yield solve(learner, checked, privacy, mechanism, solver, seed=stream, **options)
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
