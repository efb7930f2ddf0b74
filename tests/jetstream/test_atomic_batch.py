"""Atomic batches on a real server, and on a scripted one that loses things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsproto._client import Client
from natsproto.errors import (
    ApiError,
    BatchRefused,
    ConfigError,
    LocalProtocolError,
    NoStream,
    PublishUncertain,
    RequestTimeout,
    TooManyRequests,
    UnsupportedByServer,
    WrongLastSequence,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._stream.stream import Stream
from tests.core.helpers import ScriptedNetwork, scripted_network
from tests.jetstream.script import STEP, StreamScript
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour, Op


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(
        name="A", subjects=["a.>"], storage="memory", allow_atomic=True, allow_direct=True
    )


async def count(stream: Stream) -> int:
    return (await stream.info()).state.messages


# ---------------------------------------------------------------- on a real server


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_leaving_the_block_stores_all_of_it(jetstream: JetStream, stream: Stream, size: int) -> None:
    async with jetstream.atomic_batch() as batch:
        for number in range(size):
            await batch.publish(f"a.{number % 3}", b"%d" % number)
            assert await count(stream) == 0 or size == 1000
        assert len(batch) == size
    assert (batch.ack.stream, batch.ack.seq, batch.ack.count) == ("A", size, size)
    assert [int(message.data) async for message in stream.get_batch()] == list(range(size))


async def test_exception_in_a_batch_stores_nothing(jetstream: JetStream, stream: Stream) -> None:
    for _ in range(60):  # more than a server keeps in flight
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with jetstream.atomic_batch() as batch:
                await batch.publish("a.1")
                await batch.publish("a.2")
                raise ZeroDivisionError
    with pytest.raises(LocalProtocolError, match="it was not committed"):
        _ = batch.ack
    assert await count(stream) == 0


async def test_an_empty_batch_is_nothing(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.atomic_batch() as batch:
        pass
    with pytest.raises(LocalProtocolError, match="it has no messages"):
        _ = batch.ack
    assert await jetstream.atomic_batch().commit() is None


async def test_a_batch_is_over_when_it_was_committed(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.atomic_batch() as batch:
        await batch.publish("a.1")
        with pytest.raises(LocalProtocolError, match="it was not committed"):
            _ = batch.ack
        ack = await batch.commit()
        assert ack == batch.ack
        for call in (batch.publish("a.2"), batch.commit(), batch.flush()):
            with pytest.raises(LocalProtocolError):
                await call
    assert await count(stream) == 1


async def test_flushed_batch_ends_with_an_empty_commit(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.atomic_batch() as batch:
        for number in range(5):
            await batch.publish("a.1", b"%d" % number)
        await batch.flush()
        await batch.flush()
        assert await count(stream) == 0
    assert (batch.ack.count, batch.ack.seq, await count(stream)) == (5, 5, 5)


async def test_wrong_expectation_at_commit_stores_nothing(jetstream: JetStream, stream: Stream) -> None:
    await jetstream.publish("a.1")
    with pytest.raises(WrongLastSequence):  # noqa: PT012
        async with jetstream.atomic_batch() as batch:
            await batch.publish("a.1", expected_last_seq=9)
            await batch.publish("a.2")
    with pytest.raises(WrongLastSequence):  # noqa: PT012
        async with jetstream.atomic_batch() as batch:
            await batch.publish("a.2")
            await batch.publish("a.1", expected_last_subject_seq=0)
    assert await count(stream) == 1
    async with jetstream.atomic_batch() as batch:
        await batch.publish("a.1", expected_last_seq=1)
        await batch.publish("a.2", expected_last_subject_seq=0)
    assert await count(stream) == 3


async def test_batch_rules_are_checked_before_sending(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.atomic_batch(max_messages=2) as batch:
        with pytest.raises(ConfigError):
            await batch.publish("a.1", expected_last_msg_id="x")
        await batch.publish("a.1")
        with pytest.raises(ConfigError):
            await batch.publish("a.1", expected_last_seq=1)
        with pytest.raises(ConfigError):
            await batch.publish("a b")
        await batch.publish("a.2")
        with pytest.raises(LocalProtocolError, match="2 messages at most"):
            await batch.publish("a.3")
    assert await count(stream) == 2


async def test_batch_beyond_the_server_limit_is_refused(jetstream: JetStream, stream: Stream) -> None:
    with pytest.raises(BatchRefused):  # noqa: PT012
        async with jetstream.atomic_batch(max_messages=2000) as batch:
            for _ in range(1001):
                await batch.publish("a.1")
    assert await count(stream) == 0


async def test_ids_in_a_batch_are_stored_once(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.atomic_batch() as batch:
        await batch.publish("a.1", msg_id="1")
        await batch.publish("a.1", msg_id="2")
    with pytest.raises(BatchRefused) as caught:  # noqa: PT012
        async with jetstream.atomic_batch() as batch:
            await batch.publish("a.1", msg_id="3")
            await batch.publish("a.1", msg_id="2")
    assert caught.value.err_code == 10201
    assert await count(stream) == 2


@pytest.mark.parametrize("size", [1, 2])
async def test_a_stream_that_does_not_allow_it_says_so(jetstream: JetStream, size: int) -> None:
    await jetstream.create_stream(name="N", subjects=["n"], storage="memory")
    with pytest.raises(BatchRefused) as caught:  # noqa: PT012
        async with jetstream.atomic_batch() as batch:
            for _ in range(size):
                await batch.publish("n")
    assert caught.value.err_code == 10174


async def test_no_stream_is_said(jetstream: JetStream) -> None:
    with pytest.raises(NoStream):
        async with jetstream.atomic_batch(retry_wait=0.01) as batch:
            await batch.publish("nowhere")
    with pytest.raises(NoStream):  # noqa: PT012
        async with jetstream.atomic_batch(retry_wait=0.01) as batch:
            await batch.publish("nowhere")
            await batch.publish("nowhere")


async def test_a_batch_that_waited_too_long_is_sent_again(jetstream: JetStream, stream: Stream) -> None:
    """The server forgets a batch after ten seconds of silence; a gap makes it do so at once."""
    async with jetstream.atomic_batch() as batch:
        for number in range(4):
            await batch.publish("a.1", b"%d" % number)
        batch._abandon()
    assert batch.ack.count == 4
    assert [message.data async for message in stream.get_batch()] == [b"0", b"1", b"2", b"3"]


async def test_many_batches_at_once(jetstream: JetStream, stream: Stream) -> None:
    async def one(name: int) -> None:
        async with jetstream.atomic_batch() as batch:
            for number in range(20):
                await batch.publish(f"a.{name}", b"%d" % number)

    await asyncio.gather(*(one(name) for name in range(40)))
    held = [message.subject async for message in stream.get_batch()]
    assert len(held) == 800
    assert all(len(set(held[index : index + 20])) == 1 for index in range(0, 800, 20)), "batches are mixed"


# ---------------------------------------------------------------- on a scripted one


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[ScriptedNetwork, Client, StreamScript]]:
    """A client on a server that knows batches, whose streams are played by the test."""
    async with scripted_network(Behaviour(route=False, greeting={"api_lvl": 2})) as net:
        yield net, await net.connect(), StreamScript(net)


def header(op: Op, name: str) -> str:
    return op.headers.decode().partition(f"{name}: ")[2].partition("\r")[0]


def message_and_batch_headers(ops: list[Op]) -> list[tuple[bytes, str, str]]:
    return [(op.payload, header(op, "Nats-Batch-Sequence"), header(op, "Nats-Batch-Commit")) for op in ops]


async def fill_batch(batch: AtomicBatch, size: int) -> None:
    for number in range(size):
        await batch.publish("a", b"%d" % number)


@virtual_clock
async def test_batch_waits_for_its_first_message_and_commit() -> None:
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch()
        filling = asyncio.create_task(fill_batch(batch, 4))
        first = await stream.heard()
        assert await stream.silent(0.9)
        stream.say(first, b"")
        await filling
        rest = await stream.heard_all(2)
        assert all(len(op.args) == 1 for op in rest), "they have no reply subject"
        assert message_and_batch_headers([first, *rest]) == [(b"0", "1", ""), (b"1", "2", ""), (b"2", "3", "")]
        committing = asyncio.create_task(batch.commit())
        last = await stream.heard()
        assert message_and_batch_headers([last]) == [(b"3", "4", "1")]
        assert len({header(op, "Nats-Batch-Id") for op in (first, *rest, last)}) == 1
        stream.ack(last, 9, batch="x", count=4)
        ack = await committing
        assert ack is not None
        assert (ack.seq, ack.count) == (9, 4)


@virtual_clock
async def test_incomplete_batch_is_sent_again_with_a_new_id() -> None:
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch()
        filling = asyncio.create_task(fill_batch(batch, 3))
        first = await stream.heard()
        stream.say(first, b"")
        await filling
        await stream.heard()
        committing = asyncio.create_task(batch.commit())
        stream.refuse(await stream.heard(), 10176, "batch publish is incomplete and was abandoned")
        await stream.search_finds_nothing()
        again = [await stream.heard()]
        stream.say(again[0], b"")
        again += await stream.heard_all(2)
        assert message_and_batch_headers(again) == [(b"0", "1", ""), (b"1", "2", ""), (b"2", "3", "1")]
        assert header(again[0], "Nats-Batch-Id") != header(first, "Nats-Batch-Id")
        stream.ack(again[2], 3, batch="x", count=3)
        await committing


@virtual_clock
async def test_first_message_is_sent_again_with_a_new_id() -> None:
    async with stage() as (_, nc, stream):
        loop = asyncio.get_running_loop()
        batch = nc.jetstream(timeout=20).atomic_batch()
        begun = loop.time()
        filling = asyncio.create_task(fill_batch(batch, 2))
        asked = await stream.heard_all(4)  # after 1, 3 and 7 seconds
        assert 7.0 <= loop.time() - begun < 7.1
        assert message_and_batch_headers(asked) == [(b"0", "1", "")] * 4
        assert len({header(op, "Nats-Batch-Id") for op in asked}) == 4
        stream.say(asked[0], b"")  # too late: what was told since is another batch
        assert await stream.silent()
        assert not filling.done()
        stream.say(asked[3], b"")
        await filling
        committing = asyncio.create_task(batch.commit())
        last = await stream.heard()
        assert (message_and_batch_headers([last]), header(last, "Nats-Batch-Id")) == (
            [(b"1", "2", "1")],
            header(asked[3], "Nats-Batch-Id"),
        )
        stream.ack(last, 2, batch="x", count=2)
        await committing


@virtual_clock
async def test_a_first_message_is_given_up_at_the_timeout() -> None:
    async with stage() as (_, nc, stream):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(RequestTimeout, match="within 5 s"):
            await fill_batch(nc.jetstream().atomic_batch(), 2)
        assert 5.0 <= loop.time() - begun < 5.1
        assert len(await stream.heard_all(3)) == 3
        assert await stream.silent(20)


@virtual_clock
async def test_connection_lost_before_the_commit() -> None:
    async with stage() as (net, nc, stream):
        batch = nc.jetstream().atomic_batch()
        await batch.publish("a", b"0")
        publishing = asyncio.create_task(batch.publish("a", b"1"))
        await stream.heard(b"0")
        net.down()
        await publishing
        net.up()
        committing = asyncio.create_task(batch.commit())
        stream.say(await stream.heard(b"0"), b"")
        stream.ack(await stream.heard(b"1"), 2, batch="x", count=2)
        assert await committing is not None


@virtual_clock
async def test_connection_lost_after_the_commit_is_uncertain() -> None:
    async with stage() as (net, nc, stream):
        batch = nc.jetstream().atomic_batch()
        await batch.publish("a", b"0")
        committing = asyncio.create_task(batch.commit())
        await stream.heard()
        net.down()
        with pytest.raises(PublishUncertain, match="commit of a batch of 1"):
            await committing
        net.up()
        assert await stream.silent(2.0)
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch(timeout=2)
        await batch.publish("a", b"0")
        with pytest.raises(PublishUncertain):
            await batch.commit()


@virtual_clock
async def test_a_busy_server_is_asked_again() -> None:
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch()
        filling = asyncio.create_task(fill_batch(batch, 2))
        stream.refuse(await stream.heard(), 10210, "too many inflight", 429)
        stream.say(await stream.heard(), b"")
        await filling
        committing = asyncio.create_task(batch.commit())
        stream.refuse(await stream.heard(b"1"), 10163, "not ready", 503)
        stream.say(await stream.heard(b"0"), b"")
        stream.ack(await stream.heard(b"1"), 2, batch="x", count=2)
        await committing

    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch(timeout=1)
        filling = asyncio.create_task(fill_batch(batch, 2))
        while not filling.done():
            await advance(STEP)
            if (op := stream._next(None)) is not None:
                stream._heard.append(op)
                stream.refuse(op, 10210, "too many inflight", 429)
        with pytest.raises(TooManyRequests):
            await filling


@virtual_clock
async def test_an_election_at_the_commit_is_waited_for() -> None:
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch()
        await batch.publish("a", b"0")
        committing = asyncio.create_task(batch.commit())
        stream.nobody(await stream.heard())
        stream.ack(await stream.heard(), 1, batch="x", count=1)
        await committing
        batch = nc.jetstream().atomic_batch()
        await batch.publish("a", b"0")
        committing = asyncio.create_task(batch.commit())
        for _ in range(3):
            stream.nobody(await stream.heard())
        with pytest.raises(NoStream):
            await committing


@virtual_clock
async def test_a_server_that_knows_no_batches_is_found_out() -> None:
    async with stage() as (_, nc, stream):
        filling = asyncio.create_task(fill_batch(nc.jetstream().atomic_batch(), 2))
        stream.ack(await stream.heard(), 4)
        with pytest.raises(UnsupportedByServer, match="stored the message alone"):
            await filling


@virtual_clock
async def test_a_batch_that_is_lost_every_time_ends() -> None:
    async with stage() as (_, nc, stream):
        batch = nc.jetstream().atomic_batch()
        await batch.publish("a", b"0")
        committing = asyncio.create_task(batch.commit())
        for _ in range(4):
            stream.refuse(await stream.heard(), 10176, "incomplete")
            await stream.search_finds_nothing()
        with pytest.raises(ApiError) as caught:
            await committing
        assert caught.value.err_code == 10176


async def test_copied_headers_of_a_batch_are_refused(jetstream: JetStream) -> None:
    """The server would obey a copied commit, and take a single message for a part of a batch."""
    stream = await jetstream.create_stream("S", subjects=["s.>"], allow_atomic=True)
    async with jetstream.atomic_batch() as batch:
        await batch.publish("s.a", b"1")
        await batch.publish("s.a", b"2")
    copied = (await stream.get_message(2)).headers
    assert "Nats-Batch-Commit" in copied
    async with jetstream.atomic_batch() as batch:
        await batch.publish("s.b", b"3")
        with pytest.raises(ConfigError, match="leave it out"):
            await batch.publish("s.b", b"4", headers=copied)
    for headers in (copied, dict(copied)):
        with pytest.raises(ConfigError, match="leave it out"):
            await jetstream.publish("s.b", headers=headers)
        with pytest.raises(ConfigError, match="leave it out"):
            async with jetstream.publisher() as publisher:
                await publisher.publish("s.b", headers=headers, msg_id="a")
    assert [message.data async for message in stream.get_batch(subject="s.b")] == [b"3"]
