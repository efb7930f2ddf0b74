"""The values of many keys, for tables: together where the bucket allows it, one by one where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from natsproto import errors
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._keys import check_key_name

MAX_CONCURRENT_LOOKUPS = 64
"""Requests in flight to a bucket that answers one key at a time."""


class ManyValues:
    """Looks up keys of a bucket, some at a time."""

    def __init__(self, kv: KeyValue[bytes]) -> None:
        self._kv = kv
        self._together = True

    async def of(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of the keys that have one. Keys that are not valid have none."""
        wanted = [key for key in keys if _is_key(key)]
        if self._together:
            try:
                return {key: entry.value for key, entry in (await self._kv.get_many(wanted)).items()}
            except errors.UnsupportedByServer:
                self._together = False
        limit = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        found: dict[str, bytes] = {}

        async def find(key: str) -> None:
            async with limit:
                try:
                    found[key] = (await self._kv.get(key)).value
                except errors.KeyNotFound:
                    pass

        await asyncio.gather(*map(find, wanted))
        return found


def _is_key(key: str) -> bool:
    """True for a valid key: a wildcard must not find values of other keys."""
    try:
        check_key_name(key)
    except errors.InvalidSubject:
        return False
    return True
