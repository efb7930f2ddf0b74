"""Stored messages come as they were published, whatever their publisher wrote and whichever server answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import natsproto
from natsproto import Client, Headers, Message, errors
from natsproto.errors import ConfigError, UnsupportedByServer
from natsproto.jetstream._stream.batch_get import MAX_PAGE_MESSAGES
from natsproto.jetstream._stream.direct_get import DirectReply, LastGet, RawMessage, direct_get, headerless_message
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.headers import HeadersLike
from natsproto.testing import Direction, FaultProxy
from tests.core.helpers import OFFLINE_API

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream
    from natsproto.testing._server import Server


async def make(js: JetStream, **fields: Any) -> Stream:
    config = StreamConfig(name="S", subjects=["s.>"], storage="memory", allow_direct=True, max_msgs_per_subject=0)
    return await js.create_stream(config.replace(**fields))


async def store(nc: Client, subject: str, payload: bytes = b"", headers: HeadersLike | None = None) -> int:
    """Stores a message and returns its sequence."""
    seq = json.loads((await nc.request(subject, payload, headers=headers)).data)["seq"]
    assert isinstance(seq, int)
    return seq


async def store_many(nc: Client, count: int, subject: str = "s.{}", payload: bytes = b"") -> None:
    """Stores numbered messages fast."""
    for number in range(1, count + 1):
        if number % 2000 == 0 or number == count:  # the server takes in 10,000 unconfirmed messages
            await nc.request(subject.format(number), payload)
        else:
            await nc.publish(subject.format(number), payload)


async def sequences(messages: AsyncIterator[RawMessage]) -> list[int]:
    return [message.seq async for message in messages]


def either_way(stream: Stream) -> Iterable[bool]:
    """Both ways to get a message: from any server, and from the leader."""
    assert stream.cached_info.config.allow_direct
    return (True, False)


# ---------------------------------------------------------------- one message


async def test_message_is_what_was_stored(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    before = datetime.now(UTC)
    await store(nats_client, "s.a", b"payload \x00\xff", {"A": ["1", "2"], "b": "3"})
    for direct in either_way(stream):
        message = await stream.get_message(1, direct=direct)
        assert (message.stream, message.subject, message.seq, message.num_pending) == ("S", "s.a", 1, 0)
        assert message.data == b"payload \x00\xff"
        assert list(message.headers.pairs()) == [("A", "1"), ("A", "2"), ("b", "3")]
        assert before - timedelta(seconds=1) < message.time < datetime.now(UTC) + timedelta(seconds=1)
        assert message.time == (await stream.info()).state.first_ts
    assert await stream.get_message(1) == await stream.get_message(1, direct=False)
    assert len({await stream.get_message(1), await stream.get_message(1, direct=False)}) == 1
    assert repr(message) == f"RawMessage(stream='S', seq=1, subject='s.a', data={message.data!r})"


async def test_message_without_headers_has_none(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store(nats_client, "s.a", b"")
    for direct in either_way(stream):
        message = await stream.get_message(1, direct=direct)
        assert (dict(message.headers), message.data) == ({}, b"")
    assert [dict(message.headers) async for message in stream.get_batch()] == [{}]


FORGED = {
    "Nats-Stream": ["EVIL", "WORSE"],
    "Nats-Subject": "evil",
    "Nats-Sequence": "666",
    "Nats-Time-Stamp": "1999-01-01T00:00:00Z",
    "Nats-Num-Pending": "777",
    "Nats-Last-Sequence": "888",
    "Nats-UpTo-Sequence": "999",
    "Status": "404",
}


@pytest.mark.parametrize("payload", [b"x", b""])
async def test_direct_get_with_headers_like_the_servers(
    jetstream: JetStream, nats_client: Client, payload: bytes
) -> None:
    stream = await make(jetstream)
    await store(nats_client, "s.first")
    await store(nats_client, "s.a", payload, FORGED)
    found = [
        await stream.get_message(2),
        await stream.get_message(2, direct=False),
        await stream.get_last_message("s.a"),
        await stream.get_next_message("s.a"),
        *[message async for message in stream.get_batch(start_seq=2)],
        *[message async for message in stream.get_last_messages(["s.a"])],
    ]
    assert len(found) == 6
    for message in found:
        assert (message.stream, message.subject, message.seq) == ("S", "s.a", 2)
        assert message.time > datetime(2020, 1, 1, tzinfo=UTC)
        assert message.data == payload
        assert message.headers == Headers(FORGED)
    assert len(set(found)) == 1


async def send_raw(server: Server, subject: str, block: bytes, payload: bytes) -> None:
    """Stores a message with a header block that no client would write, and waits until it is stored."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    sizes = f"{len(block)} {len(block + payload)}"
    head = f'CONNECT {{"headers":true,"verbose":false}}\r\nSUB r 1\r\nHPUB {subject} r {sizes}\r\n'
    writer.write(head.encode() + block + payload + b"\r\n")
    while b"MSG r 1" not in await reader.readline():
        pass
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "status", [b"404 Message Not Found", b"204 EOB", b"503", b"408 Empty Request", b"100 Idle Heartbeat", b"500 x"]
)
@pytest.mark.parametrize("payload", [b"", b"x"])
async def test_stored_message_with_a_status_is_a_message(
    jetstream: JetStream, nats_client: Client, nats_server: Server, status: bytes, payload: bytes
) -> None:
    stream = await make(jetstream)
    await send_raw(nats_server, "s.a", b"NATS/1.0 " + status + b"\r\nA: 1\r\n\r\n", payload)
    await store(nats_client, "s.b")
    message = await stream.get_message(1)
    assert (message.seq, message.subject, message.data, message.headers["A"]) == (1, "s.a", payload, "1")
    assert await sequences(aiter(stream.get_batch())) == [1, 2]
    assert await sequences(aiter(stream.get_last_messages(["s.>"]))) == [1, 2]


