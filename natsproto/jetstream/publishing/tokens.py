"""The reply tokens of a window: which message has which, and when one goes to another message.

A server remembers for a few hundred subjects who listens to them, so replies cost it a fifth less when their subjects
come again. A token goes to another message of its lane when its own is acknowledged, and that only while everything is
plain: a second answer to the first message must never be taken for one to the second (docs/decisions/0011).

* Only messages without headers share tokens. They have no id, so none is ever sent twice, nor is a duplicate.
* With whatever is unusual (a lost connection, a refusal, a timeout) all tokens so far are left behind, used or not. So
  they are when nothing is pending: the stream may be made anew then, and count from 1 again.
* What answers a message that took over its token is an acknowledgement of it only if it is of the stream that
  acknowledged the one before, with a higher sequence than any that was known when it was sent.
* An answer to nothing, or one that breaks that rule, says that messages are answered twice here. Then no token is used
  a second time for the rest of the window's life.

Owns these rules and sends nothing. What a message is and when it is given up is the window's.
"""

from __future__ import annotations

import re
import sys
from collections import deque

from natsproto.errors import NatsError
from natsproto.jetstream.info import PubAck, pub_ack
from natsproto.jetstream.publishing.ackfuture import AckFuture, Unsettled
from natsproto.jetstream.publishing.outgoing import Novelty
from natsproto.protocol.commands import Heads
from natsproto.protocol.subject import publish_subject

_LANES = 4096
_SLOTS = 16_384  # beside four for each message of a full window
_PLAIN = re.compile(rb'(\{"stream":"[^"\\]+", ?(?:"domain":"[^"\\]+", ?)?"seq": ?)[1-9][0-9]{0,19}\}')


class Lane:
    """Messages of one subject, one size of the payload and one of the header block.

    They share all of the control line but the reply token; and those without headers the tokens, one after another.
    """

    __slots__ = ("back", "block", "front", "last", "left_behind", "length", "octets", "roof", "spare", "subject")

    def __init__(
        self, subject: str, octets: int, block: int, front: bytes, back: bytes, spare: deque[Slot], left_behind: int
    ) -> None:
        self.subject = subject
        self.octets, self.block = octets, block
        """Bytes of the payload, and of the header block."""
        self.front, self.back = front, back
        """The control line before and behind the token."""
        self.left_behind = left_behind
        """When it was last looked at: see Tokens."""
        self.spare = spare
        """Slots whose message is acknowledged, the longest unused first; with headers each gets another token."""
        # The acknowledgement of the highest sequence so far. What lies between it and the roof and is as long says
        # that the same stream has stored something behind it.
        self.last = self.roof = b""
        self.length = 0


class Slot(Unsettled):
    """A reply token, and the message that has it. While it is spare, what it tells of the message means nothing."""

    # There is no __init__, which would take as long as filling it in: see new_slot.
    __slots__ = ("block", "doubtful", "floor", "future", "lane", "line", "new", "number", "payload", "refused", "token")

    lane: Lane
    token: bytes
    block: bytes | None
    line: bytes
    """What is sent in front of the payload."""
    floor: bytes
    """The last acknowledgement in the lane when its message took over the token; empty for the first."""
    future: AckFuture
    payload: bytes
    number: int
    # With either of these the token is not used again.
    doubtful: bool
    """Whether the message was sent before and not answered, and is to be sent again."""
    refused: tuple[int, NatsError] | None
    """How often it was not stored for now, and with which words the last time."""
    new: Novelty | None
    """What a server has to heed that is sent the message. Only one with headers has it."""


