"""Pictures of results.  Needs Matplotlib, and draws on new figures: no window, no global state."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.errors import DPConvexError, TemplateError

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter
except ImportError as missing:
    raise DPConvexError("pictures need Matplotlib: pip install 'dpconvex[plots]'.") from missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["audit_curve", "calibration", "error_bands", "gaussians", "residuals", "risk", "roc", "shapes", "spending"]
PRIVATE, PLAIN, FAINT = "#1f5fa8", "#b3541e", "#7a7a7a"
CLASSES = (PRIVATE, PLAIN, "#3a7d44", "#7b4b94", "#8a6d1d", "#47626b", "#a23b5c", "#2a9d8f")


def dressed(axes: Axes | None, height: float = 4.5, **labels: str) -> Axes:
    """Return the given axes, or axes on a new figure, without the upper and right side of the frame."""
    drawn = Figure(figsize=(7.2, height), dpi=150, layout="constrained").add_subplot() if axes is None else axes
    drawn.set_axisbelow(True)
    drawn.spines[["top", "right"]].set_visible(False)
    drawn.set(**labels)
    return drawn


def error_bands(
    epsilons: ArrayLike, errors: ArrayLike, *, label: str = "private", colour: str = PRIVATE, axes: Axes | None = None
) -> Axes:
    """Draw the median of test errors against epsilon, and a band from their lower to their upper quartile.

    Parameters
    ----------
    epsilons : array_like, shape (k,)
        Positive; drawn on a logarithmic axis.
    errors : array_like, shape (k, draws)
        Test errors between 0 and 1, several for each epsilon.
    label, colour : str
    axes : matplotlib.axes.Axes, optional
        Axes to draw on, such as the result of an earlier call; by default new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Save the picture with ``axes.figure.savefig(path)``.

    Raises
    ------
    TemplateError
        If the shapes do not match, or an epsilon is not positive.

    Examples
    --------
    >>> error_bands([0.1, 1, 10], [[0.3, 0.2], [0.1, 0.1], [0.0, 0.1]]).get_xscale()
    'log'
    """
    x, y = np.asarray(epsilons, dtype=float), np.asarray(errors, dtype=float)
    if x.ndim != 1 or not (x.size and np.isfinite(x).all() and (x > 0).all()):
        raise TemplateError(f"error_bands: epsilons must be a list of positive numbers, not {epsilons!r}.")
    if y.ndim != 2 or len(y) != len(x) or not (y.size and np.isfinite(y).all()):
        raise TemplateError(f"error_bands: errors must have shape ({len(x)}, draws), not {y.shape}.")
    drawn = dressed(axes, xlabel="privacy parameter ε (smaller guarantees more)", ylabel="test error", xscale="log")
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75], axis=1)
    drawn.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    drawn.plot(x, middle, color=colour, marker="o", markersize=4, linewidth=1.8, label=label)
    drawn.set_xticks(x)  # only the epsilons that were tried get a tick
    drawn.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    drawn.xaxis.set_minor_locator(NullLocator())
    drawn.tick_params(axis="x", rotation=60 if len(x) > 9 else 0)
    drawn.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    drawn.set_ylim(bottom=0.0)
    drawn.legend(frameon=False)
    return drawn


def spending(certificate: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the parts of epsilon of a `dpconvex.Certificate` or a `dpconvex.Budget`; axes as for `error_bands`."""
    if hasattr(certificate, "entries"):
        epsilon, title, unit = certificate.privacy.epsilon, f"{certificate.accounting} accounting", 1.0
        parts = [(entry.label, entry.privacy.epsilon) for entry in certificate.entries]
        parts += [("spent in all", certificate.spent.epsilon), ("left", certificate.remaining.epsilon)]
        drawn, form = dressed(axes, max(4.5, 0.25 * len(parts)), xlabel=f"epsilon, of {epsilon:g}"), "{:.3g}"
    else:
        epsilon, title, unit = certificate.epsilon, certificate.mechanism, 100 / certificate.epsilon
        parts = [(what.split(":")[0].split(",")[0], spent) for spent, what in certificate.shares()]
        drawn, form = dressed(axes, xlabel=f"share of epsilon = {epsilon:g}, in per cent"), "{:.3g} %"
    bars = drawn.barh(range(len(parts)), [unit * spent for _, spent in parts], color=PRIVATE, height=0.6)
    drawn.set_yticks(range(len(parts)), [name if len(name) < 41 else name[:40] + "…" for name, _ in parts])
    drawn.bar_label(bars, fmt=form, padding=4, fontsize=9)
    drawn.set(xlim=(0, 1.12 * unit * epsilon), ylim=(len(parts) - 0.5, -0.5))
    drawn.set_title(title, loc="left", fontsize=11)
    return drawn


