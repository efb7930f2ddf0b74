"""Where natsproto.compat.nats differs from nats-py.

Owns the words. ``python -m natsproto.compat._differences`` prints the tables of docs/compat.md.
Tests hold the names against both packages.
"""

from __future__ import annotations

_INSIDE = "the inside of nats-py: nothing here corresponds to it"
_WIRE = "a word of the wire protocol"
_ELSEWHERE = "another module's, which has it"

MISSING = {
    "nats.protocol": "the parser of nats-py; in natsproto `natsproto.protocol`",
    "nats.aio.transport": "the sockets of nats-py; in natsproto the option `dialer`",
    **dict.fromkeys(("nats.aio.client.Srv", "nats.aio.client.ServerVersion.parse_version"), _INSIDE),
    **dict.fromkeys(
        (f"nats.micro.service.{name}" for name in ("Endpoint", "EndpointManager", "GroupManager")), _INSIDE
    ),
    "nats.micro.service.ServiceIdentity": _INSIDE,
    **dict.fromkeys((f"nats.aio.client.{name}_OP" for name in ("INFO", "CONNECT", "PING", "PONG", "OK", "ERR")), _WIRE),
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
        _WIRE,
    ),
    **dict.fromkeys(
        (
            *(f"nats.js.client.OBJ_{name}" for name in ("ALL_CHUNKS_PRE_TEMPLATE", "ALL_META_PRE_TEMPLATE")),
            *("nats.js.client.OBJ_STREAM_TEMPLATE", "nats.js.object_store.MSG_ROLLUP_SUBJECT"),
        ),
        _ELSEWHERE,
    ),
}
"""Public names of nats-py that are not here, and why."""

REFUSED = {
    "signature_cb without user_jwt_cb": "`connect(auth=lambda challenge: Credentials(nkey=..., signer=...))`",
    "ObjectStore.put of an ObjectMeta with a link": "`store.add_link()` and `store.add_bucket_link()`",
    "ServiceError with a code that is no number": "`ServiceError(400, ...)`: ADR-32 has numbers",
    "pending_bytes of a push subscription": "`pending_msgs`; natsproto counts messages there",
}
"""What raises NotImplementedError, and the way of natsproto."""

SAFER = {
    "`tls://` and `tls=`": ("plain text when the server offers no TLS", "`connect` fails, and nothing was sent"),
    "Subjects on publish": ("checked for spaces and line ends only", "checked as on subscribe; no wildcards"),
    "`skip_subject_validation`": ("lets line ends into the protocol", "changes nothing"),
    "A server that never confirms CONNECT": ("counts as connected", "the attempt fails after `connect_timeout`"),
    "`close()` and `drain()`": ("may wait for a peer or a reader that is gone", "end after seconds, whoever is gone"),
    "Bucket keys with `validate_keys=False`, and in `purge`": ("anything", "the rules of ADR-8: `InvalidKeyError`"),
    "Lame duck mode": ("stays until the server cuts", "moves to another server at once, and calls `reconnected_cb`"),
    "Messages of a broken connection": ("an ordered consumer may miss some", "none is missed, none comes twice"),
    "Full subscriptions": ("`error_cb` for every message dropped", "`error_cb` once an episode"),
    "`pending_bytes_limit`": ("counts payloads", "counts subjects, headers and payloads"),
    "`pending_msgs_limit` of JetStream subscriptions": ("drops messages", "nothing is dropped: flow control, or pulls"),
    "A heartbeat missed by a push consumer": ("nothing", "it is looked up; reading ends when it is gone"),
    "Retries": ("none", "`js.publish` when no stream answers (0.5 s), and while a cluster elects"),
    "`ObjectStore.update_meta` with another name": ("always `ObjectAlreadyExists`", "renames"),
    "`drain()` of a subscription that is read": ("waits until it was read", "what came can be read afterwards"),
    "`nats.aio.errors`": ("classes that nothing raises", "the classes of `nats.errors`, so `except` catches"),
    "`next_msg()` behind the last message": ("`TimeoutError`", "`BadSubscriptionError` when none can come any more"),
    "`connect_timeout`": ("`asyncio.TimeoutError`", "`nats.errors.TimeoutError`, which is one"),
    "Enumerations": ("`str(AckPolicy.ALL)` is `AckPolicy.ALL`", "it is `all`; comparing is the same"),
    "`nc.connected_url`": ("has user and password", "has not"),
    "Statistics": ("count what passes the socket", "count what the program sent and was given"),
    "Logging": ("`nats.aio.client` logs errors without `error_cb`", "`natsproto` logs every event"),
    "Texts of `ValueError`": ("its own", "others; classes are the same"),
    "`flusher_queue_size`, `flush_timeout`": ("bound its flusher", "change nothing: there is none"),
}
"""What behaves in another way: there, and here."""


def page() -> str:
    """The tables of docs/compat.md."""
    lines = ["## What behaves differently", "", "| what | nats-py | here |", "|---|---|---|"]
    lines += [f"| {what} | {there} | {here} |" for what, (there, here) in SAFER.items()]
    lines += ["", "## What raises NotImplementedError", "", "| what | in natsproto |", "|---|---|"]
    lines += [f"| {what} | {way} |" for what, way in REFUSED.items()]
    lines += ["", "## What is not there", "", "| name | why |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in MISSING.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
