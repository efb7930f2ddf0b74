"""Workers beside nats-py's usual loops: how long they take, whether the event loop goes on, and who gets the work.

    python -m benchmarks.worker_table                  the table
    python -m benchmarks.worker_table --page           write it into docs/benchmarks.md as well
    python -m benchmarks.worker_table --before COMMIT  handlers that do nothing, compared with another commit

Handlers wait (``async def``, asyncio.sleep), except in the rows of the event loop, where they block (``def``,
time.sleep). Every figure is the median of the repetitions, in which the clients take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import natsproto
from benchmarks.report import write_page
from benchmarks.workers import CLIENTS, Cell, Result, run_cell
from natsproto.jetstream import JsMessage
from natsproto.testing import Server, run_server

__all__ = ["Row", "main", "rows_of_silence", "rows_of_times"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
MARKS = "<!-- workers: begin -->", "<!-- workers: end -->"
ACK_WAIT_S = 30.0
LINGER_S = 0.3
"""Seconds for the tasks that still acknowledge."""
SLACK_PART, SLACK_S = 1.15, 0.5
"""How much longer than without any waiting the messages may take."""
TICK_S, TICK_SLACK_S = 0.005, 0.01
MIN_SHARE = 0.35
MESSAGES_WITHOUT_WORK = 50_000


class LongCell(Cell):
    """A cell with as many messages as take ``seconds``, however many these are."""

    def messages(self, seconds: float = 0.0) -> int:
        return max(4 * self.workers, int(seconds * self.workers / self.handler))


class Row(NamedTuple):
    """A line of a table: its cells, and True if the bar is reached."""

    cells: list[str]
    is_reached: bool

    def __str__(self) -> str:
        verdict = "reached" if self.is_reached else "**missed**"
        return f"| {' | '.join([*self.cells, verdict])} |"


def rows_of_times(url: str, handler: float, *, seconds: float, repeat: int) -> Iterator[Row]:
    """Handlers of so many seconds, 1, 8 and 64 at a time, and by two replicas."""
    for concurrency, replicas in ((1, 1), (8, 1), (64, 1), (8, 2)):
        cell = LongCell(handler, ACK_WAIT_S, concurrency, replicas)
        results: dict[str, list[Result]] = {client: [] for client in CLIENTS}
        for _ in range(repeat):
            for client, found in results.items():
                found.append(asyncio.run(run_cell(url, cell, client, seconds=seconds, linger=LINGER_S)))
        times = {client: median(one.seconds for one in found) for client, found in results.items()}
        alone = median(asyncio.run(_sleep_alone(cell, seconds)) for _ in range(repeat))
        shares = [min(one.shares) / one.calls for one in results["natsproto"]]
        ideal, ours = cell.ideal(seconds), times.pop("natsproto")
        is_reached = ours <= SLACK_PART * ideal + SLACK_S if handler > 0.001 else ours <= min(times.values())
        if replicas > 1:
            is_reached = is_reached and median(shares) >= MIN_SHARE
        is_reached = is_reached and not any(one.doubled or one.missed for one in results["natsproto"])
        yield Row(
            [
                f"{handler * 1000:g} ms",
                f"{concurrency}" if replicas == 1 else f"{replicas} replicas of {concurrency}",
                f"{cell.messages(seconds):,}",
                f"{ideal:.2f}",
                f"{alone:.2f}",
                f"{ours:.2f}",
                *(f"{took:.2f}" for took in times.values()),
                f"{median(shares):.0%}" if replicas > 1 else "",
            ],
            is_reached,
        )


async def _sleep_alone(cell: LongCell, seconds: float) -> float:
    """How long the handlers take without any messages, on this machine now."""
    calls = -(-cell.messages(seconds) // cell.workers)

    async def work() -> None:
        for _ in range(calls):
            await asyncio.sleep(cell.handler)

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(cell.workers)))
    return time.monotonic() - began


class Silence(NamedTuple):
    """The longest times in seconds between two ticks: in all, and without the calls of handlers in between; and the
    most calls in between.
    """

    longest: float
    beside_calls: float
    calls: int


def rows_of_silence(url: str, *, seconds: float, repeat: int) -> Iterator[Row]:
    """Blocking handlers of 5 and 50 ms: for how long a ticker beside them was silent at most."""
    for handler, concurrency in ((0.005, 1), (0.005, 8), (0.05, 1), (0.05, 8)):
        found = [asyncio.run(measure_silence(url, handler, concurrency, seconds)) for _ in range(repeat)]
        longest, beside = median(one.longest for one in found), median(one.beside_calls for one in found)
        most = max(one.calls for one in found)
        yield Row(
            [
                f"{handler * 1000:g} ms",
                f"{concurrency}",
                f"{longest * 1000:.1f} ms",
                f"{beside * 1000:.1f} ms",
                f"{most}",
            ],
            most <= 1 and beside <= TICK_SLACK_S,
        )


async def measure_silence(url: str, handler: float, concurrency: int, seconds: float) -> Silence:
    """Run a worker for so many seconds, with a ticker beside it."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("W", subjects=["w"], storage="memory")
        try:
            count = int(seconds / handler)
            for _ in range(count):
                await js.publish("w")
            consumer = await stream.create_consumer("w")
            calls: list[float] = []

            def handle(message: JsMessage) -> None:
                began = time.perf_counter()
                time.sleep(handler)
                calls.append(time.perf_counter() - began)

            gaps: list[Silence] = []

            async def tick() -> None:
                last = time.perf_counter()
                while True:
                    await asyncio.sleep(TICK_S)
                    now = time.perf_counter()
                    gaps.append(Silence(now - last, now - last - sum(calls), len(calls)))
                    calls.clear()
                    last = now

            ticking = asyncio.create_task(tick())
            await consumer.consume(handle, concurrency=concurrency, stop_after=count).run()
            ticking.cancel()
            return Silence(*(max(values) for values in zip(*gaps, strict=True)))
        finally:
            await js.delete_stream("W")


