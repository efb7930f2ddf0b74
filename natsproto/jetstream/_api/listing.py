"""Lists that the server sends in pages.

Owns their view as one list, and the names of the assets that did not reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from natsproto._help.async_hints import AsyncForHint

T = TypeVar("T")

Page = tuple[Iterable[T], Iterable[str], Mapping[str, str]]


class Listing(AsyncForHint, Generic[T]):
    """The streams of an account, or the consumers of a stream: iterate it with ``async for``, once.

    It requests one page at a time. ``missing`` has the names of those that did not reply in time,
    ``offline`` those that no running server can serve, with the reason. Both grow while the list is read.

    Created by ``streams`` and ``consumers``.
    """

    def __init__(self, pages: AsyncGenerator[Page[T]]) -> None:
        self._pages = pages
        self.missing: list[str] = []
        self.offline: dict[str, str] = {}

    def __aiter__(self) -> AsyncIterator[T]:
        return self._each()

    async def _each(self) -> AsyncGenerator[T]:
        async with aclosing(self._pages) as pages:
            async for found, missing, offline in pages:
                self.missing += missing
                self.offline.update(offline)
                for one in found:
                    yield one
