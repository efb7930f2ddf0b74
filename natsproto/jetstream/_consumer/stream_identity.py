"""Whether a stream is still the one that was read before.

Owns what is known of the stream's beginning, and the questions. Another stream of its name, or one that came back
without what it had, has other messages under the same sequences: who goes on behind the last one would skip some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from natsproto.errors import (
    ConnectionLost,
    JetStreamNotEnabled,
    JetStreamUnavailable,
    NatsError,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._codec import NEVER
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._timestamp import Timestamp

MAX_POLLS, POLL_INTERVAL_S = 30, 0.1
"""How often a stream has to say that it ends before what was read, and the seconds in between: a new leader may not
have taken in yet what it has. It takes nothing new before that, so that a new message is enough as well.
"""
INFO_TIMEOUT_S = 1.0
"""Seconds that an answer gets, and before the question is asked again."""


class StreamIdentity:
    """What is known of a stream since its first consumer, and whether that still holds.

    ``created``: when the stream was, as far as anybody has said; ``asked``: what a refusal refers to.
    """

    def __init__(self, api: Api, stream: str, created: Timestamp, *, asked: str) -> None:
        self.unverified = False
        """Whether it may be another stream than that of the consumer before."""
        self._api, self._stream, self._asked = api, stream, asked
        self._created = created
        self._first_consumer_created: Timestamp | None = None  # when the first consumer was made
        self._may_ask = True
        self._first: StreamInfo | None = None  # the first answer of a stream that ends before what was read
        self._polls = 0  # how many such answers there were

    def on_consumer(self, created: Timestamp) -> None:
        """A consumer was made; behind the first one it may be of another stream."""
        if self._first_consumer_created is None:
            self._first_consumer_created = created
        else:
            self.unverified = self._may_ask
            self._first, self._polls = None, 0

    async def verify(self, seen: Callable[[], int]) -> None:
        """Asks until it is known. ``seen`` is the last sequence that was read.

        StreamNotFound when it is another stream. Who may not ask goes on as before, and does not ask again, as each
        time is an event; who is refused otherwise asks again behind the next consumer. Cancelling ends it.
        """
        while self.unverified:
            try:
                await self._check_once(seen)
            except (RequestTimeout, ConnectionLost, JetStreamNotEnabled, JetStreamUnavailable):
                await asyncio.sleep(INFO_TIMEOUT_S)  # answers that came before are not forgotten
            except StreamNotFound:
                raise
            except PermissionDenied:
                self._may_ask = self.unverified = False
            except NatsError:
                return

    async def _check_once(self, seen: Callable[[], int]) -> None:
        endpoint, begun = f"STREAM.INFO.{self._stream}", self._first_consumer_created or NEVER
        while self._polls < MAX_POLLS:
            read = seen()
            found = await self._api.get(StreamInfo, endpoint, asked=self._asked, timeout=INFO_TIMEOUT_S)
            if found.created not in (self._created, NEVER) and found.created > begun:
                break
            if found.state.last_seq >= read:
                self._created, self.unverified = found.created, False
                return
            self._polls += 1
            first = self._first = self._first or found
            if first.ts != NEVER and found.state.last_ts is not None and found.state.last_ts > first.ts:
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        raise StreamNotFound(404, ErrCode.STREAM_NOT_FOUND, "the stream was lost, and made again since", self._asked)
