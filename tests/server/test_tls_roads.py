"""Every road to a second connection keeps the demand of TLS of the first: no secret byte to a server without TLS.

The list has a server with TLS and a recorder without. Each road ends with a dial of the recorder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import cast
from unittest import mock

import pytest

import natsproto
import natsproto.sync
from natsproto import Client, Options
from natsproto._cli._doctor import examine
from natsproto._core.cut_off_watch import CutOffWatch
from natsproto.compat import nats
from natsproto.errors import NatsError
from natsproto.protocol.addresses import parse_servers
from natsproto.spark import SparkNats
from natsproto.spark import _client as spark
from tests.kit.pki import Authority
from tests.kit.scripted import Behaviour, ScriptedServer
from tests.server.test_tls_lists import SECRET, PlainServer

Road = Callable[["Place"], Awaitable[None]]


class Place:
    """The two servers, and the URLs of both."""

    def __init__(self, good: ScriptedServer, plain: PlainServer, scheme: str) -> None:
        self.good, self.plain = good, plain
        self.good_url, self.plain_url = f"{scheme}://127.0.0.1:{good.port}", f"nats://127.0.0.1:{plain.port}"
        self.urls = [self.good_url, self.plain_url]

    def options(self, *urls: str) -> Options:
        return Options(
            urls or self.urls, user="ann", password=SECRET, randomize=False, reconnect_wait=0.01, jitter=0,
            jitter_tls=0, connect_timeout=2.0, max_reconnect_attempts=3,
        )  # fmt: skip

    def connect(self, *urls: str) -> natsproto.Connecting:
        return natsproto.connect(self.options(*urls))

    async def dialled(self) -> None:
        """Wait until somebody has dialled the recorder, and until what he sends would have arrived."""
        async with asyncio.timeout(20):
            while not (seen := self.plain.connections) or not all(one.transport.is_closing() for one in seen):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def cut(place: Place) -> None:
    async with place.connect():
        place.good.current.reset()
        await place.dialled()


async def reconnect(place: Place) -> None:
    async with place.connect() as nc:
        await nc.reconnect()
        await place.dialled()


async def lame_duck(place: Place) -> None:
    async with place.connect():
        place.good.info(ldm=True)
        await place.dialled()


async def move(place: Place) -> None:
    async with place.connect() as nc:
        nc._engine.supervisor.start_move(parse_servers(place.plain_url)[0], "a test")
        await place.dialled()


async def announced(place: Place) -> None:
    async with place.connect(place.good_url) as nc:
        place.good.info(connect_urls=[f"127.0.0.1:{place.plain.port}"])
        await nc.flush()
        place.good.current.reset()
        await place.dialled()


async def set_servers(place: Place) -> None:
    async with place.connect(place.good_url) as nc:
        nc.set_servers(place.plain_url)
        place.good.current.reset()
        await place.dialled()


async def probe(place: Place) -> None:
    async with place.connect() as nc:
        await _probe(nc, place)


async def probe_after_set_servers(place: Place) -> None:
    async with place.connect(place.good_url) as nc:
        nc.set_servers(place.plain_url)
        await _probe(nc, place)


async def _probe(nc: Client, place: Place) -> None:
    async with AsyncExitStack() as stack:
        address = parse_servers(place.plain_url)[0]
        assert await cast(CutOffWatch, nc._outages.cut_off)._open(stack, address) == (address, None)


async def doctor(place: Place) -> None:
    steps = [step async for step in examine(place.options(), jetstream=False)]
    assert next(step.name for step in steps if step.status == "failed") == "TLS"
    assert "does not offer it" in "".join(step.text for step in steps)


async def sync_reconnect(place: Place) -> None:
    await asyncio.to_thread(_sync_reconnect, place)


def _sync_reconnect(place: Place) -> None:
    with natsproto.sync.connect(place.options()) as nc:
        nc.reconnect()
        asyncio.run(asyncio.wait_for(place.dialled(), 20))


async def sync_unpickled(place: Place) -> None:
    nc = await asyncio.to_thread(natsproto.sync.connect, place.options())
    other = pickle.loads(pickle.dumps(nc))
    again = pickle.loads(pickle.dumps(other))  # it has not connected meanwhile
    await asyncio.to_thread(nc.close)
    await place.good.stop()
    with pytest.raises(NatsError):
        await asyncio.to_thread(again.flush)


async def sync_in_another_process(place: Place) -> None:
    nc = await asyncio.to_thread(natsproto.sync.connect, place.options())
    await place.good.stop()
    with mock.patch("os.getpid", return_value=-1), pytest.raises(NatsError):
        await asyncio.to_thread(nc.flush)
    await asyncio.to_thread(nc.close)


async def spark_client_that_ended(place: Place) -> None:
    servers = ",".join(place.urls)
    config = SparkNats(servers=servers, user="ann", password=SECRET, allow_literal_secrets=True, outage_timeout=1)
    first = spark.shared_client(config)
    await asyncio.to_thread(first.flush)
    await asyncio.to_thread(first.close)
    place.plain.connections.clear()  # the order of the servers is random
    await place.good.stop()
    with pytest.raises(NatsError):
        await asyncio.to_thread(spark.shared_client(config).flush)


async def compat(place: Place) -> None:
    nc = await nats.connect(
        place.urls, user="ann", password=SECRET, dont_randomize=True, reconnect_time_wait=0.01, max_reconnect_attempts=3
    )
    place.good.current.reset()
    await place.dialled()
    await nc.close()


ROADS: tuple[Road, ...] = (
    *(cut, reconnect, lame_duck, move, announced, set_servers, probe, probe_after_set_servers, doctor),
    *(sync_reconnect, sync_unpickled, sync_in_another_process, spark_client_that_ended, compat),
)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(authority.cert)}):
        yield authority


@pytest.mark.parametrize("scheme", ["tls", "nats"])  # demanded by a URL, or learned from the first connection
@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
async def test_a_second_connection_keeps_tls(ca: Authority, road: Road, scheme: str) -> None:
    behaviour = Behaviour(tls=ca.server("127.0.0.1"))
    async with PlainServer() as plain, ScriptedServer(behaviour) as good:
        with contextlib.suppress(NatsError):
            await road(Place(good, plain, scheme))
        assert plain.connections, "the plain server was not dialled"
        assert plain.in_clear == []
        assert not any(SECRET.encode() in seen for seen in plain.received)
