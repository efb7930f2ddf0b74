"""Values instead of bytes, on a real server."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from natsproto._core.events import HandlerFailed
from natsproto.codecs import JSON, TypedCodec, msgpack
from natsproto.errors import ConfigError, InvalidPayload, InvalidSubject, NoResponders, ServiceError
from natsproto.protocol.frames import Message
from natsproto.testing import Server
from natsproto.typed import TypedMessage
from tests.kit.waiting import until
from tests.kit.watch import Watch
from tests.server.helpers import also_uvloop, client


@dataclass
class FlowerOrder:
    flower: str
    amount: int


@dataclass
class Bill:
    total: float


@also_uvloop
async def test_values_travel_through_every_verb(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        for codec in (JSON, msgpack()):
            orders = nc.typed(FlowerOrder, codec=codec)
            async with orders.subscribe("orders.*") as sub, nc.subscribe("orders.*") as raw:
                await orders.publish("orders.eu", FlowerOrder("rose", 5), reply="r", headers={"A": "b"})
                orders.publish_nowait("orders.us", FlowerOrder("tulip", 6))
                message = await sub.next(timeout=5)
                assert message.value == FlowerOrder("rose", 5)
                assert message.value is message.value
                assert (message.subject, message.reply, message.headers["A"]) == ("orders.eu", "r", "b")
                assert message.data == codec.encode(FlowerOrder("rose", 5)) == (await raw.next(timeout=5)).data
                assert [m.value for m in await anext(sub.batches())] == [FlowerOrder("tulip", 6)]
        got: list[FlowerOrder] = []
        await orders.subscribe("called", cb=lambda message: got.append(message.value), max_messages=2)
        for number in range(2):
            await orders.publish("called", FlowerOrder("rose", number))
        await until(lambda: len(got) == 2)
        assert got == [FlowerOrder("rose", 0), FlowerOrder("rose", 1)]


@also_uvloop
async def test_a_request_has_one_type_and_its_reply_another(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        prices = nc.typed(FlowerOrder, Bill)

        @prices.handler
        async def price(order: FlowerOrder) -> Bill:
            """What it costs."""
            return Bill(order.amount * 2.5)

        @prices.handler
        def double(order: FlowerOrder) -> Bill:
            return Bill(order.amount * 5)

        assert (price.__name__, price.__doc__) == ("price", "What it costs.")
        await nc.subscribe("price", cb=price)
        await nc.subscribe("price", cb=double)
        reply = await prices.request("price", FlowerOrder("rose", 2), timeout=5, headers={"A": "b"})
        assert isinstance(reply.value, Bill)
        bills = [
            m.value.total async for m in prices.request_many("price", FlowerOrder("rose", 2), timeout=5, max_messages=2)
        ]
        assert sorted(bills) == [5.0, 10.0]
        with pytest.raises(NoResponders):
            await prices.request("nobody", FlowerOrder("rose", 2), timeout=5)
        with pytest.raises(InvalidSubject):
            prices.request_many("a.>", FlowerOrder("rose", 2))
        await nc.publish("price", JSON.encode(FlowerOrder("rose", 2)))  # asks for no answer, and gets none


@also_uvloop
async def test_bad_payload_raises_only_when_read(nats_server: Server) -> None:
    watch = Watch()
    async with client(nats_server.url, on_event=watch) as nc:
        orders = nc.typed(FlowerOrder)
        async with orders.subscribe("orders") as sub:
            await nc.publish("orders", b"nonsense")
            await orders.publish("orders", FlowerOrder("rose", 1))
            broken = await sub.next(timeout=5)
            for _ in range(2):
                with pytest.raises(InvalidPayload, match="cannot decode FlowerOrder"):
                    broken.value  # noqa: B018
            assert broken.data == b"nonsense"
            assert (await sub.next(timeout=5)).value == FlowerOrder("rose", 1)
        got: list[FlowerOrder] = []

        @orders.handler
        def keep(order: FlowerOrder) -> FlowerOrder:
            got.append(order)
            return order

        await nc.subscribe("handled", cb=keep)
        await nc.publish("handled", b"nonsense")
        await orders.publish("handled", FlowerOrder("rose", 1))
        await until(lambda: got)
        assert isinstance(watch.all(HandlerFailed)[0].error, InvalidPayload)
        with pytest.raises(InvalidPayload, match="cannot encode"):
            await orders.publish("orders", object())  # type: ignore[arg-type]


@also_uvloop
async def test_endpoints_take_and_give_values(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        prices = nc.typed(FlowerOrder, Bill)
        async with nc.add_service("prices", "1.0.0") as service:

            @service.endpoint()
            @prices.handler
            async def price(order: FlowerOrder) -> Bill:
                if order.flower != "rose":
                    raise ServiceError(404, f"we have no {order.flower}")
                return Bill(order.amount * 2.5)

            assert (await prices.request("price", FlowerOrder("rose", 2), timeout=5)).value == Bill(5)
            with pytest.raises(ServiceError, match="we have no tulip") as raised:
                await prices.request("price", FlowerOrder("tulip", 2), timeout=5)
            assert raised.value.code == 404
            with pytest.raises(ServiceError, match="cannot decode FlowerOrder") as raised:
                await nc.call("price", b"{}", timeout=5)
            assert raised.value.code == 400
            assert service.stats().endpoints[0].num_errors == 2


@also_uvloop
async def test_union_types_and_plain_messages(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        numbers = nc.typed(list[int])
        assert numbers.decode(numbers.encode([1, 2])) == [1, 2]
        assert repr(numbers) == "Typed(list[int], list[int], JSON)"
        message = Message("a", b"r", b"[5]", b"NATS/1.0\r\nA: b\r\n\r\n")
        typed: TypedMessage[list[int]] = TypedMessage._of(message, TypedCodec(list[int], numbers.codec))
        assert (typed.value, typed.reply, typed.headers["A"]) == ([5], "r", "b")
        with pytest.raises(ConfigError, match="has no method decode"):
            nc.typed(FlowerOrder, codec="json")  # type: ignore[call-overload]
