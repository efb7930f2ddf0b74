"""What a type checker knows of the blocking client. Never run; mypy --strict reads it."""

from typing import assert_type

from natsproto import Message, State, sync
from natsproto.jetstream import ConsumerInfo, PubAck, RawMessage, StreamInfo
from natsproto.jetstream._consumer.ack_subject import Metadata
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.jetstream.objectstore import ObjectInfo
from natsproto.service import ServiceInfo


def core() -> None:
    with sync.connect("nats://127.0.0.1:4222", name="typed") as nc:
        assert_type(nc, sync.Client)
    nc.publish("a", b"1", headers={"A": "b"})
    nc.publish("a", "text")  # type: ignore[arg-type]
    assert_type(nc.request("a", b"1", timeout=1), Message)
    nc.request("a", timout=1)  # type: ignore[call-arg]
    for reply in nc.request_many("a", timeout=1, sentinel="empty"):
        assert_type(reply, Message)
    assert_type(nc.rtt(), float)
    assert_type(nc.state, State)
    sub = nc.subscribe("a", queue="q")
    assert_type(sub, sync.Subscription)
    assert_type(sub.next(timeout=1), sync.Message)
    for message in sub:
        assert_type(message.data, bytes)
        message.respond(b"x")
    for info in nc.discover_services("calc"):
        assert_type(info, ServiceInfo)


def jetstream(nc: sync.Client) -> None:
    js = nc.jetstream(domain="hub", timeout=1)
    assert_type(js, sync.JetStream)
    assert_type(js.publish("a", b"1", msg_id="1", expected_last_seq=3), PubAck)
    js.publish("a", msgid="1")  # type: ignore[call-arg]
    stream = js.create_stream(name="S", subjects=["s.>"])
    assert_type(stream, sync.Stream)
    assert_type(stream.info(), StreamInfo)
    consumer = stream.create_consumer(durable_name="d")
    assert_type(consumer, sync.PullConsumer)
    assert_type(consumer.fetch(5), list[sync.JsMessage])
    assert_type(consumer.next(timeout=1), sync.JsMessage)
    for message in consumer.messages():
        assert_type(message.metadata, Metadata)
        message.ack()
    for name in js.stream_names():
        assert_type(name, str)


def publishers(nc: sync.Client) -> None:
    js = nc.jetstream()
    with js.publisher(max_pending=10) as publisher:
        assert_type(publisher, sync.Publisher)
        future = publisher.publish("a", b"1", msg_id="1", expected_last_seq=3)
        assert_type(future, sync.AckFuture)
        assert_type(future.result(timeout=1), PubAck)
        publisher.publish("a", b"1", msgid="1")  # type: ignore[call-arg]
    with js.fast_publisher(gap="ok") as fast:
        assert_type(fast.publish("a"), int)
        assert_type(fast.commit("a"), PubAck)
    with js.atomic_batch() as batch:
        assert_type(batch, sync.AtomicBatch)
        assert_type(batch.ack, PubAck)
        batch.publish("a", ttl=5)
        batch.publish("a", tll=5)  # type: ignore[call-arg]


def readers(stream: sync.Stream) -> None:
    with stream.ordered_consumer(start_seq=5) as ordered:
        assert_type(ordered.fetch(5), list[sync.JsMessage])
    consumer = stream.consumer("d")
    with consumer.messages(prefetch=5) as messages:
        assert_type(messages, sync.Messages)
        message = messages.next(timeout=1)
        with message.keep_alive():
            assert_type(consumer.next(acking=message), sync.JsMessage)
        for batch in messages.batches(100, max_wait=0.5):
            assert_type(batch, list[sync.JsMessage])

    def on_rows(rows: list[sync.JsMessage]) -> None: ...

    def on_row(row: sync.JsMessage) -> None: ...

    with consumer.consume_batches(on_rows, max_wait=0.1, threads=2) as work:
        assert_type(work, sync.ConsumeContext)
    consumer.consume_batches(on_row)  # type: ignore[arg-type]
    for info in stream.consumers():
        assert_type(info, ConsumerInfo)
    for raw in stream.get_batch(subject="a"):
        assert_type(raw, RawMessage)


def services(nc: sync.Client) -> None:
    with nc.add_service("calc", "1.0.0") as service:
        assert_type(service, sync.Service)

        @service.group("v1").endpoint("double")
        def double(request: sync.Request) -> None:
            assert_type(request.data, bytes)
            request.respond_error(400, "no")

        service.add_endpoint("wrong", lambda: None)  # type: ignore[arg-type, misc]


def buckets(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="b", history=5)
    assert_type(kv, sync.KeyValue)
    assert_type(js.key_value("b"), sync.KeyValue)
    assert_type(kv.put("a", b"1"), int)
    kv.put("a", 1)  # type: ignore[arg-type]
    kv.put("a", b"1", til=5)  # type: ignore[call-arg]
    assert_type(kv.get("a", revision=1), KeyValueEntry[bytes])
    assert_type(kv.keys("a.>"), list[str])
    assert_type(kv.history("a"), list[KeyValueEntry[bytes]])
    with kv.watch("a.>", ignore_deletes=True) as watcher:
        assert_type(watcher, sync.KeyWatcher)
        for entry in watcher:
            assert_type(entry.value, bytes)
    with kv.lock("leader", ttl=5) as lock:
        assert_type(lock.put("a", b"1"), int)
    with kv.cache() as cache:
        assert_type(cache["a"], bytes)
        assert_type(cache.get("a"), bytes | None)
    with kv.atomic() as batch:
        batch.update("a", b"1", 1)
    assert_type(batch.revisions, dict[str, int])


def objects(js: sync.JetStream) -> None:
    store = js.create_object_store(bucket="o")
    assert_type(store, sync.ObjectStore)
    assert_type(store.put("a", [b"1", b"2"]), ObjectInfo)
    store.put("a", b"text", timout=1)  # type: ignore[call-arg]
    assert_type(store.get_bytes("a"), bytes)
    with store.get("a", offset=1) as content:
        for chunk in content:
            assert_type(chunk, bytes)
    assert_type(store.list(), list[ObjectInfo])
    with store.watch() as watcher:
        assert_type(watcher.next(timeout=1), ObjectInfo)
