"""Codecs for payloads: the Codec protocol, JSON, and adapters to pydantic, msgspec and msgpack.

A codec encodes Python values to bytes and decodes them to a requested type. It knows nothing of messages. The adapters
import their library when they are created, so none of these libraries is a dependency.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Literal, NoReturn, Protocol, TypeVar, cast
from uuid import UUID

from natsproto.errors import ConfigError, InvalidPayload

T = TypeVar("T")

Reader = Callable[[object], object]
"""Converts plain JSON values to a requested type, or raises _Mismatch."""


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
    """JSON for plain values, dataclasses, TypedDicts, enums, dates and times, UUID and Decimal, and for lists, tuples,
    sets, dicts and unions of them.

    Decoded values are checked against the type. Keys that a dataclass does not have are ignored, so that newer programs
    can send more fields.
    """

    def encode(self, value: object) -> bytes:
        """Return the value as compact UTF-8. InvalidPayload for values that JSON does not have, such as NaN.

        Args:
            value: Any value of a type that the codec knows.
        """
        try:
            text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidPayload("encode", type(value).__name__, str(exc)) from exc

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """Return the checked value. InvalidPayload for invalid JSON, and for a value of another type, with its path.

        Args:
            payload: The bytes, as ``message.data`` has them.
            kind: The type of the value to return.
        """
        try:
            return cast(
                "T", reader(cast("Hashable", kind))(json.loads(payload.decode(), parse_constant=_reject_constant))
            )
        except (ValueError, RecursionError) as exc:
            raise InvalidPayload("decode", _type_name(kind), str(exc)) from exc

    def __repr__(self) -> str:
        return "JSON"


JSON = JsonCodec()
"""The default codec."""


class Adapter:
    """A codec made of two functions. Their exceptions become InvalidPayload.

    Args:
        name: How errors call the codec.
        encode: Returns the payload of a value.
        decode: Returns the value of a payload and its type.
    """

    def __init__(
        self, name: str, encode: Callable[[object], bytes], decode: Callable[[bytes, type[object]], object]
    ) -> None:
        self._name, self._encode, self._decode = name, encode, decode

    def encode(self, value: object) -> bytes:
        """Call the encode function.

        Args:
            value: Any value of a type that the codec knows.
        """
        try:
            return self._encode(value)
        except Exception as exc:
            raise InvalidPayload("encode", type(value).__name__, str(exc) or type(exc).__name__) from exc

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """Call the decode function.

        Args:
            payload: The bytes, as ``message.data`` has them.
            kind: The type of the value to return.
        """
        try:
            return cast("T", self._decode(payload, kind))
        except Exception as exc:
            raise InvalidPayload("decode", _type_name(kind), str(exc) or type(exc).__name__) from exc

    def __repr__(self) -> str:
        return self._name


def pydantic() -> Codec:
    """Return a codec for JSON with pydantic (2 or newer): models, and every type that a TypeAdapter accepts."""
    adapter = lru_cache(maxsize=1024)(_import_library("pydantic").TypeAdapter)
    return Adapter(
        "pydantic",
        lambda value: adapter(cast("Hashable", type(value))).dump_json(value),
        lambda payload, kind: adapter(cast("Hashable", kind)).validate_json(payload),
    )


def msgspec(format: Literal["json", "msgpack"] = "json") -> Codec:
    """Return a codec for JSON or MessagePack with msgspec: structs, and every other type that it supports.

    Args:
        format: "json" (default) or "msgpack".
    """
    library = getattr(_import_library("msgspec"), format)
    return Adapter(f"msgspec({format})", library.encode, lambda payload, kind: library.decode(payload, type=kind))


def msgpack() -> Codec:
    """Return a codec for MessagePack with msgpack: the types of JsonCodec, and bytes."""
    library = _import_library("msgpack")
    return Adapter(
        "msgpack",
        lambda value: library.packb(value, default=_plain),
        lambda payload, kind: reader(cast("Hashable", kind))(library.unpackb(payload, strict_map_key=False)),
    )


def _import_library(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as exc:
        raise ConfigError("codec", package, f"needs the package {package}: pip install {package}") from exc


# ---------------------------------------------------------------- to plain values


def _plain(value: object) -> object:
    """Convert a value that the json module does not support to one that it does."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"this codec cannot encode {type(value).__name__}")


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


