"""Deleting the consumers of an ordered reader: those that were created, and those of which that is not known.

A consumer that is not deleted ends by itself, after its inactive_threshold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from natsproto.errors import ConsumerNotFound, NatsError
from natsproto.errors._base import is_transient
from natsproto.jetstream._api import Api
from natsproto.jetstream._info import ConsumerInfo

READER_ID_METADATA: Final = "natsproto.reader"
"""Metadata key that tells apart the consumers of readers with the same name prefix."""
DELETE_DELAYS_S = (0.0, 0.02, 0.08, 0.2, 0.7)
"""Seconds before each attempt to delete a consumer whose creation was abandoned, while the server does not know it or
has no leader.
"""
DELETE_TIMEOUT_S = 1.0


class ConsumerDeletion:
    """Deletes consumers of a stream. ``reader_id``: other readers may use the same names, so that only consumers with
    this id in their metadata are deleted.
    """

    def __init__(self, api: Api, stream: str, description: str, reader_id: str = "") -> None:
        self._api, self._connection = api, api.connection
        self._stream, self._reader_id = stream, reader_id
        self._operation = f"delete {description}"
        self.unconfirmed: list[str] = []
        """The consumers whose deletion the server has not confirmed."""

    def delete_created(self, name: str) -> None:
        """Delete a consumer that was created, without waiting for the server."""
        self.unconfirmed.append(name)
        self._publish(name)

    def delete_requested(self, name: str) -> None:
        """Delete a consumer whose creation was requested and not confirmed. The closing of the client waits for it."""
        self.unconfirmed.append(name)
        self._start(name, DELETE_DELAYS_S)

    def delete_abandoned(self, name: str) -> None:
        """Delete a consumer whose creation failed."""
        if self._reader_id:
            self.delete_requested(name)
        else:
            self.delete_created(name)

    def repeat(self) -> None:
        """Delete the earlier ones again: the server that got the first request may have been stopping."""
        for name in self.unconfirmed:
            if self._reader_id:
                self._start(name, (0.0,))
            else:
                self._publish(name)
        self.unconfirmed.clear()

    def _publish(self, name: str) -> None:
        connection = self._connection
        if not connection.is_connected:
            return  # a draining client would wait for a connection to send it
        try:
            connection.publish_nowait(f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{name}")
        except NatsError:
            return

    def _start(self, name: str, delays: Iterable[float]) -> None:
        self._connection._start_cleanup(self._delete_own(name, delays))

    async def _delete_own(self, name: str, delays: Iterable[float]) -> None:
        """Delete a consumer, unless it is another reader's."""
        for delay in delays:
            await asyncio.sleep(delay)
            if not self._connection.is_connected:
                return
            try:
                if self._reader_id and not await self._is_own(name):
                    return
                await self._api.call(
                    f"CONSUMER.DELETE.{self._stream}.{name}", operation=self._operation, timeout=DELETE_TIMEOUT_S
                )
                return
            except NatsError as exc:
                if not is_transient(exc) and not isinstance(exc, ConsumerNotFound):
                    return  # else it may be there in a moment

    async def _is_own(self, name: str) -> bool:
        endpoint = f"CONSUMER.INFO.{self._stream}.{name}"
        info = await self._api.call_for(ConsumerInfo, endpoint, operation=self._operation, timeout=DELETE_TIMEOUT_S)
        return info.config.metadata.get(READER_ID_METADATA) == self._reader_id
