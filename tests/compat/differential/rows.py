"""The differences that are allowed: each is a row of tests.compat.differences.table, and the cases that it covers.

Owns the cases. A case looks at the values and at the calls before; none covers a class or a method as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compat.differential.compare import Difference
from tests.compat.differential.run import Step

Case = Callable[[Difference], bool]

TEXTS = ("builtins.ValueError", "errors.BadHeaderError", "js.errors.InvalidKeyError", "errors.BadSubjectError")


def error_in(value: Any) -> str:
    return str(value.get("raised", "")) if isinstance(value, dict) else ""


def argument(found: Difference, name: str) -> Any:
    return None if found.step is None else found.step.arguments.get(name)


def called(found: Difference, *names: str) -> bool:
    """True for a difference in one of these calls; for those of buckets and managers, the name of the method."""
    return found.step is not None and bool({found.step.name, argument(found, "call")} & {*names})


def before(found: Difference, *names: str) -> bool:
    return any(step.name in names for step in found.earlier)


# ---------------------------------------------------------------- connections


def last_error(found: Difference) -> bool:
    """``last_error`` after a reconnect, and so after ``close``."""
    if not called(found, "state") or not before(found, "down") or not isinstance(found.theirs, list):
        return False
    return bool(found.theirs[:-1] == found.ours[:-1]) and found.theirs[-1] == "builtins.ConnectionRefusedError"


def gave_up(found: Difference) -> bool:
    """The reset that ``error_cb`` is told once more when a client gives up."""
    if not found.what.startswith("callbacks of client") or not before(found, "down"):
        return False
    places = [place for place, one in enumerate(found.theirs) if error_in(one) == "builtins.ConnectionResetError"]
    return bool(places) and [*found.theirs[: places[-1]], *found.theirs[places[-1] + 1 :]] == found.ours


def flushed_offline(found: Difference) -> bool:
    return called(found, "flush", "rtt") and before(found, "down") and found.theirs is None


def max_msgs(found: Difference) -> bool:
    """The server's list of subscriptions with ``max_msgs``, and requests that only these would get."""
    limited = {
        (step.arguments["subject"], step.arguments["queue"])
        for step in found.earlier
        if step.name == "subscribe" and (step.arguments["limits"] or step.arguments["kind"] == "future")
    }
    if limited and called(found, "request"):
        return (error_in(found.theirs), error_in(found.ours)) == (
            "errors.TimeoutError",
            "errors.NoRespondersError",
        )
    if found.what == "connz":
        return without_subs(found.theirs, limited) == without_subs(found.ours, limited)
    subjects = {subject for subject, _ in limited}
    return found.what == "subsz" and {*found.theirs} - subjects == {*found.ours} - subjects


def without_subs(clients: list[Any], limited: set[tuple[str, str]]) -> list[Any]:
    return sorted(
        ({**one, "subs": [sub for sub in one["subs"] if (sub[0], sub[1]) not in limited]} for one in clients), key=str
    )


def ends_in_time(found: Difference) -> bool:
    return found.what.endswith(" took") and called(found, "close", "drain", "drain_sub")


def unread_when_drained(found: Difference) -> bool:
    return called(found, "drain_sub") and error_in(found.theirs) == "builtins.TimeoutError" and found.ours is None


def one_of_several(found: Difference) -> bool:
    mistakes = ("errors.BadSubjectError", "errors.BadHeaderError", "errors.ConnectionClosedError")
    both = {error_in(found.theirs), error_in(found.ours)}
    return called(found, "publish", "request", "subscribe") and both <= {*mistakes}


def future_is_read(found: Difference) -> bool:
    future = any(
        step.name == "subscribe"
        and step.arguments["sub"] == argument(found, "sub")
        and step.arguments["kind"] == "future"
        for step in found.earlier
    )
    return called(found, "next_msg", "js_next") and future and error_in(found.ours) == "errors.Error"


def ended(found: Difference) -> bool:
    """Reading from a subscription that was ended, or drained, before."""
    ends = any(
        step.name in ("unsubscribe", "drain_sub") and step.arguments["sub"] == argument(found, "sub")
        for step in found.earlier
    )
    both = (error_in(found.theirs), error_in(found.ours))
    return called(found, "next_msg") and ends and both == ("errors.TimeoutError", "errors.BadSubscriptionError")


# ---------------------------------------------------------------- JetStream


def left_consumers(found: Difference) -> bool:
    """Consumers of watches, listings and ordered subscriptions that are over, and the numbers of consumers."""
    if found.step is not None:
        return any(map(makes_ordered, found.earlier)) and uncounted(found.theirs) == uncounted(found.ours)
    return same_streams(found, without_ordered)


def ordered_config(found: Difference) -> bool:
    """Heartbeats, name and threshold of an ordered consumer that is in use."""
    return called(found, "sub_info", "consumers_info") and as_ordered(found.theirs) == as_ordered(found.ours)


