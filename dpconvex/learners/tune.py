"""Private tuning: candidates are trained on disjoint parts of the data, and one is chosen on a part of its own.

Every record takes part in one fit or in the choice, never in two, so the whole costs what one of them costs (Chaudhuri,
Monteleoni & Sarwate 2011, algorithm 4).  Or all are trained on all of the data, and the promise is shared by accounting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.events import Event
from dpconvex.core.derivation import Derivation
from dpconvex.core.record_domains import Box
from dpconvex.core.runtime import quietly
from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.batch import PartitionedBatch
from dpconvex.language.columns import Chunks
from dpconvex.language.partitions import Partitions
from dpconvex.language.privacy import Privacy
from dpconvex.language.record import in_partitions, table
from dpconvex.language.template import Template
from dpconvex.learners.evaluate import Errors, check_predictions
from dpconvex.learners.sweep import fitted
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import RUNS, Certificate
from dpconvex.mechanisms.private_selection import SELECTIONS, select
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget
from dpconvex.release.calibration import planned
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit, solve
from dpconvex.release.verify import Method, Proved

# Part of epsilon that pays for a choice among fits on all of the data.
CHOICE = 0.1
SOURCE = "composition of fits and choice; docs/theory.md, section 20"


@dataclass(frozen=True, eq=False)
class Tuning:
    """The outcome of a private choice.

    Attributes
    ----------
    choice : str
        Name of the chosen candidate.
    release : Release
        The chosen candidate's fit.
    spent : Privacy or None
        What the whole cost: the fits, the choice and the release together.  None if a seed was given.
    mistakes : int or None
        From `tune_repeated`: the choice's count of mistakes on the data, with noise, and lower than it should be because the
        lowest was chosen.  It is part of what was paid for.  None from `tune`.
    """

    choice: str
    release: Release
    spent: Privacy | None
    mistakes: int | None = None


@quietly
def tune(
    candidates: Mapping[str, Any] | Sequence[Any],
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    selection: str = "permute-and-flip",
    split: bool = True,
    features: str = "x",
    label: str = "y",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    whitening: Whitened = None,
    workers: Any = None,
) -> Tuning:
    """Fit several templates privately and choose one privately; the whole keeps one promise.

    Parameters
    ----------
    candidates : mapping of str to Template, or sequence of Template
        Public: fixed without looking at the data.  Each needs `predict`, which must treat every record by itself, and the same
        record: fields, domains and labels.  A scikit-learn estimator of this package stands for the template that it fits.
    privacy : Privacy
        The promise of the whole.
    selection : {"permute-and-flip", "exponential"}
    split : bool
        Whether every candidate is fitted on a part of the data of its own.  Otherwise all are fitted on all of the data, and
        chosen by their mistakes on the same; then they share the promise by accounting, with noise that grows as the root of
        their number where it is Gaussian.  That is better for a few candidates, and needs a delta to pay.
    features, label : str
        The fields that predictions are made from and compared with.
    mechanism, whitening
        As for `solve`, with ``split=False`` as for `calibrate`; each fit whitens by a noisy second moment of its own.
    data, backend, size, clip, budget, seed, workers
        As for `sweep`.

    Raises
    ------
    NotPrivate, TemplateError, DomainError, NotConverged, BudgetExceeded
        As for `solve`; also if there are fewer records than parts, a candidate cannot predict, or their records differ.

    Notes
    -----
    With m candidates there are m + 1 parts.  Under replace-one the parts are a public random split of the positions; under
    add-remove every record chooses its part by itself, so that adding one does not move the others.

    `tune_repeated` fits on all of the data instead, with about half of epsilon for each fit, however many candidates there are.
    """
    if selection not in SELECTIONS:
        raise TemplateError(f"tune: selection must be one of {SELECTIONS}, not {selection!r}.")
    named = named_templates(candidates, data, features, label)
    method, fields = Method(mechanism, None, whitening), (features, label)
    call = Fit(data, privacy, list(named.values()), method, backend, size, clip, budget, "tune", seed, workers)
    if not split:
        return on_all(named, call, selection, fields)
    call.check()
    columns: Any = call.data
    if not in_partitions(columns):
        columns = {name: whole(name, column) for name, column in columns.items()}
    share, record = call.size // (len(named) + 1), call.record
    if share < 1:
        raise TemplateError(f"tune: {call.size} records cannot be split into {len(named) + 1} parts.")
    call.check(*(method.prove(template, privacy, share) for template in named.values()))
    call.pay()
    batch = record.validate(columns, clip=clip, empty=call.protected)
    part = parts(batch.size, len(named) + 1, privacy.adjacency, call.source.rng)

    def fit(k: int, template: Template) -> Release:
        mine: Any
        if isinstance(batch, PartitionedBatch):
            mine = template.record.of_another(batch.chosen(part == k), record, clip)
        else:
            mine = {name: column[part == k] for name, column in columns.items()}
        stream, nominal = None if seed is None else seed + k, share if call.protected else None
        options: dict[str, Any] = {"size": nominal, "clip": clip, "seed": stream, "whitening": whitening}
        return solve(template, mine, privacy, mechanism, call.backend, **options)

    releases = list(fitted((partial(fit, k, t) for k, t in enumerate(named.values())), workers))
    held_out = record.of_another(batch.chosen(part == len(named)), record, clip)
    counts = [Errors(record, item, *fields, call.protected).total(held_out.batch) for item in releases]
    chosen = select(counts, privacy.epsilon, privacy.adjacency, call.source.seeded, selection)
    return Tuning(list(named)[chosen], releases[chosen], privacy if seed is None else None)


def on_all(named: Mapping[str, Template], call: Fit, selection: str, fields: tuple[str, str]) -> Tuning:
    """Fit all candidates on all of the data, and choose one by its mistakes on the same; fits and choice share the promise."""
    privacy, source, count = call.privacy, call.source, len(named)
    choice = Privacy(CHOICE * privacy.epsilon, 0.0, privacy.adjacency)
    plan = planned(list(named.values()), privacy, call.size, 1, call.method, choice)
    call.check(*plan.fits)
    call.pay(plan.event)
    fit = scored(named, call, fields)
    tasks = (partial(fit, name, way, source.next()) for name, way in zip(named, plan.fits, strict=True))
    wrong, releases = zip(*fitted(tasks, call.workers), strict=True)
    chosen = select(wrong, choice.epsilon, privacy.adjacency, source.seeded, selection)
    shares = {"epsilon of each fit": plan.each.epsilon, "epsilon of the choice": choice.epsilon, "fits": float(count)}
    shares["epsilon of all"] = plan.total.epsilon
    certificate = of_the_best(
        plan.certificates[chosen],
        privacy,
        f"the best of {count} fits",
        count,
        plan.event,
        Derivation("shares", "", shares, f"fixed before the data are read; composed by the rule: {plan.total.rule}"),
        SOURCE,
        "These are the constants of one fit; the promise pays for all of them and for the choice.",
    )
    release = replace(releases[chosen], certificate=certificate, **source.spending(privacy))
    return Tuning(list(named)[chosen], release, release.spent)


def of_the_best(
    fit: Certificate,
    privacy: Privacy,
    many: str,
    count: float,
    event: Event | None,
    shares: Derivation,
    source: str,
    told: str,
    assumed: tuple[str, ...] = (),
) -> Certificate:
    """Return the certificate of the whole, of several fits and the choice of one, from that of the chosen one."""
    return replace(
        fit,
        privacy=privacy,
        mechanism=f"{many} of {fit.mechanism}",
        settings={**fit.settings, RUNS: float(count)},
        event=event,
        derivation=Derivation(many, "", privacy.claims, source, (shares, fit.derivation)),
        assumptions=(*fit.assumptions, *assumed),
        advice=(*fit.advice, told),
    )


def scored(
    named: Mapping[str, Template], call: Fit, fields: tuple[str, str]
) -> Callable[[str, Proved, NoiseSource], tuple[int, Release]]:
    """Check the data once for all candidates; return what fits one of them, and counts its mistakes on the same records."""
    batch = call.record.validate(call.data, clip=call.clip, empty=True)
    checked = {name: item.record.of_another(batch, call.record, call.clip) for name, item in named.items()}

    def fit(name: str, way: Proved, source: NoiseSource) -> tuple[int, Release]:
        release = call.run(way, checked[name], source)
        return Errors(named[name].record, release, *fields, call.protected).total(checked[name].batch), release

    return fit


def named_templates(
    candidates: Mapping[str, Any] | Sequence[Any], data: Mapping[str, ArrayLike], features: str, label: str
) -> dict[str, Template]:
    """Return the candidates by name; refuse those whose mistakes cannot be counted, or that speak of other records."""
    table(data)
    if not isinstance(features, str):
        raise TemplateError(f"tune: features must be the name of a field, not {features!r}.")
    given = dict(candidates) if isinstance(candidates, Mapping) else {str(k): c for k, c in enumerate(candidates)}
    named = {name: declared(name, candidate, data, features) for name, candidate in given.items()}
    if not named:
        raise TemplateError("tune: there is no candidate to choose from.")
    first, reference = next(iter(named.items()))
    for name, template in named.items():
        record = template.record
        if template.predict is None:
            raise TemplateError(f"tune: candidate {name!r} declares no predict, so its mistakes cannot be counted.")
        if features not in record.continuous:
            raise TemplateError(f"tune: candidate {name!r} has no field {features!r} of numbers to predict from.")
        if not isinstance(label, str) or label not in record.discrete:
            raise TemplateError(
                f"tune: candidate {name!r} has no label {label!r} that is a Choice, so its mistakes cannot be counted."
            )
        zeros = {variable.name: np.zeros(variable.shape) for variable in template.variables}
        trial = Release(zeros, not_private_because="of no data", predictor=template.predict)
        check_predictions("tune", record, trial, features, strict=False)
        if comparable(template) != comparable(reference):
            raise TemplateError(
                f"tune: candidates {first!r} and {name!r} declare different records, and cannot be fitted to the same data: "
                f"{reference.record!r} and {record!r}."
            )
    return named


def declared(name: str, candidate: Any, data: Any, features: str) -> Template:
    """Return a candidate's template; an estimator stands for the one that it fits."""
    if isinstance(candidate, Template):
        return candidate
    build = getattr(candidate, "template", None)
    shape: tuple[int, ...] = ()
    if isinstance(data, Partitions):
        shape = (0, data.width(features)) if callable(build) else ()
    elif features in data:
        shape = tuple(getattr(data[features], "shape", np.shape(data[features])))
    if not callable(build) or len(shape) != 2:
        raise TemplateError(f"tune: candidate {name!r} is not a Template but {type(candidate).__name__}.")
    if getattr(candidate, "whitening", None) not in (None, False):
        raise TemplateError(
            f"tune: candidate {name!r} has an option whitening, and it is its template that is fitted: tune takes `whitening`."
        )
    template = build(shape[1])
    if (
        not isinstance(template, Template)
        or getattr(template.record.continuous.get(features), "shape", None) != shape[1:]
    ):
        raise TemplateError(
            f"tune: candidate {name!r} maps the features before it fits; map them yourself, and pass its template."
        )
    return template


