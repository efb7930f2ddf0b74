"""Repeating a request until there is a reply: servers that are electing a leader drop requests.

Owns the timing. The caller knows which requests are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from natsproto import errors
from natsproto._core.replies.outages import Outages

T = TypeVar("T")

TIMER_SLACK_S = 0.002
"""Seconds by which a timer may fire early."""


async def retry_request(
    ask: Callable[[float], Awaitable[T]],
    pauses: Iterable[float],
    patience: float,
    operation: str,
    outages: Outages,
    *,
    on_silence: Callable[[], None] | None = None,
) -> T:
    """Return the first reply to a repeated request, or raise its error.

    ``ask(timeout)`` sends a request; it is called again after each of the ``pauses`` without a reply, except during one
    of the ``outages``, which the first request outlasts. RequestTimeout, which names ``operation``, after ``patience``
    seconds. ``on_silence`` is called before a repetition. Cancelling
    cancels all requests.
    """
    loop = asyncio.get_running_loop()
    questions: list[asyncio.Future[T]] = []
    begun, left = loop.time(), patience
    try:
        for pause in pauses:
            if not questions or not outages.lasts:
                questions.append(asyncio.ensure_future(ask(left)))
            done, _ = await asyncio.wait(questions, timeout=min(pause, left), return_when=asyncio.FIRST_COMPLETED)
            for question in [question for question in questions if question in done]:  # the first reply counts
                if not isinstance(question.exception(), errors.RequestTimeout):
                    return question.result()
                questions.remove(question)
            left = begun + patience - loop.time()
            if left <= TIMER_SLACK_S:
                break
            if on_silence is not None:
                on_silence()
        raise outages.timeout_error(operation, patience)
    finally:
        for question in questions:
            if not question.cancel() and not question.cancelled():
                question.exception()  # mark the exception as retrieved
