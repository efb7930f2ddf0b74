"""A worker as it runs in production: retries, dead letters, an orderly end at SIGTERM, and every order shipped once.

Its server is killed in the middle. Run it with ``python docs/examples/orders.py``.
"""

import asyncio
import logging
import signal
import sys
from collections import Counter
from dataclasses import dataclass

import natsproto
from natsproto.jetstream import JetStream, JsMessage
from natsproto.middleware import with_middleware
from natsproto.retry import DeadLetter, Retry, RetryPolicy
from natsproto.testing import run_server

ORDERS = 500
ATTEMPTS = 3


@dataclass
class Order:
    """An order."""

    number: int
    flower: str


async def work(url: str) -> None:
    """In production a separate program: handle orders until SIGTERM."""
    stop = natsproto.stop_event()  # set by SIGTERM or Ctrl-C

    # Running handlers have drain_timeout to finish: less than the time until SIGKILL.
    async with natsproto.connect(url, name="worker", drain_timeout=20) as nc:
        js = nc.jetstream(timeout=10)  # seconds that publishing may take, an outage included
        orders = nc.typed(Order)

        async def ship(message: JsMessage) -> None:
            order = orders.decode(message.data)
            if order.flower == "cactus":
                raise ValueError("nobody dares to wrap it")
            # A message that may be published twice has an id, and is stored once.
            await js.publish("shipped.eu", message.data, msg_id=f"ship-{order.number}")

        # A failed message is retried with growing delays, and finally becomes a dead letter.
        retry = Retry(js, RetryPolicy(dead_letter_subject="dead.eu", max_attempts=ATTEMPTS, first_delay=0.1))
        stream = await js.stream("ORDERS")
        consumer = await stream.create_consumer("shipping", ack_wait=2, max_ack_pending=200)
        # A message that the handler has not acknowledged is acknowledged when it returns.
        shipping = consumer.consume(with_middleware(ship, retry), concurrency=16, prefetch=100)
        # Until SIGTERM: then running calls finish, and waiting messages go back. Raises if the consumer is deleted.
        await shipping.run(until=stop)
        print(f"an orderly end: {'nothing' if shipping.in_progress == 0 else 'something'} in progress")


async def publish(js: JetStream, nc: natsproto.Client) -> None:
    """Publish many orders, a window at a time. With ids, an outage only takes time."""
    orders = nc.typed(Order)
    async with js.publisher(max_pending=50, timeout=10) as window:
        for number in range(ORDERS):
            order = Order(number, "cactus" if number % 100 == 99 else "rose")
            await window.publish("orders.eu", orders.encode(order), msg_id=f"order-{number}")
    print(f"{window.acknowledged} orders taken")


async def main() -> None:
    """Runs the worker, kills the server under it, and counts."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        for name in ("orders", "shipped", "dead"):
            await js.create_stream(name.upper(), subjects=[f"{name}.>"], storage="file", duplicate_window=600)
        worker = asyncio.create_task(work(server.url))
        publisher = asyncio.create_task(publish(js, nc))

        shipped: Counter[bytes] = Counter()
        async with (await js.stream("SHIPPED")).ordered_consumer() as reader, reader.messages() as messages:
            while len(shipped) < ORDERS - ORDERS // 100:
                shipped[(await messages.next()).data] += 1
                if shipped.total() == 100:
                    server.kill()
                    await server.restart()
        async with (await js.stream("DEAD")).ordered_consumer() as reader:
            dead = [DeadLetter.of(message).attempts for message in await reader.fetch(ORDERS // 100, timeout=20)]
        await publisher
        signal.raise_signal(signal.SIGTERM)  # as Kubernetes does
        await worker
        print(f"{shipped.total()} shipped, {len(shipped)} different ones")
        print(f"{len(dead)} given up after {min(dead)} attempts")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")  # the clients log their outage
    asyncio.run(main())

# prints: 500 orders taken
# prints: ...
# prints: an orderly end: nothing in progress
# prints: 495 shipped, 495 different ones
# prints: 5 given up after 3 attempts
