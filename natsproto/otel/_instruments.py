"""The metrics of messaging operations, and the subject templates that keep the number of time series small.

Owns the instruments of the semantic conventions and the choice of a template. A subject is never an attribute of a
metric, because there can be as many subjects as messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from opentelemetry.metrics import Meter
from opentelemetry.trace import Span

from natsproto import errors
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import matches, subscribe_subject

log = logging.getLogger("natsproto")

Templates: TypeAlias = Sequence[str] | Callable[[str], str | None]
"""Subject templates, or a function that returns the template of a subject (None: it has none)."""

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_PLACEHOLDER = re.compile(r"\{[^{}.]*\}")


class Operation(NamedTuple):
    """The operation of a span, for an ``enrich`` hook.

    ``name`` and ``type`` are those of the conventions (``publish``, ``send``). ``subject`` is None for several
    subjects. ``messages`` are the messages received or processed; empty for sending.
    """

    name: str
    type: str
    subject: str | None
    messages: Sequence[Message]


Enrich: TypeAlias = Callable[[Span, Operation], object]
"""Called with every span and its operation before it ends; sets attributes of a program's own."""


class Instruments:
    """The histograms and counters of the semantic conventions, made with one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending, receiving and settling",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were attempted to be sent"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered to the application"
        )

    def record(self, type: str, attributes: Mapping[str, str | int], seconds: float, sent: int, consumed: int) -> None:
        """Record the end of an operation of this type."""
        if type == "process":
            self._process.record(seconds, attributes)
        elif type != "create":  # which sends nothing
            self._operation.record(seconds, attributes)
        if sent:
            self._sent.add(sent, attributes)
        if consumed:
            self._consumed.add(consumed, attributes)


def template_of(templates: Templates) -> Callable[[str], str | None]:
    """Return a function from a subject to its template. A user's function that raises is logged and yields None.

    ConfigError or InvalidSubject for invalid templates.
    """
    if callable(templates):
        user_function = templates

        def call(subject: str) -> str | None:
            try:
                return user_function(subject)
            except Exception as exc:
                log.error("the templates function failed for %r: %r", subject, exc, exc_info=exc)
                return None

        return call
    if isinstance(templates, str):
        raise errors.ConfigError("templates", templates, "must be a sequence of templates or a function")
    patterns = [(_PLACEHOLDER.sub("*", template), template) for template in templates]
    for pattern, template in patterns:
        subscribe_subject(pattern, "template")
        if any(re.search("[{}]", token) and not _PLACEHOLDER.fullmatch(token) for token in template.split(".")):
            raise errors.InvalidSubject("template", template, "has a brace outside of a token such as {id}")

    @lru_cache(maxsize=4096)
    def look_up(subject: str) -> str | None:
        return next((template for pattern, template in patterns if matches(pattern, subject)), None)

    return look_up
