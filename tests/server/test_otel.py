"""OpenTelemetry: one trace from who publishes to who processes, and counters that add up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from itertools import pairwise

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from natsproto import otel
from natsproto.errors import (
    InvalidSubject,
    NoResponders,
    PublishFailed,
    RequestTimeout,
    ServiceError,
    WrongLastSequence,
)
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.protocol.frames import Message
from natsproto.service import Request
from natsproto.testing import Server
from tests.kit.waiting import until
from tests.server.helpers import also_uvloop, client


class TelemetryRecorder:
    """A Telemetry of its own, and what it has recorded."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._spans = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader])
        # Every subject is its own template, so that names of spans say where.
        self.telemetry = otel.Telemetry(provider, self._meters, templates=lambda subject: subject)
        self.tracer = provider.get_tracer("test")

    def spans(self) -> dict[str, ReadableSpan]:
        """What ended since the last call, by name."""
        found = {span.name: span for span in self._spans.get_finished_spans()}
        self._spans.clear()
        return found

    def names(self) -> list[str]:
        """Those of all spans that ended since the last look at ``spans``."""
        return [span.name for span in self._spans.get_finished_spans()]

    def metrics(self) -> dict[str, float]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: sum(point.value for point in metric.data.data_points if isinstance(point, NumberDataPoint))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self._meters.shutdown()


@pytest.fixture
def recorder() -> Iterator[TelemetryRecorder]:
    recorder = TelemetryRecorder()
    yield recorder
    recorder.close()


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


@also_uvloop
async def test_trace_from_request_through_service_to_publish(nats_server: Server, recorder: TelemetryRecorder) -> None:
    telemetry = recorder.telemetry
    async with telemetry.connect(nats_server.url) as nc, telemetry.connect(nats_server.url) as other:
        service = await other.add_service("shop", "1.0.0")
        audited: list[str] = []

        @service.endpoint("order")
        @telemetry.process
        async def order(request: Request) -> None:
            await other.publish("audit", b"ordered", headers={"Tag": ["a", "b"]})
            await request.respond(b"done")

        @telemetry.process
        def audit(message: Message) -> None:
            audited.extend(message.headers.get_all("Tag"))

        await other.subscribe("audit", cb=audit)
        await other.flush()
        with recorder.tracer.start_as_current_span("shopping"):
            reply = await nc.call("order", b"3 roses", timeout=5)
        assert reply.data == b"done"
        assert "traceparent" in reply.headers
        await other.flush()
        await until(lambda: audited)
    spans = recorder.spans()
    assert len({span.context.trace_id for span in spans.values() if span.context is not None}) == 1
    chain = ["shopping", "request order", "process order", "send audit", "process audit"]
    assert set(spans) == set(chain)
    for above, below in pairwise(chain):
        assert parent(spans[below]) == identity(spans[above])
    request = spans["request order"]
    assert request.kind is SpanKind.CLIENT
    assert dict(request.attributes or {}) == {
        "messaging.system": "nats",
        "messaging.destination.name": "order",
        "messaging.destination.template": "order",
        "messaging.operation.name": "request",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 7,
        "server.address": "127.0.0.1",
        "server.port": nats_server.port,
    }
    assert [spans[name].kind for name in ("process order", "send audit")] == [SpanKind.CONSUMER, SpanKind.PRODUCER]


