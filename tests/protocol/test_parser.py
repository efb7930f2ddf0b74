"""The parser: whatever the chunks and whatever the bytes, one outcome, and it is the right one.

What is right is said by ``read_slowly`` below: a reader that has the whole stream, no cache, no state between
frames and no code in common with the parser (but for the JSON of INFO, which test_frames checks).
"""

from __future__ import annotations

import gc
import re
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import RemoteProtocolError
from natsproto.protocol import parser as parser_module
from natsproto.protocol.frames import Err, Frame, Message, Ok, Payload, Ping, Pong, Route, ServerInfo, parse_info
from natsproto.protocol.parser import MAX_INFO, MAX_LINE, MAX_MESSAGE, Parser
from tests.kit.examples import examples, lists_up_to

# ---------------------------------------------------------------- what an outcome is

KNOWN = (b"1", b"2", b"33")
UNCACHED = b"4"
INBOX = b"5"  # a sid whose subjects are generated
STEM = b"_INBOX.abc."
UNKNOWN = (b"99", b"x")
SIDS = (*KNOWN, UNCACHED, INBOX)

Delivered = tuple[bytes, str, str | None, bytes, bytes]
Failure = tuple[str, int, bytes]


@dataclass(frozen=True)
class Limits:
    line: int = MAX_LINE
    info: int = MAX_INFO
    message: int = MAX_MESSAGE


@dataclass
class ParseOutcome:
    """All that can be seen from outside: what was delivered in order, what was said, what was counted."""

    messages: list[Delivered] = field(default_factory=list)
    events: list[object] = field(default_factory=list)
    counts: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    touched: set[bytes] = field(default_factory=set)
    failure: Failure | None = None
    left: int = 0


def shown(frame: Frame) -> object:
    if isinstance(frame, ServerInfo):
        return ("INFO", frame.raw)
    return ("-ERR", frame.text) if isinstance(frame, Err) else type(frame).__name__


def seen(sid: bytes, message: Message) -> Delivered:
    # The header block as it came: rebuilt from what Headers keeps it would hide a wrong cut.
    head = message._head
    assert head is None or isinstance(head, bytes)
    return sid, message.subject, message.reply, head or b"", message.data


