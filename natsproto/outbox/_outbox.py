"""The outbox: inserts messages in the caller's transactions, and makes relays."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, cast

from natsproto import errors
from natsproto._durations import positive_seconds
from natsproto.jetstream import JetStream
from natsproto.jetstream._publish.headers import header_pairs
from natsproto.outbox._relay import MAX_ROWS, Relay, RelayOptions
from natsproto.outbox._sql import Database, DatabaseConnection, check_table, driver_of, insert, placeholder, schema
from natsproto.protocol.frames import Payload, as_bytes
from natsproto.protocol.headers import HeadersLike, encode_headers
from natsproto.protocol.subject import publish_subject

Row: TypeAlias = tuple[str, bytes, str]
"""Subject, payload, and headers as JSON."""


class _Executes(Protocol):
    def execute(self, *args: object) -> object:
        """Execute a statement; its awaitable in an asynchronous driver."""
        ...


class Outbox:
    """A table of messages, which are published after the transaction that inserted them was committed.

    It holds no connection and no state. Create the tables with ``create`` or with the statements of ``schema``.

    Args:
        table: The name of the table, with or without a schema; a second table has the suffix ``_last``.
    """

    def __init__(self, table: str = "natsproto_outbox") -> None:
        self.table: str = check_table(table)

    def __repr__(self) -> str:
        return f"Outbox({self.table!r})"

    def schema(self, database: Database) -> list[str]:
        """Return the SQL statements that create the tables unless they exist, for a migration.

        Args:
            database: "sqlite" or "postgresql", whose types differ.
        """
        return schema(self.table, database)

    def create(self, connection: DatabaseConnection) -> None:
        """Create the tables unless they exist, and commit. Raises the errors of the database.

        Args:
            connection: A connection of sqlite3 (SQLite) or of any other blocking driver (PostgreSQL).
        """
        cursor = connection.cursor()
        for statement in self.schema("sqlite" if driver_of(connection) == "sqlite3" else "postgresql"):
            cursor.execute(statement, ())
        cursor.close()
        connection.commit()

    def add(
        self, connection: object, subject: str, payload: Payload = b"", *, headers: HeadersLike | None = None
    ) -> None:
        """Insert a message in the transaction of this connection: it is published if that is committed.

        Use the connection of the transaction: of sqlite3, psycopg or another DB-API driver, a ``Session`` or
        ``Connection`` of SQLAlchemy, or ``django.db.connection``. Nothing is committed here. InvalidSubject and
        InvalidHeader before anything is inserted; ConfigError for an unknown driver; the errors of the database.

        Args:
            connection: A connection, session or cursor in the transaction.
            subject: The subject to publish to, which the stream of the relay must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        _execute(connection, self.table, row_of(subject, payload, headers))

    async def add_async(
        self, connection: object, subject: str, payload: Payload = b"", *, headers: HeadersLike | None = None
    ) -> None:
        """Insert a message as ``add`` does, with a connection of asyncpg, psycopg's AsyncConnection, or SQLAlchemy's
        AsyncSession or AsyncConnection. The errors of ``add``; cancelling has the effect that the driver gives it.

        Args:
            connection: A connection, session or cursor in the transaction.
            subject: The subject to publish to, which the stream of the relay must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        await cast("Awaitable[object]", _execute(connection, self.table, row_of(subject, payload, headers)))

    def relay(
        self,
        js: JetStream,
        connect: Callable[[], DatabaseConnection],
        *,
        stream: str,
        name: str = "outbox",
        subject: str | None = None,
        keep: float = 60.0,
        interval: float = 0.1,
        rows: int = 500,
    ) -> Relay:
        """Return the relay that publishes the rows of this outbox into a stream: ``await outbox.relay(...).run()``.

        Every process may run one: the cursor decides which relay publishes a batch of rows, and each batch is stored
        once. ConfigError for arguments out of their bounds.

        Args:
            js: The JetStream context of a client that reconnects.
            connect: Opens a connection to the database, such as ``lambda: sqlite3.connect("app.db")``. It is called in
                a thread of the relay, which alone uses the connection.
            stream: The stream to publish into, which must be able to have a cursor; see ``js.cursor``.
            name: The name of the cursor, one for each database that publishes into the stream.
            subject: Where the cursor is kept, one of the stream's subjects; None: ``$CURSOR.<stream>.<name>``.
            keep: Seconds that rows stay in the table after they were published, in case the stream loses its newest
                messages in a power failure. They are published again then.
            interval: Seconds between two looks for new rows when there are none.
            rows: The most rows of a batch, 1 to 999.
        """
        if type(rows) is not int or not 1 <= rows <= MAX_ROWS:
            raise errors.ConfigError("rows", rows, f"must be a number from 1 to {MAX_ROWS}")
        if not callable(connect):
            raise errors.ConfigError("connect", connect, "must be a function that opens a connection")
        options = RelayOptions(
            stream=stream,
            name=name,
            subject=subject,
            keep=positive_seconds("keep", keep),
            interval=positive_seconds("interval", interval),
            rows=rows,
        )
        return Relay(js, connect, self.table, options)


def row_of(subject: str, payload: Payload, headers: HeadersLike | None) -> Row:
    """Return the columns of a message that can be sent, or raise its error."""
    publish_subject(subject)
    pairs = header_pairs(subject, headers, {})
    encode_headers(pairs)
    return subject, as_bytes(payload), json.dumps(pairs)


def _execute(connection: object, table: str, row: Row) -> object:
    """Insert a row in the words of the driver; return what its ``execute`` returns."""
    driver = driver_of(connection)
    if driver == "asyncpg":
        return cast("_Executes", connection).execute(insert(table, ("$1", "$2", "$3")), *row)
    if driver == "sqlalchemy":
        text = sys.modules["sqlalchemy"].text
        sql = text(insert(table, (":subject", ":payload", ":headers")))
        names = ("subject", "payload", "headers")
        return cast("_Executes", connection).execute(sql, dict(zip(names, row, strict=True)))
    sql = insert(table, [placeholder(connection)] * 3)
    if not hasattr(connection, "execute"):  # only the cursors of some drivers, and Django's, have it
        return cast("DatabaseConnection", connection).cursor().execute(sql, row)
    return cast("_Executes", connection).execute(sql, row)
