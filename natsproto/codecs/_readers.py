"""PURE. Readers: functions from plain values, as JSON and MessagePack have them, to values of a requested type.

Owns what each type accepts, and which types cannot be read.

* A reader is made once for a type, with all types in it. A type that cannot be read is a ConfigError then, by its name.
* A value that was written for a type is read as that type. Some types accept more: a float a whole number.
* The members of a union are chosen by the kind of the value (null, a string, a list …). Members that are written as
  the same kind must be told apart by their values, or the union is refused.
* Records (dataclasses, TypedDicts) in a union are chosen by their keys: of the records that fit, the one with the
  fewest unknown keys, then the fewest values of another kind, then the fewest missing keys. A draw is a mismatch, not a
  guess.
* In a union each record is tried once for each value (``memo``), so that a recursive type costs values x types.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from itertools import combinations
from typing import Any

from natsproto.codecs._plain import all_plain, key_text

Memo = dict[tuple[int, int], object]

NULL, BOOL, INT, FLOAT, STR, BYTES, LIST, OBJECT = "null", "bool", "int", "float", "str", "bytes", "list", "object"
_KINDS: Mapping[type, str] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    bytes: BYTES,
    list: LIST,
    dict: OBJECT,
}
_KIND_TEXTS = {
    NULL: "null",
    BOOL: "a bool",
    INT: "a number",
    FLOAT: "a number",
    STR: "a string",
    BYTES: "bytes",
    LIST: "a list",
    OBJECT: "an object",
}
_ALL_KINDS = frozenset(_KIND_TEXTS)
SCALARS = frozenset({NULL, BOOL, INT, FLOAT, STR, BYTES})


class Mismatch(ValueError):
    """A value does not have the requested type. ``path`` is its place in the payload."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(f"{path.lstrip('.')}: {reason}" if path else reason)

    def within(self, step: str) -> Mismatch:
        return Mismatch(self.reason, step + self.path)


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def kind_text(value: object) -> str:
    """Describe the type of a value for an error message, without the value itself."""
    return _KIND_TEXTS.get(kind_of(value), kind_of(value))


def type_name(kind: object) -> str:
    """Return how an error calls a type."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


class ValueReader:
    """Reads plain values as one type."""

    rank = 5
    """In a union, members with a lower rank are tried first."""

    def __init__(self, name: str, kinds: Iterable[str], lenient: Iterable[str] = ()) -> None:
        self.name = name
        self.kinds = frozenset(kinds)
        """The kinds of plain values that are written for this type."""
        self.lenient = frozenset(lenient)
        """The kinds that are accepted beside them."""
        self.parts: tuple[ValueReader, ...] = ()

    def read(self, value: object, memo: Memo) -> object:
        raise NotImplementedError

    def same_items(self, other: ValueReader) -> bool:
        """True if a value that both read is the same for both, provided that the values in it are."""
        return False

    @property
    def members(self) -> tuple[ValueReader, ...]:
        """The readers of a union, or this one."""
        return (self,)


class Anything(ValueReader):
    rank = 9

    def __init__(self) -> None:
        super().__init__("any value", _ALL_KINDS)

    def read(self, value: object, memo: Memo) -> object:
        return value


class Exact(ValueReader):
    """Reads a value of one class as it is."""

    def __init__(self, kind: type[object], article: str) -> None:
        super().__init__(type_name(kind) if kind is not type(None) else "None", {_KINDS[kind]})
        self._kind, self._article = kind, article
        self.rank = 8 if kind is str else 5

    def read(self, value: object, memo: Memo) -> object:
        if type(value) is not self._kind:
            raise Mismatch(f"must be {self._article}, not {kind_text(value)}")
        return value


class Float(ValueReader):
    rank = 6

    def __init__(self) -> None:
        super().__init__("float", {FLOAT, INT})

    def read(self, value: object, memo: Memo) -> object:
        if type(value) is float:
            return value
        if type(value) is not int:
            raise Mismatch(f"must be a number, not {kind_text(value)}")
        try:
            return float(value)
        except OverflowError:
            raise Mismatch("is too large for a float") from None


class Parsed(ValueReader):
    """Reads a value that is written as a string."""

    def __init__(
        self, kind: type[object], convert: Callable[[Any], object], rank: int, lenient: Iterable[str] = ()
    ) -> None:
        super().__init__(kind.__name__, {STR}, lenient)
        self._convert, self.rank = convert, rank

    def read(self, value: object, memo: Memo) -> object:
        if kind_of(value) not in self.kinds | self.lenient:
            raise Mismatch(f"must be a {self.name}, not {kind_text(value)}")
        try:
            return self._convert(value)
        except (ValueError, ArithmeticError):
            raise Mismatch(f"is not a valid {self.name}") from None


class Finite(ValueReader):
    """Reads one of some values: those of an enumeration or of a Literal."""

    def __init__(self, name: str, values: Iterable[tuple[object, object]], rank: int) -> None:
        self.values = tuple(values)  # as they are written, and as they are
        super().__init__(name, {kind_of(written) for written, _ in self.values})
        self.rank = rank

    def read(self, value: object, memo: Memo) -> object:
        for written, found in self.values:
            if type(written) is type(value) and written == value:
                return found
        return self.other(value)

    def other(self, value: object) -> object:
        raise Mismatch(f"must be one of {', '.join(repr(found) for _, found in self.values)}")


class Enumeration(Finite):
    """Reads a member of an enumeration, a combination of flags, or what its ``_missing_`` finds."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__(kind.__name__, [(all_plain(member.value), member) for member in kind], 1)
        self._kind = kind
        if issubclass(kind, Flag):
            self.kinds |= {INT}
        for (one, member), (two, other) in combinations(self.values, 2):
            if type(one) is type(two) and one == two:
                raise TypeError(f"{member} and {other} are written alike")

    def other(self, value: object) -> object:
        if kind_of(value) not in self.kinds:
            raise Mismatch(f"must be a {self.name}, not {kind_text(value)}")
        try:
            if kind_of(value) in SCALARS:
                return self._kind(value)
        except ValueError:
            pass
        raise Mismatch(f"is not a valid {self.name}")


