"""Names that natsproto does not have, but programs guess, and what to use instead: one table for error messages.

Most are nats-py's, others those of nats.js, nats.go, redis-py and aiokafka. docs/nats-py-names.md lists all of nats-py.
"""

from __future__ import annotations

from collections.abc import Mapping

_EVENTS = "pass 'on_event', which gets all events"
_STATE = "use nc.state"
_CONSUMER = "make a consumer with stream.create_consumer(...), then use its consume, messages or fetch"
_PUBLISHER = "use async with js.publisher() as publisher"
_OF_STREAM = "streams have it: use stream = await js.stream(name), then"
_OF_JETSTREAM = "use js = nc.jetstream(), then"
_READ_CONSUMER = "make a consumer with stream.create_consumer(name), then use its"
_PAYLOAD = "give the payload second, without a name, or as payload="
_OF_INFO = "this is an info: use stream = await js.stream(info.config.name), then"

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("error_cb", "disconnected_cb", "reconnected_cb", "closed_cb", "on_error", "on_disconnect", "on_reconnect"),
        _EVENTS,
    ),
    **dict.fromkeys(("discovered_server_cb", "lame_duck_mode_cb"), _EVENTS),
    "dont_randomize": "pass 'randomize', False",
    **dict.fromkeys(
        ("address", "host", "hostname", "port", "uri", "url"), 'give the URL first: connect("nats://host:4222")'
    ),
    **dict.fromkeys(("tracer_provider", "meter_provider"), "give it to natsproto.otel.Telemetry, and use its connect"),
    **dict.fromkeys(
        ("ca", "cafile", "ca_file", "ca_certs", "cacert", "tls_ca", "tls_ca_cert", "ssl_cafile"),
        "pass 'tls', with the path: tls='ca.pem'",
    ),
    **dict.fromkeys(("ssl", "ssl_context", "tls_context", "context_tls"), "pass 'tls', with an ssl.SSLContext"),
    **dict.fromkeys(
        ("verify", "tls_verify", "insecure", "tls_insecure", "skip_verify", "verify_ssl"),
        "pass 'tls': tls='ca.pem' for an authority of your own; only an SSLContext of yours can skip the verification",
    ),
    **dict.fromkeys(
        ("timeout", "connection_timeout", "connect_time_out"),
        "pass 'connect_timeout' (seconds of one attempt to connect), or 'request_timeout' for replies",
    ),
    **dict.fromkeys(
        ("reconnect", "auto_reconnect", "no_reconnect", "reconnects"),
        "pass 'allow_reconnect' (True is the default), or 'max_reconnect_attempts'",
    ),
    **dict.fromkeys(
        ("max_reconnects", "max_reconnect", "reconnect_attempts", "max_retries", "retries"),
        "pass 'max_reconnect_attempts'",
    ),
    **dict.fromkeys(("reconnect_interval", "backoff", "retry_delay"), "pass 'reconnect_wait' and 'reconnect_wait_max'"),
    **dict.fromkeys(("username", "login", "user_name"), "pass 'user'"),
    **dict.fromkeys(("passwd", "pwd", "passphrase"), "pass 'password'"),
    **dict.fromkeys(("pinginterval", "ping", "heartbeat", "keepalive", "keep_alive"), "pass 'ping_interval'"),
    **dict.fromkeys(("max_pings_out", "max_outstanding"), "pass 'max_outstanding_pings'"),
    **dict.fromkeys(("credentials", "creds_file", "credentials_file"), "pass 'creds'"),
    **dict.fromkeys(("nkey", "seed"), "pass 'nkey_seed'"),
    **dict.fromkeys(("client_name", "connection_name"), "pass 'name'"),
    **dict.fromkeys(("buffer_size", "reconnect_buf_size"), "pass 'outbox_limit'"),
    **dict.fromkeys(("loop", "io_loop"), "a client uses the running event loop: connect inside of it"),
    "handshake_first": "pass 'tls_first'",
    "max_payload": "the server has that limit: nc.max_payload; 'max_message_size' is the largest one to receive",
    "no_randomize": "pass 'randomize', False",
    "ws_headers": "pass 'websocket_headers'",
    "flush_timeout": "pass a timeout to flush",
    "nkeys_seed": "pass 'nkey_seed'",
    "nkeys_seed_str": "pass 'nkey_seed'",
    "pending_size": "pass 'outbox_limit'",
    "reconnect_time_wait": "pass 'reconnect_wait'",
    "reconnect_to_server_handler": "pass 'reconnect_to_server'",
    "signature_cb": "pass 'auth'",
    "tls_handshake_first": "pass 'tls_first'",
    "user_credentials": "pass 'creds'",
    "user_jwt_cb": "pass 'auth'",
    "ws_connection_headers": "pass 'websocket_headers'",
}

