"""``nats.js.kv``: key/value buckets."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from natsproto import errors as ours
from natsproto.compat._translate import translate_errors
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js._watch import StopIterSentinel, Watcher, begin
from natsproto.compat.nats.js.errors import (
    BadRequestError,
    InvalidKeyError,
    KeyNotFoundError,
    NoKeysError,
    NotFoundError,
)
from natsproto.compat.nats.js.manager import JetStreamManager
from natsproto.jetstream.kv import KeyValue as Bucket
from natsproto.jetstream.kv import KeyValueEntry

__all__ = ["KV_DEL", "KV_MARKER_REASON", "KV_OP", "KV_PURGE", "MSG_ROLLUP_SUBJECT", "KeyValue", "StopIterSentinel"]

KV_OP = "KV-Operation"
KV_DEL = "DEL"
KV_PURGE = "PURGE"
MSG_ROLLUP_SUBJECT = "sub"
KV_MARKER_REASON = "Nats-Marker-Reason"
WRONG_LAST_SEQUENCE = 10071
VALID_KEY_RE = re.compile(r"^[-/_=\.a-zA-Z0-9]+$")


def _check_key(key: str, validate: bool = True) -> None:
    if validate and (not VALID_KEY_RE.match(key) or key[0] == "." or key[-1] == "."):
        raise InvalidKeyError(key)


class KeyValue:
    """A key/value bucket. Created by ``key_value`` and ``create_key_value``."""

    @dataclass
    class Entry:
        bucket: str
        key: str
        value: bytes | None
        revision: int | None
        delta: int | None
        created: datetime | None
        operation: str | None

    @dataclass(frozen=True)
    class BucketStatus:
        stream_info: api.StreamInfo
        bucket: str

        @property
        def values(self) -> int:
            return int(self.stream_info.state.messages)

        @property
        def history(self) -> int:
            return int(self.stream_info.config.max_msgs_per_subject)

        @property
        def ttl(self) -> float:
            found: float = self.stream_info.config.max_age
            return found

        @property
        def marker_ttl(self) -> float | None:
            found: float | None = self.stream_info.config.subject_delete_marker_ttl
            return found

    class KeyWatcher(Watcher[Entry]):
        """Iterates over the changes of keys."""

    def __init__(self, js: JetStreamManager, bucket: Bucket[bytes], *, direct: bool) -> None:
        self._js = js
        self._kv = bucket
        self._direct = direct

    @translate_errors
    async def get(self, key: str, revision: int | None = None, validate_keys: bool = True) -> Entry:
        """Return the entry of a key. KeyNotFoundError, with ``op`` and ``entry`` set for a deleted key."""
        _check_key(key, validate_keys)
        try:
            found = await self._kv.get(key, revision=revision or None, direct=self._direct)
        except ours.KeyDeleted as exc:
            gone = self.Entry(self._kv.bucket, key, None, exc.revision, None, None, None)
            raise KeyNotFoundError(gone, exc.operation) from exc
        except ours.KeyNotFound as exc:
            raise KeyNotFoundError(message=await self._other_key(key, revision)) from exc
        return self.Entry(self._kv.bucket, key, found.value or None, found.revision, None, None, None)

    async def _other_key(self, key: str, revision: int | None) -> str | None:
        """Return the key that has a revision, or None."""
        if not revision:
            return None
        try:
            held = await self._js.get_msg(f"KV_{self._kv.bucket}", seq=revision)
        except NotFoundError:
            return None
        return f"expected '$KV.{self._kv.bucket}.{key}', but got '{held.subject}'"

    @translate_errors
    async def put(self, key: str, value: bytes, validate_keys: bool = True) -> int:
        _check_key(key, validate_keys)
        return await self._kv.put(key, value)

    @translate_errors
    async def create(self, key: str, value: bytes, validate_keys: bool = True, msg_ttl: float | None = None) -> int:
        _check_key(key, validate_keys)
        return await self._kv.create(key, value, ttl=msg_ttl)

    @translate_errors
    async def update(self, key: str, value: bytes, last: int | None = None, validate_keys: bool = True) -> int:
        """Write a value if the key's revision is ``last``. None and 0: if the key was never written."""
        _check_key(key, validate_keys)
        return await self._kv.update(key, value, last or 0)

    @translate_errors
    async def delete(
        self, key: str, last: int | None = None, validate_keys: bool = True, msg_ttl: float | None = None
    ) -> bool:
        """Delete a key; with ``last`` only if that is its revision. ``msg_ttl`` is ignored."""
        if msg_ttl is not None:
            warnings.warn("msg_ttl on delete() is ignored", DeprecationWarning, stacklevel=3)
        _check_key(key, validate_keys)
        try:
            await self._kv.delete(key, revision=last or None)
        except ours.WrongRevision as exc:
            raise BadRequestError(400, getattr(exc.__cause__, "description", str(exc)), WRONG_LAST_SEQUENCE) from exc
        return True

    @translate_errors
    async def purge(self, key: str, msg_ttl: float | None = None) -> bool:
        """Delete a key and its history. The remaining marker expires after ``msg_ttl`` seconds."""
        await self._kv.purge(key, ttl=msg_ttl)
        return True

    @translate_errors
    async def purge_deletes(self, olderthan: int = 30 * 60) -> bool:
        """Remove the markers of deleted keys, except those younger than ``olderthan`` seconds."""
        await self.status()  # raises in an outage, whose end the next call would wait for
        await self._kv.purge_deletes(older_than=max(olderthan, 0))
        return True

    async def status(self) -> BucketStatus:
        return self.BucketStatus(await self._js.stream_info(f"KV_{self._kv.bucket}"), self._kv.bucket)

    # ---------------------------------------------------------------- many keys

    async def watchall(self, **kwargs: Any) -> KeyWatcher:
        return await self.watch(">", **kwargs)

    @translate_errors
    async def watch(
        self,
        keys: str,
        headers_only: bool = False,
        include_history: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        inactive_threshold: float | None = None,
    ) -> KeyWatcher:
        """Watch keys. ``headers_only`` and ``inactive_threshold`` have no effect."""
        watch = self._kv.watch(
            keys, include_history=include_history, ignore_deletes=ignore_deletes, meta_only=meta_only
        )
        await begin(watch, self._js._timeout)
        return self.KeyWatcher(watch, _entry, marks=True)

    @translate_errors
    async def keys(self, filters: list[str] | None = None, **kwargs: Any) -> list[str]:
        """Return the keys that contain one of ``filters``, or all keys. NoKeysError when there are none."""
        async with await begin(self._kv.watch(ignore_deletes=True, meta_only=True), self._js._timeout) as watch:
            held = dict.fromkeys([entry.key async for entry in watch.initial()])
        found = [key for key in held if not filters or any(part in key for part in filters)]
        if not found:
            raise NoKeysError
        return found

    @translate_errors
    async def history(self, key: str) -> list[Entry]:
        async with await begin(self._kv.watch(key, include_history=True), self._js._timeout) as watch:
            found = [_entry(entry) async for entry in watch.initial()]
        if not found:
            raise NoKeysError
        return found


def _entry(entry: Any) -> KeyValue.Entry:
    assert isinstance(entry, KeyValueEntry)
    created = datetime.fromtimestamp(entry.created.timestamp(), UTC)
    operation = entry.operation.value if entry.is_deleted else None
    return KeyValue.Entry(entry.bucket, entry.key, entry.value, entry.revision, entry.delta, created, operation)
