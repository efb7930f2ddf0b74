"""Message traces: what servers say is put in order, and what is missing is said."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from natsproto.errors import ConnectionClosed, RequestTimeout
from natsproto.protocol.frames import Message
from tests.core.helpers import ScriptedNetwork, scripted_network, turns
from tests.kit.clock import advance, virtual_clock

TREE = {"2.1": 0, "10": 0, "2": 1, "1": 0, "": 10, **{str(number): 0 for number in range(3, 10)}}


def hop_event(hop: str, hops: int) -> bytes:
    """What a server says that passed the message on to so many others."""
    header = {"Nats-Trace-Hop": [hop]} if hop else {}
    event = {"type": "eg", "ts": "2026-01-02T03:04:05.123456789Z", "kind": 1, "cid": 5, "name": "next", "hop": "1"}
    server = {"name": f"s{hop}", "id": "x", "cluster": "c", "ver": "2.11"}
    return json.dumps({"server": server, "request": {"header": header}, "hops": hops, "events": [event]}).encode()


async def servers(net: ScriptedNetwork, *silent: str, pause: float = 0.0) -> None:
    """Stands in for the servers of a cluster."""
    nc = await net.connect()

    async def speak(message: Message) -> None:
        destination = message.headers["Nats-Trace-Dest"]
        for nonsense in (b"", b"{}", b"[]", b'{"server":[]}', b'{"server":{},"events":[5]}', b"\xff", b"[" * 9999):
            await nc.publish(destination, nonsense, headers={"Content-Type": "nonsense"})
        await nc.publish(destination, b"no gzip", headers={"Content-Encoding": "gzip"})
        for hop, hops in TREE.items():
            if hop not in silent:
                await advance(pause)
                await nc.publish(destination, gzip.compress(hop_event(hop, hops)), headers={"Content-Encoding": "gzip"})

    await nc.subscribe("a", cb=speak)
    await nc.flush()


@virtual_clock
async def test_trace_orders_servers_and_ends_early() -> None:
    async with scripted_network() as net:
        await servers(net, pause=0.1)
        nc = await net.connect()
        began = asyncio.get_running_loop().time()
        trace = await nc.trace("a", timeout=60)
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.2, abs=0.1)
        assert trace.complete
        order = ["", "1", "2", "2.1", *map(str, range(3, 11))]
        assert [server.hop for server in trace.servers] == order
        assert [server.name for server in trace.servers] == [f"s{hop}" for hop in order]
        drawn = str(trace).splitlines()
        assert drawn[:2] == ["s (c, 2.11)", "  --> router 'next'"]
        assert "        s2.1 (c, 2.11)" in drawn
        assert trace.servers[0].events[0].at.microsecond == 123456


@virtual_clock
async def test_trace_waits_for_silent_server() -> None:
    async with scripted_network() as net:
        await servers(net, "2.1")
        nc = await net.connect()
        began = asyncio.get_running_loop().time()
        trace = await nc.trace("a", timeout=3)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.01)
        assert not trace.complete
        assert len(trace.servers) == 11
        assert str(trace).endswith("(not all servers have reported)")


@virtual_clock
async def test_when_nobody_says_anything_it_is_a_timeout() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        with pytest.raises(RequestTimeout, match="trace of 'a'"):
            await nc.trace("a", timeout=3)
        assert nc._engine.registry.subscriptions == []


@virtual_clock
async def test_cancelling_and_closing_leave_nothing() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        for end in ("cancel", "close"):
            task = asyncio.create_task(nc.trace("a", timeout=60))
            await turns(3)
            if end == "cancel":
                task.cancel()
            else:
                await nc.close()
            await asyncio.wait([task])
            assert nc._engine.registry.subscriptions == []
        assert isinstance(task.exception(), ConnectionClosed)
