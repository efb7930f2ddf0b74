"""A journal: publishing into a file while there is no server; each message is in the stream once and in order."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import natsproto
from natsproto.errors import ConfigError, InvalidHeader, InvalidSubject, LocalProtocolError
from natsproto.jetstream import JetStream, Stream
from natsproto.outbox import Journal
from natsproto.testing import run_server
from tests.kit.contents import payloads

SUBJECTS = ["s.>", "$CURSOR.S.>"]


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream("S", subjects=SUBJECTS, allow_atomic=True)


async def publish_all(journal: Journal, js: JetStream, stream: Stream, count: int) -> None:
    """Run the relay until the stream has as many messages."""
    stop = asyncio.Event()
    relay = asyncio.create_task(journal.relay(js, stream="S").run(until=stop))
    while not relay.done() and len(await payloads(stream, "s.>")) < count:  # noqa: ASYNC110  # only the server knows
        await asyncio.sleep(0.02)
    stop.set()
    await relay


async def test_messages_are_published_in_order(jetstream: JetStream, stream: Stream, tmp_path: Path) -> None:
    async with Journal(tmp_path / "edge.db") as journal:
        await journal.publish("s.a", b"0", headers={"Source": ["x", "y"]})
        await asyncio.gather(*(journal.publish("s.b", b"%d" % number) for number in range(1, 500)))
        await publish_all(journal, jetstream, stream, 500)
        await journal.publish("s.a", memoryview(b"500"))
        await publish_all(journal, jetstream, stream, 501)
    assert await payloads(stream, "s.>") == [b"%d" % number for number in range(501)]
    assert (await stream.get_message(1)).headers.get_all("Source") == ["x", "y"]


async def test_each_file_has_a_cursor_of_its_own(jetstream: JetStream, stream: Stream, tmp_path: Path) -> None:
    """Two devices that publish into one stream, and one whose file was lost."""
    for number, name in enumerate(["a.db", "b.db", "a.db", "c.db"]):
        async with Journal(tmp_path / name) as journal:
            await journal.publish("s.x", b"%d" % number)
            await publish_all(journal, jetstream, stream, number + 1)
    assert await payloads(stream, "s.>") == [b"0", b"1", b"2", b"3"]
    assert len((await stream.info(subjects_filter="$CURSOR.>")).state.subjects) == 3


async def test_publishing_needs_no_server(tmp_path: Path) -> None:
    """The server comes later, dies, and comes back."""
    async with Journal(tmp_path / "edge.db") as journal:
        for number in range(20):
            await journal.publish("s.x", b"%d" % number)
        async with (
            run_server(jetstream=True, store_dir=tmp_path / "store") as server,
            natsproto.connect(server.url) as client,
        ):
            js = client.jetstream()
            stream = await js.create_stream("S", subjects=SUBJECTS, allow_atomic=True)
            stop = asyncio.Event()
            relay = asyncio.create_task(journal.relay(js, stream="S").run(until=stop))
            server.kill()
            for number in range(20, 40):
                await journal.publish("s.x", b"%d" % number)
            await server.restart()
            while len(await payloads(stream, "s.>")) < 40:  # noqa: ASYNC110  # only the server knows
                await asyncio.sleep(0.02)
            stop.set()
            await relay
            assert await payloads(stream, "s.>") == [b"%d" % number for number in range(40)]


WRITER = """
import asyncio, sys
from natsproto.outbox import Journal

async def main():
    async with Journal(sys.argv[1]) as journal:
        number = int(sys.argv[2])
        while True:
            await journal.publish("s.x", b"%d" % number)
            print(number, flush=True)
            number += 1

