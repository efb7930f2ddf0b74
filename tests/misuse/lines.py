"""Wrong programs of one statement, as people write them who come from nats-py, nats.js, redis-py and aiokafka.

A line of a table is a program, the guesses that stand one after the other for its ``{}``, if it has some, and the error
with words of its sentence: ``^`` and ``$`` are its ends, and ``..`` is anything. The words are not those of the guess.
None succeeds with another meaning.
"""

from __future__ import annotations

GUESSES = """
nc.js() | AttributeError: use nc.jetstream()
nc.jsm() | AttributeError: use nc.jetstream()
nc.kv("b") | AttributeError: js.key_value(bucket)
nc.key_value("b") | AttributeError: js.key_value(bucket)
nc.create_stream("S") | AttributeError: js.create_stream(name
await nc.stream("S") | TypeError: js.stream(name)
nc.object_store("o") | AttributeError: js.object_store(bucket)
nc.disconnect() | AttributeError: nc.close()
nc.quit() | AttributeError: nc.close()
nc.stop() | AttributeError: nc.drain()
nc.ping() | AttributeError: nc.rtt()
nc.publish_request("a", b"", "b") | AttributeError: reply=
nc.queue_subscribe("a", "q") | AttributeError: queue=
nc.old_style_request("a") | AttributeError: nc.request
nc.is_closed | AttributeError: nc.state
nc.is_reconnecting | AttributeError: nc.state
nc.last_error | AttributeError: nc.events()
nc.status | AttributeError: nc.state
nc.unsubscribe(1) | AttributeError: subscription.unsubscribe()
nc.subscribe("a", handler=print) | TypeError: use cb=
nc.subscribe("a", callback=print) | TypeError: use cb=
nc.subscribe("a", queue_group="q") | TypeError: use queue=
nc.subscribe("a", group="q") | TypeError: use queue=
nc.subscribe("a", max_msgs=1) | TypeError: use max_messages=
sub.next_msg() | AttributeError: subscription.next(timeout)
sub.next_msg(timeout=1) | AttributeError: subscription.next(timeout)
sub.messages | AttributeError: async for message in subscription
sub.get() | AttributeError: subscription.next(timeout)
sub.read() | AttributeError: subscription.next(timeout)
sub.recv() | AttributeError: subscription.next(timeout)
sub.get_message() | AttributeError: subscription.next(timeout)
sub.close() | AttributeError: subscription.unsubscribe()
sub.stop() | AttributeError: subscription.unsubscribe()
sub.listen() | AttributeError: async for message in subscription
sub.fetch(10) | AttributeError: subscription.batches()
sub.auto_unsubscribe(5) | AttributeError: max_messages=
js.get_stream("S") | AttributeError: js.stream(name)
js.consumer("S", "c") | AttributeError: stream.consumer(name)
js.get_consumer("S", "c") | AttributeError: stream.consumer(name)
js.create_consumer("S", "c") | AttributeError: stream.create_consumer(name
js.add_consumer("S", durable_name="c") | AttributeError: stream.create_consumer(name
js.update_consumer("S", "c") | AttributeError: stream.update_consumer(name
js.delete_consumer("S", "c") | AttributeError: stream.delete_consumer(name)
js.consumer_info("S", "c") | AttributeError: stream.consumer_info(name)
js.consumers_info("S") | AttributeError: stream.consumers()
js.consumers("S") | AttributeError: stream.consumers()
js.ordered_consumer("S") | AttributeError: stream.ordered_consumer()
js.kv("b") | AttributeError: js.key_value(bucket)
js.get_key_value("b") | AttributeError: js.key_value(bucket)
js.keyvalue("b") | AttributeError: js.key_value(bucket)
js.create_kv("b") | AttributeError: js.create_key_value(bucket
js.create_bucket("b") | AttributeError: js.create_key_value(bucket
js.delete_kv("b") | AttributeError: js.delete_key_value(bucket)
js.objects("o") | AttributeError: js.object_store(bucket)
js.object("o") | AttributeError: js.object_store(bucket)
js.create_object("o") | AttributeError: js.create_object_store(bucket
js.add_stream(name="S") | AttributeError: js.create_stream
js.list_streams() | AttributeError: js.streams()
js.streams_info() | AttributeError: js.streams()
js.stream_info("S") | AttributeError: stream.info()
js.purge_stream("S") | AttributeError: stream.purge
js.purge("S") | AttributeError: stream.purge
js.get_msg("S", 1) | AttributeError: stream.get_message(seq)
js.get_message("S", 1) | AttributeError: stream.get_message(seq)
js.get_last_msg("S", "s.a") | AttributeError: stream.get_last_message(subject)
js.delete_msg("S", 1) | AttributeError: stream.delete_message(seq)
js.find_stream_name_by_subject("s.a") | AttributeError: js.stream_name_by_subject(subject)
js.subscribe("s.a") | AttributeError: stream.create_consumer
js.pull_subscribe("s.a", "c") | AttributeError: stream.create_consumer
js.pull_subscribe_bind("c", "S") | AttributeError: bind=True
js.consume("c") | AttributeError: stream.create_consumer
js.fetch(1) | AttributeError: stream.create_consumer
js.publish_async("s.a") | AttributeError: js.publisher()
js.publish_batch([]) | AttributeError: js.atomic_batch()
js.info() | AttributeError: js.account_info()
stream.add_consumer("c") | AttributeError: stream.create_consumer(name
stream.get_consumer("c") | AttributeError: stream.consumer(name)
stream.list_consumers() | AttributeError: stream.consumers()
stream.get(1) | AttributeError: stream.get_message(seq)
stream.get_msg(1) | AttributeError: stream.get_message(seq)
stream.get_last_msg("s.a") | AttributeError: stream.get_last_message(subject)
stream.delete_msg(1) | AttributeError: stream.delete_message(seq)
stream.publish("s.a", b"") | AttributeError: js.publish(subject
stream.subscribe("s.a") | AttributeError: stream.create_consumer(name)
stream.fetch(1) | AttributeError: stream.create_consumer(name)
stream.messages() | AttributeError: stream.create_consumer(name)
stream.config | AttributeError: stream.cached_info
stream.state | AttributeError: stream.cached_info
stream.cached_info.purge() | AttributeError: stream.purge
stream.cached_info.delete() | AttributeError: stream.delete
stream.cached_info.update() | AttributeError: stream.update
stream.cached_info.create_consumer("c") | AttributeError: stream.create_consumer
stream.cached_info.subjects | AttributeError: info.config.subjects
consumer.next_msg() | AttributeError: consumer.next(timeout)
consumer.getone() | AttributeError: consumer.next(timeout)
consumer.getmany() | AttributeError: consumer.fetch(max_messages
consumer.poll() | AttributeError: consumer.fetch(max_messages
consumer.pull(1) | AttributeError: consumer.fetch(max_messages
consumer.read(1) | AttributeError: consumer.fetch(max_messages
consumer.subscribe(print) | AttributeError: consumer.consume(handler)
consumer.run(print) | AttributeError: consumer.consume(handler)
consumer.iterate() | AttributeError: consumer.messages()
consumer.commit() | AttributeError: message.ack()
consumer.ack(1) | AttributeError: message.ack()
consumer.config | AttributeError: consumer.cached_info.config
consumer.update(max_deliver=3) | AttributeError: stream.update_consumer(name
consumer.fetch(batch=1) | TypeError: use max_messages=
consumer.fetch(batch_size=1) | TypeError: use max_messages=
consumer.fetch(n=1) | TypeError: use max_messages=
consumer.fetch(1, expires=1) | TypeError: use timeout=
consumer.messages(max_messages=1) | TypeError: use prefetch=
consumer.messages(batch=1) | TypeError: use prefetch=
consumer.consume(callback=print) | TypeError: pass the handler first
consumer.consume(cb=print) | TypeError: pass the handler first
await consumer.consume(print) | TypeError: await its run()
await kv.watch(cb=print) | TypeError: await its run()
await store.watch(cb=print) | TypeError: await its run()
for key in kv.keys(): pass | TypeError: async for
for message in consumer.fetch(1): pass | TypeError: async for
kv["k"] | TypeError: kv.get(key)
kv["k"] = b"1" | TypeError: kv.put(key, value)
del kv["k"] | TypeError: kv.delete(key)
"k" in kv | TypeError: kv.get(key)
list(kv) | TypeError: kv.keys()
for key in kv: pass | TypeError: kv.keys()
kv.info() | AttributeError: kv.status()
kv.set("k", b"1") | AttributeError: kv.put(key, value)
kv.values() | AttributeError: kv.get_many(keys)
kv.items() | AttributeError: kv.get_many(keys)
kv.mget(["k"]) | AttributeError: kv.get_many(keys)
kv.scan() | AttributeError: kv.keys()
kv.watchall() | AttributeError: kv.watch()
kv.watch_all() | AttributeError: kv.watch()
kv.subscribe("k") | AttributeError: kv.watch()
kv.remove("k") | AttributeError: kv.delete(key)
kv.exists("k") | AttributeError: kv.get(key)
kv.expire("k", 5) | AttributeError: ttl=
kv.setex("k", 5, b"1") | AttributeError: ttl=
kv.setnx("k", b"1") | AttributeError: kv.create(key, value)
kv.cas("k", b"1", 1) | AttributeError: kv.update(key, value, revision)
store.get_info("f") | AttributeError: store.info(name)
store.stat("f") | AttributeError: store.info(name)
store.upload("f", b"") | AttributeError: store.put(name, source)
store.write("f", b"") | AttributeError: store.put(name, source)
store.put_bytes("f", b"") | AttributeError: store.put(name, source)
store.put_blob("f", b"") | AttributeError: store.put(name, source)
store.download("f") | AttributeError: store.get_bytes(name)
store.get_blob("f") | AttributeError: store.get_bytes(name)
store.get_object("f") | AttributeError: store.get_bytes(name)
store.read("f") | AttributeError: store.get_bytes(name)
store.list_objects() | AttributeError: store.list()
store.keys() | AttributeError: store.list()
store.remove("f") | AttributeError: store.delete(name)
natsproto.connect("nats://a", error_cb=print) | TypeError: pass 'on_event'
natsproto.connect(user_credentials="a") | TypeError: pass 'creds'
natsproto.connect(nkeys_seed="a") | TypeError: pass 'nkey_seed'
natsproto.connect(reconnect_time_wait=1) | TypeError: pass 'reconnect_wait'
natsproto.connect(disconnected_cb=print) | TypeError: pass 'on_event'
natsproto.connect(ping_intervall=1) | TypeError: there is no option 'ping_intervall'; did you mean 'ping_interval'
natsproto.connect("nats://127.0.0.1:1").publish | AttributeError: await it
await js.create_stream("T", replicas=1) | TypeError: did you mean 'num_replicas'
await js.create_stream("T", subject="t") | TypeError: did you mean 'subjects'
await stream.create_consumer("c", durable="d") | TypeError: did you mean 'durable_name'
await stream.create_consumer("c", ack_waits=1) | TypeError: did you mean 'ack_wait'
await js.create_key_value("b", replicas=1) | TypeError: did you mean 'num_replicas'
nc.publish_async | AttributeError: : use .. nc.jetstream()
kv.compare_and_set | AttributeError: use kv.update(key, value, revision)
consumer.consume(print, max_retries=3) | TypeError: no argument 'max_retries': use natsproto.retry.Retry
consumer.consume(print, workers=3) | TypeError: no argument 'workers': use concurrency=
consumer.consume_batches(print, batch_size=3) | TypeError: no argument 'batch_size': use max_messages=
store.get("x", progress=print) | TypeError: no argument 'progress': store.get_file(
await stream.create_consumer("d", max_retries=3) | TypeError: no field 'max_retries': use max_deliver=
await stream.create_consumer("d", visibility_timeout=3) | TypeError: no field 'visibility_timeout': use ack_wait=
natsproto.connect(host="a", port=4222) | TypeError: no option 'host': give the URL first: connect("nats://host
await js.publish("s.a", b"", delay=5) | TypeError: no argument 'delay' .. Schedule.after
await js.publish("s.a", b"", eta=5) | TypeError: no argument 'eta' .. Schedule.at
await js.publish("s.a", b"", expires=5) | TypeError: no argument 'expires' .. ttl=
await js.publish("s.a", b"", id=5) | TypeError: no argument 'id' .. msg_id=
await js.publish("s.a", b"", msgid="1") | TypeError: 'msgid' .. ; did you mean 'msg_id'
await js.create_stream(name="A", subject="a") | TypeError: 'subject'; did you mean 'subjects'
await js.create_stream(name="A", zzz=1) | TypeError: 'zzz'; it has extra, name,
await js.update_stream(name="A", replicas=1) | TypeError: 'replicas'; did you mean 'num_replicas'
await stream.update(max_messages=1) | TypeError: 'max_messages'; did you mean 'max_msgs'
await stream.create_consumer(durable="c") | TypeError: 'durable'; did you mean 'durable_name'
stream.ordered_consumer(filter_subjets=["a"]) | TypeError: 'filter_subjets'; did you mean 'filter_subjects'
await js.create_key_value(bucket="b", histroy=2) | TypeError: 'histroy'; did you mean 'history'
await js.create_key_value(buckt="b") | TypeError: needs bucket=, has no field 'buckt'; did you mean 'bucket'
await js.create_object_store(bucket="b", max_byte=1) | TypeError: 'max_byte'; did you mean 'max_bytes'
from natsproto import NATS | ImportError: await natsproto.connect(url)
from natsproto import JetStreamContext | ImportError: nc.jetstream()
from natsproto.errors import TimeoutError | ImportError: natsproto.errors.RequestTimeout
from natsproto.errors import NoServersError | ImportError: natsproto.errors.ConnectFailed
from natsproto.jetstream import Retry | ImportError: natsproto.retry.Retry
from natsproto.jetstream import StreamNotFound | ImportError: natsproto.errors.StreamNotFound
from natsproto.jetstream import KeyValue | ImportError: natsproto.jetstream.kv.KeyValue
from natsproto.service import ServiceError | ImportError: natsproto.errors.ServiceError
await to_thread(lambda: blocking_js.get_stream("S")) | AttributeError: js.stream(name)
await to_thread(lambda: blocking_js.consumer("S", "c")) | AttributeError: stream
await to_thread(lambda: blocking_kv["k"]) | TypeError: kv.get
await to_thread(lambda: blocking_kv.typed(dict)) | AttributeError: natsproto.codecs
await to_thread(lambda: blocking_js.typed(dict)) | AttributeError: natsproto.codecs
await to_thread(lambda: blocking_nc.publish("a", payload="x", reply_to="b")) | TypeError: reply
"""
"""Names and keywords of other libraries: the error says what to use."""

