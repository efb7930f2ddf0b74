"""What a client library brings to a measurement, and the kit its functions measure with.

Owns the stopwatch, the peer process and the registry. Refuses to know any client, and never touches the garbage
collector: what a user gets is what is measured.

An implementation module registers one coroutine function per `Scenario.does`::

    NATS_PY = Implementation("nats-py", distribution="nats-py", module="nats")

    @NATS_PY.does
    async def publish(run: Run) -> Figures: ...

Rules for these functions: call the library directly inside the measured loop (no wrapper in between), exclude one
warm-up message, read every message that is received, and check that none was lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.feeder import subject_of, trace_of
from benchmarks.scenarios import Feed, Scenario

__all__ = [
    "IN_FLIGHT",
    "Figures",
    "Implementation",
    "Peer",
    "Run",
    "Stopwatch",
    "bucket_keys",
    "check",
    "fill_store",
    "import_time",
    "latencies",
    "object_file",
    "object_of",
    "peer_of",
    "per_mib",
    "resident_mb",
]

Figures = dict[str, float]
"""Metric key → value."""

IN_FLIGHT = 64
"""Concurrent requests of `request_concurrent`."""

_ROOT = Path(__file__).resolve().parent.parent
_SUBJECT = "bench.orders.eu"


class Stopwatch:
    """Wall and CPU time of this process (all threads) between two moments, and CPU time of the server if named."""

    def __init__(self, server_pid: int | None = None) -> None:
        self._server_pid = server_pid
        self._wall = self._cpu = 0
        self._server: int | None = None

    def start(self) -> None:
        """Take the first moment."""
        self._server = _cpu_of(self._server_pid)
        self._cpu = time.process_time_ns()
        self._wall = time.perf_counter_ns()

    def stop(self, operations: int) -> Figures:
        """Take the second; the rate per second and the CPU microseconds of one operation, here and in the server."""
        wall = time.perf_counter_ns() - self._wall
        cpu = time.process_time_ns() - self._cpu
        figures = {"rate": operations * 1e9 / wall, "cpu_us": cpu / 1000 / operations}
        server = _cpu_of(self._server_pid)
        if server is not None and self._server is not None:
            figures["server_us"] = (server - self._server) / 1000 / operations
        return figures


def _cpu_of(pid: int | None) -> int | None:
    """CPU nanoseconds that another process has used; None where there is no /proc that tells."""
    if pid is None or not (tasks := Path(f"/proc/{pid}/task")).is_dir():
        return None
    with contextlib.suppress(OSError):
        return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks.iterdir())
    return None


class Peer:
    """The feeder process of one run, driven over its standard input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect("ready")

    def go(self, count: int) -> None:
        """Publish `count` messages now; returns at once. `count` is 1 or the run's count."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()

    def sent(self, count: int) -> None:
        """Block until the peer says that the server has all `count` messages; call it when they have arrived."""
        self._expect(f"sent {count}")

    def _expect(self, line: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != line:
            raise RuntimeError(f"the feeder said {said!r} where {line!r} was due")


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of one scenario for one implementation, in a process of its own."""

    scenario: Scenario
    url: str
    count: int
    peer_or_none: Peer | None
    server_pid: int | None = None
    """For scenarios that tell the server's share."""

    @property
    def peer(self) -> Peer:
        """The other process; only scenarios with a `feed` have one."""
        assert self.peer_or_none is not None, f"{self.scenario.name} has no feed"
        return self.peer_or_none

    @property
    def payload(self) -> bytes:
        """The payload of every message."""
        return b"x" * self.scenario.size

    def next_fetch(self, got: int) -> int:
        """How many messages to fetch when so many bytes have come: never more than are left."""
        return max(1, min(500, (self.total_bytes - got) // self.scenario.size))

    @property
    def total_bytes(self) -> int:
        """Payload bytes of all measured messages."""
        return self.count * self.scenario.size

    @property
    def subject(self) -> str:
        """What to publish, request or (if there is one subject only) subscribe to."""
        return _SUBJECT

    @property
    def interest(self) -> str:
        """What to subscribe to: the subject, or the wildcard over all of them."""
        return _SUBJECT if self.scenario.subjects == 1 else f"{_SUBJECT}.*"

    @property
    def room(self) -> tuple[int, int]:
        """Pending limits (messages, bytes) under which nothing of this run is ever dropped."""
        return self.count + 16, 1 << 30

    def subjects(self) -> list[str]:
        """The subject of each measured message, in order."""
        names = [subject_of(_SUBJECT, number, self.scenario.subjects) for number in range(self.scenario.subjects)]
        return [names[number % len(names)] for number in range(self.count)]

    def traces(self) -> list[str]:
        """The ``Trace`` header of each measured message, in order."""
        return [trace_of(number) for number in range(self.count)]


Does = Callable[[Run], Awaitable[Figures]]


class Implementation:
    """A client library: its name, where its version is found, and a function for each thing it does."""

    def __init__(self, name: str, *, distribution: str, module: str) -> None:
        self.name, self.distribution, self.module = name, distribution, module
        self._functions: dict[str, Does] = {}

    def does(self, function: Does) -> Does:
        """Register `function` under its own name, as a decorator."""
        self._functions[getattr(function, "__name__", "")] = function
        return function

    def function(self, scenario: Scenario) -> Does | None:
        """What performs `scenario`; None if this implementation cannot."""
        return self._functions.get(scenario.does)


def check(complete: bool, what: str) -> None:
    """Fail the run when a message was lost, doubled or damaged: its figure would be worth nothing."""
    if not complete:
        raise RuntimeError(f"not a fair run: {what}")


def bucket_keys(run: Run) -> list[str]:
    """The key of each measured operation on a bucket, in order: a hundred of them in turn."""
    return [f"key.{number % 100}" for number in range(run.count)]


def object_of(run: Run) -> bytes:
    """The content of an object that has as many chunks as the run has operations; not one is like another."""
    return random.Random(run.count).randbytes(run.total_bytes)


@contextlib.contextmanager
def object_file(run: Run) -> Iterator[Path]:
    """A file of that size, written by another process, as this one's memory is measured; and room for another."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        program = "import os, sys\nwith open(sys.argv[1], 'wb') as f:\n for _ in range(int(sys.argv[2])):\n"
        program += "  f.write(os.urandom(int(sys.argv[3])))"
        command = [sys.executable, "-c", program, str(path), str(run.count), str(run.scenario.size)]
        subprocess.run(command, check=True)
        yield path


def fill_store(url: str, bucket: str, path: Path) -> None:
    """Puts a file into an object store as "object", in a process of its own."""
    program = (
        "import asyncio, sys, natsproto\n"
        "async def main(url, bucket, path):\n"
        "    async with natsproto.connect(url) as nc:\n"
        "        store = await nc.jetstream().object_store(bucket)\n"
        "        await store.put_file(path, 'object')\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    subprocess.run([sys.executable, "-c", program, url, bucket, str(path)], check=True, cwd=_ROOT)


def per_mib(figures: Figures, run: Run) -> Figures:
    """With the throughput in MiB a second, and CPU microseconds of a MiB instead of a chunk."""
    share = run.scenario.size / 2**20
    rate = figures.pop("rate")
    return {name: value / share for name, value in figures.items()} | {"rate": rate, "mib_per_s": rate * share}


def latencies(nanoseconds: list[int]) -> Figures:
    """Median and 99th percentile in microseconds."""
    ordered = sorted(nanoseconds)
    return {
        "p50_us": ordered[len(ordered) // 2] / 1000,
        "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1000,
    }


def resident_mb(*, peak: bool = False) -> float:
    """Resident memory of this process in MB, now or at its highest.

    Where there is no /proc it is the highest that `getrusage` knows, which is less exact: on some systems that
    figure starts at what the parent had when it forked.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest / (1024 * 1024 if sys.platform == "darwin" else 1024)


def import_time(module: str, times: int) -> Figures:
    """Milliseconds that importing `module` and reaching for its ``connect`` adds to ``import asyncio``.

    Median of `times` fresh interpreters, after one that fills the bytecode cache.
    """
    program = (
        "import asyncio, sys, time\n"
        "start = time.perf_counter_ns()\n"
        f"import {module}\n"
        f"{module}.connect\n"
        "sys.stdout.write(str(time.perf_counter_ns() - start))"
    )
    # Installed packages come with bytecode, a checkout gets it here; a machine may have turned that off.
    caching = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program]
    taken = [
        int(subprocess.run(command, check=True, capture_output=True, cwd=_ROOT, env=caching).stdout)
        for _ in range(times + 1)
    ][1:]
    return {"import_ms": sorted(taken)[len(taken) // 2] / 1e6}


@contextlib.contextmanager
def peer_of(scenario: Scenario, url: str, count: int) -> Iterator[Peer | None]:
    """The feeder process that `scenario` needs, stopped at the end."""
    if scenario.feed is Feed.NONE:
        yield None
        return
    command = [sys.executable, "-m", "benchmarks.feeder", scenario.feed.value, "--url", url, "--subject", _SUBJECT]
    command += ["--size", str(scenario.size), "--subjects", str(scenario.subjects), "--total", str(count)]
    command += ["--headers"] if scenario.headers else []
    command += ["--uneven"] if scenario.uneven else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()
