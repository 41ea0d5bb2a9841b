"""The proof about private bounds that were tightened by noise, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import aligned, details, listing, paragraph
from dpconvex.core.plain_data import built
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.truncated_laplace import TruncatedLaplace, excess, truncated_laplace

SOURCE = "Muñoz Medina, Syed, Vassilvitskii & Vitercik 2021; docs/theory.md, section 19"
ASSUMED = (
    "The declared sensitivity and minimum hold for all data; how values are made from data is not seen. Sums in floating "
    "point can move by more than one person's share: add up whole numbers of a small unit.",
    "The solver works on noisy and public values alone; how long it takes depends on nothing else.",
)


@dataclass(frozen=True)
class BoundCertificate:
    """A proof that noisy bounds, and whatever is computed from them, are private, and never exceed the true ones.

    Attributes
    ----------
    privacy : Privacy
        The promise.
    noises : dict of str to TruncatedLaplace
        For each bound, the noise and its share of the promise.
    allowed : float
        By how much the answer may exceed a noisy bound, as evaluated: 0 where some point keeps all bounds strictly at their
        minimum, else what the solver leaves there.
    derivation : Derivation
    assumptions : tuple of str
    """

    privacy: Privacy
    noises: dict[str, TruncatedLaplace]
    allowed: float
    derivation: Derivation = field(repr=False)
    assumptions: tuple[str, ...] = ASSUMED

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (quantity, value, what it means)."""
        for name, noise in self.noises.items():
            yield f"sensitivity of {name}", f"{noise.sensitivity * noise.step:.6g}", "on the grid, sum over entries"
            yield f"tightening of {name}", f"{noise.tightening:.6g}", "on average; at most twice that"
        if self.allowed:
            said = "at most: no point keeps all bounds strictly at the minimum"
            yield "excess over bounds", f"{self.allowed:.3g}", said

    def __str__(self) -> str:
        rows = list(self.rows())
        wide = max(len(name) for name, _, _ in rows)
        broad = max(len(value) for _, value, _ in rows)
        lines = [f"Certificate: the tightened bounds are private, {self.privacy}, and never exceed the true ones.", ""]
        lines += [f"  {name:<{wide}}  {value:>{broad}}  {why}" for name, value, why in rows]
        lines += ["", "Derivation", *(f"  {line}" for line in self.derivation.lines())]
        return "\n".join([*lines, "", "Assumed", *(f"  - {text}" for text in self.assumptions)])

    def _repr_html_(self) -> str:
        return (
            paragraph("The tightened bounds", f" are private: {self.privacy}, and never exceed the true ones.")
            + aligned(["quantity", "value", "meaning"], self.rows())
            + details("derivation", listing(line.strip() for line in self.derivation.lines()))
            + details("assumptions", listing(self.assumptions))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "privacy": self.privacy.to_dict(),
            "noises": {name: asdict(noise) for name, noise in self.noises.items()},
            "allowed": self.allowed,
            "derivation": self.derivation.to_dict(),
            "assumptions": list(self.assumptions),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BoundCertificate:
        return cast(BoundCertificate, built(cls, data))


def bound_certificate(
    privacy: Privacy, bounds: dict[str, tuple[float, int]], texts: list[str], allowed: float
) -> BoundCertificate:
    """Calibrate the noise of bounds, each with a sensitivity and a number of entries; they share the promise equally."""
    count = len(bounds)
    share = Privacy(down(privacy.epsilon, count), down(privacy.delta, count), privacy.adjacency)
    noises = {name: truncated_laplace(share, *facts) for name, facts in bounds.items()}
    steps = []
    for name, noise in noises.items():
        values = {
            "epsilon": noise.epsilon,
            "delta": excess(noise.sensitivity, noise.scale, noise.reach),
            "sensitivity in steps": float(noise.sensitivity),
            "scale in steps": noise.scale,
            "reach in steps": float(noise.reach),
            "grid step": noise.step,
        }
        steps.append(Derivation("truncated discrete Laplace noise", name, values, "exact delta of the law of integers"))
    monotone = "each occurrence of a bound is monotone, by the composition rule"
    safe = Derivation("tightening is safe", "; ".join(texts), {}, monotone)
    root = Derivation("tightened bounds", "", privacy.claims, SOURCE, (*steps, safe))
    return BoundCertificate(privacy, noises, allowed, root)


def down(total: float, count: int) -> float:
    """Return a share of a total such that so many of them do not exceed it."""
    return total if count == 1 else total / count * (1 - 1e-15)