@also_uvloop
async def test_jetstream_trace_from_publish_to_ack(nats_server: Server, recorder: TelemetryRecorder) -> None:
    telemetry = recorder.telemetry
    async with telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"])
        consumer = await stream.create_consumer(durable_name="d")
        assert recorder.spans() == {}, "the API makes no spans"
        await js.publish("s.a", b"1", msg_id="x")
        published = recorder.spans()
        assert list(published) == ["publish s.a"]
        attributes = published["publish s.a"].attributes or {}
        assert (attributes["nats.stream"], attributes["messaging.message.id"]) == ("S", "1")
        for answer, sent in (("ack", "+ACK"), ("ack_sync", "+ACK"), ("nak", "-NAK"), ("term", "+TERM")):
            await js.publish("s.a", b"1")
            message = await consumer.next(timeout=5)
            assert len(recorder.spans()["receive S"].links) == 1
            with telemetry.processing(message, consumer="d") as span:
                await getattr(message, answer)()
            spans = recorder.spans()
            settle, process = spans["settle S"], spans["process s.a"]
            assert parent(settle) == identity(process) == span.get_span_context().span_id
            assert (settle.attributes or {})["messaging.consumer.group.name"] == "d"
            assert (settle.attributes or {})["nats.ack"] == sent
            assert (process.attributes or {})["messaging.consumer.group.name"] == "d"


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def contexts(messages: list[JsMessage]) -> list[int]:
    """The span in whose context each message was published."""
    return [int(message.headers["traceparent"].split("-")[2], 16) for message in messages]


@also_uvloop
async def test_window_message_span_ends_with_ack(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"])
        consumer = await stream.create_consumer(durable_name="d")
        with recorder.tracer.start_as_current_span("shopping") as outside:
            async with js.publisher() as publisher:
                first = await publisher.publish("s.1", b"one", headers={"Tag": "a"})
                assert recorder.names() == [], "it is open until the stream has it"
                await publisher.publish("s.2", b"two", msg_id="x")
                with pytest.raises(InvalidSubject):
                    await publisher.publish("s 3")
                wrong = await publisher.publish("s.4", expected_last_seq=77)
                await first
                with pytest.raises(PublishFailed):  # looking at it here has not hidden it from the publisher
                    await publisher.flush()
        await until(lambda: len(recorder.names()) == 5)  # in steps of their own
        spans = recorder.spans()
        assert set(spans) == {"publish s.1", "publish s.2", "publish s 3", "publish s.4", "shopping"}
        assert {parent(spans[name]) for name in spans if name != "shopping"} == {outside.get_span_context().span_id}
        attributes = spans["publish s.1"].attributes or {}
        assert (attributes["nats.stream"], attributes["messaging.message.id"]) == ("S", "1")
        assert attributes["messaging.message.body.size"] == 3
        assert spans["publish s.2"].kind is SpanKind.PRODUCER
        assert (spans["publish s 3"].attributes or {})["error.type"] == "natsproto.errors.InvalidSubject"
        assert spans["publish s.4"].status.status_code is StatusCode.ERROR
        assert (spans["publish s.4"].attributes or {})["error.type"] == "natsproto.errors.WrongLastSequence"
        assert isinstance(wrong.exception(), WrongLastSequence)
        messages = await consumer.fetch(2, timeout=5)
        assert contexts(messages) == [identity(spans["publish s.1"]), identity(spans["publish s.2"])]
        assert messages[0].headers["Tag"] == "a"
        receive = recorder.spans()["receive S"]
        assert linked(receive) == contexts(messages)
        attributes = receive.attributes or {}
        assert (receive.kind, attributes["messaging.batch.message_count"]) == (SpanKind.CLIENT, 2)
        assert (attributes["messaging.consumer.group.name"], attributes["messaging.operation.type"]) == ("d", "receive")
        with pytest.raises(RequestTimeout):
            await consumer.next(timeout=0)
        assert (recorder.spans()["receive S"].attributes or {})["messaging.batch.message_count"] == 0


@also_uvloop
async def test_batch_span_links_to_message_spans(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], allow_atomic=True)
        consumer = await stream.create_consumer(durable_name="d")
        with recorder.tracer.start_as_current_span("theirs") as theirs:
            given = otel.headers()
        recorder.spans()
        with recorder.tracer.start_as_current_span("shopping") as outside:
            async with js.atomic_batch() as batch:
                await batch.publish("s.1", b"one")
                await batch.publish("s.2", b"two")
                await batch.flush()
                await batch.publish("s.3", b"three", headers=given)
        spans = recorder.spans()
        assert set(spans) == {"create s.1", "create s.2", "publish", "shopping"}
        commit = spans["publish"]
        made = [identity(spans["create s.1"]), identity(spans["create s.2"]), theirs.get_span_context().span_id]
        assert linked(commit) == made
        assert contexts(await consumer.fetch(3, timeout=5)) == made
        assert parent(commit) == parent(spans["create s.1"]) == outside.get_span_context().span_id
        assert (commit.kind, spans["create s.1"].kind) == (SpanKind.CLIENT, SpanKind.PRODUCER)
        attributes = commit.attributes or {}
        assert attributes["messaging.batch.message_count"] == 3
        assert (attributes["nats.stream"], attributes["messaging.message.id"]) == ("S", "3")
        assert "messaging.destination.name" not in attributes, "they went to several"
        recorder.spans()

        with pytest.raises(WrongLastSequence):
            async with js.atomic_batch() as batch:
                await batch.publish("s.1", expected_last_subject_seq=77)
        failed = recorder.spans()["publish s.1"]
        assert (failed.status.status_code, (failed.attributes or {})["messaging.batch.message_count"]) == (
            StatusCode.ERROR,
            1,
        )
        async with js.atomic_batch():
            pass

        async def give_up() -> None:
            async with js.atomic_batch() as batch:
                await batch.publish("s.1")
                await batch.publish("s.1")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await give_up()
        assert recorder.names() == ["create s.1", "create s.1"], "nothing was sent"


