"""What a reconnect does to the pause before the next one, and to messages that the new server would not take."""

from __future__ import annotations

import asyncio
import random

import pytest

from natsproto._core.events import Disconnected, MessageDropped, Reconnected
from natsproto.errors import PayloadTooLarge
from natsproto.protocol.pool import STABLE_AFTER_S
from natsproto.testing import run_server
from tests.core.helpers import scripted_network, turns, turns_until
from tests.faults.helpers import SOON, EventRecorder
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour
from tests.kit.waiting import until as really
from tests.server.helpers import both_loops, client


@virtual_clock
async def test_backoff_after_a_healthy_connection() -> None:
    """Twelve cuts in a row, then three seconds of health: the next outage is the first of its kind."""
    recorder = EventRecorder(Disconnected, Reconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        for number in range(1, 13):
            await asyncio.sleep(0.005)
            net.peer.reset()
            await recorder.wait(Reconnected, number, timeout=60)
        assert recorder.of(Reconnected)[-1].outage > STABLE_AFTER_S, "cuts in a row do make it climb"
        await advance(3)
        net.peer.reset()
        assert (await recorder.wait(Reconnected, 13, timeout=60)).outage < 0.2
        assert nc.is_connected


@virtual_clock
async def test_backoff_after_short_useful_connections() -> None:
    """Connections of 5 ms that carry traffic: the pause stays short, but there is one."""
    recorder = EventRecorder(Disconnected, Reconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        for number in range(1, 41):
            await nc.publish("a", b"")
            await nc.flush()
            await asyncio.sleep(0.005)
            net.peer.reset()
            await recorder.wait(Reconnected, number, timeout=60)
        outages = [event.outage for event in recorder.of(Reconnected)]
        assert max(outages) < 0.2
        assert min(outages[5:]) >= 0.05, "no busy loop"


def _payloads(rng: random.Random, limit: int) -> list[bytes]:
    sizes = [rng.choice([0, 1, limit - 1, limit, limit + 1, rng.randrange(4 * limit)]) for _ in range(40)]
    return [bytes(rng.choices(b"abc", k=size)) for size in sizes]


@virtual_clock
async def test_max_payload_lowered_while_down() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    limit = rng.randrange(20, 500)
    recorder = EventRecorder(MessageDropped, Disconnected)
    async with scripted_network(Behaviour(), Behaviour(greeting={"max_payload": limit})) as net:
        nc = await net.connect(on_event=recorder)
        net.down()
        await turns_until(lambda: not nc.is_connected)
        sent = _payloads(rng, limit)
        for payload in sent:
            await nc.publish("a", payload)
        await nc.publish("h", b"x" * (limit - 10), headers={"Key": "value"})
        await nc.publish("r", b"x" * (limit + 7), reply="there")
        net.up()
        await nc.flush()
        assert [op.payload for op in net.server.ops if op.name == "PUB"] == [p for p in sent if len(p) <= limit]
        errors = [(event.subject, event.error) for event in recorder.of(MessageDropped)]
        dropped = [
            (subject, error.size, error.limit) for subject, error in errors if isinstance(error, PayloadTooLarge)
        ]
        header = len(b"NATS/1.0\r\nKey: value\r\n\r\n")
        large = [("a", len(payload), limit) for payload in sent if len(payload) > limit]
        assert dropped == [*large, ("h", limit - 10 + header, limit), ("r", limit + 7, limit)]
        assert len(recorder.of(Disconnected)) == 1
        assert (nc.stats.buffered_msgs, nc.stats.buffered_bytes) == (0, 0)


@virtual_clock
async def test_request_too_large_for_the_next_server() -> None:
    recorder = EventRecorder(MessageDropped)
    async with scripted_network(Behaviour(), Behaviour(greeting={"max_payload": 100})) as net:
        nc = await net.connect(on_event=recorder)
        net.down()
        await turns_until(lambda: not nc.is_connected)
        large = asyncio.create_task(nc.request("a", b"x" * 101, timeout=60))
        small = asyncio.create_task(nc.request("svc", b"x" * 100, timeout=60))
        await turns(3)
        net.up()
        with pytest.raises(PayloadTooLarge) as refused:
            await large
        assert (refused.value.size, refused.value.limit) == (101, 100)
        (op,) = [await net.server.expect("PUB", "svc")]
        assert op.payload == b"x" * 100
        small.cancel()
        assert recorder.events == []


@both_loops
async def test_max_payload_lowered_at_a_reconnect() -> None:
    """What is too large costs itself, not its neighbours and not the connection."""
    recorder = EventRecorder(MessageDropped, Disconnected)
    with run_server() as roomy, run_server(config="max_payload: 1000\n") as strict:
        async with client(strict.url) as other, client(roomy.url, on_event=recorder) as nc:
            sub = await other.subscribe("a")
            await other.flush()
            roomy.kill()
            await really(lambda: not nc.is_connected)
            for size in (1000, 1001, 10, 2000, 999):
                await nc.publish("a", b"x" * size)
            nc.set_servers(strict.url)
            await nc.reconnect()
            await nc.flush(timeout=SOON)
            assert [len((await sub.next(timeout=SOON)).data) for _ in range(3)] == [1000, 10, 999]
            errors = [event.error for event in recorder.of(MessageDropped)]
            assert [error.size for error in errors if isinstance(error, PayloadTooLarge)] == [1001, 2000]
            assert len(errors) == 2
            assert len(recorder.of(Disconnected)) == 1
