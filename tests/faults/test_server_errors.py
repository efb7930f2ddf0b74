"""Every -ERR a server can say: typed, told by an event, and ending only what it is about."""

from __future__ import annotations

import asyncio
import time

import pytest

import natsproto
from natsproto._core.events import (
    AttemptFailed,
    Closed,
    Disconnected,
    PermissionViolation,
    Reconnected,
    ServerErrorEvent,
)
from natsproto.errors import (
    NotAuthorized,
    PermissionDenied,
    ServerError,
)
from natsproto.testing import Direction, FaultProxy, run_server
from tests.faults.helpers import SOON, EventRecorder, connect_in, memory_runtime, worded
from tests.kit.clock import virtual_clock
from tests.kit.memory import MemoryNetwork
from tests.kit.scripted import ScriptedServer
from tests.kit.waiting import until
from tests.protocol.test_server_errors import CUT, REFUSED

FATAL = CUT[:-1]  # without Server Shutdown
HARMLESS = [
    "maximum subscriptions exceeded",
    "Invalid Subject",
    "Invalid Publish Subject",
    "The Moon Is Full",
    "",
]
DENIED = [
    ('Permissions Violation for Publish to "elsewhere"', "publish to", "elsewhere", ""),
    ('Permissions Violation for Publish with Reply of "elsewhere"', "publish with reply", "elsewhere", ""),
    ('Permissions Violation for Subscription to "elsewhere"', "subscribe to", "elsewhere", ""),
    ('Permissions Violation for Subscription to "elsewhere" using queue "q"', "subscribe to", "elsewhere", "q"),
    ('Permissions Violation for Subscription to "elsewhere" (sid "77")', "subscribe to", "elsewhere", ""),
    ('Permissions Violation for Subscription to "elsewhere", too many tokens', "subscribe to", "elsewhere", ""),
]


class Place:
    """A client in memory, connected to a scripted server that says what the test wants."""

    def __init__(self) -> None:
        self.network, self.server, self.recorder = MemoryNetwork(), ScriptedServer(), EventRecorder()
        self.network.listen("a", 4222, self.server.accept)

    async def connect(self) -> natsproto.Client:
        return await connect_in(memory_runtime(self.network), "nats://a:4222", on_event=self.recorder)


@pytest.mark.parametrize("case", [str.title, str.lower, str.upper], ids=["Title", "lower", "UPPER"])
@pytest.mark.parametrize("text", REFUSED + FATAL)
@virtual_clock
async def test_fatal_error_is_disconnect_cause(text: str, case: object) -> None:
    assert callable(case)
    here = Place()
    nc = await here.connect()
    got = nc.subscribe("a")
    await nc.flush()
    here.server.err(case(text))
    here.server.current.close()
    cause = (await here.recorder.wait(Disconnected)).cause
    assert case(text) in worded(cause)
    assert isinstance(cause, NotAuthorized if text in REFUSED else ServerError)
    assert not here.recorder.of(ServerErrorEvent), "one event for one error"
    await here.recorder.wait(Reconnected)
    await nc.publish("a", b"1")
    assert (await got.next(5)).data == b"1"
    await nc.close()
    await here.server.stop()


@pytest.mark.parametrize("text", FATAL)
@virtual_clock
async def test_fatal_error_leaves_closing_to_server(text: str) -> None:
    here = Place()
    nc = await here.connect()
    here.server.err(text)
    await nc.flush()
    assert not here.recorder.of(Disconnected)
    await nc.close()
    await here.server.stop()


@pytest.mark.parametrize("text", HARMLESS)
@virtual_clock
async def test_error_about_unknown_subject_is_harmless(text: str) -> None:
    here = Place()
    nc = await here.connect()
    got = nc.subscribe("a")
    await nc.flush()
    here.server.err(text)
    error = (await here.recorder.wait(ServerErrorEvent)).error
    assert isinstance(error, ServerError)
    assert error.text == text
    await nc.publish("a", b"1")
    assert (await got.next(5)).data == b"1"
    assert not here.recorder.of(Disconnected)
    await nc.close()
    await here.server.stop()


@pytest.mark.parametrize(("text", "operation", "subject", "queue"), DENIED)
@virtual_clock
async def test_permission_error_names_denied_subject(text: str, operation: str, subject: str, queue: str) -> None:
    here = Place()
    nc = await here.connect()
    got, other_queue = nc.subscribe("a"), nc.subscribe("elsewhere", queue="another")
    await nc.flush()
    asking = asyncio.create_task(nc.request("a", timeout=5))
    await got.next(5)
    here.server.err(text)
    error = (await here.recorder.wait(PermissionViolation)).error
    assert (error.operation, error.subject, error.queue, error.text) == (operation, subject, queue, text)
    assert subject in worded(error)
    await nc.flush()
    assert not got.closed
    assert not other_queue.closed
    assert not asking.done()
    asking.cancel()
    await nc.close()
    await here.server.stop()