OPTIONS = """
timeout connection_timeout connect_time_out | TypeError: 'connect_timeout'
reconnect auto_reconnect no_reconnect reconnects | TypeError: 'allow_reconnect'
ssl ssl_context tls_context context_tls ca cafile ca_file ca_certs cacert tls_ca ssl_cafile | TypeError: 'tls'
verify tls_verify insecure verify_ssl | TypeError: 'tls'
username login user_name | TypeError: 'user'
passwd pwd passphrase | TypeError: 'password'
error_cb disconnected_cb reconnected_cb closed_cb | TypeError: 'on_event'
lame_duck_mode_cb on_error on_disconnect on_reconnect | TypeError: 'on_event'
max_reconnects max_reconnect reconnect_attempts max_retries retries | TypeError: 'max_reconnect_attempts'
reconnect_time_wait reconnect_interval backoff retry_delay | TypeError: 'reconnect_wait'
pinginterval ping heartbeat keepalive keep_alive | TypeError: 'ping_interval'
max_pings_out max_outstanding | TypeError: 'max_outstanding_pings'
user_credentials credentials creds_file credentials_file | TypeError: 'creds'
nkeys_seed nkeys_seed_str nkey seed | TypeError: 'nkey_seed'
client_name connection_name | TypeError: 'name'
host hostname port uri url address | TypeError: connect("nats://host:4222")
pending_size buffer_size reconnect_buf_size | TypeError: 'outbox_limit'
dont_randomize no_randomize | TypeError: 'randomize'
ws_connection_headers ws_headers | TypeError: 'websocket_headers'
tls_handshake_first handshake_first | TypeError: 'tls_first'
user_jwt_cb signature_cb | TypeError: 'auth'
max_payload | TypeError: 'max_message_size'
loop io_loop | TypeError: event loop
"""
"""Guesses of keywords of ``connect``."""