class Tokens:
    """What a window with one inbox has made of tokens. ``inbox`` ends in a dot; ``in_flight`` messages at most are."""

    __slots__ = ("_heads", "_lanes", "_left_behind", "_made", "_most", "_unknown", "_used", "headed", "lane", "mark")

    def __init__(self, inbox: str, heads: Heads, in_flight: int) -> None:
        self.mark = inbox.encode()
        """What every control line has in front of the token, and no other line."""
        self._heads = heads
        self._most = 4 * in_flight + _SLOTS
        self._lanes: dict[tuple[str, int, int], Lane] = {}
        self._used: deque[Slot] = deque(maxlen=min(in_flight, _LANES))  # each to get another token
        self._made = 0  # so many tokens: they are numbers
        self._unknown = 0  # up to this one they are in no lane any more
        self._left_behind = 0  # up to this one they are not used again
        self.lane = self.headed = NO_LANE
        """In which the next message can be taken without being looked at, without headers or with: set by the window to
        the lane of the last one, and taken back here when anything happens.
        """

    def lane_of(self, subject: str, octets: int, block: int) -> Lane:
        """The lane of a message of so many bytes. Raises for what cannot be sent, which is found out once for all."""
        lane = self._lanes.get((subject, octets, block)) or self._open_lane(subject, octets, block)
        if lane.left_behind != self._left_behind:
            lane.left_behind = self._left_behind
            lane.spare.clear()
        return lane

    def _open_lane(self, subject: str, octets: int, block: int) -> Lane:
        wire = publish_subject(subject)
        self._heads.full(wire, self.mark + b"9" * 20, bytes(block) if block else None, octets)
        if len(self._lanes) >= _LANES:
            self.forget()
        verb, sizes = (b"HPUB", b"%d %d" % (block, block + octets)) if block else (b"PUB", b"%d" % octets)
        front, back = b"%b %b %b" % (verb, wire, self.mark), b" %b\r\n" % sizes
        spare = self._used if block else deque(maxlen=0 if self._left_behind == sys.maxsize else None)
        lane = Lane(subject, octets, block, front, back, spare, self._left_behind)
        self._lanes[subject, octets, block] = lane
        return lane

    def new_slot(self, lane: Lane, block: bytes | None) -> Slot:
        """A token that no message had before, for the lane that was asked for last."""
        self._made += 1
        if self._made - self._unknown > self._most:  # or bursts of every size would be remembered for good
            self.forget()
            self._unknown = self._made
        # With one made anew for each message with headers the garbage collector looked twelve times as often (256 in
        # flight), which took half a microsecond a message.
        slot = self._used.popleft() if self._used else Slot()
        slot.lane = lane
        slot.token = token = b"%d" % self._made
        slot.block = block
        slot.line = lane.front + token + lane.back if block is None else lane.front + token + lane.back + block
        slot.floor = b""
        slot.waiters = slot.refused = slot.new = None
        slot.doubtful = False
        return slot

    def forget(self) -> None:
        """Messages are to be checked again: the server may have changed, and its limits with it."""
        self._lanes.clear()
        self.lane = self.headed = NO_LANE

    def rest(self) -> None:
        """Nothing is pending, and nobody is about to change that."""
        self._left_behind = max(self._left_behind, self._made)
        self.lane = self.headed = NO_LANE

    def leave_behind(self) -> None:
        """Something is not as usual: messages that are taken from now on have tokens that none had before."""
        self.rest()
        self.forget()  # slots in use go back to lanes that nobody knows any more

    def distrust(self) -> None:
        """Messages are answered twice: from now on each has a token of its own."""
        self._left_behind = sys.maxsize
        self.forget()

    def hear_stray(self, token: bytes) -> None:
        """A reply came that no message waits for. To one that was settled, as usual, there cannot be any."""
        if token.isdigit() and len(token) <= 20 and int(token) > self._left_behind:
            self.distrust()

    def acknowledges(self, slot: Slot, ack: PubAck, payload: bytes) -> bool:
        """Whether an acknowledgement is one of the message that has the slot now, and not of one before."""
        if slot.floor and not _is_behind(ack, pub_ack(slot.floor)):
            self.distrust()
            return False
        self._learn(slot, payload)
        return True

    def _learn(self, slot: Slot, payload: bytes) -> None:
        """What the next acknowledgement of the lane will look like."""
        plain = _PLAIN.fullmatch(payload)
        if plain is None:
            return
        lane, roof = slot.lane, plain[1] + b":"  # what comes behind 9
        if lane.roof and lane.roof != roof:
            self.distrust()  # two streams have the subject
        elif len(payload) > lane.length or (len(payload) == lane.length and payload > lane.last):
            lane.last, lane.roof, lane.length = payload, roof, len(payload)
        elif not slot.floor:
            self.leave_behind()  # out of order, or the stream was made anew

    def token_of(self, line: bytes) -> bytes:
        """That of one of its own control lines."""
        start = line.index(self.mark) + len(self.mark)
        return line[start : line.index(b" ", start)]


def _is_behind(ack: PubAck, other: PubAck) -> bool:
    """Whether the same stream has stored something new after the other acknowledgement."""
    return (ack.stream, ack.domain) == (other.stream, other.domain) and ack.seq > other.seq and not ack.duplicate


NO_LANE = Lane("", -1, -1, b"", b"", deque(), 0)
"""One in which no message is."""
