"""What is measured of operations, and the templates of subjects that keep the number of time series small.

Owns the instruments that the semantic conventions name and the choice of a template. Subjects themselves are never
attributes of a metric: there can be as many as messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from opentelemetry.metrics import Meter
from opentelemetry.trace import Span

from natsproto.errors import ConfigError
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import matches, subscribe_subject

log = logging.getLogger("natsproto")

Templates: TypeAlias = Sequence[str] | Callable[[str], str | None]
"""Templates of subjects, or a function from a subject to its template (None: it has none)."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_PLACE = re.compile(r"\{[^{}.]*\}")


class Operation(NamedTuple):
    """What a span is about, for an ``enrich`` hook.

    ``name`` and ``type`` are those of the conventions (``publish``, ``send``). ``subject`` is None where there are
    several; ``messages`` are those received or processed, none where something is sent.
    """

    name: str
    type: str
    subject: str | None
    messages: Sequence[Message]


Enrich: TypeAlias = Callable[[Span, Operation], object]


class Measures:
    """The histograms and counters of the conventions, made with one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending, receiving and settling",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were attempted to be sent"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered to the application"
        )

    def record(self, type: str, attributes: Mapping[str, str | int], seconds: float, sent: int, consumed: int) -> None:
        """An operation of this type has ended."""
        if type == "process":
            self._process.record(seconds, attributes)
        elif type != "create":  # which sends nothing
            self._operation.record(seconds, attributes)
        if sent:
            self._sent.add(sent, attributes)
        if consumed:
            self._consumed.add(consumed, attributes)


def template_of(templates: Templates) -> Callable[[str], str | None]:
    """The function from a subject to its template. A function that fails is logged, and there is none.

    ConfigError or InvalidSubject for templates that cannot be.
    """
    if callable(templates):
        asked = templates

        def ask(subject: str) -> str | None:
            try:
                return asked(subject)
            except Exception as exc:
                log.error("the function of templates failed for %r: %r", subject, exc, exc_info=exc)
                return None

        return ask
    if isinstance(templates, str):
        raise ConfigError("templates", templates, "must be a sequence of templates, or a function")
    patterns = [(_PLACE.sub("*", template), template) for template in templates]
    for pattern, _ in patterns:
        subscribe_subject(pattern, "template")

    @lru_cache(maxsize=4096)
    def look_up(subject: str) -> str | None:
        return next((template for pattern, template in patterns if matches(pattern, subject)), None)

    return look_up
