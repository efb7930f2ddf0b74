"""Right guesses of people who come from nats-py, nats.js, redis-py and aiokafka: none raises anything."""

from __future__ import annotations

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
async with aclosing(kv.keys()) as keys: await anext(keys)
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
await to_thread(lambda: blocking_nc.publish("a", b"x"))
await to_thread(lambda: blocking_nc.publish("a", b"x", headers={"k": "v"}))
await to_thread(lambda: blocking_nc.request("echo", b"x", timeout=1).data == b"x")
await to_thread(lambda: blocking_nc.subscribe("a").unsubscribe())
await to_thread(lambda: blocking_nc.flush())
await to_thread(lambda: blocking_nc.rtt())
await to_thread(lambda: blocking_nc.jetstream())
await to_thread(lambda: blocking_js.publish("s.a", b"x").seq)
await to_thread(lambda: blocking_js.publish("s.a", b"x", msg_id="1"))
await to_thread(lambda: blocking_js.stream("S").info().state.messages)
await to_thread(lambda: blocking_js.create_stream("T", subjects=["t"], storage="memory"))
await to_thread(lambda: blocking_js.update_stream("S", max_msgs=1000))
await to_thread(lambda: list(blocking_js.stream_names()))
await to_thread(lambda: blocking_js.delete_stream("D"))
await to_thread(lambda: blocking_stream.get_message(1).data)
await to_thread(lambda: blocking_stream.consumer("c").fetch(1)[0].ack())
await to_thread(lambda: blocking_stream.create_consumer("d").next(timeout=1).ack())
await to_thread(lambda: blocking_kv.get("k").value)
await to_thread(lambda: blocking_kv.get("none", default=None))
await to_thread(lambda: blocking_kv.put("k", b"2"))
await to_thread(lambda: blocking_kv.keys())
await to_thread(lambda: blocking_store.get("f"))
"""
