"""What every fault test needs: a client in a world of the test's own, a diary of its events, and a count of
what it leaves behind.

Owns no fault; those are in tests.kit.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack, cast

from natsproto._client import Client
from natsproto._core.events import Event
from natsproto._core.socket.transport import SocketWire
from natsproto._core.socket.wire import DialPlan, Runtime, Wire, WireHandler
from natsproto._options.options import OptionArgs, Options
from natsproto.errors import NatsError
from natsproto.protocol.addresses import ServerAddress
from natsproto.testing import Server
from tests.kit.memory import MemoryNetwork

E = TypeVar("E", bound=Event)

SOON = 5.0
"""Seconds that what takes a moment may take on a busy machine. Who was not told waits longer, or for ever."""


class EventRecorder:
    """Every event of a client, in order, or those of some kinds. Give it as ``on_event``."""

    def __init__(self, *kinds: type[Event]) -> None:
        self.events: list[Event] = []
        self._kinds = kinds or (Event,)
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, self._kinds):
            self.events.append(event)
            self._news.set()

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    async def wait(self, kind: type[E], count: int = 1, *, timeout: float = 20.0) -> E:
        """Wait until there are ``count`` events of the kind and return that one.

        AssertionError after ``timeout`` seconds tells what happened instead.
        """
        try:
            async with asyncio.timeout(timeout):
                while len(found := self.of(kind)) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            reported = f"no {kind.__name__} number {count} within {timeout:g} s; the last events: {self.events[-10:]}"
            raise AssertionError(reported) from None
        return found[count - 1]


def memory_runtime(
    network: MemoryNetwork, wrap: Callable[[WireHandler], WireHandler] = lambda handler: handler, *, seed: int = 0
) -> Runtime:
    """A world whose network is in memory; ``wrap`` may put something between a wire and its session."""

    async def dial(address: ServerAddress, plan: DialPlan, handler: WireHandler) -> Wire:
        wire = SocketWire(plan, wrap(handler))
        await network.connect(lambda: wire, address.host, address.port)
        return wire

    return Runtime(dial=dial, rng=random.Random(seed))


async def connect_in(runtime: Runtime, servers: str | Sequence[str], **options: Unpack[OptionArgs]) -> Client:
    """``natsproto.connect`` in a world of one's own."""
    return await Client._connect(Options(servers, **options), runtime)


def resident() -> int:
    """Bytes of memory this process has; 0 where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def descriptors() -> int:
    """Open descriptors of this process; 0 where there is no /proc."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fails when the block leaves tasks or descriptors behind. Let everything but the client be made outside."""
    tasks, files = asyncio.all_tasks(), descriptors()
    yield
    for _ in range(20):  # sockets that were closed and tasks that were cancelled end in the turns that follow
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - tasks
    assert not left, f"tasks left behind: {left}"
    assert descriptors() <= files, f"{descriptors() - files} descriptors left behind"


async def monitoring(server: Server, path: str) -> dict[str, object]:
    """One page of a server's monitoring."""
    port = int(server.monitoring_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(server.host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        page = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return cast("dict[str, object]", json.loads(page.partition(b"\r\n\r\n")[2]))


async def only_these_are_left(server: Server, connections: int, subscriptions: int) -> None:
    """The server holds exactly so many connections and subscriptions of clients, or will in a moment."""
    held = (-1, -1)
    try:
        async with asyncio.timeout(20):
            while held != (connections, subscriptions):
                page = await monitoring(server, "/connz")
                clients = cast("list[dict[str, int]]", page["connections"])
                held = len(clients), sum(client["subscriptions"] for client in clients)
    except TimeoutError:
        raise AssertionError(f"{held[0]} connections and {held[1]} subscriptions are left at the server") from None


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return cast("int", sock.getsockname()[1])


def worded(error: BaseException) -> str:
    """The text of an error that was raised to a caller, after checking that it is one of ours and says something."""
    assert isinstance(error, NatsError), f"raw {type(error).__name__}: {error}"
    text = str(error)
    assert text.strip(" :;"), f"{type(error).__name__} without a word"
    return text
