"""How many examples a property draws in this run: a tenth in ``make test``, tenfold in ``make hunt``."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

__all__ = ["examples", "lists_up_to"]

T = TypeVar("T")


def lists_up_to(size: int, elements: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    """Lists of all sizes up to this one. Without a drawn size, ``st.lists`` has five elements on average."""
    return st.integers(0, size).flatmap(lambda drawn: st.lists(elements, min_size=drawn, max_size=drawn))


def examples(number: int, *, steps: int = 50) -> settings:
    """Settings of a property that needs ``number`` examples in the full run, where Hypothesis' own default is 100.

    ``steps`` is how many rules a state machine runs at most.
    """
    assert settings.default is not None
    scaled = max(1, number * settings.default.max_examples // 100)
    return settings(max_examples=scaled, stateful_step_count=steps)
