"""Structured data: JSON from and to dataclasses."""

import asyncio
from dataclasses import dataclass

import natsproto
from natsproto.testing import run_server


@dataclass
class Stock:
    symbol: str
    price: int


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        stocks = nc.typed(Stock)
        async with stocks.subscribe("updates.*") as updates:
            await stocks.publish("updates.goog", Stock("GOOG", 1200))
            message = await updates.next(timeout=5)
            print(message.value.symbol, message.value.price)


asyncio.run(main())

# origin: NATS docs, Sending structured data; Receiving structured data
# about: `nc.typed` makes a client for one class: dataclasses are encoded as JSON, and what arrives is a `TypedMessage`
# about: with its `value`.
# prints: GOOG 1200
