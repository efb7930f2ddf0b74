"""Writes that meet each other, a gate or a small duplicate window, on real servers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import natsproto
from natsproto.errors import NatsError, PublishUncertain
from natsproto.jetstream import JetStream, PubAck
from natsproto.jetstream._api.known_streams import MAX_OPEN_BATCHES, BatchTurns
from natsproto.testing import Cluster, Direction, End, FaultProxy, Server, run_cluster


async def test_more_batches_than_a_server_holds_are_queued(jetstream: JetStream) -> None:
    """A server holds 50 open batches of a stream. With the default timeout."""
    stream = await jetstream.create_stream("S", subjects=["s.>"], storage="memory", allow_atomic=True)

    async def store(number: int) -> None:
        async with jetstream.atomic_batch() as batch:
            for part in range(3):
                await batch.publish(f"s.{number}", b"%d" % part)
                await asyncio.sleep(0)

    await asyncio.gather(*map(store, range(400)))
    assert (await stream.info()).state.messages == 1200


async def test_abandoned_batches_leave_their_turns(jetstream: JetStream) -> None:
    await jetstream.create_stream("S", subjects=["s.>"], storage="memory", allow_atomic=True)

    async def fail() -> None:
        async with jetstream.atomic_batch() as batch:
            await batch.publish("s.a")
            await batch.publish("s.a")
            raise ZeroDivisionError

    turns = jetstream._api.streams.batch_turns("s.a")
    for _ in range(60):
        with pytest.raises(ZeroDivisionError):
            await fail()
    for _ in range(10):
        batch = jetstream.atomic_batch()  # dropped without its end
        await batch.publish("s.a")
        await batch.publish("s.a")
        del batch
    for _ in range(MAX_OPEN_BATCHES):
        assert not turns.locked()
        await turns.acquire()
    assert turns.locked()


async def test_batches_wait_while_others_end() -> None:
    """The timeout is for a queue that stands still."""
    turns = BatchTurns()
    for _ in range(MAX_OPEN_BATCHES):
        assert await turns.take(1)
    waiting = [asyncio.create_task(turns.take(0.05)) for _ in range(6)]
    for _ in range(5):
        await asyncio.sleep(0.03)
        turns.release()
    assert [await one for one in waiting] == [True] * 5 + [False]


async def test_one_lookup_serves_many_ids(nats_server: Server) -> None:
    """Their stream is not known when the connection is lost."""
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(nats_server.url) as direct:
        stream = await direct.jetstream().create_stream("S", subjects=["s.>"])
        async with natsproto.connect(proxy.url, reconnect_wait=0.02) as nc:
            js = nc.jetstream()
            arrived = await direct.subscribe("s.>")
            asked = await direct.subscribe("$JS.API.STREAM.NAMES")
            await direct.flush()
            proxy.stall(Direction.TO_CLIENT)
            publishing = [asyncio.create_task(js.publish(f"s.{n}", b"x", msg_id=f"m{n}")) for n in range(100)]
            for _ in range(100):
                await arrived.next(timeout=5)
            proxy.cut(End.RST)
            proxy.heal()
            await asyncio.gather(*publishing)
            await asked.next(timeout=5)
            assert asked.pending_msgs == 0
        assert (await stream.info()).state.messages == 100


async def test_lookups_outlive_a_stream_that_is_away() -> None:
    """Two streams that are not known, and the only server of one of them is killed: it is also the client's."""
    async with run_cluster() as cluster:
        async with natsproto.connect(cluster.urls) as nc:
            js, leader = nc.jetstream(timeout=20), (await cluster.meta_leader()).name
            for number in range(12):  # the servers place the streams as they like
                away = await js.create_stream(f"A{number}", subjects=[f"a{number}.>"], num_replicas=1)
                cluster_info = (await away.info()).cluster
                if cluster_info is not None and cluster_info.leader != leader:
                    break
            await js.create_stream("B", subjects=["b.>"], num_replicas=3)
        assert cluster_info is not None
        (killed,) = (server for server in cluster.servers if server.name == cluster_info.leader)
        async with natsproto.connect(killed.url) as nc:
            js = nc.jetstream()
            killed.freeze()
            others = [asyncio.create_task(js.publish(f"a{number}.{n}", msg_id=f"a{n}", timeout=30)) for n in range(20)]
            await asyncio.sleep(0)
            publishing = [asyncio.create_task(js.publish(f"b.{n}", msg_id=f"b{n}", timeout=15)) for n in range(20)]
            await asyncio.sleep(0.05)  # in which they are sent
            killed.kill()
            assert {ack.stream for ack in await asyncio.gather(*publishing)} == {"B"}
            assert not any(task.done() for task in others)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
