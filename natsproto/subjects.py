"""Subject matching, partitions and subject mappings (ADR-30), with the same results as in the server.

Owns the functions in a mapping's destination. ``natsproto.protocol.subject`` has the rules of subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from natsproto import errors
from natsproto.protocol.subject import matches, publish_subject, subscribe_subject, tokens

__all__ = ["SubjectMapping", "matches", "partition", "tokens"]

_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
_DOLLAR_FUNCTION = re.compile(r"\$(\d+)")
_DOT_IN_BRACES = re.compile(r"\.(?![^{]*\}\})")
_ARGUMENT = re.compile(r",\s*")


def partition(number: int, *parts: str) -> int:
    """Return the partition, from 0 to ``number`` - 1, that the server's ``partition(number, …)`` yields.

    Args:
        number: How many partitions there are, at least 1.
        *parts: The tokens that decide; the order matters.
    """
    if type(number) is not int or number < 1:
        raise errors.ConfigError("number", number, "must be a positive int")
    digest = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in _bytes("".join(parts)):
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    return digest % number


class SubjectMapping:
    """A subject mapping, as in accounts and streams: a source with wildcards, and a destination with functions of them.

    ``SubjectMapping("orders.*.*", "shard.{{partition(4,1)}}.{{wildcard(2)}}").apply("orders.eu.7")``. Functions:
    ``wildcard`` (or ``$1``), ``partition``, ``split``, ``splitFromLeft``, ``splitFromRight``, ``sliceFromLeft``,
    ``sliceFromRight``, ``left`` and ``right``; a final ``>`` on both sides stands for the remaining tokens. ConfigError
    and InvalidSubject for mappings that the server refuses, and for its function ``random``, whose result cannot be
    predicted. The server drops a message when a token to ``split`` consists of delimiters or begins with two of them;
    ``apply`` does not report this.

    Args:
        source: Which subjects are mapped: a pattern with ``*`` and ``>``.
        destination: The new subject, with functions of the wildcards.
    """

    source: str
    destination: str

    def __init__(self, source: str, destination: str) -> None:
        subscribe_subject(source, "source")
        self.source, self.destination = source, destination
        positions = [index for index, token in enumerate(tokens(source)) if token == "*"]
        self._rest = len(tokens(source)) - 1 if source.endswith(">") else None
        if destination.endswith(">") != source.endswith(">"):
            raise errors.ConfigError("destination", destination, "must end with '>' if and only if the source does")
        self._token_functions = [self._token_function(token, positions) for token in _DOT_IN_BRACES.split(destination)]

    def __repr__(self) -> str:
        return f"SubjectMapping({self.source!r}, {self.destination!r})"

    def apply(self, subject: str) -> str | None:
        """Return the mapped subject, or None when the source does not match. InvalidSubject.

        Args:
            subject: A subject without wildcards; one that the source does not match gives None.
        """
        publish_subject(subject)
        if not matches(self.source, subject):
            return None
        given = tokens(subject)
        return ".".join(made for function_of in self._token_functions for made in function_of(given))

    def _token_function(self, token: str, positions: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
        """Return a function that maps the source's tokens to those of one token of the destination."""
        if token == ">":
            return lambda given: given[self._rest :]
        dollar, function = _DOLLAR_FUNCTION.fullmatch(token), _FUNCTION.fullmatch(token)
        if dollar is not None:
            return self._function(token, "wildcard", [dollar[1]], positions)
        if function is not None:
            return self._function(token, function[1].lower(), _ARGUMENT.split(function[2]), positions)
        if "{{" in token:
            raise errors.ConfigError("destination", self.destination, f"{token} is not a mapping function")
        publish_subject(token, "destination")
        return lambda given: (token,)

    def _function(
        self, token: str, name: str, arguments: Sequence[str], positions: Sequence[int]
    ) -> Callable[[Sequence[str]], Sequence[str]]:
        if name == "split" and len(arguments) == 2:
            delimiter = arguments[1]
            if not delimiter or " " in delimiter or "." in delimiter:
                raise self._invalid_function(token)
            (at,) = self._wildcard_positions(token, arguments[:1], positions)
            return lambda given: [part for part in given[at].split(delimiter) if part]
        try:
            numbers = [int(word.strip()) for word in arguments]
        except ValueError:
            raise self._invalid_function(token) from None
        if name == "wildcard" and len(numbers) == 1:
            (at,) = self._wildcard_positions(token, arguments, positions)
            return lambda given: (given[at],)
        if name == "partition" and len(numbers) >= 2 and numbers[0] > 0:
            chosen = self._wildcard_positions(token, arguments[1:], positions)
            return lambda given: (str(partition(numbers[0], *(given[at] for at in chosen))),)
        if name in _SLICE_FUNCTIONS and len(numbers) == 2:
            (at,) = self._wildcard_positions(token, arguments[:1], positions)
            cut = _SLICE_FUNCTIONS[name]
            return lambda given: [_text(piece) for piece in cut(_bytes(given[at]), numbers[1])]  # of bytes, as in Go
        raise self._invalid_function(token)

    def _wildcard_positions(self, token: str, arguments: Sequence[str], positions: Sequence[int]) -> list[int]:
        """Return the positions in the source of the wildcards with these numbers (from 1)."""
        try:
            wanted = [int(word.strip()) for word in arguments]
        except ValueError:
            raise self._invalid_function(token) from None
        if not all(1 <= number <= len(positions) for number in wanted):
            raise errors.ConfigError(
                "destination", self.destination, f"{token} refers to a wildcard that the source does not have"
            )
        return [positions[number - 1] for number in wanted]

    def _invalid_function(self, token: str) -> errors.ConfigError:
        return errors.ConfigError(
            "destination", self.destination, f"{token} is not a mapping function, or lacks arguments"
        )


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


_SLICE_FUNCTIONS: dict[str, Callable[[bytes, int], Sequence[bytes]]] = {
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": _left,
    "right": _right,
}
