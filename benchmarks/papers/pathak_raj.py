"""Test error against epsilon, as in figure 2 of Pathak & Raj (2012): ``python -m benchmarks.papers.pathak_raj [--draws 100]``.

The paper's experiment: Breast Cancer data, 583 records for training and 100 for testing, lambda = 0.31, errors averaged over
random draws of the noise.  Here each draw has a random split of its own, and features are scaled into the unit ball by public
bounds.  Beside the noise as printed stand the same noise drawn for each class, and two certified learners.

The published mechanism is not private at any epsilon (docs/published.md), and what comes out of it is marked so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.mechanisms.published import PublishedPerturbation
from dpconvex.reproduction import reproduce

Array = NDArray[np.float64]
Fit = Callable[[dict[str, NDArray], float, int], dp.Release]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
LABELS = ("benign", "malignant")
TEST_SIZE, FEATURES = 100, 9
LIGHT = 1e-3  # the weight of the demonstration, fixed without the data
RESULTS = Path("benchmarks/results")

PRINTED = "as printed: one b for both classes (NOT PRIVATE)"
SEPARATE = "printed noise, but a b for each class (NOT PRIVATE)"
REPAIRED = "certified noise, the paper's λ"
OURS = f"certified noise, weight {LIGHT:g}"


@dataclass(frozen=True)
class Study:
    """Test errors: of each way to fit, shape (epsilons, draws), and of both learners without privacy, shape (draws,)."""

    epsilons: tuple[float, ...]
    errors: dict[str, Array]
    plain: dict[str, Array]
    chance: float


def paper_learner(rescale: bool = False) -> dp.Template:
    """The paper's learner with its weights; `rescale` takes the extended record into the unit ball of its lemma 1."""
    return dp.load("pathak_raj_2012", features=FEATURES, labels=LABELS, rescale=rescale)


def our_learner() -> dp.Template:
    """The same classifier with a light penalty; what privacy needs beyond it, the mechanism adds from public numbers."""
    return dp.load("large_margin_gaussian", features=FEATURES, labels=LABELS, regularization=LIGHT)


def ways() -> dict[str, Fit]:
    """Each way to fit: data, epsilon, seed -> release."""
    paper, ours = paper_learner(), our_learner()

    def published(shared: bool) -> Fit:
        mechanism = PublishedPerturbation(shared=shared)
        return lambda data, epsilon, seed: reproduce(
            paper, data, dp.Privacy(epsilon), mechanism, tolerance=1e-4, seed=seed
        )

    return {
        PRINTED: published(shared=True),
        SEPARATE: published(shared=False),
        REPAIRED: lambda data, epsilon, seed: dp.solve(paper, data, dp.Privacy(epsilon), seed=seed),
        OURS: lambda data, epsilon, seed: dp.solve(ours, data, dp.Privacy(epsilon), seed=seed),
    }


def study(draws: int, epsilons: tuple[float, ...] = EPSILONS, seed: int = 0) -> Study:
    """Split, fit and test, `draws` times for every way and every epsilon."""
    x, y = breast_cancer()
    x = unit_ball(x, lower=1, upper=10)
    rng = np.random.default_rng(seed)
    fits = ways()
    errors = {name: np.empty((len(epsilons), draws)) for name in fits}
    plain = {name: np.empty(draws) for name in ("the paper's λ", f"weight {LIGHT:g}")}
    for draw in range(draws):
        order = rng.permutation(len(x))
        test, train = order[:TEST_SIZE], order[TEST_SIZE:]
        data = {"x": x[train], "y": y[train]}
        for name, template in zip(plain, (paper_learner(), our_learner()), strict=True):
            plain[name][draw] = np.mean(dp.minimize(template, data).predict(x[test]) != y[test])
        for name, fit in fits.items():
            for row, epsilon in enumerate(epsilons):
                release = fit(data, epsilon, int(rng.integers(2**31)))
                errors[name][row, draw] = np.mean(release.predict(x[test]) != y[test])
        if (draw + 1) % 10 == 0:
            print(f"{draw + 1} of {draws} splits", flush=True)
    return Study(tuple(epsilons), errors, plain, float(min(np.mean(y == label) for label in LABELS)))


