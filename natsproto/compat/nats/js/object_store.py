"""``nats.js.object_store``: objects of any size."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import dataclass
from typing import Any

from natsproto import errors as ours
from natsproto.compat._translate import translate_errors
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js._watch import StopIterSentinel as StopIterSentinel
from natsproto.compat.nats.js._watch import Watcher, begin
from natsproto.compat.nats.js.errors import (
    BadObjectMetaError,
    BucketNotFoundError,
    NotFoundError,
    ObjectDeletedError,
    ObjectNotFoundError,
)
from natsproto.compat.nats.js.errors import (
    DigestMismatchError as DigestMismatchError,
)
from natsproto.compat.nats.js.errors import (
    LinkIsABucketError as LinkIsABucketError,
)
from natsproto.compat.nats.js.errors import (
    ObjectAlreadyExists as ObjectAlreadyExists,
)
from natsproto.compat.nats.js.kv import MSG_ROLLUP_SUBJECT as MSG_ROLLUP_SUBJECT
from natsproto.compat.nats.js.kv import VALID_KEY_RE as VALID_KEY_RE
from natsproto.compat.nats.js.manager import JetStreamManager
from natsproto.jetstream import objectstore

VALID_BUCKET_RE = re.compile(r"^[a-zA-Z0-9_-]+$")
OBJ_STREAM_TEMPLATE = "OBJ_{bucket}"
OBJ_ALL_CHUNKS_PRE_TEMPLATE = "$O.{bucket}.C.>"
OBJ_ALL_META_PRE_TEMPLATE = "$O.{bucket}.M.>"
OBJ_CHUNKS_PRE_TEMPLATE = "$O.{bucket}.C.{obj}"
OBJ_META_PRE_TEMPLATE = "$O.{bucket}.M.{obj}"
OBJ_DEFAULT_CHUNK_SIZE = 128 * 1024
OBJ_DIGEST_TYPE = "SHA-256="


class ObjectStore:
    """An object store. Created by ``object_store`` and ``create_object_store``."""

    @dataclass
    class ObjectResult:
        info: api.ObjectInfo
        data: bytes | None = b""

    @dataclass(frozen=True)
    class ObjectStoreStatus:
        stream_info: api.StreamInfo
        bucket: str

        @property
        def description(self) -> str | None:
            found: str | None = self.stream_info.config.description
            return found

        @property
        def ttl(self) -> float | None:
            found: float | None = self.stream_info.config.max_age
            return found

        @property
        def storage_type(self) -> api.StorageType | None:
            found: api.StorageType | None = self.stream_info.config.storage
            return found

        @property
        def replicas(self) -> int:
            return int(self.stream_info.config.num_replicas)

        @property
        def sealed(self) -> bool:
            return bool(self.stream_info.config.sealed)

        @property
        def size(self) -> int:
            return int(self.stream_info.state.bytes)

    class ObjectWatcher(Watcher[api.ObjectInfo]):
        """Iterates over the changes of objects."""

    def __init__(self, js: JetStreamManager, store: objectstore.ObjectStore) -> None:
        self._js = js
        self._store = store

    @translate_errors
    async def get_info(self, name: str, show_deleted: bool | None = False) -> api.ObjectInfo:
        if not name:
            raise ObjectNotFoundError
        try:
            return _info(await self._store.info(name, deleted=bool(show_deleted)))
        except ours.InvalidReply as exc:
            raise BadObjectMetaError from exc

    @translate_errors
    async def get(
        self, name: str, writeinto: io.BufferedIOBase | None = None, show_deleted: bool | None = False
    ) -> ObjectResult:
        if (show_deleted or not name) and (info := await self.get_info(name, show_deleted)).deleted:
            return self.ObjectResult(info)
        async with self._store.get(name, follow_links=True) as reader:
            result = self.ObjectResult(_info(reader.info))
            if writeinto is None:
                result.data = b"".join([piece async for piece in reader])
            else:
                write = getattr(writeinto, "buffer", writeinto).write
                async for piece in reader:
                    await asyncio.get_running_loop().run_in_executor(None, write, piece)
        return result

    @translate_errors
    async def put(
        self, name: str, data: str | bytes | io.BufferedIOBase, meta: api.ObjectMeta | None = None
    ) -> api.ObjectInfo:
        """Store an object. Text is encoded as UTF-8."""
        meta = api.ObjectMeta() if meta is None else meta
        meta.name = name or meta.name
        options = meta.options or api.ObjectMetaOptions()
        if options.link is not None:
            raise NotImplementedError("put of a link: in natsproto, store.add_link() and store.add_bucket_link()")
        source: Any = data.encode() if isinstance(data, str) else data
        if not isinstance(source, bytes):
            if not hasattr(source, "readinto"):
                source = getattr(source, "buffer", None)
            if source is None:
                raise TypeError("nats: invalid type for object store")
        try:
            stored = await self._store.put(
                meta.name or "",
                source,
                description=meta.description or "",
                headers=meta.headers,
                chunk_size=options.max_chunk_size,
            )
        except ours.BucketNotFound as exc:
            raise BucketNotFoundError from exc
        return _info(stored)

    async def status(self) -> ObjectStoreStatus:
        return self.ObjectStoreStatus(await self._js.stream_info(f"OBJ_{self._store.bucket}"), self._store.bucket)

    @translate_errors
    async def seal(self) -> None:
        await self._store.seal()

    @translate_errors
    async def update_meta(self, name: str, meta: api.ObjectMeta) -> None:
        try:
            await self._store.update_meta(
                name,
                rename=meta.name if meta.name != name else None,
                description=meta.description or "",
                headers=meta.headers or {},
            )
        except ours.ObjectNotFound as exc:
            raise ObjectDeletedError from exc

    @translate_errors
    async def watch(
        self,
        ignore_deletes: bool = False,
        include_history: bool = False,
        meta_only: bool = False,
        updates_only: bool = False,
    ) -> ObjectWatcher:
        """Watch objects. ``include_history`` and ``meta_only`` have no effect, because only the newest metadata is
        kept.
        """
        watch = self._store.watch(ignore_deletes=ignore_deletes, updates_only=updates_only)
        await begin(watch, self._js._timeout)
        return self.ObjectWatcher(watch, _info, marks=not updates_only)

    @translate_errors
    async def delete(self, name: str) -> None:
        await self._store.info(name)  # ObjectNotFoundError for one that was deleted before
        await self._store.delete(name)

    @translate_errors
    async def list(self, ignore_deletes: bool = False) -> list[api.ObjectInfo]:
        found = [_info(info) async for info in self._store.list(deleted=not ignore_deletes)]
        if not found:
            raise NotFoundError
        return found


def _info(info: Any) -> api.ObjectInfo:
    assert isinstance(info, objectstore.ObjectInfo)
    options = info.options
    link = None if info.link is None else api.ObjectLink(info.link.bucket, info.link.name or None)
    return api.ObjectInfo(
        name=info.name,
        bucket=info.bucket,
        nuid=info.nuid,
        size=info.size,
        mtime=info.mtime.rfc3339(),
        chunks=info.chunks,
        digest=info.digest,
        deleted=info.deleted,
        description=info.description or None,
        headers={name: values[0] if len(values) == 1 else list(values) for name, values in info.headers.items()}
        or None,
        options=None if options is None else api.ObjectMetaOptions(link, options.max_chunk_size or None),
    )
