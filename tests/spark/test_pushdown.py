"""What a WHERE leaves to be read, and what Spark is left to look at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from natsproto.spark._options import SourceOptions
from natsproto.spark._pushdown import FilterPushdown, push_filters

SUBJECT, SEQ, TIME = ("subject",), ("seq",), ("timestamp",)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def settings(subjects: str = "") -> SourceOptions:
    given = {"servers": "nats://127.0.0.1:4222", "stream": "ORDERS"}
    return SourceOptions.read({**given, "subjects": subjects} if subjects else given)


def test_subjects_are_left_out_by_the_server() -> None:
    filters: list[Filter] = [IsNotNull(SUBJECT), In(SUBJECT, ("a.1", "a.2", "a.3")), In(SUBJECT, ("a.2", "a.3", "b"))]
    assert push_filters(filters, settings()) == (FilterPushdown(subjects=frozenset({"a.2", "a.3"})), [])


def test_subjects_that_are_not_read_match_nothing() -> None:
    found, rest = push_filters([In(SUBJECT, ("a.1", "b.1"))], settings("a.*"))
    assert (found.subjects, rest) == (frozenset({"a.1"}), [])
    assert push_filters([EqualTo(SUBJECT, "b.1")], settings("a.*"))[0].empty


@pytest.mark.parametrize("subject", ["a.*", ">", "", "a b", "a..b"])
def test_what_no_subject_can_be_matches_nothing(subject: str) -> None:
    assert push_filters([EqualTo(SUBJECT, subject)], settings())[0].empty


@pytest.mark.parametrize(
    ("filters", "first", "last"),
    [
        ([EqualTo(SEQ, 7)], 7, 7),
        ([GreaterThan(SEQ, 7), LessThan(SEQ, 11)], 8, 10),
        ([GreaterThanOrEqual(SEQ, 7), LessThanOrEqual(SEQ, 11)], 7, 11),
        ([GreaterThanOrEqual(SEQ, 7), GreaterThan(SEQ, 3)], 7, None),
    ],
)
def test_sequences_are_bounded(filters: list[Filter], first: int, last: int | None) -> None:
    assert push_filters(filters, settings()) == (FilterPushdown(first=first, last=last), [])


def test_bounds_that_exclude_each_other_match_nothing() -> None:
    assert push_filters([GreaterThan(SEQ, 7), LessThan(SEQ, 7)], settings())[0].empty


def test_times_are_narrowed_and_looked_at_again() -> None:
    later = NOON + timedelta(hours=1)
    filters: list[Filter] = [GreaterThan(TIME, NOON), GreaterThanOrEqual(TIME, later), LessThanOrEqual(TIME, later)]
    found, rest = push_filters(filters, settings())
    assert (found.since, found.until) == (later, later + timedelta(microseconds=1))
    assert rest == filters


def test_what_is_not_understood_is_left_to_spark() -> None:
    filters: list[Filter] = [
        StringStartsWith(SUBJECT, "a."),
        EqualTo(("size",), 5),
        GreaterThan(TIME, NOON.replace(tzinfo=None)),
        EqualTo(("headers", "x"), "y"),
    ]
    assert push_filters(filters, settings()) == (FilterPushdown(), filters)
