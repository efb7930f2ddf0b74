"""The relay: publishes the rows of an outbox in order, each once.

Rules:

1. A row is in one batch, whose number it gets in a transaction; the cursor of the stream counts batches. Only
   the cursor decides what the stream has.
2. The batch after the cursor is published, whoever gave it its number. Only when there is none, rows without a number
   get the next one.
3. The next number is above the last one of the database and above the cursor, so rows of a database that was put back
   are not taken for published ones.
4. After every error the cursor is loaded again. An error that passes is waited for; any other one ends the relay, with
   the row that caused it.
5. Rows are deleted ``keep`` seconds after this relay saw the cursor at or above their batch.
6. The database is used by one thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from natsproto import errors
from natsproto._core.deadline import Backoff
from natsproto._handler_threads import DaemonThreads
from natsproto._signals import check_until
from natsproto.errors._base import is_transient
from natsproto.jetstream import Cursor, JetStream
from natsproto.outbox._sql import DatabaseConnection, DatabaseCursor, Parameter, Statements, placeholder

T = TypeVar("T")

MAX_ROWS = 999
_MAX_BATCH_BYTES = 16 * 2**20
"""Bytes of a batch, which is in memory as a whole; one row may exceed it."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PASSING_DATABASE_ERRORS = frozenset({"OperationalError", "InterfaceError"})
"""Errors of the DB-API for a database that is away or busy; their modules differ."""

log = logging.getLogger("natsproto.outbox")


class RelayOptions(NamedTuple):
    """The arguments of ``Outbox.relay``."""

    stream: str
    name: str
    subject: str | None
    keep: float
    interval: float
    rows: int


class _Row(NamedTuple):
    id: int
    subject: str
    payload: bytes
    headers: list[list[str]]


