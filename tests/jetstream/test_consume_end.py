"""The end of ``consume``: who waits for it gets the error, and nobody misses it in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

import natsproto
from natsproto.errors import ConsumerGone, DrainTimeout, PullRefused
from natsproto.jetstream import JetStream, JsMessage
from natsproto.testing import Server
from tests.core.helpers import scripted_network, turns
from tests.jetstream.reading import ignore, make, store
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour
from tests.kit.waiting import eventually


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_end_that_no_wait_sees_is_logged(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "natsproto")
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    stop = asyncio.Event()
    with pytest.raises(ConsumerGone):  # noqa: PT012  # at the end of the block
        async with consumer.consume(ignore, concurrency=4) as work:
            await consumer.delete()
            await eventually(lambda: work.closed)
    texts = [record.getMessage() for record in caplog.records if record.name == "natsproto"]
    assert not [text for text in texts if text.count("consumer 'd'") > 1]
    (ended,) = errors(caplog)
    assert ended.startswith("consume() has ended: consumer 'd' of stream 'S': ")
    assert ended.endswith(": create the consumer, then consume it again")
    caplog.clear()
    consumer = await stream.create_consumer(durable_name="d")
    async with contextlib.AsyncExitStack() as stack:
        work = await stack.enter_async_context(consumer.consume(ignore))
        waiting = asyncio.create_task(work.wait(stop))
        await consumer.delete()
        for end in (waiting, stack.aclose()):
            with pytest.raises(ConsumerGone):
                await end
    assert not errors(caplog), "the wait has raised it"


async def test_end_that_a_wait_raised_is_not_logged(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    """While a handler is still at work: the wait returns because of its event."""
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    began, go_on, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stop.set()

    async def slow(message: JsMessage) -> None:
        began.set()
        await go_on.wait()

    with pytest.raises(ConsumerGone):  # noqa: PT012  # at the end of the block
        async with consumer.consume(slow, concurrency=2) as work:
            await began.wait()
            deleting = asyncio.create_task(consumer.delete())  # its end may be known before the reply comes
            with pytest.raises(ConsumerGone):  # noqa: PT012
                async with asyncio.timeout(60):
                    while True:
                        await work.wait(stop)
            await deleting
            go_on.set()
            await eventually(lambda: work.closed)
    assert not errors(caplog)


@virtual_clock
async def test_end_during_a_stop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The consumer is deleted while the end of the block waits for the server."""
    async with scripted_network(Behaviour(first_ping=b"PONG\r\n", answer_ping=False, route=False)) as net:
        server, nc = net.server, await net.connect()
        consumer = await (await nc.jetstream().stream("S", bind=True)).consumer("d", bind=True)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slow(message: JsMessage) -> None:
            began.set()
            await go_on.wait()

        stack = contextlib.AsyncExitStack()
        work = await stack.enter_async_context(consumer.consume(slow, on_success="nothing"))
        sid = (await server.expect("SUB")).args[-1]
        inbox = (await server.expect("PUB", "$JS.API.CONSUMER.MSG.NEXT.S.d")).args[1]
        server.deliver(sid, "s.a", b"1", reply="$JS.ACK.S.d.1.1.1.1795000000000000000.0")
        await began.wait()
        ending = asyncio.create_task(stack.aclose())
        await server.expect("UNSUB", sid)
        server.deliver(sid, inbox, headers=b"NATS/1.0 409 Consumer Deleted\r\n\r\n")
        await turns(10)
        go_on.set()
        await turns(10)
        assert work.closed
        server.current.pong()
        with pytest.raises(ConsumerGone):
            await ending
    assert not errors(caplog)


async def test_end_by_a_refused_pull_has_no_advice(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = await make(jetstream)
    await store(stream, [1], size=1000)
    consumer = await stream.create_consumer(durable_name="d")
    with pytest.raises(PullRefused) as refused:
        async with consumer.consume(ignore, prefetch_bytes=100) as work:
            await eventually(lambda: work.closed)
    assert errors(caplog) == [f"consume() has ended: {refused.value}"]


async def test_wait_of_consume_ends_with_an_event(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    consumer = await stream.create_consumer(durable_name="d")
    stop = asyncio.Event()
    async with consumer.consume(ignore) as work:
        asyncio.get_running_loop().call_soon(stop.set)
        await work.wait(stop)
        assert not work.closed
        await work.wait(stop)


@pytest.mark.parametrize("ends", ["stop", "run", "block"])
async def test_stop_cancels_calls_after_its_timeout(nats_server: Server, ends: str) -> None:
    """A handler that hangs keeps nobody from ending; its message goes to others at once."""
    async with natsproto.connect(nats_server.url, drain_timeout=0.3 if ends != "stop" else 25) as nc:
        stream = await make(nc.jetstream(), 1)
        consumer = await stream.create_consumer(durable_name="d")
        began = asyncio.Event()
        cancelled: list[bytes] = []

        async def hang(message: JsMessage) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(message.data)

        work = consumer.consume(hang)

        async def end() -> None:
            if ends == "run":
                await work.run(until=began)
            async with work:
                await began.wait()
                if ends == "stop":
                    await work.stop(0.05)

        with pytest.raises(DrainTimeout, match="1 messages being handled"):
            await end()
        assert work.closed
        assert cancelled == [b"1"]
        assert (await consumer.next(timeout=5)).metadata.num_delivered == 2


@pytest.mark.parametrize("ends", ["run", "wait", "nobody"])
async def test_gone_consumer_ends_calls_that_hang(
    nats_server: Server, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with natsproto.connect(nats_server.url, drain_timeout=0.2) as nc:
        stream = await make(nc.jetstream(), 1)
        consumer = await stream.create_consumer(durable_name="d")
        began = asyncio.Event()

        async def hang(message: JsMessage) -> None:
            began.set()
            await asyncio.Event().wait()

        work = consumer.consume(hang, concurrency=2)  # the pull for the other call learns of it

        async def worker() -> None:
            if ends == "run":
                await work.run()
            async with work:
                await (work.wait() if ends == "wait" else eventually(lambda: work.closed))

        working = asyncio.create_task(worker())
        await began.wait()
        await consumer.delete()
        await eventually(lambda: "cancels after 0.2 s what is left of 1 messages being handled" in caplog.text)
        with pytest.raises(ConsumerGone):
            await asyncio.wait_for(working, 10)
        assert work.closed
        assert work.handled == 1
        assert len(errors(caplog)) == (ends == "nobody")


async def test_call_that_ends_in_time_outlives_its_consumer(
    nats_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with natsproto.connect(nats_server.url, drain_timeout=30) as nc:
        stream = await make(nc.jetstream(), 1)
        consumer = await stream.create_consumer(durable_name="d")
        began, go_on = asyncio.Event(), asyncio.Event()
        done: list[int] = []

        async def slow(message: JsMessage) -> None:
            began.set()
            await go_on.wait()
            done.append(message.seq)

        working = asyncio.create_task(consumer.consume(slow, concurrency=2).run())
        await began.wait()
        await consumer.delete()
        await eventually(lambda: "cancels after 30 s" in caplog.text)
        go_on.set()
        with pytest.raises(ConsumerGone):
            await asyncio.wait_for(working, 10)
        assert done == [1]


async def test_stop_waits_within_its_timeout(jetstream: JetStream) -> None:
    stream = await make(jetstream, 1)
    consumer = await stream.create_consumer(durable_name="d")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: JsMessage) -> None:
        began.set()
        await go_on.wait()

    async with consumer.consume(handle) as work:
        await began.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await work.stop(timeout=30)
        assert work.handled == 1
