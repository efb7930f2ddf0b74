"""Where natsproto.compat.nats differs from nats-py.

``python -m tests.compat.differences.table`` prints the tables of docs/compat.md.
Tests check the names against both packages.
"""

from __future__ import annotations

_INTERNAL = "internal to nats-py; there is no counterpart here"
_PROTOCOL = "part of the wire protocol"
_SOCKETS = "the sockets of nats-py; in natsproto the option `dialer`"

MISSING = {
    "nats.protocol": "the parser of nats-py; in natsproto `natsproto.protocol`",
    "nats.aio.transport": _SOCKETS,
    **dict.fromkeys(("nats.aio.client.Srv", "nats.aio.client.ServerVersion.parse_version"), _INTERNAL),
    **dict.fromkeys(
        (f"nats.micro.service.{name}" for name in ("Endpoint", "EndpointManager", "GroupManager")), _INTERNAL
    ),
    "nats.micro.service.ServiceIdentity": _INTERNAL,
    **dict.fromkeys(
        (f"nats.aio.client.{name}_OP" for name in ("INFO", "CONNECT", "PING", "PONG", "OK", "ERR")), _PROTOCOL
    ),
    **dict.fromkeys(
        (
            *(
                f"nats.aio.client.{name}"
                for name in ("PING_PROTO", "PONG_PROTO", "PONG", "EMPTY", "NATS_HDR_LINE_SIZE")
            ),
            *(f"nats.aio.client.{name}" for name in ("AUTHORIZATION_VIOLATION", "PERMISSIONS_ERR", "STALE_CONNECTION")),
            *("nats.js.client.NATS_HDR_LINE_SIZE", "nats.js.manager.NATS_HDR_LINE_SIZE"),
            *("nats.js.object_store.OBJ_NO_PENDING", "nats.js.object_store.OBJ_DIGEST_TEMPLATE"),
        ),
        _PROTOCOL,
    ),
    **dict.fromkeys((f"nats.aio.client.{name}" for name in ("Parser", "prot_command")), _PROTOCOL),
    **dict.fromkeys(
        (f"nats.aio.client.{name}" for name in ("Transport", "TcpTransport", "WebSocketTransport")), _SOCKETS
    ),
    **dict.fromkeys((f"nats.{name}.NATS_HDR_LINE" for name in ("aio.client", "js.client", "js.manager")), _PROTOCOL),
    "nats.nuid.MaxInt": _INTERNAL,
}
"""Public names of nats-py that are missing here, with the reason."""

FOREIGN = """\
The modules of nats-py import names of the standard library and of other packages, such as `json`, `Dict`, `token_hex`.
Import these from their own modules."""

REFUSED = {
    "signature_cb without user_jwt_cb": "`connect(auth=lambda challenge: Credentials(nkey=..., signer=...))`",
    "ObjectStore.put of an ObjectMeta with a link": "`store.add_link()` and `store.add_bucket_link()`",
    "ServiceError with a code that is not a number": "`ServiceError(400, ...)`: ADR-32 requires a number",
    "pending_bytes of a push subscription": "`pending_msgs`; natsproto counts only messages there",
}
"""Uses of nats-py that raise NotImplementedError, with natsproto's alternative."""