KEYWORDS = """
await nc.request("a", {}=1) | data message body msg content | TypeError: payload
await nc.request("a", {}=1) | header hdrs | TypeError: headers
await nc.request("a", {}=1) | deadline wait time_out expires | TypeError: timeout
stream.get_batch({}=1) | limit count n max_messages size batch_size | TypeError: batch
stream.get_batch({}=1) | filter filter_subject subjects | TypeError: subject
stream.get_batch({}=1) | seq start opt_start_seq | TypeError: start_seq
await stream.purge({}=1) | filter filter_subject subjects | TypeError: subject
await stream.purge({}=1) | up_to before sequence | TypeError: seq
natsproto.testing.run_server({}=1) | js enable_jetstream | TypeError: jetstream
nc.request_many("a", {}=1) | count limit max_replies | TypeError: max_messages
nc.request_many("a", {}=1) | data body message | TypeError: payload
nc.subscribe("a", {}=1) | callback handler on_message | TypeError: cb=
nc.subscribe("a", {}=1) | group queue_group | TypeError: queue=
await js.publish("s.a", {}=1) | data message body msg | TypeError: payload
await js.publish("s.a", {}=1) | header hdrs | TypeError: headers
await js.publish("s.a", {}=1) | id message_id dedup_id | TypeError: msg_id
await js.publish("s.a", {}=1) | expiration expires msg_ttl | TypeError: ttl
await js.publish("s.a", {}=1) | stream | TypeError: expected_stream
await js.publish("s.a", {}=1) | delay countdown eta | TypeError: schedule
await stream.create_consumer("d", {}=1) | deliver start | TypeError: deliver_policy
await stream.create_consumer("d", {}=1) | prefetch concurrency | TypeError: consume
await stream.create_consumer("d", {}=1) | max_retries retries | TypeError: max_deliver
await stream.create_consumer("d", {}=1) | visibility_timeout ack_timeout | TypeError: ack_wait
await stream.create_consumer("d", {}=1) | filter subject filters | TypeError: filter_subject
await stream.create_consumer("d", {}=1) | ack | TypeError: ack_policy
await stream.create_consumer("d", {}=1) | max_in_flight max_inflight max_pending | TypeError: max_ack_pending
await js.create_stream("T", {}=1) | subject topics topic | TypeError: subjects
await js.create_stream("T", {}=1) | ttl expire retention_time | TypeError: max_age
await js.create_stream("T", {}=1) | max_messages max_len maxlen | TypeError: max_msgs
await js.create_stream("T", {}=1) | dedup_window duplicates | TypeError: duplicate_window
await js.create_key_value("T", {}=1) | replicas | TypeError: num_replicas
await js.create_key_value("T", {}=1) | expire max_age | TypeError: ttl
await js.create_key_value("T", {}=1) | versions revisions | TypeError: history
consumer.fetch({}=1) | count size limit max_msgs num | TypeError: max_messages
consumer.fetch({}=1) | wait expires max_wait | TypeError: timeout
consumer.consume(print, {}=1) | workers threads max_workers parallel | TypeError: concurrency
consumer.consume(print, {}=1) | batch batch_size max_messages | TypeError: prefetch
consumer.consume(print, {}=1) | max_retries retries dead_letter | TypeError: Retry
consumer.consume_batches(print, {}=1) | batch batch_size size | TypeError: max_messages
consumer.consume_batches(print, {}=1) | seconds interval | TypeError: max_wait
await consumer.next({}=1) | wait expires max_wait | TypeError: timeout
await kv.put("k", b"v", {}=1) | ex expire expires px expiry | TypeError: ttl
await kv.put("k", b"v", {}=1) | revision last version | TypeError: update
await kv.put("k", b"v", {}=1) | nx | TypeError: create
await kv.create("k", b"v", {}=1) | ex expire | TypeError: ttl
await kv.update("k", b"v", {}=1) | last rev version last_revision | TypeError: revision
await kv.get("k", {}=1) | rev version | TypeError: revision
await kv.delete("k", {}=1) | rev last last_revision | TypeError: revision
await kv.purge("k", {}=1) | rev last_revision | TypeError: revision
await kv.history({}="k") | name | TypeError: key
kv.watch({}="k") | key pattern filter subject | TypeError: watch(
kv.watch({}=1) | headers_only | TypeError: meta_only
kv.watch({}=1) | from_revision revision since | TypeError: resume_from
kv.watch({}=1) | callback handler | TypeError: cb
kv.watch({}=1) | history | TypeError: include_history
kv.lock("l", {}=1) | expire expires ex timeout lease | TypeError: ttl
await store.put("n", b"v", {}=1) | meta | TypeError: metadata
await store.put("n", b"v", {}=1) | chunksize chunk | TypeError: chunk_size
await store.put("n", b"v", {}=1) | on_progress callback | TypeError: progress
await store.get_bytes("f", {}=1) | on_progress callback | TypeError: progress
store.get("f", {}=1) | start begin | TypeError: offset
store.get("f", {}=1) | size count | TypeError: length
store.get("f", {}=1) | progress | TypeError: get_file
"""

