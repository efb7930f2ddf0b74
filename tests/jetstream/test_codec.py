"""Records, durations, moments and JSON: what goes out comes back, what a newer server sends is not lost."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import ConfigError, InvalidReply
from natsproto.jetstream._values import codec
from natsproto.jetstream._values.codec import (
    NEVER,
    Choice,
    Delays,
    Many,
    Moment,
    Record,
    Seconds,
    Strings,
    Unlisted,
    decode,
    dumps,
    encode,
    loads,
    nanoseconds,
)
from natsproto.jetstream._values.timestamp import Timestamp, to_timestamp


class ColourText(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Record):
    size: int = codec.integer(default=0)
    wait: Seconds = codec.seconds(default=0.0)


class Outer(Record):
    """One field of every kind."""

    name: str = codec.text()
    title: str = codec.text(default="")
    on: bool = codec.flag(default=False)
    limit: int = codec.integer(default=-1, low=-1)
    big: int = codec.integer(default=0, high=codec.UINT64)
    wait: Seconds = codec.seconds(key="wait_time", default=0.0)
    waits: Delays = codec.delays(default=())
    heard: float | None = codec.age(default=None)
    at: Moment = codec.moment(default=None)
    made: Timestamp = codec.instant(default=NEVER)
    colour: Choice[ColourText, str] = codec.choice(ColourText, default=ColourText.RED)
    policy: Choice[ColourText, str] = codec.choice(ColourText, default=ColourText.BLUE, always=True)
    words: Strings = codec.strings(default=())
    numbers: tuple[int, ...] = codec.integers(default=())
    inner: Inner = codec.nested(Inner, default=Inner())
    other: Inner | None = codec.optional(Inner, default=None)
    inners: Many[Inner] = codec.many(Inner, default=())
    tags: Mapping[str, str] = codec.labels(default=None)
    sizes: Mapping[str, int] = codec.counts(default=None)
    tiers: Mapping[str, Inner] = codec.records(Inner, default=None)
    data: bytes = codec.blob(default=b"")


ns_durations = st.integers(0, 97 * 86_400 * 10**9)
moments = st.builds(
    lambda ns, minutes: Timestamp.from_ns(ns).astimezone(timezone(timedelta(minutes=minutes))),
    st.integers(-(10**18), 4 * 10**18),
    st.sampled_from([0, 120, -330, 14 * 60, -1]),
)
words = st.text(max_size=8)
inner = st.builds(Inner, size=st.integers(0, 2**63 - 1), wait=ns_durations.map(lambda ns: ns / 10**9))
outers = st.builds(
    Outer,
    name=words,
    title=words,
    on=st.booleans(),
    limit=st.integers(-1, 2**63 - 1).filter(bool),
    big=st.integers(0, 2**64 - 1),
    wait=ns_durations.map(lambda ns: ns / 10**9),
    waits=st.lists(ns_durations.map(lambda ns: ns / 10**9), max_size=3),
    heard=st.one_of(st.none(), st.floats(1e-3, 1e6)).map(lambda age: age and round(age, 6)),
    at=st.one_of(st.none(), moments),
    made=moments,
    colour=st.sampled_from([ColourText.RED, ColourText.BLUE, "blue", Unlisted("green")]),
    policy=st.sampled_from(list(ColourText)),
    words=st.lists(words, max_size=3),
    numbers=st.lists(st.integers(0, 2**64 - 1), max_size=3),
    inner=inner,
    other=st.one_of(st.none(), inner),
    inners=st.lists(inner, max_size=3),
    tags=st.dictionaries(words, words, max_size=3),
    sizes=st.dictionaries(words, st.integers(0, 2**64 - 1), max_size=3),
    tiers=st.dictionaries(words, inner, max_size=2),
    data=st.binary(max_size=20),
    extra=st.dictionaries(st.sampled_from(["newer", "newest"]), st.one_of(words, st.lists(st.integers()))),
)


# ---------------------------------------------------------------- round trips


@given(outers.filter(lambda record: record.name != ""))
def test_what_is_encoded_is_read_back_equal(record: Outer) -> None:
    assert loads(Outer, dumps(record)) == record


@given(outers)
def test_a_record_survives_pickle_copy_and_replace(record: Outer) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record == copy.copy(record)
    assert dataclasses.replace(record) == record == record.replace()
    assert record.replace(limit=5).limit == 5


@given(st.integers(0, 2**63 - 1))
@example(2**63 - 1)
def test_durations_of_servers_are_exact(ns: int) -> None:
    read = decode(Inner, {"wait": ns})
    assert read.wait == ns / 1_000_000_000
    for record in (read, read.replace(), Inner(wait=read.wait), pickle.loads(pickle.dumps(read))):
        assert encode(record).get("wait", 0) == ns


@given(st.integers(0, 97 * 86_400 * 10**9))
@example(1)
@example(2**53 - 1)
@example(97 * 86_400 * 10**9 - 1)
def test_nanoseconds_survive_float_seconds(ns: int) -> None:
    read = decode(Inner, {"wait": ns})
    assert nanoseconds(read.wait) == ns
    assert encode(read).get("wait", 0) == ns


@given(st.timedeltas(timedelta(0), timedelta(days=90)))
def test_a_timedelta_is_the_same_as_its_seconds(duration: timedelta) -> None:
    assert Inner(wait=duration) == Inner(wait=duration.total_seconds())
    assert nanoseconds(duration) == nanoseconds(duration.total_seconds())


@given(st.integers(-(10**18), 4 * 10**18), st.sampled_from(["Z", "+02:00", "-05:30"]))
def test_a_moment_keeps_nanoseconds_and_offset(ns: int, offset: str) -> None:
    zone = UTC if offset == "Z" else datetime.strptime(offset, "%z").tzinfo
    moment = Timestamp.from_ns(ns).astimezone(zone)
    text = moment.rfc3339()
    assert text.endswith(offset)
    again = Timestamp.parse(text)
    assert again == moment
    assert again.ns == ns
    assert again.rfc3339() == text


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("1970-01-01T00:00:00.12Z", 120_000_000),
        ("1970-01-01T00:00:00.1234567Z", 123_456_700),
        ("1970-01-01T00:00:00.12345678Z", 123_456_780),
        ("1970-01-01T00:00:00.123456789Z", 123_456_789),
        ("1970-01-01T00:00:00.1234567891Z", 123_456_789),
        ("1970-01-01T02:00:00.000000001+02:00", 1),
        ("1969-12-31T19:00:00.0000007-05:00", 700),
        ("1970-01-01T02:00:00+02:00", 0),
    ],
)
def test_rfc3339_is_read_with_any_fraction_and_offset(text: str, ns: int) -> None:
    assert Timestamp.parse(text).ns == ns


@pytest.mark.parametrize(
    "text", ["", "now", "2024-01-01", "2024-01-01T00:00:00", "20240101T000000Z0000", "2024-13-01T00:00:00Z"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Timestamp.parse(text)


def test_timestamps_compare_by_nanosecond() -> None:
    plain = datetime(2024, 1, 1, tzinfo=UTC)
    same, later = to_timestamp(plain), to_timestamp(plain, 1)
    assert same == plain == same
    assert hash(same) == hash(plain)
    assert later != plain
    assert plain < later
    assert later > plain
    assert same < later <= later
    assert later >= later > same
    assert not later < plain
    assert sorted([later, same]) == [same, later]


def test_arithmetic_keeps_what_a_timedelta_cannot_say() -> None:
    moment = Timestamp.from_ns(1_700_000_000_123_456_789)
    hour = timedelta(hours=1)
    assert (moment + hour).ns == (hour + moment).ns == moment.ns + 3600 * 10**9
    assert (moment - hour).ns == moment.ns - 3600 * 10**9
    assert (moment + hour) - moment == hour
    assert moment.astimezone(timezone(hour)).ns == moment.ns
    assert pickle.loads(pickle.dumps(moment)).ns == moment.ns
    assert repr(moment) == "Timestamp(2023-11-14T22:13:20.123456789Z)"


def test_a_naive_datetime_names_no_moment() -> None:
    with pytest.raises(ConfigError, match="naive datetime is ambiguous"):
        Outer(name="x", at=datetime(2024, 1, 1))


# ---------------------------------------------------------------- from the server


def test_nulls_and_missing_keys_are_the_defaults() -> None:
    nulls = dict.fromkeys([key for key, *_ in Outer._plan if key != "name"])
    assert decode(Outer, {"name": "x", **nulls}) == Outer(name="x") == decode(Outer, {"name": "x"})


def test_the_zero_time_is_none() -> None:
    read = decode(Outer, {"name": "x", "at": "0001-01-01T00:00:00Z", "made": "0001-01-01T00:00:00Z"})
    assert read.at is None
    assert read.made is NEVER


def test_minus_one_nanosecond_ago_is_never() -> None:
    assert decode(Outer, {"name": "x", "heard": -1}).heard is None
    assert decode(Outer, {"name": "x", "heard": 1500}).heard == 1.5e-6


def test_unknown_fields_are_kept_at_every_depth() -> None:
    sent = {"name": "x", "newer": {"a": [1]}, "policy": "blue", "other": {"size": 1, "newest": True}}
    read = decode(Outer, sent)
    assert read.extra == {"newer": {"a": [1]}}
    assert encode(read) == sent
    assert encode(dataclasses.replace(read, limit=7)) == {**sent, "limit": 7}


def test_the_envelope_of_a_reply_is_not_the_record() -> None:
    assert decode(Outer, {"type": "io.nats", "total": 1, "offset": 0, "limit": 9, "name": "x"}).extra == {}


def test_unknown_enum_value_is_kept_as_a_string() -> None:
    read = decode(Outer, {"name": "x", "colour": "green"})
    assert read.colour == "green"
    assert encode(dataclasses.replace(read, on=True))["colour"] == "green"


def test_unsigned_64_bits_pass() -> None:
    top = 2**64 - 1
    assert loads(Outer, dumps(Outer(name="x", big=top))).big == top
    assert decode(Outer, {"name": "x", "limit": top}).limit == top


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "x", "limit": "1"}, "limit"),
        ({"name": "x", "limit": 1.5}, "limit"),
        ({"name": "x", "on": 1}, "on"),
        ({"name": "x", "wait_time": "1s"}, "wait_time"),
        ({"name": "x", "wait_time": 10**400}, "wait_time"),
        ({"name": "x", "waits": 1}, "waits"),
        ({"name": "x", "at": "yesterday"}, "at"),
        ({"name": "x", "colour": 3}, "colour"),
        ({"name": "x", "words": "abc"}, "words"),
        ({"name": "x", "words": [1]}, "words"),
        ({"name": "x", "inner": []}, "inner"),
        ({"name": "x", "inner": {"size": "?"}}, "inner.size"),
        ({"name": "x", "inners": [{"wait": "?"}]}, "inners.wait"),
        ({"name": "x", "tags": {"a": 1}}, "tags"),
        ({"name": "x", "tiers": {"a": {"size": {}}}}, "tiers.size"),
        ({"name": "x", "data": "?"}, "data"),
        ([], ""),
        (None, ""),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(payload: object, path: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        decode(Outer, payload)
    assert caught.value.path == path
    assert caught.value.reply == "Outer"


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
        lambda inside: st.lists(inside) | st.dictionaries(st.sampled_from([key for key, *_ in Outer._plan]), inside),
    )
)
def test_any_json_gives_a_record_or_invalid_reply(payload: object) -> None:
    try:
        record = loads(Outer, json.dumps(payload))
    except InvalidReply:
        return
    assert isinstance(record, Outer)


@given(st.binary())
def test_any_bytes_give_a_record_or_invalid_reply(data: bytes) -> None:
    with pytest.raises(InvalidReply):
        loads(Outer, data)


# ---------------------------------------------------------------- from a program


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": -2},
        {"limit": 2**63},
        {"big": -1},
        {"big": 2**64},
        {"wait": -1},
        {"wait": float("nan")},
        {"wait": float("inf")},
        {"wait": 3600 * 10**9},
        {"wait": 1e-10},
        {"wait": timedelta(seconds=-1)},
        {"waits": [1, -1]},
        {"colour": "green"},
    ],
)
def test_a_wrong_value_fails_where_it_is_written(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Outer(name="x").replace(**fields)
    assert caught.value.name in fields


@pytest.mark.parametrize(
    "fields",
    [
        {"title": b"x"},
        {"on": 1},
        {"limit": 1.0},
        {"limit": True},
        {"wait": "1s"},
        {"wait": True},
        {"waits": 5},
        {"at": 0},
        {"colour": 1},
        {"words": "one string is not many"},
        {"words": [1]},
        {"inner": {}},
        {"inners": Inner()},
        {"tags": ["a"]},
        {"tags": {"a": 1}},
        {"data": "text"},
        {"nonsense": 1},
    ],
)
def test_a_wrong_type_fails_where_it_is_written(fields: dict[str, object]) -> None:
    with pytest.raises(TypeError) as caught:
        Outer(name="x").replace(**fields)
    assert next(iter(fields)) in str(caught.value)


def test_constructor_checks_its_fields() -> None:
    with pytest.raises(TypeError, match="needs name="):
        Outer()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no field 'nmae'; did you mean 'name'"):
        Outer(name="x", nmae="y")  # type: ignore[call-arg]


def test_defaults_and_falsy_values_are_not_sent() -> None:
    assert encode(Outer(name="x", limit=0, words=[], colour="red", inner=Inner())) == {"name": "x", "policy": "blue"}


def test_unlisted_value_may_be_given() -> None:
    assert encode(Outer(name="x", colour=Unlisted("green")))["colour"] == "green"


def test_records_are_frozen_and_share_no_map() -> None:
    tags = {"a": "b"}
    record = Outer(name="x", tags=tags)
    tags["a"] = "c"
    assert record.tags == {"a": "b"}
    with pytest.raises(AttributeError, match="replace"):
        record.name = "y"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del record.name
    with pytest.raises(TypeError):
        hash(record)
    assert Outer(name="x").tags is not Outer(name="x").tags


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(Outer(name="x", limit=3)) == "Outer(name='x', limit=3)"


def test_records_work_with_dataclasses_functions() -> None:
    record = Outer(name="x", other=Inner(size=2))
    assert dataclasses.is_dataclass(record)
    assert {field.name for field in dataclasses.fields(record)} >= {"name", "extra", "wait"}
    assert dataclasses.asdict(record)["other"] == {"size": 2, "wait": 0.0, "extra": {}}


def test_a_request_made_by_hand_may_hold_records() -> None:
    assert json.loads(dumps({"config": Inner(size=1), "name": "ü"})) == {"config": {"size": 1}, "name": "ü"}
    with pytest.raises(TypeError, match="cannot be sent"):
        dumps({"when": datetime(2024, 1, 1, tzinfo=UTC)})
