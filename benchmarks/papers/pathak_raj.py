"""Test error against epsilon, as in figure 2 of Pathak & Raj (2012): ``python -m benchmarks.papers.pathak_raj [--draws 100]``.

The paper's experiment: Breast Cancer data, 583 records for training and 100 for testing, lambda = 0.31, errors averaged over
random draws of the noise.  Here each draw has a random split of its own, and features are scaled into the unit ball by public
bounds.  Beside the noise as printed stand the same noise drawn for each class, and two certified learners.  The same follows for
mixtures of two Gaussians for each class (a quarter of the draws), whose component is public: whether the gradings are above
the middle of their range on average.  Of the mechanism of 2010, which has no strong convexity, it is counted how often there is
an answer at all.

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
from benchmarks import RESULTS, chosen
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import reproduce
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import seeded_generator

Array = NDArray[np.float64]
Fit = Callable[[dict[str, NDArray], float, int], dp.Release]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
KINDS = {"one Gaussian for each class": "", "two Gaussians for each class": "_mixture"}
LABELS = ("benign", "malignant")
TEST_SIZE, FEATURES = 100, 9
LIGHT = 1e-3  # the weight of the demonstration, fixed without the data

PRINTED = "as printed: one b for both classes (NOT PRIVATE)"
SEPARATE = "printed noise, but a b for each class (not certified)"
REPAIRED = "certified noise, the paper's λ"
OURS = f"certified noise, weight {LIGHT:g}"


@dataclass(frozen=True)
class Study:
    """Test errors: of each way to fit, shape (epsilons, draws), and of both learners without privacy, shape (draws,)."""

    epsilons: tuple[float, ...]
    errors: dict[str, Array]
    plain: dict[str, Array]
    chance: float


def paper_learner(kind: str = "", rescale: bool = False) -> dp.Template:
    """The paper's learner with its weights; `rescale` takes the extended record into the unit ball of its lemma 1."""
    return dp.load(f"pathak_raj_2012{kind}", features=FEATURES, labels=LABELS, rescale=rescale)


def our_learner(kind: str = "") -> dp.Template:
    """The same classifier with a light penalty; what privacy needs beyond it, the mechanism adds from public numbers."""
    return dp.load(f"large_margin_gaussian{kind}", features=FEATURES, labels=LABELS, regularization=LIGHT)


def ways(paper: dp.Template, ours: dp.Template) -> dict[str, Fit]:
    """Each way to fit: data, epsilon, seed -> release."""

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


def study(draws: int, kind: str = "", epsilons: tuple[float, ...] = EPSILONS, seed: int = 0) -> Study:
    """Split, fit and test, `draws` times for every way and every epsilon."""
    x, y = breast_cancer()
    x = unit_ball(x, lower=1, upper=10)
    columns = {"x": x, "y": y} | ({"m": (x.sum(axis=1) > 0).astype(int)} if kind else {})
    rng = np.random.default_rng(seed)
    paper, ours = paper_learner(kind), our_learner(kind)
    fits = ways(paper, ours)
    errors = {name: np.empty((len(epsilons), draws)) for name in fits}
    plain = {name: np.empty(draws) for name in ("the paper's λ", f"weight {LIGHT:g}")}
    for draw in range(draws):
        order = rng.permutation(len(x))
        test, train = order[:TEST_SIZE], order[TEST_SIZE:]
        data = {name: column[train] for name, column in columns.items()}
        for name, template in zip(plain, (paper, ours), strict=True):
            plain[name][draw] = np.mean(dp.solve_without_privacy(template, data).predict(x[test]) != y[test])
        for name, fit in fits.items():
            for row, epsilon in enumerate(epsilons):
                release = fit(data, epsilon, int(rng.integers(2**31)))
                errors[name][row, draw] = np.mean(release.predict(x[test]) != y[test])
        if (draw + 1) % 10 == 0:
            print(f"{draw + 1} of {draws} splits", flush=True)
    return Study(tuple(epsilons), errors, plain, float(min(np.mean(y == label) for label in LABELS)))


