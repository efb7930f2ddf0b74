"""The object store (ADR-20): ``JetStream.create_object_store`` and ``JetStream.object_store`` give one."""

from natsproto._help import guesses as _guesses
from natsproto.jetstream.objectstore._index import ObjectStoreNotice
from natsproto.jetstream.objectstore._meta import ObjectInfo, ObjectLink, ObjectOptions
from natsproto.jetstream.objectstore._reader import ObjectReader
from natsproto.jetstream.objectstore._status import ObjectStoreStatus
from natsproto.jetstream.objectstore._store import ObjectStore
from natsproto.jetstream.objectstore._watch import ObjectWatcher

__all__ = [
    "ObjectInfo",
    "ObjectLink",
    "ObjectOptions",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreNotice",
    "ObjectStoreStatus",
    "ObjectWatcher",
]

_guesses.attach(__name__)
