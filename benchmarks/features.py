"""Ours untuned against what is published, one table: ``python -m benchmarks features [task ...] [--small] [--seeds 5]``.

`tables`: Adult, against tuned descent.  `additive`: Adult by an additive model, against a linear one from the same table.
`images`: scattering features of 8 x 8 digits, of T-shirts against dresses and of MNIST
(minutes for a fit, 16 GB), also against least squares.  `regression`: against AdaSSP and BoostedAdaSSP.  Whatever has a grid of
settings is tuned in its favour without being paid for: each number is the best over the grid, for each measure by itself, on the
very records that it is measured on.  Ours has all defaults and public sizes.

``--fashion FOLDER`` and ``--mnist FOLDER`` hold the four files of Fashion-MNIST and MNIST; without these, they are left out.
Guarantees are (epsilon, 1e-5), add-remove.
"""

import gzip
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from benchmarks import chosen, heading, public_data, row, some_of
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC
from benchmarks.utility import competitors, tables
from benchmarks.utility.tables import Split
from dpconvex import datasets
from dpconvex.util.arrays import Array

DELTA = 1e-5
OURS = "ours"
MEASURES = dict.fromkeys(("tables", "additive", "images"), ("error", "AUC", "log loss", "seconds"))
MEASURES |= {"regression": ("1 - R²", "seconds")}
EPSILONS = (0.3, 1.0, 3.0, 8.0)
CLIPPED: dict[str, Sequence[Any]] = {"clip": (0.1, 0.3, 1.0), "steps": (30, 100), "rate": (0.5, 2.0, 8.0, 32.0)}
SQUARES: dict[str, Sequence[Any]] = {"shared": (0.0, 0.1, 1.0), "ridge": (0.1, 0.3, 1.0, 3.0)}
FEW: dict[str, Sequence[Any]] = {"clip": (0.3,), "steps": (30,), "rate": (2.0, 8.0, 32.0)}
# A method's name, and its measures: one row for each of its settings.
Outcome = tuple[str, Array]


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    """Return what is fitted, and its seconds."""
    start = time.perf_counter()
    return fit(), time.perf_counter() - start


def usual(epsilon: float, seed: int) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": DELTA, "adjacency": "add-remove", "seed": seed}


def settings(grid: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


# --- Error, AUC and log loss. ---


def classified(split: Split, chances: Array, seconds: float) -> list[float]:
    """Return error, area under the curve (one against the rest), log loss, and the seconds."""
    error = float(np.mean(np.argmax(chances, axis=1) != split.y_test))
    scores = chances[:, 1] if split.classes == 2 else chances
    area = roc_auc_score(split.y_test, scores, multi_class="ovr", labels=range(split.classes))
    return [error, float(area), float(log_loss(split.y_test, chances, labels=range(split.classes))), seconds]


def descended(
    split: Split,
    epsilon: float,
    seed: int,
    grid: dict[str, Sequence[Any]],
    fit: Callable[..., Array] = competitors.clipped_weights,
    lengths: Sequence[float] = (1.0,),
) -> Array:
    """Fit with every setting, and make scores longer by every factor."""
    draws = []
    for values in settings(grid):
        w, seconds = timed(partial(fit, split, epsilon, DELTA, np.random.default_rng(seed), **values))
        scores = split.x_test @ w
        both = np.column_stack([np.zeros(len(scores)), scores]) if scores.shape[1] == 1 else scores
        draws.extend(classified(split, softmax(length * both, axis=1), seconds) for length in lengths)
    return np.array(draws)


def untuned(split: Split, epsilon: float, seed: int, **options: Any) -> Array:
    """Fit ours: logistic regression for two classes, softmax regression for more."""
    estimator = dp.LogisticRegression if split.classes == 2 else dp.SoftmaxRegression
    model = estimator(classes=range(split.classes), size=len(split.y), **usual(epsilon, seed), **options)
    _, seconds = timed(partial(model.fit, split.x, split.y))
    return np.array([classified(split, model.predict_proba(split.x_test), seconds)])


def census(name: str, epsilon: float, seed: int, options: Namespace) -> Iterator[Outcome]:
    """Compare on Adult, of which `name` says how many records are for training."""
    size = int(name.removeprefix("Adult "))
    x, y = tables.adult()
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:size], order[-10_000:]
    split = Split(name, x[train], y[train], x[test], y[test], 2)
    yield OURS, untuned(split, epsilon, seed)
    yield "clipped descent, tuned", descended(split, epsilon, seed, CLIPPED)


