"""The client of nats-py on natsproto: messages, requests, callbacks, and the end."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import weakref
from functools import partial

import pytest

from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.testing import Server, run_server
from tests.compat.scenarios import CallbackLog


async def test_message_has_the_fields_of_nats_py(nc: nats.NATS) -> None:
    sub = await nc.subscribe("a.*", queue="q")
    await nc.publish("a.b", b"1")
    await nc.publish("a.c", b"2", reply="r", headers={"K": " v\r\nX: y ", " ": "nothing"})
    first, second = await sub.next_msg(), await sub.next_msg()
    assert (first.subject, first.reply, first.data, first.headers, first.header) == ("a.b", "", b"1", None, None)
    assert (second.reply, second.headers) == ("r", {"K": "v  X: y"})
    assert (first.sid, sub.delivered, sub.pending_msgs, sub.subject, sub.queue) == (1, 2, 0, "a.*", "q")
    assert nc.stats == {
        "in_msgs": 2,
        "in_bytes": 2,
        "out_msgs": 2,
        "out_bytes": 2,
        "reconnects": 0,
        "errors_received": 0,
    }


async def test_request_is_answered_by_a_callback(nc: nats.NATS) -> None:
    async def upper(msg: Msg, suffix: bytes) -> None:
        await msg.respond(msg.data.upper() + suffix)

    await nc.subscribe("svc", cb=partial(upper, suffix=b"!"))
    answer = await nc.request("svc", b"a", headers={"K": "v"})
    assert (answer.data, answer.headers) == (b"A!", {"K": "v"})  # headers come back
    assert (await nc.request("svc", b"b", old_style=True)).data == b"B!"
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody")


async def test_request_that_is_not_answered_times_out(nc: nats.NATS) -> None:
    await nc.subscribe("silent")
    with pytest.raises(asyncio.TimeoutError) as caught:
        await nc.request("silent", timeout=0.01)
    assert (type(caught.value), str(caught.value)) == (nats.errors.TimeoutError, "nats: timeout")


async def test_subscription_ends_after_its_limit(nc: nats.NATS) -> None:
    sub = await nc.subscribe("a")
    await sub.unsubscribe(limit=2)
    for number in range(3):
        await nc.publish("a", b"%d" % number)
    assert [msg.data async for msg in sub.messages] == [b"0", b"1"]


async def test_subscription_that_ended_is_freed(nc: nats.NATS) -> None:
    called: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(msg: Msg) -> None:
        await called.put(msg.data)

    limited, called_back = await nc.subscribe("a"), await nc.subscribe("a", cb=on_message, max_msgs=1)
    await limited.unsubscribe(limit=1)
    await nc.publish("a", b"1")
    assert (await limited.next_msg(timeout=5)).data == await called.get() == b"1"
    await nc.flush()
    left = [weakref.ref(limited), weakref.ref(called_back)]
    del limited, called_back
    gc.collect()
    assert [found for ref in left if (found := ref()) is not None] == []


async def test_subscription_can_fill_a_future(nc: nats.NATS) -> None:
    future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    await nc.subscribe("a", future=future, max_msgs=1)
    await nc.publish("a", b"1")
    assert (await future).data == b"1"


async def test_subscription_with_a_callback_is_not_read(nc: nats.NATS) -> None:
    async def handler(msg: Msg) -> None: ...

    sub = await nc.subscribe("a", cb=handler)
    with pytest.raises(nats.errors.Error):
        await sub.next_msg()
    with pytest.raises(nats.errors.Error):
        _ = sub.messages
    with pytest.raises(nats.errors.Error, match="must use coroutine"):
        await nc.subscribe("a", cb=lambda msg: None)  # type: ignore[arg-type,return-value]  # the mistake itself


async def test_callback_that_raises_is_reported(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, **log.callbacks())

    async def handler(msg: Msg) -> None:
        raise ValueError(msg.data)

    await nc.subscribe("a", cb=handler)
    await nc.publish("a", b"1")
    await nc.drain()
    assert [str(error) for error in log.errors] == ["b'1'"]
    assert log.names == ["disconnected_cb", "closed_cb"]


async def test_callback_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(nats.errors.InvalidCallbackTypeError):
        await nats.connect(error_cb=print)


async def test_closed_client_raises_and_connects_again(nc: nats.NATS, nats_server: Server) -> None:
    await nc.close()
    assert (nc.is_closed, nc.is_connected, nc.client_id, nc.connected_url) == (True, False, None, None)
    for call in (nc.publish("a"), nc.flush(), nc.subscribe("a"), nc.drain()):
        with pytest.raises(nats.errors.ConnectionClosedError):
            await call
    await nc.connect(nats_server.url)
    await nc.flush()
    assert nc.is_connected


async def test_reconnect_calls_back_and_keeps_subscriptions(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, reconnect_time_wait=0.01, **log.callbacks())
    sub = await nc.subscribe("a")
    await nc.force_reconnect()
    await log.until("reconnected_cb")
    await nc.publish("a", b"1")
    assert (await sub.next_msg(timeout=5)).data == b"1"
    assert (log.names, nc.stats["reconnects"]) == (["disconnected_cb", "reconnected_cb"], 1)
    await nc.close()


async def test_loss_without_reconnecting_is_reported() -> None:
    log = CallbackLog()
    async with run_server() as server:
        nc = await nats.connect(server.url, allow_reconnect=False, **log.callbacks())
    await log.until("closed_cb")
    assert (log.names, nc.is_closed) == (["disconnected_cb", "closed_cb"], True)
    assert [type(error) for error in log.errors] == [nats.errors.UnexpectedEOF]
    assert isinstance(nc.last_error, nats.errors.UnexpectedEOF)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_reconnect_attempts_survive_as_much(attempts: int) -> None:
    """nats-py gives up a connection that is younger than ``wait`` after n + 1 dials, each after a wait."""
    log, wait = CallbackLog(), 0.05
    loop = asyncio.get_running_loop()
    async with run_server() as server:
        options = {"max_reconnect_attempts": attempts, "reconnect_time_wait": wait}
        nc = await nats.connect(server.url, **options, **log.callbacks())
        server.kill()
        await log.until("disconnected_cb")
        lost = loop.time()
        await log.until("closed_cb")
        assert loop.time() - lost >= (attempts + 1) * wait * 0.9
    await nc.close()


@pytest.mark.differs("`connect(allow_reconnect=False)` when no server answers")
async def test_no_server_is_reported_and_raised() -> None:
    log = CallbackLog()
    with pytest.raises(nats.errors.NoServersError):
        await nats.connect("nats://127.0.0.1:9", max_reconnect_attempts=1, reconnect_time_wait=0.01, **log.callbacks())
    assert all(isinstance(error, ConnectionRefusedError) for error in log.errors)
    assert len(log.errors) >= 2
    nc = nats.NATS()
    with pytest.raises(ConnectionRefusedError):
        await nc.connect("nats://127.0.0.1:9", allow_reconnect=False)
    assert not nc.is_closed
    await nc.close()
    assert nc.is_closed


@pytest.mark.differs("`tls://` and `tls=`")
async def test_tls_url_never_means_plain_text(nats_server: Server) -> None:
    with pytest.raises(nats.errors.Error, match="TLS"):
        await nats.connect(nats_server.url.replace("nats://", "tls://"), allow_reconnect=False)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0\r\n", "a..b"])
@pytest.mark.differs("Subjects on publish")
async def test_subject_with_a_line_end_is_refused(nc: nats.NATS, subject: str) -> None:
    with pytest.raises(nats.errors.BadSubjectError):
        await nc.publish(subject, b"")
    with pytest.raises(nats.errors.BadSubjectError):
        await nc.publish("a", b"", reply=subject or " ")
    with pytest.raises(nats.errors.BadSubjectError):
        await nc.subscribe(subject)


async def test_header_with_a_wrong_name_is_refused(nc: nats.NATS) -> None:
    with pytest.raises(nats.errors.BadHeaderError):
        await nc.publish("a", b"", headers={"K\r\nX": "v"})


async def test_payload_that_is_too_large_is_refused(nc: nats.NATS) -> None:
    with pytest.raises(nats.errors.MaxPayloadError):
        await nc.publish("a", bytes(nc.max_payload + 1))


@pytest.mark.differs("Full subscriptions")
async def test_slow_consumer_is_reported(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, **log.callbacks())
    sub = await nc.subscribe("a", pending_msgs_limit=2)
    for _ in range(5):
        await nc.publish("a")
    await nc.flush()
    await nc.close()
    [error] = log.errors
    assert isinstance(error, nats.errors.SlowConsumerError)
    assert error.sub is sub
    assert (error.subject, error.sid) == ("a", 1)


async def test_permission_is_reported(nats_server: Server) -> None:
    users = '{user: u, password: p, permissions: {publish: {deny: "b"}}}'
    with run_server(config=f"authorization: {{users: [{users}]}}") as server:
        log = CallbackLog()
        nc = await nats.connect(server.url, user="u", password="p", **log.callbacks())
        await nc.publish("b", b"")
        await nc.flush()
        await nc.close()
    assert [str(error) for error in log.errors] == ['nats: permissions violation for publish to "b"']


async def test_message_stays_a_dataclass(nc: nats.NATS) -> None:
    """natsproto makes it without a constructor: its fields appear when they are read."""
    sub = await nc.subscribe("a")
    await nc.publish("a", b"x", reply="r", headers={"A": "1"})
    msg = await sub.next_msg()
    other = dataclasses.replace(msg, data=b"y")
    assert (other.subject, other.reply, other.data, other.headers, other.sid) == ("a", "r", b"y", {"A": "1"}, msg.sid)
    assert "subject='a', reply='r', data=b'x', headers={'A': '1'}" in repr(msg)
    assert msg == copy.copy(msg) != copy.copy(other) == other
    msg.headers = None
    assert msg.header is None