def as_ordered(value: Any) -> Any:
    """Without what differs in the infos of ordered consumers."""
    if isinstance(value, list):
        return sorted(map(as_ordered, value), key=str)
    if not isinstance(value, dict) or not is_ordered(value.get("config") or {}):
        return value
    differs = ("idle_heartbeat", "inactive_threshold", "name")
    return {**value, "config": {name: one for name, one in value["config"].items() if name not in differs}}


def left_inboxes(found: Difference) -> bool:
    return found.what == "inboxes without a subscription" and found.ours == 0


def makes_ordered(step: Step) -> bool:
    given = step.arguments.get("arguments") or {}
    reads = ("keys", "history", "purge_deletes", "get", "list", "seal", "delete")
    return step.name == "watch" or given.get("ordered_consumer", False) or step.arguments.get("call") in reads


def uncounted(value: Any) -> Any:
    """Without the numbers of consumers."""
    if isinstance(value, list):
        return [uncounted(one) for one in value]
    if isinstance(value, dict):
        return {name: uncounted(one) for name, one in value.items() if name not in ("consumers", "consumer_count")}
    return value


def stored_ids(found: Difference) -> bool:
    """The ids of chunks and writes, and the JSON of metadata."""
    return same_streams(found, lambda one: without_ordered(without_ids(one)))


def read_ids(found: Difference) -> bool:
    """The id of a write of a bucket, in a message that was read from its stream."""
    return called(found, "fetch", "js_next") and bool(found.theirs == without_write(found.ours))


def without_write(value: Any) -> Any:
    if isinstance(value, list):
        return [without_write(one) for one in value]
    if isinstance(value, dict):
        return {
            name: (without_write(one) or None) if name == "headers" else without_write(one)
            for name, one in value.items()
            if name != "Natsproto-Write"
        }
    return value


def put_too_much(found: Difference) -> bool:
    both = (error_in(found.theirs), error_in(found.ours))
    refused = both == ("errors.TimeoutError", "errors.OutboundBufferLimitError")
    return called(found, "put_object") and before(found, "down") and refused


def not_json(found: Difference) -> bool:
    return (error_in(found.theirs), error_in(found.ours)) == ("json.decoder.JSONDecodeError", "errors.Error")


def late_refusal(found: Difference) -> bool:
    given = argument(found, "arguments") or {}
    return found.what.endswith(" took") and called(found, "update", "delete") and bool(given.get("last"))


def fetched_from_push(found: Difference) -> bool:
    """A fetch by the name of a consumer that pushes."""
    pulls = [step for step in found.earlier if step.name in ("pull_subscribe", "pull_bind")]
    named = [step.arguments["arguments"] for step in pulls if step.arguments["sub"] == argument(found, "sub")]
    pulled = {given.get("durable") or given.get("consumer") for given in named} - {None}
    nothing = found.theirs == [] or error_in(found.theirs) == "errors.TimeoutError"
    refused = error_in(found.ours) == "js.errors.ServiceUnavailableError"
    return called(found, "fetch") and nothing and refused and bool(pulled & pushing(found))


def pushing(found: Difference) -> set[str]:
    """The names of the push consumers that there may have been."""
    names: set[str] = set()
    for step in found.earlier:
        given = step.arguments.get("config" if step.name == "add_consumer" else "arguments") or {}
        if step.name == "js_subscribe" or "deliver_subject" in given:
            names |= {given[one] for one in ("durable_name", "name", "durable", "queue") if one in given}
    return names


