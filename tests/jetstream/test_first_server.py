"""What is published before a server was heard of that is too old for it is not stored there when that one comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto import Client
from natsproto._core.events import Disconnected
from natsproto.errors import PublishFailed, PublishUncertain, RequestTimeout, UnsupportedByServer
from natsproto.jetstream import Schedule
from natsproto.testing import run_server
from natsproto.testing._server import Server
from tests.faults.helpers import EventRecorder
from tests.kit.servers import binary_of

pytestmark = pytest.mark.slow


@asynccontextmanager
async def no_stream(series: str) -> AsyncIterator[tuple[Server, Client]]:
    """A server of that series with a stream, which is away, and a client that has never seen it."""
    binary = await asyncio.to_thread(binary_of, series)
    async with run_server(jetstream=True, binary=binary) as server:
        async with natsproto.connect(server.url) as nc:
            await nc.jetstream().create_stream(name="S", subjects=["s.>"])
        server.kill()
        async with natsproto.connect(server.url, retry_on_failed_connect=True, reconnect_wait_max=0.2) as nc:
            assert nc.server_info.version == ""
            yield server, nc


@asynccontextmanager
async def newer_client(newer: str, older: str) -> AsyncIterator[tuple[Server, Client]]:
    """The newer one of two servers that both have a stream, and a client of it that goes to the older one then."""
    binaries = [await asyncio.to_thread(binary_of, series) for series in (newer, older)]
    async with (
        run_server(jetstream=True, binary=binaries[0]) as one,
        run_server(jetstream=True, binary=binaries[1]) as other,
    ):
        for server in (one, other):
            new = server is one
            async with natsproto.connect(server.url) as nc:
                await nc.jetstream().create_stream(name="S", subjects=["s.>"], allow_msg_ttl=new, allow_atomic=new)
        async with natsproto.connect([one.url, other.url], randomize=False, reconnect_wait_max=0.2) as nc:
            yield one, nc


async def kept_subjects(nc: Client) -> list[str]:
    """The subjects of what the stream holds."""
    return [subject async for subject, _ in (await nc.jetstream().stream("S")).subjects()]


@pytest.mark.parametrize("auto_msg_id", [False, True])
async def test_window_refuses_what_the_first_server_ignores(auto_msg_id: bool) -> None:
    schedule = Schedule.every(60, target="s.t")
    async with no_stream("2.10") as (server, nc):
        pub = await nc.jetstream(timeout=30).publisher(auto_msg_id=auto_msg_id).__aenter__()
        futures = [
            await pub.publish("s.1", b"x", ttl=60),
            await pub.publish("s.2", b"x"),
            await pub.publish("s.3", schedule=schedule),
            await pub.publish("s.4", expected_last_subject_seq=0, expected_last_subject_seq_subject="s.>"),
            await pub.publish("s.5", b"x"),
        ]
        await server.restart()
        for future, named in zip(
            futures, ("ttl", "", "schedule", "expected_last_subject_seq_subject", ""), strict=True
        ):
            if named:
                with pytest.raises(UnsupportedByServer, match=f"{named}.*: nats-server 2.1. is needed, this is 2.10"):
                    await future
            else:
                await future
        await pub.flush()
        assert (pub.pending, pub.acknowledged) == (0, 2)
        with pytest.raises(UnsupportedByServer, match="ttl"):
            await pub.publish("s.6", ttl=60)
        await pub.__aexit__(None, None, None)
        assert await kept_subjects(nc) == ["s.2", "s.5"]


async def test_window_resends_nothing_to_an_older_server() -> None:
    async with newer_client("2.14", "2.10") as (server, nc):
        async with nc.jetstream(timeout=30).publisher(auto_msg_id=True) as pub:
            await (await pub.publish("s.0", ttl=60))
            server.freeze()
            futures = [await pub.publish("s.1", ttl=60), await pub.publish("s.2")]
            await nc._outbox.wait_flushed()
            server.kill()
            with pytest.raises(PublishUncertain, match=r"ttl: nats-server 2\.11 is needed, this is 2\.10"):
                await futures[0]
            await futures[1]
        assert await kept_subjects(nc) == ["s.2"]


async def test_publish_is_not_retried_at_an_older_server() -> None:
    async with newer_client("2.14", "2.10") as (server, nc):
        server.freeze()
        sent = nc.stats.out_msgs
        publishing = asyncio.create_task(nc.jetstream(timeout=30).publish("s.1", ttl=60, msg_id="m"))
        while nc.stats.out_msgs == sent:
            await nc._outbox.wait_writable()
        server.kill()
        with pytest.raises(PublishUncertain, match=r"ttl: needs nats-server 2\.11 or newer"):
            await publishing
        assert await kept_subjects(nc) == []


async def test_window_raises_refusals_at_its_end() -> None:
    async with no_stream("2.10") as (server, nc):
        pub = await nc.jetstream(timeout=30).publisher().__aenter__()
        await pub.publish("s.1", b"xx", ttl=60)
        leaving = asyncio.create_task(pub.__aexit__(None, None, None))
        await server.restart()
        with pytest.raises(PublishFailed, match="ttl") as left:
            await leaving
        assert [(failed.number, failed.size) for failed in left.value.failures] == [(1, 2)]
        assert await kept_subjects(nc) == []


@pytest.mark.parametrize("messages", [1, 3])
async def test_atomic_batch_with_a_too_old_first_server(messages: int) -> None:
    async with no_stream("2.11") as (server, nc):
        batch = await nc.jetstream(timeout=30).atomic_batch().__aenter__()

        async def publish() -> None:
            for number in range(messages):
                await batch.publish(f"s.{number}", ttl=60)
            await batch.commit()

        publishing = asyncio.create_task(publish())
        await server.restart()
        with pytest.raises(UnsupportedByServer, match=r"atomic batch: nats-server 2\.12 is needed, this is 2\.11"):
            await publishing
        assert await kept_subjects(nc) == []


async def test_atomic_batch_without_a_server_is_not_sent() -> None:
    async with no_stream("2.14") as (server, nc):
        batch = await nc.jetstream(timeout=0.3).atomic_batch().__aenter__()
        await batch.publish("s.1")
        with pytest.raises(RequestTimeout, match=r"not sent within 0\.3 s, as the client was not connected") as info:
            await batch.commit()
        assert not info.value.sent
        await server.restart()
        assert await kept_subjects(nc) == []


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_atomic_batch_ends_with_an_older_server(more: int) -> None:
    async with newer_client("2.14", "2.11") as (server, nc):
        recorder = EventRecorder(Disconnected)
        nc.add_listener(recorder)
        with pytest.raises(UnsupportedByServer, match=r"atomic batch: nats-server 2\.12 is needed, this is 2\.11"):  # noqa: PT012
            async with nc.jetstream(timeout=30).atomic_batch() as batch:
                await batch.publish("s.1")
                await batch.publish("s.2")
                await batch.flush()
                server.kill()
                await recorder.wait(Disconnected)
                for _ in range(more):
                    await batch.publish("s.3")
        await nc.flush()
        assert await kept_subjects(nc) == []


async def test_fast_batch_with_a_too_old_first_server() -> None:
    async with no_stream("2.12") as (server, nc):
        pub = await nc.jetstream(timeout=30).fast_publisher().__aenter__()
        publishing = asyncio.create_task(pub.publish("s.1", ttl=60))
        await server.restart()
        for waiting in (publishing, asyncio.ensure_future(pub.publish("s.2"))):
            with pytest.raises(UnsupportedByServer, match=r"fast ingest: nats-server 2\.14 is needed, this is 2\.12"):
                await waiting
        with pytest.raises(UnsupportedByServer):
            await pub.flush()
        await pub.__aexit__(None, None, None)
        assert await kept_subjects(nc) == []


async def test_messages_for_the_first_server_are_in_order() -> None:
    subjects = [f"s.{number:02}" for number in range(20)]
    async with no_stream("2.14") as (server, nc):
        async with nc.jetstream(timeout=30).publisher(auto_msg_id=True) as pub:
            for subject in subjects[::2]:
                await pub.publish(subject)
                after = f"{subject[:-1]}{int(subject[-1]) + 1}"
                await pub.publish(after, expected_last_subject_seq=0, expected_last_subject_seq_subject="s.no")
            await server.restart()
        found = (await nc.jetstream().stream("S")).get_batch()
        assert [message.subject async for message in found] == subjects
