"""The key/value buckets and object stores of an account or domain: creating, changing, opening and listing them.

The modules of buckets are imported when they are used, which keeps the import of JetStream fast.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from natsproto import errors
from natsproto._help.async_hints import items
from natsproto._help.introspection import import_late_types
from natsproto.codecs import Codec
from natsproto.jetstream._stream.stream import create_or_update_stream, with_changes, write_stream
from natsproto.jetstream._stream.streams import StreamManager
from natsproto.jetstream._values.arguments import KeyValueArgs, ObjectStoreArgs
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream._values.bucket_config import (
    KV_STREAM,
    KV_SUBJECTS,
    OBJECT_STREAM,
    OBJECT_SUBJECTS,
    KeyValueConfig,
    ObjectStoreConfig,
    check_bucket,
)
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config_compare import stream_differences
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream._values.record import amended, named_changes

if TYPE_CHECKING:
    from natsproto.jetstream.kv._bucket import KeyValue
    from natsproto.jetstream.kv._keys import KeyCodec
    from natsproto.jetstream.kv._status import KeyValueStatus
    from natsproto.jetstream.objectstore._status import ObjectStoreStatus
    from natsproto.jetstream.objectstore._store import ObjectStore

T = TypeVar("T")

_KINDS = {KV_STREAM: "bucket", OBJECT_STREAM: "object store"}
"""The words for streams with these prefixes in error messages."""
_NOT_ASKED_FOR = {"allow_direct", "allow_msg_ttl", "duplicate_window", "mirror_direct"}
"""Fields of a bucket's stream in which clients differ, and with which every operation of the bucket works, except
``get_many``, which needs ``allow_direct``.
"""
_STREAM_FIELDS = {
    "compression": ("compression",),
    "history": ("max_msgs_per_subject",),
    "limit_marker_ttl": ("allow_msg_ttl", "subject_delete_marker_ttl"),
    "max_value_size": ("max_msg_size",),
    "mirror": ("mirror", "mirror_direct", "subjects"),
    "ttl": ("max_age",),
}
"""The fields of the stream that a field of a bucket sets; one of the same name if it is not here."""
_ALL_CHUNKS = f"{OBJECT_SUBJECTS}*.C.>"
"""A subject that matches the stream of every object store."""


def _in_words_of_buckets(field: str, text: str) -> str:
    """Return a difference of two streams with the name that the field has for a bucket."""
    for name, fields in _STREAM_FIELDS.items():
        if fields[-1] == field or fields[0] == field:
            return name + text.removeprefix(field)
    return text


class BucketManager(StreamManager):
    """Manages the key/value buckets and object stores of one account or domain. A part of JetStream."""

    # ---------------------------------------------------------------- key/value buckets

    async def create_key_value(
        self,
        config: str | KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Create a key/value bucket (ADR-8) from its name, a KeyValueConfig, its fields, or these together (the fields
        win).

        ``key_codec`` converts the keys of this handle (ADR-54). Creating an existing bucket again does nothing, also if
        another client has created it; BucketExists when its configuration differs. Otherwise as ``create_stream``.

        Args:
            config: The name of the bucket, or a KeyValueConfig.
            key_codec: Converts keys that the server does not allow, such as paths; every client of the bucket needs the
                same. None: keys are sent as they are.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of KeyValueConfig, by keyword; they override those of ``config``.
        """
        return await self._write_key_value(
            "CREATE", amended(KeyValueConfig, config, fields, "bucket"), key_codec, timeout
        )

    async def update_key_value(
        self,
        target: str | KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **changes: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Change the given fields of the bucket with this name, and no others; a whole KeyValueConfig replaces all.

        Fields of its stream that other clients have set are kept; see ``update_stream``. BucketNotFound;
        InvalidStreamConfig for fields that cannot be changed; otherwise as ``create_key_value``.

        Args:
            target: The name of the bucket, of which the given fields change, or a KeyValueConfig, which replaces all.
            key_codec: Converts keys that the server does not allow, such as paths; every client of the bucket needs the
                same. None: keys are sent as they are.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **changes: The fields of KeyValueConfig to change, by keyword.
        """
        if target is None or isinstance(target, str):
            from natsproto.jetstream.kv._bucket import KeyValue

            partial, fields = named_changes(KeyValueConfig, target, changes, "bucket")
            info = await self._change_bucket(partial, fields, KV_STREAM, KV_SUBJECTS, timeout)
            return KeyValue._of(self._api, partial.bucket, info, key_codec)
        return await self._write_key_value(
            "UPDATE", amended(KeyValueConfig, target, changes, "bucket"), key_codec, timeout
        )

    async def create_or_update_key_value(
        self,
        config: str | KeyValueConfig | None = None,
        /,
        *,
        key_codec: KeyCodec | None = None,
        timeout: Duration | None = None,
        **fields: Unpack[KeyValueArgs],
    ) -> KeyValue:
        """Make the bucket exactly this: fields that are not given get their defaults, also those of an existing bucket.

        Raises the errors of ``create_key_value`` and ``update_key_value``.

        Args:
            config: The name of the bucket, or a KeyValueConfig.
            key_codec: Converts keys that the server does not allow, such as paths; every client of the bucket needs the
                same. None: keys are sent as they are.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of KeyValueConfig, by keyword; they override those of ``config``.
        """
        return await self._write_key_value("", amended(KeyValueConfig, config, fields, "bucket"), key_codec, timeout)

    @overload
    async def key_value(
        self,
        bucket: str,
        *,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue: ...

    @overload
    async def key_value(
        self,
        bucket: str,
        *,
        kind: type[T],
        codec: Codec | None = None,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue[T]: ...

    async def key_value(
        self,
        bucket: str,
        *,
        kind: type[T] | None = None,
        codec: Codec | None = None,
        key_codec: KeyCodec | None = None,
        bind: bool = False,
        timeout: Duration | None = None,
    ) -> KeyValue | KeyValue[T]:
        """Return the bucket with this name; BucketNotFound.

        ``kind`` is the type of its values (default: bytes) and ``codec`` converts them (default: JSON), see
        ``KeyValue.typed``; ``key_codec`` converts keys (ADR-54). With ``bind`` no request is sent, so the bucket may
        not exist. Do not bind a mirror: only the server knows where its keys are written.

        Args:
            bucket: The name of the bucket, without ``KV_`` or ``OBJ_``.
            kind: The type of the values; None: bytes.
            codec: Converts values of ``kind`` to payloads and back; None: JSON.
            key_codec: Converts keys that the server does not allow, such as paths; every client of the bucket needs the
                same. None: keys are sent as they are.
            bind: Send no request, so that the bucket may not exist.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        from natsproto.jetstream.kv._bucket import KeyValue

        info = None if bind else await self._bucket_info(KV_STREAM, KV_SUBJECTS, bucket, timeout)
        found = KeyValue._of(self._api, bucket, info, key_codec)
        if kind is None:
            return found
        return found.typed(kind) if codec is None else found.typed(kind, codec)

    async def delete_key_value(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Delete a bucket with all its entries. BucketNotFound.

        Args:
            bucket: The name of the bucket, without ``KV_`` or ``OBJ_``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._delete_bucket(KV_STREAM, bucket, timeout)

    @items
    async def key_value_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yield the name of every bucket, including mirrors.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        async with aclosing(self.stream_names(timeout=timeout)) as names:
            async for name in names:
                if name.startswith(KV_STREAM):
                    yield name.removeprefix(KV_STREAM)

    @items
    async def key_value_statuses(self, *, timeout: Duration | None = None) -> AsyncGenerator[KeyValueStatus]:
        """Yield the configuration and state of every bucket, including mirrors.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        from natsproto.jetstream.kv._status import KeyValueStatus

        async for info in self.streams(timeout=timeout):
            if info.config.name.startswith(KV_STREAM):
                yield KeyValueStatus._of(info)

    # ---------------------------------------------------------------- object stores

    async def create_object_store(
        self,
        config: str | ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Create an object store (ADR-20) from its name, an ObjectStoreConfig, its fields, or these together (the
        fields win).

        Creating an existing store again does nothing, also if another client has created it; BucketExists when its
        configuration differs. Otherwise as ``create_stream``.

        Args:
            config: The name of the store, or an ObjectStoreConfig.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of ObjectStoreConfig, by keyword; they override those of ``config``.
        """
        return await self._write_object_store("CREATE", amended(ObjectStoreConfig, config, fields, "bucket"), timeout)

    async def update_object_store(
        self,
        target: str | ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **changes: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Change the given fields of the store with this name, and no others; a whole ObjectStoreConfig replaces all.

        Fields of its stream that other clients have set are kept; see ``update_stream``. BucketNotFound;
        InvalidStreamConfig for fields that cannot be changed; otherwise as ``create_object_store``.

        Args:
            target: The name of the store, of which the given fields change, or an ObjectStoreConfig, which replaces
                all.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **changes: The fields of ObjectStoreConfig to change, by keyword.
        """
        if target is None or isinstance(target, str):
            from natsproto.jetstream.objectstore._store import ObjectStore

            partial, fields = named_changes(ObjectStoreConfig, target, changes, "bucket")
            info = await self._change_bucket(partial, fields, OBJECT_STREAM, OBJECT_SUBJECTS, timeout)
            return ObjectStore(self._api, partial.bucket, info)
        return await self._write_object_store("UPDATE", amended(ObjectStoreConfig, target, changes, "bucket"), timeout)

    async def create_or_update_object_store(
        self,
        config: str | ObjectStoreConfig | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ObjectStoreArgs],
    ) -> ObjectStore:
        """Make the store exactly this: fields that are not given get their defaults, also those of an existing store.

        Raises the errors of ``create_object_store`` and ``update_object_store``.

        Args:
            config: The name of the store, or an ObjectStoreConfig.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of ObjectStoreConfig, by keyword; they override those of ``config``.
        """
        return await self._write_object_store("", amended(ObjectStoreConfig, config, fields, "bucket"), timeout)

    async def object_store(self, bucket: str, *, bind: bool = False, timeout: Duration | None = None) -> ObjectStore:
        """Return the object store with this name; BucketNotFound. With ``bind`` no request is sent, so the store may
        not exist, and fast ingest is not used.

        Args:
            bucket: The name of the bucket, without ``KV_`` or ``OBJ_``.
            bind: Send no request, so that the store may not exist.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        from natsproto.jetstream.objectstore._store import ObjectStore

        info = None if bind else await self._bucket_info(OBJECT_STREAM, OBJECT_SUBJECTS, bucket, timeout)
        return ObjectStore(self._api, bucket, info)

    async def delete_object_store(self, bucket: str, *, timeout: Duration | None = None) -> None:
        """Delete an object store with all its objects. BucketNotFound.

        Args:
            bucket: The name of the bucket, without ``KV_`` or ``OBJ_``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._delete_bucket(OBJECT_STREAM, bucket, timeout)

    @items
    async def object_store_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yield the name of every object store.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        async with aclosing(self.stream_names(subject=_ALL_CHUNKS, timeout=timeout)) as names:
            async for name in names:
                if name.startswith(OBJECT_STREAM):
                    yield name.removeprefix(OBJECT_STREAM)

    @items
    async def object_store_statuses(self, *, timeout: Duration | None = None) -> AsyncGenerator[ObjectStoreStatus]:
        """Yield the configuration and state of every object store.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        from natsproto.jetstream.objectstore._status import ObjectStoreStatus

        async for info in self.streams(subject=_ALL_CHUNKS, timeout=timeout):
            if info.config.name.startswith(OBJECT_STREAM):
                yield ObjectStoreStatus._of(info)

    # ---------------------------------------------------------------- buckets of both kinds

    async def _write_key_value(
        self, verb: str, config: KeyValueConfig, key_codec: KeyCodec | None, timeout: Duration | None
    ) -> KeyValue[bytes]:
        from natsproto.jetstream.kv._bucket import KeyValue

        return KeyValue._of(self._api, config.bucket, await self._write_bucket(verb, config, timeout), key_codec)

    async def _write_object_store(self, verb: str, config: ObjectStoreConfig, timeout: Duration | None) -> ObjectStore:
        from natsproto.jetstream.objectstore._store import ObjectStore

        return ObjectStore(self._api, config.bucket, await self._write_bucket(verb, config, timeout))

    async def _write_bucket(
        self, verb: str, config: KeyValueConfig | ObjectStoreConfig, timeout: Duration | None
    ) -> StreamInfo:
        """CREATE or UPDATE the stream; with an empty verb the one that applies.

        An existing bucket is taken as it is if nothing that the caller can ask for differs. Another client may have
        made it with other fields (decision 0007). An update keeps ``allow_msg_ttl``, which cannot be unset.
        """
        stream = config.to_stream()
        what = f"{_KINDS[KV_STREAM if isinstance(config, KeyValueConfig) else OBJECT_STREAM]} {config.bucket!r}"
        with bucket_errors(config.bucket):
            try:
                if not verb:
                    return await create_or_update_stream(self._api, stream, False, timeout, what=what)
                return await write_stream(self._api, verb, stream, False, timeout, what=what)
            except (errors.StreamExists, errors.InvalidStreamConfig) as exc:
                if verb == "CREATE" and not isinstance(exc, errors.StreamExists):
                    raise
                try:
                    info = (await self.stream(stream.name, timeout=timeout)).cached_info
                except errors.NatsError:
                    if verb == "CREATE":
                        raise errors.BucketExists(config.bucket) from exc
                    raise exc from None
                if verb == "CREATE":
                    differences = list(stream_differences(info.config, stream))
                    if {one.field for one in differences} <= _NOT_ASKED_FOR:
                        return info
                    raise errors.BucketExists(
                        config.bucket, [_in_words_of_buckets(*one) for one in differences]
                    ) from exc
                if info.config.allow_msg_ttl and not stream.allow_msg_ttl:
                    return await write_stream(
                        self._api, "UPDATE", stream.replace(allow_msg_ttl=True), False, timeout, what=what
                    )
                raise

    async def _change_bucket(
        self,
        partial: KeyValueConfig | ObjectStoreConfig,
        changes: Mapping[str, Any],
        prefix: str,
        subjects: str,
        timeout: Duration | None,
    ) -> StreamInfo:
        """Change the fields of a bucket's stream that these fields of the bucket set, and no others."""
        partial.to_stream()  # checks them before anything is sent
        config = (await self._bucket_info(prefix, subjects, partial.bucket, timeout)).config
        wanted = type(partial).from_stream(config).replace(**changes).to_stream()
        fields = {name: getattr(wanted, name) for change in changes for name in _STREAM_FIELDS.get(change, (change,))}
        if config.allow_msg_ttl:
            fields["allow_msg_ttl"] = True  # it cannot be unset
        with bucket_errors(partial.bucket):
            changed, what = with_changes(config, fields), f"{_KINDS[prefix]} {partial.bucket!r}"
            return await write_stream(self._api, "UPDATE", changed, False, timeout, what=what)

    async def _bucket_info(self, prefix: str, subjects: str, bucket: str, timeout: Duration | None) -> StreamInfo:
        endpoint = f"STREAM.INFO.{prefix}{check_bucket_name(bucket)}"
        with bucket_errors(bucket):
            info = await self._api.call_for(
                StreamInfo, endpoint, operation=f"{_KINDS[prefix]} {bucket!r}", timeout=timeout
            )
        check_bucket(bucket, info.config, prefix, subjects)
        return info

    async def _delete_bucket(self, prefix: str, bucket: str, timeout: Duration | None) -> None:
        endpoint = f"STREAM.DELETE.{prefix}{check_bucket_name(bucket)}"
        with bucket_errors(bucket):
            await self._api.call_expecting_success(
                endpoint, operation=f"delete {_KINDS[prefix]} {bucket!r}", timeout=timeout
            )
        self._api.streams.remove(prefix + bucket)


import_late_types(__name__)
