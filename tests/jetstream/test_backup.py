"""A stream that was saved comes back as it was, and a backup that failed leaves nothing that looks like one."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client, Message, errors
from natsproto.errors import ConfigError
from natsproto.jetstream._stream.backup import Progress
from natsproto.testing import Direction, FaultProxy

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream
    from natsproto.testing._server import Server


@pytest.fixture(autouse=True)
async def another_stream(jetstream: JetStream) -> None:
    """Keeps the folder of the account: a server removes that of the last stream late, with what is restored there."""
    await jetstream.create_stream(name="KEEP", subjects=["k"])


async def noisy_stream(js: JetStream, nc: Client, count: int = 100, size: int = 1000) -> Stream:
    """A stream of incompressible messages."""
    stream = await js.create_stream(name="S", subjects=["s.>"], allow_direct=True)
    noise = random.Random(7)
    for number in range(1, count):
        await nc.publish(f"s.{number}", noise.randbytes(size), headers={"Number": str(number)})
    await nc.request(f"s.{count}", noise.randbytes(size))
    return stream


async def contents(stream: Stream) -> list[tuple[int, str, bytes, int, list[tuple[str, str]]]]:
    return [
        (message.seq, message.subject, message.data, message.time.ns, list(message.headers.pairs()))
        async for message in stream.get_batch()
    ]


async def test_restored_stream_is_the_one_that_was_saved(
    jetstream: JetStream, nats_client: Client, tmp_path: Path
) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.delete_message(5)
    await stream.purge(seq=3)
    consumer = await stream.create_consumer(durable_name="c")
    before = await contents(stream)
    steps: list[Progress] = []
    done = await stream.backup(tmp_path / "s.backup", progress=steps.append)
    assert steps[-1] == done
    assert os.listdir(tmp_path) == ["s.backup"]
    assert sorted(os.listdir(tmp_path / "s.backup")) == ["backup.json", "stream.tar.s2"]
    assert done.bytes == (tmp_path / "s.backup" / "stream.tar.s2").stat().st_size
    assert done.total == (await stream.info()).state.bytes
    config = (await stream.info()).config
    await jetstream.delete_stream("S")

    steps.clear()
    restored = await jetstream.restore_stream(tmp_path / "s.backup", progress=steps.append)
    assert steps[-1].bytes == done.bytes
    assert steps[-1].total == done.bytes
    assert await contents(restored) == before
    assert (await restored.info()).config == config
    assert [info.name async for info in restored.consumers()] == [consumer.name]


async def test_backup_of_a_big_stream_in_many_chunks(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    stream = await noisy_stream(jetstream, nats_client, 300, 20_000)
    before = await contents(stream)
    steps: list[Progress] = []
    done = await stream.backup(
        tmp_path / "s", chunk_size=16 * 1024, window_size=64 * 1024, check=True, progress=steps.append
    )
    assert done.chunks > 300
    sizes = [step.bytes for step in steps]
    assert sizes == sorted(sizes)
    await jetstream.delete_stream("S")
    assert await contents(await jetstream.restore_stream(tmp_path / "s")) == before


async def test_empty_stream_is_saved_and_brought_back(jetstream: JetStream, tmp_path: Path) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"])
    await stream.backup(tmp_path / "s")
    await jetstream.delete_stream("S")
    assert (await (await jetstream.restore_stream(tmp_path / "s")).info()).state.messages == 0


async def test_consumers_can_be_left_out(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.create_consumer(durable_name="c")
    await stream.backup(tmp_path / "s", consumers=False)
    await jetstream.delete_stream("S")
    restored = await jetstream.restore_stream(tmp_path / "s")
    assert [name async for name in restored.consumer_names()] == []


async def test_restored_stream_can_be_configured_otherwise(
    jetstream: JetStream, nats_client: Client, tmp_path: Path
) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.backup(tmp_path / "s")
    other = await jetstream.restore_stream(tmp_path / "s", name="OTHER", subjects=["o.>"], description="a copy")
    assert (other.name, other.cached_info.config.description) == ("OTHER", "a copy")
    assert [message[:3] for message in await contents(other)] == [message[:3] for message in await contents(stream)]


async def test_stream_that_exists_is_not_overwritten(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.backup(tmp_path / "s")
    await stream.purge()
    with pytest.raises(errors.StreamExists, match="restore of stream 'S'"):
        await jetstream.restore_stream(tmp_path / "s")
    assert (await stream.info()).state.messages == 0


async def test_backup_of_nothing_leaves_nothing(jetstream: JetStream, tmp_path: Path) -> None:
    stream = await jetstream.stream("NONE", bind=True)
    with pytest.raises(errors.StreamNotFound, match="backup of stream 'NONE'"):
        await stream.backup(tmp_path / "s")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        await stream.backup(tmp_path / "nowhere" / "s")
    with pytest.raises(ConfigError, match="chunk_size"):
        await stream.backup(tmp_path / "s", chunk_size=10)


async def test_backup_replaces_an_older_one_when_complete(
    jetstream: JetStream, nats_client: Client, tmp_path: Path
) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.backup(tmp_path / "s")
    older = (tmp_path / "s" / "backup.json").read_bytes()
    await nats_client.request("s.more", b"")

    def fail(progress: Progress) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        await stream.backup(tmp_path / "s", progress=fail)
    assert (tmp_path / "s" / "backup.json").read_bytes() == older
    assert os.listdir(tmp_path) == ["s"]
    await stream.backup(tmp_path / "s")
    assert (tmp_path / "s" / "backup.json").read_bytes() != older
    assert os.listdir(tmp_path) == ["s"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").write_bytes(b"of mine")
    with pytest.raises(OSError, match="mine"):
        await stream.backup(tmp_path / "mine")
    assert sorted(os.listdir(tmp_path)) == ["mine", "s"]


async def test_backup_of_the_nats_tool_is_read(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    """It writes what the server says of the snapshot, as it is, with other fields around and other blanks."""
    stream = await noisy_stream(jetstream, nats_client)
    before = await contents(stream)
    await stream.backup(tmp_path / "s")
    raw = json.loads((await nats_client.request("$JS.API.STREAM.INFO.S")).data)
    meta = {"type": "io.nats.jetstream.api.v1.stream_snapshot_response", "config": raw["config"], "state": raw["state"]}
    (tmp_path / "s" / "backup.json").write_text(json.dumps(meta, indent=4))
    await jetstream.delete_stream("S")
    assert await contents(await jetstream.restore_stream(tmp_path / "s")) == before
    await jetstream.delete_stream("S")
    (tmp_path / "s" / "stream.tar.s2").rename(tmp_path / "s" / "stream.arc.s2")
    assert await contents(await jetstream.restore_stream(tmp_path / "s")) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"some text", "cannot be read"),
        (b'{"config":{}}', "is not a backup"),
        (b"[]", "cannot be read"),
    ],
)
async def test_restore_refuses_a_file_that_is_no_backup(
    jetstream: JetStream, nats_client: Client, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "backup.json").write_bytes(content)
    before = nats_client.stats.out_msgs
    with pytest.raises(ConfigError, match=words):
        await jetstream.restore_stream(tmp_path / "s")
    with pytest.raises(FileNotFoundError):
        await jetstream.restore_stream(tmp_path / "none")
    assert nats_client.stats.out_msgs == before


@pytest.mark.parametrize("spoil", ["truncated", "flipped", "empty"])
async def test_file_that_is_broken_restores_no_stream(
    jetstream: JetStream, nats_client: Client, tmp_path: Path, spoil: str
) -> None:
    stream = await noisy_stream(jetstream, nats_client)
    await stream.backup(tmp_path / "s")
    await jetstream.delete_stream("S")
    path = tmp_path / "s" / "stream.tar.s2"
    data = bytearray(path.read_bytes())
    if spoil == "truncated":
        del data[-len(data) // 3 :]
    elif spoil == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data.clear()
    path.write_bytes(data)
    with pytest.raises(errors.ApiError, match="restore of stream 'S'"):
        await jetstream.restore_stream(tmp_path / "s")
    with pytest.raises(errors.StreamNotFound):
        await jetstream.stream("S")


async def test_connection_that_breaks_ends_a_backup_at_once(nats_server: Server, tmp_path: Path) -> None:
    async with (
        FaultProxy(nats_server.host, nats_server.port, record=True) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        js = nc.jetstream()
        stream = await noisy_stream(js, nc, 200, 20_000)
        proxy.cut_at(Direction.TO_CLIENT, len(proxy.link.seen[Direction.TO_CLIENT]) + 1_000_000)
        with pytest.raises(errors.ConnectionLost, match="backup of stream 'S' cannot go on"):
            await asyncio.wait_for(stream.backup(tmp_path / "s", timeout=60), 30)
        assert os.listdir(tmp_path) == []


async def test_connection_that_breaks_ends_a_restore_at_once(nats_server: Server, tmp_path: Path) -> None:
    async with (
        FaultProxy(nats_server.host, nats_server.port, record=True) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        js = nc.jetstream()
        stream = await noisy_stream(js, nc, 200, 20_000)
        await stream.backup(tmp_path / "s")
        await js.delete_stream("S")
        proxy.cut_at(Direction.TO_SERVER, len(proxy.link.seen[Direction.TO_SERVER]) + 1_000_000)
        with pytest.raises(errors.ConnectionLost, match="restore of stream 'S' cannot go on"):
            await asyncio.wait_for(js.restore_stream(tmp_path / "s", timeout=60), 30)


async def test_cancelled_backup_leaves_nothing(jetstream: JetStream, nats_client: Client, tmp_path: Path) -> None:
    stream = await noisy_stream(jetstream, nats_client, 100, 20_000)
    begun = asyncio.Event()
    task = asyncio.create_task(
        stream.backup(tmp_path / "s", chunk_size=1024, window_size=1024, progress=lambda _: begun.set())
    )
    await begun.wait()
    before = len(nats_client._engine.registry.table)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []
    assert len(nats_client._engine.registry.table) == before - 1


# ---------------------------------------------------------------- a server that gives up


SNAPSHOT = json.dumps({"config": {"name": "S"}, "state": {"bytes": 9}}).encode()


async def play_restore(nc: Client, *chunks: tuple[str, str, bytes], timeout: float = 20.0) -> JetStream:
    """JetStream that starts every snapshot, sends these chunks (status, ack subject, payload) and no more."""

    async def answer(request: Message) -> None:
        inbox = json.loads(request.data)["deliver_subject"].encode()
        await request.respond(SNAPSHOT)
        for status, reply, payload in chunks:
            block = f"NATS/1.0 {status}\r\n\r\n".encode() if status else b""
            verb, sizes = ("HPUB", b"%d %d") if block else ("PUB", b"%d")
            numbers = (len(block), len(block + payload)) if block else (len(payload),)
            nc._outbox.put(
                b" ".join([verb.encode(), inbox, *([reply.encode()] if reply else []), sizes % numbers]) + b"\r\n",
                block + payload,
            )

    await nc.subscribe("PLAYED.STREAM.SNAPSHOT.S", cb=answer)
    return nc.jetstream(prefix="PLAYED", timeout=timeout)


@pytest.mark.parametrize(
    ("chunks", "kind", "words"),
    [
        ([("", "ack.3.1", b"abc"), ("408 No Flow Response", "", b"")], errors.ApiError, "No Flow Response"),
        ([("500 disk on fire", "", b"")], errors.ApiError, "disk on fire"),
        ([("", "ack.3.1", b"abc"), ("", "ack.3.3", b"abc"), ("204", "", b"")], errors.InvalidReply, "chunk 2"),
        ([("", "ack.4.1", b"abc"), ("204", "", b"")], errors.InvalidReply, "chunk 1"),
        ([("", "ack.3.1", b"abc")], errors.RequestTimeout, "backup of stream 'S': no answer within"),
        ([], errors.RequestTimeout, "backup of stream 'S': no answer within"),
    ],
)
async def test_snapshot_that_is_not_whole_is_no_backup(
    nats_client: Client,
    tmp_path: Path,
    chunks: list[tuple[str, str, bytes]],
    kind: type[Exception],
    words: str,
) -> None:
    js = await play_restore(nats_client, *chunks, timeout=0.2 if kind is errors.RequestTimeout else 20)
    stream = await js.stream("S", bind=True)
    with pytest.raises(kind, match=words):
        await stream.backup(tmp_path / "s")
    assert os.listdir(tmp_path) == []


async def test_backup_chunks_are_acknowledged(nats_client: Client, tmp_path: Path) -> None:
    js = await play_restore(
        nats_client, ("", "ack.3.1", b"abc"), ("", "ack.3.2", b"def"), ("", "", b"gh"), ("204", "", b"")
    )
    async with nats_client.subscribe("ack.>") as acks:
        done = await (await js.stream("S", bind=True)).backup(tmp_path / "s")
        assert [(await acks.next(20)).subject for _ in range(2)] == ["ack.3.1", "ack.3.2"]
    assert (done.bytes, done.chunks, done.total) == (8, 3, 9)
    assert (tmp_path / "s" / "stream.tar.s2").read_bytes() == b"abcdefgh"
