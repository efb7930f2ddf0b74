"""Records and JSON: what a JetStream value looks like on the wire and what it looks like here.

Owns the record class (frozen, slotted, keyword-only) and its kinds of fields. It knows no field of the server
by name and has no opinion on what a value means.

The rules, once for all records:

* durations are nanoseconds on the wire and float seconds here (a ``timedelta`` is accepted too),
* times are RFC 3339 on the wire and ``Timestamp`` here; the zero time of the server is ``None``,
* ``null`` and a missing key are the field's default, so a null list is an empty tuple,
* a field that is falsy or equals its default is left out when sending: since 2.12 the server refuses fields it
  does not know, and an older server knows fewer,
* what the server sends and the record does not name is kept in ``extra`` and sent back,
* an enumerated value that is not listed here is kept as an ``Unlisted`` string,
* what a program passes in is checked when the record is made; what a server sends is only checked for its type.

Records are used as dataclasses are (``dataclasses.replace``, ``fields`` and ``asdict`` work, mypy knows their
constructors), but no code is generated for them: 45 generated dataclasses cost 20 ms at import, 45 records 1 ms.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from math import isfinite
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Generic,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
)

from natsproto._value import did_you_mean
from natsproto.errors import ConfigError, InvalidReply
from natsproto.jetstream._timestamp import Timestamp

if TYPE_CHECKING:
    import dataclasses

R = TypeVar("R", bound="Record")
E = TypeVar("E", bound=Enum)
V = TypeVar("V")
H = TypeVar("H", covariant=True)
A = TypeVar("A", contravariant=True)

Duration: TypeAlias = float | timedelta
"""Seconds; a ``timedelta`` says the same."""

NEVER = Timestamp(1, 1, 1)
"""The zero time of the server."""

INT32, INT64, UINT64 = 2**31 - 1, 2**63 - 1, 2**64 - 1

_ENVELOPE = frozenset({"type", "total", "offset", "limit"})  # of the reply around a record, not of the record
_ZERO_TIME = "0001-01-01T00:00:00"


class Unlisted(str):
    """An enumerated value this version does not list: a newer server sent it, or a program insists on it."""

    __slots__ = ()


# ---------------------------------------------------------------- the kinds of fields

if TYPE_CHECKING:

    class Holds(Generic[H, A]):
        """What the type checker sees of a field that accepts more than it holds. At runtime it holds plain values."""

        def __get__(self, record: object, owner: object = None) -> H: ...
        def __set__(self, record: object, value: A) -> None: ...

    Seconds: TypeAlias = Holds[float, Duration]
    Delays: TypeAlias = Holds[tuple[float, ...], Iterable[Duration]]
    Moment: TypeAlias = Holds[Timestamp | None, datetime | None]  # None for the server's zero time
    Strings: TypeAlias = Holds[tuple[str, ...], Iterable[str]]  # but not one bare string
    Many: TypeAlias = Holds[tuple[R, ...], Iterable[R]]
    Choice: TypeAlias = Holds[E | Unlisted, A]
else:
    Seconds, Delays, Moment, Strings, Many = float, tuple[float, ...], Timestamp | None, tuple[str, ...], tuple
    Choice = Union


_REQUIRED = object()


class ExactSeconds(float):
    """Seconds that a float does not hold to the nanosecond: what a server says is written back as it said it."""

    __slots__ = ("ns",)

    ns: int
    """The same in nanoseconds."""

    def __new__(cls, ns: int) -> Self:
        """So many nanoseconds."""
        self = super().__new__(cls, ns / 1_000_000_000)
        self.ns = ns
        return self

    def __reduce__(self) -> tuple[type[ExactSeconds], tuple[int]]:
        return ExactSeconds, (self.ns,)


class Field:
    """One field of a record: its key on the wire and the three ways a value passes.

    ``accept(what, value)`` takes what a program gave and raises TypeError or ConfigError. ``read`` takes what the
    server sent and raises TypeError or ValueError; None when a value of the type ``exact`` is right as it is.
    ``write`` makes JSON of what is held; None when it is JSON already. ``always``: sent even when falsy.
    """

    __slots__ = ("accept", "always", "default", "exact", "key", "put", "read", "write")

    def __init__(
        self,
        key: str,
        default: object,
        accept: Callable[[str, object], object],
        *,
        exact: type = object,
        read: Callable[[object], object] | None = None,
        write: Callable[[object], object] | None = None,
        always: bool = False,
    ) -> None:
        self.key, self.default, self.always = key, default, always
        self.accept, self.exact, self.read, self.write = accept, exact, read, write
        self.put: Callable[[object, object], None] = _unbound


def _unbound(record: object, value: object) -> None:
    raise TypeError("a field belongs to a record class")


def text(*, default: str = cast(str, _REQUIRED), key: str = "", always: bool = False) -> str:
    """A string."""
    return cast(str, Field(key, default, _accept_text, exact=str, always=always))


def flag(*, default: bool = False, key: str = "") -> bool:
    """A truth value."""
    return cast(bool, Field(key, default, _accept_flag, exact=bool))


def integer(
    *, default: int = cast(int, _REQUIRED), low: int = 0, high: int = INT64, key: str = "", always: bool = False
) -> int:
    """An int from ``low`` to ``high``; the server answers a bigger one with an error about JSON."""

    def accept(what: str, value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            _wrong_type(what, value, "an int")
        if not low <= value <= high:
            raise ConfigError(what, value, f"must be from {low} to {high}")
        return int(value)

    return cast(int, Field(key, default, accept, exact=int, always=always))


def seconds(*, default: float = 0.0, key: str = "") -> Seconds:
    """A duration: nanoseconds on the wire."""
    return cast("Seconds", Field(key, default, _accept_seconds, read=_read_seconds, write=_write_seconds))


def delays(*, default: tuple[()] = (), key: str = "") -> Delays:
    """A list of durations."""
    return cast("Delays", Field(key, default, _accept_delays, read=_read_delays, write=_write_delays))


def age(*, default: float | None = None, key: str = "") -> float | None:
    """Seconds since something was heard of last; the server's -1 means never and is None here."""
    return cast("float | None", Field(key, default, _accept_age, read=_read_age, write=_write_seconds))


