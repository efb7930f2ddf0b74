"""Names and keywords that people guess, some 300: each answer contains the word that is meant, and never misleads.

A line is an expression with ``{}`` in the place of the guesses, the guesses, and the word that the answer has to
contain when the guess itself is taken out of it.
"""

from __future__ import annotations

import ast
import inspect
import logging
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.jetstream import JetStream
from natsproto.retry import Retry, RetryPolicy

OPTIONS = """
timeout connection_timeout connect_time_out | 'connect_timeout'
reconnect auto_reconnect no_reconnect reconnects | 'allow_reconnect'
ssl ssl_context tls_context context_tls ca cafile ca_file ca_certs cacert tls_ca ssl_cafile | 'tls'
verify tls_verify insecure verify_ssl | 'tls'
username login user_name | 'user'
passwd pwd passphrase | 'password'
error_cb disconnected_cb reconnected_cb closed_cb lame_duck_mode_cb on_error on_disconnect on_reconnect | 'on_event'
max_reconnects max_reconnect reconnect_attempts max_retries retries | 'max_reconnect_attempts'
reconnect_time_wait reconnect_interval backoff retry_delay | 'reconnect_wait'
pinginterval ping heartbeat keepalive keep_alive | 'ping_interval'
max_pings_out max_outstanding | 'max_outstanding_pings'
user_credentials credentials creds_file credentials_file | 'creds'
nkeys_seed nkeys_seed_str nkey seed | 'nkey_seed'
client_name connection_name | 'name'
host hostname port uri url address | connect("nats://host:4222")
pending_size buffer_size reconnect_buf_size | 'outbox_limit'
dont_randomize no_randomize | 'randomize'
ws_connection_headers ws_headers | 'websocket_headers'
tls_handshake_first handshake_first | 'tls_first'
user_jwt_cb signature_cb | 'auth'
max_payload | 'max_message_size'
loop io_loop | event loop
"""

