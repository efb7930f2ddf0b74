"""The streams of an account or domain: creating, changing, finding and listing them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from os import PathLike
from typing import Self, Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._help.async_hints import items
from natsproto.jetstream._api.listing import Listing, Page
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.trace import TraceCallback
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._stream.stream import Stream, create_or_update_stream, write_stream
from natsproto.jetstream._values.arguments import StreamArgs
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.info import StreamInfo, StreamNamesPage, StreamPage
from natsproto.jetstream._values.record import amended, named_changes
from natsproto.protocol.subject import subscribe_subject


class StreamManager:
    """Manages the streams of one account or domain. A part of JetStream."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: Duration = 5.0,
        trace: TraceCallback | None = None,
        inbox_prefix: str | None = None,
    ) -> None:
        self._connection = connection
        self._api = Api(
            connection, domain=domain, prefix=prefix, timeout=timeout, trace=trace, inbox_prefix=inbox_prefix
        )

    @classmethod
    def _of(cls, api: Api) -> Self:
        manager = cls.__new__(cls)
        manager._connection, manager._api = api.connection, api
        return manager

    @property
    def connection(self) -> Connection:
        """The client that created it."""
        return self._connection

    async def create_stream(
        self,
        config: str | StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[StreamArgs],
    ) -> Stream:
        """Create a stream from its name, a StreamConfig, its fields, or these together (the fields win).

        Without ``subjects`` it stores messages whose subject is its name. Creating an existing stream again does
        nothing; StreamExists when its configuration differs. ConfigError (InvalidSubject for names) before anything
        is sent; InvalidStreamConfig, SubjectsOverlap, LimitReached; UnsupportedByServer when an older server does not
        know a field; and the errors of every call, see Stream. ``pedantic`` (server 2.11) makes the server reject
        values that it would otherwise adjust.

        Args:
            config: The name of the stream, or a StreamConfig.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of StreamConfig, by keyword; they override those of ``config``.
        """
        wanted = amended(StreamConfig, config, fields, "name")
        return self._stream(wanted.name, await write_stream(self._api, "CREATE", wanted, pedantic, timeout))

    async def update_stream(
        self,
        target: str | StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **changes: Unpack[StreamArgs],
    ) -> Stream:
        """Change the given fields of the stream with this name, and no others; a whole StreamConfig replaces all.

        The stream is read, and written with the changes, also with fields that this version does not know. Records such
        as ``placement``, lists and maps are replaced as a whole. A ``max_age`` below the ``duplicate_window`` shortens
        that too. The server cannot compare: a change that another
        client makes between the two requests is lost. StreamNotFound; InvalidStreamConfig for fields that cannot be
        changed; otherwise as ``create_stream``.

        Args:
            target: The name of the stream, of which the given fields change, or a StreamConfig, which replaces all.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **changes: The fields of StreamConfig to change, by keyword.
        """
        if target is None or isinstance(target, str):
            partial, fields = named_changes(StreamConfig, target, changes, "name")
            handle = self._stream(partial.name, None)
            await handle._change(partial, fields, pedantic, timeout)
            return handle
        wanted = amended(StreamConfig, target, changes, "name")
        return self._stream(wanted.name, await write_stream(self._api, "UPDATE", wanted, pedantic, timeout))

    async def create_or_update_stream(
        self,
        config: str | StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[StreamArgs],
    ) -> Stream:
        """Make the stream exactly this: fields that are not given get their defaults, also those of an existing stream.

        Raises the errors of ``create_stream`` and ``update_stream``.

        Args:
            config: The name of the stream, or a StreamConfig.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of StreamConfig, by keyword; they override those of ``config``.
        """
        wanted = amended(StreamConfig, config, fields, "name")
        return self._stream(wanted.name, await create_or_update_stream(self._api, wanted, pedantic, timeout))

    async def stream(self, name: str, *, bind: bool = False, timeout: Duration | None = None) -> Stream:
        """Return the stream with this name; StreamNotFound. With ``bind`` no request is sent, so it may not exist.

        Args:
            name: Which stream; its configuration was given this name when it was created.
            bind: Send no request, so that the stream may not exist, and ``cached_info`` is not there.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        stream = self._stream(name, None)
        if not bind:
            await stream.info(timeout=timeout)
        return stream

    async def delete_stream(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a stream with its messages and consumers. StreamNotFound.

        Args:
            name: Which stream to delete, with all its messages and consumers.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._stream(name, None).delete(timeout=timeout)

    def streams(self, *, subject: str = "", timeout: Duration | None = None) -> Listing[StreamInfo]:
        """Return the info of every stream, or of streams with ``subject``: read it with ``async for``.

        Args:
            subject: Only streams with a subject that overlaps this one; "": all.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return Listing(self._stream_pages(_filter(subject), timeout))

    async def _stream_pages(
        self, body: dict[str, object], timeout: Duration | None
    ) -> AsyncGenerator[Page[StreamInfo]]:
        pages = self._api.pages(
            StreamPage,
            "STREAM.LIST",
            body,
            operation="list of streams",
            names=lambda page: [*(one.config.name for one in page.streams), *page.missing, *page.offline],
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page, new in pages:
                yield (
                    [one for one in page.streams if one.config.name in new],
                    [name for name in page.missing if name in new],
                    {name: reason for name, reason in page.offline.items() if name in new},
                )

    @items
    def stream_names(self, *, subject: str = "", timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yield the name of every stream, or of streams with ``subject``.

        Args:
            subject: Only streams with a subject that overlaps this one; "": all.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return self._names(_filter(subject), timeout)

    async def _names(self, body: dict[str, object], timeout: Duration | None) -> AsyncGenerator[str]:
        pages = self._api.pages(
            StreamNamesPage,
            "STREAM.NAMES",
            body,
            operation="names of streams",
            names=lambda page: page.streams,
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page, new in pages:
                for name in page.streams:
                    if name in new:
                        yield name

    async def stream_name_by_subject(self, subject: str, *, timeout: Duration | None = None) -> str:
        """Return the name of the stream that stores messages on this subject; NoStream when there is none.

        Args:
            subject: A subject that a stream listens on, without wildcards or as it is configured.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body = _filter(subject)
        page = await self._api.call_for(
            StreamNamesPage, "STREAM.NAMES", body, operation=f"stream that listens on {subject!r}", timeout=timeout
        )
        if not page.streams:
            raise errors.NoStream(subject)
        return page.streams[0]

    async def restore_stream(
        self,
        path: str | PathLike[str],
        *,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
        **changes: Unpack[StreamArgs],
    ) -> Stream:
        """Restore a stream and its consumers from a folder of ``Stream.backup`` or ``nats stream backup``.

        ``changes`` replace fields of its configuration (replicas, placement; on server 2.15 also the name).
        ``progress`` is called after every chunk. ``timeout`` applies to each reply, not to the whole restore.
        ConfigError when the folder is not a backup; StreamExists when the stream exists; ApiError when the server
        cannot use the backup; RequestTimeout; ConnectionLost; OSError of the files. Cancelling leaves no stream, once
        the server has noticed (5 s).

        Args:
            path: The folder of the backup.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for each reply, not for the whole restore; None: that of the JetStream context.
            **changes: Fields of StreamConfig to replace, by keyword, such as ``num_replicas``; on server 2.15 also
                ``name``.
        """
        from natsproto.jetstream._stream import backup  # rarely needed

        info = await backup.restore(
            self._api, path, lambda config: config.replace(**changes), progress=progress, timeout=timeout
        )
        return self._stream(info.name, info)

    def _stream(self, name: str, info: StreamInfo | None) -> Stream:
        """Create the handle of a stream; the only place that does."""
        return Stream(self._api, name, info)


def _filter(subject: str) -> dict[str, object]:
    if not subject:
        return {}
    subscribe_subject(subject)
    return {"subject": subject}
