"""OpenTelemetry: the span of an acknowledgement belongs to the trace of its message."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from natsproto import Message, otel
from natsproto.errors import ConsumerDeleted
from natsproto.jetstream import JsMessage
from natsproto.middleware import with_middleware
from natsproto.testing import Server
from tests.server.helpers import also_uvloop, client
from tests.server.test_otel import identity, linked, parent


class Spans:
    """All spans of one Telemetry, in the order of their ends."""

    def __init__(self) -> None:
        self._exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = otel.Telemetry(provider)
        self.tracer = provider.get_tracer("test")

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.trace_id
    return number


def acks(settled: list[ReadableSpan]) -> list[object]:
    return [(span.attributes or {})["nats.ack"] for span in settled]


@also_uvloop
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_consume_settles_within_process_span(nats_server: Server, spans: Spans, concurrency: int) -> None:
    telemetry = spans.telemetry

    async def handle(message: JsMessage) -> None:
        if message.metadata.num_delivered == 1 and message.data == b"3":
            raise ValueError("once more")

    async with telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        for number in range(6):
            await js.publish("s.a", b"%d" % number)
        await consumer.consume(
            with_middleware(handle, telemetry.tracing), stop_after=7, nak_delay=0, concurrency=concurrency
        ).run()
    published, processed, settled = spans.of("publish"), spans.of("process"), spans.of("settle S")
    assert sorted(map(str, acks(settled))) == ["+ACK"] * 6 + ["-NAK"]
    assert {parent(span) for span in settled} == {identity(span) for span in processed}
    traces = {identity(span): trace_of(span) for span in processed}
    assert all(traces[parent(span) or 0] == trace_of(span) for span in settled)
    assert {trace_of(span) for span in settled} == {trace_of(span) for span in published}


@also_uvloop
async def test_untraced_publisher_gets_no_orphan_settle(nats_server: Server, spans: Spans) -> None:
    telemetry = spans.telemetry

    async def handle(message: JsMessage) -> None:
        pass

    async with telemetry.connect(nats_server.url) as nc, client(nats_server.url) as plain:
        stream = await nc.jetstream().create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        await plain.jetstream().publish("s.a", b"")
        await consumer.consume(with_middleware(handle, telemetry.tracing), stop_after=1).run()
        (process,), (settle,) = spans.of("process"), spans.of("settle S")
        assert (parent(process), parent(settle)) == (None, identity(process))
        same = ("messaging.consumer.group.name", "messaging.message.id", "server.address", "server.port")
        said, settled = process.attributes or {}, settle.attributes or {}
        assert [said[name] for name in same] == [settled[name] for name in same]
        assert (said["nats.stream"], said["messaging.consumer.group.name"]) == ("S", "d")
        await plain.jetstream().publish("s.a", b"")
        with spans.tracer.start_as_current_span("job") as job:
            await (await consumer.next(timeout=5)).ack()
        assert parent(spans.of("settle S")[1]) == job.get_span_context().span_id, "there is no other trace"


@also_uvloop
async def test_settle_without_process_span_follows_publisher(nats_server: Server, spans: Spans) -> None:
    async with spans.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        for _ in range(3):
            await js.publish("s.a")
        first, second, third = await consumer.fetch(3, timeout=5)
        await first.ack()
        with spans.tracer.start_as_current_span("job") as job:
            second.nak_nowait()
        with spans.telemetry.processing(first):
            await third.in_progress()  # which is not the message that is being processed
    published, settled = spans.of("publish"), spans.of("settle S")
    assert [parent(span) for span in settled] == [identity(span) for span in published]
    assert [trace_of(span) for span in settled] == [trace_of(span) for span in published]
    assert acks(settled) == ["+ACK", "-NAK", "+WPI"]
    assert linked(settled[0]) == []
    assert linked(settled[1]) == [job.get_span_context().span_id]
    assert linked(settled[2]) == [identity(spans.of("process")[0])]


@also_uvloop
async def test_processing_block_and_what_follows_it(nats_server: Server, spans: Spans) -> None:
    async with spans.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        for _ in range(2):
            await js.publish("s.a")
        inside, after = await consumer.fetch(2, timeout=5)
        with spans.telemetry.processing(inside), spans.tracer.start_as_current_span("step") as step:
            await inside.ack()
        with spans.telemetry.processing(after):
            pass
        await after.term("no")
    settled, processed = spans.of("settle S"), spans.of("process")
    assert [parent(span) for span in settled] == [step.get_span_context().span_id, identity(processed[1])]
    assert acks(settled) == ["+ACK", "+TERM"]


@also_uvloop
async def test_confirmed_ack_is_one_span_with_its_error(nats_server: Server, spans: Spans) -> None:
    async with spans.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        consumer = await stream.create_consumer(durable_name="d")
        for _ in range(3):
            await js.publish("s.a")
        first, second = await consumer.fetch(2, timeout=5)
        await first.ack_sync()
        third = await consumer.next(timeout=5, acking=second)
        await consumer.delete()
        with pytest.raises(ConsumerDeleted):
            await third.ack_sync(timeout=20)  # sent at least twice: without a responder, and to look why
    settled = spans.of("settle S")
    assert acks(settled) == ["+ACK", "+NXT", "+ACK"]
    assert [span.status.status_code for span in settled] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    assert (settled[2].attributes or {})["error.type"] == "natsproto.errors.ConsumerDeleted"
    assert len(spans.of("request")) == 0


@also_uvloop
async def test_ack_of_a_strange_subject_is_sent(nats_server: Server, spans: Spans) -> None:
    strange = "$JS.ACK.S.c.and.what.servers.may.send.one.day"
    async with spans.telemetry.connect(nats_server.url) as nc, nc.subscribe(strange) as sub:
        message = JsMessage("s.a", strange.encode(), b"", None, nc)
        message.ack_nowait()
        received: Message = await sub.next(timeout=5)
        assert received.data == b"+ACK"
    assert spans.of("settle S") == []
