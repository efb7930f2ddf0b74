"""The link: one connection's life, from the server's INFO to the last byte.

Owns the handshake, the current INFO, the pings in flight and the pending PONGs. Received bytes go into ``receive``,
which returns events; bytes to send come from ``take_output``. It does no I/O and reads no clock: the session does the
TLS handshake, finds the credentials and keeps the time.

::

    AWAIT_INFO ──INFO──▶ AWAIT_CREDENTIALS ──CONNECT──▶ AUTHENTICATING ──PONG──▶ READY
        │                     ▲
        └──INFO, TLS wanted──▶ UPGRADING ──TLS done──┘              any ──failure──▶ FAILED
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import TypeAlias, TypeVar

from natsproto import errors
from natsproto._value import Value
from natsproto.protocol import commands
from natsproto.protocol.frames import NO_INFO, Err, Frame, Ping, Pong, Route, ServerInfo
from natsproto.protocol.parser import MAX_MESSAGE, Parser
from natsproto.protocol.server_errors import parse_server_error

_BYTES_BEFORE_TLS = "unencrypted bytes before TLS"
# An attacker in the middle could have injected them: reject them, never keep them (CVE-2021-23222).

T = TypeVar("T")

MAX_PENDING_PONGS = 1024
"""PINGs answered for one read; a peer that sends more in one chunk is flooding."""


class LinkState(Enum):
    """The states of a connection."""

    AWAIT_INFO = auto()
    """Connected; the server has not sent its INFO."""
    UPGRADING = auto()
    """The TLS handshake is next."""
    AWAIT_CREDENTIALS = auto()
    """CONNECT is to be sent, with the credentials for the server's nonce."""
    AUTHENTICATING = auto()
    """CONNECT was sent; a PONG accepts it."""
    READY = auto()
    """Accepted: messages may flow."""
    FAILED = auto()
    """The end: nothing is parsed any more."""


class Trigger(Enum):
    """The triggers of state changes."""

    INFO = auto()
    INFO_THEN_TLS = auto()
    TLS_DONE = auto()
    CONNECT_SENT = auto()
    PONG = auto()
    FAILURE = auto()


TRANSITIONS: Mapping[tuple[LinkState, Trigger], LinkState] = {
    (LinkState.AWAIT_INFO, Trigger.INFO): LinkState.AWAIT_CREDENTIALS,
    (LinkState.AWAIT_INFO, Trigger.INFO_THEN_TLS): LinkState.UPGRADING,
    (LinkState.UPGRADING, Trigger.TLS_DONE): LinkState.AWAIT_CREDENTIALS,
    (LinkState.AWAIT_CREDENTIALS, Trigger.INFO): LinkState.AWAIT_CREDENTIALS,
    (LinkState.AWAIT_CREDENTIALS, Trigger.CONNECT_SENT): LinkState.AUTHENTICATING,
    (LinkState.AUTHENTICATING, Trigger.INFO): LinkState.AUTHENTICATING,
    (LinkState.AUTHENTICATING, Trigger.PONG): LinkState.READY,
    (LinkState.READY, Trigger.INFO): LinkState.READY,
    **{(state, Trigger.FAILURE): LinkState.FAILED for state in LinkState},
}


_FOREIGN = (
    (b"HTTP/", "answered like an HTTP server: is this the monitoring port?"),
    (b"SSH-", "answered like an SSH server"),
    (b"\x15\x03", "answered with TLS: then use tls_first=True"),
    (b"220", "answered like a mail or FTP server"),
    (b"+PONG", "answered like a Redis server"),
)
"""First bytes of other kinds of servers, and the hint for each."""


def describe_peer(begun: bytes) -> str:
    """Return a hint about a peer that sends this instead of INFO."""
    return next((words for start, words in _FOREIGN if begun.startswith(start)), "is it a NATS server at all?")


class UpgradeTls(Value):
    """Do the TLS handshake now, then call secured(). Nothing may have been read after the INFO."""


class NeedCredentials(Value):
    """Find the credentials for this INFO and call authenticate()."""

    info: ServerInfo


class Ready(Value):
    """The server accepted the connection; subscribe, then publish."""

    info: ServerInfo


