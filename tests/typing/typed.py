"""What a type checker knows of typed messages. Never run; mypy --strict reads it."""

from dataclasses import dataclass
from typing import Literal, TypeVar, assert_type

from natsproto import Client, Message, Subscription
from natsproto.codecs import JSON, Codec, msgpack, msgspec, pydantic
from natsproto.jetstream import TypedJetStream
from natsproto.jetstream.kv import KeyValue
from natsproto.typed import Typed, TypedMessage

T = TypeVar("T")


@dataclass
class Order:
    flower: str


@dataclass
class Bill:
    total: float


class Upper:
    """A codec of one's own."""

    def encode(self, value: object) -> bytes:
        return str(value).encode()

    def decode(self, payload: bytes, kind: type[T]) -> T:
        return kind()


async def one_type(nc: Client) -> None:
    orders = nc.typed(Order)
    assert_type(orders, Typed[Order, Order])
    await orders.publish("orders.eu", Order("rose"))
    await orders.publish("orders.eu", b"rose")  # type: ignore[arg-type]
    orders.publish_nowait("orders.eu", Bill(5))  # type: ignore[arg-type]
    sub = await orders.subscribe("orders.*")
    assert_type(sub, Subscription[TypedMessage[Order]])
    assert_type(await sub.next(), TypedMessage[Order])
    async for message in sub:
        assert_type(message.value, Order)
        assert_type(message.data, bytes)
    async for batch in sub.batches():
        assert_type(batch, list[TypedMessage[Order]])
    async with orders.subscribe("orders.*") as entered:
        assert_type((await entered.next()).value.flower, str)
    without_argument(entered)
    assert_type(orders.encode(Order("rose")), bytes)
    assert_type(orders.decode(b""), Order)


def without_argument(sub: Subscription) -> None:
    assert_type(sub, Subscription[Message])


async def unions(nc: Client) -> None:
    orders = nc.typed(Order | Bill)
    assert_type(orders, Typed[Order | Bill, Order | Bill])
    await orders.publish("orders.eu", Bill(5))
    await orders.publish("orders.eu", "rose")  # type: ignore[arg-type]
    assert_type(orders.decode(b""), Order | Bill)
    assert_type(nc.typed(Order, Bill | None), Typed[Order, Bill | None])
    assert_type(nc.typed(Literal["on", "off"]), Typed[Literal["on", "off"], Literal["on", "off"]])
    assert_type(nc.typed(list[Order | Bill]), Typed[list[Order | Bill], list[Order | Bill]])
    assert_type(nc.jetstream().typed(Order | Bill), TypedJetStream[Order | Bill])
    assert_type((await nc.jetstream().key_value("b")).typed(Order | None), KeyValue[Order | None])
    assert_type(JSON.decode(b"", Order | Bill), Order | Bill)
    nc.typed(5)  # type: ignore[call-overload]


async def two_types(nc: Client) -> None:
    prices = nc.typed(Order, Bill, codec=msgpack())
    assert_type(prices, Typed[Order, Bill])
    reply = await prices.request("price", Order("rose"), timeout=1)
    assert_type(reply.value, Bill)
    async for one in prices.request_many("price", Order("rose")):
        assert_type(one.value.total, float)

    async def price(order: Order) -> Bill:
        return Bill(len(order.flower))

    def wrong(order: Order) -> Order:
        return order

    nc.subscribe("price", cb=prices.handler(price))
    nc.subscribe("price", cb=prices.handler(lambda order: Bill(len(order.flower))))
    prices.handler(wrong)  # type: ignore[arg-type]
    service = await nc.add_service("prices", "1.0.0")
    service.endpoint("price")(prices.handler(price))


async def codecs(nc: Client) -> None:
    codec: Codec
    for codec in (JSON, pydantic(), msgspec(), msgspec("msgpack"), msgpack()):
        assert_type(nc.typed(list[int], codec=codec), Typed[list[int], list[int]])
    nc.typed(dict[str, Order], codec=Upper())
    nc.typed(Order, codec="json")  # type: ignore[call-overload]
    assert_type(JSON.decode(b"[]", list[int]), list[int])