SAFER = {
    "`tls://` and `tls=`": ("plain text when the server offers no TLS", "`connect` fails before anything is sent"),
    "A list of servers, one of them `tls://`": (
        "each server as its URL says, so a `nats://` one may get the password in plain text",
        "TLS is required of all of them",
    ),
    "Subjects on publish": ("only checked for spaces and line breaks", "checked as on subscribe; no wildcards"),
    "A server that does not confirm CONNECT with a PONG": (
        "counts as connected",
        "the attempt fails after `connect_timeout`",
    ),
    "`close()` and `drain()`": ("may wait for a peer or a reader that is gone", "end after seconds even then"),
    "Bucket keys with `validate_keys=False`, and in `purge`, `history` and `watch`": (
        "anything",
        "the rules of ADR-8: `InvalidKeyError`",
    ),
    "`max_reconnect_attempts=n`, n > 0": (
        "n + 1 dials of a server, the first after `reconnect_time_wait` if the connection was younger",
        "n + 2 dials, the first at once, so that no outage is too long that nats-py survives",
    ),
    "Lame duck mode": (
        "stays until the server disconnects",
        "moves to another server at once and calls `reconnected_cb`",
    ),
    "Messages around a lost connection": ("an ordered consumer may miss some", "no message is missed or read twice"),
    "`js.subscribe(queue=...)` from several clients at once": ("may leave one without messages", "all get messages"),
    "Full subscriptions": (
        "`error_cb` for every dropped message",
        "`error_cb` at first, and every minute meanwhile",
    ),
    "`pending_bytes_limit`": ("counts payloads", "counts subjects, headers and payloads"),
    "`pending_msgs_limit` of JetStream subscriptions": ("drops messages", "nothing is dropped: flow control, or pulls"),
    "A heartbeat missed by a push consumer": ("nothing", "the consumer is looked up; reading ends if it is gone"),
    "`fetch()` from a consumer that is deleted meanwhile, or that is a push consumer": (
        "`TimeoutError` when the time is over; `[]` then for a batch of several",
        "`ServiceUnavailableError` at once, as for a consumer that was deleted before",
    ),
    "Retries": ("none", "`js.publish` when no stream answers (0.5 s), and while a cluster elects"),
    "`ObjectStore.update_meta` with another name": ("always `ObjectAlreadyExists`", "renames"),
    "`drain()` of a subscription with unread messages": (
        "waits until everything is read",
        "received messages can be read afterwards",
    ),
    "`nats.aio.errors`": ("classes that nothing raises", "the classes of `nats.errors`, so `except` works"),
    "`next_msg()` after the last message": ("`TimeoutError`", "`BadSubscriptionError` when no more can arrive"),
    "`connect_timeout`": ("`asyncio.TimeoutError`", "`nats.errors.TimeoutError`, a subclass of it"),
    "Enumerations": ("`str(AckPolicy.ALL)` is `AckPolicy.ALL`", "it is `all`; comparisons are the same"),
    "`nc.connected_url`": ("contains user and password", "contains neither"),
    "`respond()` and `ack()` to a reply subject of an API or a store, such as `$KV.cfg.admin`": (
        "publish there with the rights of the service",
        "nothing is sent, and a line is logged",
    ),
    "Statistics": (
        "count messages on the socket",
        "count what the program sent and received itself: `out_msgs` is without `js.publish`, buckets and acks",
    ),
    "`reconnect_to_server_handler` that raises": (
        "is called again at once, forever if it always raises, which stops the event loop",
        "`error_cb`, and the default choice is used",
    ),
    "`reconnect_to_server_handler` in `connect`": (
        "is called only after a connection was lost",
        "is called after the first attempt at every server, too",
    ),
    "Logging": ("`nats.aio.client` logs errors without `error_cb`", "`natsproto` logs every event"),
    "Texts of errors about arguments": ("nats-py's", "different; the classes are the same"),
    "`last_error` after a reconnect": ("the error of the last attempt that failed", "`None`"),
    "`error_cb` of a client that gives up after a reset": ("gets the reset once more", "gets it once"),
    "`flush()` while the client reconnects": (
        "returns at once, although nothing was sent",
        "waits for the connection; `FlushTimeoutError` after `timeout`",
    ),
    "`flush()` right after `publish()` or `subscribe()`": (
        "its PING overtakes what is buffered, so it may return before the server has that",
        "returns when the server has received everything before it",
    ),
    "`subscribe(max_msgs=...)`": ("the server keeps the subscription after the limit", "the server ends it"),
    "`next_msg()` of a subscription with a future": ("waits in vain until its timeout", "`Error` at once"),
    "Consumers of watches, listings and ordered subscriptions": ("stay for up to five minutes", "are deleted at once"),
    "Inboxes of `request(old_style=True)` without a reply, and of `keys()` and `history()` without a value": (
        "stay subscribed until the client is closed",
        "end with the call",
    ),
    "`publish_async()` without an acknowledgement": (
        "its future waits for ever; what was buffered in an outage is sent after it",
        "`TimeoutError` after the timeout of the context; what was not sent until then is dropped",
    ),
    "Requests, `js.publish` and other calls that time out while the client reconnects": (
        "are sent after the outage all the same: a message is stored, a stream deleted",
        "are not sent any more",
    ),
    "`close()` in an outage, with data that was not sent": (
        "raises `ConnectionResetError`; `closed_cb` is not called",
        "closes, and `closed_cb` is called",
    ),
    "`ObjectStore.put` of more than `pending_size` in an outage": (
        "`TimeoutError` after the timeout of the context",
        "`OutboundBufferLimitError` at once",
    ),
    "The configuration of ordered consumers": (
        "a heartbeat every 5 s; gone 5 s after its client",
        "a heartbeat every second; gone 5 min after its client, so that it outlasts an outage",
    ),
    "Replies to JetStream calls that are not JSON": ("`json.JSONDecodeError`", "`nats.errors.Error`"),
    "Calls that wait for a reply when the client is closed": ("`TimeoutError`", "`ConnectionClosedError` at once"),
    "A bucket that was deleted": (
        "`NotFoundError`, `KeyNotFoundError`, `ObjectNotFoundError` or others, depending on the call",
        "`BucketNotFoundError`, a `NotFoundError`",
    ),
    "An exception in a handler of a service": ("only the reply says so", "the reply, `error_cb` and the log"),
    "`last_error` of an endpoint whose handler raised": (
        "`ValueError('no')`",
        "`500:ValueError('no')`: code and description, as ADR-32 has it",
    ),
    "Endpoints of a service that was stopped": (
        "are gone from `stats()`; new ones are subscribed and never removed",
        "stay in `stats()`; a new one raises `ValueError`",
    ),
    "`INFO` of a service without description or metadata": (
        "`null`, in Python None",
        '`""` and `{}`, as ADR-32 has it',
    ),
    "Errors of the server, such as an invalid subject with `pedantic`, or an expired login": (
        "close the client for good, without `error_cb`",
        "`error_cb`; the client stays connected, or connects again",
    ),
    "A call with several mistakes, such as an invalid subject after `close()`": (
        "raises the error for one of them",
        "may raise that for another one",
    ),
    "A second message of a subscription with a future": (
        "ends the read loop: the client receives nothing any more and does not notice a lost connection",
        "is dropped",
    ),
    "`reset()` of a service": ("changes only `started`", "sets the counters to zero, as ADR-32 has it"),
    "`stop()` of a service after `close()`": ("`ConnectionClosedError`", "does nothing"),
    "Chunks of objects": ("have no ids", "have a `Nats-Msg-Id`, so that none is stored twice when it is sent again"),
    "Metadata of objects": (
        "JSON with spaces, and with `mtime` and `deleted`; the last of several writers wins unnoticed",
        "JSON without them, under an expected sequence",
    ),
    "`update` and `delete(last=...)` with a later revision than the bucket has": (
        "are refused at once",
        "are refused after up to a second: a leader that was cut off refuses what its successor has stored",
    ),
    "`create`, `update` and `delete(last=...)` of a bucket": (
        "a write that a server refused and stored counts twice",
        "have a header `Natsproto-Write`, by which the write is found then",
    ),
    "`last_error` after a drain that took too long": ("`None`; only `error_cb` is called", "`DrainTimeoutError`"),
    "`connect(allow_reconnect=False)` when no server answers": (
        "dials again and again, then `NoServersError`",
        "the error of the first attempt at each server",
    ),
    "`publish()` before `connect()`": ("`OutboundBufferLimitError`", "`ConnectionClosedError`"),
    "`connect()` of a client that is connected": ("connects again, and two tasks read", "`Error`"),
    "Credentials without a seed": ("`TypeError` or `nkeys.ErrInvalidSeed`", "`InvalidUserCredentialsError`"),
    "`unsubscribe()` in the callback of the subscription": (
        "it is called for the waiting messages, too",
        "it is called no more",
    ),
    "`unsubscribe(limit=...)` of more than 999,999,999": ("the server ends the subscription at once", "has no limit"),
    "`unsubscribe(limit=...)` of a push subscription that has received more": (
        "everything received can be read",
        "reading ends after `limit` messages",
    ),
    "`delivered` of a pull subscription": ("counts status messages, too", "counts messages"),
    "Timeouts of `jetstream()` and `jsm()` that are no positive numbers": ("are not checked", "`ValueError`"),
    "`js.subscribe(config=...)` with a durable name that exists": (
        "`BadRequestError`",
        "the consumer is updated and read on",
    ),
    "`js.subscribe(config=...)` whose `deliver_group` is not its `queue`": (
        "creates the consumer; every later start raises `Error`",
        "the group is `deliver_group`; every start reads",
    ),
    "`subscribe_bind(ordered_consumer=True)`": ("no consumer is created, and nothing arrives", "one is created"),
    "`publish_async()` of a message that is refused": (
        "`error_cb`; its future and `publish_async_completed()` wait for ever",
        "`error_cb`, and its future has the error",
    ),
    "`updates()` of a watcher that was stopped": ("returns an internal object", "returns `None`"),
    "Fields of newer servers that nats-py does not know": (
        "are dropped, so an update with what was read removes them",
        "are kept and sent back",
    ),
    "`updates()` without a timeout, and loops over a watcher, when the client is closed": (
        "wait for ever",
        "`ConnectionClosedError`, and the loop ends",
    ),
    "`pending_msgs` of a pull subscription": ("counts what came after a `fetch` was cancelled", "0"),
    "`NUID` after `os.fork()`": ("both processes make the same ids", "the ids differ"),
    "`pull_subscribe_bind()` without a consumer": ("binds to a consumer named `None`", "`BadSubjectError`"),
}
"""Differences of behaviour: in nats-py, and here."""


