"""The cursor of a get of many messages: its requests, its order and its limits."""

from __future__ import annotations

from natsproto.jetstream._stream.batch_get import PageCursor


def test_page_cursor_next_request() -> None:
    cursor = PageCursor({"next_by_subj": "a"}, {"start_time": "T"}, limit=10, max_bytes=1000)
    assert cursor.request() == {"next_by_subj": "a", "start_time": "T", "batch": 10, "max_bytes": 1000}
    assert cursor.single_request() == {"next_by_subj": "a", "start_time": "T"}
    assert cursor.take(5, 0, 100)
    assert cursor.take(9, 5, 100)
    assert not cursor.take(12, 11, 100)
    assert cursor.request() == {"next_by_subj": "a", "seq": 10, "batch": 8, "max_bytes": 800}
    assert cursor.single_request() == {"next_by_subj": "a", "seq": 10}


def test_page_cursor_snapshot() -> None:
    cursor = PageCursor({"multi_last": ["a"], "up_to_time": "T"}, {})
    assert "up_to_seq" not in cursor.request()
    cursor.take(5, 0, 1)
    assert cursor.end_of_page(3, 5, 20)
    request = cursor.request()
    assert (request["seq"], request["up_to_seq"], "up_to_time" in request) == (6, 20, False)


def test_page_cursor_limits() -> None:
    limited = PageCursor({}, {"seq": 1}, limit=2)
    steps = [(limited.take(1, 0, 1), limited.done, limited.end_of_page(7, 1, 0))]
    limited.request()
    steps.append((limited.take(2, 0, 1), limited.done, limited.end_of_page(6, 2, 0)))
    assert steps == [(True, False, True), (True, True, False)]
    sized = PageCursor({}, {"seq": 1}, max_bytes=10)
    assert (sized.take(1, 0, 10), sized.done) == (True, True)
    unbounded = PageCursor({}, {"seq": 1})
    assert (unbounded.take(1, 0, 10), unbounded.done, unbounded.end_of_page(0, 1, 0)) == (True, False, False)
