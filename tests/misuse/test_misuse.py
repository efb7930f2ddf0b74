"""Wrong use of natsproto gets a clear error before anything is sent, and the connection goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.testing import FaultProxy, Server
from tests.kit.waiting import until
from tests.misuse.arguments import ACCEPTED, REFUSED, Argument, Target, of_arguments
from tests.misuse.lines import TABLES
from tests.misuse.programs import entries_of, line_names, of_table, run_line
from tests.misuse.right import WORKS
from tests.misuse.signatures import of_signatures
from tests.misuse.values import of_values
from tests.misuse.workers import of_workers
from tests.misuse.wrong import Ground, Wrong, error_of, faults_of, ground, judge
from tests.server.helpers import also_uvloop, client

SECTIONS: dict[str, Callable[[Ground], Awaitable[list[Wrong]]]] = {
    **{name: of_table(name) for name in TABLES},
    "arguments": of_arguments,
    "signatures": of_signatures,
    "values": of_values,
}


@pytest.fixture(scope="module", autouse=True)
def blocking_thread(nats_session_server: Server) -> None:
    """The thread of blocking clients, which stays: its descriptors are there before those of a test are counted."""
    sync.connect(nats_session_server.url).close()


async def works(nc: Client) -> None:
    async with nc.subscribe("works") as sub:
        await nc.publish("works", b"ok", headers={"k": "v"})
        assert (await sub.next(timeout=5)).data == b"ok"
    await nc.subscribe("echoed", cb=lambda message: message.respond(message.data), max_messages=1)
    assert (await nc.request("echoed", b"ok", timeout=5)).data == b"ok"


async def check_entries(on: Ground, entries: list[Wrong]) -> None:
    """Judge every entry, and the connection afterwards."""
    await on.flush()
    dialled = on.proxy.accepted
    faults = [fault for wrong in entries for fault in await judge(on, wrong)]
    assert not faults, "\n".join(faults)
    assert on.proxy.accepted == dialled
    assert on.nc.stats.reconnects == 0
    await works(on.nc)


@pytest.mark.filterwarnings("ignore:.*never:RuntimeWarning")
@pytest.mark.parametrize("section", SECTIONS)
@also_uvloop
async def test_wrong_use_is_refused(
    nats_server: Server, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with ground(nats_server) as on:
        await check_entries(on, await SECTIONS[section](on))


@also_uvloop
async def test_wrong_workers_are_refused(nats_server: Server) -> None:
    async with ground(nats_server) as on, AsyncExitStack() as stack:
        await check_entries(on, await of_workers(on, stack))


@also_uvloop
async def test_wrong_arguments_are_refused_in_an_outage(nats_server: Server) -> None:
    """What waits for the next connection must not hold what would break it."""
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, client(proxy.url) as nc:
        target = Target(nc, natsproto.connect, nats_server.url)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not nc.is_connected)
        slow = ("request", "flush_timeout", "next_timeout", "silent")
        for one in REFUSED:
            if not one.fresh and not one.name.startswith(slow):
                wrong = Wrong(one.name, lambda one=one: one.call(target), one.expected)  # type: ignore[misc]
                assert faults_of(wrong, await error_of(wrong)) == [], one.name
        assert nc.stats.buffered_msgs == 0
        await proxy.allow()
        await nc.flush(timeout=10)
        await works(nc)


@pytest.mark.filterwarnings("ignore:.*never:RuntimeWarning")
@pytest.mark.parametrize("line", WORKS.strip().splitlines())
async def test_right_guess_works(nats_server: Server, line: str) -> None:
    async with ground(nats_server) as on:
        await run_line(line, await line_names(on))


@pytest.mark.parametrize("argument", ACCEPTED, ids=str)
@also_uvloop
async def test_what_looks_odd_and_is_right_is_accepted(nats_server: Server, argument: Argument) -> None:
    async with client(nats_server.url) as nc:
        result = await argument.call(Target(nc, natsproto.connect, nats_server.url))
        if argument.fresh:
            assert isinstance(result, Client)
            await works(result)
            await result.close()
        await nc.flush(timeout=5)
        await works(nc)
        assert nc.stats.reconnects == 0


@also_uvloop
async def test_a_refused_subscription_leaves_no_trace(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        for subject in ("", "a b", "a..b", ">.a", "a\r\n"):
            with pytest.raises(natsproto.errors.InvalidSubject):
                nc.subscribe(subject)
        with pytest.raises(ValueError, match="slow_policy"):
            nc.subscribe("a", slow_policy="whatever")  # type: ignore[arg-type]
        assert nc._engine.registry.subscriptions == []
        assert len(nc._engine.registry.table) == 0


def test_corpus_is_large_and_has_nothing_twice() -> None:
    programs = [program for table in TABLES.values() for program, *_ in entries_of(table)]
    found = [*programs, *WORKS.strip().splitlines(), *map(str, REFUSED)]
    assert [name for name, count in Counter(found).items() if count > 1] == []
    assert len(programs) >= 600
    assert len(WORKS.strip().splitlines()) >= 200
    assert (sum(not one.fresh for one in REFUSED), sum(one.fresh for one in REFUSED)) >= (301, 151)
    assert len(ACCEPTED) == 7
    assert all(one.expected for one in REFUSED)
    assert not any(one.expected for one in ACCEPTED)
