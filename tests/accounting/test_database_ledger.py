"""A ledger in SQLite or PostgreSQL whose clients are killed, network cut, server restarted, and rows forged."""

import contextlib
import itertools
import pickle
import shutil
import sqlite3
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refused import refused

from dpconvex import Budget, BudgetExceeded, DPConvexError, Privacy, TemplateError

sa = pytest.importorskip("sqlalchemy")


def changed(address, *statements):
    """Do what only the owner of the tables can do."""
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("DROP TRIGGER IF EXISTS dpconvex_no_update")
            connection.exec_driver_sql("DROP TRIGGER IF EXISTS dpconvex_no_delete")
        else:
            connection.exec_driver_sql("DROP TRIGGER IF EXISTS dpconvex_append_only ON dpconvex_ledger")
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_a_ledger_in_a_database_is_what_one_in_a_file_is(address, tmp_path):
    refused(DPConvexError, r"state a total|there is no|no such table|does not exist", Budget.open, address)
    budget, other = Budget(Privacy(1), address, dataset="visits"), Budget(Privacy(1), address)
    budget.spend(Privacy(0.5), "first")
    other.spend(Privacy(0.25), "second")
    refused(BudgetExceeded, r"'third' asks for.*Nothing was spent", budget.spend, Privacy(0.5), "third")
    refused(TemplateError, "total is epsilon = 1", Budget, Privacy(2), address)
    assert [(e.label, e.dataset) for e in Budget.open(address).entries] == [("first", "visits"), ("second", "")]
    assert pickle.loads(pickle.dumps(budget)).remaining.epsilon == 0.25
    for kind in ("gaussian", "renyi"):
        named = f"{address}?ledger={kind}"
        Budget(Privacy(1, 1e-6), named, kind).spend(Privacy(0.1, 1e-8), kind)
        assert [(e.label, Budget.open(named).accounting) for e in Budget.open(named).entries] == [(kind, kind)]
    assert len(Budget.open(address).entries) == 2


def test_a_ledger_moves_into_a_database_and_back_with_its_chain(address, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    budget = Budget(Privacy(1), first)
    budget.spend(Privacy(0.25), "in a file")
    content = first.read_bytes()
    Budget.move(first, address)
    refused(DPConvexError, "was moved to", budget.spend, Privacy(0.25), "on the one that was left")
    Budget.open(address).spend(Privacy(0.25), "in a database")
    with pytest.raises(TemplateError, match="a ledger exists there"):
        Budget.move(Path(shutil.copy(first, tmp_path / "used")).write_bytes(content) and tmp_path / "used", address)
    Budget.move(address, second)
    Budget.open(second).spend(Privacy(0.25), "in a file again")
    assert second.read_bytes().startswith(content)
    assert len(Budget.open(second).entries) == 3
    refused(DPConvexError, "was moved to", Budget.open, address)


def test_a_move_that_crashed_in_between_leaves_no_two_ledgers_and_can_be_finished(tmp_path, monkeypatch):
    first, address = tmp_path / "first.jsonl", f"sqlite:///{tmp_path}/spent.db"
    Budget(Privacy(1), first).spend(Privacy(0.25), "a")
    monkeypatch.setattr(sa.engine.Connection, "commit", lambda *_: 1 / 0)
    refused(ZeroDivisionError, None, Budget.move, first, address)
    monkeypatch.undo()
    refused(DPConvexError, "was moved to", Budget.open, first)
    refused(DPConvexError, "was moved to", Budget.move, first, tmp_path / "elsewhere")
    for _ in range(2):
        Budget.move(first, address)
    assert Budget.open(address).spent.epsilon == 0.25


FORGED = '{"label": "b", "epsilon": 1e-9, "delta": 0.0}'


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE dpconvex_ledger SET line = replace(line, '0.25', '0.01') WHERE position = 2",
        "UPDATE dpconvex_ledger SET line = replace(line, '1.0', '9.0') WHERE position = 0",
        f"UPDATE dpconvex_ledger SET line = '{FORGED}' WHERE position = 2",
        f"UPDATE dpconvex_ledger SET line = '{FORGED}' WHERE position = 3",
        "DELETE FROM dpconvex_ledger WHERE position = 2",
        "DELETE FROM dpconvex_ledger WHERE position = 0",
        "UPDATE dpconvex_ledger SET line = replace(substr(line, 1, length(line) - 28), '0.25', '0.01') || '}'",
        "DELETE FROM dpconvex_ledger WHERE position = 2; UPDATE dpconvex_ledger SET position = 2 WHERE position = 3",
        "UPDATE dpconvex_ledger SET position = 9 WHERE position = 3",
        "UPDATE dpconvex_ledger SET position = -1 WHERE position = 0",
    ],
)
def test_a_row_that_was_tampered_with_is_noticed(address, tampering):
    budget = Budget(Privacy(1.0), address)
    for label in "abc":
        budget.spend(Privacy(0.25), label)
    engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match="rows of a ledger are only added"):
        connection.exec_driver_sql(tampering.split(";")[0])
    changed(address, *tampering.split(";"))
    for use in (lambda: Budget.open(address), lambda: budget.spend(Privacy(0.1), "d"), lambda: budget.entries):
        refused(DPConvexError, r"checksum|gone|not the ledger", use)


