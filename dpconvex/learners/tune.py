"""Private tuning: candidates are fitted, and one of them is chosen by its mistakes; the whole keeps one promise.

On disjoint parts of the data every record takes part in one fit or in the choice, never in two, so the whole costs what one of
them costs (Chaudhuri, Monteleoni & Sarwate 2011, algorithm 4).  On all of the data the fits share the promise by accounting; or
their number is random, and the price is a share of epsilon that depends on its law, and hardly on its mean (docs/theory.md,
section 8).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.accounting.events import Event
from dpconvex.core.derivation import Derivation
from dpconvex.core.runtime import quietly
from dpconvex.errors import TemplateError
from dpconvex.language.columns import Chunks
from dpconvex.language.privacy import Privacy, computable, left
from dpconvex.language.record import Checked, in_partitions
from dpconvex.language.template import Template
from dpconvex.learners.evaluate import Errors, named_templates
from dpconvex.learners.sweep import bar, fitted, planned as shared
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import RUNS, Certificate
from dpconvex.mechanisms.grid import IntegerNoise, laplace_count, measurement, perturb
from dpconvex.mechanisms.private_selection import SELECTIONS, Repetitions, select
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit, solve
from dpconvex.release.verify import Method, Proved

# Part of epsilon that pays for a choice among fits on all of the data.
CHOICE = 0.1
COMPOSED = "composition of fits and choice; docs/theory.md, section 20"
REPEATED = "Papernot & Steinke 2022, theorem 2 and corollary 3; docs/theory.md, section 8"


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

    Notes
    -----
    With m candidates there are m + 1 parts.  Under replace-one the parts are a public random split of the positions; under
    add-remove every record chooses its part by itself, so that adding one does not move the others.

    `tune_repeated` fits on all of the data instead, with about half of epsilon for each fit, however many candidates there are.
    """
    if selection not in SELECTIONS:
        raise TemplateError(f"tune: selection must be one of {SELECTIONS}, not {selection!r}.")
    named = named_templates(candidates, data, features, label)
    method, templates = Method(mechanism, None, whitening), list(named.values())
    call = Fit(data, privacy, templates, method, backend, size, clip, budget, "tune", seed, workers)
    return (on_parts if split else on_all)(named, call, selection, (features, label))


