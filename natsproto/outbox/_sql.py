"""The statements of an outbox, in the words of each driver.

Rows get the number of their batch from the relay, not an order from their ids: in PostgreSQL a smaller id may be
committed later. A row of the table ``<table>_last`` holds the last number. A relay that changes it
locks it until the commit, so several relays commit their batches in the order of the numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from natsproto import errors

Database: TypeAlias = Literal["sqlite", "postgresql"]
Parameter: TypeAlias = str | bytes | int

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_KEYS: dict[Database, tuple[str, str]] = {
    "sqlite": ("INTEGER PRIMARY KEY AUTOINCREMENT", "BLOB"),
    "postgresql": ("BIGSERIAL PRIMARY KEY", "BYTEA"),
}
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""Placeholders by the ``paramstyle`` of a DB-API module."""


class DatabaseCursor(Protocol):
    """The part of a cursor of the DB-API (PEP 249) that a relay uses."""

    @property
    def rowcount(self) -> int:
        """The rows that the last statement changed."""
        ...

    def execute(self, sql: str, parameters: Sequence[Parameter], /) -> object:
        """Execute one statement.

        Args:
            sql: A statement with the placeholders of the driver.
            parameters: The values of the placeholders, in their order.
        """
        ...

    def fetchall(self) -> Sequence[Sequence[object]]:
        """Return all rows of the last statement."""
        ...

    def close(self) -> object:
        """Close the cursor."""
        ...


class DatabaseConnection(Protocol):
    """The part of a connection of the DB-API (PEP 249) that a relay uses, such as one of sqlite3 or psycopg."""

    def cursor(self) -> DatabaseCursor:
        """Return a new cursor."""
        ...

    def commit(self) -> object:
        """Commit the transaction."""
        ...

    def rollback(self) -> object:
        """Roll the transaction back."""
        ...

    def close(self) -> object:
        """Close the connection."""
        ...


def check_table(table: str) -> str:
    """Return the name of a table, with or without a schema; ConfigError for what would need quotes."""
    if not isinstance(table, str) or not _NAME.fullmatch(table):
        raise errors.ConfigError("table", table, "must be a name of letters, digits and '_', or schema.name")
    return table


def schema(table: str, database: Database) -> list[str]:
    """Return the statements that create the tables of an outbox unless they exist."""
    if database not in _KEYS:
        raise errors.ConfigError("database", database, 'must be "sqlite" or "postgresql"')
    key, blob = _KEYS[database]
    index = f"{table.replace('.', '_')}_batch"
    return [
        f"CREATE TABLE IF NOT EXISTS {table} (id {key}, batch BIGINT,"
        f" subject TEXT NOT NULL, payload {blob} NOT NULL, headers TEXT NOT NULL)",
        f"CREATE INDEX IF NOT EXISTS {index} ON {table} (batch, id)",
        f"CREATE TABLE IF NOT EXISTS {table}_last (id INTEGER PRIMARY KEY, batch BIGINT NOT NULL)",
        f"INSERT INTO {table}_last (id, batch) VALUES (1, 0) ON CONFLICT DO NOTHING",  # noqa: S608  # checked name
    ]


def insert(table: str, marks: Sequence[str]) -> str:
    """Return the statement that adds a message; ``marks`` are the placeholders of subject, payload and headers."""
    return f"INSERT INTO {table} (subject, payload, headers) VALUES ({', '.join(marks)})"  # noqa: S608  # checked name


class Statements:
    """The statements of a relay. Their parameters are given in the order of the placeholders."""

    def __init__(self, table: str, mark: str) -> None:
        self._table, self._mark = table, mark
        self.last = f"SELECT batch FROM {table}_last WHERE id = 1"  # noqa: S608  # checked name
        self.next = (
            f"SELECT batch, id, subject, payload, headers FROM {table} WHERE batch ="  # noqa: S608  # checked name
            f" (SELECT MIN(batch) FROM {table} WHERE batch > {mark}) ORDER BY id"
        )
        self.unstamped = (
            f"SELECT id, LENGTH(payload) + LENGTH(headers) FROM {table} WHERE batch IS NULL"  # noqa: S608  # checked name
            f" ORDER BY id LIMIT {mark}"
        )
        self.number = f"UPDATE {table}_last SET batch = {mark} WHERE id = 1 AND batch = {mark}"  # noqa: S608  # checked name
        self.delete = f"DELETE FROM {table} WHERE batch <= {mark}"  # noqa: S608  # checked name

    def stamp(self, count: int) -> str:
        """Return the statement that gives ``count`` rows the number of their batch."""
        marks = ", ".join([self._mark] * count)
        return f"UPDATE {self._table} SET batch = {self._mark} WHERE id IN ({marks})"  # noqa: S608  # checked name


def driver_of(connection: object) -> str:
    """Return the top module of the class of a connection, which is the name of its driver."""
    return type(connection).__module__.partition(".")[0]


def placeholder(connection: object) -> str:
    """Return the placeholder of the driver of a connection; ConfigError for an unknown driver."""
    driver = driver_of(connection)
    # Django wraps the cursors of all drivers and always takes "%s".
    style = "format" if driver == "django" else getattr(sys.modules.get(driver), "paramstyle", None)
    if style not in _MARKS:
        raise errors.ConfigError(
            "connection", connection, f"is of the driver {driver!r}, whose placeholders are not known"
        )
    return _MARKS[style]