def comparable(template: Template) -> dict[str, Any]:
    """Return what a template declares about a record, to be compared."""
    boxes = {name: d for name, d in template.record.continuous.items() if isinstance(d, Box)}
    choices = {name: frozenset(domain.values) for name, domain in template.record.discrete.items()}
    bounds = {name: (d.shape, d.lower.tolist(), d.upper.tolist()) for name, d in boxes.items()}
    return {**template.record.continuous, **bounds, **choices}


def whole(name: str, column: Any) -> Any:
    """Return a column that can be split at random: an array or a sparse matrix."""
    if isinstance(column, Chunks):
        raise TemplateError(f"tune: the column {name!r} comes in chunks, and cannot be split; use tune_repeated.")
    if sp.issparse(column):
        return sp.csr_array(column)
    array = np.asarray(column)
    if array.ndim == 0:
        raise DomainError(f"field {name!r}: expected one value per record, got a single one, of no axis.")
    return array


def parts(size: int, count: int, adjacency: str, rng: np.random.Generator) -> NDArray[np.unsignedinteger[Any]]:
    """Assign each record to a part, without looking at the records, shape (size,)."""
    small = np.min_scalar_type(count)  # there may be many records
    if adjacency == "add-remove":
        return np.asarray(rng.integers(0, count, size=size)).astype(small)
    assigned = np.resize(np.arange(count, dtype=small), size)
    # Parts differ in size by at most one; a fit's own size is the number of records in its part, which is public here.
    return np.asarray(rng.permutation(assigned))
