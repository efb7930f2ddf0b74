"""The blocking client, for programs without an event loop: ``natsproto.sync.connect()``.

It wraps the async client, which runs on an event loop in a thread of its own.
"""

from natsproto._help import guesses as _guesses
from natsproto.sync._admin import Admin, Advisories, Listing, System
from natsproto.sync._client import Client, connect
from natsproto.sync._consume import ConsumeContext
from natsproto.sync._consumers import JsMessage, Messages, OrderedConsumer, PullConsumer, PushConsumer
from natsproto.sync._cursor import Advance, Cursor
from natsproto.sync._groups import JoinedMember
from natsproto.sync._jetstream import JetStream, Stream
from natsproto.sync._keyvalue import KeyValue, KeyValueBatch, KeyValueCache, KeyWatcher, Lock
from natsproto.sync._objects import ObjectReader, ObjectStore, ObjectWatcher
from natsproto.sync._publishers import AckFuture, AtomicBatch, FastPublisher, Publisher
from natsproto.sync._services import Endpoint, Group, Request, ResponseStream, Service
from natsproto.sync._signals import stop_event
from natsproto.sync._subscription import Message, Subscription

__all__ = [
    "AckFuture",
    "Admin",
    "Advance",
    "Advisories",
    "AtomicBatch",
    "Client",
    "ConsumeContext",
    "Cursor",
    "Endpoint",
    "FastPublisher",
    "Group",
    "JetStream",
    "JoinedMember",
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
    "ResponseStream",
    "Service",
    "Stream",
    "Subscription",
    "System",
    "connect",
    "stop_event",
]

_guesses.attach(__name__)
