"""Back a stream up to a file and restore it."""

import asyncio
import tempfile
from pathlib import Path

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("ORDERS", subjects=["orders.*"])
        for number in range(4):
            await js.publish(f"orders.{('eu', 'us')[number % 2]}", b"%d" % number)

        with tempfile.TemporaryDirectory() as folder:
            progress = await stream.backup(Path(folder) / "orders.backup")
            print(progress.bytes > 0)
            await js.delete_stream("ORDERS")
            restored = await js.restore_stream(Path(folder) / "orders.backup")
        print((await restored.info()).state.messages, "messages")


asyncio.run(main())

# origin: NATS docs, Disaster recovery: backup and restore
# about: `stream.backup` writes messages, configuration and consumers into a file, from which `js.restore_stream` makes
# about: the stream again.
# prints: True
# prints: 4 messages
