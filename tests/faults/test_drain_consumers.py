"""drain() waits for the handlers and loops that read consumers and watches, and their acknowledgements arrive."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

import natsproto
from natsproto import Client, HandlerFailed
from natsproto._core.events import Event
from natsproto.errors import DrainTimeout
from natsproto.jetstream import ConsumeContext, JetStream, JsMessage, Stream
from natsproto.jetstream.groups import ElasticGroup
from natsproto.jetstream.kv import KeyValueEntry
from natsproto.jetstream.objectstore import ObjectInfo
from natsproto.testing import Server, run_server
from tests.jetstream.reading import make
from tests.kit.waiting import eventually

Handler = Callable[[JsMessage], Awaitable[object] | object]
ACK_WAIT_S = 3600.0
"""Redelivery after this time would be too late for any test."""


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await make(jetstream, 20)


@pytest.fixture
async def failures() -> list[Event]:
    return []


@pytest.fixture
async def nc(nats_server: Server, failures: list[Event]) -> AsyncIterator[Client]:
    """The client that is drained; it reports failed handlers and acknowledgements."""

    def listen(event: Event) -> None:
        if isinstance(event, HandlerFailed):
            failures.append(event)

    client = await natsproto.connect(nats_server.url, on_event=listen)
    yield client
    await client.close()


async def _read_by(nc: Client, kind: str, handler: Handler, name: str = "d", **options: object) -> ConsumeContext:
    """Starts to consume; nobody leaves its block."""
    stream = await nc.jetstream().stream("S")
    if kind == "pull":
        consumer = await stream.create_consumer(durable_name=name, ack_wait=ACK_WAIT_S)
        return await consumer.consume(handler, **options).__aenter__()  # type: ignore[arg-type]
    if kind == "push":
        pushed = await stream.create_push_consumer(durable_name=name, ack_wait=ACK_WAIT_S)
        return await pushed.consume(handler, **options).__aenter__()  # type: ignore[arg-type]
    return await stream.ordered_consumer(push=kind == "ordered push").consume(handler, **options).__aenter__()  # type: ignore[arg-type]


def _hanging_handler() -> tuple[asyncio.Event, Handler]:
    """A handler that never ends, and the event that it has begun."""
    begun = asyncio.Event()

    async def hang(message: JsMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    return begun, hang


MAX_LATE = 4
"""Messages of a last pull that the server may still serve."""
SETTLED_S = 0.1
"""Seconds in which a server handles an acknowledgement that it has received."""
WARM_UP = 5
"""Messages that a reader handles at once in these tests: then more are prefetched than it handles at a time."""


async def _all_acked(stream: Stream, name: str = "d") -> int:
    """All messages that arrived are acknowledged; returns their number. The server may still serve a pull that was sent
    just before the end, and handles acknowledgements beside requests: its counts have to stand still.
    """
    info, before = await stream.consumer_info(name), None
    while info.ack_floor != before:
        before = info.ack_floor
        await asyncio.sleep(SETTLED_S)
        info = await stream.consumer_info(name)
    assert info.ack_floor.consumer_seq == info.delivered.consumer_seq - info.num_ack_pending
    assert info.num_redelivered == 0
    assert info.num_ack_pending <= MAX_LATE
    return info.ack_floor.consumer_seq


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_drain_waits_for_handlers_of_consume(
    nc: Client, stream: Stream, failures: list[Event], kind: str, concurrency: int
) -> None:
    begun, go_on, handled = asyncio.Event(), asyncio.Event(), 0

    async def handle(message: JsMessage) -> None:
        nonlocal handled
        if int(message.data) > WARM_UP:
            begun.set()
            await go_on.wait()
            await asyncio.sleep(0.001)
        handled += 1

    work = await _read_by(nc, kind, handle, concurrency=concurrency)
    await begun.wait()
    await eventually(lambda: work.pending >= WARM_UP)
    draining = asyncio.create_task(nc.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    go_on.set()
    await draining
    assert not failures
    assert handled == await _all_acked(stream)


@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_drain_handles_all_with_def_handlers(
    nc: Client, stream: Stream, failures: list[Event], kind: str
) -> None:
    handled: list[bytes] = []
    await _read_by(nc, kind, lambda message: handled.append(message.data), on_success="ack_sync")
    await eventually(lambda: handled)
    await nc.drain()
    assert not failures
    assert len(handled) == await _all_acked(stream)


async def test_leaving_connect_waits_for_handlers(nats_server: Server, stream: Stream, failures: list[Event]) -> None:
    begun = asyncio.Event()

    async def handle(message: JsMessage) -> None:
        begun.set()
        await asyncio.sleep(0.002)

    async with natsproto.connect(nats_server.url, on_event=failures.append) as nc:
        await _read_by(nc, "pull", handle)
        await begun.wait()
    assert not [event for event in failures if isinstance(event, HandlerFailed)]
    await _all_acked(stream)


@pytest.mark.parametrize("kind", ["ordered", "ordered push"])
async def test_drain_waits_for_ordered_handlers(nc: Client, stream: Stream, kind: str) -> None:
    handled: list[bytes] = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.data)

    await _read_by(nc, kind, handle)
    await eventually(lambda: handled)
    await nc.drain()
    assert handled == [b"%d" % number for number in range(1, len(handled) + 1)]
    assert len(handled) == 20


async def test_drain_waits_for_messages_of_one_key(nc: Client, stream: Stream) -> None:
    handled: list[int] = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        handled.append(int(message.data))

    await _read_by(nc, "pull", handle, concurrency=3, key=lambda message: int(message.data) % 2)
    await eventually(lambda: handled)
    await nc.drain()
    assert len(handled) == await _all_acked(stream)
    assert [one for one in handled if one % 2] == list(range(1, len(handled) + 1, 2))


async def test_drain_timeout_gives_messages_back(nc: Client, stream: Stream) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(message: JsMessage) -> None:
        if int(message.data) <= WARM_UP:
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    work = await _read_by(nc, "pull", hang, concurrency=2)
    await begun.wait()
    await eventually(lambda: work.pending >= WARM_UP)
    with pytest.raises(DrainTimeout, match=f"{work.pending + 2} messages of consumer 'd' of stream 'S' not handled"):
        await nc.drain(timeout=0.05)
    assert cancelled.is_set()
    assert nc.state is natsproto.State.CLOSED
    assert work.closed
    consumer = await stream.consumer("d")
    got = await consumer.fetch(20 - WARM_UP, timeout=30)  # long before ack_wait
    assert sorted(int(message.data) for message in got) == list(range(WARM_UP + 1, 21))


async def test_drain_timeout_gives_keyed_messages_back(nc: Client, stream: Stream) -> None:
    begun, hang = _hanging_handler()
    work = await _read_by(nc, "pull", hang, concurrency=3, key=lambda message: 1)
    await begun.wait()
    await eventually(lambda: work.pending >= 2)
    with pytest.raises(DrainTimeout, match=r"\d+ messages of consumer 'd'"):
        await nc.drain(timeout=0.05)
    got = await (await stream.consumer("d")).fetch(20, timeout=30)
    assert sorted(int(message.data) for message in got) == list(range(1, 21))


async def test_cancelled_drain_cancels_handlers(nc: Client, stream: Stream) -> None:
    begun, hang = _hanging_handler()
    work = await _read_by(nc, "pull", hang)
    await begun.wait()
    draining = asyncio.create_task(nc.drain())
    await asyncio.sleep(0.01)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert nc.state is natsproto.State.CLOSED
    await work.wait()
    got = await (await stream.consumer("d")).fetch(20, timeout=30)
    assert len(got) == 20


async def test_close_stops_handlers(nc: Client, stream: Stream) -> None:
    handled = 0

    async def hang(message: JsMessage) -> None:
        nonlocal handled
        handled += 1
        if handled > WARM_UP:
            await asyncio.Event().wait()

    work = await _read_by(nc, "pull", hang)
    await eventually(lambda: handled > WARM_UP and work.pending)
    await nc.close()
    await work.wait()
    assert handled == WARM_UP + 1


async def test_handler_may_drain_the_client(nc: Client, stream: Stream) -> None:
    handled: list[bytes] = []

    async def handle(message: JsMessage) -> None:
        handled.append(message.data)
        await message.ack()
        if len(handled) == 5:
            await nc.drain()

    work = await _read_by(nc, "pull", handle)
    assert await nc.wait_closed() is None
    await work.wait()
    assert handled[:5] == [b"1", b"2", b"3", b"4", b"5"]
    assert (await (await stream.consumer("d")).info()).ack_floor.consumer_seq >= 5


async def test_handlers_publish_while_draining(
    nc: Client, stream: Stream, jetstream: JetStream, failures: list[Event]
) -> None:
    js = nc.jetstream()
    await js.create_stream(name="OUT", subjects=["out.>"], storage="memory")
    bucket = await js.create_key_value(bucket="B", storage="memory")
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: JsMessage) -> None:
        if int(message.data) > WARM_UP:
            begun.set()
            await go_on.wait()
        await js.publish("out.a", message.data, msg_id=message.data.decode())
        async with js.publisher() as publisher:
            await publisher.publish("out.b", message.data)
        await bucket.put("last", message.data)
        await message.ack_sync()

    await _read_by(nc, "pull", handle)
    await begun.wait()
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: nc.state is natsproto.State.DRAINING)
    go_on.set()
    await draining
    assert not failures
    delivered = await _all_acked(stream)
    assert (await (await jetstream.stream("OUT")).info()).state.messages == 2 * delivered


@pytest.mark.parametrize("way", ["iterate", "batches"])
async def test_drain_waits_for_loops_over_messages(nc: Client, stream: Stream, way: str) -> None:
    consumer = await (await nc.jetstream().stream("S")).create_consumer(durable_name="d", ack_wait=ACK_WAIT_S)
    read = 0

    async def read_on() -> None:
        nonlocal read
        async with consumer.messages() as messages:
            if way == "iterate":
                async for message in messages:
                    await asyncio.sleep(0.001)
                    await message.ack()
                    read += 1
                return
            async for batch in messages.batches(3):
                await asyncio.sleep(0.001)
                for message in batch:
                    await message.ack()
                    read += 1

    reading = asyncio.create_task(read_on())
    await eventually(lambda: read)
    await nc.drain()
    await reading
    assert read == await _all_acked(stream)


@pytest.mark.parametrize("callback", [False, True], ids=["loop", "callback"])
async def test_drain_waits_for_key_watches(
    nc: Client, jetstream: JetStream, failures: list[Event], callback: bool
) -> None:
    there = await jetstream.create_key_value(bucket="B", storage="memory")
    for number in range(20):
        await there.put(f"k.{number}", b"1")
    bucket = await nc.jetstream().key_value("B")
    copied = 0

    async def copy(entry: KeyValueEntry) -> None:
        nonlocal copied
        await asyncio.sleep(0.001)
        await bucket.put(entry.key.replace("k", "copy"), entry.value)
        copied += 1

    async def loop() -> None:
        async with bucket.watch("k.>") as watch:
            async for entry in watch:
                await copy(entry)

    if callback:
        await bucket.watch("k.>", cb=copy).__aenter__()
        reading = None
    else:
        reading = asyncio.create_task(loop())
    await eventually(lambda: copied)
    await nc.drain()
    if reading is not None:
        await reading
    assert copied == 20
    assert not failures
    assert len([key async for key in there.keys("copy.>")]) == 20


async def test_drain_timeout_ends_watch_callbacks(nc: Client, jetstream: JetStream) -> None:
    there = await jetstream.create_key_value(bucket="B", storage="memory")
    await there.put("k", b"1")
    begun = asyncio.Event()

    async def hang(entry: KeyValueEntry) -> None:
        begun.set()
        await asyncio.Event().wait()

    await (await nc.jetstream().key_value("B")).watch(cb=hang).__aenter__()
    await begun.wait()
    with pytest.raises(DrainTimeout, match="1 messages of watch of bucket 'B' not handled"):
        await nc.drain(timeout=0.05)


async def test_drain_waits_for_object_watches(nc: Client, jetstream: JetStream) -> None:
    there = await jetstream.create_object_store(bucket="O", storage="memory")
    for number in range(5):
        await there.put(f"o{number}", b"1")
    seen: list[str] = []

    async def see(info: ObjectInfo) -> None:
        await asyncio.sleep(0.001)
        seen.append(info.name)

    async def loop() -> None:
        async with (await nc.jetstream().object_store("O")).watch() as watch:
            async for info in watch:
                await see(info)

    reading = asyncio.create_task(loop())
    await eventually(lambda: seen)
    await nc.drain()
    await reading
    assert len(seen) == 5


async def test_drain_waits_for_group_members(nc: Client, jetstream: JetStream) -> None:
    await jetstream.create_stream(name="G", subjects=["g.*"], storage="memory")
    group = await ElasticGroup.create(nc.jetstream(), "G", "pack", max_members=2, filters={"g.*": [1]})
    await group.add_members("ann")
    done: list[bytes] = []

    async def handle(message: JsMessage) -> None:
        await asyncio.sleep(0.001)
        done.append(message.data)

    member = await group.consume("ann", handle).__aenter__()
    await member.wait_joined()
    for number in range(10):
        await jetstream.publish(f"g.{number}", b"%d" % number)
    await eventually(lambda: done)
    await nc.drain()
    await member.wait()
    info = await (await (await jetstream.stream("G-pack")).consumer("ann")).info()
    assert info.ack_floor.consumer_seq == len(done)


async def test_drain_while_down_ends_ordered_readers(nats_server: Server, nc: Client, stream: Stream) -> None:
    handled = 0

    async def handle(message: JsMessage) -> None:
        nonlocal handled
        handled += 1

    work = await _read_by(nc, "ordered push", handle)
    await eventually(lambda: handled == 20)
    nats_server.kill()
    await eventually(lambda: not nc.is_connected)
    await asyncio.wait_for(nc.drain(timeout=3600), 60)  # the deletion of its consumer waits for no connection
    assert work.closed


async def test_drain_of_random_readers(nc: Client, stream: Stream, failures: list[Event], seed: int) -> None:
    rng = random.Random(seed)
    names = [f"c{number}" for number in range(rng.randrange(2, 6))]
    handled = dict.fromkeys(names, 0)

    def handler(name: str) -> Handler:
        async def handle(message: JsMessage) -> None:
            await asyncio.sleep(rng.random() * 0.003)
            handled[name] += 1

        return handle

    async with AsyncExitStack() as stack:
        for name in names:
            kind, concurrency = rng.choice(["pull", "push"]), rng.randrange(1, 5)
            work = await _read_by(nc, kind, handler(name), name, concurrency=concurrency)
            if rng.random() < 0.3:
                await stack.enter_async_context(work)
        await asyncio.sleep(rng.random() * 0.02)
        await nc.drain()
    assert not failures
    for name in names:
        assert await _all_acked(stream, name) == handled[name]


@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_drain_by_several_handlers(nc: Client, stream: Stream, kind: str) -> None:
    """Handlers that drain do not wait for each other, and what waits behind them is handled, too."""
    drained = 0

    async def handle(message: JsMessage) -> None:
        nonlocal drained
        await asyncio.sleep(0.001 * random.random())
        await nc.drain(3600)
        drained += 1

    await _read_by(nc, kind, handle, concurrency=4)
    async with asyncio.timeout(60):
        assert await nc.wait_closed() is None
    await eventually(lambda: drained >= 4)


async def test_drain_by_loops_and_callbacks(nc: Client, stream: Stream) -> None:
    consumer = await (await nc.jetstream().stream("S")).create_consumer(durable_name="d")

    async def loop() -> None:
        async with consumer.messages() as messages:
            async for _ in messages:
                await nc.publish("core")
                await nc.drain(3600)
                break

    async def callback(message: natsproto.Message) -> None:
        await nc.drain(3600)

    await nc.subscribe("core", cb=callback)
    async with asyncio.timeout(60):
        await asyncio.gather(loop(), loop())
        assert await nc.wait_closed() is None


@pytest.mark.parametrize("kind", ["pull", "push", "ordered", "ordered push"])
async def test_idle_drain_without_a_server(kind: str) -> None:
    """A consumer that has nothing to handle keeps no client waiting for a server that is gone."""
    handled = asyncio.Event()

    def handle(message: JsMessage) -> None:
        handled.set()

    async with run_server(jetstream=True) as server:
        nc = await natsproto.connect(server.url)
        await make(nc.jetstream(), 1)
        await _read_by(nc, kind, handle)
        await handled.wait()
        server.kill()
        await eventually(lambda: not nc.is_connected)
        await asyncio.wait_for(nc.drain(3600), 5)


async def test_drain_timeout_names_no_idle_handler(nats_server: Server, nc: Client, stream: Stream) -> None:
    handled = 0

    def handle(message: JsMessage) -> None:
        nonlocal handled
        handled += 1

    await _read_by(nc, "pull", handle, concurrency=50)
    await eventually(lambda: handled == 20)
    nats_server.freeze()
    try:
        with pytest.raises(DrainTimeout) as raised:
            await nc.drain(0.05)
    finally:
        nats_server.thaw()
    assert "not handled" not in str(raised.value)