# ---------------------------------------------------------------- the real server


async def test_unknown_operation_ends_connection() -> None:
    async with run_server() as server, FaultProxy(server.host, server.port) as proxy:
        recorder = EventRecorder()
        async with natsproto.connect(proxy.url, on_event=recorder) as nc:
            await nc.flush()
            proxy.inject(Direction.TO_SERVER, b"FOO\r\n")
            cause = (await recorder.wait(Disconnected)).cause
            assert isinstance(cause, ServerError)
            assert cause.text == "Unknown Protocol Operation"
            await recorder.wait(Reconnected)
            await nc.flush()


async def test_lowered_max_payload_ends_connection() -> None:
    async with run_server(config="max_payload: 1048576") as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, on_event=recorder) as nc:
            await server.reconfigure("max_payload: 1000")  # the server does not tell its clients
            await nc.publish("a", bytes(2000))
            cause = (await recorder.wait(Disconnected)).cause
            assert isinstance(cause, ServerError)
            assert cause.text == "Maximum Payload Violation"
            await recorder.wait(Reconnected)
            with pytest.raises(natsproto.errors.PayloadTooLarge):
                await nc.publish("a", bytes(2000))  # now it is known
            await nc.flush()


async def test_too_long_control_line_ends_connection() -> None:
    async with run_server(config="max_control_line: 1024") as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, on_event=recorder) as nc:
            await nc.publish("a" * 2000)
            cause = (await recorder.wait(Disconnected)).cause
            assert isinstance(cause, ServerError)
            assert cause.text.lower() == "maximum control line exceeded"
            await recorder.wait(Reconnected)
            await nc.flush()


async def test_stale_connection_error_is_reported() -> None:
    async with (
        run_server(config='ping_interval: "100ms", ping_max: 1') as server,
        FaultProxy(server.host, server.port) as proxy,
    ):
        recorder = EventRecorder()
        async with natsproto.connect(proxy.url, on_event=recorder):
            proxy.stall(Direction.TO_SERVER)
            cause = (await recorder.wait(Disconnected)).cause
            assert isinstance(cause, ServerError)
            assert cause.text == "Stale Connection"
            proxy.heal()
            await recorder.wait(Reconnected)


async def test_too_many_subscriptions_keep_connection() -> None:
    async with run_server(config="max_subscriptions: 2") as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, on_event=recorder) as nc:
            for number in range(3):
                nc.subscribe(f"a.{number}")
            await nc.flush()
            error = (await recorder.wait(ServerErrorEvent)).error
            assert isinstance(error, ServerError)
            assert error.text == "maximum subscriptions exceeded"
            assert not recorder.of(Disconnected)


PERMISSIONS = """
authorization {{
  users = [
    {{ user: all, password: all }}
    {{ user: some, password: some, permissions: {{
      publish: {publish}
      subscribe: {subscribe}
    }} }}
  ]
}}
"""


def _permissions(publish: str = '">"', subscribe: str = '">"') -> str:
    return PERMISSIONS.format(publish=publish, subscribe=subscribe)


async def test_denied_request_leaves_others_running() -> None:
    config = _permissions(publish='{ deny: ["secret.>"] }')
    async with run_server(config=config) as server:
        recorder = EventRecorder()
        async with (
            natsproto.connect(server.url, user="all", password="all") as helper,
            natsproto.connect(server.url, user="some", password="some", on_event=recorder) as nc,
        ):
            helper.subscribe("open", cb=lambda message: None)
            helper.subscribe("secret.>", cb=lambda message: message.respond(b"never"))
            await helper.flush()
            going_on = asyncio.create_task(nc.request("open", timeout=30))
            await nc.flush()
            began = time.monotonic()
            with pytest.raises(PermissionDenied) as caught:
                await nc.request("secret.one", timeout=30)
            assert time.monotonic() - began <= SOON
            assert (caught.value.operation, caught.value.subject) == ("publish to", "secret.one")
            with pytest.raises(PermissionDenied, match="secret"):
                await nc.request('secret."quoted"', timeout=30)  # quoted twice on the wire
            await nc.publish("secret.two")
            await nc.flush()
            assert [event.error.subject for event in recorder.of(PermissionViolation)][-1] == "secret.two"
            assert not going_on.done()
            assert not recorder.of(Disconnected)
            going_on.cancel()


async def test_a_request_whose_inbox_is_denied_ends_at_once() -> None:
    async with run_server(config=_permissions(subscribe='{ deny: ["_INBOX.>"] }')) as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, user="some", password="some", on_event=recorder) as nc:
            began = time.monotonic()
            with pytest.raises(PermissionDenied) as caught:
                await nc.request("a", timeout=30)
            assert time.monotonic() - began <= SOON
            assert caught.value.operation == "subscribe to"
            with pytest.raises(PermissionDenied):
                await nc.request("a", timeout=30)
            await nc.flush()
            assert not recorder.of(Disconnected)
        async with natsproto.connect(server.url, user="some", password="some", inbox_prefix="mine") as nc:
            nc.subscribe("a", cb=lambda message: message.respond(b"1"))
            assert (await nc.request("a", timeout=30)).data == b"1"


