"""The blocking client has what the async one has, or a reason is given here: a verb added there is not forgotten."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

from natsproto import _client as client
from natsproto import service, sync, system
from natsproto._core.inbox import subscription
from natsproto.jetstream import _context as context
from natsproto.jetstream import _cursor as cursor
from natsproto.jetstream import advisories as advisory
from natsproto.jetstream import groups, kv, objectstore
from natsproto.jetstream._api import admin, listing
from natsproto.jetstream._consumer import consume, handle, message, messages
from natsproto.jetstream._consumer.ordered import ordered
from natsproto.jetstream._consumer.pull_options import PriorityArgs, ReadArgs
from natsproto.jetstream._consumer.push import push
from natsproto.jetstream._publish import ack_future, atomic_batch, publisher
from natsproto.jetstream._publish.fast import fast_batch
from natsproto.jetstream._stream import stream
from natsproto.protocol import frames

PAIRS: dict[type[object], type[object]] = {
    ack_future.AckFuture: sync.AckFuture,
    admin.Admin: sync.Admin,
    advisory.Advisories: sync.Advisories,
    cursor.Advance: sync.Advance,
    atomic_batch.AtomicBatch: sync.AtomicBatch,
    cursor.Cursor: sync.Cursor,
    client.Client: sync.Client,
    consume.ConsumeContext: sync.ConsumeContext,
    handle.PullConsumer: sync.PullConsumer,
    context.JetStream: sync.JetStream,
    fast_batch.FastPublisher: sync.FastPublisher,
    frames.Message: sync.Message,
    groups.JoinedMember: sync.JoinedMember,
    kv.KeyValue: sync.KeyValue,
    kv.KeyValueBatch: sync.KeyValueBatch,
    kv.KeyValueCache: sync.KeyValueCache,
    kv.KeyWatcher: sync.KeyWatcher,
    kv.Lock: sync.Lock,
    listing.Listing: sync.Listing,
    message.JsMessage: sync.JsMessage,
    objectstore.ObjectReader: sync.ObjectReader,
    objectstore.ObjectStore: sync.ObjectStore,
    objectstore.ObjectWatcher: sync.ObjectWatcher,
    ordered.OrderedConsumer: sync.OrderedConsumer,
    publisher.Publisher: sync.Publisher,
    push.PushConsumer: sync.PushConsumer,
    messages.Messages: sync.Messages,
    service.Endpoint: sync.Endpoint,
    service.Group: sync.Group,
    service.Request: sync.Request,
    service.ResponseStream: sync.ResponseStream,
    service.Service: sync.Service,
    stream.Stream: sync.Stream,
    subscription.Subscription: sync.Subscription,
    system.System: sync.System,
}

WHOLE = {
    "CacheUpdates": "cache.updates gives an iterator",
    "Connecting": "sync.connect connects, and its client is entered",
    "Connection": "what Client is made of",
    "Consumer": "what the consumers are made of",
    "ElasticGroup": "its members handle messages in callbacks",
    "Fetch": "fetch gives the list",
    "Member": "it handles messages in callbacks",
    "Options": "what the client is told, and asks itself",
    "StaticGroup": "its members handle messages in callbacks",
    "StoredMessages": "get_batch and get_last_messages give an iterator, which goes into the loop once for a batch",
    "TypedJetStream": "payloads are bytes: use natsproto.codecs around them",
    "WatchCallback": "there are no callbacks: iterate the watch in a thread",
}
"""Classes with verbs to wait for that have no counterpart."""

INSIDE = "for layers on top of the async client"
ON_THE_LOOP = "a callback would run on the loop's thread, where nothing may wait: iterate or wait in a thread"
BYTES = "payloads are bytes: use natsproto.codecs around them"
BATCHED = "iterating comes in batches by itself"
READ = "headers and reply say it; there it spares an object for each message"

PARTS = {
    "Client.wait_closed": "wait for the Closed event among events(), which has the reason",
    "Client.add_listener": ON_THE_LOOP,
    "Client.subscribe(executor)": ON_THE_LOOP,
    "Client.subscribe(timeout)": ON_THE_LOOP,
    **{
        f"{kind}.{name}(executor)": "requests are handled in threads anyway"
        for kind in ("Group", "Service")
        for name in ("add_endpoint", "endpoint")
    },
    "PullConsumer.consume_batches(concurrency)": "threads",
    "PullConsumer.consume_batches(executor)": "it has threads anyway",
    "PullConsumer.consume(concurrency)": "threads",
    "PullConsumer.consume(executor)": "it has threads anyway",
    "PullConsumer.consume(error_cb)": ON_THE_LOOP,
    **{f"PullConsumer.consume({name})": "among its options" for name in ReadArgs.__annotations__},
    **{f"PullConsumer.next({name})": "among its options" for name in PriorityArgs.__annotations__},
    "Client.typed": BYTES,
    "JetStream.connection": INSIDE,
    "JetStream.typed": BYTES,
    "JetStream.key_value(codec)": BYTES,
    "JetStream.key_value(kind)": BYTES,
    "JsMessage.ack_wait": INSIDE,
    "KeyValue.typed": BYTES,
    "KeyValue.stream": 'js.stream("KV_" + kv.bucket) is it',
    "KeyValue.watch(cb)": ON_THE_LOOP,
    "ObjectStore.watch(cb)": ON_THE_LOOP,
    "KeyWatcher.batches": BATCHED,
    "KeyWatcher.initial": "iterate until caught_up",
    "OrderedConsumer.consume": ON_THE_LOOP,
    "PushConsumer.consume": ON_THE_LOOP,
    "Subscription.batches": BATCHED,
    "Subscription.has_callback": "none has",
    "Subscription.pending_bytes": "what was taken over is not counted in bytes",
    **{
        f"{kind}.{name}": READ
        for kind in ("Message", "JsMessage", "Request")
        for name in ("has_headers", "has_reply", "is_no_responders")
        if hasattr({"Message": frames.Message, "JsMessage": message.JsMessage, "Request": service.Request}[kind], name)
    },
    "System.events": ON_THE_LOOP,
}
"""What a class has there and not here, and arguments in parentheses."""

BLOCKING = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
KEPT = ("__len__", "__getitem__", "__contains__")


def surface(kind: type[object]) -> set[str]:
    """The names that users of a class have, as a blocking class would call them."""
    special = {*BLOCKING, *BLOCKING.values(), *KEPT}
    listed = (name for name in dir(kind) if not name.startswith("_") or name in special)
    names = {BLOCKING.get(name, name) for name in listed if not only_explains(kind, name)}
    return {name for name in names if not name.endswith("_nowait")}  # threads wait


def only_explains(kind: type[object], name: str) -> bool:
    """True for what raises an error that says what to use instead."""
    member = inspect.getattr_static(kind, name)
    return not hasattr(kind, name) or getattr(member, "__annotations__", {}).get("return") == "NoReturn"


def arguments(kind: type[object], name: str) -> set[str]:
    """What a verb may be given; nothing for what is no function written here."""
    verb = inspect.getattr_static(kind, name, None)
    return set(inspect.signature(verb).parameters) - {"self"} if inspect.isfunction(verb) else set()


def lacking() -> Iterator[str]:
    for theirs, ours in PAIRS.items():
        for name in sorted(surface(theirs) - surface(ours)):
            yield f"{theirs.__name__}.{name}"
        for name in sorted(surface(theirs) & surface(ours)):
            if inspect.isfunction(inspect.getattr_static(ours, name, None)):  # the others have the very signature
                for argument in sorted(arguments(theirs, name) - arguments(ours, name)):
                    yield f"{theirs.__name__}.{name}({argument})"


def has_waits(kind: type[object]) -> bool:
    """Whether it has anything to wait for."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) or name in (*BLOCKING, "__await__")
        for base in kind.__mro__
        if base.__module__.startswith("natsproto")
        for name, member in vars(base).items()
        if not name.startswith("_") or name.startswith("__a")
    )