@also_uvloop
async def test_fast_ingest_has_a_span_for_what_is_waited_for(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], allow_batched=True)
        consumer = await stream.create_consumer(durable_name="d")
        async with js.fast_publisher() as publisher:
            for _ in range(300):
                await publisher.publish("s.1", b"one")
            await publisher.flush()
            assert len(recorder.names()) == 301
            flushed = recorder.spans()["publish s.1"]
            assert len(flushed.links) == 128
            assert (flushed.attributes or {})["messaging.batch.message_count"] == 300
            await publisher.publish("s.2", b"two")
            await publisher.commit("s.2", b"three")
            attributes = recorder.spans()["publish s.2"].attributes or {}
            assert (attributes["messaging.batch.message_count"], attributes["messaging.message.id"]) == (2, "302")
            await publisher.publish("s.3", b"last")
        spans = recorder.spans()
        assert set(spans) == {"create s.3", "publish s.3"}
        assert linked(spans["publish s.3"]) == [identity(spans["create s.3"])]
        messages = await consumer.fetch(303, timeout=5)
        assert contexts(messages)[-1] == identity(spans["create s.3"])
        assert len(set(contexts(messages))) == 303


@also_uvloop
async def test_unsampled_trace_exports_no_span(nats_server: Server) -> None:
    recorder = TelemetryRecorder(ALWAYS_OFF)
    async with recorder.telemetry.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
        consumer = await stream.create_consumer(durable_name="d")
        async with js.publisher() as publisher:
            await publisher.publish("s.1")
        async with js.atomic_batch() as batch:
            await batch.publish("s.2")
        async with js.fast_publisher() as fast:
            await fast.publish("s.3")
        messages = await consumer.fetch(3, timeout=5)
        flags = [int(message.headers["traceparent"].rpartition("-")[2], 16) for message in messages]
        assert [flag & 1 for flag in flags] == [0, 0, 0]
    assert recorder.spans() == {}
    recorder.close()


@also_uvloop
async def test_errors_are_part_of_the_trace(nats_server: Server, recorder: TelemetryRecorder) -> None:
    telemetry = recorder.telemetry
    async with telemetry.connect(nats_server.url) as nc:
        with pytest.raises(NoResponders):
            await nc.request("nobody", timeout=5)
        span = recorder.spans()["request nobody"]
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "natsproto.errors.NoResponders"
        assert [event.name for event in span.events] == ["exception"]
        service = await nc.add_service("shop", "1.0.0")

        @service.endpoint("refuse")
        @telemetry.process
        def refuse(request: Request) -> None:
            raise ServiceError(400, "no")

        with pytest.raises(ServiceError):
            await nc.call("refuse", timeout=5)
        spans = recorder.spans()
        assert spans["process refuse"].status.status_code is StatusCode.ERROR
        assert spans["request refuse"].status.status_code is StatusCode.UNSET, "it was answered"


