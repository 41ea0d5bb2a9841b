"""`dp.audit`: attacks on each part of a guarantee, and optionally on the releases of repeated fits."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from dpconvex.auditing import parts
from dpconvex.auditing.drawn import attack_draws, attack_rounds
from dpconvex.auditing.objective import Objective
from dpconvex.auditing.queries import attack_queries
from dpconvex.auditing.report import Attack, Audit, place_text
from dpconvex.certificates.certificate import (
    DescentCertificate,
    OutputCertificate,
    QueriesCertificate,
    StatisticsCertificate,
)
from dpconvex.fitting.solve import run
from dpconvex.fitting.verify import CertifiedFit, FitOptions, analyse, check_template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.plans import Automatic
from dpconvex.mechanisms.residual_noise import ResidualNoise
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.backend import resolve_backend
from dpconvex.selection.mixtures import MixturePlan
from dpconvex.util.arguments import COUNT, Kind, between, require, whole
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import is_whole
from dpconvex.util.runtime import quietly

# Smallest number of fits; probability that the bound fails for an honest mechanism; number of thresholds to try.
FEWEST_RUNS, DOUBT, THRESHOLDS = 20, 1e-3, 40


@quietly
def audit(
    template: Template,
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    *,
    size: int,
    residual_noise: ResidualNoise | None = None,
    share: float | None = None,
    effort: float = 1.0,
    runs: int = 0,
    backend: Any = None,
    seed: int | None = None,
) -> Audit:
    """Attack a whole guarantee (epsilon, delta), and report the largest delta or epsilon that the attack found.

    `falsify` attacks the constants of a proof.  The guarantee can be false although all of them are right.  `audit` computes the
    exact distribution of the answer for two neighbouring data sets, and searches the pair that it distinguishes best.  It needs
    and reads no data.

    Parameters
    ----------
    template : Template
    privacy : Privacy
        The guarantee.
    mechanism, residual_noise : object, optional
        As for `verify`.
    size : int
        Public number of records; under add-remove, a public nominal number.
    share : float, optional
        Share of the guarantee for the components of a mixture.  Then `solve_mixture` is audited.
    effort : float
        Length of the search, as a multiple of the default.
    runs : int
        Number of fits to both data sets of the worst case, to attack the whole release.  0 skips this attack.  Thousands of fits
        are needed to find four fifths of epsilon = 1.
    backend : str or object, optional
        Backend of these fits, as for `solve`.
    seed : int, optional
        Seed of the search, to repeat it.

    Returns
    -------
    Audit
        Claimed and found values for every part of the guarantee, with the worst neighbours.  Printing shows a table, and
        ``plot(path)`` draws a picture.  `holds` is False if a claim was broken.

    Notes
    -----
    An attack that fails proves nothing; the proof is the certificate's derivation.  See docs/audit.md.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("logistic_regression", features=2, regularization=0.01)
    >>> found = dp.audit(template, dp.Privacy(1.0), dp.ObjectivePerturbation(), size=100, effort=0.05, seed=0)
    >>> found.holds, bool(found["exact answer"].ratio > 0.95)
    (True, True)
    """
    check_template(template)
    between(0, 1e6).check("audit", effort=effort)
    Kind(f"0, or at least {FEWEST_RUNS} fits", lambda n: is_whole(n, FEWEST_RUNS) or n == 0).check("audit", runs=runs)
    COUNT.check("audit", size=size)
    whole(0).or_none.check("audit", seed=seed)
    if runs:  # the default plans include mechanisms that repeated fits cannot attack
        mechanism = mechanism or Automatic()
    rng = np.random.default_rng(seed)
    units = share is None and not runs
    check_privacy("audit of a mixture, or by runs,", privacy, units)
    plan = None if share is None else MixturePlan(template, privacy, None, share, "x", "y", "m")
    options = FitOptions(mechanism, residual_noise, units=units)
    found = options.prove(template, privacy if plan is None else plan.rest, int(size))
    found = found if plan is None else replace(found, certificate=plan.whole(found.certificate))
    attacks = list(attack_certificate(found, float(effort), rng))
    if runs:
        attacks.append(attack_runs(found, attacks[0], backend, int(runs)))
    return Audit(privacy, found.certificate.mechanism, tuple(attacks))


def attack_certificate(proved: CertifiedFit, effort: float, rng: np.random.Generator) -> Iterator[Attack]:
    template, certificate, mechanism = proved.template, proved.certificate, proved.mechanism
    times = certificate.privacy.person.weight  # the attacked people have equal rows, which count this many times
    if isinstance(certificate, QueriesCertificate):
        yield from attack_queries(analyse(template, mechanism).form, certificate, rng)
    elif isinstance(certificate, StatisticsCertificate):
        analysis = analyse(template, SufficientStatistics())
        yield parts.attack_statistics(analysis.form, certificate, rng, times)
    else:
        if times > 1:
            template = template.with_parts(losses=tuple(times * loss for loss in template.losses))
        analysis = analyse(template, mechanism)
        feasible = analysis.form.feasible
        said = f"audit: there is no projection on the feasible set: {feasible.reason}"
        require(feasible.has_projection, said)
        if isinstance(certificate, DescentCertificate):
            yield parts.attack_gradients(analysis, certificate, effort, rng)
        elif isinstance(certificate, OutputCertificate):
            yield parts.attack_output(analysis, certificate, effort, rng)
        else:
            yield Objective(analysis, certificate, effort, rng).attack()
    if certificate.cover is not None:  # there is one where noise is not on queries
        yield parts.attack_cover(certificate.cover)
        yield from attack_draws(analysis, certificate, mechanism, certificate.cover)
    if certificate.clustering is not None:
        yield parts.attack_clustering(certificate.clustering, certificate.privacy.adjacency)
        yield from attack_rounds(certificate.clustering)
    yield parts.attack_proof(certificate)


def attack_runs(proved: CertifiedFit, worst: Attack, backend: Any, count: int) -> Attack:
    """Fit the worst neighbours `count` times each, with copies of the second (or first) record, and bound epsilon from below."""
    solver, certificate, record, answers = resolve_backend(backend), proved.certificate, proved.template.record, []
    others = worst.record if worst.neighbour is None else worst.neighbour
    for one in (worst.record, worst.neighbour):
        rows: Any = [*([] if one is None else [one]), *[others] * (certificate.size - 1)]
        columns: Any = {name: [row[name] for row in rows] for name in record.fields}
        data = record.validate(columns | {name: np.array(columns[name]) for name in record.continuous}, empty=True)
        released = (run(proved, data, solver, NoiseSource()) for _ in range(count))
        answers.append(np.array([np.concatenate([np.ravel(v) for v in release.values()]) for release in released]))
    half = count // 2
    gap = answers[0][:half].mean(axis=0) - answers[1][:half].mean(axis=0)
    scores, delta = [values @ gap for values in answers], certificate.privacy.delta
    tried = []
    thresholds = np.quantile(np.concatenate([s[:half] for s in scores]), np.linspace(0.02, 0.98, THRESHOLDS))
    for a, b, sign, name in ((0, 1, 1.0, "above"), (1, 0, -1.0, "below")):
        t = max(thresholds, key=lambda t: leakage(scores[a][:half], scores[b][:half], sign, t, delta))
        event = f"Event: the answer along the difference of the means lies {name} {t:.4g}."
        tried.append((leakage(scores[a][half:], scores[b][half:], sign, t, delta), event))
    (best, event), epsilon = max(tried), certificate.privacy.epsilon
    how = f"{count} fits of each data set, with {100 * (1 - DOUBT):g} % confidence"
    further: Any = {"record": worst.record, "neighbour": worst.neighbour}
    notes = event, f"All other records: {place_text(others)}."
    return Attack("as released", epsilon, 0.0, max(best, 0.0), 0.0, how, notes=notes, **further)


def leakage(first: Array, second: Array, sign: float, threshold: float, delta: float) -> float:
    """Return a lower confidence bound on epsilon, from the frequencies of an event in two samples; minus infinity if none."""
    level = 1 - DOUBT / 2  # each of four one-sided bounds fails with probability DOUBT / 4
    counts = [binomtest(int((sign * s > sign * threshold).sum()), len(s)) for s in (first, second)]
    one, other = (count.proportion_ci(level, "exact") for count in counts)
    return math.log((one.low - delta) / other.high) if one.low > delta else -math.inf
