"""Being a member: a key with a TTL that the member renews, and the lease that follows from it.

Owns the key's revision, and the time when the last successful renewal was sent: the server counts the TTL from the time
when it was stored, so the lease ends before the key does. Every renewal names the revision: a member that was declared
dead learns it from the refusal, and does not come back to life by writing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from math import ceil
from time import monotonic, time
from typing import ClassVar, Final

from natsproto import errors
from natsproto._core.events import Event
from natsproto.errors._base import is_transient
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.policies import StorageType
from natsproto.jetstream.kv._bucket import KeyValue

PRESENCE_BUCKET: Final = "natsproto-group-presence"
MARKER_TTL_S: Final = 10.0
"""Seconds for which the bucket shows that a key has expired."""
RENEWALS_PER_TTL: Final = 3
"""Renewals within one TTL: two may fail."""
ENTER_RETRY_INTERVAL_S: Final = 0.1
"""Seconds after which a failed renewal is repeated."""


class GroupLeaseLate(Event):
    """A member has not renewed its lease for ``seconds``, more than half of its ``ttl``: its event loop was blocked, or
    the servers do not answer. After ``ttl`` seconds it loses its partitions.
    """

    stream: str
    group: str
    member: str
    seconds: float
    ttl: float

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "member %(member)r of group %(group)r of stream %(stream)r has not renewed its lease for %(seconds).1f s, and "
        "loses its partitions after %(ttl).1f s: is the event loop blocked?"
    )


async def open_bucket(js: JetStream, work_queue: Stream) -> KeyValue:
    """Return the bucket of the members' keys, created with the replicas of a work queue. ConfigError if it lacks TTLs.

    It is on disk: after a restart, a bucket in memory would declare all members dead while they work.
    """
    try:
        bucket = await js.key_value(PRESENCE_BUCKET)
    except errors.BucketNotFound:
        config = (await work_queue.info()).config
        return await js.create_key_value(
            bucket=PRESENCE_BUCKET,
            limit_marker_ttl=MARKER_TTL_S,
            storage=StorageType.FILE,
            num_replicas=config.num_replicas,
        )
    if not bucket.stream.cached_info.config.subject_delete_marker_ttl:
        advice = f"js.update_key_value({PRESENCE_BUCKET!r}, limit_marker_ttl={MARKER_TTL_S:g})"
        raise errors.ConfigError("bucket", PRESENCE_BUCKET, f"needs a limit_marker_ttl for members of groups: {advice}")
    return bucket


class Presence:
    """The key of the member ``name`` under ``prefix``, the stream and the group."""

    def __init__(self, bucket: KeyValue, prefix: str, name: str, ttl: float) -> None:
        self.bucket: KeyValue = bucket
        """The bucket of the keys of all members."""
        self._key, self._ttl = f"{prefix}.{name}", ttl
        self._connection = bucket.stream._api.connection
        self._stream, _, self._group = prefix.partition(".")
        self._value = json.dumps(
            {"host": platform.node(), "pid": os.getpid(), "started": time(), "ttl": ttl}
            | {"id": self._connection._runtime.new_id()}
        ).encode()
        self._request_timeout = min(bucket.stream._api.timeout, ttl / RENEWALS_PER_TTL)
        self._revision = 0
        self._renewed_at = -ttl  # when the last successful renewal was sent
        self._is_reported = False

    @property
    def is_valid(self) -> bool:
        """True until ``ttl`` seconds have passed since the last successful renewal was sent."""
        return monotonic() - self._renewed_at <= self._ttl

    async def enter(self, *, takes_over: bool) -> None:
        """Write the key. Raises the errors of ``KeyValue.create``, and GroupChanged when another process has the name,
        unless this one ``takes_over``.
        """
        sent_at, ttl = monotonic(), ceil(self._ttl)
        try:
            self._revision = await self.bucket.create(self._key, self._value, ttl=ttl)
        except errors.KeyExists:
            try:
                entry = await self.bucket.get(self._key, direct=False)
            except errors.KeyNotFound:  # expired just now
                await self.enter(takes_over=takes_over)
                return
            if entry.data != self._value and not takes_over:
                raise self._taken_by(entry.data) from None
            sent_at = monotonic()
            try:
                self._revision = await self.bucket.update(self._key, self._value, entry.revision, ttl=ttl)
            except errors.WrongRevision:
                await self.enter(takes_over=takes_over)
                return
        self._renewed_at, self._is_reported = sent_at, False

    async def enter_again(self) -> None:
        """Write the key after the lease was lost, as soon as the servers take it. GroupChanged when another process has
        the name.
        """
        while True:
            try:
                await self.enter(takes_over=False)
                return
            except errors.NatsError as exc:
                if not is_transient(exc):
                    raise
                await asyncio.sleep(ENTER_RETRY_INTERVAL_S)

    async def hold(self) -> None:
        """Renew the key until the lease is over. Raises errors that trying again would not mend."""
        loop = asyncio.get_running_loop()
        expiry = asyncio.timeout(self._left)
        try:
            async with expiry:
                while True:
                    await asyncio.sleep(self._ttl / RENEWALS_PER_TTL)
                    if not await self._renew():
                        return
                    expiry.reschedule(loop.time() + self._left)
        except TimeoutError:
            if not expiry.expired():
                raise

    async def leave(self) -> None:
        """Remove the key. Never raises: a key that cannot be removed now expires."""
        revision, self._renewed_at = self._revision, -self._ttl
        try:
            await self.bucket.purge(self._key, revision=revision, ttl=MARKER_TTL_S, timeout=self._request_timeout)
        except errors.NatsError:
            return

    @property
    def _left(self) -> float:
        return max(0.0, self._renewed_at + self._ttl - monotonic())

    async def _renew(self) -> bool:
        """Renew the key, and retry while the servers do not answer. False when the member was declared dead."""
        ttl, timeout = ceil(self._ttl), self._request_timeout
        while True:
            sent_at = monotonic()
            self._report_delay(sent_at - self._renewed_at)
            try:
                self._revision = await self.bucket.update(
                    self._key, self._value, self._revision, ttl=ttl, timeout=timeout
                )
                self._renewed_at, self._is_reported = sent_at, False
                return True
            except errors.WrongRevision:
                if not await self._adopt_own():
                    return False
            except (errors.BucketNotFound, errors.PermissionDenied):
                raise
            except errors.NatsError:
                await asyncio.sleep(min(ENTER_RETRY_INTERVAL_S, self._ttl / 10))

    async def _adopt_own(self) -> bool:
        """Look for an own renewal whose reply was lost. False when the key is gone or another process's."""
        try:
            entry = await self.bucket.get(self._key, direct=False, timeout=self._request_timeout)
        except errors.KeyNotFound:
            return False
        except errors.NatsError:
            return True  # unknown: the next renewal tells
        if entry.data != self._value:
            return False
        self._revision = entry.revision
        return True

    def _report_delay(self, waited: float) -> None:
        if waited > self._ttl / 2 and not self._is_reported:
            self._is_reported = True
            member = self._key.rpartition(".")[2]
            self._connection._event_bus.emit(
                GroupLeaseLate(stream=self._stream, group=self._group, member=member, seconds=waited, ttl=self._ttl)
            )

    def _taken_by(self, value: bytes) -> errors.GroupChanged:
        try:
            where = "process {pid} on {host}".format(**json.loads(value))
        except (ValueError, KeyError, TypeError):
            where = "another process"
        name = self._key.rpartition(".")[2]
        return errors.GroupChanged(self._stream, self._group, f"{where} is the member {name!r} now: use another name")
