"""What was proved about a template, and how: the constants, the noise that they ask for, and the derivation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from dpconvex.accounting.events import Event, event_of
from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import aligned, details, listing, paragraph
from dpconvex.core.plain_data import built
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.certificate_text import Comparison, columns, number, proof, source, tree
from dpconvex.mechanisms.grid import IntegerNoise, WhiteningNoise
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise

# Probability with which the mechanism's noise may exceed the cap that tau was chosen for.
TAIL = 2.0**-100
# How a certificate of the best of several runs names their mean number among its settings.
RUNS = "mean_number_of_runs"
COMPARED = (
    *("epsilon", "delta", "size", "gradient_bound", "sensitivity", "strong_convexity", "hessian_bound"),
    *("jacobian_epsilon", "noise_epsilon", "noise_dimension", "noise_scale", "expected_noise", "expected_shift"),
)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proof that a mechanism on a template is private; of one type for each thing that mechanisms perturb.

    Attributes
    ----------
    privacy : Privacy
        The promise.
    mechanism : str
        Name of the mechanism and of its noise.
    size : int
        Public (or nominal) number of records, which scales the regularizer.
    gradient_bound : float
        G: no record's gradient is longer, anywhere in K (loss per unit of the parameters).
    sensitivity : float
        G_adj: how far the gradient of the sum of losses moves between neighbours, at any one parameter.
    strong_convexity : float
        mu of the perturbed objective, in sum form, with `added`.
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
        What the proof takes for granted.
    advice : tuple of str
        What dominates the cost, and what would lower it.
    perturbed : {"objective", "output", "gradients", "statistics"}
        What the noise is added to.  For statistics, `gradient_bound` is the length of those of one record, `sensitivity` how
        far their sum moves, `noise_dimension` their number, and `tolerance` bounds the rounding of the sum.
    noise : {"gamma", "gaussian", "matrix"}
        Law of the noise.
    mean_noise : float or None
        Mean norm of the noise, or its root mean square for matrix-shaped noise; None for Gamma noise, where it is p / beta.
    predicted_risk : float or None
        Predicted excess risk in sum form, from public numbers; it serves to choose among mechanisms and proves nothing.
    settings : dict of str to float
        Further public numbers that the mechanism fixed.
    cover : IntegerNoise or None
        What is added to the computed answer on its way out; None for a mechanism by itself, which releases nothing yet.
    clustering : ClusteringNoise or None
        What pays for component labels that were learnt from the data; None if there are none.
    whitening : WhiteningNoise or None
        What pays for a noisy second moment of the records, which they are whitened by; None if they are not.
    event : Event or None
        What the release is for accounting, which a `Budget` keeps; None if nothing but its promise is known.
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
    whitening: WhiteningNoise | None = None
    event: Event | None = field(default=None, repr=False)

    kinds: ClassVar[dict[str, type[Certificate]]] = {}
    # Whether noise is added to a minimiser or to what is minimised, and whether the curvature of one record is paid for.
    minimises: ClassVar[bool] = True
    curved: ClassVar[bool] = False
    # What a predicted risk is multiplied with to foresee what the mechanism does, measured on synthetic data by
    # `benchmarks.utility.choices`.
    foreseen: ClassVar[float] = 1.0
    # What is said of the noise, of what it is proportional to, of what it covers, how it is drawn, and what is subject to that.
    where: ClassVar[str] = ""
    product: ClassVar[str] = "G_adj"
    computed: ClassVar[str] = "answer from the exact one"
    drawn: ClassVar[str] = (
        "Drawing the mechanism's noise in floating point moves an ideal draw by no more than docs/release.md proves, which is "
        "covered."
    )
    provided: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, perturbed: str) -> None:
        Certificate.kinds[perturbed] = cls

    def __new__(cls, *, perturbed: str = "", **_: Any) -> Certificate:
        """What is perturbed makes the type."""
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
        """The promised epsilon."""
        return self.privacy.epsilon

    @property
    def delta(self) -> float:
        """The promised delta."""
        return self.privacy.delta

    @property
    def noise_delta(self) -> float:
        """The part of delta that pays for the noise: what the other parts leave."""
        paid = sum(part.delta for part in (self.cover, self.clustering, self.whitening) if part is not None)
        return max(self.delta - paid, 0.0)

    @property
    def smoothing(self) -> float:
        """Half the width over which kinks of the loss are rounded off; 0 if they are not."""
        return self.settings.get("smoothing", 0.0)

    @property
    def is_gaussian(self) -> bool:
        return self.noise == "gaussian"

    @property
    def expected_noise(self) -> float:
        """Mean norm of the noise b, in the units of `noise_scale`."""
        return self.noise_dimension * self.noise_scale if self.mean_noise is None else self.mean_noise

    @property
    def expected_shift(self) -> float:
        """How far the noise moves the answer on average, at most: for noise on gradients, the length of all steps it makes."""
        return self.expected_noise

    @property
    def gaussian_level(self) -> float | None:
        """How far neighbours are apart, in deviations of Gaussian noise; None where that is not all there is to the mechanism."""
        return self.sensitivity / self.noise_scale if self.is_gaussian else None

    @property
    def proviso(self) -> str:
        """What the promise is subject to, in a sentence; empty if nothing but what is assumed of every release."""
        said = list(self.provided)
        if self.cover is not None and self.cover.delta <= 2 * tail_of(self.privacy.epsilon):
            runs = self.settings.get(RUNS, 1.0)
            times = "" if runs == 1.0 else f", times {runs:g} on average for the runs"
            power = -99 if self.cover.counting else -100  # the noise's cap, and that of a noisy number of records
            said.append(f"up to a probability of 2^{power}{times}")
        return f"It is so {' and '.join(said)} (docs/release.md, section 5)." if said else ""

    @property
    def answer(self) -> str:
        """What the answer is not, in a sentence; empty where it is proved to be near a minimiser or made of statistics."""
        return ""

    def compare(self, other: Certificate) -> Comparison:
        """Put another certificate beside this one; print the result, or show it in a notebook."""
        pairs = {name.replace("_", " "): (float(getattr(self, name)), float(getattr(other, name))) for name in COMPARED}
        a, b = self.expected_shift, other.expected_shift
        verdict = (
            f"The {'first' if a < b else 'second'} perturbs the answer less, by a factor of {max(a, b) / min(a, b):.3g} "
            "(expected shift)."
            if abs(a - b) > 1e-6 * max(a, b)
            else "Both perturb the answer equally."
        )
        if self.privacy != other.privacy:
            verdict = "The promises differ, so the noise of the two does not compare directly."
        return Comparison(tuple(f"{one.mechanism}, {one.privacy}" for one in (self, other)), pairs, verdict)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        yield from self.constants()
        name = "noise deviation sigma" if self.is_gaussian else "noise scale 1/beta"
        yield name, number(self.noise_scale), f"mean norm of b: {number(self.expected_noise)}{self.where}"
        if self.predicted_risk is not None:
            said = "sum of losses, from public numbers; a prediction"
            yield "predicted excess risk", number(self.predicted_risk), said
        for setting, value in self.settings.items():
            if setting != "whitened_field":  # named below
                both = "of both gradients together, which this noise is charged for"
                yield setting.replace("_", " "), number(value), both if "sensitivity" in setting else "chosen publicly"
        if self.cover is not None:
            yield "distance tau", number(self.cover.distance), f"of the computed {self.computed}, at most"
            yield from self.cover.rows()
        for part in (self.clustering, self.whitening):
            if part is not None:
                yield from part.rows()

    def constants(self) -> Iterator[tuple[str, str, str]]:
        root = self.derivation
        yield "gradient bound G", number(self.gradient_bound), source(root, "gradient")
        yield "sensitivity G_adj", number(self.sensitivity), source(root, "sensitivity")
        added = f", of which {number(self.added)} were added" if self.added else ""
        yield "strong convexity mu", number(self.strong_convexity), f"size {self.size} x regularizer{added}"
        if self.curved:
            yield "largest Hessian eigenvalue", number(self.hessian_bound), source(root, "curvature")
        yield "sensitive subspace", f"{self.noise_dimension} dimensions", source(root, "subspace")

    def __repr__(self) -> str:
        return f"Certificate({self.mechanism}; {self.privacy}; {self.size} records)"

    def __str__(self) -> str:
        lines = [f"Certificate: {self.mechanism} is private, {self.privacy}."]
        lines += [*(said for said in (self.proviso, self.answer) if said), "", "Constants (sum form)"]
        lines += [*columns(self.rows()), "", "How epsilon is spent"]
        lines += [f"  {number(e):>8}  ({100 * e / self.epsilon:3.0f} %)  {what}" for e, what in self.shares()]
        lines += [*(f"  {sentence}" for sentence in self.advice), *proof(self.derivation, self.assumptions)]
        return "\n".join(lines)

    def shares(self) -> Iterator[tuple[float, str]]:
        """Yield the shares of epsilon and what each pays for."""
        paid = {
            "gaussian": f", with {'all of delta' if self.clustering is None else 'its delta'}",
            "matrix": ": beta x the sensitivity in the nuclear norm",
        }
        yield self.noise_epsilon, f"the noise{paid.get(self.noise, f': beta x {self.product}')}"
        if self.curved:
            yield self.jacobian_epsilon, "one record's curvature: log det(I + H/mu)"
        if self.cover is not None:
            yield self.cover.epsilon, "the cover of the computed answer's distance tau"
            if self.cover.counting:
                yield self.cover.counting, "a noisy number of records, which tau depends on"
        if self.clustering is not None:
            yield self.clustering.epsilon, "the component labels: noisy k-means"
        if self.whitening is not None:
            together = " (with the noise one Gaussian mechanism)" if self.whitening.composed else ""
            yield self.whitening.epsilon, f"the whitening: a noisy second moment{together}"

    def _repr_html_(self) -> str:
        paid = [
            (number(spent) if spent > 5e-4 * self.epsilon else "0", f"{100 * spent / self.epsilon:.0f} %", what)
            for spent, what in self.shares()
        ]
        return (
            paragraph(self.mechanism, f" is private: {self.privacy}. {self.proviso} {self.answer}".rstrip())
            + aligned(["constant", "value", "from"], self.rows())
            + paragraph("How epsilon is spent")
            + aligned(["epsilon", "share", "pays for"], paid, numbers=(0, 1))
            + (listing(self.advice) if self.advice else "")
            + details("derivation", tree(self.derivation))
            + details("assumptions", listing(self.assumptions))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        event = None if self.event is None else self.event.to_dict()
        return {**asdict(replace(self, event=None)), "event": event}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`."""
        return cast(Certificate, built(cls, data, {Event: event_of}))


