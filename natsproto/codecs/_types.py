"""PURE. From a type to its reader.

Owns which types can be read, and which members of a union cannot be told apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections import OrderedDict, abc
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import combinations
from typing import Any
from uuid import UUID

from natsproto import errors
from natsproto.codecs._hints import alias_value, is_alias, record_fields, unbound, without_wrappers
from natsproto.codecs._plain import all_plain
from natsproto.codecs._readers import (
    FLOAT,
    INT,
    SCALARS,
    STR,
    Alias,
    Anything,
    Array,
    Enumeration,
    Exact,
    Finite,
    Float,
    Key,
    Mismatch,
    Object,
    Parsed,
    RecordReader,
    Tuple,
    Union,
    ValueReader,
    type_name,
)

# ---------------------------------------------------------------- which members of a union cannot be told apart


def conflict(
    one: ValueReader, two: ValueReader, seen: frozenset[tuple[int, int]] = frozenset(), nested: bool = False
) -> bool:
    """True if a value that was written for one type may be read as the other, and is another value then."""
    pair = (id(one), id(two))
    if one is two or pair in seen or not one.kinds & two.kinds:
        return False
    seen |= {pair}
    if isinstance(one, Finite) or isinstance(two, Finite):
        finite, other = (one, two) if isinstance(one, Finite) else (two, one)
        assert isinstance(finite, Finite)
        return any(_reads_other(other, written, value) for written, value in finite.values)
    if isinstance(one, Anything) or isinstance(two, Anything):
        return not all(isinstance(reader, Anything | Exact | Float) for reader in (one, two))
    if one.kinds | two.kinds <= SCALARS:
        return STR in one.kinds & two.kinds and not (isinstance(one, Parsed) and isinstance(two, Parsed))
    if isinstance(one, RecordReader) and isinstance(two, RecordReader):
        return nested or _alike(one, two)
    if isinstance(one, Tuple) and isinstance(two, Tuple):
        return not _apart(one.parts, two.parts) and not (one.least > len(two.parts) or two.least > len(one.parts))
    if not one.same_items(two):
        return True
    pairs = zip(one.parts, two.parts, strict=True)
    return any(conflict(a, b, seen, True) for x, y in pairs for a in x.members for b in y.members)


def _reads_other(reader: ValueReader, written: object, value: object) -> bool:
    try:
        found = reader.read(written, {})
    except Mismatch:
        return False
    return not (found == value and hash(found) == hash(value))


def _alike(one: RecordReader, two: RecordReader) -> bool:
    """True for records with the same keys whose values do not distinguish them. A field whose type contains one of
    the two is not compared: there, a value that fits both is a mismatch.
    """
    if one.fields.keys() != two.fields.keys():
        return False
    readers = [(one.fields[name][0], two.fields[name][0]) for name in one.fields]
    if any(_contains(reader, (one, two)) for pair in readers for reader in pair):
        return False
    return not _apart([a for a, _ in readers], [b for _, b in readers])


def _apart(ones: Iterable[ValueReader], twos: Iterable[ValueReader]) -> bool:
    """True if the values at one place differ in their kind, or are of different lists of values."""

    def differ(one: ValueReader, two: ValueReader) -> bool:
        if not _kinds(one) & _kinds(two):
            return True
        if isinstance(one, Finite) and isinstance(two, Finite):
            first = [(type(written), written) for written, _ in one.values]
            return not any((type(written), written) in first for written, _ in two.values)
        return False

    return any(differ(one, two) for one, two in zip(ones, twos, strict=False))


def _kinds(reader: ValueReader) -> frozenset[str]:
    return frozenset().union(*(member.kinds for member in reader.members))


def _contains(reader: ValueReader, wanted: tuple[ValueReader, ...]) -> bool:
    seen: set[int] = set()
    waiting = [reader]
    while waiting:
        one = waiting.pop()
        if one in wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            waiting += one.parts
    return False


# ---------------------------------------------------------------- from types to readers


def reader_of(kind: Any, binary: bool = False) -> ValueReader:
    """Return the reader of a type; ConfigError for one that cannot be read. ``binary``: payloads can hold bytes."""
    try:
        hash(kind)
    except TypeError:  # Annotated with a list
        kind = without_wrappers(kind)
    return _cached(kind, binary)


@lru_cache(maxsize=4096, typed=True)
def _cached(kind: Hashable, binary: bool) -> ValueReader:
    return _Builder(kind, binary).build()


_PARSED = (
    Parsed(Decimal, lambda value: Decimal(str(value)), 2, {INT, FLOAT}),
    Parsed(UUID, UUID, 3),
    Parsed(date, date.fromisoformat, 4),
    Parsed(datetime, datetime.fromisoformat, 5),
    Parsed(time, time.fromisoformat, 6),
)
_LEAVES: Mapping[object, ValueReader] = {
    **{kind: Anything() for kind in (object, typing.Any)},
    **{kind: Exact(type(None), "null") for kind in (None, type(None))},
    **{kind: Exact(str, "a string") for kind in (str, typing.LiteralString)},
    int: Exact(int, "a whole number"),
    bool: Exact(bool, "true or false"),
    float: Float(),
    **dict(zip((Decimal, UUID, date, datetime, time), _PARSED, strict=True)),
}
_BYTES = Exact(bytes, "bytes")
_ARRAYS: Mapping[object, Callable[[list[object]], object]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.MutableSet, abc.Set), set),
    frozenset: frozenset,
    tuple: tuple,
}
_OBJECTS: Mapping[object, Callable[[dict[object, object]], object]] = {
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    OrderedDict: OrderedDict,
    types.MappingProxyType: types.MappingProxyType,
}
_OTHER_CODECS = {"pydantic": "natsproto.codecs.pydantic()", "msgspec": "natsproto.codecs.msgspec()"}


class _Builder:
    """Makes the readers of one type and all types in it."""

    def __init__(self, root: Hashable, binary: bool) -> None:
        self._root, self._binary = root, binary
        self._made: dict[Hashable, ValueReader] = {}
        self._unions: list[tuple[Union, str]] = []

    def build(self) -> ValueReader:
        reader = self._reader(self._root, "")
        for union, _ in self._unions:
            union.arrange()
        for union, where in self._unions:
            for one, two in combinations(union.members, 2):
                if conflict(one, two):
                    raise self._refusal(where, f"{one.name} and {two.name} in a union cannot be told apart")
        return reader

    def _refusal(self, where: str, reason: str) -> errors.ConfigError:
        return errors.ConfigError("type", type_name(self._root), f"{where}: {reason}" if where else reason)

    def _reader(self, hint: Any, where: str) -> ValueReader:
        hint = without_wrappers(hint)
        while isinstance(hint, typing.TypeVar):
            hint = without_wrappers(unbound(hint))
        try:
            known = _LEAVES.get(hint) or self._made.get(hint)
        except TypeError:  # no hash
            raise self._refusal(where, f"{type_name(hint)} cannot be read") from None
        if known is not None:
            return known
        if hint is bytes:
            if not self._binary:
                raise self._refusal(where, "JSON has no bytes: use str (base64), or natsproto.codecs.msgpack()")
            return _BYTES
        try:
            self._made[hint] = made = self._compound(hint, where)
        except (NameError, TypeError, AttributeError) as exc:
            raise self._refusal(where, f"{type_name(hint)} cannot be read: {exc}") from None
        return made

    def _compound(self, hint: Any, where: str) -> ValueReader:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if is_alias(origin or hint):
            alias = self._made[hint] = Alias(type_name(hint))
            alias.target = self._reader(alias_value(origin or hint, arguments), where)
            alias.parts = (alias.target,)
            return alias
        if origin in (typing.Union, types.UnionType):
            union = self._made[hint] = Union(" | ".join(map(type_name, arguments)))
            union.parts = tuple(self._reader(argument, where) for argument in arguments)
            self._unions.append((union, where))
            return union
        if origin is typing.Literal:
            return Finite(type_name(hint), [(all_plain(value), value) for value in arguments], 0)
        plain = origin or hint
        if plain is tuple and origin is not None and not (len(arguments) == 2 and arguments[1] is ...):
            return self._tuple(Tuple(type_name(hint)), arguments, len(arguments), where)
        if plain in _ARRAYS:
            item = self._reader(arguments[0] if arguments else object, f"{where}[]")
            return Array(type_name(hint), _ARRAYS[plain], item)
        if plain in _OBJECTS:
            key, item = arguments or (object, object)
            return Object(type_name(hint), _OBJECTS[plain], self._key(key, where), self._reader(item, f"{where}[]"))
        if isinstance(plain, type):
            return self._of_class(plain, hint, arguments, where)
        raise TypeError(
            "it is not a type of values" if not isinstance(hint, str | typing.ForwardRef) else "not defined"
        )

    def _of_class(self, plain: type[Any], hint: Any, arguments: tuple[Any, ...], where: str) -> ValueReader:
        if issubclass(plain, Enum):
            return Enumeration(plain)
        if issubclass(plain, tuple) and hasattr(plain, "_fields"):
            named = self._made[hint] = Tuple(type_name(hint), plain)
            fields = record_fields(plain, arguments)
            least = sum(field.required for field in fields)
            return self._tuple(named, tuple(field.hint for field in fields), least, where)
        is_dict = typing.is_typeddict(plain)
        if is_dict or (
            dataclasses.is_dataclass(plain) and not issubclass(plain, str | int | float | list | tuple | dict)
        ):
            record = self._made[hint] = RecordReader(type_name(hint), plain)
            fields = record_fields(plain, arguments)
            if not is_dict:
                inspect.signature(plain).bind(**{field.name: None for field in fields})
            for field in fields:
                reader = self._reader(field.hint, f"{where}.{field.name}" if where else field.name)
                record.fields[field.name] = (reader, field.required)
            record.parts = tuple(reader for reader, _ in record.fields.values())
            return record
        for package, codec in _OTHER_CODECS.items():
            if any(base.__module__.partition(".")[0] == package for base in plain.__mro__):
                raise self._refusal(where, f"{type_name(hint)} needs codec={codec}")
        raise self._refusal(where, f"this codec has no {type_name(hint)}")

    def _tuple(self, made: Tuple, hints: tuple[Any, ...], least: int, where: str) -> ValueReader:
        made.parts = tuple(self._reader(hint, f"{where}[{index}]") for index, hint in enumerate(hints))
        made.least = least
        return made

    def _key(self, hint: Any, where: str) -> ValueReader:
        key = self._reader(hint, f"{where}[key]")
        kinds = _kinds(key)
        if isinstance(key, Anything):
            return key
        if not kinds <= SCALARS:
            raise self._refusal(where, f"{key.name} cannot be a key")
        if STR in kinds and len(kinds) > 1 and not self._binary:
            raise self._refusal(where, f"keys of type {key.name} are all written as strings and cannot be told apart")
        return Key(key)
