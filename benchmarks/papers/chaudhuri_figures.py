"""Pictures like figures 2 to 5 of Chaudhuri, Monteleoni & Sarwate (2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = ["draw_against_epsilon", "draw_learning_curves"]

# (colour, line, marker) of each way.
STYLES = {
    "plain": ("black", "--", ""),
    "output": ("C7", "-", "s"),
    "objective": ("C0", "-", "o"),
    "pure+": ("C1", "-", "^"),
    "delta+": ("C2", "-", "v"),
    "adding+": ("C3", "-", "D"),
}


class Means(Protocol):
    """Where errors come from."""

    def mean(self, *key: Any) -> float:
        """Return the mean error."""
        ...


def draw_against_epsilon(
    data: str,
    means: Means,
    learners: Sequence[str],
    titles: Mapping[str, str],
    epsilons: Sequence[float],
    output: Path,
) -> None:
    """Draw figure 2 (Adult) or 3 (KDD): a panel for each learner."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(learners), figsize=(11, 4.6), sharey=True, layout="constrained")
    for axis, name in zip(axes, learners, strict=True):
        for way, (colour, line, marker) in STYLES.items():
            values = [means.mean(name, way, epsilons[0] if way == "plain" else e) for e in epsilons]
            if values[0] == values[0]:  # there is something to draw
                axis.plot(epsilons, values, color=colour, ls=line, marker=marker, ms=5, label=titles[way])
        axis.set_xlabel("epsilon")
        axis.set_title(f"{data.upper() if data == 'kdd' else data.title()}, {name}")
        axis.grid(alpha=0.3)
        if data == "kdd":
            axis.set_yscale("log")
    axes[0].set_ylabel("test error")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(output / f"chaudhuri_figure_{data}.png", dpi=120)
    plt.close(figure)


def draw_learning_curves(
    means: Means,
    learners: Sequence[str],
    titles: Mapping[str, str],
    epsilons: Sequence[float],
    sizes: Sequence[int],
    output: Path,
) -> None:
    """Draw figures 4 and 5: a row for each learner, a panel for each epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shape = len(learners), len(epsilons)
    figure, axes = plt.subplots(*shape, figsize=(11, 8), sharex=True, sharey=True, layout="constrained", squeeze=False)
    for row, name in zip(axes, learners, strict=True):
        for axis, epsilon in zip(row, epsilons, strict=True):
            for way in titles:
                colour, line, marker = STYLES[way]
                at = epsilons[0] if way == "plain" else epsilon
                values = [means.mean(name, way, at, size) for size in sizes]
                axis.plot(sizes, values, color=colour, ls=line, marker=marker, ms=5, label=titles[way])
            axis.set_yscale("log")
            axis.set_title(f"KDD, {name}, epsilon = {epsilon:g}")
            axis.grid(alpha=0.3, which="both")
        row[0].set_ylabel("test error")
    for axis in axes[-1]:
        axis.set_xlabel("records for each of five regularizations")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(output / "chaudhuri_curves.png", dpi=120)
    plt.close(figure)
