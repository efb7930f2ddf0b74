"""Pulling from real servers: fetch, next, messages and consume, through cancellations, deletions and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client, errors
from natsproto._core.events import HandlerFailed
from natsproto.errors import ConfigError, ConsumerGone, PullRefused, RequestTimeout
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.testing import run_server
from tests.jetstream.reading import api_calls, crash, events, known, make, notices, numbers, open_subscriptions, store
from tests.kit.interruption import interruptions
from tests.kit.waiting import eventually
from tests.server.helpers import both_loops

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0
"""Seconds that must not pass: what is waited for comes at once, or the test's own limit ends it."""


# ---------------------------------------------------------------- fetch


async def test_fetch_is_a_list_at_once_when_it_is_full(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(durable_name="d")
    got = await consumer.fetch(10, timeout=LONG)
    assert numbers(got) == list(range(1, 11))
    assert [message.subject for message in got] == ["s.a"] * 10
    for message in got:
        await message.ack()
    info = await consumer.info()
    assert info.num_pending == 0


@pytest.mark.slow
async def test_fetch_returns_what_came_in_time(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d")
    assert numbers(await consumer.fetch(10, timeout=6)) == [1, 2, 3]
    assert await consumer.fetch(10, timeout=0.1) == []
    with pytest.raises(RequestTimeout, match="next message of consumer 'd' of stream 'S'"):
        await consumer.next(timeout=0.1)


async def test_fetch_that_does_not_wait_gives_what_is_there(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d")
    assert numbers(await consumer.fetch(2, no_wait=True)) == [1, 2]
    assert numbers(await consumer.fetch(2, timeout=0)) == [3]
    assert await consumer.fetch(2, no_wait=True, timeout=LONG) == []


async def test_fetch_max_bytes_as_the_server_counts(jetstream: JetStream) -> None:
    stream = await make(jetstream, 0)
    await store(stream, range(1, 21), size=100)
    consumer = await stream.create_consumer(durable_name="d")
    size = (await consumer.next()).size  # one digit in the ack subject changes: nine messages are of one size
    assert numbers(await consumer.fetch(max_bytes=size * 3, timeout=LONG)) == [2, 3, 4]  # used up exactly: no status
    assert numbers(await consumer.fetch(max_bytes=size * 3 + 50, timeout=LONG)) == [5, 6, 7]
    assert numbers(await consumer.fetch(2, max_bytes=size * 10, timeout=LONG)) == [8, 9]
    assert len(await consumer.fetch(50, max_bytes=(size + 9) * 5, timeout=LONG)) == 5


async def test_fetch_can_be_iterated_as_messages_come(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[int] = []
    async for message in consumer.fetch(4, timeout=LONG):
        seen.append(int(message.data))
        if len(seen) in (2, 3):
            await store(stream, [len(seen) + 1])
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 1, "max_bytes": -1}, "max_bytes"),
        ({"max_messages": 1, "timeout": -1}, "timeout"),
        ({"max_messages": 1, "timeout": 1, "heartbeat": 0.6}, "heartbeat"),
        ({"max_messages": 1, "priority": 10}, "priority"),
        ({"max_messages": 1, "priority_group": "not a group"}, "priority group"),
    ],
)
async def test_consumer_arguments_are_checked_before_sending(
    jetstream: JetStream, arguments: dict[str, int], what: str
) -> None:
    consumer = await (await jetstream.stream("S", bind=True)).consumer("d", bind=True)
    with pytest.raises(ConfigError) as caught:
        consumer.fetch(**arguments)  # type: ignore[arg-type]
    assert caught.value.name == what


async def test_bound_consumer_makes_no_call_but_the_pull(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 5)
    await stream.create_consumer(durable_name="d")
    async with api_calls(nats_client) as calls:
        consumer = await (await jetstream.stream("S", bind=True)).consumer("d", bind=True)
        assert numbers(await consumer.fetch(2)) == [1, 2]
        assert numbers([await consumer.next()]) == [3]
        async with consumer.messages(prefetch=10) as messages:
            assert numbers([await messages.next(), await messages.next()]) == [4, 5]
        await nats_client.flush()
    # Whoever reads on and on has to know ack_wait, if it may be known.
    assert set(calls) == {"$JS.API.CONSUMER.MSG.NEXT.S.d", "$JS.API.CONSUMER.INFO.S.d"}
    assert calls.count("$JS.API.CONSUMER.INFO.S.d") == 1


