"""What the server itself says about a run: it is asked over HTTP, where no client can get it wrong."""

from __future__ import annotations

import json
import urllib.request

from natsproto.testing import Server

__all__ = ["messages_received", "version"]


def messages_received(server: Server) -> int:
    """How many messages clients have published to `server` so far."""
    return int(str(_varz(server)["in_msgs"]))


def version(server: Server) -> str:
    """As the server names it."""
    return str(_varz(server)["version"])


def _varz(server: Server) -> dict[str, object]:
    with urllib.request.urlopen(f"{server.monitoring_url}/varz", timeout=10) as answer:
        decoded: dict[str, object] = json.load(answer)
    return decoded
