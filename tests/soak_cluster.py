"""A few minutes of everything JetStream has, on three servers that are killed, frozen and made to hand over.

Not a test of the suite: ``make soak-cluster`` (``ARGS=--minutes=10``). Ends with 1 when anything was acknowledged and
is not there, is there twice, came out of order, or was never told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TypeVar

import natsproto
from natsproto import Message
from natsproto._client import Client
from natsproto.errors import NatsError, ObjectNotFound
from natsproto.jetstream import JetStream
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._stream import Stream
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.testing import Cluster, run_cluster

T = TypeVar("T")

WRITERS = 3
HOLDERS = 3
OBJECTS = 4
PATIENCE = 60.0
"""Seconds after the last outage within which everything has to be as it should."""


class Book:
    """What was done, what was refused in words, and what is wrong."""

    def __init__(self, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.over = asyncio.Event()
        self.chance = random.Random(seed)
        self.acked: set[bytes] = set()
        """Payloads that a stream has acknowledged; each is published once."""
        self.groups: Counter[bytes] = Counter()
        """Batches that were acknowledged, and how many messages each has."""

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Counts what is done in the block, or with which error it was refused."""
        try:
            yield
        except NatsError as exc:
            self.refused[f"{what}: {type(exc).__name__}"] += 1
        else:
            self.done[what] += 1


async def _publish(js: JetStream, book: Book, writer: int) -> None:
    """One message after the other, each with an id and until it is acknowledged."""
    number = 0
    while not book.over.is_set():
        payload = b"one %d %d" % (writer, number)
        with book.trying("publish"):
            await js.publish("s.one", payload, msg_id=payload.decode(), retry_attempts=-1, timeout=3)
            book.acked.add(payload)
            number += 1
        await asyncio.sleep(0.002)


async def _window(js: JetStream, book: Book, writer: int) -> None:
    """Windows, without ids and with them."""
    number = 0
    while not book.over.is_set():
        with book.trying("window"):
            async with js.publisher(max_pending=100, auto_msg_id=bool(number % 2), timeout=10) as window:
                for _ in range(300):
                    payload = b"window %d %d" % (writer, number)
                    number += 1
                    ack = await window.publish("s.window", payload)
                    ack.add_done_callback(partial(_note, book, payload))
                    await asyncio.sleep(0)
        await asyncio.sleep(0.05)


def _note(book: Book, payload: bytes, ack: AckFuture) -> None:
    if not isinstance(ack.outcome, NatsError):
        book.acked.add(payload)


async def _batches(js: JetStream, book: Book, writer: int) -> None:
    """All or nothing."""
    number = 0
    while not book.over.is_set():
        group, number = b"batch %d %d" % (writer, number), number + 1
        with book.trying("batch"):
            async with js.atomic_batch(timeout=3) as batch:
                for index in range(10):
                    await batch.publish("s.batch", b"%b:%d" % (group, index))
            book.groups[group] = 10
        await asyncio.sleep(0.02)


async def _ingest(js: JetStream, book: Book, writer: int) -> None:
    """Fast ingest: what is flushed is stored."""
    number = 0
    while not book.over.is_set():
        sent = []
        with book.trying("ingest"):
            async with js.fast_publisher(timeout=5) as fast:
                for _ in range(200):
                    payload, number = b"fast %d %d" % (writer, number), number + 1
                    sent.append(payload)
                    await fast.publish("s.fast", payload)
            book.acked.update(sent)
        await asyncio.sleep(0.05)


class Readers:
    """A durable consumer that acknowledges, and an ordered one: both have to see everything."""

    def __init__(self, stream: Stream, book: Book) -> None:
        self.stream, self.book = stream, book
        self.handled: Counter[int] = Counter()
        self.ordered = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Readers:
        consumer = await self.stream.create_consumer(durable_name="all", ack_wait=5, num_replicas=3)

        async def handle(message: JsMessage) -> None:
            self.handled[message.seq] += 1
            if self.book.chance.random() < 0.01:
                raise ValueError("once in a while")

        self.consumption = consumer.consume(handle, concurrency=8, error_cb=lambda message, error: None)
        await self.consumption.__aenter__()
        self._tasks.append(asyncio.create_task(self._in_order()))
        return self

    async def _in_order(self) -> None:
        async with self.stream.ordered_consumer() as ordered, ordered.messages() as messages:
            async for message in messages:
                if message.seq != self.ordered + 1:
                    self.book.wrong.append(f"ordered: {message.seq} behind {self.ordered}")
                self.ordered = message.seq

    async def __aexit__(self, *_: object) -> None:
        await self.consumption.stop()
        for task in self._tasks:
            task.cancel()
        for end in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                self.book.wrong.append(f"the ordered reader ended with {end!r}")