ATTRIBUTES = """
message.{} | payload body content value | AttributeError: data
message.{} | nack reject negative_ack | AttributeError: nak
message.{} | num_delivered deliveries delivery_count | AttributeError: metadata.num_delivered
message.{} | num_pending pending | AttributeError: metadata.num_pending
message.{} | timestamp | AttributeError: time
message.{} | sequence stream_seq offset | AttributeError: seq
message.{} | header hdr | AttributeError: headers
message.{} | topic | AttributeError: subject
message.{} | working wpi progress | AttributeError: in_progress
message.{} | commit | AttributeError: ack
message.{} | double_ack | AttributeError: ack_sync
message.{} | reply_to | AttributeError: reply
plain.{} | payload body content value | AttributeError: data
plain.{} | reply_to | AttributeError: reply
plain.{} | topic | AttributeError: subject
plain.{} | header hdr | AttributeError: headers
entry.{} | text json decode payload | AttributeError: value
entry.{} | rev version seq | AttributeError: revision
entry.{} | name | AttributeError: key
entry.{} | timestamp time modified | AttributeError: created
entry.{} | deleted | AttributeError: is_deleted
entry.{} | op | AttributeError: operation
nc.{} | js jsm jetstream_context | AttributeError: jetstream()
nc.{} | kv key_value | AttributeError: js.key_value
nc.{} | disconnect quit stop shutdown | AttributeError: close()
nc.{} | is_draining | AttributeError: state
nc.{} | ping | AttributeError: rtt()
nc.{} | send publish_msg | AttributeError: publish(
js.{} | kv keyvalue get_key_value | AttributeError: key_value
js.{} | add_stream | AttributeError: create_stream
js.{} | subscribe pull_subscribe consume fetch | AttributeError: create_consumer
js.{} | stream_info | AttributeError: stream.info()
js.{} | publish_async | AttributeError: publisher
stream.{} | add_consumer | AttributeError: create_consumer
stream.{} | get_msg | AttributeError: get_message
consumer.{} | poll pull getmany | AttributeError: fetch
consumer.{} | subscribe listen | AttributeError: consume
consumer.{} | next_msg getone | AttributeError: next(
kv.{} | set write | AttributeError: put
kv.{} | remove | AttributeError: delete
kv.{} | exists has | AttributeError: get(key)
kv.{} | list_keys scan | AttributeError: keys()
kv.{} | cas | AttributeError: update
store.{} | upload put_object | AttributeError: put(
store.{} | download get_object | AttributeError: get_bytes
store.{} | stat head | AttributeError: info(
sub.{} | next_msg recv get | AttributeError: next(
sub.{} | close stop cancel | AttributeError: unsubscribe
plain.{} | ack ack_nowait ack_sync | AttributeError: no attribute .. a core message .. cannot be acknowledged
plain.{} | in_progress metadata nak term | AttributeError: no attribute .. a core message .. cannot be acknowledged
"""