def test_verb_has_counterpart_or_reason() -> None:
    assert sorted(set(lacking()) - PARTS.keys()) == []


def test_no_superfluous_reasons() -> None:
    assert sorted(PARTS.keys() - set(lacking())) == []


@pytest.mark.parametrize(
    "module",
    [
        "natsproto",
        "natsproto.jetstream",
        "natsproto.jetstream.kv",
        "natsproto.jetstream.objectstore",
        "natsproto.service",
    ],
)
def test_async_class_has_counterpart_or_reason(module: str) -> None:
    listed = importlib.import_module(module)
    kinds = [value for value in (getattr(listed, name) for name in listed.__all__) if inspect.isclass(value)]
    without = [kind.__name__ for kind in kinds if has_waits(kind) and kind not in PAIRS]
    assert sorted(set(without) - WHOLE.keys()) == []


def test_what_is_public_here_is_compared() -> None:
    kinds = {value for value in (getattr(sync, name) for name in sync.__all__) if inspect.isclass(value)}
    assert kinds == set(PAIRS.values())


def test_a_verb_has_the_words_of_the_one_it_waits_for() -> None:
    assert sync.Stream.__dict__["purge"].__doc__ == stream.Stream.purge.__doc__
    assert sync.KeyValue.__dict__["put"].__doc__ == kv.KeyValue.put.__doc__
