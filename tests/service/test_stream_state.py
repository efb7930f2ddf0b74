"""Both sides of a response in parts, against each other over a drawn network, without an event loop."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import NatsError, NoResponders, RequestTimeout, ServiceError, StreamBroken
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers, HeadersLike, encode_headers
from natsproto.service._responses import error_headers
from natsproto.service._stream_state import (
    END_HEADER,
    IDLE_HEADER,
    PART_OVERHEAD,
    Form,
    Heartbeats,
    IncomingParts,
    OutgoingParts,
    Pulse,
    StreamStep,
    number_of,
)
from tests.kit.examples import examples

INBOX = "_INBOX.credit.stream1."


def frame(payload: bytes = b"", reply: str | None = None, headers: HeadersLike | None = None) -> Message:
    head = None if headers is None else encode_headers(headers)
    return Message("_INBOX.parts", None if reply is None else reply.encode(), payload, head)


def part(number: int, payload: bytes = b"x") -> Message:
    return frame(payload, f"{INBOX}{number}")


def end(number: int, headers: dict[str, str] | None = None) -> Message:
    return frame(b"", f"{INBOX}{number}", {END_HEADER: str(number), **(headers or {})})


def idle(number: int) -> Message:
    return frame(b"", f"{INBOX}{number}", {IDLE_HEADER: str(number)})


def no_responders() -> Message:
    return Message("_INBOX.parts", None, b"", b"NATS/1.0 503\r\n\r\n")


def incoming(window: int | None = 1000) -> IncomingParts:
    return IncomingParts("tokens", window, 5.0, 0.0)


class Link:
    """A responder, a requester, and the frames between them. Over an export the reply subjects have no numbers."""

    def __init__(self, sizes: list[int], window: int, *, exported: bool) -> None:
        self.sizes, self.exported = sizes, exported
        self.out = OutgoingParts(window, 5.0, 0.0, is_exported=exported)
        self.taken = incoming(window)
        self.frames: deque[Message] = deque()
        self.credits: deque[int] = deque()
        self.replies: dict[bytes, int] = {}
        self.read: list[int] = []
        self.in_flight = self.most_in_flight = 0
        self.is_sent = self.is_over = False

    def _reply(self, number: int) -> str:
        reply = f"_R_.abc.{number}x" if self.exported else f"{INBOX}{number}"
        self.replies[reply.encode()] = number
        return reply

    def send(self) -> bool:
        if self.out.sent == len(self.sizes):
            if not self.is_sent:
                self.frames.append(frame(b"", self._reply(self.out.sent), {END_HEADER: str(self.out.sent)}))
            self.is_sent, moved = True, not self.is_sent
            return moved
        if not self.out.has_room:
            return False
        size = self.sizes[self.out.sent]
        reply = self._reply(self.out.sent + 1) if self.out.needs_reply(size, 0.0) else None
        self.out.on_sent(size, 0.0)
        self.frames.append(frame(b"x" * size, reply))
        self.in_flight += size + PART_OVERHEAD
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return True

    def take(self) -> bool:
        if not self.frames:
            return False
        taken = self.frames.popleft()
        step = self.taken.on_frame(taken)
        if step is StreamStep.PART:
            self.read.append(len(taken.data))
            self.in_flight -= len(taken.data) + PART_OVERHEAD
            assert taken.reply is None
        self.is_over = step is StreamStep.END
        if self.taken.uncredited >= self.taken.credit_at and (reply := self.taken.reply_for_credit()):
            self.credits.append(self.replies[reply.encode()])
            if self.exported:
                del self.replies[reply.encode()]  # each can be used once
            self.taken.on_credit_sent(0.0)
        return True

    def credit(self) -> bool:
        if not self.credits:
            return False
        self.out.on_credit(self.credits.popleft(), 0.0)
        return True

    def step(self, choice: int) -> bool:
        """Do one of the things that can be done; False when there is nothing to do."""
        doing = [self.send, self.take, self.credit]
        return any(do() for do in doing[choice:] + doing[:choice])


sizes = st.lists(st.integers(0, 300) | st.integers(0, 3000), max_size=60)
choices = st.lists(st.integers(0, 2), max_size=300)


@given(sizes, st.integers(1, 3000), st.booleans(), choices)
@example([0, 0, 456, 0], 520, True, [])  # credit went to an older reply subject, and both sides waited
@examples(400)
def test_all_parts_come_within_the_window(sizes: list[int], window: int, exported: bool, choices: list[int]) -> None:
    link = Link(sizes, window, exported=exported)
    for choice in choices:
        link.step(choice)
    while link.step(0):
        pass
    assert link.is_over
    assert link.read == sizes
    assert link.most_in_flight < window + 3000 + PART_OVERHEAD
    assert len(link.out._marks) <= 130


@given(sizes, st.integers(1, 3000), st.booleans(), choices, st.data())
@examples(400)
def test_lost_frames_are_an_error_and_never_a_gap(
    sizes: list[int], window: int, exported: bool, choices: list[int], data: st.DataObject
) -> None:
    link = Link(sizes, window, exported=exported)
    lost = 0
    try:
        for choice in [*choices, *[0] * 500]:
            link.step(choice)
            if link.frames and data.draw(st.integers(0, 20)) == 0:
                lost += 1
                del link.frames[data.draw(st.integers(0, len(link.frames) - 1))]
    except StreamBroken as exc:
        assert exc.received == len(link.read)  # noqa: PT017
        assert lost
    if not exported:  # where parts have no numbers, the error comes with the next idle frame or the end
        assert link.read == sizes[: len(link.read)]
    if link.is_over:
        assert link.read == sizes


@given(st.integers(1, 20), st.data())
@examples(200)
def test_parts_that_come_twice_are_read_once(count: int, data: st.DataObject) -> None:
    frames = []
    for number in range(1, count + 1):
        frames += [part(number, b"%d" % number), idle(number)]
        for back in range(data.draw(st.integers(0, 2))):
            frames.append(part(max(1, number - back), b"again"))
    taken, read = incoming(), []
    for one in [*frames, end(count)]:
        step = taken.on_frame(one)
        if step is StreamStep.PART:
            read.append(int(one.data))
    assert step is StreamStep.END
    assert read == list(range(1, count + 1))


# ---------------------------------------------------------------- forms and ends


def test_first_frame_shows_the_form() -> None:
    for first, form in (
        (part(1), Form.NUMBERED),
        (idle(0), Form.NUMBERED),
        (frame(b"x", "_R_.a.b"), Form.COUNTED),
        (frame(b"", "_R_.a.b", {IDLE_HEADER: "0"}), Form.COUNTED),
        (frame(b"x"), Form.PLAIN),
    ):
        taken = incoming()
        taken.on_frame(first)
        assert taken.form is form
        assert bool(taken.reply_for_control([])) is (form is not Form.PLAIN)


def test_frames_of_a_second_responder_are_strays() -> None:
    taken = incoming()
    other = "_INBOX.credit.stream2."
    assert taken.on_frame(part(1)) is StreamStep.PART
    assert taken.on_frame(frame(b"y", f"{other}1")) is StreamStep.STRAY
    assert taken.on_frame(frame(b"y", f"{other}2")) is StreamStep.STRAY
    assert taken.on_frame(frame(b"", f"{other}1", {END_HEADER: "1"})) is StreamStep.STRAY
    assert taken.on_frame(frame(b"plain")) is StreamStep.STRAY
    assert taken.on_frame(part(2)) is StreamStep.PART
    assert taken.on_frame(end(2)) is StreamStep.END


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([no_responders()], NoResponders),
        ([part(1), no_responders()], StreamBroken),
        ([part(2)], StreamBroken),
        ([part(1), part(3)], StreamBroken),
        ([part(1), idle(2)], StreamBroken),
        ([part(1), end(2)], StreamBroken),
        ([end(1)], StreamBroken),
        ([frame(b"x", "_R_.a.b"), frame(b"", "_R_.a.c", {IDLE_HEADER: "2"})], StreamBroken),
        ([frame(b"x", "_R_.a.b"), frame(b"", "_R_.a.c", {END_HEADER: "no"})], StreamBroken),
        ([end(0, error_headers(400, "no"))], ServiceError),
        ([part(1), end(1, error_headers(400, "no"))], ServiceError),
        ([frame(b"", None, error_headers(400, "no"))], ServiceError),
        ([frame(b"x"), frame(b"", None, error_headers(400, "no"))], ServiceError),
    ],
)
def test_last_frame_is_the_error(frames: list[Message], error: type[NatsError]) -> None:
    taken = incoming()
    for one in frames[:-1]:
        assert taken.on_frame(one) is StreamStep.PART
    with pytest.raises(error):
        taken.on_frame(frames[-1])


def test_plain_replies_end_with_an_empty_one() -> None:
    for last in (frame(), frame(b"", None, {"Tag": "a"})):
        taken = incoming()
        assert taken.on_frame(frame(b"x")) is StreamStep.PART
        assert taken.on_frame(frame(b"y", None, {"Tag": "a"})) is StreamStep.PART
        assert taken.on_frame(frame(b"z", "_INBOX.a.1")) is StreamStep.PART
        assert taken.on_frame(last) is StreamStep.END
        assert taken.credit_at > taken.uncredited


# ---------------------------------------------------------------- the request


def test_request_headers_are_checked() -> None:
    def of(headers: dict[str, str]) -> OutgoingParts:
        return OutgoingParts.requested("_INBOX.r", Headers(headers), 0.0)

    assert of({}).window is None
    state = of({"Stream-Window": "1000", "Stream-Heartbeat": "500"})
    assert (state.window, state.heartbeats.interval) == (1000, 0.5)
    assert of({"Stream-Window": "1"}).heartbeats.interval == 5.0
    for window in ("", "0", "-1", "1.5", "x", "٣", "1" * 19):
        with pytest.raises(ServiceError, match="Stream-Window must be"):
            of({"Stream-Window": window})
    for heartbeat in ("", "0", "49", "60001", "x", "-500"):
        with pytest.raises(ServiceError, match="Stream-Heartbeat must be"):
            of({"Stream-Window": "1", "Stream-Heartbeat": heartbeat})


def test_credit_for_unsent_parts_is_ignored() -> None:
    state = OutgoingParts(100, 5.0, 0.0)
    state.on_sent(100, 0.0)
    for forged in (None, 2, 10**17, number_of("x"), number_of("٣")):
        state.on_credit(forged, 1.0)
        assert not state.has_room
        assert state.heartbeats.heard_at == 0.0
    state.on_credit(1, 1.0)
    assert state._freed == state._total
    state.on_sent(100, 1.0)
    state.on_credit(1, 2.0)  # again
    assert not state.has_room
    assert state.heartbeats.heard_at == 2.0


# ---------------------------------------------------------------- signs of life


def test_heartbeats_are_sent_and_missed() -> None:
    beats = Heartbeats(5.0, 0.0, 0.1)
    assert beats.deadline == pytest.approx(0.1)
    pulses = list[tuple[float, Pulse]]()
    while not pulses or pulses[-1][1] is not Pulse.SILENT:
        now = beats.deadline
        pulses.append((round(now, 3), beats.on_timer(now)))
    assert pulses == [(0.1, Pulse.SEND), (5.1, Pulse.SEND), (10.1, Pulse.SEND), (15.0, Pulse.SILENT)]


def test_late_timer_gives_the_peer_another_chance() -> None:
    beats = Heartbeats(5.0, 0.0)
    assert beats.on_timer(60.0) is Pulse.SEND  # this process was stopped for 55 seconds
    while (pulse := beats.on_timer(beats.deadline)) is Pulse.SEND:
        pass
    assert pulse is Pulse.SILENT
    assert beats.deadline == pytest.approx(70.0)


@given(st.lists(st.floats(0.0, 14.9), max_size=20), st.floats(0.05, 5.0))
@examples(200)
def test_peer_that_shows_life_is_not_given_up(pauses: list[float], lateness: float) -> None:
    beats = Heartbeats(5.0, 0.0)
    now = 0.0
    for pause in pauses:
        until = now + pause
        while beats.deadline <= until:
            assert beats.on_timer(beats.deadline) is not Pulse.SILENT
        now = max(until, beats.heard_at)
        beats.heard_at = now
    while beats.on_timer(beats.deadline) is not Pulse.SILENT:
        pass
    assert beats.deadline == pytest.approx(now + 15.0)


def test_silence_names_the_settings_it_may_come_from() -> None:
    taken = incoming()
    assert isinstance(taken.silence(), RequestTimeout)
    taken.on_frame(part(1))
    assert "allow_responses" in str(taken.silence())
    assert "response_type Stream" in str(taken.silence())
    taken.on_frame(part(2))
    assert str(taken.silence()) == "stream from 'tokens' broken after 2 parts: the responder was silent for 15 s"
