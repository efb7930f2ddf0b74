"""A cluster of three real servers, and what can happen to the one a client is connected to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, LameDuck, Moved, Reconnected, ServersDiscovered
from natsproto.errors import ConnectionLost, NatsError, NoResponders, StaleConnection
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.pool import ServerState
from natsproto.testing import Cluster, Server, run_cluster
from tests.faults.helpers import SOON, EventRecorder, monitoring, worded
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

LAME = 'lame_duck_grace_period: "2s", lame_duck_duration: "30s"'


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with run_cluster(jetstream=False, config=LAME) as running:
        yield running


def where(nc: Client, cluster: Cluster) -> Server:
    """The node a client is connected to."""
    return next(server for server in cluster.servers if server.url == nc.connected_url)


def others(server: Server, cluster: Cluster) -> list[Server]:
    return [other for other in cluster.servers if other is not server]


class Traffic:
    """Numbered messages both ways between a client and a helper on another node, and requests all the time."""

    def __init__(self, nc: Client, helper: Client, pace: Sequence[Client] = ()) -> None:
        self.out_sent = self.in_sent = self.asked = 0
        self.out_seen: list[int] = []
        self.in_seen: list[int] = []
        self.refused: list[NatsError] = []
        self.gap = 0.0
        """The longest time between two answered requests, in seconds."""
        self._nc, self._helper, self._pace = nc, helper, pace
        nc.subscribe("in", cb=lambda message: self.in_seen.append(int(message.data)))
        helper.subscribe("out", cb=lambda message: self.out_seen.append(int(message.data)))
        helper.subscribe("echo", cb=lambda message: message.respond(message.data))

    async def _echoes(self) -> bool:
        """Whether the client's node has heard of the helper's subscription: servers tell each other in their time."""
        try:
            return (await self._nc.request("echo", b"ready", timeout=5)).data == b"ready"
        except NoResponders:
            return False

    @asynccontextmanager
    async def flow(self) -> AsyncIterator[None]:
        """Keeps going while the block runs, then lets everything arrive."""
        await self._nc.flush()
        await self._helper.flush()
        async with asyncio.timeout(20):
            while not await self._echoes():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        tasks = [asyncio.create_task(work()) for work in (self._out, self._in, self._ask)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Messages of one publisher keep their order: what was sent before the marks is there with them.
        self._out_mark, self._in_mark = self.out_sent, self.in_sent
        async with asyncio.timeout(20):
            while not self.out_seen or self.out_seen[-1] < self._out_mark:
                await self._nc.publish("out", b"%d" % self._out_mark)
                await asyncio.sleep(0.01)
            while not self.in_seen or self.in_seen[-1] < self._in_mark:
                await self._helper.publish("in", b"%d" % self._in_mark)
                await asyncio.sleep(0.01)

    async def goes_on(self) -> None:
        """Until a good many more have come both ways, and answers too."""
        out_seen, in_seen, asked = len(self.out_seen) + 50, len(self.in_seen) + 50, self.asked + 20
        await until(lambda: len(self.out_seen) > out_seen and len(self.in_seen) > in_seen and self.asked > asked, 20)

    @property
    def out_lost(self) -> int:
        return self.out_sent - len({number for number in self.out_seen if number < self._out_mark})

    @property
    def in_lost(self) -> int:
        return self.in_sent - len({number for number in self.in_seen if number < self._in_mark})

    @property
    def out_disorder(self) -> int:
        """How many of those that were sent came twice, or behind a later one (the marks come more than once)."""
        return _disorder(number for number in self.out_seen if number < self._out_mark)

    @property
    def in_disorder(self) -> int:
        return _disorder(number for number in self.in_seen if number < self._in_mark)

    async def _out(self) -> None:
        while True:
            await self._nc.publish("out", b"%d" % self.out_sent)
            self.out_sent += 1
            await asyncio.sleep(0.001)

    async def _in(self) -> None:
        while True:
            await self._helper.publish("in", b"%d" % self.in_sent)
            self.in_sent += 1
            # Not faster than the slowest node: a slow machine would put more into the same moment.
            await asyncio.gather(*(client.flush() for client in self._pace), return_exceptions=True)
            await asyncio.sleep(0.002)

    async def _ask(self) -> None:
        last = time.monotonic()
        while True:
            try:
                answer = await self._nc.request("echo", b"%d" % self.asked, timeout=5)
                assert answer.data == b"%d" % self.asked
                self.gap = max(self.gap, time.monotonic() - last)
                last = time.monotonic()
            except NatsError as exc:
                self.refused.append(exc)
            self.asked += 1
            await asyncio.sleep(0.001)


def _disorder(numbers: Iterable[int]) -> int:
    highest, behind = -1, 0
    for number in numbers:
        behind += number <= highest
        highest = max(highest, number)
    return behind


@asynccontextmanager
async def resident(node: Server) -> AsyncIterator[Client]:
    """A client that stays on the node to the end."""
    async with natsproto.connect(node.url, ignore_discovered_servers=True, allow_reconnect=False) as nc:
        yield nc


@asynccontextmanager
async def pair(cluster: Cluster, recorder: EventRecorder, **options: float) -> AsyncIterator[tuple[Client, Client]]:
    """A client on the first node and a helper on the second."""
    first, second, _ = cluster.servers
    async with (
        natsproto.connect(second.url, ignore_discovered_servers=True) as helper,
        natsproto.connect(first.url, on_event=recorder, **options) as nc,  # type: ignore[arg-type]
    ):
        await until(lambda: len(nc.servers) == len(cluster.servers), 20)
        yield nc, helper


@pytest.mark.smoke
async def test_killed_node_moves_client_at_once(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder) as (nc, helper):
        traffic = Traffic(nc, helper)
        async with traffic.flow():
            await traffic.goes_on()
            where(nc, cluster).kill()
            reconnected = await recorder.wait(Reconnected)
            assert reconnected.outage <= SOON
            await traffic.goes_on()
        assert traffic.out_disorder == traffic.in_disorder == 0
        [lost] = recorder.of(Disconnected)
        assert traffic.out_lost <= lost.in_flight + 10  # what the node had taken and not passed on died with it
        assert traffic.gap <= SOON
        # Pending requests end at the disconnect, not at their timeout.
        assert len(traffic.refused) <= 2
        assert all(isinstance(error, ConnectionLost) and worded(error) for error in traffic.refused)


@pytest.mark.parametrize("unsent", [0, 8_000_000], ids=["idle", "megabytes unsent"])
async def test_a_frozen_node_is_left_within_the_ping_budget(cluster: Cluster, unsent: int) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder, ping_interval=0.2, max_outstanding_pings=2, connect_timeout=1) as (nc, _):
        frozen = where(nc, cluster)
        await nc.flush()
        try:
            frozen.freeze()
            began = time.monotonic()

            async def publish_on() -> None:
                for _ in range(unsent // 100_000):
                    await nc.publish("heard.by.nobody", bytes(100_000))

            publishing = asyncio.create_task(publish_on())
            cause = (await recorder.wait(Disconnected)).cause
            assert isinstance(cause, (StaleConnection, ConnectionLost))
            assert worded(cause)
            assert time.monotonic() - began <= 0.2 * 4 + SOON
            await recorder.wait(Reconnected)
            assert time.monotonic() - began <= 0.2 * 4 + 1 + 2 * SOON  # the frozen one may be tried first
            assert where(nc, cluster) is not frozen
            await publishing
            await nc.flush()
        finally:
            frozen.thaw()


async def test_lame_duck_move_is_unnoticed(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder) as (nc, helper), AsyncExitStack() as stack:
        duck = where(nc, cluster)
        traffic = Traffic(nc, helper, [await stack.enter_async_context(resident(node)) for node in cluster.servers])
        async with traffic.flow():
            await traffic.goes_on()
            await duck.lame_duck()
            moved = await recorder.wait(Moved)
            assert moved.previous_server == duck.url.removeprefix("nats://")
            assert moved.server in [other.url.removeprefix("nats://") for other in others(duck, cluster)]
            await until(lambda: not duck.running, 20)
        assert len(recorder.of(LameDuck)) == 1
        assert not recorder.of(Disconnected)
        assert traffic.out_lost == 0
        assert not traffic.refused
        assert traffic.gap <= SOON
        assert traffic.in_lost <= 2
        # Two servers have no common clock: for a moment both deliver, or neither.
        assert traffic.in_disorder <= 10
        assert traffic.out_disorder == 0


async def test_move_keeps_auto_unsubscribe_and_queues(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder) as (nc, helper):
        limited, shared = nc.subscribe("limited", max_messages=5), nc.subscribe("shared", queue="group")
        await _known_everywhere(helper, nc)
        await helper.publish("limited", b"0")
        await limited.next(20)
        duck = where(nc, cluster)
        await duck.lame_duck()
        await recorder.wait(Moved)
        await _unused_warning(duck, where(helper, cluster), "shared")
        await _known_everywhere(helper, nc)
        for number in range(1, 10):
            await helper.publish("limited", b"%d" % number)
            await helper.publish("shared", b"%d" % number)
        assert [int(message.data) async for message in limited] == [1, 2, 3, 4]
        assert [int((await shared.next(20)).data) for _ in range(9)] == list(range(1, 10))


async def _unused_warning(node: Server, elsewhere: Server, subject: str) -> None:
    """Nobody listens to the subject on the node any more, and the other one has heard of that."""
    async with asyncio.timeout(20):
        while True:
            routes = cast("list[dict[str, object]]", (await monitoring(elsewhere, "/routez?subs=1"))["routes"])
            lists = [route.get("subscriptions_list") for route in routes if route["remote_name"] == node.name]
            if not any(subject in subjects for subjects in lists if isinstance(subjects, list)):
                return


async def _known_everywhere(helper: Client, nc: Client) -> None:
    """What ``nc`` has subscribed until now is known to the node of ``helper``."""
    async with nc.subscribe("known") as known:
        await nc.flush()
        async with asyncio.timeout(20):
            while not known.pending_msgs:
                await helper.publish("known", b"")
                await asyncio.sleep(0.01)


async def test_restarting_node_costs_a_moment_each(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder) as (nc, helper):
        traffic = Traffic(nc, helper)
        stable = cluster.servers[1]
        async with traffic.flow():
            for number in range(1, 4):
                node = where(nc, cluster)
                if node is stable:  # the helper is there
                    await nc.reconnect()
                else:
                    await node.restart()
                assert (await recorder.wait(Reconnected, number)).outage <= SOON
        assert traffic.out_disorder == traffic.in_disorder == 0


async def test_discovered_nodes_come_and_go(cluster: Cluster) -> None:
    first, second, third = cluster.servers
    addresses = {server: server.url.removeprefix("nats://") for server in cluster.servers}
    recorder = EventRecorder()
    async with natsproto.connect([first.url, second.url], randomize=False, on_event=recorder) as nc:
        await until(lambda: set(nc.servers) == set(addresses.values()), 20)
        assert nc.discovered_servers == (addresses[third],)
        third.kill()
        await until(lambda: not nc.discovered_servers, 20)
        second.kill()
        await until(lambda: len(nc.server_info.connect_urls) == 1, 20)
        assert set(nc.servers) == {addresses[first], addresses[second]}
        await third.restart()
        await until(lambda: nc.discovered_servers == (addresses[third],), 20)
        assert recorder.of(ServersDiscovered)[-1].servers == (addresses[third],)


async def test_only_given_servers_without_discovery(cluster: Cluster) -> None:
    first = cluster.servers[0]
    recorder = EventRecorder()
    async with natsproto.connect(first.url, ignore_discovered_servers=True, on_event=recorder) as nc:
        await nc.flush()
        assert nc.servers == (first.url.removeprefix("nats://"),)
        await first.restart()
        await recorder.wait(Reconnected)
        assert where(nc, cluster) is first


async def test_set_servers_is_where_the_next_connection_goes(cluster: Cluster) -> None:
    first, _, third = cluster.servers
    recorder = EventRecorder()
    async with natsproto.connect(first.url, ignore_discovered_servers=True, on_event=recorder) as nc:
        nc.set_servers([third.url])
        await nc.flush()
        assert where(nc, cluster) is first  # the connection in use stays
        first.kill()
        await recorder.wait(Reconnected)
        assert where(nc, cluster) is third


async def test_the_chooser_decides_where_to_and_when(cluster: Cluster) -> None:
    first, second, third = cluster.servers
    asked: list[tuple[set[str], str]] = []

    def choose(servers: Sequence[ServerState], info: ServerInfo | None) -> tuple[ServerAddress, float] | None:
        assert info is not None
        asked.append(({str(server.address) for server in servers}, info.server_name))
        wanted = third if len(asked) == 1 else second
        return next(server.address for server in servers if server.address.port == wanted.port), 0.1

    recorder = EventRecorder()
    async with natsproto.connect(first.url, reconnect_to_server=choose, on_event=recorder) as nc:
        await until(lambda: len(nc.servers) == 3, 20)
        first.kill()
        assert (await recorder.wait(Reconnected)).outage >= 0.1
        assert where(nc, cluster) is third
        assert asked[0] == ({server.url.removeprefix("nats://") for server in cluster.servers}, first.name)
        third.kill()
        await recorder.wait(Reconnected, 2)
        assert where(nc, cluster) is second


async def test_servers_keep_given_order(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with natsproto.connect(
        cluster.urls, randomize=False, ignore_discovered_servers=True, on_event=recorder
    ) as nc:
        visited = [where(nc, cluster)]
        for number in range(1, 6):
            await nc.reconnect()
            await recorder.wait(Reconnected, number)
            visited.append(where(nc, cluster))
        first, second, third = cluster.servers
        assert visited == [first, second, third, first, second, third]


async def test_client_waits_for_first_node_of_cluster(cluster: Cluster) -> None:
    recorder = EventRecorder()
    async with pair(cluster, recorder, reconnect_wait_max=0.1) as (nc, _):
        got: list[bytes] = []
        nc.subscribe("later", cb=lambda message: got.append(message.data))
        await nc.flush()
        await until(lambda: len(nc.servers) == 3, 20)
        for server in cluster.servers:
            server.kill()
        await recorder.wait(Disconnected)
        for number in range(100):
            await nc.publish("later", b"%d" % number)
        with contextlib.suppress(NatsError):
            await nc.flush(timeout=0.2)
        await cluster.servers[2].restart()
        await recorder.wait(Reconnected)
        await nc.flush()
        assert where(nc, cluster) is cluster.servers[2]
        assert got == [b"%d" % number for number in range(100)]
        for server in cluster.servers[:2]:
            await server.restart()
