"""Whatever a server says, the client survives it, reconnects with an event, or refuses in words."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from functools import partial

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, Reconnected
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.socket.wire import WireHandler
from natsproto.errors import ConnectFailed, LocalProtocolError
from tests.faults.helpers import SOON, EventRecorder, connect_in, memory_runtime, nothing_left, resident, worded
from tests.kit.clock import run_virtual
from tests.kit.hostile import HOSTILE, Hostile, HostileEnd
from tests.kit.memory import MemoryNetwork
from tests.kit.scripted import Behaviour, ScriptedServer

GROWTH = 32 * 1024 * 1024
"""Bytes a client may take more, whatever it is told."""

BLOCKED = 1.0
"""Seconds of CPU one read may take."""

KEPT = 4 * 1024 * 1024
"""Bytes the application wants kept for its subscription; what it asks for is not the peer's doing."""


class Stopwatch:
    """Stands between the wire and the session: how long one call holds the loop, and how much memory the process has
    at most.

    The time of a call is the lesser of its wall time and its CPU time: the machine may be busy, and the kernel of a
    virtual machine may charge a second of CPU to a call of a millisecond.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.peak = 0

    def wrap(self, handler: WireHandler) -> WireHandler:
        return _Timed(self, handler)

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        began = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            took = min(time.thread_time() - began[0], time.perf_counter() - began[1])
            self.longest = max(self.longest, took)
            self.peak = max(self.peak, resident())


class _Timed:
    def __init__(self, watch: Stopwatch, handler: WireHandler) -> None:
        self._watch, self._handler = watch, handler

    def on_data(self, chunk: bytes) -> None:
        with self._watch.measure():
            self._handler.on_data(chunk)

    def on_buffer_filled(self, count: int) -> None:
        with self._watch.measure():
            self._handler.on_buffer_filled(count)

    def on_disconnect(self, cause: Exception | None) -> None:
        with self._watch.measure():
            self._handler.on_disconnect(cause)

    def on_write_paused(self) -> None:
        self._handler.on_write_paused()

    def on_write_resumed(self) -> None:
        self._handler.on_write_resumed()


async def _works(nc: Client, subscription: Subscription) -> None:
    """A client that works answers and is answered: no zombie."""
    assert nc.is_connected
    await nc.flush(timeout=2)
    await nc.publish("hostile.marker", b"still here")
    async with asyncio.timeout(2):
        async for message in subscription:
            if message.subject == "hostile.marker":
                return


async def _play_handshake(
    recorder: EventRecorder, server: ScriptedServer, network: MemoryNetwork, watch: Stopwatch
) -> HostileEnd:
    began = asyncio.get_running_loop().time()
    try:
        nc = await connect_in(
            memory_runtime(network, watch.wrap),
            server.url,
            connect_timeout=1,
            on_event=recorder,
            ignore_discovered_servers=True,
        )
    except ConnectFailed as exc:
        for _, cause in exc.attempts:
            assert isinstance(cause, OSError) or worded(cause)
            assert not isinstance(cause, LocalProtocolError)  # it is never us who is to blame
        assert asyncio.get_running_loop().time() - began <= 1.1
        return HostileEnd.REFUSE
    try:
        disconnected = recorder.of(Disconnected)
        if disconnected or not nc.is_connected:
            assert worded((await recorder.wait(Disconnected)).cause)
            await recorder.wait(Reconnected)
        await _works(nc, nc.subscribe("hostile.>"))
        return HostileEnd.RECONNECT if recorder.of(Disconnected) else HostileEnd.SURVIVE
    finally:
        await nc.close()


async def _play_stream(
    entry: Hostile, recorder: EventRecorder, server: ScriptedServer, network: MemoryNetwork, watch: Stopwatch
) -> HostileEnd:
    nc = await connect_in(
        memory_runtime(network, watch.wrap),
        server.url,
        connect_timeout=1,
        on_event=recorder,
        ignore_discovered_servers=True,
        pending_bytes_limit=KEPT,
    )
    unread = nc.events()  # a reader that was opened and does not read
    reading = asyncio.ensure_future(anext(unread))
    try:
        subscription = nc.subscribe("hostile.>")
        await nc.flush()
        victim = server.current
        sid = (await server.expect("SUB", "hostile.>")).args[-1].encode()
        said_all = await victim.play(entry.chunks(sid))
        if entry.then == "close":
            victim.close()
        elif said_all:
            # A frame that waits for more bytes gets some.
            victim.deliver(sid.decode(), "hostile.last", b"x" * 100)
            victim.ping()
            for _ in range(10):
                await asyncio.sleep(0)
        if victim.ended.is_set() or entry.then == "close":
            assert worded((await recorder.wait(Disconnected)).cause)
        if recorder.of(Disconnected):
            await recorder.wait(Reconnected)
        await _works(nc, subscription)
        assert len(recorder.of(Disconnected)) <= 1
        return HostileEnd.RECONNECT if recorder.of(Disconnected) else HostileEnd.SURVIVE
    finally:
        reading.cancel()
        await nc.close()


async def _play(entry: Hostile, watch: Stopwatch) -> HostileEnd:
    network, recorder = MemoryNetwork(), EventRecorder(Disconnected, Reconnected)
    server = ScriptedServer(entry.behaviour(), Behaviour())
    network.listen("hostile", 4222, server.accept)
    server.host = "hostile"
    try:
        async with nothing_left():
            if entry.moment == "ready":
                return await _play_stream(entry, recorder, server, network, watch)
            return await _play_handshake(recorder, server, network, watch)
    finally:
        await server.stop()


IN_MEMORY = [entry for entry in HOSTILE if "TLS announced" not in entry.name]
ON_SOCKETS = [entry for entry in HOSTILE if "TLS announced" in entry.name]
"""TLS needs a real transport."""


@pytest.mark.parametrize("entry", [entry for entry in IN_MEMORY if entry.phase != "memory"], ids=str)
def test_odd_bytes_end_in_work_or_an_error(entry: Hostile) -> None:
    watch = Stopwatch()
    assert run_virtual(partial(_play, entry, watch)) in entry.outcomes
    assert watch.longest < BLOCKED


@pytest.mark.slow
@pytest.mark.timeout(180)  # it is much to read for a slow machine
@pytest.mark.parametrize("entry", [entry for entry in IN_MEMORY if entry.phase == "memory"], ids=str)
def test_floods_take_little_memory(entry: Hostile) -> None:
    watch = Stopwatch()
    gc.collect()
    before = resident()
    assert run_virtual(lambda: _play(entry, watch)) in entry.outcomes
    assert watch.peak - before <= GROWTH, f"{(watch.peak - before) / 2**20:.0f} MiB"
    assert watch.longest < BLOCKED


@pytest.mark.parametrize("entry", ON_SOCKETS, ids=str)
async def test_announced_but_missing_tls_is_rejected(entry: Hostile) -> None:
    async with ScriptedServer(entry.behaviour()) as server:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectFailed) as caught:
            await natsproto.connect(server.url, connect_timeout=0.5)
        assert asyncio.get_running_loop().time() - began < 2 * 0.5 + SOON
        for _, cause in caught.value.attempts:
            assert isinstance(cause, OSError) or worded(cause)
        assert server.ops == []
