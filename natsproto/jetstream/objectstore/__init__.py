"""The object store (ADR-20): ``JetStream.create_object_store`` and ``JetStream.object_store`` give one."""

from natsproto.jetstream.objectstore.meta import ObjectInfo, ObjectLink, ObjectOptions
from natsproto.jetstream.objectstore.reader import ObjectReader
from natsproto.jetstream.objectstore.status import ObjectStoreStatus
from natsproto.jetstream.objectstore.store import ObjectStore
from natsproto.jetstream.objectstore.watch import ObjectWatcher

__all__ = [
    "ObjectInfo",
    "ObjectLink",
    "ObjectOptions",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreStatus",
    "ObjectWatcher",
]
