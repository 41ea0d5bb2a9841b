"""Queries as partitions: the same releases as arrays, whatever answers them, and an error where rows are others than before."""

import contextlib
import sqlite3
from functools import partial

import numpy as np
import pytest
from refused import refused

import dpconvex as dp

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COUNT = 1700
RNG = np.random.default_rng(0)
TABLE = {"id": RNG.permutation(COUNT), "age": 100 * RNG.random(COUNT), "ward": RNG.choice(["a", "b"], COUNT).tolist()}
TABLE["visits"] = RNG.integers(0, 9, COUNT)
TABLE["sick"] = np.where(TABLE["age"] + 20 * RNG.normal(size=COUNT) > 50, "yes", "no").tolist()
TABLE = {name: [column[k] for k in np.argsort(TABLE["id"])] for name, column in TABLE.items()}
COLUMNS = {"age": (0, 100), "ward": dp.Categorical(["a", "b"]), "visits": (0, 10)}
SCHEMA = dp.Schema(COLUMNS, label="sick", labels=["no", "yes"])
LEARNER = dp.load("logistic_regression", features=4, labels=("no", "yes"))
X, Y = SCHEMA.encode(TABLE)
CREATE = "CREATE TABLE visits (id INTEGER, age DOUBLE PRECISION, ward TEXT, visits INTEGER, sick TEXT)"
SQL = "SELECT * FROM visits; "


ROWS = list(zip(*(np.asarray(column).tolist() for column in TABLE.values()), strict=True))
MIXED = [ROWS[k] for k in np.random.default_rng(1).permutation(COUNT)]


def in_sqlite(tmp_path):
    connection = sqlite3.connect(tmp_path / "visits.db")
    connection.execute(CREATE)
    connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", MIXED)
    connection.commit()
    return connection


OFTEN, SELDOM = ("sqlite", "duckdb", "parquet", "postgresql"), ("engine", "adbc", "dataset", "postgresql engine")


@pytest.fixture(params=[*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in SELDOM)])
def source(request, tmp_path):
    """Return a connection to the table, a query of it, and the order to ask for."""
    with contextlib.ExitStack() as stack:
        if request.param in ("sqlite", "engine", "adbc"):
            connection = stack.enter_context(contextlib.closing(in_sqlite(tmp_path)))
            if request.param == "engine":
                connection = pytest.importorskip("sqlalchemy").create_engine(f"sqlite:///{tmp_path}/visits.db")
                stack.callback(connection.dispose)
            elif request.param == "adbc":
                driver = pytest.importorskip("adbc_driver_sqlite.dbapi")
                connection = stack.enter_context(driver.connect(f"{tmp_path}/visits.db"))
            yield connection, SQL, "id"
        elif request.param in ("duckdb", "parquet", "dataset"):
            for name, part in (("a", slice(0, 700)), ("b", slice(700, None))):
                table = pa.table({name: np.asarray(column)[part] for name, column in TABLE.items()})
                pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=300)
            if request.param == "dataset":
                yield pytest.importorskip("pyarrow.dataset").dataset(tmp_path), None, None
                return
            connection = stack.enter_context(pytest.importorskip("duckdb").connect())
            sql = f"SELECT * FROM '{tmp_path}/*.parquet'"
            if request.param == "duckdb":
                connection.execute(f"CREATE TABLE visits AS {sql} ORDER BY hash(id)")
            yield connection, *((SQL, ["id"]) if request.param == "duckdb" else (sql, None))
        else:
            psycopg = pytest.importorskip("psycopg")
            port = request.getfixturevalue("server").port
            place = f"postgresql://owner@127.0.0.1:{port}/postgres"
            connection = stack.enter_context(psycopg.connect(place))
            connection.execute(f"DROP TABLE IF EXISTS visits; {CREATE}")
            connection.cursor().executemany("INSERT INTO visits VALUES (%s, %s, %s, %s, %s)", MIXED)
            connection.commit()
            if request.param == "postgresql engine":
                sa = pytest.importorskip("sqlalchemy")
                connection = sa.create_engine(place.replace("postgresql", "postgresql+psycopg"), poolclass=sa.NullPool)
            yield connection, SQL, "id"


