"""Putting objects: from anything, in chunks, and nothing is left of what did not succeed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import pathlib
import threading
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    LimitReached,
    ObjectNotFound,
    PayloadTooLarge,
    StreamProtected,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.fast.fast_batch import FastPublisher
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.jetstream.objectstore._upload import MAX_PENDING_BYTES, Upload
from natsproto.testing import run_server
from tests.kit.interruption import interruptions
from tests.kit.waiting import until
from tests.objectstore.helpers import CHUNK, chunks, cleanups_ended, content, holds_only, listed_names, pieces

BOTH = pytest.mark.parametrize("batched", [False, True], ids=["window", "fast ingest"])


@BOTH
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5_000_001])
async def test_an_object_of_any_size_is_got_as_it_was_put(jetstream: JetStream, size: int, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    data = content(size)
    info = await store.put("model", data)
    assert (info.name, info.bucket, info.size, info.chunks) == ("model", "files", size, -(-size // CHUNK))
    assert info.digest == "SHA-256=" + urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    assert (len(info.nuid), info.deleted, info.chunk_size, info.link) == (39, False, CHUNK, None)
    assert abs(info.mtime - datetime.now(UTC)) < timedelta(minutes=1)
    assert await store.get_bytes("model") == data
    found = await store.info("model")
    assert found.replace(mtime=info.mtime) == info
    await holds_only(store, ["model"])


async def test_put_uses_the_fastest_publisher(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    choose = Upload._publisher

    def chosen(upload: Upload) -> FastPublisher | Publisher:
        publisher = choose(upload)
        used.append(type(publisher).__name__)
        return publisher

    monkeypatch.setattr(Upload, "_publisher", chosen)
    data = content(2 * CHUNK)
    await (await jetstream.create_object_store(bucket="slow")).put("o", data)
    await (await jetstream.create_object_store(bucket="fast", allow_batched=True)).put("o", data)
    await (await jetstream.object_store("fast")).put("o", data)
    bound = await jetstream.object_store("fast", bind=True)
    await bound.put("o", data)
    await bound.status()
    await bound.put("o", data)
    assert used == ["Publisher", "FastPublisher", "FastPublisher", "Publisher", "FastPublisher"]


async def test_put_when_batches_were_switched_off(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="s", allow_batched=True)
    await store.put("o", b"1")
    await jetstream.update_object_store(bucket="s")
    data = content(3 * CHUNK + 1)
    reported: list[int] = []
    await store.put("o", pieces(data[:1], data[1:]), progress=lambda progress: reported.append(progress.bytes))
    assert await store.get_bytes("o") == data
    assert reported == [CHUNK, 2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 1]
    await store.put("o", b"")
    await holds_only(store, ["o"])


class Trickle(io.RawIOBase):
    """A raw file that gives a few bytes at a time, as pipes and sockets do."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def read(self, size: int = -1, /) -> bytes:
        piece = self._data[self._place : self._place + min(size, 1000)]
        self._place += len(piece)
        return piece