@pytest.mark.parametrize(
    "block", [b"garbage", b"NATS/1.0\r\nA: 1\r\n", b"\r\n", b"NATS/1.0 503\r\n\r\n", b"Nats-Stream: "]
)
@pytest.mark.parametrize("payload", [b"", b"x"])
async def test_direct_get_with_a_broken_header_block(
    jetstream: JetStream, nats_server: Server, block: bytes, payload: bytes
) -> None:
    stream = await make(jetstream)
    await send_raw(nats_server, "s.a", block, payload)
    for direct in either_way(stream):
        message = await stream.get_message(1, direct=direct)
        assert (message.seq, message.subject, message.data) == (1, "s.a", payload)
        assert message.headers is not None
    assert await sequences(aiter(stream.get_batch())) == [1]


async def test_last_message_of_a_subject_and_of_a_wildcard(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    for subject in ("s.a", "s.b", "s.a", "s.c.d"):
        await store(nats_client, subject)
    for direct in either_way(stream):
        for subject, seq in (("s.a", 3), ("s.b", 2), ("s.*", 3), ("s.>", 4), (">", 4)):
            assert (await stream.get_last_message(subject, direct=direct)).seq == seq
        with pytest.raises(errors.MessageNotFound, match=r"last message of 's\.x' in stream 'S'") as caught:
            await stream.get_last_message("s.x", direct=direct)
        assert (caught.value.code, caught.value.err_code) == (404, 10037)


async def test_next_message_from_a_sequence_or_a_time_on(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        await store(nats_client, subject)
    third = (await stream.get_message(3)).time
    for direct in either_way(stream):
        assert (await stream.get_next_message(direct=direct)).seq == 1
        assert (await stream.get_next_message("s.b", direct=direct)).seq == 2
        assert (await stream.get_next_message("s.a", start_seq=2, direct=direct)).seq == 3
        assert (await stream.get_next_message(start_time=third, direct=direct)).seq == 3
        assert (await stream.get_next_message("s.b", start_time=third, direct=direct)).seq == 4
        for start in ({"start_seq": 5}, {"start_time": datetime.now(UTC) + timedelta(hours=1)}):
            with pytest.raises(errors.MessageNotFound):
                await stream.get_next_message(direct=direct, **start)
    with pytest.raises(ConfigError, match="together"):
        await stream.get_next_message(start_seq=1, start_time=third)
    with pytest.raises(ConfigError, match="naive"):
        await stream.get_next_message(start_time=datetime(2024, 1, 1))


async def test_start_time_counts_nanoseconds(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store_many(nats_client, 200)
    times = [message.time async for message in stream.get_batch()]
    for index in (1, 57, 120, 199):
        assert (await stream.get_next_message(start_time=times[index])).time == times[index]
        just_after = Timestamp.from_ns(times[index - 1].ns + 1)
        assert (await stream.get_next_message(start_time=just_after)).seq == index + 1


async def test_get_from_the_leader_without_direct_get(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, allow_direct=False)
    for subject in ("s.a", "s.b", "s.a"):
        await store(nats_client, subject)
    await stream.delete_message(2)
    for handle in (stream, await jetstream.stream("S", bind=True)):
        assert (await handle.get_message(1)).seq == 1
        assert (await handle.get_last_message("s.a")).seq == 3
        assert (await handle.get_next_message("s.a", start_seq=2)).seq == 3
        assert await sequences(aiter(handle.get_batch())) == [1, 3]
        assert await sequences(aiter(handle.get_batch(subject="s.a", start_seq=2, batch=5))) == [3]
        assert [len(batch) async for batch in handle.get_batch(batch=1).batches()] == [1]
        with pytest.raises(UnsupportedByServer, match="allow_direct"):
            await sequences(aiter(handle.get_last_messages(["s.>"])))


async def test_direct_get_switched_off_or_on_is_noticed(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store(nats_client, "s.a")
    other = await jetstream.stream("S")
    await other.update(allow_direct=False)
    assert (await stream.get_message(1)).seq == 1
    assert await sequences(aiter(stream.get_batch())) == [1]
    await other.update(allow_direct=True)
    assert await sequences(aiter(other.get_last_messages(["s.a"]))) == [1]
    await stream.info()
    assert await sequences(aiter(stream.get_last_messages(["s.a"]))) == [1]


async def test_stream_that_is_gone_is_not_found_in_every_way(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    await jetstream.delete_stream("S")
    for call in (stream.get_message(1), stream.get_last_message("s.a"), anext(aiter(stream.get_batch()))):
        with pytest.raises(errors.StreamNotFound, match="stream 'S'"):
            await call
    with pytest.raises(errors.StreamNotFound):
        await anext(aiter((await jetstream.stream("S", bind=True)).get_last_messages(["s.a"])))


# ---------------------------------------------------------------- many messages


async def test_many_pages_come_whole_in_order_and_over_gaps(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    many = MAX_PAGE_MESSAGES * 3 + 17
    await store_many(nats_client, many, "s.x")
    gone = {1, 2, 3, MAX_PAGE_MESSAGES, MAX_PAGE_MESSAGES + 1, 5000, many - 1, many}
    await asyncio.gather(*(stream.delete_message(seq) for seq in gone))
    wanted = [seq for seq in range(1, many + 1) if seq not in gone]
    assert await sequences(aiter(stream.get_batch())) == wanted
    found: list[int] = []
    async for batch in stream.get_batch().batches():
        assert batch
        found += [message.seq for message in batch]
    assert found == wanted


async def test_batch_is_chosen_by_subject_start_and_size(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    for number in range(1, 31):
        await store(nats_client, f"s.{'abc'[number % 3]}", b"x" * 95)  # 100 bytes with the subject
        if number == 10:
            since = (await stream.get_message(10)).time
    assert await sequences(aiter(stream.get_batch(subject="s.a"))) == list(range(3, 31, 3))
    assert await sequences(aiter(stream.get_batch(subject="s.a", start_seq=10, batch=3))) == [12, 15, 18]
    assert await sequences(aiter(stream.get_batch(start_time=since, batch=3))) == [10, 11, 12]
    assert await sequences(aiter(stream.get_batch(start_time=since, subject="s.a"))) == list(range(12, 31, 3))
    assert len(await sequences(aiter(stream.get_batch(max_bytes=980)))) == 10, "98 bytes each"
    assert len(await sequences(aiter(stream.get_batch(max_bytes=981)))) == 11
    assert len(await sequences(aiter(stream.get_batch(max_bytes=1)))) == 1
    assert [message.num_pending async for message in stream.get_batch(start_seq=28)] == [2, 1, 0]
    for nothing in ({"subject": "s.none"}, {"start_seq": 31}, {"start_time": datetime.now(UTC)}):
        assert await sequences(aiter(stream.get_batch(**nothing))) == []
    for wrong in ({"batch": 0}, {"max_bytes": -1}, {"start_seq": 0}, {"start_time": datetime(2024, 1, 1)}):
        with pytest.raises(ConfigError):
            stream.get_batch(**wrong)


async def test_empty_stream_gives_nothing(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    assert await sequences(aiter(stream.get_batch())) == []
    assert await sequences(aiter(stream.get_batch(start_time=datetime(2024, 1, 1, tzinfo=UTC)))) == []
    assert await sequences(aiter(stream.get_last_messages(["s.>"]))) == []


async def test_messages_stored_while_reading_come_too(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store_many(nats_client, MAX_PAGE_MESSAGES * 2, "s.x")
    found: list[int] = []
    async for message in stream.get_batch():
        if not found:
            await store_many(nats_client, 100, "s.x")
        found.append(message.seq)
    assert found == list(range(1, MAX_PAGE_MESSAGES * 2 + 101))


async def test_batch_can_be_read_once(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store(nats_client, "s.a")
    messages = stream.get_batch()
    assert await sequences(aiter(messages)) == [1]
    with pytest.raises(errors.LocalProtocolError, match="read before"):
        await sequences(aiter(messages))


async def test_batch_get_left_early_leaves_no_subscription(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store_many(nats_client, 10_000, "s.x")
    before = len(nats_client._engine.registry.table)
    messages = aiter(stream.get_batch())
    assert (await anext(messages)).seq == 1
    assert len(nats_client._engine.registry.table) == before + 1
    await messages.aclose()  # type: ignore[attr-defined]
    assert len(nats_client._engine.registry.table) == before


async def test_last_messages_are_those_of_one_moment(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    for number in range(1, 10):
        await store(nats_client, f"s.{'abc'[number % 3]}", b"%d" % number)
    sixth = (await stream.get_message(6)).time
    assert await sequences(aiter(stream.get_last_messages(["s.>"]))) == [7, 8, 9]
    assert await sequences(aiter(stream.get_last_messages(["s.a", "s.b", "s.x"]))) == [7, 9]
    assert await sequences(aiter(stream.get_last_messages(("s.*", "s.a")))) == [7, 8, 9]
    assert await sequences(aiter(stream.get_last_messages(["s.>"], up_to_seq=5))) == [3, 4, 5]
    assert await sequences(aiter(stream.get_last_messages(["s.>"], up_to_time=sixth))) == [4, 5, 6]
    assert await sequences(aiter(stream.get_last_messages(["s.>"], up_to_seq=2))) == [1, 2]
    assert await sequences(aiter(stream.get_last_messages(["s.>"], batch=2))) == [7, 8]
    early = datetime(2020, 1, 1, tzinfo=UTC)
    assert await sequences(aiter(stream.get_last_messages(["s.>"], up_to_time=early))) == []
    with pytest.raises(ConfigError, match="together"):
        stream.get_last_messages(["s.a"], up_to_seq=1, up_to_time=early)
    with pytest.raises(ConfigError, match="at least one"):
        stream.get_last_messages([])
    with pytest.raises(TypeError, match="list of subjects"):
        stream.get_last_messages("s.a")


async def test_last_messages_in_pages_are_of_one_moment(jetstream: JetStream, nats_client: Client) -> None:
    """A thousand subjects of 20 KiB do not fit into one page; all are written again behind the first."""
    stream = await make(jetstream)
    await store_many(nats_client, 1000, payload=b"old" + bytes(20_000))
    found: dict[str, bytes] = {}
    pages = 0
    async for batch in stream.get_last_messages(["s.>"]).batches():
        if not pages:
            assert len(batch) < 1000
            await store_many(nats_client, 1000, payload=b"new")
        pages += 1
        found |= {message.subject: message.data[:3] for message in batch}
    assert pages > 1
    assert found == {f"s.{number}": b"old" for number in range(1, 1001)}


@pytest.mark.parametrize("count", [1000, 2500])
async def test_last_messages_of_subjects_written_meanwhile(
    jetstream: JetStream, nats_client: Client, count: int
) -> None:
    """The stream keeps nothing but the newest message of each, so the moment of the first page is soon gone."""
    stream = await make(jetstream, max_msgs_per_subject=1)
    await store_many(nats_client, count, payload=bytes(20_000_000 // count))
    found: list[str] = []
    async for batch in stream.get_last_messages(["s.>"]).batches():
        if not found:
            assert len(batch) < count
            await store_many(nats_client, count, payload=b"new")
        found += [message.subject for message in batch]
    assert sorted(found) == sorted(f"s.{number}" for number in range(1, count + 1))


@pytest.mark.parametrize("up_to", [{}, {"up_to_seq": 2500}, {"up_to_time": datetime(2100, 1, 1, tzinfo=UTC)}])
async def test_last_messages_of_very_many_subjects(
    jetstream: JetStream, nats_client: Client, up_to: dict[str, object]
) -> None:
    stream = await make(jetstream)
    await store_many(nats_client, 2500)
    if up_to:
        await store_many(nats_client, 3)
    messages = stream.get_last_messages(["s.>", "s.1", "s.none"], **up_to)  # type: ignore[arg-type]
    found = sorted(await sequences(aiter(messages)))
    if "up_to_time" in up_to:
        assert found == list(range(4, 2504))
    else:
        assert found == list(range(1, 2501))
    assert len(await sequences(aiter(stream.get_last_messages(["s.>"], batch=1500)))) == 1500
    listed = [f"s.{number}" for number in range(1, 2001)]
    assert len(await sequences(aiter(stream.get_last_messages(listed)))) == 2000


async def test_batch_get_over_a_breaking_connection(nats_server: Server) -> None:
    """Cut at several places of the flow, each time the messages come gapless."""
    async with (
        FaultProxy(nats_server.host, nats_server.port, record=True) as proxy,
        natsproto.connect(nats_server.url) as maker,
    ):
        await make(maker.jetstream())
        await store_many(maker, 12_000, "s.x", b"y" * 50)
        async with natsproto.connect(proxy.url, reconnect_wait=0.01) as nc:
            stream = await nc.jetstream().stream("S")
            for cut in (100, 3_000, 100_000, 700_000, 1_500_000):
                link = proxy.link
                link_position = len(link.seen[Direction.TO_CLIENT])
                proxy.cut_at(Direction.TO_CLIENT, link_position + cut)
                found: list[int] = []
                async for batch in stream.get_batch().batches():
                    found += [message.seq for message in batch]
                assert found == list(range(1, 12_001))
                await asyncio.wait_for(link.over.wait(), 20)  # it was the one that was cut


async def test_lost_connection_without_direct_get(nats_server: Server, seed: int) -> None:
    """The leader is asked again for the message whose answer was lost."""
    rng = random.Random(seed)
    async with (
        FaultProxy(nats_server.host, nats_server.port, record=True) as proxy,
        natsproto.connect(nats_server.url) as maker,
    ):
        await make(maker.jetstream(), allow_direct=False)
        await store_many(maker, 60, "s.x", b"y" * 50)
        async with natsproto.connect(proxy.url, reconnect_wait=0.01) as nc:
            stream = await nc.jetstream().stream("S")
            for _ in range(5):
                link = proxy.link
                proxy.cut_at(Direction.TO_CLIENT, len(link.seen[Direction.TO_CLIENT]) + rng.randint(50, 8_000))
                assert await sequences(aiter(stream.get_batch())) == list(range(1, 61))
                await asyncio.wait_for(link.over.wait(), 20)


async def test_client_that_is_closed_ends_a_batch(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream)
    await store_many(nats_client, MAX_PAGE_MESSAGES * 4, "s.x")
    batches = stream.get_batch().batches()
    await anext(batches)
    await nats_client.close()
    with pytest.raises(errors.ConnectionClosed):
        async for _ in batches:
            pass


# ---------------------------------------------------------------- servers that answer otherwise


Asked = tuple[str, dict[str, object]]


@asynccontextmanager
async def played(
    nc: Client, *answers: tuple[bytes, bytes] | None, timeout: float = 20.0
) -> AsyncIterator[tuple[Stream, list[Asked]]]:
    """A stream behind an API of our own: every request gets the next answers (header block, payload), up to a None.

    Yields the stream and what it was asked for.
    """
    asked: list[Asked] = []
    left = list(answers)

    async def answer(request: Message) -> None:
        asked.append((request.subject.removeprefix("PLAYED."), json.loads(request.data or b"{}")))
        while left:
            step = left.pop(0)
            if step is None:
                return
            block, payload = step
            assert request.reply is not None
            nc._outbox.put(  # a header block with a status, which no client may write
                b"HPUB %b %d %d\r\n" % (request.reply.encode(), len(block), len(block) + len(payload)), block + payload
            )

    async with nc.subscribe("PLAYED.>", cb=answer):
        yield await nc.jetstream(prefix="PLAYED", timeout=timeout).stream("S", bind=True), asked


def stored(seq: int, before: int | None, pending: int = 0, payload: bytes = b"x") -> tuple[bytes, bytes]:
    block = f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: {seq}\r\n"
    block += "Nats-Time-Stamp: 2024-01-02T03:04:05.678901234Z\r\n"
    if before is not None:
        block += f"Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {before}\r\n"
    return block.encode() + b"\r\n", payload


def end(pending: int, last: int) -> tuple[bytes, bytes]:
    return f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n\r\n".encode(), b""


def status(text: str) -> tuple[bytes, bytes]:
    return f"NATS/1.0 {text}\r\n\r\n".encode(), b""


NOT_FOUND = status("404 Message Not Found")


def of_leader(seq: int) -> tuple[bytes, bytes]:
    message = {"subject": "s.a", "seq": seq, "data": "eA==", "time": "2024-01-02T03:04:05Z"}
    return b"NATS/1.0\r\n\r\n", json.dumps({"message": message}).encode()


NOTHING = b"NATS/1.0\r\n\r\n", b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'


async def test_gap_in_a_page_is_asked_for_again(nats_client: Client) -> None:
    async with played(
        nats_client,
        *(stored(1, 0), stored(2, 1), stored(5, 4), end(0, 5), None),
        *(stored(4, 0), stored(5, 4), end(0, 5), None, NOTHING, None),
    ) as (stream, asked):
        assert await sequences(aiter(stream.get_batch())) == [1, 2, 4, 5]
        assert [body["seq"] for _, body in asked] == [1, 3, 6]


async def test_end_of_a_page_that_is_lost_is_asked_for_again(nats_client: Client) -> None:
    async with played(
        nats_client,
        *(stored(1, 0), stored(2, 1), end(0, 4), None),
        *(stored(3, 0), stored(4, 3), end(0, 4), None, NOTHING, None),
    ) as (stream, asked):
        assert await sequences(aiter(stream.get_batch())) == [1, 2, 3, 4]
        assert [body["seq"] for _, body in asked] == [1, 3, 5]


async def test_server_that_lags_behind_ends_nothing(nats_client: Client) -> None:
    """The second page is asked of another server, which has not got that far; the leader has."""
    async with played(
        nats_client,
        *(stored(1, 0), end(3, 1), None),
        *(NOT_FOUND, None),
        *(of_leader(2), None, of_leader(4), None),
        *(stored(3, 0), stored(4, 3), end(0, 4), None),
    ) as (stream, asked):
        assert await sequences(aiter(stream.get_batch())) == [1, 2, 3, 4]
        assert [subject[0] for subject, _ in asked] == ["D", "D", "S", "S", "D"]  # DIRECT.GET, STREAM.MSG.GET
        assert [body for _, body in asked[2:4]] == [{"next_by_subj": ">", "seq": 2}, {"last_by_subj": ">"}]


async def test_messages_that_were_purged_meanwhile_end_it(nats_client: Client) -> None:
    async with played(nats_client, *(stored(1, 0), end(3, 1), None), *(NOT_FOUND, None), *(NOTHING, None)) as (
        stream,
        _,
    ):
        assert await sequences(aiter(stream.get_batch())) == [1]


async def test_batch_get_from_an_old_server(nats_client: Client) -> None:
    async with played(
        nats_client, *(stored(1, None), None), *(of_leader(1), None), *(of_leader(3), None), *(NOTHING, None)
    ) as (stream, asked):
        assert await sequences(aiter(stream.get_batch())) == [1, 3]
        assert [body.get("seq") for _, body in asked] == [1, 1, 2, 4]


async def test_server_that_falls_silent_is_a_timeout(nats_client: Client) -> None:
    async with played(nats_client, stored(1, 0), stored(2, 1), None, timeout=1.0) as (stream, _):
        found: list[int] = []
        batches = stream.get_batch().batches()
        while len(found) < 2:
            found += [message.seq for message in await anext(batches)]
        assert found == [1, 2]
        with pytest.raises(errors.RequestTimeout, match=r"messages of stream 'S': no answer within 1 s"):
            await anext(batches)


async def test_late_messages_of_an_abandoned_page(nats_client: Client) -> None:
    """The rest of the first page comes when the second was asked for, behind a gap."""
    async with played(
        nats_client,
        *(stored(1, 0), stored(3, 2), stored(4, 3), stored(5, 4), end(0, 5), None),
        *(stored(2, 0), stored(3, 2), end(0, 3), None, NOTHING, None),
    ) as (stream, _):
        assert await sequences(aiter(stream.get_batch())) == [1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status("408 Bad Request"), errors.BadRequest),
        (status("412 Required Api Level"), errors.ApiError),
        (status("500 disk on fire"), errors.ApiError),
        (status("413 Too Many Results"), errors.LimitReached),
        (status("299"), errors.ApiError),
        ((b"NATS/1.0\r\nNats-Stream: S\r\n\r\n", b""), errors.InvalidReply),
    ],
)
async def test_refusals_are_typed_and_say_what_was_asked(
    nats_client: Client, answer: tuple[bytes, bytes], kind: type[Exception]
) -> None:
    async with played(nats_client, answer, None, answer, None) as (stream, _):
        words = "headers" if kind is errors.InvalidReply else "stream 'S'"
        with pytest.raises(kind, match=words):
            await stream.get_message(1)
        with pytest.raises(kind, match=words):
            await anext(aiter(stream.get_batch()))


async def test_time_as_the_first_servers_wrote_it_is_read(nats_client: Client) -> None:
    block = stored(1, None)[0].replace(b"2024-01-02T03:04:05.678901234Z", b"2024-01-02 03:04:05.678901234 +0000 UTC")
    async with played(nats_client, (block, b"x"), None) as (stream, _):
        assert (await stream.get_message(1)).time == Timestamp.parse("2024-01-02T03:04:05.678901234Z")


def test_broken_header_block_at_a_time_with_503_in_it() -> None:
    """It is looked at whether that is the status which says that nobody listens."""
    block = b"garba" + stored(7, None)[0].removeprefix(b"NATS/1.0\r\n").replace(b"678901234", b"678503234")
    message = Message("inbox", None, b"", block)
    assert not message.is_no_responders
    parts = DirectReply.of(message).parts()
    assert parts is not None
    assert (parts[0].seq, parts[0].time.nanosecond) == (7, 234)


async def test_time_that_is_none_fails_when_it_is_read(nats_client: Client) -> None:
    block = stored(1, None)[0].replace(b"2024-01-02T03:04:05.678901234Z", b"yesterday")
    async with played(nats_client, (block, b"x"), None) as (stream, _):
        message = await stream.get_message(1)
        with pytest.raises(errors.InvalidReply, match="yesterday"):
            message.time  # noqa: B018


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*FORGED, "A"]), st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=5)
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_published_headers_come_back_whatever_they_are(own: list[tuple[str, str]], looked: bool) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in own)
    block = b"NATS/1.0\r\n" + lines.encode() + stored(7, None)[0].removeprefix(b"NATS/1.0\r\n")
    message = Message("inbox", None, b"x", block)
    if looked:
        assert len(message.headers) > 3
    parts = DirectReply.of(message).parts()
    assert parts is not None
    assert (parts[0].seq, parts[0].subject, parts[0].headers) == (7, "s.a", Headers(own))
    assert parts[0].time.nanosecond == 234


_PIECES = [
    *(b"NATS/1.0\r\n", b"NATS/1.0 404 Not Found\r\n", b"Nats-Stream: S\r\n", b"Nats-Stream: T\r\n", b"a: b\r\n"),
    *(b"Nats-Subject: s.a\r\n", b"Nats-Sequence: 7\r\n", b"Nats-Sequence: x\r\n", b"Nats-Sequence: \r\n"),
    *(b"Nats-Time-Stamp: 2024-01-02T03:04:05Z\r\n", b"Nats-Time-Stamp: never\r\n", b"Nats-Num-Pending: 1\r\n", b"\r\n"),
]


@given(st.integers(0, 5), st.lists(st.sampled_from(_PIECES), max_size=5))
def test_last_get_of_plain_messages(good: int, more: list[bytes]) -> None:
    block = b"".join([*stored(7, None)[0].splitlines(keepends=True)[:good], *more])
    assume(block.count(b"Nats-Stream: ") < 2)
    get = LastGet(OFFLINE_API, "S", "s.a")
    if get.headerless(Message("inbox", None, b"x", block)) is not None:
        message, parts = headerless_message(block, b"x"), DirectReply("inbox", None, b"x", block).parts()
        assert parts is not None
        assert not message.has_headers
        assert (message.stream, message.subject, message.seq, message.data) == ("S", "s.a", 7, b"x")
        assert (message._time, message.has_headers) == (parts[0]._time, parts[0].has_headers)
    else:
        assert good < 5 or more


@pytest.mark.parametrize("time", ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123456789+00:00"])
def test_last_get_with_headers_like_the_servers(time: str) -> None:
    get = LastGet(OFFLINE_API, "S", "s.a")
    said = [f"Nats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: {n}\r\nNats-Time-Stamp: {time}\r\n" for n in (1, 2)]
    forged, headerless = (
        Message("inbox", None, b"x", f"NATS/1.0\r\n{lines}\r\n".encode()) for lines in ("".join(said), said[1])
    )
    assert get.headerless(forged) is None
    assert get.headerless(headerless) is not None
    assert get.read(forged).seq == get.read(headerless).seq == 2


async def test_direct_get_alone_says_nobody_when_it_is_off(jetstream: JetStream) -> None:
    await make(jetstream, allow_direct=False)
    with pytest.raises(errors.NoResponders):
        await direct_get(jetstream._api, "S", {"seq": 1}, operation="it", timeout=None)
