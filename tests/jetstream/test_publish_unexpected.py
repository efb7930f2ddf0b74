"""A bug in what goes on behind a publisher: nobody waits for ever, all who publish hear of it, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from natsproto._core.outbox import Outbox
from natsproto.errors import JetStreamError, NatsError, PublishFailed, PublishUncertain
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.fast.fast_batch import FastPublisher
from natsproto.jetstream._publish.fast.fast_batch_state import FastBatchState
from natsproto.jetstream._publish.publish_window import PublishWindow
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.testing._server import Server

LONG = 20.0


class Bug(Exception):
    """Nobody foresees this one."""


def stumble_once(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> asyncio.Event:
    """The next call of the method raises a Bug; tells when that has happened."""
    right, stumbled = getattr(where, name), asyncio.Event()

    def stumble(*args: object, **fields: object) -> object:
        if stumbled.is_set():
            return right(*args, **fields)
        stumbled.set()
        raise Bug("made by the test")

    monkeypatch.setattr(where, name, stumble)
    return stumbled


def is_told(error: BaseException | None) -> None:
    assert type(error) is JetStreamError
    assert "publishing ended because of a bug" in str(error)
    assert "Bug('made by the test')" in str(error)
    assert isinstance(error.__cause__, Bug)
    assert error.__cause__.__traceback__ is not None


async def is_in_doubt(waiting: Awaitable[object]) -> None:
    """It may be stored, or not, and the bug is why nobody knows."""
    with pytest.raises(PublishUncertain, match="because of a bug") as caught:
        await waiting
    is_told(caught.value.__cause__)


async def raises_it(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(JetStreamError) as caught:
        await call()
    is_told(caught.value)


async def leave(pub: Publisher | FastPublisher) -> None:
    await pub.__aexit__(None, None, None)


async def create_batched(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="S", subjects=["s"], storage="memory", allow_batched=True)


# ---------------------------------------------------------------- windows


async def test_bug_in_the_timer_of_a_window(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_batched(jetstream)
    async with asyncio.timeout(LONG):
        pub = await jetstream.publisher(max_pending=2, timeout=5, auto_msg_id=True).__aenter__()
        await (await pub.publish("s"))
        nats_server.freeze()
        futures = [await pub.publish("s"), await pub.publish("s")]
        no_room = asyncio.create_task(pub.publish("s"))
        flushing = asyncio.create_task(pub.flush())
        await asyncio.sleep(0)
        stumble_once(monkeypatch, PublishWindow, "_expire")
        for future in futures:
            await is_in_doubt(future)
        for call in (lambda: no_room, lambda: flushing, lambda: pub.publish("s"), pub.flush, lambda: leave(pub)):
            await raises_it(call)
        nats_server.thaw()


async def test_bug_leaves_uncertain_messages_at_the_end(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_batched(jetstream)
    async with asyncio.timeout(LONG):
        pub = await jetstream.publisher(timeout=5).__aenter__()
        await (await pub.publish("s"))
        nats_server.freeze()
        await pub.publish("s", b"22")
        stumble_once(monkeypatch, PublishWindow, "_expire")
        with pytest.raises(PublishFailed) as left:
            await leave(pub)
        nats_server.thaw()
    assert [(failed.number, failed.size) for failed in left.value.failures] == [(2, 2)]
    assert isinstance(left.value.failures[0].error, PublishUncertain)
    is_told(left.value.failures[0].error.__cause__)


async def test_bug_in_the_pause_of_a_window(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stumble_once(monkeypatch, PublishWindow, "_send_waiting")
    async with asyncio.timeout(LONG):
        pub = await jetstream.publisher(retry_wait=0.01).__aenter__()
        future = await pub.publish("nobody")
        await raises_it(lambda: future)
        await raises_it(lambda: leave(pub))


async def test_bug_in_reading_acks_ends_the_window(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_batched(jetstream)
    async with asyncio.timeout(LONG):
        pub = await jetstream.publisher(timeout=5).__aenter__()
        stumbled = stumble_once(monkeypatch, PublishWindow, "_settle")
        future = await pub.publish("s")
        await stumbled.wait()
        await is_in_doubt(future)
        await raises_it(lambda: pub.publish("s"))
        await raises_it(lambda: leave(pub))
    assert jetstream._connection.stats.reconnects == 0


async def test_bug_in_a_window_that_loses_its_connection(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_batched(jetstream)
    async with asyncio.timeout(LONG):
        pub = await jetstream.publisher(timeout=5).__aenter__()
        stumbled = stumble_once(monkeypatch, Outbox, "take_back")
        await jetstream._connection.reconnect()
        await stumbled.wait()
        await raises_it(lambda: pub.publish("s"))
        await raises_it(lambda: leave(pub))
    assert (await jetstream.publish("s")).seq == 1


# ---------------------------------------------------------------- fast ingest


async def test_bug_in_the_timer_of_a_fast_batch(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_batched(jetstream)
    async with asyncio.timeout(LONG), jetstream.fast_publisher(flow=1, outstanding=2, timeout=2) as pub:
        await pub.publish("s")
        await pub.flush()
        nats_server.freeze()
        publishing = asyncio.create_task(publish_all(pub))
        flushing = asyncio.create_task(pub.flush())
        stumble_once(monkeypatch, FastBatchState, "on_tick")
        reported = await asyncio.gather(publishing, flushing, return_exceptions=True)
        nats_server.thaw()
        first, second = sorted(reported, key=lambda error: not isinstance(error, PublishFailed))
        assert isinstance(first, PublishFailed)
        for failed in first.failures:
            is_told(failed.error.__cause__ if isinstance(failed.error, PublishUncertain) else failed.error)
        assert isinstance(second, NatsError)
        is_told(second)
        await raises_it(lambda: pub.publish("s"))
        await raises_it(pub.flush)


async def publish_all(pub: FastPublisher) -> None:
    for _ in range(10):
        await pub.publish("s")


async def test_bug_in_a_fast_publishers_pause_is_reported(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumble_once(monkeypatch, FastBatchState, "on_pause_end")
    async with asyncio.timeout(LONG), jetstream.fast_publisher(retry_wait=0.01) as pub:
        await raises_it(lambda: pub.publish("nobody"))


@pytest.mark.parametrize("name", ["on_reply", "on_reconnect"])
async def test_bug_in_reading_acks_ends_the_fast_batch(
    jetstream: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_batched(jetstream)
    connection = jetstream._connection
    async with asyncio.timeout(LONG):
        pub = await jetstream.fast_publisher(timeout=5).__aenter__()
        stumbled = stumble_once(monkeypatch, FastBatchState, name)
        publishing = asyncio.create_task(pub.publish("s"))
        if name == "on_reconnect":
            await publishing
            await connection.reconnect()
        await stumbled.wait()
        if name == "on_reply":
            await is_in_doubt(publishing)
            await raises_it(pub.flush)
        else:
            assert await publishing == 1
            with pytest.raises(PublishFailed, match="Bug") as left:
                await leave(pub)
            is_told(left.value.failures[0].error.__cause__)
    assert connection.stats.reconnects == (name == "on_reconnect")
    assert (await jetstream.publish("s")).stream == "S"
