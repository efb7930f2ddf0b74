"""A file that another program sends piece by piece; on a nats-server started here.

Run it with ``python docs/examples/stream_file.py`` where ``natsproto[server]`` is installed. What is larger than a
window never waits in memory, and the requester knows that nothing is missing: the end says how many pieces there were.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import natsproto
from natsproto.errors import ServiceError
from natsproto.service import Request
from natsproto.testing import run_server

PIECE = 64 * 1024
SIZE = 32 * 1024 * 1024


async def download(nc: natsproto.Client, name: str, to: Path) -> int:
    """Write the file of another program to a path; return the number of pieces."""
    with to.open("wb") as file:
        async with nc.stream("files.get", name.encode(), window=4 << 20) as parts:
            async for part in parts:
                await asyncio.to_thread(file.write, part.data)
    return parts.received


async def main() -> None:
    """Offer the files of a directory, and fetch one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "film.bin").write_bytes(os.urandom(SIZE))
        async with (
            run_server() as server,
            natsproto.connect(server.url) as owner,
            natsproto.connect(server.url) as nc,
            owner.add_service("files", "1.0.0") as service,
        ):

            @service.endpoint("get", subject="files.get")
            async def get(request: Request) -> AsyncIterator[bytes]:
                path = folder / Path(request.text).name  # never a path of the requester's choice
                if not path.is_file():
                    raise ServiceError(404, f"no file {path.name}")
                with path.open("rb") as file:
                    while piece := await asyncio.to_thread(file.read, PIECE):
                        yield piece

            await owner.flush()
            pieces = await download(nc, "film.bin", folder / "copy.bin")
            print(f"{pieces} pieces")
            with (folder / "film.bin").open("rb") as one, (folder / "copy.bin").open("rb") as two:
                same = hashlib.file_digest(one, "sha256").digest() == hashlib.file_digest(two, "sha256").digest()
            print(f"the copy is {'complete' if same else 'broken'}")
            try:
                await download(nc, "../secret", folder / "nothing.bin")
            except ServiceError as error:
                print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: 512 pieces
# prints: the copy is complete
# prints: refused: no file secret (code 404)
