"""Publishes orders into the stream ORDERS with a windowed publisher, every order once however often it is started.

python generator.py --servers nats://127.0.0.1:4222 --orders 100000 --rate 5000
"""

from __future__ import annotations

import argparse
import asyncio
import json
from datetime import UTC, datetime, timedelta

import natsproto
from natsproto.jetstream import JetStream

PRODUCTS = [(f"p{number}", f"category-{number % 4}", 100 + 7 * number) for number in range(20)]
"""Name, category and price in cents."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PER_SECOND = 100
"""Orders a second by their own timestamps, independent of the rate of publishing."""


def order(number: int) -> dict[str, object]:
    """The order of that number: always the same."""
    at = BEGIN + timedelta(seconds=number / PER_SECOND)
    product = PRODUCTS[number * 7 % len(PRODUCTS)][0]
    return {"order": number, "product": product, "quantity": 1 + number % 5, "at": at.isoformat()}


async def set_up(js: JetStream) -> None:
    """Create the streams and buckets of the pipeline, with the prices of its products."""
    await js.create_or_update_stream("ORDERS", subjects=["orders.>"], duplicate_window=600)
    await js.create_or_update_stream("RESULTS", subjects=["results.>"], duplicate_window=600)
    prices = await js.create_or_update_key_value("products")
    await js.create_or_update_key_value("totals")
    for name, category, price in PRODUCTS:
        await prices.put(name, json.dumps({"category": category, "price": price}).encode())


async def publish(js: JetStream, orders: int, rate: int) -> None:
    """Publish this many orders, ``rate`` a second (0: no limit), and one that advances the watermark."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with js.publisher(max_pending=2000) as publisher:
        for number in range(orders):
            await publisher.publish(
                f"orders.{number % 8}", json.dumps(order(number)).encode(), msg_id=f"order-{number}"
            )
            if rate and number % 100 == 99:
                await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
        later = BEGIN + timedelta(seconds=orders / PER_SECOND, hours=1)
        tick = {"order": -1, "product": "", "quantity": 0, "at": later.isoformat()}
        await publisher.publish("orders.tick", json.dumps(tick).encode(), msg_id=f"tick-{orders}")


async def main(servers: str, orders: int, rate: int) -> None:
    """Create the streams and publish."""
    async with natsproto.connect(servers) as nc:
        js = nc.jetstream()
        await set_up(js)
        await publish(js, orders, rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="nats://127.0.0.1:4222")
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=5000, help="orders a second; 0 is as fast as they go")
    given = parser.parse_args()
    asyncio.run(main(given.servers, given.orders, given.rate))