class Count:
    """A number that several writers count up by compare and set, one that they guard by a lock, and who watches."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.sure = self.unsure = 0
        self.holder = ""
        self.token = 0
        self.seen: dict[str, bytes] = {}

    async def count(self, bucket: KeyValue, writer: int) -> None:
        """Never counts twice, and never less than was acknowledged."""
        while not self.book.over.is_set():
            with self.book.trying("count"):
                entry = await bucket.get("count", timeout=2)
                self.unsure += 1
                await bucket.update("count", b"%d" % (int(entry.value) + 1), entry.revision, timeout=2)
                self.sure += 1
            with self.book.trying("put"):
                await bucket.put(f"key.{self.book.chance.randrange(50)}", b"%d" % writer, timeout=2)
            with self.book.trying("delete"):
                await bucket.delete(f"key.{self.book.chance.randrange(50)}", timeout=2)
            await asyncio.sleep(0.01)

    async def hold(self, bucket: KeyValue, name: str) -> None:
        """One holder at a time, each with a higher token than those before."""
        lock = bucket.lock("lock", ttl=2)
        while not self.book.over.is_set():
            with self.book.trying("lock"):
                async with lock:
                    if self.holder or lock.token <= self.token:
                        self.book.wrong.append(
                            f"lock: {name} with {lock.token} beside {self.holder!r} with {self.token}"
                        )
                    self.holder, self.token = name, lock.token
                    try:
                        await lock.put("guarded", name.encode(), timeout=2)
                        await asyncio.sleep(self.book.chance.random())
                    finally:
                        self.holder = ""
            await asyncio.sleep(0.05)

    async def watch(self, bucket: KeyValue) -> None:
        """A mirror of the bucket, made of what changes."""
        revision = 0
        async with bucket.watch() as watcher:
            async for entry in watcher:
                if entry.revision <= revision:
                    self.book.wrong.append(f"watch: revision {entry.revision} behind {revision}")
                revision = entry.revision
                if entry.is_deleted:
                    self.seen.pop(entry.key, None)
                else:
                    self.seen[entry.key] = entry.value


class Objects:
    """Objects that are written over, and read meanwhile."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.written: dict[str, set[str]] = {}
        """Digests of what may stand under a name."""

    async def put(self, store: ObjectStore, name: str) -> None:
        """Writes it over and over."""
        while not self.book.over.is_set():
            data = self.book.chance.randbytes(self.book.chance.randrange(1, 400_000))
            self.written.setdefault(name, set()).add(hashlib.sha256(data).hexdigest())
            with self.book.trying("object put"):
                await store.put(name, data, timeout=3)
            await asyncio.sleep(0.1)

    async def get(self, store: ObjectStore, name: str) -> None:
        """What is read is whole, and was written."""
        while not self.book.over.is_set():
            with self.book.trying("object get"), contextlib.suppress(ObjectNotFound):
                self.check(name, await store.get_bytes(name, timeout=3))
            await asyncio.sleep(0.1)

    def check(self, name: str, data: bytes) -> None:
        """Whether this was written under the name."""
        if hashlib.sha256(data).hexdigest() not in self.written[name]:
            self.book.wrong.append(f"object {name}: {len(data)} bytes that nobody wrote")


async def _request(nc: Client, book: Book, writer: int) -> None:
    number = 0
    while not book.over.is_set():
        payload, number = b"%d %d" % (writer, number), number + 1
        with book.trying("request"):
            if (await nc.request("echo", payload, timeout=2)).data != payload:
                book.wrong.append("a reply of somebody else")
        await asyncio.sleep(0.005)


async def _trouble(cluster: Cluster, js: JetStream, book: Book) -> None:
    """One server at a time, so that two are left."""
    chance = book.chance
    while not book.over.is_set():
        await asyncio.sleep(4 * chance.random())
        server = chance.choice(cluster.servers)
        kind = chance.choice(["kill", "kill", "freeze", "stop", "step down"])
        book.done[f"outage: {kind}"] += 1
        if kind == "step down":
            with book.trying("step down"):
                await js.admin.step_down_stream_leader(chance.choice(["S", "KV_k", "OBJ_o"]), timeout=5)
            continue
        if kind == "freeze":
            server.freeze()
            await asyncio.sleep(5 * chance.random())
            server.thaw()
        elif kind == "kill":
            server.kill()
            await asyncio.sleep(3 * chance.random())
            await server.restart()
        else:
            await server.restart()
        await cluster.ready()


async def _eventually(what: str, check: Callable[[], bool], book: Book) -> None:
    """Notes it as wrong when it is not so within PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > end:
            book.wrong.append(f"{what}: not within {PATIENCE:g} s after the last outage")
            return
        await asyncio.sleep(0.1)


async def _insist(call: Callable[[], Coroutine[object, None, T]]) -> T:
    """The result, once the cluster gives one."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except NatsError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)


