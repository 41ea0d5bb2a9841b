"""Places of ledgers, in files and in databases."""

import contextlib
import sqlite3

import pytest


@pytest.fixture(params=["sqlite", pytest.param("wal", marks=pytest.mark.slow), "postgresql"])
def address(request, tmp_path):
    pytest.importorskip("sqlalchemy")
    if request.param == "postgresql":
        return request.getfixturevalue("server").new()
    if request.param == "wal":
        with contextlib.closing(sqlite3.connect(tmp_path / "spent.db")) as file:
            file.execute("PRAGMA journal_mode = WAL")
    return f"sqlite:///{tmp_path}/spent.db"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"