async def test_least_privileges_suffice_and_less_is_reported(jetstream: JetStream, nats_server: Server) -> None:
    config = """
    authorization { users: [
      { user: all, password: x }
      { user: worker, password: x, permissions: {
          publish: ["$JS.API.CONSUMER.MSG.NEXT.S.d", "$JS.ACK.S.d.>"], subscribe: ["_INBOX.>"] } }
    ] }"""
    async with run_server(jetstream=True, config=config) as server:
        host = server.url.removeprefix("nats://")
        async with (
            natsproto.connect(f"nats://all:x@{host}") as boss,
            natsproto.connect(f"nats://worker:x@{host}") as nc,
        ):
            stream = await make(boss.jetstream(), 4)
            managed = await stream.create_consumer(durable_name="d")
            await stream.create_consumer(durable_name="other")
            bound = await nc.jetstream().stream("S", bind=True)
            consumer = await bound.consumer("d", bind=True)
            for message in await consumer.fetch(4):
                await message.ack_sync()
            assert (await managed.info()).num_ack_pending == 0
            with pytest.raises(errors.PermissionDenied):
                await (await bound.consumer("other", bind=True)).fetch(1, timeout=LONG)
            await managed.delete()  # it may not look up what became of the consumer, and says so in the end
            assert await consumer.fetch(1, timeout=0.3) == []


