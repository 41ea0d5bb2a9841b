"""Certificates: the constants proved about a template, the calibrated noise, and the derivation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.accounting.budget import charge_schema
from dpconvex.accounting.composition import best_total, profile_pairs
from dpconvex.accounting.events import SMALLEST_LEVEL, Approximate, Event, event_of
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import ClusteringNoise, IntegerNoise
from dpconvex.certificates.loaded_event import confirmed_event
from dpconvex.certificates.text import CertificateText
from dpconvex.checker.files import FORMAT, certificate_and_proof, compare_claims
from dpconvex.checker.reading import Rejected
from dpconvex.checker.table import RUNS
from dpconvex.data.learnt import Learnt
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import TRUNCATED, failure_delta
from dpconvex.noise.samplers import SPHERICAL
from dpconvex.numerics import falling_sum
from dpconvex.util.arguments import BELOW_ONE, instance, recast, require, whole
from dpconvex.util.plain_data import build, without_missing

MOST_PEOPLE = 10**6  # Largest group for group privacy
QUICK = 3000  # Proofs of at most this many bytes are checked when they are read


def setting(name: str, default: float | None) -> Any:
    """Return a property that reads a setting of a certificate, with a default."""
    return property(lambda certificate: certificate.settings.get(name, default))


@dataclass(frozen=True, kw_only=True)
class Certificate(CertificateText):
    """A proof that a mechanism on a template is private.  There is one subclass for each perturbed quantity.

    Attributes
    ----------
    privacy : Privacy
        The guarantee.
    mechanism : str
        Name of the mechanism and of its noise.
    size : int
        Public (or nominal) number of records, which scales the regularizer.
    gradient_bound : float
        G: largest norm of one record's gradient, over K (loss per unit of the parameters).
    sensitivity : float
        G_adj: largest distance between gradients of the sum of losses on neighbouring data sets, at the same parameters.
    strong_convexity : float
        mu: strong convexity of the perturbed objective, in sum form, including `added`.
    added : float
        Modulus of the quadratic that the mechanism added, in sum form.
    hessian_bound : float
        Largest eigenvalue of one record's Hessian.
    jacobian_epsilon : float
        J: the part of epsilon that pays for one record's curvature.
    noise_epsilon : float
        The part of epsilon that pays for the noise.
    noise_dimension : int
        p: dimension of the sensitive subspace, in which the noise is drawn.
    noise_scale : float
        Sum form; 1/beta for Gamma noise with density proportional to exp(-beta ||b||), and for matrix-shaped noise; the
        standard deviation sigma of each coordinate for Gaussian noise.  Noise on the output is in units of the parameters.
    tolerance : float
        Largest distance between the computed answer and the exact minimiser that a release may have.
    derivation : Derivation
        The tree of rules that proved the constants.
    assumptions : tuple of str
        Assumptions of the proof.
    advice : tuple of str
        Largest part of the cost, and changes that lower it.
    perturbed : {"objective", "output", "gradients", "statistics"}
        The quantity that receives the noise.  For statistics, `gradient_bound` is the norm of one record's statistics,
        `sensitivity` is that of their sum, `noise_dimension` is their number, and `tolerance` bounds the rounding of the sum.
    noise : {"gamma", "gaussian", "matrix"}
        Distribution of the noise.
    mean_noise : float or None
        Mean norm of the noise, or its root mean square for matrix-shaped noise; None for Gamma noise, where it is p / beta.
    predicted_risk : float or None
        Predicted excess risk in sum form, from public numbers; it serves to choose among mechanisms and proves nothing.
    settings : dict of str to float
        Further public numbers that the mechanism fixed.
    cover : IntegerNoise or None
        Residual noise on the computed answer; None for a mechanism alone, which releases nothing yet.
    clustering : ClusteringNoise or None
        Noise of component labels that were learnt from the data; None if there are none.
    event : Event or None
        Description of the release for accountants, which a `Budget` records; None if only its guarantee is known.
    diameter : float or None
        Bound on the diameter of K; None if K is not known to be bounded.
    writer : callable, bytes or None
        The proof, or a function that writes it; None if it was left out.
    """

    privacy: Privacy
    mechanism: str
    size: int
    gradient_bound: float
    sensitivity: float
    strong_convexity: float = 0.0
    added: float = 0.0
    hessian_bound: float = 0.0
    jacobian_epsilon: float = 0.0
    noise_epsilon: float
    noise_dimension: int
    noise_scale: float
    tolerance: float = math.inf
    derivation: Derivation = field(repr=False)
    assumptions: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    perturbed: str = "objective"
    noise: str = "gamma"
    mean_noise: float | None = None
    predicted_risk: float | None = None
    settings: dict[str, float] = field(default_factory=dict)
    cover: IntegerNoise | None = None
    clustering: ClusteringNoise | None = None
    event: Event | None = field(default=None, repr=False)
    diameter: float | None = None
    writer: Callable[[Certificate], bytes] | bytes | None = field(default=None, repr=False, compare=False)

    kinds: ClassVar[dict[str, type[Certificate]]] = {}
    # Whether the answer is an exact minimiser up to noise, and whether epsilon has a part for one record's curvature.
    minimises: ClassVar[bool] = True
    curved: ClassVar[bool] = False
    # Factor on the predicted risk when mechanisms are compared, measured on synthetic data (docs/choosing.md).
    risk_factor: ClassVar[float] = 1.0
    # The assumption about noise as drawn, and the exceptions to the guarantee that follow from it.
    drawn: ClassVar[str] = (
        "A draw of the mechanism's noise in floating point is as near to an exact draw as docs/release.md bounds; residual "
        "noise hides the difference."
    )
    provided: ClassVar[tuple[str, ...]] = ()

    smoothing = setting("smoothing", 0.0)  # half the width over which nonsmooth points of the loss are smoothed

    def __init_subclass__(cls, perturbed: str) -> None:
        Certificate.kinds[perturbed] = cls

    def __new__(cls, *, perturbed: str = "", **_: Any) -> Certificate:
        """Create an instance of the class for the perturbed quantity."""
        kind = cls if cls is not Certificate and not perturbed else cls.kinds.get(perturbed or "objective")
        if kind is None or not issubclass(kind, cls):
            known = ", ".join(map(repr, cls.kinds))
            raise TemplateError(f"{cls.__name__}: perturbed must be one of {known}, of its type, not {perturbed!r}.")
        return object.__new__(kind)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())

    @property
    def epsilon(self) -> float:
        return self.privacy.epsilon

    @property
    def delta(self) -> float:
        return self.privacy.delta

    @property
    def noise_delta(self) -> float:
        """The part of delta that pays for the mechanism's noise: delta less that of residual noise and clustering."""
        return max(self.delta - sum(part.delta for part in (self.cover, self.clustering) if part is not None), 0.0)

    @property
    def is_gaussian(self) -> bool:
        return self.noise == "gaussian"

    @property
    def expected_noise(self) -> float:
        """Mean norm of the noise b, in the units of `noise_scale`."""
        return self.noise_dimension * self.noise_scale if self.mean_noise is None else self.mean_noise

    @property
    def noise_shift(self) -> float:
        """A bound on the mean shift of the answer by the noise, for any K; for gradients, summed over all steps."""
        return self.expected_noise

    @property
    def expected_shift(self) -> float:
        """A bound on the mean shift of the answer by the noise, at most the diameter of K."""
        return min(self.noise_shift, math.inf if self.diameter is None else self.diameter)

    @property
    def residual_dominates(self) -> bool:
        return self.cover is not None and self.cover.size > self.noise_shift

    @property
    def gaussian_level(self) -> float | None:
        """Level mu of GDP of the mechanism; None if its noise is not Gaussian, or if it has further costs."""
        return self.sensitivity / self.noise_scale if self.is_gaussian else None

    @property
    def exceptions(self) -> str:
        """Exceptions to the guarantee; empty if only the assumptions of every release apply."""
        said = list(self.provided)
        if self.cover is not None and self.cover.delta <= 2 * failure_delta(TRUNCATED, self.epsilon):
            runs = self.settings.get(RUNS, 1.0)
            times = "" if runs == 1.0 else f", times {runs:g} on average for the runs"
            power = -99 if self.cover.counting else -100  # noise on the number of records has its own cap
            rare = f"2^{power}{times} (a truncation failure)"
            said.append(f"unless the noise exceeds its cap, with probability at most {rare}")
        return " and ".join(said)

    def for_group(self, people: int, delta: float | None = None) -> Privacy:
        """Return the guarantee for a group of `people` (records, or units), at the certificate's delta or another one.

        Exact for Gaussian noise on gradients and answers and for pure guarantees, up to truncation failures.  For Gaussian noise
        on the objective it is a bound.  If only the guarantee is known, it is composed over people.  The certificate of a release
        includes the cost of a learnt schema.
        """
        whole(1, MOST_PEOPLE).check("for_group", "Nobody is protected among more.", people=people)
        BELOW_ONE.or_none.check("for_group", delta=delta)
        own, event, said = self.whole
        if event is None:
            why = f"there is no total guarantee for groups, only one{said}"
            raise NotPrivate(why, self.privacy, "learn the schema for these neighbours")
        if people == 1 and delta is None:
            return own
        wanted = own.delta if delta is None else delta
        both = [own.part(people * own.epsilon, Approximate(own.epsilon, own.delta).group_delta(people))]
        found = best_total(both, [event.of_group(people)], wanted).epsilon
        if not math.isfinite(found):
            why = f"no epsilon of {people} people holds at so small a delta"
            raise NotPrivate(why, f"delta = {wanted:g}", "ask for a larger delta=")
        return own.part(max(found, SMALLEST_LEVEL), wanted)

    def risk(self, false_positives: ArrayLike) -> Any:
        """Return a lower bound on the false negative rate of an attack at each false positive rate, with the shape of the rates.

        Any test between two neighbouring data sets has error rates a and b with ``b >= 1 - delta - exp(epsilon) a`` and ``b >=
        exp(-epsilon) (1 - delta - a)``, for every (epsilon, delta) that holds (P. Kairouz, S. Oh and P. Viswanath, "The
        composition theorem for differential privacy", 2015, theorem 2.1). The event of a release gives many such pairs.
        Guessing has b = 1 - a.  The certificate of a release includes the cost of a learnt schema.  If the schema was learnt for
        other neighbours than the fit, the bound is 0.
        """
        rates = np.asarray(false_positives)
        if rates.dtype.kind not in "iuf" or not ((rates >= 0) & (rates <= 1)).all():
            raise TemplateError(f"risk: rates of false positives must be from 0 to 1, not {false_positives!r}.")
        missed = np.zeros(rates.shape)
        both, event, _ = self.whole
        pairs = [] if event is None else [(both.epsilon, both.delta), *(profile_pairs(event) if self.event else ())]
        for epsilon, delta in pairs:
            line = 1 - delta - math.exp(min(epsilon, 700.0)) * rates
            missed = np.maximum(missed, np.maximum(line, math.exp(-epsilon) * (1 - delta - rates)))
        return missed if rates.ndim else float(missed)

    def copied(self, *, event: Event | None, **changes: Any) -> Self:
        """Return a copy with changes.  `event` is the copy's event, or None if only the guarantee is known."""
        return replace(self, event=event, **changes).with_costs(self.learnt)

    def advised(self, said: str) -> Self:
        return self.copied(event=self.event, advice=(*self.advice, said))

    def __getstate__(self) -> dict[str, Any]:
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        return own | {"writer": self.proof, "learnt": self.learnt}

    def __repr__(self) -> str:
        return f"Certificate({self.mechanism}; {self.whole[0]}; {self.size} records)"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the proof as JSON-able data."""
        found = asdict(self.copied(event=None, writer=None)) | {"event": self.event and self.event.to_dict()}
        found |= {"privacy": self.privacy.to_dict()} | ({"learnt": self.learnt.to_dict()} if self.learnt else {})
        return {key: value for key, value in found.items() if key != "writer"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`; raise `TemplateError` if its event contradicts its numbers."""
        instance(dict, "as `to_dict` returns it").check("from_dict", data=data)
        data = dict(data)
        require(not data.pop("whitening", None), "its records were whitened, which this version does not do: fit again")
        learnt = build(Learnt | None, data.pop("learnt", None), where="the cost of the schema")
        charge_schema(None, learnt)  # raises if the cost was edited
        found = cast(Certificate, build(cls, data, {Event: event_of}))
        return found.copied(event=confirmed_event(found)).with_costs(learnt)

    def to_json(self) -> str:
        """Return the finite numbers and the proof as JSON.  `dpconvex check` replays the proof (docs/interop.md)."""
        if self.proof is None:
            raise DPConvexError(f"to_json: {self._written[1]}.")
        certificate, proof = without_missing(self.to_dict()), json.loads(self.proof)
        return json.dumps({"format": FORMAT, "certificate": certificate, "proof": proof}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read the output of `to_json`.  Its numbers must equal those of the proof; `check` replays the proof."""
        kinds = (Rejected, TemplateError, ArithmeticError, AttributeError, RecursionError, TypeError, ValueError)
        with recast("from_json: no certificate that this version wrote", *kinds):
            data, proof, _ = certificate_and_proof(text.encode())
            return cls.from_dict(data).with_proof(proof)

    def with_proof(self, proof: bytes) -> Certificate:
        """Return a copy with this proof attached.  Short proofs are checked immediately."""
        compare_claims(proof, self.to_dict())
        found = self.copied(event=self.event, writer=proof)
        if len(proof) > QUICK:
            return found.noted("The proof was not checked when it was read: `dpconvex check` and `check` replay it.")
        try:
            found.check()
        except Rejected as error:
            return found.copied(event=None).noted(f"The proof was checked, and rejected: {error}.", proved=False)
        return found


class ObjectiveCertificate(Certificate, perturbed="objective"):
    """Noise on the objective; one record's curvature costs a further part of epsilon."""

    curved, gaussian_level = True, None

    @property
    def noise_shift(self) -> float:
        return self.expected_noise / (self.strong_convexity or math.inf)


class OutputCertificate(Certificate, perturbed="output"):
    """Noise on the minimiser."""

    risk_factor = 50.0

    @property
    def gaussian_level(self) -> float | None:
        return self.sensitivity / self.strong_convexity / self.noise_scale if self.is_gaussian else None


class DescentCertificate(Certificate, perturbed="gradients"):
    """Noise on the gradient of every step."""

    minimises = False
    drawn = (
        "The noise of every step is taken to be exactly Gaussian, although it is drawn and added in floating point; residual "
        "noise hides the last digits of the answer."
    )
    provided = ("assuming that Gaussian noise in floating point is exactly Gaussian",)

    step_size, clip = setting("step_size", 1.0), setting("clip", math.inf)
    sampling = setting("sampling", 1.0)  # the probability that a record takes part in a step

    @property
    def steps(self) -> int:
        return int(self.settings.get("steps", 1.0))

    def sum_of_steps(self, first: str = "step_size", power: int = 1) -> float:
        """Bound the sum of powers of all step sizes, the first of which is this setting."""
        ratio = self.settings.get("last_step", self.step_size) / (self.step_size or 1.0)
        return self.settings.get(first, self.step_size) ** power * falling_sum(ratio**power, self.steps)

    @property
    def noise_shift(self) -> float:
        return self.expected_noise * self.sum_of_steps()

    @property
    def gaussian_level(self) -> float | None:
        whole = self.is_gaussian and "sampling" not in self.settings
        return self.sensitivity * math.sqrt(self.steps) / self.noise_scale if whole else None

    @property
    def error(self) -> str:
        said = f"no bound: {self.steps} steps of DP-GD with per-example clipping need not converge to the ERM solution"
        return said if self.clip < math.inf else super().error


class QueriesCertificate(Certificate, perturbed="queries"):
    """Noise on adaptive queries.  Each sensitivity is fixed before its query, in units of the query's clip."""

    minimises = False
    drawn = "The noise of every query is integer and is drawn exactly."
    gaussian_level = setting("level", None)

    @property
    def error(self) -> str:
        return "no bound: clipped steps need not converge to the ERM solution"


class StatisticsCertificate(Certificate, perturbed="statistics"):
    """Noise on the sums over records that determine a quadratic loss."""

    minimises = False

    @property
    def error(self) -> str:
        each = f"a standard deviation of {self.deviation:.3g} on each of {self.noise_dimension} sums over all records"
        return f"noise with {each}"

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each sum, in the scale of `Statistics.values`."""
        own = SPHERICAL[self.noise].square(self.noise_dimension, self.noise_scale)
        return math.sqrt((own + (self.cover.size**2 if self.cover else 0.0)) / self.noise_dimension)
