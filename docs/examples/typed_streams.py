"""Typed orders through a stream; an invalid one becomes a dead letter.

Run it with ``python docs/examples/typed_streams.py`` where ``natsproto[server]`` is installed.
"""

import asyncio
from dataclasses import dataclass

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, Retry, RetryPolicy
from natsproto.testing import run_server


@dataclass
class Order:
    flower: str
    amount: int


async def pack(order: Order, message: JsMessage) -> None:
    print(f"packing {order.amount} {order.flower}s of {message.subject}")


async def main() -> None:
    """Two orders, and an invalid message between them."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        orders = js.typed(Order)
        stream = await js.create_stream("ORDERS", subjects=["orders.>"])
        await js.create_stream("DEAD", subjects=["dead.>"])
        consumer = await stream.create_consumer("packing")

        await orders.publish("orders.eu", Order("rose", 5))
        await js.publish("orders.eu", b'{"flower": "tulip", "amount": "many"}')
        await orders.publish("orders.us", Order("tulip", 3))

        retry = Retry(js, RetryPolicy(dead_letter_subject="dead.orders"))
        await consumer.consume(with_middleware(orders.handler(pack), retry), stop_after=3).run()
        letter = DeadLetter.of(await (await js.stream("DEAD")).get_message(1))
        print(f"buried after {letter.attempts} attempt: {letter.data.decode()}")


if __name__ == "__main__":
    import logging

    logging.getLogger("natsproto").setLevel(logging.CRITICAL)  # an unreadable payload is logged with a traceback
    asyncio.run(main())

# prints: packing 5 roses of orders.eu
# prints: packing 3 tulips of orders.us
# prints: buried after 1 attempt: {"flower": "tulip", "amount": "many"}
