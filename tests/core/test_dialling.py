"""Which server is dialled when: side by side, silent ones last. On a virtual clock; ``seed`` draws the servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from natsproto import Client
from natsproto._core.events import Moved, Reconnecting
from natsproto._race import STAGGER_S
from natsproto.errors import ConnectFailed
from natsproto.protocol.pool import STABLE_AFTER_S
from tests.core.helpers import PORT, ScriptedNetwork, scripted_network
from tests.faults.helpers import EventRecorder
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour
from tests.kit.waiting import until

LATE = 0.3
"""Seconds that a connection may take beside the silences."""

Fault = Callable[[ScriptedNetwork, str], bool]


def drops_packets(net: ScriptedNetwork, host: str) -> bool:
    net.network.black_hole(host, PORT)
    return True


def accepts_in_silence(net: ScriptedNetwork, host: str) -> bool:
    net.network.listen(host, PORT)
    return True


def sends_info_only(net: ScriptedNetwork, host: str) -> bool:
    net.serve(host, Behaviour(answer_ping=False))
    return True


def answers_after_seconds(net: ScriptedNetwork, host: str) -> bool:
    net.serve(host, Behaviour(delay=3.0))
    return True


def refuses(net: ScriptedNetwork, host: str) -> bool:
    net.network.refuse(host, PORT)
    return False


def refuses_the_login(net: ScriptedNetwork, host: str) -> bool:
    net.serve(host, Behaviour(refuse="Authorization Violation"))
    return False


FAULTS: list[Fault] = [
    *[drops_packets, accepts_in_silence, sends_info_only, answers_after_seconds],
    *[refuses, refuses_the_login],
]


class Servers:
    """Some servers with faults, and others that work."""

    def __init__(self, net: ScriptedNetwork, draw: random.Random, *, working: int = 1) -> None:
        self.net = net
        self.hosts = [f"10.0.0.{number}" for number in range(1, draw.randint(0, 4) + working + 1)]
        draw.shuffle(self.hosts)
        self.faulty = self.hosts[working:]
        self.working = self.hosts[:working]
        for host in self.working:
            net.network.listen(host, PORT, net.server.accept)
        self.faults = {host: draw.choice(FAULTS) for host in self.faulty}
        self.silent = sum([fault(net, host) for host, fault in self.faults.items()])
        draw.shuffle(self.hosts)
        self.randomize = draw.random() < 0.5

    @property
    def urls(self) -> str:
        return ",".join(f"nats://{host}:{PORT}" for host in self.hosts)

    def __repr__(self) -> str:
        named = {host: fault.__name__ for host, fault in self.faults.items()}
        return f"{[named.get(host, 'works') for host in self.hosts]}"


def now() -> float:
    return asyncio.get_running_loop().time()


async def blip(net: ScriptedNetwork, nc: Client) -> float:
    """Break the connection after a while; return the seconds until there is another one."""
    await advance(STABLE_AFTER_S + 0.1)
    began, before = now(), nc.stats.reconnects
    net.peer.reset()
    await until(lambda: nc.stats.reconnects > before and nc.is_connected, 120)
    return now() - began


@virtual_clock
async def test_silent_servers_cost_their_stagger(seed: int) -> None:
    """The first connection and a blip; from the second blip on nothing, since they are known."""
    draw = random.Random(seed)
    for _ in range(20):
        async with scripted_network() as net:
            servers = Servers(net, draw)
            print(servers)
            began = now()
            nc = await net.connect(servers.urls, randomize=servers.randomize)
            assert now() - began <= STAGGER_S * servers.silent + LATE
            assert await blip(net, nc) <= STAGGER_S * servers.silent + LATE
            for _ in range(3):
                await nc.flush()
                assert await blip(net, nc) <= 0.5


@virtual_clock
async def test_discovered_silent_servers(seed: int) -> None:
    """A cluster that announces addresses which nobody can reach: pods, NAT."""
    draw = random.Random(seed)
    async with scripted_network(Behaviour(greeting={"connect_urls": ["10.1.0.1:4222", "10.1.0.2:4222"]})) as net:
        for host in ("10.1.0.1", "10.1.0.2"):
            draw.choice([drops_packets, accepts_in_silence])(net, host)
        nc = await net.connect()
        for seconds in (2 * STAGGER_S + LATE, 0.5, 0.5):
            assert await blip(net, nc) <= seconds


@virtual_clock
async def test_move_beside_silent_servers(seed: int) -> None:
    """A server in lame duck mode is left before it closes the connection."""
    draw = random.Random(seed)
    for _ in range(10):
        recorder = EventRecorder()
        async with scripted_network() as net:
            servers = Servers(net, draw, working=2)
            print(servers)
            nc = await net.connect(servers.urls, randomize=servers.randomize, on_event=recorder)
            began = now()
            net.server.connections[-1].info(ldm=True)
            await recorder.wait(Moved)
            assert now() - began <= 1.0 + STAGGER_S * servers.silent + LATE  # and the wait that spreads the clients
            assert nc.stats.reconnects == 0


@virtual_clock
async def test_restart_beside_a_silent_server() -> None:
    """The rounds of those that answer go on, while a silent one has all of its connect_timeout."""
    async with scripted_network() as net:
        net.network.black_hole("10.0.0.9", PORT)
        nc = await net.connect(f"nats://127.0.0.1:{PORT},nats://10.0.0.9", randomize=False, connect_timeout=60)
        net.down()
        began = now()
        asyncio.get_running_loop().call_later(3.0, net.up)
        await until(lambda: nc.stats.reconnects == 1, 120)
        assert 3.0 <= now() - began <= 4.2  # the longest early back-off is 1.1 s
        assert net.network.dialled.count(("10.0.0.9", PORT)) == 1


@virtual_clock
async def test_slow_server_is_used_if_no_other_answers() -> None:
    async with scripted_network(Behaviour(delay=0.9)) as net:
        began = now()
        nc = await net.connect(f"nats://127.0.0.1:{PORT},nats://10.0.0.9", randomize=False)
        assert nc.is_connected
        assert 0.9 <= now() - began <= 2.5


@virtual_clock
async def test_losers_are_cut() -> None:
    async with scripted_network() as net:
        net.serve("10.0.0.1", Behaviour(delay=1.0))
        nc = await net.connect(f"nats://10.0.0.1,nats://127.0.0.1:{PORT}", randomize=False)
        assert nc.connected_url == f"nats://127.0.0.1:{PORT}"
        await until(lambda: net.network.peers[0].at_end, 120)
        await advance(5)
        assert len(net.network.peers) == 2


@virtual_clock
async def test_server_that_answers_again_is_not_last() -> None:
    async with scripted_network() as net:
        net.network.black_hole("10.0.0.1", PORT)
        nc = await net.connect(f"nats://10.0.0.1,nats://127.0.0.1:{PORT}", randomize=False)
        net.network.refuse("10.0.0.1", PORT)
        net.down()
        await until(lambda: net.network.dialled.count(("10.0.0.1", PORT)) >= 2, 120)
        net.network.dialled.clear()
        net.network.listen("10.0.0.1", PORT, net.server.accept)
        net.up()
        await until(lambda: nc.is_connected, 120)
        await blip(net, nc)
        assert len(net.network.dialled) <= 2


@virtual_clock
async def test_chosen_server_is_dialled_alone() -> None:
    """With ``reconnect_to_server`` the application decides."""
    recorder = EventRecorder()
    async with scripted_network() as net:
        net.network.black_hole("10.0.0.9", PORT)
        servers = f"nats://127.0.0.1:{PORT},nats://10.0.0.9"
        nc = await net.connect(
            servers,
            randomize=False,
            connect_timeout=2,
            on_event=recorder,
            reconnect_to_server=lambda states, _: (
                next(state.address for state in states if state.address.host == "10.0.0.9"),
                0.0,
            ),
        )
        net.peer.reset()
        await advance(7)
        assert not nc.is_connected
        assert {event.server for event in recorder.of(Reconnecting)} == {f"10.0.0.9:{PORT}"}
        assert net.network.dialled[1:] == [("10.0.0.9", PORT)] * 4


@virtual_clock
async def test_silent_servers_fail_together() -> None:
    async with scripted_network() as net:
        hosts = [f"10.0.0.{number}" for number in range(1, 5)]
        for host in hosts:
            net.network.black_hole(host, PORT)
        began = now()
        with pytest.raises(ConnectFailed) as failed:
            await net.connect(",".join(f"nats://{host}" for host in hosts), connect_timeout=2)
        assert now() - began <= 2 + STAGGER_S * 3 + LATE
        assert len(failed.value.attempts) == 4
