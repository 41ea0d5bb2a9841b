"""A ledger in SQLite or PostgreSQL whose clients are killed, network cut, server restarted, and rows forged."""

import contextlib
import itertools
import os
import pickle
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpconvex import Budget, BudgetExceeded, DPConvexError, Privacy, TemplateError

sa = pytest.importorskip("sqlalchemy")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", pytest.param("wal", marks=pytest.mark.slow), "postgresql"])
def address(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("server").new()
    if request.param == "wal":
        with contextlib.closing(sqlite3.connect(tmp_path / "spent.db")) as file:
            file.execute("PRAGMA journal_mode = WAL")
    return f"sqlite:///{tmp_path}/spent.db"


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
    with pytest.raises(DPConvexError, match=r"state a total|there is no|no such table|does not exist"):
        Budget.open(address)
    budget, other = Budget(Privacy(1), address, dataset="visits"), Budget(Privacy(1), address)
    budget.spend(Privacy(0.5), "first")
    other.spend(Privacy(0.25), "second")
    with pytest.raises(BudgetExceeded, match=r"'third' asks for.*Nothing was spent"):
        budget.spend(Privacy(0.5), "third")
    with pytest.raises(TemplateError, match="total is epsilon = 1"):
        Budget(Privacy(2), address)
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
    with pytest.raises(DPConvexError, match="was moved to"):
        budget.spend(Privacy(0.25), "on the one that was left")
    Budget.open(address).spend(Privacy(0.25), "in a database")
    with pytest.raises(TemplateError, match="there is a ledger already"):
        Budget.move(Path(shutil.copy(first, tmp_path / "used")).write_bytes(content) and tmp_path / "used", address)
    Budget.move(address, second)
    Budget.open(second).spend(Privacy(0.25), "in a file again")
    assert second.read_bytes().startswith(content)
    assert len(Budget.open(second).entries) == 3
    with pytest.raises(DPConvexError, match="was moved to"):
        Budget.open(address)


def test_a_file_without_checksums_is_not_moved(tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text('{"ledger": "dpconvex", "version": 1, "epsilon": 1.0, "delta": 0.0, "adjacency": "replace-one"}\n')
    with pytest.raises(TemplateError, match="have no checksums"):
        Budget.move(path, f"sqlite:///{tmp_path}/spent.db")
    assert Budget.open(path).remaining.epsilon == 1.0


def test_a_move_that_crashed_in_between_leaves_no_two_ledgers_and_can_be_finished(tmp_path, monkeypatch):
    first, address = tmp_path / "first.jsonl", f"sqlite:///{tmp_path}/spent.db"
    Budget(Privacy(1), first).spend(Privacy(0.25), "a")
    monkeypatch.setattr(sa.engine.Connection, "commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Budget.move(first, address)
    monkeypatch.undo()
    with pytest.raises(DPConvexError, match="was moved to"):
        Budget.open(first)
    with pytest.raises(DPConvexError, match="was moved to"):
        Budget.move(first, tmp_path / "elsewhere")
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
        with pytest.raises(DPConvexError, match=r"checksum|gone|not the ledger"):
            use()


def test_last_rows_that_are_gone_are_noticed_by_whoever_saw_them(address):
    budget = Budget(Privacy(1.0), address)
    for label in "abc":
        budget.spend(Privacy(0.25), label)
    changed(address, "DELETE FROM dpconvex_ledger WHERE position >= 2")
    with pytest.raises(DPConvexError, match="spends that were in this ledger are gone"):
        budget.spend(Privacy(0.25), "d")
    changed(address, "DROP TABLE dpconvex_ledger")
    with pytest.raises(DPConvexError, match="dpconvex_ledger"):
        budget.spend(Privacy(0.25), "d")


def test_an_older_file_of_sqlite_in_place_of_the_ledger_is_noticed(tmp_path):
    path, older = tmp_path / "spent.db", tmp_path / "older.db"
    budget = Budget(Privacy(1.0), f"sqlite:///{path}")
    budget.spend(Privacy(0.25), "a")
    shutil.copy(path, older)
    budget.spend(Privacy(0.25), "b")
    shutil.copy(older, path)
    with pytest.raises(DPConvexError, match="are gone"):
        budget.spend(Privacy(0.25), "c")
    path.unlink()
    with pytest.raises(DPConvexError, match="cannot be opened"):
        budget.spend(Privacy(0.25), "c")
    assert not path.exists()


def test_a_file_of_sqlite_that_is_replaced_during_a_spend_is_an_error(tmp_path):
    path = tmp_path / "spent.db"
    budget, fits = Budget(Privacy(1.0), f"sqlite:///{path}"), Budget(Privacy(1.0))._rule.fits

    def late(*arguments, **options):
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
        return fits(*arguments, **options)

    object.__setattr__(budget._rule, "fits", late)
    with pytest.raises(DPConvexError, match=r"release nothing"):
        budget.spend(Privacy(0.25), "a")


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
    ],
)
def test_addresses_are_refused_without_their_passwords(address, complaint):
    import traceback

    for use in (lambda: Budget(Privacy(1.0), address), lambda: Budget.open(address), lambda: Budget.move(address, "x")):
        with pytest.raises(DPConvexError, match=complaint) as caught:
            use()
        said = "".join(traceback.format_exception(caught.value, limit=0))
        assert "hunter2" not in said
        assert "er2" not in said


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
    with pytest.raises(DPConvexError, match="is not known: it may count; release nothing"):
        budget.spend(Privacy(0.25), "b")
    monkeypatch.undo()
    assert [entry.label for entry in budget.entries] == ["a", *"b" * happened]
    budget.spend(Privacy(0.25), "c")
    assert budget.entries == Budget.open(address).entries


def test_a_spend_that_another_overtook_while_its_commit_was_lost_is_refused_and_not_recorded(address, monkeypatch):
    budget, other, commit, calls = (
        Budget(Privacy(1.0), address),
        Budget(Privacy(1.0), address),
        sa.engine.Connection.commit,
        [],
    )

    def lost(self):
        calls.append(self)
        if len(calls) != 1:
            return commit(self)
        self.rollback()
        other.spend(Privacy(0.75), "other")
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection is lost"))

    monkeypatch.setattr(sa.engine.Connection, "commit", lost)
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        budget.spend(Privacy(0.5), "late")
    assert [entry.label for entry in Budget.open(address).entries] == ["other"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ COMMITTED"])
def test_threads_of_several_budgets_never_overspend_whatever_the_isolation(address, level, monkeypatch):
    """Serialisable transactions are one guard, and the numbers of rows another, which does without them."""
    make = sa.create_engine
    if level != "SERIALIZABLE" and "postgresql" in address:
        monkeypatch.setattr(
            sa, "create_engine", lambda *given, **options: make(*given, **options | {"isolation_level": level})
        )
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


def test_whoever_may_only_read_can_open_and_not_charge(server):
    address = server.new()
    Budget(Privacy(1.0), address).spend(Privacy(0.25), "a")
    server.sql("CREATE ROLE reader LOGIN; GRANT SELECT ON dpconvex_ledger TO reader")
    budget = Budget.open(address.replace("owner", "reader"))
    assert budget.spent.epsilon == 0.25
    with pytest.raises(DPConvexError, match=r"nothing was recorded.*permission denied"):
        budget.spend(Privacy(0.25), "b")


def test_users_who_may_only_read_and_add_rows_can_charge(server):
    address = server.new()
    Budget(Privacy(1.0), address)
    server.sql("CREATE ROLE adder LOGIN")
    server.sql("GRANT SELECT, INSERT ON dpconvex_ledger TO adder")
    budget = Budget.open(address.replace("owner", "adder"))
    budget.spend(Privacy(0.25), "a")
    assert Budget(Privacy(1.0), address.replace("owner", "adder")).spent.epsilon == 0.25
    with pytest.raises(DPConvexError, match="permission denied"):
        Budget(Privacy(1.0), server.new().replace("owner", "adder"))


# Many processes and many faults: small here, in full with -m slow

# Spends, and tells of each one when it has returned, on a line of its own that is written at once.
WORKER = """
import os, sys, time
from dpconvex import Budget, DPConvexError, Privacy

address, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
budget, number = None, 0
while number < count:
    try:
        asked = ""
        budget = budget or Budget.open(address)
        asked = f"{name}.{number}"
        os.write(1, f"asked {name}.{number}\\n".encode())
        budget.spend(Privacy(1e-4), f"{name}.{number}")
        os.write(1, f"told {name}.{number}\\n".encode())
    except DPConvexError as error:
        os.write(1, f"error {asked or 'opening'} {error}\\n".encode())
        time.sleep(0.05)
    number += budget is not None
"""


class Proxy:
    """A network between here and the server that is cut at random, also when a commit is on its way or its answer is."""

    def __init__(self, port, rate, seed=0):
        self.port, self.rate, self.random, self.cuts = port, rate, random.Random(seed), Counter()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own, self.open = self.listener.getsockname()[1], True
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while self.open:
            with contextlib.suppress(OSError):
                near, far = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.port))
                for ends, way in (((near, far), "asked"), ((far, near), "answered")):
                    threading.Thread(target=self.pass_on, args=(*ends, way), daemon=True).start()

    def pass_on(self, source, target, way):
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                commit = b"COMMIT" in part
                if self.random.random() < self.rate * (10 if commit else 1):
                    self.cuts[way, commit] += 1
                    if commit and self.random.random() < 0.5:
                        target.sendall(part)  # the server gets it, and its answer is lost
                    break
                target.sendall(part)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.open = False
        self.listener.close()


