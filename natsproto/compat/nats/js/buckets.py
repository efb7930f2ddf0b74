"""Buckets and object stores, created with nats-py's configuration so that both clients find the same streams."""

from __future__ import annotations

from typing import Any

import natsproto
from natsproto.compat._peers import ClientPeer
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js.errors import (
    BadBucketError,
    BucketNotFoundError,
    InvalidBucketNameError,
    KeyHistoryTooLargeError,
    KeyValueLimitMarkerTTLNotSupportedError,
    NotFoundError,
)
from natsproto.compat.nats.js.kv import KeyValue
from natsproto.compat.nats.js.manager import JetStreamManager
from natsproto.compat.nats.js.object_store import VALID_BUCKET_RE, ObjectStore
from natsproto.jetstream import JetStream

DUPLICATE_WINDOW_S = 120.0
MAX_HISTORY = 64


def _check_bucket(bucket: str | None) -> str:
    if not bucket or VALID_BUCKET_RE.match(bucket) is None:
        raise InvalidBucketNameError
    return bucket


class Buckets(JetStreamManager):
    """The part of ``JetStreamContext`` that creates and opens buckets."""

    def __init__(self, conn: ClientPeer, prefix: str, timeout: float) -> None:
        super().__init__(conn, prefix, timeout)
        self._cached: tuple[natsproto.Client, JetStream] | None = None

    @property
    def _js(self) -> JetStream:
        """The JetStream context of natsproto; a new one when the client has connected again."""
        client = self._nc._opened
        if self._cached is None or self._cached[0] is not client:
            self._cached = client, self._context(None)
        return self._cached[1]

    def _context(self, inbox_prefix: str | None) -> JetStream:
        return self._nc._opened.jetstream(prefix=self._prefix, timeout=self._timeout, inbox_prefix=inbox_prefix)

    # ---------------------------------------------------------------- key/value

    async def key_value(self, bucket: str) -> KeyValue:
        info = await self._bucket(f"KV_{_check_bucket(bucket)}")
        if info.config.max_msgs_per_subject < 1:
            raise BadBucketError
        return KeyValue(self, await self._js.key_value(bucket, bind=True), direct=bool(info.config.allow_direct))

    async def create_key_value(self, config: api.KeyValueConfig | None = None, **params: Any) -> KeyValue:
        wanted = config.evolve(**params) if config is not None else api.KeyValueConfig(**params)
        bucket = _check_bucket(wanted.bucket)
        if wanted.history > MAX_HISTORY:
            raise KeyHistoryTooLargeError
        if wanted.limit_marker_ttl and not (await self.account_info()).api.level:
            raise KeyValueLimitMarkerTTLNotSupportedError
        info = await self.add_stream(
            name=f"KV_{bucket}",
            description=wanted.description,
            subjects=[f"$KV.{bucket}.>"],
            allow_direct=wanted.direct,
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            deny_delete=True,
            discard=api.DiscardPolicy.NEW,
            duplicate_window=min(wanted.ttl or DUPLICATE_WINDOW_S, DUPLICATE_WINDOW_S),
            max_age=wanted.ttl,
            max_bytes=wanted.max_bytes,
            max_consumers=-1,
            max_msg_size=wanted.max_value_size,
            max_msgs=-1,
            max_msgs_per_subject=wanted.history,
            num_replicas=wanted.replicas,
            storage=wanted.storage,
            placement=wanted.placement,
            republish=wanted.republish,
            subject_delete_marker_ttl=wanted.limit_marker_ttl,
        )
        return KeyValue(self, await self._js.key_value(bucket, bind=True), direct=bool(info.config.allow_direct))

    async def delete_key_value(self, bucket: str) -> bool:
        return await self.delete_stream(f"KV_{_check_bucket(bucket)}")

    # ---------------------------------------------------------------- objects

    async def object_store(self, bucket: str) -> ObjectStore:
        await self._bucket(f"OBJ_{_check_bucket(bucket)}")
        return ObjectStore(self, await self._js.object_store(bucket, bind=True))

    async def create_object_store(
        self, bucket: str | None = None, config: api.ObjectStoreConfig | None = None, **params: Any
    ) -> ObjectStore:
        wanted = (config or api.ObjectStoreConfig()).evolve(bucket=bucket, **params)
        name = _check_bucket(wanted.bucket)
        await self.add_stream(
            name=f"OBJ_{name}",
            description=wanted.description,
            subjects=[f"$O.{name}.C.>", f"$O.{name}.M.>"],
            max_age=wanted.ttl,
            max_bytes=wanted.max_bytes or -1,
            max_consumers=0,
            storage=wanted.storage,
            num_replicas=wanted.replicas,
            placement=wanted.placement,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
        return ObjectStore(self, await self._js.object_store(name, bind=True))

    async def delete_object_store(self, bucket: str) -> bool:
        return await self.delete_stream(f"OBJ_{_check_bucket(bucket)}")

    async def _bucket(self, stream: str) -> api.StreamInfo:
        try:
            return await self.stream_info(stream)
        except NotFoundError as exc:
            raise BucketNotFoundError from exc
