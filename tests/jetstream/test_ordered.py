"""A stream in order, each message once, whatever happens to the consumer that carries it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client, errors
from natsproto._core.events import Event, PermissionViolation
from natsproto.errors import ConfigError, HeartbeatMissed, LocalProtocolError, StreamNotFound
from natsproto.jetstream._consumer.delivery import prefetch
from natsproto.jetstream._consumer.ordered.stream_identity import StreamIdentity
from natsproto.jetstream._consumer.pull import pull_state
from natsproto.jetstream._values.codec import NEVER
from natsproto.testing import run_server
from tests.jetstream.reading import crash, events, make, notices, numbers, open_subscriptions, store
from tests.kit.interruption import interruptions
from tests.kit.tasks import cancel_after, end_of_tasks
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._consumer.messages import Messages
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream
    from natsproto.jetstream._values.info import StreamInfo
    from natsproto.testing._server import Server

LONG = 30.0
BOTH = pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])


async def consumers(stream: Stream) -> list[str]:
    return [name async for name in stream.consumer_names()]


async def no_consumers(stream: Stream) -> None:
    """Asks until there are none: nobody waits for a deletion."""
    async with asyncio.timeout(30):
        while await consumers(stream):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- reading


@BOTH
async def test_everything_comes_in_order(jetstream: JetStream, nats_client: Client, push: bool) -> None:
    stream = await make(jetstream, 5000)
    async with stream.ordered_consumer(push=push).messages() as messages:
        seen = [message async for message, _ in _zip(messages, 5000)]
    assert numbers(seen) == list(range(1, 5001))
    assert [message._position[2] for message in seen] == list(range(1, 5001))
    await no_consumers(stream)
    assert open_subscriptions(nats_client) == 0


async def batches_pulled(nc: Client, stream: Stream) -> list[int]:
    """Reads all 3,000 messages; how many each pull asked for."""
    async with nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.*") as asked:
        await nc.flush()
        async with stream.ordered_consumer().messages(stop_after=6000) as messages:
            seen = [await messages.next() for _ in range(3000)]
        await nc.flush()
        assert numbers(seen) == list(range(1, 3001))
        return [json.loads(message.data)["batch"] for message in await asked._read_batch()]


async def test_a_fast_reader_gets_more_ahead_than_a_slow_one(
    jetstream: JetStream, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(jetstream, 3000)
    monkeypatch.setattr(prefetch, "PREFETCH_SPAN_S", LONG)  # less than a busy machine takes
    pulls = await batches_pulled(nats_client, stream)
    assert pulls[0] == 500
    assert max(pulls) > 2000
    monkeypatch.setattr(prefetch, "PREFETCH_SPAN_S", 1e-9)  # as if it took as long as hardly any reader does
    assert max(await batches_pulled(nats_client, stream)) == 500


async def test_suddenly_bigger_messages_do_not_pile_up(
    jetstream: JetStream, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "MAX_PREFETCH_BYTES", 30_000)
    monkeypatch.setattr(pull_state, "MAX_PULL_BYTES", 100_000)
    stream = await make(jetstream)
    await store(stream, range(1, 3001), size=50)
    async with events(nats_client) as answers, stream.ordered_consumer().messages() as messages:
        seen = [await messages.next() for _ in range(3000)]
        await store(stream, range(3001, 3501), size=20_000)
        await eventually(lambda: messages.pending >= 4)
        await nats_client.flush()
        assert messages.pending <= 3 * 4  # what the pulls that are open may bring, of 500
        seen += [await messages.next() for _ in range(500)]
    assert numbers(seen) == list(range(1, 3501))
    assert not notices(answers)


async def test_prefetch_is_bounded_while_acks_are_awaited(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 3000)
    consumer = await stream.create_consumer(durable_name="d")
    async with nats_client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.*") as asked:
        await nats_client.flush()
        async with consumer.messages() as messages:
            for _ in range(3000):
                await (await messages.next()).ack()
        await nats_client.flush()
        assert 250 < max(json.loads(message.data)["batch"] for message in await asked._read_batch()) <= 500


async def test_reader_error_is_forgotten_with_the_next(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    ordered = stream.ordered_consumer()
    await jetstream.delete_stream("S")
    with pytest.raises(StreamNotFound):
        await ordered.fetch(1)
    with pytest.raises(StreamNotFound):
        await ordered.wait_created()
    await make(jetstream, 3)
    async with ordered.messages() as messages:
        assert (await ordered.wait_created()).num_pending == 3
        assert (await messages.next(LONG)).data == b"1"


async def _zip(messages: Messages, count: int) -> AsyncIterator[tuple[JsMessage, int]]:
    async for message in messages:
        yield message, count
        count -= 1
        if not count:
            return


@BOTH
async def test_where_to_begin_and_what_to_read(jetstream: JetStream, push: bool) -> None:
    stream = await make(jetstream, 5)
    await store(stream, [6, 7], "s.b")

    async def read(count: int, **fields: object) -> list[int]:
        ordered = stream.ordered_consumer(push=push, **fields)  # type: ignore[arg-type]
        async with ordered.messages(stop_after=count) as messages:
            return numbers([message async for message in messages])

    assert await read(3, start_seq=5) == [5, 6, 7]
    assert await read(2, filter_subjects=["s.b"]) == [6, 7]
    assert await read(7, filter_subjects=["s.a", "s.b"]) == [1, 2, 3, 4, 5, 6, 7]
    assert await read(1, deliver_policy="last") == [7]
    assert await read(2, deliver_policy="last_per_subject") == [5, 7]
    assert await read(7, start_time=datetime.now(UTC) - timedelta(hours=1)) == [1, 2, 3, 4, 5, 6, 7]
    ordered = stream.ordered_consumer(push=push, headers_only=True)
    async with ordered.messages(stop_after=1) as messages:
        assert [(message.data, message.headers["Nats-Msg-Size"]) async for message in messages] == [(b"", "1")]


async def test_verbs_go_on_where_the_last_one_ended(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 20)
    async with stream.ordered_consumer() as ordered:
        with pytest.raises(LocalProtocolError, match="has created no consumer yet"):
            assert ordered.cached_info
        assert numbers(await ordered.fetch(3)) == [1, 2, 3]
        assert ordered.cached_info.num_pending == 20
        assert numbers([await ordered.next()]) == [4]
        name = ordered.name
        assert (await ordered.info()).name == name
        async for message in ordered.fetch(4):
            if message.data == b"6":
                break
        assert numbers([message async for message in ordered.fetch(2)]) == [7, 8]
        async with ordered.messages() as messages:
            assert (await messages.next()).data == b"9"
            await eventually(lambda: messages.pending == 11)
        assert numbers(await ordered.fetch(2)) == [10, 11]
        seen: list[bytes] = []
        await ordered.consume(lambda message: seen.append(message.data), stop_after=8).run()
        assert seen == [b"%d" % number for number in range(12, 20)]
        assert ordered.last_seq == 20
        assert numbers(await ordered.fetch(1)) == [20]
        assert await ordered.fetch(9, timeout=0.1) == []
        assert await ordered.fetch(9, no_wait=True) == []
        with pytest.raises(errors.RequestTimeout):
            await ordered.next(timeout=0.05)
    await no_consumers(stream)


async def test_fetches_use_one_ordered_consumer(
    jetstream: JetStream, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_state.KEEP_CONSUMER_S", LONG)
    stream = await make(jetstream, 10)
    ordered = stream.ordered_consumer()
    for number in range(1, 10):
        assert numbers(await ordered.fetch(1)) == [number]
        assert len(await consumers(stream)) == 1
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_state.KEEP_CONSUMER_S", 0.1)
    assert numbers(await ordered.fetch(1)) == [10]
    await no_consumers(stream)
    await store(stream, [11])
    assert numbers(await ordered.fetch(1)) == [11]
    await ordered.stop()


@BOTH
async def test_number_of_messages_at_the_beginning_is_known(jetstream: JetStream, push: bool) -> None:
    stream = await make(jetstream, 7)
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages():
        assert (await ordered.wait_created()).num_pending == 7
        assert (await ordered.wait_created()).num_pending == 7


async def test_one_reader_at_a_time(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    ordered = stream.ordered_consumer()
    async with ordered.messages() as messages:
        assert (await messages.next()).data == b"1"
        with pytest.raises(LocalProtocolError, match="is being read already"):
            await ordered.fetch(1)
        assert (await messages.next()).data == b"2"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"durable_name": "d"}, "durable_name"),
        ({"ack_policy": "all"}, "ack_policy"),
        ({"deliver_subject": "d"}, "deliver_subject"),
        ({"start_seq": 0}, "start_seq"),
        ({"start_seq": 1, "start_time": datetime.now(UTC)}, "start_time"),
        ({"start_time": datetime(2030, 1, 1)}, "start_time"),  # noqa: DTZ001: a naive one is refused
    ],
)
async def test_ordered_consumer_refuses_its_own_options(
    jetstream: JetStream, fields: dict[str, object], what: str
) -> None:
    stream = await jetstream.stream("S", bind=True)
    with pytest.raises(ConfigError) as caught:
        stream.ordered_consumer(**fields)  # type: ignore[arg-type]
    assert caught.value.name == what
    with pytest.raises(ConfigError, match="nothing can be fetched from a push consumer"):
        stream.ordered_consumer(push=True).fetch(1)


@BOTH
async def test_stream_that_is_missing_or_goes_is_reported(jetstream: JetStream, push: bool) -> None:
    bound = (await jetstream.stream("nope", bind=True)).ordered_consumer(push=push)
    async with bound.messages() as messages:
        with pytest.raises(StreamNotFound):
            await messages.next(timeout=LONG)
        with pytest.raises(StreamNotFound):
            await bound.wait_created()
    stream = await make(jetstream, 1)
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages() as messages:
        assert (await messages.next()).data == b"1"
        await jetstream.delete_stream("S")
        if push:
            return  # only heartbeats that do not come tell of it: see test_push.py
        with pytest.raises(StreamNotFound):
            await messages.next(timeout=LONG)
    with pytest.raises(StreamNotFound):
        await ordered.fetch(1, timeout=LONG)


async def test_refused_configuration_is_reported(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    ordered = stream.ordered_consumer(filter_subjects=["s.a", "s.>"])
    with pytest.raises(errors.ApiError, match="overlap"):
        await ordered.fetch(1, timeout=LONG)


# ---------------------------------------------------------------- trouble


@BOTH
async def test_deleted_ordered_consumer_is_replaced(
    jetstream: JetStream, nats_client: Client, push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_cursor.PUSH_HEARTBEAT_S", 0.1)
    stream = await make(jetstream)
    ordered = stream.ordered_consumer(push=push)
    seen: list[int] = []
    async with ordered.messages() as messages:
        for number in range(1, 400):
            await store(stream, [number])
            if number % 50 == 0:
                with contextlib.suppress(errors.ConsumerNotFound):  # it is being replaced already
                    await stream.delete_consumer(ordered.name)
            if number % 70 == 0:
                seen.append(int((await messages.next(timeout=LONG)).data))
        while len(seen) < 399:
            seen.append(int((await messages.next(timeout=LONG)).data))
    assert seen == list(range(1, 400))
    await no_consumers(stream)


@BOTH
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
async def test_crash_of_the_server_costs_nothing(
    jetstream: JetStream, nats_server: Server, push: bool, read: bool
) -> None:
    stream = await make(jetstream, 100, storage="file")
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages(prefetch=20) as messages:
        seen = numbers([await messages.next(timeout=LONG) for _ in range(30)])
        reading = asyncio.ensure_future(messages.next(timeout=LONG)) if read else None
        for begin in (101, 201):
            await crash(nats_server, stream)
            await store(stream, range(begin, begin + 100))
        if reading is not None:
            seen.append(int((await reading).data))
        while len(seen) < 300:
            seen.append(int((await messages.next(timeout=LONG)).data))
    assert seen == list(range(1, 301))
    await no_consumers(stream)


@BOTH
async def test_ordered_reader_over_a_purge(jetstream: JetStream, push: bool) -> None:
    stream = await make(jetstream, 1000)
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages(prefetch=10) as messages:
        first = await messages.next()
        await stream.purge()
        await store(stream, range(1001, 1051))
        seen = [first]
        while seen[-1].data != b"1050":
            seen.append(await messages.next(timeout=LONG))
    found = numbers(seen)
    assert found == sorted(set(found))
    assert found[-50:] == list(range(1001, 1051))


@BOTH
async def test_consumer_that_somebody_resets_doubles_nothing(jetstream: JetStream, push: bool) -> None:
    stream = await make(jetstream, 100)
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages(prefetch=200) as messages:
        seen = numbers([await messages.next(timeout=LONG) for _ in range(50)])
        for begin, back_to in ((101, 1), (151, 130)):
            await eventually(lambda: ordered.last_seq == begin - 1)  # noqa: B023  # it is awaited here
            await (await stream.consumer(ordered.name, bind=True)).reset(back_to)
            await store(stream, range(begin, begin + 50))
        while len(seen) < 200:
            seen.append(int((await messages.next(timeout=LONG)).data))
    assert seen == list(range(1, 201))


async def test_deliver_new_misses_none_after_a_lost_consumer(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    ordered = stream.ordered_consumer(deliver_policy="new")
    async with ordered.messages() as messages:
        await ordered.wait_created()
        await stream.delete_consumer(ordered.name)
        await store(stream, [4, 5])
        assert numbers([await messages.next(timeout=LONG), await messages.next(timeout=LONG)]) == [4, 5]


@BOTH
async def test_ordered_reader_gets_lost_messages_again(jetstream: JetStream, nats_client: Client, push: bool) -> None:
    """The consumer is pulled from by somebody else, or what it pushes is not all taken in: a gap."""
    stream = await make(jetstream, 10)
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages() as messages:
        seen = numbers([await messages.next() for _ in range(10)])
        if push:
            subject = (await ordered.info()).config.deliver_subject
            await nats_client.publish(subject, b"forged", reply="$JS.ACK.S.x.1.99.99.1795000000000000000.0")
        else:
            thief = await stream.consumer(ordered.name)
            async with asyncio.TaskGroup() as group:
                stealing = group.create_task(thief.fetch(2, timeout=2.0))
                group.create_task(store(stream, range(11, 14)))
            assert len(stealing.result()) <= 2
        await store(stream, range(14 if not push else 11, 21))
        while len(seen) < 20:
            seen.append(int((await messages.next(timeout=LONG)).data))
    assert seen == list(range(1, 21))


@pytest.mark.slow
async def test_silence_makes_it_begin_anew(jetstream: JetStream, nats_client: Client, nats_server: Server) -> None:
    stream = await make(jetstream, 3)
    ordered = stream.ordered_consumer()
    async with events(nats_client) as seen, ordered.messages(expires=2.0, heartbeat=0.1) as messages:
        assert numbers([await messages.next() for _ in range(3)]) == [1, 2, 3]
        name = ordered.name
        before = len(notices(seen))
        nats_server.freeze()
        await eventually(lambda: len(notices(seen)) > before)
        nats_server.thaw()
        await store(stream, [4])
        assert (await messages.next(timeout=LONG)).data == b"4"
        assert ordered.name != name
    assert isinstance(notices(seen)[0].error, HeartbeatMissed)


async def test_ordered_fetch_in_an_outage_ends_in_time(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url) as nc:
        stream = await make(nc.jetstream(), 3, storage="file")
        ordered = stream.ordered_consumer()
        assert numbers(await ordered.fetch(1)) == [1]
        nats_server.kill()
        assert await ordered.fetch(2, timeout=0.2) == []
        waiting = asyncio.ensure_future(ordered.fetch(2, timeout=LONG))
        await nats_server.restart()
        assert numbers(await waiting) == [2, 3]


async def test_cancelled_anywhere_it_loses_nothing(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 400)
    ordered = stream.ordered_consumer()
    seen: list[int] = []
    tasks = asyncio.all_tasks()

    async def fetch() -> object:
        got = await ordered.fetch(2, timeout=LONG)
        seen.extend(numbers(got))
        return got

    async for run in interruptions(fetch):
        run.check()
        await end_of_tasks(tasks)  # a consumer that was being created is deleted in the background
    while seen[-1] < 400:
        seen += numbers(await ordered.fetch(400 - seen[-1]))
    assert seen == list(range(1, 401))
    await ordered.stop()
    await no_consumers(stream)


async def test_leaving_while_the_consumer_is_created(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 1)
    for turns in range(6):
        async with stream.ordered_consumer().messages():
            for _ in range(turns):
                await asyncio.sleep(0)
        async with stream.ordered_consumer(push=True).messages():
            for _ in range(turns):
                await asyncio.sleep(0)
    await no_consumers(stream)
    assert open_subscriptions(nats_client) == 0


async def test_without_jetstream_it_says_so_at_once() -> None:
    with run_server(jetstream=False) as server:
        async with natsproto.connect(server.url) as nc:
            ordered = (await nc.jetstream().stream("S", bind=True)).ordered_consumer()
            with pytest.raises(errors.JetStreamNotEnabled):
                await ordered.fetch(1, timeout=LONG)
            async with ordered.messages() as messages:
                with pytest.raises(errors.JetStreamNotEnabled):
                    await messages.next(timeout=LONG)


async def test_closing_the_client_ends_reading(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    stream = await make(nc.jetstream(), 2)
    async with stream.ordered_consumer().messages() as messages:
        await eventually(lambda: messages.pending == 2)
        await nc.close()
        assert numbers([message async for message in messages]) == [1, 2]
    with contextlib.suppress(errors.ConnectionClosed):
        assert await stream.ordered_consumer().fetch(1, timeout=1) == []


async def test_old_server_that_is_behind_ends_no_reader(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its INFO does not say what time it is there: that something was stored after it was asked cannot be told."""
    stream = await make(jetstream, 3)
    async with stream.ordered_consumer() as ordered:
        assert numbers(await ordered.fetch(3)) == [1, 2, 3]
        now = await stream.info()
        behind = now.replace(ts=NEVER, state=now.state.replace(last_seq=2, messages=2))
        answers = [behind, behind, behind, now.replace(ts=NEVER)]
        identity = StreamIdentity(ordered._state.api, stream.name, now.created, now.created, operation="go on")
        identity.on_replaced()

        async def get(*_: object, **__: object) -> StreamInfo:
            return answers.pop(0)

        with monkeypatch.context() as patched:
            patched.setattr(ordered._state.api, "call_for", get)
            await identity.verify(lambda: ordered.last_seq)
        assert (answers, identity.unverified) == ([], False)