class AwaitHint:
    """What is read with ``await``."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int) -> bytes:
        await asyncio.sleep(0)
        return self._file.read(min(size, 70_000))


def reused(data: bytes, size: int) -> Iterator[bytearray]:
    """Pieces in one buffer that is written to again and again."""
    buffer = bytearray(size)
    for start in range(0, len(data), size):
        part = data[start : start + size]
        buffer[:] = part.ljust(size, b"!")
        yield buffer if len(part) == size else bytearray(part)


async def test_content_comes_from_anything_that_gives_bytes(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    data = content(300_000)
    path = tmp_path / "source.bin"
    path.write_bytes(data)
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, path.open("rb") as read_before:
        assert read_before.read(1000) == data[:1000]
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        sources = {
            "bytes": data,
            "bytearray": bytearray(data),
            "memoryview": memoryview(data),
            "wide memoryview": memoryview(data).cast("I"),
            "path": path,
            "file": file,
            "raw file": raw,
            "BytesIO": io.BytesIO(data),
            "a file that trickles": Trickle(data),
            "StreamReader": stream,
            "async file": AwaitHint(data),
            "list": [data[:1], b"", data[1:200_000], data[200_000:]],
            "one piece": [data],
            "generator": (data[start : start + 7] for start in range(0, len(data), 7)),
            "a buffer used again": reused(data, 50_001),
            "chunks": [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)],
            "async generator": pieces(data[:131_072], data[131_072:131_073], data[131_073:]),
        }
        for name, source in sources.items():
            info = await store.put(name, source)  # type: ignore[arg-type]
            assert (info.size, info.chunks) == (len(data), 3), name
            assert await store.get_bytes(name) == data, name
        assert (await store.put("rest", read_before)).size == len(data) - 1000
        assert not file.closed
        assert not read_before.closed


async def test_put_of_a_wrong_source_leaves_nothing(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    (tmp_path / "text").write_text("text")
    with (tmp_path / "text").open() as text:
        for source in ("text", text, io.StringIO("text"), 5, None):
            with pytest.raises(TypeError):
                await store.put("o", source)  # type: ignore[arg-type]
    for late in (["text"], [b"1" * 300_000, 5], [b"1" * 300_000, None], Late()):
        with pytest.raises(TypeError, match="consists of bytes"):
            await store.put("o", late)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        await store.put("o", tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        await store.put_file(tmp_path)
    assert await listed_names(store) == []
    assert await chunks(store) == {}


class Late:
    """A file that gives bytes first and text afterwards."""

    def __init__(self) -> None:
        self._left: list[object] = [b"1" * CHUNK, "text"]

    def read(self, size: int) -> object:
        return self._left.pop(0)


async def test_put_refuses_bad_arguments_first(jetstream: JetStream, nats_client: Client) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    before = nats_client.stats.out_msgs
    for name in ("", "\ud800", "n" * 2049, "🌸" * 513):
        with pytest.raises(ConfigError, match="object name"):
            await store.put(name, b"1")
    for size in (0, -1, 1.5, True, 2**20):
        with pytest.raises(ConfigError, match="chunk_size"):
            await store.put("o", b"1", chunk_size=size)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await store.put(b"o", b"1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await store.put("o", b"1", metadata={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(PayloadTooLarge):
        await store.put("o", b"1", description="d" * 2**20)
    with pytest.raises(ConfigError, match="timeout"):
        await store.put("o", b"1", timeout=-1)
    assert nats_client.stats.out_msgs == before


ODD = [
    "a/b/c",
    " ",
    "a b",
    "🌸 bouquet",
    "..",
    ">",
    "*.>",
    "\n",
    "\0",
    "ü" * 1024,
    "n" * 2048,
    "名前",
    "a\u0301",
    "\u00e1",
]


async def test_names_are_any_text(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="f-_" + "o" * 60, storage="memory")
    for index, name in enumerate(ODD):
        await store.put(name, b"%d" % index)
    assert await listed_names(store) == ODD
    for index, name in enumerate(ODD):
        assert (await store.info(name)).name == name
        assert await store.get_bytes(name) == b"%d" % index


async def test_what_is_said_of_an_object_is_kept(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put(
        "o",
        b"1",
        description="Größe: 1",
        headers=[("Kind", "a"), ("Kind", "b"), ("x", "")],
        metadata={"größe": "🌸"},
        chunk_size=1000,
    )
    info = await store.info("o")
    assert (info.description, info.metadata, info.chunk_size) == ("Größe: 1", {"größe": "🌸"}, 1000)
    assert info.headers == {"Kind": ("a", "b"), "x": ("",)}


async def test_chunks_have_the_size_that_was_asked_for(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    data = content(10_001)
    info = await store.put("o", data, chunk_size=1000)
    assert info.chunks == 11
    sizes = [len(m.data) async for m in store._index.stream.get_batch(subject="$O.files.C.>")]
    assert sizes == [1000] * 10 + [1]
    assert await store.get_bytes("o") == data


async def test_chunk_size_fits_a_small_max_payload() -> None:
    config = "max_payload: 10000\n"
    async with run_server(jetstream=True, config=config) as server, natsproto.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store(bucket="files", storage="memory")
        data = content(100_000)
        info = await store.put("o", data)
        assert info.chunk_size == 10_000 - 512
        assert await store.get_bytes("o") == data


async def test_progress_is_reported_after_every_chunk(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    data = content(300_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    steps = [131_072, 262_144, 300_000]
    for source, total in ((data, 300_000), (path, 300_000), (iter([data]), 0)):
        reported: list[Progress] = []
        await store.put("o", source, progress=reported.append)
        assert reported == [Progress(bytes=size, chunks=n, total=total) for n, size in enumerate(steps, 1)]


async def test_files_are_read_in_a_thread(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    readers: set[int] = set()

    class File(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            readers.add(threading.get_ident())
            return super().read(size)

    await store.put("o", File(content(3_000_000)))
    assert readers
    assert threading.get_ident() not in readers


async def test_a_file_is_put_under_its_own_name_or_another(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    (tmp_path / "out.bin").write_bytes(b"12")
    assert (await store.put_file(tmp_path / "out.bin")).name == "out.bin"
    assert (await store.put_file(str(tmp_path / "out.bin"), "a/b", description="d")).description == "d"
    assert await listed_names(store) == ["out.bin", "a/b"]
    assert await store.get_bytes("a/b") == b"12"


# ---------------------------------------------------------------- overwriting


@BOTH
async def test_overwriting_removes_the_old_chunks(jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    first = await store.put("o", content(400_000))
    second = await store.put("o", content(200_000, 2))
    assert first.nuid != second.nuid
    assert await store.get_bytes("o") == content(200_000, 2)
    await holds_only(store, ["o"])
    await store.put("o", b"")
    assert await chunks(store) == {}
    assert await listed_names(store) == ["o"]


async def test_concurrent_puts_leave_one_whole_object(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    datas = [content(200_000 + index, index) for index in range(8)]
    infos = await asyncio.gather(*(store.put("o", data) for data in datas))
    last = await store.info("o")
    winner = next(index for index, info in enumerate(infos) if info.nuid == last.nuid)
    assert await store.get_bytes("o") == datas[winner]
    await cleanups_ended(store)
    await holds_only(store, ["o"])


# ---------------------------------------------------------------- what does not succeed


class Broken(Exception):
    pass


async def _breaks_after(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise Broken


@BOTH
async def test_a_source_that_breaks_leaves_the_old_object(jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    await store.put("o", content(300_000))
    with pytest.raises(Broken):
        await store.put("o", _breaks_after(content(3_000_000, 2)))
    with pytest.raises(Broken):
        await store.put("new", _breaks_after(b"1"))
    assert await store.get_bytes("o") == content(300_000)
    assert await listed_names(store, deleted=True) == ["o"]
    await holds_only(store, ["o"])


async def test_a_progress_callback_that_raises_ends_the_put(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")

    def tell(progress: Progress) -> None:
        if progress.chunks == 2:
            raise Broken

    with pytest.raises(Broken):
        await store.put("o", content(1_000_000), progress=tell)
    assert await chunks(store) == {}


@BOTH
async def test_put_into_a_full_store(jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(
        bucket="files", storage="memory", max_bytes=2**20, allow_batched=batched
    )
    await store.put("o", content(300_000))
    taken: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(CHUNK)

    with pytest.raises(LimitReached):
        await store.put("o", endless())
    assert len(taken) < 500  # it was noticed while there was more
    assert await store.get_bytes("o") == content(300_000)
    await holds_only(store, ["o"])


async def test_put_into_a_missing_or_sealed_store(jetstream: JetStream) -> None:
    missing = await jetstream.object_store("missing", bind=True)
    for data in (b"1", b""):
        with pytest.raises(BucketNotFound):
            await missing.put("o", data)
    with pytest.raises(BucketNotFound):
        await jetstream.object_store("missing")
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("o", b"1")
    assert (await store.seal()).sealed
    for refused in (store.put("o", b"2"), store.put("o", b""), store.delete("o"), store.update_meta("o", rename="p")):
        with pytest.raises(StreamProtected):
            await refused
    assert await store.get_bytes("o") == b"1"


@BOTH
async def test_the_error_of_a_put_is_not_its_own_cause(jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    await store.seal()
    with pytest.raises(StreamProtected) as refused:
        await store.put("o", b"1")
    seen: list[BaseException] = []
    error: BaseException | None = refused.value
    while error is not None:
        assert error not in seen
        seen.append(error)
        error = error.__cause__ or error.__context__


async def _consistent(store: ObjectStore, contents: list[bytes]) -> None:
    await cleanups_ended(store)
    try:
        data = await store.get_bytes("o")
    except ObjectNotFound:
        assert await chunks(store) == {}
        return
    assert data in contents
    await holds_only(store, ["o"])


@BOTH
async def test_cancelled_put_leaves_the_old_or_new_object(jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    contents = [content(40_000, 1), content(50_000, 2)]
    await store.put("o", contents[0], chunk_size=16_000)
    number = 0

    async def put() -> object:
        nonlocal number
        number += 1
        data = contents[number % 2]
        return await store.put("o", pieces(data[:1000], data[1000:30_000], data[30_000:]), chunk_size=16_000)

    tasks = asyncio.all_tasks()
    async for run in interruptions(put):
        run.check()
        await _consistent(store, contents)
        await until(lambda: asyncio.all_tasks() <= tasks)
    assert number > 10


async def test_put_cancelled_while_it_reads_its_file(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    reading, resume = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 2**20:
                reading.set()
                resume.wait(20)
            return super().read(size)

    task = asyncio.create_task(store.put("o", Slow(content(4_000_000))))
    await asyncio.to_thread(reading.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    resume.set()
    assert await chunks(store) == {}


@BOTH
async def test_a_window_bounds_what_is_read_of_the_source(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)
    publishers: list[FastPublisher | Publisher] = []
    choose = Upload._publisher

    def chosen(upload: Upload) -> FastPublisher | Publisher:
        publishers.append(choose(upload))
        return publishers[-1]

    monkeypatch.setattr(Upload, "_publisher", chosen)
    pending: list[int] = []

    def source() -> Iterator[bytes]:
        for _ in range(400):
            pending.extend(publisher.pending for publisher in publishers)
            yield bytes(CHUNK)

    await store.put("o", source())
    assert 1 < max(pending) <= MAX_PENDING_BYTES // CHUNK


async def test_a_path_may_be_any_pathlike(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    class Somewhere(os.PathLike[str]):
        def __fspath__(self) -> str:
            return str(tmp_path / "x")

    (tmp_path / "x").write_bytes(b"1")
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    assert (await store.put("o", Somewhere())).size == 1
    assert (await store.put_file(Somewhere())).name == "x"