class Array(ValueReader):
    """Reads a list of any length."""

    def __init__(self, name: str, make: Callable[[list[object]], object], item: ValueReader) -> None:
        super().__init__(name, {LIST})
        self._make, self._item, self.parts = make, item, (item,)

    def read(self, value: object, memo: Memo) -> object:
        read = self._item.read
        found = [read_at(read, one, f"[{index}]", memo) for index, one in enumerate(_expect_list(value))]
        try:
            return self._make(found)
        except TypeError as exc:  # a set of values without a hash
            raise Mismatch(str(exc)) from None

    def same_items(self, other: ValueReader) -> bool:
        return isinstance(other, Array) and self._make is other._make


class Tuple(ValueReader):
    """Reads a list of a fixed length, or the fields of a NamedTuple."""

    def __init__(self, name: str, make: Callable[..., object] = lambda *items: items) -> None:
        super().__init__(name, {LIST})
        self._make = make
        self.least = 0

    def read(self, value: object, memo: Memo) -> object:
        items = _expect_list(value)
        if not self.least <= len(items) <= len(self.parts):
            raise Mismatch(f"must have {len(self.parts)} items, not {len(items)}")
        read = [
            read_at(part.read, one, f"[{index}]", memo)
            for index, (part, one) in enumerate(zip(self.parts, items, strict=False))
        ]
        return _made(self._make, read, {})


class Object(ValueReader):
    """Reads a mapping."""

    def __init__(
        self, name: str, make: Callable[[dict[object, object]], object], key: ValueReader, item: ValueReader
    ) -> None:
        super().__init__(name, {OBJECT})
        self._make, self._key, self._item, self.parts = make, key, item, (key, item)

    def read(self, value: object, memo: Memo) -> object:
        found: dict[object, object] = {}
        for name, one in _expect_object(value).items():
            step = f"[{name!r}]"
            key = read_at(self._key.read, name, step, memo)
            found[key] = read_at(self._item.read, one, step, memo)
        return self._make(found)

    def same_items(self, other: ValueReader) -> bool:
        return isinstance(other, Object) and self._make is other._make


class Key(ValueReader):
    """Reads the keys of a mapping, which JSON writes as strings and MessagePack as they are."""

    def __init__(self, key: ValueReader) -> None:
        super().__init__(key.name, key.kinds)
        self._key = key

    def read(self, value: object, memo: Memo) -> object:
        if kind_of(value) not in self._key.kinds and type(value) is str:
            try:
                parsed = json.loads(value)
                if kind_of(parsed) in self._key.kinds and key_text(parsed) == value:
                    return self._key.read(parsed, memo)
            except ValueError:
                pass
            raise Mismatch(f"is not a valid {self.name}")
        return self._key.read(value, memo)


