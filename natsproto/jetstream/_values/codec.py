"""Records and their JSON: the values of the JetStream API.

Owns the record class (frozen, slotted, keyword-only) and its kinds of fields. It does not know the server's fields and
the meaning of their values.

The rules for all records:

* durations are nanoseconds on the wire and float seconds here (a ``timedelta`` is accepted too),
* times are RFC 3339 on the wire and ``Timestamp`` here; the zero time of the server is ``None``,
* ``null`` and a missing key are the field's default, so a null list is an empty tuple,
* a field that is falsy or equals its default is left out when sending: since 2.12 the server refuses fields it does not
  know, and an older server knows fewer,
* fields that the record does not name are kept in ``extra`` and sent back,
* an enumerated value that is not listed here is kept as an ``Unlisted`` string,
* values from a program are checked when the record is made; values from a server are only checked for their type.

Records are used as dataclasses are (``dataclasses.replace``, ``fields`` and ``asdict`` work, mypy knows their
constructors), but no code is generated for them: 45 generated dataclasses cost 20 ms at import, 45 records 1 ms.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
)

from natsproto import errors
from natsproto.jetstream._values.record import (
    REQUIRED,
    BaseRecord,
    BaseRecordType,
    Field,
    accept_blob,
    accept_flag,
    accept_integers,
    accept_labels,
    accept_map,
    accept_strings,
    accept_text,
    each,
    wrong_type,
)
from natsproto.jetstream._values.timestamp import Timestamp, to_server_time

if TYPE_CHECKING:
    pass

R = TypeVar("R", bound="Record")
E = TypeVar("E", bound=Enum)
V = TypeVar("V")
H = TypeVar("H", covariant=True)
A = TypeVar("A", contravariant=True)

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""

NEVER = Timestamp(1, 1, 1)
"""The zero time of the server."""

INT32, INT64, UINT64 = 2**31 - 1, 2**63 - 1, 2**64 - 1
MAX_LIFETIME_S = 200 * 365 * 86_400
"""The server's clock overflows in 2262; a lifetime that would end later ends at once."""

_ZERO_TIME = "0001-01-01T00:00:00"


class ExactSeconds(float):
    """Seconds that a float cannot represent to the nanosecond. The server's value is written back unchanged."""

    __slots__ = ("ns",)

    ns: int
    """The same in nanoseconds."""

    def __new__(cls, ns: int) -> Self:
        """``ns`` in nanoseconds."""
        self = super().__new__(cls, ns / 1_000_000_000)
        self.ns = ns
        return self

    def __reduce__(self) -> tuple[type[ExactSeconds], tuple[int]]:
        return ExactSeconds, (self.ns,)


