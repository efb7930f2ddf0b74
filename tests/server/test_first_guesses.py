"""First guesses of people who come from nats-py, nats.js, redis-py and aiokafka: each works, or says what to use.

Every line is a program of one statement. Those of WORKS raise nothing; those of HINTS raise an AttributeError or a
TypeError with the text after the bar; those of REFUSED raise the error after the bar. Too many positional arguments are
Python's own TypeError. None succeeds with another meaning.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

import pytest

import natsproto
from natsproto import Client, errors, sync
from natsproto.jetstream import JetStream

WORKS = """
await nc.publish("a", b"x")
await nc.publish("a")
await nc.publish(subject="a", payload=b"x")
await nc.publish("a", b"x", reply="b")
await nc.publish("a", b"x", headers={"k": "v"})
await nc.publish("a", b"x", headers={"k": ["v", "w"]})
nc.publish_nowait("a", b"x")
await nc.flush()
await nc.flush(timeout=1)
await nc.flush(1)
await nc.rtt()
nc.is_connected
nc.state
nc.max_payload
nc.client_id
nc.connected_url
nc.server_info.version
nc.stats.in_msgs
nc.new_inbox()
await nc.request("echo", b"x")
await nc.request("echo", b"x", timeout=1)
await nc.request("echo", b"x", headers={"k": "v"})
(await nc.request("echo", b"x")).data
[reply async for reply in nc.request_many("echo", b"x", max_messages=1)]
[reply async for reply in nc.request_many("echo", b"x", timeout=0.2)]
await nc.subscribe("a")
await nc.subscribe("a.*", queue="q")
await nc.subscribe("a.>", cb=print)
await nc.subscribe("a", queue="q", cb=handle)
await nc.subscribe("a", max_messages=1)
nc.subscribe("a")
await sub.unsubscribe()
await sub.drain()
sub.pending_msgs
sub.delivered
sub.dropped
nc.jetstream()
nc.jetstream(timeout=5)
nc.jetstream(domain="hub")
nc.jetstream(prefix="$JS.API")
await js.create_stream("T1", subjects=["t1"])
await js.create_stream(name="T2", subjects=["t2"])
await js.create_stream(jetstream.StreamConfig(name="T3", subjects=["t3"]))
await js.create_stream("T4")
await js.create_stream("T5", subjects=("t5",), storage="memory", max_age=60)
await js.create_stream("T6", retention="workqueue")
await js.stream("S")
await js.stream(name="S")
await js.create_or_update_stream("S", subjects=["s.>"], storage="memory")
await js.update_stream("S", max_msgs=1000)
await js.update_stream(name="S", max_msgs=1000)
await js.delete_stream("D")
[info async for info in js.streams()]
[name async for name in js.stream_names()]
await js.stream_name_by_subject("s.a")
await js.account_info()
await js.publish("s.a", b"x")
await js.publish("s.a", b"x", timeout=2)
await js.publish("s.a", b"x", headers={"k": "v"})
await js.publish("s.a", b"x", msg_id="1")
await js.publish("s.a", b"x", expected_stream="S")
(await js.publish("s.a", b"x")).seq
(await js.publish("s.a", b"x")).stream
js.publisher()
js.publisher(max_pending=10)
js.atomic_batch()
js.fast_publisher()
stream.name
await stream.info()
stream.cached_info.config.name
stream.cached_info.state.messages
await stream.purge()
await stream.purge(subject="s.a")
await stream.purge(keep=1)
await stream.purge(seq=1)
await stream.update(max_msgs=10)
await stream.get_message(1)
await stream.get_message(seq=1)
await stream.get_last_message("s.a")
await stream.delete_message(2)
await stream.delete()
await stream.create_consumer("c1")
await stream.create_consumer("c2", filter_subject="s.a")
await stream.create_consumer(durable_name="c3")
await stream.create_consumer(jetstream.ConsumerConfig(durable_name="c4"))
await stream.create_consumer("c5", filter_subjects=["s.a", "s.b"], ack_wait=10)
await stream.create_consumer("c6", deliver_policy="new")
await stream.create_consumer("c7", ack_policy="none")
await stream.create_consumer()
await stream.create_consumer(name="c8", inactive_threshold=60)
await stream.create_or_update_consumer("c", max_deliver=3)
await stream.update_consumer("c", max_deliver=3)
await stream.consumer("c")
await stream.consumer_info("c")
await stream.delete_consumer("c")
[info async for info in stream.consumers()]
[name async for name in stream.consumer_names()]
stream.ordered_consumer()
stream.ordered_consumer(filter_subjects=["s.>"])
stream.ordered_consumer(start_seq=1)
await consumer.fetch(1)
await consumer.fetch(10, timeout=0.1)
await consumer.fetch(max_messages=1)
await consumer.fetch(1, no_wait=True)
await consumer.fetch_available(1)
[message async for message in consumer.fetch(1)]
await consumer.next()
await consumer.next(1)
await consumer.next(timeout=1)
await consumer.info()
await consumer.delete()
consumer.name
consumer.stream_name
consumer.cached_info.num_pending
consumer.messages()
consumer.messages(prefetch=10)
await consumer.consume(print, stop_after=1).run()
await consumer.consume(handle, stop_after=1).run()
consumer.consume(handle, concurrency=4)
await (await consumer.next()).ack()
await (await consumer.next()).ack_sync()
await (await consumer.next()).nak()
await (await consumer.next()).nak(5)
await (await consumer.next()).nak(delay=5)
await (await consumer.next()).term()
await (await consumer.next()).in_progress()
(await consumer.next()).metadata.num_delivered
(await consumer.next()).metadata.stream_seq
(await consumer.next()).seq
(await consumer.next()).data
(await consumer.next()).subject
(await consumer.next()).headers
await js.create_key_value("n1")
await js.create_key_value(bucket="n2", history=5)
await js.create_key_value(jetstream.KeyValueConfig(bucket="n3"))
await js.create_key_value("n4", ttl=60)
await js.create_or_update_key_value("b", history=3, storage="memory")
await js.update_key_value("b", history=4)
await js.key_value("b")
await js.delete_key_value("b")
[name async for name in js.key_value_names()]
await kv.put("a", b"1")
await kv.get("k")
(await kv.get("k")).value
(await kv.get("k")).revision
await kv.get("k", revision=1)
await kv.create("new", b"1")
await kv.update("k", b"2", 1)
await kv.update("k", b"2", revision=1)
await kv.delete("k")
await kv.purge("k")
[key async for key in kv.keys()]
[key async for key in kv.keys("k.*", "*")]
stream.cached_info.name
async with natsproto.connect(servers=[nc.connected_url]) as other: assert other.is_connected
await kv.history("k")
await kv.get_many(["k"])
await kv.status()
kv.watch()
kv.watch("k")
kv.watch("a.*", "b.*")
kv.watch(cb=print)
await kv.purge_deletes()
kv.lock("l")
kv.cache()
kv.bucket
await js.create_object_store("m1")
await js.create_object_store(bucket="m2")
await js.object_store("o")
await js.delete_object_store("o")
await store.put("n", b"x")
await store.get_bytes("f")
await store.info("f")
await store.delete("f")
[info async for info in store.list()]
store.watch()
await store.status()
await nc.add_service("calc", "1.0.0")
await nc.add_service(name="calc", version="1.0.0", description="adds")
[ping async for ping in nc.ping_services(timeout=0.1)]
await nc.drain()
await nc.close()
"""

HINTS = """
nc.js() | use nc.jetstream()
nc.jsm() | use nc.jetstream()
nc.kv("b") | js.key_value(bucket)
nc.key_value("b") | js.key_value(bucket)
nc.create_stream("S") | js.create_stream(name
nc.add_stream(name="S") | create_stream
await nc.stream("S") | js.stream(name)
nc.object_store("o") | js.object_store(bucket)
nc.disconnect() | nc.close()
nc.quit() | nc.close()
nc.stop() | nc.drain()
nc.ping() | nc.rtt()
nc.publish_request("a", b"", "b") | reply=
nc.queue_subscribe("a", "q") | queue=
nc.old_style_request("a") | nc.request
nc.is_closed | nc.state
nc.is_reconnecting | nc.state
nc.last_error | nc.events()
nc.status | nc.state
nc.unsubscribe(1) | subscription.unsubscribe()
nc.subscribe("a", handler=print) | use cb=
nc.subscribe("a", callback=print) | use cb=
nc.subscribe("a", queue_group="q") | use queue=
nc.subscribe("a", group="q") | use queue=
nc.subscribe("a", max_msgs=1) | use max_messages=
sub.next_msg() | subscription.next(timeout)
sub.next_msg(timeout=1) | subscription.next(timeout)
sub.messages | async for message in subscription
sub.get() | subscription.next(timeout)
sub.read() | subscription.next(timeout)
sub.recv() | subscription.next(timeout)
sub.get_message() | subscription.next(timeout)
sub.close() | subscription.unsubscribe()
sub.stop() | subscription.unsubscribe()
sub.listen() | async for message in subscription
sub.fetch(10) | subscription.batches()
sub.auto_unsubscribe(5) | max_messages=
js.get_stream("S") | js.stream(name)
js.consumer("S", "c") | stream.consumer(name)
js.get_consumer("S", "c") | stream.consumer(name)
js.create_consumer("S", "c") | stream.create_consumer(name
js.add_consumer("S", durable_name="c") | stream.create_consumer(name
js.update_consumer("S", "c") | stream.update_consumer(name
js.delete_consumer("S", "c") | stream.delete_consumer(name)
js.consumer_info("S", "c") | stream.consumer_info(name)
js.consumers_info("S") | stream.consumers()
js.consumers("S") | stream.consumers()
js.ordered_consumer("S") | stream.ordered_consumer()
js.kv("b") | js.key_value(bucket)
js.get_key_value("b") | js.key_value(bucket)
js.keyvalue("b") | js.key_value(bucket)
js.create_kv("b") | js.create_key_value(bucket
js.create_bucket("b") | js.create_key_value(bucket
js.delete_kv("b") | js.delete_key_value(bucket)
js.objects("o") | js.object_store(bucket)
js.object("o") | js.object_store(bucket)
js.create_object("o") | js.create_object_store(bucket
js.add_stream(name="S") | js.create_stream
js.list_streams() | js.streams()
js.streams_info() | js.streams()
js.stream_info("S") | stream.info()
js.purge_stream("S") | stream.purge
js.purge("S") | stream.purge
js.get_msg("S", 1) | stream.get_message(seq)
js.get_message("S", 1) | stream.get_message(seq)
js.get_last_msg("S", "s.a") | stream.get_last_message(subject)
js.delete_msg("S", 1) | stream.delete_message(seq)
js.find_stream_name_by_subject("s.a") | js.stream_name_by_subject(subject)
js.subscribe("s.a") | stream.create_consumer
js.pull_subscribe("s.a", "c") | stream.create_consumer
js.pull_subscribe_bind("c", "S") | bind=True
js.consume("c") | stream.create_consumer
js.fetch(1) | stream.create_consumer
js.publish_async("s.a") | js.publisher()
js.publish_batch([]) | js.atomic_batch()
js.info() | js.account_info()
stream.add_consumer("c") | stream.create_consumer(name
stream.get_consumer("c") | stream.consumer(name)
stream.list_consumers() | stream.consumers()
stream.get(1) | stream.get_message(seq)
stream.get_msg(1) | stream.get_message(seq)
stream.get_last_msg("s.a") | stream.get_last_message(subject)
stream.delete_msg(1) | stream.delete_message(seq)
stream.publish("s.a", b"") | js.publish(subject
stream.subscribe("s.a") | stream.create_consumer(name)
stream.fetch(1) | stream.create_consumer(name)
stream.messages() | stream.create_consumer(name)
stream.config | stream.cached_info
stream.state | stream.cached_info
stream.cached_info.purge() | stream.purge
stream.cached_info.delete() | stream.delete
stream.cached_info.update() | stream.update
stream.cached_info.create_consumer("c") | stream.create_consumer
stream.cached_info.subjects | info.config.subjects
consumer.next_msg() | consumer.next(timeout)
consumer.getone() | consumer.next(timeout)
consumer.getmany() | consumer.fetch(max_messages
consumer.poll() | consumer.fetch(max_messages
consumer.pull(1) | consumer.fetch(max_messages
consumer.read(1) | consumer.fetch(max_messages
consumer.subscribe(print) | consumer.consume(handler)
consumer.run(print) | consumer.consume(handler)
consumer.iterate() | consumer.messages()
consumer.commit() | message.ack()
consumer.ack(1) | message.ack()
consumer.config | consumer.cached_info.config
consumer.update(max_deliver=3) | stream.update_consumer(name
consumer.fetch(batch=1) | use max_messages=
consumer.fetch(batch_size=1) | use max_messages=
consumer.fetch(n=1) | use max_messages=
consumer.fetch(1, expires=1) | use timeout=
consumer.messages(max_messages=1) | use prefetch=
consumer.messages(batch=1) | use prefetch=
consumer.consume(callback=print) | pass the handler first
consumer.consume(cb=print) | pass the handler first
await consumer.consume(print) | await its run()
await kv.watch(cb=print) | await its run()
await store.watch(cb=print) | await its run()
await kv.keys() | async for
for key in kv.keys(): pass | async for
for message in consumer.fetch(1): pass | async for
kv["k"] | kv.get(key)
kv["k"] = b"1" | kv.put(key, value)
del kv["k"] | kv.delete(key)
"k" in kv | kv.get(key)
list(kv) | kv.keys()
for key in kv: pass | kv.keys()
kv.info() | kv.status()
kv.set("k", b"1") | kv.put(key, value)
kv.values() | kv.get_many(keys)
kv.items() | kv.get_many(keys)
kv.mget(["k"]) | kv.get_many(keys)
kv.scan() | kv.keys()
kv.watchall() | kv.watch()
kv.watch_all() | kv.watch()
kv.subscribe("k") | kv.watch()
kv.remove("k") | kv.delete(key)
kv.exists("k") | kv.get(key)
kv.expire("k", 5) | ttl=
kv.setex("k", 5, b"1") | ttl=
kv.setnx("k", b"1") | kv.create(key, value)
kv.cas("k", b"1", 1) | kv.update(key, value, revision)
store.get_info("f") | store.info(name)
store.stat("f") | store.info(name)
store.upload("f", b"") | store.put(name, source)
store.write("f", b"") | store.put(name, source)
store.put_bytes("f", b"") | store.put(name, source)
store.put_blob("f", b"") | store.put(name, source)
store.download("f") | store.get_bytes(name)
store.get_blob("f") | store.get_bytes(name)
store.get_object("f") | store.get_bytes(name)
store.read("f") | store.get_bytes(name)
store.list_objects() | store.list()
store.keys() | store.list()
store.remove("f") | store.delete(name)
natsproto.connect("nats://a", error_cb=print) | pass 'on_event'
natsproto.connect(user_credentials="a") | pass 'creds'
natsproto.connect(nkeys_seed="a") | pass 'nkey_seed'
natsproto.connect(reconnect_time_wait=1) | pass 'reconnect_wait'
natsproto.connect(disconnected_cb=print) | pass 'on_event'
natsproto.connect(ping_intervall=1) | did you mean 'ping_interval'
natsproto.connect("nats://127.0.0.1:1").publish | await it
await js.create_stream("T", replicas=1) | did you mean 'num_replicas'
await js.create_stream("T", subject="t") | did you mean 'subjects'
await stream.create_consumer("c", durable="d") | did you mean 'durable_name'
await stream.create_consumer("c", ack_waits=1) | did you mean 'ack_wait'
await js.create_key_value("b", replicas=1) | did you mean 'num_replicas'
"""

REFUSED = """
await consumer.fetch(10, 0.3) | TypeError
await nc.request("echo", b"", 1.0) | TypeError
await nc.publish("a", b"", "reply") | TypeError
await nc.publish("a b") | ConfigError
await nc.publish("a.*") | ConfigError
await nc.publish("") | ConfigError
await nc.publish("a", 5) | TypeError
await nc.publish("a", "text") | TypeError
await nc.publish("a", None) | TypeError
await nc.publish("a", {"k": 1}) | TypeError
nc.subscribe("a b") | ConfigError
nc.subscribe("a", cb=5) | TypeError
nc.subscribe("a", cb=generator) | TypeError
consumer.consume(generator) | TypeError
kv.watch(cb=generator) | TypeError
await nc.request("nobody") | NoResponders
await js.stream("T") | StreamNotFound
await js.update_stream(max_msgs=1) | TypeError
await js.update_stream("T", max_msgs=1) | StreamNotFound
await js.publish("nobody") | NoStream
await js.create_stream("a.b") | ConfigError
await js.create_stream("a b") | ConfigError
await js.create_stream("S", max_msgs=7) | StreamExists
await js.create_stream(5) | TypeError
await js.create_stream("T", subjects="t") | TypeError
await js.key_value("x") | BucketNotFound
await js.create_key_value("b", history=9) | BucketExists
await js.create_key_value("n", history=100) | ConfigError
await stream.create_consumer(name="billing") | ConfigError
await stream.create_consumer("c", max_deliver=9) | ConsumerExists
await stream.consumer("x") | ConsumerNotFound
await stream.update("S") | TypeError
await stream.update(name="T") | ConfigError
await stream.get_message(99) | MessageNotFound
await stream.get_message("1") | TypeError
[key async for key in kv.keys("k*")] | ConfigError
await stream.delete_message(9999) | MessageNotFound
await (await consumer.next()).respond(b"x") | LocalProtocolError
await kv.get("x") | KeyNotFound
await kv.get("a b") | ConfigError
await kv.create("k", b"1") | KeyExists
await kv.update("k", b"1", None) | TypeError
await kv.update("k", b"1", 7) | WrongRevision
await kv.update("k", b"1") | TypeError
await kv.put("k", 5) | TypeError
await kv.put("k") | TypeError
await store.get_bytes("x") | ObjectNotFound
await store.info("x") | ObjectNotFound
await js.object_store("x") | BucketNotFound
await nc.add_service("a b", "1.0.0") | ConfigError
await nc.add_service("a", "1") | ConfigError
natsproto.connect("http://a") | ConfigError
"""

Globals = dict[str, Any]


async def generator(message: object) -> Any:
    yield message


async def handle(message: object) -> None:
    await asyncio.sleep(0)


@pytest.fixture
async def names(nats_client: Client, jetstream: JetStream) -> Globals:
    """What the lines may use; every line has a server of its own."""
    await nats_client.subscribe("echo", cb=lambda message: message.respond(message.data))
    stream = await jetstream.create_stream("S", subjects=["s.>"], storage="memory")
    await jetstream.create_stream("D")
    for number in range(3):
        await jetstream.publish("s.a", b"%d" % number)
    kv = await jetstream.create_key_value("b", storage="memory")
    await kv.put("k", b"1")
    store = await jetstream.create_object_store("o", storage="memory")
    await store.put("f", b"1")
    natsproto_names = {"natsproto": natsproto, "jetstream": natsproto.jetstream, "sync": sync, "generator": generator}
    return {
        **natsproto_names,
        "nc": nats_client,
        "js": jetstream,
        "stream": stream,
        "kv": kv,
        "store": store,
        "handle": handle,
        "consumer": await stream.create_consumer("c"),
        "sub": await nats_client.subscribe("a"),
    }


async def run(line: str, names: Globals) -> None:
    code = compile(line, "<guess>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(10):
        done = eval(code, names)
        if inspect.isawaitable(done):
            await done


def rows(table: str) -> list[tuple[str, str]]:
    split = [line.rpartition(" | ") for line in table.strip().splitlines()]
    return [(line, said) for line, _, said in split]


BLOCKING = """
nc.publish("a", b"x")
nc.publish("a", b"x", headers={"k": "v"})
nc.request("echo", b"x", timeout=1).data == b"x"
nc.subscribe("a").unsubscribe()
nc.flush()
nc.rtt()
nc.jetstream()
js.publish("s.a", b"x").seq
js.publish("s.a", b"x", msg_id="1")
js.stream("S").info().state.messages
js.create_stream("T", subjects=["t"], storage="memory")
js.update_stream("S", max_msgs=1000)
list(js.stream_names())
js.delete_stream("D")
stream.get_message(1).data
stream.consumer("c").fetch(1)[0].ack()
stream.create_consumer("d").next(timeout=1).ack()
kv.get("k").value
kv.get("none", default=None)
kv.put("k", b"2")
kv.keys()
store.get("f")
js.get_stream("S") | js.stream(name)
js.consumer("S", "c") | stream
kv["k"] | kv.get
kv.typed(dict) | natsproto.codecs
js.typed(dict) | natsproto.codecs
nc.publish("a", payload="x", reply_to="b") | reply
kv.get("none") | KeyNotFound
js.stream("none") | StreamNotFound
stream.consumer("none") | ConsumerNotFound
nc.request("nobody", b"x") | NoResponders
kv.update("k", b"1", None) | TypeError
"""
"""Lines for ``natsproto.sync``; those with a bar raise an error whose name or text has what is after it."""


async def test_guesses_of_blocking_programs(names: Globals) -> None:
    def wrong(url: str) -> list[str]:
        found = list[str]()
        with sync.connect(url) as nc:
            js = nc.jetstream()
            stream, kv, store = js.stream("S"), js.key_value("b"), js.object_store("o")
            scope = {"nc": nc, "js": js, "stream": stream, "kv": kv, "store": store}
            for row in BLOCKING.strip().splitlines():
                line, _, said = row.partition(" | ")
                try:
                    eval(line, dict(scope))
                except Exception as exc:
                    if not said or said not in f"{type(exc).__name__}: {exc}":
                        found.append(f"{line}: {exc!r}")
                else:
                    if said:
                        found.append(f"{line}: nothing was raised")
        return found

    assert not await asyncio.to_thread(wrong, names["nc"].connected_url)


def test_there_are_enough_guesses() -> None:
    lines = [*WORKS.strip().splitlines(), *(line for table in (HINTS, REFUSED) for line, _ in rows(table))]
    assert len(lines) == len(set(lines))
    assert len(lines) >= 300


@pytest.mark.filterwarnings("ignore:.*never:RuntimeWarning")
@pytest.mark.parametrize("line", WORKS.strip().splitlines())
async def test_guess_works(names: Globals, line: str) -> None:
    await run(line, names)


@pytest.mark.filterwarnings("ignore:.*never:RuntimeWarning")
async def test_guess_raises_a_hint(names: Globals) -> None:
    wrong: list[str] = []
    for line, said in rows(HINTS):
        try:
            await run(line, dict(names))
        except (AttributeError, TypeError) as exc:
            if said not in str(exc):
                wrong.append(f"{line}: {exc}")
        else:
            wrong.append(f"{line}: nothing was raised")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore:.*never:RuntimeWarning")
async def test_guess_is_refused(names: Globals) -> None:
    wrong: list[str] = []
    for line, said in rows(REFUSED):
        kind = getattr(errors, said, TypeError)
        try:
            await run(line, dict(names))
        except kind:
            continue
        except Exception as exc:
            wrong.append(f"{line}: {exc!r}")
        else:
            wrong.append(f"{line}: nothing was raised")
    assert not wrong, "\n".join(wrong)