CLIENT: Mapping[str, str] = {
    **dict.fromkeys(("is_closed", "is_connecting", "is_draining", "is_reconnecting"), _STATE),
    "add_stream": "use nc.jetstream().create_stream(...)",
    **dict.fromkeys(("js", "jetstream_context"), "use nc.jetstream()"),
    **dict.fromkeys(("kv", "key_value", "get_key_value"), f"{_OF_JETSTREAM} js.key_value(bucket)"),
    **dict.fromkeys(("disconnect", "quit", "shutdown", "stop"), "use nc.close(), or nc.drain() to handle what arrived"),
    **dict.fromkeys(("publish_msg", "publish_message", "send"), "use nc.publish(subject, payload, headers=...)"),
    **dict.fromkeys(("queue_subscribe", "subscribe_queue"), "use nc.subscribe(subject, queue=...)"),
    **dict.fromkeys(("old_style_request", "request_msg"), "use nc.request(subject, payload, timeout=...)"),
    "publish_request": "use nc.publish(subject, payload, reply=...)",
    "create_stream": f"{_OF_JETSTREAM} js.create_stream(name, subjects=...)",
    "object_store": f"{_OF_JETSTREAM} js.object_store(bucket)",
    "ping": "use nc.rtt() or nc.flush()",
    "status": "use nc.state",
    "unsubscribe": "use subscription.unsubscribe()",
    "connect": "use nc = await natsproto.connect(...)",
    "connected_server_version": "use nc.server_info.version",
    "force_reconnect": "use nc.reconnect()",
    "jsm": "use nc.jetstream()",
    "publish_async": "use async with nc.jetstream().publisher() as publisher",
    "last_error": "read nc.events(), or pass on_event= to connect",
    "set_server_pool": "use nc.set_servers(...)",
}

SUBSCRIPTION: Mapping[str, str] = {
    "messages": "use async for message in subscription",
    "next_msg": "use subscription.next(timeout)",
    **dict.fromkeys(("get", "get_message", "read", "receive", "recv"), "use subscription.next(timeout)"),
    **dict.fromkeys(("close", "stop", "cancel"), "use subscription.unsubscribe(), or subscription.drain()"),
    **dict.fromkeys(("listen", "iterate"), "use async for message in subscription"),
    "auto_unsubscribe": "use subscription.unsubscribe(max_messages=...)",
    "fetch": "use async for batch in subscription.batches()",
}

