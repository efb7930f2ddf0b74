"""Publish during an outage, up to a limit."""

import asyncio

import natsproto
from natsproto.errors import OutboxFull
from natsproto.testing import run_server


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url, outbox_limit=1000) as nc:
        async with nc.subscribe("news") as news:
            events = nc.events()
            server.kill()
            async for event in events:
                if isinstance(event, natsproto.Disconnected):
                    break
            nc.publish_nowait("news", b"kept")
            try:
                nc.publish_nowait("news", bytes(2000))
            except OutboxFull as error:
                print("refused:", error)
            await server.restart()
            print((await news.next(timeout=30)).data)


asyncio.run(main())

# origin: NATS docs, Buffering messages during reconnect attempts
# about: Without a connection, messages wait in a buffer of `outbox_limit` bytes. When it is full, `nc.publish_nowait`
# about: raises `OutboxFull`.
# prints: refused: outbox is full: 18 bytes are buffered, 2017 more would exceed the limit of 1000: ...
# prints: b'kept'