class RecordReader(ValueReader):
    """Reads a dataclass or a TypedDict. Its fields are set after it is made, as the type may contain itself."""

    def __init__(self, name: str, make: Callable[..., object]) -> None:
        super().__init__(name, {OBJECT})
        self._make = make
        self.fields: dict[str, tuple[ValueReader, bool]] = {}

    def read(self, value: object, memo: Memo) -> object:
        given = _expect_object(value)
        found: dict[str, object] = {}
        for name, (reader, required) in self.fields.items():
            if name in given:
                found[name] = read_at(reader.read, given[name], f".{name}", memo)
            elif required:
                raise Mismatch("is missing", f".{name}")
        return _made(self._make, (), found)

    def distance(self, given: Mapping[str, object]) -> tuple[int, int, int]:
        """Return how unlike a value is to what is written for this type."""
        unknown = sum(name not in self.fields for name in given)
        of_other_kind = sum(
            name in given and kind_of(given[name]) not in reader.kinds for name, (reader, _) in self.fields.items()
        )
        return unknown, of_other_kind, sum(name not in given for name in self.fields)


class Union(ValueReader):
    """Reads one of several types."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ())
        self._flat: tuple[ValueReader, ...] = ()
        self._by_kind: dict[str, list[ValueReader]] = {}

    @property
    def members(self) -> tuple[ValueReader, ...]:
        return self._flat or tuple(dict.fromkeys(one for part in self.parts for one in part.members))

    def arrange(self) -> None:
        """Sort the members by the kinds that they read, when all of them are known."""
        self._flat = tuple(sorted(self.members, key=lambda reader: reader.rank))
        self.kinds = frozenset().union(*(reader.kinds for reader in self._flat))
        lenient = frozenset().union(*(reader.lenient for reader in self._flat))
        for kind in self.kinds | lenient:
            written = [reader for reader in self._flat if kind in reader.kinds]
            self._by_kind[kind] = written or [reader for reader in self._flat if kind in reader.lenient]

    def read(self, value: object, memo: Memo) -> object:
        kind = kind_of(value)
        readers = self._by_kind.get(kind, ())
        if len(readers) == 1:
            return readers[0].read(value, memo)
        if kind == OBJECT and len(readers) > 1:
            return self._read_record(typing.cast("dict[str, object]", value), readers, memo)
        for reader in readers:
            found = _try(reader, value, memo)
            if not isinstance(found, Mismatch):
                return found
        raise Mismatch(f"{kind_text(value)} is none of {self.name}")

    def _read_record(self, value: dict[str, object], readers: list[ValueReader], memo: Memo) -> object:
        fits: list[tuple[tuple[int, int, int], ValueReader, object]] = []
        wrong: list[tuple[tuple[int, int, int], Mismatch]] = []
        for reader in readers:
            distance = reader.distance(value) if isinstance(reader, RecordReader) else (0, 0, 0)
            found = _try(reader, value, memo)
            if isinstance(found, Mismatch):
                wrong.append((distance, found))
            else:
                fits.append((distance, reader, found))
        if not fits:
            nearest = min(distance for distance, _ in wrong)
            first, *others = [error for distance, error in wrong if distance == nearest]
            raise Mismatch(f"an object is none of {self.name}") if others else first
        nearest = min(distance for distance, _, _ in fits)
        best = [(reader, found) for distance, reader, found in fits if distance == nearest]
        if len(best) > 1 and isinstance(best[0][0], RecordReader):
            names = " and ".join(reader.name for reader, _ in best)
            raise Mismatch(f"fits {names} alike: a field of type Literal tells them apart")
        return best[0][1]


class Alias(ValueReader):
    """Reads what an alias of Python 3.12 stands for, which may contain the alias."""

    target: ValueReader

    def __init__(self, name: str) -> None:
        super().__init__(name, ())

    def read(self, value: object, memo: Memo) -> object:
        return self.target.read(value, memo)

    @property
    def members(self) -> tuple[ValueReader, ...]:
        return self.target.members


def _try(reader: ValueReader, value: object, memo: Memo) -> object:
    """Return the value, or the mismatch; what was tried once is not tried again."""
    if type(value) is not dict and type(value) is not list:
        try:
            return reader.read(value, memo)
        except Mismatch as mismatch:
            return mismatch
    key = (id(value), id(reader))
    if key not in memo:
        try:
            memo[key] = reader.read(value, memo)
        except Mismatch as mismatch:
            memo[key] = mismatch.with_traceback(None)
    return memo[key]


def read_at(read: Callable[[object, Memo], object], value: object, step: str, memo: Memo) -> object:
    try:
        return read(value, memo)
    except Mismatch as mismatch:
        raise mismatch.within(step) from mismatch.__cause__


def _made(make: Callable[..., object], items: Iterable[object], fields: Mapping[str, object]) -> object:
    """Return the object; whatever its constructor raises is a mismatch."""
    try:
        return make(*items, **fields)
    except RecursionError:
        raise
    except Exception as exc:
        raise Mismatch(str(exc) or type(exc).__name__) from exc


def _expect_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise Mismatch(f"must be a list, not {kind_text(value)}")
    return value


def _expect_object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Mismatch(f"must be an object, not {kind_text(value)}")
    return value