async def test_ordered_reader_without_stream_info_permission() -> None:
    config = """accounts { A {
        jetstream: enabled
        users = [
            {user: all, password: p}
            {user: few, password: p, permissions: {publish: ["$JS.API.CONSUMER.>", "$JS.API.STREAM.NAMES"]}}
        ]
    } }"""
    denied: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, PermissionViolation):
            denied.append(event.error.subject)

    async with (
        run_server(jetstream=True, config=config) as server,
        natsproto.connect(server.url, user="all", password="p") as nc,
        natsproto.connect(server.url, user="few", password="p", on_event=watch) as restricted,
    ):
        stream = await make(nc.jetstream(), 1)
        theirs = type(stream)(restricted.jetstream()._api, stream.name)
        async with theirs.ordered_consumer().messages() as messages:
            seen = [await messages.next(LONG)]
            for number in (2, 3, 4):
                for name in await consumers(stream):
                    await stream.delete_consumer(name)
                await store(stream, [number])
                seen.append(await messages.next(LONG))
                await restricted.flush()
    assert [message.seq for message in seen] == [1, 2, 3, 4]
    assert denied == [f"$JS.API.STREAM.INFO.{stream.name}"]


@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_cancelled_block_leaves_no_consumer(nats_server: Server, jetstream: JetStream, turns: int) -> None:
    stream = await jetstream.create_stream(name="LEFT", subjects=["left"], storage="memory")

    async def read() -> None:
        async with natsproto.connect(nats_server.url) as nc:
            other = await nc.jetstream().stream("LEFT")
            async with other.ordered_consumer() as ordered:
                entering.set()
                async with ordered.messages() as messages:
                    await messages.next()

    entering = asyncio.Event()
    await cancel_after(turns, entering, read())
    await no_consumers(stream)


