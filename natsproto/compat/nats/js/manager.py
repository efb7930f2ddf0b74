"""``nats.js.manager``: streams and consumers.

The dataclasses of ``nats.js.api`` are the JSON of the server's API, so each method is one request.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from natsproto import NatsError
from natsproto import errors as ours
from natsproto.compat._json import parse_time
from natsproto.compat._peers import ClientPeer
from natsproto.compat._translate import translate_error
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.errors import NoRespondersError as NoRespondersError
from natsproto.compat.nats.js import api
from natsproto.compat.nats.js.errors import APIError, ConsumerInvalidResetError, NotFoundError, ServiceUnavailableError
from natsproto.protocol.headers import parse_headers
from natsproto.protocol.subject import subscribe_subject

DEFAULT_TIMEOUT_S = 5.0
INVALID_RESET = 10204
_NOT_IN_NAMES = frozenset(">*. /\\\t\r\n")


def _check_name(what: str, name: str | None) -> str:
    if not name:
        raise ValueError(f"nats: {what} name is required")
    if not _NOT_IN_NAMES.isdisjoint(name):
        raise ValueError(f"nats: invalid {what} name: {name!r}")
    return name


class JetStreamManager:
    def __init__(self, conn: ClientPeer, prefix: str = api.DEFAULT_PREFIX, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self._nc = conn
        self._prefix = prefix
        self._timeout = timeout

    async def _api(self, endpoint: str, body: Mapping[str, object] | None = None, timeout: float | None = None) -> Any:
        """Send an API request. Errors are those of ``nats.js.errors``."""
        payload = json.dumps(body).encode() if body else b""
        wait = timeout or self._timeout or DEFAULT_TIMEOUT_S
        if type(wait) not in (int, float) or not 0 < wait < math.inf:
            raise ValueError(f"nats: timeout must be a positive number of seconds, not {wait!r}")
        try:
            subject = f"{self._prefix}.{endpoint}"
            reply = await self._nc._opened._request_encoded(subject, subscribe_subject(subject), payload, timeout=wait)
        except ours.NoResponders as exc:
            raise ServiceUnavailableError from exc
        except NatsError as exc:
            raise translate_error(exc) from exc
        answer = json.loads(reply.data)
        if "error" in answer:
            APIError.from_error(answer["error"])
        return answer

    async def account_info(self) -> api.AccountInfo:
        return api.AccountInfo.from_response(await self._api("INFO"))

    # ---------------------------------------------------------------- streams

    async def find_stream_name_by_subject(self, subject: str) -> str:
        found = await self._api("STREAM.NAMES", {"subject": subject})
        if not found["streams"]:
            raise NotFoundError
        return str(found["streams"][0])

    async def stream_info(self, name: str, subjects_filter: str | None = None) -> api.StreamInfo:
        body = {"subjects_filter": subjects_filter} if subjects_filter else None
        return api.StreamInfo.from_response(await self._api(f"STREAM.INFO.{_check_name('stream', name)}", body))

    async def add_stream(self, config: api.StreamConfig | None = None, **params: Any) -> api.StreamInfo:
        return await self._put_stream("CREATE", config, params)

    async def update_stream(self, config: api.StreamConfig | None = None, **params: Any) -> api.StreamInfo:
        return await self._put_stream("UPDATE", config, params)

    async def _put_stream(
        self, verb: str, config: api.StreamConfig | None, params: Mapping[str, Any]
    ) -> api.StreamInfo:
        wanted = (config or api.StreamConfig()).evolve(**params)
        endpoint = f"STREAM.{verb}.{_check_name('stream', wanted.name)}"
        return api.StreamInfo.from_response(await self._api(endpoint, wanted.as_dict()))

    async def delete_stream(self, name: str) -> bool:
        return bool((await self._api(f"STREAM.DELETE.{_check_name('stream', name)}"))["success"])

    async def purge_stream(
        self, name: str, seq: int | None = None, subject: str | None = None, keep: int | None = None
    ) -> bool:
        """Remove messages: those of a subject, those before a sequence, or all except the last ones."""
        wanted = api.StreamPurgeRequest(seq=seq or None, filter=subject or None, keep=keep or None)
        return bool((await self._api(f"STREAM.PURGE.{_check_name('stream', name)}", wanted.as_dict()))["success"])

    async def streams_info(self, offset: int = 0) -> list[api.StreamInfo]:
        return list(await self.streams_info_iterator(offset))

    async def streams_info_iterator(self, offset: int = 0) -> api.StreamsListIterator:
        found = await self._api("STREAM.LIST", {"offset": offset})
        return api.StreamsListIterator(found["offset"], found["total"], found["streams"] or [])

    # ---------------------------------------------------------------- consumers

    async def consumer_info(self, stream: str, consumer: str, timeout: float | None = None) -> api.ConsumerInfo:
        return api.ConsumerInfo.from_response(await self._consumer_api("INFO", stream, consumer, timeout=timeout))

    async def _consumer_api(
        self,
        verb: str,
        stream: str,
        consumer: str,
        body: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Any:
        _check_name("stream", stream)
        _check_name("consumer", consumer)
        return await self._api(f"CONSUMER.{verb}.{stream}.{consumer}", body, timeout)

    async def add_consumer(
        self, stream: str, config: api.ConsumerConfig | None = None, timeout: float | None = None, **params: Any
    ) -> api.ConsumerInfo:
        _check_name("stream", stream)
        return await self._add_consumer(stream, (config or api.ConsumerConfig()).evolve(**params), "", timeout)

    async def _add_consumer(
        self, stream: str, wanted: api.ConsumerConfig, action: str, timeout: float | None = None
    ) -> api.ConsumerInfo:
        for name in filter(None, (wanted.name, wanted.durable_name)):
            _check_name("consumer", name)
        if wanted.name:
            endpoint = f"CONSUMER.CREATE.{stream}.{wanted.name}"
            if wanted.filter_subject and wanted.filter_subject != ">":
                endpoint += f".{wanted.filter_subject}"
        elif wanted.durable_name:
            endpoint = f"CONSUMER.DURABLE.CREATE.{stream}.{wanted.durable_name}"
        else:
            endpoint = f"CONSUMER.CREATE.{stream}"
        body = {"stream_name": stream, "config": wanted.as_dict(), "action": action}
        return api.ConsumerInfo.from_response(await self._api(endpoint, body, timeout))

    async def delete_consumer(self, stream: str, consumer: str) -> bool:
        return bool((await self._consumer_api("DELETE", stream, consumer))["success"])

    async def pause_consumer(
        self, stream: str, consumer: str, pause_until: str, timeout: float | None = None
    ) -> api.ConsumerPause:
        body = {"pause_until": pause_until}
        return api.ConsumerPause.from_response(await self._consumer_api("PAUSE", stream, consumer, body, timeout))

    async def resume_consumer(self, stream: str, consumer: str, timeout: float | None = None) -> api.ConsumerPause:
        return api.ConsumerPause.from_response(await self._consumer_api("PAUSE", stream, consumer, None, timeout))

    async def reset_consumer(
        self, stream: str, consumer: str, seq: int | None = None, timeout: float | None = None
    ) -> api.ConsumerReset:
        """Redeliver from ``seq``, or from the message after the last acknowledged one. ConsumerInvalidResetError."""
        try:
            found = await self._consumer_api("RESET", stream, consumer, {"seq": seq} if seq else None, timeout)
        except APIError as exc:
            if exc.err_code != INVALID_RESET:
                raise
            raise ConsumerInvalidResetError(exc.code, exc.description, exc.err_code) from exc
        return api.ConsumerReset.from_response(found)

    async def consumers_info(self, stream: str, offset: int | None = None) -> list[api.ConsumerInfo]:
        body = None if offset is None else {"offset": offset}
        found = await self._api(f"CONSUMER.LIST.{_check_name('stream', stream)}", body)
        return [api.ConsumerInfo.from_response(info) for info in found["consumers"] or []]

    # ---------------------------------------------------------------- messages

    async def get_msg(
        self,
        stream_name: str,
        seq: int | None = None,
        subject: str | None = None,
        direct: bool | None = False,
        next: bool | None = False,
    ) -> api.RawStreamMsg:
        """Return a message: by sequence, the last of a subject, or with ``next`` the subject's first from ``seq``."""
        _check_name("stream", stream_name)
        body: dict[str, object] = {}
        if seq and (next or not subject):
            body["seq"] = seq
        if subject:
            body["next_by_subj" if next else "last_by_subj"] = subject
        if direct:
            endpoint = f"{self._prefix}.DIRECT.GET.{stream_name}"
            return _lifted(await self._nc.request(endpoint, json.dumps(body).encode(), timeout=self._timeout))
        found = (await self._api(f"STREAM.MSG.GET.{stream_name}", body))["message"]
        message = api.RawStreamMsg.from_response(found)
        message.data = base64.b64decode(found["data"]) if found.get("data") else None
        if found.get("hdrs"):
            headers = parse_headers(base64.b64decode(found["hdrs"]))
            message.headers = {name: headers.last(name) for name in headers} or None
        return message

    async def get_last_msg(self, stream_name: str, subject: str, direct: bool | None = False) -> api.RawStreamMsg:
        return await self.get_msg(stream_name, subject=subject, direct=direct)

    async def delete_msg(self, stream_name: str, seq: int) -> bool:
        return bool(
            (await self._api(f"STREAM.MSG.DELETE.{_check_name('stream', stream_name)}", {"seq": seq}))["success"]
        )


def _lifted(msg: Msg) -> api.RawStreamMsg:
    """Return the message in the response to a direct get."""
    headers = msg.headers or {}
    if not msg.data and "Status" in headers:
        if headers["Status"] == "404":
            raise NotFoundError
        APIError.from_msg(msg)
    time = headers.get("Nats-Time-Stamp")
    return api.RawStreamMsg(
        subject=headers["Nats-Subject"],
        seq=int(headers["Nats-Sequence"]) if "Nats-Sequence" in headers else None,
        data=msg.data or None,
        headers=headers,
        time=None if time is None else parse_time(time),
    )
