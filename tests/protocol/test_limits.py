"""The last value that is allowed and the first that is not, and what stands behind a field that is passed over."""

from __future__ import annotations

import pickle

import pytest

from natsproto.errors import InvalidSubject, PayloadTooLarge
from natsproto.protocol import commands
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.frames import Message, parse_info
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import MAX_CONTROL_LINE, matches, publish_subject


@pytest.mark.parametrize("sid", [1, 7, 10, 99_999])
@pytest.mark.parametrize("queue", [None, "workers"])
def test_longest_subscription(sid: int, queue: str | None) -> None:
    short = len(commands.sub("s", queue, sid)) - len(b"SUB \r\n")
    longest = "s" * (MAX_CONTROL_LINE - short + 1)
    assert len(commands.sub(longest, queue, sid)) == len(b"SUB \r\n") + MAX_CONTROL_LINE
    with pytest.raises(InvalidSubject, match="control line"):
        commands.sub(longest + "s", queue, sid)


def test_longest_subject() -> None:
    assert publish_subject("s" * MAX_CONTROL_LINE) == b"s" * MAX_CONTROL_LINE
    with pytest.raises(InvalidSubject):
        publish_subject("s" * (MAX_CONTROL_LINE + 1))


def test_largest_message() -> None:
    lines = ControlLines()
    lines.set_max_payload(10)
    assert lines.pub_line("a", 10) == b"PUB a 10\r\n"
    assert lines.message_line(b"a", None, b"1234", 6) == b"HPUB a 4 10\r\n1234"
    for size in (11, 1 << 40):
        with pytest.raises(PayloadTooLarge):
            lines.pub_line("a", size)
    with pytest.raises(PayloadTooLarge):
        lines.message_line(b"a", None, b"1234", 7)


def test_last_of_three_header_values() -> None:
    headers = Headers([("Tag", "1"), ("Tag", "2"), ("Tag", "3")])
    assert (headers.last("Tag"), headers["Tag"], headers.get_all("Tag")) == ("3", "1", ["1", "2", "3"])


def test_info_behind_unknown_and_empty_fields() -> None:
    info = parse_info(b'{"new": [1], "nonce": null, "server_name": "s", "max_payload": 7}')
    assert (info.server_name, info.max_payload, info.nonce) == ("s", 7, "")


def test_message_survives_pickling() -> None:
    made = Message.__new__(Message)
    made.subject, made._reply, made.data, made._head, made._origin, made._note = "a.b", b"r", b"x", None, None, None
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.subject, again.reply, again.data) == (Message, "a.b", "r", b"x")


@pytest.mark.parametrize(
    ("pattern", "subject", "same"),
    [("a.b", "a", False), ("a", "a.b", False), ("a.*", "a", False), ("a.>", "a", False), ("*.b", "a.b", True)],
)
def test_pattern_of_another_length(pattern: str, subject: str, same: bool) -> None:
    assert matches(pattern, subject) is same