FORGOTTEN = """
await nc.jetstream() | TypeError: use js = nc.jetstream()
async for message in consumer: pass | TypeError: async with consumer.messages() as messages
async for message in stream.ordered_consumer(): pass | TypeError: async with consumer.messages() as messages
with natsproto.connect("nats://127.0.0.1:1"): pass | TypeError: use async with
list(sub) | TypeError: ^Subscription is an async iterable: use async for$
list(consumer.fetch(1)) | TypeError: ^Fetch is an async iterable: await it for a list, or use async for$
await nc.events() | TypeError: ^events() cannot be awaited: iterate it with async for
list(nc.events()) | TypeError: ^events() is an async iterable: use async for$
await nc.request_many("nobody") | TypeError: ^request_many() cannot be awaited: iterate it with async for
list(nc.request_many("nobody")) | TypeError: ^request_many() is an async iterable: use async for$
await nc.discover_services() | TypeError: ^discover_services() cannot be awaited: iterate it with async for
list(nc.discover_services()) | TypeError: ^discover_services() is an async iterable: use async for$
await js.stream_names() | TypeError: ^stream_names() cannot be awaited: iterate it with async for
list(js.stream_names()) | TypeError: ^stream_names() is an async iterable: use async for$
await js.streams() | TypeError: ^Listing cannot be awaited: iterate it with async for
list(js.streams()) | TypeError: ^Listing is an async iterable: use async for$
await kv.keys() | TypeError: ^keys() cannot be awaited: iterate it with async for
list(kv.keys()) | TypeError: ^keys() is an async iterable: use async for$
await store.list() | TypeError: ^list() cannot be awaited: iterate it with async for
list(store.list()) | TypeError: ^list() is an async iterable: use async for$
await stream.get_batch() | TypeError: ^StoredMessages cannot be awaited: iterate it with async for
list(stream.get_batch()) | TypeError: ^StoredMessages is an async iterable: use async for$
await kv.watch() | TypeError: ^KeyWatcher cannot be awaited: enter it with async with
list(kv.watch()) | TypeError: ^KeyWatcher is an async iterable: use async for$
await store.watch() | TypeError: ^ObjectWatcher cannot be awaited: enter it with async with
list(store.watch()) | TypeError: ^ObjectWatcher is an async iterable: use async for$
await store.get("f") | TypeError: ^ObjectReader cannot be awaited: enter it with async with
list(store.get("f")) | TypeError: ^ObjectReader is an async iterable: use async for$
await stream.ordered_consumer().messages() | TypeError: ^Messages cannot be awaited: enter it with async with
list(stream.ordered_consumer().messages()) | TypeError: ^Messages is an async iterable: use async for$
"""
"""Forgotten await, async with and async for; objects that are used as something else."""