def bits(data, privacy, **options):
    return {name: value.tobytes() for name, value in dp.solve(LEARNER, data, privacy, seed=3, **options).items()}


PROMISES = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)
STREAMED = {"rows": 300, "keep": False}


@pytest.fixture(scope="module")
def expected():
    return {privacy: bits({"x": X, "y": Y}, privacy) for privacy in PROMISES}


@pytest.mark.sampled(2)
def test_a_query_gives_the_release_of_arrays_to_the_bit(source, expected):
    connection, sql, by = source
    for privacy, expect in expected.items():
        for options in ({}, STREAMED) if privacy.pure else (STREAMED,):
            parts = dp.Partitions.from_query(connection, sql, SCHEMA, by=by, **options)
            assert sum(parts.sizes) == COUNT
            assert bits(parts, privacy) == expect


@pytest.mark.sampled(2)
def test_a_query_without_a_schema_gives_fields(source):
    connection, sql, by = source
    learner, privacy = dp.load("ridge_regression", features=2), dp.Privacy(2.0)
    x = np.column_stack([np.array(TABLE[name], float) for name in ("age", "visits")])
    data, fields = {"x": x, "y": np.array(TABLE["age"])}, {"x": ["age", "visits"], "y": "age"}
    parts = dp.Partitions.from_query(connection, sql, by=by, fields=fields, rows=500)
    (one, two) = (dp.solve(learner, found, privacy, clip=True, seed=1) for found in (data, parts))
    assert (one["w"] == two["w"]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE visits SET age = age + 1e-9 WHERE id = 900",
        "UPDATE visits SET sick = CASE sick WHEN 'no' THEN 'yes' ELSE 'no' END WHERE id = 3",
        "INSERT INTO visits SELECT 9999, age, ward, visits, sick FROM visits WHERE id = 0",
        "DELETE FROM visits WHERE id = 1699",
        "DELETE FROM visits WHERE id < 1000",
        "UPDATE visits SET id = 800.5 WHERE id = 2",
    ],
)
@pytest.mark.parametrize("when", [0, 2])
def test_rows_that_change_between_passes_are_an_error_and_stay_paid_for(tmp_path, change, when):
    passes = -1

    class Changing(sqlite3.Connection):
        def cursor(self):
            nonlocal passes
            if passes == when:
                self.execute(change)
            passes += passes >= 0
            return super().cursor()

    in_sqlite(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "visits.db", factory=Changing)) as connection:
        rows = 10_000 if "sick" in change else 500
        parts = dp.Partitions.from_query(connection, SQL, SCHEMA, by="id", rows=rows, keep=False)
        passes, budget = 0, dp.Budget(dp.Privacy(1.0))
        if when or "INSERT" in change or "DELETE" in change:
            with pytest.raises(dp.DomainError, match=r"data must not change|other records than when"):
                dp.solve(LEARNER, parts, dp.Privacy(1.0), seed=1, budget=budget)
        else:  # before any row is read
            dp.solve(LEARNER, parts, dp.Privacy(1.0), seed=1, budget=budget)
        assert budget.spent.epsilon == 1.0


def test_what_is_no_query_is_refused_before_anything_is_read(tmp_path):
    with contextlib.closing(in_sqlite(tmp_path)) as connection:
        ask = dp.Partitions.from_query
        for options, said in (
            ({"by": "number"}, "must have one column 'number'"),
            ({"by": 3}, "column 0 of by must be a non-empty text"),
            ({"by": "id", "rows": 0}, "rows must be a positive integer"),
        ):
            refused(dp.DPConvexError, said, ask, connection, SQL, SCHEMA, **options)
        refused(dp.DPConvexError, "a text in SQL", ask, connection, None, SCHEMA, by="id")
        refused(dp.DPConvexError, r"duckdb\.connect", ask, "visits.duckdb", SQL, SCHEMA, by="id")
        refused(dp.DPConvexError, "no column 'ward'", ask, connection, "SELECT id, age FROM visits", SCHEMA, by="id")
        refused(dp.DPConvexError, "the query failed", ask, connection, "SELECT * FROM nothing", SCHEMA, by="id")
        assert ask(connection, "SELECT * FROM visits WHERE id < 0 -- none", SCHEMA, by="id").sizes == (0,)
        bad = ask(connection, "SELECT id, 'x' AS age, ward, visits, sick FROM visits", SCHEMA, by="id")
        refused(dp.DomainError, r"partition 0.*column 'age'", dp.solve, LEARNER, bad, dp.Privacy(1.0), seed=1)
        parts = ask(connection, SQL, SCHEMA, by="id")
    refused(dp.DomainError, "partition 0: the query failed", dp.solve, LEARNER, parts, dp.Privacy(1.0), seed=1)


