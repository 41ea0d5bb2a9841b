"""What is refused, and when: forms before anything is paid, values after; and no exception of a library's own comes out."""

import random
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp

N = 12
X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(N, 2))
Y = np.where(X[:, 0] > 0, 1, -1)

FORMS = {
    "a further field": (lambda: {"x": X, "y": Y, "z": Y}, r"missing: \[\], extra: \['z'\]"),
    "a missing field": (lambda: {"x": X}, r"missing: \['y'\]"),
    "no mapping": (lambda: [X, Y], "must map each declared field"),
    "too many columns": (lambda: {"x": np.c_[X, X], "y": Y}, r"expected shape \(n, 2\), got \(12, 4\)"),
    "ragged rows": (lambda: {"x": [[1.0, 0.0], [1.0]], "y": [1, -1]}, "'x': not an array of numbers"),
    "other lengths": (lambda: {"x": X, "y": Y[:-1]}, "different numbers of records: {'x': 12, 'y': 11}"),
    "complex numbers": (lambda: {"x": X * 1j, "y": Y}, "expected real numbers"),
    "texts": (lambda: {"x": X.astype(str).tolist(), "y": Y}, "expected real numbers"),
    "a set": (lambda: {"x": {1.0, 2.0}, "y": Y}, r"got \(\)"),
    "a sparse vector": (lambda: {"x": sp.coo_array(X[:, 0]), "y": Y}, r"got \(12,\)"),
    "labels in two axes": (lambda: {"x": X, "y": Y[:, None]}, r"one value per record, got an array of shape \(12, 1\)"),
    "labels in lists": (lambda: {"x": X, "y": [[1]] * N}, r"one value per record, but row 0 is \[1\]"),
    "labels of another type": (lambda: {"x": X, "y": Y.astype(str)}, "declared are"),
    "labels in an iterator": (lambda: {"x": X, "y": iter(Y.tolist())}, "expected one value per record"),
    "sparse labels": (lambda: {"x": X, "y": sp.csr_array(Y[:, None])}, "expected one value per record"),
    "a partition with another width": (
        lambda: dp.Partitions([{"x": X, "y": Y}, {"x": X[:, :1], "y": Y}]),
        "partition 1: field 'x': expected shape",
    ),
}
VALUES = {
    "NaN": lambda: {"x": np.where(X[3, 0] == X, np.nan, X), "y": Y},
    "outside": lambda: {"x": 9 * X, "y": Y},
    "a text in a list": lambda: {"x": [["1", 0.0], *X[1:].tolist()], "y": Y},
    "a complex number in a list": lambda: {"x": [[1j, 0.0], *X[1:].tolist()], "y": Y},
    "a list among labels": lambda: {"x": X, "y": [[1], *Y[1:].tolist()]},
    "an unknown label": lambda: {"x": X, "y": np.where(Y > 0, 2, Y)},
}


@cache  # proved once for all entries
def learner(regularization=0.1):
    return dp.load("logistic_regression", features=2, regularization=regularization)


MIXTURE = dp.load("large_margin_gaussian_mixture", features=2, components=2, labels=(-1, 1))
SQUARES = dp.load("least_squares_classifier", features=2)
ENTRIES = {
    "solve": lambda *given, **options: dp.solve(learner(), *given, **options),
    "statistics": lambda *given, **options: dp.statistics(SQUARES, *given, **options),
    "tune": lambda *given, **options: dp.tune([learner(), learner(1.0)], *given, **options),
    "tune, undivided": lambda *given, **options: dp.tune([learner(), learner(1.0)], *given, split=False, **options),
    "tune_repeated": lambda *given, **options: dp.tune_repeated([learner(), learner(1.0)], *given, **options),
    "sweep": lambda data, total, **options: list(dp.sweep(learner(), data, total=total, draws=2, **options)),
    "solve_mixture": lambda *given, **options: dp.solve_mixture(MIXTURE, *given, **options),
    "cluster": lambda *given, size=None, **options: dp.cluster(learner(), *given, 2, group="y", **options),
    "evaluate": lambda *given, size=None, **options: dp.evaluate(
        learner(), dp.solve_without_privacy(learner(), {"x": X, "y": Y}), *given, **options
    ),
}


def charged(entry, data, adjacency, said="."):
    options = {"size": N} if adjacency == "add-remove" else {}
    budget = dp.Budget(dp.Privacy(9.0, 1e-3, adjacency))
    with pytest.raises(dp.DPConvexError, match=said):
        ENTRIES[entry](data(), dp.Privacy(2.0, 1e-6, adjacency), budget=budget, **options)
    return len(budget.entries)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "said"), FORMS.values(), ids=FORMS)
def test_a_wrong_form_costs_nothing(make, said):
    assert charged("solve", make, "add-remove", said) == charged("solve", make, "replace-one") == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_charges_for_a_wrong_form(entry):
    for form in ("a missing field", "too many columns", "other lengths", "texts", "labels in two axes"):
        assert charged(entry, FORMS[form][0], "add-remove") == 0, form
    assert charged(entry, VALUES["outside"], "add-remove") == 1


@pytest.mark.parametrize("values", VALUES)
def test_wrong_values_are_paid_for(values):
    assert charged("solve", VALUES[values], "replace-one") == 1
    assert charged("solve", lambda: {"x": X[:0], "y": Y[:0]}, "replace-one") == 0


