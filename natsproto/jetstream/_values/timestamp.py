"""Times with nanoseconds, as servers use them.

Owns the value ``Timestamp`` and its parsing and formatting (RFC 3339).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, SupportsIndex, overload

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_NS, _MAX_NS = -(2**63), 2**63 - 1  # a server holds nanoseconds since 1970 in 64 bits, and overflows silently


class Timestamp(datetime):
    """An aware datetime with nanoseconds.

    ``nanosecond`` (0 to 999) is added to ``microsecond``; ``ns`` is the time as nanoseconds since 1970. Comparisons use
    all digits, also with plain datetimes. Adding a ``timedelta`` and changing the zone keep them. The difference of two
    is a ``timedelta``, which has only microseconds; ``replace()`` and datetime's other methods drop the nanoseconds.
    """

    __slots__ = ("_extra_ns",)
    _extra_ns: int

    def __new__(
        cls,
        year: SupportsIndex,
        month: SupportsIndex,
        day: SupportsIndex,
        hour: SupportsIndex = 0,
        minute: SupportsIndex = 0,
        second: SupportsIndex = 0,
        microsecond: SupportsIndex = 0,
        tzinfo: tzinfo | None = UTC,
        *,
        fold: int = 0,
        nanosecond: int = 0,
    ) -> Timestamp:
        """Create it like a datetime, in UTC unless another zone is given, with ``nanosecond``."""
        if not 0 <= nanosecond < 1000:
            raise ValueError("nanosecond must be in 0..999")
        self = super().__new__(cls, year, month, day, hour, minute, second, microsecond, tzinfo, fold=fold)
        self._extra_ns = nanosecond
        return self

    @classmethod
    def from_ns(cls, ns: int) -> Timestamp:
        """Return the time ``ns`` nanoseconds after 1970-01-01T00:00:00Z, in UTC.

        Args:
            ns: Nanoseconds since 1970-01-01T00:00:00Z.
        """
        micros, below = divmod(ns, 1000)
        self: Timestamp = datetime.__add__(_FIRST, timedelta(microseconds=micros))  # pyright: ignore[reportAssignmentType]
        self._extra_ns = below
        return self

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Read RFC 3339 with up to nine fractional digits (more are dropped) and any offset; else ValueError.

        Args:
            text: A time as RFC 3339 writes it, with up to nine decimals.
        """
        if len(text) < 20 or text[4] != "-" or text[10] not in "Tt":
            raise ValueError("not an RFC 3339 time")
        self = cls.fromisoformat(text)
        if self.tzinfo is None:
            raise ValueError("an RFC 3339 time has an offset")
        if text[19] == "." and (below := text[26:29]).isascii():
            # The digits past the microsecond, up to the zone: "", "7", "78", "789", "7Z", "+02", "-05" …
            count = next((index for index, char in enumerate(below) if not char.isdigit()), len(below))
            if count and text[20:26].isdigit():
                self._extra_ns = int(below[:count].ljust(3, "0"))
        return self

    @property
    def nanosecond(self) -> int:
        """The nanoseconds beyond ``microsecond``, 0 to 999."""
        return self._extra_ns

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970-01-01T00:00:00Z."""
        _check_aware(self)
        since = datetime.__sub__(self, _EPOCH)
        return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000 + self._extra_ns

    def rfc3339(self) -> str:
        """Return it as the server formats it: no trailing zeros in the fraction, ``Z`` for UTC, other offsets kept."""
        _check_aware(self)
        text = datetime.isoformat(self, timespec="microseconds")
        offset = text[26:]
        if len(offset) != 6:  # an offset with seconds, which RFC 3339 cannot say
            return self.astimezone(UTC).rfc3339()
        fraction = f"{text[20:26]}{self._extra_ns:03}".rstrip("0")
        return f"{text[:19]}{'.' if fraction else ''}{fraction}{'Z' if offset == '+00:00' else offset}"

    def astimezone(self, tz: tzinfo | None = None) -> Timestamp:
        """Return the same time in another zone, to the nanosecond.

        Args:
            tz: The time zone; None: that of the system.
        """
        return to_timestamp(self._plain().astimezone(tz), self._extra_ns)

    def replace(self, *args: Any, **changes: Any) -> Timestamp:
        """Return it with other values of some fields, as datetime.replace does, and without nanoseconds.

        Args:
            *args: The year, the month … as for a datetime.
            **changes: The same by name.
        """
        # Before Python 3.13 datetime.replace creates an instance without calling __new__.
        return _stamp(self._plain().replace(*args, **changes), 0)

    __replace__ = replace

    def _plain(self) -> datetime:
        return datetime(*_fields(self), fold=self.fold)

    def _equal_to_microsecond(self, other: object) -> bool:
        """True if the two are equal to the microsecond, so that the nanoseconds decide a comparison."""
        return isinstance(other, datetime) and datetime.__eq__(self, other) is True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, datetime):
            return super().__eq__(other)  # False for a date; NotImplemented lets others compare, such as mock.ANY
        return self._equal_to_microsecond(other) and self._extra_ns == _extra_ns_of(other)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: datetime) -> bool:  # type: ignore[override]
        return self._extra_ns < _extra_ns_of(other) if self._equal_to_microsecond(other) else super().__lt__(other)

    def __le__(self, other: datetime) -> bool:  # type: ignore[override]
        return self._extra_ns <= _extra_ns_of(other) if self._equal_to_microsecond(other) else super().__lt__(other)

    def __gt__(self, other: datetime) -> bool:  # type: ignore[override]
        return self._extra_ns > _extra_ns_of(other) if self._equal_to_microsecond(other) else super().__gt__(other)

    def __ge__(self, other: datetime) -> bool:  # type: ignore[override]
        return self._extra_ns >= _extra_ns_of(other) if self._equal_to_microsecond(other) else super().__gt__(other)

    __hash__: Final = datetime.__hash__

    def __add__(self, other: timedelta) -> Timestamp:
        if not isinstance(other, timedelta):
            return NotImplemented
        moment: Timestamp = datetime.__add__(self, other)  # pyright: ignore[reportAssignmentType]
        moment._extra_ns = self._extra_ns
        return moment

    __radd__ = __add__  # pyright: ignore[reportAssignmentType]

    @overload  # type: ignore[override]
    def __sub__(self, other: datetime) -> timedelta: ...
    @overload
    def __sub__(self, other: timedelta) -> Timestamp: ...
    def __sub__(self, other: timedelta | datetime) -> Timestamp | timedelta:
        if isinstance(other, timedelta):
            return self + -other
        return datetime.__sub__(self, other)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return self.__reduce__()

    def __reduce__(self) -> tuple[object, ...]:
        return _stamp, (self._plain(), self._extra_ns)

    def __repr__(self) -> str:
        try:
            return f"Timestamp({self.rfc3339()})"
        except (ValueError, OverflowError):  # naive, or in UTC beyond the years of datetime
            return f"Timestamp({self.isoformat()})"


_FIRST = Timestamp(1970, 1, 1)


def _extra_ns_of(other: object) -> int:
    return other._extra_ns if isinstance(other, Timestamp) else 0


def _fields(moment: datetime) -> tuple[int, int, int, int, int, int, int, tzinfo | None]:
    date, time = (moment.year, moment.month, moment.day), (moment.hour, moment.minute, moment.second)
    return *date, *time, moment.microsecond, moment.tzinfo


def _check_aware(moment: datetime) -> None:
    if moment.utcoffset() is None:
        raise ValueError("a naive datetime is ambiguous: give it a tzinfo, such as datetime.UTC")


def _stamp(moment: datetime, nanosecond: int) -> Timestamp:
    return Timestamp(*_fields(moment), fold=moment.fold, nanosecond=nanosecond)


def to_timestamp(moment: datetime, nanosecond: int = 0) -> Timestamp:
    """Return a datetime as a Timestamp; ValueError for a naive one."""
    if not isinstance(moment, datetime):
        raise TypeError(f"a moment must be a datetime, not {type(moment).__name__}")
    _check_aware(moment)
    return moment if isinstance(moment, Timestamp) and not nanosecond else _stamp(moment, nanosecond)


def to_server_time(moment: datetime, add_ns: int = 0) -> Timestamp:
    """Return a datetime, and some nanoseconds, as the nearest Timestamp that a server can compare; ValueError for a
    naive one.

    No message is stored, and no clock of a server runs, outside of 1677-09-21 to 2262-04-11: the nearest time means
    the same there as the one given.
    """
    stamp = to_timestamp(moment)
    ns = min(max(stamp.ns + add_ns, _MIN_NS), _MAX_NS)
    return stamp if ns == stamp.ns else Timestamp.from_ns(ns)