class Rig:
    """A parser with a sink for every known sid, and what came of it."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self.messages: list[Delivered] = []
        self.routes: dict[bytes, Route] = {}
        for sid in SIDS:
            self.routes[sid] = Route(self._taker(sid))
        self.parser = self.new_parser(limits)
        self.limits = limits

    def _taker(self, sid: bytes) -> Callable[[Message], object]:
        return lambda message: self.messages.append(seen(sid, message))

    def new_parser(self, limits: Limits) -> Parser:
        parser = Parser(self.routes, max_line=limits.line, max_info=limits.info, max_message=limits.message)
        parser.max_payload = MAX_MESSAGE
        return parser

    def feed(self, chunks: Iterable[bytes], *, into_room: bool = False) -> ParseOutcome:
        failures: list[RemoteProtocolError] = []
        for chunk in chunks:
            try:
                while into_room and chunk and (large := self.parser.large).need:
                    count = min(len(large.room), len(chunk))
                    large.room[:count] = chunk[:count]
                    chunk = chunk[count:]
                    self.parser.filled(count)
                self.parser.feed(chunk)
            except RemoteProtocolError as exc:
                failures.append(exc)
            else:
                assert not failures, "a parser that failed went on"
        failure = failures[0] if failures else None
        assert all(again is failure for again in failures)
        return self.outcome(self.parser, failure)

    def outcome(self, parser: Parser, failure: RemoteProtocolError | None) -> ParseOutcome:
        touched = {sid for sid, route in self.routes.items() if route in parser.touched}
        assert len(parser.touched) == len(touched)
        return ParseOutcome(
            self.messages,
            [shown(frame) for frame in parser.events],
            {sid: (route.arrived, route.nbytes) for sid, route in self.routes.items()},
            touched,
            None if failure is None else (failure.reason, failure.position, failure.excerpt),
            parser.waiting,
        )


# ---------------------------------------------------------------- the slow reader


class Wrong(Exception):
    def __init__(self, reason: str, position: int, excerpt: bytes) -> None:
        self.failure = (reason, position, excerpt[:64])


def read_slowly(stream: bytes, limits: Limits = Limits()) -> ParseOutcome:
    """The outcome of a stream, from the rules of the protocol alone."""
    outcome = ParseOutcome(counts=dict.fromkeys(SIDS, (0, 0)))
    rest, position = stream, 0
    try:
        while rest:
            used = read_frame(rest, position, limits, outcome)
            if not used:
                outcome.left = len(rest)
                break
            rest, position = rest[used:], position + used
    except Wrong as wrong:
        outcome.failure = wrong.failure
    return outcome


def read_frame(rest: bytes, position: int, limits: Limits, outcome: ParseOutcome) -> int:
    """Reads the frame at the front; how many bytes it has, 0 when some are missing."""
    line, ended, behind = rest.partition(b"\r\n")
    is_info = re.match(rb"INFO( |\Z)", line, re.IGNORECASE)
    kind, limit = ("INFO", limits.info) if is_info else ("control", limits.line)
    # The CR of a line end that is still to come may be there already.
    if len(line) > limit + (not ended):
        raise Wrong(f"{kind} line longer than {limit} bytes", position, line[:limit])
    if not ended:
        return 0
    if is_info:
        try:
            outcome.events.append(("INFO", parse_info(line[5:], position).raw))
        except RemoteProtocolError as exc:
            raise Wrong(exc.reason, position, line[5:]) from None
        return len(line) + 2
    verb, *arguments = line.split(b" ")
    plain, headed = verb.upper() == b"MSG", verb.upper() == b"HMSG"
    if not plain and not headed:
        outcome.events.append(read_control(line, position))
        return len(line) + 2

    def size_of(digits: bytes) -> int:
        if not re.fullmatch(rb"[0-9]{1,10}", digits):
            raise Wrong("size is not a number", position, line)
        if int(digits) > limits.message:
            raise Wrong(f"message of {int(digits)} bytes exceeds max_message_size ({limits.message})", position, line)
        return int(digits)

    if len(arguments) > 3 and not arguments[2]:
        del arguments[2]  # nats-server writes an empty reply subject at times
    fewest = 4 if headed else 3
    if len(arguments) not in (fewest, fewest + 1):
        raise Wrong(f"{verb.upper().decode()} takes {fewest} or {fewest + 1} arguments", position, line)
    head_size = size_of(arguments[-2]) if headed else 0
    if b"" in arguments:
        raise Wrong("empty argument", position, line)
    total = size_of(arguments[-1])
    if head_size > total:
        raise Wrong("headers longer than the message", position, line)
    if len(behind) < total + 2:
        return 0
    if behind[total : total + 2] != b"\r\n":
        raise Wrong("no line end after the payload", position + len(line) + 2 + total, behind[total : total + 2])
    subject, sid = arguments[:2]
    reply = arguments[2] if len(arguments) > fewest else None
    if sid in SIDS:
        outcome.messages.append(
            (
                sid,
                subject.decode("utf-8", "surrogateescape"),
                None if reply is None else reply.decode("utf-8", "surrogateescape"),
                behind[:head_size],
                behind[head_size:total],
            )
        )
        count, octets = outcome.counts[sid]
        outcome.counts[sid] = (count + 1, octets + len(subject) + len(reply or b"") + total)
        outcome.touched.add(sid)
    return len(line) + 2 + total + 2


def read_control(line: bytes, position: int) -> object:
    bare = re.fullmatch(rb"(PING|PONG|\+OK) *", line, re.IGNORECASE)
    if bare:
        return {b"PING": "Ping", b"PONG": "Pong", b"+OK": "Ok"}[bare[1].upper()]
    said = re.fullmatch(rb"-ERR(?: (.*))?", line, re.IGNORECASE | re.DOTALL)
    if said:
        return ("-ERR", (said[1] or b"").strip().decode("utf-8", "replace").strip("'"))
    raise Wrong("unknown operation", position, line)


# ---------------------------------------------------------------- streams

SUBJECTS = (b"a", b"orders.eu", b"_INBOX.abc.1", "zażółć".encode(), b"\xff\xfe", b"x" * 70)
BLOCKS = (b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\nA:c\r\n\r\n", b"", b"no headers at all")

subjects = st.sampled_from(SUBJECTS)
sids = st.sampled_from((*KNOWN, *KNOWN, UNCACHED, INBOX, *UNKNOWN))
payloads = st.one_of(
    st.binary(max_size=12),
    # Payloads that look like what follows a payload.
    st.sampled_from((b"", b"\r\n", b"\r\nMSG a 1 2\r\n", b"MSG a 1 0\r\n\r\n", b"PING\r\n", b"\r", b"\n\r\n")),
)


def msg(subject: bytes, sid: bytes, payload: bytes, reply: bytes | None = None, verb: bytes = b"MSG") -> bytes:
    middle = b"" if reply is None else reply + b" "
    return b"%b %b %b %b%d\r\n%b\r\n" % (verb, subject, sid, middle, len(payload), payload)


def hmsg(subject: bytes, sid: bytes, block: bytes, payload: bytes, reply: bytes | None = None) -> bytes:
    middle = b"" if reply is None else reply + b" "
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    return b"HMSG %b %b %b%b\r\n%b%b\r\n" % (subject, sid, middle, sizes, block, payload)


@st.composite
def runs(draw: st.DrawFn) -> list[bytes]:
    """Equal control lines, one behind the other; payloads differ in all but their size."""
    subject, sid, size = draw(subjects), draw(sids), draw(st.integers(0, 14))
    payload = st.one_of(st.binary(min_size=size, max_size=size), payloads.filter(lambda data: len(data) == size))
    block = draw(st.sampled_from((None, *BLOCKS)))
    count = draw(st.integers(1, 6))
    if block is None:
        return [msg(subject, sid, draw(payload)) for _ in range(count)]
    return [hmsg(subject, sid, block, draw(payload)) for _ in range(count)]


@st.composite
def alternations(draw: st.DrawFn) -> list[bytes]:
    """Lines of two or three subscriptions in turn."""
    lines = draw(st.lists(runs(), min_size=2, max_size=3))
    return [frame for frames in zip(*lines, strict=False) for frame in frames]


@st.composite
def deliveries(draw: st.DrawFn) -> list[bytes]:
    """What JetStream sends: one subscription, a reply subject that never comes twice, with and without headers."""
    subject, sid = draw(subjects), draw(sids)
    first = draw(st.integers(1, 100))
    return [
        msg(subject, sid, payload, b"$JS.ACK.s.c.1.%d.%d" % (number, number))
        if block is None
        else hmsg(subject, sid, block, payload, b"$JS.ACK.s.c.1.%d.%d" % (number, number))
        for number, (block, payload) in enumerate(
            draw(st.lists(st.tuples(st.sampled_from((None, None, *BLOCKS)), payloads), min_size=1, max_size=5)), first
        )
    ]


@st.composite
def replies(draw: st.DrawFn) -> list[bytes]:
    """What a busy requester gets: replies to one inbox, hardly anything between them."""
    tokens = st.sampled_from((b"1", b"22", b"a.b", b"", b"\xff"))
    subject = st.one_of(tokens.map(lambda token: STEM + token), tokens.map(lambda token: STEM + token), subjects)
    sid = st.sampled_from((INBOX, INBOX, INBOX, INBOX, *KNOWN, UNCACHED))
    kinds = st.sampled_from((None, None, None, None, b"5", b"r", b""))
    return [msg(*draw(st.tuples(subject, sid, payloads, kinds))) for _ in range(draw(st.integers(1, 6)))]


@st.composite
def statuses(draw: st.DrawFn) -> list[bytes]:
    """Headers of changing size behind the same three words."""
    subject, sid = draw(subjects), draw(sids)
    return [
        hmsg(subject, sid, block, payload)
        for block, payload in draw(st.lists(st.tuples(st.sampled_from(BLOCKS), payloads), min_size=1, max_size=5))
    ]


controls = st.sampled_from(
    (
        b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"ping\r\n", b"PONG \r\n", b"-ERR 'Stale Connection'\r\n", b"-err x\r\n",
        b"-ERR\r\n", b"-ERR '\xff'\r\n", b'INFO {"server_id":"S","max_payload":1048576} \r\n', b"info {}\r\n",
        b'INFO {"connect_urls":["a:1"],"new":[1,{"x":null}]}\r\n', b"msg a 1 1\r\nx\r\n", b"Msg a 1 r 1\r\nx\r\n",
        b"MSG a 1 0000000001\r\nx\r\n", b"MSG a 1 r 01\r\nx\r\n", b"MSG a 1  1\r\nx\r\n",
        b"hmsg a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    )
).map(lambda frame: [frame])  # fmt: skip

FLAWED = (
    b"\r\n", b"\n", b"\r", b" ", b"PING", b"PING\n", b"PINGS\r\n", b"PING x\r\n", b"PONG\r\r\n", b"+OKAY\r\n",
    b"MSG\r\n", b"MSG a\r\n", b"MSG a 1\r\n", b"MSG a 1 x\r\n", b"MSG a 1 -1\r\n", b"MSG a 1 r 1 1\r\n",
    b"MSG a 1  \r\n\r\n", b"MSG  1 0\r\n\r\n", b"MSG a 1 0 \r\n\r\n", b"MSG a 1 r\t0\r\n\r\n",
    b"MSG a 1 00000000000\r\n\r\n", b"MSG a 1 9999999999\r\n", b"MSG a 1 2\r\nabc\r\n", b"MSG a 1 2\r\nab\n\r",
    b"MSG a 1 2\r\na\r\n", b"MSG a 1 r 2\r\nabc\r\n", b"MSG a 1 \xc2\xb2\r\n", b"MSG\ta\t1\t0\r\n\r\n",
    b"HMSG a 1 12\r\n", b"HMSG a 1 3 2\r\n\r\n\r\n", b"HMSG a 1 r 3 2\r\n", b"HMSG a 1 x 2\r\n",
    b"HMSG a 1 2 x\r\n",
    b"HMSG a 1   2 2\r\n", b"HMSG a 1  2\r\n", b"HMSG a 1 1 2 3 4\r\n", b"HMSG a 1 2 4\r\nabcd!\r\n",
    b"HMSG a 1 99999999999 2\r\n",
    b"INFO\r\n", b"INFO \r\n", b"INFO []\r\n", b"INFO {\r\n", b'INFO {"port":"x"}\r\n', b"INFO\t{}\r\n",
    b"INFO \xff\r\n", b"INFO " + b"[" * 5000 + b"\r\n", b"SUB a 1\r\n", b"CONNECT {}\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x16\x03\x01\x02\x00", b"x" * 300, b"INFO " + b" " * 300, b"I", b"INF", b"i" * 41, b"x" * 40,
    b"x" * 40 + b"\r",
    b"MSG _INBOX.abc.1 5 3\r\nxyz!!", b"MSG _INBOX.abc.1 5 x\r\n", b"MSG _INBOX.abc.1 5\r\n",
    b"MSG _INBOX.abc.1  3\r\n", b"MSG _INBOX.abc.1 5  3\r\n", b"MSG _INBOX.abc.1 55 3\r\nxyz\r\n",
    b"MSG _INBOX.abc.%b 5 3\r\nxyz\r\n" % (b"1" * 50),
    b"MSG _INBOX.abc.%b 5 3" % (b"1" * 50), b"MSG _INBOX.abc.1 5 3\r\nxyz\r",
    b"MSG _INBOX.abc.1 5 3\r\nxyz\rMSG _INBOX.abc.1",
)  # fmt: skip
garbage = st.one_of(st.sampled_from(FLAWED), st.binary(max_size=20)).map(lambda piece: [piece])
frame_groups = st.one_of(runs(), alternations(), deliveries(), replies(), statuses(), controls)
valid_frames = lists_up_to(6, frame_groups).map(lambda groups: [frame for group in groups for frame in group])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Valid frames, with garbage between any two or in the middle of one."""
    stream = b"".join(draw(valid_frames))
    if draw(st.booleans()):
        index = draw(st.integers(0, len(stream)))
        cut = draw(st.integers(0, 3))
        stream = stream[:index] + draw(garbage)[0] + stream[index + cut :]
    return stream