@also_uvloop
async def test_headers_are_kept_and_inboxes_have_no_names(nats_server: Server, recorder: TelemetryRecorder) -> None:
    telemetry = recorder.telemetry
    async with telemetry.connect(nats_server.url) as nc, nc.subscribe(">") as sub:
        nc.publish_nowait("a", b"1", headers={"traceparent": "mine", "Tag": "b"})
        assert dict((await sub.next(timeout=5)).headers) == {"traceparent": "mine", "Tag": "b"}
        await nc.publish(nc.new_inbox(), b"1")
        await nc.publish("$MINE.x", b"1")
        message = await sub.next(timeout=5)
        assert (await sub.next(timeout=5)).has_headers is False
        with telemetry.processing(message):
            pass
    spans = recorder.spans()
    assert set(spans) == {"send a", "send (temporary)", "process (temporary)", "receive >"}
    assert (spans["send (temporary)"].attributes or {})["messaging.destination.temporary"] is True


@also_uvloop
async def test_metrics_add_up_over_clients_that_come_and_go(nats_server: Server, recorder: TelemetryRecorder) -> None:
    telemetry = recorder.telemetry
    nc = await telemetry.connect(nats_server.url)
    sub = await nc.subscribe("a")
    for _ in range(10):
        await nc.publish("a", b"x")
    await nc.flush()
    before = recorder.metrics()
    assert before["natsproto.client.sent.messages"] == 10
    assert before["natsproto.client.received.messages"] == 10
    assert before["natsproto.client.sent.bytes"] > 100
    assert before["natsproto.client.buffered.messages"] == 0
    await sub.unsubscribe()
    await nc.close()
    async with telemetry.connect(nats_server.url) as other:
        await other.publish("a", b"x")
        await other.flush()
        after = recorder.metrics()
        assert after["natsproto.client.sent.messages"] == 11
        assert after["natsproto.client.received.messages"] == 10
    assert recorder.metrics()["natsproto.client.sent.messages"] == 11


@also_uvloop
async def test_client_closed_during_metrics_is_counted_once(nats_server: Server, recorder: TelemetryRecorder) -> None:
    nc = await recorder.telemetry.connect(nats_server.url)
    await nc.publish("a", b"x")
    await nc.flush()
    loop = asyncio.get_running_loop()
    sent, closing = "natsproto.client.sent.messages", list[Future[None]]()

    class Past(Counter[str]):
        def __getitem__(self, name: str) -> int:
            past = super().__getitem__(name)
            if name == sent and not closing:
                closing.append(asyncio.run_coroutine_threadsafe(nc.close(), loop))
                wait(closing, 0.3)  # it is over by then, or waits for us
            return past

    recorder.telemetry._metrics._closed_totals = Past()
    assert (await asyncio.to_thread(recorder.metrics))[sent] == 1
    await asyncio.wrap_future(closing[0])
    assert recorder.metrics()[sent] == 1


@also_uvloop
async def test_a_plain_client_makes_none(nats_server: Server, recorder: TelemetryRecorder) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        with recorder.tracer.start_as_current_span("outside"):
            await nc.publish("a")
        assert not (await sub.next(timeout=5)).has_headers
    assert set(recorder.spans()) == {"outside"}


def test_opentelemetry_is_imported_on_demand() -> None:
    code = "import sys, natsproto, natsproto.sync, natsproto.service; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@also_uvloop
async def test_without_provider_nothing_is_added(nats_server: Server) -> None:
    seen: list[Message] = []

    @otel.process
    async def handle(message: Message) -> None:
        seen.append(message)
        await message.respond(b"x")

    async with otel.connect(nats_server.url) as nc:
        await nc.subscribe("a", cb=handle)
        assert not (await nc.request("a", timeout=5)).has_headers
        with otel.processing(seen[0]) as span:
            assert not span.is_recording()
        assert not seen[0].has_headers
        assert len(otel.headers()) == 0
