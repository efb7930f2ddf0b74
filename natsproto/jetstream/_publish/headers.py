"""The headers of a message to a stream, from named arguments.

Owns the names of these headers and the rules for their values. It publishes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import Literal, TypedDict

from natsproto import errors
from natsproto._help.nats_py_names import PUBLISH, hint
from natsproto._value import did_you_mean
from natsproto.jetstream._publish.schedule import Schedule, ttl_text
from natsproto.jetstream._values.asset_names import check_stream_name
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.protocol.headers import Headers, HeadersLike, block_of, encode_headers
from natsproto.protocol.subject import subscribe_subject

MSG_ID_HEADER = "Nats-Msg-Id"
TTL_HEADER = "Nats-TTL"
TRACE_ONLY_HEADER = "Nats-Trace-Only"
BATCH_HEADERS = "Nats-Batch-"
"""How the headers of an atomic batch begin, which the stream keeps."""
_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_GO_PART = re.compile(r"(\d+(?:\.\d*)?)(h|ms|us|µs|ns|m|s)")
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+")
_VERSION_LINE = b"NATS/1.0\r\n"
_EMPTY = b"NATS/1.0\r\n\r\n"


class ExpectationArgs(TypedDict, total=False):
    """Named arguments of every method that publishes to a stream. None is the same as not given.

    When an expectation does not hold, the message is not stored and WrongExpectation is raised.
    """

    expected_stream: str | None
    """The name of the stream that must store the message."""
    expected_last_seq: int | None
    """The sequence that must be the last of the stream; 0: the stream has had no message."""
    expected_last_msg_id: str | None
    """The ``msg_id`` that the last message of the stream must have."""
    expected_last_subject_seq: int | None
    """The sequence that must be the last of the message's subject; 0: the subject has no message."""
    expected_last_subject_seq_subject: str | None
    """The subject, wildcards allowed, of ``expected_last_subject_seq``, if not the message's own. Server 2.11."""
    ttl: Duration | Literal["never"] | None
    """Seconds (at least 1) after which the message expires, or "never"; the stream needs ``allow_msg_ttl``."""
    rollup: Literal["sub", "all"] | None
    """Remove all earlier messages, of its subject ("sub") or of the stream ("all"); needs ``allow_rollup_hdrs``."""
    schedule: Schedule | str | None
    """When the stream publishes the message, later or repeatedly; the stream needs ``allow_msg_schedules``."""
    schedule_target: str | None
    """The subject it is published to then; None: the target of the Schedule."""


class MessageArgs(ExpectationArgs, total=False):
    """Those of ``ExpectationArgs``, and ``msg_id``: the stream stores an id once within its ``duplicate_window``."""

    msg_id: str | None
    """An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged and not
    stored. None: no id."""


_REQUIRED_FEATURES = {
    "ttl": ("2.11", 1),
    "expected_last_subject_seq_subject": ("2.11", 1),
}
"""Features that older servers silently ignore: the first server that knows each, and its API level."""
_HAVE_NEEDS = frozenset((*_REQUIRED_FEATURES, "schedule"))


def required_feature(args: Mapping[str, object]) -> RequiredFeature | None:
    """Return the newest of these arguments that older servers ignore."""
    if _HAVE_NEEDS.isdisjoint(args):
        return None
    wanted = [RequiredFeature(name, *need) for name, need in _REQUIRED_FEATURES.items() if args.get(name) is not None]
    schedule = args.get("schedule")
    if schedule is not None:
        wanted.append(_needed_by_schedule(_as_schedule(schedule)))
    return max(wanted, key=attrgetter("level"), default=None)


def _needed_by_schedule(schedule: Schedule) -> RequiredFeature:
    newer = [name for name in ("source", "rollup", "time_zone") if getattr(schedule, name)]
    if not schedule.pattern.startswith("@at "):
        newer.append("repetition")
    if newer:
        return RequiredFeature(f"the {newer[0]} of a schedule", "2.14", 4)
    return RequiredFeature("schedule", "2.12", 2)


