"""Making buckets, changing them and opening them (ADR-8, ADR-48).

Owns what a bucket's configuration demands of the server, and what its answers mean. It keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from natsproto.errors import BucketNotFound, StreamNameInUse, StreamNotFound
from natsproto.jetstream._config import KV_STREAM, KV_SUBJECTS, KeyValueConfig, bucket_name, check_bucket
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._stream import write_stream
from natsproto.jetstream.kv._bucket import KeyValue

if TYPE_CHECKING:
    from natsproto.jetstream._api import Api
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream.kv._keys import KeyCodec


async def write(
    api: Api,
    verb: Literal["CREATE", "UPDATE"],
    config: KeyValueConfig,
    key_codec: KeyCodec | None,
    timeout: Duration | None,
) -> KeyValue[bytes]:
    """Creates a bucket, or changes it to this whole configuration."""
    try:
        info = await write_stream(api, verb, config.to_stream(), False, timeout)
    except StreamNotFound as exc:
        raise BucketNotFound(config.bucket) from exc
    return KeyValue.of(api, config.bucket, info, key_codec)


async def create_or_update(
    api: Api, config: KeyValueConfig, key_codec: KeyCodec | None, timeout: Duration | None
) -> KeyValue[bytes]:
    """Changes the bucket to this whole configuration, or creates it."""
    try:
        return await write(api, "UPDATE", config, key_codec, timeout)
    except BucketNotFound:
        try:
            return await write(api, "CREATE", config, key_codec, timeout)
        except StreamNameInUse:  # somebody else was faster
            return await write(api, "UPDATE", config, key_codec, timeout)


async def opened(
    api: Api, bucket: str, key_codec: KeyCodec | None, bind: bool, timeout: Duration | None
) -> KeyValue[bytes]:
    """The bucket of that name; with ``bind`` nothing is asked."""
    info = None
    if not bind:
        endpoint = f"STREAM.INFO.{KV_STREAM}{bucket_name(bucket)}"
        try:
            info = await api.get(StreamInfo, endpoint, asked=f"bucket {bucket!r}", timeout=timeout)
        except StreamNotFound as exc:
            raise BucketNotFound(bucket) from exc
        check_bucket(bucket, info.config, KV_STREAM, KV_SUBJECTS)
    return KeyValue.of(api, bucket, info, key_codec)


async def delete(api: Api, bucket: str, timeout: Duration | None) -> None:
    """Deletes a bucket with all it holds."""
    endpoint = f"STREAM.DELETE.{KV_STREAM}{bucket_name(bucket)}"
    try:
        await api.do(endpoint, asked=f"delete bucket {bucket!r}", timeout=timeout)
    except StreamNotFound as exc:
        raise BucketNotFound(bucket) from exc
