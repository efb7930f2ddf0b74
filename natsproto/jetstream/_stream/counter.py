"""Counters: subjects of a stream whose last message holds a number of any size (ADR-49, nats-server 2.12).

Owns the format of a counter message. To add is to publish, and to read is to get the last message of the subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from natsproto import errors
from natsproto._value import Value
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.codec import parse

INCREMENT_HEADER = "Nats-Incr"


class CounterValue(Value):
    """The value of a counter.

    ``increment`` is the last number added. ``sources`` is for a stream that adds up the counters of other streams: by
    stream and subject, the last value received from it. ``stream`` and ``seq`` identify the stored message.
    """

    subject: str
    value: int
    """The sum of all that was added, of any size."""
    increment: int = 0
    sources: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    stream: str = ""
    seq: int = 0

    @classmethod
    def read(cls, message: RawMessage) -> CounterValue:
        """Read the value from a stored message; InvalidReply when the message is not a counter's.

        Args:
            message: What ``stream.get_message`` and the like returned.
        """
        value = _number("val", parse(message.data, "counter").get("val"))
        said = message.headers.last("Nats-Counter-Sources")
        sources: dict[str, Mapping[str, int]] = {}
        for stream, subjects in parse(said, "Nats-Counter-Sources").items() if said else ():
            if not isinstance(subjects, dict):
                raise errors.InvalidReply("Nats-Counter-Sources", stream, subjects, "must be an object")
            sources[stream] = {subject: _number(subject, seen) for subject, seen in subjects.items()}
        step = message.headers.last(INCREMENT_HEADER, "0")
        return cls(
            subject=message.subject,
            value=value,
            increment=_number(INCREMENT_HEADER, step),
            sources=sources,
            stream=message.stream,
            seq=message.seq,
        )


def increment(number: object) -> str:
    """Return the header value for adding ``number``; ConfigError when it is not an int."""
    if type(number) is not int:
        raise errors.ConfigError("n", number, "must be an int")
    try:
        return f"{number:+d}"
    except ValueError:
        why = "has more digits than Python converts (sys.set_int_max_str_digits)"
        raise errors.ConfigError("n", "of thousands of digits", why) from None


def parse_value(digits: str) -> int:
    """Return the value in an acknowledgement."""
    return _number("val", digits)


def _number(place: str, digits: object) -> int:
    try:
        if isinstance(digits, str) and digits.isascii():
            return int(digits)
    except ValueError:
        pass
    raise errors.InvalidReply("counter", place, digits, "must be a whole number in a string")