def moment(*, default: None = None, key: str = "") -> Moment:
    """A point in time, or None."""
    return cast("Moment", Field(key, default, _accept_moment, read=_read_moment, write=_write_moment))


def instant(*, default: Timestamp = NEVER, key: str = "") -> Timestamp:
    """A point in time that the server always tells; NEVER only when an old one did not."""
    return cast(Timestamp, Field(key, default, _accept_instant, read=_read_instant, write=_write_moment))


def choice(kind: type[E], *, default: E, key: str = "", always: bool = False) -> Choice[E, A]:
    """One of an enumeration of strings; its plain string is accepted too."""
    members: dict[object, E] = {member.value: member for member in kind}

    def accept(what: str, value: object) -> object:
        if not isinstance(value, str):
            _wrong_type(what, value, f"a {kind.__name__} or its string")
        if isinstance(value, Unlisted):
            return value
        try:
            return members[str(value)]
        except KeyError:
            raise ConfigError(what, value, f"must be one of {', '.join(map(str, members))}") from None

    def read(value: object) -> object:
        if type(value) is not str:
            raise TypeError
        return members.get(value) or (Unlisted(value) if value else default)

    return cast("Choice[E, A]", Field(key, default, accept, read=read, write=str, always=always))


def strings(*, default: tuple[()] = (), key: str = "") -> Strings:
    """A list of strings."""
    return cast("Strings", Field(key, default, _accept_strings, read=_read_strings, write=_write_list))


def integers(*, default: tuple[()] = (), key: str = "") -> tuple[int, ...]:
    """A list of ints."""
    return cast("tuple[int, ...]", Field(key, default, _accept_integers, read=_read_integers, write=_write_list))


