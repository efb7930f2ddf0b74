"""Features that older servers lack: the server versions that have them, and how their absence is detected (ADR-44).

An older server ignores the fields of a configuration, and the headers of a message, that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from natsproto import errors
from natsproto.jetstream._values.codec import Record
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.info import api_level
from natsproto.jetstream._values.policies import AckPolicy, PriorityPolicy
from natsproto.protocol.frames import ServerInfo

Features: TypeAlias = Mapping[str, tuple[str, int]]
"""For each field: the first server that knows it, and the level of its API."""

STREAM_FEATURES: Features = {
    "allow_msg_ttl": ("2.11", 1),
    "subject_delete_marker_ttl": ("2.11", 1),
    "allow_msg_counter": ("2.12", 2),
    "allow_atomic": ("2.12", 2),
    "allow_msg_schedules": ("2.12", 2),
    "persist_mode": ("2.12", 2),
    "allow_batched": ("2.14", 4),
}
CONSUMER_FEATURES: Features = {
    "pause_until": ("2.11", 1),
    "priority_groups": ("2.11", 1),
    "priority_policy": ("2.11", 1),
}


class RequiredFeature(NamedTuple):
    """A feature that older servers ignore: the first server that knows it, and the level of its API."""

    description: str
    version: str
    level: int

    def check(self, server: ServerInfo) -> None:
        """Raise UnsupportedByServer for a server that lacks the feature. Does nothing before any server is known."""
        if server.version and api_level(server) < self.level:
            reason = f"nats-server {self.version} is needed, this is {server.version}"
            raise errors.UnsupportedByServer(self.description, reason)


@contextmanager
def translate_unknown_field(operation: str) -> Iterator[None]:
    """Translate errors for the level, a field (both since 2.12) or a value into UnsupportedByServer."""
    try:
        yield
    except errors.ApiError as exc:
        unknown = exc.err_code == ErrCode.INVALID_JSON and re.search("unknown |can not unmarshal", exc.description)
        if unknown or exc.err_code == ErrCode.REQUIRED_API_LEVEL:
            raise errors.UnsupportedByServer(operation, f"a newer server is needed: {exc.description}") from exc
        raise


START_TIME = RequiredFeature("start_time", "2.11", 1)
LAST_MESSAGES = RequiredFeature("several subjects", "2.11", 1)
MEMORY_BACKUP = RequiredFeature("storage in memory", "2.15", 5)
_NOTHING_NEW = RequiredFeature("", "", 0)
_PEDANTIC = RequiredFeature("pedantic", "2.11", 1)


def needed_by_stream(wanted: StreamConfig, *, pedantic: bool) -> RequiredFeature:
    """Return the newest feature that the configuration needs (ADR-44); one of level 0 for none."""
    needed = _requested(wanted, STREAM_FEATURES)
    if any(source.consumer for source in (wanted.mirror, *wanted.sources) if source is not None):
        needed.append(RequiredFeature("consumer of a source", "2.14", 4))
    return _newest(needed, pedantic)


def needed_by_consumer(wanted: ConsumerConfig, *, pedantic: bool) -> RequiredFeature:
    """Return the newest feature that the configuration needs (ADR-44); one of level 0 for none."""
    needed = _requested(wanted, CONSUMER_FEATURES)
    if wanted.priority_policy == PriorityPolicy.PRIORITIZED:
        needed.append(RequiredFeature("priority_policy 'prioritized'", "2.12", 2))
    if wanted.ack_policy == AckPolicy.FLOW_CONTROL:
        needed.append(RequiredFeature("ack_policy 'flow_control'", "2.14", 4))
    return _newest(needed, pedantic)


def _requested(wanted: Record, features: Features) -> list[RequiredFeature]:
    plain = type(wanted)()
    return [
        RequiredFeature(name, *need) for name, need in features.items() if getattr(wanted, name) != getattr(plain, name)
    ]


def _newest(needed: list[RequiredFeature], pedantic: bool) -> RequiredFeature:
    return max([*needed, _PEDANTIC] if pedantic else needed, key=attrgetter("level"), default=_NOTHING_NEW)


def check_features_kept(wanted: Record, got: Record, features: Features, operation: str) -> None:
    """Raise UnsupportedByServer for a requested field that is missing in the reply. Servers before 2.12, if their
    level is unknown, drop such fields silently.
    """
    plain = type(wanted)()
    for name, (version, _) in features.items():
        default = getattr(plain, name)
        if getattr(wanted, name) != default and getattr(got, name) == default:
            raise errors.UnsupportedByServer(
                operation, f"the server ignored {name}, which needs nats-server {version} or newer"
            )