# ---------------------------------------------------------------- compared with another commit

WITHOUT_WORK = """
import asyncio, json, sys, time
import natsproto

async def main(url, kind, count):
    async with natsproto.connect(url) as nc:
        stream = await nc.jetstream().stream("N")
        consumer = await stream.create_consumer(durable_name="n")
        async def nothing(message):
            pass
        handler = nothing if kind == "async def" else lambda message: None
        cpu, began = time.process_time(), time.perf_counter()
        async with consumer.consume(handler, stop_after=count) as work:
            await work.wait()
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
        await consumer.delete()
        print(json.dumps([cpu / count * 1e6, count / took]))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
"""A worker whose handler does nothing; prints the microseconds of processor time for a message, and the rate."""


def compare(commit: str, pairs: int) -> Iterator[str]:
    """Compare handlers that do nothing with those of another commit, in alternating pairs."""
    with _checkout(commit) as other, run_server(jetstream=True) as server:
        asyncio.run(_fill(server))
        for kind in ("async def", "def"):
            found: list[tuple[list[float], list[float]]] = []
            for number in range(pairs):
                roots = (ROOT, other) if number % 2 else (other, ROOT)
                one = {root: _run_without_work(root, server.url, kind) for root in roots}
                found.append((one[ROOT], one[other]))
            cpu = median(ours[0] - before[0] for ours, before in found)
            rate = median(ours[1] / before[1] for ours, before in found)
            medians = [median(pair[side][0] for pair in found) for side in (0, 1)]
            yield (
                f"{kind} handlers that do nothing, {pairs} pairs: {medians[0]:.2f} µs of CPU, {medians[1]:.2f} at"
                f" {commit}: {cpu:+.2f} µs in the median pair; rate {rate:.2f} of that at {commit}"
            )


async def _fill(server: Server) -> None:
    async with natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("N", subjects=["n"], storage="memory")
        async with js.publisher() as publisher:
            for number in range(MESSAGES_WITHOUT_WORK):
                await publisher.publish("n", b"%d" % number)


def _run_without_work(root: Path, url: str, kind: str) -> list[float]:
    command = [sys.executable, "-c", WITHOUT_WORK, url, kind, str(MESSAGES_WITHOUT_WORK)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root)}, cwd=root, check=True, capture_output=True, text=True
    )
    figures: list[float] = json.loads(done.stdout)
    return figures


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """The package at a commit, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "natsproto"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


# ---------------------------------------------------------------- the command


def text_of(times: Sequence[Row], silences: Sequence[Row], command: str) -> str:
    """The section of the page."""
    versions = f"nats-py {importlib.metadata.version('nats-py')}, CPython {platform.python_version()}"
    lines = [f"Command: `{command}`, with {versions}.", ""]
    lines += [
        "| handler | at a time | messages | ideal s | asyncio alone s | natsproto s | nats-py: fetch and gather s "
    ]
    lines[-1] += "| nats-py: semaphore and tasks s | smaller share | bar |"
    lines += ["|---" * 10 + "|", *map(str, times), ""]
    lines += [
        "| `def` handler | at a time | longest silence of a 5 ms ticker | without the call | calls in between | bar |"
    ]
    lines += ["|---" * 6 + "|", *map(str, silences)]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_table", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each cell takes, without any waiting")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=10, help="for --before")
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    if options.before:
        for line in compare(options.before, options.pairs):
            print(line, flush=True)
        return 0
    times: list[Row] = []
    with run_server(jetstream=True) as server:
        for handler in (0.001, 0.01, 0.05):
            for row in rows_of_times(server.url, handler, seconds=options.seconds, repeat=options.repeat):
                print(row, flush=True)
                times.append(row)
        silences: list[Row] = []
        for row in rows_of_silence(server.url, seconds=options.seconds / 2, repeat=options.repeat):
            print(row, flush=True)
            silences.append(row)
    if options.page:
        given = "".join(f" {argument}" for argument in arguments)
        write_page(PAGE, text_of(times, silences, f"python -m benchmarks.worker_table{given}"), MARKS)
    return 0 if all(row.is_reached for row in [*times, *silences]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
