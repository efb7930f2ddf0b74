"""Copy files into a store and back."""

import asyncio
import tempfile
from pathlib import Path

import natsproto.jetstream
from natsproto.testing import run_server


async def main() -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store("files")
        with tempfile.TemporaryDirectory() as folder:
            report, copy = Path(folder) / "report.txt", Path(folder) / "copy.txt"
            report.write_text("all is well")
            await store.put_file(report)
            await store.get_file("report.txt", copy)
            print(copy.read_text())


asyncio.run(main())

# origin: NATS docs, Object store: files
# about: `store.put_file` and `store.get_file` copy files of any size, piece by piece.
# prints: all is well
