"""Answering for messages: once, with every answer there is, and told apart by the server."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import AlreadyAcked, ConfigError, LocalProtocolError, RequestTimeout
from natsproto.jetstream._consumer.ack_subject import Metadata, read_ack_subject
from natsproto.jetstream._consumer.message import JsMessage, extend_all, nak_all
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.frames import Message
from natsproto.testing import run_server
from tests.core.helpers import scripted_network
from tests.jetstream.reading import known, make, store
from tests.kit.clock import advance, virtual_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

ANSWERS: dict[str, Callable[[JsMessage], Awaitable[None]]] = {
    "ack": lambda message: message.ack(),
    "ack_sync": lambda message: message.ack_sync(),
    "term": lambda message: message.term(),
    "nak": lambda message: message.nak(delay=60),
}
AT_ONCE: dict[str, Callable[[JsMessage], None]] = {
    "ack": lambda message: message.ack_nowait(),
    "term": lambda message: message.term_nowait("enough"),
    "nak": lambda message: message.nak_nowait(delay=60),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_ack_of_every_kind_counts_once(jetstream: JetStream, answer: str) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    message = await consumer.next()
    before = message.is_acked
    await ANSWERS[answer](message)
    assert (before, message.is_acked) == (False, True)
    if answer != "nak":
        await known(consumer, lambda info: not info.num_ack_pending)
    for again in ANSWERS.values():
        with pytest.raises(AlreadyAcked) as caught:
            await again(message)
        assert caught.value.first_ack == ("ack" if answer == "ack_sync" else answer)
        assert caught.value.subject == "s.a"
    with pytest.raises(AlreadyAcked):
        await message.in_progress()
    assert repr(message).startswith("JsMessage(subject='s.a', data=b'1', ")


@pytest.mark.parametrize("answer", AT_ONCE)
async def test_answers_that_never_wait(jetstream: JetStream, answer: str) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    message = await consumer.next()
    AT_ONCE[answer](message)
    for again in AT_ONCE.values():
        with pytest.raises(AlreadyAcked):
            again(message)
    if answer != "nak":
        await known(consumer, lambda info: not info.num_ack_pending)


@pytest.mark.parametrize(("settle", "words"), [(extend_all, b"+WPI"), (nak_all, b"-NAK")])
async def test_others_than_one_that_cannot_be_settled(
    jetstream: JetStream, nats_client: Client, settle: Callable[[list[JsMessage]], None], words: bytes
) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    first, second, third = await consumer.fetch(3, timeout=30)
    await first.ack()
    second._reply = b"nobody"  # what another client has published to the inbox
    async with nats_client.subscribe("$JS.ACK.>") as acks:
        await nats_client.flush()
        settle([first, second, third])
        assert (await acks.next(timeout=30)).data == words


async def test_nak_brings_it_back_now_or_later(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    await (await consumer.next()).nak()
    message = await consumer.next(timeout=30)
    assert message.metadata.num_delivered == 2
    asked = asyncio.get_running_loop().time()
    await message.nak(delay=0.4)
    again = await consumer.next(timeout=30)
    assert asyncio.get_running_loop().time() - asked > 0.35
    assert again.metadata.num_delivered == 3
    with pytest.raises(ConfigError):
        await (await _next_of_stored(jetstream, consumer_name="d", number=2)).nak(delay=-1)


async def _next_of_stored(js: JetStream, *, consumer_name: str, number: int) -> JsMessage:
    stream = await js.stream("S")
    await store(stream, [number])
    return await (await stream.consumer(consumer_name)).next()


async def test_reason_of_a_term_is_in_the_advisory(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    async with nats_client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>") as advisories:
        await nats_client.flush()
        await (await consumer.next()).term("no such customer")
        reported = json.loads((await advisories.next(timeout=30)).data)
    assert reported["reason"] == "no such customer"


@pytest.mark.slow
async def test_progress_starts_the_time_anew(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=6.0)
    message = await consumer.next()
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.3)  # of the server's own six seconds
    said = loop.time()
    await message.in_progress()
    again = await consumer.next(timeout=30)
    assert again.metadata.num_delivered == 2
    assert loop.time() - said > 5.9
    await again.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


@pytest.mark.slow
@pytest.mark.parametrize("bind", [False, True])
async def test_keep_alive_of_a_job_longer_than_ack_wait(jetstream: JetStream, bind: bool) -> None:
    stream = await make(jetstream, 1)
    await stream.create_consumer(durable_name="d", ack_wait=6.0)
    consumer = await stream.consumer("d", bind=bind)
    message = await consumer.next()
    assert message.ack_wait == (1.5 if bind else 6.0)
    async with message.keep_alive():
        assert await (await stream.consumer("d")).fetch(1, timeout=6.5) == []
        await message.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


@pytest.mark.parametrize(("ack_wait", "pause"), [(30.0, 10.0), (None, 0.5)])
@virtual_clock
async def test_keep_alive_sends_three_times_within_ack_wait(ack_wait: float | None, pause: float) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        loop, said = asyncio.get_running_loop(), list[float]()
        answered, left = (JsMessage("s", f"$JS.ACK.S.C.1.{n}.{n}.1795.0".encode(), b"", None, nc) for n in (1, 2))
        answered._note = left._note = ack_wait
        began = loop.time()
        async with answered.keep_alive():
            for _ in range(9):
                await net.server.expect("PUB", "$JS.ACK.S.C.1.1.1.1795.0", payload=b"+WPI", timeout=2 * pause)
                said.append(loop.time() - began)
            await answered.ack()
            await advance(10 * pause)
        async with left.keep_alive():
            await advance(0.5 * pause)
        await advance(10 * pause)
        assert said == [pytest.approx(pause * number, rel=0.01) for number in range(1, 10)]
        assert net.server.count("PUB") == 10


async def test_keep_alive_ends_with_its_block_and_the_ack(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=0.3)
    first, second = await consumer.fetch(2)
    async with first.keep_alive(0.05):
        pass
    async with second.keep_alive(0.05):
        await second.ack()
    assert (await consumer.next(timeout=30)).data == b"1"
    with pytest.raises(ConfigError):
        async with second.keep_alive(0):
            pass


@pytest.mark.slow
async def test_consume_keeps_long_jobs_alive(jetstream: JetStream) -> None:
    stream = await make(jetstream, 2)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=6.0)
    seen: list[int] = []

    async def handler(message: JsMessage) -> None:
        await asyncio.sleep(6.5)  # longer than the server's own six seconds
        seen.append(message.metadata.num_delivered)

    await consumer.consume(handler, stop_after=2, concurrency=2, keep_alive=True, on_success="ack_sync").run()
    assert seen == [1, 1]
    assert (await consumer.info()).num_ack_pending == 0


@pytest.mark.slow
async def test_confirmed_ack_that_failed_can_be_tried_again(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream, 1, storage="file")
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    message = await consumer.next()
    nats_server.freeze()
    with pytest.raises(RequestTimeout):
        await message.ack_sync(timeout=0.1)
    nats_server.thaw()
    before = message.is_acked
    await message.ack_sync()
    assert (before, message.is_acked) == (False, True)
    assert (await consumer.info()).num_ack_pending == 0


# ---------------------------------------------------------------- what the ack subject tells


async def test_metadata_tells_where_a_message_stands(jetstream: JetStream) -> None:
    stream = await make(jetstream, 3)
    consumer = await stream.create_consumer(durable_name="d", filter_subject="s.>")
    message = (await consumer.fetch(2))[1]
    reported = message.metadata
    assert reported == Metadata(
        domain="",
        stream="S",
        consumer="d",
        num_delivered=1,
        stream_seq=2,
        consumer_seq=2,
        timestamp=reported.timestamp,
        num_pending=1,
    )
    assert message._position == ("d", 2, 2)
    assert (await stream.get_message(2)).time == reported.timestamp


async def test_acknowledgements_of_the_second_kind_work() -> None:
    with run_server(jetstream=True, config="feature_flags { js_ack_fc_v2: true }") as server:
        async with natsproto.connect(server.url) as nc:
            stream = await make(nc.jetstream(), 3)
            consumer = await stream.create_consumer(durable_name="d")
            for number, message in enumerate(await consumer.fetch(3), 1):
                assert message.reply is not None
                assert len(message.reply.split(".")) == 11
                assert message.metadata.stream_seq == number
                assert (message.metadata.domain, message.metadata.stream, message.metadata.consumer) == ("", "S", "d")
                assert message._position == ("d", number, number)
                await message.ack_sync()
            assert (await consumer.info()).num_ack_pending == 0
            ordered = stream.ordered_consumer()
            assert [message._position[2] for message in await ordered.fetch(3)] == [1, 2, 3]
            await ordered.stop()


WHEN = Timestamp.from_ns(1_795_000_000_000_000_001)


@pytest.mark.parametrize(
    ("subject", "domain"),
    [
        ("$JS.ACK.S.C.2.3.4.1795000000000000001.5", ""),
        ("$JS.ACK._.acchash.S.C.2.3.4.1795000000000000001.5", ""),
        ("$JS.ACK.hub.acchash.S.C.2.3.4.1795000000000000001.5", "hub"),
        ("$JS.ACK.hub.acchash.S.C.2.3.4.1795000000000000001.5.more.to.come", "hub"),
    ],
)
def test_ack_subjects_of_both_kinds_are_read(subject: str, domain: str) -> None:
    assert read_ack_subject(subject) == Metadata(
        domain=domain,
        stream="S",
        consumer="C",
        num_delivered=2,
        stream_seq=3,
        consumer_seq=4,
        timestamp=WHEN,
        num_pending=5,
    )
    message = JsMessage("s", subject.encode(), b"", None)
    assert message._position == ("C", 4, 3)
    assert (message.stream, message.time) == ("S", WHEN)
    assert message.seq == 3
    assert message.reply == subject  # a str from here on
    assert message.seq == 3


def test_metadata_is_a_value() -> None:
    subject = "$JS.ACK.S.C.2.3.4.1795000000000000001.5"
    fresh, read = read_ack_subject(subject), read_ack_subject(subject)
    assert read.timestamp == WHEN
    assert copy.deepcopy(fresh) == read == pickle.loads(pickle.dumps(fresh))
    assert hash(fresh) == hash(read)
    assert repr(read_ack_subject(subject)) == repr(read)
    assert fresh.replace(stream="T").timestamp == WHEN
    assert not hasattr(fresh, "nothing")


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.S.C.2.3.4.1795000000000000001",
        "$JS.ACK.a.S.C.2.3.4.1795000000000000001.5",  # ten tokens
        "$JS.ACK.S.C.two.3.4.1795000000000000001.5",
        "$JS.ACK.S.C.2.3.4.99999999999999999999999999.5",
        "$JS.ACK",
    ],
)
def test_what_is_no_ack_subject_is_reported(subject: str) -> None:
    with pytest.raises(LocalProtocolError, match="is not an ack subject"):
        read_ack_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.S.C.2.3.4.1795000000000000001",
        "$JS.ACK.a.S.C.2.3.4.1795000000000000001.5",  # ten tokens
        "$JS.ACK.S.C.2.three.4.1795000000000000001.5",
        "$JS.ACK.hub.acchash.S.C.2.three.4.1795000000000000001.5",
        "$JS.ACK.",
        "a.b.S.C.2.3.4.1795000000000000001.5",
    ],
)
@pytest.mark.parametrize("looked_at", [False, True])
def test_a_message_that_stands_nowhere_has_no_sequence(subject: str, looked_at: bool) -> None:
    message = JsMessage("s", subject.encode(), b"", None)
    if looked_at:
        assert message.reply == subject
    for attribute in ("seq", "_position"):
        with pytest.raises(LocalProtocolError, match=r"is not an ack subject|was not delivered by a consumer"):
            getattr(message, attribute)


async def test_plain_message_of_a_stream_is_acknowledged(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_push_consumer(durable_name="d", deliver_subject="deliver.here", ack_wait=60)
    async with nats_client.subscribe("deliver.here") as deliveries:
        await store(stream, [1])
        plain = await deliveries.next(timeout=30)
    message = jetstream.message(plain)
    assert (message.data, message.subject, message.metadata.stream_seq) == (b"1", "s.a", 1)
    await message.ack()
    await known(consumer, lambda info: not info.num_ack_pending)
    with pytest.raises(LocalProtocolError, match="was not delivered by a consumer"):
        jetstream.message(Message("s", None, b"", None, nats_client))
    with pytest.raises(LocalProtocolError, match="is not an ack subject"):
        jetstream.message(Message("s", b"$JS.ACK.S.C", b"", None, nats_client))


async def test_message_from_nowhere_cannot_be_answered() -> None:
    message = JsMessage("s", b"$JS.ACK.S.C.2.3.4.1795000000000000001.5", b"", None)
    with pytest.raises(LocalProtocolError, match="it cannot be acknowledged"):
        await message.ack()
    assert not message.is_acked


async def test_respond_to_a_stored_message_is_refused(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d", ack_wait=60)
    message = await consumer.next()
    with pytest.raises(LocalProtocolError, match=r"acknowledge it with ack\(\), nak\(\) or term\(\)"):
        await message.respond(b"+ACK")
    assert not message.is_acked
    assert (await consumer.info()).num_ack_pending == 1
