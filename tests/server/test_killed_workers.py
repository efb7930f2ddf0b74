"""Workers that are killed, and handlers that take longer than ack_wait, beside a second worker: on the real server."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import natsproto
from natsproto import Event
from natsproto.jetstream import AckWaitExceeded, JetStream, JsMessage
from natsproto.testing import Server
from tests.kit.waiting import until

WORKER = """
import asyncio, sys
import natsproto

async def handle(message):
    if message.seq == 5:
        print("begun", flush=True)
        await asyncio.Event().wait()

async def main():
    async with natsproto.connect(sys.argv[1]) as nc:
        consumer = await (await nc.jetstream().stream("S")).consumer("c")
        await consumer.consume(handle, keep_alive=True).run()

asyncio.run(main())
"""


async def test_others_get_what_a_killed_worker_had(nats_server: Server, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"])
    consumer = await stream.create_consumer("c", ack_wait=1)
    for _ in range(20):
        await jetstream.publish("s")
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, nats_server.url, stdout=-1)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"begun\n"
    worker.kill()
    await worker.communicate()
    deliveries: dict[int, int] = {}

    async def handle(message: JsMessage) -> None:
        deliveries[message.seq] = message.metadata.num_delivered

    async with consumer.consume(handle):
        await until(lambda: 5 in deliveries and len(deliveries) >= 16, 20)
        await jetstream.connection.flush()
    assert set(range(5, 21)) <= set(deliveries), "nothing is lost"
    assert deliveries[5] == 2, "it is delivered again after ack_wait"
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_others_get_what_a_slow_handler_has(nats_server: Server) -> None:
    """Without keep_alive, a handler that runs longer than ack_wait is reported, and its message is handled twice."""
    events: list[Event] = []
    async with (
        natsproto.connect(nats_server.url, on_event=events.append) as first,
        natsproto.connect(nats_server.url) as second,
    ):
        stream = await first.jetstream().create_stream("S", subjects=["s"])
        slow = await stream.create_consumer("c", ack_wait=0.6)
        other = await (await second.jetstream().stream("S")).consumer("c")
        calls: Counter[str] = Counter()
        go_on = asyncio.Event()

        async def hang(message: JsMessage) -> None:
            calls["slow"] += 1
            await go_on.wait()

        async def handle(message: JsMessage) -> None:
            calls["other"] += 1

        async with slow.consume(hang):
            await first.jetstream().publish("s")
            await until(lambda: calls["slow"])
            async with other.consume(handle):
                await until(lambda: calls["other"], 20)
                await until(lambda: any(isinstance(event, AckWaitExceeded) for event in events), 20)
                go_on.set()
        assert calls == {"slow": 1, "other": 1}
        info = await slow.info()
        assert (info.num_ack_pending, info.num_pending) == (0, 0)
