"""Create a missing key, update an unchanged one: compare and set."""

import asyncio

import natsproto.jetstream
from natsproto.errors import KeyExists, WrongRevision
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("stock")
        revision = await kv.create("tulips", b"12")
        try:
            await kv.create("tulips", b"1")
        except KeyExists:
            print("there are tulips")
        await kv.update("tulips", b"11", revision)
        try:
            await kv.update("tulips", b"10", revision)
        except WrongRevision as error:
            print("expected", error.expected, "but it is", error.actual)


asyncio.run(main())

# origin: NATS docs, Key/value store: create, update
# about: `kv.create` fails with `KeyExists` if there is a value, and `kv.update` with `WrongRevision` if somebody else
# about: has changed it.
# prints: there are tulips
# prints: expected 1 but it is 2