def nested(kind: type[R], *, default: R | None = None, key: str = "") -> R:
    """A record inside; without a default it must be there. For one that may be absent see ``optional``."""
    held = _REQUIRED if default is None else default
    return cast(R, Field(key, held, _accepting(kind), read=_reading(kind), write=_write_record))


def optional(kind: type[R], *, default: None = None, key: str = "") -> R | None:
    """A record inside, or None."""
    accept = _accepting(kind)
    return cast(
        "R | None",
        Field(
            key,
            default,
            lambda what, value: None if value is None else accept(what, value),
            read=_reading(kind),
            write=_write_record,
        ),
    )


def many(kind: type[R], *, default: tuple[()] = (), key: str = "") -> Many[R]:
    """A list of records."""
    accept, read = _accepting(kind), _reading(kind)
    return cast(
        "Many[R]",
        Field(
            key,
            default,
            lambda what, value: tuple(accept(what, one) for one in _each(what, value, f"{kind.__name__}s")),
            read=lambda value: tuple(read(one) for one in _json_list(value)),
            write=lambda value: [_write_record(one) for one in cast("tuple[object, ...]", value)],
        ),
    )


def labels(*, default: Mapping[str, str] | None = None, key: str = "") -> Mapping[str, str]:
    """A map of strings."""
    return cast(
        "Mapping[str, str]", Field(key, default or {}, _accept_labels, read=_reading_map(str), write=_write_map)
    )


def counts(*, default: Mapping[str, int] | None = None, key: str = "") -> Mapping[str, int]:
    """A map of ints."""
    return cast("Mapping[str, int]", Field(key, default or {}, _accept_map, read=_reading_map(int), write=_write_map))


def records(kind: type[R], *, default: Mapping[str, R] | None = None, key: str = "") -> Mapping[str, R]:
    """A map of records."""
    read = _reading(kind)
    return cast(
        "Mapping[str, R]",
        Field(
            key,
            default or {},
            _accept_map,
            read=lambda value: {name: read(one) for name, one in _json_map(value).items()},
            write=lambda value: {name: _write_record(one) for name, one in cast("Mapping[str, object]", value).items()},
        ),
    )


def blob(*, default: bytes = b"", key: str = "") -> bytes:
    """Bytes: base64 on the wire."""
    return cast(bytes, Field(key, default, _accept_blob, read=_read_blob, write=_write_blob))


def anything(*, default: Mapping[str, object] | None = None) -> Mapping[str, object]:
    """JSON that is kept as it came."""
    return cast("Mapping[str, object]", Field("", default or {}, _accept_map))


# ---------------------------------------------------------------- what a program may give


def _wrong_type(what: str, value: object, wanted: str) -> NoReturn:
    raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")


def _accept_text(what: str, value: object) -> object:
    if not isinstance(value, str):
        _wrong_type(what, value, "a str")
    return value


def _accept_flag(what: str, value: object) -> object:
    if not isinstance(value, bool):
        _wrong_type(what, value, "a bool")
    return value


