"""The private fit, and the private release of sums: data are read after the certificate is fixed and charged."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.accounting.budget import Budget, charge, charge_schema
from dpconvex.accounting.events import Event
from dpconvex.certificates.certificate import Certificate, DescentCertificate, QueriesCertificate, StatisticsCertificate
from dpconvex.certificates.integer_noise import perturb
from dpconvex.data.batch import Batch
from dpconvex.data.columns import check_aligned
from dpconvex.data.encoded import learnt_cost, origins
from dpconvex.data.partitions import Partitions, normalized
from dpconvex.data.record import Record, num_records, require_arrays
from dpconvex.data.schema import Schema, check_inside, check_unit
from dpconvex.errors import DomainError, NotPrivate, warn
from dpconvex.fitting.adaptive import release_steps
from dpconvex.fitting.engine import DataEngine, check_backend
from dpconvex.fitting.fit_warnings import constant_value, few_records
from dpconvex.fitting.release import Release, annotated, fields_of, functions_of
from dpconvex.fitting.statistics import Statistics
from dpconvex.fitting.verify import CertifiedFit, FitOptions, Ranged, analyse, check_template, form_of
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.residual_noise import ResidualNoise, check_noise, cover_records, noisy_upper_count
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, mechanism_of
from dpconvex.mechanisms.target_range import CELLS, counts_of, rescaled_targets
from dpconvex.model.people import NO_UNIT, People, template_to_fit
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.backend import resolve_backend
from dpconvex.optim.row_metrics import in_natural_units
from dpconvex.sums.moment_sums import moment_sums
from dpconvex.util.arguments import instance, require
from dpconvex.util.runtime import Stage, quietly

MOST_EPSILON = 50.0  # Larger epsilons cause a warning
AGAIN = "these data were used before, and no budget counts the total cost"
# For arrays, by id: a reference, the number of fits without a budget, and whether the user was just warned of them
FITTED: dict[int, tuple[Any, int, bool]] = {}


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
    entry: str = "solve",
    seed: int | None = None,
    residual_noise: ResidualNoise | None = None,
    checked: bool = False,
    unit: ArrayLike | None = None,
) -> Release:
    """Fit a template privately: add noise, solve, add residual noise on a grid, project on K (docs/release.md).

    Parameters
    ----------
    template, privacy, mechanism, residual_noise, checked
        As for `verify`.
    data : mapping of str to array_like
        One entry per field of the record.
    backend : str or object, optional
        Solver: "conic", "first-order", or a configured backend.
    size : int, optional
        Public number of records.  Under replace-one it is the number of records.  Under add-remove you must pass a nominal
        number, because the true number is protected.
    clip : bool
        Project records onto their declared domain instead of raising.
    budget : Budget, optional
        A ledger that records the cost before the data are read.  A failed fit stays charged.
    entry : str
        Label of the cost in the ledger.
    seed : int, optional
        For tests.  The release is then marked as not private.
    unit : array_like, shape (n,), optional
        Identifiers of the people of the records, if the guarantee has a unit.  Partitions with a column of identifiers need none.

    Raises
    ------
    NotPrivate, TemplateError, BudgetExceeded
        If there is no proof, an argument is invalid, or the remaining budget is too small; no data are read.
    DomainError, NotConverged
        If a record is outside its declared domain, or the answer has no certificate of its accuracy; nothing is released.
    """
    given = (mechanism, residual_noise, backend, size, clip, budget, entry, seed, None, unit, checked)
    fit = FitJob(data, privacy, [template], FitOptions(*given, units=True))
    return fit.run(fit.proved_and_paid(), fit.data, fit.source)


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
    entry: str = "statistics",
    seed: int | None = None,
    residual_noise: ResidualNoise | None = None,
    unit: ArrayLike | None = None,
) -> Statistics:
    """Release noisy sums that determine a quadratic loss, once.  `Statistics.fit` then fits any template with that loss.

    Parameters
    ----------
    template : Template
        Its loss is quadratic in the parameters.  Regularizer and constraints are not used here.
    privacy : Privacy
        Guarantee of the release, and of all fits together.
    mechanism : SufficientStatistics, optional
        By default with Gaussian noise, or Gamma noise for a guarantee without delta; `coefficients` need ``residuals=True``.
    data, size, clip, budget, entry, seed, residual_noise, unit
        As for `solve`.

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
    check_privacy("statistics", privacy, units=True)
    chosen = mechanism or SufficientStatistics.usual(privacy)
    instance(SufficientStatistics).check("statistics", mechanism=chosen)
    options = FitOptions(chosen, residual_noise, None, size, clip, budget, entry, seed, unit=unit, units=True)
    fit = FitJob(data, privacy, [template], options)
    proved = fit.proved_and_paid()
    with fit.told():
        found = released(proved, fit.data, fit.backend, fit.source, clip, fit.people)
    return annotated(found, fit.data)


