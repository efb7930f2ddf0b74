"""What named arguments become on the wire, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ConfigError, InvalidHeader, InvalidReply, InvalidSubject
from natsproto.jetstream._publish.headers import (
    has_msg_id,
    header_block,
    header_pairs,
    message_block,
    msg_id_block,
)
from natsproto.jetstream._publish.schedule import Schedule, to_go_duration, ttl_text
from natsproto.jetstream._stream.counter import CounterValue, increment, parse_value
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.timestamp import Timestamp, to_timestamp
from natsproto.protocol.frames import as_bytes
from natsproto.protocol.headers import Headers

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)


def pairs(**args: object) -> dict[str, str]:
    return dict(header_pairs("a", None, args))


def test_every_named_argument_has_its_header() -> None:
    said = pairs(
        msg_id="m",
        expected_stream="S",
        expected_last_seq=0,
        expected_last_msg_id="l",
        expected_last_subject_seq=2**64 - 1,
        expected_last_subject_seq_subject="a.*",
        ttl=60,
        rollup="sub",
    )
    assert said == {
        "Nats-Msg-Id": "m",
        "Nats-Expected-Stream": "S",
        "Nats-Expected-Last-Sequence": "0",
        "Nats-Expected-Last-Msg-Id": "l",
        "Nats-Expected-Last-Subject-Sequence": "18446744073709551615",
        "Nats-Expected-Last-Subject-Sequence-Subject": "a.*",
        "Nats-TTL": "60",
        "Nats-Rollup": "sub",
    }


NAMES = st.sampled_from(["Nats-Msg-Id", "nats-msg-id", "Tag", "X"])
IDS = st.none() | st.sampled_from(["a", "é", "1-2"])


def outcome(function: Callable[..., bytes | None], *arguments: object) -> object:
    try:
        return function(*arguments)
    except ConfigError as error:
        return str(error)


@given(st.none() | st.lists(st.tuples(NAMES, st.text("ab", min_size=1)), unique_by=lambda pair: pair[0]), IDS, IDS)
def test_message_block_is_the_header_block(
    pairs: list[tuple[str, str]] | None, msg_id: str | None, own: str | None
) -> None:
    """The short way for messages without other arguments makes the same block, and refuses the same."""
    reported = any(name == "Nats-Msg-Id" for name, _ in pairs or ())
    wanted = msg_id if msg_id is not None or reported else own
    expected = outcome(header_block, "s", pairs, {"msg_id": wanted})
    for headers in (pairs, None if pairs is None else dict(pairs), None if pairs is None else Headers(pairs)):
        assert outcome(message_block, "s", headers, {}, msg_id, own) == expected


def test_none_is_the_same_as_not_given() -> None:
    assert pairs(msg_id=None, expected_last_seq=None, schedule=None, expected_last_subject_seq_subject=None) == {}
    assert header_block("a", None, {"msg_id": None}) is None


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"msg_id": ""}, "msg_id"),
        ({"msg_id": " x"}, "msg_id"),
        ({"expected_stream": "a.b"}, "stream name"),
        ({"expected_last_seq": -1}, "expected_last_seq"),
        ({"expected_last_seq": 2**64}, "expected_last_seq"),
        ({"expected_last_subject_seq_subject": "a"}, "expected_last_subject_seq_subject"),
        ({"expected_last_subject_seq": 1, "expected_last_subject_seq_subject": "a b"}, "subject_subject"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 0.5}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": "abc"}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"rollup": "one"}, "rollup"),
        ({"schedule_target": "b"}, "schedule_target"),
        ({"schedule": "@daily"}, "schedule_target"),
        ({"schedule": "@daily", "schedule_target": "a"}, "schedule_target"),
        ({"schedule": Schedule.daily(target="c"), "schedule_target": "b"}, "schedule_target"),
    ],
)
def test_bad_arguments_are_named(args: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pairs(**args)
    assert caught.value.name.endswith(what.removeprefix("subject_"))


@pytest.mark.parametrize(
    "args",
    [
        {"msg_id": 1},
        {"expected_last_seq": "1"},
        {"expected_last_seq": True},
        {"colour": "red"},
        {"schedule": 3, "schedule_target": "b"},
        {"schedule": "@daily", "schedule_target": 3},
    ],
)
def test_wrong_types_are_type_errors(args: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        pairs(**args)


def test_headers_of_the_user_come_first() -> None:
    own = {"Trace": "1", "Tag": ["a", "b"]}
    assert header_pairs("a", own, {"msg_id": "m"}) == [
        ("Trace", "1"),
        ("Tag", "a"),
        ("Tag", "b"),
        ("Nats-Msg-Id", "m"),
    ]
    assert own == {"Trace": "1", "Tag": ["a", "b"]}
    assert header_pairs("a", iter([("A", "b")]), {"ttl": 1}) == [("A", "b"), ("Nats-TTL", "1")]
    assert header_pairs("a", Headers({"A": "b"}), {}) == [("A", "b")]


def test_argument_that_headers_repeat_is_refused() -> None:
    with pytest.raises(ConfigError, match="Nats-Msg-Id"):
        header_pairs("a", {"Nats-Msg-Id": "m"}, {"msg_id": "m"})
    assert header_pairs("a", {"nats-msg-id": "other"}, {"msg_id": "m"})  # another header to the server


def test_values_cannot_inject_headers() -> None:
    with pytest.raises(InvalidHeader):
        header_block("a", None, {"msg_id": "x\r\nNats-Rollup: all"})
    with pytest.raises(InvalidHeader):
        msg_id_block("x\r\nNats-Rollup: all")
    with pytest.raises(ConfigError):
        msg_id_block("x\r\n")
    with pytest.raises(ConfigError):
        msg_id_block("")
    with pytest.raises(TypeError):
        msg_id_block(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("msg_id", ["a", "order 17", "späti", "x" * 300])
def test_headers_fast_path_for_ids_equals_the_other(msg_id: str) -> None:
    assert msg_id_block(msg_id) == header_block("a", None, {"msg_id": msg_id})
    assert has_msg_id(msg_id_block(msg_id))


def test_only_a_header_of_that_name_is_an_id() -> None:
    assert not has_msg_id(None)
    assert not has_msg_id(header_block("a", {"X": "Nats-Msg-Id: 1"}, {}))
    assert not has_msg_id(header_block("a", {"X-Nats-Msg-Id": "1"}, {}))
    assert has_msg_id(header_block("a", {"X": "1", "Nats-Msg-Id": "1"}, {}))


def test_payloads_are_bytes() -> None:
    assert as_bytes(bytearray(b"x")) == as_bytes(memoryview(b"x")) == b"x"
    with pytest.raises(TypeError, match="encode it first"):
        as_bytes("x")


# ---------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        (1, "1"),
        (60, "60"),
        (1.9, "2"),  # servers drop fractions
        (timedelta(hours=1), "3600"),
        ("never", "never"),
        (1.000000001, "2"),
    ],
)
def test_ttl_is_whole_seconds_rounded_up(ttl: float | str | timedelta, text: str) -> None:
    assert ttl_text(ttl) == text


def test_go_durations_are_exact() -> None:
    assert [to_go_duration(ns) for ns in (5_000_000_000, 5_000_000, 5)] == ["5s", "5ms", "5ns"]


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("schedule", "pattern"),
    [
        (Schedule.at(NOON), "@at 2030-06-01T12:00:00Z"),
        (Schedule.at(NOON.astimezone(timezone(timedelta(hours=2)))), "@at 2030-06-01T14:00:00+02:00"),
        (Schedule.at(to_timestamp(NOON, 7)), "@at 2030-06-01T12:00:00.000000007Z"),
        (Schedule.every(90), "@every 90s"),
        (Schedule.every(1.5), "@every 1500ms"),
        (Schedule.every(timedelta(minutes=5)), "@every 300s"),
        (Schedule.cron("0 30 9 * * mon-fri"), "0 30 9 * * mon-fri"),
        (Schedule.yearly(), "@yearly"),
        (Schedule.monthly(), "@monthly"),
        (Schedule.weekly(), "@weekly"),
        (Schedule.daily(), "@daily"),
        (Schedule.hourly(), "@hourly"),
    ],
)
def test_schedule_headers_as_the_server_reads_them(schedule: Schedule, pattern: str) -> None:
    assert schedule.pattern == pattern


def test_a_schedule_says_what_becomes_of_its_messages() -> None:
    schedule = Schedule.cron("0 0 9 * * *", time_zone="Europe/Berlin", target="b", source="c", ttl=60, rollup=True)
    assert dict(schedule._headers("a")) == {
        "Nats-Schedule": "0 0 9 * * *",
        "Nats-Schedule-Target": "b",
        "Nats-Schedule-Time-Zone": "Europe/Berlin",
        "Nats-Schedule-Source": "c",
        "Nats-Schedule-TTL": "60",
        "Nats-Schedule-Rollup": "sub",
    }
    assert pairs(schedule="@daily", schedule_target="b") == {"Nats-Schedule": "@daily", "Nats-Schedule-Target": "b"}
    assert pairs(schedule=schedule, schedule_target="b")["Nats-Schedule-Target"] == "b"


def test_after_is_at_by_the_clock_of_this_machine() -> None:
    before = datetime.now(UTC)
    moment = Timestamp.parse(Schedule.after(60).pattern.removeprefix("@at "))
    assert timedelta(seconds=59) < moment - before < timedelta(seconds=90)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schedule.at(datetime(2030, 1, 1)),
        lambda: Schedule.every(0.5),
        lambda: Schedule.every(0),
        lambda: Schedule.after(-1),
        lambda: Schedule.every(float("inf")),
        lambda: Schedule.cron("0 9 * * *"),
        lambda: Schedule(pattern="@sometimes"),
        lambda: Schedule(pattern="@every 5s", time_zone="UTC"),
        lambda: Schedule.daily(target="a b"),
        lambda: Schedule.daily(source="a.*"),
        lambda: Schedule.daily(ttl=0.1),
    ],
)
def test_schedule_that_is_invalid_is_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_schedules_of_wrong_types_are_type_errors() -> None:
    with pytest.raises(TypeError):
        Schedule.at("noon")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Schedule.every("5m")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Schedule(pattern=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidSubject):
        Schedule.daily(target=".")


def test_schedules_are_values() -> None:
    assert Schedule.daily(target="b") == Schedule(pattern="@daily", target="b")
    assert pickle.loads(pickle.dumps(Schedule.daily(target="b"))) == Schedule.daily(target="b")


# ---------------------------------------------------------------- counters


def raw_message(data: bytes, head: bytes | None = None) -> RawMessage:
    return RawMessage("S", "hits", 3, Timestamp(2030, 1, 1), data, head)


def test_counter_has_all_digits_and_sources() -> None:
    big = 10**400
    head = b'NATS/1.0\r\nNats-Incr: -7\r\nNats-Counter-Sources: {"A":{"hits.a":"5"},"B":{"hits.b":"-1"}}\r\n\r\n'
    value = CounterValue.read(raw_message(b'{"val":"%d"}' % big, head))
    assert (value.subject, value.value, value.increment, value.stream, value.seq) == ("hits", big, -7, "S", 3)
    assert value.sources == {"A": {"hits.a": 5}, "B": {"hits.b": -1}}


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"val":5}', b'{"val":"five"}', b'{"val":"\xc2\xb2"}', b'{"val":"' + b"9" * 5000 + b'"}']
)
def test_what_is_no_counter_is_said(data: bytes) -> None:
    with pytest.raises(InvalidReply):
        CounterValue.read(raw_message(data))
    head = b'NATS/1.0\r\nNats-Counter-Sources: {"A":5}\r\n\r\n'
    with pytest.raises(InvalidReply):
        CounterValue.read(raw_message(b'{"val":"1"}', head))


def test_steps_are_signed_whole_numbers() -> None:
    assert [increment(n) for n in (1, 0, -5, 10**30)] == ["+1", "+0", "-5", "+1" + "0" * 30]
    assert parse_value("-12") == -12
    for wrong in (1.0, "1", True, None, 10**5000):
        with pytest.raises(ConfigError):
            increment(wrong)
