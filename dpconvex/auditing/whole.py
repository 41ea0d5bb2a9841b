"""The audit of a whole promise: every part of it is attacked by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpconvex.auditing.choices import attack_clustering, attack_repetitions, attack_selection
from dpconvex.auditing.objective import Effort, Objective
from dpconvex.auditing.parts import attack_cover, attack_drawing, attack_gradients, attack_output, attack_whitening
from dpconvex.auditing.released_statistics import attack_statistics
from dpconvex.auditing.report import Attack, Audit
from dpconvex.auditing.runs import attack_runs
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.template import Template
from dpconvex.learners.mixtures import fit_of_mixture, verify_mixture
from dpconvex.learners.tune_repeated import planned
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate, DescentCertificate, OutputCertificate, StatisticsCertificate
from dpconvex.mechanisms.private_selection import SELECTIONS, Repetitions
from dpconvex.mechanisms.recipe import Automatic, Whitened
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.release.verify import Method, analyse, verify

# Draws of a mechanism's noise that are compared with its law.
DRAWS = 8000
# Fewer fits cannot show anything.
FEWEST_RUNS = 20


def audit(
    template: Template | Sequence[Template] | Mapping[str, Template],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    *,
    size: int,
    cover: Cover | None = None,
    selection: str = "permute-and-flip",
    repetitions: Repetitions | None = None,
    share: float | None = None,
    effort: float = 1.0,
    runs: int = 0,
    backend: Any = None,
    seed: int | None = None,
    whitening: Whitened = None,
) -> Audit:
    """Attack a whole promise, epsilon and delta, and say how near the attack came.

    `falsify` attacks the constants of a proof.  All of them can be right and the promise still be false.  So here the promise
    itself is attacked: the exact law of the answer is computed for two neighbouring data sets, and the search is for those
    that it tells apart best.  No data are needed, and none are touched.

    Parameters
    ----------
    template : Template, or several
        Several are audited as `tune` would choose among them, or `tune_repeated` if `repetitions` is given.
    privacy : Privacy
        The promise.
    mechanism : Mechanism, optional
        As for `verify`.
    size : int
        Public number of records; under add-remove, a public nominal number.
    cover : Cover, optional
        As for `verify`.
    selection : {"permute-and-flip", "exponential"}
        How `tune` chooses.
    repetitions : Repetitions, optional
        The law of the number of fits of `tune_repeated`.
    share : float, optional
        Of the promise, for the components of a mixture: what `solve_mixture` does is audited.
    effort : float
        How long to search: a multiple of the usual effort.
    runs : int
        How often to fit both data sets of the worst case, to attack everything as it is released.  0 leaves that out; it takes
        thousands to see four fifths of epsilon = 1.
    backend : str or object, optional
        For these fits; as for `solve`.
    seed : int, optional
        Seed of the search, to repeat it.
    whitening : PrivateWhitening, bool or "auto", optional
        As for `verify`; only without `repetitions`, `share` and `runs`.

    Returns
    -------
    Audit
        For every part of the promise what is claimed and what was found, with the worst neighbours.  It prints, and draws a
        picture with ``plot(path)``.  Its `holds` is False if a claim was broken.

    Raises
    ------
    NotPrivate, MissingRule
        If there is no certificate to attack.
    TemplateError
        If an argument is malformed, or the attack cannot compute this law.

    Notes
    -----
    An attack that fails proves nothing; the proof is the certificate's derivation.  See docs/audit.md.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("logistic_regression", features=2, regularization=0.01)
    >>> found = dp.audit(template, dp.Privacy(1.0), dp.ObjectivePerturbation(), size=100, effort=0.2, seed=0)
    >>> found.holds, bool(found["exact answer"].ratio > 0.95)
    (True, True)
    """
    check_options(effort, runs, selection, repetitions, size)
    if whitening not in (None, False) and (runs or repetitions is not None or share is not None):
        raise TemplateError("audit: with whitening, leave out runs, repetitions and share.")
    if runs or repetitions is not None:  # what has no such attack is not what is chosen
        mechanism = mechanism or Automatic()
    rng, work = np.random.default_rng(seed), Effort.of(float(effort))
    candidates, tuned = list_of(template), not isinstance(template, Template)
    if repetitions is not None:
        return audit_repeated(candidates, privacy, mechanism or Automatic(), int(size), repetitions, work, rng)
    each = int(size) // (len(candidates) + 1) if tuned else int(size)
    if each < 1:
        raise TemplateError(f"audit: {size} records cannot be split into {len(candidates) + 1} parts.")
    attacks: list[Attack] = []
    certificate = None
    for k, candidate in enumerate(candidates):
        rest = privacy if share is None else fit_of_mixture(candidate, privacy, share)
        chosen, first = Method(mechanism, whitening=whitening).way(candidate, rest, each)
        if share is None:
            certificate = verify(candidate, privacy, each, chosen, cover, whitening=first)
        else:
            certificate = verify_mixture(candidate, privacy, each, mechanism, cover, share=share, whitening=whitening)
        found = attack_certificate(candidate, certificate, chosen, work, rng)
        if runs:
            found.append(attack_runs(candidate, certificate, chosen, found[0], backend, int(runs)))
        attacks.extend(named(found, k) if tuned else found)
    assert certificate is not None
    if not tuned:
        return Audit(privacy, certificate.mechanism, tuple(attacks))
    attacks.append(attack_selection(len(candidates), privacy, selection))
    return Audit(privacy, f"a choice among {len(candidates)} fits on disjoint parts", tuple(attacks))


def audit_repeated(
    candidates: list[Template],
    privacy: Privacy,
    mechanism: Mechanism,
    size: int,
    repetitions: Repetitions,
    work: Effort,
    rng: np.random.Generator,
) -> Audit:
    """Attack the fits, the scores and the choice of `tune_repeated`."""
    attacks = []
    for k, candidate in enumerate(candidates):
        plan = planned(candidate, privacy, repetitions, size, Method(mechanism))
        found = attack_certificate(candidate, plan.fit.certificate, mechanism, work, rng)
        attacks.extend(named([*found, attack_cover(plan.score, "noise of the score")], k))
    if repetitions.accounting != "renyi":
        attacks.append(attack_repetitions(repetitions, privacy))
    return Audit(privacy, f"the best of {repetitions.mean:g} runs on average", tuple(attacks))


def named(attacks: list[Attack], number: int) -> list[Attack]:
    return [replace(attack, part=f"candidate {number}, {attack.part}") for attack in attacks]


def attack_certificate(
    template: Template, certificate: Certificate, mechanism: Mechanism, work: Effort, rng: np.random.Generator
) -> list[Attack]:
    """Attack every part of one fit."""
    first = attack_whitening(certificate)
    if isinstance(certificate, StatisticsCertificate):
        return [*attack_statistics(template, certificate, DRAWS, rng), *first]
    analysis = analyse(template, mechanism)
    if isinstance(certificate, DescentCertificate):
        found = [attack_gradients(analysis, certificate, work, rng)]
    elif isinstance(certificate, OutputCertificate):
        found = [attack_output(analysis, certificate, work, rng)]
    else:
        found = [Objective(analysis, certificate, work, rng).attack()]
    if certificate.noise_dimension and certificate.noise != "matrix":
        found.append(attack_drawing(analysis, certificate, mechanism, DRAWS))
    if certificate.cover is not None:
        found.append(attack_cover(certificate.cover))
    found.extend(first)
    if certificate.clustering is not None:
        found.append(attack_clustering(certificate.clustering, certificate.privacy.adjacency))
    return found


def list_of(templates: Template | Sequence[Template] | Mapping[str, Template]) -> list[Template]:
    found: Any = list(templates.values()) if isinstance(templates, Mapping) else templates
    found = [found] if isinstance(found, Template) else found
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, Template) for one in found):
        raise TemplateError(f"audit: expected a Template or several, not {templates!r}.")
    return list(found)


def check_options(effort: float, runs: int, selection: str, repetitions: Repetitions | None, size: int) -> None:
    """Refuse options that make no sense."""

    def whole(number: Any) -> bool:
        return isinstance(number, int | np.integer) and not isinstance(number, bool)

    real = isinstance(effort, int | float) and not isinstance(effort, bool)
    for fine, said, given in (
        (real and 0 < effort < 1e6, "effort must be a positive number", effort),
        (whole(runs) and (runs == 0 or runs >= FEWEST_RUNS), f"runs must be 0, or at least {FEWEST_RUNS} fits", runs),
        (selection in SELECTIONS, f"selection must be one of {SELECTIONS}", selection),
        (repetitions is None or isinstance(repetitions, Repetitions), "repetitions must be a Repetitions", repetitions),
        (whole(size) and size >= 1, "size must be a positive integer", size),
    ):
        if not fine:
            raise TemplateError(f"audit: {said}, not {given!r}.")
