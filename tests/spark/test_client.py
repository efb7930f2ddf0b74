"""One client a process and config, and rows that cross between its loop and a task's thread."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

import natsproto.spark._row_bridge
from natsproto._client import Client
from natsproto._core.engine.engine import State
from natsproto.errors import ConfigError, ConnectFailed, ConnectionClosed
from natsproto.spark import SparkNats, run_partition, worker_client
from natsproto.spark._client import iterate_on_loop, run_on_loop, run_with_rows, shared_client
from natsproto.testing import Server, run_server


async def identity(client: Client) -> int:
    return client.server_info.client_id


# ---------------------------------------------------------------- the pool


def test_import_needs_no_extra_and_starts_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, threading, asyncio, time; before = time.process_time()\n"
        "import natsproto.spark\n"
        "spent = time.process_time() - before\n"
        "assert threading.active_count() == 1\n"
        "assert not {'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules), sys.modules\n"
        "print(spent)"
    )
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the first run compiles, which is not what is measured
    runs = [
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env).stdout
        )
        for _ in range(3)
    ]
    assert min(runs) < 0.5, "it takes 0.1 s; CI is slow"


def test_all_tasks_of_a_process_share_one_client(nats: SparkNats) -> None:
    other = pickle.loads(pickle.dumps(nats))  # every task unpickles its own
    assert run_on_loop(nats, identity) == run_on_loop(other, identity)
    with worker_client(nats) as one, worker_client(other) as two:
        assert one is two
    assert one.is_connected, "leaving the block does not close what others use"


def test_another_config_has_another_client(nats: SparkNats) -> None:
    assert run_on_loop(nats, identity) != run_on_loop(nats.replace(name="other"), identity)


def test_nothing_connects_before_it_is_used(server: Server) -> None:
    config = SparkNats(servers=server.url, name="lazy")
    shared_client(config)
    run_partition(echo_rows, config)
    assert "not connected yet" in repr(shared_client(config))


def test_closed_client_is_replaced(nats: SparkNats) -> None:
    config = nats.replace(name="to be closed")
    first = run_on_loop(config, identity)
    shared_client(config).close()
    assert run_on_loop(config, identity) != first


def test_rejected_client_is_replaced(nats: SparkNats) -> None:
    config = nats.replace(name="refused")
    first = shared_client(config)
    portal, client = first.reach()
    portal.call(client.close)
    assert first.state is State.CLOSED
    assert run_on_loop(config, identity) > 0


def test_connecting_may_be_tried_again(unused_tcp_port: int) -> None:
    config = SparkNats(servers=f"127.0.0.1:{unused_tcp_port}", outage_timeout=0)
    for _ in range(2):
        with pytest.raises(ConnectFailed):
            run_on_loop(config, identity)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_connects_for_itself(nats: SparkNats) -> None:
    """As the daemon of PySpark does it for every worker."""
    mine = run_on_loop(nats, identity)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.write(write, f"{run_on_loop(nats, identity)} {len(list(iterate_on_loop(nats, ten_numbers)))}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        theirs = pipe.read().split()
    assert os.waitpid(child, 0)[1] == 0
    assert int(theirs[0]) not in (mine, 0)
    assert int(theirs[1]) == 10
    assert run_on_loop(nats, identity) == mine, "the child's end is none of ours"


@pytest.mark.parametrize("config", [None, "nats://localhost"])
def test_what_is_no_config_is_refused(config: object) -> None:
    with pytest.raises(TypeError, match="SparkNats"):
        shared_client(config)  # type: ignore[arg-type]


# ---------------------------------------------------------------- crossing


async def ten_numbers(client: Client) -> AsyncIterator[int]:
    for number in range(10):
        yield number


async def echo_rows(client: Client, rows: AsyncIterator[int]) -> AsyncIterator[int]:
    async for row in rows:
        yield row


class Upstream:
    """An iterator as Spark gives one: read by one thread, and it counts what was taken."""

    def __init__(self, count: int) -> None:
        self.taken = 0
        self._count = count
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        assert threading.get_ident() == self._thread
        if self.taken == self._count:
            raise StopIteration
        self.taken += 1
        return self.taken


@pytest.mark.parametrize("prefetch", [1, 2, 7, 256])
@pytest.mark.parametrize("count", [0, 1, 255, 1000])
def test_all_rows_cross_in_order(nats: SparkNats, prefetch: int, count: int) -> None:
    assert list(run_with_rows(nats, echo_rows, Upstream(count), prefetch=prefetch)) == list(range(1, count + 1))


def test_rows_are_taken_as_they_are_wanted(nats: SparkNats) -> None:
    source = Upstream(10_000)
    results = run_with_rows(nats, echo_rows, source, prefetch=4)
    assert source.taken == 0
    for _ in range(20):
        next(results)
    assert source.taken <= 20 + 3 * 4
    results.close()
    assert source.taken <= 20 + 3 * 4


def test_generator_waits_for_a_reader_that_stalls(nats: SparkNats) -> None:
    made = 0

    async def endless(client: Client) -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    results = iterate_on_loop(nats, endless, prefetch=3)
    assert next(results) == 1
    for _ in range(3):  # whatever turns the loop makes meanwhile
        run_on_loop(nats, identity)
    assert made <= 1 + 3 + 3
    assert [next(results) for _ in range(50)] == list(range(2, 52))
    assert made <= 51 + 3 + 3
    results.close()


def test_results_do_not_wait_for_slow_rows(nats: SparkNats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natsproto.spark._row_bridge, "MAX_PULL_TIME_S", 0.0)  # every row is a slow one
    had = threading.Event()

    def slowly() -> Iterator[int]:
        yield 1
        yield 2
        assert had.wait(10), "the first result waits for as many rows as may be prefetched"
        yield from range(1000)

    results = run_with_rows(nats, echo_rows, slowly(), prefetch=256)
    assert next(results) == 1
    had.set()
    results.close()


class Watched:
    """An async generator function that tells when it was cleaned up."""

    def __init__(self) -> None:
        self.clean = False

    async def __call__(self, client: Client, rows: AsyncIterator[int]) -> AsyncIterator[int]:
        try:
            async for row in rows:
                yield row
        finally:
            await client.flush()  # whatever it takes to leave nothing behind
            self.clean = True


@pytest.mark.parametrize("end", ["close", "forget", "raise"])
def test_leaving_early_cleans_up_before_it_returns(nats: SparkNats, end: str) -> None:
    watched = Watched()
    results = run_with_rows(nats, watched, Upstream(1000), prefetch=8)
    next(results)
    if end == "close":
        results.close()
    elif end == "raise":
        with pytest.raises(ZeroDivisionError):
            results.throw(ZeroDivisionError())
    else:
        del results
        gc.collect()
    assert watched.clean


def test_error_comes_after_the_results_before_it(nats: SparkNats) -> None:
    async def fails(client: Client, rows: AsyncIterator[int]) -> AsyncIterator[int]:
        async for row in rows:
            yield row
            if row == 3:
                raise ZeroDivisionError("of the function")

    results = run_with_rows(nats, fails, Upstream(10), prefetch=2)
    assert [next(results) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError, match="of the function"):
        next(results)


def test_error_of_the_rows_cleans_up_and_is_raised(nats: SparkNats) -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("of the rows")

    watched = Watched()
    with pytest.raises(ZeroDivisionError, match="of the rows"):
        list(run_with_rows(nats, watched, rows(), prefetch=1))
    assert watched.clean


def test_closed_client_ends_the_reading(nats: SparkNats) -> None:
    config = nats.replace(name="closed meanwhile")

    async def waits(client: Client) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    results = iterate_on_loop(config, waits)
    assert next(results) == 1
    threading.Timer(0.05, shared_client(config).close).start()
    with pytest.raises(ConnectionClosed):
        next(results)


@pytest.mark.parametrize("prefetch", [0, -1, True, 1.5])
def test_bad_bound_is_refused(nats: SparkNats, prefetch: int) -> None:
    with pytest.raises(ConfigError, match="prefetch"):
        next(run_with_rows(nats, echo_rows, [], prefetch=prefetch))


def test_connection_outlives_a_stalled_reader() -> None:
    """Spark's thread is busy elsewhere: the server has its PINGs answered all the same."""
    with run_server(config='ping_interval: "0.2s"\nping_max: 100\ntrace: true') as strict:
        config = SparkNats(servers=strict.url)
        results = iterate_on_loop(config, ten_numbers)
        next(results)
        while strict.log().count("<<- [PONG]") < 4:
            time.sleep(0.02)
        assert list(results) == list(range(1, 10))
        portal, client = shared_client(config).reach()
        assert portal.run(lambda: client.stats).reconnects == 0
        shared_client(config).close()


def test_connection_names_the_task_that_connects(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = TaskContext._getOrCreate()
    context._stageId, context._partitionId = 3, 17
    config = SparkNats(servers=server.url, name="nightly")
    shared_client(config).flush()
    TaskContext._taskContext = None
    shared_client(config.replace(request_timeout=7)).flush()
    with urllib.request.urlopen(f"{server.monitoring_url}/connz") as page:
        names = {connection.get("name") for connection in json.load(page)["connections"]}
    assert {"nightly stage 3 partition 17", "nightly"} <= names
