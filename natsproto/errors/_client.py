"""Errors of the protocol, the connection and core messaging."""

from __future__ import annotations

from collections.abc import Sequence

from natsproto.errors._base import NatsError, RequestTimeout, Transience, Unavailable

# ---------------------------------------------------------------- protocol


class ProtocolError(NatsError):
    """The client or the server broke the wire protocol."""


class LocalProtocolError(ProtocolError):
    """A call is not possible in this state, or the protocol or the server does not allow it; nothing was sent."""


class PayloadTooLarge(LocalProtocolError):
    """The message, headers included, exceeds the server's max_payload; nothing was sent."""

    size: int
    """Bytes of headers and payload together."""
    limit: int
    """The ``max_payload`` of the connected server, in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"message of {size} bytes (with headers) exceeds the server's max_payload of {limit}: "
            "split it, use an object store, or raise max_payload"
        )


class RemoteProtocolError(ProtocolError):
    """The server sent bytes that are not the NATS protocol; the client drops the connection.

    ``position`` counts bytes from the start of the connection, ``excerpt`` holds the first bytes there.
    """

    reason: str
    """The rule of the protocol that was broken."""
    position: int
    excerpt: bytes

    def __init__(self, reason: str, position: int = 0, excerpt: bytes = b"") -> None:
        self.reason, self.position, self.excerpt = reason, position, excerpt
        where = f" at byte {position}: {excerpt!r}" if excerpt else f" at byte {position}"
        super().__init__(f"{reason}{where}")


# ---------------------------------------------------------------- connection


class ConnectFailed(Unavailable):
    """No server of the pool accepted a connection. ``attempts`` holds (address, cause) in order."""

    _transience = Transience.OUTAGE

    attempts: tuple[tuple[str, BaseException], ...]
    elapsed: float
    """Seconds spent on all attempts."""

    def __init__(
        self, attempts: Sequence[tuple[str, BaseException]], elapsed: float = 0.0, *, advice: str = ""
    ) -> None:
        self.attempts, self.elapsed = tuple(attempts), elapsed
        causes = "; ".join(_cause_at(address, exc) for address, exc in self.attempts) or "the pool is empty"
        what = f"could not connect to any server in {elapsed:.1f} s: {causes}"
        super().__init__(f"{what}: {advice}" if advice else what)


class NotAuthorized(Unavailable):
    """The server rejected or revoked the credentials; ``reason`` is the text of the server."""

    reason: str
    server: str
    """``host:port``; "" where it is not known."""

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"{server or 'the server'} rejected the credentials: {reason}")


class LoginRefused(ConnectFailed, NotAuthorized):
    """Every server was reached and rejected the credentials.

    ``attempts`` holds (address, cause), ``reason`` is the text of the last server; ``anonymous`` is true when no
    credentials were given.
    """

    _transience = Transience.NEVER

    server: str
    """``host:port`` of the last one."""
    reason: str
    anonymous: bool

    def __init__(
        self, attempts: Sequence[tuple[str, NotAuthorized]], elapsed: float = 0.0, *, anonymous: bool = False
    ) -> None:
        super().__init__(attempts, elapsed)
        self.server, last = attempts[-1]
        self.reason, self.anonymous = last.reason, anonymous
        what = "a client without credentials" if anonymous else "the credentials"
        refusals = "; ".join(f"{server} rejected {what}: {refusal.reason}" for server, refusal in attempts)
        advice = "check them, and the users in the configuration of the server"
        if anonymous:
            advice = "give user and password, token, creds, nkey_seed, jwt or auth"
        self.args: tuple[str, ...] = (f"{refusals}: {advice}",)


class ConnectionLost(Unavailable):
    """The connection broke. The outcome of a pending call is unknown unless its documentation says otherwise."""

    _transience = Transience.OUTAGE

    reason: str
    """The cause in words: closed by the server, a write that failed …"""
    server: str
    """``host:port``; "" where it is not known."""

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"connection to {server} lost: {reason}" if server else f"connection lost: {reason}")


class StaleConnection(ConnectionLost):
    """The server did not answer several pings in a row; it is gone or frozen."""

    def __init__(self, outstanding: int, server: str = "") -> None:
        self.outstanding = outstanding
        super().__init__(f"{outstanding} pings without an answer", server)


class TlsFailed(Unavailable):
    """The TLS handshake failed; nothing was sent unencrypted. ``reason`` says what to do."""

    reason: str
    server: str
    """``host:port``; "" where it is not known."""

    def __init__(self, reason: str, server: str = "") -> None:
        self.reason, self.server = reason, server
        super().__init__(f"TLS with {server or 'the server'} failed: {reason}")


class TlsConnectFailed(ConnectFailed, TlsFailed):
    """TLS failed with every server. ``attempts`` holds (address, cause), ``reason`` says what to do about the last."""

    server: str
    """``host:port`` of the last one."""
    reason: str

    def __init__(self, attempts: Sequence[tuple[str, TlsFailed]], elapsed: float = 0.0) -> None:
        ConnectFailed.__init__(self, attempts, elapsed)
        self.server, self.reason = attempts[-1][0], attempts[-1][1].reason


class ConnectionClosed(Unavailable):
    """The client was closed by close(), by drain(), or because it ran out of servers; connect again to continue.

    ``reason``, also its cause, is the error that closed the client; None when the application did.
    """

    operation: str
    """The call that found the client closed."""
    reason: Exception | None

    def __init__(self, operation: str = "", reason: Exception | None = None) -> None:
        self.operation, self.reason = operation, reason
        self.__cause__: BaseException | None = reason
        what = f"{operation}: the connection is closed" if operation else "the connection is closed"
        super().__init__(f"{what}{'' if reason is None else f' ({reason})'}: connect again")


class OutboxFull(Unavailable):
    """The outbox holds ``outbox_limit`` bytes already; this message was not accepted."""

    _transience = Transience.OUTAGE

    buffered: int
    """Bytes that wait already."""
    size: int
    """Bytes that this message would add."""
    limit: int
    """The option ``outbox_limit``, in bytes."""

    def __init__(self, buffered: int, size: int, limit: int) -> None:
        self.buffered, self.size, self.limit = buffered, size, limit
        super().__init__(
            f"outbox is full: {buffered} bytes are buffered, {size} more would exceed the limit of {limit}: "
            "await publish() for back-pressure, wait for the reconnect, or raise outbox_limit"
        )


# ---------------------------------------------------------------- messaging


class DrainTimeout(RequestTimeout):
    """drain() reached its deadline; ``unfinished`` lists what was left."""

    _transience = Transience.NEVER

    unfinished: tuple[str, ...]

    def __init__(self, operation: str, timeout: float, unfinished: Sequence[str]) -> None:
        self.unfinished = tuple(unfinished)
        super().__init__(operation, timeout)
        self.args: tuple[str, ...] = (
            f"{operation}: not finished within {round(timeout, 3):g} s; unfinished: {'; '.join(unfinished)}",
        )


class HandlerTimeout(NatsError, TimeoutError):
    """A handler took longer than its ``timeout``. It was cancelled, or goes on in its thread, which cannot be."""

    timeout: float
    """Seconds that it was given."""
    still_running: bool
    """True if it goes on in a thread. Its message is neither acknowledged, returned nor retried meanwhile."""

    def __init__(self, timeout: float, still_running: bool) -> None:
        self.timeout, self.still_running = timeout, still_running
        goes_on = "; its thread goes on, as a thread cannot be cancelled" if still_running else ""
        super().__init__(f"the handler took longer than {timeout:g} s{goes_on}")


class NoResponders(NatsError):
    """The subject has no subscribers, so the server rejected the request at once."""

    _transience = Transience.ELECTION
    _means_absent = True

    def __init__(self, subject: str) -> None:
        self.subject = subject
        advice = "start a service, or check the subject"
        if subject.startswith("$JS.ACK."):
            advice = "acknowledgements need JetStream, and in an account that imports the stream also $JS.ACK of it"
        super().__init__(f"no responders: nothing is subscribed to {subject!r}: {advice}")


class InvalidPayload(NatsError, ValueError):
    """A codec cannot encode a value (nothing was sent), or cannot decode a payload.

    ``kind`` is the requested type, ``reason`` says what is wrong and where.
    """

    operation: str
    """``encode`` or ``decode``."""
    kind: str
    reason: str

    def __init__(self, operation: str, kind: str, reason: str) -> None:
        self.operation, self.kind, self.reason = operation, kind, reason
        super().__init__(f"cannot {operation} {kind}: {reason}")


class SubscriptionClosed(NatsError):
    """The subscription has ended and all its messages were delivered."""

    subject: str
    """The subject as subscribed, or the consumer or watch in words."""
    reason: str
    """The cause in words: ``unsubscribed``, ``stopped``, the client was closed …"""

    def __init__(self, subject: str, reason: str = "unsubscribed") -> None:
        self.subject, self.reason = subject, reason
        super().__init__(f"subscription to {subject!r} is closed: {reason}")


class StreamBroken(NatsError):
    """A stream of responses ended early: parts were lost, or the responder is gone or silent.

    ``received`` parts were read before that, in order and without a gap; ``reason`` says what happened.
    """

    subject: str
    """Where the request went."""
    received: int
    reason: str

    def __init__(self, subject: str, received: int, reason: str) -> None:
        self.subject, self.received, self.reason = subject, received, reason
        super().__init__(f"stream from {subject!r} broken after {received} parts: {reason}")


class SlowConsumer(NatsError):
    """A subscription was read too slowly; ``dropped`` messages were lost since it fell behind."""

    subject: str
    """As subscribed, with its wildcards."""
    dropped: int
    pending_msgs: int
    """Messages that waited to be read when the limit was reached."""
    pending_bytes: int
    """The bytes of subjects, headers and payloads that waited."""

    def __init__(self, subject: str, dropped: int, pending_msgs: int, pending_bytes: int) -> None:
        self.subject, self.dropped = subject, dropped
        self.pending_msgs, self.pending_bytes = pending_msgs, pending_bytes
        super().__init__(
            f"slow consumer on {subject!r}: {dropped} messages dropped while "
            f"{pending_msgs} messages ({pending_bytes} bytes) were waiting"
        )


class ServerError(NatsError):
    """The server sent ``-ERR``; ``text`` is its text without the quotes."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"server error: {text}")


