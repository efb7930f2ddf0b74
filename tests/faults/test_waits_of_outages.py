"""A lock that is waited for, and the members of a group, live through an election and through eight seconds in which
the server has no JetStream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import NatsError
from natsproto.jetstream import JetStream, groups
from natsproto.testing import run_cluster, run_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WITHOUT_JETSTREAM_S = 8.0
Break = Callable[[str], Awaitable[object]]
"""Breaks JetStream, where this stream is."""


@asynccontextmanager
async def killed_leader() -> AsyncIterator[tuple[Client, Client, Break, int]]:
    """Two clients of the last of three servers, and what kills the leader of a stream; and the replicas."""
    async with run_cluster(3, start_timeout=60) as cluster:
        stays = cluster.servers[2]
        async with natsproto.connect(stays.url, reconnect_wait=0.05) as nc, natsproto.connect(stays.url) as other:

            async def kill(stream: str) -> None:
                admin = nc.jetstream().admin
                found = await nc.jetstream().stream(stream)
                while (placed := (await found.info()).cluster) is None or placed.leader in ("", stays.name):
                    with suppress(NatsError):
                        await admin.step_down_stream_leader(stream)
                next(server for server in cluster.servers if server.name == placed.leader).kill()

            yield nc, other, kill, 3


@asynccontextmanager
async def without_jetstream() -> AsyncIterator[tuple[Client, Client, Break, int]]:
    """Two clients, and what restarts their server without JetStream first; and the replicas."""
    async with (
        run_server(jetstream=True) as server,
        natsproto.connect(server.url, reconnect_wait=0.05) as nc,
        natsproto.connect(server.url, reconnect_wait=0.05) as other,
    ):

        async def restart(_: str) -> None:
            await server.stop()
            async with run_server(port=server.port):
                await asyncio.sleep(WITHOUT_JETSTREAM_S)
            await server.restart()

        yield nc, other, restart, 1


OUTAGES = pytest.mark.parametrize("outage", [killed_leader, without_jetstream])


@OUTAGES
async def test_lock_is_waited_for(outage: Callable[[], object]) -> None:
    async with outage() as (nc, other, break_jetstream, replicas):  # type: ignore[attr-defined]
        js: JetStream = nc.jetstream(timeout=3)
        await js.create_key_value("locks", num_replicas=replicas, limit_marker_ttl=10)
        await (await other.jetstream().key_value("locks")).lock("leader", ttl=2).acquire()
        lock = (await js.key_value("locks")).lock("leader", ttl=2)
        waiting = asyncio.create_task(lock.acquire(timeout=120))
        await asyncio.sleep(0.05)
        await other.close()  # the lease ends when it is not renewed
        assert not waiting.done()
        await break_jetstream("KV_locks")
        await waiting
        await lock.release()


@OUTAGES
async def test_members_go_on(outage: Callable[[], object]) -> None:
    async with outage() as (nc, other, break_jetstream, replicas):  # type: ignore[attr-defined]
        js: JetStream = nc.jetstream(timeout=20)
        await js.create_stream("O", subjects=["o.*"], num_replicas=replicas)
        handled: asyncio.Queue[bytes] = asyncio.Queue()
        members = []
        for client in (nc, other):
            found = await client.jetstream(timeout=5).stream("O")
            members.append(groups.join(found, "g", lambda message: handled.put_nowait(message.data), ttl=2))
        async with members[0] as one, members[1] as two, asyncio.timeout(240):
            for member in (one, two):
                await member.wait_joined()
            await break_jetstream("O")
            for number in range(20):
                await js.publish(f"o.{number}", b"%d" % number, msg_id=f"m{number}", timeout=60)
            seen: set[bytes] = set()
            while len(seen) < 20:
                seen.add(await handled.get())
            while len(one.partitions) + len(two.partitions) != 12:
                await js.publish("o.more", timeout=60)
