"""Events as an application gets them: one after the other, the last one included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

import natsproto
from natsproto._core.engine.engine import CLOSE_TIMEOUT_S
from natsproto._core.events import Closed, Connected, Disconnected, Event, Reconnected, Reconnecting
from natsproto.errors import ConnectFailed, DrainTimeout
from natsproto.testing import Server
from tests.core.helpers import scripted_network, turns, turns_until
from tests.kit.clock import advance, virtual_clock


@virtual_clock
async def test_async_on_event_order() -> None:
    """The first one to be told takes the longest; nobody overtakes it."""
    seen: list[type[Event]] = []
    delays = iter([5.0, 4.0, 3.0, 2.0, 1.0])

    async def watch(event: Event) -> None:
        await asyncio.sleep(next(delays))
        seen.append(type(event))

    async with scripted_network() as net:
        nc = await net.connect(on_event=watch)
        (await net.server.connection()).close()
        await turns_until(lambda: not nc.is_connected)
        await nc.flush()
        await nc.drain()
    assert seen == [Connected, Disconnected, Reconnecting, Reconnected, Closed]


@pytest.mark.parametrize("end", ["drain", "close", "close when closed for good"])
@virtual_clock
async def test_closed_event_is_awaited(end: str) -> None:
    seen: list[Event] = []

    async def watch(event: Event) -> None:
        await asyncio.sleep(CLOSE_TIMEOUT_S / 4)
        seen.append(event)

    async with scripted_network() as net:
        nc = await net.connect(on_event=watch, allow_reconnect=False)
        if end == "close when closed for good":
            net.down()
            await turns_until(lambda: nc.state == natsproto.State.CLOSED)
        await (nc.drain() if end == "drain" else nc.close())
        assert type(seen[-1]) is Closed


@virtual_clock
async def test_on_event_gets_closed_when_connect_fails() -> None:
    seen: list[Event] = []

    async def watch(event: Event) -> None:
        await turns(5)
        seen.append(event)

    async with scripted_network() as net:
        net.down()
        with pytest.raises(ConnectFailed) as failure:
            await net.connect(on_event=watch)
        assert seen[-1] == Closed(reason=failure.value)


@virtual_clock
async def test_slow_on_event_at_close_and_drain() -> None:
    """An endless callback costs no more than the deadline, and drain says what it did not do."""
    loop = asyncio.get_running_loop()
    asleep = asyncio.Event()

    async def watch(event: Event) -> None:
        await asleep.wait()

    async with scripted_network() as net:
        nc = await net.connect(on_event=watch)
        began = loop.time()
        with pytest.raises(DrainTimeout, match="2 events not handled by on_event"):
            await nc.drain(timeout=3)
        assert loop.time() - began == pytest.approx(3, abs=1e-6)
        began = loop.time()
        await nc.close()
        assert loop.time() - began == pytest.approx(CLOSE_TIMEOUT_S, abs=1e-6)
        asleep.set()
        await turns(5)


@virtual_clock
async def test_on_event_may_close_the_client() -> None:
    loop = asyncio.get_running_loop()
    seen: list[type[Event]] = []

    async def watch(event: Event) -> None:
        if isinstance(event, Connected):
            await net.clients[0].close()
        seen.append(type(event))

    async with scripted_network() as net:
        began = loop.time()
        nc = await net.connect(on_event=watch)
        await nc.wait_closed()
        await nc.close()
        assert seen == [Connected, Closed]
        assert loop.time() == began


@virtual_clock
async def test_on_event_that_cancels_itself(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[type[Event]] = []

    async def watch(event: Event) -> None:
        if isinstance(event, Disconnected):
            raise asyncio.CancelledError
        await turns(2)
        seen.append(type(event))

    async with scripted_network() as net:
        nc = await net.connect(on_event=watch)
        (await net.server.connection()).close()
        await turns_until(lambda: not nc.is_connected)
        await nc.flush()
        await nc.close()
        assert seen == [Connected, Reconnecting, Reconnected, Closed]
        assert "on_event failed for Disconnected" in caplog.text


def _program(url: str, watch: Callable[[Event], object], rng: random.Random) -> None:
    async def main() -> None:
        async with natsproto.connect(url, on_event=watch) as nc:
            for _ in range(rng.randrange(3)):
                await nc.reconnect()
                await nc.flush()

    asyncio.run(main())


def test_sixty_programs_hear_closed(nats_server: Server) -> None:
    """Programs that end with the block: every event handled, in order, the last one too."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        handled: list[type[Event]] = []

        async def watch(event: Event, handled: list[type[Event]] = handled) -> None:
            await asyncio.sleep(rng.random() / 50)
            handled.append(type(event))

        _program(nats_server.url, watch, rng)
        assert handled[-1] is Closed
        rounds = (len(handled) - 2) // 3
        assert handled == [Connected, *[Disconnected, Reconnecting, Reconnected] * rounds, Closed]


def test_program_cancelled_with_events_waiting(nats_server: Server, recwarn: pytest.WarningsRecorder) -> None:
    """What nobody can handle any more at the end of a program leaves no warning of Python's behind."""

    never = asyncio.Event()

    async def watch(event: Event) -> None:
        await never.wait()

    async def main() -> None:
        nc = await natsproto.connect(nats_server.url, on_event=watch)
        await nc.reconnect()
        await nc.flush()

    asyncio.run(main())
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


@virtual_clock
async def test_clients_are_told_apart_by_name(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    async with scripted_network() as net:
        await net.connect(name="100% mine", on_event=events.append)
        await net.connect()
        net.down()
        await advance(1)
        net.up()
        await advance(5)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    kinds = [line.partition(" 127")[0] for line in warnings if "connected" in line]
    assert sorted(kinds) == [
        "100% mine: disconnected from",
        "100% mine: reconnected to",
        "disconnected from",
        "reconnected to",
    ]
    assert {event.client for event in events} == {"100% mine"}