async def test_id_is_stored_once_whatever_the_window(nats_server: Server, seed: int, is_known: bool) -> None:
    """The acknowledgements are lost; copies are sent only while the stream knows the id."""
    rng = random.Random(seed)
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(nats_server.url) as direct:
        window = rng.uniform(0.1, 1.5)
        stream = await direct.jetstream().create_stream("S", subjects=["s"], duplicate_window=window)
        async with natsproto.connect(proxy.url) as nc:
            js = nc.jetstream(timeout=5)
            if is_known:
                await js.stream("S")
            arrived = await direct.subscribe("s")
            await direct.flush()
            proxy.stall(Direction.TO_CLIENT)
            publishing = asyncio.create_task(js.publish("s", b"x", msg_id="m"))
            await arrived.next(timeout=5)
            asyncio.get_running_loop().call_later(rng.uniform(1.2, 3.0), proxy.heal)
            assert (await publishing).seq == 1
        assert (await stream.info()).state.messages == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("kind", ["publish", "publisher"])
async def test_id_is_stored_once_whatever_the_outage(nats_server: Server, seed: int, kind: str, is_known: bool) -> None:
    """The connection is lost with the acknowledgement, for longer than the stream knows the id."""
    rng = random.Random(seed)
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(nats_server.url) as direct:
        window = rng.uniform(0.1, 1.5)
        stream = await direct.jetstream().create_stream("S", subjects=["s"], duplicate_window=window)
        async with natsproto.connect(proxy.url, reconnect_wait=0.02) as nc:
            js = nc.jetstream(timeout=10)
            if is_known:
                await js.stream("S")
            arrived = await direct.subscribe("s")
            await direct.flush()
            proxy.stall(Direction.TO_CLIENT)
            publishing = asyncio.create_task(_publish_with_id(js, kind))
            await arrived.next(timeout=5)
            proxy.cut(End.RST)
            asyncio.get_running_loop().call_later(window + rng.uniform(0.2, 0.5), proxy.heal)
            with pytest.raises(PublishUncertain):
                await publishing
        assert (await stream.info()).state.messages == 1


@pytest.mark.parametrize("kind", ["publish", "publisher"])
async def test_id_of_unknown_stream_survives_a_short_cut(nats_server: Server, kind: str) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(nats_server.url) as direct:
        stream = await direct.jetstream().create_stream("S", subjects=["s"])
        async with natsproto.connect(proxy.url, reconnect_wait=0.02) as nc:
            arrived = await direct.subscribe("s")
            await direct.flush()
            proxy.stall(Direction.TO_CLIENT)
            publishing = asyncio.create_task(_publish_with_id(nc.jetstream(timeout=10), kind))
            await arrived.next(timeout=5)
            proxy.cut(End.RST)
            proxy.heal()
            ack = await publishing
            assert (ack.seq, ack.duplicate) == (1, True)
        assert (await stream.info()).state.messages == 1


async def _publish_with_id(js: JetStream, kind: str) -> PubAck:
    if kind == "publish":
        return await js.publish("s", b"x", msg_id="m")
    async with js.publisher() as window:
        return await (await window.publish("s", b"x", msg_id="m"))


@pytest.mark.slow
async def test_contended_writes_are_never_uncertain(seed: int) -> None:
    """Three replicas and a history of one: what a write has replaced is gone at once."""
    rng = random.Random(seed)
    told: Counter[str] = Counter()
    async with run_cluster() as cluster:
        await _contend(cluster, rng, told)
    print(dict(told))
    assert told["ok"] > 200
    assert {*told} <= {"ok", "WrongRevision", "KeyExists", "KeyNotFound", "KeyDeleted"}


async def _contend(cluster: Cluster, rng: random.Random, told: Counter[str]) -> None:
    async with natsproto.connect(cluster.urls) as nc:
        kv = await nc.jetstream(timeout=20).create_key_value("b", history=1, num_replicas=3)
        await kv.put("count", b"0")

        async def note(call: object) -> None:
            try:
                await call  # type: ignore[misc]
                told["ok"] += 1
            except NatsError as exc:
                told[type(exc).__name__] += 1

        async def work() -> None:
            for _ in range(40):
                kind = rng.choice(["modify", "update", "create", "delete"])
                if kind == "modify":
                    await note(kv.modify("count", lambda value: b"%d" % (int(value or b"0") + 1)))
                elif kind == "update":
                    entry = await kv.get("count")
                    await note(kv.update("count", entry.value, entry.revision))
                elif kind == "create":
                    await note(kv.create("lock", b"x"))
                else:
                    await note(kv.delete("lock"))

        await asyncio.gather(*(work() for _ in range(8)))
