"""What is no table, no file and no declaration is refused with words: no exception of a library's own comes out."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.apps import cli
from dpconvex.language.schema_draft import draft

SCHEMA = dp.Schema({"age": (0, 100)}, label="sick", labels=["no", "yes"])
DAYS = dp.Schema({"since": dp.Date("2020-01-01", "2021-12-31")}, label="sick", labels=["no", "yes"])
LOOP: list[Any] = []
LOOP.append(LOOP)


def aged(values: Any) -> dict[str, Any]:
    return {"age": values, "sick": ["no", "yes"]}


def since(values: Any) -> dict[str, Any]:
    return {"since": values, "sick": ["no", "yes"]}


ODD: dict[str, Callable[[], Any]] = {
    "a number for a column": lambda: SCHEMA.encode(aged(3)),
    "a text for a column": lambda: SCHEMA.encode(aged("33")),
    "a set for a column": lambda: SCHEMA.encode(aged({1, 2})),
    "a mapping for a column": lambda: SCHEMA.encode(aged({0: 1, 1: 2})),
    "a generator for a column": lambda: SCHEMA.encode(aged(iter([1, 2]))),
    "a list that contains itself": lambda: SCHEMA.encode(aged(LOOP * 2)),
    "a matrix for a column": lambda: SCHEMA.encode(aged(np.ones((2, 2)))),
    "a NUL in a path": lambda: SCHEMA.encode("a\0b.csv"),
    "a NUL in a folder": lambda: dp.Partitions("a\0b", SCHEMA),
    "a NUL in a schema": lambda: dp.Schema.load("a\0b.toml"),
    "a NUL in a draft": lambda: draft("a\0b.csv", "sick"),
    "text after a day": lambda: DAYS.encode(since(["2021-01-01garbage", "2021-01-01"])),
    "a day in short": lambda: DAYS.encode(since(["20210101xx", "2021-01-01"])),
    "a day with a wrong time": lambda: DAYS.encode(since(["2021-01-01T99", "2021-01-01"])),
    "a time far from now": lambda: DAYS.encode(since(np.array([10**15, 0], "M8[s]"))),
    "no time": lambda: DAYS.encode(since(np.array(["NaT", "2021-01-01"], "M8[s]"))),
    "bounds in a set": lambda: dp.Schema({"age": {0, 100}}, "sick", ["no", "yes"]),
    "label bounds in a set": lambda: dp.Schema({"age": (0, 100)}, "sick", label_bounds={0, 1}),  # type: ignore[arg-type]
    "a pair in a set": lambda: dp.Schema({"age": {"boolean": {"no", "yes"}}}, "sick", ["no", "yes"]),
    "a set of labels": lambda: dp.Schema({"age": (0, 100)}, "sick", {"no", "yes"}),  # type: ignore[arg-type]
    "a record that contains itself": lambda: dp.Record(x=dp.Ball(2)).validate({"x": LOOP}),
    **{
        f"{kind} {how}": lambda kind=kind, turn=turn: SCHEMA.encode(aged(turn(np.array([5, 6], kind))), clip=True)
        for kind in ("m8[ns]", "M8[ns]", "m8[s]")
        for how, turn in {"in an array": np.array, "among objects": lambda v: np.fromiter(v, object)}.items()
    },
    "a bound beyond floats": lambda: dp.Numeric(0, 10**400),
    "a pair of bounds beyond floats": lambda: dp.Schema({"age": (-(10**400), 0)}, "sick", ["no", "yes"]),
    "a target beyond floats": lambda: dp.Schema({"age": (0, 1)}, "sick", label_bounds=(0, 10**400)),
    **{f"a radius of {r!r}": lambda r=r: dp.Ball(2, r) for r in (0, -1.0, np.nan, "1", None, np.inf)},
    **{f"bounds {b!r}": lambda b=b: dp.Box(*b) for b in (([0, 0], [1, 1, 1]), (1.0, 0.0), (0.0, np.nan), ("a", "b"))},
    "no coordinates": lambda: dp.Box([], []),
    "no end": lambda: dp.Box(-np.inf, 0.0),
    **{f"a width of {w!r}": lambda w=w: dp.huber_hinge([1.0], w) for w in (0, np.nan, np.inf, True, None, 1e-320)},
    **{f"a margin of {m!r}": lambda m=m: dp.huber_hinge(m, 0.5) for m in ("m", [1j], [np.nan])},
    "a label that contains itself": lambda: dp.Record(y=dp.Choice([0, 1])).validate({"y": LOOP}),
}


@pytest.mark.parametrize("case", ODD)
def test_it_is_refused_with_words(case: str) -> None:
    with pytest.raises(dp.DPConvexError) as found:
        ODD[case]()
    assert len(str(found.value)) > 20


def test_a_time_of_day_is_a_part_of_a_day() -> None:
    found = DAYS.encode(since(["2021-01-01 12:30:00", "2021-01-01T00:00:00Z"]))[0]
    np.testing.assert_array_equal(found, DAYS.encode(since(["2021-01-01", "2021-01-01"]))[0])


def test_numbers_and_times_beyond_those_of_python_in_frames() -> None:
    pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    wide = pl.DataFrame(aged(pl.Series([1, 2], dtype=pl.Int128)))
    np.testing.assert_array_equal(SCHEMA.encode(wide)[0], SCHEMA.encode(aged([1, 2]))[0])
    far = np.array([10**15, 0], "M8[s]")
    tables = [
        pd.DataFrame(since(far)),
        pa.table(since(pa.array(far))),
        pl.DataFrame(since(pl.Series(far.astype("M8[ms]")))),
    ]
    for table in tables:
        with pytest.raises(dp.DomainError, match="row 0, column 'since'"):
            DAYS.encode(table)


@pytest.mark.parametrize(
    "content",
    [
        b"features = " + b"[" * 20_000 + b"]" * 20_000,
        b"label = 3",
        b"label = \xff",
        *(
            b'label = "sick"\nlabels = ["no", "yes"]\n[features]\nage = [0, ' + b"9" * digits + b"]\n"
            for digits in (400, 5000)
        ),
    ],
    ids=["deep", "no label", "no text", "huge", "longer than Python reads"],
)
def test_a_file_of_declarations_that_declares_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "schema.toml"
    path.write_bytes(content)
    with pytest.raises(dp.TemplateError):
        dp.Schema.load(path)


def test_damaged_parquet_files(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, rng = tmp_path / "a.parquet", random.Random(0)
    pq.write_table(pa.table({"age": [1.0, 2.0] * 20, "sick": ["no", "yes"] * 20}), path)
    sound = path.read_bytes()
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(4, len(sound))] = rng.randrange(256)
        path.write_bytes(bytes(damaged))
        for read in (SCHEMA.encode, SCHEMA.check_names, lambda file: dp.Partitions([file], SCHEMA).sizes):
            with suppress(dp.DPConvexError):
                read(path)


def test_an_interrupted_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpconvex.apps.showing.problems", interrupted)
    assert cli.main(["problems"]) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_ledger_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "budget.jsonl"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(dp.DPConvexError, match="which is not there"):
        dp.Budget(dp.Privacy(1.0), link)
    assert list(tmp_path.iterdir()) == [link]
