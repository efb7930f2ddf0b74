"""What a reader does when servers fall silent, die or change, to the tenth of a second, on a clock of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from types import EllipsisType
from typing import TYPE_CHECKING

import pytest

from natsproto.errors import ConsumerDeleted, ConsumerGone, RequestTimeout
from natsproto.jetstream import ConsumerConfig, ConsumerInfo, PullConsumer
from tests.core.helpers import ScriptedNetwork, scripted_network
from tests.jetstream.reading import events, notices
from tests.kit.clock import advance, virtual_clock

if TYPE_CHECKING:
    from natsproto import Client
    from natsproto.jetstream._stream.stream import Stream
    from tests.kit.scripted import Op

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S."


class Leader:
    """Takes the requests of one client and says what the test wants."""

    def __init__(self, net: ScriptedNetwork, itself: Client) -> None:
        self._place, self._itself = net, itself
        self._wire = net.server.connections[0]
        self._subscription = itself.subscribe("$JS.API.>")
        self._sequence = 0

    async def there(self) -> None:
        """Until its interest is known."""
        await self._itself.flush()

    async def dies(self) -> None:
        """Nobody takes requests any more, and nobody says so."""
        await self._subscription.unsubscribe()
        await self._itself.flush()

    async def comes_back(self) -> None:
        """Another one takes them; what was asked before is forgotten."""
        self._place.server.forget()
        self._subscription = self._itself.subscribe("$JS.API.>")
        await self._itself.flush()

    async def asked(self, subject: str | EllipsisType, timeout: float = 60.0) -> Op:
        """The next request on this subject."""
        return await self._place.server.expect("PUB", subject, timeout=timeout)

    async def pulled(self, consumer: str = "C", timeout: float = 60.0) -> Op:
        """The next pull."""
        return await self.asked(NEXT + consumer, timeout)

    async def asked_to_create(self) -> Op:
        """The next request for a consumer."""
        while not (op := await self.asked(...)).args[0].startswith("$JS.API.CONSUMER.CREATE.S."):
            pass
        return op

    async def creates(self, first: Op | None = None) -> str:
        """Makes the consumer that is asked for; returns its name."""
        request = first or await self.asked_to_create()
        name = request.args[0].rpartition(".")[2]
        zero = {"consumer_seq": 0, "stream_seq": 0}
        info = {"stream_name": "S", "name": name, "created": "2026-01-01T00:00:00Z", "delivered": zero}
        self.answer(request, {**info, "config": {"name": name, "ack_policy": "none"}, "ack_floor": zero})
        return name

    def deletions(self) -> list[Op]:
        """What was to be deleted."""
        return [op for op in self._place.server.ops if op.args and op.args[0].startswith("$JS.API.CONSUMER.DELETE.S.")]

    def status(self, pull: Op, line: str) -> None:
        """Ends a pull, or shows that it lives."""
        self._deliver(pull.args[1], pull.args[1], b"", f"NATS/1.0 {line}\r\n\r\n".encode())

    def messages(self, pull: Op, count: int, consumer: str = "C") -> None:
        """Serves it."""
        for number in range(count):
            self._sequence += 1
            ack = f"$JS.ACK.S.{consumer}.1.{self._sequence}.{number + 1}.1795000000000000000.0"
            self._deliver(pull.args[1], "s.a", b"%d" % self._sequence, reply=ack)

    def answer(self, request: Op, body: dict[str, object]) -> None:
        """The reply of the API."""
        self._deliver(request.args[1], request.args[1], json.dumps(body).encode())

    def _deliver(self, to: str, subject: str, payload: bytes, headers: bytes | None = None, *, reply: str = "") -> None:
        tokens = to.split(".")
        for sid, interest in self._wire.interest.items():
            if len(interest.tokens) == len(tokens) and all(
                want in ("*", got) for want, got in zip(interest.tokens, tokens, strict=True)
            ):
                self._wire.deliver(sid, subject, payload, reply=reply, headers=headers)
                return
        raise AssertionError(f"nobody waits on {to}")


@asynccontextmanager
async def leader() -> AsyncIterator[tuple[Leader, Client, Stream]]:
    """A client, its stream and who leads it."""
    async with scripted_network() as net:
        nc = await net.connect()
        other = await net.connect()
        taking = Leader(net, other)
        await taking.there()
        yield taking, nc, await nc.jetstream().stream("S", bind=True)


def without_acks(stream: Stream) -> PullConsumer:
    """The consumer C without acknowledgements, so that its pulls do not follow the pace of its reader."""
    config = ConsumerConfig(name="C", ack_policy="none")
    return PullConsumer(stream._api, "S", "C", ConsumerInfo(stream_name="S", name="C", config=config))


def bodies(*pulls: Op) -> list[dict[str, object]]:
    return [json.loads(pull.payload) for pull in pulls]


@virtual_clock
async def test_leader_change_ends_every_open_pull() -> None:
    loop = asyncio.get_running_loop()
    async with leader() as (server, _, stream):
        consumer = without_acks(stream)
        async with consumer.messages(prefetch=10) as messages:
            first = await server.pulled()
            server.messages(first, 5)
            for _ in range(5):
                await messages.next()
            second = await server.pulled()
            assert first.args[1] != second.args[1]
            changed = loop.time()
            server.status(first, "409 Leadership Change")
            third = await server.pulled()
            assert loop.time() == changed
            assert [body["batch"] for body in bodies(first, second, third)] == [10, 5, 10]
            server.status(second, "409 Leadership Change")
            with pytest.raises(AssertionError, match="no PUB"):
                await server.pulled(timeout=0.3)


@virtual_clock
async def test_dead_server_is_noticed_in_a_moment() -> None:
    loop = asyncio.get_running_loop()
    async with leader() as (server, nc, stream), events(nc) as seen:
        consumer = without_acks(stream)
        async with consumer.messages(prefetch=20) as messages:
            server.messages(await server.pulled(), 8)
            for _ in range(8):
                await messages.next()
            died = loop.time()
            await server.dies()
            (probe,) = bodies(await server.pulled())
            assert probe["idle_heartbeat"] == probe["expires"]
            again = await server.pulled()
            assert loop.time() == pytest.approx(died + 0.3)
            (notice,) = notices(seen)
            assert isinstance(notice.error, ConsumerGone)
            await advance(died + 5.0 - loop.time())
            await server.comes_back()
            last = await server.pulled()
            assert loop.time() <= died + 5.5
            assert bodies(again, last)[0]["batch"] == bodies(last)[0]["batch"] == 20
            server.messages(last, 1)
            assert (await messages.next(timeout=1)).data == b"9"


@virtual_clock
async def test_silence_probe_once_for_each_pause() -> None:
    async with leader() as (server, _, stream):
        consumer = without_acks(stream)
        async with consumer.messages(prefetch=100) as messages:
            pull = await server.pulled()
            for _ in range(7):
                server.messages(pull, 1)
                await messages.next()
                await advance(1.0)
            server.messages(pull, 1)
            await messages.next()
            probe = await server.pulled(timeout=0.21)
            server.status(probe, "400 Bad Request - heartbeat value too large")
            with pytest.raises(AssertionError, match="no PUB"):
                await server.pulled(timeout=3.5)
            assert not messages.closed


@virtual_clock
async def test_ordered_consumer_not_created_is_replaced() -> None:
    loop = asyncio.get_running_loop()
    async with leader() as (server, nc, stream), events(nc) as seen:
        ordered = stream.ordered_consumer()
        async with AsyncExitStack() as stack:
            entering = asyncio.ensure_future(stack.enter_async_context(ordered.messages()))
            first = await server.creates()
            pull = await server.pulled(first)
            messages = await entering
            server.messages(pull, 1, first)
            await messages.next(timeout=1)
            begun = loop.time()
            server.status(pull, "409 Consumer Deleted")
            names: dict[str, float] = {}
            while loop.time() < begun + 9.0:
                asked = await server.asked_to_create()
                names.setdefault(asked.args[0].rpartition(".")[2], loop.time() - begun)
            patience = [after - before for before, after in pairwise(names.values())]
            assert patience == pytest.approx([0.15 * 1.25**failed for failed in range(len(patience))])
            assert len(patience) >= 10
            last = await server.creates(first=asked)
            assert last == ordered.name
            server.messages(await server.pulled(last), 1, last)
            assert (await messages.next(timeout=1)).data == b"2"
            deleted = {op.args[0].rpartition(".")[2] for op in server.deletions()}
            assert deleted == {first, *names} - {last}
            assert [type(notice.error) for notice in notices(seen)] == [ConsumerDeleted, RequestTimeout]