async def soak(minutes: float, seed: int) -> Book:
    """Runs the mix for so many minutes and returns what happened."""
    book = Book(seed)
    async with run_cluster(3) as cluster, contextlib.AsyncExitStack() as clients:

        async def client(name: str) -> Client:
            nc = natsproto.connect(cluster.urls, name=name, reconnect_wait=0.05, ping_interval=1, connect_timeout=2)
            return await clients.enter_async_context(nc)

        def echo(message: Message) -> Awaitable[None]:
            return message.respond(message.data)

        writer, reader, third = [await client(name) for name in ("writer", "reader", "third")]
        third.subscribe("echo", queue="q", cb=echo)
        reader.subscribe("echo", queue="q", cb=echo)
        js = writer.jetstream(timeout=10)
        await js.create_stream(
            name="S",
            subjects=["s.>"],
            num_replicas=3,
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
            duplicate_window=600,
        )
        await js.create_key_value(bucket="k", num_replicas=3, history=5, limit_marker_ttl=60)
        await js.create_object_store(bucket="o", num_replicas=3)
        bucket, store = await js.key_value("k"), await js.object_store("o")
        await bucket.put("count", b"0")
        count, objects = Count(book), Objects(book)
        read = await reader.jetstream(timeout=10).key_value("k")
        watching = asyncio.create_task(count.watch(read))
        async with (
            Readers(await reader.jetstream(timeout=10).stream("S"), book) as readers,
            read.cache() as cache,
        ):
            works: list[Coroutine[object, None, None]] = [_trouble(cluster, third.jetstream(), book)]
            for number in range(WRITERS):
                works += [kind(js, book, number) for kind in (_publish, _window, _batches, _ingest)]
                works += [count.count(bucket, number), _request(writer, book, number)]
            for number in range(HOLDERS):
                nc = (writer, reader, third)[number % 3]
                works.append(count.hold(await nc.jetstream(timeout=5).key_value("k"), f"holder {number}"))
            for number in range(OBJECTS):
                works += [objects.put(store, f"object {number}"), objects.get(store, f"object {number}")]
            tasks = [asyncio.create_task(work) for work in works]
            await asyncio.wait(tasks, timeout=minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
            book.over.set()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(end, BaseException):
                    book.wrong.append(f"a worker ended with {end!r}")
            await cluster.ready()
            await _verify(js, book, readers, count, bucket, objects, store)
            await _eventually("cache", lambda: {key: cache[key] for key in cache} == count.seen, book)
        watching.cancel()
        await asyncio.wait((watching,))
        if not watching.cancelled():
            book.wrong.append(f"the watch ended with {watching.exception()!r}")
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        book.wrong.append(f"tasks left: {left}")
    return book


async def _verify(
    js: JetStream, book: Book, readers: Readers, count: Count, bucket: KeyValue, objects: Objects, store: ObjectStore
) -> None:
    stream = await _insist(lambda: js.stream("S"))
    info = await _insist(stream.info)

    async def everything() -> list[bytes]:
        return [message.data async for message in stream.get_batch()]

    stored = Counter(await _insist(everything))
    book.done["stored"] = sum(stored.values())
    if lost := book.acked - stored.keys():
        book.wrong.append(f"acknowledged and lost: {sorted(lost)[:5]} of {len(lost)}")
    if twice := [payload for payload, times in stored.items() if times > 1]:
        book.wrong.append(f"stored twice: {sorted(twice)[:5]} of {len(twice)}")
    groups = Counter(payload.rpartition(b":")[0] for payload in stored if payload.startswith(b"batch"))
    if torn := [group for group, size in groups.items() if size != 10]:
        book.wrong.append(f"batches torn: {torn[:5]}")
    if missing := book.groups.keys() - groups.keys():
        book.wrong.append(f"batches acknowledged and lost: {sorted(missing)[:5]}")
    await _eventually("ordered reader", lambda: readers.ordered == info.state.last_seq, book)
    every = range(info.state.first_seq, info.state.last_seq + 1)
    await _eventually("durable consumer", lambda: all(seq in readers.handled for seq in every), book)
    book.done["handled twice"] = sum(readers.handled.values()) - len(readers.handled)

    value = int((await _insist(lambda: bucket.get("count"))).value)
    if not count.sure <= value <= count.unsure:
        book.wrong.append(f"count: {value}, acknowledged {count.sure}, tried {count.unsure}")

    async def held() -> dict[str, bytes]:
        keys = [key async for key in bucket.keys()]  # noqa: SIM118  # no mapping
        return {key: (await bucket.get(key)).value for key in keys}

    there = await _insist(held)
    there.pop("lock", None)
    await _eventually(
        "watch", lambda: {key: value for key, value in count.seen.items() if key != "lock"} == there, book
    )
    for name in objects.written:
        objects.check(name, await _insist(lambda name=name: store.get_bytes(name)))  # type: ignore[misc]


def main() -> int:
    """Runs it and reports; 1 when something is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=4.0, help="how long (default 4)")
    arguments.add_argument("--seed", type=int, default=1, help="what the chances are drawn from (default 1)")
    given = arguments.parse_args()
    for name in ("natsproto", "asyncio"):  # outages are what this is about
        logging.getLogger(name).setLevel(logging.CRITICAL)
    book = asyncio.run(soak(given.minutes, given.seed))
    print(f"done: {dict(book.done.most_common())}")
    print(f"refused in words: {dict(book.refused.most_common())}")
    for fault in book.wrong:
        print(f"WRONG: {fault}")
    return 1 if book.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
