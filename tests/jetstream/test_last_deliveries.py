"""Deliveries that max_deliver counts reach the handler, or are accounted for; none is acknowledged unhandled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter

import pytest

import natsproto
from natsproto._core.events import Event
from natsproto.jetstream import AckWaitExceeded, JetStream, JsMessage, LastDeliveriesUnhandled
from natsproto.jetstream._consumer.pull.pull_state import Action
from natsproto.middleware import with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.testing import FaultProxy, Server
from tests.core.helpers import scripted_network, turns
from tests.jetstream.pulling import Pulling
from tests.jetstream.reading import known, make, store
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour
from tests.kit.waiting import eventually

ACK_WAIT_S = 0.5
NOTHING = {"consumer_seq": 0, "stream_seq": 0}
ONCE = {
    "stream_name": "S",
    "name": "d",
    "created": "2026-01-01T00:00:00Z",
    "config": {"name": "d", "ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_deliver": 1},
    "delivered": NOTHING,
    "ack_floor": NOTHING,
}
"""The info of a consumer that delivers each message once."""


@pytest.mark.parametrize("max_deliver", [1, 3])
async def test_standstill_drops_no_last_delivery(jetstream: JetStream, max_deliver: int) -> None:
    """What is late in its last delivery is handed over: the server does not repeat it."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer("d", ack_wait=ACK_WAIT_S, max_deliver=max_deliver)
    done = set[int]()
    last = 0

    async def handle(message: JsMessage) -> None:
        nonlocal last
        if message.metadata.num_delivered < max_deliver:
            raise ConnectionError
        last += 1
        if last == 5:
            time.sleep(1.6 * ACK_WAIT_S)  # the whole program stands still  # noqa: ASYNC251
        done.add(message.seq)

    async with consumer.consume(handle, nak_delay=0.1, concurrency=4):
        await store(stream, range(40))
        await eventually(lambda: len(done) == 40)


@pytest.mark.parametrize("way", ["plain", "retry", "key"])
async def test_slow_handler_that_raises_is_called_again(jetstream: JetStream, way: str) -> None:
    """Its redelivery came while it ran, and is the last one."""
    stream = await make(jetstream)
    dead = await jetstream.create_stream("DEAD", subjects=["dead"])
    consumer = await stream.create_consumer("d", ack_wait=ACK_WAIT_S, max_deliver=2)
    retry = Retry(jetstream, RetryPolicy(dead_letter_subject="dead", max_attempts=2, first_delay=0.05))
    calls = warm = 0

    async def handle(message: JsMessage) -> None:
        nonlocal calls, warm
        if message.data == b"0":
            warm += 1
            return
        calls += 1
        if calls == 1:
            await asyncio.sleep(1.5 * ACK_WAIT_S)
            raise ValueError("the database was away")

    handler = with_middleware(handle, retry) if way == "retry" else handle
    key = (lambda message: message.subject) if way == "key" else None
    async with consumer.consume(handler, key=key):
        await store(stream, [0] * 100)  # so that pulls are open
        await eventually(lambda: warm == 100)
        await store(stream, [1])
        await eventually(lambda: calls == 2 or way == "retry")
        await known(consumer, lambda info: not info.num_ack_pending)
    letters = (await dead.info()).state.messages
    assert calls == 2 or letters == 1


async def test_reset_after_a_reconnect_delivers_all(nats_server: Server) -> None:
    """What this reader has acknowledged is handled again, as an operator wants it."""
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(nats_server.url) as admin,
    ):
        stream = await make(nc.jetstream(), 40)
        consumer = await stream.create_consumer("d")
        seen = Counter[int]()
        async with consumer.consume(lambda message: seen.update([message.seq])):
            await eventually(lambda: seen.total() == 40)
            await known(consumer, lambda info: not info.num_ack_pending)
            proxy.cut()
            await eventually(lambda: nc.stats.reconnects == 1)
            await (await (await admin.jetstream().stream("S")).consumer("d")).reset(1)
            await eventually(lambda: seen.total() == 80)
    assert set(seen.values()) == {2}


