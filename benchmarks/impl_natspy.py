"""nats-py, used as its documentation shows: default options, except pending limits under which nothing is dropped."""

from __future__ import annotations

import asyncio
import filecmp
import time

import nats
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, ObjectStoreConfig, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore
from nats.micro.request import Request

from benchmarks.implementation import (
    IN_FLIGHT,
    Figures,
    Implementation,
    Run,
    Stopwatch,
    bucket_keys,
    check,
    fill_store,
    import_time,
    latencies,
    object_file,
    object_of,
    per_mib,
    resident_mb,
)

__all__ = ["NATS_PY"]

NATS_PY = Implementation("nats-py", distribution="nats-py", module="nats")


async def _confirmed(nc: Client) -> None:
    """Return when the server has processed everything sent so far.

    Twice, because the PING of its flush() overtakes what waits in its buffer (up to 2 MB): the first PONG says nothing
    about that, but by then the buffer has been written.
    """
    await nc.flush()
    await nc.flush()


@NATS_PY.does
async def publish(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    payload, subjects, watch = run.payload, run.subjects(), Stopwatch()
    await nc.publish(run.subject, payload)
    await _confirmed(nc)
    watch.start()
    for subject in subjects:
        await nc.publish(subject, payload)
    await _confirmed(nc)
    figures = watch.stop(run.count)
    await nc.close()
    return figures


@NATS_PY.does
async def publish_headers(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    payload, subject, traces, watch = run.payload, run.subject, run.traces(), Stopwatch()
    await nc.publish(subject, payload, headers={"Trace": traces[0], "Kind": "order"})
    await _confirmed(nc)
    watch.start()
    for trace in traces:
        await nc.publish(subject, payload, headers={"Trace": trace, "Kind": "order"})
    await _confirmed(nc)
    figures = watch.stop(run.count)
    await nc.close()
    return figures


@NATS_PY.does
async def subscribe_callback(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    got, target = 0, run.scenario.size
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Msg) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(run.interest, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await _confirmed(nc)
    run.peer.go(1)
    await reached.wait()
    run.peer.sent(1)
    reached.clear()
    target += run.total_bytes
    watch.start()
    run.peer.go(run.count)
    await reached.wait()
    figures = watch.stop(run.count)
    run.peer.sent(run.count)
    await _confirmed(nc)
    check(got == target, f"{got} of {target} bytes")
    await nc.close()
    return figures


@NATS_PY.does
async def subscribe_plain_callback(run: Run) -> Figures:
    return await subscribe_callback(run)  # it accepts coroutine functions only


@NATS_PY.does
async def subscribe_headers(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    got = target = 0
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Msg) -> None:
        nonlocal got
        headers = msg.headers
        got += len(headers["Trace"]) if headers else 0
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(run.interest, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await _confirmed(nc)
    target += 16
    run.peer.go(1)
    await reached.wait()
    run.peer.sent(1)
    reached.clear()
    target += run.count * 16
    watch.start()
    run.peer.go(run.count)
    await reached.wait()
    figures = watch.stop(run.count)
    run.peer.sent(run.count)
    await _confirmed(nc)
    check(got == target, f"{got} of {target} header bytes")
    await nc.close()
    return figures


@NATS_PY.does
async def subscribe_iterate(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    msgs, size = run.room
    sub = await nc.subscribe(run.interest, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await _confirmed(nc)
    watch, got, target = Stopwatch(), 0, run.total_bytes
    run.peer.go(1)
    await sub.next_msg(timeout=10.0)
    run.peer.sent(1)
    watch.start()
    run.peer.go(run.count)
    async for msg in sub.messages:
        got += len(msg.data)
        if got >= target:
            break
    figures = watch.stop(run.count)
    run.peer.sent(run.count)
    await _confirmed(nc)
    check(got == target and not sub.pending_msgs, f"{got} of {target} bytes, {sub.pending_msgs} messages left")
    await nc.close()
    return figures


@NATS_PY.does
async def subscribe_batches(run: Run) -> Figures:
    return await subscribe_iterate(run)  # it has no batches


@NATS_PY.does
async def publish_subscribe(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    payload, subject = run.payload, run.subject
    got, target = 0, run.scenario.size
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Msg) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(subject, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.publish(subject, payload)
    await reached.wait()
    reached.clear()
    target += run.total_bytes
    watch.start()
    for _ in range(run.count):
        await nc.publish(subject, payload)
    await reached.wait()
    figures = watch.stop(run.count)
    await _confirmed(nc)
    check(got == target, f"{got} of {target} bytes")
    await nc.close()
    return figures


@NATS_PY.does
async def request_sequential(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    payload, subject, clock = run.payload, run.subject, time.perf_counter_ns
    taken: list[int] = []
    watch = Stopwatch()
    await nc.request(subject, payload, timeout=10.0)
    watch.start()
    for _ in range(run.count):
        start = clock()
        reply = await nc.request(subject, payload, timeout=10.0)
        taken.append(clock() - start)
        check(reply.data == payload, "a wrong answer")
    figures = watch.stop(run.count) | latencies(taken)
    await nc.close()
    return figures


@NATS_PY.does
async def request_concurrent(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    payload, subject, clock = run.payload, run.subject, time.perf_counter_ns
    taken: list[int] = []
    watch = Stopwatch()

    async def worker(times: int) -> None:
        for _ in range(times):
            start = clock()
            reply = await nc.request(subject, payload, timeout=10.0)
            taken.append(clock() - start)
            check(reply.data == payload, "a wrong answer")

    await worker(1)
    taken.clear()
    watch.start()
    await asyncio.gather(*(worker(run.count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
    figures = watch.stop(len(taken)) | latencies(taken)
    await nc.close()
    return figures


@NATS_PY.does
async def service_requests(run: Run) -> Figures:
    nc, other = await nats.connect(run.url), await nats.connect(run.url)
    service = await nats.micro.add_service(other, name="bench", version="1.0.0")

    async def echo(request: Request) -> None:
        await request.respond(request.data)

    await service.add_endpoint(name="echo", subject=run.subject, handler=echo)
    await other.flush()
    payload, subject, clock = run.payload, run.subject, time.perf_counter_ns
    taken: list[int] = []
    watch = Stopwatch()

    async def worker(times: int) -> None:
        for _ in range(times):
            start = clock()
            reply = await nc.request(subject, payload, timeout=10.0)
            taken.append(clock() - start)
            check(reply.data == payload, "a wrong answer")

    await worker(1)
    taken.clear()
    watch.start()
    await asyncio.gather(*(worker(run.count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
    figures = watch.stop(len(taken)) | latencies(taken)
    await service.stop()
    await other.close()
    await nc.close()
    return figures


@NATS_PY.does
async def connect(run: Run) -> Figures:
    taken: list[int] = []
    clock, watch = time.perf_counter_ns, Stopwatch()
    nc = await nats.connect(run.url)
    await nc.close()
    watch.start()
    for _ in range(run.count):
        start = clock()
        nc = await nats.connect(run.url)
        await nc.close()
        taken.append(clock() - start)
    return watch.stop(run.count) | latencies(taken)


@NATS_PY.does
async def import_module(run: Run) -> Figures:
    return import_time("nats", run.count)


@NATS_PY.does
async def memory_subscriptions(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    await nc.subscribe("bench.idle")
    await _confirmed(nc)
    before = resident_mb()
    subs = [await nc.subscribe(f"bench.idle.{number}") for number in range(run.count)]
    await _confirmed(nc)
    figures = {"memory_mb": resident_mb() - before}
    check(len(subs) == run.count, f"{len(subs)} subscriptions")
    await nc.close()
    return figures


@NATS_PY.does
async def memory_messages(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    msgs, size = run.room
    sub = await nc.subscribe(run.interest, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await _confirmed(nc)
    run.peer.go(1)
    await sub.next_msg(timeout=10.0)
    run.peer.sent(1)
    before = resident_mb()
    run.peer.go(run.count)
    while sub.pending_msgs < run.count:  # noqa: ASYNC110 (nothing tells, and no time is measured)
        await asyncio.sleep(0.01)
    figures = {"memory_mb": resident_mb() - before}
    run.peer.sent(run.count)
    await _confirmed(nc)
    check(sub.pending_msgs == run.count, f"{sub.pending_msgs} of {run.count} messages")
    await nc.close()
    return figures


async def _make_stream(nc: Client, run: Run) -> str:
    """An empty stream for the run's subject, of a name of its own: a deleted one's files go in the background."""
    name = f"BENCH_{time.time_ns()}"
    await nc.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"{run.subject}.>"], storage=StorageType(run.scenario.storage))
    )
    return name


async def _drop_stream(nc: Client, name: str, count: int) -> None:
    """Check that the stream holds every message, and leave nothing behind."""
    held = (await nc.jetstream().stream_info(name)).state.messages
    await nc.jetstream().delete_stream(name)
    check(held == count, f"the stream holds {held} of {count} messages")
    await nc.close()


@NATS_PY.does
async def stream_publish(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    stream, js = await _make_stream(nc, run), nc.jetstream()
    payload, subject, clock = run.payload, f"{run.subject}.a", time.perf_counter_ns
    taken: list[int] = []
    watch = Stopwatch()
    await js.publish(subject, payload)
    watch.start()
    for number in range(run.count):
        start = clock()
        ack = await js.publish(subject, payload)
        taken.append(clock() - start)
        check(ack.seq == number + 2, "a wrong acknowledgement")
    figures = watch.stop(run.count) | latencies(taken)
    await _drop_stream(nc, stream, run.count + 1)
    return figures


@NATS_PY.does
async def stream_publish_window(run: Run) -> Figures:
    # Its fastest way: asyncio.gather over publish(), 500 at a time, takes twice as long.
    nc = await nats.connect(run.url)
    stream, js = await _make_stream(nc, run), nc.jetstream(publish_async_max_pending=run.scenario.window)
    payload, subject, watch = run.payload, f"{run.subject}.a", Stopwatch()
    await js.publish(subject, payload)
    watch.start()
    for _ in range(run.count):
        await js.publish_async(subject, payload)
    await js.publish_async_completed()
    figures = watch.stop(run.count)
    await _drop_stream(nc, stream, run.count + 1)
    return figures


@NATS_PY.does
async def stream_fast_ingest(run: Run) -> Figures:
    return await stream_publish_window(run)  # it has no fast ingest


async def _reading(nc: Client, run: Run, ack_policy: AckPolicy) -> tuple[str, JetStreamContext.PullSubscription]:
    """A stream with one message in it, and a durable consumer."""
    stream = await _make_stream(nc, run)
    run.peer.go(1)
    run.peer.sent(1)
    config = ConsumerConfig(ack_policy=ack_policy)
    return stream, await nc.jetstream().pull_subscribe("", durable="BENCH", stream=stream, config=config)


async def _end_of_reading(nc: Client, run: Run, stream: str, got: int) -> None:
    """Check that every byte came and that nothing waits for an acknowledgement, and leave nothing behind."""
    waiting = 1
    while waiting:  # the server has all acknowledgements, but deals with them in its own time
        waiting = sum(info.num_ack_pending or 0 for info in await nc.jetstream().consumers_info(stream))
    await _drop_stream(nc, stream, run.count + 1)
    check(got == run.total_bytes, f"{got} of {run.total_bytes} bytes")


@NATS_PY.does
async def fetch(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.NONE)
    await consumer.fetch(1)
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    watch.start()
    while got < target:
        for msg in await consumer.fetch(run.next_fetch(got)):
            got += len(msg.data)
    figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATS_PY.does
async def fetch_acked(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.EXPLICIT)
    for msg in await consumer.fetch(1):
        await msg.ack()
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    watch.start()
    while got < target:
        for msg in await consumer.fetch(run.next_fetch(got)):
            got += len(msg.data)
            await msg.ack()
    await _confirmed(nc)
    figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATS_PY.does
async def consume(run: Run) -> Figures:
    return await fetch(run)  # it has no continuous consumption: a loop of fetches is what its users write


@NATS_PY.does
async def consume_acked(run: Run) -> Figures:
    return await fetch_acked(run)


@NATS_PY.does
async def handle(run: Run) -> Figures:
    return await fetch(run)


@NATS_PY.does
async def handle_acked(run: Run) -> Figures:
    return await fetch_acked(run)


@NATS_PY.does
async def read_ordered(run: Run) -> Figures:
    # A callback is its fastest way: its iterator takes 2.5 times the CPU.
    # With a callback: its iterator takes twice as long.
    nc = await nats.connect(run.url)
    stream = await _make_stream(nc, run)
    run.peer.go(1)
    run.peer.sent(1)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    reached = asyncio.Event()
    warm = await nc.jetstream().subscribe("", stream=stream, ordered_consumer=True)
    await warm.next_msg(timeout=10.0)
    await warm.unsubscribe()
    run.peer.go(run.count)
    run.peer.sent(run.count)

    async def handler(msg: Msg) -> None:
        nonlocal got
        got += len(msg.data)
        if got >= target:
            reached.set()

    msgs, size = run.room
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=2)
    watch.start()
    subscription = await nc.jetstream().subscribe(
        "",
        stream=stream,
        cb=handler,
        config=config,
        ordered_consumer=True,
        pending_msgs_limit=msgs,
        pending_bytes_limit=size,
    )
    await reached.wait()
    figures = watch.stop(run.count)
    await subscription.unsubscribe()
    await _end_of_reading(nc, run, stream, got)
    return figures


# ---------------------------------------------------------------- key/value


async def _make_bucket(nc: Client, run: Run) -> KeyValue:
    # Direct get, which is not its default, is its faster way.
    return await nc.jetstream().create_key_value(
        bucket=f"BENCH_{time.time_ns()}", storage=StorageType(run.scenario.storage), direct=True
    )


async def _drop_bucket(nc: Client, bucket: str) -> None:
    await nc.jetstream().delete_key_value(bucket)
    await nc.close()


@NATS_PY.does
async def key_get(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    kv, payload, keys = await _make_bucket(nc, run), run.payload, bucket_keys(run)
    for key in dict.fromkeys(keys):
        await kv.put(key, payload)
    taken: list[int] = []
    clock, watch = time.perf_counter_ns, Stopwatch(run.server_pid)

    async def worker(share: list[str]) -> None:
        for key in share:
            start = clock()
            entry = await kv.get(key)
            taken.append(clock() - start)
            right = entry.value == payload and entry.key == key and entry.revision is not None
            check(right, "a wrong entry")

    await worker(keys[:1])
    taken.clear()
    watch.start()
    await asyncio.gather(*(worker(keys[place :: run.scenario.window]) for place in range(run.scenario.window)))
    figures = watch.stop(len(taken)) | latencies(taken)
    await _drop_bucket(nc, (await kv.status()).bucket)
    return figures


@NATS_PY.does
async def key_put(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    kv, payload, keys = await _make_bucket(nc, run), run.payload, bucket_keys(run)
    taken: list[int] = []
    clock, watch = time.perf_counter_ns, Stopwatch(run.server_pid)

    async def worker(share: list[str]) -> None:
        for key in share:
            start = clock()
            revision = await kv.put(key, payload)
            taken.append(clock() - start)
            check(revision > 0, "a wrong revision")

    await worker(keys[:1])
    taken.clear()
    watch.start()
    await asyncio.gather(*(worker(keys[place :: run.scenario.window]) for place in range(run.scenario.window)))
    figures = watch.stop(len(taken)) | latencies(taken)
    state = (await kv.status()).stream_info.state
    check(state.last_seq == run.count + 1, "not everything was stored")
    await _drop_bucket(nc, (await kv.status()).bucket)
    return figures


@NATS_PY.does
async def key_watch(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    kv, payload, js = await _make_bucket(nc, run), run.payload, nc.jetstream(publish_async_max_pending=1000)
    prefix = f"$KV.{(await kv.status()).bucket}.key."
    for number in range(run.count):
        await js.publish_async(f"{prefix}{number}", payload)
    await js.publish_async_completed()
    watch, got, last = Stopwatch(run.server_pid), 0, 0
    warm = await kv.watch("key.0")
    await warm.updates()  # type: ignore[no-untyped-call]
    await warm.stop()  # type: ignore[no-untyped-call]
    watch.start()
    watcher = await kv.watchall()
    async for entry in watcher:
        if entry is None:
            break
        got += len(entry.value or b"")
        last = entry.revision or 0
        check(entry.key.startswith("key."), "a wrong key")
    figures = watch.stop(run.count)
    await watcher.stop()  # type: ignore[no-untyped-call]
    check(got == run.total_bytes and last == run.count, "not everything came")
    await _drop_bucket(nc, (await kv.status()).bucket)
    return figures


async def _make_store(nc: Client, run: Run) -> tuple[ObjectStore, str]:
    """Empty, of a name of its own, with one small object put and got as a warm-up."""
    bucket = f"BENCH_{time.time_ns()}"
    config = ObjectStoreConfig(bucket=bucket, storage=StorageType(run.scenario.storage))
    store = await nc.jetstream().create_object_store(bucket, config)
    await store.put("warm", run.payload)
    check((await store.get("warm")).data == run.payload, "the warm-up is damaged")
    return store, bucket


async def _drop_store(nc: Client, bucket: str) -> None:
    await nc.jetstream().delete_object_store(bucket)
    await nc.close()


@NATS_PY.does
async def object_put(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    (store, bucket), data, watch = await _make_store(nc, run), object_of(run), Stopwatch(run.server_pid)
    watch.start()
    info = await store.put("object", data)
    figures = per_mib(watch.stop(run.count), run)
    check((info.size, info.chunks) == (run.total_bytes, run.count), "not everything was stored")
    await _drop_store(nc, bucket)
    return figures


@NATS_PY.does
async def object_get(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    (store, bucket), data, watch = await _make_store(nc, run), object_of(run), Stopwatch(run.server_pid)
    await store.put("object", data)
    watch.start()
    got = await store.get("object")
    figures = per_mib(watch.stop(run.count), run)
    check(got.data == data, "the object is damaged")
    await _drop_store(nc, bucket)
    return figures


@NATS_PY.does
async def memory_object_put(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    store, bucket = await _make_store(nc, run)
    with object_file(run) as path:
        before = resident_mb()
        with path.open("rb") as file:
            await store.put("object", file)
        figures = {"memory_mb": resident_mb(peak=True) - before}
    check((await store.get_info("object")).size == run.total_bytes, "not everything was stored")
    await _drop_store(nc, bucket)
    return figures


@NATS_PY.does
async def memory_object_get(run: Run) -> Figures:
    nc = await nats.connect(run.url)
    store, bucket = await _make_store(nc, run)
    with object_file(run) as path:
        fill_store(run.url, bucket, path)
        before, target = resident_mb(), path.with_name("got")
        with target.open("wb") as file:
            await store.get("object", file)
        figures = {"memory_mb": resident_mb(peak=True) - before}
        check(filecmp.cmp(path, target, shallow=False), "the object is damaged")
    await _drop_store(nc, bucket)
    return figures