class PermissionDenied(ServerError):
    """The user has no permission to publish or subscribe to ``subject``."""

    operation: str
    """``publish to``, ``publish with reply`` or ``subscribe to``."""
    subject: str
    queue: str
    """The queue group of the subscription; "" for none."""

    def __init__(self, text: str, operation: str, subject: str, queue: str = "") -> None:
        self.operation, self.subject, self.queue = operation, subject, queue
        super().__init__(text)
        group = f" queue {queue!r}" if queue else ""
        advice = "allow it in the permissions of the user"
        if subject.startswith("_INBOX."):
            advice += ", or pass inbox_prefix= with a prefix that it may subscribe to"
        self.args: tuple[str, ...] = (f"permission denied: {operation} {subject!r}{group}: {advice}",)


class TooManySubscriptions(ServerError):
    """The client has as many subscriptions as the server allows; the server rejected the one on ``subject``."""

    subject: str
    queue: str
    """The queue group of the subscription; "" for none."""

    def __init__(self, text: str, subject: str = "", queue: str = "") -> None:
        self.subject, self.queue = subject, queue
        super().__init__(text)
        if subject:
            what = f"subscription to {subject!r}{f' queue {queue!r}' if queue else ''}"
            advice = "end other subscriptions, use a wildcard, or raise the server's max_subscriptions"
            self.args: tuple[str, ...] = (f"{what} rejected: {text}: {advice}",)


class UnsupportedByServer(NatsError):
    """The connected server lacks a required feature (headers, TLS, a JetStream API level …)."""

    feature: str
    """The missing feature in words, or the name of the argument."""
    reason: str
    """The version or the setting that the server lacks."""

    def __init__(self, feature: str, reason: str) -> None:
        self.feature, self.reason = feature, reason
        super().__init__(f"{feature}: {reason}")


def _cause_at(address: str, exc: BaseException) -> str:
    """Return the text of a cause, with the address before it unless it has the address."""
    text = _cause(exc)
    return text if address in text else f"{address}: {text}"


def _cause(exc: BaseException) -> str:
    text = str(exc)
    return text if isinstance(exc, NatsError) and text else f"{type(exc).__name__}{': ' if text else ''}{text}"
