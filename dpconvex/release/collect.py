"""Statistics of a quadratic loss, released: data enter here, after the certificate is fixed."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.record import check_clip
from dpconvex.language.template import Template
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.residual_noise import Cover, confirm
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay
from dpconvex.release.solve import public_size
from dpconvex.release.statistics import Statistics, release_statistics
from dpconvex.release.verify import form_of, proved
from dpconvex.release.whitened_statistics import release_whitened_statistics


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
    data : mapping of str to array_like
        One entry per field of the record.
    privacy : Privacy
        The promise of the release, and of all fits together.
    mechanism : SufficientStatistics, optional
        By default with Gaussian noise, or Gamma noise for a promise without delta.
    size, clip, budget, label, seed, cover
        As for `solve`.
    whitening : PrivateWhitening, bool or "auto", optional
        A first stage, from a share of the same promise: statistics are then those of whitened and weighted records, which are far
        more accurate where features vary more in some directions than in others.  True is a `PrivateWhitening()`, "auto" that or
        nothing, as is usual for the size (docs/choosing.md).

    Returns
    -------
    Statistics
        ``fit(template)`` fits any template with the same loss.

    Raises
    ------
    NotPrivate
        If the loss is not quadratic; no data are read.
    DomainError
        If a record is outside its declared domain.
    BudgetExceeded
        If the ledger has not enough left.

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
    public = public_size(template, data, privacy, size)
    chosen = mechanism or SufficientStatistics.usual(privacy)
    if not isinstance(chosen, SufficientStatistics):
        raise TemplateError(f"statistics: mechanism must be a SufficientStatistics, not {chosen!r}.")
    certificate, _, stages = proved(template, privacy, public, chosen, cover, whitening)
    check_clip(clip)
    template.record.check_form(data, empty=privacy.adjacency == "add-remove")
    source = NoiseSource(seed)
    confirm(certificate)
    pay(budget, privacy, label, certificate.event)
    batch = template.record.validate(data, clip=clip, empty=privacy.adjacency == "add-remove")
    if privacy.adjacency == "replace-one" and batch.size != certificate.size:
        raise DomainError(
            f"there are {batch.size} records, and there were {certificate.size} when the promise was made; nothing is released. "
            "Data must not change during a fit."
        )
    if stages is None:
        return release_statistics(form_of(template), batch, certificate, source)
    return release_whitened_statistics(form_of(template), batch, stages, certificate, source)
