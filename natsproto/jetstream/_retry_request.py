"""Asking more than once for one answer: a question may get lost where servers are choosing a leader.

Owns when it is asked again. What may be asked twice without harm is for the caller to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from natsproto.errors import RequestTimeout

T = TypeVar("T")

TIMER_SLACK_S = 0.002
"""Seconds that a timer may fire before its time."""


async def retry_request(
    ask: Callable[[float], Awaitable[T]], pauses: Iterable[float], patience: float, asked: str
) -> T:
    """What the first of several questions brings, be it an answer or an error.

    ``ask`` begins a question that is given so many seconds, after each of the ``pauses`` in which there was no answer,
    as long as there are any. RequestTimeout, which names what was ``asked``, when there is none within ``patience``
    seconds. Cancelling drops them all.
    """
    loop = asyncio.get_running_loop()
    questions: list[asyncio.Future[T]] = []
    begun, left = loop.time(), patience
    try:
        for pause in pauses:
            questions.append(asyncio.ensure_future(ask(left)))
            done, _ = await asyncio.wait(questions, timeout=min(pause, left), return_when=asyncio.FIRST_COMPLETED)
            for question in [question for question in questions if question in done]:  # the first one's answer counts
                if not isinstance(question.exception(), RequestTimeout):
                    return question.result()
                questions.remove(question)
            left = begun + patience - loop.time()
            if left <= TIMER_SLACK_S:
                break
        raise RequestTimeout(asked, patience)
    finally:
        for question in questions:
            if not question.cancel() and not question.cancelled():
                question.exception()  # it was looked at: nobody needs to be told of it
