"""Private tuning on all of the data: a random number of fits, each scored privately, of which only the best is released.

Unlike `tune`, which splits the data among the candidates, every fit sees every record.  The price is a share of epsilon that
depends on the law of the number of fits, and hardly on its mean (docs/theory.md, section 8).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.accounting.events import Event
from dpconvex.core.derivation import Derivation
from dpconvex.core.runtime import quietly
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.privacy import Privacy, computable, left
from dpconvex.language.template import Template
from dpconvex.learners.sweep import bar, fitted
from dpconvex.learners.tune import Tuning, named_templates, of_the_best, scored
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.grid import IntegerNoise, gaussian_count, laplace_count, measurement, perturb
from dpconvex.mechanisms.private_selection import Repetitions, concentration
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.noise.profiles import profile_epsilon
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit
from dpconvex.release.verify import Method, Proved

SOURCE = "Papernot & Steinke 2022, theorem 2 and corollary 3; docs/theory.md, section 8"
# A fit that is to be concentrated uses at least so much of what it may.
CLOSE = 0.999


@dataclass(frozen=True)
class Plan:
    """What one repetition does with a candidate, with the noise of its score, and the certificate of the whole."""

    fit: Proved
    score: IntegerNoise
    certificate: Certificate


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

    Raises
    ------
    NotPrivate, TemplateError, DomainError, NotConverged, BudgetExceeded
        As for `tune`.  Whenever an error is raised, or a run is interrupted, nothing is released; once the data are read, the
        promise is paid for.

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
    method = Method(mechanism, None, whitening)
    templates = list(named.values())
    call = Fit(data, privacy, templates, method, backend, size, clip, budget, "tune_repeated", seed, workers)
    plans = {name: planned(template, privacy, chosen, call.size, method) for name, template in named.items()}
    call.check(*(plan.fit for plan in plans.values()))
    for plan in plans.values():
        measurement(plan.score.noise, plan.score.scale)
    source, rng = call.source, call.source.rng
    count = chosen.draw(source.seeded)
    call.pay(costliest(plans.values()))
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


def planned(template: Template, privacy: Privacy, repetitions: Repetitions, size: int, method: Method) -> Plan:
    """Divide a promise among the choice, the fits and their scores, without any data."""
    with computable(privacy):
        # Decided once, for the whole promise: a fit's own may lie on the other side of a threshold.
        mechanism, first = method.way(template, privacy, size)
        own = Method(mechanism, None, first)
        if repetitions.accounting == "renyi":
            rho = repetitions.each_concentrated(privacy)
            fit = concentrated_fit(template, privacy, rho * (1 - repetitions.share), size, own)
            score = gaussian_count(rho * repetitions.share, privacy.epsilon)
            shares = {"rho of a fit": concentration(fit.certificate), "rho of its score": rho * repetitions.share}
            event = repetitions.event(math.fsum(shares.values()))
        else:
            each, event = repetitions.each(privacy), None
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
        event,
        Derivation("law of the number of runs, and shares of one", "", law | shares, "fixed before the data are read"),
        SOURCE,
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


def costliest(plans: Iterable[Plan]) -> Event | None:
    """Return what the whole is for accounting, whichever candidate is run: the event of all runs with the largest rho."""
    events = [plan.certificate.event for plan in plans]
    known = [event for event in events if event is not None]
    return max(known, key=lambda event: event.renyi(2.0)[0]) if len(known) == len(events) else None


def concentrated_fit(template: Template, privacy: Privacy, rho: float, size: int, method: Method) -> Proved:
    """Certify a fit, with the whole's delta, whose noise is rho-zero-concentrated; checked, not assumed."""
    target = rho
    for _ in range(20):
        part = Privacy(profile_epsilon(math.sqrt(2 * target), privacy.delta), privacy.delta, privacy.adjacency)
        fit = method.prove(template, part, size)
        found = concentration(fit.certificate)
        if CLOSE * rho <= found <= rho:
            return fit
        target *= rho / found * (1 - 1e-4)
    raise NotPrivate(
        "no noise was found that keeps the promise under Rényi accounting",
        f"rho = {rho:.4g}",
        "use accounting='direct'",
    )
