"""Private tuning: fit candidates and choose one by its errors, under one guarantee (docs/theory.md, section 8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.budget import Budget
from dpconvex.accounting.events import Event
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import IntegerNoise, laplace_count, perturb
from dpconvex.checker.table import ONE_RUN, PARTS, RECORDS, RUNS
from dpconvex.data.batch import Batch
from dpconvex.data.record import num_records
from dpconvex.errors import DomainError
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import FitJob
from dpconvex.fitting.verify import CertifiedFit, FitOptions
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.private_selection import Repetitions, select
from dpconvex.model.privacy import Privacy, calibration, check_privacy, remaining
from dpconvex.model.template import Template
from dpconvex.noise.discrete import measurement
from dpconvex.noise.samplers import NoiseSource
from dpconvex.selection.candidates import named_templates, trial_release
from dpconvex.selection.record_counter import RecordCounter
from dpconvex.selection.sweep import calibrate_together
from dpconvex.util.arguments import instance, require
from dpconvex.util.runtime import in_order, quietly

# Share of epsilon for the choice among fits on all of the data.
CHOICE = 0.1
FIXED = "fixed before the data are read"
PARTS_SOURCE = "Chaudhuri, Monteleoni & Sarwate 2011, algorithm 4; docs/theory.md, section 8"
COMPOSED = "composition of fits and choice; docs/theory.md, section 20"
REPEATED = "Papernot & Steinke 2022, theorem 2 and corollary 3; docs/theory.md, section 8"
INDEPENDENT = "Nobody learns how many runs there were, and they are independent."
ALONE = "Mistakes are counted one by one: a prediction depends on one record and the released parameters alone."


@dataclass(frozen=True, eq=False)
class Tuning:
    """Hold the chosen candidate of a private choice.

    Attributes
    ----------
    choice, release : str and Release
        Name of the chosen candidate, and its fit.
    spent : Privacy or None
        What the fits, the choice and the release cost together.  None if a seed was given, here or to learn the schema.
    mistakes : int or None
        From `tune_repeated`: the noisy count of the chosen candidate's mistakes.  It is biased downwards, since the lowest count
        was chosen.  For a regression, the sum of squared errors divided by the squared range of the label.
    model : estimator or None
        If candidates are estimators: a copy of the chosen one with the release.  It predicts in the units of the table.
    """

    choice: str
    release: Release
    spent: Privacy | None
    mistakes: int | None = None
    model: Any = None


@quietly
def tune(
    candidates: Any,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    split: bool = True,
    features: str = "x",
    label: str = "y",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    workers: Any = None,
    unit: ArrayLike | None = None,
    entry: str = "tune",
) -> Tuning:
    """Fit several templates privately and choose one privately, under one guarantee.

    Parameters
    ----------
    candidates : mapping of str to Template, sequence of Template, or estimator
        Public: fixed without looking at the data.  All need the same record (fields, domains and labels) and a `predict` that
        treats every record alone.  A scikit-learn estimator of this package represents the template that it fits under this
        guarantee, and takes targets in the units of its `bounds`.  Options that `tune` takes, such as `epsilon`, raise an error.
        Each `KernelSVC` maps the features by its own frequencies.
    grid : mapping of str to sequence, optional
        For one estimator: values of its options.  All combinations are candidates.
    privacy : Privacy
        The guarantee of the whole.
    split : bool
        Fit every candidate on its own part of the data.  Otherwise all are fitted on all of the data, and chosen by their
        mistakes on it.  They then share the guarantee by accounting; Gaussian noise grows as the root of their number.  This is
        better for a few candidates, and needs a delta.
    features, label : str
        The fields that predictions are made from and compared with.
    mechanism
        As for `solve`, with ``split=False`` as for `calibrate`.
    data, backend, size, clip, budget, seed, workers
        As for `sweep`.
    unit, entry
        As for `solve`; a person's records stay together.

    Notes
    -----
    With m candidates there are m + 1 parts.  Every record takes part in one fit or in the choice, so the whole costs as much as
    one of them.  Only its epsilon and delta are known, because a record may be in either.  `tune_repeated` fits on all of the
    data, with about half of epsilon for each fit, for any number of candidates.

    The released fit has seen one part of m + 1.  It is often worse than the default on all of the data: tune only if candidates
    differ by more than the lost records are worth (docs/choosing.md).
    """
    check_privacy("tune", privacy, units=True)
    options = FitOptions(mechanism, None, backend, size, clip, budget, entry, seed, workers, unit, units=True)
    named, models, data, columns = named_templates(candidates, grid, data, features, label, privacy, options)
    names, templates = list(named), list(named.values())
    call = FitJob(data, privacy, templates, options)
    count, choice, plan, part = len(named) + 1, privacy, None, None
    if split:
        part, sizes = assign_parts(call, count)
        ways = [options.prove(template, privacy, share) for template, share in zip(templates, sizes, strict=False)]
    else:
        choice = privacy.part(CHOICE * privacy.epsilon)
        plan = calibrate_together(templates, privacy, call.size, 1, options, choice)
        ways = list(plan.fits)
    call.check(*ways)
    call.pay(None if plan is None else plan.event)
    batches = [call.cut(batch) for batch in batches_of(call, features, columns)]
    said = "the number of records changed; data must not change while they are fitted."
    require(part is None or batches[0].size == len(part), said, DomainError)

    def of_part(batch: Batch, k: int) -> tuple[Batch, dict[str, Any]]:
        """Return the records of one part (all records without a split), and their people if the guarantee has a unit."""
        rows = np.ones(batch.size, dtype=bool) if part is None else part == k
        mine = {} if call.people is None else {"people": call.people.chosen(rows)}
        return batch if part is None else batch.chosen(rows), mine

    def fitted(k: int, source: NoiseSource) -> Release:
        mine, whose = of_part(batches[k], k)
        return call.run(ways[k], mine, source, **whose)

    tasks = (partial(fitted, k, call.source.next()) for k in range(len(ways)))
    releases = list(in_order(tasks, workers or 1, "fits"))
    wrong = []
    for batch, template, release in zip(batches, call.templates, releases, strict=True):
        errors = RecordCounter(template.record, release, features, label, privacy)
        wrong.append(Fraction(errors.mistakes(of_part(batch, len(ways))[0]), errors.moved))
    best = select(wrong, choice.epsilon, privacy.adjacency, call.source.seeded)
    certificate: Any = releases[best].certificate or ways[best].certificate
    shares = {"fits": float(len(ways)), "records": float(call.size), "epsilon of the choice": choice.epsilon}
    many = f"the best of {len(ways)} fits"
    if plan is None:
        many += f" to parts of the data, one of {count} parts each, by"
        known = {PARTS: float(count), RECORDS: float(call.size)}
        certificate = certificate_of_choice(certificate, privacy, many, known, (shares, FIXED), PARTS_SOURCE)
    else:
        shares |= {"epsilon of each fit": plan.each.epsilon, "epsilon of all": plan.total.epsilon}
        steps, known = (shares, f"{FIXED}; composed by the rule: {plan.total.rule}"), {RUNS: float(len(ways))}
        fit = plan.certificates[best]
        certificate = certificate_of_choice(fit, privacy, f"{many} of", known, steps, COMPOSED, plan.event)
    return outcome(call, names[best], releases[best], certificate, models)


@quietly
def tune_repeated(
    candidates: Any,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    repetitions: Repetitions | None = None,
    features: str = "x",
    label: str = "y",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    workers: Any = None,
    unit: ArrayLike | None = None,
) -> Tuning:
    """Fit candidates on all of the data, a random number of times, and release the best, under one guarantee.

    Each repetition takes a candidate at random, fits it privately, and counts its mistakes on the same data, with noise.

    Parameters
    ----------
    backend : str or object, optional
        As for `solve`. It must keep no state between fits, because the proof assumes independent repetitions.
    repetitions : Repetitions, optional
        The distribution of their number, by default logarithmic with mean 10. A mean of one or two times the number of
        candidates is sensible.
    candidates, grid, data, privacy, mechanism, features, label, size, clip, budget, seed, workers, unit
        As for `tune`.

    Examples
    --------
    >>> import dpconvex as dp
    >>> grid = {f"{r:g}": dp.load("logistic_regression", features=2, regularization=r) for r in (0.01, 0.1)}
    >>> data = {"x": [[1.0, 0.0], [0.0, 1.0]] * 100, "y": [1, -1] * 100}
    >>> outcome = dp.tune_repeated(grid, data, dp.Privacy(2.0), repetitions=dp.Repetitions(mean=3))
    >>> outcome.choice in grid, outcome.spent.epsilon
    (True, 2.0)
    """
    check_privacy("tune_repeated", privacy, units=True)
    law = repetitions if repetitions is not None else Repetitions()
    instance(Repetitions).check("tune_repeated", repetitions=law)
    options = FitOptions(mechanism, None, backend, size, clip, budget, "tune_repeated", seed, workers, unit, units=True)
    named, models, data, columns = named_templates(candidates, grid, data, features, label, privacy, options)
    call = FitJob(data, privacy, list(named.values()), options)
    scores = {n: RecordCounter(t.record, trial_release(t), features, label, privacy) for n, t in named.items()}
    pairs = zip(named, call.templates, strict=True)
    plans = {n: repetition_plan(template, privacy, law, call.size, options, scores[n].moved) for n, template in pairs}
    call.check(*(fit for fit, *_ in plans.values()))
    for _, noise, _ in plans.values():
        measurement(noise.noise, noise.scale)
    source, names = call.source, list(named)
    count = law.draw(source.seeded)
    call.pay()
    batches = dict(zip(named, batches_of(call, features, columns), strict=True))

    def repetition(name: str, own: NoiseSource) -> tuple[int, str, Release]:
        fit, noise, _ = plans[name]
        release = call.run(fit, batches[name], own)
        wrong = replace(scores[name], release=release).mistakes(call.cut(batches[name]))
        return int(perturb(np.array([float(wrong)]), noise, own.seeded)[0]), name, release

    tasks = (partial(repetition, names[int(source.rng.integers(len(names)))], source.next()) for _ in range(count))
    # Ties go to the first run: runs are exchangeable, so this is a random choice among them.
    score, name, release = min(in_order(tasks, workers or 1, "fits"), key=lambda found: found[0])
    return outcome(call, name, release, plans[name][-1], models, round(score / scores[name].largest))


def outcome(
    call: FitJob, name: str, release: Release, certificate: Any, models: Mapping[str, Any], mistakes: int | None = None
) -> Tuning:
    found = replace(release, certificate=certificate, **call.source.spending(call.privacy))
    if (model := models[name]) is not None:
        model.release_ = found = model._annotated(found, call.templates[list(models).index(name)])
    return Tuning(name, found, found.spent if found.private else None, mistakes, model)


def batches_of(call: FitJob, features: str, columns: Sequence[Any]) -> list[Batch]:
    """Return the checked records of each candidate; candidates without a feature map of their own (None) share them."""
    made: dict[int, Batch] = {}
    for template, column in zip(call.templates, columns, strict=True):
        if id(column) not in made:
            made[id(column)] = call.batch(template.record, {} if column is None else {features: column})
    return [made[id(column)] for column in columns]


def assign_parts(call: FitJob, count: int) -> tuple[NDArray[Any], list[int]]:
    """Assign people, and so their records, to parts.  Return the part of each record, shape (n,), and the size of each part.

    Under replace-one the number of records is public, and neighbours differ in a person with equally many records.  The sizes of
    parts then have the same distribution for both (docs/theory.md, section 8).
    """
    people, adjacency = call.people, call.privacy.adjacency
    whose = np.arange(num_records(call.data)) if people is None else people.of
    many, size = int(whose.max(initial=-1)) + 1, call.size if call.protected else 0
    require((size or many) >= count, f"tune: {size or many} records or people cannot be split into {count} parts.")
    own = parts(many, count, many // count, adjacency, call.source.rng)
    part = own[whose]
    sizes = np.bincount(part if people is None or not people.weighted else own, minlength=count)
    return part, [size // count] * count if call.protected else sizes.tolist()


def parts(size: int, count: int, share: int, adjacency: str, rng: np.random.Generator) -> NDArray[Any]:
    """Assign each record, or person, to a random part, shape (size,); independently under add-remove."""
    small = np.min_scalar_type(count)  # there may be many records
    if adjacency == "add-remove":
        return rng.integers(0, count, size=size).astype(small)
    # The remainder joins the last part, which chooses.
    return rng.permutation(np.minimum(np.arange(size) // share, count - 1).astype(small))


def repetition_plan(
    template: Template, privacy: Privacy, repetitions: Repetitions, size: int, options: FitOptions, moved: int = 1
) -> tuple[CertifiedFit, IntegerNoise, Certificate]:
    """Return the fit of one repetition, the noise of its score, and the certificate of the whole procedure."""
    with calibration(privacy):
        # Plan the mechanism for the whole guarantee: the share of one fit may lie on the other side of a threshold.
        mechanism = options.plan(template, privacy, size)
        each = repetitions.each(privacy)
        score = laplace_count(repetitions.share * each.epsilon, moved)
        part = each.part(remaining(each.epsilon, score.epsilon), each.delta)
        fit = replace(options, mechanism=mechanism).prove(template, part, size)
    shares = {"epsilon of a fit": part.epsilon, "epsilon of its score": score.epsilon}
    law = {"mean": float(repetitions.mean), "eta": float(repetitions.shape), "gamma": repetitions.gamma}
    known = dict(zip(ONE_RUN, (law["eta"], law["gamma"], part.epsilon, score.epsilon, part.delta), strict=True))
    settings = {RUNS: float(repetitions.mean)} | known
    many, steps = f"the best of {repetitions.mean:g} runs on average of", (law | shares, FIXED)
    found = certificate_of_choice(fit.certificate, privacy, many, settings, steps, REPEATED)
    told = f"What is said above about one run's tail probability counts {repetitions.mean:g} times on average."
    return fit, score, found.copied(event=None, assumptions=(*found.assumptions, INDEPENDENT, told))


def certificate_of_choice(
    fit: Certificate,
    privacy: Privacy,
    many: str,
    settings: dict[str, float],
    shares: tuple[dict[str, float], str],
    source: str,
    event: Event | None = None,
) -> Certificate:
    """Return the certificate of a choice among fits; `event` covers all fits and the choice."""
    steps = Derivation("shares of the guarantee", "", *shares), fit.derivation
    told = "These are the constants of one fit; the guarantee pays for all of them and for the choice."
    return fit.copied(
        event=event,
        privacy=privacy,
        mechanism=f"{many} {fit.mechanism}",
        settings={**fit.settings, **settings},
        derivation=Derivation(many.rpartition(" ")[0], "", privacy.claims, source, steps),
        assumptions=(*fit.assumptions, ALONE),
        advice=(*fit.advice, told),
    )
