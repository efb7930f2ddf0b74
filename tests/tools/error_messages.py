"""An example of every public error, and the table of their messages in docs/error-messages.md.

``python -m tests.tools.error_messages`` writes the table; tests/test_docs.py compares it with the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from natsproto import errors
from natsproto.jetstream._values.error_codes import api_error
from natsproto.protocol.subject import publish_subject

PAGE = Path(__file__).parents[2] / "docs/error-messages.md"
_TABLE = re.compile(r"(?<=<!-- messages: begin -->\n).*?(?=<!-- messages: end -->)", re.DOTALL)

SERVER = "nats.example.com:4222"
GROUPS = {
    "AlreadyExists",
    "NotFound",
    "NatsError",
    "ProtocolError",
    "Unavailable",
    "JetStreamError",
    "KeyValueError",
    "ObjectStoreError",
}
"""Base classes that are not raised themselves."""


def api(err_code: int, description: str, operation: str, code: int = 400) -> errors.ApiError:
    """The error for an answer of the JetStream API."""
    return api_error({"code": code, "err_code": err_code, "description": description}, operation)


def invalid_subject(subject: str) -> errors.InvalidSubject:
    """The error for publishing to this subject."""
    try:
        publish_subject(subject)
    except errors.InvalidSubject as error:
        return error
    raise AssertionError(f"{subject} is valid")


def examples() -> list[errors.NatsError]:
    """One error of each public class."""
    lost = errors.ConnectionLost("closed by the server", SERVER)
    denied = errors.NotAuthorized("Authorization Violation", SERVER)
    uncertain = errors.PublishUncertain("orders.eu", "the connection was lost")
    return [
        errors.ConfigError("ping_interval", -1, "must be a finite number of seconds, 0 or more"),
        invalid_subject("orders..eu"),
        errors.InvalidHeader("header name", "Bad Name", "must be printable ASCII without spaces and colons"),
        errors.InvalidCredentials("password", "needs a user"),
        errors.LocalProtocolError("cannot respond to message on 'orders': it has no reply subject"),
        errors.PayloadTooLarge(2_000_000, 1_048_576),
        errors.RemoteProtocolError("unknown operation", 1024, b"HTTP/1.1 400"),
        errors.ConnectFailed([(SERVER, ConnectionRefusedError(111, "Connection refused"))], 2.0),
        denied,
        errors.LoginRefused([(SERVER, denied)], 0.1, anonymous=True),
        lost,
        errors.StaleConnection(2, SERVER),
        errors.TlsFailed("the certificate is not valid at this time (certificate has expired)", SERVER),
        errors.TlsConnectFailed([(SERVER, errors.TlsFailed("see the cause (wrong version number)", SERVER))], 0.1),
        errors.ConnectionClosed("publish"),
        errors.StreamWentBack("ORDERS", 3, 102),
        errors.OutboxFull(8_388_000, 1024, 8_388_608),
        errors.RequestTimeout("request to 'svc.add'", 5.0, advice="look at its responder, or raise timeout="),
        errors.RequestTimeout("request to 'svc.add'", 5.0, sent=False, disconnected=5.0),
        errors.DrainTimeout("drain", 30.0, ["12 messages of 'orders' not handled"]),
        errors.HandlerTimeout(5.0, True),
        errors.NoResponders("svc.add"),
        errors.InvalidPayload("decode", "Order", "field 'total' is missing"),
        errors.SubscriptionClosed("orders.*"),
        errors.SlowConsumer("orders.*", 17, 65_536, 9_000_000),
        errors.StreamBroken("tokens", 7, "the responder is gone"),
        errors.ServerError("Maximum Connections Exceeded"),
        errors.PermissionDenied("Permissions Violation", "publish to", "secret"),
        errors.TooManySubscriptions("maximum subscriptions exceeded", "orders.*"),
        errors.UnsupportedByServer("message TTLs", "needs nats-server 2.11 or newer"),
        api(10040, "peer not a member", "remove a peer of stream 'ORDERS'"),
        api(10025, "invalid JSON", "create stream 'ORDERS'"),
        api(10176, "batch publish is incomplete and was abandoned", "batch of 3 messages"),
        errors.ConsumerExists(
            400,
            10148,
            "consumer already exists",
            "create consumer 'worker'",
            differences=["max_deliver=3 instead of 5"],
        ),
        errors.ConsumerNotFound(
            404, 10014, "consumer not found", "info of consumer 'wroker' of stream 'ORDERS'", ["worker"]
        ),
        api(10168, "message counter increment is missing", "publish to 'hits'"),
        api(10012, "consumer must be durable", "create consumer 'worker'", 500),
        api(10052, "duplicate source configuration detected", "create stream 'ORDERS'", 500),
        api(10039, "JetStream not enabled for account", "account info", 503),
        api(10008, "JetStream system temporarily unavailable", "create stream 'ORDERS'", 503),
        api(10002, "resource limits exceeded for account", "create stream 'ORDERS'"),
        api(10037, "no message found", "message 7 of stream 'ORDERS'", 404),
        api(10054, "message size exceeds maximum allowed", "publish to 'orders'"),
        api(10189, "message schedule pattern is invalid", "publish to 'orders'"),
        api(10058, "stream name already in use with a different configuration", "create stream 'ORDERS'"),
        api(10059, "stream not found", "stream 'ORDERS'", 404),
        api(10110, "message delete not permitted", "delete message 7 of stream 'ORDERS'"),
        errors.SubjectsOverlap(
            400, 10065, "subjects overlap with an existing stream", "create stream 'NEW'", "ORDERS", "orders.eu"
        ),
        api(10167, "too many requests", "publish to 'orders'", 429),
        api(10166, "per-message TTL is disabled", "publish to 'orders'"),
        api(10060, "expected stream does not match", "publish to 'orders'"),
        api(10071, "wrong last sequence: 41", "publish to 'orders'"),
        errors.AlreadyAcked("orders.eu", "ack", "nak"),
        errors.AlreadyBound("ORDERS", "worker"),
        errors.CursorMoved("ORDERS", "import", 812, 815, 4200),
        errors.SourceChanged("totals", "ORDERS", "was deleted and created again"),
        errors.StateTooLarge("totals", 3, 67_108_900, 67_108_864),
        errors.ConsumerGone("it was deleted", "worker", "ORDERS"),
        errors.ConsumerDeleted("Consumer Deleted", "worker", "ORDERS"),
        errors.DataLost("ORDERS", 1, 5000, "the stream begins at 3001"),
        errors.DeliveryUnknown("ORDERS", "worker", 17, 12),
        errors.GroupChanged("ORDERS", "pricing", "it has 4 members now"),
        errors.GroupNotFound("ORDERS", "pricing"),
        errors.HeartbeatMissed(30.0, "worker"),
        errors.InvalidReply("consumer info", "num_pending", "many", "must be an integer"),
        errors.NoStream("orders.eu"),
        errors.StreamUnavailable("bucket 'orders'", "$KV.orders.eu", 5.0),
        errors.PublishFailed([errors.FailedMessage(17, "orders.eu", 512, uncertain)]),
        uncertain,
        errors.PublishTimeout("orders.eu", 5.0),
        errors.PublishTimeout("orders.eu", 5.0, disconnected=3.2),
        errors.PublishTimeout("orders.eu", 5.0, 3),
        errors.PullRefused(409, "Consumer is push based", "worker"),
        errors.BucketExists("config", ["history=5 instead of 3"]),
        errors.BucketNotFound("config"),
        errors.KeyNotFound("config", "theme"),
        errors.KeyDeleted("config", "theme", 4),
        errors.LockLost("locks", "reindex", 9),
        errors.WrongRevision("config", "theme", 3, 5),
        errors.KeyExists("config", "theme"),
        errors.ObjectNotFound("files", "report.pdf"),
        errors.ObjectExists("files", "report.pdf"),
        errors.ObjectChanged("files", "report.pdf"),
        errors.ObjectLinkError("files", "latest", "its target does not exist"),
        errors.DigestMismatch("files", "report.pdf", "SHA-256=AAA", "SHA-256=BBB", "chunk 3 of 12 is missing"),
        errors.ServiceError(404, "no such order"),
    ]


def message_table() -> str:
    """The messages as a table of Markdown."""
    rows = "".join(f"| `{type(error).__name__}` | {str(error).replace('|', chr(92) + '|')} |\n" for error in examples())
    return f"\n| error | message |\n|---|---|\n{rows}\n"


def page_table() -> str:
    """The table that docs/error-messages.md has."""
    found = _TABLE.search(PAGE.read_text())
    return "" if found is None else found[0]


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: message_table(), PAGE.read_text()))
