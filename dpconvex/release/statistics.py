"""Released statistics of a quadratic loss, and the fits that follow from them free of charge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moments import Moments, QuadraticLoss, quadratic_loss, turned_parameters
from dpconvex.core.arrays import Array
from dpconvex.core.plain_data import is_real
from dpconvex.core.runtime import frozen
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.noise.samplers import SPHERICAL
from dpconvex.release.files import Released
from dpconvex.release.release import Release, functions_of
from dpconvex.release.verify import form_of
from dpconvex.release.whitening import Whitening
from dpconvex.solvers.noisy_quadratic import RIDGE, NoisyQuadratic, least_point

# The ridge for whitened records, next to the largest eigenvalue of the noise (docs/choosing.md).
WHITENED_RIDGE = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Released):
    """Noisy sums of all that a quadratic loss takes from a record; any template with that loss is fitted from them for free.

    Attributes
    ----------
    values : ndarray, shape (statistics,)
        Noisy sums over the records, on a fixed grid; `moments` says of what, `fields` of which records.
    certificate, spent, not_private_because, whitening
        As of a `Release`; the statistics are those of whitened records.
    template : Template or None
        What they were released for.
    """

    form = "dpconvex statistics"
    kept = ("values", "moments", "fields", "certificate", "spent", "not_private_because", "whitening")

    values: Array
    moments: Moments
    fields: str
    certificate: Certificate
    spent: Privacy | None
    not_private_because: str = ""
    template: Template | None = None
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if values.shape != (self.moments.count,) or not np.isfinite(values).all():
            raise TemplateError(f"Statistics: expected {self.moments.count} finite numbers, not shape {values.shape}.")
        scaled = all(0 < kind.scale < np.inf and kind.weights >= 0 for kind in self.moments.kinds)
        if not (scaled and 0 <= self.deviation < np.inf and 0 < self.certificate.size < 2**53):
            raise TemplateError("Statistics: the moments have no scale, or the certificate no noise or no records.")
        self.check_paid()
        object.__setattr__(self, "values", frozen(values.copy()))

    @property
    def deviation(self) -> float:
        """Standard deviation of all noise on each statistic."""
        certificate = self.certificate
        own = SPHERICAL[certificate.noise].square(certificate.noise_dimension, certificate.noise_scale)
        assert certificate.cover is not None
        return float(np.sqrt((own + certificate.cover.size**2) / certificate.noise_dimension))

    def __repr__(self) -> str:
        return f"Statistics({self.moments.count} sums; {self.status})"

    def fit(self, template: Template | None = None, ridge: float | None = None) -> Release:
        """Fit a template from the statistics; it costs nothing.

        Parameters
        ----------
        template : Template, optional
            By default, the one that the statistics were released for.  Another one is for the same record, with a loss whose Q
            and q are linear in the same moments, else a `TemplateError` is raised; regularizer and constraints are free.
        ridge : float, optional
            What to add to the noisy Q, in sum form, after it was projected on positive semidefinite matrices.  By default 0.7
            times the largest eigenvalue of the noise on it; of whitened records, in their coordinates, half of that eigenvalue.
        """
        chosen = self.matching(template)
        if ridge is not None and not (is_real(ridge) and 0 <= ridge < np.inf):
            raise TemplateError(f"fit: the ridge must be a finite number, 0 or more, not {ridge!r}.")
        form = form_of(chosen)
        noisy = self.quadratic(chosen)
        turn = self.turn(noisy, form)
        hessian = noisy.convex(ridge, RIDGE if self.whitening is None else WHITENED_RIDGE)
        theta = least_point(form, sp.csr_array(turn.T @ hessian @ turn), turn.T @ noisy.slope, self.certificate.size)
        found = form.space.unpack(theta)
        return Release(found, self.certificate, self.spent, self.not_private_because, **functions_of(chosen))

    def turn(self, noisy: NoisyQuadratic, form: LossForm) -> sp.csr_array:
        """Return the parameters for whitened records as a linear map of those for records, shape (dim, dim)."""
        if self.whitening is None:
            return sp.csr_array(sp.eye_array(noisy.loss.dim))
        back = np.asarray(np.linalg.inv(self.whitening.matrix) * (self.whitening.least / self.whitening.radius))
        return turned_parameters(form, self.whitening.field, back)

    def quadratic(self, template: Template | None = None) -> NoisyQuadratic:
        """Return the noisy sum of a template's losses as a quadratic function of its parameters, those for whitened records."""
        loss: QuadraticLoss = quadratic_loss(form_of(self.matching(template)))
        return NoisyQuadratic(loss, self.moments, np.append(self.values, self.certificate.size), self.deviation)

    def matching(self, template: Template | None) -> Template:
        """Return the template that a fit is for, or raise `TemplateError` if it is for other records."""
        chosen = self.template if template is None else template
        if not isinstance(chosen, Template):
            raise TemplateError("fit: say which template to fit; saved statistics do not hold theirs.")
        if fields_of(chosen) != self.fields:
            both = f"statistics are of records with {self.fields}, and the template declares {fields_of(chosen)}"
            raise TemplateError(f"fit: {both}.")
        if self.whitening is not None:
            self.whitening.check(chosen)
        return chosen

    def _with(self, template: Any) -> Self:
        return replace(self, template=self.matching(template))


def fields_of(template: Template) -> str:
    """Return the names and shapes of the fields, and the values of discrete ones."""
    record = template.record
    continuous = [f"{name}: {domain.shape}" for name, domain in record.continuous.items()]
    return "; ".join([*continuous, *(f"{name}: {domain.values}" for name, domain in record.discrete.items())])
