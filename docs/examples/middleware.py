"""Middleware around every handler: timing, authorization, the trace of a request.

Run it with ``python docs/examples/middleware.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
from contextvars import ContextVar
from time import perf_counter

import natsproto
from natsproto import Message
from natsproto.errors import ServiceError
from natsproto.jetstream import JsMessage
from natsproto.middleware import Call, with_middleware
from natsproto.service import Request
from natsproto.testing import run_server

user: ContextVar[str] = ContextVar("user")


class Timing:
    """Around any handler: count and time the calls."""

    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    async def __call__(self, message: Message, call: Call) -> None:
        began = perf_counter()
        try:
            await call()
        finally:
            self.calls += 1
            self.seconds += perf_counter() - began


async def authorized(request: Request, call: Call) -> None:
    """Around handlers of services: identify the user, or reject the request."""
    name = request.headers.get("User")
    if name is None:
        raise ServiceError(401, "who are you?")
    user.set(name)
    await call()


async def price(request: Request) -> None:
    await request.respond(f"5 euros for {user.get()}".encode())


async def pack(message: JsMessage) -> None:
    print(f"packing {message.data.decode()}")


async def main() -> None:
    """One Timing around an endpoint and a consumer."""
    timing = Timing()
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        async with nc.add_service("florist", "1.0.0") as service:
            service.add_endpoint("price", with_middleware(price, timing, authorized))
            reply = await nc.call("price", headers={"User": "ana"}, timeout=10)
            print(reply.data.decode())
            try:
                await nc.call("price", timeout=10)
            except ServiceError as error:
                print(f"refused: {error.description}")

        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>"])
        consumer = await stream.create_consumer("packing")
        await js.publish("orders.1", b"3 tulips")
        await consumer.consume(with_middleware(pack, timing), stop_after=1).run()
        print(f"{timing.calls} calls in {timing.seconds * 1000:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())

# prints: 5 euros for ana
# prints: refused: who are you?
# prints: packing 3 tulips
# prints: 3 calls in ... ms
