"""Large messages: which have a buffer of their own, and what is in it."""

from __future__ import annotations

import pytest

from natsproto.errors import RemoteProtocolError
from natsproto.protocol.frames import Message, Route
from natsproto.protocol.large_message import LARGE_FRAME_SIZE
from natsproto.protocol.parser import Parser
from tests.protocol.test_parser import Rig, hmsg, msg, read_slowly

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
PAYLOAD = bytes(range(256)) * 800


def parser_of(taken: list[Message], max_payload: int) -> Parser:
    parser = Parser({b"1": Route(taken.append)})
    parser.max_payload = max_payload
    return parser


@pytest.mark.parametrize("before", [b"", b"PING\r\n", msg(b"a", b"1", b"x" * LARGE_FRAME_SIZE)], ids=len)
@pytest.mark.parametrize("over", [0, 1])
def test_frames_above_a_size_have_a_buffer(before: bytes, over: int) -> None:
    parser = parser_of([], LARGE_FRAME_SIZE)
    frame = msg(b"a", b"1", b"x" * (LARGE_FRAME_SIZE - len(b"MSG a 1 131000\r\n") + over))
    assert len(frame) == LARGE_FRAME_SIZE + over + 2, "its line end is not counted"
    parser.feed(before + frame[:-3])
    assert parser.large.need == (len(frame) if over else 0)
    assert parser.waiting == len(frame) - 3


@pytest.mark.parametrize(("over", "buffered"), [(0, True), (1, False)])
def test_buffer_up_to_the_announced_max_payload(over: int, buffered: bool) -> None:
    parser = parser_of([], len(PAYLOAD))
    parser.feed(msg(b"a", b"1", PAYLOAD + b"x" * over)[:20])
    assert bool(parser.large.need) is buffered


@pytest.mark.parametrize("cut", [30, 60, 1000])
def test_large_message_behind_other_frames(cut: int) -> None:
    stream = b"PING\r\n" + hmsg(b"a", b"1", BLOCK, PAYLOAD, b"r") + msg(b"a", b"2", b"y")
    rig = Rig()
    outcome = rig.feed([stream[:cut], stream[cut:]])
    assert outcome == read_slowly(stream)
    assert rig.parser.position == len(stream)


def test_message_is_delivered_as_its_room_is_filled() -> None:
    taken: list[Message] = []
    parser = parser_of(taken, len(PAYLOAD))
    frame = msg(b"a", b"1", PAYLOAD)
    parser.feed(frame[:100])
    for piece in (frame[100:5000], frame[5000:]):
        assert (taken, parser.waiting) == ([], parser.large.filled)
        parser.large.room[: len(piece)] = piece
        parser.filled(len(piece))
    assert [message.data for message in taken] == [PAYLOAD]
    assert (parser.waiting, parser.position, len(parser.large.room)) == (0, len(frame), 0)


def test_large_message_without_line_end_is_dropped() -> None:
    taken: list[Message] = []
    parser = parser_of(taken, len(PAYLOAD))
    frame = b"PING\r\n" + msg(b"a", b"1", PAYLOAD)[:-2] + b"!!"
    parser.feed(frame[:100])
    with pytest.raises(RemoteProtocolError, match="no line end") as flaw:
        parser.feed(frame[100:])
    assert flaw.value.position == len(frame) - 2
    assert (taken, parser.waiting, parser.large.need) == ([], 0, 0)