KEYWORDS = """
await nc.request("a", {}=1) | data message body msg content | payload
await nc.request("a", {}=1) | header hdrs | headers
await nc.request("a", {}=1) | deadline wait time_out expires | timeout
stream.get_batch({}=1) | limit count n max_messages size batch_size | batch
stream.get_batch({}=1) | filter filter_subject subjects | subject
stream.get_batch({}=1) | seq start opt_start_seq | start_seq
await stream.purge({}=1) | filter filter_subject subjects | subject
await stream.purge({}=1) | up_to before sequence | seq
natsproto.testing.run_server({}=1) | js enable_jetstream | jetstream
nc.request_many("a", {}=1) | count limit max_replies | max_messages
nc.request_many("a", {}=1) | data body message | payload
nc.subscribe("a", {}=1) | callback handler on_message | cb=
nc.subscribe("a", {}=1) | group queue_group | queue=
nc.subscribe("a", {}=1) | max_msgs | max_messages=
await js.publish("s.a", {}=1) | data message body msg | payload
await js.publish("s.a", {}=1) | header hdrs | headers
await js.publish("s.a", {}=1) | id message_id dedup_id | msg_id
await js.publish("s.a", {}=1) | expiration expires msg_ttl | ttl
await js.publish("s.a", {}=1) | stream | expected_stream
await js.publish("s.a", {}=1) | delay countdown eta | schedule
await stream.create_consumer("d", {}=1) | deliver start | deliver_policy
await stream.create_consumer("d", {}=1) | prefetch concurrency | consume
await stream.create_consumer("d", {}=1) | max_retries retries | max_deliver
await stream.create_consumer("d", {}=1) | visibility_timeout ack_timeout | ack_wait
await stream.create_consumer("d", {}=1) | filter subject filters | filter_subject
await stream.create_consumer("d", {}=1) | ack | ack_policy
await stream.create_consumer("d", {}=1) | max_in_flight max_inflight max_pending | max_ack_pending
await js.create_stream("T", {}=1) | subject topics topic | subjects
await js.create_stream("T", {}=1) | replicas | num_replicas
await js.create_stream("T", {}=1) | ttl expire retention_time | max_age
await js.create_stream("T", {}=1) | max_messages max_len maxlen | max_msgs
await js.create_stream("T", {}=1) | dedup_window duplicates | duplicate_window
await js.create_key_value("T", {}=1) | replicas | num_replicas
await js.create_key_value("T", {}=1) | expire max_age | ttl
await js.create_key_value("T", {}=1) | versions revisions | history
consumer.fetch({}=1) | count size limit n batch batch_size max_msgs num | max_messages
consumer.fetch({}=1) | wait expires max_wait | timeout
consumer.messages({}=1) | batch max_messages | prefetch
consumer.consume(print, {}=1) | workers threads max_workers parallel | concurrency
consumer.consume(print, {}=1) | batch batch_size max_messages | prefetch
consumer.consume(print, {}=1) | max_retries retries dead_letter | Retry
consumer.consume_batches(print, {}=1) | batch batch_size size | max_messages
consumer.consume_batches(print, {}=1) | seconds interval | max_wait
await consumer.next({}=1) | wait expires max_wait | timeout
await kv.put("k", b"v", {}=1) | ex expire expires px expiry | ttl
await kv.put("k", b"v", {}=1) | revision last version | update
await kv.put("k", b"v", {}=1) | nx | create
await kv.create("k", b"v", {}=1) | ex expire | ttl
await kv.update("k", b"v", {}=1) | last rev version last_revision | revision
await kv.get("k", {}=1) | rev version | revision
await kv.delete("k", {}=1) | rev last last_revision | revision
await kv.purge("k", {}=1) | rev last_revision | revision
await kv.history({}="k") | name | key
kv.watch({}="k") | key pattern filter subject | watch(
kv.watch({}=1) | headers_only | meta_only
kv.watch({}=1) | from_revision revision since | resume_from
kv.watch({}=1) | callback handler | cb
kv.watch({}=1) | history | include_history
kv.lock("l", {}=1) | expire expires ex timeout lease | ttl
await store.put("n", b"v", {}=1) | meta | metadata
await store.put("n", b"v", {}=1) | chunksize chunk | chunk_size
await store.put("n", b"v", {}=1) | on_progress callback | progress
await store.get_bytes("f", {}=1) | on_progress callback | progress
store.get("f", {}=1) | start begin | offset
store.get("f", {}=1) | size count | length
store.get("f", {}=1) | progress | get_file
"""

ATTRIBUTES = """
message.{} | payload body content value | data
message.{} | nack reject negative_ack | nak
message.{} | num_delivered deliveries delivery_count | metadata.num_delivered
message.{} | num_pending pending | metadata.num_pending
message.{} | timestamp | time
message.{} | sequence stream_seq offset | seq
message.{} | header hdr | headers
message.{} | topic | subject
message.{} | working wpi progress | in_progress
message.{} | commit | ack
message.{} | double_ack | ack_sync
message.{} | reply_to | reply
plain.{} | payload body content value | data
plain.{} | reply_to | reply
plain.{} | topic | subject
plain.{} | header hdr | headers
entry.{} | text json decode payload | value
entry.{} | rev version seq | revision
entry.{} | name | key
entry.{} | timestamp time modified | created
entry.{} | deleted | is_deleted
entry.{} | op | operation
nc.{} | js jsm jetstream_context | jetstream()
nc.{} | kv key_value | js.key_value
nc.{} | disconnect quit stop shutdown | close()
nc.{} | is_closed is_reconnecting is_draining status | state
nc.{} | ping | rtt()
nc.{} | send publish_msg | publish(
js.{} | kv keyvalue get_key_value | key_value
js.{} | add_stream | create_stream
js.{} | subscribe pull_subscribe consume fetch | create_consumer
js.{} | stream_info | stream.info()
js.{} | publish_async | publisher
stream.{} | add_consumer | create_consumer
stream.{} | config state | info
stream.{} | get_msg | get_message
consumer.{} | poll pull getmany | fetch
consumer.{} | subscribe listen | consume
consumer.{} | next_msg getone | next(
kv.{} | set write | put
kv.{} | remove | delete
kv.{} | exists has | get(key)
kv.{} | list_keys scan | keys()
kv.{} | cas compare_and_set | update
store.{} | upload put_object | put(
store.{} | download get_object | get_bytes
store.{} | stat head | info(
sub.{} | next_msg recv get | next(
sub.{} | close stop cancel | unsubscribe
"""

