"""Reply tokens by themselves: no loop, no wire, no window."""

from __future__ import annotations

import pytest

from natsproto.errors import InvalidSubject, JetStreamError, PayloadTooLarge
from natsproto.jetstream.info import pub_ack
from natsproto.jetstream.publishing.ackfuture import AckFuture
from natsproto.jetstream.publishing.tokens import NO_LANE, Lane, Slot, Tokens
from natsproto.protocol.commands import Heads


def acknowledgement(seq: int, stream: str = "S") -> bytes:
    return b'{"stream":"%b", "seq":%d}' % (stream.encode(), seq)


class Desk:
    """Gives tokens to messages as a window does, and takes acknowledgements."""

    def __init__(self, in_flight: int = 4) -> None:
        self.heads = Heads()
        self.tokens = Tokens("_INBOX.x.", self.heads, in_flight)

    def lane(self, subject: str = "a", octets: int = 5, block: int = 0) -> Lane:
        return self.tokens.lane_of(subject, octets, block)

    def send(self, lane: Lane) -> Slot:
        if lane.spare:
            slot = lane.spare.popleft()
            slot.floor = lane.last
        else:
            slot = self.tokens.new_slot(lane, None)
        slot.future = AckFuture()
        return slot

    def acknowledge(self, slot: Slot, payload: bytes) -> bool:
        """Whether it was one of this message; then its slot is spare."""
        taken = self.tokens.acknowledges(slot, pub_ack(payload), payload)
        if taken:
            slot.lane.spare.append(slot)
        return taken

    def used(self, seq: int = 10) -> tuple[Lane, Slot]:
        """A slot that has its second message; the acknowledgement of the first had this sequence."""
        lane = self.lane()
        first = self.send(lane)
        assert self.acknowledge(first, acknowledgement(seq))
        again = self.send(lane)
        assert again is first
        return lane, again

    def is_shared(self) -> bool:
        """Whether tokens that are spare from now on will be used again."""
        lane = self.lane("probe")
        slot = self.send(lane)
        lane.spare.append(slot)
        return self.send(self.lane("probe")) is slot


def test_a_line_says_subject_token_and_sizes_and_ends_in_the_headers() -> None:
    desk = Desk()
    assert desk.send(desk.lane()).line == b"PUB a _INBOX.x.1 5\r\n"
    headed = desk.tokens.new_slot(desk.lane("b", 5, 12), b"NATS/1.0\r\n\r\n")
    assert headed.line == b"HPUB b _INBOX.x.2 12 17\r\nNATS/1.0\r\n\r\n"
    assert desk.tokens.token_of(headed.line) == headed.token == b"2"


def test_what_cannot_be_sent_has_no_lane() -> None:
    desk = Desk()
    desk.heads.limit(100)
    with pytest.raises(InvalidSubject):
        desk.lane("a b")
    with pytest.raises(InvalidSubject):
        desk.lane("a" * 4080)  # with the longest token the control line would be too long
    with pytest.raises(PayloadTooLarge):
        desk.lane("a", 101)
    with pytest.raises(PayloadTooLarge):
        desk.lane("a", 90, 11)
    assert desk.tokens.lane is NO_LANE


def test_no_lane_is_at_hand_when_something_has_happened() -> None:
    desk = Desk()
    for happens in (desk.tokens.forget, desk.tokens.rest, desk.tokens.leave_behind, desk.tokens.distrust):
        desk.tokens.lane, desk.tokens.headed = desk.lane(), desk.lane(block=12)
        happens()
        assert desk.tokens.lane is desk.tokens.headed is NO_LANE


def test_no_message_is_in_no_lane() -> None:
    assert (NO_LANE.subject, NO_LANE.octets) == ("", -1)


def test_a_lane_is_for_one_subject_and_one_size() -> None:
    desk = Desk()
    lane = desk.lane()
    others = [desk.lane("b"), desk.lane(octets=6), desk.lane(block=12)]
    assert lane is desk.lane()
    assert not any(other is lane for other in others)


