"""Errors that tests raise, and the causes of those that they get."""

from __future__ import annotations

import pytest

import natsproto
from natsproto.errors import ConnectFailed, TlsFailed

__all__ = ["UnknownExit", "cause_of", "only_cause"]


class UnknownExit(BaseException):
    """Neither an Exception nor one that Python knows."""


def only_cause(failed: ConnectFailed) -> BaseException:
    """Why the only server was not connected to."""
    [(_, cause)] = failed.attempts
    return cause


async def cause_of(url: str, **options: object) -> BaseException:
    """Why the only server of a failed connect() was not connected to."""
    with pytest.raises(ConnectFailed) as caught:
        await natsproto.connect(url, **options)  # type: ignore[arg-type]
    cause = only_cause(caught.value)
    assert caught.value.__cause__ is cause
    assert isinstance(caught.value, TlsFailed) is isinstance(cause, TlsFailed)
    return cause
