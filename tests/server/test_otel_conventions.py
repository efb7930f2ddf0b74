"""Spans and metrics hold what the semantic conventions for messaging name, and nothing that has many values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import Span

from natsproto import Message, otel
from natsproto.errors import ConfigError, InvalidSubject, NoResponders
from natsproto.jetstream import JsMessage
from natsproto.middleware import with_middleware
from natsproto.testing import Server

NAMED = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
METRICS = {
    value: vars(messaging_metrics)[f"create_{name.lower()}"].__doc__
    for name, value in vars(messaging_metrics).items()
    if name.startswith("MESSAGING_")
}
IN_USE = {name for name, doc in METRICS.items() if not doc.startswith("Deprecated")}
OPERATIONS = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
FEW = {
    "messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name",
    "messaging.destination.template", "messaging.consumer.group.name", "server.address", "server.port", "error.type",
}  # fmt: skip
"""What the conventions allow on metrics; a destination.name there is that of a stream."""


class Everything:
    """All that one Telemetry has made."""

    def __init__(self, templates: otel.Templates = (), enrich: otel.Enrich | None = None) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._tracers, self._meters = TracerProvider(), MeterProvider([self._reader])
        self._tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = otel.Telemetry(self._tracers, self._meters, templates=templates, enrich=enrich)

    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def metrics(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("messaging.")
        }


def total(metric: Metric, operation: str, error: str | None = None) -> int:
    """The count of the points of this operation, all of them or those with this error."""
    found = 0
    for point in metric.data.data_points:
        said = point.attributes or {}
        if said["messaging.operation.name"] == operation and error in (None, said.get("error.type")):
            found += point.count if isinstance(point, HistogramDataPoint) else int(getattr(point, "value", 0))
    return found


async def use_everything(telemetry: otel.Telemetry, server: Server) -> None:
    """Every verb that makes a span, each subject another one."""
    async with telemetry.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(name="ORDERS", subjects=["orders.>"], allow_atomic=True)
        consumer = await stream.create_consumer(durable_name="packing")
        async with js.publisher() as publisher:
            await publisher.publish("orders.1.new", b"1")
        await js.publish("orders.2.new", b"2")
        async with js.atomic_batch() as batch:
            await batch.publish("orders.3.new", b"3")
            await batch.publish("orders.4.new", b"4")
            await batch.commit()
        for message in await consumer.fetch(2, timeout=20):
            with telemetry.processing(message, consumer="packing"):
                await message.ack()

        async def handle(message: JsMessage) -> None:
            if message.metadata.num_delivered == 1:
                raise ValueError("no")

        await consumer.consume(with_middleware(handle, telemetry.tracing), stop_after=4, nak_delay=0).run()

        @telemetry.process
        async def answer(message: Message) -> None:
            await message.respond(b"42")

        await nc.subscribe("ask.*", cb=answer)
        await nc.request("ask.7", timeout=20)
        with pytest.raises(NoResponders):
            await nc.request("nobody.8", timeout=20)
        async with nc.subscribe("news.>", queue="readers") as news:
            await nc.publish("news.9", b"x")
            await news.next(timeout=20)


async def test_spans_and_metrics_follow_conventions(nats_server: Server) -> None:
    made = Everything(["orders.{id}.new", "ask.*"])
    await use_everything(made.telemetry, nats_server)
    spans, metrics = made.spans(), made.metrics()
    used = {name for span in spans for name in span.attributes or {}}
    assert {name for name in used if name.startswith("messaging.")} <= NAMED
    assert {(span.attributes or {})["messaging.operation.type"] for span in spans} <= OPERATIONS
    assert {(span.attributes or {})["messaging.system"] for span in spans} == {"nats"}
    assert set(metrics) == IN_USE
    for name, metric in metrics.items():
        unit = "s" if name.endswith("duration") else "{message}"
        assert metric.unit == unit
        for point in metric.data.data_points:
            assert set(point.attributes or {}) <= FEW
            assert {"messaging.system", "messaging.operation.name"} <= set(point.attributes or {})


async def test_names_of_spans_and_metrics_have_few_values(nats_server: Server) -> None:
    made = Everything(["orders.{id}.new", "ask.*"])
    await use_everything(made.telemetry, nats_server)
    named = {span.name for span in made.spans()}
    assert named == {
        "publish orders.{id}.new", "create orders.{id}.new", "publish", "receive ORDERS", "process orders.{id}.new",
        "settle ORDERS", "request ask.*", "process ask.*", "request", "send", "receive news.>",
    }  # fmt: skip
    metrics = made.metrics()
    values = {
        value
        for metric in metrics.values()
        for point in metric.data.data_points
        for name, value in (point.attributes or {}).items()
        if name.startswith("messaging.destination.")
    }
    assert values == {"orders.{id}.new", "ask.*", "news.>", "ORDERS"}


async def test_metrics_count_every_operation_once(nats_server: Server) -> None:
    made = Everything(["orders.>"])
    await use_everything(made.telemetry, nats_server)
    metrics, spans = made.metrics(), made.spans()
    operations = metrics["messaging.client.operation.duration"]
    for operation in ("publish", "receive", "settle", "request", "send"):
        assert total(operations, operation) == [span.name.split()[0] for span in spans].count(operation)
    assert total(operations, "create") == 0
    assert total(operations, "request") == 2
    assert total(operations, "request", "natsproto.errors.NoResponders") == 1
    processed = metrics["messaging.process.duration"]
    points = [point.attributes or {} for point in processed.data.data_points]
    assert {said.get("messaging.consumer.group.name") for said in points} == {"packing", None}, "an endpoint has none"
    assert all("server.address" in said for said in points)
    assert total(processed, "process") == 2 + 4 + 1
    assert total(processed, "process", "builtins.ValueError") == 2
    assert total(metrics["messaging.client.sent.messages"], "publish") == 1 + 1 + 2
    consumed = metrics["messaging.client.consumed.messages"]
    assert (total(consumed, "receive"), total(consumed, "process")) == (2 + 1, 4 + 1)


async def test_enrich_sees_each_span_and_may_fail(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def enrich(span: Span, operation: otel.Operation) -> None:
        span.set_attribute("shop", operation.subject or "several")
        if operation.messages:
            span.set_attribute("flower", operation.messages[0].headers.get("Flower") or "")
        if operation.name == "send":
            raise ValueError("no")

    made = Everything(enrich=enrich)
    async with made.telemetry.connect(nats_server.url) as nc, nc.subscribe("a") as sub:
        await nc.publish("a", headers={"Flower": "tulip"})
        await sub.next(timeout=20)
    send, receive = made.spans()
    assert (send.attributes or {})["shop"] == "a"
    assert (receive.attributes or {})["flower"] == "tulip"
    assert "enrich failed" in caplog.text


async def test_templates_may_be_a_function_that_fails(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def template(subject: str) -> str | None:
        if subject == "bad":
            raise ValueError("no")
        return "good.*" if subject.startswith("good.") else None

    made = Everything(template)
    async with made.telemetry.connect(nats_server.url) as nc:
        for subject in ("good.1", "other", "bad"):
            await nc.publish(subject)
    assert [span.name for span in made.spans()] == ["send good.*", "send", "send"]
    assert "templates function failed" in caplog.text


def test_templates_that_cannot_be_are_refused() -> None:
    for template in ("a..b", "orders.{id", "orders.id}", "orders.{a}{b}", "orders.no{id}", "orders.{a.b}"):
        with pytest.raises(InvalidSubject):
            otel.Telemetry(templates=["good.{id}", template])
    with pytest.raises(ConfigError):
        otel.Telemetry(templates="orders.*")
