"""Middleware around handlers of subscriptions, consumers and services, on a real server."""

from __future__ import annotations

import asyncio

import pytest

from natsproto import Client, HandlerFailed, Message
from natsproto.errors import ServiceError
from natsproto.jetstream import JetStream, JsMessage
from natsproto.middleware import Call, Middleware, with_middleware
from natsproto.service import Request
from tests.kit.acknowledged import until_all_acknowledged


class Marks:
    """Middleware that notes when it is entered and left."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def __call__(self, message: Message, call: Call) -> None:
        self.seen.append(f"{self.name} in")
        try:
            await call()
        except ValueError as exc:
            self.seen.append(f"{self.name} saw {exc}")
            raise
        finally:
            self.seen.append(f"{self.name} out")


ORDER = ["a in", "b in", "handler", "b out", "a out"]


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_subscription_middleware_order(nats_client: Client, kind: str) -> None:
    seen: list[str] = []
    done = asyncio.Event()

    def handle(message: Message) -> None:
        seen.append("handler")

    async def handle_later(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append("handler")

    async def last(message: Message, call: Call) -> None:
        await call()
        done.set()

    inner = handle if kind == "def" else handle_later
    await nats_client.subscribe("a", cb=with_middleware(inner, last, Marks("a", seen), Marks("b", seen)))
    await nats_client.publish("a")
    await done.wait()
    assert seen == ORDER


async def test_consumer_middleware_sees_errors_and_acks(jetstream: JetStream) -> None:
    seen: list[str] = []
    stream = await jetstream.create_stream(name="S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="c")
    for payload in (b"good", b"bad", b"skipped"):
        await jetstream.publish("s", payload)

    async def handle(message: JsMessage) -> None:
        if message.data == b"bad" and message.metadata.num_delivered == 1:
            raise ValueError("bad")
        seen.append(message.data.decode())

    async def skip(message: JsMessage, call: Call) -> None:
        if message.data != b"skipped":
            await call()

    handler = with_middleware(handle, skip, Marks("a", seen))
    consumption = consumer.consume(handler, stop_after=4, nak_delay=0, on_success="ack_sync")
    await consumption.run()
    assert seen == ["a in", "good", "a out", "a in", "a saw bad", "a out", "a in", "bad", "a out"]
    assert (consumption.handled, consumption.failed) == (4, 1)
    await until_all_acknowledged(consumer)


async def test_middleware_of_a_service_may_refuse(nats_client: Client) -> None:
    async def authorized(request: Request, call: Call) -> None:
        if request.headers.get("Token") != "key":
            raise ServiceError(401, "who are you?")
        await call()

    async def answer(request: Request) -> None:
        await request.respond(b"42")

    async with nats_client.add_service("calc", "1.0.0") as service:
        endpoint = service.add_endpoint("answer", with_middleware(answer, authorized))
        assert (await nats_client.call("answer", headers={"Token": "key"}, timeout=20)).data == b"42"
        with pytest.raises(ServiceError, match="who are you"):
            await nats_client.call("answer", timeout=20)
        assert endpoint.stats().num_errors == 1


async def test_failing_middleware_is_reported_like_a_handler(nats_client: Client) -> None:
    async def broken(message: Message, call: Call) -> None:
        raise LookupError("broken")

    handler = with_middleware(lambda message: None, broken)
    reported = asyncio.Event()
    nats_client.add_listener(lambda event: reported.set() if isinstance(event, HandlerFailed) else None)
    await nats_client.subscribe("a", cb=handler)
    await nats_client.publish("a")
    await reported.wait()


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(TypeError):
        with_middleware(print, "no")  # type: ignore[call-overload]


def test_handler_with_middleware_keeps_its_name() -> None:
    def price(message: Message) -> None:
        """The price."""

    made = with_middleware(price, Marks("a", []))
    assert (made.__name__, made.__doc__) == ("price", "The price.")


def test_middleware_for_messages_fits_every_handler() -> None:
    """Read by mypy: one for any Message goes around handlers of kinds of it, and not the other way round."""

    async def of_stream(message: JsMessage, call: Call) -> None: ...

    async def handle(message: JsMessage) -> None: ...

    def any_message(message: Message) -> None: ...

    marks: Middleware[Message] = Marks("a", [])
    with_middleware(handle, marks, of_stream)
    with_middleware(any_message, marks)
    wrong: Middleware[Message] = of_stream  # type: ignore[assignment]
    assert wrong is of_stream
