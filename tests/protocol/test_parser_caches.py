"""The parser's caches and positions where words of a line could be taken for each other."""

from __future__ import annotations

import random
from itertools import product

import pytest

from natsproto.protocol.frames import Message, Route
from natsproto.protocol.parser import Parser
from tests.protocol.test_parser import Rig, hmsg, msg, read_slowly

WORDS = (b"1", b"2", b"33", b"MSG", b"HMSG")
SIZES = (1, 2, 33)


def any_words() -> list[bytes]:
    """Messages whose subjects, sids, reply subjects and sizes are the same words."""
    frames = [msg(name, sid, b"x" * size) for name, sid, size in product(WORDS, (*WORDS, b"99"), SIZES)]
    frames += [msg(name, sid, b"x" * size, name) for name, sid, size in product(WORDS, (*WORDS, b"99"), SIZES)]
    blocks = [b"h" * size for size in SIZES]
    frames += [hmsg(name, sid, block, b"x" * 2) for name, sid, block in product(WORDS, (*WORDS, b"99"), blocks)]
    return frames + [hmsg(name, b"2", block, b"x", b"33") for name, block in product(WORDS, blocks)]


def test_words_that_are_sids_and_sizes(seed: int) -> None:
    frames = any_words()
    random.Random(seed).shuffle(frames)
    stream = b"".join(frames)
    expected = read_slowly(stream)
    assert expected.failure is None
    assert Rig().feed([stream]) == expected


@pytest.mark.parametrize(
    "flaw", [b"MSG 1 2", b"MSG 1 2 33 33 33", b"HMSG 1 2 33", b"HMSG 1 2 33 33 33 33", b"PUB 1 2 33 33", b"SUB 1 2 33"]
)
def test_number_of_words_after_cached_sizes(flaw: bytes) -> None:
    """Each of its words is known as everything, and still there are too few or too many, or the verb is wrong."""
    stream = b"".join(any_words())
    outcome = Rig().feed([stream + flaw + b"\r\n" + b"x" * 33 + b"\r\n"])
    assert outcome.failure is not None
    assert outcome.failure[1:] == (len(stream), flaw)


def test_subject_that_looks_like_a_sid() -> None:
    stream = msg(b"1", b"2", b"x") + msg(b"a", b"1", b"y")
    assert Rig().feed([stream, stream]) == read_slowly(stream * 2)


def test_position_of_a_flaw_in_a_later_chunk() -> None:
    chunks = [b"PING\r\n", b"PING\r\nNOPE\r\n"]
    outcome = Rig().feed(chunks)
    assert outcome == read_slowly(b"".join(chunks))
    assert outcome.failure == ("unknown operation", 12, b"NOPE")


def test_excerpt_of_the_unfinished_frame() -> None:
    parser = Parser({})
    parser.feed(b"PING\r\n" + b"x" * 63)
    shorter = parser.unread
    parser.feed(b"yz")
    assert (shorter, parser.unread) == (b"x" * 63, b"x" * 63 + b"y")


@pytest.mark.parametrize("large", [False, True])
def test_note_of_a_route_is_on_its_messages(large: bool) -> None:
    taken: list[Message] = []
    parser = Parser({b"1": Route(taken.append, note="note")})
    parser.max_payload = 200_000
    stream = msg(b"a", b"1", b"x" * (200_000 if large else 2)) * 2
    parser.feed(stream[:30])
    parser.feed(stream[30:])
    assert [message._note for message in taken] == ["note", "note"]


def test_sizes_are_cached() -> None:
    parser = Parser({})
    parser.feed(msg(b"a", b"1", b"xx", b"r") + hmsg(b"b", b"1", b"hhh", b"x") + msg(b"_INBOX.a", b"1", b"x" * 7))
    assert parser._sizes == {b"2": 2, b"3": 3, b"4": 4, b"7": 7}


def test_full_cache_begins_anew() -> None:
    parser, found = Parser({}), []
    for number in range(4097):
        parser.feed(msg(b"s%d" % number, b"1", b"x" * number))
        if number >= 4095:
            found.append(len(parser._sizes))
    assert found == [4096, 1]
    assert parser._sizes == {b"4096": 4096}


def test_subjects_that_are_no_text() -> None:
    taken: list[Message] = []
    parser = Parser({b"1": Route(taken.append)})
    parser.feed(msg(b"a", b"1", b"x") + msg(b"\xff", b"1", b"x") + msg("ä".encode(), b"1", b"x"))
    assert [message.subject for message in taken] == ["a", "\udcff", "ä"]
    assert [message.size for message in taken] == [2, 2, 3]
