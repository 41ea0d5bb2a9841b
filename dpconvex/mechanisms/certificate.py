"""What was proved about a template, and how: the constants, the noise that they ask for, and the derivation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from dpconvex.accounting.events import Event, event_of
from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import aligned, details, listing, paragraph
from dpconvex.core.plain_data import built
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.certificate_text import PLACES, Place, number, ratio, source, tree
from dpconvex.mechanisms.grid import IntegerNoise
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise
from dpconvex.mechanisms.whitening_noise import WhiteningNoise

# Probability with which the mechanism's noise may exceed the cap that tau was chosen for.
TAIL = 2.0**-100
# Parts of a certificate that are objects of their own.
PARTS: dict[str, Any] = {"cover": IntegerNoise, "clustering": ClusteringNoise, "whitening": WhiteningNoise}
# Of epsilon, less than this part is shown as none of it.
NOTHING = 5e-4
COMPARED = {
    "epsilon": "epsilon",
    "delta": "delta",
    "size": "records",
    "gradient_bound": "gradient bound G",
    "sensitivity": "sensitivity G_adj",
    "strong_convexity": "strong convexity mu",
    "hessian_bound": "largest Hessian eigenvalue",
    "jacobian_epsilon": "epsilon for curvature",
    "noise_epsilon": "epsilon for noise",
    "noise_dimension": "noise dimension",
    "noise_scale": "noise scale",
    "expected_noise": "mean norm of b",
    "expected_shift": "mean norm of b / mu",
}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proof that a mechanism on a template is private.

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
        The part of epsilon that pays for the noise.  With `jacobian_epsilon` and the shares of the residual noise and
        of a clustering it makes up epsilon.
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
        far their sum moves, `noise_dimension` their number, `noise_scale` in their units, and `tolerance` bounds the rounding of
        the sum; no objective is minimised before they are released, and the other constants are 0.
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

    def __post_init__(self) -> None:
        """Keep plain numbers, whatever kind they were computed with."""
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
        paid = sum(getattr(self, name).delta for name in PARTS if getattr(self, name) is not None)
        return max(self.delta - paid, 0.0)

    @property
    def place(self) -> Place:
        """What the noise is added to."""
        return PLACES[self.perturbed]

    @property
    def minimises(self) -> bool:
        """Whether noise is added to a minimiser or to what is minimised, and not to gradients or statistics."""
        return self.place.minimises

    @property
    def pays_for_distance(self) -> bool:
        """Whether the noise, on the minimiser itself, also hides the distance that a solver leaves."""
        return self.place.pays

    @property
    def expected_noise(self) -> float:
        """Mean norm of the noise b, in the units of `noise_scale`."""
        return self.noise_dimension * self.noise_scale if self.mean_noise is None else self.mean_noise

    @property
    def expected_shift(self) -> float:
        """How far the noise moves the answer on average, at most: the mean of ||b||/mu, or of ||b|| on the output itself.

        For noise on gradients it is the length of all steps that the noise makes; for statistics, what these are moved by.
        """
        factor = {
            "objective": 1 / (self.strong_convexity or math.inf),
            "gradients": self.settings.get("steps", 1.0) * self.settings.get("step_size", 1.0),
        }
        return self.expected_noise * factor.get(self.perturbed, 1.0)

    @property
    def gaussian_level(self) -> float | None:
        """How far neighbours are apart, in deviations of Gaussian noise; None where that is not all there is to the mechanism."""
        if self.noise != "gaussian" or self.perturbed == "objective" or "sampling" in self.settings:
            return None
        apart = self.settings.get("distance_of_answers", self.sensitivity)
        return apart * math.sqrt(self.settings.get("steps", 1.0)) / self.noise_scale

    @property
    def proviso(self) -> str:
        """What the promise is subject to, in a sentence; empty if nothing but what is assumed of every release.

        A promise without delta cannot pay for the probability with which noise exceeds the cap that the residual noise
        allows for.  And of noise on gradients, of which many are made one after the other, it is assumed that each is ideal.
        """
        said = []
        if self.perturbed == "gradients":
            said.append(
                "provided that the noise of every step is ideal: it is drawn in floating point, which is not proved to do"
            )
        if self.cover is not None and self.cover.delta <= 2 * tail_of(self.privacy.epsilon):
            runs = self.settings.get("mean_number_of_runs", 1.0)
            times = "" if runs == 1.0 else f", times {runs:g} on average for the runs"
            power = -99 if self.cover.counting else -100  # the noise's cap, and that of a noisy number of records
            said.append(f"up to a probability of 2^{power}{times}")
        return f"It is so {' and '.join(said)} (docs/release.md, section 5)." if said else ""

    @property
    def answer(self) -> str:
        """What the answer is not, in a sentence; empty where it is proved to be near a minimiser or made of statistics."""
        steps = self.settings.get("steps", 0.0)
        said = f"The answer is where {steps:.0f} noisy steps on clipped gradients end; no distance to a minimiser is claimed."
        return said if "clip" in self.settings else ""

    def compare(self, other: Certificate) -> Comparison:
        """Put another certificate beside this one; print the result, or show it in a notebook."""
        return Comparison(self, other)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (constant, value, where it comes from)."""
        root = self.derivation
        if self.perturbed == "statistics":
            yield "statistics", f"{self.noise_dimension}", source(root, "moments")
            yield "length of a record's", number(self.gradient_bound), source(root, "length")
            yield "sensitivity", number(self.sensitivity), source(root, "sensitivity")
        else:
            yield "gradient bound G", number(self.gradient_bound), source(root, "gradient")
            yield "sensitivity G_adj", number(self.sensitivity), source(root, "sensitivity")
            added = f", of which {number(self.added)} were added" if self.added else ""
            yield "strong convexity mu", number(self.strong_convexity), f"size {self.size} x regularizer{added}"
            if self.perturbed == "objective":
                yield "largest Hessian eigenvalue", number(self.hessian_bound), source(root, "curvature")
            yield "sensitive subspace", f"{self.noise_dimension} dimensions", source(root, "subspace")
        name = "noise deviation sigma" if self.noise == "gaussian" else "noise scale 1/beta"
        mean = f"mean norm of b: {number(self.expected_noise)}{self.place.where}"
        yield name, number(self.noise_scale), mean
        if self.predicted_risk is not None:
            said = "sum of losses, from public numbers; a prediction"
            yield "predicted excess risk", number(self.predicted_risk), said
        for setting, value in self.settings.items():
            if setting != "whitened_field":  # named below
                both = "of both gradients together, which this noise is charged for"
                yield setting.replace("_", " "), number(value), both if "sensitivity" in setting else "chosen publicly"
        if self.cover is not None:
            exponent = round(math.log2(self.cover.step))
            what = "statistics from the exact ones" if self.perturbed == "statistics" else "answer from the exact one"
            yield "distance tau", number(self.cover.distance), f"of the computed {what}, at most"
            yield "noise that covers tau", number(self.cover.size), f"{self.cover.noise} on a grid of step 2^{exponent}"
        for part in (self.clustering, self.whitening):
            if part is not None:
                yield from part.rows()

    def __repr__(self) -> str:
        return f"Certificate({self.mechanism}; {self.privacy}; {self.size} records)"

    def __str__(self) -> str:
        rows = list(self.rows())
        wide = max(len(name) for name, _, _ in rows)
        broad = max(len(value) for _, value, _ in rows)
        lines = [f"Certificate: {self.mechanism} is private, {self.privacy}."]
        lines += [*(said for said in (self.proviso, self.answer) if said), "", "Constants (sum form)"]
        lines += [f"  {name:<{wide}}  {value:>{broad}}  {why}" for name, value, why in rows]
        lines += ["", "How epsilon is spent"]
        lines += [f"  {number(e):>8}  ({100 * e / self.epsilon:3.0f} %)  {what}" for e, what in self.shares()]
        lines += [f"  {sentence}" for sentence in self.advice]
        lines += ["", "Derivation", *(f"  {line}" for line in self.derivation.lines())]
        if self.assumptions:
            lines += ["", "Assumed", *(f"  - {text}" for text in self.assumptions)]
        return "\n".join(lines)

    def shares(self) -> Iterator[tuple[float, str]]:
        """Yield the shares of epsilon and what each pays for."""
        paid = {
            "gaussian": f", with {'all of delta' if self.clustering is None else 'its delta'}",
            "matrix": ": beta x the sensitivity in the nuclear norm",
        }
        product = ": beta x the sensitivity" if self.perturbed == "statistics" else ": beta x G_adj"
        yield self.noise_epsilon, f"the noise{paid.get(self.noise, product)}"
        if self.perturbed == "objective":
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
            (number(spent) if spent > NOTHING * self.epsilon else "0", f"{100 * spent / self.epsilon:.0f} %", what)
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
        plain = dict(vars(self))
        plain |= {name: list(plain[name]) for name in ("assumptions", "advice")}
        plain |= {
            "settings": dict(self.settings),
            "privacy": self.privacy.to_dict(),
            "derivation": self.derivation.to_dict(),
            "event": None if self.event is None else self.event.to_dict(),
        }
        return plain | {name: None if plain[name] is None else asdict(plain[name]) for name in PARTS}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`."""
        return cast(Certificate, built(cls, data, {Event: event_of}))


@dataclass(frozen=True)
class Comparison:
    """The constants of two certificates, and their ratios."""

    first: Certificate
    second: Certificate

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield (constant, first, second, second/first); the ratio is NaN where the first is 0."""
        for attribute, name in COMPARED.items():
            a, b = float(getattr(self.first, attribute)), float(getattr(self.second, attribute))
            yield name, a, b, b / a if a else math.nan

    def __str__(self) -> str:
        head = f"{'constant':<28}{'first':>12}{'second':>12}{'ratio':>9}"
        lines = [f"first:  {self.first.mechanism}, {self.first.privacy}"]
        lines += [f"second: {self.second.mechanism}, {self.second.privacy}", "", head, "-" * len(head)]
        lines += [f"{name:<28}{a:>12.6g}{b:>12.6g}{ratio(r):>9}" for name, a, b, r in self.rows()]
        return "\n".join([*lines, "", self.verdict()])

    def _repr_html_(self) -> str:
        rows = [(name, number(a), number(b), ratio(r)) for name, a, b, r in self.rows()]
        table = aligned(["constant", "first", "second", "ratio"], rows, numbers=(1, 2, 3))
        return table + paragraph("", self.verdict())

    def verdict(self) -> str:
        """Say which of the two moves the answer less."""
        if self.first.privacy != self.second.privacy:
            return "The promises differ, so the noise of the two does not compare directly."
        a, b = self.first.expected_shift, self.second.expected_shift
        if abs(a - b) <= 1e-6 * max(a, b):
            return "Both perturb the answer equally."
        better, factor = ("first", b / a) if a < b else ("second", a / b)
        return f"The {better} perturbs the answer less, by a factor of {factor:.3g} (mean norm of b over mu)."


def tail_of(epsilon: float) -> float:
    """Return the part of delta that noise beyond its cap takes: a probability of 2^-100 under either of two neighbours."""
    return (1 + math.exp(min(epsilon, 700.0))) * TAIL
