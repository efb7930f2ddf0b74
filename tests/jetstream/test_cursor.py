"""Cursors: messages and the position of their source are stored together, once, whatever is lost or sent again."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import natsproto.sync
from natsproto._core.deadline import Deadline
from natsproto.errors import (
    ConfigError,
    CursorMoved,
    InvalidReply,
    InvalidSubject,
    LocalProtocolError,
    NatsError,
    PayloadTooLarge,
    PublishUncertain,
    RequestTimeout,
    StreamNotFound,
    UnsupportedByServer,
    WrongLastSequence,
)
from natsproto.jetstream import Advance, Cursor, JetStream, PubAck, Stream, SubjectTransform
from natsproto.jetstream._cursor import CURSOR_HEADER
from natsproto.testing import Direction, FaultProxy, Server, run_server
from tests.kit.servers import client_of

SUBJECTS = ["s.>", "$CURSOR.S.>"]


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream("S", subjects=SUBJECTS, allow_atomic=True)


async def numbers_without_cursors(stream: Stream) -> list[int]:
    """The payloads of the messages of a stream, without those of cursors."""
    found = stream.get_batch()
    return [int(message.data) async for message in found if CURSOR_HEADER not in message.headers]


async def advance(cursor: Cursor, first: int, to: int, **options: Any) -> None:
    """Publish the numbers up to ``to``, which becomes the value."""
    async with cursor.advance(to=to, **options) as batch:
        for number in range(first, to + 1):
            await batch.publish("s.x", b"%d" % number)


# ---------------------------------------------------------------- values


async def test_messages_and_value_are_stored_together(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "import")
    assert (cursor.value, cursor.seq, cursor.name, cursor.stream) == (None, 0, "import", "S")
    async with cursor.advance(to=3) as batch:
        for number in (1, 2, 3):
            await batch.publish("s.x", b"%d" % number)
        assert len(batch) == 3
        assert (await stream.info()).state.messages == 0
    assert (batch.ack.seq, batch.ack.count) == (4, 4)
    assert (cursor.value, cursor.seq) == (3, 4)
    again = await jetstream.cursor("S", "import")
    assert (again.value, again.seq) == (3, 4)
    marked = await stream.get_last_message("$CURSOR.S.import")
    assert (marked.seq, marked.data, marked.headers[CURSOR_HEADER]) == (4, b"3", "int")


async def test_cursors_of_one_stream_are_independent(jetstream: JetStream, stream: Stream) -> None:
    one, two = await jetstream.cursor("S", "one"), await jetstream.cursor("S", "two")
    await advance(one, 1, 5)
    await advance(two, 1, 2)
    await advance(one, 6, 6)
    assert [(await jetstream.cursor("S", name)).value for name in ("one", "two")] == [6, 2]


@pytest.mark.parametrize("value", [-5, 0, 2**70, b"", b"\x00\xff\r\n", b"page=7"])
async def test_value_is_read_as_written(jetstream: JetStream, stream: Stream, value: int | bytes) -> None:
    cursor = await jetstream.cursor("S", "c")
    async with cursor.advance(to=value):
        pass
    assert cursor.value == value
    assert (await jetstream.cursor("S", "c")).value == value


async def test_only_cursor_moves_without_messages(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 8, 7)
    assert (await numbers_without_cursors(stream), cursor.value) == ([], 7)


async def test_subject_of_own_choice(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s.>"], allow_atomic=True)
    cursor = await jetstream.cursor("S", "c", subject="s.positions.c")
    await advance(cursor, 1, 2)
    assert (await stream.get_last_message("s.positions.c")).data == b"2"


async def test_exception_in_the_block_stores_nothing(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 1, 1)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with cursor.advance(to=2) as batch:
            await batch.publish("s.x", b"2")
            raise ZeroDivisionError
    with pytest.raises(LocalProtocolError, match="was not stored"):
        _ = batch.ack
    assert (cursor.value, await numbers_without_cursors(stream)) == (1, [1])
    await advance(cursor, 2, 2)
    assert await numbers_without_cursors(stream) == [1, 2]


async def test_largest_advance_has_999_messages(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 1, 999)
    with pytest.raises(LocalProtocolError, match="999 messages"):
        await advance(cursor, 1000, 1999)
    assert cursor.value == 999
    await advance(cursor, 1000, 1001)
    assert await numbers_without_cursors(stream) == list(range(1, 1002))


# ---------------------------------------------------------------- two writers


async def test_second_writer_is_refused(jetstream: JetStream, stream: Stream) -> None:
    first, second = await jetstream.cursor("S", "c"), await jetstream.cursor("S", "c")
    await advance(first, 1, 2)
    with pytest.raises(CursorMoved, match="another writer") as caught:
        await advance(second, 1, 3)
    assert (caught.value.value, caught.value.seq, caught.value.expected_seq) == (2, 3, 0)
    with pytest.raises(LocalProtocolError, match=r"call load\(\)"):
        _ = second.value
    with pytest.raises(LocalProtocolError, match=r"call load\(\)"):
        second.advance(to=4)
    assert await second.load() == 2
    await advance(second, 3, 3)
    assert await numbers_without_cursors(stream) == [1, 2, 3]


async def test_writers_that_contend_store_each_number_once(jetstream: JetStream, stream: Stream, seed: int) -> None:
    rng = random.Random(seed)

    async def write() -> None:
        cursor = await jetstream.cursor("S", "c")
        while (at := cursor.value or 0) != 60:
            assert isinstance(at, int)
            try:
                await advance(cursor, at + 1, min(60, at + rng.randint(1, 9)))
            except CursorMoved:
                await cursor.load()

    await asyncio.gather(*(write() for _ in range(4)))
    assert await numbers_without_cursors(stream) == list(range(1, 61))


async def test_own_expectation_is_the_callers_error(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 1, 1)
    with pytest.raises(WrongLastSequence):
        async with cursor.advance(to=2) as batch:
            await batch.publish("s.y", b"2", expected_last_subject_seq=77)
    assert await cursor.load() == 1
    assert await numbers_without_cursors(stream) == [1]


# ---------------------------------------------------------------- faults


@asynccontextmanager
async def behind_a_proxy(tmp_path: Path) -> AsyncIterator[tuple[Any, FaultProxy, JetStream, Stream]]:
    async with (
        run_server(jetstream=True, store_dir=tmp_path / "store") as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.02) as nc,
    ):
        js = nc.jetstream(timeout=10)
        stream = await js.create_stream("S", subjects=SUBJECTS, allow_atomic=True)
        yield server, proxy, js, stream


async def test_lost_acknowledgement_stores_once(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (_, proxy, js, stream):
        cursor = await js.cursor("S", "c")
        await advance(cursor, 1, 3)
        proxy.stall(Direction.TO_CLIENT)
        task = asyncio.create_task(advance(cursor, 4, 6))
        await asyncio.sleep(0.05)
        proxy.heal()
        proxy.cut()
        await task
        assert cursor.value == 6
        assert await numbers_without_cursors(stream) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("moment", range(6))
async def test_cut_at_any_moment_stores_once(tmp_path: Path, seed: int, moment: int) -> None:
    rng = random.Random(seed + moment)
    async with behind_a_proxy(tmp_path) as (_, proxy, js, stream):
        cursor = await js.cursor("S", "c")
        for step in range(12):
            task = asyncio.create_task(advance(cursor, 3 * step + 1, 3 * step + 3))
            await asyncio.sleep(rng.random() * 0.004)
            proxy.cut()
            await task
        assert await numbers_without_cursors(stream) == list(range(1, 37))


async def test_server_that_is_killed_stores_once(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (server, _, js, stream):
        cursor = await js.cursor("S", "c")
        await advance(cursor, 1, 3)
        server.kill()
        task = asyncio.create_task(advance(cursor, 4, 6))
        await server.restart()
        await task
        assert await numbers_without_cursors(stream) == [1, 2, 3, 4, 5, 6]


async def test_time_without_an_answer_is_uncertain(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (_, proxy, js, stream):
        cursor = await js.cursor("S", "c")
        await advance(cursor, 1, 3)
        proxy.stall(Direction.TO_CLIENT)
        with pytest.raises(NatsError) as caught:
            await advance(cursor, 4, 6, timeout=0.3)
        proxy.heal()
        assert isinstance(caught.value, (PublishUncertain, natsproto.errors.RequestTimeout))
        with pytest.raises(LocalProtocolError, match=r"call load\(\)"):
            cursor.advance(to=9)
        at = await cursor.load()
        assert isinstance(at, int)
        await advance(cursor, at + 1, 9)
        assert await numbers_without_cursors(stream) == list(range(1, 10))


async def test_cancelled_advance_is_decided_by_load(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (_, proxy, js, stream):
        cursor = await js.cursor("S", "c")
        proxy.stall(Direction.TO_CLIENT)
        task = asyncio.create_task(advance(cursor, 1, 3))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.heal()
        at = await cursor.load()
        await advance(cursor, at + 1 if isinstance(at, int) else 1, 4)
        assert await numbers_without_cursors(stream) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.smoke
async def test_stream_that_went_back_is_noticed(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (server, _, js, stream):
        cursor = await js.cursor("S", "c")
        await advance(cursor, 1, 3)
        server.kill()
        shutil.copytree(tmp_path / "store", tmp_path / "before")
        await server.restart()
        await advance(cursor, 4, 6)
        server.kill()
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        await server.restart()
        with pytest.raises(CursorMoved, match="has lost messages") as caught:
            await advance(cursor, 7, 9)
        assert (caught.value.value, caught.value.expected_seq, caught.value.seq) == (3, 8, 4)
        assert await cursor.load() == 3
        await advance(cursor, 4, 9)
        assert await numbers_without_cursors(stream) == list(range(1, 10))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"allow_atomic": False}, r"js\.update_stream\('S', allow_atomic=True\)"),
        ({"subjects": ["s.>"]}, r"does not listen on '\$CURSOR\.S\.c'"),
        ({"retention": "workqueue"}, 'retention="limits"'),
        ({"retention": "interest"}, 'retention="limits"'),
        ({"max_msgs": 100}, 'discard="new"'),
        ({"max_bytes": 100_000}, 'discard="new"'),
        ({"max_age": 60}, "allow_msg_ttl=True"),
        ({"subject_transform": SubjectTransform(src="$CURSOR.>", dest="moved.>")}, "transforms"),
        ({"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}, "full subject"),
    ],
)
async def test_stream_that_could_lose_it_is_refused(jetstream: JetStream, config: dict[str, Any], reason: str) -> None:
    await jetstream.create_stream(**{"name": "S", "subjects": SUBJECTS, "allow_atomic": True, **config})
    with pytest.raises(ConfigError, match=reason):
        await jetstream.cursor("S", "c")


@pytest.mark.parametrize(
    "config",
    [
        {"max_msgs": 100, "discard": "new"},
        {"max_age": 60, "allow_msg_ttl": True},
        {"max_msgs_per_subject": 1},
        {"allow_rollup_hdrs": True},
    ],
)
async def test_stream_that_keeps_it_is_taken(jetstream: JetStream, config: dict[str, Any]) -> None:
    stream = await jetstream.create_stream(**{"name": "S", "subjects": SUBJECTS, "allow_atomic": True, **config})
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 1, 1)
    await advance(cursor, 2, 2)
    assert (await jetstream.cursor("S", "c")).value == 2
    cursors = (await stream.info(subjects_filter="$CURSOR.>")).state.subjects
    assert cursors == {"$CURSOR.S.c": 1 if config.keys() & {"max_msgs_per_subject", "allow_rollup_hdrs"} else 2}


async def test_cursor_outlives_the_messages_that_expire(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=SUBJECTS, allow_atomic=True, allow_msg_ttl=True, max_age=0.5)
    cursor = await jetstream.cursor("S", "c")
    await advance(cursor, 1, 3)
    async with asyncio.timeout(20):
        while (await stream.info()).state.messages > 1:  # noqa: ASYNC110  # the server expires them
            await asyncio.sleep(0.05)
    assert await cursor.load() == 3


async def test_wrong_use_sends_nothing(jetstream: JetStream, stream: Stream) -> None:
    cursor = await jetstream.cursor("S", "c")
    wrong: Any = cursor
    for value in ("5", 5.0, True, None, bytearray(b"5")):
        with pytest.raises(ConfigError, match="must be an int or bytes"):
            wrong.advance(to=value)
    await advance(cursor, 1, 5)
    with pytest.raises(ConfigError, match="above the present value 5"):
        cursor.advance(to=5)
    with pytest.raises(ConfigError, match="must be int"):
        cursor.advance(to=b"6")
    with pytest.raises(LocalProtocolError, match="inside its block"):
        await cursor.advance(to=6).publish("s.x")
    async with cursor.advance(to=6) as batch:
        with pytest.raises(ConfigError, match="the cursor's own"):
            await batch.publish("$CURSOR.S.c")
        with pytest.raises(InvalidSubject):
            await batch.publish("s..x")
        with pytest.raises(PayloadTooLarge):
            await batch.publish("s.x", bytes(2**20 + 1))
        with pytest.raises(LocalProtocolError, match="one advance at a time"):
            cursor.advance(to=7)
        with pytest.raises(LocalProtocolError, match="one advance at a time"):
            await cursor.load()
    with pytest.raises(LocalProtocolError, match="inside its block"):
        await batch.publish("s.x")
    for name in ("", "a.b", "a b", "*", ">"):
        with pytest.raises(InvalidSubject):
            await jetstream.cursor("S", name)
    with pytest.raises(InvalidSubject):
        await jetstream.cursor("S", "c", subject="s.*")
    with pytest.raises(StreamNotFound):
        await jetstream.cursor("T", "c")


@pytest.mark.parametrize("first", [True, False])
async def test_subject_of_no_stream_is_named(jetstream: JetStream, stream: Stream, first: bool) -> None:
    cursor = await jetstream.cursor("S", "c", timeout=3)
    with pytest.raises(ConfigError, match=r"'t\.x'.*nothing was stored"):  # noqa: PT012
        async with cursor.advance(to=1) as batch:
            for subject in ["t.x", "s.x"] if first else ["s.x", "t.x", "s.x"]:
                await batch.publish(subject, b"1")
    assert await cursor.load() is None
    assert await numbers_without_cursors(stream) == []


async def test_message_of_somebody_else_is_no_cursor(jetstream: JetStream, stream: Stream) -> None:
    await jetstream.publish("$CURSOR.S.c", b"12")
    with pytest.raises(InvalidReply, match="holds another message"):
        await jetstream.cursor("S", "c")


async def test_server_without_atomic_batches_is_named(tmp_path: Path) -> None:
    async with client_of("2.11") as nc:
        with pytest.raises(UnsupportedByServer, match=r"2\.12"):
            await nc.jetstream().cursor("S", "c")


def test_blocking_client_advances_too(nats_server: Server) -> None:
    with natsproto.sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        js.create_stream("BLOCKING", subjects=["b.>", "$CURSOR.BLOCKING.>"], allow_atomic=True)
        cursor = js.cursor("BLOCKING", "c")
        with cursor.advance(to=2) as batch:
            batch.publish("b.1", b"1")
            batch.publish("b.2", b"2")
            assert len(batch) == 2
        assert (cursor.value, cursor.seq, batch.ack.seq, cursor.load()) == (2, 3, 3, 2)
        assert (cursor.name, cursor.stream, cursor.subject) == ("c", "BLOCKING", "$CURSOR.BLOCKING.c")


@pytest.mark.parametrize("refusals", [5, 1000])
async def test_refusals_at_an_unmoved_cursor_are_waited_for(
    jetstream: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """A leader that is cut off knows batches of others that are not decided: it refuses, and shows the old value."""
    send, left = Advance._send, refusals

    async def refuse(advance: Advance, deadline: Deadline) -> PubAck:
        nonlocal left
        left -= 1
        if left >= 0:
            raise WrongLastSequence(400, 10164, "wrong last sequence", "atomic batch")
        return await send(advance, deadline)

    monkeypatch.setattr("natsproto.jetstream._cursor._LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(Advance, "_send", refuse)
    cursor = await jetstream.cursor("S", "c")
    if refusals > 5:
        with pytest.raises(RequestTimeout, match="not decided yet"):
            await advance(cursor, 1, 1, timeout=0.5)
        assert (cursor.value, await numbers_without_cursors(stream)) == (None, [])
    else:
        await advance(cursor, 1, 1, timeout=30)
        assert (cursor.value, await numbers_without_cursors(stream)) == (1, [1])