class ObjectiveCertificate(Certificate, perturbed="objective"):
    """Noise on what is minimised; the curvature of one record is paid for beside it."""

    curved, gaussian_level = True, None

    @property
    def expected_shift(self) -> float:
        return self.expected_noise / (self.strong_convexity or math.inf)


class OutputCertificate(Certificate, perturbed="output"):
    """Noise on the minimiser."""

    foreseen, where = 50.0, " (on the parameters)"

    @property
    def gaussian_level(self) -> float | None:
        return self.sensitivity / self.strong_convexity / self.noise_scale if self.is_gaussian else None


class DescentCertificate(Certificate, perturbed="gradients"):
    """Noise on the gradient of every step."""

    minimises, where = False, " (at every step)"
    drawn = (
        "The noise of every step is taken to be ideal, although it is drawn and added in floating point; what is covered "
        "are the digits of the answer."
    )
    provided = (
        "provided that the noise of every step is ideal: it is drawn in floating point, which is not proved to do",
    )

    @property
    def steps(self) -> int:
        return int(self.settings.get("steps", 1.0))

    @property
    def step_size(self) -> float:
        return self.settings.get("step_size", 1.0)

    @property
    def largest_step(self) -> float:
        return self.settings.get("largest_step", self.step_size)

    @property
    def clip(self) -> float:
        """Largest norm of a clipped gradient; infinite if none is clipped."""
        return self.settings.get("clip", math.inf)

    @property
    def sampling(self) -> float:
        """Probability with which a record takes part in a step."""
        return self.settings.get("sampling", 1.0)

    @property
    def expected_shift(self) -> float:
        return self.expected_noise * self.steps * self.step_size

    @property
    def gaussian_level(self) -> float | None:
        whole = self.is_gaussian and "sampling" not in self.settings
        return self.sensitivity * math.sqrt(self.steps) / self.noise_scale if whole else None

    @property
    def answer(self) -> str:
        said = f"The answer is where {self.steps} noisy steps on clipped gradients end; no distance to a minimiser is claimed."
        return said if self.clip < math.inf else ""


class StatisticsCertificate(Certificate, perturbed="statistics"):
    """Noise on the sums that a quadratic loss takes from the data."""

    minimises, where, product = False, " (on the statistics)", "the sensitivity"
    computed = "statistics from the exact ones"

    def constants(self) -> Iterator[tuple[str, str, str]]:
        root = self.derivation
        yield "statistics", f"{self.noise_dimension}", source(root, "moments")
        yield "length of a record's", number(self.gradient_bound), source(root, "length")
        yield "sensitivity", number(self.sensitivity), source(root, "sensitivity")


def tail_of(epsilon: float) -> float:
    """Return the part of delta that noise beyond its cap takes: a probability of 2^-100 under either of two neighbours."""
    return (1 + math.exp(min(epsilon, 700.0))) * TAIL