def risk(certificates: Any, *, axes: Axes | None = None) -> Axes:
    """Draw lower bounds on an attacker's error rates, from a `dpconvex.Certificate` or a mapping of several by name."""
    named = certificates if isinstance(certificates, Mapping) else {str(certificates.privacy): certificates}
    drawn, rates = dressed(axes, 5.5, aspect="equal"), np.linspace(0.0, 1.0, 201)
    drawn.set(xlabel="false positive rate", ylabel="false negative rate, at least", xlim=(0, 1), ylim=(0, 1))
    drawn.plot([0, 1], [1, 0], color=FAINT, linewidth=0.8, linestyle=":", label="guessing")
    for number, (name, certificate) in enumerate(named.items()):
        drawn.plot(rates, certificate.risk(rates), color=CLASSES[number % len(CLASSES)], linewidth=1.8, label=name)
    drawn.legend(frameon=False, loc="upper right")
    return drawn


def roc(evaluation: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the ROC curve of a `dpconvex.Evaluation` with its band of 95 %; axes as for `error_bands`."""
    drawn = banded(evaluation.roc(), "-", axes, f"AUC {evaluation.auc}", ([0, 1], [0, 1]), "guessing")
    drawn.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))
    return drawn


def calibration(evaluation: Any, *, axes: Axes | None = None) -> Axes:
    """Draw observed shares by probabilities of a `dpconvex.Evaluation`, with intervals of 95 %; axes as for `error_bands`."""
    ends = evaluation.calibration().reach
    drawn = banded(evaluation.calibration(), "o", axes, "observed", (ends, ends), "as predicted")
    drawn.set(xlabel="predicted probability", ylabel="observed share", xlim=ends, ylim=ends)
    return drawn


def residuals(evaluation: Any, *, axes: Axes | None = None) -> Axes:
    """Draw quartiles of label minus prediction by prediction, of a `dpconvex.Evaluation`; axes as for `error_bands`."""
    ends = [evaluation.bounds[k] for k in (0, 1)]
    drawn = banded(evaluation.residuals(0.5), "o", axes, "median", (ends, [0, 0]), "as predicted", equal=False)
    for share in (0.25, 0.75):
        found = evaluation.residuals(share)
        drawn.plot(found.x, found.y, color=PLAIN, linewidth=1.2, label="quartiles" if share < 0.5 else "_")
    drawn.set(xlabel=f"predicted {evaluation.label}", ylabel="truth minus prediction", xlim=ends)
    drawn.legend(frameon=False)
    return drawn


def banded(curve: Any, marker: str, axes: Axes | None, label: str, line: Any, meaning: str, equal: bool = True) -> Axes:
    """Draw a curve with intervals, and a line for comparison."""
    drawn = dressed(axes, 5.5, **({"aspect": "equal"} if equal else {}))
    drawn.plot(*line, color=FAINT, linewidth=0.8, linestyle=":", label=meaning)
    if marker == "-":
        drawn.fill_between(curve.x, curve.lower, curve.upper, color=PRIVATE, alpha=0.18, linewidth=0)
        drawn.plot(curve.x, curve.y, color=PRIVATE, linewidth=1.8, label=label)
    else:
        ends = abs(np.stack([curve.lower, curve.upper]) - curve.y)
        drawn.errorbar(curve.x, curve.y, ends, fmt="o", color=PRIVATE, markersize=5, linewidth=1.2, label=label)
    drawn.legend(frameon=False, loc="best")
    return drawn


def gaussians(
    means: Any, precisions: Any, *, labels: Any = None, coordinates: tuple[int, int] = (0, 1), axes: Axes | None = None
) -> Axes:
    """Draw fitted Gaussians as ellipses at the level exp(-1/2), from released parameters alone.

    Parameters
    ----------
    means : sequence of array_like, shape (features,) or (components, features)
        One entry for each class, such as ``means_`` of `LargeMarginGaussian` and `LargeMarginGaussianMixture`.
    precisions : sequence of array_like, shape (features, features) or (components, features, features)
    labels : sequence, optional
        Names of the classes.
    coordinates : pair of int
        The two features that are shown, in sections through the centres.
    axes : matplotlib.axes.Axes, optional
    """
    pair, angle = list(coordinates), np.linspace(0, 2 * np.pi, 200)
    drawn = dressed(axes, xlabel=f"feature {pair[0]}", ylabel=f"feature {pair[1]}")
    for number, (centres, matrices) in enumerate(zip(means, precisions, strict=True)):
        colour = CLASSES[number % len(CLASSES)]
        name = str(labels[number]) if labels is not None else f"class {number}"
        stacked = np.reshape(matrices, (-1, *np.shape(matrices)[-2:]))
        for centre, matrix in zip(np.atleast_2d(centres), stacked, strict=True):
            values, vectors = np.linalg.eigh(matrix[np.ix_(pair, pair)])
            if values[0] <= 1e-12 * max(values[-1], 1e-300):
                continue  # flat in a direction: it has no ellipse
            line = centre[pair][:, None] + (vectors / np.sqrt(values)) @ [np.cos(angle), np.sin(angle)]
            drawn.plot(*line, color=colour, linewidth=1.8, label=name)
            drawn.plot(*centre[pair], "+", color=colour, markersize=7)
            name = "_"  # one entry of the legend for each class
    shared = all(len(group.get_siblings(drawn)) > 1 for group in (drawn.get_shared_x_axes(), drawn.get_shared_y_axes()))
    drawn.set_aspect("equal", adjustable="box" if shared else "datalim")  # limits that are shared cannot be moved
    if drawn.get_legend_handles_labels()[0]:
        drawn.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def audit_curve(audit: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the claims and findings of a `dpconvex.Audit`; axes as for `error_bands`.

    If the distribution of the answer was computed, draw delta against epsilon, with the claim as a point. Otherwise draw the
    ratio of found to claimed for each attack, as bars.
    """
    drawn, worst = dressed(axes), audit.worst
    if worst.masses is not None and worst.delta > 0:
        epsilons = np.linspace(0.0, 1.5 * max(worst.epsilon, worst.found_epsilon), 200)
        deltas = np.array([worst.masses.delta(epsilon) for epsilon in epsilons])
        drawn.semilogy(epsilons[deltas > 0], deltas[deltas > 0], color=PRIVATE, label="found, for the worst neighbours")
        drawn.plot([worst.epsilon], [worst.delta], "o", color=PLAIN, label="claimed")
        drawn.axvline(worst.epsilon, color=FAINT, linewidth=0.8, linestyle=":")
        drawn.axhline(worst.delta, color=FAINT, linewidth=0.8, linestyle=":")
        drawn.set(xlabel="epsilon", ylabel="delta", ylim=(1e-6 * worst.delta, 1))
        drawn.legend(frameon=False)
    else:
        names = [attack.part for attack in audit.attacks]
        drawn.barh(names, [attack.ratio for attack in audit.attacks], color=PRIVATE)
        drawn.axvline(1.0, color=PLAIN, linestyle="--")
        drawn.set(xlabel="found / claimed", ylim=(len(names) - 0.5, -0.5))
    verdict = "no claim was broken" if audit.holds else "BROKEN"
    drawn.set_title(f"{audit.mechanism}\n{audit.privacy}: {verdict}", loc="left", fontsize=9)
    return drawn


def shapes(model: Any, *, across: int = 4) -> Figure:
    """Draw the released curves of an additive model, with bands of at most two standard deviations of the noise.

    Parameters
    ----------
    model : AdditiveClassifier, AdditiveRegressor or mapping
        A fitted model, its ``shapes_``, or a part of these.
    across : int
        Number of pictures in a row.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig(path)``.
    """
    shapes = getattr(model, "shapes_", model)
    if not isinstance(shapes, Mapping) or not shapes:
        raise TemplateError("shapes: there is no curve to draw; pass a fitted additive model, or its shapes_.")
    across = min(across, len(shapes))
    down = -(-len(shapes) // across)
    figure = Figure(figsize=(3.2 * across, 2.8 * down), dpi=150, layout="constrained")
    for place, (name, shape) in enumerate(shapes.items(), start=1):
        axes, (nodes, *others), values = dressed(figure.add_subplot(down, across, place)), shape.nodes, shape.values
        low, high = values - 2 * shape.deviations, values + 2 * shape.deviations
        knots = [node for node in nodes if not isinstance(node, str)]
        if others:
            grid = values.reshape(len(nodes), -1)
            most = abs(grid).max()
            figure.colorbar(axes.imshow(grid, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto"), ax=axes)
            axes.set_xticks(range(grid.shape[1]), others[0], fontsize=6)
            axes.set_yticks(range(len(nodes)), nodes, fontsize=6)
            axes.set(xlabel=name[1], ylabel=name[0])
            continue
        if knots:
            axes.fill_between(knots, low[: len(knots)], high[: len(knots)], color=PRIVATE, alpha=0.18, linewidth=0)
            axes.plot(knots, values[: len(knots)], color=PRIVATE, linewidth=1.8)
            axes.locator_params(axis="x", nbins=4)
            for value in values[len(knots) :]:
                axes.axhline(value, color=PLAIN, linestyle=":", label="missing")
                axes.legend(frameon=False, fontsize=7)
        else:
            some = range(0, len(values), -(-len(values) // 20))
            axes.vlines(range(len(values)), low, high, color=PRIVATE, alpha=0.35, linewidth=4)
            axes.plot(range(len(values)), values, "o", color=PRIVATE, markersize=3)
            tilted = {"rotation": 60, "ha": "right", "fontsize": 6} if len(nodes) > 4 else {"fontsize": 8}
            axes.set_xticks(some, nodes[some], **tilted)
            axes.set_xlim(-0.5, len(values) - 0.5)
        axes.axhline(0.0, color=FAINT, linewidth=0.8)
        axes.set_xlabel(fill(str(name), 32))
    return figure