def additive(name: str, epsilon: float, seed: int, options: Namespace) -> Iterator[Outcome]:
    """Compare additive and linear models of Adult, both from its table with a schema."""
    size, found = int(name.removeprefix("Adult ")), public_data.adult()
    levels = {name: dp.Categorical(levels) for name, levels in ADULT_LEVELS.items()}
    schema = dp.Schema({**ADULT_NUMERIC, **levels}, label="rich", labels=("no", "yes"))
    columns: dict[str, NDArray[Any]] = dict(zip(ADULT_NUMERIC, found.numeric.T, strict=True))
    columns |= {
        name: np.array(own)[codes] for (name, own), codes in zip(ADULT_LEVELS.items(), found.codes.T, strict=True)
    }
    y, order = np.where(found.y > 0, "yes", "no"), np.random.default_rng(seed).permutation(len(found.y))
    train, test = ({key: column[rows] for key, column in columns.items()} for rows in (order[:size], order[-10_000:]))
    none = np.empty((0, 0))
    split = Split(name, none, y[order[:size]], none, (y[order[-10_000:]] == "yes").astype(int), 2)
    given = usual(epsilon, seed) | {"classes": schema.labels, "size": size}
    linear = make_pipeline(dp.SchemaEncoder(schema), dp.LogisticRegression(**given))
    for method, model in {OURS: dp.AdditiveClassifier(schema, **given), "linear": linear}.items():
        _, seconds = timed(partial(model.fit, train, split.y))
        yield method, np.array([classified(split, model.predict_proba(test), seconds)])


