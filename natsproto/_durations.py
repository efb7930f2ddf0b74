"""Durations as users write them: seconds or ``timedelta``, checked and turned into float seconds.

Owns the rules for every ``timeout=`` and other duration argument of the package. It knows no option by name: callers
pass the name for the error message.
"""

from __future__ import annotations

import math
from datetime import timedelta
from enum import Enum
from typing import Final

from natsproto import errors

NO_LIMIT_S: Final = 1e9
"""Seconds for None as a timeout: 31 years, because neither uvloop nor servers take infinity."""


class Default(Enum):
    """The type of ``DEFAULT``, which stands for an argument that was left out where None means no limit."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT


def seconds(what: str, value: object) -> float:
    """A duration as users write it, seconds or timedelta, as float seconds >= 0.

    TypeError for other types, ConfigError naming ``what`` for negative and infinite ones, nan and bool.
    """
    if type(value) is float and 0 <= value < math.inf:
        return value  # nearly always
    if isinstance(value, timedelta):
        return seconds(what, value.total_seconds())
    if isinstance(value, bool):
        raise errors.ConfigError(what, value, "must be a number of seconds or a timedelta, not a bool")
    if not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise errors.ConfigError(what, number, "must be a finite number of seconds, 0 or more")
    return number


def positive_seconds(what: str, value: object) -> float:
    """A duration without which nothing could succeed: ``seconds``, and ConfigError for 0."""
    if type(value) is float and 0 < value < math.inf:
        return value  # nearly always
    number = seconds(what, value)
    if number == 0:
        raise errors.ConfigError(what, number, "must be more than 0 seconds")
    return number


def time_limit(what: str, value: object) -> float:
    """The timeout of a call that waits for something to come: ``seconds``, and None for no limit."""
    return NO_LIMIT_S if value is None else seconds(what, value)
