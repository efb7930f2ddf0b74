"""Locks, also for leader election: a key with a TTL that its holder renews (ADR-48).

Owns one tenure: the revision of the key, the time until which it is held, and its renewals. A holder that cannot renew
considers the lock lost before another client can get it: it counts from the start of a renewal, the server from the
time when it was stored.

The waiters of one client for one lock take turns, from acquiring until the lock was released or lost. So at most one of
them has a watch of the key, and none while another one of this client holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.deadline import Backoff
from natsproto._core.events import Event
from natsproto._durations import seconds
from natsproto.errors._base import is_transient
from natsproto.jetstream._publish.headers import TTL_HEADER, MessageArgs
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream.kv._entry import OPERATION_HEADER, BucketStream, KeyValueEntry, Operation
from natsproto.jetstream.kv._watch import watch
from natsproto.protocol.frames import Payload, as_bytes

LOCK_ID_HEADER = "Natsproto-Lock"
"""Header that identifies the holder, independent of the value."""
RENEWALS_PER_TTL = 3
"""Renewals within one TTL: two may fail."""
LOCK_RETRY_INTERVAL_S, MAX_LOCK_RETRY_INTERVAL_S = 0.1, 0.5
"""Seconds after which a failed attempt is repeated, at first and at most."""

_turns: WeakValueDictionary[tuple[Connection, str, str, str], asyncio.Lock] = WeakValueDictionary()
"""Of those that wait, by client, API prefix, bucket and key."""


class LockBlocked(Event):
    """A lock waits for an entry that no lock of natsproto has written, or that does not expire: if its writer is gone,
    somebody has to delete the key. Emitted once for a ``revision``.
    """

    bucket: str
    key: str
    """The name of the lock."""
    revision: int
    reason: str
    """Why the entry may stay for ever."""

    level = logging.WARNING
    line = "lock %(key)r of bucket %(bucket)r waits for revision %(revision)d of its key, which %(reason)s"


class Lock:
    """A lock on a key of a bucket. Created by ``kv.lock``; use it with ``async with``, or call ``acquire`` and
    ``release``.

    At most one client holds it, as far as the clocks of the servers agree, but a process that was paused may not know
    yet that it has lost the lock. Protect critical writes: ``token`` is a fencing token that grows with every holder,
    and ``put`` writes another key of the bucket only if the lock is still held.

    When the lock is lost within a block, the block is cancelled and LockLost is raised. A lock can be acquired again,
    by one task at a time. An outage shorter than the TTL does no harm.
    """

    def __init__(self, bucket: BucketStream[bytes], key: str, ttl: Duration, value: Payload) -> None:
        stored_key = bucket.subjects.encode_key(key)
        self._bucket, self._key, self._value = bucket, key, as_bytes(value)
        self._check_loop = bucket.api.connection._check_loop
        self._ttl = seconds("ttl", ttl)
        if self._ttl < 1:
            raise errors.ConfigError("ttl", ttl, "must be at least one second")
        self._loop = asyncio.get_running_loop()
        self._id = {LOCK_ID_HEADER: bucket.api.connection._runtime.new_id()}
        self._args: MessageArgs = {}  # of its writes, once the server is known to understand them
        self._request_timeout = min(bucket.api.timeout, self._ttl / RENEWALS_PER_TTL)
        self._token = self._revision = 0  # revision: of the last renewal, 0 when it is not held
        turn_key = (bucket.api.connection, bucket.api.prefix, bucket.bucket, stored_key)
        self._turn = _turns.setdefault(turn_key, asyncio.Lock())
        self._is_acquiring = self._has_turn = False
        self._reported = 0  # the last revision of a LockBlocked
        self._write_lock = asyncio.Lock()  # a write that names the revision must not overlap with one that changes it
        self._renew_task: asyncio.Task[None] | None = None
        self._release_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._block_task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False

    # ---------------------------------------------------------------- properties

    @property
    def key(self) -> str:
        """The name of the lock."""
        return self._key

    @property
    def is_held(self) -> bool:
        """True from acquiring it until it is released or lost."""
        return self._revision > 0

    @property
    def token(self) -> int:
        """The fencing token: the revision of the last acquisition, 0 if there was none."""
        return self._token

    async def wait_lost(self) -> None:
        """Wait until the lock is no longer held. Cancelling ends the wait."""
        self._check_loop()
        if self._revision:
            await self._lost.wait()

    # ---------------------------------------------------------------- acquiring and releasing

    async def acquire(self, *, timeout: Duration | None = None) -> int:
        """Wait until the lock is free, at most ``timeout`` seconds (None: forever), and acquire it; return its
        ``token``.

        LocalProtocolError when this object holds it already, or acquires it in another task; RequestTimeout when it was
        not free in time; TtlRefused when the bucket has no ``limit_marker_ttl``; UnsupportedByServer before server
        2.11; and the errors of ``KeyValue.create``, except that it waits for the end of an outage. ConnectionClosed
        when the client is closed, also while it waits. After cancelling and after the timeout, the lock is free as soon
        as the server has answered: it is released in the background, and ``drain`` and ``close`` wait for that. In an
        outage it expires.

        Args:
            timeout: Seconds to wait for the lock; None: no limit.
        """
        wait = None if timeout is None else seconds("timeout", timeout)
        expiry = asyncio.timeout(wait)
        try:
            with self._acquisition():
                async with expiry:
                    return await self._acquire_in_turn()
        except TimeoutError:
            if not expiry.expired():
                raise
            raise errors.RequestTimeout(
                f"acquire {self._description}", wait or 0.0, missing="release by its holder"
            ) from None

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free. Raises the errors of ``acquire``, and in an outage those of
        ``KeyValue.create``.

        LocalProtocolError when this object holds it already, or acquires it in another task. StreamWentBack when the
        server has lost the end of the bucket, so that the token would not be above the last one of this object: the
        lock is released then.
        """
        with self._acquisition():
            return await self._try_acquire()

    async def release(self) -> None:
        """Release the lock, so that others can get it before it expires. Never raises: a lock that cannot be released
        now expires.

        Cancelling ends only the wait: it is released in the background, and ``drain`` and ``close`` wait for that.
        """
        self._check_loop()
        if self._revision:
            await asyncio.wait((self._start_release(),))

    async def put(self, key: str, value: Payload, *, timeout: Duration | None = None) -> int:
        """Write another key of the bucket if the lock is still held, which the server checks; return the revision.

        LockLost when it is not held. Otherwise as ``KeyValue.put``.

        Args:
            key: The key to write while the lock is held.
            value: The bytes to store under it, if the lock is still held.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket = self._bucket
        async with self._write_lock:
            if not self._revision:
                raise errors.LockLost(self._bucket.bucket, self._key, self._token)
            args = MessageArgs(
                expected_last_subject_seq=self._revision,
                expected_last_subject_seq_subject=bucket.subjects.origin_prefix + bucket.subjects.encode_key(self._key),
            )
            try:
                return await bucket.write_if(key, as_bytes(value), args, timeout)
            except errors.WrongLastSequence as exc:
                last = await self._last_entry()
                if last is None or not self._is_mine(last):
                    self._lose()
                    raise errors.LockLost(self._bucket.bucket, self._key, self._token) from exc
                self._revision = last.revision
        return await self.put(key, value, timeout=timeout)

    async def __aenter__(self) -> Lock:
        await self.acquire()
        task = asyncio.current_task()
        assert task is not None
        self._block_task, self._cancelling, self._cancelled = task, task.cancelling(), False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._check_loop()
        task, self._block_task = self._block_task, None
        lost = not self._revision
        await self.release()
        if self._cancelled and task is not None and task.uncancel() > self._cancelling:
            return  # it was also cancelled by others
        if lost and (kind is None or (self._cancelled and kind is asyncio.CancelledError)):
            raise errors.LockLost(self._bucket.bucket, self._key, self._token) from exc

    # ---------------------------------------------------------------- in the background

    def _start_release(self) -> asyncio.Task[None]:
        release = self._release_later(self._release(self._revision, self._renew_task))
        self._end()
        return release

    def _release_later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._release_task = self._bucket.api.connection._cleanups.start(work)
        return self._release_task

    async def _release(self, revision: int, renew_task: asyncio.Task[None] | None) -> None:
        if renew_task is not None:
            await asyncio.wait((renew_task,))
        try:
            async with self._write_lock:
                try:
                    await self._purge(revision)
                except errors.WrongRevision:  # the last renewal was stored, but its reply was lost
                    await self._purge_mine()
        except errors.NatsError:
            return

    @contextmanager
    def _acquisition(self) -> Iterator[None]:
        """One at a time: it must not end the tenure that another one has begun."""
        self._check_loop()
        if self._revision or self._is_acquiring:
            state = "already held" if self._revision else "being acquired"
            raise errors.LocalProtocolError(
                f"{self._description} is {state} by this object: create another one with kv.lock"
            )
        self._is_acquiring = True
        try:
            yield
        finally:
            self._is_acquiring = False

    async def _acquire_in_turn(self) -> int:
        await self._take_turn()
        self._has_turn = True
        try:
            return await self._acquire_when_free()
        except BaseException:
            if self._revision:  # cancelled while the watch was stopped
                self._start_release()
            else:
                self._end_turn()
            raise

    async def _take_turn(self) -> None:
        """Wait for the turn, or for the end of the client."""
        connection, expiry = self._bucket.api.connection, asyncio.timeout(None)

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the wait has ended just now
                expiry.reschedule(self._loop.time())

        closed = self._loop.create_task(connection.wait_closed(), name="natsproto lock")
        try:
            async with expiry:
                closed.add_done_callback(end)
                await self._turn.acquire()
        except TimeoutError:
            raise connection._outbox.closed_error(f"acquire {self._description}") from None
        finally:
            closed.cancel()

    async def _try_acquire(self) -> bool:
        if self._release_task is not None:
            await asyncio.wait((self._release_task,))  # it must not purge the new entry
        self._args = await self._bucket.ttl_args(ceil(self._ttl), None)  # the server counts whole seconds
        expected = 0
        while True:
            started_at = self._loop.time()
            try:
                revision = await self._acquire(expected)
                if revision <= self._token:
                    await self._purge(revision)
                    raise errors.StreamWentBack(self._bucket.stream.name, revision, self._token)
                self._start_holding(revision, started_at)
                return True
            except errors.WrongRevision:
                last = await self._last_entry()
                if last is not None and not last.is_deleted and not self._is_mine(last):
                    self._report_stranger(last)
                    return False
                expected = 0 if last is None else last.revision

    async def _acquire_when_free(self) -> int:
        may_be_stored, backoff = False, Backoff(LOCK_RETRY_INTERVAL_S, MAX_LOCK_RETRY_INTERVAL_S)
        try:
            while True:
                try:
                    if await self._try_acquire() or await self._acquire_when_released():
                        return self._token
                except errors.NatsError as exc:
                    if not is_transient(exc, existed=self._bucket.was_found):
                        raise
                    may_be_stored = True
                    await backoff.pause()
        except BaseException:
            if may_be_stored:
                self._release_later(self._remove_stored(self._release_task))
            raise

    async def _acquire_when_released(self) -> bool:
        """Try again whenever the key is removed, and after ``ttl`` seconds: it may be removed without a marker. False
        if the watch has ended.
        """
        async with watch(self._bucket, (self._key,), meta_only=True) as watcher:
            await watcher.ready()
            while not watcher.caught_up or not await self._try_acquire():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ttl):
                        async for entry in watcher:
                            if entry.is_deleted:
                                break
                        else:
                            return False
        return True

    async def _remove_stored(self, before: asyncio.Task[None] | None) -> None:
        """Remove an entry whose reply was lost, after another release."""
        if before is not None:
            await asyncio.wait((before,))
        try:
            await self._purge_mine()
        except errors.NatsError:
            return

    async def _acquire(self, expected: int) -> int:
        """Write the key; when cancelled, remove the entry once it is known whether it was stored."""
        write = self._loop.create_task(self._write(expected), name="natsproto lock")
        try:
            await asyncio.wait((write,))
        except asyncio.CancelledError:
            self._release_later(self._undo(write))
            raise
        return write.result()

    async def _undo(self, write: asyncio.Task[int]) -> None:
        await asyncio.gather(write, return_exceptions=True)  # not wait, as cancelling has to end the write
        try:
            if write.exception() is None:
                await self._purge(write.result())
            else:
                await self._purge_mine()
        except errors.NatsError:
            return

    async def _purge_mine(self) -> None:
        """Purge the last entry if it is this lock's."""
        last = await self._last_entry()
        if last is not None and not last.is_deleted and self._is_mine(last):
            await self._purge(last.revision)

    # ---------------------------------------------------------------- holding

    def _start_holding(self, revision: int, started_at: float) -> None:
        self._token = revision
        self._lost.clear()
        self._extend(revision, started_at)
        self._renew_task = self._loop.create_task(self._renew_loop(started_at), name="natsproto lock")

    def _extend(self, revision: int, started_at: float) -> None:
        self._revision = revision
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(started_at + self._ttl, self._lose)

    def _lose(self) -> None:
        """End the tenure: another client has the lock, or may get it from now on."""
        self._end()
        block = self._block_task
        if block is not None and block is not asyncio.current_task(self._loop):
            self._cancelled = True
            block.cancel()

    def _end(self) -> None:
        self._revision = 0
        self._lost.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        renew_task, self._renew_task = self._renew_task, None
        if renew_task is not None and renew_task is not asyncio.current_task(self._loop):
            renew_task.cancel()
        self._end_turn()

    def _end_turn(self) -> None:
        """Let the next one of this client try, after a release that goes on."""
        if not self._has_turn:
            return
        self._has_turn = False
        if self._release_task is None or self._release_task.done():
            self._turn.release()
        else:
            self._release_task.add_done_callback(lambda _: self._turn.release())

    async def _renew_loop(self, started_at: float) -> None:
        """Renew the lock periodically. Failures are retried until the timer ends the tenure."""
        while self._revision:
            await asyncio.sleep(max(started_at + self._ttl / RENEWALS_PER_TTL - self._loop.time(), 0.0))
            started_at = self._loop.time()
            try:
                async with self._write_lock:
                    await self._renew()
            except errors.NatsError:
                await asyncio.sleep(LOCK_RETRY_INTERVAL_S)
                started_at = 0.0

    async def _renew(self) -> None:
        while self._revision:
            started_at = self._loop.time()
            try:
                self._extend(await self._write(self._revision), started_at)
                return
            except errors.WrongRevision:
                last = await self._last_entry()
                if last is None or not self._is_mine(last):
                    self._lose()
                else:
                    self._revision = last.revision  # of a renewal whose reply was lost

    # ---------------------------------------------------------------- the key

    async def _write(self, expected: int) -> int:
        return await self._bucket.write(self._key, self._value, self._id, self._args, expected, self._request_timeout)

    async def _purge(self, revision: int) -> None:
        headers = {OPERATION_HEADER: Operation.PURGE.value}
        await self._bucket.write(self._key, b"", headers, self._args, revision, self._request_timeout)

    async def _last_entry(self) -> KeyValueEntry[bytes] | None:
        return await self._bucket.find(self._key, timeout=self._request_timeout)

    def _is_mine(self, entry: KeyValueEntry[bytes]) -> bool:
        return entry.headers.last(LOCK_ID_HEADER) == self._id[LOCK_ID_HEADER]

    def _report_stranger(self, entry: KeyValueEntry[bytes]) -> None:
        """Report an entry that may never be removed, once."""
        faults = {
            "was not written by a lock": LOCK_ID_HEADER not in entry.headers,
            "has no TTL of its own": TTL_HEADER not in entry.headers,
        }
        reason = " and ".join(fault for fault, is_found in faults.items() if is_found)
        if reason and entry.revision != self._reported:
            self._reported = entry.revision
            self._bucket.api.connection._event_bus.emit(
                LockBlocked(bucket=self._bucket.bucket, key=self._key, revision=entry.revision, reason=reason)
            )

    @property
    def _description(self) -> str:
        return f"lock {self._key!r} of bucket {self._bucket.bucket!r}"

    def __repr__(self) -> str:
        return f"Lock(key={self._key!r}, held={self.is_held}, token={self._token})"
