"""What a type checker knows of typed streams. Never run; mypy --strict reads it."""

from dataclasses import dataclass
from typing import assert_type

from natsproto import Client
from natsproto.jetstream import AckFuture, JsMessage, PubAck, Received, TypedJetStream
from natsproto.middleware import with_middleware
from natsproto.retry import Retry, RetryPolicy


@dataclass
class Order:
    flower: str


async def publishing(nc: Client) -> None:
    js = nc.jetstream()
    orders = js.typed(Order)
    assert_type(orders, TypedJetStream[Order])
    assert_type(await orders.publish("orders.eu", Order("rose"), msg_id="1"), PubAck)
    await orders.publish("orders.eu", b"rose")  # type: ignore[arg-type]
    await orders.publish("orders.eu", Order("rose"), id="1")  # type: ignore[call-arg]
    async with js.publisher() as publisher:
        send = orders.sender(publisher.publish)
        assert_type(await send("orders.eu", Order("rose"), msg_id="1"), AckFuture)
        await send("orders.eu", b"rose")  # type: ignore[arg-type]
        await send("orders.eu", Order("rose"), id="1")  # type: ignore[call-arg]
    async with js.atomic_batch() as batch:
        await orders.sender(batch.publish)("orders.eu", Order("rose"))
    async with js.fast_publisher() as fast:
        assert_type(await orders.sender(fast.publish)("orders.eu", Order("rose")), int)


async def reading(nc: Client) -> None:
    js = nc.jetstream()
    orders = js.typed(Order)
    stream = await js.stream("ORDERS")
    consumer = await stream.consumer("packing")
    retry = Retry(js, RetryPolicy(dead_letter_subject="dead"))
    async with consumer.messages() as messages:
        async for order, message in orders.read(messages, on_invalid=retry.failed):
            assert_type(order, Order)
            assert_type(message, JsMessage)
    async for received in orders.read(consumer.fetch(10)):
        assert_type(received, Received[Order])
    assert_type(await orders.read_all(await consumer.fetch(10)), list[Received[Order]])
    async with stream.ordered_consumer() as ordered, ordered.messages() as in_order:
        async for order, _ in orders.read(in_order):
            assert_type(order.flower, str)

    async def pack(order: Order, message: JsMessage) -> None: ...

    async def wrong(order: str, message: JsMessage) -> None: ...

    await consumer.consume(orders.handler(pack)).run()
    await consumer.consume(with_middleware(orders.handler(pack), retry)).run()
    orders.handler(wrong)  # type: ignore[arg-type]