async def test_deleted_consumer_ends_a_fetch_at_once(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d")
    waiting = asyncio.ensure_future(consumer.fetch(3, timeout=LONG))
    other = await stream.consumer("d")
    await known(other, lambda info: info.num_waiting and not info.num_pending)
    await other.delete()
    assert numbers(await waiting) == [1, 2], "what had come is not lost"
    with pytest.raises(ConsumerGone, match="consumer not found"):
        await consumer.fetch(1, timeout=LONG)
    await stream.create_consumer(durable_name="e", deliver_policy="new")
    gone = await stream.consumer("e")
    waiting = asyncio.ensure_future(gone.fetch(1, timeout=LONG))
    await known(gone, lambda info: info.num_waiting)
    await stream.delete_consumer("e")
    with pytest.raises(ConsumerGone, match="Consumer Deleted"):
        await waiting


async def test_push_consumer_cannot_be_pulled_from(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    await stream.create_push_consumer(durable_name="d", deliver_subject="deliver.here")
    with pytest.raises(ConsumerGone, match="push based"):
        await (await stream.consumer("d", bind=True)).fetch(1, timeout=LONG)


async def test_refused_pull_says_why(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    with pytest.raises(PullRefused, match=r"Bad Request - Not a Overflow Priority consumer|Bad Request"):
        await consumer.fetch(1, timeout=LONG, priority_group="g", min_pending=5)


async def test_many_fetches_at_a_time_share_the_messages(jetstream: JetStream) -> None:
    stream = await make(jetstream, 100)
    consumer = await stream.create_consumer(durable_name="d")
    got = await asyncio.gather(*(consumer.fetch(5, timeout=LONG) for _ in range(20)))
    assert [len(part) for part in got] == [5] * 20
    assert sorted(number for part in got for number in numbers(part)) == list(range(1, 101))


async def test_fetches_subscribe_once_and_leave_nothing(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 50)
    consumer = await stream.create_consumer(durable_name="d")
    for _ in range(25):
        await consumer.fetch(2)
        assert open_subscriptions(nats_client) == 1
    await eventually(lambda: open_subscriptions(nats_client) == 0)
    assert (await consumer.info()).num_waiting == 0


async def test_user_messages_with_a_status_line_are_messages(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    _, writer = await asyncio.open_connection("127.0.0.1", nats_server.port)
    header = b"NATS/1.0 409 Consumer Deleted\r\nA: b\r\n\r\n"
    writer.write(b'CONNECT {"headers":true,"protocol":1,"verbose":false}\r\n')
    for payload in (b"", b"data"):
        writer.write(b"HPUB s.a %d %d\r\n%b%b\r\n" % (len(header), len(header) + len(payload), header, payload))
    await writer.drain()
    got = await consumer.fetch(2, timeout=LONG)
    assert [(message.data, message.headers["A"]) for message in got] == [(b"", "b"), (b"data", "b")]
    assert got[1].metadata.stream_seq == 2
    writer.close()
    await writer.wait_closed()


# ---------------------------------------------------------------- cancelling


async def test_fetch_cancelled_anywhere_loses_nothing(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[JsMessage] = []
    stored = 0

    async def fetch() -> object:
        got = await consumer.fetch(3, timeout=LONG)
        seen.extend(got)
        return got

    async for run in interruptions(fetch):
        run.check()
        stored += 3
        await store(stream, range(stored - 2, stored + 1))
        while len(seen) < stored - 3:  # what the one before left
            seen.extend(await consumer.fetch(stored - 3 - len(seen), timeout=LONG))
    while len(seen) < stored:
        seen.extend(await consumer.fetch(stored - len(seen), timeout=LONG))
    assert sorted(numbers(seen)) == list(range(1, stored + 1))


@pytest.mark.slow
async def test_fetches_cancelled_at_random_lose_nothing(jetstream: JetStream, seed: int) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    rng = random.Random(seed)
    total = 2000
    seen: list[JsMessage] = []
    publishing = asyncio.ensure_future(store(stream, range(1, total + 1)))
    while len(seen) < total:
        fetching = asyncio.ensure_future(consumer.fetch(rng.randint(1, 50), timeout=LONG))
        if rng.random() < 0.7:
            await asyncio.wait([fetching], timeout=rng.random() * 0.003)
            fetching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            for message in await fetching:
                seen.append(message)
                await message.ack()
        if len(seen) > total - 60:
            break
    while len(seen) < total:
        seen += await consumer.fetch(total - len(seen), timeout=LONG)
    await publishing
    assert sorted(numbers(seen)) == list(range(1, total + 1))


async def test_iteration_left_early_gives_back_the_rest(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(durable_name="d")
    fetched = consumer.fetch(10).__aiter__()
    assert (await anext(fetched)).data == b"1"
    await fetched.aclose()  # type: ignore[attr-defined]  # an async generator, as after break
    assert numbers(await consumer.fetch(9, timeout=LONG)) == list(range(2, 11))


@pytest.mark.slow
async def test_programs_that_used_to_stall_do_not(jetstream: JetStream, seed: int) -> None:
    """Fetches that expire in the moment in which messages come: none may hang while there is something to be had."""
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    rng, loop, got = random.Random(seed), asyncio.get_running_loop(), 0
    for _ in range(200):
        expiry = rng.uniform(0.001, 0.006)
        loop.call_later(rng.uniform(0.0, 0.006), lambda: jetstream._connection.publish_nowait("s.a", b"1"))
        got += len(await consumer.fetch(5, timeout=expiry))
    began = loop.time()
    while got < 200:
        got += len(await consumer.fetch(200 - got, timeout=LONG))
    assert loop.time() - began < LONG / 2
    assert await consumer.fetch(1, no_wait=True) == []


# ---------------------------------------------------------------- outages


async def test_fetch_loop_goes_on_over_a_crash(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream, 5, storage="file")
    consumer = await stream.create_consumer(durable_name="d")
    assert numbers(await consumer.fetch(5)) == [1, 2, 3, 4, 5]
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=LONG))
    await crash(nats_server, stream)
    await store(stream, [6])
    seen = numbers(await waiting)
    while 6 not in seen:  # the server may have forgotten in the crash what it had delivered
        seen += numbers(await consumer.fetch(10, timeout=0.5))


async def test_fetch_ends_in_time_without_a_server(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    await consumer.next()
    waiting = asyncio.ensure_future(consumer.fetch(1, timeout=0.3))
    await asyncio.sleep(0)
    nats_server.kill()
    assert await waiting == []
    assert await consumer.fetch(1, timeout=0.1) == []
    assert await consumer.fetch(1, timeout=0.1, no_wait=True) == []
    await nats_server.restart()


@pytest.mark.parametrize("read", [True, False])
async def test_messages_survive_a_crash_read_or_not(jetstream: JetStream, nats_server: Server, read: bool) -> None:
    stream = await make(jetstream, 3, storage="file")
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[int] = []

    async def read_four() -> None:
        while 4 not in seen:  # the server may have forgotten in the crash what it had delivered
            seen.append(int((await messages.next(timeout=LONG)).data))

    async with consumer.messages() as messages:
        await eventually(lambda: messages.pending)
        reading = asyncio.ensure_future(read_four()) if read else None
        await asyncio.sleep(0)
        await crash(nats_server, stream)
        await store(stream, [4])
        await (reading or read_four())
    assert seen[:3] == [1, 2, 3]


async def test_consumer_that_did_not_survive_is_reported(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages() as messages:
        assert (await messages.next()).data == b"1"
        await crash(nats_server, stream)
        with pytest.raises(ConsumerGone, match="not found"):
            await messages.next(timeout=LONG)
        with pytest.raises(ConsumerGone):
            async for _ in messages:
                pass


# ---------------------------------------------------------------- messages


async def test_messages_come_in_order_without_end(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3000)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    seen = []
    async with consumer.messages(prefetch=100) as messages:
        async for message in messages:
            seen.append(message)
            assert messages.pending <= 100
            if len(seen) == 3000:
                break
    assert numbers(seen) == list(range(1, 3001))


@pytest.mark.parametrize(
    "bounds", [{"prefetch": 7}, {"prefetch_bytes": 2000}, {"prefetch": 9, "prefetch_bytes": 2000}, {"prefetch": 1}]
)
async def test_messages_are_bounded_and_never_dry_up(jetstream: JetStream, bounds: dict[str, int]) -> None:
    stream = await make(jetstream)
    await store(stream, range(1, 301), size=150)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    async with consumer.messages(**bounds, stop_after=300) as messages:  # type: ignore[arg-type]
        seen = [message async for message in messages]
    assert numbers(seen) == list(range(1, 301))


async def test_message_bigger_than_the_bound_is_reported(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    await store(stream, [1], size=5000)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages(prefetch_bytes=1000) as messages:
        with pytest.raises(PullRefused, match="needs more than 1000 bytes"):
            await messages.next(timeout=LONG)


@both_loops
async def test_time_that_is_up_at_once_disturbs_no_loop() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        stream = await make(nc.jetstream(), 500)
        consumer = await stream.create_consumer(durable_name="C", ack_policy="none")
        pulling = consumer.messages(prefetch=10, expires=0.5, heartbeat=0.0001, stop_after=500)
        async with asyncio.timeout(LONG), pulling as messages:
            assert numbers([message async for message in messages]) == list(range(1, 501))


async def test_messages_come_in_batches(jetstream: JetStream) -> None:
    stream = await make(jetstream, 500)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    seen: list[int] = []
    async with consumer.messages(stop_after=500) as messages:
        async for batch in messages.batches(40):
            assert 1 <= len(batch) <= 40
            seen += numbers(batch)
    assert seen == list(range(1, 501))


async def test_max_messages_1_leaves_the_next_to_others(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages(prefetch=1) as messages:
        async for message in messages:
            assert message.data == b"1"
            assert (await consumer.info()).num_waiting == 0
            assert numbers(await (await stream.consumer("d")).fetch(2)) == [2, 3]
            break


async def test_stop_gives_unread_messages_to_others(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 20)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    async with consumer.messages() as messages:
        for _ in range(5):
            await (await messages.next()).ack()
        await eventually(lambda: messages.pending > 4)
        unread = messages.pending
    got = await (await stream.consumer("d")).fetch(15, timeout=LONG)
    assert sorted(numbers(got)) == list(range(6, 21))
    assert [message.metadata.num_delivered for message in got].count(2) == unread
    assert open_subscriptions(nats_client) <= 1
    assert [message async for message in messages] == []


async def test_stop_without_acks_keeps_unread_messages(
    jetstream: JetStream,
) -> None:
    stream = await make(jetstream, 20)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    async with consumer.messages() as messages:
        assert (await messages.next()).data == b"1"
        await eventually(lambda: messages.pending == 19)
    assert numbers(await consumer.fetch(5)) == [2, 3, 4, 5, 6]
    async with consumer.messages(stop_after=15) as messages:
        await store(stream, [21])
        assert numbers([message async for message in messages]) == list(range(7, 22))


async def test_draining_reads_all_that_is_there_and_ends(jetstream: JetStream) -> None:
    stream = await make(jetstream, 50)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages() as messages:
        read = [await messages.next() for _ in range(20)]
        await eventually(lambda: messages.pending > 10)
        arrived = len(read) + messages.pending
        await messages.drain()
        await store(stream, [51])
        read += [message async for message in messages]
    assert len(read) >= arrived
    assert numbers(read) == list(range(1, len(read) + 1))


async def test_cancelled_reader_of_messages_loses_nothing(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    seen: list[int] = []
    stored = 0
    async with consumer.messages() as messages:

        async def read() -> object:
            message = await messages.next(timeout=LONG)
            seen.append(int(message.data))
            return message

        async for run in interruptions(read):
            run.check()
            stored += 1
            await store(stream, [stored])
        while len(seen) < stored:
            await read()
    assert seen == list(range(1, stored + 1))


async def test_messages_must_be_entered(jetstream: JetStream) -> None:
    consumer = await (await make(jetstream)).create_consumer(durable_name="d")
    with pytest.raises(errors.LocalProtocolError, match="enter the messages of"):
        await consumer.messages().next()


async def test_closing_the_client_ends_reading_quietly(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    stream = await make(nc.jetstream(), 2)
    consumer = await stream.create_consumer(durable_name="d")
    async with consumer.messages() as messages:
        await eventually(lambda: messages.pending)
        await nc.close()
        assert numbers([message async for message in messages]) == [1]
    with pytest.raises(errors.ConnectionClosed):
        await consumer.fetch(1)


@pytest.mark.parametrize("end", ["close", "close with a cleanup", "drain"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_close_ends_the_wait_for_a_message(nats_server: Server, ordered: bool, end: str) -> None:
    nc = await natsproto.connect(nats_server.url)
    stream = await make(nc.jetstream(), 1)
    consumer = stream.ordered_consumer() if ordered else await stream.create_consumer(durable_name="d")
    assert (await consumer.next(timeout=LONG)).data == b"1"
    waiting = asyncio.create_task(consumer.next(timeout=50))
    await nc.flush()
    if end == "close with a cleanup":
        nc._cleanups.start(asyncio.wait((waiting,)))
    await (nc.drain() if end == "drain" else nc.close())
    with pytest.raises(errors.ConnectionClosed, match="next message of"):
        await waiting


@pytest.mark.slow
async def test_paused_consumer_raises_no_alarm(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    async with events(nats_client) as seen, consumer.messages(expires=6.5, heartbeat=3.0) as messages:
        assert (await messages.next()).data == b"1"
        await consumer.pause(datetime.now(UTC) + timedelta(seconds=60))
        await store(stream, [2])
        with pytest.raises(RequestTimeout):
            await messages.next(timeout=7)  # longer than two heartbeats and than a pull
        await consumer.resume()
        assert (await messages.next(timeout=LONG)).data == b"2"
    assert notices(seen) == []


async def test_limits_of_a_consumer_are_learned_and_kept(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 30)
    consumer = await stream.create_consumer(durable_name="d", max_batch=4, max_expires=20.0, max_bytes=600)
    async with events(nats_client) as seen:
        async with consumer.messages(prefetch=10, prefetch_bytes=2000, stop_after=20) as messages:
            assert numbers([message async for message in messages]) == list(range(1, 21))
        assert 1 <= len(notices(seen)) <= 3
    assert numbers(await consumer.fetch(10, timeout=LONG)) == list(range(21, 31))


# ---------------------------------------------------------------- consume


async def test_consume_handles_in_order_and_acknowledges(jetstream: JetStream) -> None:
    stream = await make(jetstream, 200)
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[int] = []

    async def handler(message: JsMessage) -> None:
        seen.append(int(message.data))
        await asyncio.sleep(0)

    async with consumer.consume(handler, stop_after=200) as consumption:
        await consumption.wait()
        assert consumption.handled == 200
        assert consumption.failed == 0
        assert consumption.closed
    assert seen == list(range(1, 201))
    await known(consumer, lambda info: not info.num_ack_pending)


async def test_plain_functions_are_handlers_too(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1000)
    consumer = await stream.create_consumer(durable_name="d", ack_policy="none")
    seen: list[int] = []
    await consumer.consume(lambda message: seen.append(int(message.data)), stop_after=1000, on_success="nothing").run()
    assert seen == list(range(1, 1001))


async def test_so_many_handlers_run_at_a_time_and_no_more(jetstream: JetStream) -> None:
    stream = await make(jetstream, 20)
    consumer = await stream.create_consumer(durable_name="d")
    barrier = asyncio.Barrier(5)

    async def handler(message: JsMessage) -> None:
        assert consumption.in_progress <= 5
        await barrier.wait()

    consumption = consumer.consume(handler, concurrency=5, stop_after=20)
    await consumption.run()
    assert consumption.handled == 20


async def test_consume_handles_messages_of_a_key_in_order(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    for number in range(1, 101):
        await store(stream, [number], f"s.{number % 5}")
    consumer = await stream.create_consumer(durable_name="d")
    seen: dict[str, list[int]] = {}
    busy: set[str] = set()
    together = 0

    async def handler(message: JsMessage) -> None:
        nonlocal together
        assert message.subject not in busy
        busy.add(message.subject)
        together = max(together, len(busy))
        await asyncio.sleep(0.001)
        busy.remove(message.subject)
        seen.setdefault(message.subject, []).append(int(message.data))

    await consumer.consume(handler, concurrency=8, key=lambda message: message.subject, stop_after=100).run()
    assert sorted(number for part in seen.values() for number in part) == list(range(1, 101))
    assert all(part == sorted(part) for part in seen.values())
    assert together > 1


async def test_failures_are_answered_and_reported_as_asked(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    reported: list[tuple[bytes, str]] = []

    async def handler(message: JsMessage) -> None:
        if message.data == b"2" and message.metadata.num_delivered == 1:
            raise ValueError("two")

    async with events(nats_client) as seen:
        await consumer.consume(
            handler, stop_after=4, error_cb=lambda message, error: reported.append((message.data, str(error)))
        ).run()
    assert reported == [(b"2", "two")]
    assert [(event.handler, str(event.error)) for event in seen if isinstance(event, HandlerFailed)] == [
        ("handler of consumer 'd' of stream 'S'", "two")
    ]
    await known(consumer, lambda info: not info.num_ack_pending)


@pytest.mark.parametrize(("policy", "delivered", "pending"), [("term", 1, 0), ("nothing", 1, 1), ("nak", 2, 1)])
async def test_what_a_failure_does_is_said_in_the_call(
    jetstream: JetStream, policy: str, delivered: int, pending: int
) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    count = 0

    async def handler(message: JsMessage) -> None:
        nonlocal count
        count += 1
        raise ValueError

    async with consumer.consume(handler, on_error=policy, nak_delay=0.05) as consumption:  # type: ignore[arg-type]
        await eventually(lambda: count >= delivered)
        await consumption.stop()
    assert count >= delivered
    await known(consumer, lambda info: info.num_ack_pending == pending)


async def test_handler_may_answer_itself(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60, max_deliver=1)

    async def handler(message: JsMessage) -> None:
        if message.data == b"1":
            await message.term("enough")
        else:
            await message.ack()
            raise ValueError("after the answer")

    await consumer.consume(handler, stop_after=2).run()
    await known(consumer, lambda info: not info.num_ack_pending)


async def test_stop_waits_for_running_handlers(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    started, go = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def handler(message: JsMessage) -> None:
        if int(message.data) == 4:
            started.set()
            await go.wait()
        done.append(int(message.data))

    async with consumer.consume(handler) as consumption:
        await started.wait()
        await eventually(lambda: consumption.pending)
        stopping = asyncio.ensure_future(consumption.stop())
        got = await (await stream.consumer("d")).fetch(6, timeout=LONG)
        assert not stopping.done()
        go.set()
        await stopping
    assert done == [1, 2, 3, 4]
    assert sorted(numbers(got)) == list(range(5, 11))


async def test_draining_handles_all_that_is_there(jetstream: JetStream) -> None:
    stream = await make(jetstream, 100)
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[int] = []

    async def handler(message: JsMessage) -> None:
        await asyncio.sleep(0.0005)
        seen.append(int(message.data))

    async with consumer.consume(handler, concurrency=3) as consumption:
        await eventually(lambda: consumption.pending + len(seen) > 50)
        await consumption.drain()
        assert consumption.closed
        assert consumption.pending == 0
    assert len(seen) == consumption.handled
    assert sorted(seen) == list(range(1, len(seen) + 1))


async def test_error_in_the_block_cancels_the_handlers(jetstream: JetStream) -> None:
    """The request ends before its message is nakked, so the message is not delivered to it again."""
    stream = await make(jetstream, 1)
    for number in range(30):
        consumer = await stream.create_consumer(durable_name=f"d{number}", ack_wait=60, max_deliver=2)
        started = asyncio.Event()

        async def handler(message: JsMessage, started: asyncio.Event = started) -> None:
            started.set()
            await asyncio.Event().wait()

        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # from inside the block, that is the point
            async with consumer.consume(handler):
                await started.wait()
                raise ZeroDivisionError
        assert (await (await stream.consumer(f"d{number}")).next(timeout=LONG)).metadata.num_delivered == 2


async def test_consume_ends_when_the_consumer_is_deleted(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    handled = asyncio.Event()

    async def handler(message: JsMessage) -> None:
        handled.set()

    async with events(nats_client) as seen:
        with pytest.raises(ConsumerGone, match="Consumer Deleted"):  # noqa: PT012  # at the end of the block
            async with consumer.consume(handler) as consumption:
                await handled.wait()
                await known(consumer, lambda info: info.num_waiting)
                await consumer.delete()
                with pytest.raises(ConsumerGone):
                    await consumption.wait()
    (notice,) = notices(seen)
    assert isinstance(notice.error, ConsumerGone)


async def test_stopping_from_inside_a_handler(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    consumer = await stream.create_consumer(durable_name="d")
    seen: list[int] = []

    async def handler(message: JsMessage) -> None:
        seen.append(int(message.data))
        if message.data == b"3":
            await consumption.stop()

    consumption = consumer.consume(handler)
    await consumption.run()
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"concurrency": 0}, {"concurrency": 2**70}, {"on_success": "yes"}, {"on_error": "ack"}, {"nak_delay": -1}),
        {"prefetch": 0},
    ],
)
async def test_wrong_policies_are_reported_at_once(jetstream: JetStream, arguments: dict[str, object]) -> None:
    consumer = await (await jetstream.stream("S", bind=True)).consumer("d", bind=True)
    with pytest.raises(ConfigError):
        consumer.consume(print, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler must be callable"):
        consumer.consume(None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- next


async def test_ack_next_acks_and_asks_in_one_trip(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 5)
    consumer = await stream.create_consumer(durable_name="d")
    message = await consumer.next()
    async with api_calls(nats_client) as calls:
        for number in (2, 3, 4):
            message = await consumer.next(acking=message)
            assert message.data == b"%d" % number
        await nats_client.flush()
    assert calls == []
    await message.ack()
    with pytest.raises(errors.AlreadyAcked):
        await consumer.next(acking=message)
    await known(consumer, lambda info: not info.num_ack_pending)
