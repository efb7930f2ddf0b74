"""Pictures of a flower shop in an object store: run it with ``python docs/examples/objects.py``."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import natsproto
from natsproto.errors import DigestMismatch, ObjectNotFound
from natsproto.jetstream import Progress
from natsproto.testing import run_server


class Bar:
    """A progress bar in the manner of tqdm: give it to ``progress``."""

    def __init__(self, name: str, width: int = 20) -> None:
        self._name, self._width = name, width
        self.line = ""

    def __call__(self, progress: Progress) -> None:
        """Draw it again."""
        share = progress.bytes / progress.total if progress.total else 0
        full = round(share * self._width)
        bar = f"[{'#' * full}{'.' * (self._width - full)}]" if progress.total else f"{progress.chunks} chunks"
        self.line = f"{self._name} {bar} {progress.bytes / 2**20:.1f} MiB"
        # On a terminal: print(f"\r{self.line}", end="", flush=True)


async def camera() -> AsyncIterator[bytes]:
    """A stream of bytes of unknown length."""
    for frame in range(100):
        yield b"%03d" % frame * 1000


async def main() -> None:
    """From files and streams into the store, and back."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("pictures", description="of flowers")

        with tempfile.TemporaryDirectory() as folder:
            roses = Path(folder) / "roses.jpg"
            roses.write_bytes(b"roses " * 500_000)
            bar = Bar("roses.jpg")
            await store.put_file(roses, metadata={"by": "Ana"}, progress=bar)
            print(bar.line)

            film = await store.put("films/spring 🌷", camera())
            print(f"{film.name}: {film.size} bytes in {film.chunks} chunks")

            copy = Path(folder) / "copy.jpg"
            bar = Bar("copy.jpg")
            await store.get_file("roses.jpg", copy, resume=True, progress=bar)
            print(bar.line, "right" if copy.read_bytes() == roses.read_bytes() else "wrong")

        async with store.get("films/spring 🌷", offset=3000 * 42, length=3) as frame:
            print("frame", b"".join([chunk async for chunk in frame]).decode())

        await store.add_link("poster", "roses.jpg")
        await store.update_meta("roses.jpg", description="our best")
        print("poster leads to", (await store.get_bytes("poster"))[:5].decode())

        async with store.watch(updates_only=True) as changes:
            await changes.ready()
            await store.delete("films/spring 🌷")
            gone = await changes.next(timeout=2)
            print(gone.name, "was deleted" if gone.deleted else "changed")
        try:
            await store.get_bytes("films/spring 🌷")
        except ObjectNotFound as error:
            print(error)

        # A damaged object is always detected.
        stream = await nc.jetstream().stream("OBJ_pictures")
        await stream.delete_message(3)
        try:
            await store.get_bytes("roses.jpg")
        except DigestMismatch as error:
            print(error)
        print([info.name async for info in store.list()])


if __name__ == "__main__":
    asyncio.run(main())

# prints: roses.jpg [####################] 2.9 MiB
# prints: films/spring 🌷: 300000 bytes in 3 chunks
# prints: copy.jpg [####################] 2.9 MiB right
# prints: frame 042
# prints: poster leads to roses
# prints: films/spring 🌷 was deleted
# prints: object 'films/spring 🌷' in store 'pictures': not found
# prints: object 'roses.jpg' in store 'pictures' is damaged: 22 of 23 chunks are there
# prints: ['poster', 'roses.jpg']