def _accept_seconds(what: str, value: object) -> object:
    if isinstance(value, ExactSeconds):
        return value
    if isinstance(value, timedelta):
        value = _seconds_of(nanoseconds(value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        _wrong_type(what, value, "seconds or a timedelta")
    if not (isfinite(value) and 0 <= value <= INT64 // 1_000_000_000):
        raise ConfigError(what, value, "durations are seconds, at least 0 and at most 292 years")
    if value and not nanoseconds(value):
        raise ConfigError(what, value, "is less than a nanosecond and would read as none")
    return value if isinstance(value, ExactSeconds) else float(value)


def _accept_age(what: str, value: object) -> object:
    return None if value is None else _accept_seconds(what, value)


def _accept_delays(what: str, value: object) -> object:
    return tuple(_accept_seconds(what, one) for one in _each(what, value, "durations"))


def _accept_moment(what: str, value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, datetime):
        _wrong_type(what, value, "a datetime")
    try:
        return Timestamp.of(value)
    except ValueError as exc:
        raise ConfigError(what, value, str(exc)) from None


def _accept_instant(what: str, value: object) -> object:
    return _accept_moment(what, NEVER if value is None else value)


def _accept_strings(what: str, value: object) -> object:
    return tuple(_accept_text(what, one) for one in _each(what, value, "strings"))


def _accept_integers(what: str, value: object) -> object:
    return tuple(_each(what, value, "ints"))


def _accept_map(what: str, value: object) -> object:
    if not isinstance(value, Mapping):
        _wrong_type(what, value, "a mapping")
    return dict(value)


def _accept_labels(what: str, value: object) -> object:
    found = cast("dict[object, object]", _accept_map(what, value))
    for label, content in found.items():
        if not (isinstance(label, str) and isinstance(content, str)):
            raise TypeError(f"{what} must map str to str, not {label!r} to {content!r}")
    return found


def _accept_blob(what: str, value: object) -> object:
    if not isinstance(value, bytes | bytearray | memoryview):
        _wrong_type(what, value, "bytes")
    return bytes(value)


def _accepting(kind: type[R]) -> Callable[[str, object], object]:
    def accept(what: str, value: object) -> object:
        if not isinstance(value, kind):
            _wrong_type(what, value, f"a {kind.__name__}")
        return value

    return accept


def _each(what: str, value: object, wanted: str) -> Iterable[object]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        _wrong_type(what, value, f"a list or tuple of {wanted}")
    return value


# ---------------------------------------------------------------- what a server sends


def _json_list(value: object) -> Sequence[object]:
    if type(value) is not list:
        raise TypeError("must be a list")
    return value


def _json_map(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise TypeError("must be an object")
    return value


def _reading(kind: type[R]) -> Callable[[object], object]:
    return lambda value: decode(kind, value)


def _reading_map(exact: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        found = _json_map(value)
        for one in found.values():
            if type(one) is not exact:
                raise TypeError(f"must be {exact.__name__}s")
        return found

    return read


def _read_seconds(value: object) -> float:
    if type(value) is not int:
        raise TypeError("must be nanoseconds")
    return _seconds_of(value)


def _seconds_of(ns: int) -> float:
    found = ns / 1_000_000_000
    return found if nanoseconds(found) == ns else ExactSeconds(ns)


def _read_age(value: object) -> float | None:
    return None if value == -1 else _read_seconds(value)


def _read_delays(value: object) -> object:
    return tuple(_read_seconds(one) for one in _json_list(value))


def _read_instant(value: object) -> object:
    if type(value) is not str:
        raise TypeError("must be a time")
    return NEVER if value.startswith(_ZERO_TIME) else Timestamp.parse(value)


def _read_moment(value: object) -> object:
    found = _read_instant(value)
    return None if found is NEVER else found


def _read_strings(value: object) -> object:
    found = tuple(_json_list(value))
    for one in found:
        if type(one) is not str:
            raise TypeError("must be strings")
    return found


def _read_integers(value: object) -> object:
    found = tuple(_json_list(value))
    for one in found:
        if type(one) is not int:
            raise TypeError("must be ints")
    return found


def _read_blob(value: object) -> object:
    if type(value) is not str:
        raise TypeError("must be base64")
    return b64decode(value, validate=True)


# ---------------------------------------------------------------- what is sent


def _write_seconds(value: object) -> object:
    return nanoseconds(cast(float, value))


def _write_delays(value: object) -> object:
    return [nanoseconds(one) for one in cast("tuple[float, ...]", value)]


def _write_moment(value: object) -> object:
    return cast(Timestamp, value).rfc3339()


def _write_list(value: object) -> object:
    return list(cast("tuple[object, ...]", value))


def _write_map(value: object) -> object:
    return dict(cast("Mapping[str, object]", value))


def _write_record(value: object) -> object:
    return encode(cast(Record, value))


def _write_blob(value: object) -> object:
    return b64encode(cast(bytes, value)).decode("ascii")


# ---------------------------------------------------------------- the record


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(
        text,
        flag,
        integer,
        seconds,
        delays,
        age,
        moment,
        instant,
        choice,
        strings,
        integers,
        nested,
        optional,
        many,
        labels,
        counts,
        records,
        blob,
        anything,
    ),
)
class RecordType(type):
    """Makes record classes: the fields of the class body become slots and a table of ``Field``."""

    _fields: dict[str, Field]  # by attribute name, inherited ones first
    _plan: tuple[tuple[str, Field, type, object, Callable[[object], object] | None], ...]  # the same for reading
    _keys: frozenset[str]  # every wire key that is not extra

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, object]) -> RecordType:
        """Takes the fields out of the body before the slots of the same names come in."""
        own = {attribute: field for attribute, field in body.items() if isinstance(field, Field)}
        for attribute in own:
            del body[attribute]
        body["__slots__"] = tuple(own)
        cls = super().__new__(mcs, name, bases, body)
        fields: dict[str, Field] = dict(bases[0]._fields) if bases and isinstance(bases[0], RecordType) else {}
        for attribute, field in own.items():
            field.key = field.key or attribute
            field.put = cls.__dict__[attribute].__set__
            fields[attribute] = field
        cls._fields = fields
        cls._plan = tuple(
            (field.key, field, field.exact, field.default, field.read)
            for attribute, field in fields.items()
            if attribute != "extra"
        )
        cls._keys = _ENVELOPE.union(key for key, *_ in cls._plan)
        return cls


class _DataclassFields:
    """``__dataclass_fields__``, made when somebody asks: dataclasses' functions take records as their own."""

    def __get__(self, record: object, owner: RecordType) -> dict[str, object]:
        import dataclasses

        found: dict[str, object] = {}
        for name, field in owner._fields.items():
            view: dataclasses.Field[object] = dataclasses.field(kw_only=True)
            if isinstance(field.default, dict):
                view.default_factory = dict
            elif field.default is not _REQUIRED:
                view.default = field.default
            view.name, view.type = name, owner.__annotations__.get(name, "object")
            view._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            found[name] = view
        return found


class Record(metaclass=RecordType):
    """A frozen value with named fields, made from keyword arguments. Equal when all fields are.

    ``extra`` holds what a newer server sent and this version does not name; it is sent back as it came.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]
    else:
        __dataclass_fields__ = _DataclassFields()

    extra: Mapping[str, object] = anything(default=None)

    def __init__(self, **given: object) -> None:
        kind = type(self)
        for name, field in kind._fields.items():
            if name in given:
                value = field.accept(name, given.pop(name))
            elif (value := field.default) is _REQUIRED:
                raise _misnamed(kind, given, f"needs {name}=")
            elif type(value) is dict:
                value = {}
            field.put(self, value)
        if given:
            raise _misnamed(kind, given)

    def replace(self: R, **changes: object) -> R:
        """A copy with some fields changed; the changed ones are checked as in the constructor."""
        kind = type(self)
        if not changes.keys() <= kind._fields.keys():
            raise _misnamed(kind, changes)
        copy = kind.__new__(kind)
        for name, field in kind._fields.items():
            field.put(copy, field.accept(name, changes[name]) if name in changes else getattr(self, name))
        return copy

    __replace__ = replace

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self)._fields)

    __hash__: ClassVar[None]  # type: ignore[assignment]  # records hold maps

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: use replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        shown = (
            f"{name}={value!r}"
            for name, field in type(self)._fields.items()
            if (value := getattr(self, name)) != field.default
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[object, ...]:
        kind = type(self)
        return restored, (kind, tuple(getattr(self, name) for name in kind._fields))


def _misnamed(kind: type[Record], given: Iterable[str], missing: str = "") -> TypeError:
    """For who gave names that are no fields, and perhaps for that reason not one that is needed."""
    strange = [name for name in given if name not in kind._fields]
    found = [f"has no field {name!r}{did_you_mean(name, kind._fields)}" for name in strange]
    fields = (
        f"; it has {', '.join(kind._fields)}" if strange and not any("did you mean" in one for one in found) else ""
    )
    return TypeError(f"{kind.__name__} {', '.join([missing] * bool(missing) + found)}{fields}")


def restored(kind: type[R], values: tuple[object, ...]) -> R:
    """A record from all its values, ``extra`` first and the others in their order, unchecked."""
    record = kind.__new__(kind)
    for field, value in zip(kind._fields.values(), values, strict=True):
        field.put(record, value)
    return record


# ---------------------------------------------------------------- JSON to records and back


def decode(kind: type[R], payload: object) -> R:
    """The record a server's JSON object stands for; InvalidReply names the place that cannot be read."""
    if type(payload) is not dict:
        raise InvalidReply(kind.__name__, "", payload, "must be an object")
    record = kind.__new__(kind)
    get = payload.get
    for key, field, exact, default, read in kind._plan:
        value = get(key)
        if value is None:
            if default is _REQUIRED:
                raise InvalidReply(kind.__name__, key, value, "must be there")
            value = {} if type(default) is dict else default
        elif read is not None:
            try:
                value = read(value)
            except InvalidReply as exc:
                path = f"{key}.{exc.path}" if exc.path else key
                raise InvalidReply(kind.__name__, path, exc.value, exc.rule) from None
            except (TypeError, ValueError, OverflowError) as exc:
                raise InvalidReply(kind.__name__, key, value, "is not what this field holds") from exc
        elif type(value) is not exact:
            raise InvalidReply(kind.__name__, key, value, f"must be of type {exact.__name__}")
        field.put(record, value)
    known = kind._keys
    kind._fields["extra"].put(
        record, {} if known.issuperset(payload) else {key: payload[key] for key in payload if key not in known}
    )
    return record


def encode(record: Record) -> dict[str, object]:
    """The JSON object to send: falsy fields and defaults left out, ``extra`` put back."""
    sent: dict[str, object] = dict(record.extra)
    for name, field in type(record)._fields.items():
        if name == "extra":
            continue
        value = getattr(record, name)
        if field.always or (value and value != field.default):
            sent[field.key] = value if field.write is None else field.write(value)
    return sent


def loads(kind: type[R], data: bytes | str) -> R:
    """``decode`` of JSON text."""
    return decode(kind, parse(data, kind.__name__))


def parse(data: bytes | str, what: str = "reply") -> dict[str, object]:
    """The JSON object in a message; InvalidReply when it is something else."""
    try:
        payload = json.loads(data if isinstance(data, str) else data.decode())  # bytes: a search for the encoding
    except (ValueError, RecursionError) as exc:
        raise InvalidReply(what, "", data, "is not JSON") from exc
    if type(payload) is not dict:
        raise InvalidReply(what, "", payload, "must be an object")
    return payload


def amended(kind: type[R], record: R | None, fields: Mapping[str, object]) -> R:
    """A copy of the record with other values of some fields, or one of these fields. TypeError for what is none."""
    if record is None:
        return kind(**fields)
    if not isinstance(record, kind):
        raise TypeError(
            f"the configuration must be of type {kind.__name__}, not {type(record).__name__}; "
            "single fields are named arguments, names of things too"
        )
    return record.replace(**fields)


def dumps(payload: Record | Mapping[str, object]) -> bytes:
    """Compact JSON of a record or of a request made by hand (whose values may be records).

    ConfigError for a string with half a surrogate pair, which UTF-8 cannot hold.
    """
    body = encode(payload) if isinstance(payload, Record) else dict(payload)
    written = json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=_plain)
    try:
        return written.encode()
    except UnicodeEncodeError as exc:
        bad = written[written.rfind('"', 0, exc.start) + 1 : written.find('"', exc.end)]
        raise ConfigError("string", bad, "cannot be encoded as UTF-8") from None


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return encode(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def nanoseconds(duration: Duration) -> int:
    """A duration as the wire has it. Exact for every whole number of nanoseconds up to 97 days, and for those that
    came from a server.
    """
    if isinstance(duration, ExactSeconds):
        return duration.ns
    if isinstance(duration, timedelta):
        return ((duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds) * 1000
    whole = int(duration)
    return whole * 1_000_000_000 + round((duration - whole) * 1e9)
