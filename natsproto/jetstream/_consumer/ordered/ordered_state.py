"""The state of an ordered consumer that outlives its readers (ADR-17).

Owns the cursor, the consumer in use, the creation of the next one, and the messages that were read ahead.

Rules:

1. One reader at a time. Messages that it leaves unread stay here, and the next reader gets them first.
2. A consumer is never repaired. After a gap, a loss or silence the next one, with the next number in its name, starts
   after the last message; what the old one still sends is recognised by its name and dropped.
3. The consumer of a fetch is kept for five seconds, for the next fetch, and then deleted.
4. A creation without a reply is repeated, as it is idempotent, and given up for the next consumer after a time that
   follows how long the last creation took: a meta leader may have placed the consumer on a dead server.
5. Before the first consumer exists an error of a creation is final, unless it passes by itself. Afterwards it is not,
   except for a stream that is gone, missing rights and a closed client: the server accepted the configuration before.
6. A stream that was created anew ends reading: its sequences mean other messages.
7. With a name chosen by the user another reader may own a consumer of that name: then the next number is tried, and
   only consumers that carry this reader's id are deleted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Final

from natsproto import errors
from natsproto._core.engine.engine import State
from natsproto.errors._base import is_transient
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.retry import retry_request
from natsproto.jetstream._consumer.handle import create_endpoint
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import ConsumerNotice, ReaderSource
from natsproto.jetstream._consumer.ordered.consumer_deletion import READER_ID_METADATA, ConsumerDeletion
from natsproto.jetstream._consumer.ordered.ordered_cursor import OrderedCursor
from natsproto.jetstream._consumer.ordered.stream_identity import StreamIdentity
from natsproto.jetstream._consumer.pull.pull_subscription import PullSubscription
from natsproto.jetstream._values.asset_names import check_consumer_name
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.timestamp import Timestamp

KEEP_CONSUMER_S = 5.0
"""Seconds for which a consumer is kept after a fetch, for the next fetch."""
CREATE_RETRY_WAIT_S, CREATE_RETRY_WAIT_GROWTH = 0.15, 0.04
"""Seconds without a reply before the request is repeated: servers without a leader drop it. The wait grows by 4 % of
the elapsed time.
"""
MIN_CREATE_TIMEOUT_S, FIRST_CREATE_TIMEOUT_S, MAX_CREATE_TIMEOUT_S = 0.15, 1.0, 5.0
CREATE_TIMEOUT_GROWTH, CREATE_TIMEOUT_FACTOR = 1.25, 5.0
"""Seconds to wait for a creation before trying another consumer. A meta leader that has not noticed a dead server
places a third of the consumers there, and those never reply. The shortest wait applies after the loss of a consumer
that was created quickly; it grows with each failure.
"""


class OrderedState:
    """The cursor, the consumer in use, and the messages that were read ahead."""

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        push: bool,
        stream_created: Timestamp,
        name_prefix: str = "",
    ) -> None:
        self.api, self.connection = api, api.connection
        self.stream, self.push = stream, push
        unique = api.connection._runtime.new_id()
        self.prefix = check_consumer_name(name_prefix) if name_prefix else unique
        if name_prefix:  # another reader's consumer of this name is not taken for ours then
            config = config.replace(metadata={**config.metadata, READER_ID_METADATA: unique})
        self.is_named = bool(name_prefix)
        self.description = f"ordered consumer {self.prefix!r} of stream {stream!r}"
        """Its description in errors."""
        self.cursor = OrderedCursor(self.prefix, config, push=push)
        self.identity: StreamIdentity | None = None
        """The check that it is still the same stream; made when the first consumer is replaced."""
        self._stream_created = stream_created
        self.info: ConsumerInfo | None = None
        self.leftover: deque[JsMessage] = deque()
        self.reader: ReaderSource | None = None
        """The active reader."""
        self._kept: PullSubscription | None = None  # of the consumer that is kept for the next fetch
        self._idle: asyncio.TimerHandle | None = None
        self._create_error: errors.NatsError | None = None
        self._created_or_failed = asyncio.Event()
        self.deletion: Final = ConsumerDeletion(api, stream, self.description, unique if name_prefix else "")
        self.create_timeout: float = FIRST_CREATE_TIMEOUT_S
        """Seconds to wait for the next consumer at first."""

    def put_back(self, messages: list[JsMessage]) -> None:
        """Return unread messages: the next reader gets them first."""
        self.leftover.extendleft(reversed(messages))

    def take_leftover(self, most: int) -> list[JsMessage]:
        """Take up to ``most`` messages that were read ahead."""
        leftover = self.leftover
        return [leftover.popleft() for _ in range(min(len(leftover), most))]

    # ---------------------------------------------------------------- readers

    @property
    def has_no_reader(self) -> bool:
        """True if nothing creates a consumer: there was no reader yet."""
        return self.reader is None and self.info is None and self._create_error is None

    def attach(self, reader: ReaderSource) -> PullSubscription | None:
        """Set the active reader; return the subscription of the kept consumer, if there is one. ConnectionClosed;
        LocalProtocolError when there is another reader.
        """
        if self.connection.state is State.CLOSED:
            raise self.connection._outbox.closed_error(f"read {self.description}")
        if self.reader is not None:
            raise errors.LocalProtocolError(
                f"{self.description} is being read already: it can have one reader at a time"
            )
        self.reader = reader
        if self.info is None:  # a new reader tries again
            self._create_error = None
            self._created_or_failed.clear()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        kept, self._kept = self._kept, None
        return kept

    def detach(self, reader: ReaderSource, kept: PullSubscription | None) -> None:
        """Remove the active reader; with a subscription its consumer is kept for a while."""
        if self.reader is reader:
            self.reader = None
            if self.info is None and self._create_error is None:
                self.fail_creation(errors.SubscriptionClosed(self.description, "its reader stopped"))
            if kept is not None:
                kept.detach()
                self._kept = kept
                self._idle = asyncio.get_running_loop().call_later(KEEP_CONSUMER_S, self.drop_kept_consumer)

    def drop_kept_consumer(self) -> None:
        """Drop the kept consumer."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()
            self.deletion.delete(self.cursor.name)

    # ---------------------------------------------------------------- consumers

    async def create(self, config: ConsumerConfig, timeout: float) -> None:
        """Create this consumer, the cursor's next one. Repeats the request while there is no reply, as it is
        idempotent. RequestTimeout after ``timeout`` seconds.
        """
        endpoint, operation = create_endpoint(self.stream, config), f"create {self.description}"
        body = {"stream_name": self.stream, "config": config, "action": "create"}
        loop = asyncio.get_running_loop()

        async def ask(_: float) -> ConsumerInfo:
            started_at = loop.time()
            info = await self.api.call_for(ConsumerInfo, endpoint, body, operation=operation, retry=False)
            self.create_timeout = max(MIN_CREATE_TIMEOUT_S, CREATE_TIMEOUT_FACTOR * (loop.time() - started_at))
            return info

        began = loop.time()
        pauses = (CREATE_RETRY_WAIT_S + CREATE_RETRY_WAIT_GROWTH * (loop.time() - began) for _ in count())
        info = await retry_request(ask, pauses, timeout, operation, self.connection._outages)
        if self.info is not None:
            if self.identity is None:
                operation = f"go on with {self.description}"
                created = self._stream_created, self.info.created
                self.identity = StreamIdentity(self.api, self.stream, *created, operation=operation)
            self.identity.on_replaced()
        self.info = info
        self.cursor.on_created(info)
        self._created_or_failed.set()

    async def wait_created(self) -> ConsumerInfo:
        """Wait for the first consumer."""
        while self.info is None:
            if self._create_error is not None:
                raise self._create_error.with_traceback(None)
            await self._created_or_failed.wait()
        return self.info

    def fail_creation(self, error: errors.NatsError) -> None:
        """Record that no consumer can be created, and fail the calls that wait for one."""
        self._create_error = error
        self._created_or_failed.set()

    def is_final(self, error: errors.NatsError) -> bool:
        """True if creating a consumer again is of no use."""
        if isinstance(error, (errors.StreamNotFound, errors.PermissionDenied, errors.ConnectionClosed)):
            return True
        if is_transient(error, existed=self.info is not None):
            return False
        if isinstance(error, errors.ConsumerExists) and self.is_named:
            return False  # another reader has the same prefix: the next number may be free
        # A server that accepted this configuration before will accept it again: the error is temporary.
        return self.info is None

    def emit_notice(self, error: errors.NatsError) -> None:
        """Emit a ConsumerNotice."""
        self.connection._event_bus.emit(ConsumerNotice(stream=self.stream, consumer=self.cursor.name, error=error))
