"""What servers do with subjects, for programs that want to know it beforehand: matching, partitions, mappings (ADR-30).

Owns the functions of a mapping's destination. The rules of subjects are ``natsproto.protocol.subject``'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from natsproto.errors import ConfigError
from natsproto.protocol.subject import matches, publish_subject, subscribe_subject, tokens

__all__ = ["SubjectMapping", "matches", "partition", "tokens"]

_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
_DOLLAR = re.compile(r"\$(\d+)")
_DOT_IN_BRACES = re.compile(r"\.(?![^{]*\}\})")
_ARGUMENT = re.compile(r",\s*")


def partition(number: int, *parts: str) -> int:
    """The partition, from 0 to ``number`` - 1, that a server's ``partition(number, …)`` gives these tokens."""
    if type(number) is not int or number < 1:
        raise ConfigError("number", number, "must be a positive number of partitions")
    found = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in _bytes("".join(parts)):
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found % number


class SubjectMapping:
    """A mapping from a source with wildcards to a destination with functions of them, as accounts and streams have.

    ``SubjectMapping("orders.*.*", "shard.{{partition(4,1)}}.{{wildcard(2)}}").apply("orders.eu.7")``. Functions:
    ``wildcard`` (or ``$1``), ``partition``, ``split``, ``splitFromLeft``, ``splitFromRight``, ``sliceFromLeft``,
    ``sliceFromRight``, ``left`` and ``right``; a final ``>`` stands for the rest on both sides. ConfigError and
    InvalidSubject for what a server refuses, and for its ``random``, which nobody can foretell. What servers lose, as
    they make no subject of it, is not told: a token to split that is delimiters alone, or begins with two of them.
    """

    source: str
    destination: str

    def __init__(self, source: str, destination: str) -> None:
        subscribe_subject(source, "source")
        self.source, self.destination = source, destination
        places = [place for place, token in enumerate(tokens(source)) if token == "*"]
        self._rest = len(tokens(source)) - 1 if source.endswith(">") else None
        if destination.endswith(">") != source.endswith(">"):
            raise ConfigError("destination", destination, "must end with '>' if and only if the source does")
        self._makers = [self._maker(token, places) for token in _DOT_IN_BRACES.split(destination)]

    def __repr__(self) -> str:
        return f"SubjectMapping({self.source!r}, {self.destination!r})"

    def apply(self, subject: str) -> str | None:
        """What becomes of a subject; None when the source does not match it. InvalidSubject."""
        publish_subject(subject)
        if not matches(self.source, subject):
            return None
        given = tokens(subject)
        return ".".join(made for maker in self._makers for made in maker(given))

    def _maker(self, token: str, places: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
        """Makes the tokens that one token of the destination stands for."""
        if token == ">":
            return lambda given: given[self._rest :]
        dollar, function = _DOLLAR.fullmatch(token), _FUNCTION.fullmatch(token)
        if dollar is not None:
            return self._function(token, "wildcard", [dollar[1]], places)
        if function is not None:
            return self._function(token, function[1].lower(), _ARGUMENT.split(function[2]), places)
        if "{{" in token:
            raise ConfigError("destination", self.destination, f"{token} is no function of a mapping")
        publish_subject(token, "destination")
        return lambda given: (token,)

    def _function(
        self, token: str, name: str, words: Sequence[str], places: Sequence[int]
    ) -> Callable[[Sequence[str]], Sequence[str]]:
        if name == "split" and len(words) == 2:
            delimiter = words[1]
            if not delimiter or " " in delimiter or "." in delimiter:
                raise self._wrong(token)
            (at,) = self._places(token, words[:1], places)
            return lambda given: [part for part in given[at].split(delimiter) if part]
        try:
            numbers = [int(word.strip()) for word in words]
        except ValueError:
            raise self._wrong(token) from None
        if name == "wildcard" and len(numbers) == 1:
            (at,) = self._places(token, words, places)
            return lambda given: (given[at],)
        if name == "partition" and len(numbers) >= 2 and numbers[0] > 0:
            chosen = self._places(token, words[1:], places)
            return lambda given: (str(partition(numbers[0], *(given[at] for at in chosen))),)
        if name in _PIECES and len(numbers) == 2:
            (at,) = self._places(token, words[:1], places)
            cut = _PIECES[name]
            return lambda given: [_text(piece) for piece in cut(_bytes(given[at]), numbers[1])]  # bytes, as in Go
        raise self._wrong(token)

    def _places(self, token: str, words: Sequence[str], places: Sequence[int]) -> list[int]:
        """Where the wildcards of these numbers (from 1) stand in the source."""
        try:
            wanted = [int(word.strip()) for word in words]
        except ValueError:
            raise self._wrong(token) from None
        if not all(1 <= number <= len(places) for number in wanted):
            raise ConfigError(
                "destination", self.destination, f"{token} wants a wildcard that the source does not have"
            )
        return [places[number - 1] for number in wanted]

    def _wrong(self, token: str) -> ConfigError:
        return ConfigError("destination", self.destination, f"{token} is no function of a mapping, or lacks arguments")


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogateescape")


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "surrogateescape")


def _split_from_left(token: bytes, size: int) -> Sequence[bytes]:
    return (token[:size], token[size:]) if 0 < size < len(token) else (token,)


def _split_from_right(token: bytes, size: int) -> Sequence[bytes]:
    return (token[:-size], token[-size:]) if 0 < size < len(token) else (token,)


def _slice_from_left(token: bytes, size: int) -> Sequence[bytes]:
    if not 0 < size < len(token):
        return (token,)
    return [token[start : start + size] for start in range(0, len(token), size)]


def _slice_from_right(token: bytes, size: int) -> Sequence[bytes]:
    if not 0 < size < len(token):
        return (token,)
    odd = len(token) % size
    return [token[:odd]] * bool(odd) + [token[start : start + size] for start in range(odd, len(token), size)]


def _left(token: bytes, size: int) -> Sequence[bytes]:
    return (token[:size] if 0 < size < len(token) else token,)


def _right(token: bytes, size: int) -> Sequence[bytes]:
    return (token[-size:] if 0 < size < len(token) else token,)


_PIECES: dict[str, Callable[[bytes, int], Sequence[bytes]]] = {
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": _left,
    "right": _right,
}
