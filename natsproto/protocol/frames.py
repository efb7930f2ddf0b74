"""Frames of a server: messages, and the control frames between them.

``Message`` is mutable and slotted, with positional arguments: a chunk can hold a thousand of them. Its reply subject
and headers stay bytes until they are used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, Self, TypeAlias, TypeVar

from natsproto import errors
from natsproto.errors._base import shown_payload
from natsproto.protocol.headers import NO_HEADERS, Headers, HeadersLike, parse_headers

Payload: TypeAlias = bytes | bytearray | memoryview
"""Types of payloads. All but bytes are copied."""


def as_bytes(payload: object) -> bytes:
    """Return a payload as bytes; TypeError for another type."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    if payload is None:
        advice = "leave it out, or give b''"
    elif isinstance(payload, str):
        advice = "encode it first, with text.encode()"
    else:
        advice = "encode it first, for example with json.dumps(value).encode()"
    raise TypeError(f"payload must be bytes, not {type(payload).__name__}: {advice}")


class Responder(Protocol):
    """The interface through which a message sends its response."""

    def _send_reply(self, reply: str, payload: Payload, headers: HeadersLike | None) -> Awaitable[None]:
        """Publish to a subject that is used once."""
        ...


class Message:
    """A message as it was delivered; created by the client.

    ``subject`` is the subject it was published to, ``data`` the payload. ``reply``, ``headers`` and ``size`` are
    computed on demand. A message can be pickled without its connection: the copy can be read, but not responded to.
    """

    __slots__ = ("_head", "_note", "_origin", "_reply", "data", "subject")

    _note: Any  # a value of the subscriber; initially the note of the route

    def __init__(
        self,
        subject: str,
        reply: bytes | None,
        data: bytes,
        head: bytes | None,
        origin: Responder | None = None,
    ) -> None:
        self.subject: str = subject
        self._reply: bytes | str | None = reply
        self.data: bytes = data
        self._head: bytes | Headers | None = head
        self._origin = origin
        self._note = None

    @property
    def reply(self) -> str | None:
        """The subject for a response, or None."""
        reply = self._reply
        if type(reply) is bytes:
            self._reply = reply = reply.decode("utf-8", "surrogateescape")
        return reply  # type: ignore[return-value]  # bytes were handled above

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        head = self._head
        if head is None:
            return NO_HEADERS
        if type(head) is bytes:
            self._head = head = parse_headers(head)
        return head  # type: ignore[return-value]  # bytes were handled above

    @property
    def has_headers(self) -> bool:
        """True if there is a header block; faster than reading it."""
        return self._head is not None

    @property
    def has_reply(self) -> bool:
        """True if the publisher expects a response."""
        return self._reply is not None

    @property
    def size(self) -> int:
        """Bytes of subject, reply subject, headers and payload together, as limits and JetStream count them."""
        head, reply, head_size = self._head, self._reply, 0
        if head is not None:
            head_size = head._wire_size if isinstance(head, Headers) else len(head)
        return _wire_length(self.subject) + (_wire_length(reply) if reply else 0) + head_size + len(self.data)

    @property
    def text(self) -> str:
        """The payload as text; InvalidPayload when it is not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as exc:
            raise errors.InvalidPayload("decode", "str", str(exc)) from exc

    def json(self) -> Any:
        """Return the value of a JSON payload; InvalidPayload for others, as for NaN and 1e999. ``typed`` checks its
        type, too.
        """
        try:
            return JSON_DECODER.decode(self.data.decode(json.detect_encoding(self.data), "surrogatepass"))
        except (ValueError, RecursionError) as exc:
            raise errors.InvalidPayload("decode", "JSON", str(exc)) from exc

    @property
    def is_no_responders(self) -> bool:
        """True for the server's reply that a subject has no subscribers: status 503 without payload (users can send 503
        too).
        """
        head = self._head
        if self.data or head is None or (type(head) is bytes and b"503" not in head):
            return False  # the most common case
        # Do not cache the parsed headers: a broken block must be parsed the same way later.
        return (parse_headers(head) if type(head) is bytes else self.headers)._status == 503

    async def respond(self, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish a response to the reply subject. LocalProtocolError when the message has none.

        A reply subject is the choice of the sender. One that is invalid, or that belongs to an API or a store
        (``$JS.API.>``, ``$JS.*.API.>``, ``$KV.>``, ``$O.>``, ``$SRV.>``, ``$SYS.>``), gets no response but a
        ReplyRefused event; see the option ``allow_api_replies``. Cancelling it while it waits for room in the outbox
        sends nothing.

        Args:
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        reply = self.reply
        if reply is None or self._origin is None:
            raise errors.LocalProtocolError(f"cannot respond to message on {self.subject!r}: it has no reply subject")
        await self._origin._send_reply(reply, payload, headers)

    def __copy__(self) -> Self:
        return restored(type(self), self._origin, self._state())

    def __reduce__(self) -> tuple[object, ...]:
        return restored, (type(self), None, self._state())  # without the connection

    def _state(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in _STATE)

    def __repr__(self) -> str:
        answer = f", reply={self.reply!r}" if self._reply else ""
        return f"Message(subject={self.subject!r}{answer}, {shown_payload(self.data)})"


class _OnlyFromConsumers:
    """A name that messages of a consumer have, and core messages do not. Others are as fast to read as without it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, message: Message | None, kind: type[Message]) -> NoReturn:
        why = "a core message is delivered once and cannot be acknowledged; messages of a consumer of a stream have it"
        text = f"{kind.__name__!r} object has no attribute {self._name!r}: {why}"
        raise AttributeError(text, name=self._name, obj=message)


