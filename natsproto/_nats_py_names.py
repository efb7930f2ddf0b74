"""Names of nats-py that natsproto does not have, and what to use instead: one table for error messages.

docs/from-nats-py.md lists all names; here are those that programs use most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

_EVENTS = "pass on_event=, which gets all events"
_STATE = "use nc.state"
_CONSUMER = "make a consumer with stream.create_consumer(...), then use its consume, messages or fetch"
_PUBLISHER = "use async with js.publisher() as publisher"

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("error_cb", "disconnected_cb", "reconnected_cb", "closed_cb"), _EVENTS),
    **dict.fromkeys(("discovered_server_cb", "lame_duck_mode_cb"), _EVENTS),
    "dont_randomize": "pass randomize=False",
    "flush_timeout": "pass a timeout to flush",
    "nkeys_seed": "pass nkey_seed=",
    "nkeys_seed_str": "pass nkey_seed=",
    "pending_size": "pass outbox_limit=",
    "reconnect_time_wait": "pass reconnect_wait=",
    "reconnect_to_server_handler": "pass reconnect_to_server=",
    "signature_cb": "pass auth=",
    "tls_handshake_first": "pass tls_first=",
    "user_credentials": "pass creds=",
    "user_jwt_cb": "pass auth=",
    "ws_connection_headers": "pass websocket_headers=",
}

CLIENT: Mapping[str, str] = {
    **dict.fromkeys(("is_closed", "is_connecting", "is_draining", "is_reconnecting"), _STATE),
    "add_stream": "use nc.jetstream().create_stream(...)",
    "connect": "use nc = await natsproto.connect(...)",
    "connected_server_version": "use nc.server_info.version",
    "force_reconnect": "use nc.reconnect()",
    "jsm": "use nc.jetstream()",
    "publish_async": "use async with nc.jetstream().publisher() as publisher",
    "last_error": "read nc.events(), or pass on_event= to connect",
    "set_server_pool": "use nc.set_servers(...)",
}

SUBSCRIPTION: Mapping[str, str] = {
    "messages": "use async for message in subscription",
    "next_msg": "use subscription.next(timeout)",
}

JETSTREAM: Mapping[str, str] = {
    **dict.fromkeys(("pull_subscribe", "subscribe"), _CONSUMER),
    **dict.fromkeys(("publish_async", "publish_async_completed", "publish_async_pending"), _PUBLISHER),
    "add_consumer": "use stream.create_consumer(...)",
    "add_stream": "use js.create_stream(...)",
    "consumer_info": "use stream.consumer_info(name)",
    "consumers_info": "use async for info in stream.consumers()",
    "delete_consumer": "use stream.delete_consumer(name)",
    "delete_msg": "use stream.delete_message(seq)",
    "find_stream_name_by_subject": "use js.stream_name_by_subject(subject)",
    "get_last_msg": "use stream.get_last_message(subject)",
    "get_msg": "use stream.get_message(seq)",
    "pull_subscribe_bind": "use stream.consumer(name, bind=True)",
    "purge_stream": "use stream.purge(...)",
    "stream_info": "use stream.info(), of stream = await js.stream(name)",
    "streams_info": "use async for info in js.streams()",
    "subscribe_bind": "use stream.push_consumer(name)",
}

KEY_VALUE: Mapping[str, str] = {"watchall": "use kv.watch()"}

OBJECT_STORE: Mapping[str, str] = {"get_info": "use store.info(name)"}


def hint(name: str, old: Mapping[str, str]) -> str:
    """``: use nc.jetstream()`` for an old name, for the end of a message; empty for other names."""
    return f": {old[name]}" if name in old else ""


def blocking(old: Mapping[str, str]) -> Mapping[str, str]:
    """The hints for the blocking client: without ``async``, ``await`` and callbacks."""
    hints = dict(old)
    for words, replacement in (("async ", ""), ("await natsproto.", "sync."), ("await ", ""), ("consume, ", "")):
        hints = {name: text.replace(words, replacement) for name, text in hints.items()}
    return hints


def explain_missing(old: Mapping[str, str]) -> Callable[[object, str], NoReturn]:
    """Make a ``__getattr__`` that raises AttributeError with a hint for old names. Hide it from type checkers."""

    def __getattr__(self: object, name: str) -> NoReturn:
        text = f"{type(self).__name__!r} object has no attribute {name!r}{hint(name, old)}"
        raise AttributeError(text, name=name, obj=self)

    return __getattr__
