"""Rows from a stream into SQLite in batches, each once, although a worker is killed before it acknowledges.

Rows that cannot be stored become dead letters, and the rest of their batch is stored.

Run it with ``python docs/examples/rows_to_sqlite.py`` where ``natsproto[server]`` is installed. It starts a server and
a worker, kills the worker after a commit and starts another one; deletes the stream and fills it again; and compares
the speed with one row at a time.
"""

import asyncio
import logging
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import natsproto
from natsproto.errors import StreamNotFound
from natsproto.jetstream import JsMessage
from natsproto.retry import DeadLetter, Retry, RetryPolicy
from natsproto.testing import run_server

ROWS, FEW_ROWS = 5000, 200


# --8<-- [start:table]
COLUMNS = "seq INTEGER, stored_ns INTEGER, item TEXT, amount INTEGER, PRIMARY KEY (seq, stored_ns)"
TABLE = f"CREATE TABLE IF NOT EXISTS orders ({COLUMNS})"
INSERT = "INSERT INTO orders VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"


class Table:
    """The key of its message is stored with each row, in one transaction: what is delivered again is there already.

    The sequence alone is no key: a stream that is deleted and created again begins at 1 once more, and its rows would
    be taken for old ones. The time when the stream stored the message tells them apart.
    """

    def __init__(self, file: str, retry: Retry, *, pauses: bool = False) -> None:
        # Made in this thread and used in that of executor=True, which is one thread, so never in two at once.
        self.database = sqlite3.connect(file, check_same_thread=False)
        self.database.execute(TABLE)
        self.retry = retry
        self.pauses = pauses

    def store(self, messages: list[JsMessage]) -> Awaitable[None]:
        """Store a batch in one transaction. It blocks, so it runs in a thread; what it returns is awaited outside."""
        failed: list[tuple[JsMessage, Exception]] = []
        with self.database:
            for message in messages:
                try:
                    order = message.json()
                    self.database.execute(INSERT, (message.seq, message.time.ns, order["item"], order["amount"]))
                except sqlite3.OperationalError:
                    raise  # locked, or the disk is full: the whole batch is delivered again
                except Exception as error:  # this message alone is wrong
                    failed.append((message, error))
        if self.pauses:  # for the kill: committed, and not acknowledged yet
            print(f"committed {len(messages)}", flush=True)
            sys.stdin.readline()
        return self.retry_failed(failed)

    async def retry_failed(self, failed: list[tuple[JsMessage, Exception]]) -> None:
        """Make dead letters of them, by the policy."""
        for message, error in failed:
            await self.retry.failed(message, error)


# --8<-- [end:table]


def retry_of(nc: natsproto.Client) -> Retry:
    """Return what makes dead letters of bad rows at once: they will not become better."""
    return Retry(nc.jetstream(), RetryPolicy(dead_letter_subject="dead.rows", max_attempts=1))


async def work(url: str, file: str, *, pauses: bool = False) -> float:
    """Store what is in the stream, until nothing waits for an acknowledgement; return the rows per second."""
    async with natsproto.connect(url) as nc:
        table = Table(file, retry_of(nc), pauses=pauses)
        consumer = await (await nc.jetstream().stream("ORDERS")).consumer("rows")
        handled, seconds = 0, 0.0
        while (info := await consumer.info()).num_pending or info.num_ack_pending:
            began = time.perf_counter()
            working = consumer.consume_batches(table.store, max_wait=0.1, executor=True, stop_when_empty=True)
            await working.run()
            handled, seconds = handled + working.handled, seconds + time.perf_counter() - began
            await asyncio.sleep(0.1)  # what the killed worker had comes after its ack_wait
        return handled / seconds


async def work_one_by_one(url: str, file: str) -> float:
    """Store some of the rows, each in its own transaction, for comparison."""
    async with natsproto.connect(url) as nc:
        table = Table(file, retry_of(nc))
        consumer = await (await nc.jetstream().stream("ORDERS")).consumer("one")
        began = time.perf_counter()
        await consumer.consume(lambda message: table.store([message]), executor=True, stop_after=FEW_ROWS).run()
        return FEW_ROWS / (time.perf_counter() - began)


async def prepare(url: str) -> None:
    """Store the orders in a new stream with two consumers, whose messages are delivered again after two seconds."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        with suppress(StreamNotFound):
            await js.delete_stream("ORDERS")
        stream = await js.create_stream("ORDERS", subjects=["orders"])
        for name in ("rows", "one"):
            await stream.create_consumer(name, ack_wait=2)
        await js.create_stream("DEAD", subjects=["dead.>"])
        async with js.publisher() as publisher:
            for number in range(ROWS):
                await publisher.publish("orders", b'{"item": "tulip", "amount": %d}' % number)
                if number == ROWS // 2:
                    for wrong in (b"tulips", b'{"item": "tulip"}', b'{"item": "tulip", "amount": {}}'):
                        await publisher.publish("orders", wrong)


async def print_dead_letters(url: str) -> None:
    """Print why rows were not stored."""
    async with natsproto.connect(url) as nc:
        async for message in (await nc.jetstream().stream("DEAD")).get_batch():
            letter = DeadLetter.of(message)
            print(f"not stored: {letter.data.decode()}: {letter.error_type}: {letter.error}")


def main() -> None:
    """Kill a worker between its commit and its acknowledgements, and let another one finish."""
    with run_server(jetstream=True) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(prepare(server.url))
        file = str(Path(folder, "orders.db"))
        command = [sys.executable, __file__, server.url, file]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            print(f"the first worker has {worker.stdout.readline().strip()} rows and is killed")
            worker.kill()
        in_batches = asyncio.run(work(server.url, file))
        with sqlite3.connect(file) as database:
            [(count, total)] = database.execute("SELECT count(*), sum(amount) FROM orders")
        print(f"{count} rows, total {total}: {'each once' if total == sum(range(ROWS)) else 'WRONG'}")
        asyncio.run(print_dead_letters(server.url))
        asyncio.run(prepare(server.url))
        asyncio.run(work(server.url, file))
        with sqlite3.connect(file) as database:
            [(count,)] = database.execute("SELECT count(*) FROM orders")
        print(f"{count} rows after the stream was deleted and filled again")
        one_by_one = asyncio.run(work_one_by_one(server.url, str(Path(folder, "one.db"))))
        print(f"{in_batches:,.0f} rows a second in batches, {one_by_one:,.0f} one by one")


if __name__ == "__main__":
    logging.getLogger("natsproto").setLevel(logging.CRITICAL)  # the dead letters are printed in main()
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], sys.argv[2], pauses=True))
    else:
        main()

# prints: the first worker has committed 500 rows and is killed
# prints: 5000 rows, total 12497500: each once
# prints: not stored: tulips: natsproto.errors.InvalidPayload: cannot decode JSON: ...
# prints: not stored: {"item": "tulip"}: builtins.KeyError: 'amount'
# prints: not stored: {"item": "tulip", "amount": {}}: sqlite3.ProgrammingError: ...
# prints: 10000 rows after the stream was deleted and filled again
# prints: ... rows a second in batches, ... one by one