for _name in ("ack", "ack_nowait", "ack_sync", "in_progress", "metadata", "nak", "term"):
    setattr(Message, _name, _OnlyFromConsumers(_name))

M = TypeVar("M", bound=Message)
_STATE = ("subject", "data", "_reply", "_head", "_note")


def restored(kind: type[M], origin: Responder | None, state: tuple[object, ...]) -> M:
    """Return a copy of a message from its ``_state``."""
    made = kind.__new__(kind)
    made._origin = origin
    for name, value in zip(_STATE, state, strict=True):
        setattr(made, name, value)
    return made


class Route:
    """The receiver of the messages of one sid, and the counts that its owner has not taken yet.

    ``deliver`` is a callable for a message, ``message_class`` its class: Message, or a subclass, whose ``__init__`` is
    not called and whose own slots are not set. Every message gets ``origin``, through which it responds, and ``note``,
    a value of the subscriber.
    """

    __slots__ = ("arrived", "deliver", "message_class", "nbytes", "note", "origin")

    def __init__(
        self,
        deliver: Callable[[Message], object],
        *,
        message_class: type[Message] = Message,
        origin: Responder | None = None,
        note: object = None,
    ) -> None:
        self.deliver: Callable[[Message], object] = deliver
        self.message_class: type[Message] = message_class
        self.origin: Responder | None = origin
        self.note: object = note
        self.arrived: int = 0
        self.nbytes: int = 0


class Ping:
    """PING: the server checks that the client is alive."""

    __slots__ = ()


class Pong:
    """PONG: the response to a PING."""

    __slots__ = ()


class Ok:
    """+OK: the server accepted a command (verbose mode only)."""

    __slots__ = ()


