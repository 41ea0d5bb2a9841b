"""Fits over all learners, data sets, promises and regularizations: whatever is certified must be released."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as bundled

import dpconvex as dp
from benchmarks import public_data as loaders
from dpconvex.language.record import Record
from dpconvex.mechanisms.automatic import Automatic
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.fit import run
from dpconvex.release.verify import Proved
from dpconvex.solvers.first_order import FirstOrder

Array = NDArray[np.float64]
Table = tuple[Array, NDArray[np.int64]]

LEARNERS = sorted(
    path.stem for path in (Path(__file__).parents[1] / "problems").glob("*.py") if not path.stem.startswith("_")
)
# Regularizations, from hardly any to more than the data.
STRENGTHS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
SIZES = (0, 1, 2, 3, 8, 30, 100, 400, 1500)
MECHANISMS: tuple[Any, ...] = (
    None,
    dp.ObjectivePerturbation(),
    dp.ObjectivePerturbation("gaussian"),
    dp.ObjectivePerturbation("matrix"),
    dp.OutputPerturbation(),
    dp.OutputPerturbation("gaussian"),
)


def alternating(size: int, width: int) -> Table:
    """Return opposite records in turn, which all meet a kink of the curvature together."""
    x = np.zeros((size, width))
    x[:, 0] = 1.0 - 2.0 * (np.arange(size) % 2)
    return x, np.arange(size) % 2


def equal(size: int, width: int) -> Table:
    """Return equal records at the end of an axis."""
    x = np.zeros((size, width))
    x[:, 0] = 1.0
    return x, np.zeros(size, dtype=np.int64)


def sparse(size: int, width: int) -> Table:
    """Return records with one number each."""
    x = np.zeros((size, width))
    x[np.arange(size), np.arange(size) % width] = 1.0
    return x, np.arange(size) // width % 3


def nothing(size: int, width: int) -> Table:
    """Return records without features."""
    return np.zeros((size, width)), np.arange(size) % 2


def tiny(size: int, width: int) -> Table:
    """Return records whose features are far below one."""
    return 1e-9 * np.random.default_rng(0).normal(size=(size, width)), np.arange(size) % 2


def corners(size: int, width: int) -> Table:
    """Return corners of a cube."""
    rng = np.random.default_rng(1)
    return rng.choice([-1.0, 1.0], size=(size, width)) / np.sqrt(width), rng.integers(0, 4, size)


def sampled(load: Callable[[], Table]) -> Callable[[int, int], Table]:
    """Return a function that draws records of a data set, in its first directions."""
    known = lru_cache(maxsize=1)(load)

    def draw(size: int, width: int) -> Table:
        x, y = known()
        rows = np.random.default_rng(size).integers(0, len(x), size)
        return x[rows][:, np.argsort(-x.var(axis=0))[:width]], y[rows]

    return draw


def scaled(x: Any, y: Any) -> Table:
    """Return features in the unit ball and labels from zero."""
    dense = np.asarray(x.toarray() if hasattr(x, "toarray") else x, dtype=float)
    dense = (dense - dense.mean(axis=0)) / np.maximum(dense.std(axis=0), 1e-9) / np.sqrt(dense.shape[1])
    return dense, np.unique(np.asarray(y), return_inverse=True)[1].astype(np.int64)


@lru_cache(maxsize=1)
def shared() -> dict[str, Callable[[int, int], Table]]:
    """Return the public data sets that are not shipped, where there are any."""
    if not os.environ.get("DPCONVEX_DATA"):
        return {}

    def table_of(load: Callable[[], loaders.Table]) -> Callable[[], Table]:
        def table() -> Table:
            found = load()
            rows = np.random.default_rng(0).permutation(len(found.y))[:4000]
            return scaled(found.design()[rows], found.y[rows])

        return table

    found = {"letter": loaders.letter, "landsat": loaders.landsat, "adult": loaders.adult, "kdd": loaders.kdd}
    return {name: sampled(table_of(load)) for name, load in found.items()}


DATA: dict[str, Callable[[int, int], Table]] = {
    "alternating": alternating,
    "equal": equal,
    "sparse": sparse,
    "nothing": nothing,
    "tiny": tiny,
    "corners": corners,
    "digits": sampled(lambda: scaled(*bundled.load_digits(return_X_y=True))),
    "iris": sampled(lambda: scaled(*bundled.load_iris(return_X_y=True))),
    "wine": sampled(lambda: scaled(*bundled.load_wine(return_X_y=True))),
    "breast cancer": sampled(lambda: scaled(*bundled.load_breast_cancer(return_X_y=True))),
}


def fitting(record: Record, table: Table) -> Mapping[str, Any]:
    """Return records of a table as a learner takes them."""
    x, y = table
    data: dict[str, Any] = {}
    for name, domain in record.fields.items():
        if isinstance(domain, dp.Choice):
            data[name] = [domain.values[k] for k in y % len(domain.values)]
        elif isinstance(domain, dp.Ball):
            repeated = np.tile(x, (1, -(-domain.dim // x.shape[1])))[:, : domain.dim]
            data[name] = domain.project(domain.radius * repeated)
        else:
            unit = np.broadcast_to((np.tanh(x.sum(axis=1)) + 1) / 2, (*domain.shape, len(x)))
            data[name] = domain.project(domain.lower + (domain.upper - domain.lower) * np.moveaxis(unit, -1, 0))
    return data


@dataclass
class Tally:
    """What became of fits."""

    released: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)


def learners(rng: np.random.Generator) -> Iterator[tuple[str, dp.Template]]:
    """Yield learners for ever, each with another regularization."""
    while True:
        for name in rng.permutation(LEARNERS):
            features, classes = int(rng.choice([1, 2, 4, 8])), int(rng.choice([2, 3, 5]))
            options: dict[str, Any] = {"regularization": float(rng.choice(STRENGTHS))}
            for more in ({"classes": classes}, {}):
                try:
                    yield f"{name} {features} {options | more}", dp.load(name, features=features, **options, **more)
                    break
                except dp.DPConvexError:
                    continue
                except TypeError:
                    continue


def attempt(
    tally: Tally,
    label: str,
    template: dp.Template,
    rng: np.random.Generator,
    fits: int,
    sizes: Sequence[int] = SIZES,
    mechanisms: Sequence[Any] = MECHANISMS,
) -> None:
    """Fit a learner so many times, on data and with promises drawn at random."""
    sources = DATA | shared()
    for _ in range(fits):
        source, size = str(rng.choice(list(sources))), int(rng.choice(sizes))
        epsilon = float(10 ** rng.uniform(-2, 2))
        privacy = dp.Privacy(epsilon, float(rng.choice([0.0, 1e-6])), str(rng.choice(["replace-one", "add-remove"])))
        mechanism, seed = mechanisms[rng.integers(len(mechanisms))], int(rng.integers(2**31))
        # None are a number of records like others where the number is protected, and there only.
        protected = privacy.adjacency == "add-remove"
        size = size if protected else max(size, 1)
        nominal = max(int(rng.choice(sizes)), 1) if protected else size
        chosen = mechanism or Automatic()
        try:
            certificate = dp.verify(template, privacy, nominal, chosen)
        except dp.DPConvexError:
            tally.refused += 1
            continue
        data = fitting(template.record, sources[source](size, 8))
        try:
            noise = NoiseSource(seed)
            rng = noise.rng
            run(Proved(template, certificate, chosen), data, FirstOrder(), noise)
            tally.released += 1
        except dp.DPConvexError as error:
            tally.failed.append(f"{label}, {source} n={size} ({nominal}), {privacy}, {mechanism}, seed {seed}: {error}")
