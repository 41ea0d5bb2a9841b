"""The automatic choice: among the mechanisms that can be proved private, the one with the smallest excess risk that is foreseen.

It rests on public numbers, so the choice costs nothing.  For noise on the objective the risk is at most
``added r^2/2 + E||b||^2/(2 mu)``, for noise on the output what the curvature or the slopes of all records can make of it, for
noise on gradients R B/sqrt(T) (docs/theory.md).  These bounds are not equally loose: each is multiplied with what its mechanism
really did on synthetic data (`foreseen`).  None of this is a promise; the certificate says what was compared.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.rank_one_gradients import rank_one_structures
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.base import Engine
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.certificate_kinds import OutputCertificate
from dpconvex.mechanisms.gradient_descent import NoisyGradientDescent
from dpconvex.mechanisms.objective_perturbation import ObjectivePerturbation
from dpconvex.mechanisms.output_perturbation import OutputPerturbation

Array = NDArray[np.float64]
Candidate = ObjectivePerturbation | OutputPerturbation | NoisyGradientDescent

# A mechanism replaces one of higher preference only if its foreseen risk is below this fraction of the other's: a small gain
# in a prediction is none, and matrix-shaped noise has heavier tails, which the covered release pays for.
CLEARLY = 0.85


@dataclass(frozen=True)
class Automatic:
    """Whichever certified mechanism is foreseen to have the smallest excess risk; what `verify` and `solve` use by default."""

    def candidates(self, analysis: Analysis, privacy: Privacy) -> tuple[Candidate, ...]:
        """Return the mechanisms that are compared, in order of preference at equal risk.

        For a differentiable loss and a pure promise that is objective perturbation alone: output perturbation keeps the same
        promise under the same conditions, and only for very few records is its risk predicted to be a little smaller.
        """
        smooth, delta = analysis.kink is None, not privacy.pure
        found: list[Candidate] = []
        if smooth:
            found.append(ObjectivePerturbation())
            p = analysis.form.noise_dimension
            if any(structure.square < p * (p + 1) for structure in rank_one_structures(analysis)):
                found.append(ObjectivePerturbation("matrix"))
            if delta:
                found.append(ObjectivePerturbation("gaussian"))
        if delta or not smooth:
            found.append(OutputPerturbation())
        if delta:
            found.append(OutputPerturbation("gaussian"))
            if analysis.form.feasible.bounded and analysis.form.feasible.has_projection:
                found.append(NoisyGradientDescent())
        return tuple(found)

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Return the certificate with the smallest foreseen risk."""
        certificates: list[Certificate] = []
        refusal: NotPrivate | None = None
        for mechanism in self.candidates(analysis, privacy):
            try:
                certificates.append(mechanism.certify(analysis, privacy, size))
            except NotPrivate as error:
                refusal = refusal or error
            except TemplateError:
                continue  # no step size can be proposed
        if not certificates:
            assert refusal is not None
            raise refusal
        best = certificates[0]
        for certificate in certificates[1:]:
            if foreseen(certificate) < CLEARLY * foreseen(best):
                best = certificate
        compared = "; ".join(f"{c.mechanism} {foreseen(c):.4g}" for c in sorted(certificates, key=foreseen))
        return replace(
            best,
            advice=(
                *best.advice,
                f"Compared by the excess risk that is foreseen, where a clear gain decides: {compared}.",
            ),
        )

    def chosen(self, certificate: Certificate) -> Candidate:
        """Return the mechanism that a certificate is for."""
        if not certificate.minimises:
            return NoisyGradientDescent()
        kind = OutputPerturbation if isinstance(certificate, OutputCertificate) else ObjectivePerturbation
        return kind(certificate.noise)

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Run the mechanism that the certificate is for; returns coordinates, shape (dim,)."""
        return self.chosen(certificate).run(analysis, certificate, engine, rng)


def foreseen(certificate: Certificate) -> float:
    """Return the risk that is foreseen, infinite if there is none."""
    return math.inf if certificate.predicted_risk is None else certificate.predicted_risk * certificate.foreseen
