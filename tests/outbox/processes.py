"""The processes of an outbox that tests kill: an application that writes, and a relay.

``python -m tests.outbox.processes write DATABASE PART COUNT``, and ``... relay DATABASE URL STREAM`` or
``... relay-postgresql DSN URL STREAM``.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import natsproto
from natsproto.outbox import DatabaseConnection, Outbox

OUTBOX = Outbox()


class Programs:
    """Processes by name, for tests; none is left at the end of the block."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._running:
            self.kill(name)

    def start(self, name: str, *arguments: str) -> None:
        """Start this module with these arguments, in the place of the one of that name."""
        self._running[name] = subprocess.Popen([sys.executable, "-m", __spec__.name, *arguments])

    def kill(self, name: str) -> None:
        """Kill it, with SIGKILL, and wait for its end."""
        self._running[name].kill()
        self._running[name].wait()

    def status(self, name: str) -> int | None:
        """The exit code; None while it runs."""
        return self._running[name].poll()


def open_sqlite(path: Path | str) -> sqlite3.Connection:
    """A connection with a write-ahead log, which waits for other writers."""
    connection = sqlite3.connect(path, timeout=20)
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


def write_ledger(path: str, part: str, count: int) -> None:
    """Store numbers in a ledger and in the outbox, each in one transaction; continue where the ledger ends."""
    connection = open_sqlite(path)
    done = connection.execute("SELECT COUNT(*) FROM ledger WHERE part = ?", (part,)).fetchone()[0]
    rng = random.Random()
    for number in range(done, count):
        if rng.random() < 0.1:  # a transaction that is rolled back publishes nothing
            OUTBOX.add(connection, f"s.{part}", b"-1")
            connection.rollback()
        connection.execute("INSERT INTO ledger (part, number) VALUES (?, ?)", (part, number))
        OUTBOX.add(connection, f"s.{part}", b"%d" % number, headers={"Part": part})
        connection.commit()


def open_postgresql(dsn: str) -> DatabaseConnection:
    """A connection of psycopg."""
    return cast("DatabaseConnection", importlib.import_module("psycopg").connect(dsn))


async def relay(connect: Callable[[], DatabaseConnection], url: str, stream: str) -> None:
    """Publish the rows for ever."""
    async with natsproto.connect(url, retry_connect_for=60, reconnect_wait=0.05) as nc:
        await OUTBOX.relay(nc.jetstream(), connect, stream=stream, interval=0.02, rows=50).run()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_ledger(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        opened = open_sqlite if sys.argv[1] == "relay" else open_postgresql
        asyncio.run(relay(partial(opened, sys.argv[2]), sys.argv[3], sys.argv[4]))
