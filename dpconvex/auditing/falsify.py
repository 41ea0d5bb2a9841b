"""`dp.falsify`: a search over records, neighbours and parameters that tries to break each certified constant."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dpconvex.auditing.report import Place, Row, place_text, table_lines
from dpconvex.auditing.search import POOL, Goal, Records, Search, moduli_of, unit
from dpconvex.certificates.certificate import Certificate, DescentCertificate, ObjectiveCertificate
from dpconvex.errors import DPConvexError
from dpconvex.fitting.verify import analyse
from dpconvex.model.template import Template
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sets.quadratics import slope_of
from dpconvex.util.arguments import COUNT, instance, refuse, require
from dpconvex.util.arrays import Array
from dpconvex.util.markup import html_table, paragraph

# Certified constants cover rounding by a relative 1e-11; a relative excess above this is not rounding.
TOLERANCE = 1e-9
ZERO = 1e-12  # Largest rounding of a constant that is certified to be zero
# Rows of A_z count as inside the sensitive subspace, and as linearly dependent, up to this fraction of their length.
RANK_TOLERANCE = 1e-9
LARGEST_RANK_TEST = 5000
TURNS = 20  # Steps of power iteration towards the least curvature
LONGER, PATIENCE = 1.5, 30  # Random steps for each requested step, and steps without a gain that end the search

NAMES = {
    "gradient_bound": "gradient bound G",
    "sensitivity": "sensitivity G_adj",
    "hessian_bound": "largest Hessian eigenvalue",
    "hessian_trace": "Hessian trace",
    "log_det": "log det(I + H/mu)",
    "epsilon": "cost of one record in epsilon",
    "noise_dimension": "sensitive subspace",
    "strong_convexity": "strong convexity mu",
}
HEAD: Row = ("constant", "observed", "certified", "ratio")


@dataclass(frozen=True, eq=False)
class Finding:
    """The worst case found for one constant, and its location.  `lower_bound`: the constant is certified from below."""

    constant: str
    observed: float
    certified: float
    lower_bound: bool = False
    record: Place = field(default=None, repr=False)
    neighbour: Place = field(default=None, repr=False)
    parameters: Place = field(default=None, repr=False)

    @property
    def ratio(self) -> float:
        """Observed over certified (for a lower bound: certified over observed); at most 1 if the constant holds."""
        small, large = (self.certified, self.observed) if self.lower_bound else (self.observed, self.certified)
        return small / large if large > 0 else 1.0 if small <= ZERO else math.inf

    @property
    def holds(self) -> bool:
        return self.ratio <= 1 + TOLERANCE


class Falsification(dict[str, Finding]):
    """Results of an attack on a template's constants: a mapping from each constant to its `Finding`.

    Keys are some of ``gradient_bound``, ``sensitivity``, ``hessian_bound``, ``hessian_trace``, ``log_det``, ``epsilon``,
    ``noise_dimension``, ``strong_convexity``; each has ``observed``, ``certified``, ``ratio`` and where it lies.
    """

    def _rows(self) -> Iterator[Row]:
        for constant, found in self.items():
            yield NAMES[constant], f"{found.observed:.6g}", f"{found.certified:.6g}", f"{found.ratio:.4f}"

    def __str__(self) -> str:
        return "\n".join(["The attack broke no constant.", "", *table_lines(HEAD, self._rows())])

    def _repr_html_(self) -> str:
        return paragraph("The attack broke no constant.") + html_table(HEAD, self._rows(), numbers=(1, 2, 3))


def falsify(
    template: Template,
    certificate: Certificate | None = None,
    *,
    starts: int = 32,
    steps: int = 60,
    seed: int | None = None,
) -> Falsification:
    """Attack the constants of a template by a search over records, neighbours and parameters.

    A constant that was broken is a defect of the toolkit, and raises `DPConvexError`.

    Parameters
    ----------
    template : Template
    certificate : Certificate, optional
        Attack its constants.  For objective perturbation this includes the log-determinant and, with Gamma noise, the whole cost
        of one record.  Without a certificate, the constants of the template alone are attacked (with the sensitivity under
        replace-one).
    starts : int
        Number of candidates that are improved at a time, for each constant and pair of different losses.
    steps : int
        Number of improvement steps, at most: fewer are taken where the largest value no longer rises.
    seed : int, optional
        Seed of the attack, to repeat it.

    Returns
    -------
    Falsification
        Observed and certified value of each constant, and the point of the observation.

    Notes
    -----
    An attack that fails proves nothing; the proof is the certificate's derivation.  The attack touches no data.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("logistic_regression", features=2)
    >>> certificate = dp.verify(template, dp.Privacy(1.0), size=100)
    >>> dp.falsify(template, certificate, starts=2, steps=10, seed=0)["gradient_bound"].ratio > 0.99
    True
    """
    why = "no constant of this certificate bounds gradients; dp.audit attacks its guarantee"
    require(getattr(certificate, "perturbed", "") not in ("statistics", "queries"), f"falsify: {why}.")
    analysis = analyse(template)
    instance(Certificate).or_none.check("falsify", certificate=certificate)
    COUNT.check("falsify", starts=starts, steps=steps)
    size, added = (1, 0.0) if certificate is None else (certificate.size, certificate.added)
    moduli = moduli_of(analysis, size, added)
    search = Search(analysis.form, np.where(moduli > 0, moduli, 1.0), np.random.default_rng(seed))
    claimed, findings = claims(analysis, certificate), dict[str, Finding]()
    goals = [goal for _, goal in claimed.values()]
    found = search.found(goals, (True, True), POOL[0], round(LONGER * int(steps)), int(starts), PATIENCE)
    for (constant, (bound, goal)), best in zip(claimed.items(), found, strict=True):
        one = best.one(0)
        value = float(goal.worth(search.measure(one, goal.curved))[0])
        said = "falsify: the loss has no finite derivatives at any record and parameter tried."
        require(value != -np.inf, said, DPConvexError)
        findings[constant] = Finding(constant, value, bound, False, *search.places(one).values())
    dimension = float(analysis.form.noise_dimension if certificate is None else certificate.noise_dimension)
    findings["noise_dimension"] = Finding("noise_dimension", float(observed_dimension(search)), dimension)
    modulus = float(moduli.min()) if certificate is None else certificate.strong_convexity
    if modulus > 0 and (moduli > 0).all():
        least, parameters = observed_modulus(search, size, added, moduli / moduli.min())
        findings["strong_convexity"] = Finding("strong_convexity", least, modulus, True, parameters=parameters)
    refuse((broken(finding) for finding in findings.values() if not finding.holds), DPConvexError)
    return Falsification(findings)


def claims(analysis: Analysis, certificate: Certificate | None) -> dict[str, tuple[float, Goal]]:
    """Return, for each constant, its certified value and the goal of the search, a sum of quantities that it bounds."""
    removed = certificate is not None and certificate.privacy.adjacency == "add-remove"
    move = "gradient" if removed else "difference"
    bound, eigenvalue = analysis.gradient_bound, analysis.hessian_bound
    sensitivity = bound if removed else analysis.replacement_bound
    # A clip needs no proof, so with a clip the template's own constants are attacked.
    if certificate is not None and not (isinstance(certificate, DescentCertificate) and certificate.clip < math.inf):
        bound, sensitivity, eigenvalue = certificate.gradient_bound, certificate.sensitivity, certificate.hessian_bound
    found = {"gradient_bound": (bound, Goal({"gradient": 1.0})), "sensitivity": (sensitivity, Goal({move: 1.0}))}
    if analysis.kink is not None:
        return found
    found["hessian_bound"] = eigenvalue, Goal({"eigenvalue": 1.0})
    found["hessian_trace"] = max(loss.curvature.trace for loss in analysis.losses), Goal({"trace": 1.0})
    if isinstance(certificate, ObjectiveCertificate):
        mu = analysis.strong_convexity(certificate.size, certificate.added)
        found["log_det"] = analysis.log_det(mu)[0], Goal({"log_det": 1.0})
        if certificate.noise == "gamma":  # a pure mechanism: the cost is bounded at every parameter, not on average
            paid = certificate.noise_epsilon + certificate.jacobian_epsilon
            found["epsilon"] = paid, Goal({move: 1.0 / certificate.noise_scale, "log_det": 1.0})
    return found


def observed_dimension(search: Search) -> int:
    """Return the rank of sampled rows of `A_z`; if rows leave the certified subspace, its dimension plus the excess rank."""
    form, rng = search.form, search.rng
    wanted = min(2 * form.noise_dimension + 50, LARGEST_RANK_TEST)
    each = -(-wanted // (search.losses.count * search.losses.width)) + 1
    group = np.repeat(np.arange(search.losses.count), each)
    fields = {name: domain.sample(len(group), rng) for name, domain in search.domains.items()}
    table = unit(Records(search.losses, group, fields).rows(form.space.dim)[0].reshape(-1, form.space.dim))
    table = table[rng.permutation(len(table))[:LARGEST_RANK_TEST]]
    inside = np.asarray(table @ form.basis)
    outside = table - inside @ form.basis.T
    if np.linalg.norm(outside, axis=1).max() > RANK_TOLERANCE:
        return form.noise_dimension + int(np.linalg.matrix_rank(outside, tol=RANK_TOLERANCE))
    return int(np.linalg.matrix_rank(inside, tol=RANK_TOLERANCE)) if inside.size else 0


def observed_modulus(search: Search, size: int, added: float, shape: Array) -> tuple[float, dict[str, Array]]:
    """Return the smallest curvature found along lines in K, relative to ``<d, shape * d>`` for direction d, and its location."""
    form, rng, count, dim = search.form, search.rng, 64, search.form.space.dim
    mask = np.concatenate([np.ones((1, dim)), np.eye(dim)[rng.permutation(dim)[:count]]])
    here = search.enter(10.0 ** rng.uniform(-1, 3, size=(count, 1)) / np.sqrt(dim) * rng.normal(size=(count, dim)))
    along = unit(mask[rng.integers(0, len(mask), count)] * rng.normal(size=(count, dim)))
    regularizer, length = form.template.regularizer, np.linalg.norm(here, axis=1, keepdims=True)
    first, best = np.array([slope_of(regularizer, form.space, x) for x in here]), (math.inf, 0)
    largest = 0.0
    for _ in range(TURNS):
        there = search.enter(here + np.maximum(length, 1.0) / 2 * along)
        second, gap = np.array([slope_of(regularizer, form.space, x) for x in there]), here - there
        with np.errstate(invalid="ignore", divide="ignore"):
            change = size * (first - second) + added * gap
            quotients = np.sum(change * gap, axis=1) / np.sum(shape * gap**2, axis=1)
        quotients[~(np.isfinite(quotients) & (np.linalg.norm(gap, axis=1) > 1e-3 * length[:, 0]))] = math.inf
        best = min(best, (float(quotients.min()), int(np.argmin(quotients))))
        # Power iteration towards the least curvature, with the largest curvature less the operator.
        largest = quotients[quotients < math.inf].max(initial=largest)
        along = unit(np.nan_to_num(change / shape - largest * gap, posinf=0.0, neginf=0.0))
    return best[0], form.space.unpack(here[best[1]])


def broken(finding: Finding) -> str:
    relation = "falls below" if finding.lower_bound else "exceeds"
    said = f"the {NAMES[finding.constant]} is certified as {finding.certified:.12g}, but the observed value {relation} "
    report = "This is a defect of dpconvex; please report it with the template (unless the certificate was changed, or"
    said += f"it: {finding.observed:.12g}. {report} belongs to another template)."
    places = {name: getattr(finding, name) for name in ("record", "neighbour", "parameters")}
    return "\n".join([said, *(f"  {name}: {place_text(place)}" for name, place in places.items() if place is not None)])