def answers_of_2010(features: int, draws: int, rng: np.random.Generator, epsilon: float = 1.0) -> int:
    """Count the draws of the noise of 2010 for which its objective has a minimiser.

    Along equal matrices (Phi, ..., Phi) the losses do not move, and the rest is the inner product with C (lambda I_Phi + b):
    without a semidefinite symmetric part the objective falls for ever.
    """
    template = dp.load("pathak_raj_2010", features=features, labels=LABELS)
    mechanism = PublishedPerturbation.of(2010)
    space = analyse(template).form.space
    weight = 0.01 * np.diag([1.0] * features + [0.0])
    found = 0
    for _ in range(draws):
        noise = space.unpack(mechanism.noise(space, mechanism.scale(epsilon, 1), rng))["Phi_0"]
        found += bool(np.linalg.eigvalsh(weight + noise)[0] >= 0)
    return found


def noise_rows(size: int) -> list[tuple[str, float, float]]:
    """Noise on the mean loss: (whose, dimensions, mean norm times the epsilon left for the noise)."""
    rows = [("as printed", float((FEATURES + 1) ** 2), float((FEATURES + 1) ** 2))]
    for words, rescale in (("‖z‖ ≤ 1, as the paper assumes", True), ("z = (x, 1), ‖z‖² ≤ 2, as it computes", False)):
        for noise in ("gamma", "matrix"):
            certificate = dp.verify(
                paper_learner(rescale=rescale), dp.Privacy(1.0), size, dp.ObjectivePerturbation(noise)
            )
            mean = certificate.expected_noise * certificate.noise_epsilon / size
            shape = "Gamma" if noise == "gamma" else "matrix-shaped"
            rows.append((f"certified, {shape}, {words}", float(certificate.noise_dimension), mean))
    return rows


def errors_table(found: Study) -> str:
    """The errors of a study as Markdown."""
    draws = next(iter(found.errors.values())).shape[1]
    paper, light = found.plain.values()
    references = dict(zip(found.errors, (paper, paper, paper, light), strict=True))
    lines = [
        f"Mean test error over {draws} random splits of 583 and 100 records (± standard error); always naming the most frequent "
        f"class is wrong in {found.chance:.3f}",
        "",
        "| | " + " | ".join(f"ε = {e:g}" for e in found.epsilons) + " | no noise |",
        "|---" * (len(found.epsilons) + 2) + "|",
    ]
    for name, rows in found.errors.items():
        cells = [f"{row.mean():.3f} ± {row.std() / math.sqrt(draws):.3f}" for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} | {references[name].mean():.3f} |")
    return "\n".join(lines)


def noise_table(size: int) -> str:
    """The sizes of the noise as Markdown."""
    lines = ["Mean norm of the noise on the mean loss, times ε_b, the epsilon that is left for it", ""]
    lines += ["| noise | dimensions | E‖b‖ · ε_b |", "|---|---|---|"]
    lines += [f"| {name} | {dimension:.0f} | {mean:.3g} |" for name, dimension, mean in noise_rows(size)]
    return "\n".join(lines)


def table_of_2010(draws: int) -> str:
    """How often the mechanism of 2010 has an answer, as Markdown."""
    rng = seeded_generator(2010)
    lines = [
        "Draws of the noise of 2010 at ε = 1 for which the objective has a minimiser",
        "",
        "| d | draws | with one |",
    ]
    lines += ["|---|---|---|"]
    lines += [f"| {d} | {draws} | {answers_of_2010(d, draws, rng)} |" for d in (1, 2, 3, 9)]
    return "\n".join(lines)


def draw_picture(found: Study, title: str, path: Path) -> None:
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
        f"Breast Cancer data, large margins, {title}: published and certified noise", loc="left", fontsize=11
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
    options = chosen(parser, arguments, draws=1)
    options.output.mkdir(parents=True, exist_ok=True)
    parts = [noise_table(583), table_of_2010(20 * options.draws)]
    for (title, kind), draws in zip(KINDS.items(), (options.draws, max(options.draws // 4, 1)), strict=True):
        found = study(draws, kind, seed=options.seed)
        draw_picture(found, title, options.output / f"pathak_raj{kind}.png")
        parts.append(f"**{title[0].upper()}{title[1:]}.** {errors_table(found)}")
    text = "\n\n".join(parts)
    print(text)
    (options.output / "pathak_raj.md").write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten to {options.output}: pathak_raj.md, pathak_raj.png, pathak_raj_mixture.png")


if __name__ == "__main__":
    main()