JETSTREAM: Mapping[str, str] = {
    **dict.fromkeys(("pull_subscribe", "subscribe"), _CONSUMER),
    **dict.fromkeys(("publish_async", "publish_async_completed", "publish_async_pending"), _PUBLISHER),
    **dict.fromkeys(("add_consumer", "create_consumer"), f"{_OF_STREAM} stream.create_consumer(name, ...)"),
    **dict.fromkeys(("consumer", "get_consumer"), f"{_OF_STREAM} stream.consumer(name)"),
    **dict.fromkeys(("consumers", "list_consumers"), f"{_OF_STREAM} async for info in stream.consumers()"),
    **dict.fromkeys(("modify_consumer", "update_consumer"), f"{_OF_STREAM} stream.update_consumer(name, ...)"),
    **dict.fromkeys(("get_stream", "open_stream", "stream_handle"), "use js.stream(name)"),
    **dict.fromkeys(("get_key_value", "get_kv", "kv", "keyvalue"), "use js.key_value(bucket)"),
    **dict.fromkeys(("add_kv", "add_key_value", "create_bucket", "create_kv"), "use js.create_key_value(bucket, ...)"),
    **dict.fromkeys(("delete_bucket", "delete_kv"), "use js.delete_key_value(bucket)"),
    **dict.fromkeys(("create_object", "create_obj", "add_object_store"), "use js.create_object_store(bucket, ...)"),
    **dict.fromkeys(("get_object_store", "object", "objects", "os"), "use js.object_store(bucket)"),
    **dict.fromkeys(("get_streams", "list_streams"), "use async for info in js.streams()"),
    **dict.fromkeys(("consume", "fetch", "messages", "next"), _CONSUMER),
    "get_message": f"{_OF_STREAM} stream.get_message(seq)",
    "info": "use js.account_info()",
    "ordered_consumer": f"{_OF_STREAM} stream.ordered_consumer()",
    "publish_batch": "use async with js.atomic_batch() as batch, or js.publisher()",
    "purge": f"{_OF_STREAM} stream.purge()",
    "add_stream": "use js.create_stream(...)",
    "consumer_info": "use stream.consumer_info(name)",
    "consumers_info": "use async for info in stream.consumers()",
    "delete_consumer": "use stream.delete_consumer(name)",
    "delete_msg": "use stream.delete_message(seq)",
    "find_stream_name_by_subject": "use js.stream_name_by_subject(subject)",
    "get_last_msg": "use stream.get_last_message(subject)",
    "get_msg": "use stream.get_message(seq)",
    "pull_subscribe_bind": "use stream.consumer(name, bind=True)",
    "purge_stream": "use stream.purge(...)",
    "stream_info": "use stream.info(), of stream = await js.stream(name)",
    "streams_info": "use async for info in js.streams()",
    "subscribe_bind": "use stream.push_consumer(name)",
}

STREAM: Mapping[str, str] = {
    **dict.fromkeys(("add_consumer", "pull_subscribe"), "use stream.create_consumer(name, ...)"),
    **dict.fromkeys(("get_consumer", "consumer_handle"), "use stream.consumer(name)"),
    **dict.fromkeys(("list_consumers", "consumers_info"), "use async for info in stream.consumers()"),
    **dict.fromkeys(("get", "get_msg", "read"), "use stream.get_message(seq)"),
    **dict.fromkeys(("get_last", "get_last_msg", "last_message"), "use stream.get_last_message(subject)"),
    **dict.fromkeys(("consume", "fetch", "messages", "next"), f"{_READ_CONSUMER} consume, messages or fetch"),
    **dict.fromkeys(("config", "state"), "use stream.cached_info, or stream.info()"),
    "delete_msg": "use stream.delete_message(seq)",
    "publish": "use js.publish(subject, payload)",
    "subscribe": f"{_READ_CONSUMER} consume or messages",
}

STREAM_INFO: Mapping[str, str] = {
    **{name: f"{_OF_INFO} stream.{name}(...)" for name in ("consumer", "create_consumer", "delete", "get_message")},
    **{name: f"{_OF_INFO} stream.{name}(...)" for name in ("info", "purge", "update")},
    "subjects": "use info.config.subjects",
}

CONSUMER: Mapping[str, str] = {
    **dict.fromkeys(("getone", "next_message", "next_msg", "receive"), "use consumer.next(timeout)"),
    **dict.fromkeys(("getmany", "poll", "pull", "read", "get"), "use consumer.fetch(max_messages, timeout=...)"),
    **dict.fromkeys(("listen", "subscribe", "run"), "use consumer.consume(handler)"),
    **dict.fromkeys(("iterate", "stream"), "use async with consumer.messages() as messages"),
    **dict.fromkeys(("ack", "commit", "nak"), "messages have it: use message.ack()"),
    "config": "use consumer.cached_info.config",
    "update": "use stream.update_consumer(name, ...)",
}

