"""Which errors end by themselves: the classes of errors decide, and no other module has a list."""

from __future__ import annotations

import ast
import inspect
import pickle

from natsproto import errors
from natsproto.errors._base import Transience, is_transient
from natsproto.jetstream._values.error_codes import api_error
from tests.tools.house import nodes_of, sources

ELECTION = {"JetStreamUnavailable", "TooManyRequests", "NoStream", "StreamUnavailable", "NoResponders"}
OUTAGE = {
    *["RequestTimeout", "ConnectionLost", "ConnectFailed", "OutboxFull", "HeartbeatMissed", "PublishUncertain"],
    *["PublishTimeout", "JetStreamNotEnabled", "StaleConnection", "TlsConnectFailed"],
}
ABSENT = {"NoStream", "NoResponders", "JetStreamNotEnabled"}


def classes() -> dict[str, type[errors.NatsError]]:
    found = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    return {name: value for name, value in found.items() if issubclass(value, errors.NatsError)}


def test_every_error_says_whether_it_ends() -> None:
    for name, kind in classes().items():
        expected = (
            Transience.ELECTION if name in ELECTION else Transience.OUTAGE if name in OUTAGE else Transience.NEVER
        )
        assert (name, kind._transience) == (name, expected)
        assert (name, kind._means_absent) == (name, name in ABSENT)


def test_absence_is_an_outage_only_after_a_contact() -> None:
    gone = errors.NoStream("s")
    assert is_transient(gone)
    assert not is_transient(gone, existed=False)
    assert is_transient(errors.RequestTimeout("r", 1.0), existed=False)
    assert not is_transient(errors.StreamNotFound(404, 10059, "no"))
    assert not is_transient(ValueError())


def test_no_peers_are_transient_after_a_start() -> None:
    def no_peers(reason: str) -> errors.ApiError:
        payload = {
            "error": {"code": 503, "err_code": 10005, "description": f"no suitable peers for placement, {reason}"}
        }
        return api_error(payload)

    assert is_transient(no_peers("peer offline"))
    assert is_transient(pickle.loads(pickle.dumps(no_peers("miscellaneous issue"))))
    assert not is_transient(no_peers("insufficient storage"))


def test_no_module_has_a_list_of_outages() -> None:
    lists = [
        f"{name}:{node.lineno}"
        for name, path in sources("natsproto")
        for node in nodes_of(path)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set))
        and sum(isinstance(item, ast.Name) and item.id in ELECTION | OUTAGE for item in node.elts) > 2
    ]
    assert lists == []
