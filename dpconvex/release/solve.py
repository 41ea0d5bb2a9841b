"""The private fit, and the private release of sums: data enter after the certificate is fixed and paid for."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from dpconvex.core.runtime import quietly
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.release.budget import Budget
from dpconvex.release.fit import Fit, released_statistics
from dpconvex.release.release import Release
from dpconvex.release.statistics import Statistics
from dpconvex.release.verify import Method


@quietly
def solve(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    label: str = "solve",
    seed: int | None = None,
    cover: Cover | None = None,
    whitening: Whitened = None,
) -> Release:
    """Fit a template privately.

    Parameters
    ----------
    template : Template
    data : mapping of str to array_like
        One entry per field of the record.
    privacy : Privacy
        The promise to be kept.
    mechanism : Mechanism, optional
        By default the same as `verify`.
    backend : str or object, optional
        How to solve: "conic", "first-order", or a configured backend.
    size : int, optional
        Public number of records.  Under replace-one it is the number of records; under add-remove it must be given,
        because the number of records is itself protected.
    clip : bool
        Project records onto their declared domain instead of raising.
    budget : Budget, optional
        A ledger that the cost is recorded in before the data are read.  A fit that fails is still paid for.
    label : str
        Name of the spend in the ledger.
    seed : int, optional
        For tests.  The release then says that it is not private.
    cover : Cover, optional
        How the distance between the computed and the exact answer is covered; as for `verify`.
    whitening : PrivateWhitening, bool or "auto", optional
        A first stage, from a share of the same promise; as for `verify`.  The parameters are then those for whitened
        records, and the release predicts from original ones.

    Returns
    -------
    Release
        The answer on a fixed grid, with the residual noise, projected on K (docs/release.md).

    Raises
    ------
    NotPrivate, TemplateError
        If there is no proof, or an argument makes no sense; no data are read.
    BudgetExceeded
        If the ledger has not enough left.
    DomainError
        If a record is outside its declared domain.
    NotConverged
        If the answer could not be certified to be close enough to the minimiser; nothing is released.
    """
    method = Method(mechanism, cover, whitening)
    fit = Fit(data, privacy, [template], method, backend, size, clip, budget, label, seed)
    found = method.prove(template, privacy, fit.size)
    fit.check(found)
    fit.pay(found.certificate.event)
    return fit.run(found)


@quietly
def statistics(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: SufficientStatistics | None = None,
    *,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    label: str = "statistics",
    seed: int | None = None,
    cover: Cover | None = None,
    whitening: Whitened = None,
) -> Statistics:
    """Release what a quadratic loss takes from the data, once, for any number of fits.

    Parameters
    ----------
    template : Template
        Its loss is quadratic in the parameters; regularizer and constraints do not matter here.
    privacy : Privacy
        The promise of the release, and of all fits together.
    mechanism : SufficientStatistics, optional
        By default with Gaussian noise, or Gamma noise for a promise without delta.
    whitening : PrivateWhitening, bool or "auto", optional
        A first stage: statistics are then those of whitened and weighted records, which are far more accurate where features vary
        more in some directions than in others.
    data, size, clip, budget, label, seed, cover
        As for `solve`.

    Returns
    -------
    Statistics
        ``fit(template)`` fits any template with the same loss.

    Raises
    ------
    NotPrivate, DomainError, BudgetExceeded
        As for `solve`; the loss must be quadratic.

    Examples
    --------
    >>> import dpconvex as dp
    >>> data = {"x": [[0.5, 0.0], [0.0, 1.0], [1.0, 0.0]], "y": [0.5, -1.0, 1.0]}
    >>> learner = dp.load("ridge_regression", features=2)
    >>> found = dp.statistics(learner, data, dp.Privacy(1.0, 1e-6))
    >>> found
    Statistics(5 sums; spent: epsilon = 1, delta = 1e-06, replace-one)
    >>> found.fit(dp.load("ridge_regression", features=2, regularization=10.0))
    Release(w (2,); spent: epsilon = 1, delta = 1e-06, replace-one)
    """
    check_privacy("statistics", privacy)
    chosen = mechanism or SufficientStatistics.usual(privacy)
    if not isinstance(chosen, SufficientStatistics):
        raise TemplateError(f"statistics: mechanism must be a SufficientStatistics, not {chosen!r}.")
    method = Method(chosen, cover, whitening)
    fit = Fit(data, privacy, [template], method, None, size, clip, budget, label, seed)
    found = method.prove(template, privacy, fit.size)
    fit.check(found)
    fit.pay(found.certificate.event)
    return released_statistics(found, fit.data, fit.source, clip)
