"""A durable and an ordered reader in a cluster of three whose leaders step down and whose servers are killed.

A machine may be slow, so the times allowed here are long: what has to happen at once is proved with a clock of its own
(test_pull_state, test_ordered, test_consumer). Nothing may be missing, out of order or doubled, and reading goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

import natsproto
from natsproto import errors
from natsproto.testing import run_cluster
from tests.jetstream.reading import notices

if TYPE_CHECKING:
    from natsproto._core.events import Event
    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._stream.stream import Stream
    from natsproto.testing import Cluster, Server

T = TypeVar("T")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SOON = 10.0
"""Seconds; many times what it takes to be told."""
AFTER_ELECTIONS = 60.0
ACK_WAIT = 10.0
"""Seconds; what a leader had counted as delivered and not sent when it went comes after that time."""
DOUBLED = 2
"""How often one fault may make a durable consumer deliver twice: an acknowledgement was on its way."""


class Publisher:
    """Publishes numbers, each until a server has confirmed it."""

    def __init__(self, client: natsproto.Client) -> None:
        self._client = client
        self.confirmed: list[str] = []
        self._over = False

    async def run(self, lane: int) -> None:
        number = 0
        while not self._over:
            number += 1
            text = f"{lane}-{number}"
            await self.confirm(text)
            self.confirmed.append(text)
            await asyncio.sleep(0.01)

    async def confirm(self, text: str) -> None:
        """Publishes it until a server has confirmed it."""
        reply: dict[str, object] = {"error": "not asked yet"}
        while "error" in reply:
            try:
                message = await self._client.request("s.x", text.encode(), headers={"Nats-Msg-Id": text}, timeout=0.5)
                reply = json.loads(message.data)
            except errors.NatsError:
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._over = True


class Log:
    """What a reader got."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sequences: list[int] = []
        self._came = asyncio.Event()

    def note(self, message: JsMessage) -> None:
        self.texts.append(message.data.decode())
        self.sequences.append(message._position[2])
        self._came.set()

    async def wait_for(self, check: Callable[[], object]) -> None:
        """Until it holds, which something that came has to bring about."""
        while not check():
            self._came.clear()
            await self._came.wait()

    @property
    def doubled(self) -> int:
        return len(self.texts) - len(set(self.texts))


