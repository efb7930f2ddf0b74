"""How many examples a property draws in this run: a tenth in ``make test``, tenfold in ``make hunt``."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(number: int, *, steps: int = 50) -> settings:
    """Settings of a property that needs ``number`` examples in the full run, where Hypothesis' own default is 100.

    ``steps`` is how many rules a state machine runs at most.
    """
    assert settings.default is not None
    scaled = max(1, number * settings.default.max_examples // 100)
    return settings(max_examples=scaled, stateful_step_count=steps)