_FLUSHER = "there is no flusher"
_READ_AHEAD = "nothing is dropped: flow control limits what the server sends"
_PULLED = "nothing is read ahead"
_NEITHER = "has none in nats-py either"

WITHOUT_EFFECT = {
    "Client.connect(flusher_queue_size=)": _FLUSHER,
    "Client.connect(flush_timeout=)": _FLUSHER,
    "Client.connect(skip_subject_validation=)": "nats-py lets line breaks into the protocol",
    "Client.request(old_style=)": "both styles are one",
    "JetStreamContext.subscribe(pending_msgs_limit=)": _READ_AHEAD,
    "JetStreamContext.subscribe(pending_bytes_limit=)": _READ_AHEAD,
    "JetStreamContext.subscribe_bind(pending_msgs_limit=)": _READ_AHEAD,
    "JetStreamContext.subscribe_bind(pending_bytes_limit=)": _READ_AHEAD,
    "JetStreamContext.pull_subscribe(pending_msgs_limit=)": _PULLED,
    "JetStreamContext.pull_subscribe(pending_bytes_limit=)": _PULLED,
    "JetStreamContext.pull_subscribe_bind(pending_msgs_limit=)": _PULLED,
    "JetStreamContext.pull_subscribe_bind(pending_bytes_limit=)": _PULLED,
    "KeyValue.watch(headers_only=)": _NEITHER,
    "KeyValue.watch(inactive_threshold=)": "the server removes the consumer of a client that is gone after 30 s",
    "ObjectStore.watch(include_history=)": "a store keeps only the newest metadata",
    "ObjectStore.watch(meta_only=)": "an update is metadata",
}
"""Options that are accepted and do nothing, with the reason."""


def page() -> str:
    """Return the tables of docs/compat.md."""
    lines = ["## Differences in behaviour", "", "| difference | nats-py | here |", "|---|---|---|"]
    lines += [f"| {what} | {there} | {here} |" for what, (there, here) in SAFER.items()]
    lines += ["", "## Uses that raise NotImplementedError", "", "| use | natsproto's alternative |", "|---|---|"]
    lines += [f"| {what} | {way} |" for what, way in REFUSED.items()]
    lines += ["", "## Options without effect", "", "| option | reason |", "|---|---|"]
    lines += [f"| `{option}` | {why} |" for option, why in WITHOUT_EFFECT.items()]
    lines += ["", "## Missing names", "", "| name | reason |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in MISSING.items()]
    lines += ["", FOREIGN]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
