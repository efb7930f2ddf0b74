"""A client in a world without sockets: the real client code on an in-memory wire and a scripted server.

Owns the seam (``Runtime.dial``) and what a test wants to know of the loop afterwards. The scripted server
reads with its own reader, so the client is not tested with itself.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Unpack, cast

from natsproto._client import Client
from natsproto._core.socket.transport import SocketWire
from natsproto._core.socket.wire import DialPlan, Runtime, Wire, WireHandler
from natsproto._core.time_slice import TimeSlice
from natsproto._options.options import OptionArgs, Options
from natsproto.jetstream._api.requests import Api
from natsproto.protocol.addresses import ServerAddress
from tests.kit.memory import MemoryNetwork, MemoryPeer
from tests.kit.scripted import Behaviour, ScriptedServer

HOST, PORT = "127.0.0.1", 4222
_CUT_OFF = SimpleNamespace(on_silence=None, use=lambda prefix: None)
_OFFLINE = cast(Client, SimpleNamespace(_options=Options(), _outages=SimpleNamespace(cut_off=_CUT_OFF)))
OFFLINE_API = Api(_OFFLINE, domain=None, prefix=None, timeout=5)
"""The API of a JetStream context that sends nothing."""


class ScriptedNetwork:
    """One imaginary network with one scripted server on it, and the clients made there."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.network = MemoryNetwork()
        self.server = ScriptedServer(*behaviours)
        self.network.listen(HOST, PORT, self.server.accept)
        self.clients: list[Client] = []
        self.others: list[ScriptedServer] = []

    def serve(self, host: str, behaviour: Behaviour) -> None:
        """Another server on the network, at this address."""
        other = ScriptedServer(behaviour)
        self.others.append(other)
        self.network.listen(host, PORT, other.accept)

    async def dial(self, address: ServerAddress, plan: DialPlan, handler: WireHandler) -> Wire:
        """What Runtime.dial is here: natsproto's own wire on a memory transport."""
        wire = SocketWire(plan, handler)
        await self.network.connect(lambda: wire, address.host, address.port)
        return wire

    async def connect(self, servers: str = f"nats://{HOST}:{PORT}", **options: Unpack[OptionArgs]) -> Client:
        """A client; closed with the world."""
        runtime = Runtime(dial=self.dial, rng=random.Random(1))
        client = await Client._connect(Options(servers, **options), runtime)
        self.clients.append(client)
        return client

    @property
    def peer(self) -> MemoryPeer:
        """The test's end of the newest connection."""
        return self.network.peers[-1]

    def down(self) -> None:
        """The server is gone: nobody listens, and every connection breaks."""
        self.network.refuse(HOST, PORT)
        for peer in self.network.peers:
            peer.reset()

    def up(self) -> None:
        """The server is back."""
        self.network.listen(HOST, PORT, self.server.accept)


@asynccontextmanager
async def scripted_network(*behaviours: Behaviour) -> AsyncIterator[ScriptedNetwork]:
    """A World whose clients are closed at the end; afterwards nothing of them may be left.

    The client must not have broken the protocol, no task of it may live, and no error may have gone to the
    loop's exception handler (a future whose exception nobody read, a callback that raised).
    """
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    complaints: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    net = ScriptedNetwork(*behaviours)
    try:
        yield net
        for client in net.clients:
            await client.close()
        assert net.server.faults == [], f"the client broke the protocol: {net.server.faults}"
        for server in (net.server, *net.others):
            await server.stop()
        await turns(4)
        left = asyncio.all_tasks() - before
        assert not left, f"tasks left behind: {left}"
        gc.collect()
        await turns(2)
        assert complaints == [], f"the loop was told of: {complaints}"
    finally:
        for peer in net.network.peers:
            peer.unstall()
        for client in net.clients:
            await client.close()
        await net.server.stop()


async def turns(count: int = 1) -> None:
    """Lets the loop turn so many times; for what needs no time, only its turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], object], limit: int = 1000) -> None:
    """Turns the loop until the condition holds; AssertionError after ``limit`` turns."""
    for _ in range(limit):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


def client_lines(net: ScriptedNetwork, connection: int = 0) -> list[str]:
    """What a client said on one connection, without the keep-alive."""
    return [f"{op.name} {' '.join(op.args)}".strip() for op in net.server.ops if op.connection == connection][1:]


def published_payloads(net: ScriptedNetwork) -> list[bytes]:
    return [op.payload for op in net.server.ops if op.name in ("PUB", "HPUB")]


class InOneLoop:
    """Callbacks of a handler and a subscription that concern the event loop."""

    @property
    def time_slice(self) -> TimeSlice:
        return TimeSlice.of(asyncio.get_running_loop())

    def check_loop(self) -> None:
        pass
