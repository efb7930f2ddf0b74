"""What a type checker knows of the blocking client. Never run; mypy --strict reads it."""

from typing import assert_type

from natsproto import Message, State, sync
from natsproto.jetstream.info import PubAck, StreamInfo
from natsproto.jetstream.message import Metadata
from natsproto.service import ServiceInfo


def core() -> None:
    with sync.connect("nats://127.0.0.1:4222", name="typed") as nc:
        assert_type(nc, sync.Client)
    nc.publish("a", b"1", headers={"A": "b"})
    nc.publish("a", "text")  # type: ignore[arg-type]
    assert_type(nc.request("a", b"1", timeout=1), Message)
    nc.request("a", timout=1)  # type: ignore[call-arg]
    for reply in nc.request_many("a", max_wait=1, sentinel="empty"):
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
