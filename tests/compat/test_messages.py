"""Messages and subscriptions of nats-py on natsproto: their fields, their ends and their errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.js import errors as js_errors
from natsproto.compat.nats.nuid import MAX_SEQ, NUID
from natsproto.testing import Server, run_server
from tests.compat.scenarios import CallbackLog
from tests.kit.waiting import until


async def test_message_made_by_hand(nc: nats.NATS) -> None:
    msg = Msg(nc, "a")
    assert (msg.reply, msg.data, msg.headers, msg.is_acked) == ("", b"", None, False)
    with pytest.raises(nats.errors.Error, match="sid not set"):
        _ = msg.sid
    with pytest.raises(nats.errors.Error, match="no reply subject"):
        await msg.respond(b"")
    with pytest.raises(nats.errors.Error, match="client not set"):
        await Msg(None, "a", reply="b").respond(b"")  # type: ignore[arg-type]  # a message without a client
    for settle in (msg.ack, msg.nak, msg.term, msg.in_progress, msg.ack_sync):
        with pytest.raises(nats.errors.NotJSMessageError):
            await settle()


async def test_nak_with_a_delay_says_so(nc: nats.NATS) -> None:
    sub = await nc.subscribe("ack")
    await Msg(nc, "a", reply="ack").nak(delay=1.5)
    assert (await sub.next_msg()).data == b'-NAK {"delay": 1500000000}'


async def test_metadata_is_read_from_the_reply(nc: nats.NATS) -> None:
    short = Msg(nc, "a", reply="$JS.ACK.S.C.2.30.4.1500000000000000000.7")
    meta = short.metadata
    assert (meta.stream, meta.consumer, meta.num_delivered, meta.num_pending, meta.domain) == ("S", "C", 2, 7, None)
    assert (meta.sequence.stream, meta.sequence.consumer) == (30, 4)
    assert meta.timestamp == datetime.fromtimestamp(1_500_000_000, UTC)
    assert short.metadata is meta
    for domain, token in (("hub", "hub"), ("", "_")):
        long = Msg(nc, "a", reply=f"$JS.ACK.{token}.hash.S.C.2.30.4.1500000000000000000.7.random")
        assert (long.metadata.domain, long.metadata.sequence) == (domain, meta.sequence)
    for wrong in ("", "_INBOX.a.b", "$JS.ACK.S.C.2.30.4.15", "$JS.ACK.S.C.2.30.4.15.7.8"):
        with pytest.raises(nats.errors.NotJSMessageError):
            _ = Msg(nc, "a", reply=wrong).metadata


async def test_status_is_among_the_headers(nc: nats.NATS) -> None:
    """No responders come as a message to programs that publish a request by hand."""
    sub = await nc.subscribe("answers")
    await nc.publish("nobody", b"", reply="answers")
    msg = await sub.next_msg()
    assert (msg.headers or {})["Status"] == "503"
    assert nc.jetstream().is_status_msg(msg) == "503"
    assert nc.jetstream().is_status_msg(None) is None


async def test_msg_class_is_the_programs(nats_server: Server) -> None:
    class Order(Msg):
        @property
        def number(self) -> int:
            return int(self.data)

    nc = nats.NATS()
    nc.msg_class = Order
    await nc.connect(nats_server.url)
    seen: asyncio.Queue[Msg] = asyncio.Queue()
    read = await nc.subscribe("a")
    await nc.subscribe("a", cb=seen.put)
    future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    await nc.subscribe("a", future=future)
    for _ in range(2):  # a future takes the first and no more
        await nc.publish("a", b"7", reply="r", headers={"K": "v"})
    for msg in (await read.next_msg(), await seen.get(), await future):
        assert isinstance(msg, Order)
        assert (msg.number, msg.subject, msg.reply, msg.headers) == (7, "a", "r", {"K": "v"})
    await nc.flush()
    await nc.close()


async def test_subscription_counts_what_waits(nc: nats.NATS) -> None:
    sub = await nc.subscribe("a")
    await nc.publish("a", b"123")
    await nc.publish("a", b"45")
    await until(lambda: sub.pending_msgs == 2)
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (2, 5, 2)
    await sub.next_msg()
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (1, 2, 2)


async def test_subscription_drains_and_ends_once(nc: nats.NATS) -> None:
    seen: list[bytes] = []

    async def handler(msg: Msg) -> None:
        seen.append(msg.data)

    sub = await nc.subscribe("a", cb=handler)
    for number in range(3):
        await nc.publish("a", b"%d" % number)
    await sub.drain()
    assert seen == [b"0", b"1", b"2"]
    for end in (sub.drain, sub.unsubscribe):
        with pytest.raises(nats.errors.BadSubscriptionError):
            await end()
    reached = await nc.subscribe("b")
    await nc.publish("b")
    await reached.next_msg()
    await reached.unsubscribe(limit=1)
    with pytest.raises(nats.errors.BadSubscriptionError):
        await reached.unsubscribe()


async def test_subscription_of_a_closed_client(nc: nats.NATS) -> None:
    sub = await nc.subscribe("a")
    reading = asyncio.create_task(sub.next_msg(timeout=None))
    with pytest.raises(nats.errors.TimeoutError):
        await (await nc.subscribe("b")).next_msg(timeout=0.01)
    await nc.close()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await reading
    for call in (sub.next_msg, sub.unsubscribe, sub.drain):
        with pytest.raises(nats.errors.ConnectionClosedError):
            await call()
    assert [msg async for msg in sub.messages] == []


async def test_drain_of_a_subscription_while_draining(nats_server: Server) -> None:
    nc = await nats.connect(nats_server.url)
    go = asyncio.Event()
    started = asyncio.Event()

    async def handler(msg: Msg) -> None:
        started.set()
        await go.wait()

    sub = await nc.subscribe("a", cb=handler)
    await nc.publish("a")
    await started.wait()
    draining = asyncio.create_task(nc.drain())
    while not nc.is_draining:  # noqa: ASYNC110  # at the next step of the loop, or the one after
        await asyncio.sleep(0)
    with pytest.raises(nats.errors.ConnectionDrainingError):
        await sub.unsubscribe()
    go.set()
    await draining


async def test_outbox_limit_of_an_outage_is_reported() -> None:
    log = CallbackLog()
    async with run_server() as server:
        nc = await nats.connect(server.url, pending_size=10, reconnect_time_wait=30, **log.callbacks())
        server.kill()
        await log.until("disconnected_cb")
        with pytest.raises(nats.errors.OutboundBufferLimitError):
            await nc.publish("a", bytes(100))
        await nc.close()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nats.errors.BadHeaderError(), "nats: invalid header"),
        (lambda: nats.errors.BadHeaderError("a b"), "nats: invalid header: 'a b'"),
        (lambda: nats.errors.Error("anything"), "anything"),
        (lambda: nats.errors.DrainTimeoutError(), "nats: draining connection timed out"),
        (lambda: nats.errors.MsgAlreadyAckdError(), "nats: message was already acknowledged: None"),
        (
            lambda: nats.errors.SlowConsumerError("a", "", 3, None),  # type: ignore[arg-type]  # only shown
            "nats: slow consumer, messages dropped subject: a, sid: 3, sub: None",
        ),
        (lambda: js_errors.Error("why"), "nats: JetStream.Error why"),
        (lambda: js_errors.NotFoundError(404, "no", 1), "nats: NotFoundError: code=404 err_code=1 description='no'"),
        (lambda: js_errors.NoKeysError(), "nats: no keys found"),
        (lambda: js_errors.KeyDeletedError(op="DEL"), "nats: key was deleted"),
        (lambda: js_errors.KeyNotFoundError(message="m"), "nats: key not found: m"),
        (
            lambda: js_errors.ConsumerSequenceMismatchError(7, 3, 5),
            "nats: sequence mismatch for consumer at sequence 3 (2 sequences behind), "
            "should restart consumer from stream sequence 7",
        ),
    ],
)
def test_error_text_is_that_of_nats_py(make: Callable[[], Exception], text: str) -> None:
    assert str(make()) == text


async def test_api_error_from_a_message(nc: nats.NATS) -> None:
    def status_message(**headers: str) -> Any:
        return js_errors.APIError.from_msg(Msg(nc, "a", headers=headers))

    with pytest.raises(js_errors.ServiceUnavailableError):
        status_message(Status="503")
    with pytest.raises(js_errors.APIError) as caught:
        status_message(Status="408", Description="Request Timeout")
    assert (caught.value.code, caught.value.description) == (408, "Request Timeout")
    with pytest.raises(js_errors.ServerError):
        js_errors.APIError.from_error({"code": 500, "description": "oh", "err_code": 10000})


def test_nuids_are_unique_and_of_one_length() -> None:
    nuid = NUID()
    made = [bytes(nuid.next()) for _ in range(1000)]
    assert len({*made}) == 1000
    assert {len(one) for one in made} == {22}
    assert len({one[:12] for one in made}) == 1
    nuid._seq = MAX_SEQ - 1
    assert nuid.next()[:12] != made[0][:12]  # a new prefix when the numbers are used up


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.differs("`NUID` after `os.fork()`")
def test_nuids_differ_after_a_fork() -> None:
    nuid = NUID()
    nuid.next()
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writer, bytes(nuid.next()))
        os._exit(0)
    os.close(writer)
    os.waitpid(process, 0)
    with open(reader, "rb") as pipe:
        forked = pipe.read()
    assert len(forked) == 22
    assert forked[:12] != nuid.next()[:12]