async def test_until_drained_ends_with_the_last_message(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    async with stream.ordered_consumer() as ordered:
        assert [message async for message in ordered.until_drained()] == []
        await store(stream, range(1200))  # more than one fetch
        assert [message.seq async for message in ordered.until_drained()] == [*range(1, 1201)]
        await store(stream, range(1200, 1210))
        async with contextlib.aclosing(ordered.until_drained()) as some:
            async for message in some:
                if message.seq == 1203:
                    break
        assert [message.seq async for message in ordered.until_drained()] == [*range(1204, 1211)]
        await stream.delete_consumer(ordered.name)
        await store(stream, range(1210, 1215))
        assert [message.seq async for message in ordered.until_drained()] == [*range(1211, 1216)]
        assert [message async for message in ordered.until_drained()] == []
    with pytest.raises(ConfigError):
        [message async for message in stream.ordered_consumer(push=True).until_drained()]


async def test_reader_and_its_consumer_stop_at_once(jetstream: JetStream) -> None:
    """Each of them waits for the answer to a pull that was sent just now."""
    stream = await make(jetstream, 10)
    for first in (False, True):
        consumer = stream.ordered_consumer()
        async with consumer.messages() as messages:
            await messages.next()
            stopping = [asyncio.create_task(one.stop()) for one in (messages, consumer)]
            if first:
                await asyncio.sleep(0)
                stopping[0].cancel()
            await consumer.stop()
            results = await asyncio.gather(*stopping, return_exceptions=True)
        assert [one for one in results if one is not None and not isinstance(one, asyncio.CancelledError)] == []
