"""Timestamp has every method of datetime, and the times at the ends of datetime mean what they say.

The table of methods must name every method of the running Python's datetime, so that a new one is looked at.
"""

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from unittest.mock import ANY

import pytest

from natsproto.errors import ConfigError, MessageNotFound
from natsproto.jetstream import ConsumerConfig, JetStream, Schedule, Stream, StreamConfig, StreamSource, Timestamp
from natsproto.jetstream._values.codec import NEVER
from natsproto.jetstream._values.timestamp import to_timestamp

NS = 1_700_000_000_123_456_789
BERLIN = timezone(timedelta(hours=1))
HOUR = timedelta(hours=1)


def stamp() -> Timestamp:
    return Timestamp.from_ns(NS)


def some_moment() -> datetime:
    return datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


# Each call is made on a Timestamp and on the equal datetime; datetimes that result are compared.
CALLS: dict[str, Callable[[datetime], object]] = {
    "__add__": lambda t: t + HOUR,
    "__eq__": lambda t: (t == t.replace(), t == 5, t == ANY, t == t.date()),
    "__format__": lambda t: f"{t:%Y %f}",
    "__ge__": lambda t: (t >= t, t >= t + HOUR, t >= t - HOUR),
    "__getstate__": lambda t: pickle.loads(pickle.dumps(t)) == t,
    "__gt__": lambda t: (t > t, t > t + HOUR, t > t - HOUR),
    "__hash__": lambda t: {t.replace(microsecond=0), t.replace(microsecond=0, fold=1)},
    "__le__": lambda t: (t <= t, t <= t + HOUR, t <= t - HOUR),
    "__lt__": lambda t: (t < t, t < t + HOUR, t < t - HOUR),
    "__ne__": lambda t: (t != t, t != 5, t != ANY, t != t.date()),
    "__new__": lambda t: type(t)(2023, 1, 2, 3, 4, 5, 6, UTC),
    "__radd__": lambda t: HOUR + t,
    "__reduce__": lambda t: (lambda make, args: make(*args) == t)(*t.__reduce__()[:2]),  # type: ignore[operator]
    "__reduce_ex__": lambda t: [copy.copy(t) == t, copy.deepcopy(t) == t, *(_pickled(t, p) for p in range(6))],
    "__repr__": lambda t: bool(repr(t)),
    "__rsub__": lambda t: some_moment() - t,
    "__str__": str,
    "__sub__": lambda t: (t - HOUR, t - (t - HOUR)),
    "astimezone": lambda t: [t.astimezone(), t.astimezone(BERLIN), t.replace(tzinfo=None).astimezone(UTC)],
    "combine": lambda t: [type(t).combine(t.date(), t.timetz()), type(t).combine(t, time(1), UTC)],
    "ctime": lambda t: t.ctime(),
    "date": lambda t: t.date(),
    "dst": lambda t: t.dst(),
    "fromisocalendar": lambda t: type(t).fromisocalendar(2024, 1, 1).replace(tzinfo=UTC),
    "fromisoformat": lambda t: type(t).fromisoformat("2024-01-02T03:04:05.000006+01:00"),
    "fromordinal": lambda t: type(t).fromordinal(700_000).replace(tzinfo=UTC),
    "fromtimestamp": lambda t: [type(t).fromtimestamp(1.5), type(t).fromtimestamp(1.5, BERLIN)],
    "isocalendar": lambda t: t.isocalendar(),
    "isoformat": lambda t: [t.isoformat(), t.isoformat(" ", "seconds")],
    "isoweekday": lambda t: t.isoweekday(),
    "now": lambda t: abs(type(t).now(UTC) - datetime.now(UTC)) < HOUR,
    "replace": lambda t: [t.replace(), t.replace(2020), t.replace(microsecond=0), t.replace(tzinfo=BERLIN, fold=1)],
    "strftime": lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f %z"),
    "strptime": lambda t: type(t).strptime("2024 +0100", "%Y %z"),
    "time": lambda t: t.time(),
    "timestamp": lambda t: t.timestamp(),
    "timetuple": lambda t: t.timetuple(),
    "timetz": lambda t: t.timetz(),
    "today": lambda t: abs(type(t).today() - datetime.today()) < HOUR,
    "toordinal": lambda t: t.toordinal(),
    "tzname": lambda t: t.tzname(),
    "utcfromtimestamp": lambda t: type(t).utcfromtimestamp(1.5),
    "utcnow": lambda t: abs(type(t).utcnow() - datetime.utcnow()) < HOUR,
    "utcoffset": lambda t: t.utcoffset(),
    "utctimetuple": lambda t: t.utctimetuple(),
    "weekday": lambda t: t.weekday(),
}
if sys.version_info >= (3, 13):
    CALLS["__replace__"] = lambda t: copy.replace(t, microsecond=0)
