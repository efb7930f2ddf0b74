"""PURE. Filters of a query as what the server can leave out: subjects, sequences, and a range of times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark

from natsproto._value import Value
from natsproto.errors import InvalidSubject
from natsproto.protocol.subject import matches, publish_subject
from natsproto.spark._options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # Spark 4.1

_NEVER_NULL = ("stream", "subject", "seq", "timestamp", "data", "size")


class FilterPushdown(Value):
    """The messages left by the filters: ``subjects`` (None: all), sequences and times, all inclusive."""

    subjects: frozenset[str] | None = None
    first: int = 1
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def empty(self) -> bool:
        """True if no message can match."""
        return self.subjects == frozenset() or (self.last is not None and self.last < self.first)


def push_filters(filters: Iterable[Filter], settings: SourceOptions) -> tuple[FilterPushdown, list[Filter]]:
    """Combines the filters (all of which hold); also returns those that Spark has to apply itself."""
    found = FilterPushdown()
    rest = []
    for one in filters:
        narrowed, exact = _apply(found, one, settings)
        found = narrowed
        if not exact:
            rest.append(one)
    return found, rest


def _apply(found: FilterPushdown, one: Filter, settings: SourceOptions) -> tuple[FilterPushdown, bool]:
    """Adds one filter; True if it is covered exactly."""
    match one:
        case spark.IsNotNull(attribute=(name,)) if name in _NEVER_NULL:
            return found, True
        case spark.EqualTo(attribute=("subject",), value=str() as subject):
            return _subjects(found, [subject], settings)
        case spark.In(attribute=("subject",), value=values) if all(isinstance(value, str) for value in values):
            return _subjects(found, values, settings)
        case spark.EqualTo(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq, seq), True
        case spark.GreaterThanOrEqual(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq, None), True
        case spark.GreaterThan(attribute=("seq",), value=int() as seq):
            return _sequences(found, seq + 1, None), True
        case spark.LessThanOrEqual(attribute=("seq",), value=int() as seq):
            return _sequences(found, 1, seq), True
        case spark.LessThan(attribute=("seq",), value=int() as seq):
            return _sequences(found, 1, seq - 1), True
        case spark.GreaterThan(attribute=("timestamp",), value=datetime() as time):
            return _times(found, time, None), False
        case spark.GreaterThanOrEqual(attribute=("timestamp",), value=datetime() as time):
            return _times(found, time, None), False
        case spark.LessThan(attribute=("timestamp",), value=datetime() as time):
            return _times(found, None, time), False
        case spark.LessThanOrEqual(attribute=("timestamp",), value=datetime() as time):
            return _times(found, None, time), False
    return found, False


def _subjects(found: FilterPushdown, subjects: Iterable[str], settings: SourceOptions) -> tuple[FilterPushdown, bool]:
    wanted = frozenset(_readable(subjects, settings.subjects))
    return found.replace(subjects=wanted if found.subjects is None else wanted & found.subjects), True


def _readable(subjects: Iterable[str], patterns: tuple[str, ...]) -> Iterator[str]:
    """The valid subjects among those that the options read."""
    for subject in subjects:
        try:
            publish_subject(subject)
        except InvalidSubject:
            continue
        if not patterns or any(matches(pattern, subject) for pattern in patterns):
            yield subject


def _sequences(found: FilterPushdown, first: int, last: int | None) -> FilterPushdown:
    lasts = [bound for bound in (found.last, last) if bound is not None]
    return found.replace(first=max(found.first, first), last=min(lasts, default=None))


def _times(found: FilterPushdown, since: datetime | None, until: datetime | None) -> FilterPushdown:
    """Limits the times; only times with a zone count."""
    if since is not None and since.tzinfo is not None:
        return found.replace(since=since if found.since is None else max(since, found.since))
    if until is not None and until.tzinfo is not None and until.year < datetime.max.year:
        behind = until + timedelta(microseconds=1)  # the end of a range is exclusive
        return found.replace(until=behind if found.until is None else min(behind, found.until))
    return found
