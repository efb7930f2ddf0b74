"""What a client does in each scenario, written once for both Python clients, and the clocks it is measured with.

A driver is an async generator: what it does before its first ``yield`` is set-up, then it is sent a seed for each
repetition and yields that repetition's figures. Both clients are called by the same lines wherever their names agree
(`publish`, `request`, `fetch`, `ack`, `data`, `headers`); what differs is in `Client`, outside the measured loops or
bound to a name before them. Every byte is counted: a repetition that lost one fails.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from benchmarks.feeder import STAMP
from benchmarks.scenarios import Scenario
from benchmarks.traffic import Message

__all__ = ["DRIVERS", "Blocking", "Client", "Figures", "Run"]

Figures = dict[str, float]
Driver = AsyncGenerator[Figures, int]
_REQUEST_TIMEOUT = 30.0


class Client(Protocol):
    """How one library does what the other one does by another name. ``Any`` are its own objects."""

    takes_def: bool
    """Whether a handler may be a plain function."""

    async def connect(self, url: str, *, trusting: bool = False) -> Any: ...
    async def subscribe(self, nc: Any, subject: str, handler: Callable[[Any], Any] | None) -> Any:
        """With limits under which nothing is dropped."""

    def messages(self, sub: Any) -> AsyncIterable[Any]: ...
    async def confirm(self, nc: Any) -> None:
        """Returns when the server has processed everything sent before."""

    async def window(self, nc: Any, messages: list[tuple[str, bytes, dict[str, str]]]) -> None:
        """Publishes with 1,000 unacknowledged at most; returns when all are acknowledged."""

    async def pull(self, nc: Any, stream: str, *, acks: bool) -> Any:
        """A consumer that has ``fetch(n)``."""

    async def read_acked(self, nc: Any, stream: str, handle: Callable[[Any], object], count: int) -> None:
        """Reads so many messages as they come, each acknowledged after `handle`."""

    async def create_bucket(self, nc: Any, bucket: str) -> None: ...
    async def watch(self, nc: Any, bucket: str) -> int:
        """The bytes of all values that a new watch gives."""

    async def object_store(self, nc: Any, bucket: str) -> Any: ...
    async def object_get(self, store: Any, name: str) -> bytes: ...

    def blocking(self, url: str) -> Blocking:
        """A client for a thread without an event loop, called in that thread."""


class Blocking(Protocol):
    """The calls of a program without an event loop; each returns when it is done."""

    def request(self, subject: str, payload: bytes) -> bytes: ...
    def publish(self, subject: str, payload: bytes) -> object:
        """To a stream; returns when it is acknowledged."""

    def open(self, stream: str, bucket: str) -> None:
        """Finds both, for the two calls below."""

    def get(self, key: str) -> bytes: ...
    def fetch(self, count: int) -> list[Any]:
        """The messages, acknowledged."""

    def close(self) -> None: ...


class Run:
    """One scenario for one client."""

    def __init__(self, client: Client, scenario: Scenario, url: str, prefix: str, count: int) -> None:
        self.client, self.scenario, self.url, self.prefix, self.count = client, scenario, url, prefix, count
        self._wall = self._cpu = 0
        self._connections: list[Any] = []

    @property
    def how(self) -> str:
        """The kind of handler: the scenario's, or `async def` where the library takes no other."""
        how = self.scenario.how
        return "async" if how == "def" and not self.client.takes_def else how

    async def connect(self) -> Any:
        nc = await self.client.connect(self.url, trusting=self.scenario.transport == "tls")
        self._connections.append(nc)
        return nc

    async def close(self) -> None:
        """Closes what is connected."""
        for nc in self._connections:
            await nc.close()

    async def prepare(self, nc: Any, seed: int, prefix: str | None = None) -> int:
        """Has the feeder encode its messages; their payload bytes."""
        asked = json.dumps({"prefix": prefix or self.prefix, "seed": seed, "count": self.count}).encode()
        answer = await nc.request("feeder.prepare", asked, timeout=_REQUEST_TIMEOUT)
        return int(json.loads(answer.data)["bytes"])

    def messages(self, seed: int) -> list[Message]:
        return self.scenario.traffic.messages(seed, self.count)

    def start(self) -> None:
        """A collection before, so that nobody pays for the garbage of the set-up."""
        gc.collect()
        self._cpu = time.process_time_ns()
        self._wall = time.perf_counter_ns()

    def stop(self, operations: int) -> Figures:
        wall, cpu = time.perf_counter_ns() - self._wall, time.process_time_ns() - self._cpu
        return {"rate": operations * 1e9 / wall, "cpu_us": cpu / 1000 / operations}


def check(complete: bool, what: str) -> None:
    """Fails the repetition when a message was lost, doubled or damaged."""
    if not complete:
        raise RuntimeError(f"not a fair run: {what}")


