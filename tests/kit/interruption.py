"""Cancel an operation at its n-th suspension, for every n.

Owns the counting: the operation is driven step by step inside a task, and the cancellation comes at the
chosen step in one of three ways, because they meet different code: at once, in the same turn of the loop;
a turn later; or in the moment in which what was waited for happens, before the waiter has run, when a
message or an answer is easily lost. Knows nothing of what it interrupts.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass

__all__ = ["Interruption", "Moment", "interruptions"]

STEPS = 500  # an operation that suspends more often than this is not one a test should interrupt


class Moment(enum.Enum):
    """When the cancellation comes, seen from the suspension."""

    AT_ONCE = "at once"
    A_TURN_LATER = "a turn later"
    TOO_LATE = "when it is over"


@dataclass(frozen=True, slots=True)
class Interruption:
    """What came of one run: the suspension it was cancelled at, counted from 1, and what it raised or returned.

    ``delivered`` says whether it was still suspended when the cancellation came; if so it must have ended with
    CancelledError.
    """

    step: int
    moment: Moment
    delivered: bool
    error: BaseException | None
    value: object = None

    def check(self) -> None:
        """AssertionError when the cancellation was swallowed or something else was raised instead."""
        if self.delivered:
            assert isinstance(self.error, asyncio.CancelledError), f"swallowed: {self}"
        elif self.error is not None:
            raise self.error


class _Driver:
    """Passes everything between an operation and its task, and cancels the task at the chosen suspension."""

    def __init__(self, operation: Awaitable[object], step: int, moment: Moment) -> None:
        self._operation, self._step, self._moment = operation.__await__(), step, moment
        self.task: asyncio.Task[object] | None = None
        self.cancelled = False

    def _cancel(self, _: object = None) -> None:
        assert self.task is not None
        if not self.task.done():
            self.cancelled = self.task.cancel()

    def _interrupt(self, waited_for: object) -> None:
        loop = asyncio.get_running_loop()
        if self._moment is Moment.AT_ONCE:
            self._cancel()
        elif self._moment is Moment.TOO_LATE and isinstance(waited_for, asyncio.Future):
            waited_for.add_done_callback(self._cancel)  # runs in front of the task's own
        else:
            loop.call_soon(self._cancel)

    def __await__(self) -> Generator[object, object, object]:
        step = 0
        failure: BaseException | None = None
        while True:
            try:
                waited_for = self._operation.send(None) if failure is None else self._operation.throw(failure)
            except StopIteration as stop:
                return stop.value
            step += 1
            if step == self._step:
                self._interrupt(waited_for)
            failure = None
            try:
                yield waited_for
            except BaseException as exc:
                failure = exc


async def interruptions(
    operation: Callable[[], Awaitable[object]], *, limit: float = 10.0
) -> AsyncIterator[Interruption]:
    """Runs the operation again and again, cancelled at its first suspension, at its second …, in each of the
    three ways, until it ends before the cancellation comes.

    Between two runs the caller does what it wants to check. A run that does not end within ``limit`` seconds is
    an AssertionError.
    """
    for moment in Moment:
        for step in range(1, STEPS):
            result = await _run(operation, step, moment, limit)
            yield result
            if not result.delivered:
                break
        else:
            raise AssertionError(f"still suspending after {STEPS} steps")


async def _run(operation: Callable[[], Awaitable[object]], step: int, moment: Moment, limit: float) -> Interruption:
    driver = _Driver(operation(), step, moment)

    async def drive() -> object:
        return await driver

    task = driver.task = asyncio.get_running_loop().create_task(drive())
    done, _ = await asyncio.wait([task], timeout=limit)
    if not done:
        task.cancel()
        raise AssertionError(f"did not end within {limit:g} s, cancelled at step {step}, {moment.value}")
    if task.cancelled():
        return Interruption(step, moment, driver.cancelled, asyncio.CancelledError())
    error = task.exception()
    return Interruption(step, moment, driver.cancelled, error, None if error else task.result())