OF_OBJECT = {"__getattribute__", "__delattr__", "__setattr__", "__init__", "__init_subclass__", "__subclasshook__"} | {
    *("__class__", "__dir__", "__doc__", "__sizeof__", "__static_attributes__", "__firstlineno__", "__module__")
}


def _pickled(moment: datetime, protocol: int) -> bool:
    again = pickle.loads(pickle.dumps(moment, protocol))
    return type(again) is type(moment) and again == moment


def _found(value: object) -> list[datetime]:
    if isinstance(value, datetime):
        return [value]
    return [one for item in value for one in _found(item)] if isinstance(value, (list, tuple, set)) else []


def test_the_table_names_every_method_of_datetime() -> None:
    methods = {name for name in dir(datetime) if callable(getattr(datetime, name))}
    assert methods - OF_OBJECT == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Parsing dates involving:DeprecationWarning")
def test_every_method_of_datetime_does_the_same(name: str) -> None:
    call = CALLS[name]
    with_zeros = to_timestamp(some_moment())
    assert call(with_zeros) == call(some_moment())
    for made in _found(call(stamp())):
        assert type(made) is Timestamp or name == "__rsub__"
        usable(made)


def usable(moment: datetime) -> None:
    """Whatever a method returned can be used for all that a Timestamp can."""
    assert repr(moment)
    assert moment == moment + timedelta()
    assert moment - timedelta() <= moment
    assert moment < moment + HOUR
    assert hash(moment) == hash(moment.replace())
    assert isinstance(moment, Timestamp)
    for again in (pickle.loads(pickle.dumps(moment)), copy.copy(moment), copy.deepcopy(moment)):
        assert (again, again.nanosecond, again.tzinfo) == (moment, moment.nanosecond, moment.tzinfo)
    if moment.tzinfo is None:
        for use in (lambda: moment.ns, moment.rfc3339):
            with pytest.raises(ValueError, match="naive datetime is ambiguous"):
                use()
    else:
        assert Timestamp.parse(moment.rfc3339()).ns == moment.ns
        assert moment.astimezone(BERLIN).ns == moment.ns


def test_replace_drops_the_nanoseconds() -> None:
    assert stamp().nanosecond == 789
    assert stamp().replace(microsecond=5).ns == NS // 10**9 * 10**9 + 5000
    assert stamp().replace(hour=1) == some_moment().replace(hour=1)


