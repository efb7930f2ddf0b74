"""Responses that are not sent: their reply subject would lend the client's permissions to the sender of the message.

A reply subject is the choice of the sender of the message. With ``$KV.cfg.admin`` or ``$JS.API.STREAM.DELETE.ORDERS``
the response of an echo service would write a key or delete a stream, which the sender itself may not do. Owns the count
of the refusals that were not reported yet.
"""

from __future__ import annotations

import asyncio

from natsproto import errors
from natsproto._core.event_bus import EventBus
from natsproto._core.events import ReplyRefused
from natsproto.protocol.subject import is_api_subject, publish_subject

REPORT_INTERVAL_S = 1.0
"""Seconds between two reports: anybody may send such messages without end."""

_API_REASON = "it is a subject of an API or a store (the option allow_api_replies=True allows it)"

MAX_REPLY_LENGTH = 4000
"""Bytes of a reply subject, which is the choice of others: a response to a longer one might be a line that is too long
for the server, which would close our connection.
"""


def reply_subject(reply: str) -> bytes:
    """Return a reply subject of a received message as it is sent. InvalidSubject."""
    wire = publish_subject(reply, "reply subject")
    if len(wire) > MAX_REPLY_LENGTH:
        raise errors.InvalidSubject("reply subject", reply, f"is {len(wire)} bytes long, more than {MAX_REPLY_LENGTH}")
    return wire


class ReplyGuard:
    """Refuses reply subjects, and reports them. ``allow_apis`` is the option ``allow_api_replies``."""

    __slots__ = ("_allow_apis", "_event_bus", "_quiet_until", "_unreported")

    def __init__(self, event_bus: EventBus, *, allow_apis: bool) -> None:
        self._event_bus, self._allow_apis = event_bus, allow_apis
        self._unreported = 0
        self._quiet_until = 0.0

    def is_refused(self, reply: str) -> bool:
        """True if no response may be sent to this subject. Only subjects that begin with ``$`` need the check."""
        if self._allow_apis or not is_api_subject(reply):
            return False
        self.refuse(reply, _API_REASON)
        return True

    def is_allowed(self, reply: str) -> bool:
        """True if messages may be sent to this subject; reports a refusal, and an invalid subject."""
        try:
            reply_subject(reply)
        except errors.InvalidSubject as exc:
            self.refuse(reply, exc.rule)
            return False
        return reply[:1] != "$" or not self.is_refused(reply)

    def refuse(self, reply: str, reason: str) -> None:
        """Report a response that is not sent, at most once in REPORT_INTERVAL_S."""
        self._unreported += 1
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + REPORT_INTERVAL_S
            count, self._unreported = self._unreported, 0
            self._event_bus.emit(ReplyRefused(reply=reply, reason=reason, count=count))
