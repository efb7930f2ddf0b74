"""OpenTelemetry: spans that belong together, and metrics that can be added up.

Run it with ``python docs/examples/telemetry.py`` where ``natsproto[server,otel]`` and opentelemetry-sdk are installed.
"""

import asyncio

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from natsproto import otel
from natsproto.jetstream import JsMessage
from natsproto.middleware import with_middleware
from natsproto.testing import run_server


async def main() -> None:
    """Publish and handle three orders; then print the spans and metrics."""
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()  # in production: exporters of OTLP
    tracers, meters = TracerProvider(), MeterProvider([metrics])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = otel.Telemetry(tracers, meters, templates=["orders.{id}.new"])

    async def pack(message: JsMessage) -> None:
        await asyncio.sleep(0)

    async with run_server(jetstream=True) as server, telemetry.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>"])
        consumer = await stream.create_consumer("packing")
        for number in range(3):
            await js.publish(f"orders.{number}.new", b"tulips")
        await consumer.consume(with_middleware(pack, telemetry.tracing), stop_after=3).run()

    for name in sorted({span.name for span in spans.get_finished_spans()}):
        print(f"span: {name}")
    data = metrics.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                if metric.name == "messaging.process.duration" and isinstance(point, HistogramDataPoint):
                    print(f"{metric.name}: {point.count} times")
    meters.shutdown()


if __name__ == "__main__":
    asyncio.run(main())

# prints: span: process orders.{id}.new
# prints: span: publish orders.{id}.new
# prints: span: settle ORDERS
# prints: messaging.process.duration: 3 times
