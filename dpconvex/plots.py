"""Pictures of results.  Needs Matplotlib, and draws on figures of its own: no window, no global state."""

from __future__ import annotations

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
    import os

    from matplotlib.axes import Axes

__all__ = ["draw_profile", "error_against_epsilon"]

PRIVATE, PLAIN, FAINT, TEXT = "#1f5fa8", "#b3541e", "#7a7a7a", "#333333"


def error_against_epsilon(
    epsilons: ArrayLike,
    errors: ArrayLike,
    *,
    reference: ArrayLike | None = None,
    chance: float | None = None,
    title: str = "",
    subtitle: str = "",
) -> Figure:
    """Draw mean test errors against epsilon, with a bar of one standard deviation each way.

    Parameters
    ----------
    epsilons : array_like, shape (k,)
        Positive; drawn on a logarithmic axis.
    errors : array_like, shape (k, draws)
        Test errors between 0 and 1, several for each epsilon.
    reference : array_like, shape (draws,), optional
        Test errors without privacy, drawn as a dashed line at their mean.
    chance : float, optional
        Test error of always naming the most frequent class, drawn as a dotted line.
    title, subtitle : str
        What is shown, and under which promise.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig(path)``.

    Raises
    ------
    TemplateError
        If the shapes do not go together, or an epsilon is not positive.

    Examples
    --------
    >>> figure = error_against_epsilon([0.1, 1, 10], [[0.3, 0.2], [0.1, 0.1], [0.0, 0.1]], reference=[0.05, 0.05])
    >>> figure.axes[0].get_xscale()
    'log'
    """
    x, y = np.asarray(epsilons, dtype=float), np.asarray(errors, dtype=float)
    if x.ndim != 1 or x.size == 0 or not (np.isfinite(x) & (x > 0)).all():
        raise TemplateError("error_against_epsilon: epsilons must be a list of positive numbers.")
    if y.ndim != 2 or len(y) != len(x) or y.shape[1] == 0 or not np.isfinite(y).all():
        raise TemplateError(f"error_against_epsilon: errors must have shape ({len(x)}, draws), not {y.shape}.")
    figure = Figure(figsize=(7.2, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    draws = "1 draw" if y.shape[1] == 1 else f"mean ± 1 sd of {y.shape[1]} draws"
    axes.errorbar(
        x,
        y.mean(axis=1),
        yerr=y.std(axis=1),
        color=PRIVATE,
        marker="o",
        markersize=5,
        linewidth=1.8,
        elinewidth=1.1,
        capsize=3,
        label=f"private: {draws}",
        zorder=3,
    )
    if reference is not None:
        mean = float(np.mean(np.asarray(reference, dtype=float)))
        label = f"without privacy: {100 * mean:.1f} %"
        axes.axhline(mean, color=PLAIN, linestyle="--", linewidth=1.5, label=label, zorder=2)
    if chance is not None:
        label = f"most frequent class: {100 * chance:.1f} %"
        axes.axhline(chance, color=FAINT, linestyle=":", linewidth=1.3, label=label, zorder=1)
    dress(axes, x)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: not labels[i].startswith("private"))
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        labelcolor=TEXT,
    )
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=TEXT, pad=22 if subtitle else 8)
    small = axes.text(0.0, 1.025, subtitle, transform=axes.transAxes, fontsize=9, color=FAINT)
    small.set_in_layout(False)  # a long one would squeeze the axes
    return figure


def dress(axes: Axes, epsilons: np.ndarray) -> None:
    """Scale and label the axes; only the epsilons that were tried get a tick."""
    axes.set_xscale("log")
    axes.set_xticks(epsilons)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("privacy parameter ε (smaller promises more)", color=TEXT)
    axes.set_ylabel("test error", color=TEXT)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def draw_profile(audit: Any, path: str | os.PathLike[str]) -> None:
    """Draw what an audit claims and found, and save the picture.

    Where the law of the answer was computed, that is delta against epsilon, with the claim as a point; else the found share of
    every claim, as bars.

    Parameters
    ----------
    audit : dpconvex.Audit
    path : str or path
        Its ending decides the format.
    """
    figure = Figure(figsize=(7.2, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    worst = audit.worst
    if worst.masses is not None and worst.delta > 0:
        epsilons = np.linspace(0.0, 1.5 * max(worst.epsilon, worst.found_epsilon), 200)
        deltas = np.array([worst.masses.delta(epsilon) for epsilon in epsilons])
        shown = deltas > 0
        axes.semilogy(epsilons[shown], deltas[shown], color=PRIVATE, label="found, for the worst neighbours")
        axes.plot([worst.epsilon], [worst.delta], "o", color=PLAIN, label="claimed")
        axes.axvline(worst.epsilon, color=FAINT, linewidth=0.8, linestyle=":")
        axes.axhline(worst.delta, color=FAINT, linewidth=0.8, linestyle=":")
        axes.set(xlabel="epsilon", ylabel="delta")
        axes.legend(frameon=False)
    else:
        names = [attack.part for attack in audit.attacks]
        axes.barh(names, [attack.ratio for attack in audit.attacks], color=PRIVATE)
        axes.axvline(1.0, color=PLAIN, linestyle="--")
        axes.invert_yaxis()
        axes.set(xlabel="found / claimed")
    figure.suptitle(
        f"{audit.mechanism}\n{audit.privacy}: {'no claim was broken' if audit.holds else 'BROKEN'}", fontsize=9
    )
    figure.savefig(path)
