"""Adaptive preconditioned steps for any loss, without a bound on it, by Gaussian queries (docs/theory.md, theorem 8.9)."""

from dataclasses import dataclass
from typing import ClassVar

from dpconvex.accounting.events import Composition, Gaussian, Tail
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.base import UNSEEN, ForUnits, check_delta
from dpconvex.model.people import WEIGHT
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import GRID_LOSS, failure_delta, gaussian_delta, gaussian_sigma
from dpconvex.numerics import NORM_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.util.arguments import COUNT

SOURCE = "docs/theory.md, theorem 8.9"
DRAWN = "All noise is drawn exactly (discrete Gaussian, by OpenDP) from the operating system's random numbers."
CLIPPED = "One {}'s part of a sum depends on {} and on released numbers alone.  Its norm is at most the clip."
NOTHING = "No property of the loss was proved.  The guarantee needs none."


@dataclass(frozen=True)
class AdaptiveSteps(ForUnits):
    """Take clipped gradient steps in the metric of a noisy second moment, with a clip that adapts to the slopes.

    It is most accurate for scores that are linear in the parameters, such as ``x @ w + b``: one or several, of one field or
    several, which may share parameters.  Losses may have kinks: curvature is a difference of slopes there.  It needs a delta,
    but no bound on the loss, its curvature or the parameters.  Nothing is claimed about accuracy.

    Formal guarantee: (epsilon, delta)-differential privacy for the adjacency and the unit of `Privacy`, by theorem 8.9.

    Parameters
    ----------
    rounds : int or None
        Number of steps.  None is 64 for classes, and up to 24 elsewhere: fewer where there are few records for each parameter.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("logistic_regression", features=3)
    >>> certificate = dp.verify(template, dp.Privacy(1.0, 1e-6, "add-remove"), 1000, dp.AdaptiveSteps())
    >>> round(certificate.settings["level"], 4)
    0.2367
    """

    rounds: int | None = None

    name = "adaptive preconditioned steps"
    further: ClassVar[tuple[Derivation, ...]] = ()
    drawn: ClassVar[tuple[str, ...]] = (DRAWN,)

    def __post_init__(self) -> None:
        COUNT.or_none.check("AdaptiveSteps", rounds=self.rounds)

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Calibrate the level of all Gaussian queries to (epsilon, delta); no data are read."""
        check_delta(privacy, "Gaussian noise on steps", "use ObjectivePerturbation")
        count, level = analysis.form.space.dim, total_level(privacy)
        settings = {"level": level} | ({} if self.rounds is None else {"rounds": float(self.rounds)})
        settings |= self.chosen(analysis.form, privacy, level, size)
        whose = ("record", "it") if privacy.unit is None else (privacy.unit, "their records")
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=1.0,
            sensitivity=1.0,
            noise_epsilon=privacy.epsilon,
            noise_dimension=count,
            noise_scale=1 / level,
            derivation=derivation(privacy, level, self.name, self.further),
            assumptions=(*self.drawn, CLIPPED.format(*whose), NOTHING, UNSEEN),
            perturbed="queries",
            noise="gaussian",
            mean_noise=None,
            settings=settings,
            event=Composition((Gaussian(level * (1 + NORM_SLACK)), Tail(GRID_LOSS))),
        )

    def chosen(self, form: LossForm, privacy: Privacy, level: float, size: int) -> dict[str, float]:
        """Return further settings of the certificate, from public numbers."""
        return {}


def tells_classes(form: LossForm, inside: tuple[str, ...] = ()) -> bool:
    """Return whether losses read labels and either a single field or only the fields of scores (`inside`)."""
    read = {field.name for loss in form.losses for field in loss.fields} - {WEIGHT}
    return bool(form.template.record.discrete) and (len(read) == 1 or read <= {*inside})


def total_level(privacy: Privacy) -> float:
    """Return the GDP level of all queries together, rounded down."""
    delta = privacy.delta - failure_delta(GRID_LOSS, privacy.epsilon)
    if not delta > 0:
        why = "adaptive steps: noise on integers alone costs more than this delta"
        raise NotPrivate(why, f"delta = {privacy.delta:g}", "ask for a larger delta, or a smaller epsilon")
    level = 1 / gaussian_sigma(privacy.epsilon, delta, 1.0) / (1 + NORM_SLACK) ** 2
    while not gaussian_delta(privacy.epsilon, level * (1 + NORM_SLACK)) <= delta:
        level /= 1 + NORM_SLACK
    return level


def derivation(privacy: Privacy, level: float, name: str, further: tuple[Derivation, ...]) -> Derivation:
    one = privacy.unit or "record"
    parts = f"one {one}'s part of a sum is at most the clip"
    twice = f"parts of one {one} and another differ by at most twice the clip"
    apart = twice if privacy.adjacency == "replace-one" else parts
    why = "the sensitivity and the level of each query are known before it is asked; squared levels add up"
    last = Derivation("adaptive composition", "", {"mu": level}, why)
    return Derivation(name, "", privacy.claims, SOURCE, (Derivation("clipped sums", "", {}, apart), *further, last))
