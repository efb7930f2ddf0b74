"""Spans of OpenTelemetry in a program of nats-py: natsproto.otel reads and writes its messages."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.otel import Telemetry, headers

pytestmark = pytest.mark.differs("it is about natsproto alone")


@pytest.mark.parametrize("streams", [False, True])
async def test_handling_is_in_the_trace_of_the_publisher(nc: nats.NATS, streams: bool) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(provider)
    handled = asyncio.Event()

    async def handler(msg: Msg) -> None:
        with telemetry.processing(msg):
            pass
        handled.set()

    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["stored"])
    with provider.get_tracer("program").start_as_current_span("publish"):
        traced = dict(headers().items())
    if streams:
        await js.subscribe("stored", cb=handler)
        await js.publish("stored", b"1", headers=traced)
    else:
        await nc.subscribe("plain", cb=handler)
        await nc.publish("plain", b"1", headers=traced)
    await asyncio.wait_for(handled.wait(), 10)
    publish, process = spans.get_finished_spans()
    assert process.context.trace_id == publish.context.trace_id
