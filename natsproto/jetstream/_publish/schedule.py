"""Schedules: messages that a stream publishes later, or again and again (ADR-51).

Owns the headers of a schedule; the server runs it. It needs nats-server 2.12 (repetition, sources, time zones and
rollups 2.14) and a stream with ``allow_msg_schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TypedDict, Unpack, cast

from natsproto import errors
from natsproto._value import Value
from natsproto.jetstream._values.codec import Duration, accept_lifetime, nanoseconds, server_time
from natsproto.protocol.subject import publish_subject

PREDEFINED_SCHEDULES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
SCHEDULER_HEADER, SCHEDULE_NEXT_HEADER = "Nats-Scheduler", "Nats-Schedule-Next"
"""Headers of a message published by a schedule: the schedule's subject, and its next time or "purge"."""

_SECOND_NS = 1_000_000_000


class ScheduleArgs(TypedDict, total=False):
    """The options of the messages that a schedule publishes; see Schedule."""

    target: str
    """The subject, of the same stream, that the messages are published on."""
    source: str
    """A subject whose last message is the payload; "": the payload given here."""
    ttl: Duration | str
    """The lifetime of the published messages in seconds, or ``never``; 0: that of the stream."""
    rollup: bool
    """True: the stream keeps only the newest of the published messages."""


