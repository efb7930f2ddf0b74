"""Either side of a response in parts is killed, frozen or cut off in any phase: both end, and nothing is left.

Each cell is a phase, a fault, the side it hits, and the way between the sides. The short run draws some of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

import natsproto
from natsproto._core.events import Moved
from natsproto.errors import NatsError
from natsproto.service import Request
from natsproto.testing import Direction, FaultProxy, Server, run_cluster, run_server
from tests.faults.helpers import EventRecorder
from tests.service.stream_peer import HEARTBEAT_S, PHASES, SIDES
from tests.service.test_stream_permissions import accounts, users

LIMIT_S = 3 * HEARTBEAT_S
SLACK_S = 2.0
"""On a busy machine; a side that has not noticed never does."""

FAULTS = ("kill", "freeze", "cut", "stall")
WAYS = ("server", "cluster", "export")


class Cell(NamedTuple):
    """One fault in one phase."""

    phase: str
    fault: str
    side: str
    way: str

    def __str__(self) -> str:
        return "-".join(self)


CELLS = [Cell(*cell) for cell in itertools.product(PHASES, FAULTS, SIDES, WAYS)]


@asynccontextmanager
async def two_servers(way: str) -> AsyncIterator[tuple[Server, Server]]:
    """The servers of the observer and of the peer."""
    if way == "cluster":
        async with run_cluster(2, jetstream=False, config=users()) as cluster:
            yield cluster.servers[0], cluster.servers[1]
    else:
        async with run_server(config=accounts("Stream") if way == "export" else users()) as server:
            yield server, server


class Lines:
    """The lines that one side says, with their times."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    def say(self, line: str) -> None:
        self._queue.put_nowait((line.strip(), time.monotonic()))

    async def follow(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self.say(line.decode())

    async def wait(self, wanted: str, timeout: float = 20.0) -> float:
        async with asyncio.timeout(timeout):
            while True:
                line, at = await self._queue.get()
                if line == wanted:
                    return at
                assert not line.startswith("ended"), f"{line}, not {wanted}"


async def start_peer(cell: Cell, url: str, lines: Lines) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.stream_peer", cell.side, url, cell.phase), stdout=asyncio.subprocess.PIPE
    )
    assert peer.stdout is not None
    return peer, asyncio.create_task(lines.follow(peer.stdout))


async def run_fault(cell: Cell) -> None:
    mine, theirs = Lines(), Lines()
    observer = "requester" if cell.side == "responder" else "responder"
    async with AsyncExitStack() as stack:
        near, far = await stack.enter_async_context(two_servers(cell.way))
        proxy = await stack.enter_async_context(FaultProxy(far.host, far.port))
        nc = await natsproto.connect(near.url, user=observer, password="x")
        stack.push_async_callback(nc.close)
        if observer == "responder":
            watching = asyncio.create_task(SIDES[observer](nc, cell.phase, mine.say))
            await mine.wait("ready")
            peer, following = await start_peer(cell, proxy.url, theirs)
        else:
            peer, following = await start_peer(cell, proxy.url, theirs)
            await theirs.wait("ready")
            watching = asyncio.create_task(SIDES[observer](nc, cell.phase, mine.say))
        try:
            await asyncio.gather(mine.wait("begun"), theirs.wait("begun"))
            await asyncio.sleep(random.uniform(0, HEARTBEAT_S))
            began = time.monotonic()
            if cell.fault in ("kill", "freeze"):
                peer.send_signal(signal.SIGKILL if cell.fault == "kill" else signal.SIGSTOP)
            elif cell.fault == "cut":
                proxy.cut()
            else:
                proxy.stall(*Direction)
            assert await mine.wait("ended 0") - began < LIMIT_S + SLACK_S
            if cell.fault == "freeze":
                peer.send_signal(signal.SIGCONT)
                began = time.monotonic()
            if cell.fault != "kill":
                assert await theirs.wait("ended 0") - began < LIMIT_S + SLACK_S
        finally:
            proxy.heal()
            if peer.returncode is None:
                peer.kill()
            await peer.wait()
            await following
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if not watching.cancelled():
            watching.result()


@pytest.mark.slow
@pytest.mark.smoke
async def test_drawn_faults_end_both_sides(seed: int) -> None:
    for cell in random.Random(seed).sample(CELLS, 3):
        print(cell)
        await run_fault(cell)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_ends_both_sides(fault: str, way: str) -> None:
    for cell in CELLS:
        if (cell.fault, cell.way) == (fault, way):
            print(cell)
            await run_fault(cell)


@pytest.mark.slow
@pytest.mark.parametrize("duck", ["responder", "requester"])
async def test_lame_duck_leaves_no_gap(duck: str) -> None:
    """A client moves to another server in the middle of a response: all parts come once, or there is an error."""
    config = 'lame_duck_grace_period: "2s", lame_duck_duration: "30s"'
    async with run_cluster(3, jetstream=False, config=config) as cluster:
        near, far = cluster.servers[:2]
        moved = EventRecorder(Moved)
        async with (
            natsproto.connect(near.url, on_event=moved if duck == "responder" else None) as nc,
            natsproto.connect(far.url, on_event=moved if duck == "requester" else None) as other,
            nc.add_service("moving", "1.0.0") as service,
        ):

            @service.endpoint()
            async def count(request: Request) -> AsyncIterator[bytes]:
                for number in range(2000):
                    yield b"%d" % number
                    await asyncio.sleep(0.001)

            await nc.flush()
            read, error = list[int](), None
            try:
                async for part in other.stream("count", window=5000, heartbeat=0.5):
                    read.append(int(part.data))
                    if len(read) == 300:
                        await (near if duck == "responder" else far).lame_duck()
            except NatsError as exc:
                error = exc
            await moved.wait(Moved)
            print(f"{len(read)} parts, {error!r}")
            assert read == list(range(len(read)))
            assert error or len(read) == 2000
