"""Message headers (ADR-4): many values a name, case kept, order kept, nothing injected.

Owns the header block in both directions. Reading is lenient (the server forwards whatever a publisher
wrote, so a broken line must not cost the message), writing is strict, except for names and values that were received:
what came over the wire can go back over it, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from natsproto import errors
from natsproto._help.introspection import html_table

_VERSION = "NATS/1.0"
_PLAIN_START = "NATS/1.0\r\n"
_EMPTY = b"NATS/1.0\r\n\r\n"
_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII without the colon


class _Received(str):
    """A received name or value that could not be written otherwise."""

    __slots__ = ()


def _received(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _Received(text)


class Headers(Mapping[str, str]):
    """An immutable multi-map of header names to values.

    ``headers["Tag"]`` is the first value, ``headers.get_all("Tag")`` all of them in order. Names are
    compared as they are, as the server does; ``get_folded`` ignores case. ``invalid_lines`` are the lines of a
    received block that could not be read and are left out; () when all is well.

    Build one from a mapping (values are strings or sequences of strings) or from pairs.

    Args:
        source: A mapping (values are a str or a list of str), pairs, or other Headers.
    """

    __slots__ = ("_description", "_invalid", "_known", "_status", "_unread", "_wire_size")

    def __init__(self, source: HeadersLike = (), /) -> None:
        self._status: int = 0  # the inline status of the server's own messages (NATS/1.0 503)
        self._description: str = ""
        self._wire_size: int = 0
        self._unread: str = ""  # a received block without status, until more is needed of it than single values
        self._invalid: tuple[str, ...] = ()
        self._known: dict[str, list[str]] = {}
        for name, value in _pairs(source):
            self._known.setdefault(name, []).append(value)

    def _read_lines(self) -> None:
        """Read the whole block. Several threads may do so at a time, so ``_unread`` goes last."""
        lines = self._unread.split("\r\n")
        invalid: list[str] = []
        values: dict[str, list[str]] = {}
        first = lines[0]
        if first == _VERSION:
            del lines[0]
        elif first.startswith(_VERSION):
            invalid += self._read_status(lines.pop(0))
        for line in lines:
            if line:  # a block ends in two empty ones
                name, colon, value = line.partition(":")
                if colon:
                    value = _received(value.strip(" \t"))
                    if not _NAME.fullmatch(name):
                        name = _Received(name)
                    if name in values:
                        values[name].append(value)
                    else:
                        values[name] = [value]
                else:
                    invalid.append(line)
        if not hasattr(self, "_known"):
            self._known, self._invalid = values, tuple(invalid)
        self._unread = ""

    @property
    def _values(self) -> dict[str, list[str]]:
        if self._unread:
            self._read_lines()
        return self._known

    @property
    def invalid_lines(self) -> tuple[str, ...]:
        """The lines of a received block that could not be read and are left out; () when all is well."""
        if self._unread:
            self._read_lines()
        return self._invalid

    def _read_status(self, line: str) -> tuple[str, ...]:
        """Set the status; return the line if it has none that can be read."""
        code, _, description = line[len(_VERSION) :].strip().partition(" ")
        if code.isascii() and code.isdigit() and len(code) == 3:
            self._status = int(code)
            self._description = description.strip()
        elif code:
            return (line,)
        return ()

    def get_all(self, name: str) -> list[str]:
        """Every value of the name in the order received; an empty list when there is none.

        Args:
            name: The header, with upper and lower case as it was sent.
        """
        return list(self._values.get(name, ()))

    def last(self, name: str, default: str = "") -> str:
        """The last value. The server appends its own headers after the user's, so this one is the server's.

        Args:
            name: The header, with upper and lower case as it was sent.
            default: The result if there is no such header.
        """
        values = self._values.get(name)
        return values[-1] if values else default

    def get_folded(self, name: str) -> list[str]:
        """Every value whose name equals this one when case is ignored.

        Args:
            name: What to look for; upper and lower case are the same.
        """
        folded = name.casefold()
        return [value for known, values in self._values.items() if known.casefold() == folded for value in values]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every (name, value), names in order of first appearance."""
        for name, values in self._values.items():
            for value in values:
                yield name, value

    def __getitem__(self, name: str) -> str:
        text = self._unread
        mark = _line_mark(name) if text and type(name) is str else ""
        if not mark:
            return self._values[name][0]
        # Most programs read one or two headers: finding one takes a third of the time of reading all.
        begin = text.find(mark)
        if begin < 0:
            raise KeyError(name)
        begin += len(mark)
        end = text.find("\r\n", begin)
        return _received(text[begin : end if end >= 0 else None].strip(" \t"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return (self._values, self._status) == (other._values, other._status)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((frozenset((name, tuple(values)) for name, values in self._values.items()), self._status))

    def __repr__(self) -> str:
        status = f", status={self._status}" if self._status else ""
        invalid = f", invalid_lines={self.invalid_lines!r}" if self.invalid_lines else ""
        return f"Headers({list(self.pairs())!r}{status}{invalid})"

    def _repr_html_(self) -> str:
        """The names and values as a table in a notebook."""
        return html_table("Headers", self.pairs())


def parse_headers(block: bytes) -> Headers:
    """Read a header block as received. Never fails: lines without a colon and an invalid status go to
    ``invalid_lines``, bytes that are not UTF-8 come back as surrogate escapes, a block without the version line has
    no status.
    """
    headers = Headers.__new__(Headers)
    headers._wire_size = len(block)
    headers._status = 0
    headers._description = ""
    headers._unread = text = block.decode("utf-8", "surrogateescape")
    if not text.startswith(_PLAIN_START):
        headers._read_lines()
    return headers


HeadersLike: TypeAlias = Headers | Mapping[str, str | Sequence[str]] | Iterable[tuple[str, str]]
"""Types that every ``headers=`` argument accepts."""


def encode_headers(headers: HeadersLike) -> bytes:
    """The header block, version line to blank line, or InvalidHeader naming the offender.

    Values go out as given; receivers trim spaces around them (ADR-4). Received names and values go out as they came.
    """
    text, ends = "NATS/1.0\r\n", 2
    if not isinstance(headers, Mapping):
        headers = list(headers)  # an iterator is used up by the first look
    if type(headers) is dict:  # what nearly everybody gives: read in place, which takes a third of the time
        for name, value in headers.items():
            if type(value) is str:
                text += f"{_line_start(name)}{value}\r\n"
                ends += 1
            else:
                for one in _values(name, value):
                    text += _line_start(name) + one + "\r\n"
                    ends += 1
    else:
        for name, one in _pairs(headers):
            text += _line_start(name) + one + "\r\n"
            ends += 1
    text += "\r\n"
    # One scan for the whole block instead of three per value: the only line ends are those written above.
    if text.count("\r") != ends or text.count("\n") != ends or "\0" in text:
        _check_values(headers)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _encode_received(headers, text)


def block_of(headers: HeadersLike) -> bytes | None:
    """The header block, or None when there are no headers: an empty one would take 12 bytes of every copy.

    InvalidHeader as for encode_headers.
    """
    block = encode_headers(headers)
    return None if block == _EMPTY else block


def _pairs(source: HeadersLike) -> Iterator[tuple[str, str]]:
    if isinstance(source, Headers):
        yield from source.pairs()
        return
    items: Iterable[tuple[str, object]]
    items = source.items() if isinstance(source, Mapping) else source  # pyright: ignore[reportAssignmentType]
    for item in items:
        if type(item) is not tuple or len(item) != 2:
            raise TypeError("headers must be a mapping or (name, value) tuples")
        name, value = item
        for one in _values(name, value):
            yield name, one


def _values(name: str, value: object) -> Sequence[str]:
    """The values given for one name. Not formatted: an Enum of str is its value."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"header {name!r}: the value must be a str or a list of str, not {type(value).__name__}")
    for one in value:
        if not isinstance(one, str):
            raise TypeError(f"header {name!r}: values must be str, not {type(one).__name__}")
    return value


def _line_mark(name: str) -> str:
    """Return the text before the value in a received block, or "" if that may be elsewhere too."""
    return "" if ":" in name or "\r\n" in name else f"\r\n{name}:"


@lru_cache(maxsize=1024, typed=True)
def _line_start(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"header names must be str, not {type(name).__name__}")
    if not _NAME.fullmatch(name) and type(name) is not _Received:
        raise errors.InvalidHeader("header name", name, "must be printable ASCII without spaces and colons")
    return name + ": "


def _check_values(headers: HeadersLike) -> None:
    for name, value in _pairs(headers):
        if type(value) is not _Received and any(char in value for char in "\r\n\0"):
            raise errors.InvalidHeader(f"header {name!r} with value", value, "must not contain CR, LF or NUL")


def _encode_received(headers: HeadersLike, text: str) -> bytes:
    """Encode a block in which only received values are no UTF-8."""
    try:
        for _, value in _pairs(headers):
            if type(value) is not _Received:
                value.encode()
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise errors.InvalidHeader("header block", text[10:], "cannot be encoded as UTF-8") from None


NO_HEADERS = Headers()
