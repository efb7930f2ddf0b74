"""Reads that another server than the leader answers: it may lag or be refilled, so its "not found" proves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import natsproto
from natsproto import Client, Message, PermissionViolation
from natsproto.errors import KeyNotFound, MessageNotFound, RequestTimeout
from natsproto.jetstream import JetStream, StreamSource
from natsproto.jetstream._publish.outcome import Expectation
from natsproto.jetstream._publish.publish import Sent
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._stream.own_write import WriteLookup
from natsproto.jetstream._stream.stream import Stream
from natsproto.testing import run_server

PREFIX = "LAGS"
EMPTY = 100
"""Direct gets that find nothing: more than a read sends."""


class EmptyServer:
    """Answers the next ``left`` direct gets like a server that has the first ``stored`` messages of the bucket b, for
    those of many messages, and none for the others. The later ones reach the real server.
    """

    def __init__(self, client: Client) -> None:
        self.client, self.left, self.asked, self.stored = client, 0, 0, 0

    async def answer(self, request: Message) -> None:
        endpoint = request.subject.removeprefix(f"{PREFIX}.")
        if not endpoint.startswith("DIRECT.") or self.left == 0:
            await self.client.publish(f"$JS.API.{endpoint}", request.data, reply=request.reply)
            return
        self.left -= 1
        self.asked += 1
        if self.stored and "multi_last" in (wanted := json.loads(request.data)):
            body = json.dumps({**wanted, "up_to_seq": self.stored}).encode()
            await self.client.publish(f"$JS.API.{endpoint}", body, reply=request.reply)
        elif self.stored and (found := await self._first_messages(wanted)):
            self._send_page(request.reply or "", found)
        else:
            self._send_missing(request)

    async def _first_messages(self, wanted: dict[str, Any]) -> list[RawMessage]:
        stream = await self.client.jetstream().stream("KV_b")
        bounds = {"subject": wanted.get("next_by_subj", ""), "start_seq": wanted["seq"], "batch": wanted["batch"]}
        return [message async for message in stream.get_batch(**bounds) if message.seq <= self.stored]

    def _send_page(self, reply: str, messages: list[RawMessage]) -> None:
        before = 0
        for number, message in enumerate(messages, 1):
            lines = f"Nats-Stream: KV_b\r\nNats-Subject: {message.subject}\r\nNats-Sequence: {message.seq}\r\n"
            lines += f"Nats-Time-Stamp: {message.time.rfc3339()}\r\n"
            lines += f"Nats-Num-Pending: {len(messages) - number}\r\nNats-Last-Sequence: {before}\r\n\r\n"
            self._send(reply, f"NATS/1.0\r\n{lines}".encode(), message.data)
            before = message.seq
        end = f"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: {before}\r\n\r\n"
        self._send(reply, end.encode())

    def _send_missing(self, request: Message) -> None:
        block = b"NATS/1.0 404 %s\r\n\r\n" % (b"No Results" if b"multi_last" in request.data else b"Message Not Found")
        self._send(request.reply or "", block)

    def _send(self, reply: str, block: bytes, data: bytes = b"") -> None:
        # A header block with a status, which no client may write.
        head = b"HPUB %b %d %d\r\n" % (reply.encode(), len(block), len(block) + len(data))
        self.client._outbox.put(head, block + data)


@asynccontextmanager
async def empty_server(nc: Client) -> AsyncIterator[tuple[JetStream, EmptyServer]]:
    server = EmptyServer(nc)
    async with nc.subscribe(f"{PREFIX}.>", cb=server.answer):
        yield nc.jetstream(prefix=PREFIX, timeout=5), server


async def _last_seqs(js: JetStream, **bounds: Any) -> list[int]:
    stream = await js.stream("KV_b")
    return [message.seq async for message in stream.get_last_messages(["$KV.b.a", "$KV.b.x.*"], **bounds)]


async def _batch(js: JetStream, **bounds: Any) -> list[int]:
    return [message.seq async for message in (await js.stream("KV_b")).get_batch(**bounds)]


async def _revisions(js: JetStream, *keys: str, **bounds: Any) -> dict[str, int]:
    found = await (await js.key_value("b")).get_many(keys, **bounds)
    return {key: entry.revision for key, entry in found.items()}


async def _history(js: JetStream) -> list[int]:
    return [entry.revision for entry in await (await js.key_value("b")).history("a")]


SINGLE: dict[str, tuple[Callable[[JetStream], Awaitable[object]], object]] = {
    "by sequence": (lambda js: _seq(js, 1), 1),
    "last": (lambda js: _last(js, "$KV.b.a"), 4),
    "last of a wildcard": (lambda js: _last(js, "$KV.b.x.*"), 3),
    "next": (lambda js: _next_seq(js, 2), 2),
    "batch": (_batch, [1, 2, 3, 4]),
    "rest of a batch": (lambda js: _batch(js, start_seq=3), [3, 4]),
    "history": (_history, [1, 4]),
    "key": (lambda js: _key(js, None), 4),
    "revision of a key": (lambda js: _key(js, 1), 1),
    "content of an object": (lambda js: _object(js), b"content"),
    "list of objects": (lambda js: _objects(js), ["o"]),
}


async def _seq(js: JetStream, seq: int) -> int:
    return (await (await js.stream("KV_b")).get_message(seq)).seq


async def _last(js: JetStream, subject: str) -> int:
    return (await (await js.stream("KV_b")).get_last_message(subject)).seq


async def _next_seq(js: JetStream, start: int) -> int:
    return (await (await js.stream("KV_b")).get_next_message(start_seq=start)).seq


async def _key(js: JetStream, revision: int | None) -> int:
    return (await (await js.key_value("b")).get("a", revision=revision)).revision


async def _object(js: JetStream) -> bytes:
    return await (await js.object_store("s")).get_bytes("o")


async def _objects(js: JetStream) -> list[str]:
    return [info.name async for info in (await js.object_store("s")).list()]


async def _fill(js: JetStream) -> None:
    """Store a, b, x.y, and a again."""
    kv = await js.create_key_value("b", history=5, storage="memory")
    for key in ("a", "b", "x.y", "a"):
        await kv.put(key, b"v")
    store = await js.create_object_store("s", storage="memory")
    await store.put("o", b"content")


@pytest.mark.parametrize("name", SINGLE)
async def test_what_one_server_lacks_is_not_missing(jetstream: JetStream, nats_client: Client, name: str) -> None:
    await _fill(jetstream)
    read, expected = SINGLE[name]
    async with empty_server(nats_client) as (js, server):
        server.left = EMPTY
        assert await read(js) == expected
    assert server.asked


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_last_seqs, [3, 4]),
        (lambda js: _last_seqs(js, up_to_seq=3), [1, 3]),
        (lambda js: _last_seqs(js, up_to_seq=4), [3, 4]),
        (lambda js: _last_seqs(js, up_to_seq=99), [3, 4]),
        (lambda js: _last_seqs(js, batch=1), [3]),
        (lambda js: _revisions(js, "a", "b", "never"), {"a": 4, "b": 2}),
        (lambda js: _revisions(js, "x.*"), {"x.y": 3}),
        (lambda js: _revisions(js, "never", "no.*"), {}),
        (lambda js: _revisions(js, "a", "never", up_to_revision=2), {"a": 1}),
        (lambda js: _revisions(js, "x.y", up_to_revision=2), {}),
    ],
)
async def test_servers_are_asked_until_one_has_all(
    jetstream: JetStream, nats_client: Client, read: Callable[[JetStream], Awaitable[object]], expected: object
) -> None:
    await _fill(jetstream)
    async with empty_server(nats_client) as (js, server):
        for lagging in range(4):
            server.left = lagging
            assert await read(js) == expected


@pytest.mark.parametrize("stored", range(1, 4))
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_batch, [1, 2, 3, 4]),
        (lambda js: _batch(js, start_seq=2), [2, 3, 4]),
        (lambda js: _batch(js, start_seq=2, batch=2), [2, 3]),
        (_history, [1, 4]),
        (lambda js: _revisions(js, "a", "b"), {"a": 4, "b": 2}),
        (lambda js: _revisions(js, "*"), {"a": 4, "b": 2}),
        (lambda js: _revisions(js, ">"), {"a": 4, "b": 2, "x.y": 3}),
        (lambda js: _revisions(js, "x.*", "never"), {"x.y": 3}),
    ],
)
async def test_what_one_server_has_is_not_all(
    jetstream: JetStream,
    nats_client: Client,
    read: Callable[[JetStream], Awaitable[Any]],
    expected: Any,
    stored: int,
) -> None:
    """Nothing is missing; a value of a key may be the older one."""
    await _fill(jetstream)
    async with empty_server(nats_client) as (js, server):
        for lagging in range(1, 4):
            server.stored, server.left = stored, lagging
            found = await read(js)
            assert list(found) == expected if isinstance(expected, list) else set(found) == set(expected)


async def test_a_read_ends_while_others_publish(jetstream: JetStream, nats_client: Client) -> None:
    """The end is that of the first look at the leader, though each page lacks what was stored meanwhile."""
    await _fill(jetstream)
    async with empty_server(nats_client) as (js, server):
        server.stored, server.left = 1, 10_000
        found: list[int] = []
        async for message in (await js.stream("KV_b")).get_batch():
            found.append(message.seq)
            await jetstream.publish("$KV.b.a", b"more")
            assert len(found) < 20
        assert found == list(range(1, len(found) + 1))
        assert found[:4] == [1, 2, 3, 4]


async def test_read_as_of_a_time_that_one_server_lacks(jetstream: JetStream, nats_client: Client) -> None:
    await _fill(jetstream)
    stream = await jetstream.stream("KV_b")
    first, last = (await stream.get_message(1)).time, (await stream.get_message(4)).time
    async with empty_server(nats_client) as (js, server):
        kv = await js.key_value("b")
        for lagging in range(3):
            for time, revision in ((first, 1), (last, 4)):
                server.left = lagging
                assert (await kv.get_many(["a"], up_to_time=time))["a"].revision == revision


async def test_servers_that_all_lag_are_a_timeout(jetstream: JetStream, nats_client: Client) -> None:
    await _fill(jetstream)
    async with empty_server(nats_client) as (js, server):
        server.left = 10_000
        kv = await js.key_value("b")
        with pytest.raises(RequestTimeout, match="lag behind the leader"):
            await kv.get_many(["a"], timeout=0.2)


async def test_missing_messages_are_missing(jetstream: JetStream, nats_client: Client) -> None:
    await _fill(jetstream)
    async with empty_server(nats_client) as (js, server):
        server.left = EMPTY
        stream, kv = await js.stream("KV_b"), await js.key_value("b")
        with pytest.raises(MessageNotFound):
            await stream.get_message(99)
        with pytest.raises(KeyNotFound):
            await kv.get("never")
        assert [message async for message in stream.get_batch(subject="$KV.b.never")] == []


async def test_who_may_not_ask_the_leader_is_refused_once() -> None:
    config = """
        accounts { A { jetstream: enabled, users: [
            { user: all, password: x }
            { user: some, password: x, permissions: { publish: { deny: "$JS.API.STREAM.MSG.GET.>" } } } ] } }
    """
    events: list[object] = []
    async with (
        run_server(jetstream=True, config=config) as server,
        natsproto.connect(server.url, user="all", password="x") as nc,
        natsproto.connect(server.url, user="some", password="x", on_event=events.append) as limited,
    ):
        await _fill(nc.jetstream())
        kv = await limited.jetstream().key_value("b")
        for _ in range(2):
            for subject, found in (("$KV.b.a", [1, 4]), ("$KV.b.never", [])):
                assert [message.seq async for message in kv.stream.get_batch(subject=subject)] == found
            assert sorted(await kv.get_many(["a", "never", "x.*"])) == ["a", "x.y"]
            assert await kv.get("never", default=None) is None
            assert len(await kv.history("a")) == 2
    assert len([event for event in events if isinstance(event, PermissionViolation)]) == 1


async def test_a_mirror_that_answers_hides_nothing(jetstream: JetStream) -> None:
    """``mirror_direct``: a stream without replicas has a second server that lags."""
    kv = await jetstream.create_key_value("b", storage="memory")
    await jetstream.create_stream(
        "M", mirror=StreamSource(name="KV_b"), mirror_direct=True, allow_direct=True, storage="memory"
    )
    await kv.put("first", b"")
    async with asyncio.timeout(10):
        while (await kv.stream.get_message(1)).stream != "M":
            pass

    async def write_and_read(number: int) -> None:
        await kv.put(f"k{number}", bytes(50_000))
        assert (await kv.get(f"k{number}")).size == 50_000
        assert list(await kv.get_many([f"k{number}"])) == [f"k{number}"]

    await asyncio.gather(*map(write_and_read, range(100)))


async def test_lookup_of_a_write_trusts_no_server_that_lags(
    jetstream: JetStream, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the message before the write, and neither the write nor the one after it."""
    await _fill(jetstream)
    stream = await jetstream.stream("KV_b")
    await jetstream.publish("$KV.b.a", b"own")
    await jetstream.publish("$KV.b.a", b"next")
    read = stream.get_batch

    def stale(*, direct: bool = True, **bounds: Any) -> Any:
        return read(direct=direct, **bounds, batch=1 if direct else None)

    monkeypatch.setattr(stream, "get_batch", stale)

    async def find() -> Stream:
        return stream

    lookup = WriteLookup(find, "$KV.b.a", lambda message: message.data == b"own")
    state = (await stream.info()).state
    evidence = await lookup(Sent(Expectation(4, "$KV.b.a"), None, 0.0, 5.0))
    assert evidence.ack is not None
    assert evidence.ack.seq == state.last_seq - 1
