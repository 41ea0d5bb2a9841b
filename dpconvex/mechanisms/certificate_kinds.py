"""What certificates say of each thing that mechanisms perturb: one type each, which `Certificate` makes."""

import math
from collections.abc import Iterator

from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.certificate_text import number, source


class ObjectiveCertificate(Certificate, perturbed="objective"):
    """Noise on what is minimised; the curvature of one record is paid for beside it."""

    gaussian_level = None

    @property
    def expected_shift(self) -> float:
        return self.expected_noise / (self.strong_convexity or math.inf)

    def curvature(self) -> Iterator[tuple[str, str, str]]:
        yield "largest Hessian eigenvalue", number(self.hessian_bound), source(self.derivation, "curvature")

    def other_shares(self) -> Iterator[tuple[float, str]]:
        yield self.jacobian_epsilon, "one record's curvature: log det(I + H/mu)"


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

    def provided(self) -> Iterator[str]:
        yield "provided that the noise of every step is ideal: it is drawn in floating point, which is not proved to do"

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
