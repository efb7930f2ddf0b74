"""A shop whose orders and messages are one transaction, published once, although the server is killed in between.

Run it with ``python docs/examples/outbox.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
import logging
import sqlite3
import tempfile
from pathlib import Path

import natsproto
from natsproto.jetstream import Stream
from natsproto.outbox import Outbox, Relay
from natsproto.testing import Server, run_server

logging.getLogger("natsproto").setLevel(logging.ERROR)  # the lost connection is no surprise here
outbox = Outbox()


def place_order(database: Path, number: int, *, fails: bool = False) -> None:
    """The order and its message are stored together, or neither."""
    connection = sqlite3.connect(database)
    with connection:  # commits, or rolls back
        connection.execute("INSERT INTO orders (number) VALUES (?)", (number,))
        outbox.add(connection, "orders.new", b"%d" % number, headers={"Source": "shop"})
        if fails:
            raise ValueError("the customer's card was refused")
    connection.close()


async def published(stream: Stream) -> list[str]:
    """The orders in the stream; the cursor's own messages have a header."""
    messages = [message async for message in stream.get_batch()]
    return [message.data.decode() for message in messages if "Natsproto-Cursor" not in message.headers]


async def main(folder: Path) -> None:
    """Ten orders, one of which is rolled back; the server is killed and started again while they are published."""
    database = folder / "shop.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE orders (number INT)")
    outbox.create(connection)
    connection.close()
    async with run_server(jetstream=True, store_dir=folder / "store") as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>", "$CURSOR.ORDERS.>"], allow_atomic=True)
        relay = outbox.relay(js, lambda: sqlite3.connect(database), stream="ORDERS", rows=3)
        stop = asyncio.Event()
        task = asyncio.create_task(relay.run(until=stop))
        await sell(server, database, relay)
        stop.set()
        await task
        print("published:", " ".join(await published(stream)))
        print("the cursor counts", (await js.cursor("ORDERS", "outbox")).value, "batches or more")


async def sell(server: Server, database: Path, relay: Relay) -> None:
    """Place the orders, and wait until they are published."""
    for number in range(1, 11):
        try:
            place_order(database, number, fails=number == 4)
        except ValueError as error:
            print(f"order {number}: {error}")
        if number == 7:
            server.kill()
            await server.restart()
    while relay.published < 9:  # noqa: ASYNC110  # nothing else tells
        await asyncio.sleep(0.05)


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))

# prints: order 4: the customer's card was refused
# prints: published: 1 2 3 5 6 7 8 9 10
# prints: the cursor counts ... batches or more
