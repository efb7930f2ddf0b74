"""Comparing an existing configuration with the wanted one, for errors that say what differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig

CONSUMER_DEFAULTS: Mapping[str, object] = {
    "ack_wait": 30.0,
    "inactive_threshold": 5.0,
    "max_ack_pending": 1000,
    "max_waiting": 512,
}
STREAM_DEFAULTS: Mapping[str, object] = {"duplicate_window": 120.0}
"""Values of the server for fields that were not given."""


class Difference(NamedTuple):
    """A field that differs, and both values in words."""

    field: str
    text: str


def consumer_differences(found: ConsumerConfig, wanted: ConsumerConfig) -> Iterator[Difference]:
    """Yield each field in which an existing consumer differs from the wanted one."""
    ignored = {"name", "durable_name", "filter_subject", "filter_subjects"}
    if found.backoff:
        ignored.add("ack_wait")  # it is the first delay of the backoff
    plain = ConsumerConfig()
    yield from sorted(
        (
            *_differences(found, wanted, plain, ignored, CONSUMER_DEFAULTS),
            *_difference("filter_subjects", found.filters, wanted.filters, plain.filters),
        )
    )
    yield from _metadata(found, wanted)


def stream_differences(found: StreamConfig, wanted: StreamConfig) -> Iterator[Difference]:
    """Yield each field in which an existing stream differs from the wanted one."""
    ignored = {"name", "subjects"}
    if not wanted.duplicate_window and found.duplicate_window == found.max_age:
        ignored.add("duplicate_window")  # the server never makes it longer than max_age
    subjects = wanted.subjects or (() if wanted.mirror or wanted.sources else (wanted.name,))
    yield from _difference("subjects", sorted(found.subjects), sorted(subjects), None)
    yield from sorted(_differences(found, wanted, StreamConfig(name=wanted.name), ignored, STREAM_DEFAULTS))
    yield from _metadata(found, wanted)


def _differences(
    found: ConsumerConfig | StreamConfig,
    wanted: ConsumerConfig | StreamConfig,
    plain: ConsumerConfig | StreamConfig,
    ignored: Collection[str],
    server_defaults: Mapping[str, object],
) -> Iterator[Difference]:
    for name in type(wanted)._fields.keys() - {*ignored, "metadata", "extra"}:
        has, default = getattr(found, name), getattr(plain, name)
        asked = getattr(wanted, name)
        if asked != default or has not in (default, server_defaults.get(name), 0, -1):
            yield from _difference(name, has, asked, default)


def _difference(name: str, has: object, wanted: object, default: object) -> Iterator[Difference]:
    if has != wanted:
        instead = "the default" if wanted == default else _shown(wanted)
        yield Difference(name, f"{name}={_shown(has)} instead of {instead}")


def _metadata(found: ConsumerConfig | StreamConfig, wanted: ConsumerConfig | StreamConfig) -> Iterator[Difference]:
    labels = {name: text for name, text in found.metadata.items() if not name.startswith("_nats.")}
    yield from _difference("metadata", labels, dict(wanted.metadata), None)


def _shown(value: object) -> str:
    return str(value) if isinstance(value, StrEnum) else repr(value)