PLACES = """
nc.subscribe("a", cb={})
consumer.consume({})
stream.ordered_consumer().consume({})
kv.watch(cb={})
store.watch(cb={})
with_middleware(print, {})
nc.typed(int).subscribe("a", cb={})
js.typed(int).handler({})
"""
"""Places of a handler."""

PLACES_WITH_PARTS = """
service.add_endpoint("e", {})
service.endpoint("e")({})
with_middleware({})
nc.typed(int).handler({})
"""
"""Places of a handler that may answer in parts, as an async generator does."""

WRAPPED = """
nc.subscribe("a", cb=with_middleware(async_generator, tracing))
consumer.consume(with_middleware(async_generator, tracing))
"""
"""Async generators that a middleware hides."""

ARGUMENTS = """
await consumer.fetch(10, 0.3) | TypeError
await nc.request("echo", b"", 1.0) | TypeError
await nc.publish("a", b"", "reply") | TypeError
await nc.publish("a b") | InvalidSubject: 'a b' .. spaces
await nc.publish("a.*") | InvalidSubject: 'a.*' .. wildcard
await nc.publish("") | InvalidSubject
await nc.publish("a", {"k": 1}) | TypeError
nc.subscribe("a b") | InvalidSubject
nc.subscribe("a", cb=5) | TypeError
await js.update_stream(max_msgs=1) | TypeError
await js.create_stream("a.b") | InvalidSubject
await js.create_stream("a b") | InvalidSubject
await js.create_stream(5) | TypeError
await js.create_stream("T", subjects="t") | TypeError
await js.create_key_value("n", history=100) | ConfigError
await stream.create_consumer(name="billing") | ConfigError
await stream.update("S") | TypeError
await stream.update(name="T") | ConfigError
await stream.get_message("1") | TypeError
[key async for key in kv.keys("k*")] | InvalidSubject
await kv.get("a b") | InvalidSubject
await kv.update("k", b"1", None) | TypeError
await kv.update("k", b"1") | TypeError
await kv.put("k", 5) | TypeError
await kv.put("k") | TypeError
await nc.add_service("a b", "1.0.0") | ConfigError
await nc.add_service("a", "1") | ConfigError
natsproto.connect("http://a") | ConfigError
natsproto.Client("nats://a") | TypeError: ^runtime is missing: .. natsproto.connect(
Retry(RetryPolicy(dead_letter_subject="dead")) | TypeError: ^policy is missing: Retry(js, policy)
Retry(policy=RetryPolicy(dead_letter_subject="dead")) | TypeError: ^js is missing: Retry(js, policy)
await nc.publish("a", "text") | TypeError: payload must be bytes, not str: .. text.encode()
await nc.publish("a", 5) | TypeError: payload must be bytes, not int: .. json.dumps
await nc.publish("a", ("a", 1)) | TypeError: payload must be bytes, not tuple: .. json.dumps
await nc.publish("a", None) | TypeError: payload must be bytes, not NoneType: .. leave it out
nc.subscribe("a", "workers") | TypeError: takes 1 argument without its name; name queue=, cb=,
nc.subscribe("a", print) | TypeError: takes 1 argument without its name; name queue=, cb=,
await js.create_stream("new", "a.>") | TypeError: 1 argument without its name .. subjects=['orders.>']
await js.create_or_update_stream("new", "a.>") | TypeError: 1 argument without its name .. subjects=['orders.>']
await stream.create_consumer("new", "a.>") | TypeError: name the fields: filter_subject=
await stream.create_or_update_consumer("new", "a.>") | TypeError: name the fields: filter_subject=
await js.create_key_value("new", "a.>") | TypeError: name the fields: ttl=60
await js.create_object_store("new", "a.>") | TypeError: name the fields: ttl=60
natsproto.connect("new", "a.>") | TypeError: connect() takes 1 argument without its name; give one URL
sync.connect("new", "a.>") | TypeError: connect() takes 1 argument without its name; give one URL
RetryPolicy("dead") | TypeError: ^RetryPolicy takes keyword arguments only, such as dead_letter_subject=
natsproto.Event("dead") | TypeError: ^Event takes keyword arguments only$
Retry(nc, RetryPolicy(dead_letter_subject="dead")) | TypeError: with a JetStream context, nc.jetstream(), not Client
consumer.consume_batches(print, timeout=3) | ConfigError: cannot end a def handler
natsproto.Options("nats://127.0.0.1:99999") | ConfigError: '127.0.0.1:99999': the port must be a number from 1 to 65535
await nc.publish("a", b"", reply="x y") | InvalidSubject: reply subject 'x y' .. spaces
await nc.publish("a..b") | InvalidSubject: 'a..b' .. empty token
await nc.request("a\\r\\nb") | InvalidSubject: 'a\\r\\nb' .. control
await nc.publish("a", headers={"k:": "v"}) | InvalidHeader: header name 'k:'
await nc.publish("a", headers={"k": "v\\r\\nx: y"}) | InvalidHeader: 'v\\r\\nx: y' .. CR, LF
nc.subscribe("a.>.b") | InvalidSubject: 'a.>.b' .. last
nc.subscribe("a", queue="q q") | InvalidSubject: queue group 'q q' .. spaces
nc.subscribe("a", queue="") | InvalidSubject: queue group '' .. empty
nc.subscribe("a", slow_policy="whatever") | ConfigError: slow_policy
nc.subscribe("a", max_messages=0) | ConfigError: max_messages
await to_thread(lambda: blocking_kv.update("k", b"1", None)) | TypeError
await to_thread(lambda: blocking_kv.watch(cb=print)) | TypeError: cb .. iterate
await to_thread(lambda: blocking_store.watch(cb=print)) | TypeError: cb .. iterate
nc.jetstream(domain="") | ConfigError
nc.jetstream(domain="a.b") | ConfigError
nc.jetstream(domain="*") | ConfigError
nc.jetstream(domain=">") | ConfigError
nc.jetstream(domain="a b") | ConfigError
nc.jetstream(domain=5) | TypeError
nc.jetstream(domain=[]) | TypeError
nc.jetstream(prefix="a..b") | InvalidSubject
nc.jetstream(prefix="a.*") | InvalidSubject
nc.jetstream(prefix="a b") | InvalidSubject
nc.jetstream(prefix=5) | TypeError
nc.jetstream(prefix=[]) | TypeError
"""
"""Arguments that are refused before anything is sent."""

