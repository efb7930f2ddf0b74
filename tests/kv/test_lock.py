"""Locks: one holder at a time, who knows when it is not the holder any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import natsproto
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    InvalidSubject,
    LocalProtocolError,
    LockLost,
    PublishUncertain,
    RequestTimeout,
    TtlRefused,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._lock import Lock, LockBlocked
from natsproto.testing import Server
from tests.kit.tasks import cancel_after

LONG = 60.0


async def bucket(jetstream: JetStream) -> KeyValue:
    return await jetstream.create_key_value(bucket="locks", limit_marker_ttl=1, history=5)


async def test_lock_tokens_grow(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    first, second = kv.lock("a", value=b"one"), kv.lock("a", value=b"two")
    token = await first.acquire()
    assert (first.is_held, first.token, (await kv.get("a")).value) == (True, token, b"one")
    assert not await second.try_acquire()
    with pytest.raises(RequestTimeout, match="lock 'a'"):
        await second.acquire(timeout=0.05)
    with pytest.raises(LocalProtocolError, match="already held"):
        await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await first.release()
    async with asyncio.timeout(LONG):
        assert await waiting > token
    assert (first.is_held, second.is_held) == (False, True)
    await second.release()
    await second.release()
    assert (await kv.history("a"))[-1].operation == "PURGE"
    assert await first.try_acquire()
    await first.release()


@pytest.mark.slow
async def test_it_is_renewed_as_long_as_it_is_held(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    async with kv.lock("a", ttl=6) as lock:  # renewed every 2 s, so that a server may stall for some seconds
        async with kv.watch("a") as watcher, asyncio.timeout(LONG):
            entries = [await watcher.next() for _ in range(5)]
        assert [entry.operation for entry in entries] == ["PUT"] * 5
        assert (entries[-1].created - entries[0].created).total_seconds() > 6
        assert lock.token < entries[-1].revision
        assert lock.is_held
        assert len(await kv.history("a")) == 1


@pytest.mark.slow
async def test_lock_expires_when_it_is_not_renewed(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    # A holder that died: its entry is there, and nobody renews it.
    dead = await kv.create("a", b"dead", ttl=1)
    async with asyncio.timeout(LONG), kv.lock("a") as lock:
        assert lock.token > dead


async def test_a_block_that_has_lost_the_lock_is_cancelled(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("a", ttl=1)

    async def work() -> None:
        async with asyncio.timeout(LONG), lock:
            thieves.append(asyncio.create_task(kv.put("a", b"thief")))  # also if the second is over before
            await asyncio.Event().wait()

    thieves: list[asyncio.Task[int]] = []
    with pytest.raises(LockLost) as lost:
        await work()
    await thieves[0]
    assert (lost.value.bucket, lost.value.key, lost.value.token) == ("locks", "a", lock.token)
    assert not lock.is_held
    assert (await kv.get("a")).value == b"thief"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    entered = asyncio.Event()

    async def hold() -> None:
        async with kv.lock("a"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await kv.lock("a").try_acquire()


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_release_frees_the_lock(jetstream: JetStream, turns: int) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("a", ttl=600)

    async def work() -> None:
        async with lock:
            leaving.set()

    leaving = asyncio.Event()
    await cancel_after(turns, leaving, work())
    async with asyncio.timeout(LONG):
        await kv.lock("a", ttl=600).acquire()
        with pytest.raises(RequestTimeout):  # the same object waits for its own release
            await lock.acquire(timeout=0.05)


@pytest.mark.parametrize("turns", range(0, 60, 5))
async def test_cancelled_acquire_frees_the_lock(jetstream: JetStream, turns: int) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("a", ttl=600)
    task = asyncio.create_task(lock.acquire())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(LONG):
        if not task.cancelled():
            await lock.release()
        assert await lock.acquire() > 0, "the same object"
        await lock.release()
        await kv.lock("a", ttl=600).acquire()


@pytest.mark.parametrize("cancel", [False, True], ids=["timeout", "cancel"])
async def test_lock_stored_with_lost_reply_is_freed(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, cancel: bool
) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("a", ttl=600)
    write, lost = lock._write, asyncio.Event()

    async def lose_reply(expected: int) -> int:
        await write(expected)
        lost.set()
        raise PublishUncertain("a", "the reply was lost")

    monkeypatch.setattr(lock, "_write", lose_reply)
    task = asyncio.create_task(lock.acquire(timeout=None if cancel else 0.05))
    if cancel:
        await lost.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), RequestTimeout)
    async with asyncio.timeout(LONG):
        await kv.lock("a", ttl=600).acquire()


@pytest.mark.parametrize("raises", [False, True], ids=["drain", "close"])
async def test_client_end_waits_for_cancelled_release(nats_server: Server, jetstream: JetStream, raises: bool) -> None:
    kv = await bucket(jetstream)

    async def work() -> None:
        async with natsproto.connect(nats_server.url) as nc:
            lock = (await nc.jetstream().key_value("locks")).lock("a", ttl=600)
            await lock.acquire()
            release = asyncio.create_task(lock.release())
            await asyncio.sleep(0)
            release.cancel()
            if raises:
                raise RuntimeError

    with suppress(RuntimeError):
        await work()
    async with asyncio.timeout(LONG):
        await kv.lock("a", ttl=600).acquire()


async def test_lock_token_fences_writes(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("lock.a", ttl=60)
    with pytest.raises(LockLost):
        await lock.put("data", b"0")
    await lock.acquire()
    assert await lock.put("data", b"1") > lock.token
    await _fenced(kv, lock)


@pytest.mark.slow
async def test_the_server_fences_with_the_newest_renewal(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    lock = kv.lock("lock.a", ttl=9)
    await lock.acquire()
    async with kv.watch("lock.a") as watcher, asyncio.timeout(LONG):
        while (await watcher.next()).revision == lock.token:
            pass
    await _fenced(kv, lock)


async def _fenced(kv: KeyValue, lock: Lock) -> None:
    """It is held; when its entry is purged nothing more can be written under it."""
    assert await lock.put("data", b"2") > lock.token + 1
    await kv.purge("lock.a")
    with pytest.raises(LockLost):
        await lock.put("data", b"3")
    assert not lock.is_held
    async with asyncio.timeout(LONG):
        await lock.wait_lost()
    assert (await kv.get("data")).value == b"2"


async def test_what_is_wrong_with_a_lock_is_said_at_once(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    with pytest.raises(InvalidSubject):
        kv.lock("a..b")
    with pytest.raises(ConfigError, match="ttl"):
        kv.lock("a", ttl=0.5)
    with pytest.raises(TtlRefused):
        await kv.lock("a").acquire()


@pytest.mark.parametrize(
    ("ttl", "reason"),
    [(None, "was not written by a lock and has no TTL of its own"), (60, "was not written by a lock")],
)
async def test_lock_tells_of_a_strangers_entry(jetstream: JetStream, ttl: int | None, reason: str) -> None:
    bucket = await jetstream.create_key_value(bucket="B", limit_marker_ttl=5)
    events: list[natsproto.Event] = []
    jetstream.connection.add_listener(events.append)
    revision = await bucket.create("k", b"stranger", ttl=ttl)
    lock = bucket.lock("k", ttl=1)
    for _ in range(3):
        assert not await lock.try_acquire()
    [event] = [event for event in events if isinstance(event, LockBlocked)]
    assert (event.bucket, event.key, event.revision) == ("B", "k", revision)
    assert event.reason == reason
    async with bucket.lock("other", ttl=1):
        assert not await bucket.lock("other", ttl=1).try_acquire()
    assert sum(isinstance(event, LockBlocked) for event in events) == 1


async def _messages_each(nats_server: Server, count: int) -> float:
    """The messages that each of these tasks costs, which are of two clients and all want the same lock."""
    inside: list[int] = []

    async def work(nc: natsproto.Client) -> None:
        kv = await nc.jetstream().key_value("locks")
        async with kv.lock(f"k{count}", ttl=60):
            inside.append(1)
            assert len(inside) == 1
            await nc.flush()
            inside.clear()

    async with natsproto.connect(nats_server.url) as one, natsproto.connect(nats_server.url) as two:
        await asyncio.gather(*(work(nc) for nc in (one, two) * (count // 2)))
        return (one.stats.out_msgs + two.stats.out_msgs) / count


async def test_each_waiter_of_a_lock_costs_the_same(nats_server: Server, jetstream: JetStream) -> None:
    await bucket(jetstream)
    assert await _messages_each(nats_server, 60) < 25  # 6 to 16; 200 if all try at each release


async def test_waiters_of_a_client_get_the_lock_in_turn(jetstream: JetStream) -> None:
    kv = await bucket(jetstream)
    order: list[int] = []

    async def work(number: int) -> None:
        async with kv.lock("a", ttl=60):
            order.append(number)

    holder = kv.lock("a", ttl=60)
    await holder.acquire()
    tasks = [asyncio.create_task(work(number)) for number in range(8)]
    await jetstream.connection.flush()
    for number in (0, 5):  # the first one has a watch, the other one only waits
        tasks[number].cancel()
    with pytest.raises(RequestTimeout, match="lock 'a'"):
        await kv.lock("a", ttl=60).acquire(timeout=0.05)
    await holder.release()
    async with asyncio.timeout(LONG):
        await asyncio.wait(tasks)
    assert order == [1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("turns", range(4))
async def test_waiter_cancelled_with_the_lock_frees_it(
    nats_server: Server, jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    kv, held = await bucket(jetstream), asyncio.Event()
    async with natsproto.connect(nats_server.url) as nc, asyncio.timeout(LONG):
        holder = (await nc.jetstream().key_value("locks")).lock("a", ttl=600)
        await holder.acquire()
        lock = kv.lock("a", ttl=600)
        start_holding = lock._start_holding

        def tell_holding(revision: int, started_at: float) -> None:
            start_holding(revision, started_at)
            held.set()

        monkeypatch.setattr(lock, "_start_holding", tell_holding)
        acquiring = asyncio.create_task(lock.acquire())
        while not (await kv.status()).stream.state.consumer_count:  # it has no watch yet
            await jetstream.connection.flush()
        await holder.release()
        await held.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.wait([acquiring])
        if not acquiring.cancelled():
            await lock.release()
        await kv.lock("a", ttl=600).acquire()


@pytest.mark.parametrize("end", ["drain", "close"])
async def test_waiters_of_a_lock_end_with_their_client(nats_server: Server, jetstream: JetStream, end: str) -> None:
    """The holder is of the same client, so that they have no watch."""
    await bucket(jetstream)
    nc = await natsproto.connect(nats_server.url)
    kv = await nc.jetstream().key_value("locks")
    await kv.lock("a", ttl=600).acquire()
    waiting = [asyncio.create_task(kv.lock("a", ttl=600).acquire(timeout=timeout)) for timeout in (None, None, 600)]
    await nc.flush()
    await getattr(nc, end)()
    async with asyncio.timeout(LONG):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionClosed] * 3
    with pytest.raises(ConnectionClosed):
        await kv.lock("a", ttl=600).acquire()


@pytest.mark.parametrize("first", ["acquire", "try_acquire"])
@pytest.mark.parametrize("second", ["acquire", "try_acquire"])
async def test_a_lock_is_acquired_by_one_task_at_a_time(jetstream: JetStream, first: str, second: str) -> None:
    lock = (await bucket(jetstream)).lock("a", ttl=600)
    calls = [getattr(lock, method)() for method in (first, second)]
    got, refused = await asyncio.gather(*calls, return_exceptions=True)
    assert got == lock.token or got is True
    assert isinstance(refused, LocalProtocolError), refused
    assert "being acquired" in str(refused)
    assert lock.is_held
    await lock.release()
    assert await lock.try_acquire()


@pytest.mark.parametrize("turns", range(6))
async def test_a_waiting_lock_is_not_given_to_another_task(jetstream: JetStream, turns: int) -> None:
    kv = await bucket(jetstream)
    holder, lock = kv.lock("a", ttl=600), kv.lock("a", ttl=600)
    await holder.acquire()
    waiting = asyncio.create_task(lock.acquire())
    await jetstream.connection.flush()
    with pytest.raises(LocalProtocolError, match="being acquired"):
        await lock.try_acquire()
    await holder.release()
    for _ in range(turns):
        await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="object"):
        await lock.try_acquire()
    waiting.cancel()
    await asyncio.wait([waiting])
    async with asyncio.timeout(LONG):
        assert lock.is_held or await lock.try_acquire()  # the cancelled one has left nothing
    await lock.release()
