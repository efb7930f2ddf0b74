"""Where the time of one message goes: CPU time by place, with warm caches and without the kernel.

Each figure is the least of many slices, in µs for one message; the table is cumulative, so that the difference of two
lines is one place. Run it for the figures of docs/decisions/0013-receiving.md:

    python -m benchmarks.places
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from time import thread_time
from typing import Final

import natsproto
from natsproto._core.socket.transport import SocketWire
from natsproto.jetstream import Messages
from natsproto.protocol.frames import Route
from natsproto.protocol.headers import block_of
from natsproto.protocol.parser import Parser
from natsproto.testing import run_server

SLICES: Final = 60
CALLS: Final = 400
PAYLOAD: Final = b"x" * 128
HEADERS: Final = {
    "Nats-Msg-Id": "order-1234567",
    "traceparent": f"00-{0xA3CE929D0E0E4736:032x}-{0xF067AA0BA902B7:016x}-01",
}


class _Ignoring:
    """In the place of an engine: drops the messages of a read."""

    def on_messages(self, touched: list[Route]) -> bool:
        """Drop them."""
        for route in touched:
            route.arrived = 0
        return False


async def least(operation: Callable[[], Awaitable[object] | None]) -> float:
    """The least time of a call, in µs."""
    found = []
    for _ in range(SLICES):
        began = thread_time()
        for _ in range(CALLS):
            if (awaitable := operation()) is not None:
                await awaitable
        found.append((thread_time() - began) / CALLS * 1e6)
        await asyncio.sleep(0)
    return min(found)


async def turns() -> None:
    """Let the tasks run that a message has woken."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def reading(nc: natsproto.Client) -> None:
    """Places between the read of a message and its handler."""
    kept: list[object] = []
    route = Route(kept.append)
    parser = Parser({b"1": route})
    line = b"MSG orders.eu.17 %d 128\r\n" + PAYLOAD + b"\r\n"

    def parse() -> None:
        parser.feed(line % 1)
        parser.touched.clear()
        route.arrived = 0
        kept.clear()

    print(f"  parser                            {await least(parse):6.2f}")
    session = nc._engine.session
    assert session is not None
    wire = session.wire
    assert isinstance(wire, SocketWire)
    view = memoryview(bytearray(65_536))
    vars(wire)["_view"] = view

    def receive(sid: int) -> Callable[[], None]:
        frame = line % sid

        def operation() -> None:
            view[: len(frame)] = frame
            wire.buffer_updated(len(frame))

        return operation

    async def handle(_: natsproto.Message) -> None: ...

    for name, cb in (("def callback", lambda _: None), ("async def callback", handle), ("async for", None)):
        sub = await nc.subscribe("orders.>", cb=cb)
        sid = int(max(nc._registry.table.routes, key=int))
        if cb is not None and name == "def callback":
            engine, vars(session)["_engine"] = session._engine, _Ignoring()
            print(f"  + buffer, session, link           {await least(receive(sid)):6.2f}")
            vars(session)["_engine"] = engine
            nc._registry.table.routes[b"%d" % sid].arrived = 0
        task = asyncio.create_task(_read(sub)) if cb is None else None
        await turns()
        one = receive(sid)

        async def with_turns(one: Callable[[], None] = one) -> None:
            one()
            await turns()

        print(f"  + account, {name:22} {await least(one if name == 'def callback' else with_turns):6.2f}")
        await sub.unsubscribe()
        if task is not None:
            await task
    print(f"  of it two turns of the loop       {await least(turns):6.2f}")


async def _read(sub: natsproto.Subscription) -> None:
    async for _ in sub:
        pass


async def publishing(nc: natsproto.Client) -> None:
    """Places of ``await nc.publish()``."""
    session, lines, outbox = nc._engine.session, nc._control_lines, nc._outbox
    assert session is not None
    assert session.wire is not None
    vars(session.wire)["write"] = lambda data: None  # no kernel

    async def nothing(subject: str, payload: bytes, *, reply: str | None = None, headers: object = None) -> None: ...

    def look_up() -> None:
        _ = lines.pub_prefixes["orders.eu"] + lines.pub_sizes[len(PAYLOAD)]

    await nc.publish("orders.eu", PAYLOAD)
    print(f"  await of an empty async def       {await least(lambda: nothing('orders.eu', PAYLOAD)):6.2f}")
    print(f"  the control line, two look-ups    {await least(look_up):6.2f}")
    print(f"  the outbox, join and hand over    {await least(lambda: outbox.put(b'PUB orders.eu 128', PAYLOAD)):6.2f}")
    print(f"  await nc.publish()                {await least(lambda: nc.publish('orders.eu', PAYLOAD)):6.2f}")

    def encode() -> None:
        block_of(HEADERS)

    print(f"  two headers, checked and encoded  {await least(encode):6.2f}")
    with_headers = partial(nc.publish, "orders.eu", PAYLOAD, headers=HEADERS)
    print(f"  await nc.publish() with them      {await least(with_headers):6.2f}")


async def consuming(nc: natsproto.Client) -> None:
    """Places between the read of a message of a stream and its acknowledgement."""
    stream = await nc.jetstream().create_stream("S", subjects=["s"], storage="memory")
    consumer = await stream.create_consumer("c")
    session = nc._engine.session
    assert session is not None
    wire = session.wire
    assert isinstance(wire, SocketWire)
    numbers = count(1)
    for name, acks in (("messages()", False), ("messages() and ack()", True)):
        messages = await consumer.messages().__aenter__()
        sid = int(max(nc._registry.table.routes, key=int))
        task = asyncio.create_task(_read_acking(messages, acks=acks))
        await turns()
        vars(wire)["write"] = lambda data: None  # no kernel

        async def one(sid: int = sid) -> None:
            number = next(numbers)
            line = b"MSG s %d $JS.ACK.S.c.1.%d.%d.1700000000000000000.0 128\r\n" % (sid, number, number)
            frame = line + PAYLOAD + b"\r\n"
            wire._view[: len(frame)] = frame
            wire.buffer_updated(len(frame))
            await turns()

        print(f"  {name:33} {await least(one):6.2f}")
        task.cancel()
        await asyncio.wait((task,))
        del vars(wire)["write"]
        await messages.stop()


async def _read_acking(messages: Messages, *, acks: bool) -> None:
    async for message in messages:
        if acks:
            await message.ack()


async def main() -> None:
    """Print the tables."""
    async with run_server(jetstream=True) as server:
        for what in (reading, consuming, publishing):
            nc = await natsproto.connect(server.url)
            print(what.__doc__)
            await what(nc)
            await nc.close()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