def latencies(taken: list[int]) -> Figures:
    """Median and 99th percentile in microseconds."""
    taken.sort()
    return {"p50_us": taken[len(taken) // 2] / 1000, "p99_us": taken[len(taken) * 99 // 100] / 1000}


# ---------------------------------------------------------------- core


async def receive(run: Run) -> Driver:
    scenario, client = run.scenario, run.client
    nc, reached = await run.connect(), asyncio.Event()
    got = target = 0

    def plain(msg: Any) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    def plain_headers(msg: Any) -> None:
        nonlocal got
        got += len(msg.data)
        check(len(msg.headers["traceparent"]) == 55, "a wrong header")
        if got == target:
            reached.set()

    async def coroutine(msg: Any) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    async def coroutine_headers(msg: Any) -> None:
        nonlocal got
        got += len(msg.data)
        check(len(msg.headers["traceparent"]) == 55, "a wrong header")
        if got == target:
            reached.set()

    async def iterate() -> None:
        nonlocal got
        async for msg in client.messages(subs[0]):
            got += len(msg.data)
            if got == target:
                reached.set()

    heads = scenario.traffic.headers
    handler = {
        "def": plain_headers if heads else plain,
        "async": coroutine_headers if heads else coroutine,
        "iterate": None,
    }[run.how]
    grouped = scenario.subscriptions > 1 and not scenario.fan_out
    subjects = [f"{run.prefix}.{n}.>" if grouped else f"{run.prefix}.>" for n in range(scenario.subscriptions)]
    subs = [await client.subscribe(nc, subject, handler) for subject in subjects]
    reading = asyncio.create_task(iterate()) if handler is None else None
    await client.confirm(nc)
    copies = scenario.subscriptions if scenario.fan_out else 1
    figures: Figures = {}
    while True:
        seed = yield figures
        got, target = 0, await run.prepare(nc, seed) * copies
        reached.clear()
        run.start()
        await nc.publish("feeder.go", b"")
        await reached.wait()
        figures = run.stop(run.count * copies)
        await client.confirm(nc)
        check(got == target and not (reading and reading.done()), f"{got} of {target} bytes")


async def trickle(run: Run) -> Driver:
    nc, client, how = await run.connect(), run.client, run.how
    clock, reached = time.perf_counter_ns, asyncio.Event()
    came: list[tuple[int, bytes]] = []
    count = run.count

    def plain(msg: Any) -> None:
        came.append((clock(), msg.data))
        if len(came) == count:
            reached.set()

    async def coroutine(msg: Any) -> None:
        came.append((clock(), msg.data))
        if len(came) == count:
            reached.set()

    async def iterate() -> None:
        async for msg in client.messages(sub):
            came.append((clock(), msg.data))
            if len(came) == count:
                reached.set()

    handler = {"def": plain, "async": coroutine}.get(how)
    stream = f"{run.prefix}-paced"
    if how == "ack":
        await _create_stream(nc, stream, f"{run.prefix}.>")
    else:
        sub = await client.subscribe(nc, f"{run.prefix}.>", handler)
    reading = asyncio.create_task(iterate()) if how == "iterate" else None
    await client.confirm(nc)
    figures: Figures = {}
    while True:
        seed = yield figures
        await run.prepare(nc, seed)
        came.clear()
        reached.clear()
        if how == "ack":
            reading = asyncio.create_task(client.read_acked(nc, stream, plain, count))
            await asyncio.sleep(0.1)  # its consumer is made; were it not, messages would wait and the time show it
        run.start()
        await nc.publish("feeder.go", b"")
        await reached.wait()
        figures = run.stop(count)
        if reading is not None and how == "ack":
            await reading
        check(len(came) == count, f"{len(came)} of {count} messages")
        figures |= latencies([at - int(data[:STAMP]) for at, data in came])


async def publish(run: Run) -> Driver:
    nc, client = await run.connect(), run.client
    figures: Figures = {}
    while True:
        seed = yield figures
        messages = [(f"{run.prefix}.{m.subject}", m.payload, m.headers) for m in run.messages(seed)]
        await client.confirm(nc)
        run.start()
        if run.scenario.traffic.headers:
            for subject, payload, headers in messages:
                await nc.publish(subject, payload, headers=headers)
        else:
            for subject, payload, _ in messages:
                await nc.publish(subject, payload)
        await client.confirm(nc)
        figures = run.stop(run.count)


async def request(run: Run) -> Driver:
    nc, workers, clock = await run.connect(), int(run.scenario.how), time.perf_counter_ns
    subject, taken = f"echo.{run.prefix}", list[int]()
    figures: Figures = {}

    async def worker(payloads: list[bytes]) -> None:
        for payload in payloads:
            start = clock()
            reply = await nc.request(subject, payload, timeout=_REQUEST_TIMEOUT)
            taken.append(clock() - start)
            check(reply.data == payload, "a wrong answer")

    while True:
        seed = yield figures
        payloads = [message.payload for message in run.messages(seed)]
        taken.clear()
        await worker(payloads[:1])
        taken.clear()
        run.start()
        await asyncio.gather(*(worker(payloads[place::workers]) for place in range(workers)))
        figures = run.stop(run.count) | latencies(taken)


async def connect(run: Run) -> Driver:
    figures: Figures = {}
    while True:
        yield figures
        taken: list[int] = []
        run.start()
        for _ in range(run.count):
            start = time.perf_counter_ns()
            await (await run.connect()).close()
            taken.append(time.perf_counter_ns() - start)
        figures = run.stop(run.count) | latencies(taken)


# ---------------------------------------------------------------- without an event loop


async def blocking(run: Run) -> Driver:
    """Calls of a thread without an event loop, one after another. The CPU time is that of all threads."""
    nc, how, clock = await run.connect(), run.how, time.perf_counter_ns
    stream, bucket = f"{run.prefix}-blocking", f"{run.prefix}-bucket"
    threads = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    await run.client.create_bucket(nc, bucket)
    client = await loop.run_in_executor(threads, run.client.blocking, run.url)
    figures: Figures = {}

    def calls(payloads: list[bytes]) -> Figures:
        one: dict[str, Callable[[bytes], object]] = {
            "request": lambda payload: client.request(f"echo.{run.prefix}", payload) == payload,
            "publish": lambda payload: client.publish(f"{run.prefix}.a", payload),
            "get": lambda payload: len(client.get("key")),
            "fetch": lambda payload: len(client.fetch(10)) == 10,
        }
        client.open(stream, bucket)
        taken: list[int] = []
        run.start()
        for payload in payloads:
            start = clock()
            check(bool(one[how](payload)), "a wrong answer")
            taken.append(clock() - start)
        return run.stop(run.count) | latencies(taken)

    try:
        while True:
            seed = yield figures
            payloads = [message.payload for message in run.messages(seed)]
            await _create_stream(nc, stream, f"{run.prefix}.>")
            await nc.publish(f"$KV.{bucket}.key", payloads[0])
            if how == "fetch":
                for _ in range(10 * run.count):
                    await nc.publish(f"{run.prefix}.a", payloads[0])
            await run.client.confirm(nc)
            figures = await loop.run_in_executor(threads, calls, payloads)
            await _api(nc, f"STREAM.DELETE.{stream}")
    finally:
        await loop.run_in_executor(threads, client.close)
        threads.shutdown()


# ---------------------------------------------------------------- memory


def _resident_mb() -> float:
    gc.collect()
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS:"))


async def idle(run: Run) -> Driver:
    """Many subscriptions that get nothing."""
    nc = await run.connect()
    subs = [await run.client.subscribe(nc, f"{run.prefix}.warm", None)]
    await run.client.confirm(nc)
    yield {}
    before = _resident_mb()
    subs += [await run.client.subscribe(nc, f"{run.prefix}.{number}", None) for number in range(run.count)]
    await run.client.confirm(nc)
    yield {"memory_mb": _resident_mb() - before}


async def waiting(run: Run) -> Driver:
    """Many messages that nobody reads."""
    nc = await run.connect()
    sub = await run.client.subscribe(nc, f"{run.prefix}.>", None)
    await run.client.confirm(nc)
    seed = yield {}
    await run.prepare(nc, seed)
    before = _resident_mb()
    await nc.publish("feeder.go", b"")
    while sub.pending_msgs < run.count:  # noqa: ASYNC110 (nothing tells, and no time is measured)
        await asyncio.sleep(0.01)
    yield {"memory_mb": _resident_mb() - before}


# ---------------------------------------------------------------- JetStream


async def _api(nc: Any, subject: str, **body: object) -> dict[str, Any]:
    answer = await nc.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=_REQUEST_TIMEOUT)
    decoded: dict[str, Any] = json.loads(answer.data)
    check("error" not in decoded, f"{subject}: {decoded.get('error')}")
    return decoded


async def _create_stream(nc: Any, name: str, subject: str) -> None:
    await _api(nc, f"STREAM.CREATE.{name}", name=name, subjects=[subject], storage="memory", retention="limits")


async def window(run: Run) -> Driver:
    nc, stream = await run.connect(), f"{run.prefix}-window"
    figures: Figures = {}
    while True:
        seed = yield figures
        messages = [(f"{run.prefix}.{m.subject}", m.payload, m.headers or {}) for m in run.messages(seed)]
        await _create_stream(nc, stream, f"{run.prefix}.>")
        run.start()
        await run.client.window(nc, messages)
        figures = run.stop(run.count)
        held = (await _api(nc, f"STREAM.INFO.{stream}"))["state"]["messages"]
        check(held == run.count, f"the stream holds {held} of {run.count} messages")
        await _api(nc, f"STREAM.DELETE.{stream}")


async def stored(run: Run) -> Driver:
    """Publishes to a stream, each message when the one before is acknowledged."""
    nc, stream, clock = await run.connect(), f"{run.prefix}-stored", time.perf_counter_ns
    js = nc.jetstream()
    figures: Figures = {}
    while True:
        seed = yield figures
        messages = [(f"{run.prefix}.{m.subject}", m.payload, m.headers) for m in run.messages(seed)]
        await _create_stream(nc, stream, f"{run.prefix}.>")
        taken: list[int] = []
        run.start()
        for subject, payload, headers in messages:
            start = clock()
            await js.publish(subject, payload, headers=headers)
            taken.append(clock() - start)
        figures = run.stop(run.count) | latencies(taken)
        await _api(nc, f"STREAM.DELETE.{stream}")


async def fetch(run: Run) -> Driver:
    nc, stream, how = await run.connect(), f"{run.prefix}-fetch", run.scenario.how
    figures: Figures = {}
    while True:
        seed = yield figures
        await _create_stream(nc, stream, f"{run.prefix}.>")
        target = await run.prepare(nc, seed)
        await nc.request("feeder.fill", b"", timeout=_REQUEST_TIMEOUT)
        consumer = await run.client.pull(nc, stream, acks=how == "ack")
        got = came = 0
        run.start()
        while came < run.count:
            batch = await consumer.fetch(min(500, run.count - came))
            came += len(batch)
            for msg in batch:
                got += len(msg.data)
                if how == "ack":
                    await msg.ack()
                elif how == "headers":
                    check(len(msg.headers["traceparent"]) == 55, "a wrong header")
        await run.client.confirm(nc)
        figures = run.stop(run.count)
        check(got == target, f"{got} of {target} bytes")
        await _api(nc, f"STREAM.DELETE.{stream}")


async def watch(run: Run) -> Driver:
    nc = await run.connect()
    figures: Figures = {}
    while True:
        seed = yield figures
        bucket = f"{run.prefix}-{seed}"
        await run.client.create_bucket(nc, bucket)
        target = await run.prepare(nc, seed, f"$KV.{bucket}")
        await nc.request("feeder.fill", b"", timeout=_REQUEST_TIMEOUT)
        run.start()
        got = await run.client.watch(nc, bucket)
        figures = run.stop(run.count)
        check(got == target, f"{got} of {target} bytes")
        await _api(nc, f"STREAM.DELETE.KV_{bucket}")


async def store(run: Run) -> Driver:
    """An object of as many MiB as the count."""
    nc, how = await run.connect(), run.scenario.how
    figures: Figures = {}
    while True:
        seed = yield figures
        content, bucket = (seed % 251).to_bytes(1, "big") * (run.count << 20), f"{run.prefix}-{seed}"
        objects = await run.client.object_store(nc, bucket)
        if how == "get":
            await objects.put("object", content)
        run.start()
        if how == "get":
            check(await run.client.object_get(objects, "object") == content, "the object is damaged")
        else:
            await objects.put("object", content)
        figures = run.stop(run.count)
        figures["mib_per_s"] = figures["rate"]
        await _api(nc, f"STREAM.DELETE.OBJ_{bucket}")


async def store_small(run: Run) -> Driver:
    """Objects of one chunk, one after another."""
    nc, how = await run.connect(), run.scenario.how
    figures: Figures = {}
    while True:
        seed = yield figures
        contents = [message.payload for message in run.messages(seed)]
        bucket = f"{run.prefix}-{seed}"
        objects = await run.client.object_store(nc, bucket)
        if how == "get":
            for number, content in enumerate(contents):
                await objects.put(f"o{number}", content)
        run.start()
        for number, content in enumerate(contents):
            if how == "get":
                check(await run.client.object_get(objects, f"o{number}") == content, "an object is damaged")
            else:
                await objects.put(f"o{number}", content)
        figures = run.stop(run.count)
        await _api(nc, f"STREAM.DELETE.OBJ_{bucket}")


DRIVERS: dict[str, Callable[[Run], Driver]] = {
    "receive": receive,
    "trickle": trickle,
    "publish": publish,
    "request": request,
    "connect": connect,
    "blocking": blocking,
    "idle": idle,
    "waiting": waiting,
    "window": window,
    "stored": stored,
    "fetch": fetch,
    "watch": watch,
    "object": store,
    "small object": store_small,
}