limits_used = st.sampled_from(
    (
        Limits(),
        Limits(),
        Limits(line=40, info=60, message=20),
        Limits(line=41, info=41, message=64),
        Limits(20, 10, 5),
    )
)


@st.composite
def splits(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The stream in chunks: few of any size, all of one size, or byte by byte; empty ones among them."""
    if draw(st.booleans()):
        step = draw(st.sampled_from((1, 1, 2, 3, 7, 16, 64)))
        return [stream[at : at + step] for at in range(0, len(stream), step)]
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


ENCORES = {
    "plain": msg(b"a", b"1", b"xyz"),
    "empty": msg(b"a", b"1", b""),
    "reply": msg(b"a", b"1", b"xyz", b"r"),
    "headers": hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"xyz"),
    "headers and reply": hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"xyz", b"r"),
    "empty reply": msg(b"a", b"1", b"xyz", b""),
    "headers and empty reply": hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"xyz", b""),
    "inbox with empty reply": msg(STEM + b"1", INBOX, b"xyz", b""),
    "headers alone": hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b""),
    "no headers": hmsg(b"a", b"1", b"", b"xyz"),
    "not remembered": msg(b"a", b"4", b"xyz"),
    "unknown": msg(b"a", b"99", b"xyz"),
    "inbox": msg(STEM + b"1", INBOX, b"xyz"),
    "inbox, empty": msg(STEM + b"1", INBOX, b""),
    "inbox with reply": msg(STEM + b"1", INBOX, b"xyz", b"r"),
    "inbox with headers": hmsg(STEM + b"1", INBOX, b"NATS/1.0 503\r\n\r\n", b""),
    "inbox, other subject": msg(b"a", INBOX, b"xyz"),
}


# ---------------------------------------------------------------- the invariants


@examples(400)
@given(st.data(), streams(), limits_used)
def test_any_split_equals_reference_parser(data: st.DataObject, stream: bytes, limits: Limits) -> None:
    """Messages and their order, events, error (reason, position, excerpt), counts and what is left over."""
    expected = read_slowly(stream, limits)
    assert Rig(limits).feed([stream]) == expected
    assert Rig(limits).feed(data.draw(splits(stream))) == expected


@examples(200)
@given(st.data(), streams(), limits_used, st.sampled_from((0, 8, MAX_MESSAGE)))
def test_large_messages_equal_reference_parser(
    data: st.DataObject, stream: bytes, limits: Limits, max_payload: int
) -> None:
    """Every message above 16 bytes in all is a large one, and a transport writes it where it belongs or does not."""
    expected = read_slowly(stream, limits)
    rig = Rig(limits)
    rig.parser.max_payload = max_payload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_module, "LARGE_FRAME_SIZE", 14)
        assert rig.feed(data.draw(splits(stream)), into_room=data.draw(st.booleans())) == expected


@examples(100)
@given(valid_frames, st.one_of(st.just([b""]), garbage))
def test_caches_never_change_the_outcome(frames: list[bytes], ending: list[bytes]) -> None:
    """What is remembered changes nothing: a new parser for every frame reads each line from scratch."""
    rig = Rig()
    position, failure = 0, None
    events: list[Frame] = []
    touched: set[bytes] = set()
    left = 0
    for frame in [*frames, *ending]:
        parser = rig.new_parser(rig.limits)
        try:
            parser.feed(frame)
        except RemoteProtocolError as exc:
            failure = (exc.reason, exc.position + position, exc.excerpt)
        events += parser.events
        touched |= {sid for sid, route in rig.routes.items() if route in parser.touched}
        parser.touched.clear()
        left = parser.waiting
        position += len(frame)
    one_by_one = rig.outcome(parser, None)
    one_by_one.events, one_by_one.touched, one_by_one.failure, one_by_one.left = (
        [shown(frame) for frame in events], touched, failure, left,
    )  # fmt: skip
    assert Rig().feed([b"".join([*frames, *ending])]) == one_by_one


@pytest.mark.parametrize("limits", [Limits(), Limits(line=40, info=60, message=20)], ids=["default", "small"])
@pytest.mark.parametrize("flaw", FLAWED)
def test_every_flaw_is_found_after_cached_lines(flaw: bytes, limits: Limits) -> None:
    known = (
        ENCORES["inbox"] * 2
        + ENCORES["plain"]
        + ENCORES["reply"]
        + hmsg(b"a", b"1", b"abc", b"")
        + hmsg(b"a", b"1", b"", b"ab")
    )
    row = ENCORES["reply"] * 12
    for stream in (flaw, known + flaw, ENCORES["inbox"] * 2 + flaw, flaw + known, row + flaw + row):
        expected = read_slowly(stream, limits)
        assert Rig(limits).feed([stream]) == expected
        assert Rig(limits).feed(stream[at : at + 1] for at in range(len(stream))) == expected


@examples(300)
@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"MSG a 1 5\r\nab", b"\r", b"\n"])
def test_garbage_gives_events_or_protocol_error(chunks: list[bytes]) -> None:
    """Rig.feed lets nothing but RemoteProtocolError pass, and checks that it is raised for ever after."""
    assert Rig().feed(chunks) == read_slowly(b"".join(chunks))


@examples(200)
@given(
    lists_up_to(
        40,
        st.sampled_from(
            (b"MSG", b"HMSG", b"INFO", b"PING", b" ", b" ", b"\r\n", b"\r\n", b"a", b"1", b"2", b"12", b"{}")
        ),
    )
)
def test_protocol_words_in_any_order(words: list[bytes]) -> None:
    stream = b"".join(words)
    expected = read_slowly(stream)
    assert Rig().feed([stream]) == expected
    assert Rig().feed(words) == expected


@pytest.mark.parametrize(
    "flaw", [b"x\r\n", b"INFO []\r\n", b"MSG a 1 0\r\nxx", b"MSG a 1 9999999999\r\n", b"x" * 65_538]
)
def test_feed_after_error_raises_same_error(flaw: bytes) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError) as first:
        rig.parser.feed(b"PING\r\n" + flaw)
    for more in (b"PING\r\n", b"", flaw):
        with pytest.raises(RemoteProtocolError) as again:
            rig.parser.feed(more)
        assert again.value is first.value
    assert [shown(frame) for frame in rig.parser.events] == ["Ping"]
    assert rig.parser.waiting == 0


# ---------------------------------------------------------------- runs, heads and lines, example by example


def test_a_run_of_equal_lines_is_cut_at_every_message() -> None:
    frames = [msg(b"a", b"1", b"%03d" % number) for number in range(50)]
    outcome = Rig().feed([b"".join(frames)])
    assert [data for *_, data in outcome.messages] == [b"%03d" % number for number in range(50)]
    assert outcome.counts[b"1"] == (50, 50 * 4)


def test_headers_and_payload_are_split() -> None:
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    outcome = Rig().feed([b"".join(hmsg(b"a", b"1", block, b"%03d" % number) for number in range(50))])
    assert [(head, data) for *_, head, data in outcome.messages] == [(block, b"%03d" % number) for number in range(50)]
    assert outcome.counts[b"1"] == (50, 50 * (1 + len(block) + 3))


@pytest.mark.parametrize("frame", ENCORES.values(), ids=ENCORES.keys())
def test_chunks_of_any_size_parse_alike(frame: bytes) -> None:
    stream = frame * 4
    expected = read_slowly(stream)
    for cut in range(len(stream)):
        assert Rig().feed([stream[:cut], stream[cut:]]) == expected
    for step in range(1, len(stream)):
        assert Rig().feed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


@pytest.mark.parametrize("frame", [msg(b"a", b"1", b"xyz"), hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"xyz")])
@pytest.mark.parametrize("index", range(4))
def test_missing_line_end_is_found_anywhere(frame: bytes, index: int) -> None:
    frames = [frame] * 4
    frames[index] = frame[:-2] + b"!!"
    stream = b"".join(frames)
    outcome = Rig().feed([stream])
    assert outcome.failure == ("no line end after the payload", len(frame) * (index + 1) - 2, b"!!")
    assert outcome.counts[b"1"][0] == len(outcome.messages) == index


ROW_OF_REPLIES = [
    msg(b"a", b"1", payload, reply)
    for payload in (b"xyz", b"", b"\r\n", b"xy\r\nMSG a 1 q 3\r\nabc", b"\r\nMSG a 1 ", b"." * 300)
    for reply in (b"r", b"rr", b"3", b"r.0")
]


def test_messages_with_replies_split_anywhere() -> None:
    """Payloads with line ends, with whole messages in them, empty ones and ones that are longer than a first look."""
    frames = [*ROW_OF_REPLIES, *ROW_OF_REPLIES, msg(b"a", b"1", b"z" * 5000, b"r"), *ROW_OF_REPLIES]
    stream = b"".join(frames)
    expected = read_slowly(stream)
    assert len(expected.messages) == len(frames)
    assert Rig().feed([stream]) == expected
    for step in (1, 2, 3, 7, 64, 333, 4096):
        assert Rig().feed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


@pytest.mark.parametrize(
    "flaw",
    [
        b"MSG a 1 r 3\r\nxyz!!",
        b"MSG a 1 r 3\r\nxyz\n\r",
        b"MSG a 1 r 0\r\n",  # the payload's line end is missing, and the next message follows
        b"MSG a 1 r 4\r\nxyz\r\n",
        b"MSG a 1 r 2\r\nxyz\r\n",
        b"MSG a 1 r s 3\r\nxyz\r\n",
        b"MSG a 1 r x\r\nxyz\r\n",
        b"MSG a 1 r\r\nxyz\r\n",
        b"MSG a 1 \r\nxyz\r\n",
    ],
)
def test_a_flaw_is_found_anywhere_in_a_row_of_replies(flaw: bytes) -> None:
    frame = msg(b"a", b"1", b"xyz", b"r")
    for index in range(40):
        stream = b"".join([frame] * index + [flaw] + [frame] * 40)
        expected = read_slowly(stream)
        assert expected.failure is not None
        assert Rig().feed([stream]) == expected


ROW_OF_SUBJECTS = [
    msg(b"a.%d" % number, b"1", payload, b"$JS.ACK.S.c.1.%d" % number)
    for number, payload in enumerate([b"xyz", b"", b"\r\n", b"xy\r\nMSG a 1 q 3\r\nabc", b"\r\nMSG ", b"." * 300] * 4)
]


def test_messages_of_many_subjects_split_anywhere() -> None:
    """What a watch gets: no subject comes twice. Names that are no UTF-8 too, and another subscription in between."""
    odd = msg(b"\xff\xfe", b"1", b"xyz", b"r")
    others = [odd, msg(b"b", b"2", b"xyz", b"r"), msg(b"b", b"1", b"xyz"), msg(b"b", b"1", b"z" * 5000, b"r")]
    others += [hmsg(b"b", b"1", b"NATS/1.0\r\n\r\n", b"xyz", b"r"), b"MSG b 1  3\r\nxyz\r\n"]
    frames = [frame for other in others for frame in (*ROW_OF_SUBJECTS, other)]
    stream = b"".join(frames)
    expected = read_slowly(stream)
    assert len(expected.messages) == len(frames)
    assert Rig().feed([stream]) == expected
    for step in (1, 2, 3, 7, 64, 333, 4096):
        assert Rig().feed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


@pytest.mark.parametrize(
    "flaw",
    [
        b"MSG b 1 r 3\r\nxyz!!",
        b"MSG b 1 r 0\r\n",  # the payload's line end is missing, and the next message follows
        b"MSG b 1 r 4\r\nxyz\r\n",
        b"MSG b 1 r 2\r\nxyz\r\n",
        b"MSG b 1 r s 3\r\nxyz\r\n",
        b"MSG b 1 r x\r\nxyz\r\n",
        b"MSG  1 r 3\r\nxyz\r\n",
        b"MSG b  r 3\r\nxyz\r\n",
        b"MSG \r\n",
    ],
)
def test_a_flaw_is_found_anywhere_in_a_row_of_subjects(flaw: bytes) -> None:
    for index in range(len(ROW_OF_SUBJECTS)):
        stream = b"".join([*ROW_OF_SUBJECTS[:index], flaw, *ROW_OF_SUBJECTS])
        expected = read_slowly(stream)
        assert expected.failure is not None
        assert Rig().feed([stream]) == expected


def alike(number: int, *, subject: bytes = b"a", head: bytes = b"", payload: bytes = b"xyz") -> bytes:
    """One of messages that are as long as each other in everything, up to number 999."""
    reply = b"$JS.ACK.S.c.1.%03d" % number
    return hmsg(subject, b"1", head, payload, reply) if head else msg(subject, b"1", payload, reply)


HEAD = b"NATS/1.0\r\nA: b\r\n\r\n"
EQUAL = {
    "one subject": [alike(number) for number in range(60)],
    "a subject each": [alike(number, subject=b"k.%03d" % number) for number in range(60)],
    "names beyond ASCII": [alike(number, subject="kä%03d".encode() % number) for number in range(60)],
    "headers": [alike(number, head=HEAD) for number in range(60)],
    "headers and a subject each": [alike(number, head=HEAD, subject=b"k.%03d" % number) for number in range(60)],
    "nothing but headers": [alike(number, head=HEAD, payload=b"") for number in range(60)],
    "payloads with line ends": [alike(number, payload=b"\r\nMSG a 1 r 3\r\n") for number in range(60)],
    "large": [alike(number, payload=b"." * 3000) for number in range(60)],
    "empty": [alike(number, payload=b"") for number in range(60)],
}


@pytest.mark.parametrize("frames", EQUAL.values(), ids=EQUAL.keys())
def test_equally_long_messages_split_anywhere(frames: list[bytes]) -> None:
    others = [b"PING\r\n", msg(b"a", b"1", b"four", b"r"), msg(b"a", b"2", b"xyz", b"r"), msg(b"a", b"1", b"xyz")]
    others += [alike(7, subject=b"\xff\xfe\xfd\xfc\xfb"), alike(7, subject=b"a" * 5), alike(1000), alike(7, head=HEAD)]
    others += [b"MSG a 1  $JS.ACK.S.c.1.00 3\r\nxyz\r\n", b"MSG k.000 1  $JS.ACK.S.c.1.00 3\r\nxyz\r\n"]
    stream = b"".join([part for other in others for part in (*frames, other, *frames[:7], other)])
    expected = read_slowly(stream)
    assert expected.failure is None
    assert Rig().feed([stream]) == expected
    for step in (7, 64, 333, 1000, 4096):
        assert Rig().feed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


def test_equally_long_messages_split_at_any_byte() -> None:
    stream = b"".join(EQUAL["headers and a subject each"][:16])
    expected = read_slowly(stream)
    for cut in range(len(stream)):
        assert Rig().feed([stream[:cut], stream[cut:]]) == expected


@pytest.mark.parametrize(
    "flaw",
    [
        b"MSG k.000 1 $JS.ACK.S.c.1.000 3\r\nxyz!!",
        b"MSG k.000 1 $JS.ACK.S.c.1.000 4\r\nxyz\r\n",
        b"MSG k.000 1 $JS.ACK.S.c.1.000 x\r\nxyz\r\n",
        b"MSG k.000 1 $JS.ACK.S c.1.000 3\r\nxyz\r\n",
        b"MSG k 000 1 $JS.ACK.S.c.1.000 3\r\nxyz\r\n",
        b"MSG  k.00 1 $JS.ACK.S.c.1.000 3\r\nxyz\r\n",
        b"MSG k.000 1 $JS.A\r\n.S.c.1.000 3\r\nxyz\r\n",
        b"MSG k.0\r\n 1 $JS.ACK.S.c.1.000 3\r\nxyz\r\n",
        b"MSG k.000 1 $JS.ACK.S.c.1.000\r\n3\r\nxyz\r\n",
        b"NSG k.000 1 $JS.ACK.S.c.1.000 3\r\nxyz\r\n",
    ],
)
@pytest.mark.parametrize("kind", ["one subject", "a subject each"])
def test_flaw_among_equally_long_messages_is_found(kind: str, flaw: bytes) -> None:
    frames = EQUAL[kind]
    if kind == "one subject":
        flaw = flaw.replace(b" k.000 ", b" a ")
    for index in range(40):
        stream = b"".join([*frames[:index], flaw, *frames])
        expected = read_slowly(stream)
        assert expected.failure is not None
        assert Rig().feed([stream]) == expected


def test_messages_of_other_sids_are_kept_apart() -> None:
    """As long as each other, each with its subject, but the sid is another one."""
    one = [msg(b"k.%03d" % number, b"1", b"xyz", b"r.%03d" % number) for number in range(30)]
    two = [msg(b"k.%03d" % number, b"2", b"xyz", b"r.%03d" % number) for number in range(30)]
    stream = b"".join([*one[:9], *two[:9], *one[9:20], two[20], *one[20:], *two[9:]])
    assert Rig().feed([stream]) == read_slowly(stream)


def test_unusual_verb_does_not_swap_reply_and_sid() -> None:
    """Lower case is rare enough to be read from scratch, and its words are counted from the other end."""
    frames = [b"hmsg a 1 2 0 3\r\nxyz\r\n"] * 12 + [msg(b"a", b"2", b"xyz", b"r")] * 12
    stream = b"".join(frames)
    assert Rig().feed([stream]) == read_slowly(stream)


def test_rows_of_replies_that_take_turns_are_cut_right() -> None:
    one, two = msg(b"a", b"1", b"xyz", b"r"), msg(b"b", b"2", b"12345", b"s")
    stream = b"".join(one * ones + two * twos for ones in range(1, 20) for twos in range(1, 20))
    assert Rig().feed([stream]) == read_slowly(stream)


def test_long_row_of_messages_is_split_right() -> None:
    stream = b"".join(msg(b"a", b"1", b"xyz", b"r.%05d" % number) for number in range(5000))
    assert Rig().feed([stream]) == read_slowly(stream)


def test_cached_sizes_combine_right() -> None:
    blocks = (b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 100\r\n\r\n")
    frames = [hmsg(b"a", b"1", block, payload) for payload in (b"", b"xyz", b"\r\n", b"." * 12) for block in blocks]
    frames += [msg(b"a", b"1", payload, reply) for payload in (b"", b"xyz") for reply in (b"r", b"rr", b"3", b"")]
    frames += [hmsg(b"a", b"1", block, b"xyz", reply) for block in blocks for reply in (b"r", b"rr", b"3", b"")]
    stream = b"".join(frames * 2)
    expected = read_slowly(stream)
    assert Rig().feed([stream]) == expected
    assert len(expected.messages) == len(frames) * 2
    for step in range(1, 60):
        assert Rig().feed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


def test_cached_line_is_measured_again() -> None:
    """The sizes of an HMSG are known apart from each other; together they may still be wrong."""
    good = hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"") + hmsg(b"a", b"1", b"", b"xx")
    outcome = Rig().feed([good + b"HMSG a 1 12 2\r\n"])
    assert outcome.failure == ("headers longer than the message", len(good), b"HMSG a 1 12 2")


def test_cached_prefix_keeps_line_limit() -> None:
    """Found as a difference between one chunk and many: known words, known sizes, but one byte too long."""
    limits = Limits(line=12)
    frames = [b"MSG a 1 02\r\n..\r\n", b"HMSG a 1 2 2\r\n..\r\n", b"HMSG a 1 02 2\r\n..\r\n"]
    outcome = Rig(limits).feed([b"".join(frames)])
    assert outcome.failure == ("control line longer than 12 bytes", 34, b"HMSG a 1 02 ")
    frames = [b"MSG a 1 r 02\r\n..\r\n", b"MSG a 1 rr 02\r\n..\r\n"]
    outcome = Rig(limits).feed(frames)
    assert outcome.failure == ("control line longer than 12 bytes", 18, b"MSG a 1 rr 0")


def test_messages_of_unknown_sid_are_dropped() -> None:
    rig = Rig()
    outcome = rig.feed([msg(b"a", b"99", b"gone") * 3 + msg(b"a", b"1", b"here")])
    assert [data for *_, data in outcome.messages] == [b"here"]
    assert (rig.parser.touched, rig.parser.unrouted) == ([rig.routes[b"1"]], 3)


def test_unknown_sid_is_looked_up_again() -> None:
    taken: list[Message] = []
    parser = Parser({})
    parser.feed(msg(b"a", b"1", b"too early") * 2)
    parser.routes = {b"1": Route(taken.append)}
    parser.feed(msg(b"a", b"1", b"in time 1") * 2)
    assert [message.data for message in taken] == [b"in time 1"] * 2


def test_more_lines_than_the_cache_holds() -> None:
    frames, expected = [], []
    for number in range(4200):
        subject, block = f"s{number}", b"." * number
        wire = subject.encode()
        frames += [msg(wire, b"1", b"x"), msg(wire, b"2", b"y", b"r"), hmsg(wire, b"33", block, b"z")]
        expected += [
            (b"1", subject, None, b"", b"x"),
            (b"2", subject, "r", b"", b"y"),
            (b"33", subject, None, block, b"z"),
        ]
    stream = b"".join(frames)
    assert Rig().feed([stream, stream]).messages == expected * 2


def test_a_message_knows_its_origin() -> None:
    class Client:
        async def _send_reply(self, reply: str, payload: Payload, headers: object) -> None:
            raise AssertionError

    taken: list[Message] = []
    origin = Client()
    parser = Parser({b"1": Route(taken.append, origin=origin)})
    run = msg(b"a", b"1", b"x") * 3 + hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"x") * 3 + msg(b"a", b"1", b"x", b"r") * 2
    parser.feed(run)
    assert [message._origin for message in taken] == [origin] * 8


@pytest.mark.parametrize("frame", ENCORES.values(), ids=ENCORES.keys())
def test_a_sink_gets_messages_of_its_own_class(frame: bytes) -> None:
    class Special(Message):
        __slots__ = ()

    taken: list[Message] = []
    parser = Parser({sid: Route(taken.append, message_class=Special) for sid in (*SIDS, b"99")})
    parser.feed(frame * 3)
    assert [type(message) for message in taken] == [Special] * 3


def test_unfinished_reply_line_is_not_at_chunk_start() -> None:
    chunks = [
        ENCORES["inbox"],
        b"PING\r\n" + ENCORES["inbox"] + b"MSG _INBOX.abc.1 5 33",
        b"\r\n" + b"x" * 33 + b"\r\n",
    ]
    assert Rig().feed(chunks) == read_slowly(b"".join(chunks))


def test_parser_position_and_waiting_counts() -> None:
    parser = Parser({})
    parser.feed(b"PING\r\nMSG a 1 3\r\nxy")
    assert (parser.position, parser.waiting) == (6, 13)
    parser.feed(b"z\r\n")
    assert (parser.position, parser.waiting) == (22, 0)


def test_control_frames_are_events_of_their_own_class() -> None:
    parser = Parser({})
    parser.feed(b"INFO {}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'no'\r\n")
    assert [type(frame) for frame in parser.events] == [ServerInfo, Ping, Pong, Ok, Err]


# ---------------------------------------------------------------- limits

SMALL = Limits(line=64, info=128, message=100)


def padded(start: bytes, end: bytes, length: int) -> bytes:
    return start + b"x" * (length - len(start) - len(end)) + end


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("longest", "rest"),
    [
        (padded(b"MSG ", b" 1 0", 64), b"\r\n\r\n"),
        (padded(b"MSG a 1 ", b" 0", 64), b"\r\n\r\n"),
        (padded(b"HMSG a 1 ", b" 0 0", 64), b"\r\n\r\n"),
        (padded(b"-ERR ", b"", 64), b"\r\n"),
        (padded(b"-ERR ", b"\r", 64), b"\r\n"),
        (padded(b'INFO {"name":"', b'"}', 128), b"\r\n"),
    ],
)
def test_line_length_limit_is_exact(longest: bytes, rest: bytes, step: int) -> None:
    def outcome(stream: bytes) -> ParseOutcome:
        return Rig(SMALL).feed(stream[at : at + step] for at in range(0, len(stream), step))

    assert outcome(longest + rest).failure is None
    longer = longest[:14] + b"x" + longest[14:]
    what = (
        f"INFO line longer than {SMALL.info}"
        if longest.startswith(b"INFO")
        else f"control line longer than {SMALL.line}"
    )
    assert outcome(longer + rest).failure == (f"{what} bytes", 0, longer[:64])


def test_excerpt_of_long_line_is_limited() -> None:
    for stream in (b"x" * 30, b"x" * 30 + b"\r\n"):
        assert Rig(Limits(20, 10, 5)).feed([stream]).failure == (
            "control line longer than 20 bytes",
            0,
            b"x" * 20,
        )
    for stream in (b"INFO " + b"x" * 30, b"INFO " + b"x" * 30 + b"\r\n"):
        assert Rig(Limits(20, 10, 5)).feed([stream]).failure == (
            "INFO line longer than 10 bytes",
            0,
            b"INFO xxxxx",
        )


@pytest.mark.parametrize(
    ("line", "payload"),
    [(b"MSG a 1 100", b"x" * 100), (b"MSG a 1 r 100", b"x" * 100), (b"HMSG a 1 100 100", b"x" * 100)],
)
def test_message_size_limit_is_exact(line: bytes, payload: bytes) -> None:
    assert Rig(SMALL).feed([line + b"\r\n" + payload + b"\r\n"]).counts[b"1"][0] == 1
    over = line.replace(b"100", b"101")
    assert Rig(SMALL).feed([over + b"\r\n"]).failure == ("message of 101 bytes exceeds max_message_size (100)", 0, over)


def test_too_big_message_fails_before_payload() -> None:
    outcome = Rig().feed([b"MSG a 1 %d\r\n" % (MAX_MESSAGE + 1)])
    assert outcome.failure is not None
    assert Rig().feed([b"MSG a 1 %d\r\n" % MAX_MESSAGE]).failure is None


@pytest.mark.parametrize("start", [b"", b"INFO ", b"info ", b"MSG "])
def test_an_endless_line_is_given_up_at_its_limit(start: bytes) -> None:
    parser = Parser({})
    limit = MAX_INFO if start.upper() == b"INFO " else MAX_LINE
    parser.feed(start + b"x" * (limit + 1 - len(start)))
    assert parser.waiting == limit + 1
    with pytest.raises(RemoteProtocolError, match="line longer than"):
        parser.feed(b"x")
    assert parser.waiting == 0


def test_the_defaults_take_what_a_server_sends() -> None:
    names = b",".join(b'"10.0.%d.%d:4222"' % (number // 256, number % 256) for number in range(20_000))
    info = b'INFO {"connect_urls":[' + names + b"]}\r\n"
    message = hmsg(b"a", b"1", b"NATS/1.0\r\n\r\n", b"x" * 8_000_000, b"r" * 4000)
    outcome = Rig().feed([info, message])
    assert (len(outcome.events), len(outcome.messages)) == (1, 1)


def growth(stream: bytes, times: int) -> int:
    tracemalloc.start()
    try:
        parser = Parser({b"1": Route(lambda message: None)})
        before = tracemalloc.get_traced_memory()[0]
        for number in range(times):
            parser.feed(stream % number)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_remembered_lines_stay_within_bounds() -> None:
    """A peer that never says the same thing twice fills neither the memory with lines nor with long ones."""
    assert growth(b"MSG " + b"s" * 900 + b"%d 1 0\r\n\r\n", 12_000) < 24_000_000
    assert growth(b"MSG " + b"s" * 60_000 + b"%d 1 0\r\n\r\n", 200) < 1_000_000


def test_generated_subjects_are_not_remembered() -> None:
    assert growth(b"MSG _INBOX.0123456789012345678901.1.%d 1 0\r\n\r\n", 4000) < 100_000


def test_no_buffer_is_larger_than_announced() -> None:
    """Whoever announces 60 MB and sends nothing has cost nothing, unless INFO had allowed that."""
    for max_payload, least, most in ((0, 0, 200_000), (1_000_000, 0, 200_000), (MAX_MESSAGE, 60_000_000, 70_000_000)):
        parser = Parser({b"1": Route(lambda message: None)})
        parser.max_payload = max_payload
        tracemalloc.start()
        try:
            parser.feed(b"MSG a 1 60000000\r\n.")
            assert least <= tracemalloc.get_traced_memory()[0] < most
        finally:
            tracemalloc.stop()


# ---------------------------------------------------------------- linear time


def cpu(chunks: Sequence[bytes]) -> float:
    """Processor time of feeding these chunks. The garbage collector's own walks over what was made don't count."""
    parser = Parser({b"1": Route(lambda message: None), INBOX: Route(lambda message: None)})
    parser.max_payload = MAX_MESSAGE
    feed = parser.feed
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        for chunk in chunks:
            feed(chunk)
        return time.process_time() - started
    finally:
        gc.enable()


def assert_linear(small: Sequence[bytes], big: Sequence[bytes]) -> None:
    """``big`` is four times ``small`` and takes four times as long; a quadratic parser would take sixteen.

    The best of several tries of each: a busy machine can slow a try down, but nothing makes a quadratic parser
    look linear.
    """
    best_small = best_big = float("inf")
    for _ in range(10):
        best_small, best_big = min(best_small, cpu(small)), min(best_big, cpu(big))
        if best_big < 8 * best_small:
            return
    pytest.fail(f"four times the bytes took {best_big / best_small:.1f} times as long")


def single_bytes(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def info_of(size: int) -> bytes:
    return b'INFO {"name":"' + b"x" * size + b'"}\r\n'


def payload_of(size: int) -> bytes:
    return b"MSG a 1 %d\r\n%b\r\n" % (size, b"x" * size)


def open_line_of(size: int) -> bytes:
    return b"INFO " + b"\r" * size


@pytest.mark.slow
@pytest.mark.parametrize("stream_of", [info_of, payload_of, open_line_of])
def test_single_bytes_cost_constant_time(stream_of: Callable[[int], bytes]) -> None:
    assert_linear(single_bytes(stream_of(60_000)), single_bytes(stream_of(240_000)))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [info_of(MAX_INFO - 16), payload_of(MAX_INFO)], ids=["INFO", "payload"])
def test_a_mebibyte_in_single_bytes_arrives_whole(stream: bytes) -> None:
    outcome = Rig().feed(stream[at : at + 1] for at in range(len(stream)))
    assert outcome == Rig().feed([stream])
    assert outcome.failure is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame",
    [
        b"PING\r\n",
        b"-ERR x\r\n",
        ENCORES["plain"],
        ENCORES["reply"],
        ENCORES["headers"],
        ENCORES["inbox"],
        ENCORES["unknown"],
    ],
    ids=["PING", "-ERR", "plain", "reply", "headers", "inbox", "unknown"],
)
def test_many_frames_in_one_chunk_cost_the_same_each(frame: bytes) -> None:
    assert_linear([frame * 20_000], [frame * 80_000])
