"""Evaluation of a released model on records, by counts with integer noise (docs/evaluation.md; docs/release.md, section 3)."""

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from dpconvex.accounting.budget import Budget
from dpconvex.accounting.events import Pure
from dpconvex.certificates.integer_noise import perturb
from dpconvex.data.domains import Box, Choice
from dpconvex.data.partitions import normalized
from dpconvex.data.record import Record, columns_of
from dpconvex.data.tables import is_list, text_of
from dpconvex.errors import DomainError, warn
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob
from dpconvex.fitting.verify import FitOptions
from dpconvex.model.people import WEIGHT, identifier_codes, template_to_fit
from dpconvex.model.privacy import ADJACENCIES, Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.discrete import measurement
from dpconvex.selection.evaluation import Evaluation
from dpconvex.selection.measures import WITHIN
from dpconvex.selection.record_counter import RecordCounter, says_survival, which_target
from dpconvex.util.arguments import FRACTION, TEXT, instance, one_of, require, whole
from dpconvex.util.arrays import Indices
from dpconvex.util.plain_data import is_whole
from dpconvex.util.runtime import Stage, quietly

MOST_CELLS = 200  # Of scores


@quietly
def evaluate(
    template: Template,
    release: Release,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    *,
    features: str = "x",
    label: str = "y",
    target: int | None = None,
    cells: ArrayLike | None = None,
    measures: Sequence[str] | None = None,
    group: str | None = None,
    groups: Sequence[Any] | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    entry: str = "evaluate",
    seed: int | None = None,
    unit: ArrayLike | None = None,
) -> Evaluation:
    """Measure the errors of a release on records outside its fit. On fitted records the result is as private, but too low.

    Records are counted in public cells, and the counts are released with noise.  For two labels with scores, cells are label
    by score.  For other labels they are label by right or wrong, and its probability.  For a number they are the residual, the
    prediction and the number.  For survival they are the interval of the event, or of censoring, and the mean probability to
    survive.  Errors, curves and calibration follow from these counts.

    Parameters
    ----------
    template : Template
        The template of the release; it declares the domain of a record.
    release : Release
        The release, or a model from elsewhere as a `Release` with a `predictor`.  Without functions, the template's predict.
        The functions must treat every record alone.
    privacy : Privacy
        Guarantee of the counts; its delta is not used.  With a unit, docs/unit.md states the effect of a person's records.
    features, label : str
        The fields of the features and of the label.  A label is a `Choice`, or a number in a `Box`.  Predictions use further
        fields that the template's `predict` names, with or without a default value.
    target : int, optional
        Index of the number that is evaluated, if the label or each prediction has several.
    cells : array_like, optional
        Public cut points of probabilities, or of scores if there are no probabilities; by default multiples of 0.1, and 0.003,
        0.015, 0.05, 0.95, 0.985 and 0.997.  For survival, of mean probabilities to survive.
    measures : sequence of str, optional
        ``("error",)`` spends all on the error: the noise is a sixth or less.  Counts also have ``("deviance",)``.
    group, groups : str and sequence, optional
        A column of `data`, and its public values: records are counted for each of them.
    entry : str
        Name of the spend in the ledger.
    data, clip, budget, seed, unit
        As for `solve`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-0.7, 0.7, (4000, 2))
    >>> data = {"x": x, "y": np.where(x[:, 0] + 0.3 * rng.logistic(size=4000) > 0, 1, -1)}
    >>> learner = dp.load("logistic_regression", features=2)
    >>> train, test = ({name: column[rows] for name, column in data.items()} for rows in dp.split(4000, seed=1))
    >>> release = dp.solve(learner, train, dp.Privacy(1.0), seed=2)
    >>> found = dp.evaluate(learner, release, test, dp.Privacy(1.0), seed=3)
    >>> bool(abs(found.auc - 0.85) < 0.05), found.confusion(0.5).shape
    (True, (2, 2))
    """
    check_privacy("evaluate", privacy, units=True)
    fits = "Of an estimator, pass its template(features), release_ and records(X, y)." * hasattr(template, "records")
    instance(Template).check("evaluate", fits, template=template)
    own = next((name for name in ("release", "release_") if hasattr(release, name)), "")
    instance(Release).check("evaluate", f"Pass its `{own}`." * bool(own), release=release)
    protected, data = privacy.adjacency == "add-remove", normalized(data)
    fields = dict(template_to_fit(template, privacy).record.fields)
    release = release if any(release.functions.values()) else release.with_template(template)
    TEXT.check("evaluate", features=features, label=label)
    TEXT.or_none.check("evaluate", group=group)
    instance(Sequence, 'such as ("error",)').or_none.check("evaluate", measures=measures)
    release = replace(release, labels=release.labels or getattr(fields.get(label), "values", None))
    require(groups is None or group is not None, "evaluate: groups are values of a column; name the column by group=.")
    if group is not None and groups is not None:
        require(group not in fields, f"evaluate: {group!r} is a field of the record; rename the column of groups.")
        fields[group] = Choice(groups)
    there = {features, label, *(columns_of(data).keys() or template.record.fields), WEIGHT, *({group} - {None})}
    needed = {name: domain for name, domain in fields.items() if name in there}
    record = Record(**needed) if needed else template.record  # the component of a mixture is not in the data
    check_target(label, fields.get(label), target, release)
    asked = (measures,) if isinstance(measures, str) else tuple(measures or ())
    cuts = cuts_of(release, cells)
    counter = RecordCounter(record, release, features, label, privacy, asked, cuts, group, target=target)
    counter.check("evaluate")
    release.check_data("evaluate", data, features)
    paid, size = privacy.part(privacy.epsilon), 1 if protected else None
    first, noise = replace(counter, centre=None, group=None), counter.cells.noise(paid)
    options = FitOptions(None, None, None, size, clip, budget, entry, seed, unit=unit, units=True)
    call = FitJob(data, paid, [template], options, record, release=release)
    for each in (noise, first.cells.noise(paid)):
        each.check()
        measurement(each.noise, each.scale)
    call.check()
    fewest = math.ceil(WITHIN * counter.cells.deviation(noise.scale / counter.largest))
    if not protected and call.size < fewest and seed is None:
        said = f"noise at {privacy} outweighs {call.size:,} records, so results are mostly noise"
        fewer = "" if asked or counter.survives else ', or measures=("error",)'
        warn(f"evaluate: {said}: take {fewest:,} or more, or a larger epsilon{fewer}.")
    call.pay(Pure(paid.epsilon))
    Stage.begin("counting the records")
    batch = call.cut(call.batch())
    people = batch.size if call.people is None else call.people.size
    said = "the number of records changed; data must not change during an evaluation."
    require(protected or people == call.size, said, DomainError)
    if "targets" in counter.cells.tables:
        noisy = perturb(first.cells.sums(first.counts(batch)), first.cells.noise(paid), call.source.seeded)
        counter = replace(counter, centre=first.cells.middle(noisy))
        noise = counter.cells.noise(paid)
    noisy = perturb(counter.cells.sums(counter.counts(batch)), noise, call.source.seeded)
    domain, one = counter.domain, counter.largest
    return Evaluation(
        counter.cells,
        tuple((noisy / one).tolist()),
        noise.scale / one,
        total=None if protected else people,
        labels=getattr(domain, "values", ()),
        groups=() if group is None else record.discrete[group].values,
        label=label if target is None else f"{label}[{target}]",
        bounds=(float(domain.lower), float(domain.upper)) if counter.cells.kind == "numbers" else (0.0, 1.0),
        clusters=1 if privacy.keep == "weights" else privacy.most,
        **call.stated(paid),
    )