def test_last_rows_that_are_gone_are_noticed_by_whoever_saw_them(address):
    budget = Budget(Privacy(1.0), address)
    for label in "abc":
        budget.spend(Privacy(0.25), label)
    changed(address, "DELETE FROM dpconvex_ledger WHERE position >= 2")
    refused(DPConvexError, "spends that were in this ledger are gone", budget.spend, Privacy(0.25), "d")
    changed(address, "DROP TABLE dpconvex_ledger")
    refused(DPConvexError, "dpconvex_ledger", budget.spend, Privacy(0.25), "d")


def test_an_older_file_of_sqlite_in_place_of_the_ledger_is_noticed(tmp_path):
    path, older = tmp_path / "spent.db", tmp_path / "older.db"
    budget = Budget(Privacy(1.0), f"sqlite:///{path}")
    budget.spend(Privacy(0.25), "a")
    shutil.copy(path, older)
    budget.spend(Privacy(0.25), "b")
    shutil.copy(older, path)
    refused(DPConvexError, "are gone", budget.spend, Privacy(0.25), "c")
    for use in (Budget.open, Budget.repair):  # which would cut off what stands behind the last line's end
        refused(DPConvexError, "write its address, such as sqlite:///", use, path)
    path.unlink()
    refused(DPConvexError, "cannot be opened", budget.spend, Privacy(0.25), "c")
    assert not path.exists()


def test_a_file_of_sqlite_that_is_replaced_during_a_spend_is_an_error(tmp_path):
    path = tmp_path / "spent.db"
    budget, fits = Budget(Privacy(1.0), f"sqlite:///{path}"), Budget(Privacy(1.0))._rule.fits

    def late(*arguments, **options):
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
        return fits(*arguments, **options)

    object.__setattr__(budget._rule, "fits", late)
    refused(DPConvexError, r"release nothing", budget.spend, Privacy(0.25), "a")


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///a.db?mode=memory", "needs a file"),
        ("mysql://user:hunter2@host/d", "cannot be kept in 'mysql'"),
        ("postgres://user:hunter2@host/d", "write 'sqlite:///spent.db' or"),
        ("postgresql+asyncpg://user:hunter2@host/d", "cannot be kept in"),
        ("postgresql://user:hunt@er2@host/d", "%40"),
        ("postgresql://user:hunter2@127.0.0.1:1/d", "refused|failed"),
        ("postgresql://user@127.0.0.1:1/d?password=hunter2", "refused|failed"),
        ("postgresql://user:hunter2@127.0.0.1:port/d", "cannot be read"),
        ("postgresql://user:hunter2@127.0.0.1:1/d?hunter=1", "hunter"),
        ("postgresql://user:o@127.0.0.1:1/d", "port 1"),  # a short one is masked as a word alone
    ],
)
def test_addresses_are_refused_without_their_passwords(address, complaint):
    for use in (lambda: Budget(Privacy(1.0), address), lambda: Budget.open(address), lambda: Budget.move(address, "x")):
        with pytest.raises(DPConvexError, match=complaint) as caught:
            use()
        said = "".join(traceback.format_exception(caught.value, limit=0))
        assert "er2" not in said
        assert ":o@" not in address or "***" not in str(caught.value)


def test_a_password_is_in_no_text_and_no_pickle(server):
    address = server.new().replace("owner", "clerk:hunter2")
    server.sql("CREATE ROLE clerk LOGIN PASSWORD 'hunter2'")
    server.sql("GRANT CREATE ON SCHEMA public TO clerk")
    budget = Budget(Privacy(1.0), address)
    budget.spend(Privacy(0.5), "a")
    with pytest.raises(BudgetExceeded) as caught:
        budget.spend(Privacy(0.6), "b")
    texts = [str(budget), repr(budget), budget._repr_html_(), str(caught.value), str(budget.path), pickle.dumps(budget)]
    assert not any("hunter2" in str(text) for text in texts)
    assert pickle.loads(pickle.dumps(budget)).spent.epsilon == 0.5  # this server trusts whoever asks


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up_and_never_repeated(address, happened, monkeypatch):
    budget, commit, calls = Budget(Privacy(1.0), address), sa.engine.Connection.commit, []

    def lost(self):
        calls.append(self)
        if len(calls) > 1 or happened:
            commit(self)
        if len(calls) == 1:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection is lost"))

    monkeypatch.setattr(sa.engine.Connection, "commit", lost)
    budget.spend(Privacy(0.25), "a")
    assert [entry.label for entry in Budget.open(address).entries] == ["a"]
    calls.clear()
    clock = itertools.count(0, 100)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))  # nobody waits so long
    refused(DPConvexError, "unknown whether the spend counts; release nothing", budget.spend, Privacy(0.25), "b")
    monkeypatch.undo()
    assert [entry.label for entry in budget.entries] == ["a", *"b" * happened]
    budget.spend(Privacy(0.25), "c")
    assert budget.entries == Budget.open(address).entries


