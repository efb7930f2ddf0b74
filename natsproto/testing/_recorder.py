"""A record of sent and handled items, with two checks.

Owns the two lists of a test. It does no I/O and knows no client: a test says what it has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

_EXAMPLES = 5
"""The most items that an error names."""


class Recorder:
    """Records what a test sent and what was handled; its checks raise AssertionError.

    An item is any hashable value that is sent once, such as an order's number or a payload. Call ``sent`` when the
    sending of an item has ended, and ``handled`` whenever its effect has happened: a row was written, a mail was sent.
    """

    def __init__(self) -> None:
        self._keys: dict[Hashable, Hashable] = {}
        self._uncertain: set[Hashable] = set()
        self._handled: list[Hashable] = []

    def sent(self, item: Hashable, *, key: Hashable = None, uncertain: bool = False) -> None:
        """Record an item, in the order of sending. ValueError when the item was sent before.

        Items of one ``key`` have to be handled in the order in which they were sent. ``uncertain`` is for a send that
        failed without saying whether the item is stored (PublishUncertain, PublishTimeout): it may be handled or not.

        Args:
            item: What identifies the message.
            key: Messages of one key must be handled in the order sent; None: no order.
            uncertain: Whether it was stored is not known, so it may be missing.
        """
        if item in self._keys:
            raise ValueError(f"{item!r} was sent before: give every item a value of its own")
        self._keys[item] = key
        if uncertain:
            self._uncertain.add(item)

    def handled(self, item: Hashable) -> None:
        """Record that an item was handled; call it again when that happens again.

        Args:
            item: What identifies the message.
        """
        self._handled.append(item)

    @property
    def lost(self) -> list[Hashable]:
        """Items that were sent with certainty and not handled (yet)."""
        handled = set(self._handled)
        return [item for item in self._keys if item not in handled and item not in self._uncertain]

    @property
    def repeated(self) -> list[Hashable]:
        """Items that were handled more than once."""
        return [item for item, times in Counter(self._handled).items() if times > 1]

    def check_each_once(self, *, allow_repeats: bool = False) -> None:
        """Check that every item was handled once, and nothing else was. AssertionError names the others.

        With ``allow_repeats`` an item may be handled more than once, as JetStream delivers it again when its
        acknowledgement is lost.

        Args:
            allow_repeats: Accept messages that were handled more than once.
        """
        unknown = [item for item in dict.fromkeys(self._handled) if item not in self._keys]
        faults = [("lost", self.lost), ("handled but never sent", unknown)]
        if not allow_repeats:
            faults.append(("handled more than once", self.repeated))
        _check(faults, len(self._keys))

    def check_order_by_key(self) -> None:
        """Check that the items of each key were first handled in the order of sending. AssertionError names the others.

        Later repetitions do not count, nor do items that are lost: ``check_each_once`` finds these.
        """
        position = {item: number for number, item in enumerate(self._keys)}
        last: dict[Hashable, int] = {}
        late = []
        for item in dict.fromkeys(self._handled):
            if item in position:
                key = self._keys[item]
                if position[item] < last.get(key, -1):
                    late.append(item)
                else:
                    last[key] = position[item]
        _check([("handled after a later item of the same key", late)], len(self._keys))


def _check(faults: Sequence[tuple[str, list[Hashable]]], sent: int) -> None:
    lines = []
    for what, items in faults:
        if items:
            examples = ", ".join(repr(item) for item in items[:_EXAMPLES])
            lines.append(f"{len(items)} of {sent} {what}: {examples}{', …' if len(items) > _EXAMPLES else ''}")
    if lines:
        raise AssertionError("; ".join(lines))