class InfoChanged(Value):
    """The server sent a new INFO."""

    info: ServerInfo


class PongFor(Value):
    """The ping sent with this token was answered."""

    token: object
    """The value that the ping was sent with."""


class ServerErr(Value):
    """The server sent -ERR. It closes the connection itself if it means to."""

    error: errors.NatsError


class LinkFailed(Value):
    """The connection has failed; always the last event of a link."""

    error: errors.NatsError


LinkEvent: TypeAlias = UpgradeTls | NeedCredentials | Ready | InfoChanged | PongFor | ServerErr | LinkFailed
"""The results of ``Link.receive``."""


class Link:
    """One connection to one server.

    ``tls_required``: the user requires TLS whatever INFO says. ``secured``: TLS, if any, is the transport's business
    (TLS first, WebSocket), and the TLS fields of INFO are ignored. ``max_message`` goes to the Parser
    at once, ``routes`` when the server has accepted us: no message is routed before.
    """

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        *,
        tls_required: bool = False,
        secured: bool = False,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.parser: Parser = Parser({}, max_message=max_message)
        self.state: LinkState = LinkState.AWAIT_INFO
        self.info: ServerInfo = NO_INFO
        self.server_err: errors.NatsError | None = None
        """The last -ERR: the reason for the end of the connection, if that follows."""
        self.info_in_clear: bool = False
        """True if ``info`` came before TLS, when an attacker could have written it."""
        self._routes = routes
        self.tls_required: bool = tls_required
        self._secured = secured
        self._pings: deque[object] = deque()
        self.pending_pongs: int = 0
        """Unanswered PINGs of the server; take_output() answers them."""
        self._silent_ticks = 0

    def receive(self, chunk: bytes) -> list[LinkEvent]:
        """Take bytes from the server and return what follows from the control frames in them.

        Never raises for invalid data: that is the event LinkFailed, and all messages before it have been delivered. The
        routes that received messages are in ``parser.touched``; the caller takes them out.
        """
        return self._receive(self.parser.feed, chunk)

    def receive_into_room(self, count: int) -> list[LinkEvent]:
        """As receive(), for ``count`` bytes that were written to ``parser.large.room``."""
        return self._receive(self.parser.filled, count)

    def _receive(self, feed: Callable[[T], None], what: T) -> list[LinkEvent]:
        state = self.state
        if state is LinkState.FAILED:
            return []
        if state is LinkState.UPGRADING:
            with suppress(errors.RemoteProtocolError):
                feed(what)
            return [self._fail(self._too_early(self.parser.events))]
        self._silent_ticks = 0  # any byte is a sign of life
        try:
            feed(what)
        except errors.RemoteProtocolError as exc:
            return self._read_frames(exc)
        if self.parser.events or state is not LinkState.READY:
            return self._read_frames()
        return []

    def take_output(self) -> bytes:
        """Return the pending PONGs, which must be sent before anything else."""
        owed, self.pending_pongs = self.pending_pongs, 0
        return commands.PONG * owed

    def secured(self) -> NeedCredentials:
        """The TLS handshake is done."""
        self._change_state(Trigger.TLS_DONE)
        return NeedCredentials(info=self.info)

    def authenticate(self, fields: Mapping[str, object]) -> bytes:
        """Return CONNECT with these fields, and the PING whose PONG shows that the server accepted it."""
        self._change_state(Trigger.CONNECT_SENT)
        return commands.connect(fields) + commands.PING

    def ping(self, token: object = None) -> bytes:
        """Return a PING; its PONG comes as PongFor(token). Pongs are matched to pings in order."""
        self._pings.append(token)
        return commands.PING

    def count_silent_tick(self) -> int:
        """Count one keep-alive interval; return the number of intervals in a row without a byte from the server."""
        self._silent_ticks += 1
        return self._silent_ticks

    @property
    def pings_in_flight(self) -> int:
        """Pings without an answer yet."""
        return len(self._pings)

    @property
    def pings(self) -> Collection[object]:
        """The tokens of the unanswered pings."""
        return self._pings

    def take_pending_pings(self) -> list[object]:
        """Return the tokens of unanswered pings; the connection has ended."""
        self._change_state(Trigger.FAILURE)
        tokens = list(self._pings)
        self._pings.clear()
        return tokens

    def _read_frames(self, failure: errors.RemoteProtocolError | None = None) -> list[LinkEvent]:
        """Return the events for the parsed frames, and for the failure after them if there is one."""
        parser = self.parser
        opening = self.state is not LinkState.READY
        frames, parser.events = parser.events, []
        events: list[LinkEvent] = []
        for index, frame in enumerate(frames):
            broken = self._read_frame(frame, events)
            if self.state is LinkState.UPGRADING and (
                index + 1 < len(frames) or parser.waiting or parser.unrouted or failure is not None
            ):
                events.pop()  # no TLS with a peer that did not wait for it
                broken = self._too_early(frames[index + 1 :])
            if broken is not None:
                return [*events, self._fail(broken)]
        if opening and parser.unrouted:  # also after the PONG of this chunk
            failure = self._protocol_error("message before anything was subscribed")
        if failure is not None:
            events.append(self._fail(failure))
        return events

    def _read_frame(self, frame: Frame, events: list[LinkEvent]) -> errors.NatsError | None:
        """Add the events for one frame; return an error if the connection cannot continue."""
        if isinstance(frame, ServerInfo):
            return self._read_info(frame, events)
        if isinstance(frame, Ping):
            self.pending_pongs = min(self.pending_pongs + 1, MAX_PENDING_PONGS)
        elif isinstance(frame, Err):
            if self.state is LinkState.AWAIT_INFO and self.tls_required and not self._secured:
                return self._too_early([frame])
            self.server_err = parse_server_error(frame.text)
            events.append(ServerErr(error=self.server_err))
        elif isinstance(frame, Pong):
            if self.state is LinkState.AUTHENTICATING:
                self._change_state(Trigger.PONG)
                self.parser.routes = self._routes
                events.append(Ready(info=self.info))
            elif self._pings:
                events.append(PongFor(token=self._pings.popleft()))
        return None

    def _read_info(self, info: ServerInfo, events: list[LinkEvent]) -> errors.NatsError | None:
        self.info = info
        self.parser.max_payload = info.max_payload
        self.info_in_clear = False
        if self.state is not LinkState.AWAIT_INFO:
            self._change_state(Trigger.INFO)
            events.append(InfoChanged(info=info))
            return None
        if self._secured:
            upgrade = False
        elif self.tls_required:
            upgrade = True
            if not (info.tls_required or info.tls_available):
                return errors.TlsFailed(
                    "an option, a URL or an earlier connection requires it, but this server does not offer it; "
                    "nothing was sent to it"
                )
        else:
            upgrade = info.tls_required
        self.info_in_clear = upgrade
        if upgrade:
            self._change_state(Trigger.INFO_THEN_TLS)
            events.append(UpgradeTls())
        else:
            self._change_state(Trigger.INFO)
            events.append(NeedCredentials(info=info))
        return None

    def _too_early(self, frames: list[Frame]) -> errors.RemoteProtocolError:
        """The error for what the server has sent before TLS: it is quoted, as a server that is full says so, and has no
        other effect.
        """
        said = "".join(f"; said, unencrypted: {frame.text!r}" for frame in frames if isinstance(frame, Err))
        return self._protocol_error(_BYTES_BEFORE_TLS + said)

    def _protocol_error(self, reason: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(reason, self.parser.position)

    def _fail(self, error: errors.NatsError) -> LinkFailed:
        if (
            self.state is LinkState.AWAIT_INFO
            and isinstance(error, errors.RemoteProtocolError)
            and not error.reason.startswith("INFO")
        ):
            reason = f"{error.reason} ({describe_peer(error.excerpt)})"
            error = errors.RemoteProtocolError(reason, error.position, error.excerpt)
        self._change_state(Trigger.FAILURE)
        return LinkFailed(error=error)

    def _change_state(self, trigger: Trigger) -> None:
        """Change the state. Nothing else assigns it."""
        following = TRANSITIONS.get((self.state, trigger))
        if following is None:
            raise errors.LocalProtocolError(f"{trigger.name} has no meaning in state {self.state.name}")
        self.state = following
