"""A ledger in a database, SQLite or PostgreSQL, that processes on several machines append to: one row per line.

A row has a number, its position in the ledger, which is unique in the table.  Two concurrent spends insert the same number, so
the database refuses one of them, at any isolation level; that one reads the ledger again.  If the connection is lost during a
commit, the row's id is looked up.  `append` returns only after the row is found or inserted.
"""

import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.util.arguments import recast, require

PATIENCE = 60.0  # Seconds for which conflicts are retried, and lost commits looked up
KINDS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
# A lost client's open transaction blocks others: within PATIENCE the server ends it, and the client detects the lost connection.
CUT = {"connect_timeout": 10, "tcp_user_timeout": 20_000}
CUT |= {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
SETTINGS = {
    "sqlite": ("PRAGMA synchronous = EXTRA", "BEGIN IMMEDIATE"),  # durable, also with a write-ahead log
    "postgresql": (
        "SET LOCAL idle_in_transaction_session_timeout = '10s'",
        "SET LOCAL lock_timeout = '15s'",
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'",
    ),
}
# Codes of PostgreSQL: serialization failure, deadlock, duplicate row, duplicate table, lock timeout.
CONFLICTS = {"40001", "40P01", "23505", "42P07", "55P03"}
ELSEWHERE = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'dpconvex_ledger'"
ROWS = "SELECT position, id, line FROM dpconvex_ledger WHERE ledger = :ledger ORDER BY position"
INSERT = "INSERT INTO dpconvex_ledger VALUES (:ledger, :position, :id, :line)"
# Triggers allow only new rows in the table; its owner can drop them.
TABLE = (
    "CREATE TABLE dpconvex_ledger (ledger VARCHAR(200) NOT NULL, position INTEGER NOT NULL, id VARCHAR(32) NOT NULL UNIQUE, "
    "line TEXT NOT NULL, PRIMARY KEY (ledger, position))"
)
REFUSES = "BEFORE {} ON dpconvex_ledger BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only added'); END"
MAKE = {
    "sqlite": [
        TABLE,
        *(f"CREATE TRIGGER dpconvex_no_{act} {REFUSES.format(act)}" for act in ("update", "delete")),
        # INSERT OR REPLACE deletes the conflicting row without running triggers on deletions
        "CREATE TRIGGER dpconvex_no_replace BEFORE INSERT ON dpconvex_ledger WHEN EXISTS (SELECT 1 FROM dpconvex_ledger "
        "WHERE id = NEW.id OR (ledger = NEW.ledger AND position = NEW.position)) "
        "BEGIN SELECT RAISE(ABORT, 'UNIQUE: rows of a ledger are only added'); END",
    ],
    "postgresql": [
        TABLE,
        "CREATE OR REPLACE FUNCTION dpconvex_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''rows of a ledger are only added''; END'",
        "CREATE TRIGGER dpconvex_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpconvex_ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION dpconvex_append_only()",
    ],
}


def is_address(path: object) -> bool:
    return isinstance(path, str) and "://" in path


class DatabaseLedger:
    """A ledger in a database; `?ledger=NAME` at the end of the address selects one of several ledgers."""

    def __init__(self, address: str) -> None:
        with recast("a ledger in a database needs SQLAlchemy: pip install 'dpconvex[ledger]'", ImportError):
            import sqlalchemy as sa
        forms = "write 'sqlite:///spent.db' or 'postgresql://user@host/database'"
        try:
            url = sa.make_url(address)
        except (sa.exc.ArgumentError, ValueError):
            raise TemplateError(f"the ledger's address cannot be read; {forms}.") from None
        self.kind = url.drivername.partition("+")[0]
        if self.kind not in KINDS or url.drivername not in (self.kind, KINDS[self.kind]):
            raise TemplateError(f"a ledger cannot be kept in {url.drivername!r}; {forms}.")
        if "@" in (url.host or ""):
            raise TemplateError("the ledger's address has two @; write %40 for one that belongs to the password.")
        name, query = url.query.get("ledger", "budget"), dict(url.query)
        query.pop("ledger", None)
        self.name, database = str(name), url.database
        if self.kind == "sqlite":
            if not database or database.startswith((":memory:", "file:")) or query:
                how = "as in 'sqlite:///spent.db'; or leave the path out"
                raise TemplateError(f"a ledger in SQLite needs a file, {how}.")
            database = os.path.abspath(database)
        self.file = database if self.kind == "sqlite" else None
        parts = url.host, url.port, database
        self._secrets = [url.password, *(value for key, value in query.items() if "password" in key)]
        self._url = sa.URL.create(KINDS[self.kind], url.username, url.password, *parts, query)
        public = {key: value for key, value in query.items() if "password" not in key}
        public |= {} if "ledger" not in url.query else {"ledger": name}
        self.address = sa.URL.create(self.kind, url.username, None, *parts, public).render_as_string()

    def __str__(self) -> str:
        return self.address

    def exists(self) -> bool:
        import sqlalchemy as sa

        if self.file is not None and not os.path.exists(self.file):
            return False
        with self._connected() as connection:
            if sa.inspect(connection).has_table("dpconvex_ledger"):
                return bool(self._rows(connection))
            other = None if self.file is not None else self._run(connection, ELSEWHERE).scalar()
        why = f"the schema {other!r} holds ledgers, and is not on your search_path: a budget could be spent twice"
        require(other is None, f"{self}: {why}. Add ?options=-csearch_path%3D{other} to the address.", DPConvexError)
        return False

    def create(self, content: bytes) -> None:
        """Create the ledger with these lines in one transaction, unless it exists."""
        import sqlalchemy as sa

        if self.exists():  # this check needs read access only
            return

        def made(connection: Any) -> None:
            for statement in () if sa.inspect(connection).has_table("dpconvex_ledger") else MAKE[self.kind]:
                connection.exec_driver_sql(statement)
            if not self._rows(connection):
                for number, line in enumerate(content.splitlines()):
                    self._insert(connection, number, line, secrets.token_hex(16))

        self._committed(made, new=True)

    def read(self) -> bytes:
        with self._connected() as connection:
            return content_of(self._rows(connection), self)

    def append(self, make: Callable[[bytes], bytes]) -> bytes:
        """Append the line that `make` returns for the current content, exactly once; return the new content."""
        identity, result = secrets.token_hex(16), b""

        def appended(connection: Any) -> None:
            nonlocal result
            rows = self._rows(connection)
            result = content_of(rows, self)
            if identity not in {row.id for row in rows}:  # present if an earlier commit succeeded without an answer
                line = make(result)
                self._insert(connection, len(rows), line[:-1], identity)
                result += line

        self._committed(appended)
        return result

    def _rows(self, connection: Any) -> Any:
        return self._run(connection, ROWS).all()

    def _insert(self, connection: Any, number: int, line: bytes, identity: str) -> None:
        if self._run(connection, INSERT, position=number, id=identity, line=line.decode("ascii")).rowcount != 1:
            raise DPConvexError(f"{self}: the database inserted no row, and raised no error; release nothing.")

    def _run(self, connection: Any, statement: str, **values: Any) -> Any:
        import sqlalchemy as sa

        return connection.execute(sa.text(statement), {"ledger": self.name, **values})

    def _committed(self, change: Callable[[Any], None], new: bool = False) -> None:
        """Apply `change` in one transaction; retry on conflicts with other transactions, and if a commit's result is unknown."""
        from sqlalchemy.exc import DBAPIError

        until, doubt = time.monotonic() + PATIENCE, False
        for attempt in range(10**6):
            known = None if new or self.file is None else self._place()
            try:
                with self._connected(writing=True, new=new) as connection:
                    change(connection)
                    doubt = doubt or not new
                    connection.commit()
            except DBAPIError as error:
                code = getattr(error.orig, "sqlstate", None)
                conflict = code in CONFLICTS or type(error).__name__ == "IntegrityError"
                if (conflict or doubt) and time.monotonic() < until:
                    time.sleep(random.uniform(0, min(1.0, 0.005 * 2 ** min(attempt, 8))))
                    continue
                what = "it is unknown whether the spend counts" if doubt else "nothing was recorded"
                raise self._failed(f"{what}; release nothing", error) from None
            if known is not None and known != self._place():
                why = "the ledger was replaced during the spend, which may be lost; release nothing"
                raise DPConvexError(f"{self}: {why}. Find out who replaced it, and record the spend again.")
            return

    def _place(self) -> tuple[int, int]:
        said = f"{self}: the ledger cannot be opened; restore it, or state a total to make a new one"
        with recast(said, OSError):
            found = os.stat(self.file or "")
        return found.st_dev, found.st_ino

    @contextmanager
    def _connected(self, writing: bool = False, new: bool = False) -> Iterator[Any]:
        """Connect for one transaction.  Connections are not kept, so that forks share none."""
        import sqlalchemy as sa

        if not (new or self.file is None):
            self._place()  # raises if the file is missing; SQLite would create it
        options: Any = {"timeout": PATIENCE} if self.file is not None else CUT | dict(self._url.query)
        level: Any = {"isolation_level": "SERIALIZABLE"} if writing else {}
        level |= {"poolclass": sa.NullPool, "hide_parameters": True}
        with recast(f"{self}: PostgreSQL needs psycopg: pip install 'dpconvex[ledger]'", ImportError):
            engine = sa.create_engine(self._url, connect_args=options, **level)
        try:
            with engine.connect() as connection:
                for statement in SETTINGS[self.kind] if writing else ():
                    connection.exec_driver_sql(statement)
                yield connection
        except sa.exc.DBAPIError as error:
            if writing:
                raise
            raise self._failed("the ledger cannot be read", error) from None

    def _failed(self, what: str, error: Any) -> DPConvexError:
        """Return the error to raise, with the driver's message, in which passwords are masked."""
        said = (str(error.orig).splitlines() or [""])[0]
        for secret in map(str, filter(None, self._secrets)):
            # A short password may also be a part of other words.
            said = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)" if len(secret) < 4 else re.escape(secret), "***", said)
        return DPConvexError(f"{self}: {what} ({said}).")


def content_of(rows: Any, ledger: DatabaseLedger) -> bytes:
    """Return the content of the ledger as in a file; raise if there are no rows, or if a number is missing (a deleted row)."""
    why = f"there is no ledger {ledger.name!r} in this database"
    require(rows, f"{ledger}: {why}; make one with its total, dp.Budget(total, address).", DPConvexError)
    if [row.position for row in rows] != list(range(len(rows))):
        raise DPConvexError(f"{ledger}: rows of this ledger are gone; restore the database.")
    return "".join(f"{row.line}\n" for row in rows).encode("utf-8", errors="surrogateescape")