@pytest.mark.parametrize("max_deliver", [1, 2])
@pytest.mark.parametrize("way", ["stop", "block", "drain", "key", "batches"])
async def test_deployments_lose_no_last_delivery(jetstream: JetStream, way: str, max_deliver: int, seed: int) -> None:
    """Workers that stop again and again, as at deployments: each message is handled although max_deliver is used up."""
    rng, count = random.Random(seed), 120
    stream = await make(jetstream, count)
    await stream.create_consumer("d", ack_wait=5.0, max_deliver=max_deliver)
    calls = Counter[int]()

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(rng.choice([0, 0, 0.002]))
        calls[message.seq] += 1

    async def handle_all(batch: list[JsMessage]) -> None:
        for message in batch:
            await handle(message)

    for _ in range(200):
        if len(calls) == count:
            break
        own = await stream.consumer("d")  # as in another process
        key = (lambda message: message.seq % 7) if way == "key" else None
        until = len(calls) + rng.randint(1, 20)
        if way == "batches":
            work = own.consume_batches(handle_all, max_messages=10, max_wait=0.01)
        else:
            work = own.consume(handle, concurrency=rng.choice([1, 3, 8]), key=key)
        async with work:
            await eventually(lambda until=until: len(calls) >= min(until, count))  # type: ignore[misc]
            if way == "drain":
                await work.drain()
            elif way == "stop":
                await work.stop()
    assert set(calls) == set(range(1, count + 1)), "none was lost"
    if max_deliver == 1:
        assert set(calls.values()) == {1}


def test_the_end_awaits_what_was_asked_for() -> None:
    pulling = Pulling(prefetch=4)
    assert pulling.next_request(0.0) is not None
    pulling.state.send_no_more()
    pulling.on_messages(3, 0, 0.1)
    pulling.on_consumed(3, 0)
    assert pulling.next_request(0.2) is None
    assert not pulling.state.is_served
    assert pulling.on_message(1, 0.3).action is Action.REFILL, "the driver looks"
    assert pulling.state.is_served


@virtual_clock
@pytest.mark.parametrize("way", ["served", "ended", "silent"])
@pytest.mark.parametrize("ends", ["stop", "drain"])
async def test_only_deliveries_come_before_the_end(ends: str, way: str) -> None:
    """A server drops what crosses the end of a subscription, and answers a PING before a pull that came first."""
    async with scripted_network(Behaviour(route=False)) as net:
        server, nc = net.server, await net.connect()
        consumer = await (await nc.jetstream().stream("S", bind=True)).consumer("d", bind=True)
        seen: list[int] = []
        async with consumer.consume(lambda message: seen.append(message.seq)) as work:
            sid = (await server.expect("SUB")).args[-1]
            asked = await server.expect("PUB", "$JS.API.CONSUMER.INFO.S.d")
            pull = await server.expect("PUB", "$JS.API.CONSUMER.MSG.NEXT.S.d")
            assert json.loads(pull.payload)["expires"] <= 1e9, "its end can be awaited"
            server.deliver((await server.expect("SUB")).args[-1], asked.args[1], json.dumps(ONCE).encode())
            await turns(10)
            asked_before = [op.name for op in server.ops].count("PING")
            server.current.behaviour = Behaviour(route=False, answer_ping=way != "silent")
            ending = asyncio.create_task(getattr(work, ends)())
            await asyncio.sleep(10.0 if way == "silent" else 0.5)
            assert not [op for op in server.ops if op.name == "UNSUB"], "an open pull has no end before its messages"
            if way == "ended":
                server.deliver(sid, pull.args[1], headers=b"NATS/1.0 408 Request Timeout\r\n\r\n")
            else:
                server.deliver(sid, "s.a", b"1", reply="$JS.ACK.S.d.1.1.1.1795000000000000000.0")
            if way == "silent":
                server.current.behaviour = Behaviour(route=False)
                for _ in range([op.name for op in server.ops].count("PING") - asked_before):
                    server.current.pong()
            await server.expect("UNSUB", sid)
            await ending
        assert seen == [1] * (way != "ended")


