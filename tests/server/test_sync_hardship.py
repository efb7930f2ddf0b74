"""The blocking client under many threads, interrupts, ends, forks and restarts."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import islice

import pytest
from coverage import Coverage

from natsproto import sync
from natsproto.errors import ConnectionClosed, LocalProtocolError, NatsError, RequestTimeout
from natsproto.sync._portal import MAX_PIPES, Portal
from natsproto.testing import Server
from tests.faults.helpers import descriptors
from tests.server.helpers import loops


@pytest.fixture
def nc(nats_server: Server) -> Iterator[sync.Client]:
    with sync.connect(nats_server.url, reconnect_wait=0.05) as client:
        yield client
    assert loops() == [], "a thread was left behind"


class Crew:
    """Threads, and what was raised in them."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def send(self, work: Callable[[], object]) -> None:
        """Lets a thread do it."""

        def run() -> None:
            try:
                work()
            except BaseException as exc:
                self.raised.append(exc)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def home(self) -> None:
        """Until all of them have ended."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


# ---------------------------------------------------------------- threads


def test_eight_threads_do_everything_at_once(nc: sync.Client) -> None:
    js = nc.jetstream(timeout=20)
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    kv = js.create_key_value(bucket="cfg", storage="memory", history=10)  # nothing goes before it was watched
    store = js.create_object_store(bucket="files", storage="memory")
    shared = nc.subscribe("shared")
    seen: list[bytes] = []
    acked: list[int] = []

    with js.publisher(max_pending=16) as publisher, kv.cache() as cache, kv.watch() as watcher:

        def work(number: int) -> None:
            consumer = stream.create_consumer(durable_name=f"c{number}", filter_subjects=[f"s.{number}"])
            with nc.subscribe(f"own.{number}") as own:
                for turn in range(10):
                    data = b"%d-%d" % (number, turn)
                    nc.publish(f"own.{number}", data)
                    nc.publish("shared", data)
                    assert own.next(timeout=20).data == data
                    seen.append(shared.next(timeout=20).data)
                    assert publisher.publish(f"s.{number}", data).result(timeout=20).stream == "S"
                    message = consumer.next(timeout=20)
                    assert message.data == data
                    message.ack_sync()
                    acked.append(message.metadata.stream_seq)
                    cache.wait_for(kv.put(f"k.{number}", data), timeout=20)
                    assert cache[f"k.{number}"] == data
                    watcher.next(timeout=20)
                    assert store.put(f"o.{number}", [data, data]).size == 2 * len(data)
                    assert store.get_bytes(f"o.{number}") == data * 2
                    assert all(stored.subject.startswith("s.") for stored in stream.get_batch(batch=5))

        crew = Crew()
        for number in range(8):
            crew.send(lambda number=number: work(number))  # type: ignore[misc]
        crew.home()
    assert crew.raised == []
    assert sorted(seen) == sorted(b"%d-%d" % (number, turn) for number in range(8) for turn in range(10))
    assert sorted(acked) == list(range(1, 81))


def test_many_waiting_threads_need_few_open_files() -> None:
    portal, crew, waiting = Portal(), Crew(), threading.Semaphore(0)
    before = descriptors()
    gate = portal.run(asyncio.Event)
    results: list[int] = []

    async def wait(number: int) -> int:
        waiting.release()
        await gate.wait()
        return number

    for number in range(20):
        crew.send(lambda number=number: results.append(portal.call(wait, number)))  # type: ignore[misc]
    for _ in range(20):
        assert waiting.acquire(timeout=10)
    assert descriptors() <= before + 2 * MAX_PIPES
    portal.run(gate.set)
    crew.home()
    assert (sorted(results), crew.raised) == (list(range(20)), [])
    portal.stop()


# ---------------------------------------------------------------- interrupts


@pytest.fixture
def interruptible() -> Iterator[Callable[[], None]]:
    """Ctrl-C for the main thread. No coverage is measured: an interrupted tracer keeps a lock that all others need."""
    if (measured := Coverage.current()) is not None:
        measured.stop()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    if measured is not None:
        measured.start()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_result_of_interrupted_call_is_undone(interruptible: Callable[[], None]) -> None:
    portal = Portal()
    returned: list[int] = []
    lost: list[int] = []

    for number in range(100):

        async def verb(number: int = number) -> int:
            interruptible()  # at the very moment at which it succeeds
            return number

        with pytest.raises(KeyboardInterrupt):
            returned.append(portal.call_or_undo(verb, lost.append))
    portal.run(lambda: None)
    assert sorted(returned + lost) == list(range(100))
    portal.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_interrupted_calls_leave_no_descriptors(interruptible: Callable[[], None]) -> None:
    portal = Portal()
    before = descriptors()

    async def interrupted() -> None:
        interruptible()

    async def echo(number: int) -> int:
        return number

    for number in range(50):
        with pytest.raises(KeyboardInterrupt):
            portal.call(interrupted)
        assert portal.call(echo, number) == number
    assert descriptors() <= before + 2 * MAX_PIPES
    assert portal._free_pipes, "calls still wait at a pipe"
    portal.stop()
    del portal
    assert descriptors() <= before


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a weak reference's callback
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # made, and not handed over yet
def test_alarms_at_any_moment_confuse_no_call(seed: int) -> None:
    """Job queues limit times by an alarm that raises: no call gets the outcome of another, and nothing is left."""
    rng, portal, interrupted = random.Random(seed), Portal(), 0

    class Expired(Exception):
        pass

    def expire(*_: object) -> None:
        raise Expired

    async def echo(number: int) -> int:
        return number

    before = signal.signal(signal.SIGALRM, expire)
    files = descriptors()
    try:
        for number in range(3000):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4))
                assert portal.call(echo, number) == number
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Expired:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert [portal.call(echo, number) for number in range(100)] == list(range(100))
    assert descriptors() <= files + 2 * MAX_PIPES
    assert portal._free_pipes, "calls still wait at a pipe"
    portal.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_calls_without_free_descriptors() -> None:
    import resource

    portal = Portal()

    async def echo(number: int) -> int:
        return number

    portal.run(lambda: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    while portal._free_pipes:
        portal._free_pipes.pop()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert [portal.call(echo, one) for one in range(10)] == list(range(10))
        assert not portal._free_pipes
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert portal.call(echo, 1) == portal.call(echo, 1)
    assert portal._free_pipes, "calls wait at a pipe again"
    portal.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_interrupted_enter_leaves_the_block(nc: sync.Client, interruptible: Callable[[], None]) -> None:
    kv = nc.jetstream().create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
    with kv.lock("leader") as held:
        for enter in (kv.lock("leader").__enter__, kv.lock("leader").acquire):
            timer = threading.Timer(0.1, interruptible)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # however soon it comes
                timer.start()
                enter()
            timer.join()
        assert held.is_held
    assert kv.lock("leader").try_acquire(), "nobody waits for it in the background"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_interrupted_iteration_ends_cleanly(nc: sync.Client, interruptible: Callable[[], None]) -> None:
    complaints: list[object] = []
    portal, _ = nc._reach()
    portal.run(lambda: asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context)))
    for iterate in (nc.events, lambda: nc.request_many("a", timeout=30), lambda: iter(nc.subscribe("b"))):
        requests = nc.subscribe("a")
        nc.flush()
        iterator = iterate()
        timer = threading.Timer(0.1, interruptible)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # however soon it comes
            timer.start()
            list(iterator)
        timer.join()
        requests.unsubscribe()
    gc.collect()
    nc.flush()
    assert complaints == []


# ---------------------------------------------------------------- the end


def test_closing_ends_everything_that_waits_or_is_read(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    js = nc.jetstream(timeout=60)
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory", no_ack=True)
    consumer = stream.create_consumer(durable_name="d", filter_subjects=["s.silent"])
    kv = js.create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
    store = js.create_object_store(bucket="files", storage="memory")
    asked = nc.subscribe("asked")
    publisher = js.publisher().__enter__()
    future = publisher.publish("s.a")
    held, cache, watcher = kv.lock("leader"), kv.cache().__enter__(), kv.watch().__enter__()
    held.acquire()
    began = threading.Semaphore(0)

    def after(wait: Callable[[], object]) -> Callable[[], object]:
        def begin() -> object:
            began.release()
            return wait()

        return begin

    waiting: list[Callable[[], object]] = [
        nc.subscribe("a").next,
        lambda: nc.request("asked", timeout=60),
        lambda: consumer.next(timeout=60),
        lambda: kv.lock("leader").acquire(timeout=60),
        lambda: cache.wait_for(1_000, timeout=60),
        future.result,
    ]
    reading: list[Callable[[], object]] = [
        lambda: list(nc.subscribe("a")),
        lambda: list(consumer.messages()),
        lambda: list(watcher),
        lambda: list(store.watch().__enter__()),
        lambda: list(js.advisories()),
        lambda: list(stream.ordered_consumer(deliver_policy="new").messages()),
        lambda: list(nc.events()),
        lambda: consumer.fetch(5, timeout=60),
    ]
    waiters, readers = Crew(), Crew()
    for wait in waiting:
        waiters.send(after(wait))
    for read in reading:
        readers.send(after(read))
    for _ in (*waiting, *reading):
        assert began.acquire(timeout=10)
    asked.next(timeout=10)
    closers = Crew()
    for _ in range(3):
        closers.send(nc.close)
    for crew in (closers, waiters, readers):
        crew.home()
    assert closers.raised == []
    assert len(waiters.raised) == len(waiting)
    assert {type(error) for error in waiters.raised if not isinstance(error, NatsError)} == set()
    assert {type(error) for error in readers.raised} <= {ConnectionClosed}, "or it was closed before they began"
    assert loops() == []
    for call in (
        lambda: publisher.publish("s.a"),
        lambda: cache["a"],
        lambda: watcher.next(0),
        held.try_acquire,
        lambda: held.is_held or kv.put("a", b"1"),
        lambda: list(consumer.messages()),
        lambda: list(nc.subscribe("a")),
        lambda: nc.add_service("a", "1.0.0"),
        lambda: js.admin.purge_account("a"),
        lambda: list(js.streams()),
    ):
        with pytest.raises(ConnectionClosed):
            call()


def test_draining_waits_for_threads_that_iterate(nats_server: Server) -> None:
    answered: list[bytes] = []
    begun, go_on = threading.Event(), threading.Event()
    crew = Crew()

    with sync.connect(nats_server.url) as asking, asking.subscribe("replies") as replies:
        asking.flush()
        with sync.connect(nats_server.url) as nc:
            requests = nc.subscribe("requests")

            def serve() -> None:
                for request in requests:
                    begun.set()
                    assert go_on.wait(10)
                    request.respond(request.data)
                    answered.append(request.data)

            crew.send(serve)
            left = iter(nc.subscribe("requests"))
            for number in range(100):
                nc.publish("requests", b"%d" % number, reply="replies")
            assert next(left).data == b"0"
            nc.flush()
            assert begun.wait(10)
            crew.send(go_on.set)
        crew.home()
        assert crew.raised == []
        assert answered == [b"%d" % number for number in range(100)]
        assert [replies.next(timeout=5).data for _ in range(100)] == answered


def test_what_is_left_half_way_harms_nobody(nc: sync.Client) -> None:
    js = nc.jetstream()
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(50):
        js.publish("s.a", b"%d" % number)
    consumer = stream.create_consumer(durable_name="d", ack_policy="none")
    store = js.create_object_store(bucket="files", storage="memory")
    store.put("o", bytes(300_000), chunk_size=1000)
    sub = nc.subscribe("a")

    had: list[int] = []

    def leave() -> None:
        nc.publish("a", b"1")
        messages = iter(consumer.messages(prefetch=1))
        had.append(int(next(messages).data))
        made: list[Iterator[object]] = [stream.get_batch(), iter(sub), stream.subjects(), js.stream_names()]
        for iterator in made:
            next(iterator)
        made.append(messages)
        made.append(iter(made))  # a circle: only the garbage collector ends them, in some other thread
        with store.get("o") as obj:
            next(iter(obj))

    crew = Crew()
    for _ in range(4):
        crew.send(leave)
    crew.home()
    assert crew.raised == []
    gc.collect()
    nc.publish("a", b"last")
    assert sub.next(timeout=5).data == b"last"
    assert len(list(stream.get_batch())) == 50
    assert store.get_bytes("o") == bytes(300_000)
    assert sorted(had + [int(message.data) for message in consumer.fetch(46, timeout=5)]) == list(range(50))


def test_garbage_collector_and_closing_iterator() -> None:
    portal = Portal()
    ending, collected = threading.Event(), threading.Event()

    class Numbers:
        async def __aiter__(self) -> AsyncGenerator[int]:
            try:
                yield 1
            finally:
                ending.set()
                collected.wait(10)

    class Witness:
        """Ends after the iterator, which is older, and before what it iterates over, which is younger."""

        def __init__(self, circle: list[object]) -> None:
            self._circle = circle

        def __del__(self) -> None:
            ending.wait(10)

    iterator = portal.iterate(Numbers())
    circle: list[object] = [iterator]
    circle.append(Witness(circle))
    assert next(iterator) == 1
    del iterator, circle
    gc.collect()  # what goes wrong here is an unraisable exception
    assert ending.is_set()
    collected.set()
    portal.run(lambda: None)
    portal.stop()


def test_call_while_loop_ends_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal()
    checked, ending, came = threading.Event(), threading.Event(), threading.Event()
    begun: list[bool] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:  # the last thing of a loop that ends; what it was at is cancelled by now
            ending.set()
            came.wait(10)

    async def verb() -> None:
        begun.append(True)
        await asyncio.get_running_loop().create_future()

    def post(function: Callable[[], object], post: Callable[[Callable[[], object]], None] = portal.post) -> None:
        checked.set()
        ending.wait(10)
        post(function)
        came.set()

    stream = numbers()
    assert portal.call(stream.__anext__) == 1
    monkeypatch.setattr(portal, "post", post)
    crew = Crew()
    crew.send(lambda: portal.call(verb))
    assert checked.wait(10)
    portal.stop()
    crew.home()
    assert ([type(error) for error in crew.raised], begun) == ([ConnectionClosed], [])


# ---------------------------------------------------------------- other processes


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_cannot_use_parents_handles(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
        kv = js.create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
        sub = nc.subscribe("a")
        for number in range(3):
            nc.publish("a", b"%d" % number)
        half = iter(sub)
        next(half)  # the other two are here as well
        with (
            js.publisher() as publisher,
            kv.cache() as cache,
            kv.watch() as watcher,
            kv.lock("leader") as lock,
            stream.create_consumer(durable_name="d").messages() as messages,
        ):
            future = publisher.publish("s.a")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for call in (
                        lambda: sub.next(0),
                        lambda: next(half),
                        lambda: publisher.publish("s.a"),
                        publisher.flush,
                        lambda: cache["a"],
                        lambda: len(cache),
                        lambda: list(cache),
                        lambda: watcher.next(0),
                        lambda: messages.next(0),
                        lock.try_acquire,
                    ):
                        try:
                            call()
                        except LocalProtocolError:
                            continue
                        os._exit(2)
                    assert not lock.is_held
                    del half
                    messages.__exit__(None, None, None)
                    nc.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert lock.is_held
            assert future.result(timeout=5).seq == 1
            assert messages.next(timeout=5).data == b""
        assert [message.data for message in islice(half, 2)] == [b"1", b"2"]


# ---------------------------------------------------------------- the server


def test_reading_goes_on_when_the_server_restarts(nats_server: Server, nc: sync.Client) -> None:
    js = nc.jetstream(timeout=30)
    stream = js.create_stream(name="S", subjects=["s.>"])
    consumer = stream.create_consumer(durable_name="d")
    kv = js.create_key_value(bucket="cfg")
    heard: list[bytes] = []
    read: set[bytes] = set()
    watched: list[bytes] = []
    sub = nc.subscribe("a")
    crew = Crew()

    def listen() -> None:
        heard.extend(message.data for message in sub)

    def consume() -> None:
        with consumer.messages() as messages:
            for message in messages:
                message.ack()
                read.add(message.data)
                if len(read) == 200:
                    return

    def watch() -> None:
        with kv.watch() as watcher:
            for entry in watcher:
                watched.append(entry.value)
                if entry.value == b"after":
                    return

    for work in (listen, consume, watch):
        crew.send(work)
    with js.publisher(auto_msg_id=True) as publisher:
        for number in range(100):
            publisher.publish("s.a", b"%d" % number)
        kv.put("a", b"before")
        nc.publish("a", b"before")
        nc.flush()
        asyncio.run(nats_server.restart())
        for number in range(100, 200):
            publisher.publish("s.a", b"%d" % number)
    nc.flush(30)
    nc.publish("a", b"after")
    nc.flush(30)
    kv.put("a", b"after")
    sub.drain()
    crew.home()
    assert crew.raised == []
    assert heard == [b"before", b"after"]
    assert len(read) == 200
    assert watched[-1] == b"after"
    with pytest.raises(RequestTimeout):
        nc.subscribe("silent").next(timeout=0)
