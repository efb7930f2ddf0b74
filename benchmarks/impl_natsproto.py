"""natsproto, used as its documentation shows: default options, except pending limits under which nothing is dropped."""

from __future__ import annotations

import asyncio
import filecmp
import time

import natsproto
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
from natsproto import Message
from natsproto.jetstream.config import AckPolicy
from natsproto.jetstream.kv.bucket import KeyValue
from natsproto.jetstream.message import JsMessage
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.jetstream.reading.consumer import PullConsumer
from natsproto.jetstream.stream import Stream
from natsproto.service import Request

__all__ = ["NATSPROTO"]

NATSPROTO = Implementation("natsproto", distribution="natsproto", module="natsproto")


@NATSPROTO.does
async def publish(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    payload, subjects, watch = run.payload, run.subjects(), Stopwatch()
    await nc.publish(run.subject, payload)
    await nc.flush()
    watch.start()
    for subject in subjects:
        await nc.publish(subject, payload)
    await nc.flush()
    figures = watch.stop(run.count)
    await nc.close()
    return figures


@NATSPROTO.does
async def publish_headers(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    payload, subject, traces, watch = run.payload, run.subject, run.traces(), Stopwatch()
    await nc.publish(subject, payload, headers={"Trace": traces[0], "Kind": "order"})
    await nc.flush()
    watch.start()
    for trace in traces:
        await nc.publish(subject, payload, headers={"Trace": trace, "Kind": "order"})
    await nc.flush()
    figures = watch.stop(run.count)
    await nc.close()
    return figures


@NATSPROTO.does
async def subscribe_callback(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    got, target = 0, run.scenario.size
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Message) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(run.interest, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
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
    await nc.flush()
    check(got == target, f"{got} of {target} bytes")
    await nc.close()
    return figures


@NATSPROTO.does
async def subscribe_plain_callback(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    got, target = 0, run.scenario.size
    reached, watch = asyncio.Event(), Stopwatch()

    def handler(msg: Message) -> None:
        nonlocal got
        got += len(msg.data)
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(run.interest, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
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
    await nc.flush()
    check(got == target, f"{got} of {target} bytes")
    await nc.close()
    return figures


@NATSPROTO.does
async def subscribe_headers(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    got = target = 0
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Message) -> None:
        nonlocal got
        got += len(msg.headers["Trace"])
        if got == target:
            reached.set()

    msgs, size = run.room
    await nc.subscribe(run.interest, cb=handler, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
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
    await nc.flush()
    check(got == target, f"{got} of {target} header bytes")
    await nc.close()
    return figures


@NATSPROTO.does
async def subscribe_iterate(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    msgs, size = run.room
    sub = await nc.subscribe(run.interest, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
    watch, got, target = Stopwatch(), 0, run.total_bytes
    run.peer.go(1)
    await sub.next(timeout=10.0)
    run.peer.sent(1)
    watch.start()
    run.peer.go(run.count)
    async for msg in sub:
        got += len(msg.data)
        if got >= target:
            break
    figures = watch.stop(run.count)
    run.peer.sent(run.count)
    await nc.flush()
    check(got == target and not sub.pending_msgs, f"{got} of {target} bytes, {sub.pending_msgs} messages left")
    await nc.close()
    return figures


@NATSPROTO.does
async def subscribe_batches(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    msgs, size = run.room
    sub = await nc.subscribe(run.interest, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
    watch, got, target = Stopwatch(), 0, run.total_bytes
    run.peer.go(1)
    await sub.next(timeout=10.0)
    run.peer.sent(1)
    watch.start()
    run.peer.go(run.count)
    async for batch in sub.batches():
        for msg in batch:
            got += len(msg.data)
        if got >= target:
            break
    figures = watch.stop(run.count)
    run.peer.sent(run.count)
    await nc.flush()
    check(got == target and not sub.pending_msgs, f"{got} of {target} bytes, {sub.pending_msgs} messages left")
    await nc.close()
    return figures


@NATSPROTO.does
async def publish_subscribe(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    payload, subject = run.payload, run.subject
    got, target = 0, run.scenario.size
    reached, watch = asyncio.Event(), Stopwatch()

    async def handler(msg: Message) -> None:
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
    await nc.flush()
    check(got == target, f"{got} of {target} bytes")
    await nc.close()
    return figures


@NATSPROTO.does
async def request_sequential(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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


@NATSPROTO.does
async def request_concurrent(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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


@NATSPROTO.does
async def service_requests(run: Run) -> Figures:
    nc, other = await natsproto.connect(run.url), await natsproto.connect(run.url)
    service = await other.add_service("bench", "1.0.0")

    @service.endpoint("echo", subject=run.subject)
    async def echo(request: Request) -> None:
        await request.respond(request.data)

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


@NATSPROTO.does
async def connect(run: Run) -> Figures:
    taken: list[int] = []
    clock, watch = time.perf_counter_ns, Stopwatch()
    nc = await natsproto.connect(run.url)
    await nc.close()
    watch.start()
    for _ in range(run.count):
        start = clock()
        nc = await natsproto.connect(run.url)
        await nc.close()
        taken.append(clock() - start)
    return watch.stop(run.count) | latencies(taken)


@NATSPROTO.does
async def import_module(run: Run) -> Figures:
    return import_time("natsproto", run.count)


@NATSPROTO.does
async def memory_subscriptions(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    await nc.subscribe("bench.idle")
    await nc.flush()
    before = resident_mb()
    subs = [await nc.subscribe(f"bench.idle.{number}") for number in range(run.count)]
    await nc.flush()
    figures = {"memory_mb": resident_mb() - before}
    check(len(subs) == run.count, f"{len(subs)} subscriptions")
    await nc.close()
    return figures


@NATSPROTO.does
async def memory_messages(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    msgs, size = run.room
    sub = await nc.subscribe(run.interest, pending_msgs_limit=msgs, pending_bytes_limit=size)
    await nc.flush()
    run.peer.go(1)
    await sub.next(timeout=10.0)
    run.peer.sent(1)
    before = resident_mb()
    run.peer.go(run.count)
    while sub.pending_msgs < run.count:  # noqa: ASYNC110 (nothing tells, and no time is measured)
        await asyncio.sleep(0.01)
    figures = {"memory_mb": resident_mb() - before}
    run.peer.sent(run.count)
    await nc.flush()
    check(sub.pending_msgs == run.count, f"{sub.pending_msgs} of {run.count} messages")
    await nc.close()
    return figures


async def _make_stream(nc: natsproto.Client, run: Run) -> Stream:
    """An empty stream for the run's subject, of a name of its own: a deleted one's files go in the background."""
    return await nc.jetstream().create_stream(
        name=f"BENCH_{time.time_ns()}", subjects=[f"{run.subject}.>"], storage=run.scenario.storage, allow_batched=True
    )


async def _drop_stream(nc: natsproto.Client, stream: Stream, count: int) -> None:
    """Check that the stream holds every message, and leave nothing behind."""
    held = (await stream.info()).state.messages
    await nc.jetstream().delete_stream(stream.name)
    check(held == count, f"the stream holds {held} of {count} messages")
    await nc.close()


@NATSPROTO.does
async def stream_publish(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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


@NATSPROTO.does
async def stream_publish_window(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, js = await _make_stream(nc, run), nc.jetstream()
    payload, subject, watch = run.payload, f"{run.subject}.a", Stopwatch()
    async with js.publisher(max_pending=run.scenario.window) as publisher:
        await (await publisher.publish(subject, payload))
        watch.start()
        for _ in range(run.count):
            await publisher.publish(subject, payload)
        await publisher.flush()
        figures = watch.stop(run.count)
    await _drop_stream(nc, stream, run.count + 1)
    return figures


@NATSPROTO.does
async def stream_fast_ingest(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, js = await _make_stream(nc, run), nc.jetstream()
    payload, subject, watch = run.payload, f"{run.subject}.a", Stopwatch()
    async with js.fast_publisher() as publisher:
        await publisher.publish(subject, payload)
        watch.start()
        for _ in range(run.count):
            await publisher.publish(subject, payload)
        await publisher.flush()
        figures = watch.stop(run.count)
    await _drop_stream(nc, stream, run.count + 1)
    return figures


async def _reading(nc: natsproto.Client, run: Run, ack_policy: AckPolicy) -> tuple[Stream, PullConsumer]:
    """A stream with one message in it, and a durable consumer."""
    stream = await _make_stream(nc, run)
    run.peer.go(1)
    run.peer.sent(1)
    return stream, await stream.create_consumer(durable_name="BENCH", ack_policy=ack_policy)


async def _end_of_reading(nc: natsproto.Client, run: Run, stream: Stream, got: int) -> None:
    """Check that every byte came and that nothing waits for an acknowledgement, and leave nothing behind."""
    waiting = 1
    while waiting:  # the server has all acknowledgements, but deals with them in its own time
        waiting = sum([info.num_ack_pending async for info in stream.consumers()])
    await _drop_stream(nc, stream, run.count + 1)
    check(got == run.total_bytes, f"{got} of {run.total_bytes} bytes")


@NATSPROTO.does
async def fetch(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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


@NATSPROTO.does
async def fetch_acked(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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
    await nc.flush()
    figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATSPROTO.does
async def consume(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.NONE)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    await consumer.fetch(1)
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch.start()
    async with consumer.messages() as messages:
        async for msg in messages:
            got += len(msg.data)
            if got >= target:
                break
        figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATSPROTO.does
async def consume_acked(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.EXPLICIT)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    for msg in await consumer.fetch(1):
        await msg.ack()
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch.start()
    async with consumer.messages() as messages:
        async for msg in messages:
            got += len(msg.data)
            await msg.ack()
            if got >= target:
                break
        await nc.flush()
        figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATSPROTO.does
async def handle(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.NONE)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    reached = asyncio.Event()

    async def handler(msg: JsMessage) -> None:
        nonlocal got
        got += len(msg.data)
        if got >= target:
            reached.set()

    await consumer.fetch(1)
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch.start()
    async with consumer.consume(handler, on_success="nothing"):
        await reached.wait()
        figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATSPROTO.does
async def handle_acked(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream, consumer = await _reading(nc, run, AckPolicy.EXPLICIT)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    reached = asyncio.Event()

    async def handler(msg: JsMessage) -> None:
        nonlocal got
        got += len(msg.data)
        if got >= target:
            reached.set()

    for msg in await consumer.fetch(1):
        await msg.ack()
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch.start()
    async with consumer.consume(handler):
        await reached.wait()
        await nc.flush()
        figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


@NATSPROTO.does
async def read_ordered(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    stream = await _make_stream(nc, run)
    run.peer.go(1)
    run.peer.sent(1)
    watch, got, target = Stopwatch(run.server_pid), 0, run.total_bytes
    warm = stream.ordered_consumer()
    await warm.next()
    await warm.close()
    run.peer.go(run.count)
    run.peer.sent(run.count)
    watch.start()
    async with stream.ordered_consumer(start_sequence=2) as consumer, consumer.messages() as messages:
        async for msg in messages:
            got += len(msg.data)
            if got >= target:
                break
        figures = watch.stop(run.count)
    await _end_of_reading(nc, run, stream, got)
    return figures


# ---------------------------------------------------------------- key/value


async def _make_bucket(nc: natsproto.Client, run: Run) -> KeyValue:
    return await nc.jetstream().create_key_value(bucket=f"BENCH_{time.time_ns()}", storage=run.scenario.storage)


async def _drop_bucket(nc: natsproto.Client, kv: KeyValue) -> None:
    await nc.jetstream().delete_key_value(kv.bucket)
    await nc.close()


@NATSPROTO.does
async def key_get(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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
            check(entry.value == payload and entry.key == key and entry.revision > 0, "a wrong entry")

    await worker(keys[:1])
    taken.clear()
    watch.start()
    await asyncio.gather(*(worker(keys[place :: run.scenario.window]) for place in range(run.scenario.window)))
    figures = watch.stop(len(taken)) | latencies(taken)
    await _drop_bucket(nc, kv)
    return figures


@NATSPROTO.does
async def key_put(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
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
    check((await kv.status()).last_revision == run.count + 1, "not everything was stored")
    await _drop_bucket(nc, kv)
    return figures


@NATSPROTO.does
async def key_watch(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    kv, payload = await _make_bucket(nc, run), run.payload
    prefix = f"$KV.{kv.bucket}.key."
    async with nc.jetstream().publisher() as publisher:
        for number in range(run.count):
            await publisher.publish(f"{prefix}{number}", payload)
    watch, got, last = Stopwatch(run.server_pid), 0, 0
    kv = await nc.jetstream().key_value(kv.bucket)
    async with kv.watch("key.0") as watcher:
        await watcher.ready()
    watch.start()
    async with kv.watch() as watcher:
        async for entry in watcher.initial():
            got += len(entry.value)
            last = entry.revision
            check(entry.key.startswith("key."), "a wrong key")
    figures = watch.stop(run.count)
    check(got == run.total_bytes and last == run.count, "not everything came")
    await _drop_bucket(nc, kv)
    return figures


async def _make_store(nc: natsproto.Client, run: Run) -> ObjectStore:
    """Empty, of a name of its own, with one small object put and got as a warm-up."""
    js = nc.jetstream()
    store = await js.create_object_store(bucket=f"BENCH_{time.time_ns()}", storage=run.scenario.storage)
    await store.put("warm", run.payload)
    check(await store.get_bytes("warm") == run.payload, "the warm-up is damaged")
    return store


async def _drop_store(nc: natsproto.Client, store: ObjectStore) -> None:
    await nc.jetstream().delete_object_store(store.bucket)
    await nc.close()


@NATSPROTO.does
async def object_put(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    store, data, watch = await _make_store(nc, run), object_of(run), Stopwatch(run.server_pid)
    watch.start()
    info = await store.put("object", data)
    figures = per_mib(watch.stop(run.count), run)
    check((info.size, info.chunks) == (run.total_bytes, run.count), "not everything was stored")
    await _drop_store(nc, store)
    return figures


@NATSPROTO.does
async def object_get(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    store, data, watch = await _make_store(nc, run), object_of(run), Stopwatch(run.server_pid)
    await store.put("object", data)
    watch.start()
    got = await store.get_bytes("object")
    figures = per_mib(watch.stop(run.count), run)
    check(got == data, "the object is damaged")
    await _drop_store(nc, store)
    return figures


@NATSPROTO.does
async def memory_object_put(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    store = await _make_store(nc, run)
    with object_file(run) as path:
        before = resident_mb()
        await store.put("object", path)
        figures = {"memory_mb": resident_mb(peak=True) - before}
    check((await store.info("object")).size == run.total_bytes, "not everything was stored")
    await _drop_store(nc, store)
    return figures


@NATSPROTO.does
async def memory_object_get(run: Run) -> Figures:
    nc = await natsproto.connect(run.url)
    store = await _make_store(nc, run)
    with object_file(run) as path:
        fill_store(run.url, store.bucket, path)
        before, target = resident_mb(), path.with_name("got")
        await store.get_file("object", target)
        figures = {"memory_mb": resident_mb(peak=True) - before}
        check(filecmp.cmp(path, target, shallow=False), "the object is damaged")
    await _drop_store(nc, store)
    return figures
