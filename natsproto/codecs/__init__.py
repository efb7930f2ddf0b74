"""Codecs for payloads: the Codec protocol, JSON, and adapters to pydantic, msgspec and msgpack.

A codec encodes Python values to bytes and decodes them to a requested type. It knows nothing of messages. The adapters
import their library when they are created, so none of these libraries is a dependency.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast, overload

from natsproto import errors
from natsproto.codecs._plain import all_plain, plain
from natsproto.codecs._readers import Mismatch, type_name
from natsproto.codecs._types import reader_of
from natsproto.protocol.frames import JSON_DECODER

if TYPE_CHECKING:
    from typing_extensions import TypeForm as TypeForm
else:
    TypeForm = type  # for those who evaluate annotations: type checkers alone need typing_extensions

__all__ = ["JSON", "Adapter", "Codec", "JsonCodec", "msgpack", "msgspec", "pydantic"]

T = TypeVar("T")


class Codec(Protocol):
    """Encodes values to payloads and decodes payloads to values. Both raise InvalidPayload on failure."""

    def encode(self, value: object) -> bytes:
        """Return the payload for a value.

        Args:
            value: Any value of a type that the codec knows.
        """
        ...

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """Return the value in a payload, which is an instance of ``kind``.

        Args:
            payload: The bytes, as ``message.data`` has them.
            kind: The type of the value to return.
        """
        ...


class JsonCodec:
    """JSON for plain values, dataclasses, TypedDicts, NamedTuples, enums, dates and times, UUID and Decimal, and for
    lists, tuples, sets, dicts and unions of them; generic ones with their arguments.

    Decoded values are checked against the type. Keys that a dataclass does not have are ignored, so that newer programs
    can send more fields. Dataclasses in a union are told apart by their keys and by fields of type Literal.
    """

    def encode(self, value: object) -> bytes:
        """Return the value as compact UTF-8. InvalidPayload for values that JSON does not have, such as NaN.

        Args:
            value: Any value of a type that the codec knows.
        """
        try:
            try:
                return _dumps(value).encode()
            except TypeError:  # a key that is no str: an enum, a date …
                return _dumps(all_plain(value)).encode()
        except Exception as exc:
            raise errors.InvalidPayload("encode", type(value).__name__, str(exc) or type(exc).__name__) from exc

    @overload
    def decode(self, payload: bytes, kind: type[T]) -> T: ...

    @overload
    def decode(self, payload: bytes, kind: TypeForm[T]) -> T: ...

    def decode(self, payload: bytes, kind: Any) -> Any:
        """Return the checked value. InvalidPayload for invalid JSON, and for a value of another type, with its path.
        ConfigError for a type that this codec cannot read.

        Args:
            payload: The bytes, as ``message.data`` has them.
            kind: The type of the value to return.
        """
        reader = reader_of(kind)
        try:
            return reader.read(JSON_DECODER.decode(payload.decode()), {})
        except Mismatch as exc:
            raise errors.InvalidPayload("decode", type_name(kind), str(exc)) from exc.__cause__
        except Exception as exc:
            raise errors.InvalidPayload("decode", type_name(kind), str(exc) or type(exc).__name__) from exc

    def check(self, kind: object) -> None:
        """Raise ConfigError for a type that this codec cannot read, with the field that it is in.

        Args:
            kind: The type to read.
        """
        reader_of(kind)

    def __repr__(self) -> str:
        return "JSON"


JSON = JsonCodec()
"""The default codec."""


class Adapter:
    """A codec made of functions. Their exceptions become InvalidPayload.

    Args:
        name: How errors call the codec.
        encode: Returns the payload of a value.
        decode: Returns the value of a payload and its type.
        check: Raises for a type that cannot be read, when it is given to ``typed()``; None: no type is refused there.
    """

    def __init__(
        self,
        name: str,
        encode: Callable[[object], bytes],
        decode: Callable[[bytes, type[object]], object],
        check: Callable[[Any], object] | None = None,
    ) -> None:
        self._name, self._encode, self._decode, self._check = name, encode, decode, check

    def encode(self, value: object) -> bytes:
        """Call the encode function.

        Args:
            value: Any value of a type that the codec knows.
        """
        try:
            return self._encode(value)
        except Exception as exc:
            raise errors.InvalidPayload("encode", type(value).__name__, str(exc) or type(exc).__name__) from exc

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """Call the decode function.

        Args:
            payload: The bytes, as ``message.data`` has them.
            kind: The type of the value to return.
        """
        try:
            return cast("T", self._decode(payload, kind))
        except Exception as exc:
            raise errors.InvalidPayload("decode", type_name(kind), str(exc) or type(exc).__name__) from exc

    def check(self, kind: object) -> None:
        """Raise ConfigError for a type that the codec cannot read.

        Args:
            kind: The type to read.
        """
        try:
            if self._check is not None:
                self._check(kind)
        except errors.ConfigError:
            raise
        except Exception as exc:
            reason = f"{self._name} cannot read it: {exc or type(exc).__name__}"
            raise errors.ConfigError("type", type_name(kind), reason) from exc

    def __repr__(self) -> str:
        return self._name


def pydantic() -> Codec:
    """Return a codec for JSON with pydantic (2 or newer): models, and every type that a TypeAdapter accepts."""
    adapter = lru_cache(maxsize=1024)(_import_library("pydantic").TypeAdapter)
    return Adapter(
        "pydantic",
        lambda value: adapter(cast("Hashable", type(value))).dump_json(value),
        lambda payload, kind: adapter(cast("Hashable", kind)).validate_json(payload),
        adapter,
    )


def msgspec(format: Literal["json", "msgpack"] = "json") -> Codec:
    """Return a codec for JSON or MessagePack with msgspec: structs, and every other type that it supports.

    Args:
        format: "json" (default) or "msgpack".
    """
    library = getattr(_import_library("msgspec"), format)
    return Adapter(
        f"msgspec({format})", library.encode, lambda payload, kind: library.decode(payload, type=kind), library.Decoder
    )


def msgpack() -> Codec:
    """Return a codec for MessagePack with msgpack: the types of JsonCodec, and bytes."""
    library = _import_library("msgpack")
    return Adapter(
        "msgpack",
        lambda value: library.packb(value, default=plain),
        lambda payload, kind: reader_of(cast("Hashable", kind), True).read(
            library.unpackb(payload, strict_map_key=False), {}
        ),
        lambda kind: reader_of(kind, True),
    )


def _dumps(value: object) -> str:
    return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _import_library(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as exc:
        raise errors.ConfigError("codec", package, f"needs the package {package}: pip install {package}") from exc


class TypedCodec(Generic[T]):
    """A type and its codec: what every ``typed()`` has.

    Whatever a codec raises for a value or a payload is an InvalidPayload, so that one payload ends no reader.
    """

    def __init__(self, kind: type[T], codec: Codec) -> None:
        """ConfigError for an object that is no codec, and for a type that the codec says it cannot read."""
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise errors.ConfigError("codec", codec, f"has no method {name}")
        if callable(check := getattr(codec, "check", None)):
            check(kind)
        self.kind = kind
        self.codec: Codec = codec

    def encode(self, value: T) -> bytes:
        """Return the payload for a value; InvalidPayload when the codec cannot encode it."""
        try:
            return self.codec.encode(value)
        except errors.InvalidPayload:
            raise
        except Exception as exc:
            raise errors.InvalidPayload("encode", type(value).__name__, str(exc) or type(exc).__name__) from exc

    def decode(self, payload: bytes) -> T:
        """Return the value in a payload; InvalidPayload when it is not of the type."""
        try:
            return self.codec.decode(payload, self.kind)
        except errors.InvalidPayload:
            raise
        except Exception as exc:
            raise errors.InvalidPayload("decode", type_name(self.kind), str(exc) or type(exc).__name__) from exc