@pytest.fixture
def connection():
    with contextlib.closing(sqlite3.connect(":memory:")) as opened:
        yield opened


def test_entries_of_a_block_keep_their_types_beside_others(connection):
    labels = [1, "1", 2**53, 2**53 + 1, 0.5, b"a", "a"]
    connection.execute("CREATE TABLE labels (id INTEGER, x REAL, y)")
    connection.executemany("INSERT INTO labels VALUES (?, 0.5, ?)", list(enumerate(labels)))
    parts = dp.Partitions.from_query(connection, "SELECT x, y FROM labels ORDER BY id", by=None)
    record = dp.Record(x=dp.Box(0.0, 1.0), y=dp.Choice(labels))
    assert record.validate(parts).added_up(lambda batch, _: [batch.group.tolist()], None) == [list(range(len(labels)))]


def test_identifiers_come_with_the_rows_of_a_query_and_in_no_other_order(connection):
    """Rows come in the order of the query: identifiers in the order of the table would be those of other people."""
    who = ["A"] * 12 + [f"B{k}" for k in range(88)]
    order = np.random.default_rng(0).permutation(100)
    connection.execute("CREATE TABLE visits (who TEXT, age INTEGER, sick TEXT)")
    table = [(who[k], int(k), "yes" if who[k] == "A" else "no") for k in order]
    connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", table)
    schema = dp.Schema({"age": (0, 99)}, label="sick", labels=["no", "yes"], privacy_unit="who")
    budget, one = dp.Budget(dp.Privacy(30.0, 1e-4, unit="who", most=1, keep="first")), {"unit": "who", "most": 1}
    privacy = dp.Privacy(1.0, 1e-5, **one, keep="first")
    output = dp.OutputPerturbation(noise="gaussian")
    learner = dp.load("logistic_regression", features=1, labels=("no", "yes"))
    fit = lambda data, **options: dp.solve(learner, data, privacy, output, seed=1, **options)  # noqa: E731
    for rows in (250_000, 30):
        data = dp.Partitions.from_query(connection, "SELECT * FROM visits", schema, by="age", rows=rows)
        with pytest.raises(dp.DomainError, match="these identifiers differ from the column 'who'"):
            fit(data, unit=[row[0] for row in table], budget=budget)
        refused(dp.TemplateError, "Partitions without unit=", dp.solve, learner, data, dp.Privacy(1.0))
        found = [fit(data, unit=unit) for unit in (None, "who", who, schema.units(data))]
        assert {release.certificate.size for release in found} == {89}  # one visit of A
        assert len({release["w"].tobytes() for release in found}) == 1
    fields = {"x": ["age"], "y": "sick"}
    plain = dp.Partitions.from_query(connection, "SELECT * FROM visits", by="age", fields=fields)
    scaled = "SELECT who, age / 99.0 AS age, sick FROM visits"
    refused(dp.DomainError, "Name their column", fit, plain, unit=who, budget=budget)
    own = dp.Partitions.from_query(connection, scaled, by="age", fields=fields, unit="who")
    assert fit(own).certificate.size == 89
    for call in (partial(dp.solve, learner), partial(dp.cluster, learner), partial(dp.learn_schema, label="y")):
        refused(dp.TemplateError, "identifies people", call, own, dp.Privacy(1.0), budget=dp.Budget(dp.Privacy(1.0)))
    refused(dp.TemplateError, "name the column", dp.learn_schema, own, privacy, label="y", unit=who, budget=budget)
    assert budget.entries == ()
    assert own.identifiers() == who
    connection.execute("UPDATE visits SET who = 'C' WHERE age = 50")  # The features are what they were
    refused(dp.DomainError, "identifiers have changed", learner.record.validate, own)
