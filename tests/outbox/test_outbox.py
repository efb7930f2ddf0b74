"""An outbox on SQLite and a real server: each committed row is published once and in order."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto.errors import ConfigError, InvalidHeader, InvalidSubject, PayloadTooLarge
from natsproto.jetstream import JetStream, Stream
from natsproto.outbox import Outbox, Relay
from natsproto.testing import run_server
from tests.kit.contents import numbers_by_subject
from tests.outbox.processes import Programs, open_sqlite

SUBJECTS = ["s.>", "$CURSOR.S.>"]
OUTBOX = Outbox()


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream("S", subjects=SUBJECTS, allow_atomic=True)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    connection = open_sqlite(path)
    OUTBOX.create(connection)
    OUTBOX.create(connection)  # changes nothing
    connection.execute("CREATE TABLE ledger (part TEXT, number INT)")
    connection.close()
    return path


def add_rows(path: Path, numbers: range, subject: str = "s.x") -> None:
    """Commit a row for each number."""
    connection = open_sqlite(path)
    for number in numbers:
        OUTBOX.add(connection, subject, b"%d" % number)
    connection.commit()
    connection.close()


def count(path: Path) -> int:
    """The rows of the outbox."""
    connection = open_sqlite(path)
    found = connection.execute(f"SELECT COUNT(*) FROM {OUTBOX.table}").fetchone()[0]
    connection.close()
    return int(found)


async def is_complete(stream: Stream, number: int) -> bool:
    return sum(map(len, (await numbers_by_subject(stream)).values())) >= number


async def run_relay_until(relay: Relay, is_done: Callable[[], Any]) -> None:
    """Run a relay until it is done; its own errors are raised."""
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(until=stop))
    async with asyncio.timeout(60):
        while not task.done():
            result = is_done()
            if await result if asyncio.iscoroutine(result) else result:
                break
            await asyncio.sleep(0.02)
    stop.set()
    await task


async def test_rows_are_published_in_order(jetstream: JetStream, stream: Stream, database: Path) -> None:
    add_rows(database, range(1234))
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    await run_relay_until(relay, lambda: relay.published == 1234)
    add_rows(database, range(1234, 1300))
    again = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    await run_relay_until(again, lambda: again.published == 66)
    assert await numbers_by_subject(stream) == {"s.x": list(range(1300))}


async def test_message_is_published_as_added(jetstream: JetStream, stream: Stream, database: Path) -> None:
    connection = open_sqlite(database)
    OUTBOX.add(connection, "s.ä", memoryview(b"\x00\xff"), headers={"A": ["1", "2"], "B": "ü"})
    OUTBOX.add(connection, "s.empty")
    connection.commit()
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    await run_relay_until(relay, lambda: relay.published == 2)
    message = await stream.get_message(1)
    assert (message.subject, message.data, message.headers.get_all("A"), message.headers["B"]) == (
        "s.ä",
        b"\x00\xff",
        ["1", "2"],
        "ü",
    )
    assert (await stream.get_message(2)).data == b""


async def test_rolled_back_rows_are_not_published(jetstream: JetStream, stream: Stream, database: Path) -> None:
    connection = open_sqlite(database)
    OUTBOX.add(connection, "s.x", b"1")
    connection.rollback()
    OUTBOX.add(connection, "s.x", b"2")
    connection.commit()
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    await run_relay_until(relay, lambda: relay.published == 1)
    assert await numbers_by_subject(stream) == {"s.x": [2]}


@pytest.mark.parametrize("options", [{}, {"isolation_level": None}, {"isolation_level": "IMMEDIATE"}])
async def test_connections_of_every_kind(
    jetstream: JetStream, stream: Stream, database: Path, options: dict[str, Any]
) -> None:
    add_rows(database, range(30))
    relay = OUTBOX.relay(jetstream, lambda: sqlite3.connect(database, timeout=20, **options), stream="S", rows=7)
    await run_relay_until(relay, lambda: relay.published == 30)
    assert await numbers_by_subject(stream) == {"s.x": list(range(30))}


async def test_published_rows_are_kept_for_a_while(jetstream: JetStream, stream: Stream, database: Path) -> None:
    add_rows(database, range(20))
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S", keep=0.5, interval=0.02)
    await run_relay_until(relay, lambda: relay.published == 20)
    assert count(database) == 20
    await run_relay_until(relay, lambda: count(database) == 0)
    assert await numbers_by_subject(stream) == {"s.x": list(range(20))}


async def test_relays_that_contend_publish_once(jetstream: JetStream, stream: Stream, database: Path) -> None:
    add_rows(database, range(500))
    relays = [OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S", rows=9) for _ in range(3)]

    def is_done() -> bool:
        return sum(relay.published for relay in relays) == 500

    await asyncio.gather(*(run_relay_until(relay, is_done) for relay in relays))
    assert await numbers_by_subject(stream) == {"s.x": list(range(500))}


async def test_row_too_large_is_named(jetstream: JetStream, stream: Stream, database: Path) -> None:
    connection = open_sqlite(database)
    OUTBOX.add(connection, "s.x", b"1")
    OUTBOX.add(connection, "s.x", bytes(2**20 + 1))
    connection.commit()
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    with pytest.raises(PayloadTooLarge) as caught:
        await relay.run()
    assert any("id 2: correct" in note for note in caught.value.__notes__)
    connection.execute(f"DELETE FROM {OUTBOX.table} WHERE id = 2")
    connection.commit()
    await run_relay_until(relay, lambda: relay.published == 1)
    assert await numbers_by_subject(stream) == {"s.x": [1]}


async def test_subject_outside_of_the_stream_is_named(jetstream: JetStream, stream: Stream, database: Path) -> None:
    add_rows(database, range(1), "t.x")
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(database), stream="S")
    with pytest.raises(ConfigError, match=r"'t\.x'"):
        await relay.run()


async def test_wrong_arguments_insert_nothing(jetstream: JetStream, database: Path) -> None:
    connection = open_sqlite(database)
    wrong: Any = OUTBOX
    with pytest.raises(InvalidSubject):
        OUTBOX.add(connection, "s.*")
    with pytest.raises(InvalidHeader):
        OUTBOX.add(connection, "s.x", headers={"A": "1\r\nB: 2"})
    with pytest.raises(ConfigError, match="leave it out"):  # the relay could publish neither it nor those behind it
        OUTBOX.add(connection, "s.x", headers={"Nats-Batch-Commit": "1"})
    with pytest.raises(TypeError):
        wrong.add(connection, "s.x", "text")
    with pytest.raises(ConfigError, match="placeholders are not known"):
        OUTBOX.add(object(), "s.x")
    connection.commit()
    assert count(database) == 0
    for table in ("a b", "x; DROP TABLE y", "", 5):
        with pytest.raises(ConfigError):
            Outbox(table)  # type: ignore[arg-type]
    for options in ({"rows": 0}, {"rows": 1000}, {"keep": 0}, {"interval": -1}):
        with pytest.raises(ConfigError):
            wrong.relay(jetstream, lambda: connection, stream="S", **options)
    with pytest.raises(ConfigError, match="function"):
        wrong.relay(jetstream, "app.db", stream="S")
    with pytest.raises(ConfigError, match="database"):
        wrong.schema("mysql")


async def test_missing_table_is_the_databases_error(jetstream: JetStream, stream: Stream, tmp_path: Path) -> None:
    """An OperationalError may pass, so the relay tries again until it is stopped."""
    path = tmp_path / "later.db"
    relay = OUTBOX.relay(jetstream, lambda: open_sqlite(path), stream="S")

    async def create() -> None:
        connection = open_sqlite(path)
        OUTBOX.create(connection)
        OUTBOX.add(connection, "s.x", b"5")
        connection.commit()

    task = asyncio.create_task(create())
    await run_relay_until(relay, lambda: relay.published == 1)
    await task
    assert await numbers_by_subject(stream) == {"s.x": [5]}


@pytest.mark.slow
@pytest.mark.smoke
async def test_store_that_was_put_back_gets_the_rows_again(tmp_path: Path, database: Path) -> None:
    async with (
        run_server(jetstream=True, store_dir=tmp_path / "store") as server,
        natsproto.connect(server.url, reconnect_wait=0.02) as nc,
    ):
        js = nc.jetstream()
        stream = await js.create_stream("S", subjects=SUBJECTS, allow_atomic=True)
        relay = OUTBOX.relay(js, lambda: open_sqlite(database), stream="S", rows=10)
        add_rows(database, range(50))
        await run_relay_until(relay, lambda: relay.published == 50)
        server.kill()
        shutil.copytree(tmp_path / "store", tmp_path / "before")
        await server.restart()
        add_rows(database, range(50, 100))
        await run_relay_until(relay, lambda: relay.published == 100)
        server.kill()
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        await server.restart()
        add_rows(database, range(100, 120))
        await run_relay_until(relay, lambda: relay.published == 170)
        assert await numbers_by_subject(stream) == {"s.x": list(range(120))}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [3])
async def test_killed_processes_publish_once(tmp_path: Path, database: Path, seed: int, parts: int) -> None:
    rng = random.Random(seed)
    with Programs() as programs:
        async with (
            run_server(jetstream=True, store_dir=tmp_path / "store") as server,
            natsproto.connect(server.url, reconnect_wait=0.05) as nc,
        ):
            stream = await nc.jetstream().create_stream("S", subjects=SUBJECTS, allow_atomic=True, duplicate_window=0.1)

            def start(name: str) -> None:
                if name.startswith("p"):
                    programs.start(name, "write", str(database), name, "1500")
                else:
                    programs.start(name, "relay", str(database), server.url, "S")

            writers = [f"p{number}" for number in range(parts)]
            names = [*writers, "relay1", "relay2"]
            for name in names:
                start(name)
            kills = 0
            async with asyncio.timeout(150):
                while kills < 25 or any(programs.status(name) is None for name in writers):
                    await asyncio.sleep(rng.uniform(0.1, 0.5))
                    name = rng.choice(names) if kills < 25 else "relay1"
                    kills += 1
                    if rng.random() < 0.1:
                        server.kill()
                        await server.restart()
                    elif name not in writers or programs.status(name) != 0:
                        programs.kill(name)
                        start(name)
                relay = OUTBOX.relay(nc.jetstream(), lambda: open_sqlite(database), stream="S")
                await run_relay_until(relay, lambda: is_complete(stream, 1500 * parts))
            assert await numbers_by_subject(stream) == {f"s.p{number}": list(range(1500)) for number in range(parts)}
