"""natsproto for programs without an event loop: ``natsproto.sync.connect()`` returns a client whose verbs wait.

It wraps the async client, which runs on a thread of its own.
"""

from natsproto.sync.client import Client, connect
from natsproto.sync.jetstream import JetStream, JsMessage, PullConsumer, Stream
from natsproto.sync.keyvalue import KeyValue, KeyWatcher
from natsproto.sync.messaging import Message, Subscription
from natsproto.sync.objects import ObjectReader, ObjectStore, ObjectWatcher

__all__ = [
    "Client",
    "JetStream",
    "JsMessage",
    "KeyValue",
    "KeyWatcher",
    "Message",
    "ObjectReader",
    "ObjectStore",
    "ObjectWatcher",
    "PullConsumer",
    "Stream",
    "Subscription",
    "connect",
]