async def test_request_with_denied_reply_subject_fails() -> None:
    async with run_server() as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, on_event=recorder, inbox_prefix="_R_") as nc:  # the server's own
            nc.subscribe("a", cb=lambda message: message.respond(b"1"))
            began = time.monotonic()
            with pytest.raises(PermissionDenied) as caught:
                await nc.request("a", timeout=30)
            assert time.monotonic() - began <= SOON
            assert caught.value.operation == "publish with reply"
            assert not recorder.of(Disconnected)


@pytest.mark.parametrize("queue", [None, "workers"])
async def test_denied_subscription_ends_alone(queue: str | None) -> None:
    async with run_server(config=_permissions(subscribe='{ deny: ["secret.>"] }')) as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, user="some", password="some", on_event=recorder) as nc:
            allowed = nc.subscribe("open")
            began = time.monotonic()
            denied = nc.subscribe("secret.>", queue=queue)
            with pytest.raises(PermissionDenied) as caught:
                await denied.next(30)
            assert time.monotonic() - began <= SOON
            assert (caught.value.subject, caught.value.queue) == ("secret.>", queue or "")
            assert denied.closed
            with pytest.raises(PermissionDenied):
                _ = [message async for message in denied]
            await nc.publish("open", b"1")
            assert (await allowed.next(30)).data == b"1"
            assert len(recorder.of(PermissionViolation)) == 1
            await nc.reconnect()
            await recorder.wait(Reconnected)
            await nc.flush()
            assert len(recorder.of(PermissionViolation)) == 1  # it is not asked for again


async def test_revoked_subscription_ends_at_once() -> None:
    async with run_server(config=_permissions()) as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, user="some", password="some", on_event=recorder) as nc:
            first, second, allowed = nc.subscribe("secret"), nc.subscribe("secret"), nc.subscribe("open")
            await nc.flush()
            reading = asyncio.create_task(first.next(30))
            await server.reconfigure(_permissions(subscribe='{ deny: ["secret"] }'))
            began = time.monotonic()
            with pytest.raises(PermissionDenied, match="secret"):
                await reading
            await recorder.wait(PermissionViolation, 2)
            assert time.monotonic() - began <= SOON
            assert first.closed
            assert second.closed
            assert {event.error.text.rpartition("(sid ")[2] for event in recorder.of(PermissionViolation)} == {
                '"1")',
                '"2")',
            }
            await nc.publish("open", b"1")
            assert (await allowed.next(30)).data == b"1"
            assert not recorder.of(Disconnected)


# ---------------------------------------------------------------- credentials that are refused


@pytest.mark.slow
async def test_restored_credentials_reconnect() -> None:
    good = "authorization { user: me, password: right }"
    async with run_server(config=good) as server:
        recorder = EventRecorder()
        async with natsproto.connect(server.url, user="me", password="right", on_event=recorder) as nc:
            got = nc.subscribe("a")
            await nc.flush()
            await server.reconfigure("authorization { user: me, password: wrong }")
            await recorder.wait(AttemptFailed, 3)
            await server.reconfigure(good)
            await recorder.wait(Reconnected)
            await nc.publish("a", b"1")
            assert (await got.next(30)).data == b"1"
            failures = recorder.of(AttemptFailed)
            assert all(isinstance(event.cause, NotAuthorized) and worded(event.cause) for event in failures)
            # One event for each refusal, and one refusal for each login the server saw.
            assert server.log().count("authentication error") in (len(failures), len(failures) + 1)


@pytest.mark.slow
async def test_repeated_refusal_closes_client() -> None:
    async with run_server(config="authorization { user: me, password: right }") as server:
        recorder = EventRecorder()
        nc = await natsproto.connect(server.url, user="me", password="right", on_event=recorder)
        await nc.flush()
        reading = asyncio.create_task(nc.subscribe("a").next())
        await until(lambda: not reading.done(), 20)
        await server.reconfigure("authorization { user: me, password: wrong }")
        reason = await asyncio.wait_for(nc.wait_closed(), 30)
        assert isinstance(reason, NotAuthorized)
        assert "Authorization Violation" in worded(reason)
        assert [event.reason for event in recorder.of(Closed)] == [reason]
        assert len(recorder.of(AttemptFailed)) > 2
        with pytest.raises(NotAuthorized):
            await reading
        with pytest.raises(natsproto.errors.ConnectionClosed):
            await nc.publish("a")
        await nc.close()
