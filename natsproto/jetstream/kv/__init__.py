"""Key/value buckets on streams (ADR-8): ``js.create_key_value`` and ``js.key_value`` are the way in."""

from natsproto._help import guesses as _guesses
from natsproto.jetstream.kv._bucket import KeyValue, KeyValueBatch
from natsproto.jetstream.kv._cache import CacheUpdates, KeyValueCache
from natsproto.jetstream.kv._entry import KeyValueEntry, KeyValueNotice, Operation
from natsproto.jetstream.kv._keys import Base64Keys, KeyChain, KeyCodec, PathKeys, SubjectKeys
from natsproto.jetstream.kv._lock import Lock, LockBlocked
from natsproto.jetstream.kv._status import KeyValueStatus
from natsproto.jetstream.kv._watch import KeyWatcher

__all__ = [
    "Base64Keys",
    "CacheUpdates",
    "KeyChain",
    "KeyCodec",
    "KeyValue",
    "KeyValueBatch",
    "KeyValueCache",
    "KeyValueEntry",
    "KeyValueNotice",
    "KeyValueStatus",
    "KeyWatcher",
    "Lock",
    "LockBlocked",
    "Operation",
    "PathKeys",
    "SubjectKeys",
]

_guesses.attach(__name__)
