"""Values as payloads: what a codec is, JSON, and adapters to pydantic, msgspec and msgpack.

Owns how values of Python become bytes and come back as the type that is asked for. It knows nothing of messages.
The adapters import their library when they are made, so none of them is a dependency.
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
"""Makes the value that was asked for out of plain ones, or raises _Misfit."""


class Codec(Protocol):
    """Makes payloads of values and values of payloads. Both raise InvalidPayload when it cannot be done."""

    def encode(self, value: object) -> bytes:
        """The payload for a value."""
        ...

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """The value in a payload, which is a ``kind``."""
        ...


class JsonCodec:
    """JSON for plain values, dataclasses, TypedDicts, enums, dates and times, UUID and Decimal, in lists, tuples,
    sets, dicts and unions of them. What is decoded is checked against the type; keys that a dataclass does not have
    are ignored, so that a newer program can send more.
    """

    def encode(self, value: object) -> bytes:
        """The value as compact UTF-8. InvalidPayload for what JSON cannot say, NaN and infinity included."""
        try:
            text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidPayload("encode", type(value).__name__, str(exc)) from exc

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """The value, checked. InvalidPayload for what is no JSON or does not fit the type, saying where."""
        try:
            return cast("T", reader(cast("Hashable", kind))(json.loads(payload.decode(), parse_constant=_no_number)))
        except (ValueError, RecursionError) as exc:
            raise InvalidPayload("decode", _name(kind), str(exc)) from exc

    def __repr__(self) -> str:
        return "JSON"


JSON = JsonCodec()
"""The codec that is used unless another one is given."""


class Adapter:
    """A codec made of two functions; whatever they raise becomes InvalidPayload."""

    def __init__(
        self, name: str, encode: Callable[[object], bytes], decode: Callable[[bytes, type[object]], object]
    ) -> None:
        self._name, self._encode, self._decode = name, encode, decode

    def encode(self, value: object) -> bytes:
        """What the first function makes of the value."""
        try:
            return self._encode(value)
        except Exception as exc:
            raise InvalidPayload("encode", type(value).__name__, str(exc) or type(exc).__name__) from exc

    def decode(self, payload: bytes, kind: type[T]) -> T:
        """What the second function makes of payload and type."""
        try:
            return cast("T", self._decode(payload, kind))
        except Exception as exc:
            raise InvalidPayload("decode", _name(kind), str(exc) or type(exc).__name__) from exc

    def __repr__(self) -> str:
        return self._name


def pydantic() -> Codec:
    """JSON through pydantic (2 or newer): models, and everything a TypeAdapter takes."""
    adapter = lru_cache(maxsize=1024)(_library("pydantic").TypeAdapter)
    return Adapter(
        "pydantic",
        lambda value: adapter(cast("Hashable", type(value))).dump_json(value),
        lambda payload, kind: adapter(cast("Hashable", kind)).validate_json(payload),
    )


def msgspec(format: Literal["json", "msgpack"] = "json") -> Codec:
    """JSON or MessagePack through msgspec: structs, and everything else it knows."""
    library = getattr(_library("msgspec"), format)
    return Adapter(f"msgspec({format})", library.encode, lambda payload, kind: library.decode(payload, type=kind))


def msgpack() -> Codec:
    """MessagePack through msgpack, for the types of JsonCodec and bytes."""
    library = _library("msgpack")
    return Adapter(
        "msgpack",
        lambda value: library.packb(value, default=_plain),
        lambda payload, kind: reader(cast("Hashable", kind))(library.unpackb(payload, strict_map_key=False)),
    )


def _library(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as exc:
        raise ConfigError("codec", package, f"needs the package {package}: pip install {package}") from exc


# ---------------------------------------------------------------- to plain values


def _plain(value: object) -> object:
    """What JSON has for a value it does not know."""
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
    raise TypeError(f"{type(value).__name__} is nothing this codec can write")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# ---------------------------------------------------------------- from plain values


class _Misfit(ValueError):
    """A value does not fit; ``path`` leads to it."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(f"{path.lstrip('.')}: {reason}" if path else reason)

    def within(self, step: str) -> _Misfit:
        return _Misfit(self.reason, step + self.path)


@lru_cache(maxsize=4096)
def reader(kind: Hashable) -> Reader:
    """What makes values of this type out of plain ones. ValueError for a type that cannot be read."""
    if kind is typing.Any or kind is object or isinstance(kind, TypeVar):
        return lambda value: value
    if kind in (None, type(None)):
        return _read_none
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated or isinstance(kind, typing.NewType):
        return reader(arguments[0] if arguments else kind.__supertype__)  # type: ignore[attr-defined]
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments)
    if origin is Literal:
        return _literal(arguments)
    plain = origin or kind
    if not isinstance(plain, type):
        raise ValueError(f"no values of type {_name(kind)} can be read")
    if plain in _ARRAYS:
        return _array(_ARRAYS[plain], arguments)
    if plain is tuple:
        return _array(tuple, arguments[:1]) if len(arguments) != 2 or arguments[1] is ... else _row(arguments)
    if issubclass(plain, Mapping) and not typing.is_typeddict(plain):
        return _table(arguments)
    if issubclass(plain, Enum):
        return _converted(plain, (str, int, float), plain)
    if plain in _SCALARS:
        return _SCALARS[plain]
    if dataclasses.is_dataclass(plain) or typing.is_typeddict(plain):
        return _Record(plain)
    raise ValueError(f"no values of type {_name(kind)} can be read")