@pytest.mark.parametrize("members", [0, 2])
async def test_slow_push_workers_double_nothing(jetstream: JetStream, members: int) -> None:
    """A handler of a push consumer gets each message once, although the server sends all of them at once."""
    stream = await make(jetstream, 60)
    await stream.create_push_consumer("p", ack_wait=ACK_WAIT_S, deliver_group="g" if members else "")
    calls = Counter[int]()

    async def handle(message: JsMessage) -> None:
        calls[message.seq] += 1
        await asyncio.sleep(0.05 * ACK_WAIT_S)

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(members or 1):
            consumer = await stream.push_consumer("p")
            await stack.enter_async_context(consumer.consume(handle))
        await eventually(lambda: len(calls) == 60)
        await known(consumer, lambda info: not info.num_ack_pending)
        assert (await consumer.info()).num_redelivered == 0
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("max_deliver", [1, 2])
async def test_stopped_push_workers_lose_nothing(jetstream: JetStream, max_deliver: int, seed: int) -> None:
    rng, count = random.Random(seed), 60
    stream = await make(jetstream, count)
    await stream.create_push_consumer("p", ack_wait=5.0, max_deliver=max_deliver)
    calls = Counter[int]()

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(rng.choice([0, 0.002]))
        calls[message.seq] += 1

    for _ in range(100):
        if len(calls) == count:
            break
        until = len(calls) + rng.randint(1, 20)
        async with (await stream.push_consumer("p")).consume(handle, concurrency=rng.choice([1, 3])):
            await eventually(lambda until=until: len(calls) >= min(until, count))  # type: ignore[misc]
    assert set(calls) == set(range(1, count + 1))


async def test_last_deliveries_that_are_left_are_named(nats_server: Server) -> None:
    """A loop that is left holds messages that the server does not deliver again: they stay for the next reader."""
    events: list[Event] = []
    async with natsproto.connect(nats_server.url, on_event=events.append) as nc:
        stream = await make(nc.jetstream(), 20)
        consumer = await stream.create_consumer("d", max_deliver=2)
        for message in await consumer.fetch(20, timeout=20):
            await message.nak()
        async with consumer.messages() as messages:
            for _ in range(4):
                await (await messages.next(timeout=20)).ack()
            await eventually(lambda: messages.pending)
        left = [event for event in events if isinstance(event, LastDeliveriesUnhandled)]
        assert [len(event.sequences) for event in left] == [event.count for event in left] != []
        again = [await consumer.next(timeout=20) for _ in range(left[0].count)]
        assert tuple(message.seq for message in again) == left[0].sequences


async def test_reader_without_work_has_no_timer(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url) as nc:
        stream = await make(nc.jetstream(), 3)
        consumer = await stream.create_consumer("d", ack_wait=ACK_WAIT_S)
        async with consumer.consume(lambda message: None) as work:
            await eventually(lambda: work.handled == 3)
            deliveries = work._messages.buffer.deliveries
            assert deliveries is not None
            await eventually(lambda: deliveries._timer is None)
            await store(stream, [4])
            await eventually(lambda: work.handled == 4)


async def test_shorter_ack_wait_doubles_nothing(nats_server: Server) -> None:
    """An administrator shortens ack_wait under a running worker: its late acknowledgements cross the redeliveries."""
    events: list[Event] = []
    async with natsproto.connect(nats_server.url, on_event=events.append) as nc:
        stream = await make(nc.jetstream(), 12)
        consumer = await stream.create_consumer("d", ack_wait=30.0)
        calls = Counter[int]()

        async def handle(message: JsMessage) -> None:
            calls[message.seq] += 1
            await asyncio.sleep(0.5 * ACK_WAIT_S)

        async with consumer.consume(handle, concurrency=2):
            await eventually(lambda: calls.total() == 2)
            await stream.update_consumer("d", ack_wait=ACK_WAIT_S)
            await eventually(lambda: len(calls) == 12)
            await known(consumer, lambda info: not info.num_ack_pending)
    assert set(calls.values()) == {1}
    assert len([event for event in events if isinstance(event, AckWaitExceeded)]) <= 1