def nanoseconds(duration: Duration) -> int:
    """Return a duration in nanoseconds. Exact for every whole number of nanoseconds up to 97 days, and for values of a
    server.
    """
    if isinstance(duration, ExactSeconds):
        return duration.ns
    if isinstance(duration, timedelta):
        return ((duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds) * 1000
    whole = int(duration)
    return whole * 1_000_000_000 + round((duration - whole) * 1e9)


class Unlisted(str):
    """An enumerated value that this version does not know: from a newer server, or passed explicitly by a program."""

    __slots__ = ()


# ---------------------------------------------------------------- the kinds of fields

if TYPE_CHECKING:

    class Holds(Generic[H, A]):
        """The type of a field that accepts more than it holds, for type checkers. At runtime it holds plain values."""

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


def text(*, default: str = cast(str, REQUIRED), key: str = "", always: bool = False) -> str:
    """A string."""
    return cast(str, Field(key, default, accept_text, exact=str, always=always))


def flag(*, default: bool = False, key: str = "") -> bool:
    """A bool."""
    return cast(bool, Field(key, default, accept_flag, exact=bool))


def integer(
    *, default: int = cast(int, REQUIRED), low: int = 0, high: int = INT64, key: str = "", always: bool = False
) -> int:
    """An int from ``low`` to ``high``; for a larger one the server replies with a JSON error."""

    def accept(what: str, value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            wrong_type(what, value, "an int")
        if not low <= value <= high:
            raise errors.ConfigError(what, value, f"must be from {low} to {high}")
        return int(value)

    return cast(int, Field(key, default, accept, exact=int, always=always))


def seconds(*, default: float = 0.0, key: str = "") -> Seconds:
    """A duration: nanoseconds on the wire."""
    return cast("Seconds", Field(key, default, accept_seconds, read=read_seconds, write=write_seconds))


def lifetime(*, default: float = 0.0, key: str = "") -> Seconds:
    """A duration that the server adds to the time of a message."""
    return cast("Seconds", Field(key, default, accept_lifetime, read=read_seconds, write=write_seconds))


def delays(*, default: tuple[()] = (), key: str = "") -> Delays:
    """A list of durations."""
    return cast("Delays", Field(key, default, accept_delays, read=read_delays, write=write_delays))


def age(*, default: float | None = None, key: str = "") -> float | None:
    """Seconds since the last activity; the server's -1 means never and is None here."""
    return cast("float | None", Field(key, default, accept_age, read=read_age, write=write_seconds))


def moment(*, default: None = None, key: str = "") -> Moment:
    """A time, or None."""
    return cast("Moment", Field(key, default, accept_moment, read=read_moment, write=write_moment))


def instant(*, default: Timestamp = NEVER, key: str = "") -> Timestamp:
    """A time that the server always sends; NEVER if an old server did not."""
    return cast(Timestamp, Field(key, default, accept_instant, read=read_instant, write=write_moment))


def choice(kind: type[E], *, default: E, key: str = "", always: bool = False) -> Choice[E, A]:
    """One of an enumeration of strings; its plain string is accepted too."""
    members: dict[object, E] = {member.value: member for member in kind}

    def accept(what: str, value: object) -> object:
        if not isinstance(value, str):
            wrong_type(what, value, f"a {kind.__name__} or its string")
        if isinstance(value, Unlisted):
            return value
        try:
            return members[str(value)]
        except KeyError:
            raise errors.ConfigError(what, value, f"must be one of {', '.join(map(str, members))}") from None

    def read(value: object) -> object:
        if type(value) is not str:
            raise TypeError
        return members.get(value) or (Unlisted(value) if value else default)

    return cast("Choice[E, A]", Field(key, default, accept, read=read, write=str, always=always))


def strings(*, default: tuple[()] = (), key: str = "") -> Strings:
    """A list of strings."""
    return cast("Strings", Field(key, default, accept_strings, read=read_strings, write=write_list))


def integers(*, default: tuple[()] = (), key: str = "") -> tuple[int, ...]:
    """A list of ints."""
    return cast("tuple[int, ...]", Field(key, default, accept_integers, read=read_integers, write=write_list))


def nested(kind: type[R], *, default: R | None = None, key: str = "") -> R:
    """A nested record; without a default it is required. ``optional`` is for one that may be absent."""
    held = REQUIRED if default is None else default
    return cast(R, Field(key, held, _accepting(kind), read=_reading(kind), write=_write_record))


def optional(kind: type[R], *, default: None = None, key: str = "") -> R | None:
    """A nested record, or None."""
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
            lambda what, value: tuple(accept(what, one) for one in each(what, value, f"{kind.__name__}s")),
            read=lambda value: tuple(read(one) for one in json_list(value)),
            write=lambda value: [_write_record(one) for one in cast("tuple[object, ...]", value)],
        ),
    )


def labels(*, default: Mapping[str, str] | None = None, key: str = "") -> Mapping[str, str]:
    """A map of strings."""
    return cast("Mapping[str, str]", Field(key, default or {}, accept_labels, read=reading_map(str), write=write_map))


def counts(*, default: Mapping[str, int] | None = None, key: str = "") -> Mapping[str, int]:
    """A map of ints."""
    return cast("Mapping[str, int]", Field(key, default or {}, accept_map, read=reading_map(int), write=write_map))


def records(kind: type[R], *, default: Mapping[str, R] | None = None, key: str = "") -> Mapping[str, R]:
    """A map of records."""
    read = _reading(kind)
    return cast(
        "Mapping[str, R]",
        Field(
            key,
            default or {},
            accept_map,
            read=lambda value: {name: read(one) for name, one in json_map(value).items()},
            write=lambda value: {name: _write_record(one) for name, one in cast("Mapping[str, object]", value).items()},
        ),
    )