class OddZone(tzinfo):
    """A zone that is ahead by some seconds."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(seconds=-7)

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "odd"


def test_the_ends_of_datetime_can_be_shown() -> None:
    assert "9999-12-31" in repr(to_timestamp(datetime.max.replace(tzinfo=OddZone())))
    assert repr(Timestamp(1, 1, 1)) == "Timestamp(0001-01-01T00:00:00Z)"


# ---------------------------------------------------------------- times that a server cannot hold

EARLY = [Timestamp(1600, 1, 1), datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=BERLIN), NEVER]
LATE = [
    Timestamp(2300, 1, 1),
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(-HOUR)),
    datetime.max.replace(tzinfo=OddZone()),
    Timestamp.from_ns(2**63 - 1),
    Timestamp.from_ns(2**63),
]
ENDS = [(moment, moment.year < 2000) for moment in EARLY + LATE]


@pytest.fixture
async def five(jetstream: JetStream) -> Stream:
    stream = await jetstream.create_stream(
        "S", subjects=["s", "plan.*"], allow_direct=True, allow_msg_schedules=True, allow_msg_ttl=True
    )
    for _ in range(5):
        await jetstream.publish("s", b"")
    return stream


async def test_start_times_at_the_ends(five: Stream, jetstream: JetStream) -> None:
    for moment, early in ENDS:
        expected = 5 if early else 0
        assert len([message async for message in five.get_batch(start_time=moment)]) == expected, moment
        leader = five.get_batch(start_time=moment, direct=False, batch=5)
        assert len([message async for message in leader]) == expected, moment
        if early:
            assert (await five.get_next_message(start_time=moment)).seq == 1
        else:
            with pytest.raises(MessageNotFound):
                await five.get_next_message(start_time=moment)
        consumer = await five.create_consumer(deliver_policy="by_start_time", opt_start_time=moment)
        assert (await consumer.info()).num_pending == expected, moment
        ordered = five.ordered_consumer(start_time=moment)
        assert len(await ordered.fetch(5, timeout=0.05 if not expected else 5)) == expected, moment


async def test_sources_start_at_the_ends(five: Stream, jetstream: JetStream) -> None:
    for number, (moment, early) in enumerate([(EARLY[0], True), (LATE[0], False), (LATE[1], False)]):
        name = f"COPY{number}"
        await jetstream.create_stream(name, mirror=StreamSource(name="S", opt_start_time=moment))
        copy_of = await jetstream.stream(name)
        async with asyncio.timeout(10):
            while early and (await copy_of.info()).state.messages < 5:
                pass  # the server copies meanwhile
        assert (await copy_of.info()).state.messages == (5 if early else 0), moment


async def test_times_of_snapshots_at_the_ends(five: Stream, jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b")
    await kv.put("a", b"1")
    for moment, early in ENDS:
        found = [message async for message in five.get_last_messages(["s"], up_to_time=moment)]
        assert len(found) == (0 if early else 1), moment
        assert list(await kv.get_many(["a"], up_to_time=moment)) == ([] if early else ["a"]), moment


async def test_pauses_and_schedules_at_the_ends(five: Stream, jetstream: JetStream) -> None:
    consumer = await five.create_consumer("c")
    for moment, early in ENDS:
        assert (await consumer.pause(moment)).paused is not early, moment
        made = await five.create_or_update_consumer(name="c", pause_until=moment, durable_name="c")
        assert (await made.info()).paused is not early, moment
        await five.purge()
        await jetstream.publish("plan.a", b"", schedule=Schedule.at(moment, target="s"))
        stored = "s" if early else "plan.a"
        async with asyncio.timeout(10):
            while set((await five.info(subjects_filter=">")).state.subjects or ()) != {stored}:
                pass  # it is sent at once


def test_a_configuration_holds_what_the_server_can() -> None:
    held = ConsumerConfig(opt_start_time=datetime.max.replace(tzinfo=UTC)).opt_start_time
    assert held is not None
    assert held.ns == 2**63 - 1
    assert ConsumerConfig(opt_start_time=stamp()).opt_start_time == stamp()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schedule.every(timedelta(days=240 * 365)),
        lambda: Schedule.after(timedelta(days=240 * 365)),
        lambda: StreamConfig(name="S", subject_delete_marker_ttl=240 * 365 * 86_400.0),
    ],
    ids=["every", "after", "marker"],
)
def test_lifetimes_that_would_end_at_once_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="more than 200 years"):
        make()


async def test_a_ttl_that_would_end_at_once_is_refused(five: Stream, jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b", limit_marker_ttl=5)
    for call in (
        lambda: jetstream.publish("s", b"", ttl=timedelta(days=240 * 365)),
        lambda: kv.create("a", b"", ttl=240 * 365 * 86_400.0),
        lambda: jetstream.create_key_value("c", limit_marker_ttl=240 * 365 * 86_400.0),
    ):
        with pytest.raises(ConfigError, match=r"ttl.*more than 200 years"):
            await call()
    await jetstream.publish("s", b"", ttl=timedelta(days=190 * 365))
    assert (await five.info()).state.messages == 6


def test_a_date_is_no_timestamp() -> None:
    with pytest.raises(TypeError):
        _ = stamp() < date(2024, 1, 1)
