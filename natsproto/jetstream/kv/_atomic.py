"""Atomic writes to several keys (ADR-50).

Owns the write of each key, so that the error of a rejected batch can name the key.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Literal, NamedTuple

from natsproto.errors import ConfigError, KeyExists, WrongLastSequence, WrongRevision
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream.kv._bucket_stream import BucketStream, V
from natsproto.jetstream.kv._entry import OPERATION_HEADER, Operation, last_entry


class _Write(NamedTuple):
    key: str
    expected: int | None


class KeyValueBatch(Generic[V]):
    """Atomic writes to keys of one bucket. Created by ``kv.atomic()``; use it with ``async with``.

    The end of the block commits; an exception in the block discards everything. ``revisions`` has the new revision of
    every key afterwards. Expected revisions are compared at the commit: WrongRevision names the first key with another
    revision.
    """

    def __init__(self, bucket: BucketStream[V], batch: AtomicBatch, timeout: Duration | None) -> None:
        self._bucket, self._batch, self._timeout = bucket, batch, timeout
        self._writes: list[_Write] = []
        self._committed = False
        self.revisions: dict[str, int] = {}
        """The revision of each key, once committed."""

    def __len__(self) -> int:
        return len(self._writes)

    async def put(self, key: str, value: V) -> None:
        """Write a value unconditionally. Raises the errors of ``AtomicBatch.publish``, as all methods do."""
        await self._add(key, self._bucket.subjects.encode_value(value), None, None, {})

    async def create(self, key: str, value: V, *, ttl: Duration | Literal["never"] | None = None) -> None:
        """Write a value if the key has none at the commit. KeyExists when it has one now."""
        payload = self._bucket.subjects.encode_value(value)
        last = await last_entry(self._bucket, key, self._timeout)
        if last is not None and not last.is_deleted:
            raise KeyExists(self._bucket.bucket, key, last.revision)
        expected = 0 if last is None else last.revision
        await self._add(key, payload, None, expected, {} if ttl is None else {"ttl": ttl, "rollup": "sub"})

    async def update(self, key: str, value: V, revision: int) -> None:
        """Write a value if ``revision`` is the key's last one at the commit."""
        await self._add(key, self._bucket.subjects.encode_value(value), None, revision, {})

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Mark the key as deleted."""
        await self._add(key, b"", {OPERATION_HEADER: Operation.DELETE}, revision, {})

    async def purge(self, key: str, *, revision: int | None = None) -> None:
        """Delete the key with its history. ConfigError when this batch has written it before."""
        await self._add(key, b"", {OPERATION_HEADER: Operation.PURGE}, revision, {"rollup": "sub"})

    async def commit(self) -> dict[str, int]:
        """Commit, and return ``revisions``. WrongRevision (KeyExists) when a key has another revision; BatchRefused and
        every other ApiError; PublishUncertain when the outcome is unknown.
        """
        self._committed = True
        try:
            ack = await self._batch.commit()
        except WrongLastSequence as exc:
            raise await self._translate_refusal(exc) from exc
        if ack is not None:
            first = ack.seq - len(self._writes) + 1
            self.revisions = {write.key: first + place for place, write in enumerate(self._writes)}
        return self.revisions

    async def __aenter__(self) -> KeyValueBatch[V]:
        await self._batch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None and not self._committed:
            await self.commit()
        else:
            await self._batch.__aexit__(kind, exc, trace)

    async def _add(
        self, key: str, payload: bytes, headers: dict[str, str] | None, expected: int | None, args: MessageArgs
    ) -> None:
        subject = self._bucket.subjects.write_prefix + self._bucket.subjects.encode_key(key)
        if (expected is not None or "rollup" in args) and any(write.key == key for write in self._writes):
            why = "its revision cannot be compared" if expected is not None else "it cannot be purged"
            raise ConfigError("key", key, f"was written in this batch before: {why}")
        if expected is not None:
            args = {**args, "expected_last_subject_seq": expected}
        await self._batch.publish(subject, payload, headers=headers, **args)
        self._writes.append(_Write(key, expected))

    async def _translate_refusal(self, error: WrongLastSequence) -> WrongRevision | WrongLastSequence:
        """Return the error with the rejected key, or the error of the server when all keys are as expected by now."""
        first: dict[str, int] = {}
        for key, expected in self._writes:
            if expected is not None:
                first.setdefault(key, expected)
        for key, expected in first.items():
            actual = await self._bucket.last_revision(key, self._timeout)
            if actual not in (expected, None):
                return WrongRevision(self._bucket.bucket, key, expected, actual)
        return error

    def __repr__(self) -> str:
        return f"KeyValueBatch(bucket={self._bucket.bucket!r}, {len(self)} writes)"