def check_target(label: str, domain: Any, target: int | None, release: Release) -> None:
    """Raise for several numbers without `target`, and for an index out of range; `RecordCounter` checks predictions."""
    several = domain.shape[0] if isinstance(domain, Box) and len(domain.shape) == 1 else 0
    number = isinstance(domain, Box) and domain.shape == ()
    said = f"evaluate: {label!r} has {several or 'only one or no'} numbers.{which_target(several)}"
    said = f"evaluate: target is the index of a column of predictions, from 0, not {target!r}." if number else said
    fits = is_whole(target, 0) and (number or int(target or 0) < several)
    require(fits if target is not None else not several or says_survival(domain, release), said)


def cuts_of(release: Release, cells: Any) -> tuple[float, ...] | None:
    """Return the cuts of scores between 0 and 1, including the score from which the second label is predicted."""
    if cells is None:
        return None
    cuts = np.array([np.nan])
    with suppress(TypeError, ValueError):
        cuts = np.asarray(cells, dtype=float).ravel()
    shares = release.probabilities is not None or release.decision is None
    found = cuts if shares else expit(cuts)
    what = "probabilities between 0 and 1" if shares else "finite scores"
    fits = 0 < len(found) <= MOST_CELLS and ((found > 0) & (found < 1)).all()
    require(fits, f"evaluate: cells must be up to {MOST_CELLS} {what}, not {cells!r:.60}.")
    return tuple(np.union1d(found, [0.5]).tolist())


