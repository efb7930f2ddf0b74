"""A stream from its making to its backup: run it with ``python docs/examples/streams.py``."""

import asyncio
import tempfile
from pathlib import Path

import natsproto
from natsproto.errors import StreamExists
from natsproto.jetstream import JetStream
from natsproto.testing import run_server


async def main() -> None:
    """Orders of a flower shop: stored, read and backed up."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js: JetStream = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
        for city, order in (("berlin", b"12 tulips"), ("lisbon", b"3 roses"), ("berlin", b"1 cactus")):
            await nc.request(f"orders.{city}", order, headers={"City": city})  # returns when it is stored

        last = await stream.get_last_message("orders.berlin")
        print(f"berlin's last order is number {last.seq}: {last.data.decode()}")
        async for message in stream.get_batch(subject="orders.berlin"):
            print(f"  {message.seq}: {message.data.decode()} for {message.headers['City']}")

        info = await stream.update(max_age=3600)
        print(f"{info.state.messages} messages, kept for {info.config.max_age:.0f} s")
        try:
            await js.create_stream("ORDERS", subjects=["other"])
        except StreamExists as error:
            print(f"refused: {error.description}")

        async with js.advisories() as events:
            await stream.create_consumer("billing")
            event = await events.next(timeout=2)
            print(f"told: {event.type.rpartition('.')[2]}")

        with tempfile.TemporaryDirectory() as place:
            await stream.backup(Path(place) / "orders")
            await js.delete_stream("ORDERS")
            restored = await js.restore_stream(Path(place) / "orders")
        consumers = [name async for name in restored.consumer_names()]
        print(f"restored: {restored.cached_info.state.messages} messages and the consumer {consumers[0]}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: berlin's last order is number 3: 1 cactus
# prints:   1: 12 tulips for berlin
# prints:   3: 1 cactus for berlin
# prints: 3 messages, kept for 3600 s
# prints: refused: stream name already in use with a different configuration, ...
# prints: told: ...
# prints: restored: 3 messages and the consumer billing