def test_a_spend_that_another_overtook_while_its_commit_was_lost_is_refused_and_not_recorded(address, monkeypatch):
    budget, other = (Budget(Privacy(1.0), address) for _ in range(2))
    commit, calls = sa.engine.Connection.commit, []

    def lost(self):
        calls.append(self)
        if len(calls) != 1:
            return commit(self)
        self.rollback()
        other.spend(Privacy(0.75), "other")
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection is lost"))

    monkeypatch.setattr(sa.engine.Connection, "commit", lost)
    refused(BudgetExceeded, "Nothing was spent", budget.spend, Privacy(0.5), "late")
    assert [entry.label for entry in Budget.open(address).entries] == ["other"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ COMMITTED"])
def test_threads_of_several_budgets_never_overspend_whatever_the_isolation(address, level, monkeypatch):
    """Serialisable transactions are one guard, and the numbers of rows another, which does without them."""
    make = sa.create_engine
    if level != "SERIALIZABLE" and "postgresql" in address:
        other = lambda *given, **options: make(*given, **options | {"isolation_level": level})  # noqa: E731
        monkeypatch.setattr(sa, "create_engine", other)
    budgets = [Budget(Privacy(1.0), address) for _ in range(6)]

    def spend(budget):
        accepted = 0
        for _ in range(3):
            with contextlib.suppress(BudgetExceeded):
                budget.spend(Privacy(0.1), "x")
                accepted += 1
        return accepted

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(spend, budgets)) == 10
    assert {len(budget.entries) for budget in budgets} == {10}


def test_users_who_may_only_read_can_open_and_those_who_may_add_rows_can_charge(server):
    address = server.new()
    Budget(Privacy(1.0), address).spend(Privacy(0.25), "a")
    server.sql("CREATE ROLE reader LOGIN; GRANT SELECT ON dpconvex_ledger TO reader; CREATE ROLE adder LOGIN")
    server.sql("GRANT SELECT, INSERT ON dpconvex_ledger TO adder")
    budget, adding = (Budget.open(address.replace("owner", user)) for user in ("reader", "adder"))
    assert budget.spent.epsilon == 0.25
    refused(DPConvexError, r"nothing was recorded.*permission denied", budget.spend, Privacy(0.25), "b")
    adding.spend(Privacy(0.25), "c")
    assert Budget(Privacy(1.0), address.replace("owner", "adder")).spent.epsilon == 0.5
    refused(DPConvexError, "permission denied", Budget, Privacy(1.0), server.new().replace("owner", "adder"))


def test_no_second_ledger_is_made_in_another_schema(server, tmp_path):
    address, file = server.new(), tmp_path / "spent.jsonl"
    server.sql("CREATE ROLE keeper LOGIN; CREATE SCHEMA keeper AUTHORIZATION keeper")
    try:
        Budget(Privacy(1.0), address.replace("owner", "keeper")).spend(Privacy(0.75), "in a schema of its own")
        refused(DPConvexError, r"'keeper' holds ledgers.*spent twice", Budget, Privacy(1.0), address)
        Budget(Privacy(1.0), file)
        refused(DPConvexError, "'keeper' holds ledgers", Budget.move, file, address)
        assert Budget.open(file).remaining.epsilon == 1.0  # it was not closed
        assert Budget(Privacy(1.0), f"{address}?options=-csearch_path%3Dkeeper").remaining.epsilon == 0.25
    finally:
        server.sql("DROP OWNED BY keeper CASCADE; DROP ROLE keeper")


def test_a_row_that_replaces_another_is_refused(tmp_path):
    address = f"sqlite:///{tmp_path / 'spent.db'}"
    Budget(Privacy(3.0, 1e-5), address).spend(Privacy(1.0), "one")
    with sqlite3.connect(tmp_path / "spent.db") as connection:
        (identity,) = connection.execute("SELECT id FROM dpconvex_ledger WHERE position = 1").fetchone()
        with pytest.raises(sqlite3.IntegrityError, match="only added"):
            connection.execute("INSERT OR REPLACE INTO dpconvex_ledger VALUES ('other', 0, ?, 'x')", (identity,))
    connection.close()
    assert Budget.open(address).spent.epsilon == 1.0
