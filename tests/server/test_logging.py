"""The log: one line for everything that happens to a client, and tracebacks for those who ask for them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator

import pytest

from natsproto._core.events import AttemptFailed, Closed, Event, HandlerFailed, Reconnecting
from natsproto.errors import ConnectFailed, ConsumerGone
from natsproto.jetstream._consumer.messages import ConsumerNotice
from natsproto.middleware import with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.testing import Server, run_server
from tests.kit.waiting import until
from tests.server.helpers import also_uvloop, client

EVENTS = [ConsumerNotice, *(kind for kind in Event.__subclasses__() if kind.__module__ == "natsproto._core.events")]


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "natsproto"]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_has_a_line_made_of_its_fields(kind: type[Event]) -> None:
    named = set(re.findall(r"%\((\w+)\)", kind.line))
    assert named <= set(kind._fields)
    assert bool(kind.line) is (kind is not HandlerFailed), "which is logged by whoever called the handler"


@also_uvloop
async def test_log_has_one_line_for_each_change(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    caplog.set_level(logging.INFO, "natsproto")
    async with client(nats_server.url, on_event=seen.append, reconnect_wait=0.01) as nc:
        nats_server.kill()
        await until(lambda: any(isinstance(event, AttemptFailed) for event in seen))
        await nats_server.restart()
        await until(lambda: nc.is_connected)
        await nc.flush()
    records = [record for record in caplog.records if record.name == "natsproto"]
    reported = [event for event in seen if not isinstance(event, Reconnecting)]  # which is for DEBUG
    assert [record.nats_event for record in records] == reported  # type: ignore[attr-defined]
    assert [record.args for record in records] == [event.fields() for event in reported]
    assert all(record.exc_info is None for record in records)
    address = f"127.0.0.1:{nats_server.port}"
    found = [(level, line.partition(": ")[0].partition(" after")[0]) for level, line in lines(caplog)]
    found = [line for number, line in enumerate(found) if line not in found[:number]]
    assert found == [
        (logging.INFO, f"connected to {address}"),
        (logging.WARNING, f"disconnected from {address}"),
        (logging.INFO, f"connecting to {address} failed"),
        (logging.WARNING, f"reconnected to {address}"),
        (logging.INFO, "closed"),
    ]
    assert not any("\n" in line for _, line in lines(caplog))


@also_uvloop
async def test_log_at_debug_has_tracebacks(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "natsproto")
    async with client(nats_server.url) as nc:
        await nc.reconnect()
        await nc.flush()
    traced = [record.levelname for record in caplog.records if record.exc_info]
    assert traced == ["WARNING"], "the disconnection"
    assert any(line.startswith("connect attempt 1: ") for _, line in lines(caplog))


@also_uvloop
async def test_what_is_raised_is_not_logged_as_an_error_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "natsproto")
    with pytest.raises(ConnectFailed):
        async with client("nats://127.0.0.1:1", connect_timeout=1):
            pass
    assert all(level == logging.INFO for level, _ in lines(caplog))


@also_uvloop
async def test_a_client_that_gives_up_says_why(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "natsproto")
    closed = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Closed):
            closed.set()

    async with client(nats_server.url, on_event=on_event, allow_reconnect=False):
        nats_server.kill()
        await asyncio.wait_for(closed.wait(), 10)
    assert lines(caplog)[-1][0] == logging.ERROR
    assert lines(caplog)[-1][1].startswith("closed for good: ")
    await nats_server.restart()


@pytest.fixture
def strict() -> Iterator[Server]:
    config = 'authorization { users = [ { user: "a", password: "b", permissions: { publish: { deny: "no" } } } ] }'
    with run_server(config=config) as server:
        yield server


@also_uvloop
async def test_log_levels_of_refusals_and_notices(
    strict: Server, nats_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "natsproto")
    seen: list[Event] = []
    async with client(strict.url, user="a", password="b", on_event=seen.append) as nc:
        for _ in range(1000):
            await nc.publish("no")
        await nc.flush()
        await until(lambda: len(seen) == 1001)
    refused = [line for level, line in lines(caplog) if level == logging.WARNING]
    assert set(refused) == {"permission denied: publish to 'no': allow it in the permissions of the user"}
    assert len(refused) < 100, "one a second"
    caplog.clear()
    async with client(nats_server.url) as nc:
        stream = await nc.jetstream().create_stream(name="S", subjects=["s.>"])
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.messages() as messages:
            await consumer.delete()
            with pytest.raises(ConsumerGone):
                await messages.next(timeout=10)
    reported = [line for level, line in lines(caplog) if level == logging.INFO and line.startswith("consumer 'd' of ")]
    assert reported, "nothing is lost by it"
    assert all(level == logging.INFO for level, _ in lines(caplog))


async def test_lines_of_handlers_have_the_name_too(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever fails in a handler, the line of its client and the event tell which client it was."""
    seen: list[Event] = []

    def fail(message: object) -> None:
        raise ValueError("no way")

    async with (
        client(nats_server.url, name="50% first", on_event=seen.append) as first,
        client(nats_server.url, name="second", on_event=seen.append) as second,
    ):
        js = first.jetstream()
        await js.create_stream(name="S", subjects=["s", "dead"])
        kv = await js.create_key_value("b")
        await kv.put("k", b"")
        for nc in (first, second):
            consumer = await (await nc.jetstream().stream("S")).create_consumer("c", filter_subject="s")
            retried = with_middleware(
                fail, Retry(nc.jetstream(), RetryPolicy(dead_letter_subject="dead", first_delay=0))
            )
            service = await nc.add_service("svc", "1.0.0", queue_group=None)
            service.add_endpoint("e", fail)
            nc.subscribe("callback", cb=fail)
            watch = (await nc.jetstream().key_value("b")).watch(cb=fail)
            await js.publish("s")
            async with watch:
                await nc.publish("callback")
                await nc.publish("e", reply="nobody")
                await consumer.consume(fail, stop_after=1).run()
                await consumer.consume_batches(fail, stop_after=1).run()
                await consumer.consume(retried, stop_after=1).run()
        await until(lambda: sum("second: endpoint" in line for _, line in lines(caplog)) == 1)
        await until(lambda: sum("50% first: endpoint" in line for _, line in lines(caplog)) == 2)
    failed = [line for _, line in lines(caplog) if "no way" in line]
    assert {line.partition(": ")[0] for line in failed} == {"50% first", "second"}
    for what in ("callback of 'callback'", "endpoint 'e'", "batch of 1", "attempt ", "watch of bucket"):
        assert len({line.partition(": ")[0] for line in failed if what in line}) == 2, what
    failures = [event for event in seen if isinstance(event, HandlerFailed)]
    assert {event.client for event in failures} == {"50% first", "second"}
