"""Sequences that have found defects, each under what it found."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.run import Step

DOWN = Step("down", {"client": 0, "end": "FIN", "stops": False})
UP = Step("up", {})
CONNECT = Step("connect", {"client": 0, "options": {}})


def _bucket(call: str, **arguments: Any) -> Step:
    return Step("kv", {"bucket": "bucket", "call": call, "arguments": arguments})


def _store(call: str, **arguments: Any) -> Step:
    return Step("object", {"store": "store", "call": call, "arguments": arguments})


def _fetch(heartbeat: float) -> Step:
    return Step("fetch", {"sub": "sub0", "count": 1, "timeout": 0.2, "heartbeat": heartbeat})


_PULL = Step("pull_subscribe", {"client": 0, "sub": "sub0", "arguments": {"subject": "a.>", "durable": "d"}})
STREAM = Step("manage", {"client": 0, "call": "add_stream", "arguments": {"name": "S", "subjects": ["a.>"]}})
PUSH = Step("js_subscribe", {"client": 0, "sub": "sub1", "kind": "none", "arguments": {"subject": "a.b"}})
_BUCKET = Step("open_bucket", {"client": 0, "bucket": "bucket", "create": {}})
_STORE = Step("open_store", {"client": 0, "store": "store", "create": {}})
_PUSHED = Step("js_subscribe", {"client": 0, "sub": "sub0", "kind": "plain", "arguments": {"subject": "a.>"}})
_PUT = Step("put_object", {"store": "store", "name": "o", "size": 0, "how": "bytes"})
_SERVICE = Step("add_service", {"client": 0, "service": "service", "config": {"name": "svc", "version": "1.0.0"}})
_ENDPOINT = Step("add_endpoint", {"service": "service", "kind": "responds", "config": {"name": "e"}})

KNOWN: dict[str, list[Step]] = {
    "calls of a bucket waited for the end of an outage": [
        *(CONNECT, _BUCKET, _bucket("put", key="k", value=b"v"), DOWN, _bucket("history", key="k"), UP),
        _bucket("keys"),
    ],
    "calls of a store waited longer than the timeout": [
        *(CONNECT, _STORE, DOWN, _store("get", name="o"), UP, _store("get", name="o")),
    ],
    "a fetch with heartbeats told of no messages without a connection": [
        *(CONNECT, STREAM, _PULL, _fetch(0.04), DOWN, _fetch(0.04), UP),
    ],
    "a push subscription told of the end of its client after closed_cb": [
        Step("connect", {"client": 0, "options": {"max_reconnect_attempts": 2}}),
        *(STREAM, _PUSHED, DOWN, UP, Step("state", {"client": 0})),
    ],
    "a put of an empty object waited for two timeouts in an outage": [*(CONNECT, _STORE, DOWN, _PUT, UP)],
    "the time when a service was started had a time zone": [
        *(CONNECT, _SERVICE, Step("service", {"service": "service", "call": "stats"})),
    ],
    "an endpoint that was added after close raised an error of natsproto": [
        *(CONNECT, _SERVICE, Step("close", {"client": 0}), _ENDPOINT),
    ],
}