class Scene:
    """A publisher, a durable and an ordered reader."""

    def __init__(self, cluster: Cluster, stream: Stream, bound: Stream, publisher: Publisher) -> None:
        self.cluster, self.stream, self.publisher = cluster, stream, publisher
        self.durable, self.ordered = Log(), Log()
        self.faults = 0
        self.events: list[Event] = []
        self._bound = bound
        self._reader = bound.ordered_consumer()

    async def read_durable(self) -> None:
        consumer = await self._bound.consumer("d", bind=True)
        async with consumer.messages() as messages:
            async for message in messages:
                self.durable.note(message)
                await message.ack()

    async def read_ordered(self) -> None:
        async with self._reader.messages() as messages:
            async for message in messages:
                self.ordered.note(message)

    async def reading(self, within: float) -> None:
        """Until something that was published from now on has come to both."""
        self.faults += 1
        published, asked = self.publisher.confirmed, len(self.publisher.confirmed)
        async with asyncio.timeout(AFTER_ELECTIONS):
            await self.ordered.wait_for(lambda: len(published) > asked + 10)  # or the stream itself is not there
        async with asyncio.timeout(within):
            for log in (self.durable, self.ordered):
                await log.wait_for(lambda: published[asked + 10] in log.texts)  # noqa: B023  # it is awaited here

    async def read_all(self) -> None:
        """Until everything that was confirmed has come to both, and what was sent twice has."""
        await self.publisher.confirm("the last")
        wanted = {*self.publisher.confirmed, "the last"}
        async with asyncio.timeout(AFTER_ELECTIONS):
            for log in (self.durable, self.ordered):
                await log.wait_for(lambda: wanted <= set(log.texts))  # noqa: B023  # it is awaited here

    def check(self) -> None:
        """Nothing is out of order, next to nothing came twice."""
        assert all(before < after for before, after in pairwise(self.ordered.sequences))
        assert self.ordered.doubled == 0
        assert self.durable.doubled <= DOUBLED * self.faults

    async def ordered_consumer(self) -> tuple[str, str]:
        """The name of the consumer in use and that of the server that carries it."""
        info = await until_answered(self._reader.info)
        assert info.cluster is not None
        return info.name, info.cluster.leader

    async def tidy(self) -> None:
        """Until the consumers in use are all there are: nobody waits for the deletion of the others."""
        async with asyncio.timeout(AFTER_ELECTIONS):
            while {name async for name in self.stream.consumer_names()} != {"d", self._reader.name}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def step_down(self, what: str, body: dict[str, object] | None = None) -> None:
        """Another leader for the stream ("STREAM.S") or the durable consumer ("CONSUMER.S.d")."""
        before = await self._leader(what)
        kind, _, names = what.partition(".")
        async with asyncio.timeout(AFTER_ELECTIONS):
            while await self._leader(what) == before:
                with suppress(errors.NatsError):  # it may have done so without a word: one look more will tell
                    await self._ask(f"{kind}.LEADER.STEPDOWN.{names}", body or {})
                await asyncio.sleep(0.02)

    async def gather(self, home: Server) -> None:
        """One server leads the stream and the durable consumer."""
        async with asyncio.timeout(AFTER_ELECTIONS):
            for what in ("STREAM.S", "CONSUMER.S.d"):
                while await self._leader(what) != home.name:
                    await self.step_down(what, {"placement": {"preferred": home.name}})

    async def _leader(self, what: str) -> str:
        kind, _, names = what.partition(".")
        answer = await until_answered(lambda: self._ask(f"{kind}.INFO.{names}", {}))
        cluster = answer["cluster"]
        assert isinstance(cluster, dict)
        return str(cluster.get("leader"))

    async def _ask(self, endpoint: str, body: dict[str, object]) -> dict[str, object]:
        """One that was asked on its way out does not answer: others are asked soon."""
        return await self.stream._api.call(endpoint, body, operation=endpoint, timeout=0.5)


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks until there is a leader to answer."""
    async with asyncio.timeout(AFTER_ELECTIONS):
        while True:
            try:
                return await ask()
            except errors.NatsError:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster_scene(cluster: Cluster, home: Server) -> AsyncIterator[Scene]:
    """Two readers on a connection of their own, both clients at home on one server."""
    async with (
        natsproto.connect(cluster.urls, name="admin") as admin,
        natsproto.connect([home.url, *cluster.urls], randomize=False, name="publisher") as out,
        natsproto.connect([home.url, *cluster.urls], randomize=False, name="reader") as nc,
    ):
        stream = await admin.jetstream().create_stream(name="S", subjects=["s.>"], num_replicas=3)
        await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT)
        index = Scene(cluster, stream, await nc.jetstream().stream("S", bind=True), Publisher(out))
        nc.add_listener(index.events.append)
        publishing = [asyncio.ensure_future(index.publisher.run(lane)) for lane in range(2)]
        reading = [asyncio.ensure_future(index.read_durable()), asyncio.ensure_future(index.read_ordered())]
        try:
            await index.reading(AFTER_ELECTIONS)
            index.faults = 0
            yield index
            index.publisher.stop()
            await asyncio.gather(*publishing)
            await index.read_all()
        finally:
            for task in (*publishing, *reading):
                task.cancel()
            done = await asyncio.gather(*publishing, *reading, return_exceptions=True)
        failures = [error for error in done if isinstance(error, Exception)]
        assert failures == []
        index.check()


async def test_readers_go_on_after_step_downs_and_deletes() -> None:
    async with run_cluster(3) as cluster, cluster_scene(cluster, cluster.servers[0]) as index:
        for _ in range(2):
            for what in ("STREAM.S", "CONSUMER.S.d"):
                await index.step_down(what)
                await index.reading(SOON)
        for _ in range(2):
            name, _ = await index.ordered_consumer()
            await index.stream.delete_consumer(name)
            await index.reading(SOON)
        missed = [notice for notice in notices(index.events) if isinstance(notice.error, errors.HeartbeatMissed)]
        assert [notice for notice in missed if notice.consumer == "d"] == [], "told by the next leader, not by silence"


async def test_ordered_reader_survives_a_killed_server() -> None:
    """Everything else lives on a server that stays: the stream, the metadata, the durable consumer, the clients. One
    new consumer in three is put on the dead server all the same.
    """
    async with run_cluster(3) as cluster:
        home = await cluster.meta_leader()
        async with cluster_scene(cluster, home) as index:
            await index.gather(home)
            name, where = await index.ordered_consumer()
            while where == home.name:
                await index.stream.delete_consumer(name)
                await index.reading(AFTER_ELECTIONS)
                name, where = await index.ordered_consumer()
            victim = next(server for server in cluster.servers if server.name == where)
            victim.kill()
            await index.reading(AFTER_ELECTIONS)
            await index.tidy()


async def test_readers_go_on_after_an_election() -> None:
    async with run_cluster(3) as cluster:
        home = await cluster.meta_leader()
        async with cluster_scene(cluster, home) as index:
            await index.gather(home)
            home.kill()
            await index.reading(AFTER_ELECTIONS)
            await home.restart()
            await cluster.ready()
            await index.reading(AFTER_ELECTIONS)
