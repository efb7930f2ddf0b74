"""Members of groups for the blocking client: their handlers are called in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict

from natsproto.jetstream import groups
from natsproto.jetstream._consumer import message
from natsproto.jetstream._consumer.handler_options import OnError, OnSuccess
from natsproto.jetstream._consumer.pull_options import check_names
from natsproto.jetstream._stream import stream
from natsproto.jetstream._values.codec import Duration
from natsproto.sync._consumers import JsMessage, of_messages
from natsproto.sync._portal import Portal
from natsproto.sync._thread_handlers import check_threads, thread_handler
from natsproto.sync._wrapper import SyncWrapper


class JoinArgs(TypedDict, total=False):
    """The arguments of ``groups.join`` that are those of the async client."""

    prefetch: int | None
    key: Callable[[JsMessage], Hashable] | None
    on_success: OnSuccess
    on_error: OnError
    nak_delay: Duration | None
    keep_alive: bool | Duration
    timeout: Duration | None
    ack_wait: Duration
    max_deliver: int
    backoff: Iterable[Duration]
    max_ack_pending: int


class JoinedMember(SyncWrapper[groups.JoinedMember]):
    """A member of a group that comes and goes by itself, whose handler is called in threads. Leaving ``with`` stops it.

    It ends by ``stop``, when the group is deleted, with the client, or on an error, which ``wait`` raises. Threads
    cannot be cancelled: a member that has lost its lease waits for them before it joins again.
    """

    @property
    def name(self) -> str:
        """The name of the member."""
        return self._inner.name

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of the member in the last configuration."""
        return self._inner.partitions

    @property
    def generation(self) -> int:
        """The revision of the configuration that gave the member its partitions; 0 before it has read one."""
        return self._inner.generation

    @property
    def is_joined(self) -> bool:
        """True while it reads the member's consumer."""
        return self._inner.is_joined

    @property
    def closed(self) -> bool:
        """True after its end."""
        return self._inner.closed

    def wait_joined(self) -> None:
        """Wait until it reads the member's consumer; raise the error that ended it. An interrupt ends only the wait."""
        self._portal.call(self._inner.wait_joined)

    def run(self, until: threading.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set, then stop it. Raises the error that ended it.

        An interrupt stops it, too.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        with self:
            self.wait(until)

    def wait(self, until: threading.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set; raise the error that ended it.

        An interrupt ends only the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        self._portal.call_until(self._inner.wait, until)

    def stop(self) -> None:
        """Wait for running calls and leave the group: the partitions move at once. In the handler it does not wait."""
        self._portal.call(self._inner.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self.stop()
            if exc is None:
                self.wait()


def join_group(
    portal: Portal,
    inner: stream.Stream,
    group: str,
    handler: Callable[[JsMessage], object],
    threads: int,
    filters: Mapping[str, Iterable[int]] | Iterable[str],
    options: dict[str, Any],
) -> JoinedMember:
    """Join, and return when the group knows the member."""
    own = {"partitions", "name", "ttl"}
    check_names({name: value for name, value in options.items() if name not in own}, JoinArgs)
    check_threads(threads)
    call = thread_handler(handler, "message", of_messages(portal))
    key = options.pop("key", None)

    def key_of(item: message.JsMessage) -> Hashable:
        result: Hashable = key(JsMessage(portal, item))
        return result

    options |= {"concurrency": threads, "executor": True, "key": None if key is None else key_of}
    member = portal.run(partial(groups.join, inner, group, call, filters=filters, **options))
    portal.enter(member)
    return JoinedMember(portal, member)
