"""The injected world: how to reach a server, and where randomness comes from.

Everything above takes a Runtime, so tests swap the network for one they can cut, stall and chop, and
randomness for one they have seeded. Time is not here: the event loop's clock is the only one in use.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from natsproto._value import Value
from natsproto.protocol.addresses import ServerAddress

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class WireHandler(Protocol):
    """What a wire reports to. Nothing is called after ``lost``."""

    def on_data(self, chunk: bytes) -> None:
        """Bytes came."""
        ...

    def on_buffer_filled(self, count: int) -> None:
        """So many bytes came and are where ``Wire.read_into`` said."""
        ...

    def on_disconnect(self, cause: Exception | None) -> None:
        """The wire has ended: with a cause, or None when either side closed it in good order."""
        ...

    def on_write_paused(self) -> None:
        """The wire took what it was given but wants no more for now."""
        ...

    def on_write_resumed(self) -> None:
        """The wire has passed on all it had."""
        ...


class Wire(Protocol):
    """An open connection to a server."""

    def write(self, data: bytes) -> None:
        """Sends bytes, or keeps them and reports ``paused``. Does nothing once the wire has ended."""
        ...

    def close(self) -> None:
        """Closes once everything written has been passed on."""
        ...

    def abort(self) -> None:
        """Closes now; what was not passed on is lost."""
        ...

    def pause_reading(self) -> None:
        """Leaves further bytes to the peer's and the kernel's buffers."""
        ...

    def resume_reading(self) -> None:
        """Takes bytes again."""
        ...

    def read_into(self, room: memoryview) -> None:
        """The next bytes belong there: the wire may write them to its beginning and report ``filled``. Or not: then
        they are ``received`` as all others.
        """
        ...

    def unsent_bytes(self) -> int:
        """Bytes written that are not with the kernel yet."""
        ...

    def sent_bytes(self) -> int:
        """Bytes handed to the kernel so far; under TLS nearly."""
        ...

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        """Does the TLS handshake in place. Nothing may be read or written meanwhile."""
        ...


class DialPlan(Value):
    """What a dial needs beyond the address.

    ``context`` is for TLS that starts with the first byte, ``hostname`` what the certificate must be for;
    ``timeout`` (seconds) is shared by the addresses a name resolves to. ``probed`` lets the kernel find out whether the
    peer is still there, which takes it two hours of silence. ``dialer`` returns a connected socket, where the user has
    his own way. The rest is for WebSocket; ``largest_compressed`` says how many bytes a compressed frame may hold now.
    """

    context: ssl.SSLContext | None = None
    hostname: str = ""
    timeout: float = 5.0
    probed: bool = True
    shuffle: Callable[[list[str]], object] | None = None
    dialer: Callable[[], Awaitable[object]] | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    path: str = "/"
    compression: bool = False
    max_message: int = 1 << 26
    largest_compressed: Callable[[], int] | None = None


Dial = Callable[[ServerAddress, DialPlan, WireHandler], Awaitable[Wire]]


class Runtime(Value):
    """The world a client lives in."""

    dial: Dial
    rng: random.Random


def nuid(rng: random.Random) -> str:
    """22 characters of base 62: the identifier NATS clients use for inboxes and chunks."""
    return "".join(rng.choices(_ALPHABET, k=22))
