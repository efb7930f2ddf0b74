"""Making object stores, changing them and opening them (ADR-20).

Owns what the answers of the server mean to whoever thinks in stores. It keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from natsproto.errors import BucketNotFound, StreamNameInUse
from natsproto.jetstream._config import OBJECT_STREAM, OBJECT_SUBJECTS, ObjectStoreConfig, bucket_name, check_bucket
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._stream import write_stream
from natsproto.jetstream.objectstore._index import translate_errors
from natsproto.jetstream.objectstore._store import ObjectStore

if TYPE_CHECKING:
    from natsproto.jetstream._api import Api
    from natsproto.jetstream._codec import Duration


async def write(
    api: Api, verb: Literal["CREATE", "UPDATE"], config: ObjectStoreConfig, timeout: Duration | None
) -> ObjectStore:
    """Creates a store, or changes it to this whole configuration."""
    with translate_errors(config.bucket):
        info = await write_stream(api, verb, config.to_stream(), False, timeout)
    return ObjectStore(api, config.bucket, info)


async def create_or_update(api: Api, config: ObjectStoreConfig, timeout: Duration | None) -> ObjectStore:
    """Changes the store to this whole configuration, or creates it."""
    try:
        return await write(api, "UPDATE", config, timeout)
    except BucketNotFound:
        try:
            return await write(api, "CREATE", config, timeout)
        except StreamNameInUse:  # somebody else was faster
            return await write(api, "UPDATE", config, timeout)


async def opened(api: Api, bucket: str, bind: bool, timeout: Duration | None) -> ObjectStore:
    """The store of that name; with ``bind`` nothing is asked."""
    info = None
    if not bind:
        endpoint = f"STREAM.INFO.{OBJECT_STREAM}{bucket_name(bucket)}"
        with translate_errors(bucket):
            info = await api.get(StreamInfo, endpoint, asked=f"object store {bucket!r}", timeout=timeout)
        check_bucket(bucket, info.config, OBJECT_STREAM, OBJECT_SUBJECTS)
    return ObjectStore(api, bucket, info)


async def delete(api: Api, bucket: str, timeout: Duration | None) -> None:
    """Deletes a store with all it holds."""
    endpoint = f"STREAM.DELETE.{OBJECT_STREAM}{bucket_name(bucket)}"
    with translate_errors(bucket):
        await api.do(endpoint, asked=f"delete object store {bucket!r}", timeout=timeout)
