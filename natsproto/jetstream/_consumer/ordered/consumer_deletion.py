"""Deleting the consumers of an ordered reader: those that were created, and those of which that is not known.

Owns nothing but the rules:

1. A consumer is deleted in the background, until the server confirms it: a request that leaves with a connection that
   breaks is repeated after the reconnect.
2. A consumer whose creation was requested and not confirmed may still come: its deletion is repeated for a moment while
   the server does not know it.
3. After DELETE_FOR_S seconds the server has ended it by itself, since nobody has read it.
4. The closing of the client waits for it for a moment, unless there is no connection: a drain does not wait for one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto.errors._base import is_transient
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._values.info import ConsumerInfo

READER_ID_METADATA: Final = "natsproto.reader"
"""Metadata key that tells apart the consumers of readers with the same name prefix."""
LATE_CREATION_DELAYS_S = (0.02, 0.08, 0.2, 0.7)
"""Seconds between the attempts to delete a consumer that the server does not know, and that may still be created."""
DELETE_TIMEOUT_S = 1.0
DELETE_FOR_S = 300.0
"""The inactive_threshold of the consumers of ordered readers."""


class ConsumerDeletion:
    """Deletes consumers of a stream. ``reader_id``: other readers may use the same names, so that only consumers with
    this id in their metadata are deleted.
    """

    def __init__(self, api: Api, stream: str, description: str, reader_id: str = "") -> None:
        self._api, self._connection = api, api.connection
        self._stream, self._reader_id = stream, reader_id
        self._operation = f"delete {description}"

    def delete(self, name: str, *, may_come: bool = False) -> None:
        """Delete a consumer in the background. ``may_come``: its creation was requested and not confirmed."""
        self._connection._cleanups.start(self._delete(name, LATE_CREATION_DELAYS_S if may_come else ()))

    async def _delete(self, name: str, delays: tuple[float, ...]) -> None:
        deadline, backoff = Deadline(DELETE_FOR_S), Backoff()
        while not deadline.is_over:
            await self._connection._outages.wait_connected(deadline.at, in_drain=True)
            try:
                if self._reader_id and not await self._is_own(name):
                    return
                await self._api.call(
                    f"CONSUMER.DELETE.{self._stream}.{name}", operation=self._operation, timeout=DELETE_TIMEOUT_S
                )
                return
            except errors.ConsumerNotFound:
                if not delays:
                    return
                delay, *rest = delays
                delays = tuple(rest)
                await asyncio.sleep(delay)
            except errors.NatsError as exc:
                if not is_transient(exc):
                    return
                await backoff.pause(deadline)

    async def _is_own(self, name: str) -> bool:
        """True unless it is another reader's."""
        endpoint = f"CONSUMER.INFO.{self._stream}.{name}"
        info = await self._api.call_for(ConsumerInfo, endpoint, operation=self._operation, timeout=DELETE_TIMEOUT_S)
        return info.config.metadata.get(READER_ID_METADATA) == self._reader_id
