"""An outbox on a real PostgreSQL: rows that are committed in another order than their ids, and every driver."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import natsproto
from natsproto.jetstream import JetStream, Stream
from natsproto.outbox import Outbox
from natsproto.testing import run_server
from tests.kit.contents import numbers_by_subject
from tests.outbox.postgresql import run_postgresql
from tests.outbox.processes import Programs

psycopg = pytest.importorskip("psycopg")
asyncpg = pytest.importorskip("asyncpg")
sqlalchemy = pytest.importorskip("sqlalchemy")
orm = pytest.importorskip("sqlalchemy.orm")
aorm = pytest.importorskip("sqlalchemy.ext.asyncio")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgresql")]

OUTBOX = Outbox()
SUBJECTS = ["s.>", "$CURSOR.S.>"]


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, run_postgresql(Path(folder)) as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def tables(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {OUTBOX.table}, {OUTBOX.table}_last")
        OUTBOX.create(connection)
        OUTBOX.create(connection)


async def relay_all(js: JetStream, stream: Stream, dsn: str, number: int, *, autocommit: bool = False) -> None:
    """Run a relay until the stream has so many messages."""
    stop = asyncio.Event()
    relay = OUTBOX.relay(js, lambda: psycopg.connect(dsn, autocommit=autocommit), stream="S", interval=0.02)
    task = asyncio.create_task(relay.run(until=stop))
    async with asyncio.timeout(60):
        while sum(map(len, (await numbers_by_subject(stream)).values())) < number and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    stop.set()
    await task


@pytest.mark.parametrize("autocommit", [False, True])
async def test_every_driver_adds_in_its_transaction(jetstream: JetStream, dsn: str, autocommit: bool) -> None:
    stream = await jetstream.create_stream("S", subjects=SUBJECTS, allow_atomic=True)
    with psycopg.connect(dsn) as connection:
        OUTBOX.add(connection, "s.psycopg", b"1", headers={"A": "ä"})
        connection.rollback()
        OUTBOX.add(connection, "s.psycopg", b"2", headers={"A": "ä"})
        OUTBOX.add(connection.cursor(), "s.psycopg", b"3")
    async with await psycopg.AsyncConnection.connect(dsn) as aconnection:
        await OUTBOX.add_async(aconnection, "s.psycopg_async", memoryview(b"4"))
    host = dict(word.split("=") for word in dsn.split())
    raw = await asyncpg.connect(host=host["host"], port=int(host["port"]), user="postgres", database="postgres")
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with raw.transaction():
            await OUTBOX.add_async(raw, "s.asyncpg", b"5")
            raise ZeroDivisionError
    async with raw.transaction():
        await OUTBOX.add_async(raw, "s.asyncpg", b"6")
    await raw.close()
    address = f"127.0.0.1:{host['port']}/postgres"
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@{address}")
    with orm.Session(engine) as session, session.begin():
        OUTBOX.add(session, "s.session", b"7")
    with engine.begin() as connection:
        OUTBOX.add(connection, "s.session", b"8")
    engine.dispose()
    aengine = aorm.create_async_engine(f"postgresql+asyncpg://postgres@{address}")
    async with aorm.AsyncSession(aengine) as asession, asession.begin():
        await OUTBOX.add_async(asession, "s.async_session", b"9")
    await aengine.dispose()
    await relay_all(jetstream, stream, dsn, 7, autocommit=autocommit)
    assert await numbers_by_subject(stream) == {
        "s.psycopg": [2, 3],
        "s.psycopg_async": [4],
        "s.asyncpg": [6],
        "s.session": [7, 8],
        "s.async_session": [9],
    }
    assert [(await stream.get_message(seq)).headers.get("A") for seq in (1, 2)] == ["ä", None]


def insert_rows(dsn: str, part: int, count: int, seed: int) -> None:
    """Insert rows in transactions that take time, so that ids are committed out of order."""
    rng = random.Random(seed + part)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(count):
            with connection.transaction():
                OUTBOX.add(connection, f"s.{part}", b"%d" % number)
                time.sleep(rng.choice((0, 0, 0, 0.002, 0.02)))


async def test_rows_that_commit_late_are_published(tmp_path: Path, dsn: str, seed: int) -> None:
    rng = random.Random(seed)
    with Programs() as programs:
        async with (
            run_server(jetstream=True, store_dir=tmp_path / "store") as server,
            natsproto.connect(server.url, reconnect_wait=0.05) as nc,
        ):
            js = nc.jetstream()
            stream = await js.create_stream("S", subjects=SUBJECTS, allow_atomic=True, duplicate_window=0.1)
            arguments = ("relay-postgresql", dsn, server.url, "S")
            for name in ("relay1", "relay2"):
                programs.start(name, *arguments)
            writers = [threading.Thread(target=insert_rows, args=(dsn, part, 400, seed)) for part in range(4)]
            for writer in writers:
                writer.start()
            while any(writer.is_alive() for writer in writers):
                await asyncio.sleep(rng.uniform(0.3, 1.5))
                killed = rng.choice(("relay1", "relay2"))
                programs.kill(killed)
                programs.start(killed, *arguments)
            await relay_all(js, stream, dsn, 1600)
            assert await numbers_by_subject(stream) == {f"s.{part}": list(range(400)) for part in range(4)}