CALLS = """
natsproto.Client("nats://a") | natsproto.connect(
Retry(RetryPolicy(dead_letter_subject="dead")) | Retry(js, policy)
Retry(policy=RetryPolicy(dead_letter_subject="dead")) | Retry(js, policy)
"""


@pytest.fixture
async def names(nats_client: Client, jetstream: JetStream) -> dict[str, Any]:
    stream = await jetstream.create_stream("S", subjects=["s.>"], storage="memory")
    await jetstream.publish("s.a", b"1")
    consumer = await stream.create_consumer("c")
    kv = await jetstream.create_key_value("b", storage="memory")
    await kv.put("k", b"1")
    store = await jetstream.create_object_store("o", storage="memory")
    await store.put("f", b"1")
    sub = await nats_client.subscribe("a")
    await nats_client.publish("a", b"1")
    return {
        "natsproto": natsproto,
        "Retry": Retry,
        "RetryPolicy": RetryPolicy,
        "nc": nats_client,
        "js": jetstream,
        "stream": stream,
        "consumer": consumer,
        "kv": kv,
        "store": store,
        "message": await consumer.next(),
        "entry": await kv.get("k"),
        "sub": sub,
        "plain": await sub.next(1),
    }


def rows(table: str) -> list[tuple[str, str, str]]:
    """The expressions, the guesses, and the words that are meant."""
    found = []
    for line in table.strip().splitlines():
        *expression, guesses, word = line.split(" | ")
        found += [(expression[0] if expression else "", guess, word) for guess in guesses.split()]
    return found


async def answer(code: str, names: dict[str, Any]) -> str:
    """What the error of an expression says; what works says nothing."""
    try:
        done = eval(compile(code, "<guess>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(done):
            await done
    except (AttributeError, TypeError, natsproto.errors.ConfigError) as exc:
        return str(exc)
    return "nothing"


async def test_guesses_are_answered_with_the_right_word(names: dict[str, Any]) -> None:
    connect = 'await natsproto.connect("nats://127.0.0.1:1", {}=1)'
    guesses = [(connect, guess, word) for _, guess, word in rows(OPTIONS)] + rows(KEYWORDS) + rows(ATTRIBUTES)
    assert len(guesses) >= 300
    wrong = []
    for expression, guess, word in guesses:
        said = await answer(expression.format(guess), names)
        known = said.replace(f"'{guess}'", "").replace(f"'{type(names['message']).__name__}'", "")
        if word not in known:
            wrong.append(f"{expression.format(guess)}: {word} is not in: {said}")
    assert wrong == []


@pytest.mark.parametrize("line", CALLS.strip().splitlines())
async def test_calls_that_lack_something_say_what(names: dict[str, Any], line: str) -> None:
    code, word = line.split(" | ")
    said = await answer(code, names)
    assert word in said
    assert "required positional argument" not in said


@pytest.mark.parametrize(
    ("option", "value", "warns"),
    [("connect_timeout", 2000, True), ("request_timeout", 5000, True), ("connect_timeout", 120, False)],
)
async def test_milliseconds_of_options_are_noted(
    caplog: pytest.LogCaptureFixture, option: str, value: int, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING, "natsproto"):
        natsproto.Options(**{option: value})  # type: ignore[arg-type]
    assert [f"{option}={value}" in record.getMessage() for record in caplog.records] == [True] * warns


async def test_milliseconds_of_consumers_are_noted(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"], storage="memory")
    with caplog.at_level(logging.WARNING, "natsproto"):
        await stream.create_consumer("good", ack_wait=3600)
        assert caplog.records == []
        await stream.create_consumer("odd", ack_wait=30000)
    [record] = caplog.records
    assert "ack_wait=30000" in record.getMessage()
    assert "seconds" in record.getMessage()
