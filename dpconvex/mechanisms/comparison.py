"""Two certificates side by side."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpconvex.mechanisms.certificate import Certificate

__all__ = ["Comparison"]

COMPARED = (
    ("epsilon", "epsilon"),
    ("delta", "delta"),
    ("size", "records"),
    ("gradient_bound", "gradient bound G"),
    ("sensitivity", "sensitivity G_adj"),
    ("strong_convexity", "strong convexity mu"),
    ("hessian_bound", "largest Hessian eigenvalue"),
    ("jacobian_epsilon", "epsilon for curvature"),
    ("noise_epsilon", "epsilon for noise"),
    ("noise_dimension", "noise dimension"),
    ("noise_scale", "noise scale"),
    ("expected_noise", "mean norm of b"),
    ("expected_shift", "mean norm of b / mu"),
)


@dataclass(frozen=True)
class Comparison:
    """The constants of two certificates, and their ratios.

    Attributes
    ----------
    first, second : Certificate
    """

    first: Certificate
    second: Certificate

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield (constant, first, second, second/first); the ratio is NaN where the first is 0."""
        for attribute, name in COMPARED:
            a, b = float(getattr(self.first, attribute)), float(getattr(self.second, attribute))
            yield name, a, b, b / a if a else float("nan")

    def __repr__(self) -> str:
        return f"Comparison({self.first!r}, {self.second!r})"

    def __str__(self) -> str:
        head = f"{'constant':<28}{'first':>12}{'second':>12}{'ratio':>9}"
        lines = [
            f"first:  {self.first.mechanism}, {self.first.privacy}",
            f"second: {self.second.mechanism}, {self.second.privacy}",
            "",
            head,
            "-" * len(head),
        ]
        lines += [f"{name:<28}{a:>12.6g}{b:>12.6g}{ratio(r):>9}" for name, a, b, r in self.rows()]
        return "\n".join([*lines, "", self.verdict()])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{name}</td><td>{a:.6g}</td><td>{b:.6g}</td><td>{ratio(r)}</td></tr>"
            for name, a, b, r in self.rows()
        )
        return (
            "<table><tr><th>constant</th><th>first</th><th>second</th><th>ratio</th></tr>"
            f"{cells}</table><p>{html.escape(self.verdict())}</p>"
        )

    def verdict(self) -> str:
        """Say which of the two moves the answer less."""
        if self.first.privacy != self.second.privacy:
            return "The promises differ, so the noise of the two does not compare directly."
        a, b = self.first.expected_shift, self.second.expected_shift
        if abs(a - b) <= 1e-6 * max(a, b):
            return "Both perturb the answer equally."
        better, factor = ("first", b / a) if a < b else ("second", a / b)
        return f"The {better} perturbs the answer less, by a factor of {factor:.3g} (mean norm of b over mu)."


def ratio(value: float) -> str:
    """Format a ratio, or a dash where there is none."""
    return "-" if value != value else f"{value:.3f}"
