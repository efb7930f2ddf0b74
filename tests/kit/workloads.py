"""Writers, readers and holders of locks whose calls make a history (see ``history``).

Owns what they do and what the servers have of it at the end. Each workload has streams of its own, which are named in
``STREAMS``, so that faults can be aimed at their leaders.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TypeVar

from natsproto.errors import ApiError, BatchRefused, NatsError, NoStream, PublishFailed
from natsproto.jetstream import JetStream
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream.kv._bucket import KeyValue
from tests.kit.doubts import CURRENT
from tests.kit.history import Call, History, Outcome

T = TypeVar("T")

KEYS = 12
GUARDED = {"guarded": 1, "kept": 5}
"""The history of a bucket that every client writes and deletes."""
WRITES_OF_A_KEY = 40
"""After these a register's key is left for a new one: the bucket's history keeps them all."""
BATCH = 10
SECONDS_OF_A_KEY = 8
"""After these a shared key is left for a new one: all orders of the calls of a key are tried."""
PATIENCE_S = 60.0
"""Seconds after the last fault within which everything has to be as it should."""

STREAMS = {
    "loop": "KV_loop",
    "modify": "KV_modify",
    "batch": "BATCH",
    "window": "WINDOW",
    "fast": "FAST",
    "queue": "QUEUE",
    "lock": "KV_lock",
    "guarded": "KV_guarded",
    "kept": "KV_kept",
    "jobs": "JOBS",
}


class Workloads:
    """Some workloads of ``STREAMS``, on a few clients."""

    def __init__(self, history: History, chance: random.Random, names: list[str]) -> None:
        self.history, self.chance, self.names = history, chance, names
        self.over = asyncio.Event()
        self._numbers: dict[str, int] = defaultdict(int)
        self._rounds: dict[int, int] = defaultdict(int)
        self._keys: dict[str, set[str]] = defaultdict(set)
        self._jobs: dict[int, str] = {}
        """What was in the work queue, by its sequence."""

    async def create(self, js: JetStream) -> None:
        """Create the streams and buckets."""
        for name in self.names:
            if name in ("loop", "modify"):
                await js.create_key_value(bucket=name, num_replicas=3, history=64)
            elif name in GUARDED:
                await js.create_key_value(bucket=name, num_replicas=3, history=GUARDED[name], limit_marker_ttl=60)
            elif name == "lock":
                await js.create_key_value(bucket=name, num_replicas=3, history=5, limit_marker_ttl=60)
            else:
                await js.create_stream(
                    name=STREAMS[name],
                    subjects=[f"{name}.>"],
                    num_replicas=3,
                    allow_direct=True,
                    allow_atomic=True,
                    allow_batched=True,
                    duplicate_window=600,
                    retention="workqueue" if name in ("queue", "jobs") else "limits",
                )

    async def works(self, clients: list[JetStream]) -> list[Coroutine[object, None, None]]:
        """What is to run until ``over`` is set."""
        works: list[Coroutine[object, None, None]] = []
        for name in self.names:
            for number, js in enumerate(clients):
                if name in ("loop", "modify"):
                    bucket = await js.key_value(name)
                    kind = self._loop if name == "loop" else self._modify
                    # Some keys are written by one client only: its expectations are right, whatever it is told.
                    works += [
                        kind(bucket, key) for key in range(KEYS) if key < KEYS / 2 or key % len(clients) == number
                    ]
                elif name == "lock":
                    works.append(self._hold(await js.key_value(name), f"holder {number}"))
                elif name in GUARDED:
                    bucket = await js.key_value(name)
                    works += [self._guard(bucket, key) for key in range(KEYS)]
                    works += [self._meddle(bucket)] if number == 0 else []
                elif name == "jobs":
                    works += [self._batch(js, "JOBS", "jobs.s"), self._take(js)]
                elif name == "queue":
                    works += [self._enqueue(js, number), self._handle(js)]
                elif name == "batch":
                    works += [self._batch(js, "BATCH", "batch.s") for _ in range(4)]
                elif name == "fast":
                    works += [self._fast(js, size) for size in (200, 200, 2, 2, 2, 2)]
                else:
                    works += [self._window(js) for _ in range(2)]
        if "window" in self.names:
            works.append(self._see(clients[0]))
        return works

    def _unique(self, name: str) -> str:
        self._numbers[name] += 1
        return f"{name}-{self._numbers[name]}"

    async def _tracked(self, call: Call, work: Awaitable[object]) -> BaseException | None:
        """Wait, end the call, and return the NatsError."""
        token = CURRENT.set(call)
        try:
            await work
        except NatsError as exc:
            call.end(self.history.clock(), exc)
            return exc
        else:
            call.end(self.history.clock())
            return None
        finally:
            CURRENT.reset(token)

    # ------------------------------------------------------------ key/value

    async def _loop(self, bucket: KeyValue, number: int) -> None:
        """The loop that every program has: read, compute, write if nobody was faster, and again."""
        while not self.over.is_set():
            key = f"k{number}.{self._rounds[number]}"
            try:
                entry = await bucket.get(key, timeout=2)
                old, count, revision = entry.value.decode(), int(entry.value.partition(b" ")[0]), entry.revision
            except KeyError:
                old, count, revision = None, 0, 0
            except NatsError:
                await asyncio.sleep(0.05)
                continue
            if count >= WRITES_OF_A_KEY:
                self._rounds[number] += 1
                continue
            value = f"{count + 1} {self._unique('w')}"
            call = self.history.begin("cas", key, value, old)
            if revision:
                await self._tracked(call, bucket.update(key, value.encode(), revision, timeout=4))
            else:
                await self._tracked(call, bucket.create(key, value.encode(), timeout=4))
            await asyncio.sleep(0.02 * self.chance.random())

    def _shared_key(self, bucket: KeyValue, number: int) -> str:
        """A key that all clients write, for some seconds."""
        key = f"k{number}.{int(self.history.clock() / SECONDS_OF_A_KEY)}"
        self._keys[bucket.bucket].add(key)
        return key

    async def _guard(self, bucket: KeyValue, number: int) -> None:
        """Updates, creates and deletes that expect what was read."""
        while not self.over.is_set():
            key, value = self._shared_key(bucket, number), self._unique("g")
            old, revision = None, 0
            try:
                entry = await bucket.get(key, timeout=2)
                old, revision = entry.value.decode(), entry.revision
            except KeyError:
                pass
            except NatsError:
                await asyncio.sleep(0.05)
                continue
            name = f"{bucket.bucket} {key}"
            if not revision:
                call = self.history.begin("cas", name, value, None)
                await self._tracked(call, bucket.create(key, value.encode(), timeout=10))
            elif self.chance.random() < 0.3:
                call = self.history.begin("cas", name, None, old)
                await self._tracked(call, bucket.delete(key, revision=revision, timeout=10))
            else:
                call = self.history.begin("cas", name, value, old)
                await self._tracked(call, bucket.update(key, value.encode(), revision, timeout=10))
            await asyncio.sleep(0.3 * self.chance.random())

    async def _meddle(self, bucket: KeyValue) -> None:
        """Another client, which writes and deletes whatever is there."""
        while not self.over.is_set():
            key, value = self._shared_key(bucket, self.chance.randrange(KEYS)), self._unique("x")
            if self.chance.random() < 0.5:
                call = self.history.begin("put", f"{bucket.bucket} {key}", value)
                await self._tracked(call, bucket.put(key, value.encode(), timeout=10))
            else:
                call = self.history.begin("put", f"{bucket.bucket} {key}", None)
                await self._tracked(call, bucket.delete(key, timeout=10))
            await asyncio.sleep(0.1 * self.chance.random())

    async def _modify(self, bucket: KeyValue, number: int) -> None:
        """A counter, counted up by kv.modify."""
        key = f"k{number}"
        while not self.over.is_set():
            call = self.history.begin("add", key, self._unique("m"))
            await self._tracked(call, bucket.modify(key, lambda value: b"%d" % (int(value or b"0") + 1), timeout=4))
            await asyncio.sleep(0.02 * self.chance.random())

    async def _hold(self, bucket: KeyValue, name: str) -> None:
        """One holder at a time, each with a higher token than those before."""
        lock = bucket.lock("lock", ttl=2)
        while not self.over.is_set():
            try:
                async with lock:
                    call = self.history.begin("hold", "lock", name, lock.token)
                    try:
                        await asyncio.sleep(0.3 * self.chance.random())
                    finally:
                        call.end(self.history.clock())
            except NatsError:
                pass
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------ publishing

    async def _batch(self, js: JetStream, stream: str, subject: str) -> None:
        """All or nothing."""
        while not self.over.is_set():
            group = self._unique("b")
            call = self.history.begin("batch", stream, group, BATCH)
            await self._tracked(call, self._publish_batch(js, group, subject))
            await asyncio.sleep(0.01 * self.chance.random())

    async def _publish_batch(self, js: JetStream, group: str, subject: str) -> None:
        pause = self.chance.choice([0, 0, 0.01, 0.03])
        async with js.atomic_batch(timeout=4) as batch:
            for index in range(BATCH):
                await batch.publish(subject, f"{group}:{index}".encode())
                await asyncio.sleep(pause)  # so that some batches are in progress whenever a link is cut or healed

    async def _window(self, js: JetStream) -> None:
        """Windows, with ids and without."""
        while not self.over.is_set():
            try:
                async with js.publisher(max_pending=100, auto_msg_id=self.chance.random() < 0.5, timeout=5) as window:
                    for _ in range(200):
                        call = self.history.begin("publish", "WINDOW", self._unique("p"))
                        ack = await window.publish("window.s", call.value.encode())
                        ack.add_done_callback(partial(self._end_of_ack, call))
                        await asyncio.sleep(0.001)
            except NatsError:
                pass
            await asyncio.sleep(0.05)

    def _end_of_ack(self, call: Call, ack: AckFuture) -> None:
        call.end(self.history.clock(), ack._outcome if isinstance(ack._outcome, NatsError) else None)

    async def _fast(self, js: JetStream, size: int) -> None:
        """Fast ingest, with ids and without."""
        while not self.over.is_set():
            calls: list[Call] = []
            error: NatsError | None = None
            try:
                async with js.fast_publisher(timeout=5, auto_msg_id=self.chance.random() < 0.5) as fast:
                    for _ in range(size):
                        calls.append(self.history.begin("publish", "FAST", self._unique("f")))
                        await fast.publish("fast.s", calls[-1].value.encode())
                        await asyncio.sleep(0.001)
            except NatsError as exc:
                error = exc
            self._end_of_fast(calls, error)
            await asyncio.sleep(0.05)

    def _end_of_fast(self, calls: list[Call], error: NatsError | None) -> None:
        """What the publisher tells of each message; what it does not name is acknowledged only if it names others."""
        now = self.history.clock()
        if isinstance(error, PublishFailed):
            failures = {failure.number: failure.error for failure in error.failures}
            for number, call in enumerate(calls, 1):
                call.end(now, failures.get(number))
            calls[-1].outcome = Outcome.UNKNOWN if len(calls) not in failures else calls[-1].outcome
        elif error is None:
            for call in calls:
                call.end(now)
        elif calls and isinstance(error, NoStream | BatchRefused | ApiError):  # about the first message
            calls[0].end(now, error)

    # ------------------------------------------------------------ queue and reader

    async def _enqueue(self, js: JetStream, writer: int) -> None:
        while not self.over.is_set():
            call = self.history.begin("enqueue", "QUEUE", self._unique("q"))
            publishing = js.publish(f"queue.{writer}", call.value.encode(), msg_id=call.value, timeout=4)
            await self._tracked(call, publishing)
            await asyncio.sleep(0.01)

    async def _handle(self, js: JetStream) -> None:
        async def handle(message: JsMessage) -> None:
            self.history.begin("handle", "QUEUE", message.data.decode()).end(self.history.clock())

        await self._work_off(js, "QUEUE", handle)

    async def _take(self, js: JetStream) -> None:
        async def handle(message: JsMessage) -> None:
            self._jobs[message.seq] = message.data.decode()

        await self._work_off(js, "JOBS", handle)

    async def _work_off(self, js: JetStream, name: str, handle: Callable[[JsMessage], Awaitable[None]]) -> None:
        """Handle the messages of a work queue, at the end until it is empty."""
        stream = await js.stream(name)
        consumer = await stream.create_consumer(durable_name="workers", ack_wait=5, num_replicas=3)
        async with consumer.consume(handle, concurrency=8):
            await self.over.wait()
            deadline = self.history.clock() + PATIENCE_S
            while self.history.clock() < deadline:
                try:
                    if not (await stream.info()).state.messages:
                        break
                except NatsError:
                    pass
                await asyncio.sleep(0.2)

    async def _see(self, js: JetStream) -> None:
        """An ordered reader until the end of the stream."""
        stream = await js.stream("WINDOW")
        async with stream.ordered_consumer() as ordered, ordered.messages() as messages:
            async for message in messages:
                call = self.history.begin("seen", message.subject, message.data.decode(), message.seq)
                call.end(self.history.clock())
                if self.over.is_set():
                    break

    # ------------------------------------------------------------ the end

    async def finish(self, js: JetStream) -> None:
        """Record what the servers have."""
        for name in self.names:
            if name in ("lock", "queue"):
                continue
            if name == "jobs":
                self.history.final("stored JOBS", list(self._jobs.values()))
                continue
            if name in GUARDED:
                bucket = await insist(lambda name=name: js.key_value(name))  # type: ignore[misc]
                for key in sorted(self._keys[name]):
                    self.history.final(f"register {name} {key}", await insist(partial(self._value, bucket, key)))
                continue
            stored = await insist(lambda name=name: self._stored(js, STREAMS[name]))  # type: ignore[misc]
            if name in ("loop", "modify"):
                for key, values in stored.items():
                    key = key.removeprefix(f"$KV.{name}.")
                    if name == "loop":
                        self.history.final(f"stored {key}", values)
                        self.history.final(f"register {key}", values[-1])
                    else:
                        self.history.final(f"count {key}", int(values[-1]))
            else:
                self.history.final(f"stored {STREAMS[name]}", [value for some in stored.values() for value in some])

    async def _value(self, bucket: KeyValue, key: str) -> str | None:
        try:
            return (await bucket.get(key)).value.decode()
        except KeyError:
            return None

    async def _stored(self, js: JetStream, name: str) -> dict[str, list[str]]:
        stored: dict[str, list[str]] = defaultdict(list)
        stream = await js.stream(name)
        last = (await stream.info()).state.last_seq
        async for message in stream.get_batch():
            stored[message.subject].append(message.data.decode())
            if message.seq >= last:
                return stored
        raise NatsError(f"a replica of {name} that lacks messages up to {last}")


async def insist(call: Callable[[], Coroutine[object, None, T]]) -> T:
    """The result, once the cluster gives one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except NatsError:
                await asyncio.sleep(0.2)


def contradictions(history: History) -> tuple[int, int]:
    """Stored writes that met a refusal below what their client knew, or a refused commit; and those told as a success.

    Of a counter only those that were told or are uncertain are known, and the latter count as stored.
    """
    stored = {
        value.partition(":")[0]
        for call in history.of("final")
        if call.key.startswith("stored ")
        for value in call.value
    }
    met = [
        call
        for call in history.of("cas", "add", "batch")
        if {"STALE", "COMMIT"} & set(call.doubts) and (call.kind == "add" or call.value in stored)
    ]
    return len(met), sum(call.outcome is Outcome.OK for call in met)
