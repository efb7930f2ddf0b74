"""The blocking client's key/value buckets and object stores: what they promise to scripts."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from natsproto import sync
from natsproto.errors import (
    BucketNotFound,
    ConnectionClosed,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    LocalProtocolError,
    LockLost,
    ObjectNotFound,
    RequestTimeout,
    SubscriptionClosed,
    WrongRevision,
)
from natsproto.jetstream.kv._entry import Operation
from natsproto.testing import Server
from tests.server.helpers import loops


@pytest.fixture
def js(nats_server: Server) -> Iterator[sync.JetStream]:
    with sync.connect(nats_server.url) as client:
        yield client.jetstream(timeout=5)
    assert loops() == [], "a thread was left behind"


def test_keys_are_written_read_and_deleted(js: sync.JetStream) -> None:
    with pytest.raises(BucketNotFound):
        js.key_value("cfg")
    kv = js.create_key_value(bucket="cfg", history=5, storage="memory")
    assert (kv.bucket, js.key_value("cfg").bucket, list(js.key_value_names())) == ("cfg", "cfg", ["cfg"])
    first = kv.put("eu.tax", b"19")
    second = kv.update("eu.tax", b"20", first)
    with pytest.raises(WrongRevision):
        kv.update("eu.tax", b"21", first)
    with pytest.raises(KeyExists):
        kv.create("eu.tax", b"22")
    assert (kv.get("eu.tax").value, kv.get("eu.tax", revision=first).value) == (b"20", b"19")
    kv.create("us.tax", b"7")
    assert sorted(kv.keys()) == ["eu.tax", "us.tax"]
    assert kv.keys("eu.>") == ["eu.tax"]
    assert kv.get_many(["eu.tax", "us.tax", "no"]).keys() == {"eu.tax", "us.tax"}
    kv.delete("eu.tax", revision=second)
    with pytest.raises(KeyDeleted):
        kv.get("eu.tax")
    assert [entry.operation for entry in kv.history("eu.tax")] == [Operation.PUT, Operation.PUT, Operation.DELETE]
    kv.purge("eu.tax")
    assert [entry.operation for entry in kv.history("eu.tax")] == [Operation.PURGE]
    assert kv.purge_deletes(older_than=0) == 1
    with pytest.raises(KeyNotFound):
        kv.get("never")
    assert kv.status().values == 1
    js.delete_key_value("cfg")
    with pytest.raises(BucketNotFound):
        kv.status()


def test_watch_gives_values_then_changes(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory")
    for number in range(100):
        kv.put(f"a.{number}", b"%d" % number)
    kv.put("b", b"")
    with kv.watch("a.*") as watcher:
        watcher.ready()
        assert not watcher.caught_up
        assert [watcher.next(timeout=5).value for _ in range(100)] == [b"%d" % number for number in range(100)]
        assert (watcher.caught_up, watcher.revision) == (True, 100)
        with pytest.raises(RequestTimeout):
            watcher.next(timeout=0.01)
        seen: list[bytes] = []

        def read() -> None:
            seen.extend(entry.value for entry in watcher)

        reader = threading.Thread(target=read)
        reader.start()
        kv.put("a.1", b"new")
        kv.put("b", b"not watched")
        kv.put("a.2", b"newer")
        with kv.watch("a.2") as other:
            assert other.next(timeout=5).value == b"newer"
        while len(seen) < 2:
            reader.join(0.01)
        watcher.stop()
        reader.join(5)
        assert not reader.is_alive()
        assert seen == [b"new", b"newer"]
        with pytest.raises(SubscriptionClosed):
            watcher.next(timeout=5)


def test_readers_of_one_watch_share_its_entries(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory")
    got: list[list[bytes]] = [[], [], []]
    enough = threading.Semaphore(0)

    with kv.watch() as watcher:

        def read(mine: list[bytes]) -> None:
            for entry in watcher:
                mine.append(entry.value)
                enough.release()

        readers = [threading.Thread(target=read, args=(mine,)) for mine in got]
        for reader in readers:
            reader.start()
        for number in range(60):
            kv.put(f"a.{number}", b"%d" % number)
        for _ in range(60):
            assert enough.acquire(timeout=20)
        watcher.stop()
        for reader in readers:
            reader.join(5)
            assert not reader.is_alive()
    assert sorted(int(value) for mine in got for value in mine) == list(range(60))


def test_watch_not_entered_or_client_closed(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    kv = nc.jetstream().create_key_value(bucket="cfg", storage="memory")
    watcher = kv.watch()
    with pytest.raises(LocalProtocolError, match="enter the watch"):
        watcher.next(timeout=1)
    with watcher:
        nc.close()
        with pytest.raises(ConnectionClosed):
            watcher.next(timeout=1)
    with pytest.raises(ConnectionClosed):
        kv.put("a", b"1")
    assert loops() == []


def test_objects_are_put_got_listed_and_deleted(js: sync.JetStream, tmp_path: Path) -> None:
    store = js.create_object_store(bucket="files", storage="memory")
    assert (store.bucket, js.object_store("files").bucket, list(js.object_store_names())) == (
        "files",
        "files",
        ["files"],
    )
    content = bytes(range(256)) * 2000
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    reported: list[int] = []
    info = store.put("bytes", content, description="d", progress=lambda progress: reported.append(progress.bytes))
    assert (info.size, info.description, reported[-1]) == (len(content), "d", len(content))
    store.put("file", io.BytesIO(content))
    with path.open("rb") as file:
        store.put("open file", file)
    store.put("path", path)
    assert store.put_file(path).name == "model.bin"
    names = ["bytes", "file", "open file", "path", "model.bin"]
    assert [found.name for found in store.list()] == names
    for name in names:
        assert store.get_bytes(name) == content
    assert store.get_file("bytes", tmp_path / "out.bin").size == len(content)
    assert (tmp_path / "out.bin").read_bytes() == content
    with store.get("bytes", offset=1000, length=5000) as part:
        assert part.info.size == len(content)
        assert b"".join(part) == content[1000:6000]
    assert store.update_meta("path", rename="moved").name == "moved"
    store.add_link("alias", "moved")
    assert store.get_bytes("alias") == content
    store.delete("moved")
    with pytest.raises(ObjectNotFound):
        store.info("moved")
    assert store.status().bucket == "files"
    js.create_object_store(bucket="more", storage="memory")
    store.add_bucket_link("elsewhere", "more")
    link = store.info("elsewhere").link
    assert link is not None
    assert (link.bucket, link.name) == ("more", "")
    assert [status.bucket for status in js.object_store_statuses()] == ["files", "more"]
    js.delete_object_store("files")


def test_put_object_from_generator_using_client(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory")
    store = js.create_object_store(bucket="files", storage="memory")
    kv.put("piece", b"x" * 1000)
    threads: set[threading.Thread] = set()

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            threads.add(threading.current_thread())
            yield kv.get("piece").value

    assert store.put("made", pieces(), chunk_size=700).size == 20_000
    assert store.get_bytes("made") == b"x" * 20_000
    assert {thread.name for thread in threads}.isdisjoint({"natsproto sync"}), "the event loop is not held up"
    assert store.put("list", [b"a", bytearray(b"b"), memoryview(b"c")]).size == 3

    def failing() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put("failing", failing())
    for wrong in ("text", 5, [b"a", "text"], [b"a", None]):
        with pytest.raises(TypeError):
            store.put("wrong", wrong)  # type: ignore[arg-type]
    assert [found.name for found in store.list()] == ["made", "list"]


def test_objects_are_watched(js: sync.JetStream) -> None:
    store = js.create_object_store(bucket="files", storage="memory")
    store.put("a", b"1")
    with store.watch() as watcher:
        watcher.ready()
        assert watcher.next(timeout=5).name == "a"
        assert watcher.caught_up
        with pytest.raises(RequestTimeout):
            watcher.next(timeout=0.01)
        store.put("b", b"2")
        for info in watcher:
            assert info.name == "b"
            break
        store.delete("a")
        gone = watcher.next(timeout=5)
        assert (gone.name, gone.deleted) == ("a", True)
        watcher.stop()
        assert list(watcher) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_needs_new_bucket_handles(nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        kv = nc.jetstream().create_key_value(bucket="cfg", storage="memory")
        with kv.watch() as watcher:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with pytest.raises(LocalProtocolError, match="in this process"):
                        kv.put("a", b"1")
                    with pytest.raises(LocalProtocolError, match="in this process"):
                        watcher.next(timeout=1)
                    nc.jetstream().key_value("cfg").put("a", b"from the child")
                    nc.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert watcher.next(timeout=5).value == b"from the child"


# ---------------------------------------------------------------- locks, caches, batches


@pytest.mark.slow
def test_a_lock_is_held_by_one_and_renewed_while_it_is(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
    inside: list[int] = []
    tokens: list[int] = []

    def work(number: int) -> None:
        with kv.lock("leader", value=b"%d" % number) as lock:
            inside.append(number)
            assert (inside, lock.is_held, lock.key) == ([number], True, "leader")
            tokens.append(lock.token)
            lock.put("done", b"%d" % number)
            inside.remove(number)
        assert not lock.is_held

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 5

    first, second = kv.lock("leader", ttl=6), kv.lock("leader")
    assert first.acquire(timeout=30) == first.token
    with kv.watch("leader") as watcher:
        assert watcher.next(timeout=30).revision >= first.token
        assert all(watcher.next(timeout=30).revision > first.token for _ in range(2))
    assert not second.try_acquire()
    with pytest.raises(RequestTimeout):
        second.acquire(timeout=0.01)
    with pytest.raises(LocalProtocolError, match="already held"):
        first.acquire()
    first.release()
    assert second.try_acquire()
    second.release()


def test_lost_lock_raises_when_block_is_left(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
    reported = threading.Event()

    def watch() -> None:
        lock.wait_lost()
        reported.set()

    lock = kv.lock("leader", ttl=1)
    with pytest.raises(LockLost), lock:  # noqa: PT012
        watcher = threading.Thread(target=watch)
        watcher.start()
        kv.put("leader", b"a thief")
        assert reported.wait(10)
        watcher.join(5)
        assert not lock.is_held
        with pytest.raises(LockLost):
            lock.put("a", b"1")
    with pytest.raises(ZeroDivisionError), kv.lock("other"):
        raise ZeroDivisionError
    assert kv.lock("other").try_acquire(), "it was given back"


def test_two_threads_cannot_take_one_lock_object(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory", limit_marker_ttl=60)
    outcomes: list[str] = []
    refused = threading.Event()
    with kv.lock("leader"):
        shared = kv.lock("leader")

        def take() -> None:
            try:
                shared.acquire(timeout=20)
                outcomes.append("taken")
            except LocalProtocolError:
                outcomes.append("refused")
                refused.set()

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert refused.wait(10)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert outcomes == ["refused", "taken"]
    shared.release()


def test_a_cache_is_a_mapping_that_follows_the_bucket(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory")
    for number in range(100):
        kv.put(f"a.{number}", b"%d" % number)
    cache = kv.cache("a.*")
    with pytest.raises(LocalProtocolError, match="enter the cache"):
        cache["a.1"]
    with cache:
        assert (len(cache), cache["a.7"], cache.get("b"), "a.8" in cache) == (100, b"7", None, True)
        assert dict(cache) == {f"a.{number}": b"%d" % number for number in range(100)}
        assert sorted(cache) == sorted(cache.keys()) == sorted(dict(cache.items()))
        assert sorted(map(int, cache.values())) == list(range(100))
        stop = threading.Event()

        def change() -> None:
            number = 0
            while not stop.is_set():
                kv.put(f"a.{number % 200}", b"x")
                kv.delete(f"a.{(number + 50) % 200}")
                number += 1

        changer = threading.Thread(target=change)
        changer.start()
        for _ in range(200):
            assert all(key.startswith("a.") for key in cache)
            assert all(value == b"x" or key == f"a.{int(value)}" for key, value in cache.items())
            assert all(value == b"x" or value.isdigit() for value in cache.values())
        stop.set()
        changer.join(10)
        revision = kv.put("a.7", b"new")
        cache.wait_for(revision, timeout=5)
        entry = cache.entry("a.7")
        assert entry is not None
        assert (entry.value, entry.revision, cache.revision) == (b"new", revision, revision)
        with pytest.raises(RequestTimeout):
            cache.wait_for(revision + 1, timeout=0.01)
    with pytest.raises(LocalProtocolError, match="left"):
        cache["a.7"]


def test_keys_are_written_together_or_not_at_all(js: sync.JetStream) -> None:
    kv = js.create_key_value(bucket="cfg", storage="memory", allow_atomic=True)
    with kv.atomic() as batch:
        batch.create("a", b"1")
        batch.put("b", b"2")
    assert (len(batch), batch.revisions) == (2, {"a": 1, "b": 2})
    with pytest.raises(WrongRevision), kv.atomic() as batch:  # noqa: PT012
        batch.put("c", b"3")
        batch.update("a", b"9", 7)
    with pytest.raises(ZeroDivisionError), kv.atomic() as batch:  # noqa: PT012
        batch.purge("a")
        raise ZeroDivisionError
    assert sorted(kv.keys()) == ["a", "b"]
    assert [status.bucket for status in js.key_value_statuses()] == ["cfg"]
