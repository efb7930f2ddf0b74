"""natsproto for programs without an event loop: ``natsproto.sync.connect()`` returns a client whose verbs wait.

It wraps the async client, which runs on a thread of its own.
"""

from natsproto.sync._client import Client, connect
from natsproto.sync._consuming import JsMessage, Messages, OrderedConsumer, PullConsumer, PushConsumer
from natsproto.sync._jetstream import JetStream, Stream
from natsproto.sync._keyvalue import KeyValue, KeyValueBatch, KeyValueCache, KeyWatcher, Lock
from natsproto.sync._looking import Admin, Advisories, Listing, System
from natsproto.sync._messaging import Message, Subscription
from natsproto.sync._objects import ObjectReader, ObjectStore, ObjectWatcher
from natsproto.sync._publishers import AckFuture, AtomicBatch, FastPublisher, Publisher
from natsproto.sync._services import Endpoint, Group, Request, Service

__all__ = [
    "AckFuture",
    "Admin",
    "Advisories",
    "AtomicBatch",
    "Client",
    "Endpoint",
    "FastPublisher",
    "Group",
    "JetStream",
    "JsMessage",
    "KeyValue",
    "KeyValueBatch",
    "KeyValueCache",
    "KeyWatcher",
    "Listing",
    "Lock",
    "Message",
    "Messages",
    "ObjectReader",
    "ObjectStore",
    "ObjectWatcher",
    "OrderedConsumer",
    "Publisher",
    "PullConsumer",
    "PushConsumer",
    "Request",
    "Service",
    "Stream",
    "Subscription",
    "System",
    "connect",
]