class Schedule(Value):
    """When and where a stream publishes a message. Created by ``at``, ``every``, ``cron`` …

    The message with the schedule is stored under its own subject, one schedule for each subject. The messages it
    publishes go to ``target``, another subject of the same stream; they are stored there but not delivered to plain
    subscribers. With ``source`` the payload is the last message on that subject instead of the schedule's own. ``ttl``
    (seconds, or "never") is the lifetime of the published messages; ``rollup`` keeps only the newest one.
    """

    pattern: str
    """The schedule as the header has it: ``@at …``, ``@every 5m``, or six fields of cron."""
    target: str = ""
    source: str = ""
    ttl: Duration | str = ""
    rollup: bool = False
    time_zone: str = ""
    """Of a cron pattern, by its IANA name such as ``Europe/Berlin``; "": UTC."""

    @classmethod
    def at(cls, moment: datetime, **more: Unpack[ScheduleArgs]) -> Schedule:
        """Once, at this time (an aware datetime); at once when it has passed. Then the schedule is removed.

        Args:
            moment: The time to publish at, with a time zone.
            **more: Other fields of Schedule, by keyword.
        """
        if not isinstance(moment, datetime):
            raise TypeError(f"a schedule is at a datetime, not a {type(moment).__name__}")
        return cls(pattern=f"@at {server_time('at', moment).rfc3339()}", **more)

    @classmethod
    def after(cls, delay: Duration, **more: Unpack[ScheduleArgs]) -> Schedule:
        """Once, ``delay`` seconds from now by the clock of this machine.

        Args:
            delay: Seconds from now, by the clock of this machine.
            **more: Other fields of Schedule, by keyword.
        """
        ns = _nanoseconds("after", delay)
        if not ns:
            raise errors.ConfigError("after", delay, "must be a positive number of seconds")
        return cls.at(datetime.now().astimezone() + timedelta(microseconds=ns / 1000), **more)

    @classmethod
    def every(cls, interval: Duration, **more: Unpack[ScheduleArgs]) -> Schedule:
        """Repeatedly, every ``interval`` seconds (at least one) from the time the server stores it.

        Args:
            interval: Seconds between two messages, at least 1, from the time when the server stores it.
            **more: Other fields of Schedule, by keyword.
        """
        ns = _nanoseconds("every", interval)
        if ns < _SECOND_NS:
            raise errors.ConfigError("every", interval, "must be at least one second")
        return cls(pattern=f"@every {to_go_duration(ns)}", **more)

    @classmethod
    def cron(cls, expression: str, *, time_zone: str = "", **more: Unpack[ScheduleArgs]) -> Schedule:
        """By a crontab line of six fields, seconds first: ``0 30 9 * * mon-fri``.

        In UTC, or in a ``time_zone`` by its IANA name, such as "Europe/Berlin" (2.14).

        Args:
            expression: A crontab line of six fields, seconds first: ``0 30 9 * * mon-fri``.
            time_zone: The IANA name of the time zone, such as "Europe/Berlin" (server 2.14); "": UTC.
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern=expression, time_zone=time_zone, **more)

    @classmethod
    def yearly(cls, **more: Unpack[ScheduleArgs]) -> Schedule:
        """On the first of January at midnight, UTC.

        Args:
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern="@yearly", **more)

    @classmethod
    def monthly(cls, **more: Unpack[ScheduleArgs]) -> Schedule:
        """On the first of every month at midnight, UTC.

        Args:
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern="@monthly", **more)

    @classmethod
    def weekly(cls, **more: Unpack[ScheduleArgs]) -> Schedule:
        """At midnight between Saturday and Sunday, UTC.

        Args:
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern="@weekly", **more)

    @classmethod
    def daily(cls, **more: Unpack[ScheduleArgs]) -> Schedule:
        """Every day at midnight, UTC.

        Args:
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern="@daily", **more)

    @classmethod
    def hourly(cls, **more: Unpack[ScheduleArgs]) -> Schedule:
        """At the full hour.

        Args:
            **more: Other fields of Schedule, by keyword.
        """
        return cls(pattern="@hourly", **more)

    def _check(self) -> None:
        pattern = self.pattern
        if not isinstance(pattern, str):
            raise TypeError(f"a schedule is a str, not {type(pattern).__name__}")
        if pattern.startswith("@"):
            if self.time_zone and pattern not in PREDEFINED_SCHEDULES:
                raise errors.ConfigError("time_zone", self.time_zone, f"goes with a crontab line, not with {pattern!r}")
            if pattern not in PREDEFINED_SCHEDULES and not pattern.startswith(("@at ", "@every ")):
                forms = f"@at TIME, @every DURATION, six fields, or one of {', '.join(PREDEFINED_SCHEDULES)}"
                raise errors.ConfigError("schedule", pattern, f"must be {forms}")
        elif len(pattern.split()) != 6:
            raise errors.ConfigError("schedule", pattern, "must have six fields: second minute hour day month weekday")
        for what, subject in (("target", self.target), ("source", self.source)):
            if subject:
                publish_subject(subject, what)
        if self.ttl:
            ttl_text(self.ttl)

    def _headers(self, subject: str) -> Iterator[tuple[str, str]]:
        """Return the headers of a message to ``subject`` with this schedule. ConfigError without a target."""
        if not self.target:
            raise errors.ConfigError("schedule_target", self.target, "a schedule needs a subject to publish to")
        if self.target == subject:
            raise errors.ConfigError("schedule_target", self.target, "must not be the subject of the schedule itself")
        yield "Nats-Schedule", self.pattern
        yield "Nats-Schedule-Target", self.target
        if self.time_zone:
            yield "Nats-Schedule-Time-Zone", self.time_zone
        if self.source:
            yield "Nats-Schedule-Source", self.source
        if self.ttl:
            yield "Nats-Schedule-TTL", ttl_text(self.ttl)
        if self.rollup:
            yield "Nats-Schedule-Rollup", "sub"


def ttl_text(ttl: object) -> str:
    """Return a TTL as the server reads it (ADR-43): whole seconds, or "never"; ConfigError below 1 s."""
    if ttl == "never":
        return "never"
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float, timedelta)):
        raise errors.ConfigError("ttl", ttl, 'must be seconds (1 or more), a timedelta, or "never"')
    ns = _nanoseconds("ttl", ttl)
    if ns < _SECOND_NS:
        raise errors.ConfigError("ttl", ttl, "must be at least one second")
    return str(-(-ns // _SECOND_NS))  # rounded up: servers drop fractions, and nothing may go before its time


def to_go_duration(ns: int) -> str:
    """Return nanoseconds as a duration of Go, in the largest unit that is exact."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000)):
        if ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns}ns"


def _nanoseconds(what: str, duration: object) -> int:
    return nanoseconds(cast("Duration", accept_lifetime(what, duration)))