def blob(*, default: bytes = b"", key: str = "") -> bytes:
    """Bytes: base64 on the wire."""
    return cast(bytes, Field(key, default, accept_blob, read=read_blob, write=write_blob))


def anything(*, default: Mapping[str, object] | None = None) -> Mapping[str, object]:
    """JSON that is kept as it came."""
    return cast("Mapping[str, object]", Field("", default or {}, accept_map))


# ---------------------------------------------------------------- records inside records


def _accepting(kind: type[R]) -> Callable[[str, object], object]:
    def accept(what: str, value: object) -> object:
        if not isinstance(value, kind):
            wrong_type(what, value, f"a {kind.__name__}")
        return value

    return accept


def _reading(kind: type[R]) -> Callable[[object], object]:
    return lambda value: decode(kind, value)


def _write_record(value: object) -> object:
    return encode(cast(Record, value))


# ---------------------------------------------------------------- checks of times that a program passes


def accept_seconds(what: str, value: object) -> object:
    if isinstance(value, ExactSeconds):
        return value
    if isinstance(value, timedelta):
        value = seconds_of(nanoseconds(value))
    if not isinstance(value, int | float) or isinstance(value, bool):
        wrong_type(what, value, "seconds or a timedelta")
    if not 0 <= value <= INT64 // 1_000_000_000:  # not nan either
        raise errors.ConfigError(what, value, "durations are seconds, at least 0 and at most 292 years")
    if value and not nanoseconds(value):
        raise errors.ConfigError(what, value, "is less than a nanosecond and would read as none")
    return value if isinstance(value, ExactSeconds) else float(value)


def accept_lifetime(what: str, value: object) -> object:
    duration = accept_seconds(what, value)
    if cast(float, duration) > MAX_LIFETIME_S:
        raise errors.ConfigError(what, value, "is more than 200 years: the server would let it pass at once")
    return duration


def accept_age(what: str, value: object) -> object:
    return None if value is None else accept_seconds(what, value)


def accept_delays(what: str, value: object) -> object:
    return tuple(accept_seconds(what, one) for one in each(what, value, "durations"))


def accept_moment(what: str, value: object) -> object:
    return None if value is None else server_time(what, value)


def server_time(what: str, moment: object, add_ns: int = 0) -> Timestamp:
    """``to_server_time``; ConfigError for a naive datetime."""
    if not isinstance(moment, datetime):
        wrong_type(what, moment, "a datetime")
    try:
        return to_server_time(moment, add_ns)
    except ValueError as exc:
        raise errors.ConfigError(what, moment, str(exc)) from None


def accept_instant(what: str, value: object) -> object:
    return NEVER if value is None or value == NEVER else accept_moment(what, value)


# ---------------------------------------------------------------- reading JSON


def json_list(value: object) -> Sequence[object]:
    if type(value) is not list:
        raise TypeError("must be a list")
    return value