KEY_VALUE: Mapping[str, str] = {
    **dict.fromkeys(("watchall", "watch_all", "subscribe"), "use kv.watch()"),
    **dict.fromkeys(("info", "state"), "use kv.status()"),
    **dict.fromkeys(("set", "write", "set_item"), "use kv.put(key, value)"),
    **dict.fromkeys(("mget", "get_all", "values", "items"), "use kv.get_many(keys)"),
    **dict.fromkeys(("list_keys", "scan", "keys_list"), "use async for key in kv.keys()"),
    **dict.fromkeys(("remove", "unset"), "use kv.delete(key)"),
    **dict.fromkeys(("exists", "has", "contains"), "use kv.get(key), which raises KeyNotFound"),
    **dict.fromkeys(("expire", "setex", "ttl"), "use kv.put(key, value, ttl=...)"),
    **dict.fromkeys(
        ("cas", "compare_and_set", "compare_and_swap"), "use kv.update(key, value, revision), or kv.modify(key, fn)"
    ),
    "setnx": "use kv.create(key, value)",
}

OBJECT_STORE: Mapping[str, str] = {
    **dict.fromkeys(("get_info", "head", "stat"), "use store.info(name)"),
    **dict.fromkeys(("put_blob", "put_bytes", "put_object", "upload", "write"), "use store.put(name, source)"),
    **dict.fromkeys(("download", "get_blob", "get_object", "get_string", "read"), "use store.get_bytes(name)"),
    **dict.fromkeys(("list_objects", "keys", "objects"), "use async for info in store.list()"),
    **dict.fromkeys(("remove", "delete_object"), "use store.delete(name)"),
}

PUBLISH: Mapping[str, str] = {
    **dict.fromkeys(
        ("delay", "countdown", "deliver_at", "deliver_after", "eta"),
        "use schedule=Schedule.after(seconds) or Schedule.at(time) with schedule_target=",
    ),
    **dict.fromkeys(("expiration", "expires", "msg_ttl"), "use ttl="),
    **dict.fromkeys(("id", "message_id", "dedup_id"), "use msg_id="),
    **dict.fromkeys(("data", "message", "body", "msg"), _PAYLOAD),
    **dict.fromkeys(("header", "hdrs"), "use headers="),
    "stream": "use expected_stream=",
}
"""Names of arguments of publishing to a stream."""

CORE_PUBLISH: Mapping[str, str] = {
    **{name: f"only js.publish, to a stream, has it: {advice}" for name, advice in PUBLISH.items()},
    **dict.fromkeys(("data", "message", "body", "msg"), _PAYLOAD),
    **dict.fromkeys(("ttl", "msg_id", "schedule", "expected_stream"), "only js.publish, to a stream, has it"),
    **dict.fromkeys(("timeout", "wait"), "publish waits for no response: use nc.request, or await nc.flush(timeout)"),
    **dict.fromkeys(("reply_to", "reply_subject"), "use reply="),
    **dict.fromkeys(("header", "hdrs"), "use headers="),
}
"""Names of arguments of publishing without a stream."""

SUBSCRIBE: Mapping[str, str] = {
    **dict.fromkeys(("callback", "handler", "on_message"), "use cb="),
    **dict.fromkeys(("group", "queue_group"), "use queue="),
    "max_msgs": "use max_messages=",
}
"""Names of arguments of subscribe."""

CONSUME: Mapping[str, str] = {
    **dict.fromkeys(("callback", "cb"), "pass the handler first"),
    "max_messages": "use prefetch= to keep so many ready, stop_after= to end after so many",
    **dict.fromkeys(("batch", "batch_size"), "use prefetch=, or consume_batches"),
    **dict.fromkeys(
        ("workers", "threads", "max_workers", "parallel"),
        "use concurrency=; executor=True for a handler that blocks",
    ),
    **dict.fromkeys(("max_retries", "retries", "retry", "dead_letter"), "use natsproto.retry.Retry around the handler"),
}
"""Names of arguments of consume."""

