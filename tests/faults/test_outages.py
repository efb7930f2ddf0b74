"""Outages of every kind between the client and a real server: what was promised arrives, in order and once; what
may be lost is counted and told; nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, Reconnected
from natsproto.errors import ConnectFailed, ConnectionLost, NatsError, OutboxFull, RequestTimeout, StaleConnection
from natsproto.testing import Direction, End, FaultProxy, Server, run_server
from tests.faults.helpers import (
    SOON,
    EventRecorder,
    connect_in,
    memory_runtime,
    nothing_left,
    only_these_are_left,
    worded,
)
from tests.kit.clock import virtual_clock
from tests.kit.memory import MemoryNetwork
from tests.kit.scripted import Behaviour, ScriptedServer
from tests.kit.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with run_server() as running:
        yield running


@asynccontextmanager
async def proxied(server: Server, *, receive_buffer: int | None = None) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.host, server.port, receive_buffer=receive_buffer) as proxy:
        yield proxy


class Witness:
    """Numbers seen on a subject by somebody whose connection is never touched."""

    def __init__(self, nc: Client, subject: str) -> None:
        self.seen: list[int] = []
        self._nc = nc
        self._subscription = nc.subscribe(subject, cb=lambda message: self.seen.append(int(message.data)))

    async def caught_up(self) -> None:
        """What the server has got until now is seen."""
        await self._nc.flush()
        await self._subscription.drain()


@asynccontextmanager
async def witness(server: Server, subject: str) -> AsyncIterator[Witness]:
    async with natsproto.connect(server.url) as nc:
        seen = Witness(nc, subject)
        await nc.flush()
        yield seen


class Feed:
    """Publishes 0, 1, 2 … and remembers which connection each is for, and which were published while there was none."""

    def __init__(self, nc: Client, recorder: EventRecorder, subject: str) -> None:
        self.connection: list[int] = []
        self.down: set[int] = set()
        self._nc, self._recorder, self._subject = nc, recorder, subject

    async def publish(self) -> None:
        number, connection = len(self.connection), len(self._recorder.of(Reconnected))
        if not self._nc.is_connected:
            self.down.add(number)
            connection += 1
        self.connection.append(connection)
        await self._nc.publish(self._subject, b"%d" % number)

    def check(self, seen: list[int]) -> set[int]:
        """In order, once, and of no connection more lost than was told at its end. Returns the lost.

        What was published while there was none belongs to the next one.
        """
        assert seen == sorted(set(seen))
        lost = set(range(len(self.connection))) - set(seen)
        counted = [event.in_flight for event in self._recorder.of(Disconnected)]
        for connection, count in Counter(self.connection[number] for number in lost).items():
            assert count <= counted[connection], f"connection {connection}: {count} lost, {counted[connection]} told"
        return lost


@pytest.mark.timeout(180)  # each waits for a few round trips, which take their time on a busy machine
async def test_150_cuts_at_random_bytes_lose_little(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    async with proxied(server) as proxy, witness(server, "cut.out") as seen, natsproto.connect(server.url) as direct:
        async with nothing_left():
            recorder = EventRecorder(Disconnected, Reconnected)
            nc = await natsproto.connect(proxy.url, on_event=recorder, reconnect_delay=lambda _: 0.002)
            incoming: list[int] = []
            nc.subscribe("cut.in", cb=lambda message: incoming.append(int(message.data)))
            await nc.flush()
            feed, said = Feed(nc, recorder, "cut.out"), 0
            for _ in range(150):
                direction = chance.choice(list(Direction))
                at = proxy.link.passed[direction] + chance.randrange(1, 1200)
                proxy.cut_at(direction, at, chance.choice(list(End)))
                links = len(proxy.history)
                while len(proxy.history) == links:  # until a new connection shows that this one was cut
                    await feed.publish()
                    await direct.publish("cut.in", b"%d" % said)
                    said += 1
                    await direct.flush()  # who is slow is not given more at a time, to be lost with a cut
                    await asyncio.sleep(0.001)
            await recorder.wait(Reconnected, len(recorder.of(Disconnected)))
            await nc.flush()
            await seen.caught_up()
            assert len(recorder.of(Disconnected)) >= 100
            lost = feed.check(seen.seen)
            assert len(lost) <= 2 * len(recorder.of(Disconnected)), (len(lost), len(recorder.of(Disconnected)))
            assert incoming == sorted(set(incoming))
            await nc.close()
            await proxy.wait(lambda: not proxy.links)
        await only_these_are_left(server, connections=2, subscriptions=0)


@pytest.mark.timeout(180)
async def test_200_cuts_with_traffic_do_not_slow_down(server: Server, seed: int) -> None:
    """With all defaults, no outage lasts long, however many there were."""
    chance = random.Random(seed)
    async with proxied(server) as proxy:
        recorder = EventRecorder(Disconnected, Reconnected)
        async with natsproto.connect(proxy.url, on_event=recorder) as nc:
            received: list[bytes] = []
            nc.subscribe("echo", cb=lambda message: received.append(message.data))
            for _ in range(200):
                count, times = len(received), len(recorder.of(Disconnected))
                await nc.publish("echo", b"x")
                async with asyncio.timeout(15):
                    while len(received) == count:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                direction = chance.choice(list(Direction))
                at = proxy.link.passed[direction] + chance.randrange(1, 300)
                proxy.cut_at(direction, at, chance.choice(list(End)))
                while len(recorder.of(Disconnected)) == times:
                    await nc.publish("echo", b"y" * 50)
                    await asyncio.sleep(0.001)
                await recorder.wait(Reconnected, times + 1, timeout=15)
            outages = [event.outage for event in recorder.of(Reconnected)]
            print(f"longest {max(outages):.2f} s, all {sum(outages):.1f} s")
            assert max(outages) < 2
            assert sum(outages) < 40


@pytest.mark.timeout(180)
async def test_40_outages_end_soon(server: Server, seed: int) -> None:
    """Links that refuse, hang or break at once for up to half a second, with connections that live for less: the client
    is back soon after each, and is not away for more than 15 s in all.
    """
    chance = random.Random(seed)
    async with proxied(server) as proxy:
        recorder = EventRecorder(Disconnected, Reconnected)
        async with natsproto.connect(proxy.url, on_event=recorder, connect_timeout=0.5) as nc:
            received: list[bytes] = []
            nc.subscribe("echo", cb=lambda message: received.append(message.data))
            away: list[float] = []
            for _ in range(40):
                fault, seconds, lives = (
                    chance.choice(["refuse", "hang", "break"]),
                    chance.random() / 2,
                    chance.random() / 5,
                )
                await asyncio.sleep(lives)
                times = len(recorder.of(Disconnected))
                if fault == "refuse":
                    proxy.refuse()
                elif fault == "hang":
                    proxy.stall()
                proxy.cut(chance.choice(list(End)))
                ends_at = time.monotonic() + seconds
                while time.monotonic() < ends_at:
                    if fault == "break":
                        proxy.cut(chance.choice(list(End)))
                    await asyncio.sleep(0.01)
                proxy.heal()
                await proxy.allow()
                healed, count = time.monotonic(), len(received)
                await recorder.wait(Disconnected, times + 1)
                async with asyncio.timeout(15):
                    while len(received) == count:
                        await nc.publish("echo", b"x")
                        await asyncio.sleep(0.005)
                away.append(time.monotonic() - healed)
            print(f"longest {max(away):.2f} s, all {sum(away):.1f} s")
            assert max(away) < 2
            assert sum(away) < 15


@pytest.mark.smoke
async def test_messages_published_while_down_arrive(server: Server) -> None:
    async with proxied(server) as proxy, witness(server, "down") as seen:
        recorder = EventRecorder(Disconnected, Reconnected)
        async with natsproto.connect(proxy.url, on_event=recorder, reconnect_delay=lambda _: 0.005) as nc:
            feed = Feed(nc, recorder, "down")
            for number in range(1, 31):
                proxy.refuse()
                proxy.cut(random.Random(number).choice(list(End)))
                await recorder.wait(Disconnected, number)
                for _ in range(100):
                    await feed.publish()
                await proxy.allow()
                await recorder.wait(Reconnected, number)
                await nc.flush()
            await seen.caught_up()
            assert len(feed.down) == 3000
            assert not feed.check(seen.seen)


async def test_outbox_is_bounded_while_down(server: Server) -> None:
    async with proxied(server) as proxy, witness(server, "full") as seen:
        recorder = EventRecorder(Disconnected, Reconnected)
        async with natsproto.connect(proxy.url, on_event=recorder, outbox_limit=10_000) as nc:
            proxy.refuse()
            proxy.cut()
            await recorder.wait(Disconnected)
            taken = 0
            while nc.stats.buffered_bytes + 150 < 10_000:
                await nc.publish("full", b"%100d" % taken)
                taken += 1
            with pytest.raises(OutboxFull) as caught:
                await nc.publish("full", bytes(200))
            assert worded(caught.value)
            assert nc.stats.buffered_bytes <= 10_000
            await proxy.allow()
            await recorder.wait(Reconnected)
            await nc.flush()
            await seen.caught_up()
            assert seen.seen == list(range(taken))


async def test_subscription_calls_work_while_reconnecting(server: Server) -> None:
    async with proxied(server) as proxy, natsproto.connect(server.url) as direct:
        recorder = EventRecorder(Disconnected, Reconnected)
        async with natsproto.connect(proxy.url, on_event=recorder) as nc:
            kept, given_up, limited = nc.subscribe("a"), nc.subscribe("b"), nc.subscribe("c", max_messages=3)
            await nc.flush()
            await direct.publish("c", b"1")
            await limited.next(20)
            proxy.refuse()
            proxy.cut()
            await recorder.wait(Disconnected)
            await given_up.unsubscribe()
            new = nc.subscribe("d")
            draining = asyncio.create_task(kept.drain(10))
            await proxy.allow()
            await recorder.wait(Reconnected)
            await draining
            await nc.flush()
            for _ in range(5):
                for subject in ("a", "b", "c", "d"):
                    await direct.publish(subject, b"1")
            await direct.flush()
            await nc.flush()
            assert [message async for message in kept] == []
            assert given_up.closed
            assert [message.subject async for message in limited] == ["c", "c"]  # two were left of three
            assert (await new.next(20)).subject == "d"


async def test_half_open_connection_is_dropped(server: Server) -> None:
    async with proxied(server) as proxy:
        recorder = EventRecorder()
        async with natsproto.connect(
            proxy.url, on_event=recorder, ping_interval=0.1, max_outstanding_pings=2, connect_timeout=5
        ) as nc:
            loop = asyncio.get_running_loop()
            proxy.stall()
            began = loop.time()
            assert isinstance((await recorder.wait(Disconnected)).cause, StaleConnection)
            assert loop.time() - began <= 0.3 + SOON
            proxy.heal()
            began = loop.time()
            await recorder.wait(Reconnected)
            assert loop.time() - began <= SOON
            while True:
                with contextlib.suppress(ConnectionLost):  # lost again where the machine stalls
                    await nc.flush()
                    break


async def test_talking_peer_that_does_not_read_is_dropped(server: Server) -> None:
    async with proxied(server, receive_buffer=65_536) as proxy, natsproto.connect(server.url) as direct:
        recorder = EventRecorder()
        nc = await natsproto.connect(
            proxy.url, on_event=recorder, ping_interval=0.2, max_outstanding_pings=2, connect_timeout=1
        )
        nc.subscribe("talk", cb=lambda message: None)
        await nc.flush()

        async def talk() -> None:
            while True:
                await direct.publish("talk", b"x")
                await asyncio.sleep(0.01)

        async def publish_on() -> None:
            while True:
                await nc.publish("heard.by.nobody", bytes(10_000))

        proxy.stall(Direction.TO_SERVER)
        talking, publishing = asyncio.create_task(talk()), asyncio.create_task(publish_on())
        loop = asyncio.get_running_loop()
        began = loop.time()
        cause = (await recorder.wait(Disconnected)).cause
        assert isinstance(cause, ConnectionLost)
        assert "accepts no data" in worded(cause)
        assert loop.time() - began <= 0.2 * 5 + SOON
        assert nc.stats.buffered_bytes < 1 << 20  # publish() waits; nothing piles up
        talking.cancel()
        publishing.cancel()
        proxy.heal()
        await recorder.wait(Reconnected)
        await nc.close()


async def test_close_ends_in_time_with_stuck_peer(server: Server) -> None:
    async with proxied(server, receive_buffer=65_536) as proxy, nothing_left():
        nc = await natsproto.connect(proxy.url)
        await nc.flush()
        proxy.stall()

        async def publish_on() -> None:
            while True:
                await nc.publish("heard.by.nobody", bytes(100_000))

        publishing = asyncio.create_task(publish_on())
        await until(lambda: nc.stats.buffered_bytes >= 262_144, 20)
        began = time.monotonic()
        await nc.close()
        assert time.monotonic() - began <= 2 + SOON
        with pytest.raises(natsproto.errors.ConnectionClosed):
            await publishing
        proxy.heal()
        await proxy.wait(lambda: not proxy.links)


async def test_everything_works_byte_by_byte(server: Server) -> None:
    async with proxied(server) as proxy:
        proxy.chop(1)
        async with natsproto.connect(proxy.url) as nc:
            answering = nc.subscribe("echo", cb=lambda message: message.respond(message.data, headers=message.headers))
            for number in range(40):
                answer = await nc.request("echo", b"%d" % number, headers={"Number": str(number)})
                assert (int(answer.data), answer.headers["Number"]) == (number, str(number))
            await answering.unsubscribe()
            incoming = nc.subscribe("many")
            for number in range(100):
                await nc.publish("many", b"%d" % number)
            await nc.flush()
            assert [int((await incoming.next(20)).data) for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("direction", list(Direction), ids=lambda direction: direction.name)
@pytest.mark.parametrize("at", [3, 20, 350, 700, 1001, 1203, 1507, 1999])
async def test_a_corrupted_byte_is_detected_or_harmless(server: Server, at: int, direction: Direction) -> None:
    async with proxied(server) as proxy:
        proxy.corrupt_at(direction, at)
        recorder = EventRecorder(Disconnected, Reconnected)
        refusal: NatsError | None = None
        try:
            nc = await natsproto.connect(proxy.url, on_event=recorder, connect_timeout=1, ping_interval=0.2)
        except ConnectFailed as exc:
            refusal = exc
        if refusal is not None:
            assert worded(refusal)
            return
        incoming = nc.subscribe("numbers")
        for number in range(200):
            await nc.publish("numbers", b"%03d" % number)
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionLost):  # detected while the flush was out
            await nc.flush()
        await nc.publish("numbers", b"end")
        got = [await incoming.next(20)]
        while got[-1].data != b"end":
            got.append(await incoming.next(20))
        odd = [message for message in got[:-1] if not message.data.isdigit() or message.subject != "numbers"]
        if recorder.of(Disconnected):
            assert worded(recorder.of(Disconnected)[0].cause)
            assert len(odd) <= 1
        else:
            assert len(odd) <= 1  # NATS has no checksum: a flipped byte of a payload is for the application to notice
            assert len(got) >= 200
        await nc.close()


@pytest.mark.parametrize(
    ("behaviour", "stage"),
    [
        (Behaviour(greeting=None, answer_ping=False), "waiting for INFO"),
        (Behaviour(greeting=b'INFO {"server_id":', answer_ping=False), "waiting for INFO"),
        (Behaviour(answer_ping=False), "waiting for the server to accept"),
    ],
    ids=["no INFO", "half an INFO", "no PONG"],
)
@virtual_clock
async def test_stalled_connect_times_out(behaviour: Behaviour, stage: str) -> None:
    network, stalling = MemoryNetwork(), ScriptedServer(behaviour)
    network.listen("a", 4222, stalling.accept)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectFailed) as caught:
        await connect_in(memory_runtime(network), "nats://a:4222", connect_timeout=3)
    assert loop.time() - began == pytest.approx(3)
    [(_, cause)] = caught.value.attempts
    assert isinstance(cause, RequestTimeout)
    assert stage in worded(cause)
    assert stage in worded(caught.value)
    await stalling.stop()


@virtual_clock
async def test_stalled_dial_and_credentials_time_out() -> None:
    network, server = MemoryNetwork(), ScriptedServer()
    network.black_hole("a", 4222)
    network.listen("b", 4222, server.accept)
    loop = asyncio.get_running_loop()

    async def never() -> str:
        await loop.create_future()
        raise AssertionError

    began = loop.time()
    with pytest.raises(ConnectFailed, match="dialling"):
        await connect_in(memory_runtime(network), "nats://a:4222", connect_timeout=3)
    with pytest.raises(ConnectFailed, match="finding credentials"):
        await connect_in(memory_runtime(network), "nats://b:4222", connect_timeout=3, token=never)
    assert loop.time() - began == pytest.approx(6)
    await server.stop()


@pytest.mark.parametrize("scheme", ["tls", "ws", "wss"])
async def test_stalled_handshake_times_out(scheme: str) -> None:
    greeting = {"tls_required": True} if scheme == "tls" else None
    async with ScriptedServer(Behaviour(greeting=greeting)) as deaf, FaultProxy(deaf.host, deaf.port) as proxy:
        proxy.stall(Direction.TO_SERVER)
        async with nothing_left():
            began = time.monotonic()
            with pytest.raises(ConnectFailed) as caught:
                await natsproto.connect(f"{scheme}://{proxy.host}:{proxy.port}", connect_timeout=1.5)
            assert time.monotonic() - began <= 1.5 + SOON
            assert "handshake" in worded(caught.value)
            proxy.heal()
            proxy.cut(End.RST)
            await proxy.wait(lambda: not proxy.links)
