"""What the API of JetStream was asked while nobody could answer is asked again, if it may be done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

import natsproto
from natsproto.errors import (
    ApiError,
    JetStreamNotEnabled,
    JetStreamUnavailable,
    LimitReached,
    RequestTimeout,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.info import StreamInfo
from natsproto.testing import Server, run_cluster
from tests.core.helpers import turns_until
from tests.jetstream.test_publisher import stage
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Op

Call: TypeAlias = Callable[[JetStream], Awaitable[object]]


async def _bound(js: JetStream, call: Callable[[natsproto.jetstream.Stream], Awaitable[object]]) -> object:
    return await call(await js.stream("S", bind=True))


TWICE: dict[str, Call] = {
    "INFO": lambda js: js.account_info(),
    "STREAM.CREATE.S": lambda js: js.create_stream(name="S"),
    "STREAM.INFO.S": lambda js: js.stream("S"),
    "STREAM.NAMES": lambda js: js.stream_name_by_subject("a"),
    "STREAM.MSG.GET.S": lambda js: _bound(js, lambda stream: stream.get_message(1, direct=False)),
    "CONSUMER.CREATE.S.d": lambda js: _bound(js, lambda stream: stream.create_consumer(durable_name="d")),
    "CONSUMER.INFO.S.d": lambda js: _bound(js, lambda stream: stream.consumer("d")),
}
ONCE: dict[str, Call] = {
    "STREAM.DELETE.S": lambda js: js.delete_stream("S"),
    "STREAM.UPDATE.S": lambda js: js.update_stream(StreamConfig(name="S")),
    "STREAM.PURGE.S": lambda js: _bound(js, lambda stream: stream.purge()),
    "STREAM.MSG.DELETE.S": lambda js: _bound(js, lambda stream: stream.delete_message(1)),
    "CONSUMER.CREATE.S": lambda js: _bound(js, lambda stream: stream.create_consumer()),
    "CONSUMER.CREATE.S.d": lambda js: _bound(
        js, lambda stream: stream.update_consumer(ConsumerConfig(durable_name="d"))
    ),
    "CONSUMER.DELETE.S.d": lambda js: _bound(js, lambda stream: stream.delete_consumer("d")),
    "META.LEADER.STEPDOWN": lambda js: js.admin.step_down_meta_leader(),
}


async def _times(call: Call, timeout: float) -> tuple[list[str], list[float]]:
    """Under which subjects, and when, it is asked while there is no answer."""
    loop, when, subjects = asyncio.get_running_loop(), [], []
    async with stage() as (_, nc, stream):

        async def listen() -> None:
            begun = loop.time()
            while True:
                subjects.append((await stream.heard(timeout=1000)).args[0])
                when.append(round(loop.time() - begun, 1))

        listener = asyncio.create_task(listen())
        with pytest.raises(RequestTimeout) as late:
            await call(nc.jetstream(timeout=timeout))
        listener.cancel()
    assert (late.value.operation, late.value.timeout) == (f"request to {subjects[0]!r}", timeout)
    return subjects, when


@virtual_clock
@pytest.mark.parametrize("endpoint", TWICE)
async def test_idempotent_request_is_retried_until_timeout(endpoint: str) -> None:
    subjects, when = await _times(TWICE[endpoint], 8.0)
    assert (set(subjects), when) == ({f"$JS.API.{endpoint}"}, [0, 1, 3, 5, 7])


@virtual_clock
@pytest.mark.parametrize("endpoint", ONCE)
async def test_anything_else_is_asked_once(endpoint: str) -> None:
    assert await _times(ONCE[endpoint], 8.0) == ([f"$JS.API.{endpoint}"], [0])


@virtual_clock
async def test_whichever_answer_comes_first_is_the_answer() -> None:
    async with stage() as (net, nc, stream):
        info: dict[str, object] = {"config": {"name": "S"}, "created": "2026-01-01T00:00:00Z", "state": {}}
        for answered in (0, 1, 2):
            asking = asyncio.create_task(nc.jetstream(timeout=60).stream("S"))
            asked: list[Op] = await stream.heard_all(3)
            stream.say(asked[answered], info)
            assert isinstance((await asking).cached_info, StreamInfo)
            for late in asked:
                stream.say(late, b"nobody reads this")
            await nc.flush()
        asking = asyncio.create_task(nc.jetstream(timeout=60).stream("S"))
        await stream.heard()
        stream.nobody(await stream.heard())
        with pytest.raises(JetStreamNotEnabled):
            await asking
        asking = asyncio.create_task(nc.jetstream(timeout=60).stream("S"))
        await stream.heard_all(2)
        net.down()
        await turns_until(lambda: not nc.is_connected)
        net.up()
        await nc.flush()
        stream.say(await stream.heard(), info)
        assert isinstance((await asking).cached_info, StreamInfo)


@virtual_clock
@pytest.mark.parametrize(
    ("err_code", "description", "kind"),
    [
        (10008, "JetStream system temporarily unavailable", JetStreamUnavailable),
        (10005, "no suitable peers for placement, peer offline", LimitReached),
        (10005, "no suitable peers for placement, miscellaneous issue", LimitReached),
    ],
)
async def test_unavailable_is_asked_again(err_code: int, description: str, kind: type[ApiError]) -> None:
    """As a cluster answers in an election and just after one, until the timeout; any other refusal is the answer."""
    error = {"code": 503, "err_code": err_code, "description": description}
    refusal: dict[str, object] = {"error": error}
    info: dict[str, object] = {"config": {"name": "S"}, "created": "2026-01-01T00:00:00Z", "state": {}}
    async with stage() as (_, nc, stream):

        async def refuse() -> None:
            while True:
                stream.say(await stream.heard(), refusal)

        asking = asyncio.create_task(nc.jetstream(timeout=60).stream("S"))
        for _ in range(3):
            stream.say(await stream.heard(), refusal)
        stream.say(await stream.heard(), info)
        assert isinstance((await asking).cached_info, StreamInfo)
        loop = asyncio.get_running_loop()
        began = loop.time()
        refusing = asyncio.create_task(refuse())
        with pytest.raises(kind):
            await nc.jetstream(timeout=2.5).stream("S")
        assert 1.4 < loop.time() - began <= 2.6  # no pause that would end later is begun
        refusing.cancel()
        deleting = asyncio.create_task(nc.jetstream(timeout=60).delete_stream("S"))
        stream.say(await stream.heard(), refusal)
        with pytest.raises(kind):
            await deleting


@virtual_clock
async def test_answers_of_one_read_count_in_order() -> None:
    """A consumer is made by the first question; to the second one the server may say that it exists already."""
    info: dict[str, object] = {"config": {"name": "S"}, "created": "2026-01-01T00:00:00Z", "state": {}}
    error = {"code": 400, "err_code": 10058, "description": "stream name already in use"}
    refusal: dict[str, object] = {"error": error}
    async with stage() as (_, nc, stream):
        for _ in range(20):
            asking = asyncio.create_task(nc.jetstream(timeout=60).create_stream(name="S"))
            first, second = await stream.heard_all(2)
            stream.say(first, info)
            stream.say(second, refusal)
            assert (await asking).name == "S"


@virtual_clock
async def test_cancelled_request_is_not_retried() -> None:
    async with stage() as (_, nc, stream):
        asking = asyncio.create_task(nc.jetstream(timeout=60).stream("S"))
        await stream.heard_all(2)
        asking.cancel()
        assert await stream.silent(60)
        assert asking.cancelled()


@pytest.mark.smoke
@pytest.mark.slow
async def test_stream_request_in_an_election() -> None:
    async with run_cluster() as cluster:
        leader = await cluster.meta_leader()
        left: list[Server] = [server for server in cluster.servers if server is not leader]
        async with natsproto.connect([server.url for server in left], ignore_discovered_servers=True) as nc:
            js = nc.jetstream(timeout=40)
            await js.account_info()
            leader.kill()
            stream = await js.create_stream(name="S", subjects=["s"], storage="memory")
            consumer = await stream.create_consumer(durable_name="d")
            await js.publish("s", b"1")
            assert (await consumer.next()).data == b"1"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_creation_waits_for_an_unheard_peer() -> None:
    """After a restart of the cluster, the leader places replicas only on the peers that it has heard from since."""
    async with run_cluster() as cluster:
        first, second, third = cluster.servers
        for server in cluster.servers:
            server.kill()
        await asyncio.gather(first.restart(), second.restart())
        await cluster.ready()
        async with natsproto.connect(first.url) as nc:
            js = nc.jetstream(timeout=60)
            await js.account_info()
            with pytest.raises(LimitReached, match="no suitable peers"):
                await js.create_stream(name="S", num_replicas=3, timeout=10)
            creating = asyncio.create_task(js.create_stream(name="S", num_replicas=3))
            await third.restart()
            assert (await creating).cached_info.config.num_replicas == 3