ANSWERED = """
await js.stream("T") | StreamNotFound
await js.update_stream("T", max_msgs=1) | StreamNotFound
await js.publish("nobody") | NoStream
await js.create_stream("S", max_msgs=7) | StreamExists
await js.key_value("x") | BucketNotFound
await js.create_key_value("b", history=9) | BucketExists
await stream.create_consumer("c", max_deliver=9) | ConsumerExists
await stream.consumer("x") | ConsumerNotFound
await stream.get_message(99) | MessageNotFound
await stream.delete_message(9999) | MessageNotFound
await (await consumer.next()).respond(b"x") | LocalProtocolError
await kv.get("x") | KeyNotFound
await kv.create("k", b"1") | KeyExists
await kv.update("k", b"1", 7) | WrongRevision
await store.get_bytes("x") | ObjectNotFound
await store.info("x") | ObjectNotFound
await js.object_store("x") | BucketNotFound
await nc.request("nobody") | NoResponders: start a service, or check the subject
await nc.request("silent", timeout=0.05) | RequestTimeout: look at its responder, or raise timeout=
await to_thread(lambda: blocking_kv.get("none")) | KeyNotFound
await to_thread(lambda: blocking_js.stream("none")) | StreamNotFound
await to_thread(lambda: blocking_stream.consumer("none")) | ConsumerNotFound
await to_thread(lambda: blocking_nc.request("nobody", b"x")) | NoResponders
"""
"""Calls that are refused after something was sent."""

TABLES = {
    "guesses": GUESSES,
    "keywords": KEYWORDS,
    "attributes": ATTRIBUTES,
    "forgotten": FORGOTTEN,
    "handlers": "\n".join(
        f"{place} | {guesses}TypeError: is a generator function, which does nothing when it is called"
        for places, guesses in (
            (PLACES, "generator async_generator partial_generator an_object an_object.method | "),
            (PLACES_WITH_PARTS, "generator partial_generator an_object an_object.method | "),
            (WRAPPED, ""),
        )
        for place in places.strip().splitlines()
    ),
    "lines": ARGUMENTS,
    "answered": ANSWERED,
    "options": "\n".join(
        f'await natsproto.connect("nats://127.0.0.1:1", {{}}=1) | {line}' for line in OPTIONS.strip().splitlines()
    ),
}
