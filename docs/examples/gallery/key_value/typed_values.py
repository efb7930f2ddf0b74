"""Values of your own classes."""

import asyncio
from dataclasses import dataclass

import natsproto.jetstream
from natsproto.testing import run_server


@dataclass
class Price:
    cents: int
    currency: str


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        prices = (await js.create_key_value("prices")).typed(Price)
        await prices.put("tulips", Price(250, "EUR"))
        entry = await prices.get("tulips")
        print(entry.value.cents, entry.value.currency)


asyncio.run(main())

# origin: NATS docs, Key/value store
# about: `kv.typed` encodes and decodes the values, here a dataclass as JSON.
# prints: 250 EUR