# ---------------------------------------------------------------- from plain values


class _Mismatch(ValueError):
    """A value does not have the requested type. ``path`` is its place in the payload."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(f"{path.lstrip('.')}: {reason}" if path else reason)

    def within(self, step: str) -> _Mismatch:
        return _Mismatch(self.reason, step + self.path)


@lru_cache(maxsize=4096)
def reader(kind: Hashable) -> Reader:
    """Return the function that converts plain values to this type. ValueError for an unsupported type."""
    if kind is typing.Any or kind is object or isinstance(kind, TypeVar):
        return lambda value: value
    if kind in (None, type(None)):
        return _read_none
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated or isinstance(kind, typing.NewType):
        return reader(arguments[0] if arguments else kind.__supertype__)  # type: ignore[attr-defined]
    if origin is typing.Union or origin is types.UnionType:
        return _union_reader(arguments)
    if origin is Literal:
        return _literal_reader(arguments)
    plain = origin or kind
    if not isinstance(plain, type):
        raise ValueError(f"cannot decode values of type {_type_name(kind)}")
    if plain in _ARRAYS:
        return _array_reader(_ARRAYS[plain], arguments)
    if plain is tuple:
        return (
            _array_reader(tuple, arguments[:1])
            if len(arguments) != 2 or arguments[1] is ...
            else _tuple_reader(arguments)
        )
    if issubclass(plain, Mapping) and not typing.is_typeddict(plain):
        return _mapping_reader(arguments)
    if issubclass(plain, Enum):
        return _converting_reader(plain, (str, int, float), plain)
    if plain in _SCALARS:
        return _SCALARS[plain]
    if dataclasses.is_dataclass(plain) or typing.is_typeddict(plain):
        return _RecordReader(plain)
    raise ValueError(f"cannot decode values of type {_type_name(kind)}")


def _read_none(value: object) -> None:
    if value is not None:
        raise _Mismatch(f"must be null, not {_type_text(value)}")


def _exact_reader(kind: type[object], article: str) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, kind) or (kind is int and value is True) or (kind is int and value is False):
            raise _Mismatch(f"must be {article}, not {_type_text(value)}")
        return value

    return read


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Mismatch(f"must be a number, not {_type_text(value)}")
    return float(value)


def _converting_reader(
    kind: type[object], accepted: tuple[type[object], ...], convert: Callable[..., object]
) -> Reader:
    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise _Mismatch(f"must be a {kind.__name__}, not {_type_text(value)}")
        try:
            return convert(value)
        except (ValueError, InvalidOperation):
            raise _Mismatch(f"is not a valid {kind.__name__}") from None

    return read


_SCALARS: Mapping[type[object], Reader] = {
    str: _exact_reader(str, "a string"),
    int: _exact_reader(int, "a whole number"),
    bool: _exact_reader(bool, "true or false"),
    bytes: _exact_reader(bytes, "bytes"),
    float: _read_float,
    datetime: _converting_reader(datetime, (str,), datetime.fromisoformat),
    date: _converting_reader(date, (str,), date.fromisoformat),
    time: _converting_reader(time, (str,), time.fromisoformat),
    UUID: _converting_reader(UUID, (str,), UUID),
    Decimal: _converting_reader(Decimal, (str, int, float), lambda value: Decimal(str(value))),
}

_ARRAYS: Mapping[type[object], Callable[[Iterable[object]], object]] = {
    list: list,
    Sequence: list,
    Iterable: list,
    set: set,
    frozenset: frozenset,
}


def _union_reader(kinds: tuple[Hashable, ...]) -> Reader:
    # float and str accept nearly every value, so they are tried last; the order within a union has no effect.
    kinds = tuple(sorted(kinds, key=lambda kind: (kind is float) + 2 * (kind is str)))

    def read(value: object) -> object:
        for kind in kinds:
            try:
                return reader(kind)(value)
            except _Mismatch:
                continue
        raise _Mismatch(f"{_type_text(value)} is none of {' | '.join(map(_type_name, kinds))}")

    return read


def _literal_reader(values: tuple[object, ...]) -> Reader:
    def read(value: object) -> object:
        for allowed in values:
            if value == (allowed.value if isinstance(allowed, Enum) else allowed) and type(value) is not float:
                return allowed
        raise _Mismatch(f"must be one of {', '.join(map(repr, values))}")

    return read


def _array_reader(make: Callable[[Iterable[object]], object], arguments: tuple[Hashable, ...]) -> Reader:
    item = arguments[0] if arguments else object

    def read(value: object) -> object:
        read_item = reader(item)
        return make([_read_at(read_item, one, f"[{index}]") for index, one in enumerate(_expect_list(value))])

    return read


def _tuple_reader(kinds: tuple[Hashable, ...]) -> Reader:
    def read(value: object) -> object:
        items = _expect_list(value)
        if len(items) != len(kinds):
            raise _Mismatch(f"must have {len(kinds)} items, not {len(items)}")
        return tuple(
            _read_at(reader(kind), one, f"[{index}]")
            for index, (kind, one) in enumerate(zip(kinds, items, strict=True))
        )

    return read


def _mapping_reader(arguments: tuple[Hashable, ...]) -> Reader:
    key, item = arguments if len(arguments) == 2 else (object, object)

    def read(value: object) -> object:
        fields = _expect_object(value)
        read_key, read_item = _key_reader(key), reader(item)
        return {
            _read_at(read_key, name, f"[{name!r}]"): _read_at(read_item, one, f"[{name!r}]")
            for name, one in fields.items()
        }

    return read


def _key_reader(kind: Hashable) -> Reader:
    """Return the reader for the keys of a mapping, which are always strings in JSON."""
    if kind is int:
        return lambda key: key if type(key) is int else _converting_reader(int, (str,), int)(key)
    return reader(kind)


class _RecordReader:
    """Reads a dataclass or a TypedDict. It finds the fields at the first use, as the type may contain itself."""

    def __init__(self, kind: type[object]) -> None:
        self._kind = kind
        self._fields: list[tuple[str, Reader, bool]] | None = None

    def __call__(self, value: object) -> object:
        given = _expect_object(value)
        if self._fields is None:
            self._fields = self._describe()
        found: dict[str, object] = {}
        for name, read, required in self._fields:
            if name in given:
                found[name] = _read_at(read, given[name], f".{name}")
            elif required:
                raise _Mismatch("is missing", f".{name}")
        return self._kind(**found)

    def _describe(self) -> list[tuple[str, Reader, bool]]:
        hints = typing.get_type_hints(self._kind, include_extras=True)
        if typing.is_typeddict(self._kind):
            required: frozenset[str] = getattr(self._kind, "__required_keys__")  # noqa: B009  # unknown to type[object]
            return [
                (name, reader(_without_required(hint)), _is_required(hint, name in required))
                for name, hint in hints.items()
            ]
        assert dataclasses.is_dataclass(self._kind)
        return [
            (
                field.name,
                reader(hints[field.name]),
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(self._kind)
            if field.init
        ]


def _is_required(hint: Hashable, default: bool) -> bool:
    """Return True for a required key. When annotations are strings, the class itself does not know NotRequired."""
    origin = typing.get_origin(hint)
    return origin is typing.Required or (default and origin is not typing.NotRequired)


def _without_required(hint: Hashable) -> Hashable:
    """Return the type inside Required or NotRequired."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        inner: Hashable = typing.get_args(hint)[0]
        return inner
    return hint


def _read_at(read: Reader, value: object, step: str) -> object:
    try:
        return read(value)
    except _Mismatch as mismatch:
        raise mismatch.within(step) from None


def _expect_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Mismatch(f"must be a list, not {_type_text(value)}")
    return value


def _expect_object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Mismatch(f"must be an object, not {_type_text(value)}")
    return value


def _type_text(value: object) -> str:
    """Describe the type of a value for an error message, without the value itself."""
    names = {type(None): "null", bool: "a bool", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")