def soaked(address, workers, count, disturb, seconds=1800, seen=None):
    """Let processes spend until all are done, and return what they asked for and were told of, and what is in the ledger."""
    Budget(Privacy(1.0), seen or address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    folder, running, names = tempfile.mkdtemp(), {}, iter(range(10**6))

    def start(left):
        name = f"w{next(names)}"
        command = [sys.executable, "-c", WORKER, address, name, str(left)]
        with open(f"{folder}/{name}", "wb") as out:
            running[name] = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL), left

    for _ in range(workers):
        start(count)
    until, killed = time.monotonic() + seconds, 0
    try:
        while running:
            assert time.monotonic() < until, "the processes did not end"
            time.sleep(0.05)
            victim = disturb([name for name in running if os.stat(f"{folder}/{name}").st_size])
            if victim is not None:
                running[victim][0].kill()
            for name, (process, left) in list(running.items()):
                if process.poll() is not None:
                    done = Path(folder, name).read_bytes().count(b"asked")
                    assert victim == name or process.returncode in (0, -9), process.returncode
                    killed += process.returncode == -9
                    del running[name]
                    if left - done > 0:
                        start(left - done)
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()
    said = [line.split(maxsplit=1) for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    shutil.rmtree(folder)
    told = [label for kind, label in said if kind == "told"]
    asked = [label for kind, label in said if kind == "asked"]
    errors = [text for kind, text in said if kind == "error"]
    budget = Budget.open(seen or address)
    recorded = Counter(entry.label for entry in budget.entries)
    lost = [label for label in told if not recorded[label]]
    double = [label for label, times in recorded.items() if times > 1]
    never = set(recorded) - set(asked)
    denied = {text.split()[0] for text in errors if "nothing was recorded" in text} & set(recorded)
    silent = len(set(recorded) - set(told))  # recorded, and whoever asked died or was told that it may count
    sys.stdout.write(
        f"{len(asked)} asked, {len(told)} told, {sum(recorded.values())} recorded, {len(lost)} lost, {len(double)} double, "
        f"{silent} recorded for nobody, {len(errors)} errors, {killed} killed\n"
    )
    assert not lost
    assert not double
    assert not never
    assert not denied
    assert len(asked) >= workers * count
    assert round(budget.spent.epsilon / 1e-4) == sum(recorded.values())
    return len(asked), len(told), sum(recorded.values()), errors, killed


SIZES = [(2, 4), pytest.param((8, 200), marks=pytest.mark.slow)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_processes_are_killed(address, size):
    chance = random.Random(1)
    rate = 0.2 if size[0] < 8 else 0.02
    soaked(address, *size, lambda names: chance.choice(names) if names and chance.random() < rate else None)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_the_network_is_cut(server, size):
    proxy = Proxy(server.port, 0.01)
    address = server.new()
    through = address.replace(str(server.port), str(proxy.own))
    try:
        soaked(through, *size, lambda names: None, seen=address)
        sys.stdout.write(f"cuts of (way, at a commit): {dict(proxy.cuts)}\n")
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_no_spend_is_lost_where_the_server_is_restarted(server, size):
    begun, restarts, chance = time.monotonic(), 0, random.Random(2)

    def restart(names):
        nonlocal begun, restarts
        if time.monotonic() - begun > (2 if size[0] < 8 else 5):
            server.stop(chance.choice(["immediate", "fast"]))
            time.sleep(0.2)
            server.start()
            begun, restarts = time.monotonic(), restarts + 1

    soaked(server.new(), *size, restart)
    sys.stdout.write(f"{restarts} restarts\n")


def test_a_row_that_replaces_another_is_refused(tmp_path):
    address = f"sqlite:///{tmp_path / 'spent.db'}"
    Budget(Privacy(3.0, 1e-5), address).spend(Privacy(1.0), "one")
    with sqlite3.connect(tmp_path / "spent.db") as connection:
        (identity,) = connection.execute("SELECT id FROM dpconvex_ledger WHERE position = 1").fetchone()
        with pytest.raises(sqlite3.IntegrityError, match="only added"):
            connection.execute("INSERT OR REPLACE INTO dpconvex_ledger VALUES ('other', 0, ?, 'x')", (identity,))
    connection.close()
    assert Budget.open(address).spent.epsilon == 1.0