def test_a_slot_of_a_message_with_headers_is_used_again_with_another_token_and_nothing_of_the_last_message() -> None:
    desk = Desk()
    block = b"NATS/1.0\r\n\r\n"
    slot = desk.tokens.new_slot(desk.lane(block=len(block)), block)
    slot.doubtful, slot.refused, slot.floor = True, (1, JetStreamError("busy")), b"x"
    slot.lane.spare.append(slot)
    again = desk.tokens.new_slot(desk.lane("b"), None)
    assert again is slot
    assert (again.token, again.line, again.block) == (b"2", b"PUB b _INBOX.x.2 5\r\n", None)
    assert (again.doubtful, again.refused, again.floor, again.waiters) == (False, None, b"", None)


def test_tokens_that_were_left_behind_are_not_used_again() -> None:
    desk = Desk()
    for leave in (desk.tokens.rest, desk.tokens.leave_behind, desk.tokens.distrust):
        lane = desk.lane()
        spare, pending = desk.send(lane), desk.send(lane)
        lane.spare.append(spare)
        leave()
        if leave != desk.tokens.rest:  # that is when nothing is pending
            lane.spare.append(pending)
        assert desk.send(desk.lane()) not in (spare, pending)


def test_tokens_are_shared_again_behind_those_that_were_left_and_not_after_distrust() -> None:
    desk = Desk()
    desk.tokens.rest()
    assert desk.is_shared()
    desk.tokens.leave_behind()
    assert desk.is_shared()
    desk.tokens.distrust()
    desk.tokens.rest()
    desk.tokens.leave_behind()
    assert not desk.is_shared()


@pytest.mark.parametrize(
    ("payload", "taken"),
    [
        (acknowledgement(11), True),
        (acknowledgement(2**63), True),
        (b'{"stream":"S","seq":11}', True),
        (acknowledgement(10), False),
        (acknowledgement(9), False),
        (acknowledgement(11, "T"), False),
        (b'{"stream":"S", "domain":"hub", "seq":11}', False),
        (b'{"stream":"S", "seq":11,"duplicate": true}', False),
    ],
)
def test_only_something_new_of_the_same_stream_answers_the_second_message_of_a_token(
    payload: bytes, taken: bool
) -> None:
    desk = Desk()
    _, slot = desk.used()
    assert desk.acknowledge(slot, payload) is taken


def test_an_answer_to_an_earlier_message_of_the_token_ends_the_sharing() -> None:
    desk = Desk()
    _, slot = desk.used()
    assert not desk.acknowledge(slot, acknowledgement(10))
    assert not desk.is_shared()


@pytest.mark.parametrize(
    ("token", "shared"), [(b"2", False), (b"7", False), (b"1", True), (b"x", True), (b"", True), (b"9" * 21, True)]
)
def test_an_answer_to_nothing_ends_the_sharing_unless_it_is_to_what_was_left_behind(token: bytes, shared: bool) -> None:
    desk = Desk()
    desk.send(desk.lane())
    desk.tokens.leave_behind()
    desk.send(desk.lane())
    desk.tokens.hear_stray(token)
    assert desk.is_shared() is shared


def test_the_next_acknowledgements_lie_between_the_last_one_and_the_roof() -> None:
    desk = Desk()
    lane, _ = desk.used(10)
    for seq, recognised in ((11, True), (99, True), (10, False), (9, False)):
        payload = acknowledgement(seq)
        assert (lane.last < payload < lane.roof and len(payload) == lane.length) is recognised, seq
    for other in (acknowledgement(11, "T"), b'{"stream":"S","seq":111}', b'{"error":{}}'):
        assert not (lane.last < other < lane.roof and len(other) == lane.length), other


def test_with_sequences_out_of_order_on_tokens_of_their_own_all_are_left_behind() -> None:
    desk = Desk()
    lane = desk.lane()
    slots = [desk.send(lane) for _ in range(3)]
    assert desk.acknowledge(slots[0], acknowledgement(10))
    assert desk.acknowledge(slots[1], acknowledgement(3))  # the stream was made anew
    assert desk.send(desk.lane()) not in slots
    assert desk.is_shared()


def test_what_is_remembered_is_bounded() -> None:
    desk = Desk(in_flight=1)
    for size in range(5000):
        desk.lane(octets=size)
    assert len(desk.tokens._lanes) <= 4096
    lane = desk.lane()
    for _ in range(40_000):
        slot = desk.tokens.new_slot(desk.lane(), None)
        slot.lane.spare.append(slot)
    assert desk.lane() is not lane
    assert len(desk.lane().spare) <= 16_388
