"""Tables that schemas are learnt from."""

import datetime
import decimal
import math
from fractions import Fraction

import numpy as np
import pandas as pd

import dpconvex as dp

PRIVACY = dp.Privacy(1.0, 1e-6)


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("nobody knows")


SURPRISES = [
    *(Unspeakable(), Fraction(10**5000, 10**5000 + 1), Fraction(1, 3), 2.0**60),
    *(None, math.nan, math.inf, "", "NA", "1e400", "9" * 5000, "0x1F", "12:00", "2020-13-45", "a,b", "1,5", "١٢"),
    *(b"x", [1], (1,), {1: 2}, 1j, decimal.Decimal("sNaN"), decimal.Decimal("1e400"), 10**400, True, "true", "\ud800"),
    *(datetime.timedelta(1), pd.NaT, pd.NA, np.datetime64("20000-01-01"), datetime.date(2020, 1, 1), object(), -0.0),
    *(5e-324, 1e308, -1e308, np.float32(1.1), np.longdouble(3), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
]


def table_of(n, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    return {
        "age": age.tolist(),
        "ward": rng.choice(["east", "west", "north"], n).tolist(),
        "day": [f"20{y}-0{m}-11" for y, m in zip(rng.integers(10, 20, n), rng.integers(1, 9, n), strict=True)],
        "name": [f"person {k}" for k in range(n)],
        "weight": np.exp(rng.normal(4, 0.3, n)).tolist(),
        "cost": (100 + 3 * age + rng.normal(0, 20, n)).tolist(),
    }


def with_rows(table, changed):
    """Return a table with some rows replaced; None leaves a row out."""
    count = len(next(iter(table.values())))
    kept = {k: changed.get(k, {}) for k in range(count) if changed.get(k, {}) is not None}
    return {name: [row.get(name, column[k]) for k, row in kept.items()] for name, column in table.items()}
