"""The parser's caches and positions where words of a line could be taken for each other."""

from __future__ import annotations

from tests.protocol.test_parser import Rig, msg, read_slowly


def test_subject_that_looks_like_a_sid() -> None:
    stream = msg(b"1", b"2", b"x") + msg(b"a", b"1", b"y")
    assert Rig().feed([stream, stream]) == read_slowly(stream * 2)


def test_position_of_a_flaw_in_a_later_chunk() -> None:
    chunks = [b"PING\r\n", b"PING\r\nNOPE\r\n"]
    outcome = Rig().feed(chunks)
    assert outcome == read_slowly(b"".join(chunks))
    assert outcome.failure == ("unknown operation", 12, b"NOPE")
