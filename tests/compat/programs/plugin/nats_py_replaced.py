"""A pytest plugin for the tests of FastStream: ``nats`` is natsproto.compat.nats, and the server is a real one.

``make frameworks FASTSTREAM=...`` runs ``pytest -p nats_py_replaced tests/brokers/nats`` in a checkout.
"""

from __future__ import annotations

import natsproto.compat

natsproto.compat.install()  # before anything imports nats

from natsproto.testing import run_server  # noqa: E402

_server = run_server(jetstream=True, port=4222)  # where the tests expect it


def pytest_configure() -> None:
    """Start the server."""
    _server.__enter__()


def pytest_unconfigure() -> None:
    """Stop the server."""
    _server.__exit__(None, None, None)