def split(
    unit: Any, test: float = 0.25, seed: int | None = None, adjacency: str = "replace-one"
) -> tuple[Indices, Indices]:
    """Return the indices of records to fit and to evaluate; the records of a person stay together.

    A key and the identifier alone give each person a random number.  The share `test` of people with the smallest numbers is
    the evaluation part.  So replacing a person moves one person of each part.  Under add-remove, it is all people with a
    number below `test`, so that a further person moves nobody else.

    Parameters
    ----------
    unit : array_like or int
        Identifiers of the people of all records; or the number of records, if each is a different person's.
    test : float
        Share of people in the evaluation part; under add-remove, the probability of being in it.
    seed : int, optional
        Repeats the same split.  Under replace-one, leave it out if people have different numbers of records: fits publish how
        many the parts have, and with the seed anyone can infer from that which identifiers are there.  Otherwise the split need
        not be secret.  If `unit` is a number of records, neighbours under add-remove differ by a record at the end.
    adjacency : {"replace-one", "add-remove"}
        Adjacency of the guarantees.
    """
    FRACTION.check("split", test=test)
    whole(0).or_none.check("split", seed=seed)
    one_of(ADJACENCIES).check("split", adjacency=adjacency)
    count = unit if is_whole(unit, 2) else None
    several = count or (is_list(unit) and getattr(unit, "ndim", 1) == 1 and len(unit) > 1)
    require(several, "split: pass one identifier for each of several records, or their number.")
    if count:
        of, numbers = np.arange(count), np.random.default_rng(seed).random(count)
    else:
        of, people = identifier_codes(unit)
        key = secrets.token_bytes(32) if seed is None else repr(seed).encode()
        numbers = np.array([number_of(key, person) for person in people])
    last = min(max(round(test * len(numbers)), 1), len(numbers) - 1) - 1  # somebody is left for the fit
    chosen = numbers <= (test if adjacency == "add-remove" else np.sort(numbers)[last])
    return np.flatnonzero(~chosen[of]), np.flatnonzero(chosen[of])


def number_of(key: bytes, identifier: Any) -> float:
    """Return a number from 0 to 1 determined by a key and one identifier; equal identifiers have equal numbers."""
    plain = int(identifier) if isinstance(identifier, bool) else identifier
    digest = blake2b(text_of(plain).encode("utf-8", "surrogatepass"), key=blake2b(key, digest_size=32).digest())
    return int.from_bytes(digest.digest()[:8], "big") / 2**64