def json_map(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise TypeError("must be an object")
    return value


def reading_map(exact: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        found = json_map(value)
        for one in found.values():
            if type(one) is not exact:
                raise TypeError(f"must be {exact.__name__}s")
        return found

    return read


def read_seconds(value: object) -> float:
    if type(value) is not int:
        raise TypeError("must be nanoseconds")
    return seconds_of(value)


def seconds_of(ns: int) -> float:
    found = ns / 1_000_000_000
    return found if nanoseconds(found) == ns else ExactSeconds(ns)


def read_age(value: object) -> float | None:
    return None if value == -1 else read_seconds(value)


def read_delays(value: object) -> object:
    return tuple(read_seconds(one) for one in json_list(value))


def read_instant(value: object) -> object:
    if type(value) is not str:
        raise TypeError("must be a time")
    return NEVER if value.startswith(_ZERO_TIME) else Timestamp.parse(value)


def read_moment(value: object) -> object:
    found = read_instant(value)
    return None if found is NEVER else found


def read_strings(value: object) -> object:
    found = tuple(json_list(value))
    for one in found:
        if type(one) is not str:
            raise TypeError("must be strings")
    return found


def read_integers(value: object) -> object:
    found = tuple(json_list(value))
    for one in found:
        if type(one) is not int:
            raise TypeError("must be ints")
    return found


def read_blob(value: object) -> object:
    if type(value) is not str:
        raise TypeError("must be base64")
    return b64decode(value, validate=True)


# ---------------------------------------------------------------- writing JSON


def write_seconds(value: object) -> object:
    return nanoseconds(cast(float, value))


def write_delays(value: object) -> object:
    return [nanoseconds(one) for one in cast("tuple[float, ...]", value)]


def write_moment(value: object) -> object:
    return cast(Timestamp, value).rfc3339()


def write_list(value: object) -> object:
    return list(cast("tuple[object, ...]", value))


def write_map(value: object) -> object:
    return dict(cast("Mapping[str, object]", value))


def write_blob(value: object) -> object:
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
        lifetime,
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
class RecordType(BaseRecordType):
    """The class of record classes, which shows type checkers their constructors."""


class Record(BaseRecord, metaclass=RecordType):
    """A frozen value with named fields, made from keyword arguments. Equal when all fields are.

    ``extra`` holds the fields of newer servers that this version does not name; they are sent back unchanged.
    """

    extra: Mapping[str, object] = anything(default=None)


# ---------------------------------------------------------------- JSON to records and back


def decode(kind: type[R], payload: object) -> R:
    """Decode a record from a server's JSON object; InvalidReply names the invalid field."""
    if type(payload) is not dict:
        raise errors.InvalidReply(kind.__name__, "", payload, "must be an object")
    record = kind.__new__(kind)
    get = payload.get
    for key, field, exact, default, read in kind._plan:
        value = get(key)
        if value is None:
            if default is REQUIRED:
                raise errors.InvalidReply(kind.__name__, key, value, "must be there")
            value = {} if type(default) is dict else default
        elif read is not None:
            try:
                value = read(value)
            except errors.InvalidReply as exc:
                path = f"{key}.{exc.path}" if exc.path else key
                raise errors.InvalidReply(kind.__name__, path, exc.value, exc.rule) from None
            except (TypeError, ValueError, OverflowError) as exc:
                raise errors.InvalidReply(kind.__name__, key, value, "is not what this field holds") from exc
        elif type(value) is not exact:
            raise errors.InvalidReply(kind.__name__, key, value, f"must be of type {exact.__name__}")
        field.put(record, value)
    known = kind._keys
    kind._fields["extra"].put(
        record, {} if known.issuperset(payload) else {key: payload[key] for key in payload if key not in known}
    )
    return record


def encode(record: Record) -> dict[str, object]:
    """Return the JSON object to send: without falsy fields and defaults, with ``extra``."""
    sent: dict[str, object] = dict(record.extra)
    for name, field in type(record)._fields.items():
        if name == "extra":
            continue
        value = getattr(record, name)
        default = field.default
        if field.always or (value and value is not default and (default is None or value != default)):
            sent[field.key] = value if field.write is None else field.write(value)
    return sent


def loads(kind: type[R], data: bytes | str) -> R:
    """``decode`` of JSON text."""
    return decode(kind, parse(data, kind.__name__))


def parse(data: bytes | str, what: str = "reply") -> dict[str, object]:
    """Return the JSON object in a message; InvalidReply when it is not an object."""
    try:
        payload = json.loads(data if isinstance(data, str) else data.decode())  # bytes: a search for the encoding
    except (ValueError, RecursionError) as exc:
        raise errors.InvalidReply(what, "", data, "is not JSON") from exc
    if type(payload) is not dict:
        raise errors.InvalidReply(what, "", payload, "must be an object")
    return payload


def dumps(payload: Record | Mapping[str, object]) -> bytes:
    """Return the compact JSON of a record, or of a dict whose values may be records.

    ConfigError for a string with half a surrogate pair, which UTF-8 cannot hold.
    """
    body = encode(payload) if isinstance(payload, Record) else dict(payload)
    written = json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=_plain)
    try:
        return written.encode()
    except UnicodeEncodeError as exc:
        bad = written[written.rfind('"', 0, exc.start) + 1 : written.find('"', exc.end)]
        raise errors.ConfigError("string", bad, "cannot be encoded as UTF-8") from None


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return encode(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