@pytest.mark.parametrize("x", [np.c_[X, X], X.astype(str)], ids=["wide", "texts"])
def test_what_dask_says_of_its_arrays_is_looked_at(x):
    da = pytest.importorskip("dask.array")
    data = {"x": da.from_array(x, chunks=(6, -1)), "y": da.from_array(Y, chunks=6)}
    assert charged("solve", lambda: data, "add-remove") == 0


# Tables, files and declarations
SCHEMA = dp.Schema({"age": (0, 100)}, label="sick", labels=["no", "yes"])
DAYS = dp.Schema({"since": dp.Date("2020-01-01", "2021-12-31")}, label="sick", labels=["no", "yes"])
LOOP = []
LOOP.append(LOOP)


def aged(values, name="age"):
    return {name: values, "sick": ["no", "yes"]}


ODD = {
    "a number for a column": lambda: SCHEMA.encode(aged(3)),
    "a generator for a column": lambda: SCHEMA.encode(aged(iter([1, 2]))),
    "a list that contains itself": lambda: SCHEMA.encode(aged(LOOP * 2)),
    "a matrix for a column": lambda: SCHEMA.encode(aged(np.ones((2, 2)))),
    "a NUL in a path": lambda: SCHEMA.encode("a\0b.csv"),
    "text after a day": lambda: DAYS.encode(aged(["2021-01-01garbage", "2021-01-01"], "since")),
    "a time far from now": lambda: DAYS.encode(aged(np.array([10**15, 0], "M8[s]"), "since")),
    "a time that wraps into our years": lambda: DAYS.encode(aged(np.array([2**64 // 10**6 + 9, 0], "M8[s]"), "since")),
    "bounds in a set": lambda: dp.Schema({"age": {0, 100}}, "sick", ["no", "yes"]),
    "a set of labels": lambda: dp.Schema({"age": (0, 100)}, "sick", {"no", "yes"}),
    **{
        f"{kind} {how}": lambda kind=kind, turn=turn: SCHEMA.encode(aged(turn(np.array([5, 6], kind))), clip=True)
        for kind in ("m8[ns]", "M8[ns]", "m8[s]")
        for how, turn in {"in an array": np.array, "among objects": lambda v: np.fromiter(v, object)}.items()
    },
    **{f"a width of {w!r}": lambda w=w: dp.huber_hinge([1.0], w) for w in (0, np.nan, np.inf, True, None, 1e-320)},
    "a label that contains itself": lambda: dp.Record(y=dp.Choice([0, 1])).validate({"y": LOOP}),
}


@pytest.mark.parametrize("case", ODD)
def test_it_is_refused_with_words(case):
    with pytest.raises(dp.DPConvexError) as found:
        ODD[case]()
    assert len(str(found.value)) > 20


@pytest.mark.parametrize("content", [b"features = " + b"[" * 20_000 + b"]" * 20_000, b"label = 3", b"label = \xff"])
def test_a_file_of_declarations_that_declares_nothing(tmp_path, content):
    path = tmp_path / "schema.toml"
    path.write_bytes(content)
    with pytest.raises(dp.TemplateError):
        dp.Schema.load(path)


def test_damaged_parquet_files(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, rng = tmp_path / "a.parquet", random.Random(0)
    pq.write_table(pa.table({"age": [1.0, 2.0] * 20, "sick": ["no", "yes"] * 20}), path)
    sound = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(4, len(sound))] = rng.randrange(256)
        path.write_bytes(bytes(damaged))
        for read in (SCHEMA.encode, SCHEMA.check_names, lambda file: dp.Partitions([file], SCHEMA).sizes):
            with suppress(dp.DPConvexError):
                read(path)


DAY, NAMES = datetime(2020, 1, 1), {"a": 0, "b": 1, "c": 2}
NOW = datetime(
    2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")
)  # clocks go back: Python says that both zones differ
REFUSED = {
    r"all of one kind|must be numbers, texts or dates": [
        *([7, "7", "8"], ["a", b"a", "b"], [date(2020, 1, 1), DAY, date(2020, 1, 2)]),
        [DAY, DAY.replace(tzinfo=UTC), datetime(2020, 1, 2)],
        [type("Name", (str,), {"__hash__": object.__hash__})("a"), "a", "b"],
    ],
    "more than the declared": [[NOW, NOW.astimezone(UTC), NOW.replace(year=2023)]],
    r"unit.*(one identifier|one value per record)": [
        *([[1, 2], [3], [4]], [[1], [2], [3]], np.array(["a", "b", "c"])[:, None], set("abc"), NAMES.keys(), NAMES),
        *(iter("abc"), "abc", np.array(3), ["a", "b"], 7),
    ],
    "same number": [["7", "07", "8"]],
    "word.*two spellings in Unicode": [["caf\u00e9", "cafe\u0301", "bar"]],
}


@pytest.mark.parametrize(("said", "ids"), [(said, ids) for said, many in REFUSED.items() for ids in many])
def test_identifiers_are_one_for_each_record_and_of_one_kind(said, ids):
    data, budget = {"x": np.zeros((3, 2)), "y": np.ones(3, int)}, dp.Budget(dp.Privacy(1.0, unit="patient", most=1))
    with pytest.raises(dp.DomainError, match=said):
        dp.solve(dp.load("logistic_regression", features=2), data, budget.privacy, unit=ids, budget=budget)
    assert not budget.entries