class Err:
    """-ERR; ``text`` is without its quotes."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: str = text


class ServerInfo:
    """INFO: the server, this connection and the cluster. Created by the client.

    Fields that the server left out are empty, 0 or False. ``raw`` holds the whole object, with fields of newer servers.
    ``max_payload`` counts headers and payload in bytes; 0 if unknown.
    """

    server_id: str = ""
    """The public key of the server, new at every start."""
    server_name: str = ""
    """``server_name`` of its configuration, or its id."""
    version: str = ""
    """Such as ``2.12.1``; of a proxy perhaps something else."""
    git_commit: str = ""
    """The commit that the server was built from."""
    go: str = ""
    """The version of Go that it was built with."""
    host: str = ""
    """The address that it listens on, often 0.0.0.0: not one to connect to."""
    ip: str = ""
    """The address to reach it by, where it knows one."""
    client_ip: str = ""
    """The address that this client comes from, as the server sees it."""
    nonce: str = ""
    """The bytes to sign with an nkey; "": no key is asked for."""
    cluster: str = ""
    """The name of its cluster; "" for none."""
    domain: str = ""
    """Its JetStream domain; "" for none."""
    remote_account: str = ""
    """The account that a leaf node is bound to."""
    xkey: str = ""
    """The public key for encrypted auth callouts."""
    proto: int = 0
    """1: the server sends new INFO while connected."""
    port: int = 0
    """The port that it listens on; behind a proxy not the one to connect to."""
    max_payload: int = 0
    client_id: int = 0
    """The number of this connection, as in the server's log and monitoring."""
    api_lvl: int = 0
    """The level of the JetStream API: 1 since nats-server 2.11, 2 since 2.12, 4 since 2.14; 0 before."""
    headers: bool = False
    """True if messages can have headers (server 2.2)."""
    auth_required: bool = False
    """True if credentials are asked for."""
    tls_required: bool = False
    """True if it talks TLS only."""
    tls_verify: bool = False
    """True if it asks clients for a certificate."""
    tls_available: bool = False
    """True if it talks TLS where the client wants to."""
    jetstream: bool = False
    """True if this server stores streams; others of its cluster may although it does not."""
    ldm: bool = False
    """True while it is in lame duck mode, before it shuts down."""
    connect_info: bool = False
    """True if this INFO came after CONNECT, with the fields that depend on the account."""
    acc_is_sys: bool = False
    """True if the account of this client is the system account."""
    cluster_dynamic: bool = False
    """True if its cluster got its name by itself."""
    connect_urls: tuple[str, ...] = ()
    """``host:port`` of all servers of the cluster, which the client tries in an outage."""
    ws_connect_urls: tuple[str, ...] = ()
    """The same for WebSocket."""
    raw: Mapping[str, object] = MappingProxyType({})

    def __init__(self, fields: Mapping[str, object]) -> None:
        kinds, found = _INFO_KINDS, self.__dict__
        for name, value in fields.items():
            kind = kinds.get(name)
            if type(value) is kind:
                if kind is int and not 0 <= value < _INFO_BOUND:  # type: ignore[operator]  # it is an int
                    raise ValueError(f"field {name} is not a valid int")
            elif kind is None or value is None:
                continue
            elif kind is not tuple:
                raise ValueError(f"field {name} is not a valid {kind.__name__}")
            elif type(value) is list and all(type(url) is str for url in value):
                value = tuple(value)
            else:
                raise ValueError(f"field {name} is not a list of strings")
            found[name] = value
        found["raw"] = fields

    def __repr__(self) -> str:
        return f"ServerInfo(server_name={self.server_name!r}, version={self.version!r}, client_id={self.client_id})"


def parse_info(text: bytes, position: int = 0) -> ServerInfo:
    """Parse the JSON of an INFO line; RemoteProtocolError unless it is an object with the right types."""
    try:
        fields = json.loads(text.decode())
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        return ServerInfo(fields)
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)[:120]
        raise errors.RemoteProtocolError(f"INFO cannot be read ({reason})", position, text[:64]) from None


def _parse_float(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"{text} is too large for a float")
    return found


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


JSON_DECODER = json.JSONDecoder(parse_float=_parse_float, parse_constant=_reject_constant)
"""Reads the JSON of users by the standard: no NaN, no Infinity, and no number that is too large for a float."""
_INFO_BOUND = 2**63
_INFO_KINDS = {name: type(getattr(ServerInfo, name)) for name in ServerInfo.__annotations__ if name != "raw"}

NO_INFO = ServerInfo({})
"""The information before the first INFO."""

Frame = ServerInfo | Ping | Pong | Ok | Err
"""A control frame; messages go to their routes instead."""


def _wire_length(text: str | bytes) -> int:
    """Bytes on the wire; isascii() first avoids encoding nearly every subject."""
    if isinstance(text, bytes) or text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogateescape"))
