"""Commands: what we write is read back by a reader of client commands that shares no code with the writer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import InvalidSubject, PayloadTooLarge
from natsproto.protocol import commands
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.headers import Headers, encode_headers, parse_headers
from natsproto.protocol.line_limit import LineLimit
from natsproto.protocol.subject import MAX_CONTROL_LINE, publish_subject


@dataclass(frozen=True)
class Command:
    """One command as a server reads it."""

    verb: str
    arguments: tuple[str, ...] = ()
    block: bytes = b""
    payload: bytes = b""


def read_commands(stream: bytes) -> list[Command]:
    """Reads client commands as a nats-server does (verbs in upper case, CRLF, sizes in bytes)."""
    found = []
    while stream:
        line, end, stream = stream.partition(b"\r\n")
        assert end, "no line end"
        assert not re.search(rb"[\r\n\0\t]", line)
        verb, _, rest = line.decode().partition(" ")
        # What nats-server calls max_control_line: the argument part, at most 4096 bytes.
        assert verb == "CONNECT" or len(line) - len(verb) - 1 <= 4096
        if verb == "CONNECT":
            found.append(Command(verb, (rest,)))
            continue
        words = tuple(rest.split(" ")) if rest else ()
        assert "" not in words
        if verb == "PUB":
            size, head = int(words[-1]), 0
        elif verb == "HPUB":
            head, size = int(words[-2]), int(words[-1])
            assert stream[:head].startswith(b"NATS/1.0")
            assert stream[:head].endswith(b"\r\n\r\n")
        else:
            assert verb in ("SUB", "UNSUB", "PING", "PONG")
            found.append(Command(verb, words))
            continue
        assert 0 <= head <= size
        assert stream[size : size + 2] == b"\r\n", "no line end after the payload"
        names = words[: -2 if verb == "HPUB" else -1]
        assert 1 <= len(names) <= 2
        found.append(Command(verb, names, stream[:head], stream[head:size]))
        stream = stream[size + 2 :]
    return found


tokens = st.text(
    st.characters(min_codepoint=33, exclude_categories=["Cs"], exclude_characters=".*>\x7f"), min_size=1, max_size=6
)
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
payloads = st.one_of(st.binary(max_size=30), st.sampled_from((b"", b"\r\n", b"\r\nPUB a 0\r\n\r\n")))
blocks = st.dictionaries(st.sampled_from(("A", "b", "Nats-Msg-Id")), st.text("xyz ż", max_size=5))


# ---------------------------------------------------------------- written and read


@given(subjects, payloads)
@example("_INBOX.0", b"")
def test_a_plain_message_is_read_as_it_was_meant(subject: str, payload: bytes) -> None:
    lines = ControlLines()
    head = lines.pub_line(subject, len(payload))
    assert read_commands(head + payload + b"\r\n") == [Command("PUB", (subject,), b"", payload)]
    assert lines.pub_line(subject, len(payload)) == lines.pub_prefix(subject) + lines.pub_sizes[len(payload)] == head
    assert lines.encode_subject(subject) == subject.encode()
    assert lines.message_line(publish_subject(subject), None, None, len(payload)) == head


@given(subjects, st.none() | subjects, st.none() | blocks, payloads)
def test_any_message_is_read_as_it_was_meant(
    subject: str, reply: str | None, headers: dict[str, str] | None, payload: bytes
) -> None:
    block = None if headers is None else encode_headers(headers)
    wire_reply = None if reply is None else publish_subject(reply, "reply subject")
    head = ControlLines().message_line(publish_subject(subject), wire_reply, block, len(payload))
    (command,) = read_commands(head + payload + b"\r\n")
    names = (subject,) if reply is None else (subject, reply)
    assert command == Command("PUB" if block is None else "HPUB", names, block or b"", payload)
    if headers is not None:
        assert parse_headers(command.block) == Headers({name: value.strip(" ") for name, value in headers.items()})


@given(subjects, st.none() | subjects, st.integers(1, 2**63), st.none() | st.integers(1, 2**63))
def test_a_subscription_is_read_as_it_was_meant(subject: str, queue: str | None, sid: int, most: int | None) -> None:
    names = (subject,) if queue is None else (subject, queue)
    assert read_commands(commands.sub(subject, queue, sid)) == [Command("SUB", (*names, str(sid)))]
    counts = (str(sid),) if most is None else (str(sid), str(most))
    assert read_commands(commands.unsub(sid, most)) == [Command("UNSUB", counts)]


@given(
    st.dictionaries(
        st.text(max_size=5), st.one_of(st.text(max_size=8), st.booleans(), st.integers(-(2**60), 2**60)), max_size=6
    )
)
def test_connect_is_one_line_of_json(fields: dict[str, object]) -> None:
    (command,) = read_commands(commands.connect(fields))
    assert command.verb == "CONNECT"
    assert json.loads(command.arguments[0]) == fields


def test_ping_and_pong_are_lines() -> None:
    assert read_commands(commands.PING + commands.PONG) == [Command("PING"), Command("PONG")]
    assert commands.CRLF == b"\r\n"


@given(st.text(max_size=8), st.none() | st.text(max_size=8))
def test_any_text_subscribes_to_itself_or_is_refused(subject: str, queue: str | None) -> None:
    try:
        wire = commands.sub(subject, queue, 7)
    except InvalidSubject:
        return
    names = (subject,) if queue is None else (subject, queue)
    assert read_commands(wire) == [Command("SUB", (*names, "7"))]


# ---------------------------------------------------------------- limits


BLOCK = encode_headers({})
LONG_LINES: dict[str, Callable[[ControlLines, int], bytes]] = {
    "SUB": lambda lines, size: commands.sub("s" * (size - 2), None, 7),
    "SUB with queue": lambda lines, size: commands.sub("s" * (size - 4), "q", 7),
    "PUB of a new subject": lambda lines, size: lines.pub_line("s" * (size - 2), 0),
    "PUB": lambda lines, size: lines.message_line(b"s" * (size - 2), None, None, 0),
    "PUB with reply": lambda lines, size: lines.message_line(b"s" * (size - 4), b"r", None, 0),
    "HPUB": lambda lines, size: lines.message_line(b"s" * (size - 6), None, BLOCK, 0),
    "HPUB with reply": lambda lines, size: lines.message_line(b"s" * (size - 8), b"r", BLOCK, 0),
}


@pytest.mark.parametrize("build", LONG_LINES.values(), ids=LONG_LINES.keys())
def test_control_line_has_a_length_limit(
    build: Callable[[ControlLines, int], bytes],
) -> None:
    lines = ControlLines()
    line = build(lines, MAX_CONTROL_LINE).partition(b"\r\n")[0]
    assert len(line.partition(b" ")[2]) == MAX_CONTROL_LINE
    kept = dict(lines.pub_prefixes)
    with pytest.raises(InvalidSubject, match="makes a control line longer than 65536 bytes"):
        build(lines, MAX_CONTROL_LINE + 1)
    assert lines.pub_prefixes == kept


@pytest.mark.parametrize("build", LONG_LINES.values(), ids=LONG_LINES.keys())
def test_the_limit_of_the_server_is_met_exactly(build: Callable[[ControlLines, int], bytes]) -> None:
    lines = ControlLines()
    lines.line_limit.on_connected("one")
    lines.line_limit.count(3000)
    assert lines.line_limit.on_disconnected(refused=True, waiting=False) == 3000
    build(lines, 2999)
    if build is not LONG_LINES["SUB"] and build is not LONG_LINES["SUB with queue"]:  # see the subscription table
        with pytest.raises(InvalidSubject, match="longer than 2999 bytes: the server closed a connection"):
            build(lines, 3000)
    lines.line_limit.on_connected("another")
    build(lines, 5000)
    lines.line_limit.on_connected("one")
    assert lines.line_limit.max == 2999


def test_what_is_known_of_lines() -> None:
    limit = LineLimit()
    limit.on_connected("one")
    limit.count(512)
    assert limit.on_disconnected(refused=True, waiting=False) is None  # it cannot be this one
    limit.count(20_000)
    assert limit.on_disconnected(refused=False, waiting=False) is None
    assert limit.on_disconnected(refused=True, waiting=False) is None  # it was written to an earlier connection
    limit.count(20_000)
    assert limit.on_disconnected(refused=False, waiting=True) is None
    assert not limit.is_learned
    assert limit.on_disconnected(refused=True, waiting=False) == 20_000
    assert limit.max == 4096  # not every length is tried
    for number in range(200):
        limit.on_connected(str(number))
        limit.count(600 + number)
        limit.on_disconnected(refused=True, waiting=False)
        assert limit.max == 599 + number


def test_max_payload_counts_headers_and_is_met_exactly() -> None:
    lines = ControlLines()
    lines.set_max_payload(100)
    block = encode_headers({"a": "b"})
    room = 100 - len(block)
    assert lines.max_payload == 100
    assert lines.pub_line("a", 100) == b"PUB a 100\r\n"
    assert lines.message_line(b"a", b"r", None, 100) == b"PUB a r 100\r\n"
    assert lines.message_line(b"a", None, block, room) == b"HPUB a %d 100\r\n%b" % (len(block), block)
    calls: tuple[Callable[[], bytes], ...] = (
        lambda: lines.pub_line("a", 101),
        lambda: lines.message_line(b"a", b"r", None, 101),
        lambda: lines.message_line(b"a", None, block, room + 1),
    )
    for call in calls:
        with pytest.raises(PayloadTooLarge) as refused:
            call()
        assert (refused.value.size, refused.value.limit) == (101, 100)


def test_without_a_known_max_payload_any_size_passes() -> None:
    assert ControlLines().pub_line("a", 10**9) == b"PUB a 1000000000\r\n"


def test_kept_subjects_are_bounded_and_stay_right() -> None:
    lines = ControlLines()
    for number in range(30_000):
        subject = f"a.{number}"
        assert lines.pub_line(subject, number) == b"PUB a.%d %d\r\n" % (number, number)
        assert lines.pub_prefix(subject) == b"PUB a.%d " % number
        assert lines.encode_subject(subject) == b"a.%d" % number
        assert len(lines.pub_prefixes) <= 4096
    assert len(lines.pub_sizes) <= 8192
    assert "a.0" not in lines.pub_prefixes  # a full cache is cleared when others are published to
    assert "a.29999" in lines.pub_prefixes or len(lines.pub_prefixes) == 4096


def test_long_subject_is_not_kept() -> None:
    lines = ControlLines()
    subject = "s" * (MAX_CONTROL_LINE - 2)
    lines.pub_line(subject, 0)
    assert lines.pub_prefixes == {}  # with another length the line may be too long
    with pytest.raises(InvalidSubject, match="control line"):
        lines.pub_line(subject, 10)


@pytest.mark.parametrize("subject", ["", "a b", "a.*", ">", "a\r\nPUB b 0"])
def test_a_bad_subject_leaves_no_line_behind(subject: str) -> None:
    lines = ControlLines()
    with pytest.raises(InvalidSubject):
        lines.pub_line(subject, 0)
    assert lines.pub_prefixes == {}


def test_one_off_reply_subjects_are_not_kept() -> None:
    lines = ControlLines()
    for number in range(10):
        assert lines.pub_line(f"_INBOX.x.{number}", 1) == b"PUB _INBOX.x.%d 1\r\n" % number
        assert lines.encode_subject(f"_INBOX.y.{number}") == b"_INBOX.y.%d" % number
    assert lines.pub_prefixes == {}


@pytest.mark.parametrize("subject", [None, 1, b"a", ["a"]])
def test_subject_that_is_no_text_is_a_type_error(subject: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        ControlLines().encode_subject(subject)  # type: ignore[arg-type]


@pytest.mark.parametrize(("subject", "queue"), [("", None), ("a b", None), ("a", ""), ("a", "q q"), ("a.>.b", "q")])
def test_bad_names_make_no_sub(subject: str, queue: str | None) -> None:
    with pytest.raises(InvalidSubject):
        commands.sub(subject, queue, 1)


def test_full_cache_is_cleared_by_new_subjects() -> None:
    lines, numbers = ControlLines(), itertools.count()

    def publish(count: int) -> int:
        for _ in range(count):
            lines.pub_prefix(f"a.{next(numbers)}")
        return len(lines.pub_prefixes)

    for _ in range(2):
        assert publish(4096) == 4096
        assert publish(16383) == 4096
        assert publish(1) == 0


@pytest.mark.parametrize(("length", "is_kept"), [(251, True), (252, False)])
def test_prefix_of_up_to_256_bytes_is_kept(length: int, is_kept: bool) -> None:
    lines = ControlLines()
    lines.pub_prefix("s" * length)
    assert bool(lines.pub_prefixes) is is_kept
