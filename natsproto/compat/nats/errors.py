"""``nats.errors``: the exceptions of nats-py, under its names, caught as there.

The texts are part of what programs rely on. What natsproto knew of the failure is the ``__cause__``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from natsproto.compat.nats.aio.msg import Msg
    from natsproto.compat.nats.aio.subscription import Subscription


class Error(Exception):
    """Base of all. ``text`` is what an exception of the class says when it was given nothing to say."""

    text: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"nats: {self.text}" if self.text else super().__str__()


class TimeoutError(Error, asyncio.TimeoutError):
    text = "timeout"


def error(name: str, text: str = "", *bases: type[Error], module: str = __name__) -> type[Error]:
    """An exception that says this."""
    return type(name, bases or (Error,), {"text": text, "__module__": module})


NoRespondersError = error("NoRespondersError", "no responders available for request")
StaleConnectionError = error("StaleConnectionError", "stale connection")
OutboundBufferLimitError = error("OutboundBufferLimitError", "outbound buffer limit exceeded")
UnexpectedEOF = error("UnexpectedEOF", "unexpected EOF", StaleConnectionError)
FlushTimeoutError = error("FlushTimeoutError", "flush timeout", TimeoutError)
ConnectionClosedError = error("ConnectionClosedError", "connection closed")
SecureConnRequiredError = error("SecureConnRequiredError", "secure connection required")
SecureConnWantedError = error("SecureConnWantedError", "secure connection not available")
SecureConnFailedError = error("SecureConnFailedError", "secure connection failed")
BadSubscriptionError = error("BadSubscriptionError", "invalid subscription")
BadSubjectError = error("BadSubjectError", "invalid subject")
BadTimeoutError = error("BadTimeoutError", "timeout invalid")
AuthorizationError = error("AuthorizationError", "authorization failed")
NoServersError = error("NoServersError", "no servers available for connection")
JsonParseError = error("JsonParseError", "connect message, json parse err")
MaxPayloadError = error("MaxPayloadError", "maximum payload exceeded")
DrainTimeoutError = error("DrainTimeoutError", "draining connection timed out", TimeoutError)
ConnectionDrainingError = error("ConnectionDrainingError", "connection draining")
ConnectionReconnectingError = error("ConnectionReconnectingError", "connection reconnecting")
InvalidUserCredentialsError = error("InvalidUserCredentialsError", "invalid user credentials")
InvalidCallbackTypeError = error("InvalidCallbackTypeError", "callbacks must be coroutine functions")
ProtocolError = error("ProtocolError", "protocol error")
ServerNotInPoolError = error("ServerNotInPoolError", "selected server is not in the pool")
NotJSMessageError = error("NotJSMessageError", "not a JetStream message")


class BadHeaderError(Error):
    def __init__(self, key: str = "") -> None:
        self.key = key

    def __str__(self) -> str:
        return f"nats: invalid header: {self.key!r}" if self.key else "nats: invalid header"


class SlowConsumerError(Error):
    def __init__(self, subject: str, reply: str, sid: int, sub: Subscription) -> None:
        self.subject, self.reply, self.sid, self.sub = subject, reply, sid, sub

    def __str__(self) -> str:
        return f"nats: slow consumer, messages dropped subject: {self.subject}, sid: {self.sid}, sub: {self.sub}"


class MsgAlreadyAckdError(Error):
    def __init__(self, msg: Msg | None = None) -> None:
        self.msg = msg

    def __str__(self) -> str:
        return f"nats: message was already acknowledged: {self.msg}"
