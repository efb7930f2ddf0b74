"""When a stream may have forgotten the ids of a repeated task: rows that are stored could be stored twice then.

A stream drops the ids it knows, for its ``duplicate_window``. All rows that an earlier attempt has stored were stored
after the work was planned first. So ids are known as long as that is less than a window ago, and afterwards absence
proves nothing, unless the stream has got no message since then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from natsproto import errors
from natsproto.jetstream import StreamInfo
from natsproto.spark._task import WriteTask

log = logging.getLogger("natsproto")

MARGIN_S = 2.0
"""Seconds by which the clocks of Spark's machines and of the server may differ, or a fifth of the window."""


def window_check(info: StreamInfo, task: WriteTask, *, allow: bool, remedy: str) -> Callable[[], None] | None:
    """Return what raises ConfigError once the stream may have forgotten ids of this task; None if none are stored, or
    ``allow`` accepts that rows are stored twice.
    """
    config, state = info.config, info.state
    age = time.time() - task.since
    if state.last_ts is None or (info.ts - state.last_ts).total_seconds() > age + MARGIN_S:
        return None  # no message since then
    if allow:
        log.warning(
            "task %s is repeated, %.0f s after it was planned first: rows that stream %s has stored longer ago than "
            "its duplicate_window (%g s) are stored twice",
            *(task.partition, age, config.name, config.duplicate_window),
        )
        return None
    limit = config.duplicate_window - min(MARGIN_S, config.duplicate_window / 5)

    def check() -> None:
        age = time.time() - task.since
        if age >= limit:
            raise errors.ConfigError(
                f"duplicate_window of stream {config.name}",
                config.duplicate_window,
                f"is over for partition {task.partition}, which is repeated {age:.0f} s after it was planned first: "
                f"rows that are stored could be stored twice. {remedy}",
            )

    return check