@dataclass
class FitJob:
    """A call of `solve`, or of a function that uses it: options and the form of data are checked before any charge."""

    data: Any
    privacy: Privacy
    templates: Sequence[Template]
    options: FitOptions
    record: Any = None
    people: People | None = None
    release: Release | None = None  # the release that the call is about, for intervals and evaluations

    def __post_init__(self) -> None:
        options = self.options
        for template in self.templates:
            check_template(template)
        check_privacy("this", self.privacy, options.units)
        self.templates = [template_to_fit(template, self.privacy) for template in self.templates]
        self.data, self.source = normalized(self.data), NoiseSource(options.seed)
        check_unit(self.privacy.unit, *origins(self.data), getattr(self.release, "schema", None))
        promise: Any = self.release and (self.release.spent or getattr(self.release.certificate, "privacy", None))
        unit = promise.unit if promise else None
        why = f"the release protects a {unit}, but this guarantee a {self.privacy.unit or 'single record'}"
        remedy = f"ask for unit={unit!r} and most=, and pass unit= as to the fit"
        require(unit in (None, self.privacy.unit), f"{options.entry}: {why}; {remedy}.")
        if self.privacy.unit is not None:
            fields = self.data if isinstance(self.data, Mapping) else {"data": self.data}
            check_aligned({**fields, "unit": options.unit})
            whose = self.data.identifiers(options.unit) if isinstance(self.data, Partitions) else options.unit
            self.people = People.read(self.privacy, whose, num_records(self.data), self.source.rng)
            self.data = self.people.with_weights(self.data) if self.people.weighted else self.data
        require(options.unit is None or self.people is not None, NO_UNIT)
        self.learnt = learnt_cost([*origins(self.data), self.release])
        self.size = public_size(self.templates[0], self.data, self.privacy, options.size, self.people)
        self.backend = resolve_backend(options.backend)
        check_backend(self.data, self.backend)
        if options.workers is not None:
            require_arrays("a fit with workers", self.data, "leave workers out: partitions are summed where they lie")
        self.record: Record = self.record or self.templates[0].record
        self.protected = self.privacy.adjacency == "add-remove"

    def check(self, *fits: CertifiedFit) -> None:
        """Raise, before any charge, for errors that do not depend on values; warn of weak guarantees and useless fits."""
        self.record.check_form(self.data, empty=self.protected)
        for name, column in self.data.items() if isinstance(self.data, Mapping) and not self.options.clip else ():
            if isinstance(schema := getattr(column, "schema", None), Schema):
                check_inside(schema, self.record.fields[name], name)
        for fit in fits:
            check_noise(fit.certificate)
            if self.people is not None and isinstance(fit.certificate, DescentCertificate | QueriesCertificate):
                self.people.check_together(self.data)
        for said in [] if self.options.seed is not None else self.doubts(fits[:1]):
            warn(said)
        if self.uncounted and note_fit(self.data):
            warn(f"{AGAIN}: this call spends {self.privacy} on them. Count calls with budget=....")
        charge_schema(self.options.budget, self.learnt)

    def doubts(self, fits: Sequence[CertifiedFit]) -> Iterator[str]:
        """Yield warnings, by public facts, that a guarantee hardly protects or that noise may outweigh the records."""
        epsilon, delta, size = self.privacy.epsilon, self.privacy.delta, self.size
        if epsilon > MOST_EPSILON:
            yield f"epsilon = {epsilon:g} protects nobody: odds change by up to exp({epsilon:g}). 1 is strong, and 10 weak."
        if delta * size >= 1:
            publishing = "so publishing one record, drawn at random, would satisfy it"
            yield f"delta = {delta:g} is not below 1 / {size}, the number of records, {publishing}: take 1e-6, for example."
        for fit in fits:
            if fit.certificate.perturbed in ("objective", "output") and (far := in_natural_units(fit.template.record)):
                names, more = ", ".join(map(repr, far)), ", or pass a delta" * (not delta)
                why = "noise is the same in all directions, but fields are in natural units"
                yield f"{why}: scale {names} to -1 to 1 by public bounds{more}."
            constant = constant_value(analyse(fit.template, fit.mechanism), fit.certificate)
            yield from filter(None, (few_records(form_of(fit.template), fit.certificate), constant))

    @property
    def uncounted(self) -> bool:
        return self.options.budget is None and self.options.seed is None

    def pay(self, event: Event | None = None) -> None:
        charge(self.options.budget, self.privacy, self.options.entry, event)
        if self.uncounted:
            note_fit(self.data, 1)

    def stated(self, privacy: Privacy) -> dict[str, Any]:
        """Return the fields of a result that state its cost, and a reason why its release is not private."""
        paid, because = self.source.spending(privacy), self.release.not_private_because if self.release else ""
        return paid | {"not_private_because": because or paid["not_private_because"], "learnt": self.learnt}

    def proved_and_paid(self) -> CertifiedFit:
        found = self.options.prove(self.templates[0], self.privacy, self.size)
        self.check(found)
        self.pay(found.certificate.event)
        return found

    def cut(self, batch: Batch) -> Batch:
        return batch if self.people is None else self.people.cut(batch)

    def run(self, fit: CertifiedFit, data: Any, source: NoiseSource, people: People | None = None) -> Release:
        with self.told():
            return annotated(run(fit, data, self.backend, source, self.options.clip, people or self.people), self.data)

    def batch(self, record: Record | None = None, changes: Mapping[str, Any] | None = None) -> Batch:
        """Return the checked records, with columns changed, after the charge; an error about values states the cost."""
        data = {**self.data, **changes} if changes else self.data
        with self.told():
            return (record or self.record).validate(data, clip=self.options.clip, empty=True)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Context in which an error about values states the cost; without a budget, the failed fit is not counted."""
        try:
            yield
        except DomainError as error:
            note_fit(self.data, -self.uncounted)
            why = "stays paid for: a refund would reveal that the release failed, which may depend on the data"
            paid = f" {self.privacy} {why}." if self.options.budget else ""
            raise DomainError(f"{error}{paid}") from error


def note_fit(data: Any, change: int = 0, told: bool = False) -> int:
    """Add to the number of fits of an array; return the number before, or 0 if the last call set `told`."""
    first, before = next(iter(data.values()), None) if isinstance(data, Mapping) else data, 0
    with suppress(TypeError):  # lists have no weak references
        where = id(first)
        alive, fits, silent = FITTED.get(where, (None, 0, False))
        fits, silent = (fits, silent) if alive is not None and alive() is first else (0, False)
        before = 0 if silent else fits
        FITTED[where] = ref(first, partial(FITTED.pop, where)), max(fits + change, 0), told
    return before


def public_size(template: Template, data: Any, privacy: Privacy, size: int | None, people: People | None = None) -> int:
    """Return the public number of records; under add-remove, raise if it is not given."""
    if privacy.adjacency == "replace-one":
        records = num_records(data) if people is None else people.size
        why = f"size is {size}, but there are {records} records"
        require(size in (None, records), f"solve: {why}; replace-one needs the number of records.")
        return max(records, 1)
    if size is None:
        why = "under add-remove adjacency the number of records is private, and the regularization scales with it"
        remedy = "pass a public nominal number of records as `size`, one that was not counted from these data"
        raise NotPrivate(why, template.regularizer, remedy)
    return size


def run(
    fit: CertifiedFit, data: Any, backend: Any, source: NoiseSource, clip: bool = False, people: People | None = None
) -> Release:
    """Run a certified fit, after its charge, and return the release."""
    found = released(fit, data, backend, source, clip, people)
    return found.fit() if isinstance(found, Statistics) else found


def released(
    fit: CertifiedFit, data: Any, backend: Any, source: NoiseSource, clip: bool, people: People | None = None
) -> Release | Statistics:
    """Return the release of a certified fit, or the statistics."""
    batch, whose = checked_batch(fit, data, clip, people), None if people is None else people.of
    if isinstance(fit.certificate, QueriesCertificate):
        return release_steps(analyse(fit.template, fit.mechanism).form, fit.certificate, batch, source, whose)
    if fit.ranged is not None:
        return in_range(fit.certificate, fit.ranged, batch, backend, source, whose)
    return covered(fit, batch, backend, source, whose)


def in_range(
    proved: Certificate, ranged: Ranged, batch: Batch, backend: Any, source: NoiseSource, whose: Any
) -> Release:
    """Choose the range of the target privately, fit within this range, and return the release for the declared target."""
    plan, target, fit = ranged
    bounds = target.middle, target.half
    counts = batch.added_up(counts_of, batch.share(bounds))
    where = plan.chosen(np.zeros(CELLS, np.int64) if counts is None else counts, source.seeded)
    within = batch.mapped(rescaled_targets, batch.share((*bounds, *where)))
    if fit.template.constraints:  # they are scaled; no constant is larger
        place = plan.times(target.form.noise_dimension), where[1], target.offset(where)
        fit = replace(fit, template=target.capped(*place))
    found: Any = covered(fit, within, backend, source.next(), whose)
    whole, paid = plan.whole(found.certificate), source.spending(proved.privacy)
    whole = whole.copied(event=proved.event, privacy=proved.privacy, advice=proved.advice)
    return replace(found, parameters=target.restored(found.parameters, where), certificate=whole, **paid)


def checked_batch(fit: CertifiedFit, data: Any, clip: bool, people: People | None) -> Batch:
    """Return the checked records of a charged fit; raise if their number is not the certified one."""
    # If the number of records is protected, a fit on no records is valid too: its answer is noise and regularizer alone.
    protected = fit.certificate.privacy.adjacency == "add-remove"
    if not isinstance(data, Batch):
        Stage.begin("checking the records")
        data = fit.template.record.validate(data, clip=clip, empty=protected)
    Stage.begin("computing the private answer")
    batch = data if people is None else people.cut(data)
    records = batch.size if people is None else people.size
    both = f"there are {records} records, but there were {fit.certificate.size} when the guarantee was proved"
    remedy = "Data must not change during a fit; Partitions remember the sizes of old files: make new Partitions"
    require(protected or records == fit.certificate.size, f"{both}; nothing is released. {remedy}.", DomainError)
    return batch


@np.errstate(all="ignore")  # warnings of NumPy would reveal data
def covered(fit: CertifiedFit, batch: Batch, backend: Any, source: NoiseSource, whose: Any) -> Release | Statistics:
    """Compute the noisy answer, or the noisy sums, add the residual noise on a grid, and return the release."""
    template, certificate, mechanism, cover = fit.template, fit.certificate, fit.mechanism, fit.certificate.cover
    if isinstance(certificate, StatisticsCertificate):
        mechanism = mechanism_of(certificate)
    analysis = analyse(template, mechanism)
    if cover is not None and cover.counting:  # the noise depends on a bound on the records, from a private count
        most = noisy_upper_count(cover, batch.size, source.apart(), certificate.privacy.most)
        certificate = cover_records(mechanism, analysis, certificate, most)
        cover = certificate.cover
    assert cover is not None
    proof = {"certificate": certificate, **source.spending(certificate.privacy)}
    if isinstance(mechanism, SufficientStatistics):
        moments = mechanism.moments(analysis.form, certificate.privacy.adjacency)
        noisy = mechanism.perturbed(moment_sums(moments, batch), certificate, source.rng)
        if not np.isfinite(noisy).all():
            raise DomainError("the sums over the records overflow; nothing is released. Use other units.")
        values = perturb(noisy, cover, source.seeded)
        return Statistics(values, moments, fields_of(template), template=template, **proof)
    engine = DataEngine(analysis, batch, certificate.size, backend, whose)
    noisy = mechanism.run(analysis, certificate, engine, source.rng)
    # No point of these data was projected on this set before: the release is a function of the noisy answer alone.
    theta = analysis.form.feasible.project(perturb(noisy, cover, source.seeded))
    return Release(analysis.form.space.unpack(theta), **proof, **functions_of(template))
