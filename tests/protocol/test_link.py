"""The link: a connection's life against a model of it, with a server that says anything at any time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from natsproto.errors import LocalProtocolError, NotAuthorized, RemoteProtocolError, ServerError, TlsFailed
from natsproto.protocol.frames import Message, Route
from natsproto.protocol.link import (
    MAX_PENDING_PONGS,
    TRANSITIONS,
    InfoChanged,
    Link,
    LinkEvent,
    LinkFailed,
    LinkState,
    NeedCredentials,
    PongFor,
    Ready,
    ServerErr,
    Trigger,
    UpgradeTls,
)
from tests.kit.examples import examples

S = LinkState


def reachable(start: LinkState) -> set[LinkState]:
    """Where the rows of TRANSITIONS lead to from a state, in any number of steps."""
    found, new = {start}, {start}
    while new:
        new = {after for (before, _), after in TRANSITIONS.items() if before in new} - found
        found |= new
    return found


def info_frame(name: str = "n", **fields: object) -> bytes:
    return b"INFO " + json.dumps({"server_name": name, **fields}).encode() + b" \r\n"


def described(event: LinkEvent) -> tuple[object, ...]:
    """An event as something that can be compared."""
    if isinstance(event, NeedCredentials | Ready | InfoChanged):
        return type(event), event.info.server_name
    if isinstance(event, ServerErr):
        assert isinstance(event.error, ServerError | NotAuthorized)
        return ServerErr, event.error.text if isinstance(event.error, ServerError) else event.error.reason
    if isinstance(event, PongFor):
        return PongFor, event.token
    if isinstance(event, LinkFailed):
        return LinkFailed, type(event.error)
    return (UpgradeTls,)


# ---------------------------------------------------------------- the model

PLAIN, TLS, OPTIONAL_TLS = "INFO", "INFO with TLS required", "INFO with TLS available"
INFOS = (PLAIN, TLS, OPTIONAL_TLS)
PING, PONG, OK, ERR, MSG, HALF, BAD_INFO, GARBAGE = "PING", "PONG", "+OK", "-ERR", "MSG", "PIN", "bad INFO", "garbage"


@dataclass
class LinkModel:
    """What a link has to do, said once more in one function."""

    tls_required: bool
    secured: bool
    state: LinkState = S.AWAIT_INFO
    name: str = ""
    server_err: str | None = None
    owed: int = 0
    half: bool = False

    def __post_init__(self) -> None:
        self.pings: deque[object] = deque()

    def hear(self, frames: Sequence[tuple[str, str]]) -> list[tuple[object, ...]]:
        """The events that follow from the frames of one chunk."""
        if self.state is S.FAILED:
            return []
        if self.state is S.UPGRADING:
            return [self.broken(RemoteProtocolError)]
        events: list[tuple[object, ...]] = []
        # A message before the handshake is noticed when the chunk has been read.
        early = self.state is not S.READY and any(kind == MSG for kind, _ in frames)
        for index, (kind, name) in enumerate(frames):
            if kind in INFOS:
                event = self.hear_info(kind, name)
                if event == (UpgradeTls,) and (early or index + 1 < len(frames)):
                    event = self.broken(RemoteProtocolError)
                if event is not None:
                    events.append(event)
            elif kind == PONG and self.state is S.AUTHENTICATING:
                self.state = S.READY
                events.append((Ready, self.name))
            elif kind == PONG and self.pings:
                events.append((PongFor, self.pings.popleft()))
            elif kind == PING:
                self.owed = min(self.owed + 1, MAX_PENDING_PONGS)
            elif kind == ERR and self.state is S.AWAIT_INFO and self.tls_required and not self.secured:
                events.append(self.broken(RemoteProtocolError))
            elif kind == ERR:
                self.server_err = name
                events.append((ServerErr, name))
            elif kind == HALF:
                self.half = True
            elif kind in (BAD_INFO, GARBAGE):
                events.append(self.broken(RemoteProtocolError))
            if self.state is S.FAILED:
                return events
        if early:
            events.append(self.broken(RemoteProtocolError))
        return events

    def hear_info(self, kind: str, name: str) -> tuple[object, ...] | None:
        first, self.name = self.state is S.AWAIT_INFO, name
        if not first:
            return InfoChanged, name
        if self.tls_required and not self.secured and kind == PLAIN:
            return self.broken(TlsFailed)
        if not self.secured and (self.tls_required or kind == TLS):
            self.state = S.UPGRADING
            return (UpgradeTls,)
        self.state = S.AWAIT_CREDENTIALS
        return NeedCredentials, name

    def broken(self, kind: type[Exception]) -> tuple[object, ...]:
        self.state = S.FAILED
        return LinkFailed, kind


def on_the_wire(kind: str, name: str) -> bytes:
    if kind in INFOS:
        return info_frame(name, tls_required=kind == TLS, tls_available=kind == OPTIONAL_TLS)
    return {
        PING: b"PING\r\n",
        PONG: b"PONG\r\n",
        OK: b"+OK\r\n",
        ERR: b"-ERR '%b'\r\n" % name.encode(),
        MSG: b"MSG a 1 %d\r\n%b\r\n" % (len(name), name.encode()),
        HALF: b"PIN",
        BAD_INFO: b"INFO []\r\n",
        GARBAGE: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    }[kind]


ERRORS = ("Stale Connection", "Authorization Violation", 'Permissions Violation for Publish to "a"', "who knows")
polite = st.sampled_from((PING, PONG, PONG, OK, ERR, *INFOS))


class LinkMachine(RuleBasedStateMachine):
    """A client that does what the link asks for, late or never, and a server that does as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.delivered: list[bytes] = []
        self.expected: list[bytes] = []
        self.route = Route(lambda message: self.delivered.append(message.data))
        self.number = 0
        self.silent = 0

    @initialize(tls_required=st.booleans(), secured=st.booleans())
    def connect(self, tls_required: bool, secured: bool) -> None:
        self.link = Link({b"1": self.route}, tls_required=tls_required, secured=secured)
        self.model = LinkModel(tls_required, secured)
        self.silent = 0

    @precondition(lambda self: self.model.state is S.FAILED)
    @rule(tls_required=st.booleans(), secured=st.booleans())
    def connect_again(self, tls_required: bool, secured: bool) -> None:
        self.connect(tls_required, secured)

    # ------------------------------------------------------------ the server

    def hear(self, kinds: Sequence[str], ends: str = "", bytewise: bool = False) -> None:
        """One chunk of frames; ``ends`` is what completes the half frame of the chunk before."""
        before = self.model.state
        frames = []
        for kind in (ends, *kinds) if ends else kinds:
            self.number += 1
            frames.append((kind, ERRORS[self.number % len(ERRORS)] if kind == ERR else f"n{self.number}"))
        chunk = b"".join(on_the_wire(kind, name) for kind, name in frames)
        if ends:
            self.model.half = False
            chunk = chunk.removeprefix(b"PIN")
        if before is S.READY:
            self.expected += [name.encode() for kind, name in frames if kind == MSG]
        if before not in (S.FAILED, S.UPGRADING):
            self.silent = 0
        expected = self.model.hear(frames)
        if bytewise:
            events = []
            for at in range(len(chunk)):
                state = self.link.state
                events += self.link.receive(chunk[at : at + 1])
                steps = {after for (state_before, _), after in TRANSITIONS.items() if state_before is state}
                assert self.link.state in {state, *steps}, "two steps in one"
        else:
            events = self.link.receive(chunk)
        assert [described(event) for event in events] == expected
        assert self.link.state in reachable(before)

    @precondition(lambda self: not self.model.half)
    @rule(kinds=st.lists(polite, min_size=1, max_size=4), half=st.booleans())
    def server_says(self, kinds: list[str], half: bool) -> None:
        self.hear([*kinds, HALF] if half else kinds)

    @precondition(lambda self: not self.model.half)
    @rule(kind=polite)
    def server_says_byte_by_byte(self, kind: str) -> None:
        self.hear([kind], bytewise=True)

    @precondition(lambda self: self.model.half)
    @rule(kinds=st.lists(polite, max_size=2))
    def server_ends_what_it_began(self, kinds: list[str]) -> None:
        self.hear(kinds, ends=PING)

    @precondition(lambda self: not self.model.half)
    @rule(kind=st.sampled_from((PLAIN, TLS)), behind=st.sampled_from((PING, MSG, PONG, GARBAGE, HALF, BAD_INFO)))
    def server_says_more_behind_its_info(self, kind: str, behind: str) -> None:
        self.hear([kind, behind])

    @precondition(lambda self: not self.model.half)
    @rule(before=st.lists(polite, max_size=2), offence=st.sampled_from((GARBAGE, BAD_INFO)))
    def server_talks_nonsense(self, before: list[str], offence: str) -> None:
        self.hear([*before, offence])

    @precondition(lambda self: not self.model.half)
    @rule(count=st.integers(1, 3), among=st.sampled_from(([], [PING], [PLAIN])))
    def server_delivers(self, count: int, among: list[str]) -> None:
        self.hear([MSG] * count + among)

    @precondition(lambda self: not self.model.half and self.model.state is S.READY)
    @rule(kinds=st.lists(st.sampled_from((MSG, MSG, PING, PONG, TLS, ERR)), max_size=5))
    def server_delivers_between_other_things(self, kinds: list[str]) -> None:
        self.hear([MSG, *kinds])

    @precondition(lambda self: not self.model.half)
    @rule()
    def server_accepts(self) -> None:
        """What a good server does, so that not every run ends at once."""
        while self.model.state is not S.FAILED and self.model.state is not S.READY:
            if self.model.state is S.AWAIT_INFO:
                self.hear([OPTIONAL_TLS])
            elif self.model.state is S.AUTHENTICATING:
                self.hear([PONG])
            self.tls_is_done()
            self.authenticate()

    # ------------------------------------------------------------ the client

    @rule()
    def tls_is_done(self) -> None:
        if self.model.state is not S.UPGRADING:
            with pytest.raises(LocalProtocolError, match="TLS_DONE has no meaning in state"):
                self.link.secured()
            return
        self.model.state = S.AWAIT_CREDENTIALS
        assert described(self.link.secured()) == (NeedCredentials, self.model.name)

    @rule()
    def authenticate(self) -> None:
        if self.model.state is not S.AWAIT_CREDENTIALS:
            with pytest.raises(LocalProtocolError, match="CONNECT_SENT has no meaning in state"):
                self.link.authenticate({})
            return
        self.model.state = S.AUTHENTICATING
        assert self.link.authenticate({"name": "x"}) == b'CONNECT {"name":"x"}\r\nPING\r\n'

    @precondition(lambda self: self.model.state is S.READY)
    @rule(count=st.integers(1, 3))
    def ping(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            assert self.link.ping(self.number) == b"PING\r\n"
            self.model.pings.append(self.number)

    @rule()
    def count_silent_tick(self) -> None:
        self.silent += 1
        assert self.link.count_silent_tick() == self.silent

    @rule()
    def answer_pings(self) -> None:
        assert self.link.take_output() == b"PONG\r\n" * self.model.owed
        self.model.owed = 0

    @rule()
    def take_touched(self) -> None:
        assert self.link.parser.touched in ([], [self.route])
        self.route.arrived = 0
        self.link.parser.touched = []

    @precondition(lambda self: self.model.state is not S.AWAIT_INFO)
    @rule()
    def take_pending_pings(self) -> None:
        assert self.link.take_pending_pings() == list(self.model.pings)
        self.model.pings.clear()
        self.model.state = S.FAILED

    # ------------------------------------------------------------ what holds at any time

    @invariant()
    def the_link_is_where_the_model_is(self) -> None:
        link, model = self.link, self.model
        assert link.state is model.state
        assert link.info.server_name == model.name
        assert link.pings_in_flight == len(model.pings)
        assert link.pending_pongs == model.owed
        assert model.server_err == (link.server_err and described(ServerErr(error=link.server_err))[1])

    @invariant()
    def only_what_came_after_the_handshake_was_delivered(self) -> None:
        assert self.delivered == self.expected


LinkMachine.TestCase.settings = examples(150, steps=40)
TestLink = LinkMachine.TestCase


# ---------------------------------------------------------------- any bytes at all

pieces = st.one_of(
    st.tuples(st.sampled_from((*INFOS, PING, PONG, OK, ERR, MSG, HALF, BAD_INFO, GARBAGE)), st.just("x")).map(
        lambda frame: on_the_wire(*frame)
    ),
    st.binary(max_size=8),
)


@examples(300)
@given(st.data(), st.lists(pieces, max_size=12).map(b"".join), st.booleans(), st.booleans(), st.booleans())
def test_link_receive_never_raises(
    data: st.DataObject, stream: bytes, tls_required: bool, secured: bool, obliging: bool
) -> None:
    delivered: list[Message] = []
    link = Link({b"1": Route(delivered.append)}, tls_required=tls_required, secured=secured)
    tokens, answered, events = 0, [], []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        before, chunk, held = link.state, stream[position : position + size], len(delivered)
        position += size
        fresh = link.receive(chunk)
        events += fresh
        answered += [event.token for event in fresh if isinstance(event, PongFor)]
        assert link.state in reachable(before)
        assert before is S.READY or len(delivered) == held, "delivered before the server accepted us"
        assert (before is S.UPGRADING) <= (link.state is S.FAILED), "bytes in clear were taken"
        assert not (before is S.FAILED and fresh), "a link that failed goes on"
        if link.state is S.UPGRADING:
            assert chunk.endswith(b"\n")
            assert events[-1] == UpgradeTls()
            if obliging:
                link.secured()
        if link.state is S.AWAIT_CREDENTIALS and obliging:
            link.authenticate({})
        if link.state is S.READY:
            link.ping(tokens)
            tokens += 1
    broken = [event for event in events if isinstance(event, LinkFailed)]
    assert broken == events[-1:] if link.state is S.FAILED else not broken
    assert answered == list(range(len(answered)))
    assert answered + link.take_pending_pings() == list(range(tokens))


# ---------------------------------------------------------------- by example


def ready_link(delivered: list[Message] | None = None) -> Link:
    link = Link({b"1": Route((delivered if delivered is not None else []).append)})
    link.receive(info_frame())
    link.authenticate({})
    link.receive(b"PONG\r\n")
    return link


def only_event(events: list[LinkEvent]) -> LinkEvent:
    (event,) = events
    return event


def test_link_transitions_are_complete() -> None:
    assert {state for (state, trigger) in TRANSITIONS if trigger is Trigger.FAILURE} == set(S)
    assert reachable(S.AWAIT_INFO) == set(S)
    assert reachable(S.FAILED) == {S.FAILED}


def test_server_without_tls_needs_credentials_at_once() -> None:
    link = Link({})
    assert described(only_event(link.receive(info_frame("s")))) == (NeedCredentials, "s")
    assert link.state is S.AWAIT_CREDENTIALS


def test_a_pong_before_connect_accepts_nothing() -> None:
    link = Link({})
    assert link.receive(b"PONG\r\n") == []
    assert described(only_event(link.receive(info_frame("s")))) == (NeedCredentials, "s")
    assert link.receive(b"PONG\r\n") == []
    assert link.state is S.AWAIT_CREDENTIALS


def test_verbose_handshake_with_second_info() -> None:
    """2.14: +OK, PONG, then an INFO with connect_info; an INFO may come before the PONG as well."""
    link = Link({})
    link.receive(info_frame("s", client_id=1))
    link.authenticate({"verbose": True})
    events = link.receive(
        info_frame("s", ldm=True) + b"+OK\r\nPONG\r\n" + info_frame("s", client_id=1, connect_info=True)
    )
    assert [described(event)[0] for event in events] == [InfoChanged, Ready, InfoChanged]
    assert link.info.connect_info
    assert not link.info.ldm


@pytest.mark.parametrize(
    "behind", [b"P", b"PING\r\n", info_frame(), b"MSG a 1 0\r\n\r\n", b"x\r\n", b"\x16\x03", b"INFO []\r\n"]
)
@pytest.mark.parametrize("before", [b"", b"PING\r\n", b"-ERR 'x'\r\n"])
def test_bytes_before_tls_fail_link(before: bytes, behind: bytes) -> None:
    for chunks in ([before + info_frame(tls_required=True) + behind], [before + info_frame(tls_required=True), behind]):
        link = Link({})
        *earlier, last = [event for chunk in chunks for event in link.receive(chunk)]
        assert isinstance(last, LinkFailed)
        assert "unencrypted" in str(last.error)
        assert (UpgradeTls() in earlier) is (len(chunks) == 2)
        assert link.state is S.FAILED
        with pytest.raises(LocalProtocolError):
            link.secured()


def test_required_tls_missing_on_server_fails_link() -> None:
    link = Link({}, tls_required=True)
    broken = only_event(link.receive(info_frame()))
    assert isinstance(broken, LinkFailed)
    assert isinstance(broken.error, TlsFailed)
    with pytest.raises(LocalProtocolError):
        link.authenticate({"pass": "secret"})
    assert link.take_output() == b""


@pytest.mark.parametrize("fields", [{"tls_required": True}, {"tls_available": True}])
def test_required_tls_uses_offered_tls(fields: dict[str, bool]) -> None:
    link = Link({}, tls_required=True)
    assert link.receive(info_frame("n", **fields)) == [UpgradeTls()]
    assert isinstance(link.secured(), NeedCredentials)


def test_failed_link_returns_pending_pings() -> None:
    link = ready_link()
    link.ping("a")
    link.ping("b")
    assert link.take_pending_pings() == ["a", "b"]
    assert link.take_pending_pings() == []
    assert link.receive(b"PONG\r\n") == []


def test_info_before_tls_is_untrusted() -> None:
    link = Link({})
    link.receive(info_frame("in clear", tls_required=True))
    in_clear = [link.info_in_clear]
    link.secured()
    in_clear.append(link.info_in_clear)
    link.receive(info_frame("inside", tls_required=True))
    in_clear.append(link.info_in_clear)
    assert in_clear == [True, True, False]
    assert link.info.server_name == "inside"


@pytest.mark.parametrize("fields", [{"tls_required": True}, {"tls_available": True}, {}])
def test_secured_transport_is_not_upgraded(fields: dict[str, bool]) -> None:
    link = Link({}, tls_required=True, secured=True)
    assert isinstance(only_event(link.receive(info_frame("n", **fields))), NeedCredentials)
    assert not link.info_in_clear


def test_messages_before_handshake_fail_link() -> None:
    delivered: list[Message] = []
    link = Link({b"1": Route(delivered.append)})
    need, broken = link.receive(info_frame() + b"MSG a 1 1\r\nx\r\n")
    assert isinstance(need, NeedCredentials)
    assert isinstance(broken, LinkFailed)
    assert "message before anything was subscribed" in str(broken.error)
    assert delivered == []
    assert link.parser.touched == []


@pytest.mark.parametrize("frames", ["MSG PONG", "PONG MSG"])
def test_message_with_handshake_chunk_fails_link(frames: str) -> None:
    """Nothing is subscribed on this connection yet, so no sid can be meant."""
    said = {"MSG": b"MSG a 1 1\r\nx\r\n", "PONG": b"PONG\r\n"}
    delivered: list[Message] = []
    link = Link({b"1": Route(delivered.append)})
    link.receive(info_frame())
    link.authenticate({})
    ready, broken = link.receive(b"".join(said[frame] for frame in frames.split()))
    assert isinstance(ready, Ready)
    assert isinstance(broken, LinkFailed)
    assert "message before anything was subscribed" in str(broken.error)
    assert delivered == []


def test_messages_after_handshake_are_delivered() -> None:
    delivered: list[Message] = []
    ready_link(delivered).receive(b"MSG a 1 1\r\nz\r\n")
    assert [message.data for message in delivered] == [b"z"]


def test_messages_before_protocol_error_are_delivered() -> None:
    delivered: list[Message] = []
    link = ready_link(delivered)
    link.ping("token")
    events = link.receive(b"MSG a 1 1\r\nx\r\nPONG\r\nPING\r\nx\r\nPING\r\n")
    assert events[0] == PongFor(token="token")
    assert isinstance(events[1], LinkFailed)
    assert len(events) == 2
    assert [message.data for message in delivered] == [b"x"]
    assert len(link.parser.touched) == 1
    assert link.receive(b"PING\r\n") == []
    assert link.take_output() == b"PONG\r\n"


def test_pongs_match_pings_in_order() -> None:
    link = ready_link()
    for token in "abc":
        link.ping(token)
    link.ping()
    events = link.receive(b"PONG\r\n" * 2)
    assert events == [PongFor(token="a"), PongFor(token="b")]
    assert link.pings_in_flight == 2
    assert link.receive(b"PONG\r\n" * 3) == [PongFor(token="c"), PongFor(token=None)]
    assert link.pings_in_flight == 0


def test_answers_to_ping_flood_are_bounded() -> None:
    link = ready_link()
    link.receive(b"PING\r\n" * (MAX_PENDING_PONGS + 5))
    assert link.take_output() == b"PONG\r\n" * MAX_PENDING_PONGS
    assert link.take_output() == b""


def test_any_byte_is_a_sign_of_life() -> None:
    link = ready_link()
    assert [link.count_silent_tick(), link.count_silent_tick()] == [1, 2]
    link.receive(b"M")
    assert link.count_silent_tick() == 1


def test_last_server_err_is_kept() -> None:
    link = Link({})
    assert link.server_err is None
    link.receive(b"-ERR 'maximum connections exceeded'\r\n")
    link.receive(info_frame() + b"-ERR 'Authorization Violation'\r\n")
    assert isinstance(link.server_err, NotAuthorized)


def test_messages_alone_make_no_events() -> None:
    delivered: list[Message] = []
    link = ready_link(delivered)
    assert link.receive(b"MSG a 1 1\r\nx\r\n" * 3) == []
    assert len(delivered) == 3


def test_the_size_limit_of_messages_is_the_parsers() -> None:
    link = Link({}, max_message=10)
    link.receive(info_frame())
    link.authenticate({})
    link.receive(b"PONG\r\n")
    assert isinstance(only_event(link.receive(b"MSG a 1 11\r\n")), LinkFailed)
