"""Ordered consumers: everything of a stream in order, whatever happens to the consumer that carries it (ADR-17).

Owns the verbs. What keeps the order is the Carrier's, which makes one consumer after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import TracebackType

from natsproto.errors import ConfigError, LocalProtocolError
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import NEVER, Duration
from natsproto.jetstream._config import ConsumerConfig
from natsproto.jetstream._consumer.carrier import Carrier, OrderedFeed
from natsproto.jetstream._consumer.consumer import none_came
from natsproto.jetstream._consumer.fetch import Fetch
from natsproto.jetstream._consumer.handling import Consumption, Handler, Policy
from natsproto.jetstream._consumer.ledger import EXPIRES, PullLedger
from natsproto.jetstream._consumer.reader import Feed, Messages
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.pool import seconds


class OrderedConsumer:
    """A stream read in order, each message once. Made by ``stream.ordered_consumer``; sends nothing until it is read.

    ``fetch``, ``next``, ``messages`` and ``consume`` go on where the last of them ended; one at a time. Messages need
    no acknowledgement. There is no gap, no duplicate and no disorder, whether the consumer on the server is deleted,
    the server restarts, the stream is purged or its leader changes; what is missing was removed from the stream.

    Reading ends with StreamNotFound (also when the stream was made again since), with PermissionDenied, and with the
    server's refusal of a configuration.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        push: bool = False,
        made: Timestamp = NEVER,
        name_prefix: str = "",
    ) -> None:
        config.check()
        self.stream_name = stream
        """The stream it reads."""
        self._carrier = Carrier(api, stream, config, push=push, made=made, name_prefix=name_prefix)

    # ---------------------------------------------------------------- what it is

    @property
    def name(self) -> str:
        """The name of the consumer in use, which changes whenever another one takes its place."""
        return self._carrier.cursor.name

    @property
    def last_sequence(self) -> int:
        """The stream sequence of the last message that came, 0 before the first."""
        return self._carrier.cursor.stream_seq

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said of the consumer when it was made last. LocalProtocolError before the first one."""
        if self._carrier.info is None:
            raise LocalProtocolError(f"{self._what} has made no consumer yet: read it first")
        return self._carrier.info

    async def created(self) -> ConsumerInfo:
        """Waits until the first consumer is there; its ``num_pending`` is how many messages there were to read then.

        Raises what ends reading. Something has to be reading meanwhile. Cancelling ends the wait.
        """
        return await self._carrier.created()

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """What the server says of the consumer in use now. LocalProtocolError before the first one; ConsumerNotFound
        when it is gone.
        """
        self.cached_info  # noqa: B018  # raises
        return await self._carrier.api.get(
            ConsumerInfo,
            f"CONSUMER.INFO.{self.stream_name}.{self.name}",
            asked=f"info of {self._what}",
            timeout=timeout,
        )

    # ---------------------------------------------------------------- reading

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """Up to so many of the next messages; see Consumer.fetch. ConfigError for one that is pushed to."""
        return self._fetch(max_messages, timeout, max_bytes, heartbeat, no_wait=no_wait, early=False)

    def fetch_available(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration = 5.0,
        max_bytes: int | None = None,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """As many of the next messages as there are, and at least one; see Consumer.fetch_available."""
        return self._fetch(max_messages, timeout, max_bytes, heartbeat, no_wait=False, early=True)

    def _fetch(
        self,
        max_messages: int | None,
        timeout: Duration,
        max_bytes: int | None,
        heartbeat: Duration | None,
        *,
        no_wait: bool,
        early: bool,
    ) -> Fetch:
        if self._carrier.push:
            raise ConfigError("push", True, "nothing can be fetched from a push consumer: use messages() or consume()")
        carrier, wait = self._carrier, seconds("timeout", timeout)
        patience = wait or carrier.api.timeout

        def ledger(most: int | None, most_bytes: int | None) -> PullLedger:
            return PullLedger(
                max_messages=most,
                max_bytes=most_bytes or 0,
                expires=patience,
                heartbeat=None if heartbeat is None else seconds("heartbeat", heartbeat),
                once=True,
                no_wait=no_wait or wait == 0,
                early=early,
                consumer=self._carrier.prefix,
            )

        whole = ledger(max_messages, max_bytes)

        def begin() -> tuple[list[JsMessage], Feed | None]:
            ready = carrier.take(whole.max_messages)
            if not ready:
                return ready, OrderedFeed(carrier, whole, patience)
            most, most_bytes = whole.max_messages - len(ready), whole.max_bytes
            if most_bytes:
                most_bytes -= sum(message.counted_size for message in ready)
            if early or most <= 0 or (whole.max_bytes and most_bytes <= 0):
                return ready, None
            return ready, OrderedFeed(carrier, ledger(most, most_bytes), patience)

        return self._gather(begin)

    async def next(self, timeout: Duration = 5.0) -> JsMessage:
        """The next message; RequestTimeout when none came within ``timeout`` seconds, ConnectionClosed when the client
        is closed meanwhile.
        """
        messages = await self.fetch(1, timeout=timeout)
        if not messages:
            raise none_came(self._carrier.connection, self._what, timeout)
        return messages[0]

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = EXPIRES,
        heartbeat: Duration | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int = 0,
    ) -> Messages:
        """All messages from here on: enter it, then iterate it. The arguments are those of Consumer.messages.

        Without a bound or threshold 500 messages are pulled ahead at first, for a fast reader as many as it takes
        within 0.1 s (up to 4,096), and of big messages as many as are about 16 MiB.
        One that is pushed to is bounded by the server's flow control instead of ``max_messages`` and ``max_bytes``.
        """
        ledger = PullLedger(
            max_messages=max_messages,
            max_bytes=max_bytes or 0,
            expires=seconds("expires", expires),
            heartbeat=None if heartbeat is None else seconds("heartbeat", heartbeat),
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            total=stop_after,
            follows=True,
            consumer=self._carrier.prefix,
        )
        return self._reading(OrderedFeed(self._carrier, ledger, 0.0))

    def consume(
        self,
        handler: Handler,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Duration = EXPIRES,
        heartbeat: Duration | None = None,
        stop_after: int = 0,
        concurrency: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        error_cb: Callable[[JsMessage, BaseException], object] | None = None,
    ) -> Consumption:
        """Calls ``handler`` with every message from here on; see Consumer.consume. Nothing is acknowledged."""
        messages = self.messages(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            stop_after=stop_after,
        )
        policy = Policy(concurrency=concurrency, key=key, on_success="nothing", on_error="nothing", error_cb=error_cb)
        return Consumption(self._carrier.connection, self._what, messages, handler, policy)

    async def close(self) -> None:
        """Deletes the consumer on the server, if there is one. Reading anew makes another, where this one ended."""
        if (reader := self._carrier.reader) is not None:
            await reader.finish()
        self._carrier.drop()

    async def __aenter__(self) -> OrderedConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"OrderedConsumer(stream_name={self.stream_name!r}, last_sequence={self.last_sequence})"

    def _gather(self, begin: Callable[[], tuple[list[JsMessage], Feed | None]]) -> Fetch:
        """The one place where fetches are made."""
        return Fetch(begin, self._carrier.put_back)

    def _reading(self, feed: Feed) -> Messages:
        """The one place where endless streams of messages are made."""
        return Messages(feed, self._what, self._carrier.put_back)

    @property
    def _what(self) -> str:
        return self._carrier.what