def same_streams(found: Difference, normal: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    """True if the streams differ only in what ``normal`` leaves out."""
    return found.what.startswith("streams") and list(map(normal, found.theirs)) == list(map(normal, found.ours))


def without_ordered(stream: dict[str, Any]) -> dict[str, Any]:
    return {**stream, "consumers": [each for each in stream["consumers"] if not is_ordered(each[0])]}


def without_ids(stream: dict[str, Any]) -> dict[str, Any]:
    """Without these headers in buckets and object stores, and without the JSON of objects."""
    if not stream["config"]["name"].startswith(("KV_", "OBJ_")):
        return stream
    messages = [
        [seq, subject, b"", []]
        if subject.startswith("$O.") and ".M." in subject
        else [seq, subject, data, [one for one in headers if one[0] not in ("Nats-Msg-Id", "Natsproto-Write")]]
        for seq, subject, data, headers in stream["messages"]
    ]
    return {**stream, "messages": messages}


def is_ordered(config: dict[str, Any]) -> bool:
    return config.get("ack_policy") == "none" and bool(config.get("mem_storage")) and "durable_name" not in config


def deleted_bucket(found: Difference) -> bool:
    gone = (
        "js.errors.NotFoundError",
        "js.errors.KeyNotFoundError",
        "js.errors.NoKeysError",
        "js.errors.ServiceUnavailableError",
        "js.errors.ObjectNotFoundError",
    )
    return error_in(found.ours) == "js.errors.BucketNotFoundError" and error_in(found.theirs) in gone


# ---------------------------------------------------------------- services


def handler_raised(found: Difference) -> bool:
    """``error_cb`` with what a handler of a service raised."""
    raising = any(step.name == "add_endpoint" and step.arguments["kind"] == "raises" for step in found.earlier)
    if not raising or not found.what.startswith("callbacks of client"):
        return False
    return bool(found.theirs == [one for one in found.ours if error_in(one) != "builtins.ValueError"])


def error_of_handler(found: Difference) -> bool:
    """``last_error`` of an endpoint, with the code before the exception."""
    raising = any(step.name == "add_endpoint" and step.arguments["kind"] == "raises" for step in found.earlier)
    return raising and called(found, "ask_service", "stats") and bool(found.theirs == uncoded(found.ours))


def uncoded(value: Any) -> Any:
    if isinstance(value, list):
        return [uncoded(one) for one in value]
    if isinstance(value, dict):
        return {
            name: one.removeprefix("500:") if name == "last_error" and one else uncoded(one)
            for name, one in value.items()
        }
    return value


def stopped_service(found: Difference) -> bool:
    stopped = any(step.name == "service" and step.arguments["call"] == "stop" for step in found.earlier)
    return (
        stopped
        and called(found, "stats", "info")
        and normal_info({**found.theirs, "endpoints": None}) == normal_info({**found.ours, "endpoints": None})
    )


def no_description(found: Difference) -> bool:
    if not called(found, "ask_service", "info"):
        return False
    return bool(normal_info(found.theirs) == normal_info(found.ours))


def normal_info(value: Any) -> Any:
    """Without what is null in nats-py and empty here."""
    if isinstance(value, list):
        return [normal_info(one) for one in value]
    if isinstance(value, dict):
        return {
            name: normal_info(one) for name, one in value.items() if one not in (None, "", {}) and name != "metadata"
        }
    return value


def reset_counters(found: Difference) -> bool:
    reset = any(step.name == "service" and step.arguments["call"] == "reset" for step in found.earlier)
    return reset and called(found, "ask_service", "stats") and same_counts(found.theirs) == same_counts(found.ours)


def same_counts(value: Any) -> Any:
    """Without the counters of endpoints."""
    if isinstance(value, list):
        return [same_counts(one) for one in value]
    if isinstance(value, dict):
        counters = ("num_requests", "num_errors", "last_error", "processing_time", "average_processing_time")
        return {name: same_counts(one) for name, one in value.items() if name not in counters}
    return value


def stopped_after_close(found: Difference) -> bool:
    closed = error_in(found.theirs) == "errors.ConnectionClosedError" and found.ours is None
    return called(found, "service") and argument(found, "call") == "stop" and closed


# ---------------------------------------------------------------- arguments


def invalid_key(found: Difference) -> bool:
    return called(found, "history", "watch", "keys") and error_in(found.ours) == "js.errors.InvalidKeyError"


def texts(found: Difference) -> bool:
    return error_in(found.theirs) == error_in(found.ours) and error_in(found.ours) in TEXTS


CASES: dict[str, Case] = {
    "`last_error` after a reconnect": last_error,
    "`close()` and `drain()`": ends_in_time,
    "`drain()` of a subscription with unread messages": unread_when_drained,
    "A call with several mistakes, such as an invalid subject after `close()`": one_of_several,
    "`error_cb` of a client that gives up after a reset": gave_up,
    "`flush()` while the client reconnects": flushed_offline,
    "`ObjectStore.put` of more than `pending_size` in an outage": put_too_much,
    "`subscribe(max_msgs=...)`": max_msgs,
    "`next_msg()` of a subscription with a future": future_is_read,
    "`next_msg()` after the last message": ended,
    "Consumers of watches, listings and ordered subscriptions": left_consumers,
    "Inboxes of `request(old_style=True)` without a reply, and of `keys()` and `history()` without a value": (
        left_inboxes
    ),
    "The configuration of ordered consumers": ordered_config,
    "`fetch()` from a consumer that is deleted meanwhile, or that is a push consumer": fetched_from_push,
    "Replies to JetStream calls that are not JSON": not_json,
    "A bucket that was deleted": deleted_bucket,
    "Bucket keys with `validate_keys=False`, and in `purge`, `history` and `watch`": invalid_key,
    "Texts of errors about arguments": texts,
    "An exception in a handler of a service": handler_raised,
    "`last_error` of an endpoint whose handler raised": error_of_handler,
    "Endpoints of a service that was stopped": stopped_service,
    "`INFO` of a service without description or metadata": no_description,
    "`reset()` of a service": reset_counters,
    "`stop()` of a service after `close()`": stopped_after_close,
    "Chunks of objects": stored_ids,
    "`create`, `update` and `delete(last=...)` of a bucket": lambda found: stored_ids(found) or read_ids(found),
    "Metadata of objects": stored_ids,
    "`update` and `delete(last=...)` with a later revision than the bucket has": late_refusal,
}
"""The rows of tests.compat.differences.table.SAFER that the kit meets."""


def unexplained(found: list[Difference]) -> list[Difference]:
    """The differences that no row covers."""
    return [one for one in found if not any(case(one) for case in CASES.values())]
