"""Detects that a stream was recreated while it was read.

Owns the known creation time and the lookups. A recreated stream, or one that came back without its messages, has other
messages under the same sequences: a reader that continues after the last one would skip some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from natsproto import errors
from natsproto.errors._base import is_transient
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._values.codec import NEVER
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream._values.timestamp import Timestamp

MAX_POLLS, IDENTITY_POLL_INTERVAL_S = 30, 0.1
"""Lookups, and the seconds between them, in which a stream must end before the last message read: a new leader may not
have applied all messages yet. It stores no new ones before that, so a new message proves it as well.
"""
IDENTITY_TIMEOUT_S = 1.0
"""Seconds to wait for the info of the stream, and before the next attempt."""


class StreamIdentity:
    """The identity of a stream, verified when a consumer is replaced.

    ``created``: when the stream was created, if known, and ``first_consumer_created`` its first consumer;
    ``operation``: the operation that errors name.
    """

    def __init__(
        self, api: Api, stream: str, created: Timestamp, first_consumer_created: Timestamp, *, operation: str
    ) -> None:
        self.unverified = False
        """True if the stream may have been recreated since the previous consumer."""
        self._api, self._stream, self._operation = api, stream, operation
        self._created, self._first_consumer_created = created, first_consumer_created
        self._may_ask = True
        self._first: StreamInfo | None = None  # the first info with a last sequence before the one read
        self._polls = 0  # the number of such infos

    def on_replaced(self) -> None:
        """The consumer was replaced: the stream is unverified."""
        self.unverified = self._may_ask
        self._first, self._polls = None, 0

    async def verify(self, seen: Callable[[], int]) -> None:
        """Request the stream's info until its identity is known. ``seen`` returns the last sequence read.

        StreamNotFound when the stream was recreated. Without permission it is never verified again, as each attempt
        emits an event; after another refusal it is verified with the next consumer. Cancelling ends it.
        """
        while self.unverified:
            try:
                await self._check_once(seen)
            except errors.StreamNotFound:
                raise
            except errors.PermissionDenied:
                self._may_ask = self.unverified = False
            except errors.NatsError as exc:
                if not is_transient(exc):
                    return
                await asyncio.sleep(IDENTITY_TIMEOUT_S)  # earlier infos still count

    async def _check_once(self, seen: Callable[[], int]) -> None:
        endpoint, begun = f"STREAM.INFO.{self._stream}", self._first_consumer_created
        while self._polls < MAX_POLLS:
            read = seen()
            found = await self._api.call_for(
                StreamInfo, endpoint, operation=self._operation, timeout=IDENTITY_TIMEOUT_S
            )
            if found.created not in (self._created, NEVER) and found.created > begun:
                break
            if found.state.last_seq >= read:
                self._created, self.unverified = found.created, False
                return
            self._polls += 1
            first = self._first = self._first or found
            if first.ts != NEVER and found.state.last_ts is not None and found.state.last_ts > first.ts:
                break
            await asyncio.sleep(IDENTITY_POLL_INTERVAL_S)
        went_back = found.created == self._created
        reason = f"went back from message {read} to {found.state.last_seq}" if went_back else "was lost and recreated"
        raise errors.StreamNotFound(404, ErrCode.STREAM_NOT_FOUND, f"the stream {reason}", self._operation)
