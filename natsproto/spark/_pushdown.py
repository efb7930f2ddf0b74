"""What the WHERE of a query says about subject, sequence and time, so that the server leaves out the rest.

Owns the reading of Spark's filters. What is narrowed here is exact for subjects and sequences; times are given back to
Spark to be looked at once more, as a stream knows nanoseconds and Spark microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark

from natsproto._value import Value
from natsproto.errors import InvalidSubject
from natsproto.protocol.subject import matches, publish_subject
from natsproto.spark._settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # Spark 4.1

_NEVER_NULL = ("stream", "subject", "seq", "timestamp", "data", "size")


class Narrowing(Value):
    """What is left to be read: ``subjects`` (None: no word of them), sequences and times, all inclusive."""

    subjects: frozenset[str] | None = None
    first: int = 1
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing can match."""
        return self.subjects == frozenset() or (self.last is not None and self.last < self.first)


def narrow(filters: Iterable[Filter], settings: SourceSettings) -> tuple[Narrowing, list[Filter]]:
    """What the filters, all of which hold, leave to be read, and those that Spark has to look at."""
    found = Narrowing()
    rest = []
    for one in filters:
        narrowed, exact = _with(found, one, settings)
        found = narrowed
        if not exact:
            rest.append(one)
    return found, rest


def _with(found: Narrowing, one: Filter, settings: SourceSettings) -> tuple[Narrowing, bool]:
    """The narrowing with one filter more, and whether that says it all."""
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


def _subjects(found: Narrowing, subjects: Iterable[str], settings: SourceSettings) -> tuple[Narrowing, bool]:
    wanted = frozenset(_that_exist(subjects, settings.subjects))
    return found.but(subjects=wanted if found.subjects is None else wanted & found.subjects), True


def _that_exist(subjects: Iterable[str], patterns: tuple[str, ...]) -> Iterator[str]:
    """Those a message can have, and that are read at all."""
    for subject in subjects:
        try:
            publish_subject(subject)
        except InvalidSubject:
            continue
        if not patterns or any(matches(pattern, subject) for pattern in patterns):
            yield subject


def _sequences(found: Narrowing, first: int, last: int | None) -> Narrowing:
    lasts = [bound for bound in (found.last, last) if bound is not None]
    return found.but(first=max(found.first, first), last=min(lasts, default=None))


def _times(found: Narrowing, since: datetime | None, until: datetime | None) -> Narrowing:
    """Only times with a zone name a moment."""
    if since is not None and since.tzinfo is not None:
        return found.but(since=since if found.since is None else max(since, found.since))
    if until is not None and until.tzinfo is not None:
        behind = until + timedelta(microseconds=1)  # ranges end before the time that is given
        return found.but(until=behind if found.until is None else min(behind, found.until))
    return found
