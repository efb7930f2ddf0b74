"""A journal: an outbox with a file of its own, for programs without a database.

Rules:

1. A message is published once its row is committed to the file, synced to the disk. No server is needed for that.
2. Rows that arrive while a commit runs go into the next one together.
3. The file has an identity, which is the name of its cursor: two files never share one, and a new file begins anew.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Self, TypeVar

from natsproto import errors
from natsproto._core.notifier import running_loop, wrong_loop_error
from natsproto._handler_threads import DaemonThreads
from natsproto.jetstream import JetStream
from natsproto.outbox._outbox import Outbox, Row, row_of
from natsproto.outbox._relay import Relay
from natsproto.outbox._sql import insert
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

_BUSY_TIMEOUT_S = 20.0
"""Seconds to wait for another process that writes to the file."""
_PAGE_BYTES = 4096
_MIN_BYTES = 2**20
_OUTBOX = Outbox("journal")


class Journal:
    """Messages in a file until a stream has them: publishing needs no server, and outlives the process.

    Use it with ``async with``, and run its ``relay`` wherever there is a client. Any number of tasks may publish; other
    processes may have the same file open. LocalProtocolError in another event loop than that of ``async with``;
    ConfigError for a path that is no file's, such as ":memory:".

    Args:
        path: The file, which is made if it is missing: an SQLite database on a local disk.
        max_bytes: The size at which ``publish`` raises ``sqlite3.OperationalError``, at least 1 MiB.
    """

    def __init__(self, path: str | PathLike[str], *, max_bytes: int = 2**30) -> None:
        self.path: str = fspath(path)
        if not self.path or self.path.startswith((":memory:", "file:")) or os.path.isdir(self.path):
            raise errors.ConfigError("path", self.path, "must be the path of a file")
        if type(max_bytes) is not int or max_bytes < _MIN_BYTES:
            raise errors.ConfigError("max_bytes", max_bytes, f"must be at least {_MIN_BYTES} bytes")
        self._max_pages = max_bytes // _PAGE_BYTES
        self._threads = DaemonThreads(1, f"natsproto journal {self.path}")
        self._connection: sqlite3.Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._name = ""
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Journal({self.path!r})"

    async def __aenter__(self) -> Self:
        if self._loop is not None:  # it opens already, perhaps
            raise errors.LocalProtocolError(f"journal {self.path!r} is open already")
        self._loop = asyncio.get_running_loop()
        try:
            self._connection, self._name = await self._in_thread(self._open)
        except BaseException:
            self._loop = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._opened()
        while self._writer is not None:
            await asyncio.wait({self._writer})
        connection, self._connection = self._connection, None
        self._loop = None
        if connection is not None:
            await self._in_thread(connection.close)

    async def publish(self, subject: str, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Commit a message to the file, and return when the disk has it. The relay publishes it, in this order.

        InvalidSubject and InvalidHeader before anything is written; ``sqlite3.Error`` when the file is full
        (``max_bytes``) or cannot be written. LocalProtocolError outside ``async with``. Cancelling may leave the
        message committed or not.

        Args:
            subject: The subject to publish to, which the stream of the relay must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        self._opened()
        row = row_of(subject, payload, headers)
        loop = asyncio.get_running_loop()
        committed: asyncio.Future[None] = loop.create_future()
        self._waiting.append((row, committed))
        if self._writer is None:
            self._writer = loop.create_task(self._write(), name=f"natsproto journal {self.path}")
        await committed

    def relay(
        self,
        js: JetStream,
        *,
        stream: str,
        subject: str | None = None,
        keep: float = 60.0,
        interval: float = 0.1,
        rows: int = 500,
    ) -> Relay:
        """Return the relay that publishes the messages of the file into a stream: ``await journal.relay(...).run()``.

        See ``Outbox.relay``. The name of the cursor is ``journal-`` and the identity of the file. LocalProtocolError
        outside ``async with``.

        Args:
            js: The JetStream context of a client that reconnects.
            stream: The stream to publish into, which must be able to have a cursor; see ``js.cursor``.
            subject: Where the cursor is kept, one of the stream's subjects; None: ``$CURSOR.<stream>.<name>``.
            keep: Seconds that messages stay in the file after they were published, in case the stream loses its newest
                ones in a power failure. They are published again then.
            interval: Seconds between two looks for new messages when there are none.
            rows: The most messages of a batch, 1 to 999.
        """
        self._opened()
        return _OUTBOX.relay(
            js, self._connect, stream=stream, name=self._name, subject=subject, keep=keep, interval=interval, rows=rows
        )

    # ---------------------------------------------------------------- internals

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise errors.LocalProtocolError(f'journal {self.path!r} is not open: "async with Journal(...) as journal"')
        if self._loop is not running_loop():
            raise wrong_loop_error()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _open(self) -> tuple[sqlite3.Connection, str]:
        """Open the file and return its connection and the name of its cursor."""
        connection = self._connect()
        connection.execute(f"PRAGMA max_page_count={self._max_pages}")
        _OUTBOX.create(connection)
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS journal_name (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
            connection.execute(
                "INSERT INTO journal_name (id, name) VALUES (1, ?) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,)
            )
        (identity,) = connection.execute("SELECT name FROM journal_name").fetchone()
        return connection, f"journal-{identity}"

    async def _write(self) -> None:
        """Commit what waits, until nothing does."""
        connection = self._opened()
        try:
            while self._waiting:
                some, self._waiting = self._waiting, []
                failures = await self._in_thread(partial(_commit, connection, [row for row, _ in some]))
                for (_, committed), error in zip(some, failures, strict=True):
                    if committed.done():
                        continue
                    if error is None:
                        committed.set_result(None)
                    else:
                        committed.set_exception(error)
        finally:
            self._writer = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._threads.submit(work))


def _commit(connection: sqlite3.Connection, rows: list[Row]) -> list[Exception | None]:
    """Commit the rows together; if that fails, in halves, so that a row fails no other. Return the error of each."""
    try:
        with connection:
            connection.executemany(insert(_OUTBOX.table, ("?", "?", "?")), rows)
        return [None] * len(rows)
    except Exception as exc:  # also of a row that the driver cannot encode
        is_busy = getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # it was waited for
        if len(rows) == 1 or is_busy:
            return [exc] * len(rows)
    half = len(rows) // 2
    return [*_commit(connection, rows[:half]), *_commit(connection, rows[half:])]
