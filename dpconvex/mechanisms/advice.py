"""What dominates the cost of a certificate, and what would lower it.  Public numbers only."""

from __future__ import annotations

import numpy as np

from dpconvex.calculus.analysis import Analysis
from dpconvex.language.privacy import Privacy

# Curvature is worth a remark from this share of epsilon on; the advice aims at the second share.
REMARKABLE = 0.25
AIM = 0.1


def advise(
    analysis: Analysis, privacy: Privacy, size: int, added: float, beta: float, sensitivity: float
) -> tuple[str, ...]:
    """Return sentences about the dominating term of a certificate."""
    epsilon = privacy.epsilon
    share = max(1.0 - beta * sensitivity / epsilon, 0.0)
    if share < REMARKABLE:
        cheapest = "is free" if share < 1e-9 else f"costs {100 * share:.0f} %"
        return (
            f"{100 * (1 - share):.0f} % of epsilon pays for the noise, curvature {cheapest}: a smaller bound on the records, "
            f"more records or a larger epsilon is what lowers the noise (it grows with G_adj = {sensitivity:.4g}).",
        )
    now = analysis.moduli(size, added).least
    goal = now
    while (
        analysis.log_det(analysis.moduli(size, goal - size * analysis.modulus))[0] > AIM * epsilon and goal < 1e12 * now
    ):
        goal *= 1.05
    better = (1 - AIM) * epsilon / sensitivity
    return (
        f"{100 * share:.0f} % of epsilon pays for curvature: raise the strong convexity from {now:.4g} to {goal:.4g} (a modulus "
        f"of {goal / size:.3g} in the regularizer, on the mean loss), and the noise scale falls by "
        f"{100 * (1 - beta / np.maximum(better, beta)):.0f} %.",
    )
