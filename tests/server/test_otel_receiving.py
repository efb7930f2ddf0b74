"""OpenTelemetry: what a reader is given has a span of receiving, linked to whoever published it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from natsproto._core.inbox.subscription import Subscription
from natsproto.errors import RequestTimeout, SubscriptionClosed
from natsproto.jetstream._consumer.messages import Messages
from natsproto.protocol.frames import Message
from natsproto.testing import Server
from tests.server.helpers import also_uvloop, client
from tests.server.test_otel import TelemetryRecorder, contexts, identity, linked, parent


@pytest.fixture
def recorder() -> Iterator[TelemetryRecorder]:
    recorder = TelemetryRecorder()
    yield recorder
    recorder.close()


def own_attributes(span: ReadableSpan) -> dict[str, object]:
    """The attributes but those that all of them have."""
    common = ("messaging.system", "messaging.operation.name", "messaging.operation.type", "server.")
    return {name: value for name, value in (span.attributes or {}).items() if not name.startswith(common)}


@also_uvloop
async def test_subscription_next_makes_receive_span(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc, nc.subscribe("orders.*", queue="q") as sub:
        await nc.publish("orders.eu", b"four")
        send = recorder.spans()["send orders.eu"]
        before = time.time_ns()
        with recorder.tracer.start_as_current_span("working") as working:
            message = await sub.next(timeout=5)
        spans = recorder.spans()
        receive = spans["receive orders.*"]
        assert linked(receive) == [identity(send)]
        assert parent(receive) == working.get_span_context().span_id, "it is part of what the reader does"
        assert receive.kind is SpanKind.CLIENT
        assert dict(receive.attributes or {}) == {
            "messaging.system": "nats",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.destination.name": "orders.eu",
            "messaging.destination.template": "orders.*",
            "messaging.consumer.group.name": "q",
            "messaging.message.body.size": 4,
            "server.address": "127.0.0.1",
            "server.port": nats_server.port,
        }
        assert receive.start_time is not None
        assert receive.end_time is not None
        assert before <= receive.start_time <= receive.end_time
        with recorder.telemetry.processing(message):
            pass
        process = recorder.spans()["process orders.eu"]
        assert parent(process) == identity(send), "processing belongs to the trace of whoever published"


@also_uvloop
async def test_waiting_in_vain_is_not_receiving(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        sub = await nc.subscribe("a")
        for timeout in (0, 0.01):
            with pytest.raises(RequestTimeout):
                await sub.next(timeout)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(aiter(sub))
        await sub.unsubscribe()
        with pytest.raises(SubscriptionClosed):
            await sub.next()
        assert [message async for message in sub] == []
        assert [batch async for batch in sub.batches()] == []
    assert recorder.spans() == {}


@also_uvloop
async def test_every_message_of_an_endless_loop_is_received(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc, client(nats_server.url) as plain:
        sub = await nc.subscribe("orders.eu", max_messages=4)
        await nc.flush()
        for number in range(3):
            await nc.publish("orders.eu", b"%d" % number)
        await nc.flush()
        await plain.publish("orders.eu", b"3")
        links: list[list[int]] = []
        sent: list[list[int]] = []
        recorder.spans()
        async for message in sub:
            receive = recorder.spans()["receive orders.eu"]
            links.append(linked(receive))
            sent.append([int(message.headers["traceparent"].split("-")[2], 16)] if message.has_headers else [])
            assert parent(receive) is None
            assert own_attributes(receive) == {
                "messaging.destination.name": "orders.eu",
                "messaging.destination.template": "orders.eu",
                "messaging.message.body.size": 1,
            }
            with recorder.telemetry.processing(message) as span:
                assert span.is_recording()
            assert list(recorder.spans()) == ["process orders.eu"]
        assert links == sent
        assert [len(link) for link in links] == [1, 1, 1, 0]


@also_uvloop
async def test_a_batch_is_received_as_one(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc, nc.subscribe("orders.>") as sub:
        for number in range(200):
            await nc.publish(f"orders.{number}")
        await nc.flush()
        recorder.spans()
        async for batch in sub.batches(150):
            assert len(batch) == 150
            break
        receive = recorder.spans()["receive orders.>"]
        assert len(receive.links) == 128
        assert own_attributes(receive) == {
            "messaging.destination.template": "orders.>",
            "messaging.batch.message_count": 150,
        }


@also_uvloop
async def test_consumer_messages_make_receive_spans(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        for number in range(20):
            await js.publish("s.a", b"%d" % number)
        pull = await stream.create_consumer(durable_name="pull")
        push = await stream.create_push_consumer(durable_name="push", ack_policy="none")
        ordered = stream.ordered_consumer()
        recorder.spans()
        for reader, name in ((pull, "pull"), (push, "push"), (ordered, "")):
            async with reader.messages() as messages:
                first = await messages.next(timeout=5)
                receive = recorder.spans()["receive S"]
                assert (linked(receive), receive.kind) == (contexts([first]), SpanKind.CLIENT)
                assert own_attributes(receive) == {
                    "messaging.destination.name": "S",
                    "messaging.consumer.group.name": name or ordered.name,
                    "messaging.message.body.size": 1,
                }
                async for message in messages:
                    receive = recorder.spans()["receive S"]
                    assert linked(receive) == contexts([message])
                    if message.metadata.stream_seq == 10:
                        break
                batch = await anext(aiter(messages.batches(5)))
                receive = recorder.spans()["receive S"]
                assert linked(receive) == contexts(batch)
                assert own_attributes(receive)["messaging.batch.message_count"] == len(batch)
            recorder.spans()
        again = stream.ordered_consumer()
        fetched = await again.fetch(3, timeout=5)
        assert linked(recorder.spans()["receive S"]) == contexts(fetched)
        async for message in again.fetch(2, timeout=5):
            assert linked(recorder.spans()["receive S"]) == contexts([message])


@also_uvloop
async def test_inboxes_and_system_subjects_have_no_span(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url, inbox_prefix="_MINE") as nc:

        async def answer(message: Message) -> None:
            await message.respond(b"1")

        await nc.subscribe("ask", cb=answer)
        assert [reply.data async for reply in nc.request_many("ask", timeout=5, max_messages=1)] == [b"1"]
        async with nc.subscribe(nc.new_inbox()) as inbox:
            await nc.publish(inbox.subject)
            await inbox.next(timeout=5)
        js = nc.jetstream()
        kv = await js.create_key_value(bucket="cfg", storage="memory")
        async with kv.watch() as watcher, js.advisories() as advisories:
            await kv.put("a", b"1")
            await watcher.next(timeout=5)
            await js.create_stream(name="S")
            await advisories.next(timeout=5)
        assert [name for name in recorder.names() if name.startswith("receive")] == []


@also_uvloop
async def test_a_loop_that_is_left_gives_back_what_it_held(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        for number in range(10):
            await js.publish("s.a", b"%d" % number)
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.messages() as messages:
            async for message in messages:
                if message.data == b"3":
                    break
        rest = await consumer.fetch(6, timeout=5)
        assert sorted(message.data for message in rest) == [b"4", b"5", b"6", b"7", b"8", b"9"]


@also_uvloop
async def test_a_plain_client_has_nothing_of_it(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        assert type(sub) is Subscription
        assert type(consumer.messages()) is Messages
        assert type(stream.ordered_consumer().messages()) is Messages