CONSUME_BATCHES: Mapping[str, str] = {
    **dict.fromkeys(("batch", "batch_size", "size"), "use max_messages="),
    **dict.fromkeys(("seconds", "interval"), "use max_wait="),
    **dict.fromkeys(("callback", "cb"), "pass the handler first"),
}
"""Names of arguments of consume_batches."""

FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("max_retries", "retries"), "use max_deliver=, or natsproto.retry.Retry around the handler"),
    **dict.fromkeys(("visibility_timeout", "ack_timeout", "consumer_timeout"), "use ack_wait="),
    **dict.fromkeys(("prefetch", "prefetch_count", "concurrency", "keep_alive"), "it is an argument of consume"),
}
"""Names that are no fields of configurations."""

FIELD_MEANINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("deliver", "start"), ("deliver_policy",)),
    **dict.fromkeys(("filter", "filters"), ("filter_subject",)),
    **dict.fromkeys(("subject", "topic", "topics"), ("subjects", "filter_subject")),
    **dict.fromkeys(("max_in_flight", "max_inflight", "max_pending"), ("max_ack_pending",)),
    **dict.fromkeys(("ttl", "expire", "expires", "retention_time", "max_age"), ("ttl", "max_age")),
    **dict.fromkeys(("max_messages", "max_len", "maxlen"), ("max_msgs",)),
    **dict.fromkeys(("dedup_window", "duplicates"), ("duplicate_window",)),
    **dict.fromkeys(("versions", "revisions"), ("history",)),
    "ack": ("ack_policy",),
    "replicas": ("num_replicas",),
}
"""Names of fields of configurations, and those that are meant: the first that the configuration has."""

_TTL = dict.fromkeys(("ex", "expire", "expires", "px", "expiry"), "use ttl=, in seconds")
_REVISION = dict.fromkeys(("rev", "version", "last", "last_revision"), "use revision=")
_TIMEOUT = dict.fromkeys(("deadline", "wait", "time_out", "expires", "max_wait"), "use timeout=, in seconds")

REQUEST: Mapping[str, str] = {
    **dict.fromkeys(("data", "message", "body", "msg", "content"), _PAYLOAD),
    **dict.fromkeys(("header", "hdrs"), "use headers="),
    **_TIMEOUT,
}
"""Names of arguments of request."""

REQUEST_MANY: Mapping[str, str] = {
    **REQUEST,
    **dict.fromkeys(("count", "limit", "max_replies"), "use max_messages="),
}
"""Names of arguments of request_many."""

FETCH: Mapping[str, str] = {
    **dict.fromkeys(("batch", "batch_size", "count", "limit", "max_msgs", "n", "num", "size"), "use max_messages="),
    **_TIMEOUT,
}
"""Names of arguments of fetch and next."""

_SUBJECT = dict.fromkeys(("filter", "filter_subject", "subjects", "filters", "topic"), "use subject=")

GET_BATCH: Mapping[str, str] = {
    **_SUBJECT,
    **dict.fromkeys(("limit", "count", "n", "max_messages", "max_msgs", "size", "batch_size"), "use batch="),
    **dict.fromkeys(("seq", "start", "first", "opt_start_seq", "from_seq"), "use start_seq="),
    **dict.fromkeys(("since", "time", "opt_start_time"), "use start_time="),
}
"""Names of arguments of a stream's get_batch."""

PURGE: Mapping[str, str] = {
    **_SUBJECT,
    **dict.fromkeys(("up_to", "up_to_seq", "before", "sequence", "max_seq"), "use seq=, the first one to keep"),
    **dict.fromkeys(("limit", "count", "last", "keep_last"), "use keep=, the number of newest messages to keep"),
}
"""Names of arguments of a stream's purge."""

