"""Typed streams: values through every publisher and consumer, and payloads that do not fit end nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from natsproto import Client, Event, HandlerFailed
from natsproto.errors import ConfigError, InvalidPayload
from natsproto.jetstream import JetStream, JsMessage, Stream
from natsproto.jetstream.groups import ElasticGroup
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, Retry, RetryPolicy


@dataclass
class Order:
    number: int
    flower: str = "rose"


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    await jetstream.create_stream(name="DEAD", subjects=["dead.>"])
    return await jetstream.create_stream(name="ORDERS", subjects=["orders.>"], allow_atomic=True, allow_batched=True)


async def publish_orders(js: JetStream) -> None:
    """1, then one that does not fit, then 2."""
    orders = js.typed(Order)
    await orders.publish("orders.1", Order(1))
    await js.publish("orders.bad", b'{"number": "one"}')
    await orders.publish("orders.2", Order(2))


async def test_every_publisher_sends_values(jetstream: JetStream, stream: Stream) -> None:
    orders = jetstream.typed(Order)
    ack = await orders.publish("orders.1", Order(1), msg_id="1", headers={"Tag": "a"})
    assert ack.seq == 1
    async with jetstream.publisher() as publisher:
        await orders.sender(publisher.publish)("orders.2", Order(2), msg_id="2")
    async with jetstream.atomic_batch() as batch:
        await orders.sender(batch.publish)("orders.3", Order(3))
        await batch.commit()
    async with jetstream.fast_publisher() as fast:
        await orders.sender(fast.publish)("orders.4", Order(4))
    with pytest.raises(InvalidPayload):
        await orders.publish("orders.5", object())  # type: ignore[arg-type]
    consumer = await stream.create_consumer(durable_name="c")
    received = await orders.read_all(await consumer.fetch(4, timeout=20))
    assert [one.value for one in received] == [Order(1), Order(2), Order(3), Order(4)]
    assert received[0].message.headers["Tag"] == "a"


@pytest.mark.parametrize("how", ["messages", "fetch", "ordered", "push"])
async def test_every_reader_gives_values_and_skips_the_rest(
    jetstream: JetStream, stream: Stream, nats_client: Client, how: str
) -> None:
    events: list[Event] = []
    nats_client.add_listener(events.append)
    await publish_orders(jetstream)
    orders, found = jetstream.typed(Order), list[Order]()
    if how == "ordered":
        async with stream.ordered_consumer() as ordered, ordered.messages(stop_after=3) as messages:
            found = [order async for order, _ in orders.read(messages)]
    elif how == "push":
        pushed = await stream.create_push_consumer(durable_name="c")
        async with pushed.messages(stop_after=3) as messages:
            found = [order async for order, _ in orders.read(messages)]
    else:
        consumer = await stream.create_consumer(durable_name="c")
        if how == "fetch":
            found = [order async for order, _ in orders.read(consumer.fetch(3, timeout=20))]
        else:
            async with consumer.messages(stop_after=3) as messages:
                found = [order async for order, _ in orders.read(messages)]
    assert found == [Order(1), Order(2)]
    [reported] = [event for event in events if isinstance(event, HandlerFailed)]
    assert isinstance(reported.error, InvalidPayload)
    assert "orders.bad" in reported.handler


async def test_payload_that_does_not_fit_is_buried(jetstream: JetStream, stream: Stream, nats_client: Client) -> None:
    await publish_orders(jetstream)
    orders, retry = jetstream.typed(Order), Retry(jetstream, RetryPolicy(dead_letter_subject="dead.orders"))
    reader = await stream.create_consumer(durable_name="reader")
    async with reader.messages(stop_after=3) as messages:
        async for _, message in orders.read(messages, on_invalid=retry.failed):
            await message.ack()
    handled: list[Order] = []

    def handle(order: Order, message: JsMessage) -> None:
        handled.append(order)

    consumer = await stream.create_consumer(durable_name="consumer")
    await consumer.consume(with_middleware(orders.handler(handle), retry), stop_after=3).run()
    assert handled == [Order(1), Order(2)]
    letters = [DeadLetter.of(one) async for one in (await jetstream.stream("DEAD")).get_batch()]
    assert [(letter.consumer, letter.subject, letter.attempts) for letter in letters] == [
        ("reader", "orders.bad", 1), ("consumer", "orders.bad", 1),
    ]  # fmt: skip
    assert {letter.error_type for letter in letters} == {"natsproto.errors.InvalidPayload"}
    await nats_client.flush()
    for each in (reader, consumer):
        info = await each.info()
        assert (info.num_pending, info.num_ack_pending) == (0, 0)


async def test_members_of_a_group_handle_values(jetstream: JetStream, stream: Stream) -> None:
    orders, handled, done = jetstream.typed(Order), list[Order](), asyncio.Event()

    async def handle(order: Order, message: JsMessage) -> None:
        handled.append(order)
        if len(handled) == 2:
            done.set()

    group = await ElasticGroup.create(jetstream, "ORDERS", "g", max_members=1, filters={"orders.*": [1]})
    await group.add_members("a")
    retry = Retry(jetstream, RetryPolicy(dead_letter_subject="dead.orders"))
    async with group.consume("a", with_middleware(orders.handler(handle), retry)):
        await publish_orders(jetstream)
        await done.wait()
    assert sorted(order.number for order in handled) == [1, 2]


async def test_without_a_policy_it_is_delivered_again(jetstream: JetStream, stream: Stream) -> None:
    await jetstream.publish("orders.bad", b"?")
    consumer = await stream.create_consumer(durable_name="c")
    assert await jetstream.typed(Order).read_all(await consumer.fetch(1, timeout=20)) == []
    message = await consumer.next(timeout=60)
    assert message.metadata.num_delivered == 2


def test_what_is_no_codec_is_refused(jetstream: JetStream) -> None:
    with pytest.raises(ConfigError):
        jetstream.typed(Order, codec=object())  # type: ignore[call-overload]


class Careless:
    """A codec of one's own that does not know InvalidPayload."""

    def encode(self, value: object) -> bytes:
        raise KeyError("no value")

    def decode(self, payload: bytes, kind: object) -> Any:
        return {b"1": Order(1), b"2": Order(2)}[payload]


async def test_a_careless_codec_ends_no_reader(jetstream: JetStream, stream: Stream) -> None:
    for payload in (b"1", b"odd", b"2"):
        await jetstream.publish("orders.1", payload)
    orders = jetstream.typed(Order, codec=Careless())
    consumer = await stream.create_consumer(durable_name="c")
    received = await orders.read_all(await consumer.fetch(3, timeout=20))
    assert [one.value.number for one in received] == [1, 2]
    with pytest.raises(InvalidPayload, match="no value"):
        await orders.publish("orders.1", Order(1))


async def test_a_type_that_cannot_be_read_is_refused(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value("b")
    for make in (jetstream.typed, kv.typed, nats_client.typed, lambda kind: nats_client.typed(Order, kind)):
        with pytest.raises(ConfigError, match="JSON has no bytes"):
            make(bytes)
