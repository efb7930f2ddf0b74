"""The content of a new object: bytes, files and iterables, cut into chunks of one size.

Owns the cutting into chunks, and keeps blocking reads off the event loop. It sends nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, TypeAlias, cast

READ_BYTES = 2 * 2**20
"""Bytes of one blocking read. A larger value needs fewer switches of threads, each as expensive as the digest of 128
KiB.
"""


class BinaryReader(Protocol):
    """A binary file, or any object that is read like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        ...


ObjectContent: TypeAlias = (
    bytes
    | bytearray
    | memoryview
    | os.PathLike[str]
    | BinaryReader
    | Iterable[bytes | bytearray | memoryview]
    | AsyncIterable[bytes | bytearray | memoryview]
)
"""The types that can be put into a store. A binary file is read from its position and not closed."""

Update: TypeAlias = Callable[[bytes], object]
"""Called with every chunk in order: the update of a digest."""


class ContentReader:
    """The content of a new object, read once: ``async for`` yields lists of chunks, each followed by ``update``.

    ``total`` is its size in bytes, 0 when it is unknown.
    """

    def __init__(self, source: ObjectContent, chunk_size: int, update: Update) -> None:
        """Check the type of the source (TypeError); nothing is opened or read yet."""
        if isinstance(source, (str, io.TextIOBase)):
            raise TypeError("an object consists of bytes: encode text, open files in binary mode, wrap paths in Path()")
        self._source, self._size, self._update = source, chunk_size, update
        self.total = 0
        self._make = self._choose(source)

    def _choose(self, source: object) -> Callable[[], AsyncGenerator[list[bytes]]]:
        if isinstance(source, (bytes, bytearray, memoryview)):
            # A view of what may change is copied here; of bytes nothing is.
            held = source if isinstance(source, bytes) else bytes(source)
            self.total = len(held)
            return lambda: self._of_bytes(held)
        if isinstance(source, os.PathLike):
            path = Path(source)
            return lambda: self._of_file(cast("AbstractContextManager[BinaryReader]", path.open("rb")))
        read = getattr(source, "read", None)
        if inspect.iscoroutinefunction(read):
            return lambda: self._of_iterable(_reading(cast("Callable[[int], Awaitable[object]]", read)))
        if callable(read):
            return lambda: self._of_file(nullcontext(cast(BinaryReader, source)))
        if isinstance(source, AsyncIterable):
            return lambda: self._of_iterable(aiter(source))
        if isinstance(source, Iterable):
            return lambda: self._of_iterable(_each(source))
        raise TypeError(
            "an object is put from bytes, a path, a binary file or an iterable of bytes, "
            f"not from {type(source).__name__}"
        )

    def __aiter__(self) -> AsyncGenerator[list[bytes]]:
        return self._make()

    # ---------------------------------------------------------------- bytes and files

    async def _of_bytes(self, data: bytes) -> AsyncGenerator[list[bytes]]:
        """Without a thread, which took 20 % more processor time and was no faster: sending suspends often enough."""
        for start in range(0, len(data), self._size):
            chunk = data[start : start + self._size]
            self._update(chunk)
            yield [chunk]

    async def _of_file(self, opening: AbstractContextManager[BinaryReader]) -> AsyncGenerator[list[bytes]]:
        """Read in a thread, the next piece while the last one is sent; the digest is made there too."""
        loop = asyncio.get_running_loop()
        with opening as file:
            self.total = _size_of(file)
            pending = loop.run_in_executor(None, self._read, file)
            try:
                while chunks := await pending:
                    pending = loop.run_in_executor(None, self._read, file)
                    yield chunks
            finally:
                pending.cancel()

    def _read(self, file: BinaryReader) -> list[bytes]:
        size, update = self._size, self._update
        chunks: list[bytes] = []
        for _ in range(max(1, READ_BYTES // size)):
            chunk = _read_chunk(file, size)
            if chunk:
                update(chunk)
                chunks.append(chunk)
            if len(chunk) < size:
                break
        return chunks

    # ---------------------------------------------------------------- iterables

    async def _of_iterable(self, pieces: AsyncIterator[object]) -> AsyncGenerator[list[bytes]]:
        """Yield chunks from pieces of any sizes. Pieces are copied, since the iterable may reuse their buffers."""
        size, update = self._size, self._update
        rest = bytearray()
        async for piece in pieces:
            if type(piece) is bytes and len(piece) == size and not rest:
                update(piece)
                yield [piece]
                continue
            view = _view(piece)
            start = 0
            if rest:
                start = size - len(rest)
                rest += view[:start]
                if len(rest) < size:
                    continue
                chunk = bytes(rest)
                rest.clear()
                update(chunk)
                yield [chunk]
            for end in range(start + size, len(view) + 1, size):
                chunk = bytes(view[end - size : end])
                start = end
                update(chunk)
                yield [chunk]
            rest += view[start:]
        if rest:
            chunk = bytes(rest)
            update(chunk)
            yield [chunk]


def _view(piece: object) -> memoryview:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"an object consists of bytes: the source returned the type {type(piece).__name__}")
    return memoryview(piece).cast("B")


def _read_chunk(file: BinaryReader, size: int) -> bytes:
    """Read ``size`` bytes, or less at the end; a raw file or a pipe may return less at once."""
    got: object = file.read(size)  # a caller's read() may return anything
    chunk = got if isinstance(got, bytes) else bytes(_view(got))
    while 0 < len(chunk) < size and (more := file.read(size - len(chunk))):
        chunk += more
    return chunk


def _size_of(file: BinaryReader) -> int:
    """The bytes left in a regular file; 0 for everything else."""
    try:
        status = os.fstat(file.fileno())  # type: ignore[attr-defined]
        return max(0, status.st_size - file.tell()) if stat.S_ISREG(status.st_mode) else 0  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return 0


async def _each(pieces: Iterable[object]) -> AsyncGenerator[object]:
    for piece in pieces:
        yield piece


async def _reading(read: Callable[[int], Awaitable[object]]) -> AsyncGenerator[object]:
    """Read from an object with an async ``read``: asyncio.StreamReader, the files of aiofiles …"""
    while piece := await read(READ_BYTES):
        yield piece
