"""Everything as it is released: two data sets are fitted many times, and what tells the answers apart is counted.

Half of the answers choose an event, the other half count it, with Clopper and Pearson's confidence bounds ("The use of confidence
or fiducial limits", Biometrika 26, 1934).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from dpconvex.auditing.report import Attack, written
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.solve import resolved, run
from dpconvex.release.verify import Proved

Array = NDArray[np.float64]

# Probability with which the bounds on an honest mechanism fail.
DOUBT = 1e-3
# Thresholds among which the first half chooses.
THRESHOLDS = 40


def proportion_bounds(hits: int, count: int, doubt: float) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds on a probability; each fails with probability at most `doubt`.

    Examples
    --------
    >>> low, high = proportion_bounds(50, 100, 0.025)
    >>> round(low, 4), round(high, 4)
    (0.3983, 0.6017)
    """
    low = float(beta.ppf(doubt, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - doubt, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def attack_runs(
    template: Template, certificate: Certificate, mechanism: Mechanism, worst: Attack, backend: Any, count: int
) -> Attack:
    """Fit two neighbouring data sets `count` times each, and bound epsilon from below by the best event.

    The neighbours are those of the worst case that was found; all other records are copies of the second one's, or of the first's
    if the second has none.  Under add-remove there are none.
    """
    first, second = tables(template, certificate, worst)
    answers = [released(template, data, certificate, mechanism, backend, count) for data in (first, second)]
    half = count // 2
    gap = answers[0][:half].mean(axis=0) - answers[1][:half].mean(axis=0)
    scores = [values @ gap for values in answers]
    privacy = certificate.privacy
    best, event = -math.inf, ""
    thresholds = np.quantile(np.concatenate([s[:half] for s in scores]), np.linspace(0.02, 0.98, THRESHOLDS))
    for a, b, sign, name in ((0, 1, 1.0, "above"), (1, 0, -1.0, "below")):
        early = [leakage(scores[a][:half], scores[b][:half], sign, t, privacy.delta) for t in thresholds]
        t = float(thresholds[int(np.argmax(early))])
        found = leakage(scores[a][half:], scores[b][half:], sign, t, privacy.delta)
        if found > best:
            best, event = found, f"the answer along the difference of the means lies {name} {t:.4g}"
    return Attack(
        part="as released",
        epsilon=privacy.epsilon,
        delta=0.0,
        found_epsilon=max(best, 0.0),
        found_delta=0.0,
        how=f"{count} fits of each data set, with {100 * (1 - DOUBT):g} % confidence",
        record=worst.record,
        neighbour=worst.neighbour,
        notes=(f"Event: {event}.", f"All other records: {written(worst.neighbour or worst.record)}."),
    )


def leakage(first: Array, second: Array, sign: float, threshold: float, delta: float) -> float:
    """Bound epsilon from below by the frequencies of one event in two samples."""
    hits = [int((sign * s > sign * threshold).sum()) for s in (first, second)]
    low = proportion_bounds(hits[0], len(first), DOUBT / 4)[0] - delta
    high = proportion_bounds(hits[1], len(second), DOUBT / 4)[1]
    return math.log(low / high) if low > 0 else -math.inf


def tables(template: Template, certificate: Certificate, worst: Attack) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two data sets that differ in one record."""
    pair = worst.record, worst.neighbour
    others = pair[1] if pair[1] is not None else pair[0]
    assert others is not None
    made = []
    for one in pair:
        rows = [*([] if one is None else [one]), *[others] * (certificate.size - 1)]
        made.append(
            {
                name: np.array([row[name] for row in rows])
                if name in template.record.continuous
                else [r[name] for r in rows]
                for name in template.record.fields
            }
        )
    return made[0], made[1]


def released(
    template: Template, data: dict[str, Any], certificate: Certificate, mechanism: Mechanism, backend: Any, count: int
) -> Array:
    """Return `count` releases, each with fresh noise, as vectors, shape (count, dim)."""
    solver, found = resolved(backend), []
    checked = template.record.checked(data)
    for _ in range(count):
        release = run(Proved(template, certificate, mechanism), checked, solver, NoiseSource())
        found.append(np.concatenate([np.ravel(value) for value in release.values()]))
    return np.asarray(found)