RUN_SERVER: Mapping[str, str] = {
    **dict.fromkeys(("js", "enable_jetstream"), "use jetstream=True"),
    **dict.fromkeys(("config_file", "conf"), "use config=, the text of the file"),
    **dict.fromkeys(("username", "login"), "use user="),
    **dict.fromkeys(("data_dir", "storage", "storage_dir"), "use store_dir="),
    **dict.fromkeys(("nodes", "size", "cluster"), "use natsproto.testing.run_cluster"),
    "timeout": "use start_timeout=",
    "ws": "use websocket=True",
}
"""Names of arguments of run_server."""

MESSAGES: Mapping[str, str] = {
    "max_messages": "use prefetch= to keep so many ready, stop_after= to end after so many",
    "batch": "use prefetch=",
    "timeout": "pass it to next of what this returns",
}
"""Names of arguments of messages."""

KV_PUT: Mapping[str, str] = {
    **_TTL,
    **dict.fromkeys(("revision", "last", "version"), "use kv.update(key, value, revision)"),
    "nx": "use kv.create(key, value)",
}
"""Names of arguments of a bucket's put and create."""

KV_READ: Mapping[str, str] = {**_REVISION, "name": "give the key first, without a name, or as key="}
"""Names of arguments of a bucket's get, update, delete, purge and history."""

KV_WATCH: Mapping[str, str] = {
    **dict.fromkeys(("key", "pattern", "filter", "subject"), "name no keys: kv.watch('orders.*')"),
    **dict.fromkeys(("from_revision", "revision", "since"), "use resume_from="),
    **dict.fromkeys(("callback", "handler"), "use cb="),
    "headers_only": "use meta_only=",
    "history": "use include_history=",
}
"""Names of arguments of a bucket's watch."""

KV_LOCK: Mapping[str, str] = {**_TTL, **dict.fromkeys(("timeout", "lease"), "use ttl=, in seconds")}
"""Names of arguments of a bucket's lock."""

PUT_OBJECT: Mapping[str, str] = {
    **dict.fromkeys(("on_progress", "callback"), "use progress="),
    **dict.fromkeys(("chunksize", "chunk"), "use chunk_size="),
    "meta": "use metadata=",
}
"""Names of arguments of an object store's methods."""

OBJECT_GET: Mapping[str, str] = {
    **dict.fromkeys(("start", "begin"), "use offset="),
    **dict.fromkeys(("size", "count"), "use length="),
    "progress": "store.get_file(name, path, progress=...) has it",
}
"""Names of arguments of an object store's get."""

MESSAGE: Mapping[str, str] = {
    **dict.fromkeys(("payload", "body", "content", "value"), "use message.data, or message.text"),
    **dict.fromkeys(("header", "hdr"), "use message.headers"),
    "reply_to": "use message.reply",
    "topic": "use message.subject",
}
"""Names of attributes of messages."""

JS_MESSAGE: Mapping[str, str] = {
    **MESSAGE,
    **dict.fromkeys(("nack", "reject", "negative_ack"), "use message.nak()"),
    **dict.fromkeys(("num_delivered", "deliveries", "delivery_count"), "use message.metadata.num_delivered"),
    **dict.fromkeys(("num_pending", "pending"), "use message.metadata.num_pending"),
    **dict.fromkeys(("sequence", "stream_seq", "offset"), "use message.seq"),
    **dict.fromkeys(("working", "wpi", "progress"), "use message.in_progress()"),
    "commit": "use message.ack()",
    "double_ack": "use message.ack_sync()",
    "timestamp": "use message.time",
}
"""Names of attributes of messages of streams."""

ENTRY: Mapping[str, str] = {
    **dict.fromkeys(("text", "decode", "payload"), "use entry.value, the bytes: entry.value.decode()"),
    **dict.fromkeys(("json", "loads"), "use json.loads(entry.value), or kv.typed(kind)"),
    **dict.fromkeys(("rev", "version", "seq"), "use entry.revision"),
    **dict.fromkeys(("timestamp", "time", "modified"), "use entry.created"),
    "deleted": "use entry.is_deleted",
    "name": "use entry.key",
    "op": "use entry.operation",
}
"""Names of attributes of entries of buckets."""