def noise_rows(size: int) -> list[tuple[str, float, float]]:
    """Noise on the mean loss: (whose, dimensions, mean norm times the epsilon left for the noise)."""
    rows = [("as printed", float((FEATURES + 1) ** 2), float((FEATURES + 1) ** 2))]
    for words, rescale in (("‖z‖ ≤ 1, as the paper assumes", True), ("z = (x, 1), ‖z‖² ≤ 2, as it computes", False)):
        for noise in ("gamma", "matrix"):
            certificate = dp.verify(paper_learner(rescale), dp.Privacy(1.0), size, dp.ObjectivePerturbation(noise))
            mean = certificate.expected_noise * certificate.noise_epsilon / size
            shape = "Gamma" if noise == "gamma" else "matrix-shaped"
            rows.append((f"certified, {shape}, {words}", float(certificate.noise_dimension), mean))
    return rows


def tables(found: Study, size: int) -> str:
    """The results as Markdown."""
    draws = next(iter(found.errors.values())).shape[1]
    lines = [f"Mean test error over {draws} random splits of 583 and 100 records (± standard error)", ""]
    lines.append("| | " + " | ".join(f"ε = {e:g}" for e in found.epsilons) + " | no noise |")
    lines.append("|---" * (len(found.epsilons) + 2) + "|")
    references = dict(
        zip(found.errors, [*[next(iter(found.plain.values()))] * 3, list(found.plain.values())[-1]], strict=True)
    )
    for name, rows in found.errors.items():
        cells = [f"{row.mean():.3f} ± {row.std() / math.sqrt(draws):.3f}" for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} | {references[name].mean():.3f} |")
    lines += ["", f"Always naming the most frequent class is wrong in {found.chance:.3f}.", ""]
    lines += ["Mean norm of the noise on the mean loss, times ε_b, the epsilon that is left for it", ""]
    lines += ["| noise | dimensions | E‖b‖ · ε_b |", "|---|---|---|"]
    lines += [f"| {name} | {dimension:.0f} | {mean:.3g} |" for name, dimension, mean in noise_rows(size)]
    return "\n".join(lines)


def draw_picture(found: Study, path: Path) -> None:
    """Error against epsilon, one curve for each way."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.6, 5.0), layout="constrained")
    style = {PRINTED: ("#b3541e", "s"), SEPARATE: ("#d9a066", "^"), REPAIRED: ("#7a9cc6", "v"), OURS: ("#1f5fa8", "o")}
    for name, rows in found.errors.items():
        colour, marker = style[name]
        spread = rows.std(axis=1) / math.sqrt(rows.shape[1])
        axes.errorbar(
            found.epsilons, rows.mean(axis=1), yerr=spread, color=colour, marker=marker, capsize=3, label=name
        )
    for (name, values), colour in zip(found.plain.items(), ("#7a7a7a", "#333333"), strict=True):
        axes.axhline(
            values.mean(), linestyle="--", linewidth=1.1, color=colour, label=f"no noise, {name}: {values.mean():.3f}"
        )
    axes.axhline(
        found.chance, linestyle=":", linewidth=1.1, color="#7a7a7a", label=f"most frequent class: {found.chance:.3f}"
    )
    axes.set_xscale("log")
    axes.set_xticks(found.epsilons, [f"{e:g}" for e in found.epsilons])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ε")
    axes.set_ylabel("test error")
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(
        "Large-margin Gaussians on the Breast Cancer data: published and certified noise", loc="left", fontsize=11
    )
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Run, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.pathak_raj", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100, help="random splits, each with noise of its own")
    parser.add_argument("--seed", type=int, default=0, help="makes a run repeatable, and nothing in it private")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the table and the picture go")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    found = study(options.draws, seed=options.seed)
    text = tables(found, 583)
    print(text)
    (options.output / "pathak_raj.md").write_text(text + "\n", encoding="utf-8")
    draw_picture(found, options.output / "pathak_raj.png")
    print(f"\nwritten: {options.output / 'pathak_raj.md'}, {options.output / 'pathak_raj.png'}")


if __name__ == "__main__":
    main()
