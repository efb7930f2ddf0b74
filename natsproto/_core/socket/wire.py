"""The interface between a session and its socket, and the dependencies of a client that tests replace.

A Runtime holds the dial function and the random number generator, so tests can use a network that they cut, stall and
split, and seeded randomness. Time is not here: the clock of the event loop is the only one in use.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol

from natsproto._value import Value
from natsproto.protocol.addresses import ServerAddress

READ_BUFFER_SIZE = 65_536
"""A plain Protocol is handed 250 KB objects by uvloop, each above malloc's mmap threshold: page faults cost
174 to 285 ns a message. One buffer of this size that is reused costs none."""

RANDOM_BITS = 40
"""Bits of a reply token or message id that a peer cannot know before it sees the token: a guess is right once in 10^12.
"""
_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LETTERS = (5 * _ALPHABET)[:256]
"""A letter for each byte. Eight of them stand for five bytes and the others for four: 130.9 of 131 bits are left."""


class WireHandler(Protocol):
    """Callbacks of a wire. None is called after ``on_disconnect``."""

    def on_data(self, chunk: bytes) -> None:
        """Bytes were received."""
        ...

    def on_buffer_filled(self, count: int) -> None:
        """``count`` bytes were written to the buffer given to ``Wire.read_into``."""
        ...

    def on_disconnect(self, cause: Exception | None) -> None:
        """The wire has ended: with a cause, or None after an orderly close by either side."""
        ...

    def on_write_paused(self) -> None:
        """The write buffer is full; the wire wants no more data for now."""
        ...

    def on_write_resumed(self) -> None:
        """The wire has sent everything and accepts data again."""
        ...


class Wire(Protocol):
    """An open connection to a server."""

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them and report ``on_write_paused``. Does nothing after the end of the wire."""
        ...

    def writelines(self, parts: list[bytes], size: int) -> None:
        """As ``write``, for ``size`` bytes in parts, which are not copied if the transport can avoid it."""
        ...

    def close(self) -> None:
        """Close after everything written was sent."""
        ...

    def abort(self) -> None:
        """Close now; unsent data is lost."""
        ...

    def pause_reading(self) -> None:
        """Stop reading; further bytes stay with the kernel and the server."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def read_into(self, room: memoryview) -> None:
        """Offer a buffer for the next bytes. The wire may write them to its beginning and report ``on_buffer_filled``,
        or report ``on_data`` as usual.
        """
        ...

    def unsent_bytes(self) -> int:
        """Bytes written that the kernel has not accepted yet."""
        ...

    def sent_bytes(self) -> int:
        """Bytes that the kernel has accepted so far; approximate under TLS."""
        ...

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        """Do the TLS handshake in place. Nothing may be read or written meanwhile."""
        ...


class DialPlan(Value):
    """The settings of a dial, in addition to the address.

    ``context`` is for TLS that starts with the first byte, ``hostname`` the name that the certificate must have;
    ``timeout`` (seconds) is shared by the addresses that a name resolves to; ``shuffle`` orders them.
    ``tcp_keepalive`` detects a dead peer after two hours of silence. ``dialer`` is the user's function that returns
    a connected socket. The rest is for WebSocket; ``largest_compressed`` returns the maximum size of a compressed
    frame, ``is_accepted`` whether the server has accepted the login: before it there is little to send.
    """

    context: ssl.SSLContext | None = None
    hostname: str = ""
    timeout: float = 5.0
    tcp_keepalive: bool = True
    shuffle: Callable[[list[Any]], object] | None = None
    dialer: Callable[[], Awaitable[object]] | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    path: str = "/"
    compression: bool = False
    max_message: int = 1 << 26
    largest_compressed: Callable[[], int] | None = None
    is_accepted: Callable[[], bool] = lambda: True

    def __repr__(self) -> str:
        return f"DialPlan(hostname={self.hostname!r}, timeout={self.timeout})"  # the headers may be secret


Dial = Callable[[ServerAddress, DialPlan, WireHandler], Awaitable[Wire]]


class Runtime(Value):
    """The dependencies of a client that tests replace."""

    dial: Dial
    rng: random.Random

    def new_id(self) -> str:
        """Return a unique id of 22 letters and digits (a NUID)."""
        return nuid(self.rng)

    def random_bits(self) -> Callable[[], int]:
        """Return a function for the random bits of reply tokens and message ids."""
        return random_bits(self.rng)


def nuid(rng: random.Random) -> str:
    """Return 22 characters of base 62: the identifier that NATS clients use for inboxes and chunks (NUID).

    From one draw: the system's generator takes 22 times as long for 22.
    """
    return rng.randbytes(22).translate(_LETTERS).decode()


def random_bits(rng: random.Random) -> Callable[[], int]:
    """Return a function that returns RANDOM_BITS other bits at every call.

    It draws them in blocks, as a draw from the system costs 0.5 us. A block belongs to this one function and never to
    the module: two processes after a fork would have the same bits.
    """

    def block() -> list[int]:
        return [bits >> 64 - RANDOM_BITS for bits in memoryview(rng.randbytes(2048)).cast("Q")]

    return chain.from_iterable(iter(block, None)).__next__
