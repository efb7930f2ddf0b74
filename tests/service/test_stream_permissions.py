"""Responses in parts where users may do little, and to other accounts: they work, or an error names the setting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from natsproto._client import Client
from natsproto._core.events import HandlerFailed, ReplyRefused
from natsproto.errors import NatsError, PermissionDenied, ServiceError, StreamBroken
from natsproto.protocol.frames import Message
from natsproto.service import Request
from natsproto.service._stream_endpoint import CreditInbox
from natsproto.testing import Server, run_server
from tests.faults.helpers import monitoring
from tests.kit.waiting import until
from tests.server.helpers import client
from tests.service.test_streams import Streams, read_into, streams_of

RESPONDER = 'subscribe: ["_INBOX.>", "svc.>", "$SRV.>"], publish: ["$SRV.>"]'
REQUESTER = 'subscribe: ["_INBOX.>"], publish: ["svc.>"]'
ANY_NUMBER = 'allow_responses: {max: -1, expires: "1m"}'
IMPORT = 'imports: [{service: {account: A, subject: "svc.>"}}]'


def users(responder: str = "", requester: str = "") -> str:
    def user(name: str, permissions: str) -> str:
        return f"{{user: {name}, password: x{f', permissions: {{{permissions}}}' if permissions else ''}}}"

    return f"authorization {{ users: [{user('responder', responder)}, {user('requester', requester)}] }}"


def accounts(response_type: str) -> str:
    export = f'exports: [{{service: "svc.>", response_type: {response_type}}}]'
    return f"""accounts {{
        A {{ users: [{{user: responder, password: x}}], {export} }}
        B {{ users: [{{user: requester, password: x}}], {IMPORT} }}
    }}"""


class Parties:
    """A responder and a requester with their own rights."""

    def __init__(self, responder: Client, requester: Client, events: list[object], server: Server) -> None:
        self.responder, self.requester, self.events, self.server = responder, requester, events, server

    async def ask(self, count: int, pause: float = 0.0, window: int | None = 1 << 20) -> tuple[int, NatsError | None]:
        """The number of parts that come, and the error after them."""
        service = await self.responder.add_service("svc", "1.0.0")

        @service.endpoint("count", subject="svc.count")
        async def parts(request: Request) -> AsyncIterator[bytes]:
            for number in range(count):
                yield b"%d" % number
                await asyncio.sleep(pause)

        await self.responder.flush()
        read, error = list[bytes](), None
        try:
            await read_into(read, self.requester.stream("svc.count", heartbeat=0.1, window=window))
        except NatsError as exc:
            error = exc
        assert [int(part) for part in read] == list(range(len(read)))
        inbox = service._credit_inbox
        await until(lambda: not inbox or not inbox.streams, 20)
        assert not set(self.requester._engine.registry.reply_handlers) - {inbox}
        await service.stop()
        return len(read), error

    def failures(self) -> list[str]:
        """The texts of the errors that the endpoint has reported."""
        return [str(event.error) for event in self.events if isinstance(event, HandlerFailed)]


@asynccontextmanager
async def parties(config: str) -> AsyncIterator[Parties]:
    events = list[object]()
    async with (
        run_server(config=config) as server,
        client(server.url, user="responder", password="x", on_event=events.append) as one,
        client(server.url, user="requester", password="x") as two,
    ):
        yield Parties(one, two, events, server)


class Case(NamedTuple):
    name: str
    config: str


@pytest.mark.parametrize(
    "case",
    [
        Case("responder", users(f"{RESPONDER}, {ANY_NUMBER}")),
        Case("requester", users("", f"{REQUESTER}, {ANY_NUMBER}")),
        Case("both", users(f"{RESPONDER}, {ANY_NUMBER}", f"{REQUESTER}, {ANY_NUMBER}")),
        Case("export as stream", accounts("Stream")),
        Case("export as chunks", accounts("Chunked")),
    ],
    ids=lambda case: case.name,
)
async def test_enough_rights(case: Case) -> None:
    async with parties(case.config) as both:
        assert await both.ask(5) == (5, None)
        assert await both.ask(1000, window=2000) == (1000, None)
        assert await both.ask(5, 0.15) == (5, None)  # with idle messages between them
        assert await both.ask(5, window=None) == (5, None)
        assert not both.failures()


@pytest.mark.parametrize(("limit", "most"), [("true", 1), ('{max: 10, expires: "1m"}', 10)])
async def test_responder_may_send_too_few_parts(limit: str, most: int) -> None:
    async with parties(users(f"{RESPONDER}, allow_responses: {limit}")) as both:
        for window in (2000, None):
            count, error = await both.ask(2000, 0.002, window=window)
            assert 0 < count < 1000  # idle messages count too, and every sign of life gives the right again
            assert isinstance(error, StreamBroken)
            assert "silent" in str(error)
            if window and most == count == 1:
                assert "allow_responses needs {max: -1}" in str(error)
        assert len(both.failures()) == 2
        for failure in both.failures():
            assert "denied): the responder's user needs allow_responses with {max: -1} and an expires" in failure


async def test_right_to_respond_expires() -> None:
    async with parties(users(f'{RESPONDER}, allow_responses: {{max: -1, expires: "50ms"}}')) as both:
        count, error = await both.ask(100, 0.02)
        assert 0 < count < 50
        assert isinstance(error, StreamBroken)
        assert "an expires longer than the heartbeat" in both.failures()[0]


async def test_responder_without_inbox() -> None:
    async with parties(users('subscribe: ["svc.>", "$SRV.>"], publish: ">"')) as both:
        count, error = await both.ask(1000, 0.01, window=2000)
        assert count < 100
        assert isinstance(error, (ServiceError, StreamBroken)), error  # of the end, or of credit that nobody takes
        assert "permission to subscribe to its inboxes (see inbox_prefix)" in both.failures()[0]
        assert await both.ask(20, 0.01, window=None) == (20, None)


async def test_requester_may_not_send_credit() -> None:
    async with parties(users("", REQUESTER)) as both:
        count, error = await both.ask(1000, window=2000)
        assert count < 100
        assert isinstance(error, StreamBroken)
        assert "denied: to send credit the user needs allow_responses with {max: -1}" in str(error)
        assert isinstance(error.__cause__, PermissionDenied)
        assert await both.ask(1000, window=None) == (1000, None)


async def test_requester_may_not_ask() -> None:
    async with parties(users("", 'publish: ["other"]')) as both:
        count, error = await both.ask(5)
        assert (count, type(error)) == (0, PermissionDenied)


async def test_export_for_one_response() -> None:
    async with parties(accounts("Singleton")) as both:
        count, error = await both.ask(5)
        assert count == 1
        assert isinstance(error, StreamBroken)
        assert "an export needs response_type Stream" in str(error)


@pytest.mark.slow
async def test_cancellation_over_an_export() -> None:
    """Each reply subject can be used once there: one is always left to cancel with."""
    async with parties(accounts("Stream")) as both:
        service = await both.responder.add_service("svc", "1.0.0")
        ended = asyncio.Queue[int]()

        @service.endpoint("count", subject="svc.count")
        async def parts(request: Request) -> AsyncIterator[bytes]:
            pause, number = float(request.data), 0
            try:
                while True:
                    number += 1
                    yield b"%d" % number
                    await asyncio.sleep(pause)
            finally:
                ended.put_nowait(number)

        await both.responder.flush()
        for pause, enough in ((10, 1), (0.001, 1), (0.001, 3), (0.001, 100), (0, 1000), (0.03, 20)):
            for window in (1000, 1 << 20):
                async with both.requester.stream("svc.count", b"%g" % pause, window=window, heartbeat=1.0) as stream:
                    async for _ in stream:
                        if stream.received == enough:
                            break
                async with asyncio.timeout(2.0):  # silence would be noticed after 3 s
                    assert await ended.get() >= enough


@pytest.mark.slow
async def test_export_keeps_little_for_each_part() -> None:
    async with parties(accounts("Stream")) as both:

        def memory() -> int:
            with open(f"/proc/{both.server.pid}/statm") as file:
                return int(file.read().split()[1]) * 4096

        await both.ask(10)
        before = memory()
        assert await both.ask(30_000) == (30_000, None)
        assert memory() - before < 30_000 * 300  # a reply subject for each would take 700


# ---------------------------------------------------------------- peers who want more than their share


async def test_nobody_stops_a_stream_of_another(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as one, client(nats_server.url) as two:
        streams = await streams_of(nc)
        async with one.stream("pause", b"2") as mine, two.stream("pause", b"2") as theirs:
            async for _ in theirs:
                break
            async for _ in mine:
                break
            credit_to = theirs._stream.state.credit_to
            assert credit_to is not None
            prefix, token, number = credit_to.decode().rsplit(".", 2)
            inbox = streams.service._credit_inbox
            assert inbox is not None
            assert token in inbox.streams
            assert len(token) == 22
            other = "y" if token.endswith("x") else "x"
            for guess in (
                f"{prefix}.{token[:-1]}{other}.1",
                f"{prefix}.{token[::-1]}.1",
                f"{prefix}.1.1",
                f"{prefix}..1",
            ):
                if ".." not in guess:
                    await two.publish(guess, b"-CANCEL")
            await two.flush()
            await nc.flush()
            assert len(inbox.streams) == 2
            await two.publish(f"{prefix}.{token}.{number}", b"-CANCEL")  # their own
            await until(lambda: len(inbox.streams) == 1, 20)
            assert mine._stream.is_open


async def test_garbage_in_the_credit_inbox(nats_client: Client) -> None:
    streams = await streams_of(nats_client)
    async with nats_client.stream("count", b"1000 10", window=200) as parts:
        async for _ in parts:
            break
        (stream,) = streams.service._credit_inbox.streams.values()  # type: ignore[union-attr]
        for number in ("2000", "-1", "x", "1e3", "9" * 30, "٣"):
            for payload in (b"", b"+CANCEL", b"-cancel", b"x" * 1000):
                await nats_client.publish(
                    f"{stream._credit_to}{number}", payload, headers={"a": "b"} if payload else None
                )
        await nats_client.flush()
        assert len([part async for part in parts]) == 999
    await streams.nothing_is_left(nats_client)


async def test_reply_subjects_of_apis_are_refused(nats_server: Server) -> None:
    """A peer must not have the rights of the other side: to write keys, delete streams, or publish where it likes."""
    events = list[object]()
    async with client(nats_server.url, on_event=events.append) as nc, client(nats_server.url) as peer:
        streams = await streams_of(nc)
        async with peer.subscribe(">") as everything:
            for reply in ("$JS.API.STREAM.DELETE.ORDERS", "$KV.bucket.key", "$SYS.REQ.x"):
                await peer.publish("count", b"5 5", reply=reply, headers={"Stream-Window": "100"})
            await until(lambda: streams.service.endpoints[0].stats().num_requests == 3, 20)
            await peer.publish("evil", b"")
            await nc.flush()

            async def evil(message: Message) -> None:
                await peer.publish(message.reply or "", b"x", reply="$KV.bucket.key.1")

            await peer.subscribe("evil.stream", cb=evil)
            await peer.flush()
            with pytest.raises(StreamBroken, match="not allowed"):
                await read_into([], nc.stream("evil.stream"))
            await nc.flush()
            await peer.flush()
            subjects = [message.subject for message in everything._read_batch_nowait()]
            assert not [subject for subject in subjects if subject.startswith("$")]
        assert any(isinstance(event, ReplyRefused) for event in events)
        assert streams.finished.empty()


async def test_two_responders_are_not_mixed(nats_server: Server) -> None:
    async with client(nats_server.url) as one, client(nats_server.url) as two, client(nats_server.url) as asking:
        services = [await nc.add_service("twice", "1.0.0", queue_group=None) for nc in (one, two)]
        ended = asyncio.Queue[int]()
        for place, service in enumerate(services):

            async def parts(request: Request, place: int = place) -> AsyncIterator[bytes]:
                try:
                    for number in range(1000 - 10 * place):
                        yield b"%d %d" % (place, number)
                finally:
                    ended.put_nowait(place)

            service.add_endpoint("parts", parts)
        await asyncio.gather(one.flush(), two.flush())
        for _ in range(10):
            read = list[bytes]()
            await read_into(read, asking.stream("parts", window=5000))
            places = {int(part.split()[0]) for part in read}
            assert len(places) == 1
            place = places.pop()
            assert [int(part.split()[1]) for part in read] == list(range(1000 - 10 * place))
            assert {await ended.get(), await ended.get()} == {0, 1}


async def test_state_of_a_service_is_one_subscription(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        streams = await streams_of(nc)
        await other.flush()
        before = await server_subscriptions(nats_server)
        readers = [other.stream("pause", b"1") for _ in range(20)]
        for reader in readers:
            await reader.__aenter__()
        await until(lambda: streams.service.endpoints[1].in_progress == 20, 20)
        await asyncio.gather(nc.flush(), other.flush())
        assert await server_subscriptions(nats_server) == before + 1 + 20
        (inbox,) = nc._engine.registry.reply_handlers
        assert isinstance(inbox, CreditInbox)
        for reader in readers:
            await reader.__aexit__(None, None, None)
        await until(lambda: not inbox.streams, 20)
        assert isinstance(streams, Streams)


async def server_subscriptions(server: Server) -> int:
    page = await monitoring(server, "/varz")
    number = page["subscriptions"]
    assert isinstance(number, int)
    return number
