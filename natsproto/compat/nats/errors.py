"""``nats.errors``: the exceptions of nats-py, under its names, caught as there.

The texts are part of what programs rely on. The ``__cause__`` is natsproto's own error.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from natsproto.compat._peers import MessagePeer, SubscriptionPeer


class Error(Exception):
    """Base of all. ``text`` is what an exception of the class says when it was given nothing to say."""

    text: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"nats: {self.text}" if self.text else super().__str__()


class TimeoutError(Error, asyncio.TimeoutError):
    text = "timeout"


class NoRespondersError(Error):
    text = "no responders available for request"


class StaleConnectionError(Error):
    text = "stale connection"


class OutboundBufferLimitError(Error):
    text = "outbound buffer limit exceeded"


class UnexpectedEOF(StaleConnectionError):
    text = "unexpected EOF"


class FlushTimeoutError(TimeoutError):
    text = "flush timeout"


class ConnectionClosedError(Error):
    text = "connection closed"


class SecureConnRequiredError(Error):
    text = "secure connection required"


class SecureConnWantedError(Error):
    text = "secure connection not available"


class SecureConnFailedError(Error):
    text = "secure connection failed"


class BadSubscriptionError(Error):
    text = "invalid subscription"


class BadSubjectError(Error):
    text = "invalid subject"


class BadTimeoutError(Error):
    text = "timeout invalid"


class AuthorizationError(Error):
    text = "authorization failed"


class NoServersError(Error):
    text = "no servers available for connection"


class JsonParseError(Error):
    text = "connect message, json parse err"


class MaxPayloadError(Error):
    text = "maximum payload exceeded"


class DrainTimeoutError(TimeoutError):
    text = "draining connection timed out"


class ConnectionDrainingError(Error):
    text = "connection draining"


class ConnectionReconnectingError(Error):
    text = "connection reconnecting"


class InvalidUserCredentialsError(Error):
    text = "invalid user credentials"


class InvalidCallbackTypeError(Error):
    text = "callbacks must be coroutine functions"


class ProtocolError(Error):
    text = "protocol error"


class ServerNotInPoolError(Error):
    text = "selected server is not in the pool"


class NotJSMessageError(Error):
    text = "not a JetStream message"


class BadHeaderError(Error):
    def __init__(self, key: str = "") -> None:
        self.key = key

    def __str__(self) -> str:
        return f"nats: invalid header: {self.key!r}" if self.key else "nats: invalid header"


class SlowConsumerError(Error):
    def __init__(self, subject: str, reply: str, sid: int, sub: SubscriptionPeer) -> None:
        self.subject: str = subject
        self.reply: str = reply
        self.sid: int = sid
        self.sub: SubscriptionPeer = sub

    def __str__(self) -> str:
        return f"nats: slow consumer, messages dropped subject: {self.subject}, sid: {self.sid}, sub: {self.sub}"


class MsgAlreadyAckdError(Error):
    def __init__(self, msg: MessagePeer | None = None) -> None:
        self.msg = msg

    def __str__(self) -> str:
        return f"nats: message was already acknowledged: {self.msg}"


# The names before nats-py 2.0, which ``nats.aio.errors`` has.
NatsError = Error
ErrAuthorization = AuthorizationError
ErrBadHeader = BadHeaderError
ErrBadSubject = BadSubjectError
ErrBadSubscription = BadSubscriptionError
ErrBadTimeout = BadTimeoutError
ErrConnectionClosed = ConnectionClosedError
ErrConnectionDraining = ConnectionDrainingError
ErrConnectionReconnecting = ConnectionReconnectingError
ErrDrainTimeout = DrainTimeoutError
ErrFlushTimeout = FlushTimeoutError
ErrInvalidCallbackType = InvalidCallbackTypeError
ErrInvalidUserCredentials = InvalidUserCredentialsError
ErrJsonParse = JsonParseError
ErrMaxPayload = MaxPayloadError
ErrMsgAlreadyAckd = MsgAlreadyAckdError
ErrNoResponders = NoRespondersError
ErrNoServers = NoServersError
ErrNotJSMessage = NotJSMessageError
ErrOutboundBufferLimit = OutboundBufferLimitError
ErrProtocol = ProtocolError
ErrSecureConnFailed = SecureConnFailedError
ErrSecureConnRequired = SecureConnRequiredError
ErrSecureConnWanted = SecureConnWantedError
ErrServerNotInPool = ServerNotInPoolError
ErrSlowConsumer = SlowConsumerError
ErrStaleConnection = StaleConnectionError
ErrTimeout = TimeoutError