def _read_none(value: object) -> None:
    if value is not None:
        raise _Misfit(f"must be null, not {_shown(value)}")


def _exact(kind: type[object], article: str) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, kind) or (kind is int and value is True) or (kind is int and value is False):
            raise _Misfit(f"must be {article}, not {_shown(value)}")
        return value

    return read


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Misfit(f"must be a number, not {_shown(value)}")
    return float(value)


def _converted(kind: type[object], accepted: tuple[type[object], ...], convert: Callable[..., object]) -> Reader:
    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise _Misfit(f"must be a {kind.__name__}, not {_shown(value)}")
        try:
            return convert(value)
        except (ValueError, InvalidOperation):
            raise _Misfit(f"is no {kind.__name__}") from None

    return read


_SCALARS: Mapping[type[object], Reader] = {
    str: _exact(str, "a string"),
    int: _exact(int, "a whole number"),
    bool: _exact(bool, "true or false"),
    bytes: _exact(bytes, "bytes"),
    float: _read_float,
    datetime: _converted(datetime, (str,), datetime.fromisoformat),
    date: _converted(date, (str,), date.fromisoformat),
    time: _converted(time, (str,), time.fromisoformat),
    UUID: _converted(UUID, (str,), UUID),
    Decimal: _converted(Decimal, (str, int, float), lambda value: Decimal(str(value))),
}

_ARRAYS: Mapping[type[object], Callable[[Iterable[object]], object]] = {
    list: list,
    Sequence: list,
    Iterable: list,
    set: set,
    frozenset: frozenset,
}


def _union(kinds: tuple[Hashable, ...]) -> Reader:
    # What takes nearly everything comes last, whatever the order: unions that differ in it alone are equal.
    kinds = tuple(sorted(kinds, key=lambda kind: (kind is float) + 2 * (kind is str)))

    def read(value: object) -> object:
        for kind in kinds:
            try:
                return reader(kind)(value)
            except _Misfit:
                continue
        raise _Misfit(f"{_shown(value)} is none of {' | '.join(map(_name, kinds))}")

    return read


def _literal(values: tuple[object, ...]) -> Reader:
    def read(value: object) -> object:
        for allowed in values:
            if value == (allowed.value if isinstance(allowed, Enum) else allowed) and type(value) is not float:
                return allowed
        raise _Misfit(f"must be one of {', '.join(map(repr, values))}")

    return read


def _array(make: Callable[[Iterable[object]], object], arguments: tuple[Hashable, ...]) -> Reader:
    item = arguments[0] if arguments else object

    def read(value: object) -> object:
        read_item = reader(item)
        return make([_step(read_item, one, f"[{place}]") for place, one in enumerate(_list(value))])

    return read


def _row(kinds: tuple[Hashable, ...]) -> Reader:
    def read(value: object) -> object:
        items = _list(value)
        if len(items) != len(kinds):
            raise _Misfit(f"must hold {len(kinds)} items, not {len(items)}")
        return tuple(
            _step(reader(kind), one, f"[{place}]") for place, (kind, one) in enumerate(zip(kinds, items, strict=True))
        )

    return read


def _table(arguments: tuple[Hashable, ...]) -> Reader:
    key, item = arguments if len(arguments) == 2 else (object, object)

    def read(value: object) -> object:
        fields = _object(value)
        read_key, read_item = _key_reader(key), reader(item)
        return {
            _step(read_key, name, f"[{name!r}]"): _step(read_item, one, f"[{name!r}]") for name, one in fields.items()
        }

    return read


def _key_reader(kind: Hashable) -> Reader:
    """Keys of JSON are strings, whatever they were before."""
    if kind is int:
        return lambda key: key if type(key) is int else _converted(int, (str,), int)(key)
    return reader(kind)


class _Record:
    """Reads a dataclass or a TypedDict. What its fields are is found out at first use: it may hold itself."""

    def __init__(self, kind: type[object]) -> None:
        self._kind = kind
        self._fields: list[tuple[str, Reader, bool]] | None = None

    def __call__(self, value: object) -> object:
        given = _object(value)
        if self._fields is None:
            self._fields = self._describe()
        found: dict[str, object] = {}
        for name, read, required in self._fields:
            if name in given:
                found[name] = _step(read, given[name], f".{name}")
            elif required:
                raise _Misfit("is missing", f".{name}")
        return self._kind(**found)

    def _describe(self) -> list[tuple[str, Reader, bool]]:
        hints = typing.get_type_hints(self._kind, include_extras=True)
        if typing.is_typeddict(self._kind):
            required: frozenset[str] = getattr(self._kind, "__required_keys__")  # noqa: B009  # unknown to type[object]
            return [(name, reader(_bare(hint)), _is_required(hint, name in required)) for name, hint in hints.items()]
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


def _is_required(hint: Hashable, otherwise: bool) -> bool:
    """Where annotations are strings, the class itself does not know what NotRequired said."""
    origin = typing.get_origin(hint)
    return origin is typing.Required or (otherwise and origin is not typing.NotRequired)


def _bare(hint: Hashable) -> Hashable:
    """The type without Required or NotRequired around it."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        inner: Hashable = typing.get_args(hint)[0]
        return inner
    return hint


def _step(read: Reader, value: object, step: str) -> object:
    try:
        return read(value)
    except _Misfit as misfit:
        raise misfit.within(step) from None


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _Misfit(f"must be a list, not {_shown(value)}")
    return value


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Misfit(f"must be an object, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """What kind of value came, not which."""
    names = {type(None): "null", bool: "a bool", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")