class _Rows:
    """The tables of an outbox over one connection. Every method blocks."""

    def __init__(self, connect: Callable[[], DatabaseConnection], table: str) -> None:
        self._connection = connection = connect()
        self._sql = Statements(table, placeholder(connection))
        autocommit = getattr(connection, "autocommit", None)
        legacy_off = getattr(connection, "isolation_level", "") is None and autocommit is not False
        self._begin = ""
        if type(connection).__module__.startswith("sqlite3") and (legacy_off or autocommit is True):
            self._begin = "BEGIN IMMEDIATE"
        elif autocommit is True:
            self._begin = "BEGIN"

    def close(self) -> None:
        self._connection.close()

    def next(self, after: int) -> tuple[int, list[_Row]]:
        """Return the number and the rows of the first batch after this one; (0, []) when there is none."""
        found = self._select(self._sql.next, after)
        rows = [
            _Row(
                cast("int", key),
                cast("str", subject),
                bytes(cast("bytes", payload)),
                [] if headers == "[]" else json.loads(cast("str", headers)),
            )
            for _, key, subject, payload, headers in found
        ]
        return (cast("int", found[0][0]) if found else 0), rows

    def last(self) -> int:
        """Return the last number that was given to a batch."""
        return cast("int", self._select(self._sql.last)[0][0])

    def stamp(self, cursor: int, most: int) -> bool:
        """Give the next number to the oldest rows without one. False when there are none, or another relay did it."""
        last = self.last()
        found: list[int] = []
        size = 0
        for key, length in self._select(self._sql.unstamped, most):
            size += cast("int", length)
            if found and size > _MAX_BATCH_BYTES:
                break
            found.append(cast("int", key))
        if not found:
            return False
        number = max(last, cursor) + 1
        return self._change((self._sql.number, (number, last)), (self._sql.stamp(len(found)), (number, *found)))

    def delete(self, up_to: int) -> None:
        """Delete the rows of all batches up to this one."""
        self._change((self._sql.delete, (up_to,)))

    def _select(self, sql: str, *parameters: Parameter) -> list[tuple[object, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(sql, parameters)
        rows = [tuple(row) for row in cursor.fetchall()]
        cursor.close()
        if not self._begin:
            self._connection.commit()  # a transaction that reads would see the same rows for ever
        return rows

    def _change(self, *statements: tuple[str, tuple[Parameter, ...]]) -> bool:
        """Execute statements in one transaction; roll it back, and return False, when one changes nothing."""
        cursor = self._connection.cursor()
        try:
            if self._begin:
                cursor.execute(self._begin, ())
            for sql, parameters in statements:
                cursor.execute(sql, parameters)
                if not cursor.rowcount:
                    self._end(cursor, "ROLLBACK")
                    return False
            self._end(cursor, "COMMIT")
        finally:
            cursor.close()
        return True

    def _end(self, cursor: DatabaseCursor, command: str) -> None:
        if self._begin:
            cursor.execute(command, ())
        elif command == "COMMIT":
            self._connection.commit()
        else:
            self._connection.rollback()


class Relay:
    """Publishes the rows of an outbox into a stream. Created by ``Outbox.relay``."""

    def __init__(
        self, js: JetStream, connect: Callable[[], DatabaseConnection], table: str, options: RelayOptions
    ) -> None:
        self._js, self._connect, self._table, self._options = js, connect, table, options
        self._published = 0
        self._seen: deque[tuple[float, int]] = deque()  # when the cursor was first seen at a batch
        self._threads = DaemonThreads(1, f"natsproto outbox {table}")
        self._rows: _Rows | None = None

    def __repr__(self) -> str:
        return f"Relay(table={self._table!r}, stream={self._options.stream!r}, name={self._options.name!r})"

    @property
    def published(self) -> int:
        """The number of rows that this relay has published."""
        return self._published

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Publish rows until the event is set, and for ever without one; the batch in progress is finished.

        Outages of the servers and of the database are waited for. Raises the error of a row that can never be published
        (PayloadTooLarge, NoStream of a stream that exists, InvalidHeader ...), with the row in its notes, so that it is
        corrected or deleted; the errors of ``js.cursor``; and those of the database other than OperationalError and
        InterfaceError. Cancelling may leave a batch stored or not: the cursor decides at the next run.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until cancelled.
        """
        check_until(until)
        stop = asyncio.Event() if until is None else until
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        cursor: Cursor | None = None
        try:
            while not stop.is_set():
                try:
                    if cursor is None:
                        options = self._options
                        cursor = await self._js.cursor(options.stream, options.name, subject=options.subject)
                    pause = 0.0 if await self._step(cursor) else self._options.interval
                    backoff.reset()
                except Exception as exc:
                    if not _passes(exc):
                        raise
                    log.log(_level(exc), "outbox %s: %s; the relay tries again", self._table, exc)
                    if not isinstance(exc, errors.NatsError):
                        await self._close()
                    cursor, pause = None, backoff.next_delay()
                await _pause(stop, pause)
        finally:
            await self._close()

    async def _step(self, cursor: Cursor) -> bool:
        """Publish one batch or number one; False when there is nothing to do."""
        at = cursor.value or 0
        if not isinstance(at, int):
            raise errors.InvalidReply("cursor", cursor.subject, at, "must be an int: another program uses this cursor")
        await self._forget(at)
        number, rows = await self._in_thread(lambda tables: tables.next(at))
        if not rows:
            most = self._options.rows
            return await self._in_thread(lambda tables: tables.stamp(at, most))
        refused: _Row | None = None
        if number > at + 1:
            await self._report_missing(at + 1, number - 1)
        try:
            async with cursor.advance(to=number) as batch:
                for row in rows:
                    refused = row
                    await batch.publish(
                        row.subject, row.payload, headers=[(name, value) for name, value in row.headers] or None
                    )
                refused = None
        except errors.NatsError as exc:
            if not _passes(exc):
                keys = f"id {refused.id}" if refused is not None else f"ids {rows[0].id} to {rows[-1].id}"
                exc.add_note(f"outbox {self._table}, {keys}: correct the rows, or delete them")
            raise
        self._published += len(rows)
        return True

    async def _report_missing(self, first: int, last: int) -> None:
        """Log the batches that the stream has lost and the database no longer has."""
        if await self._in_thread(lambda tables: tables.last()) >= last:
            log.error(
                "outbox %s: the stream has lost the batches %d to %d, whose rows were deleted: keep= was too short",
                self._table,
                first,
                last,
            )

    async def _forget(self, at: int) -> None:
        """Delete the rows of batches that were published long enough ago."""
        now = asyncio.get_running_loop().time()
        while self._seen and self._seen[-1][1] > at:  # the stream went back
            self._seen.pop()
        if at and (not self._seen or self._seen[-1][1] < at):
            self._seen.append((now, at))
        old = 0
        while self._seen and self._seen[0][0] <= now - self._options.keep:
            old = self._seen.popleft()[1]
        if old:
            await self._in_thread(lambda tables: tables.delete(old))

    async def _in_thread(self, work: Callable[[_Rows], T]) -> T:
        return await asyncio.wrap_future(self._threads.submit(lambda: work(self._tables())))

    def _tables(self) -> _Rows:
        """Return the tables, over a connection that is opened when it is needed. Called in the thread."""
        if self._rows is None:
            self._rows = _Rows(self._connect, self._table)
        return self._rows

    async def _close(self) -> None:
        """Close the connection to the database, after what the thread still does with it."""
        await asyncio.wrap_future(self._threads.submit(self._close_tables))

    def _close_tables(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            try:
                rows.close()
            except Exception as exc:  # of a driver, whose connection is broken
                log.debug("outbox %s: closing the connection: %s", self._table, exc)


def _passes(error: Exception) -> bool:
    """True for errors of an outage, of another relay, and of a database that is away or busy."""
    if isinstance(error, errors.NatsError):
        return is_transient(error) or isinstance(error, (errors.CursorMoved, errors.PublishUncertain))
    return not _PASSING_DATABASE_ERRORS.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _level(error: Exception) -> int:
    """Relays that contend are normal."""
    return logging.DEBUG if isinstance(error, errors.CursorMoved) else logging.WARNING


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, but not longer than until the event."""
    if seconds and not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            pass