def hint(name: str, old: Mapping[str, str]) -> str:
    """``: use nc.jetstream()`` for an old name, for the end of a message; empty for other names."""
    return f": {old[name]}" if name in old else ""


ERRORS: Mapping[str, str] = {
    "APIError": "ApiError",
    "AuthorizationError": "NotAuthorized",
    "BadBucketError": "BucketNotFound",
    "BadHeaderError": "InvalidHeader",
    "BadObjectMetaError": "ConfigError",
    "BadRequestError": "ApiError",
    "BadSubjectError": "InvalidSubject",
    "BadSubscriptionError": "SubscriptionClosed",
    "BadTimeoutError": "ConfigError",
    "BucketNotFoundError": "BucketNotFound",
    "ConnectionClosedError": "ConnectionClosed",
    "ConnectionDrainingError": "ConnectionClosed",
    "ConsumerInvalidResetError": "ApiError",
    "DigestMismatchError": "DigestMismatch",
    "DrainTimeoutError": "DrainTimeout",
    "Error": "JetStreamError",
    "FlushTimeoutError": "RequestTimeout",
    "InvalidBucketNameError": "InvalidSubject",
    "InvalidKeyError": "InvalidSubject",
    "InvalidObjectNameError": "ConfigError",
    "InvalidUserCredentialsError": "InvalidCredentials",
    "JsonParseError": "RemoteProtocolError",
    "KeyDeletedError": "KeyDeleted",
    "KeyHistoryTooLargeError": "ConfigError",
    "KeyNotFoundError": "KeyNotFound",
    "KeyValueLimitMarkerTTLNotSupportedError": "UnsupportedByServer",
    "KeyWrongLastSequenceError": "WrongRevision",
    "LinkIsABucketError": "ObjectLinkError",
    "MaxPayloadError": "PayloadTooLarge",
    "MsgAlreadyAckdError": "AlreadyAcked",
    "NoRespondersError": "NoResponders",
    "NoServersError": "ConnectFailed",
    "NoStreamResponseError": "NoStream",
    "NotFoundError": "NotFound",
    "ObjectAlreadyExists": "ObjectExists",
    "ObjectDeletedError": "ObjectNotFound",
    "ObjectNotFoundError": "ObjectNotFound",
    "OutboundBufferLimitError": "OutboxFull",
    "SecureConnFailedError": "TlsFailed",
    "SecureConnRequiredError": "TlsFailed",
    "SecureConnWantedError": "TlsFailed",
    "ServiceUnavailableError": "JetStreamUnavailable",
    "SlowConsumerError": "SlowConsumer",
    "StaleConnectionError": "StaleConnection",
    "TimeoutError": "RequestTimeout",
    "UnexpectedEOF": "ConnectionLost",
}
"""The error of natsproto for one of nats-py."""

ERROR_NAMES: Mapping[str, str] = {name: f"use natsproto.errors.{ours}" for name, ours in ERRORS.items()}

MODULE_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("NATS", "Nats", "NatsClient", "AsyncClient"), "use nc = await natsproto.connect(url)"),
    **dict.fromkeys(("Msg", "RawMsg"), "use natsproto.Message"),
    **dict.fromkeys(
        ("JetStreamContext", "JetStreamManager"), "use js = nc.jetstream(), a natsproto.jetstream.JetStream"
    ),
    "KV": "use natsproto.jetstream.kv.KeyValue",
    "PullConsumer": "use natsproto.jetstream.PullConsumer",
    "run_server": "use natsproto.testing.run_server",
    "Service": "use natsproto.service.Service",
    "compat": "use import natsproto.compat.nats as nats",
    **ERROR_NAMES,
}
"""Names that are looked for in ``natsproto`` itself."""
