"""Changing a value in place: read, compute, compare and write, until no other client was faster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC
from typing import Literal

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto.jetstream._api.requests import LEAST_TIMEOUT_S
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.kv._entry import OPERATION_HEADER, BucketStream, KeyValueEntry, Operation, Ttl
from natsproto.jetstream.kv._keys import V
from natsproto.protocol.headers import Headers

FIRST_CONFLICT_PAUSE_S, LONGEST_CONFLICT_PAUSE_S = 0.004, 0.5
"""Seconds before the second attempt, and the most before another; each is drawn between zero and its length."""


async def modify(
    bucket: BucketStream[V],
    key: str,
    change: Callable[[V | None], V | Literal[Operation.DELETE]],
    ttl: Ttl | None,
    timeout: Duration | None,
) -> KeyValueEntry[V]:
    """Modify the value of a key; see KeyValue.modify."""
    if inspect.iscoroutinefunction(change):
        raise TypeError("fn must be a plain function: it may be called several times, between a read and a write")
    args: MessageArgs = {} if ttl is None else await bucket.ttl_args(ttl, timeout)
    deadline, backoff = (
        Deadline(bucket.api.seconds(timeout)),
        Backoff(FIRST_CONFLICT_PAUSE_S, LONGEST_CONFLICT_PAUSE_S, jitter=1.0),
    )
    lost: errors.WrongRevision | None = None
    while lost is None or await backoff.pause(deadline):
        reads_directly = lost is None and bucket.stream.reads_directly
        found = await bucket.find(key, direct=reads_directly, timeout=max(deadline.left, FIRST_CONFLICT_PAUSE_S))
        value = change(None if found is None or found.is_deleted else found.value)
        if inspect.isawaitable(value) or inspect.isgenerator(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"fn returned a {type(value).__name__}: it must return the new value, or Operation.DELETE")
        deleted = value is Operation.DELETE
        payload = b"" if deleted else bucket.subjects.encode_value(value)  # type: ignore[arg-type]
        headers = {OPERATION_HEADER: Operation.DELETE.value} if deleted else None
        expected = 0 if found is None else found.revision
        try:
            left = max(deadline.left, LEAST_TIMEOUT_S)
            revision = await bucket.write(key, payload, headers, {} if deleted else args, expected, left)
        except errors.WrongRevision as exc:
            lost = exc
        else:
            subject = bucket.subjects.read_prefix + bucket.subjects.encode_key(key)
            stored = RawMessage(
                bucket.stream.name,
                subject,
                revision,
                Timestamp.now(UTC),
                payload,
                Headers(headers) if headers else None,
            )
            return KeyValueEntry(bucket.subjects, stored)
    operation = f"modify key {key!r} in bucket {bucket.bucket!r}, which other clients changed"
    raise errors.RequestTimeout(operation, deadline.seconds) from lost