def idx(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the files of MNIST or Fashion-MNIST: `part` is "train" or "t10k"."""

    def read(name: str, start: int) -> NDArray[np.uint8]:
        file = next(folder.rglob(f"{part}-{name}-ubyte*"))
        content = file.read_bytes()
        return np.frombuffer(gzip.decompress(content) if file.suffix == ".gz" else content, np.uint8, offset=start)

    return read("images-idx3", 16).reshape(-1, 784), read("labels-idx1", 8)


@lru_cache
def scattered(name: str, folder: Path | None) -> tuple[Array, NDArray[Any], int, int] | None:
    """Return features, labels, how many of them come first and are for training, and the number of classes."""
    if name == "digits":
        x, labels = load_digits(return_X_y=True)
        maps = make_pipeline(dp.ScatteringFeatures((8, 8), J=1), dp.GroupNormalizer(groups=9))
        return np.asarray(maps.fit_transform(np.float32(x / 16)), dtype=float), labels, 1200, 10
    if folder is None:
        return None
    parts = [idx(folder, part) for part in ("train", "t10k")]
    if name == "MNIST":
        steps = (dp.ScatteringFeatures((28, 28)), dp.GroupNormalizer(27))
        public = make_pipeline(*steps).transform(datasets.drawn_shapes(6000))
        maps = make_pipeline(*steps, dp.PublicPreconditioner(public))
        x = np.concatenate([maps.transform(np.float32(part[0] / 255)) for part in parts])
        return x, np.concatenate([part[1] for part in parts]).astype(int), 60_000, 10
    chosen = [np.isin(labels, [0, 3]) for _, labels in parts]
    pixels = np.concatenate([parts[0][0][chosen[0]][:3000], parts[1][0][chosen[1]]])
    labels = np.concatenate([parts[0][1][chosen[0]][:3000], parts[1][1][chosen[1]]])
    maps = make_pipeline(dp.ScatteringFeatures((28, 28)), dp.GroupNormalizer(groups=81))
    return np.asarray(maps.fit_transform(np.float32(pixels / 255)), dtype=float), (labels == 3).astype(int), 3000, 2


def images(name: str, epsilon: float, seed: int, options: Namespace) -> Iterator[Outcome]:
    """Compare on scattering features; digits are split anew, clothes have their own test records."""
    found = scattered(name, options.mnist if name == "MNIST" else options.fashion)
    if found is None:
        return
    x, y, size, classes = found
    if name == "digits":
        order = np.random.default_rng(seed).permutation(len(y))
        x, y = x[order], y[order]
    split = Split(name, x[:size], y[:size], x[size:], y[size:], classes)
    yield OURS, untuned(split, epsilon, seed, fit_intercept=False)
    yield "clipped descent, tuned", descended(split, epsilon, seed, CLIPPED if x.shape[1] < 1000 else FEW)
    squares = SQUARES if x.shape[1] < 1000 else SQUARES | {"shared": (0.1,), "ridge": (0.3, 1.0)}
    lengths = 1.0, 3.0, 10.0, 30.0
    yield "least squares, tuned", descended(split, epsilon, seed, squares, competitors.least_squares, lengths)


# --- Regression. ---


def regression(name: str, epsilon: float, seed: int, options: Namespace) -> Iterator[Outcome]:
    """Compare by squared errors over the targets' variance."""
    split = tables.find(name, seed, options.records)
    if split is None:
        return

    def tried(fit: Callable[..., Any], grid: dict[str, Sequence[Any]]) -> Array:
        draws = []
        for values in settings(grid):
            predict, seconds = timed(partial(fit, split, epsilon, DELTA, np.random.default_rng(seed), **values))
            draws.append((split.error(predict(split.x_test)), seconds))
        return np.array(draws)

    for method, estimator in ((OURS, dp.Ridge), (f"{OURS}, LinearRegression", dp.LinearRegression)):
        model = estimator(bounds=(-1, 1), size=len(split.y), **usual(epsilon, seed))
        _, seconds = timed(partial(model.fit, split.x, split.y))
        yield method, np.array([[split.error(model.predict(split.x_test)), seconds]])
    yield "AdaSSP", tried(competitors.adassp, {})
    yield "BoostedAdaSSP, tuned", tried(competitors.boosted_adassp, {"rounds": (1, 3, 10, 30, 100), "clip": (0.3, 1.0)})
    yield "clipped descent, tuned", tried(competitors.clipped_descent, CLIPPED | {"steps": (30,)})


TASKS: dict[str, tuple[Callable[[str, float, int, Namespace], Iterator[Outcome]], tuple[str, ...]]] = {
    "tables": (census, ("Adult 3000", "Adult 20000")),
    "additive": (additive, ("Adult 3000", "Adult 20000")),
    "images": (images, ("digits", "T-shirts or dresses", "MNIST")),
    "regression": (regression, tuple(tables.REGRESSION)),
}


def reported(draws: list[Array], measures: tuple[str, ...]) -> list[float]:
    """Return the best mean over the draws, for each measure; seconds are those of the setting with the best first measure."""
    means = np.mean(draws, axis=0)
    best = [(np.max if name == "AUC" else np.min)(column) for name, column in zip(measures, means.T, strict=True)]
    return [*map(float, best[:-1]), float(means[np.argmin(means[:, 0]), -1])]


def behind(rows: dict[str, list[float]], measures: tuple[str, ...]) -> Iterator[str]:
    """Say by which measures somebody else is ahead of ours, and by how much."""
    for k, name in enumerate(measures[:-1]):
        sign = -1 if name == "AUC" else 1
        others = {method: sign * values[k] for method, values in rows.items() if not method.startswith(OURS)}
        method = min(others, key=lambda other: others[other])
        if others[method] < sign * rows[OURS][k]:
            yield f"{name} {rows[OURS][k]:.4g}, {method} {sign * others[method]:.4g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    everything = [name for _, names in TASKS.values() for name in names]
    known = {"tasks": some_of(TASKS), "--seeds": 5, "--data": everything, "--epsilons": [*EPSILONS]}
    known |= {"--fashion": {"type": Path}, "--mnist": {"type": Path}}
    known |= {"--records": (20_000, "of regressions, for training, at most")}
    given = chosen(__doc__, arguments, known, seeds=1)
    for task in given.tasks or TASKS:
        compare, names = TASKS[task]
        measures = MEASURES[task]
        print()
        heading(task, "ε", "method", *measures)
        notes = []
        for name, epsilon in product(
            [n for n in names[: 3 if given.small else None] if n in given.data], given.epsilons
        ):
            draws: dict[str, list[Array]] = {}
            for seed in range(given.seeds):
                for method, measured in compare(name, epsilon, seed, given):
                    draws.setdefault(method, []).append(measured)
            rows = {method: reported(values, measures) for method, values in draws.items()}
            for method, values in rows.items():
                row(name, f"{epsilon:g}", method, *(f"{value:.4g}" for value in values))
            if rows:
                notes.extend(f"{name}, ε = {epsilon:g}: {note}" for note in behind(rows, measures))
        print("\nBehind:", *(notes or ["nowhere"]), sep="\n- ", flush=True)


if __name__ == "__main__":
    main()
