"""Test error against epsilon, as in figure 2 of Pathak & Raj (2012): ``python -m benchmarks.published.pathak_raj_errors``.

The paper's experiment: Breast Cancer data, 583 records for training and 100 for testing, lambda = 0.31, errors averaged over
random draws of the noise.  Here each draw has a random split of its own, and features are scaled into the unit ball by public
bounds.  Beside the noise as printed stand the same noise drawn for each class, and two certified learners.  The same follows for
mixtures of two Gaussians for each class (a quarter of the draws), whose component is public: whether the gradings are above
the middle of their range on average.  Of the mechanism of 2010, which has no strong convexity, it is counted how often there is
an answer at all.

The published mechanism is not private at any epsilon (docs/published.md), and what comes out of it is marked so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, heading, heads, row
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import reproduce
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import seeded_generator

Fit = Callable[[dict[str, Any], float, int], dp.Release]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
KINDS = {"one Gaussian for each class": "", "two Gaussians for each class": "_mixture"}
LABELS = ("benign", "malignant")
TEST_SIZE, FEATURES = 100, 9
LIGHT = 1e-3  # the weight of the demonstration, fixed without the data


def paper_learner(kind: str = "", rescale: bool = False) -> dp.Template:
    """Return the paper's learner; `rescale` takes the extended record into the unit ball of its lemma 1."""
    return dp.load(f"pathak_raj_2012{kind}", features=FEATURES, labels=LABELS, rescale=rescale)


def ways(kind: str) -> dict[str, tuple[dp.Template, Fit]]:
    """Return each way to fit: the template, and a function of data, epsilon and seed."""
    paper = paper_learner(kind)
    ours = dp.load(f"large_margin_gaussian{kind}", features=FEATURES, labels=LABELS, regularization=LIGHT)

    def published(shared: bool) -> Fit:
        mechanism = PublishedPerturbation(shared=shared)
        return lambda data, e, seed: reproduce(paper, data, dp.Privacy(e), mechanism, tolerance=1e-4, seed=seed)

    def certified(template: dp.Template) -> Fit:
        return lambda data, e, seed: dp.solve(template, data, dp.Privacy(e), seed=seed)

    return {
        "as printed: one b for both classes (NOT PRIVATE)": (paper, published(shared=True)),
        "printed noise, but a b for each class (not certified)": (paper, published(shared=False)),
        "certified noise, the paper's λ": (paper, certified(paper)),
        f"certified noise, weight {LIGHT:g}": (ours, certified(ours)),
    }


def show_errors(title: str, kind: str, draws: int, epsilons: Sequence[float]) -> None:
    """Split, fit and test, so many times for every way and every epsilon; then print means and standard errors."""
    x, y = breast_cancer()
    x = unit_ball(x, lower=1, upper=10)
    columns = {"x": x, "y": y} | ({"m": (x.sum(axis=1) > 0).astype(int)} if kind else {})
    rng, fits = np.random.default_rng(0), ways(kind)
    errors = {name: np.empty((draws, len(epsilons) + 1)) for name in fits}
    for draw in range(draws):
        order = rng.permutation(len(x))
        test, train = order[:TEST_SIZE], order[TEST_SIZE:]
        data = {name: column[train] for name, column in columns.items()}
        for name, (template, fit) in fits.items():
            found = [fit(data, epsilon, int(rng.integers(2**31))) for epsilon in epsilons]
            found.append(dp.solve_without_privacy(template, data))
            errors[name][draw] = [np.mean(release.predict(x[test]) != y[test]) for release in found]
    chance = min(np.mean(y == label) for label in LABELS)
    print(f"\n{title}: error over {draws} splits; always naming the most frequent class is wrong in {chance:.3f}\n")
    heading("", *heads(epsilons), "no noise")
    for name, rows in errors.items():
        spread = rows.std(axis=0) / np.sqrt(draws)
        cells = (f"{mean:.3f} ± {error:.3f}" for mean, error in zip(rows.mean(axis=0), spread, strict=True))
        row(name, *cells)


def answers_of_2010(features: int, draws: int, rng: np.random.Generator, epsilon: float = 1.0) -> int:
    """Count the draws of the noise of 2010 for which its objective has a minimiser.

    Along equal matrices (Phi, ..., Phi) the losses do not move, and the rest is the inner product with C (lambda I_Phi + b):
    without a semidefinite symmetric part the objective falls for ever.
    """
    space = analyse(dp.load("pathak_raj_2010", features=features, labels=LABELS)).form.space
    mechanism, weight = PublishedPerturbation.of(2010), 0.01 * np.diag([1.0] * features + [0.0])
    drawn = (space.unpack(mechanism.noise(space, mechanism.scale(epsilon, 1), rng))["Phi_0"] for _ in range(draws))
    return sum(bool(np.linalg.eigvalsh(weight + noise)[0] >= 0) for noise in drawn)


def show_noise(size: int) -> None:
    """Print the mean norm of the noise on the mean loss, times the epsilon that is left for it."""
    heading("noise", "dimensions", "E‖b‖ · ε_b")
    row("as printed", (FEATURES + 1) ** 2, (FEATURES + 1) ** 2)
    for words, rescale in (("‖z‖ ≤ 1, as the paper assumes", True), ("z = (x, 1), ‖z‖² ≤ 2, as it computes", False)):
        for noise, shape in (("gamma", "Gamma"), ("matrix", "matrix-shaped")):
            mechanism = dp.ObjectivePerturbation(noise)
            found = dp.verify(paper_learner(rescale=rescale), dp.Privacy(1.0), size, mechanism)
            mean = found.expected_noise * found.noise_epsilon / size
            row(f"certified, {shape}, {words}", found.noise_dimension, f"{mean:.3g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    options = chosen(__doc__, arguments, {"--draws": (100, "random splits, each with noise of its own")}, draws=1)
    show_noise(583)
    print()
    heading("features", "draws of 2010's noise", "with a minimiser")
    rng = seeded_generator(2010)
    for features in (1, 2, 3, 9):
        draws = 20 * options.draws
        row(features, draws, answers_of_2010(features, draws, rng))
    for title, kind in KINDS.items():
        draws = max(options.draws // 4, 1) if kind else options.draws
        show_errors(title, kind, draws, EPSILONS[2:3] if options.small else EPSILONS)


if __name__ == "__main__":
    main()
