"""What a type checker knows of health, traces, the system account and OpenTelemetry. Never run; mypy reads it."""

from collections.abc import Mapping
from typing import assert_type

import natsproto
from natsproto import Client, Message, otel
from natsproto.health import Health
from natsproto.system import SystemReply
from natsproto.tracing import MessageTrace, TraceEvent


async def looking(nc: Client) -> None:
    health = await nc.health(timeout=1, stream="S", consumer="c")
    assert_type(health, Health)
    assert_type(health.problem, str)
    trace = await nc.trace("a", b"1", deliver=True)
    assert_type(trace, MessageTrace)
    assert_type(trace.deliveries, tuple[TraceEvent, ...])
    async for reply in nc.system().servers("VARZ", stall=None):
        assert_type(reply, SystemReply)
        assert_type(reply.data, Mapping[str, object])
    nc.system().servers("NONSENSE")  # type: ignore[arg-type]


async def connecting() -> None:
    async with natsproto.connect(context="staging", name="shop") as nc:
        assert_type(nc, Client)
    natsproto.connect(context=5)  # type: ignore[arg-type]


async def tracing() -> None:
    async with otel.connect("nats://127.0.0.1:4222", name="traced") as nc:
        assert_type(nc, Client)

    @otel.process
    def handle(message: Message) -> None:
        assert_type(message.data, bytes)

    await nc.subscribe("a", cb=handle)
