"""The parser's way for replies: an inbox gets its plain replies as token and payload, those with headers as messages.

Whatever the chunks are, what reaches the inbox is what a parser without that way would have delivered.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natsproto.errors import RemoteProtocolError
from natsproto.protocol.frames import Message, Sink
from natsproto.protocol.parser import Parser

STEM = b"_INBOX.abc."


class Rig:
    """A parser with an inbox under sid 5 and a subscription under sid 7; ``short`` gives the inbox its own way."""

    def __init__(self, *, short: bool, max_line: int = 4096) -> None:
        self.got: list[tuple[str, bytes, bytes, str | None, object]] = []
        self.failure: str | None = None
        self.by_token = 0
        self.inbox = Sink(self.message, cacheable=False, answer=self.answer if short else None, stem=STEM)
        self.other = Sink(self.elsewhere)
        self.parser = Parser({b"5": self.inbox, b"7": self.other}, max_line=max_line)

    def answer(self, token: bytes, payload: bytes) -> None:
        self.by_token += 1
        self.got.append(("inbox", STEM + token, payload, None, None))

    def message(self, message: Message) -> None:
        self._keep("inbox", message)

    def elsewhere(self, message: Message) -> None:
        self._keep("other", message)

    def _keep(self, where: str, message: Message) -> None:
        subject = message.subject.encode("utf-8", "surrogateescape")
        self.got.append((where, subject, message.data, message.reply, message._head))

    def feed(self, chunks: list[bytes]) -> Rig:
        try:
            for chunk in chunks:
                self.parser.feed(chunk)
        except RemoteProtocolError as exc:
            self.failure = f"{exc.reason} at {exc.position}"
        return self

    @property
    def account(self) -> list[int]:
        return [self.inbox.arrived, self.inbox.octets, self.other.arrived, self.other.octets]


def message(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    return b"MSG %b %b %b%d\r\n%b\r\n" % (subject, sid, reply and reply + b" ", len(payload), payload)


def refusal(token: bytes) -> bytes:
    block = b"NATS/1.0 503\r\n\r\n"
    return b"HMSG %b%b 5 %d %d\r\n%b\r\n" % (STEM, token, len(block), len(block), block)


def stored(token: bytes, payload: bytes, block: bytes = b"NATS/1.0\r\nNats-Stream: S\r\n\r\n") -> bytes:
    size = len(block) + len(payload)
    return b"HMSG %b%b 5 %d %d\r\n%b%b\r\n" % (STEM, token, len(block), size, block, payload)


payloads = st.sampled_from(
    [b"", b"{}", b'{"stream":"S","seq":1}', b"\r\n", b"\r\nMSG _INBOX.abc.9 5 2\r\n", b"x" * 300]
)
tokens = st.sampled_from([b"1", b"2", b"123", b"123456", b"a.b", b"\xff"])
rows = st.integers(5, 12)
frames = st.one_of(
    st.builds(lambda token, payload: message(STEM + token, b"5", payload), tokens, payloads),
    st.builds(lambda token, payload: message(STEM + token, b"5", payload, b"5"), tokens, payloads),
    st.builds(lambda token, payload: message(STEM + token, b"7", payload), tokens, payloads),
    st.builds(lambda payload: message(b"_INBOX.abd.1", b"5", payload), payloads),
    st.builds(lambda payload: message(b"orders", b"7", payload, b"r"), payloads),
    st.builds(lambda payload, sid: message(STEM + b"124", sid, payload), payloads, st.sampled_from([b"7", b"9"])),
    st.builds(lambda token, payload, count: message(STEM + token, b"5", payload) * count, tokens, payloads, rows),
    st.builds(refusal, tokens),
    st.builds(stored, tokens, payloads),
    st.builds(stored, tokens, payloads, st.just(b"")),
    st.builds(lambda token, payload, count: stored(token, payload) * count, tokens, payloads, rows),
    st.sampled_from([b"PING\r\n", b"msg _INBOX.abc.3 5 2\r\nok\r\n", b"MSG _INBOX.abc. 5 2\r\nok\r\n"]),
)
broken = st.sampled_from(
    [
        b"",
        b"MSG _INBOX.abc.1 5 2\r\nokk\r\n",
        b"MSG _INBOX.abc.1 5 x\r\n",
        b"MSG _INBOX.abc.1 5\r\n",
        b"MSG _INBOX.abc.1 5 1 2 3\r\n",
        b"MSG _INBOX.abc.1  5 2\r\nok\r\n",
        b"MSG _INBOX.abc." + b"1" * 500 + b" 5 2\r\nok\r\n",
        b"MSG _INBOX.abc.1 5 99999999999\r\n",
        b"HMSG _INBOX.abc.1 5 300 16\r\n",
        b"HMSG _INBOX.abc.1 5 16 x\r\n",
        b"HMSG _INBOX.abc.1 5 16\r\n",
        b"HMSG _INBOX.abc.1 5 1 2 3 4\r\n",
        b"HMSG _INBOX.abc.1  5 0 2\r\nok\r\n",
        b"HMSG _INBOX.abc.1 5 0 2\r\nokk\r\n",
    ]
)


@settings(max_examples=300)
@given(st.lists(frames, max_size=12), broken, st.lists(st.integers(0, 4000), max_size=8))
def test_replies_are_the_same_by_either_way_and_in_any_chunks(parts: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(parts) + end
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    short, long = Rig(short=True, max_line=400).feed(chunks), Rig(short=False, max_line=400).feed([stream])
    assert (short.got, short.failure, short.account) == (long.got, long.failure, long.account)


def test_replies_behind_the_first_come_by_token() -> None:
    rig = Rig(short=True).feed([b"".join(message(STEM + b"%d" % number, b"5", b"ok") for number in range(10))])
    assert (rig.by_token, rig.inbox.arrived) == (9, 10)
    rig.feed([message(STEM + b"11", b"5", b"ok")])
    assert rig.by_token == 10
    assert rig.parser.touched == {rig.inbox}


@pytest.mark.parametrize("odd", [3, 7, 15, 16, 19])
@pytest.mark.parametrize(
    "instead",
    [
        message(STEM + b"1", b"5", b"ok", b"5"),
        message(STEM + b"124", b"7", b"ok"),
        message(b"_INBOX.abd.124", b"5", b"ok"),
        refusal(b"124"),
        message(STEM + b"1\r\n", b"5", b"ok"),
        message(STEM + b"1234", b"5", b"ok"),
        message(STEM + b"1234", b"5", b"k"),
        message(STEM + b"12", b"5", b"\r\nMSG _INBOX.abc.123 5 2\r\nok\r\n"),
    ],
)
def test_replies_of_one_length_and_one_that_is_not_like_them(odd: int, instead: bytes) -> None:
    parts = [message(STEM + b"%d" % number, b"5", b"ok") for number in range(100, 120)]
    parts[odd] = instead
    stream = b"".join(parts)
    for end in range(len(stream) - len(parts[-1]), len(stream) + 1):
        short, long = Rig(short=True).feed([stream[:end]]), Rig(short=False).feed([stream[:end]])
        assert (short.got, short.failure, short.account) == (long.got, long.failure, long.account)


@pytest.mark.parametrize("broken", [b"MSG _INBOX.abc.3 5 2\r\nokk\r\n", b"MSG _INBOX.abc.3 5 -1\r\n"])
def test_a_broken_reply_ends_the_stream_behind_the_good_ones(broken: bytes) -> None:
    good = message(STEM + b"1", b"5", b"ok") + message(STEM + b"2", b"5", b"ok")
    rig = Rig(short=True).feed([good + broken])
    assert len(rig.got) == 2
    assert rig.failure is not None


def test_nothing_reaches_an_inbox_that_was_given_up() -> None:
    rig = Rig(short=True).feed([message(STEM + b"1", b"5", b"ok")])
    rig.inbox.answer = None
    rig.inbox.deliver = lambda message: None
    rig.feed([message(STEM + b"2", b"5", b"ok")])
    assert len(rig.got) == 1