def header_pairs(subject: str, headers: HeadersLike | None, args: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the headers of a message: the user's, unchanged, and those of the named arguments.

    ConfigError for an invalid argument, and for one that the headers contradict or repeat; TypeError for an unknown
    argument. Errors in the user's headers are found when they are encoded.
    """
    named = list(_argument_headers(subject, args))
    if headers is None:
        return named
    own = Headers(headers)
    if TRACE_ONLY_HEADER in own:
        raise _trace_only_error()
    if own_batch := [name for name in own if name.startswith(BATCH_HEADERS)]:
        raise _batch_header_error(own_batch[0])
    for name, _ in named:
        if name in own:
            raise _duplicate_header_error(name)
    return [*own.pairs(), *named]


def ttl_of(headers: Headers) -> float | None:
    """Return the lifetime in the headers of a stored message: seconds, infinity for "never", None when it has none."""
    said = headers.last(TTL_HEADER)
    if said == "never":
        return math.inf
    if said.isdecimal():
        return float(said)
    found = _GO_DURATION.fullmatch(said)
    return sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(said)) if found else None


def _trace_only_error() -> errors.ConfigError:
    """The error for a message that no stream stores, and so none acknowledges."""
    return errors.ConfigError(
        "headers", TRACE_ONLY_HEADER, "keeps a message from being stored: use nc.trace, or nc.publish"
    )


def _batch_header_error(name: str) -> errors.ConfigError:
    """The error for the header of a batch: the server would take the message for a part of that one, and a copied
    commit for the end of another batch.
    """
    return errors.ConfigError(
        "headers", name, "belongs to the batch of the message that it was copied from: leave it out"
    )


def _duplicate_header_error(name: str) -> errors.ConfigError:
    return errors.ConfigError("headers", name, "is also set by a named argument: use one of them")


def header_block(subject: str, headers: HeadersLike | None, args: Mapping[str, object]) -> bytes | None:
    """Return the encoded headers; None when there are none."""
    if not args:
        block = None if headers is None else block_of(headers)
        if block is not None and b"\r\nNats-" in block:
            if b"\r\nNats-Trace-Only: " in block:
                raise _trace_only_error()
            if b"\r\nNats-Batch-" in block:
                raise _batch_header_error(BATCH_HEADERS)
        return block
    pairs = header_pairs(subject, headers, args)
    return encode_headers(pairs) if pairs else None


def message_block(
    subject: str, headers: HeadersLike | None, args: Mapping[str, object], msg_id: str | None, auto_id: str | None
) -> bytes | None:
    """Return the encoded headers with a message id: ``msg_id``, or ``auto_id`` if neither that nor the headers have
    one.
    """
    block = None
    if headers is not None or args:
        block = header_block(subject, headers, args)
        if has_msg_id(block):
            if msg_id is not None:
                raise _duplicate_header_error(MSG_ID_HEADER)
            return block
    msg_id = auto_id if msg_id is None else msg_id
    if msg_id is None:
        return block
    return msg_id_block(msg_id) if block is None else block[:-2] + msg_id_block(msg_id)[len(_VERSION_LINE) :]


def message_blocks(ids: Sequence[str | None], headers: Sequence[HeadersLike | None]) -> list[bytes | None]:
    """Return the encoded headers of many messages: their own ones without an id, and their ids if they have any.

    InvalidHeader, ConfigError for invalid ones. It takes a third of the time of ``message_block`` for each.
    """
    given = [one for one in ids if one is not None]
    text = "".join(given)
    if not (text.isascii() and text.isprintable()) or " " in text or "" in given:
        lines = {one: encode_headers([(MSG_ID_HEADER, _text("msg_id", one))])[len(_VERSION_LINE) :] for one in given}
        tails = [b"\r\n" if one is None else lines[one] for one in ids]
    else:
        tails = [b"\r\n" if one is None else b"Nats-Msg-Id: %b\r\n\r\n" % one.encode() for one in ids]
    blocks: list[bytes | None] = [
        encode_headers(as_dict(own))[:-2] + tail if own else _VERSION_LINE + tail
        for own, tail in zip(headers or repeat(None, len(ids)), tails, strict=True)
    ]
    return [block if block != _EMPTY else None for block in blocks] if len(given) < len(ids) else blocks


def as_dict(headers: HeadersLike) -> HeadersLike:
    """Return pairs as a dict if no name is there twice: encoding it takes a third of the time."""
    if type(headers) is list and len(named := dict(headers)) == len(headers):
        return named
    return headers


class AutoMsgIds:
    """The message ids of a publisher for messages without one.

    An id has a number, so that none is used twice, and random bits: whoever could predict the next ids would store
    messages with them first, and the stream would take the publisher's for duplicates.
    """

    __slots__ = ("_header", "new")

    def __init__(self, prefix: str, random_bits: Callable[[], int]) -> None:
        self._header = f"\r\n{MSG_ID_HEADER}: {prefix}-".encode()
        self.new: Callable[[], str] = map(f"{prefix}-%d-%d".__mod__, zip(count(1), iter(random_bits, None))).__next__
        """Return the next id, without a call of a Python function."""

    def is_in(self, head: bytes) -> bool:
        """True if an encoded header block has one of these ids."""
        return self._header in head


def has_msg_id(block: bytes | None) -> bool:
    """True if an encoded header block has a message id, so that the message may be sent twice."""
    return block is not None and b"\r\nNats-Msg-Id: " in block


def msg_id_block(msg_id: str) -> bytes:
    """Return the header block of a message with an id and no other headers, the most frequent one."""
    if type(msg_id) is str and msg_id.isascii() and msg_id.isprintable() and msg_id and msg_id.strip(" ") == msg_id:
        return b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % msg_id.encode()
    return encode_headers([(MSG_ID_HEADER, _text("msg_id", msg_id))])


def _argument_headers(subject: str, args: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    schedule = target = None
    for name, value in args.items():
        if value is None:
            continue
        if name == "schedule":
            schedule = value
        elif name == "schedule_target":
            target = value
        else:
            try:
                header, write = _HEADERS[name]
            except KeyError:
                near = hint(name, PUBLISH) or did_you_mean(name, (*_HEADERS, "schedule", "schedule_target"))
                raise TypeError(f"there is no argument {name!r} when publishing to a stream{near}") from None
            yield header, write(name, value)
    pattern = args.get("expected_last_subject_seq_subject")
    if pattern is not None and args.get("expected_last_subject_seq") is None:
        raise errors.ConfigError(
            "expected_last_subject_seq_subject", pattern, "needs expected_last_subject_seq as well"
        )
    if schedule is not None:
        yield from _schedule(schedule, target)._headers(subject)
    elif target is not None:
        raise errors.ConfigError("schedule_target", target, "has no effect without a schedule")


def _as_schedule(schedule: object) -> Schedule:
    if isinstance(schedule, str):
        schedule = Schedule(pattern=schedule)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a Schedule or a str, not {type(schedule).__name__}")
    return schedule


def _schedule(given: object, target: object) -> Schedule:
    schedule = _as_schedule(given)
    if target is None:
        return schedule
    if not isinstance(target, str):
        raise TypeError(f"schedule_target must be a str, not {type(target).__name__}")
    if schedule.target and schedule.target != target:
        raise errors.ConfigError("schedule_target", target, f"the schedule has the target {schedule.target!r}")
    return schedule.replace(target=target)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value or value != value.strip():
        raise errors.ConfigError(name, value, "must not be empty, nor begin or end with a space")
    return value


def _number(name: str, value: object) -> str:
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < 2**64:
        raise errors.ConfigError(name, value, "must be a sequence: 0 or more")
    return str(value)


def _stream(name: str, value: object) -> str:
    return check_stream_name(_text(name, value))


def _pattern(name: str, value: object) -> str:
    return subscribe_subject(_text(name, value), name).decode()


def _rollup(name: str, value: object) -> str:
    if value not in ("sub", "all"):
        raise errors.ConfigError(name, value, 'must be "sub" or "all"')
    return str(value)


_HEADERS: Mapping[str, tuple[str, Callable[[str, object], str]]] = {
    "msg_id": (MSG_ID_HEADER, _text),
    "expected_stream": ("Nats-Expected-Stream", _stream),
    "expected_last_seq": ("Nats-Expected-Last-Sequence", _number),
    "expected_last_msg_id": ("Nats-Expected-Last-Msg-Id", _text),
    "expected_last_subject_seq": ("Nats-Expected-Last-Subject-Sequence", _number),
    "expected_last_subject_seq_subject": ("Nats-Expected-Last-Subject-Sequence-Subject", _pattern),
    "ttl": (TTL_HEADER, lambda _, ttl: ttl_text(ttl)),
    "rollup": ("Nats-Rollup", _rollup),
}