asyncio.run(main())
"""


async def test_what_was_committed_outlives_the_process(
    jetstream: JetStream, stream: Stream, tmp_path: Path, seed: int
) -> None:
    chance, published = random.Random(seed), -1
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "edge.db"), str(published + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 60)):
                published = int(await asyncio.to_thread(process.stdout.readline))
            process.send_signal(signal.SIGKILL)
            published = int(([*process.stdout] or [published])[-1])
        async with Journal(tmp_path / "edge.db"):
            pass
        connection = sqlite3.connect(tmp_path / "edge.db")
        (last,) = connection.execute("SELECT MAX(CAST(payload AS TEXT) + 0) FROM journal").fetchone()
        connection.close()
        assert last - published in (0, 1)
        published = last
    async with Journal(tmp_path / "edge.db") as journal:
        await publish_all(journal, jetstream, stream, published + 1)
    assert await payloads(stream, "s.>") == [b"%d" % number for number in range(published + 1)]


async def test_a_full_file_is_an_error_until_it_is_published(
    jetstream: JetStream, stream: Stream, tmp_path: Path
) -> None:
    async with Journal(tmp_path / "edge.db", max_bytes=2**20) as journal:
        large = (journal.publish("s.x", bytes(50_000)) for _ in range(100))
        ended = [(await asyncio.gather(one, return_exceptions=True))[0] for one in large]
        count = ended.count(None)
        assert 10 < count < 30
        assert all(isinstance(one, sqlite3.OperationalError) for one in ended[count:])
        await publish_all(journal, jetstream, stream, count)
    assert len(await payloads(stream, "s.>")) == count


async def test_a_message_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    """One is larger than the file may be, and one has a subject that SQLite cannot encode."""
    async with Journal(tmp_path / "edge.db", max_bytes=2**20) as journal:
        bodies = {"s.a": b"1", "s.large": bytes(3 * 2**20), "s.b": b"2", "s.\udcff": b"3", "s.c": b"4"}
        ended = await asyncio.gather(*(journal.publish(*each) for each in bodies.items()), return_exceptions=True)
        assert [type(one).__name__ for one in ended] == [
            *("NoneType", "OperationalError", "NoneType", "InvalidSubject", "NoneType")
        ]
        await journal.publish("s.d", b"5")
    with closing(sqlite3.connect(tmp_path / "edge.db")) as connection:
        rows = connection.execute("SELECT subject FROM journal ORDER BY id").fetchall()
    assert rows == [("s.a",), ("s.b",), ("s.c",), ("s.d",)]


async def test_unexpected_errors_fail_their_message_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto.outbox._journal.row_of", lambda subject, *_: (subject, object(), ""))
    async with Journal(tmp_path / "edge.db") as journal, asyncio.timeout(10):
        with pytest.raises(sqlite3.Error):
            await journal.publish("s.a")
        monkeypatch.setattr("natsproto.outbox._journal.row_of", lambda subject, *_: ("\udcff", b"", ""))
        ended = await asyncio.gather(journal.publish("s.a"), journal.publish("s.a"), return_exceptions=True)
        assert [type(one) for one in ended] == [UnicodeEncodeError] * 2
        monkeypatch.undo()
        await journal.publish("s.a")


@pytest.mark.parametrize("path", ["", ":memory:", "file:edge.db?mode=memory", "."])
def test_a_journal_needs_a_file(path: str) -> None:
    with pytest.raises(ConfigError, match="path of a file"):
        Journal(path)


async def test_bad_messages_are_not_written(jetstream: JetStream, stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1048576 bytes"):
        Journal(tmp_path / "edge.db", max_bytes=1000)
    journal = Journal(tmp_path / "edge.db")
    with pytest.raises(LocalProtocolError, match="not open"):
        await journal.publish("s.x")
    with pytest.raises(LocalProtocolError, match="not open"):
        journal.relay(jetstream, stream="S")
    async with journal:
        with pytest.raises(LocalProtocolError, match="open already"):
            await journal.__aenter__()
        with pytest.raises(InvalidSubject):
            await journal.publish("s.*")
        with pytest.raises(InvalidHeader):
            await journal.publish("s.x", headers={"a b": "c"})
        await journal.publish("s.x", b"good")
        await publish_all(journal, jetstream, stream, 1)
    assert await payloads(stream, "s.>") == [b"good"]


async def test_cancelled_publishing_disturbs_no_other(jetstream: JetStream, stream: Stream, tmp_path: Path) -> None:
    async with Journal(tmp_path / "edge.db") as journal:
        tasks = [asyncio.create_task(journal.publish("s.x", b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in ended] == [number % 3 == 0 for number in range(50)]
        await publish_all(journal, jetstream, stream, 50 - len(tasks[::3]))
    kept = [b"%d" % number for number in range(50) if number % 3]
    assert [one for one in await payloads(stream, "s.>") if int(one) % 3] == kept


async def test_two_tasks_enter_one_journal(tmp_path: Path) -> None:
    """One opens the file; the other is refused at once, and after a failure it can be opened again."""
    journal = Journal(tmp_path / "none" / "journal.db")
    with pytest.raises(sqlite3.OperationalError):
        await journal.__aenter__()
    (tmp_path / "none").mkdir()
    results = await asyncio.gather(journal.__aenter__(), journal.__aenter__(), return_exceptions=True)
    refused = [one for one in results if isinstance(one, LocalProtocolError)]
    assert len(refused) == 1
    await journal.publish("s.a")
    await journal.__aexit__(None, None, None)
    async with journal:
        await journal.publish("s.a")