@quietly
def tune_repeated(
    candidates: Mapping[str, Any] | Sequence[Any],
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    repetitions: Repetitions | None = None,
    features: str = "x",
    label: str = "y",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    whitening: Whitened = None,
    workers: Any = None,
) -> Tuning:
    """Fit candidates on all of the data, a random number of times, and release the best; the whole keeps one promise.

    Each repetition takes a candidate at random, fits it privately, and counts its mistakes on the same data, with noise.

    Parameters
    ----------
    backend : str or object, optional
        As for `solve`; it must keep nothing from one fit to the next: the proof takes the repetitions to be independent.
    repetitions : Repetitions, optional
        The law of their number, whose mean is the expected work in fits, and how they are accounted for.  By default 10 on
        average, with the logarithmic law.  A mean of one or two times the number of candidates is sensible.
    progress : bool, optional
        Whether to show a progress bar; by default, on a terminal.  Whoever sees it learns the number of repetitions, which the
        proof takes to be secret (docs/pitfalls.md).
    candidates, data, privacy, mechanism, features, label, size, clip, budget, seed, whitening, workers
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
    named = named_templates(candidates, data, features, label)
    chosen = repetitions if repetitions is not None else Repetitions()
    if not isinstance(chosen, Repetitions):
        raise TemplateError(f"tune_repeated: repetitions must be a Repetitions, not {repetitions!r}.")
    method, templates = Method(mechanism, None, whitening), list(named.values())
    call = Fit(data, privacy, templates, method, backend, size, clip, budget, "tune_repeated", seed, workers)
    plans = {name: planned(template, privacy, chosen, call.size, method) for name, template in named.items()}
    call.check(*(plan.fit for plan in plans.values()))
    for plan in plans.values():
        measurement(plan.score.noise, plan.score.scale)
    source, rng = call.source, call.source.rng
    count = chosen.draw(source.seeded)
    call.pay()
    fit, names = scored(named, call, (features, label)), list(named)
    best: tuple[int, str, Release] | None = None

    def repetition(name: str, own: NoiseSource) -> tuple[int, str, Release]:
        wrong, release = fit(name, plans[name].fit, own)
        return int(perturb(np.array([wrong], dtype=float), plans[name].score, own.seeded)[0]), name, release

    tasks = (partial(repetition, names[int(rng.integers(len(names)))], source.next()) for _ in range(count))
    with bar(None, progress) as shown:
        for found in fitted(tasks, workers):
            # Of equal scores the first counts: runs are exchangeable, so that is a choice at random among them.
            if best is None or found[0] < best[0]:
                best = found
            if shown is not None:
                shown.update()
    assert best is not None  # there is at least one repetition
    score, name, release = best
    release = replace(release, certificate=plans[name].certificate, **source.spending(privacy))
    return Tuning(name, release, release.spent, score)


def on_parts(named: Mapping[str, Template], call: Fit, selection: str, fields: tuple[str, str]) -> Tuning:
    """Fit every candidate on a part of the data of its own, and choose one on another part."""
    call.check()
    for name, column in () if in_partitions(call.data) else call.data.items():
        if isinstance(column, Chunks):
            raise TemplateError(f"tune: the column {name!r} comes in chunks, and cannot be split; use tune_repeated.")
    record, privacy, method, count = call.record, call.privacy, call.method, len(named) + 1
    share = call.size // count
    if share < 1:
        raise TemplateError(f"tune: {call.size} records cannot be split into {count} parts.")
    call.check(*(method.prove(template, privacy, share) for template in named.values()))
    call.pay()
    batch = record.validate(call.data, clip=call.clip, empty=call.protected)
    part = parts(batch.size, count, privacy.adjacency, call.source.rng)

    def fit(k: int, template: Template) -> Release:
        mine: Any = Checked(template.record, batch.chosen(part == k), call.clip)
        stream, nominal = None if call.seed is None else call.seed + k, share if call.protected else None
        options: dict[str, Any] = {"size": nominal, "clip": call.clip, "seed": stream, "whitening": method.whitening}
        return solve(template, mine, privacy, method.mechanism, call.backend, **options)

    releases = list(fitted((partial(fit, k, t) for k, t in enumerate(named.values())), call.workers))
    held_out = batch.chosen(part == len(named))
    counts = [Errors(record, item, *fields, call.protected).total(held_out) for item in releases]
    chosen = select(counts, privacy.epsilon, privacy.adjacency, call.source.seeded, selection)
    return Tuning(list(named)[chosen], releases[chosen], privacy if call.seed is None else None)


def parts(size: int, count: int, adjacency: str, rng: np.random.Generator) -> NDArray[np.unsignedinteger[Any]]:
    """Assign each record to a part, without looking at the records, shape (size,)."""
    small = np.min_scalar_type(count)  # there may be many records
    if adjacency == "add-remove":
        return np.asarray(rng.integers(0, count, size=size)).astype(small)
    # Parts differ in size by at most one; a fit's own size is the number of records in its part, which is public here.
    return np.asarray(rng.permutation(np.resize(np.arange(count, dtype=small), size)))


def on_all(named: Mapping[str, Template], call: Fit, selection: str, fields: tuple[str, str]) -> Tuning:
    """Fit all candidates on all of the data, and choose one by its mistakes on the same; fits and choice share the promise."""
    privacy, source, count = call.privacy, call.source, len(named)
    choice = Privacy(CHOICE * privacy.epsilon, 0.0, privacy.adjacency)
    plan = shared(list(named.values()), privacy, call.size, 1, call.method, choice)
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
        COMPOSED,
        "These are the constants of one fit; the promise pays for all of them and for the choice.",
    )
    release = replace(releases[chosen], certificate=certificate, **source.spending(privacy))
    return Tuning(list(named)[chosen], release, release.spent)


@dataclass(frozen=True)
class Plan:
    """What one repetition does with a candidate, with the noise of its score, and the certificate of the whole."""

    fit: Proved
    score: IntegerNoise
    certificate: Certificate


def planned(template: Template, privacy: Privacy, repetitions: Repetitions, size: int, method: Method) -> Plan:
    """Divide a promise among the choice, the fits and their scores, without any data."""
    with computable(privacy):
        # Decided once, for the whole promise: a fit's own may lie on the other side of a threshold.
        mechanism, first = method.way(template, privacy, size)
        own = Method(mechanism, None, first)
        each = repetitions.each(privacy)
        score = laplace_count(repetitions.share * each.epsilon)
        part = Privacy(left(each.epsilon, score.epsilon), each.delta, each.adjacency)
        fit = own.prove(template, part, size)
        shares = {"epsilon of a fit": part.epsilon, "epsilon of its score": score.epsilon}
    law = {"mean": float(repetitions.mean), "eta": float(repetitions.shape), "gamma": repetitions.gamma}
    certificate = of_the_best(
        fit.certificate,
        privacy,
        f"the best of {repetitions.mean:g} runs on average",
        repetitions.mean,
        None,
        Derivation("law of the number of runs, and shares of one", "", law | shares, "fixed before the data are read"),
        REPEATED,
        f"These are the constants of one run ({', '.join(f'{k} {v:.4g}' for k, v in shares.items())}); the rest of "
        f"epsilon pays for choosing the best of a random number of runs, {repetitions.mean:g} on average.",
        (
            "Nobody learns how many runs there were, and they are independent.",
            "A prediction depends on one record and the released parameters alone, so that a record moves the count of "
            "mistakes by at most one.",
            f"What is said above about one run's tail probability counts {repetitions.mean:g} times on average.",
        ),
    )
    return Plan(fit, score, certificate)


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

    def fit(name: str, way: Proved, source: NoiseSource) -> tuple[int, Release]:
        release = call.run(way, Checked(named[name].record, batch, call.clip), source)
        return Errors(named[name].record, release, *fields, call.protected).total(batch), release

    return fit
